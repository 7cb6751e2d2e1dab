//! Columns of files that are read as needed: numbers and lists of equal lengths. Parts of a file are decoded when a batch needs them, and some
//! stay in memory.

use std::collections::VecDeque;
use std::fmt::{Debug, Formatter};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use of_diag::{Code, Diagnostics};
use of_ir::{DType, Elements, Tensor, TensorType};

use super::class_names::ClassNames;
use super::data::{ColumnSpec, DataOptions, Values, of_labels};
use super::encoded::{EncodedImages, takes_images};
use super::encoded_rows::EncodedRows;
use super::lazy::{LazyColumn, Source};
use super::{arrow_file, features, mixup, parquet_file};
use crate::error::error;

/// Whether the name is that of such a file.
pub(super) fn is_columns(path: &Path) -> bool {
    parquet_file::is_parquet(path) || arrow_file::is_arrow(path)
}

fn open(path: &Path) -> Result<Arc<dyn ColumnFile>, Diagnostics> {
    if arrow_file::is_arrow(path) { arrow_file::open(path) } else { parquet_file::open(path) }
}

/// A file of columns, whose rows are in parts: row groups of Parquet, record batches of Arrow.
pub(super) trait ColumnFile: Send + Sync {
    fn path(&self) -> &Path;
    /// Rows of each part.
    fn rows(&self) -> &[usize];
    /// The name of each column of values; a column that has several parts is there several times.
    fn leaves(&self) -> &[String];
    /// The values of a column in a part, with as many for each row: `each` of them, where that is known.
    ///
    /// # Errors
    /// When they cannot be read, are neither numbers nor texts, one is absent, or rows have different numbers of them.
    fn decode(&self, part: usize, leaf: usize, each: Option<usize>) -> Result<Decoded, Diagnostics>;

    /// The columns that can have encoded images, by their names and numbers: binary ones, and the field `bytes` of structures, as the package
    /// datasets of Hugging Face writes images.
    fn images(&self) -> &[(String, usize)];
    /// The encoded images of a part, one in each row. They share the memory of the part.
    ///
    /// # Errors
    /// When they cannot be read, or one is absent, and its structure has no path instead.
    fn encoded(&self, part: usize, leaf: usize) -> Result<Vec<RowImage>, Diagnostics>;
    /// The bytes that the encoded images of a part take in memory.
    fn encoded_bytes(&self, part: usize, leaf: usize) -> usize;
    /// The names of the classes that a column has as numbers, where the file says them.
    fn classes(&self, _column: &str) -> Vec<String> {
        Vec::new()
    }

    fn wrong(&self, what: &str) -> Diagnostics {
        error(Code::INPUT, format!("'{}': {what}", self.path().display())).into()
    }

    /// The number of the column of this name.
    ///
    /// # Errors
    /// When it has several parts.
    fn leaf(&self, name: &str) -> Result<Option<usize>, Diagnostics> {
        let mut own = self.leaves().iter().enumerate().filter(|(_, root)| *root == name).map(|(i, _)| i);
        let first = own.next();
        match own.next() {
            Some(_) => Err(self.wrong(&format!("column '{name}' has several parts, and none is a list of numbers"))),
            None => Ok(first),
        }
    }
}

/// The encoded image of a row.
#[derive(Clone, Debug)]
pub(super) enum RowImage {
    /// Its bytes.
    Bytes(Bytes),
    /// The path of its file, from the folder of the file of columns.
    File(String),
}

impl RowImage {
    /// What a structure has; `None` where it has neither bytes nor a path.
    pub fn of(bytes: Option<Bytes>, path: Option<Bytes>) -> Option<RowImage> {
        let file = || path.filter(|path| !path.is_empty()).map(|path| String::from_utf8_lossy(&path).into_owned());
        bytes.map(RowImage::Bytes).or_else(|| file().map(RowImage::File))
    }

    /// Bytes of it in memory.
    pub fn len(&self) -> usize {
        match self {
            RowImage::Bytes(bytes) => bytes.len(),
            RowImage::File(path) => path.len(),
        }
    }
}

/// What a column has.
pub(super) enum Decoded {
    Ints(Vec<i64>),
    Floats(Vec<f64>),
    Texts(Vec<String>),
}

impl Decoded {
    pub fn len(&self) -> usize {
        match self {
            Decoded::Ints(list) => list.len(),
            Decoded::Floats(list) => list.len(),
            Decoded::Texts(list) => list.len(),
        }
    }

    /// These values and others behind them; none where they are of another kind.
    pub fn and(self, more: Decoded) -> Option<Decoded> {
        Some(match (self, more) {
            (Decoded::Ints(a), Decoded::Ints(b)) => Decoded::Ints([a, b].concat()),
            (Decoded::Floats(a), Decoded::Floats(b)) => Decoded::Floats([a, b].concat()),
            (Decoded::Texts(a), Decoded::Texts(b)) => Decoded::Texts([a, b].concat()),
            _ => return None,
        })
    }
}

/// Parts that were decoded, the newest last.
#[derive(Default)]
struct Cache {
    parts: VecDeque<(usize, Arc<Vec<u8>>)>,
    bytes: usize,
}

/// A column of a file in the type of its input.
struct FileColumn {
    file: Arc<dyn ColumnFile>,
    leaf: usize,
    /// The first row of each part, and the number of all.
    starts: Vec<usize>,
    dims: Vec<usize>,
    dtype: DType,
    cache: Mutex<Cache>,
    cached_bytes: usize,
}

impl Debug for FileColumn {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        write!(f, "'{}' of '{}'", self.file.leaves()[self.leaf], self.file.path().display())
    }
}

impl FileColumn {
    fn sample_bytes(&self) -> usize {
        self.dims.iter().product::<usize>() * self.dtype.bits().unwrap_or(8) / 8
    }

    fn decoded(&self, part: usize) -> Result<Arc<Vec<u8>>, Diagnostics> {
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = cache.parts.iter().position(|(known, _)| *known == part)
            && let Some(found) = cache.parts.remove(at)
        {
            cache.parts.push_back(found.clone());
            return Ok(found.1);
        }
        let each = self.dims.iter().product();
        let values = self.file.decode(part, self.leaf, Some(each))?;
        let bytes = self.bytes(values)?;
        cache.bytes += bytes.len();
        let bytes = Arc::new(bytes);
        cache.parts.push_back((part, Arc::clone(&bytes)));
        while cache.bytes > self.cached_bytes
            && cache.parts.len() > 1
            && let Some((_, old)) = cache.parts.pop_front()
        {
            cache.bytes -= old.len();
        }
        Ok(bytes)
    }

    /// Values in the element type.
    fn bytes(&self, values: Decoded) -> Result<Vec<u8>, Diagnostics> {
        let (name, dtype) = (&self.file.leaves()[self.leaf], self.dtype);
        let unfit = |what: &str| self.file.wrong(&format!("column '{name}' has {what}, and the input is {dtype}"));
        let count = values.len();
        let elements = match (values, dtype) {
            (Decoded::Floats(list), DType::F32) => return Ok(le(&list, |x| (*x as f32).to_le_bytes())),
            (Decoded::Ints(list), DType::I64) => return Ok(le(&list, |x| x.to_le_bytes())),
            (Decoded::Ints(list), DType::F32) => return Ok(le(&list, |x| (*x as f32).to_le_bytes())),
            (Decoded::Floats(list), _) if dtype.is_float() => Elements::Float(list),
            (Decoded::Ints(list), _) if dtype.is_float() => Elements::Float(list.iter().map(|x| *x as f64).collect()),
            (Decoded::Ints(list), _) if dtype.is_int() => Elements::Int(list.into_iter().map(i128::from).collect()),
            (Decoded::Texts(_), _) => return Err(unfit("texts")),
            _ => return Err(unfit("other numbers")),
        };
        let tensor = Tensor::from_elements(dtype, vec![count], elements).map_err(|e| unfit(&e.to_string()))?;
        Ok(tensor.bytes().map(|bytes| bytes.to_vec()).unwrap_or_default())
    }

    fn part_of(&self, sample: usize) -> usize {
        self.starts.partition_point(|start| *start <= sample).saturating_sub(1)
    }
}

fn le<T, const N: usize>(list: &[T], bytes: impl Fn(&T) -> [u8; N]) -> Vec<u8> {
    list.iter().flat_map(bytes).collect()
}

impl Source for FileColumn {
    fn len(&self) -> usize {
        self.starts.last().copied().unwrap_or(0)
    }

    fn dims(&self) -> &[usize] {
        &self.dims
    }

    fn dtype(&self) -> DType {
        self.dtype
    }

    fn gather(&self, samples: &[usize], out: &mut Vec<u8>) -> Result<(), Diagnostics> {
        let each = self.sample_bytes();
        let first = out.len();
        out.resize(first + each * samples.len(), 0);
        // Each part once.
        let mut order: Vec<(usize, usize)> = samples.iter().enumerate().map(|(i, s)| (self.part_of(*s), i)).collect();
        order.sort_unstable();
        for own in order.chunk_by(|a, b| a.0 == b.0) {
            let part = own[0].0;
            let bytes = self.decoded(part)?;
            for (_, i) in own {
                let from = (samples[*i] - self.starts[part]) * each;
                out[first + i * each..][..each].copy_from_slice(&bytes[from..from + each]);
            }
        }
        Ok(())
    }

    fn group(&self, sample: usize) -> usize {
        self.part_of(sample)
    }

    fn groups_at_once(&self) -> Option<usize> {
        let bytes = |rows: usize| rows * self.sample_bytes();
        if bytes(self.len()) <= self.cached_bytes {
            return None;
        }
        let largest = self.file.rows().iter().copied().max().unwrap_or(1);
        Some((self.cached_bytes / bytes(largest).max(1)).max(1))
    }
}

/// The extents of a sample of so many numbers.
///
/// # Errors
/// When the input takes another number of them.
pub(super) fn sample_dims(spec: &ColumnSpec, ty: &TensorType, each: usize) -> Result<Vec<usize>, Diagnostics> {
    let Some(shape) = &ty.shape else { return Ok(vec![each]) };
    let known: Vec<Option<usize>> =
        shape.iter().skip(1).map(|d| d.as_const().and_then(|n| usize::try_from(n).ok())).collect();
    let product: usize = known.iter().flatten().product();
    let open = known.iter().filter(|d| d.is_none()).count();
    if open > 1 || product == 0 || !each.is_multiple_of(product) || (open == 0 && product != each) {
        let what = format!("a row has {each} numbers for '{}', and the input is {}", spec.name, spec.ty);
        return Err(error(Code::INPUT, what).into());
    }
    Ok(known.into_iter().map(|d| d.unwrap_or(each / product)).collect())
}

/// The columns of a file that are `wanted`, by their names; the last are the labels. Columns of binary for inputs that take images are encoded
/// images; that of the only input may have any name. Labels that are texts are names of classes, which `names` takes. Where the loss takes
/// probabilities, labels that are one whole number each are classes, which are in memory.
///
/// # Errors
/// When the file cannot be read, has none of the columns, or one is neither of numbers, of which each row has as many, nor of images.
pub(super) fn read(
    path: &Path,
    wanted: &[ColumnSpec],
    options: &DataOptions,
    names: &mut ClassNames,
) -> Result<Vec<(String, Values)>, Diagnostics> {
    let file = open(path)?;
    let starts = starts(&*file)?;
    let first = file.rows().iter().position(|rows| *rows > 0);
    let first = first.ok_or_else(|| file.wrong("there are no rows"))?;
    let mut out = Vec::new();
    for (i, spec) in wanted.iter().enumerate() {
        let is_labels = i + 1 == wanted.len();
        if let Some(leaf) = images_for(&*file, spec, wanted).filter(|_| !is_labels) {
            let images = EncodedRows::new(&file, leaf, starts.clone(), options.cached_bytes);
            let rows = starts.last().copied().unwrap_or(0);
            let images = EncodedImages::of_source(spec, &options.images, images, rows)?;
            out.extend(images.map(|images| (spec.name.clone(), Values::Images(images))));
            continue;
        }
        let Some(leaf) = file.leaf(&spec.name)? else { continue };
        // The first part says how many numbers a row has.
        let decoded = file.decode(first, leaf, None)?;
        let each = decoded.len() / file.rows()[first];
        if is_labels && each == 1 && matches!(decoded, Decoded::Texts(_)) {
            names.extend(class_texts(&*file, leaf)?);
            continue;
        }
        let has_classes = is_labels && each == 1 && matches!(decoded, Decoded::Ints(_));
        if has_classes {
            names.know(file.classes(&spec.name));
        }
        let is_class = options.has_probabilities && has_classes;
        let spec = if is_class { mixup::classes(spec) } else { spec.clone() };
        let Some(ty) = spec.ty.as_tensor() else { continue };
        let dims = sample_dims(&spec, ty, each).map_err(|e| if is_labels { of_labels(e, &spec) } else { e })?;
        let (cache, cached_bytes) = (Mutex::new(Cache::default()), options.cached_bytes);
        let (file, starts) = (Arc::clone(&file), starts.clone());
        let column = FileColumn { file, leaf, starts, dims, dtype: ty.dtype, cache, cached_bytes };
        let column = LazyColumn::new(column);
        out.push((spec.name.clone(), if is_class { features::in_memory(&column)? } else { Values::Lazy(column) }));
    }
    if out.is_empty() {
        let names: Vec<&str> = wanted.iter().map(|spec| spec.name.as_str()).collect();
        let what = format!("no column is called {}; there are {}", names.join(" or "), file.leaves().join(", "));
        return Err(file.wrong(&what));
    }
    Ok(out)
}

/// The first row of each part of a file, and the number of all.
fn starts(file: &dyn ColumnFile) -> Result<Vec<usize>, Diagnostics> {
    let mut starts = vec![0];
    let mut total = 0_usize;
    for rows in file.rows() {
        let sum = rows.checked_add(total).filter(|n| u32::try_from(*n).is_ok());
        total = sum.ok_or_else(|| file.wrong("there are 2^32 rows or more"))?;
        starts.push(total);
    }
    Ok(starts)
}

/// The column of encoded images for an input: that of its name, or the only one where it is the only input.
fn images_for(file: &dyn ColumnFile, spec: &ColumnSpec, wanted: &[ColumnSpec]) -> Option<usize> {
    let images = if takes_images(spec) { file.images() } else { &[] };
    let named = images.iter().find(|(name, _)| *name == spec.name);
    let has_column = file.leaves().contains(&spec.name);
    let only = match images {
        [one] if wanted.len() == 2 && !has_column => Some(one),
        _ => None,
    };
    named.or(only).map(|(_, leaf)| *leaf)
}

/// All texts of a column.
fn class_texts(file: &dyn ColumnFile, leaf: usize) -> Result<Vec<String>, Diagnostics> {
    let mut out = Vec::new();
    for part in 0..file.rows().len() {
        if let Decoded::Texts(list) = file.decode(part, leaf, Some(1))? {
            out.extend(list);
        }
    }
    Ok(out)
}

/// The texts of a column, and the whole numbers of another one.
///
/// # Errors
/// When the file cannot be read, or has no such columns.
pub(super) fn texts(path: &Path, field: &str, label: Option<&str>) -> Result<Vec<(String, Option<i64>)>, Diagnostics> {
    let file = open(path)?;
    let leaf = |name: &str| {
        let none = || file.wrong(&format!("no column is called '{name}'; there are {}", file.leaves().join(", ")));
        file.leaf(name)?.ok_or_else(none)
    };
    let (own, label) = (leaf(field)?, label.map(|name| Ok::<_, Diagnostics>((name, leaf(name)?))).transpose()?);
    let mut out = Vec::new();
    for part in 0..file.rows().len() {
        let Decoded::Texts(list) = file.decode(part, own, Some(1))? else {
            return Err(file.wrong(&format!("column '{field}' has no texts")));
        };
        let labels = match label {
            None => vec![None; list.len()],
            Some((name, leaf)) => match file.decode(part, leaf, Some(1))? {
                Decoded::Ints(labels) => labels.into_iter().map(Some).collect(),
                _ => return Err(file.wrong(&format!("column '{name}', the label, has no whole numbers"))),
            },
        };
        out.extend(list.into_iter().zip(labels));
    }
    Ok(out)
}
