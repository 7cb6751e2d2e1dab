//! Data sets: samples for the inputs of a model and their labels. Numbers are in memory; images stay encoded in their files.

use std::ffi::OsString;
use std::path::Path;

use of_diag::{Code, Diagnostics};
use of_ir::{DType, Dim, Elements, Tensor, Type};
use of_passes::specialize::Bindings;

use super::augmentation::Draw;
use super::batch_rows::{BatchRows, partner};
use super::class_names::ClassNames;
use super::encoded::EncodedImages;
use super::formats::{Source, source};
use super::lazy::LazyColumn;
use super::mixup::{self, Probabilities};
use super::order::{random_of, sample_order};
use super::text::{self, TextOptions};
use super::{columns, example, features, idx, image_folders, ofrecord, table, webdataset};
use crate::error::error;
use crate::images::ImageOptions;
use crate::{npy, tensor_files};

/// A column of a data set: the values of one input for all samples.
#[derive(Clone, Debug)]
struct Column {
    name: String,
    values: Values,
}

/// The values of a column.
#[derive(Clone, Debug)]
pub(super) enum Values {
    /// Numbers in memory, the first axis of which are the samples.
    Numbers(Tensor),
    /// Images that are decoded when a batch needs them.
    Images(EncodedImages),
    /// Samples that are made when a batch needs them.
    Lazy(LazyColumn),
}

impl Values {
    /// Number of samples.
    fn len(&self) -> usize {
        match self {
            Values::Numbers(tensor) => tensor.dims().first().copied().unwrap_or(0),
            Values::Images(images) => images.len(),
            Values::Lazy(lazy) => lazy.len(),
        }
    }

    /// Extents of a sample.
    fn sample_dims(&self) -> &[usize] {
        match self {
            Values::Numbers(tensor) => tensor.dims().get(1..).unwrap_or(&[]),
            Values::Images(images) => images.dims(),
            Values::Lazy(lazy) => lazy.dims(),
        }
    }

    fn dtype(&self) -> DType {
        match self {
            Values::Numbers(tensor) => tensor.dtype(),
            Values::Images(images) => images.dtype(),
            Values::Lazy(lazy) => lazy.dtype(),
        }
    }

    /// The samples of these numbers.
    fn select(&self, samples: &[usize]) -> Result<Values, Diagnostics> {
        match self {
            Values::Numbers(tensor) => {
                numbers(tensor.dtype(), samples.len(), self.sample_dims(), self.gather(samples, None)?)
            }
            Values::Images(images) => Ok(Values::Images(images.select(samples))),
            Values::Lazy(lazy) => Ok(Values::Lazy(lazy.select(samples))),
        }
    }

    /// The same values, as numbers in memory.
    fn in_memory(&self) -> Result<Values, Diagnostics> {
        let all: Vec<usize> = (0..self.len()).collect();
        numbers(self.dtype(), all.len(), self.sample_dims(), self.gather(&all, None)?)
    }

    /// Bytes of a sample.
    fn sample_bytes(&self) -> usize {
        match self {
            Values::Numbers(tensor) => tensor.bytes().map_or(0, |bytes| bytes.len() / self.len().max(1)),
            Values::Images(images) => images.sample_bytes(),
            Values::Lazy(lazy) => lazy.sample_bytes(),
        }
    }

    /// The bytes of the samples of these numbers.
    fn gather(&self, samples: &[usize], draw: Option<&Draw>) -> Result<Vec<u8>, Diagnostics> {
        if let Values::Lazy(lazy) = self {
            return lazy.gather(samples);
        }
        let each = self.sample_bytes();
        let mut out = vec![0; each * samples.len()];
        self.write(samples, draw, out.chunks_exact_mut(each.max(1)).collect())?;
        Ok(out)
    }

    /// Writes the samples of these numbers, each to its row.
    fn write(&self, samples: &[usize], draw: Option<&Draw>, rows: Vec<&mut [u8]>) -> Result<(), Diagnostics> {
        let missing = || Diagnostics::from(error(Code::INPUT, "the data has no such samples"));
        let each = self.sample_bytes();
        match self {
            Values::Images(images) => return images.decode(samples, draw, rows),
            Values::Numbers(tensor) => {
                let bytes: &[u8] = tensor.bytes().ok_or_else(missing)?;
                for (sample, row) in samples.iter().zip(rows) {
                    row.copy_from_slice(bytes.get(sample * each..(sample + 1) * each).ok_or_else(missing)?);
                }
            }
            Values::Lazy(lazy) => {
                let bytes = lazy.gather(samples)?;
                if bytes.len() != each * samples.len() {
                    return Err(error(Code::INPUT, "the data's samples have other extents than the first one").into());
                }
                for (sample, row) in bytes.chunks_exact(each.max(1)).zip(rows) {
                    row.copy_from_slice(sample);
                }
            }
        }
        Ok(())
    }
}

/// Numbers of so many samples with these extents.
fn numbers(dtype: DType, samples: usize, sample: &[usize], bytes: Vec<u8>) -> Result<Values, Diagnostics> {
    let dims = std::iter::once(samples).chain(sample.iter().copied()).collect();
    let tensor = Tensor::from_bytes(dtype, dims, of_ir::Blob::new(bytes));
    Ok(Values::Numbers(tensor.map_err(|e| error(Code::INPUT, e.to_string()))?))
}

/// How files of data are read.
#[derive(Clone, Debug)]
pub struct DataOptions {
    /// Normalisation of images.
    pub images: ImageOptions,
    /// How texts become samples.
    pub text: Option<TextOptions>,
    /// Bytes of a column of a Parquet or Arrow file that stay in memory. Files of records are in memory where all of them together are smaller.
    pub cached_bytes: usize,
    /// Whether labels that are classes become probabilities, which the loss wants.
    pub has_probabilities: bool,
    /// Names of the classes that folders of images are of, such as those of the training data; empty is those of the folders themselves.
    pub classes: Vec<String>,
}

impl Default for DataOptions {
    fn default() -> DataOptions {
        DataOptions {
            images: ImageOptions::default(),
            text: None,
            cached_bytes: 256 << 20,
            has_probabilities: false,
            classes: Vec::new(),
        }
    }
}

/// Samples, the first axis of every column.
#[derive(Clone, Debug)]
pub struct Dataset {
    columns: Vec<Column>,
    len: usize,
    /// Names of classes, where folders have given them.
    pub classes: Vec<String>,
}

/// What a model takes: the name and type of each input and of the labels.
#[derive(Clone, Debug)]
pub struct ColumnSpec {
    /// Its name.
    pub name: String,
    /// Its type; the first axis is the batch.
    pub ty: Type,
}

impl Dataset {
    /// Reads data for `wanted`, in that order, of which the last are the labels. Each file is one of:
    /// - `NAME=FILE.npy`, or an IDX file as MNIST's: the values of one input;
    /// - `FILE.npz`: arrays by the names of inputs;
    /// - `FILE.csv`: a table with a header; the column of the labels by its name, and all others are the only input, or the inputs by their
    ///   names, where there are several;
    /// - `FILE.bin`: images and labels of CIFAR-10 or CIFAR-100;
    /// - `FILE.tfrecord`: records of `tf.train.Example` with features of these names;
    /// - `FILE.ofrecord`, `part-00000`: the same of OneFlow's `OFRecord`;
    /// - `FILE.tar`: a WebDataset;
    /// - `FILE.parquet`, `FILE.arrow`, `FILE.feather`: columns by the names of inputs, read as needed: numbers, or encoded images;
    /// - `DIR`: a folder of images for each class, in the order of their names, or as [`DataOptions::classes`] has them.
    ///
    /// Numbers are converted to the element types of the inputs. Pixels of CIFAR are scaled as those of images; those of IDX files are
    /// where a mean or standard deviation is given. Images of folders and archives are decoded when a batch needs them; see
    /// [`Dataset::decode_small`]. So are records, unless all together are small.
    ///
    /// # Errors
    /// When a file cannot be read or is for no input, one is missing, or columns have different lengths.
    pub fn read(files: &[OsString], wanted: &[ColumnSpec], images: &ImageOptions) -> Result<Dataset, Diagnostics> {
        Dataset::read_with(files, wanted, &DataOptions { images: images.clone(), ..DataOptions::default() })
    }

    /// As [`Dataset::read`], also of texts: `FILE.txt`, and `FILE.jsonl` with a text in each line.
    ///
    /// # Errors
    /// As [`Dataset::read`], and when texts have no tokenizer.
    pub fn read_with(files: &[OsString], wanted: &[ColumnSpec], options: &DataOptions) -> Result<Dataset, Diagnostics> {
        let images = &options.images;
        let (mut found, mut records, mut classes): (Vec<Column>, Vec<Column>, Vec<String>) = Default::default();
        let (mut texts, mut names) = (Vec::new(), ClassNames::default());
        for file in files {
            match source(file, wanted)? {
                Source::Array { name, path } if idx::is_idx(&path) => {
                    let values = idx::read_idx(&path)?;
                    let scales = values.dtype() == DType::U8 && values.dims().len() > 1;
                    let scales = scales && (!images.mean.is_empty() || !images.std.is_empty());
                    let values = if scales { idx::pixels(&values, images)? } else { values };
                    found.push(Column { name, values: Values::Numbers(values) });
                }
                Source::Cifar(path) => {
                    let [input, labels] = wanted else {
                        let what = format!("'{}': images are for models of one input", path.display());
                        return Err(error(Code::INPUT, what).into());
                    };
                    let (values, classes) = idx::read_cifar(&path)?;
                    join(&mut found, &input.name, Values::Numbers(idx::pixels(&values, images)?))?;
                    join(&mut found, &labels.name, Values::Numbers(classes))?;
                }
                Source::Records(path) => {
                    let format = if ofrecord::is_ofrecord(&path) { ofrecord::FORMAT } else { example::FORMAT };
                    for (name, values) in features::read(&path, format, wanted, options, &mut names)? {
                        join(&mut records, &name, values)?;
                    }
                }
                Source::WebDataset(path) => {
                    for (name, values) in webdataset::read(&path, wanted, images)? {
                        join(&mut found, &name, values)?;
                    }
                }
                Source::Array { name, path } => {
                    let value = tensor_files::read(&path, None)?.value;
                    let of_ops::Value::Tensor(values) = value else { return Err(not_samples(&path)) };
                    found.push(Column { name, values: Values::Numbers(values) });
                }
                Source::Archive(path) => {
                    let arrays = npy::read_npz(&path)?;
                    let column = |(name, values)| Column { name, values: Values::Numbers(values) };
                    found.extend(arrays.into_iter().map(column));
                }
                Source::Table(path) => {
                    for (name, values) in table::read(&path, wanted, options.has_probabilities)? {
                        join(&mut found, &name, Values::Numbers(values))?;
                    }
                }
                Source::Text(path) => texts.push(path),
                Source::Columns(path) if options.text.is_some() => texts.push(path),
                Source::Columns(path) => {
                    for (name, values) in columns::read(&path, wanted, options, &mut names)? {
                        join(&mut found, &name, values)?;
                    }
                }
                Source::Images(path) => {
                    let folders = image_folders::read(&path, wanted, options)?;
                    found.extend(folders.columns.map(|(name, values)| Column { name, values }));
                    classes = folders.classes;
                }
            }
        }
        found.extend(in_memory_where_small(records, options.cached_bytes)?);
        if let Some(first) = texts.first() {
            let Some(options) = &options.text else {
                let what = format!("'{}' has texts, and there is no tokenizer", first.display());
                return Err(error(Code::INPUT, what).hint("give --tokenizer and --sequence-length").into());
            };
            for (name, values) in text::read(&texts, wanted, options)? {
                join(&mut found, &name, values)?;
            }
        } else if options.text.is_some() {
            let what =
                "a tokenizer is given, and the data has no texts: FILE.txt, FILE.jsonl, FILE.parquet or FILE.arrow";
            return Err(error(Code::INPUT, what).into());
        }
        let (labels, named) = names.finish(&options.classes)?;
        if let (Some(labels), Some(spec)) = (labels, wanted.last()) {
            join(&mut found, &spec.name, Values::Numbers(labels))?;
        }
        let classes = if classes.is_empty() { named } else { classes };
        Dataset::assembled(&found, wanted, classes, options.has_probabilities)
    }

    /// A data set of columns in memory, for `wanted` in that order. Numbers are converted to the element types of the inputs.
    ///
    /// # Errors
    /// When a column is absent, or columns have different lengths.
    pub fn of_columns(columns: Vec<(String, Tensor)>, wanted: &[ColumnSpec]) -> Result<Dataset, Diagnostics> {
        Dataset::of_columns_with(columns, wanted, &DataOptions::default())
    }

    /// As [`Dataset::of_columns`], with options that concern values.
    ///
    /// # Errors
    /// As [`Dataset::of_columns`].
    pub fn of_columns_with(
        columns: Vec<(String, Tensor)>,
        wanted: &[ColumnSpec],
        options: &DataOptions,
    ) -> Result<Dataset, Diagnostics> {
        let column = |(name, values)| Column { name, values: Values::Numbers(values) };
        let found: Vec<Column> = columns.into_iter().map(column).collect();
        Dataset::assembled(&found, wanted, Vec::new(), options.has_probabilities)
    }

    /// The columns that are wanted, in their types. `has_probabilities` is that of [`DataOptions`].
    fn assembled(
        found: &[Column],
        wanted: &[ColumnSpec],
        classes: Vec<String>,
        has_probabilities: bool,
    ) -> Result<Dataset, Diagnostics> {
        let mut columns = Vec::with_capacity(wanted.len());
        for (i, spec) in wanted.iter().enumerate() {
            let mut own = found.iter().filter(|column| column.name == spec.name);
            let Some(column) = own.next() else {
                let known: Vec<&str> = found.iter().map(|column| column.name.as_str()).collect();
                let what = match &known[..] {
                    [] => format!("the data has no samples: no values for '{}'", spec.name),
                    known => format!("the data has no values for '{}', only for {}", spec.name, known.join(", ")),
                };
                let hint = match i + 1 == wanted.len() {
                    true => "--labels names the labels in the data; give them by this name, or NAME=FILE",
                    false => "name arrays as inputs, or give NAME=FILE",
                };
                return Err(error(Code::INPUT, what).hint(hint).into());
            };
            if own.next().is_some() {
                return Err(error(Code::INPUT, format!("the data has values for '{}' twice", spec.name)).into());
            }
            let is_labels = has_probabilities && i + 1 == wanted.len();
            let classes = if is_labels { probabilities(column, spec)? } else { None };
            let values = classes.map_or_else(|| fitted(column, spec), Ok);
            let values = values.map_err(|e| if i + 1 == wanted.len() { of_labels(e, spec) } else { e })?;
            columns.push(Column { name: spec.name.clone(), values });
        }
        let len = columns.first().map_or(0, |column| column.values.len());
        if let Some(other) = columns.iter().find(|column| column.values.len() != len) {
            let count = other.values.len();
            let what = format!("'{}' has {len} samples and '{}' has {count}", columns[0].name, other.name);
            return Err(error(Code::INPUT, what).into());
        }
        if len == 0 {
            return Err(error(Code::INPUT, "the data has no samples").into());
        }
        Ok(Dataset { columns, len, classes })
    }

    /// Decodes images that fit into memory together (256 MiB), once for all epochs: for data without random changes.
    ///
    /// # Errors
    /// When a file cannot be read, is no image, or is one of another size.
    pub fn decode_small(mut self) -> Result<Dataset, Diagnostics> {
        let all: Vec<usize> = (0..self.len).collect();
        for column in &mut self.columns {
            if let Values::Images(images) = &column.values
                && images.fit_memory()
            {
                column.values = numbers(images.dtype(), self.len, images.dims(), column.values.gather(&all, None)?)?;
            }
        }
        Ok(self)
    }

    /// Shows of each image the centre: a part of this share of the sides of the largest one that has the shape of the input. Changes at random
    /// come instead.
    ///
    /// # Errors
    /// When the share is not between 0 and 1.
    pub fn crop_to_centre(mut self, share: f64) -> Result<Dataset, Diagnostics> {
        for column in &mut self.columns {
            if let Values::Images(images) = &mut column.values {
                images.crop_to_centre(share)?;
            }
        }
        Ok(self)
    }

    /// The largest of the labels, the last column, but for `ignored`: where they are whole numbers in memory, such as classes.
    pub fn largest_label(&self, ignored: i64) -> Option<i64> {
        let Values::Numbers(labels) = &self.columns.last()?.values else { return None };
        let labels = labels.to_i64s().filter(|_| labels.dtype().is_int())?;
        labels.into_iter().filter(|label| *label != ignored).max()
    }

    /// The first sample whose whole numbers in a column have one that `is_wrong`, and that number: where they are in memory.
    pub(super) fn find_number(&self, column: usize, is_wrong: impl Fn(i64) -> bool) -> Option<(usize, i64)> {
        let Values::Numbers(numbers) = &self.columns.get(column)?.values else { return None };
        let each = numbers.len() / self.len.max(1);
        let numbers = numbers.to_i64s().filter(|_| numbers.dtype().is_int())?;
        let at = numbers.iter().position(|number| is_wrong(*number))?;
        Some((at / each.max(1), numbers[at]))
    }

    /// Whether a column is in memory.
    pub(super) fn has_in_memory(&self, column: usize) -> bool {
        self.columns.get(column).is_some_and(|column| matches!(column.values, Values::Numbers(_)))
    }

    /// The first number of these samples that is infinite or none: its column, its sample and the number.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub(super) fn not_finite(&self, samples: &[usize]) -> Result<Option<(&str, usize, f64)>, Diagnostics> {
        for Column { name, values } in self.columns.iter().filter(|column| column.values.dtype().is_float()) {
            for sample in samples {
                let Values::Numbers(read) = values.select(&[*sample])?.in_memory()? else { continue };
                let wrong = read.to_f64s().and_then(|list| list.into_iter().find(|x| !x.is_finite()));
                if let Some(wrong) = wrong {
                    return Ok(Some((name, *sample, wrong)));
                }
            }
        }
        Ok(None)
    }

    /// Whether a batch reads some of it from files: because it is large, or it has images.
    pub fn is_read_as_needed(&self) -> bool {
        self.columns.iter().any(|column| !matches!(column.values, Values::Numbers(_)))
    }

    /// Whether it has images, which a batch decodes.
    pub fn has_images(&self) -> bool {
        self.columns.iter().any(|column| matches!(column.values, Values::Images(_)))
    }

    /// The order of the samples in an epoch: a function of seed and epoch. Where the data is larger than what of it stays in memory, parts
    /// of the files are shuffled, and samples within as many of them as stay.
    pub fn order(&self, seed: u64, epoch: usize) -> Vec<usize> {
        let groups = self.columns.iter().filter_map(|column| match &column.values {
            Values::Lazy(lazy) => lazy.groups(),
            Values::Images(images) => images.groups(),
            Values::Numbers(_) => None,
        });
        let Some(mut groups) = groups.min_by_key(|groups| groups.at_once) else {
            return sample_order(self.len, seed, epoch);
        };
        let mut random = random_of(seed, epoch);
        random.shuffle(&mut groups.samples);
        let mut out = Vec::with_capacity(self.len);
        for together in groups.samples.chunks(groups.at_once) {
            let mut samples = together.concat();
            random.shuffle(&mut samples);
            out.extend(samples);
        }
        out
    }

    /// Number of samples.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no samples.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The extents of open dimensions other than the batch, which are those of the data.
    ///
    /// # Errors
    /// When a dimension has different extents in two inputs.
    pub fn extents(&self, wanted: &[ColumnSpec]) -> Result<Bindings, Diagnostics> {
        let mut out = Bindings::new();
        for (spec, column) in wanted.iter().zip(&self.columns) {
            let Some(shape) = spec.ty.as_tensor().and_then(|t| t.shape.as_ref()) else { continue };
            for (dim, extent) in shape.iter().skip(1).zip(column.values.sample_dims()) {
                let Some(symbol) = dim.as_symbol() else { continue };
                let extent = *extent as i64;
                let before = *out.entry(symbol.to_string()).or_insert(extent);
                if before != extent {
                    let what =
                        format!("dimension '{symbol}' is {extent} in the data of '{}', and {before} before", spec.name);
                    return Err(error(Code::INPUT, what).into());
                }
            }
        }
        Ok(out)
    }

    /// The samples of these numbers, as inputs of a run.
    ///
    /// # Errors
    /// When a number is out of range, or an image cannot be read.
    pub fn batch(&self, samples: &[usize]) -> Result<Vec<of_runtime::Value>, Diagnostics> {
        self.batch_with(samples, None)
    }

    /// As [`Dataset::batch`], with images that are changed at random.
    ///
    /// # Errors
    /// As [`Dataset::batch`].
    pub fn batch_with(&self, samples: &[usize], draw: Option<&Draw>) -> Result<Vec<of_runtime::Value>, Diagnostics> {
        self.batch_of_rows(samples, draw, &BatchRows::all())
    }

    /// As [`Dataset::batch_with`], with zeros in the rows that are not needed, whose samples are not read.
    ///
    /// # Errors
    /// As [`Dataset::batch`].
    pub fn batch_of_rows(
        &self,
        samples: &[usize],
        draw: Option<&Draw>,
        rows: &BatchRows,
    ) -> Result<Vec<of_runtime::Value>, Diagnostics> {
        let mixup = draw.and_then(|draw| Some((draw, draw.mixup?)));
        let one = |(number, Column { name, values }): (usize, &Column)| {
            if mixup.is_some() && values.dtype() != DType::F32 {
                let what = format!("'{name}' is {}, and mixed samples are f32", values.dtype());
                return Err(error(Code::INPUT, what).into());
            }
            let dims = std::iter::once(samples.len()).chain(values.sample_dims().iter().copied());
            let dims: Vec<i64> = dims.map(|d| d as i64).collect();
            let dtype = of_codegen::physical::element_type(values.dtype());
            let wrong = |what: &str| Diagnostics::from(error(Code::INPUT, format!("the data of '{name}': {what}")));
            let mut tensor = of_runtime::Tensor::zeros(dtype, dims).map_err(|e| wrong(&e.to_string()))?;
            let each = values.sample_bytes();
            let batch = tensor.bytes_mut().filter(|batch| batch.len() == each * samples.len());
            let batch = batch.ok_or_else(|| wrong("its samples have no bytes"))?;
            let read = rows.read(number, samples.len(), mixup.is_some());
            let chosen: Vec<usize> = read.iter().map(|row| samples[*row]).collect();
            let Some((draw, alpha)) = mixup else {
                let rows = batch.chunks_exact_mut(each.max(1)).enumerate();
                let rows = rows.filter(|(row, _)| read.binary_search(row).is_ok()).map(|(_, to)| to).collect();
                values.write(&chosen, draw, rows)?;
                return Ok(tensor.into());
            };
            let bytes = values.gather(&chosen, Some(draw))?;
            let sample = |row: usize| {
                let at = read.partition_point(|known| *known < row) * each;
                &bytes[at..at + each]
            };
            for row in rows.needed(number, samples.len()) {
                let to = &mut batch[row * each..(row + 1) * each];
                let weight = mixup::weight(draw, alpha, samples[row]);
                mixup::mix(sample(row), sample(partner(row, samples.len())), weight, to);
            }
            Ok(tensor.into())
        };
        self.columns.iter().enumerate().map(one).collect()
    }

    /// Two data sets: all samples but every `n`-th, and these.
    ///
    /// # Errors
    /// When one of them would be empty.
    pub fn split(&self, part: f64) -> Result<(Dataset, Dataset), Diagnostics> {
        let held_out = (self.len as f64 * part).round() as usize;
        if held_out == 0 || held_out >= self.len {
            let what = format!("{part} of {} samples leaves none for training or for validation", self.len);
            return Err(error(Code::INPUT, what).hint("give a part between 0 and 1, such as 0.1").into());
        }
        // Spread evenly, so that sorted data is split like shuffled data.
        let is_out = |i: usize| (i + 1) * held_out / self.len > i * held_out / self.len;
        let pick = |out: bool| {
            let samples: Vec<usize> = (0..self.len).filter(|i| is_out(*i) == out).collect();
            let column = |column: &Column| {
                Ok::<_, Diagnostics>(Column { name: column.name.clone(), values: column.values.select(&samples)? })
            };
            let columns = self.columns.iter().map(column).collect::<Result<_, _>>()?;
            Ok::<_, Diagnostics>(Dataset { columns, len: samples.len(), classes: self.classes.clone() })
        };
        Ok((pick(false)?, pick(true)?))
    }
}

/// Columns of files that fit into memory together are read now, and the others when batches need them.
fn in_memory_where_small(mut columns: Vec<Column>, most: usize) -> Result<Vec<Column>, Diagnostics> {
    let bytes = |column: &Column| match &column.values {
        Values::Images(images) => images.encoded_bytes(),
        values => {
            let each = values.sample_dims().iter().product::<usize>() * values.dtype().bits().unwrap_or(8) / 8;
            each.saturating_mul(values.len())
        }
    };
    if columns.iter().map(bytes).fold(0, usize::saturating_add) <= most {
        for column in &mut columns {
            if let Values::Lazy(lazy) = &column.values {
                column.values = features::in_memory(lazy)?;
            }
        }
    }
    Ok(columns)
}

/// Adds samples behind those of the same input.
fn join(found: &mut Vec<Column>, name: &str, values: Values) -> Result<(), Diagnostics> {
    let Some(column) = found.iter_mut().find(|column| column.name == name) else {
        found.push(Column { name: name.to_owned(), values });
        return Ok(());
    };
    match (&mut column.values, values) {
        (Values::Images(before), Values::Images(after)) => before.extend(after),
        (Values::Lazy(before), Values::Lazy(after)) => before.extend(name, &after),
        (Values::Numbers(before), Values::Numbers(after))
            if before.dtype() == after.dtype() && before.dims().get(1..) == after.dims().get(1..) =>
        {
            let bytes = |t: &Tensor| t.bytes().map(|bytes| bytes.to_vec()).unwrap_or_default();
            let all = [bytes(before), bytes(&after)].concat();
            let mut dims = before.dims().to_vec();
            dims[0] += after.dims()[0];
            let joined = Tensor::from_bytes(after.dtype(), dims, of_ir::Blob::new(all));
            *before = joined.map_err(|e| error(Code::INPUT, e.to_string()))?;
            Ok(())
        }
        (before, after) => {
            let kind = |values: &Values| match values {
                Values::Numbers(_) => format!("{} {:?}", values.dtype(), values.sample_dims()),
                Values::Images(_) => "images".to_owned(),
                Values::Lazy(_) => format!("{} {:?}, read as needed,", values.dtype(), values.sample_dims()),
            };
            let what =
                format!("the samples of '{name}' are {} in one file and {} in another", kind(before), kind(&after));
            Err(error(Code::INPUT, what).into())
        }
    }
}

fn not_samples(path: &Path) -> Diagnostics {
    error(Code::INPUT, format!("'{}' holds no tensor", path.display())).into()
}

/// Whole numbers as probabilities, where the labels are numbers of several classes.
fn probabilities(column: &Column, spec: &ColumnSpec) -> Result<Option<Values>, Diagnostics> {
    let Values::Numbers(numbers) = &column.values else { return Ok(None) };
    let ty = spec.ty.as_tensor().filter(|t| t.dtype == DType::F32).and_then(|t| t.shape.as_ref());
    let Some([_, count]) = ty.map(Vec::as_slice) else { return Ok(None) };
    let count = count.as_const().and_then(|n| usize::try_from(n).ok()).filter(|n| *n > 1);
    match count.filter(|_| numbers.dtype().is_int() && numbers.dims().len() == 1) {
        Some(count) => Ok(Some(Values::Lazy(LazyColumn::new(Probabilities::new(&spec.name, numbers, count)?)))),
        None => Ok(None),
    }
}

/// The error of labels whose extents do not fit, with a hint where they are classes of several places of a sample.
pub(super) fn of_labels(errors: Diagnostics, spec: &ColumnSpec) -> Diagnostics {
    let ty = spec.ty.as_tensor();
    let has_axes = |ty: &of_ir::TensorType| ty.shape.as_ref().is_some_and(|shape| shape.len() > 1);
    if !ty.is_some_and(|ty| ty.dtype == DType::I64 && has_axes(ty)) {
        return errors;
    }
    let hint = "labels have the extents of the output without its axis of classes: --class-axis -1 for classes along the last axis, as of language models";
    Diagnostics(errors.0.into_iter().map(|error| error.hint(hint)).collect())
}

/// The values of a column in the type of its input.
fn fitted(column: &Column, spec: &ColumnSpec) -> Result<Values, Diagnostics> {
    let wrong = |what: String| Diagnostics::from(error(Code::INPUT, format!("the data of '{}' {what}", spec.name)));
    let tensor = spec.ty.as_tensor().ok_or_else(|| wrong(format!("is for an input of type {}", spec.ty)))?;
    // Images are decoded to what the input takes.
    let Values::Numbers(values) = &column.values else { return Ok(column.values.clone()) };
    let mut values = values.clone();
    if let Some(shape) = &tensor.shape {
        let known: Option<Vec<usize>> =
            shape[1..].iter().map(|d| d.as_const().and_then(|n| usize::try_from(n).ok())).collect();
        let rows = values.dims().first().copied().unwrap_or(0);
        // Samples of as many elements may have another shape, such as images as rows of pixels.
        if let Some(own) = known
            && rows > 0
            && own.iter().product::<usize>() * rows == values.len()
            && values.dims()[1..] != own
        {
            let dims = std::iter::once(rows).chain(own).collect();
            values = values.reshaped(dims).map_err(|e| wrong(e.to_string()))?;
        }
        let fits = values.dims().len() == shape.len()
            && values
                .dims()
                .iter()
                .zip(shape)
                .skip(1)
                .all(|(have, want)| want.as_const().is_none_or(|n| n == *have as i64));
        if !fits {
            let shape: Vec<String> = shape.iter().map(Dim::to_string).collect();
            return Err(wrong(format!("is of shape {:?}, and the input is [{}]", values.dims(), shape.join(", "))));
        }
    }
    if values.dtype() == tensor.dtype {
        return Ok(Values::Numbers(values));
    }
    let dims = values.dims().to_vec();
    let elements = if tensor.dtype.is_int() {
        Elements::Int(
            values
                .to_i64s()
                .ok_or_else(|| wrong(format!("is {}, not {}", values.dtype(), tensor.dtype)))?
                .into_iter()
                .map(i128::from)
                .collect(),
        )
    } else {
        let numbers = values.to_f64s().or_else(|| Some(values.to_i64s()?.into_iter().map(|n| n as f64).collect()));
        Elements::Float(numbers.ok_or_else(|| wrong(format!("is {}, not {}", values.dtype(), tensor.dtype)))?)
    };
    Ok(Values::Numbers(Tensor::from_elements(tensor.dtype, dims, elements).map_err(|e| wrong(e.to_string()))?))
}

/// The type of an input for a batch of one.
pub(super) fn one_sample(ty: &Type) -> Type {
    let mut ty = ty.clone();
    if let Type::Tensor(t) = &mut ty
        && let Some(first) = t.shape.as_mut().and_then(|shape| shape.first_mut())
    {
        *first = Dim::from(1i64);
    }
    ty
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use of_plan::{AxisLayout, LayoutKind, MeshPort, MeshProgram};

    use super::super::augmentation::Augmentation;
    use super::super::lazy;
    use super::*;

    #[test]
    fn files_of_images_and_records_are_data() {
        let dir = tempfile::tempdir().unwrap();
        let image = |dims: &[i64]| ColumnSpec {
            name: "x".into(),
            ty: Type::tensor(
                DType::F32,
                std::iter::once(Dim::symbol("n")).chain(dims.iter().map(|d| Dim::from(*d))).collect(),
            ),
        };
        let labels = ColumnSpec { name: "y".into(), ty: Type::tensor(DType::I64, vec![Dim::symbol("n")]) };
        let read = |files: &[String], dims: &[i64], images: &ImageOptions| {
            let files: Vec<OsString> = files.iter().map(OsString::from).collect();
            let data = Dataset::read(&files, &[image(dims), labels.clone()], images).unwrap_or_else(|d| panic!("{d}"));
            let batch = data.batch(&[data.len() - 1]).unwrap();
            let x = batch[0].as_tensor().unwrap().to_elements::<f32>().unwrap();
            (data.len(), x, batch[1].as_tensor().unwrap().to_elements::<i64>().unwrap())
        };
        let idx = ["x", "y"].map(|name| (name, dir.path().join(format!("{name}-ubyte"))));
        std::fs::write(&idx[0].1, [0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 2, 1, 2, 51, 255]).unwrap();
        std::fs::write(&idx[1].1, [0, 0, 8, 1, 0, 0, 0, 2, 4, 9]).unwrap();
        let files = idx.map(|(name, path)| format!("{name}={}", path.display()));
        assert_eq!(read(&files, &[1, 1, 2], &ImageOptions::default()), (2, vec![51.0, 255.0], vec![9]));
        let scaled = ImageOptions { mean: vec![0.2], std: vec![0.5] };
        assert_eq!(read(&files, &[1, 1, 2], &scaled), (2, vec![0.0, 1.6], vec![9]));
        let cifar: Vec<u8> = std::iter::once(6).chain((0..3072).map(|i| (i / 1024 * 51) as u8)).collect();
        let files = ["a.bin", "b.bin"].map(|name| {
            std::fs::write(dir.path().join(name), &cifar).unwrap();
            dir.path().join(name).display().to_string()
        });
        let (len, x, y) = read(&files, &[3, 32, 32], &ImageOptions::default());
        assert_eq!((len, x[0], x[1024], x[3071], y), (2, 0.0, 0.2, 0.4, vec![6]));
    }

    /// A column of f32 that records which samples are read.
    #[derive(Debug)]
    struct Recording {
        read: Arc<Mutex<Vec<usize>>>,
    }

    impl lazy::Source for Recording {
        fn len(&self) -> usize {
            8
        }

        fn dims(&self) -> &[usize] {
            &[2]
        }

        fn dtype(&self) -> DType {
            DType::F32
        }

        fn gather(&self, samples: &[usize], out: &mut Vec<u8>) -> Result<(), Diagnostics> {
            self.read.lock().unwrap().extend(samples);
            out.extend(samples.iter().flat_map(|i| [*i as f32, 0.5]).flat_map(f32::to_le_bytes));
            Ok(())
        }
    }

    #[test]
    fn rows_that_are_not_needed_are_not_read() {
        let read = Arc::new(Mutex::new(Vec::new()));
        let column = || Values::Lazy(LazyColumn::new(Recording { read: Arc::clone(&read) }));
        let columns = ["x", "y"].map(|name| Column { name: name.into(), values: column() }).to_vec();
        let data = Dataset { columns, len: 8, classes: Vec::new() };
        let port = |layout| MeshPort { dims: vec![4, 2], layout: vec![layout], ..MeshPort::default() };
        let program = |x, y| MeshProgram { shape: vec![2], inputs: vec![port(x), port(y)], ..MeshProgram::default() };
        let (split, whole) = (AxisLayout::split(0), AxisLayout::of(LayoutKind::Broadcast));
        let samples = [7, 2, 5, 0];
        let draw = |mixup| Draw { augmentation: Augmentation::default(), mixup, seed: 3, epoch: 1 };
        for (inputs, mixup, known) in [
            ((split, split), None, [vec![7, 2, 7, 2], vec![5, 0, 5, 0]]),
            ((split, whole), None, [vec![7, 2, 7, 2, 5, 0], vec![5, 0, 7, 2, 5, 0]]),
            // The second stage has y.
            ((AxisLayout::at(0), AxisLayout::at(1)), None, [vec![7, 2, 5, 0], vec![7, 2, 5, 0]]),
            // The partners of rows 0 and 1 are 3 and 2.
            ((split, split), Some(0.4), [samples.repeat(2), samples.repeat(2)]),
        ] {
            let draw = draw(mixup);
            let whole = data.batch_with(&samples, Some(&draw)).unwrap();
            for (rank, known) in known.iter().enumerate() {
                let rows = BatchRows::of_rank(&program(inputs.0, inputs.1), rank);
                read.lock().unwrap().clear();
                let batch = data.batch_of_rows(&samples, Some(&draw), &rows).unwrap();
                assert_eq!(*read.lock().unwrap(), *known, "{inputs:?} {mixup:?} rank {rank}");
                for (column, (own, whole)) in batch.iter().zip(&whole).enumerate() {
                    let [own, whole] = [own, whole].map(|v| v.as_tensor().unwrap().to_elements::<f32>().unwrap());
                    let needed = rows.needed(column, 4);
                    for row in 0..4 {
                        let want = if needed.contains(&row) { &whole[2 * row..][..2] } else { &[0.0, 0.0][..] };
                        assert_eq!(&own[2 * row..][..2], want, "{inputs:?} {mixup:?} rank {rank}, row {row}");
                    }
                }
            }
        }
    }

    #[test]
    fn split_takes_every_sample_once() {
        let values = Tensor::from_slice(&[10, 1], &(0..10).map(|i| i as f32).collect::<Vec<_>>()).unwrap();
        let columns = vec![Column { name: "x".into(), values: Values::Numbers(values) }];
        let data = Dataset { columns, len: 10, classes: Vec::new() };
        let (train, held) = data.split(0.3).unwrap();
        assert_eq!((train.len(), held.len()), (7, 3));
        let mut all: Vec<f64> = [&train, &held]
            .iter()
            .flat_map(|d| d.batch(&(0..d.len()).collect::<Vec<_>>()).unwrap())
            .flat_map(|v| v.as_tensor().unwrap().to_elements::<f32>().unwrap())
            .map(f64::from)
            .collect();
        all.sort_by(f64::total_cmp);
        assert_eq!(all, (0..10).map(f64::from).collect::<Vec<_>>());
        assert!(data.split(0.01).is_err() && data.split(1.0).is_err());
    }
}
