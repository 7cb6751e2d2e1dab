//! Files of records whose features are named lists of numbers, TFRecord and OFRecord: an index of the records, which are decoded when a batch
//! needs them.

use std::collections::HashMap;
use std::fmt::{Debug, Formatter};
use std::fs::File;
use std::io::BufReader;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use of_diag::{Code, Diagnostics};
use of_ir::{Blob, DType, Elements, Tensor};
use prost::Message;
use rayon::prelude::*;

use super::class_names::ClassNames;
use super::columns::sample_dims;
use super::data::{ColumnSpec, DataOptions, Values, of_labels};
use super::encoded::{EncodedImages, is_encoded, takes_images};
use super::encoded_rows::EncodedSource;
use super::lazy::{LazyColumn, Source};
use super::mixup;
use crate::error::{error, io_error};

/// Strings, as both formats store them.
#[derive(Clone, PartialEq, Message)]
pub struct BytesList {
    #[prost(bytes = "bytes", repeated, tag = "1")]
    pub value: Vec<Bytes>,
}

impl From<BytesList> for Numbers {
    fn from(list: BytesList) -> Numbers {
        // One string, such as an image, stays where it is in its record.
        match <[Bytes; 1]>::try_from(list.value) {
            Ok([one]) => Numbers::Bytes(one),
            Err(list) => Numbers::Bytes(list.concat().into()),
        }
    }
}

/// Numbers of f32, as both formats store them.
#[derive(Clone, PartialEq, Message)]
pub struct FloatList {
    #[prost(float, repeated, tag = "1")]
    pub value: Vec<f32>,
}

/// Numbers of i64, as both formats store them.
#[derive(Clone, PartialEq, Message)]
pub struct Int64List {
    #[prost(int64, repeated, tag = "1")]
    pub value: Vec<i64>,
}

/// The numbers of a feature.
#[derive(Clone, Debug, PartialEq)]
pub enum Numbers {
    /// Strings, as one string of values of u8.
    Bytes(Bytes),
    /// Of f32.
    Floats(Vec<f32>),
    /// Of f64.
    Doubles(Vec<f64>),
    /// Of i32.
    Int32s(Vec<i32>),
    /// Of i64.
    Int64s(Vec<i64>),
}

impl Numbers {
    fn len(&self) -> usize {
        match self {
            Numbers::Bytes(list) => list.len(),
            Numbers::Floats(list) => list.len(),
            Numbers::Doubles(list) => list.len(),
            Numbers::Int32s(list) => list.len(),
            Numbers::Int64s(list) => list.len(),
        }
    }

    fn dtype(&self) -> DType {
        match self {
            Numbers::Bytes(_) => DType::U8,
            Numbers::Floats(_) => DType::F32,
            Numbers::Doubles(_) => DType::F64,
            Numbers::Int32s(_) => DType::I32,
            Numbers::Int64s(_) => DType::I64,
        }
    }

    /// The bytes of the numbers in a type.
    ///
    /// # Errors
    /// When the type cannot hold them.
    fn to_bytes(&self, dtype: DType) -> Result<Vec<u8>, String> {
        fn le<T: Copy, const N: usize>(list: &[T], bytes: impl Fn(T) -> [u8; N]) -> Vec<u8> {
            list.iter().flat_map(|x| bytes(*x)).collect()
        }
        // The usual types without a detour.
        match (self, dtype) {
            (Numbers::Bytes(list), DType::U8) => return Ok(list.to_vec()),
            (Numbers::Bytes(list), DType::F32) => return Ok(le(list, |x| f32::from(x).to_le_bytes())),
            (Numbers::Floats(list), DType::F32) => return Ok(le(list, f32::to_le_bytes)),
            (Numbers::Int64s(list), DType::I64) => return Ok(le(list, i64::to_le_bytes)),
            _ => {}
        }
        let unfit = || format!("{}, and the input is {dtype}", self.dtype());
        let ints: Option<Vec<i128>> = match self {
            Numbers::Bytes(list) => Some(list.iter().map(|x| i128::from(*x)).collect()),
            Numbers::Int32s(list) => Some(list.iter().map(|x| i128::from(*x)).collect()),
            Numbers::Int64s(list) => Some(list.iter().map(|x| i128::from(*x)).collect()),
            Numbers::Floats(_) | Numbers::Doubles(_) => None,
        };
        let elements = match (self, ints) {
            (Numbers::Floats(list), _) if dtype.is_float() => {
                Elements::Float(list.iter().map(|x| f64::from(*x)).collect())
            }
            (Numbers::Doubles(list), _) if dtype.is_float() => Elements::Float(list.clone()),
            (_, Some(list)) if dtype.is_float() => Elements::Float(list.iter().map(|x| *x as f64).collect()),
            (_, Some(list)) => Elements::Int(list),
            _ => return Err(unfit()),
        };
        let tensor = Tensor::from_elements(dtype, vec![self.len()], elements);
        let tensor = tensor.map_err(|e| format!("{}: {e}", unfit()))?;
        tensor.bytes().map(|bytes| bytes.to_vec()).ok_or_else(unfit)
    }
}

/// The features of a record by their names; `None` where one has no numbers.
pub type Features = HashMap<String, Option<Numbers>>;

/// Where a record is in its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The first byte.
    pub offset: u64,
    /// The number of bytes.
    pub bytes: u32,
}

/// The records of a file, or what is wrong with one.
pub type Records = Result<Vec<Extent>, String>;

/// A format of files of records.
#[derive(Clone, Copy)]
pub struct Format {
    /// The records of a file of so many bytes.
    pub index: fn(&mut BufReader<File>, u64) -> std::io::Result<Records>,
    /// The features of the bytes of a record, or what is wrong with it.
    pub decode: fn(Bytes) -> Result<Features, String>,
}

/// An open file.
struct RecordFile {
    path: PathBuf,
    file: File,
    format: Format,
    records: Vec<Extent>,
}

/// The columns of a file whose samples are read together. The first one decodes the records of a batch, and leaves the others their
/// features, until one reads another batch.
struct Together {
    names: Vec<String>,
    left: Mutex<HashMap<usize, Features>>,
}

impl Together {
    fn new(names: Vec<String>) -> Arc<Together> {
        Arc::new(Together { names, left: Mutex::default() })
    }

    /// What is left of these records.
    fn take(&self, numbers: &[usize]) -> Vec<Option<Features>> {
        let mut left = std::mem::take(&mut *self.left.lock().unwrap_or_else(PoisonError::into_inner));
        numbers.iter().map(|number| left.remove(number)).collect()
    }

    /// Leaves the other columns what is theirs.
    fn leave(&self, features: impl Iterator<Item = (usize, Features)>) {
        let own = |(number, mut features): (usize, Features)| {
            features.retain(|name, _| self.names.contains(name));
            (!features.is_empty()).then_some((number, features))
        };
        *self.left.lock().unwrap_or_else(PoisonError::into_inner) = features.filter_map(own).collect();
    }
}

impl RecordFile {
    fn open(path: &Path, format: Format) -> Result<RecordFile, Diagnostics> {
        let failed = |e: std::io::Error| Diagnostics::from(io_error(path, "read", &e));
        let file = File::open(path).map_err(failed)?;
        let bytes = file.metadata().map_err(failed)?.len();
        let mut reader = BufReader::new(file.try_clone().map_err(failed)?);
        let records = (format.index)(&mut reader, bytes).map_err(failed)?.map_err(|what| wrong(path, &what))?;
        if u32::try_from(records.len()).is_err() {
            return Err(wrong(path, "there are 2^32 records or more"));
        }
        Ok(RecordFile { path: path.to_owned(), file, format, records })
    }

    fn features(&self, number: usize) -> Result<Features, Diagnostics> {
        let mut bytes = vec![0; self.records[number].bytes as usize];
        let read = self.file.read_exact_at(&mut bytes, self.records[number].offset);
        read.map_err(|e| io_error(&self.path, "read", &e))?;
        (self.format.decode)(bytes.into()).map_err(|what| wrong(&self.path, &format!("record {number}: {what}")))
    }

    /// Takes a feature from those of a record.
    fn feature_of(&self, number: usize, name: &str, features: &mut Features) -> Result<Numbers, Diagnostics> {
        if let Some(numbers) = features.remove(name).flatten() {
            return Ok(numbers);
        }
        let mut known: Vec<&str> = features.keys().map(String::as_str).collect();
        known.sort_unstable();
        let what = format!("record {number} has no feature '{name}', only {}", known.join(", "));
        Err(wrong(&self.path, &what))
    }
}

fn wrong(path: &Path, what: &str) -> Diagnostics {
    error(Code::INPUT, format!("'{}': {what}", path.display())).into()
}

/// A feature of all records, in the type of its input.
struct FeatureColumn {
    file: Arc<RecordFile>,
    together: Arc<Together>,
    name: String,
    /// What the first record has.
    first: (DType, usize),
    dims: Vec<usize>,
    dtype: DType,
}

impl Debug for FeatureColumn {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        write!(f, "'{}' of '{}'", self.name, self.file.path.display())
    }
}

impl FeatureColumn {
    /// The bytes of a sample, and the other features of its record. `left` are those that another column has decoded.
    fn sample(&self, number: usize, left: Option<Features>) -> Result<(Vec<u8>, Features), Diagnostics> {
        let mut features = match left {
            Some(left) if left.contains_key(&self.name) => left,
            _ => self.file.features(number)?,
        };
        let numbers = self.file.feature_of(number, &self.name, &mut features)?;
        let (dtype, count) = self.first;
        if (numbers.dtype(), numbers.len()) != self.first {
            let (own, kind) = (numbers.len(), numbers.dtype());
            let has = format!("feature '{}' of record {number} has {own} values of {kind}", self.name);
            return Err(wrong(&self.file.path, &format!("{has}, and that of record 0 {count} of {dtype}")));
        }
        let unfit =
            |what: String| wrong(&self.file.path, &format!("feature '{}' of record {number} is {what}", self.name));
        Ok((numbers.to_bytes(self.dtype).map_err(unfit)?, features))
    }
}

impl Source for FeatureColumn {
    fn len(&self) -> usize {
        self.file.records.len()
    }

    fn dims(&self) -> &[usize] {
        &self.dims
    }

    fn dtype(&self) -> DType {
        self.dtype
    }

    fn gather(&self, samples: &[usize], out: &mut Vec<u8>) -> Result<(), Diagnostics> {
        let left = self.together.take(samples);
        let one = |(number, left): (&usize, Option<Features>)| self.sample(*number, left);
        let all: Vec<(Vec<u8>, Features)> = samples.par_iter().zip(left).map(one).collect::<Result<_, _>>()?;
        let left = samples.iter().zip(all).map(|(number, (bytes, features))| {
            out.extend(bytes);
            (*number, features)
        });
        self.together.leave(left);
        Ok(())
    }
}

/// The encoded images that a feature of all records is.
struct RecordImages {
    file: Arc<RecordFile>,
    together: Arc<Together>,
    name: String,
}

impl Debug for RecordImages {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        write!(f, "'{}' of '{}'", self.name, self.file.path.display())
    }
}

impl EncodedSource for RecordImages {
    fn fetch(&self, images: &[usize]) -> Result<Vec<Bytes>, Diagnostics> {
        let left = self.together.take(images);
        let one = |(number, left): (&usize, Option<Features>)| {
            let mut features = match left {
                Some(left) if left.contains_key(&self.name) => left,
                _ => self.file.features(*number)?,
            };
            match self.file.feature_of(*number, &self.name, &mut features)? {
                Numbers::Bytes(image) => Ok((image, features)),
                other => {
                    let what = format!("feature '{}' of record {number} is {}, not an image", self.name, other.dtype());
                    Err(wrong(&self.file.path, &what))
                }
            }
        };
        let all: Vec<(Bytes, Features)> = images.par_iter().zip(left).map(one).collect::<Result<_, _>>()?;
        let (found, left): (Vec<Bytes>, Vec<Features>) = all.into_iter().unzip();
        self.together.leave(images.iter().copied().zip(left));
        Ok(found)
    }

    fn bytes_of(&self, image: usize) -> usize {
        self.file.records[image].bytes as usize
    }

    fn place(&self, image: usize) -> String {
        format!("feature '{}' of record {image} in '{}'", self.name, self.file.path.display())
    }
}

/// The feature of encoded images that TensorFlow's data sets have.
const IMAGES: &str = "image/encoded";

/// The columns `wanted` of a file, of which the last are the labels, by the names of features. Bytes are one string of values of u8, or an encoded
/// image where the input takes images; `image/encoded` is for the only input, too. Labels that are texts are names of classes, which `names` takes.
/// Where the loss takes probabilities, labels that are one whole number each are classes, which are in memory.
///
/// # Errors
/// When the file cannot be read or is damaged, or the first record lacks a feature or has one that the input does not take.
pub(super) fn read(
    path: &Path,
    format: Format,
    wanted: &[ColumnSpec],
    options: &DataOptions,
    names: &mut ClassNames,
) -> Result<Vec<(String, Values)>, Diagnostics> {
    let file = Arc::new(RecordFile::open(path, format)?);
    if file.records.is_empty() {
        return Err(wrong(path, "there are no records"));
    }
    let record = file.features(0)?;
    let feature = |spec: &ColumnSpec| match wanted.len() == 2 && takes_images(spec) && !record.contains_key(&spec.name)
    {
        true if record.contains_key(IMAGES) => IMAGES.to_owned(),
        _ => spec.name.clone(),
    };
    let features: Vec<String> = wanted.iter().map(feature).collect();
    let together = Together::new(features.clone());
    let mut out = Vec::new();
    for (i, (spec, name)) in wanted.iter().zip(features).enumerate() {
        let is_labels = i + 1 == wanted.len();
        let first = file.feature_of(0, &name, &mut record.clone())?;
        let open = |together: Arc<Together>| RecordImages { file: Arc::clone(&file), together, name: name.clone() };
        if !is_labels && is_image(spec, &first) {
            let images =
                EncodedImages::of_source(spec, &options.images, open(Arc::clone(&together)), file.records.len())?;
            out.extend(images.map(|images| (spec.name.clone(), Values::Images(images))));
            continue;
        }
        if is_labels
            && let Numbers::Bytes(text) = &first
            && is_text(spec, text)
        {
            let texts = open(Together::new(Vec::new())).fetch(&(0..file.records.len()).collect::<Vec<_>>())?;
            names.extend(texts.iter().map(|text| String::from_utf8_lossy(text).into_owned()).collect());
            continue;
        }
        let is_class = first.dtype().is_int() && first.len() == 1;
        let is_class = is_class && options.has_probabilities && is_labels;
        let spec = if is_class { mixup::classes(spec) } else { spec.clone() };
        let Some(ty) = spec.ty.as_tensor() else {
            return Err(wrong(path, &format!("feature '{}' is for an input of type {}", spec.name, spec.ty)));
        };
        let dims = sample_dims(&spec, ty, first.len()).map_err(|_| {
            let errors = wrong(path, &unfit_count(&spec, first.len()));
            if is_labels { of_labels(errors, &spec) } else { errors }
        })?;
        // Classes are read once, and of all records.
        let together = if is_class { Together::new(Vec::new()) } else { Arc::clone(&together) };
        let column = FeatureColumn {
            file: Arc::clone(&file),
            together,
            name,
            first: (first.dtype(), first.len()),
            dims,
            dtype: ty.dtype,
        };
        let column = LazyColumn::new(column);
        out.push((spec.name.clone(), if is_class { in_memory(&column)? } else { Values::Lazy(column) }));
    }
    Ok(out)
}

/// Whether bytes are an encoded image for an input: those of as many pixels as it takes are the pixels.
fn is_image(spec: &ColumnSpec, first: &Numbers) -> bool {
    let Numbers::Bytes(bytes) = first else { return false };
    let shape = spec.ty.as_tensor().and_then(|ty| ty.shape.as_ref());
    let extents = shape.and_then(|shape| shape.iter().skip(1).map(of_ir::Dim::as_const).collect::<Option<Vec<i64>>>());
    let are_pixels = extents.is_some_and(|extents| extents.iter().product::<i64>() == bytes.len() as i64);
    takes_images(spec) && is_encoded(bytes) && !are_pixels
}

/// Whether bytes are the name of a class, rather than one class of u8, or as many numbers as the labels have.
fn is_text(spec: &ColumnSpec, bytes: &[u8]) -> bool {
    let fits = spec.ty.as_tensor().is_some_and(|ty| sample_dims(spec, ty, bytes.len()).is_ok());
    !fits && !bytes.is_empty() && std::str::from_utf8(bytes).is_ok_and(|text| !text.contains(char::is_control))
}

fn unfit_count(spec: &ColumnSpec, count: usize) -> String {
    format!("feature '{}' of record 0 has {count} values, and the input is {}", spec.name, spec.ty)
}

/// All samples of a column.
///
/// # Errors
/// When one cannot be read.
pub(super) fn in_memory(column: &LazyColumn) -> Result<Values, Diagnostics> {
    let all: Vec<usize> = (0..column.len()).collect();
    let dims = std::iter::once(all.len()).chain(column.dims().iter().copied()).collect();
    let tensor = Tensor::from_bytes(column.dtype(), dims, Blob::new(column.gather(&all)?));
    Ok(Values::Numbers(tensor.map_err(|e| error(Code::INPUT, e.to_string()))?))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use of_ir::{Dim, Type};

    use super::*;

    static DECODED: AtomicUsize = AtomicUsize::new(0);

    /// Records of two bytes: the features x and y.
    const COUNTING: Format = Format {
        index: |_, bytes| Ok(Ok((0..bytes / 2).map(|i| Extent { offset: 2 * i, bytes: 2 }).collect())),
        decode: |record| {
            DECODED.fetch_add(1, Ordering::Relaxed);
            let feature = |name: &str, byte: u8| (name.to_owned(), Some(Numbers::Bytes(vec![byte].into())));
            Ok([feature("x", record[0]), feature("y", record[1]), feature("unused", 0)].into())
        },
    };

    #[test]
    fn a_record_is_decoded_once_for_all_columns_of_a_batch() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, bytes: &[u8]| {
            let path = dir.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            let column = |name: &str| {
                let ty = Type::tensor(DType::U8, vec![Dim::symbol("n")]);
                ColumnSpec { name: name.into(), ty }
            };
            let wanted = [column("x"), column("y")];
            let columns = read(&path, COUNTING, &wanted, &DataOptions::default(), &mut ClassNames::default());
            columns.unwrap().into_iter().map(|(_, values)| {
                let Values::Lazy(column) = values else { panic!("records are read as needed") };
                column
            })
        };
        // Samples of two files alternate.
        let (first, second) = (file("a", &[1, 10, 2, 20, 3, 30]), file("b", &[4, 40, 5, 50]));
        let columns: Vec<LazyColumn> = first
            .zip(second)
            .map(|(mut column, more)| {
                column.extend("x", &more).unwrap();
                column
            })
            .collect();
        let decoded = |samples: &[usize], column: usize| {
            let before = DECODED.load(Ordering::Relaxed);
            let bytes = columns[column].gather(samples).unwrap();
            (bytes, DECODED.load(Ordering::Relaxed) - before)
        };
        assert_eq!(decoded(&[0, 3, 2], 0), (vec![1, 4, 3], 3));
        assert_eq!(decoded(&[0, 3, 2], 1), (vec![10, 40, 30], 0));
        // What a column has taken is gone, and so is what is left of an earlier batch.
        assert_eq!(decoded(&[0], 1), (vec![10], 1));
        assert_eq!(decoded(&[1, 4, 1], 0), (vec![2, 5, 2], 3));
        assert_eq!(decoded(&[1, 3], 1), (vec![20, 40], 1));
        assert_eq!(decoded(&[4], 1), (vec![50], 1));
    }
}
