//! Columns of Parquet files, of which row groups are decoded.

use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use of_diag::{Code, Diagnostics};
use parquet::basic::{ConvertedType, LogicalType, Type as PhysicalType};
use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::data_type::DataType;
use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::schema::types::ColumnDescriptor;

use super::columns::{ColumnFile, Decoded, RowImage};
use crate::error::{error, io_error};

/// Whether the name is that of such a file.
pub(super) fn is_parquet(path: &Path) -> bool {
    path.extension().is_some_and(|e| e.eq_ignore_ascii_case("parquet"))
}

/// An open file.
struct Opened {
    path: PathBuf,
    // Reads move the position of the file.
    reader: Mutex<SerializedFileReader<File>>,
    /// Rows of each row group.
    rows: Vec<usize>,
    /// Leaf columns by the names of their roots.
    leaves: Vec<String>,
    /// Columns of binary, and fields `bytes` of structures.
    images: Vec<(String, usize)>,
    /// The fields `path` of these structures, by the numbers of their fields `bytes`.
    paths: HashMap<usize, usize>,
    /// What programs have written about the columns.
    features: serde_json::Value,
}

/// The values of a column that are there, and levels of all.
struct Levels<T> {
    values: Vec<T>,
    definition: Vec<i16>,
    repetition: Vec<i16>,
}

/// Whether a column has bytes that are no text.
fn is_binary(column: &ColumnDescriptor) -> bool {
    let is_text =
        matches!(column.logical_type_ref(), Some(LogicalType::String | LogicalType::Json | LogicalType::Enum))
            || matches!(column.converted_type(), ConvertedType::UTF8 | ConvertedType::JSON | ConvertedType::ENUM);
    column.physical_type() == PhysicalType::BYTE_ARRAY && column.max_rep_level() == 0 && !is_text
}

impl Opened {
    fn new(path: &Path) -> Result<Opened, Diagnostics> {
        let file = File::open(path).map_err(|e| io_error(path, "read", &e))?;
        let reader = SerializedFileReader::new(file).map_err(|e| damaged(path, &e))?;
        let groups = reader.metadata().row_groups();
        let rows = groups.iter().map(|group| usize::try_from(group.num_rows()).unwrap_or(0)).collect();
        let schema = reader.metadata().file_metadata().schema_descr_ptr();
        let leaves: Vec<String> =
            (0..schema.num_columns()).map(|i| schema.get_column_root(i).name().to_owned()).collect();
        let images = schema.columns().iter().enumerate().filter(|(_, column)| is_binary(column));
        let images = images.filter(|(_, column)| match column.path().parts() {
            [_] => true,
            [_, field] => field == "bytes",
            _ => false,
        });
        let images: Vec<(String, usize)> = images.map(|(leaf, _)| (leaves[leaf].clone(), leaf)).collect();
        let path_of = |leaf: usize| match schema.column(leaf).path().parts() {
            [root, field] if field == "bytes" => schema.columns().iter().position(|column| {
                column.physical_type() == PhysicalType::BYTE_ARRAY
                    && matches!(column.path().parts(), [own, path] if own == root && path == "path")
            }),
            _ => None,
        };
        let paths = images.iter().filter_map(|(_, leaf)| Some((*leaf, path_of(*leaf)?))).collect();
        // Source: datasets, `arrow_writer.py`: the features of a data set, as JSON.
        let said = reader.metadata().file_metadata().key_value_metadata();
        let said = said.and_then(|list| list.iter().find(|one| one.key == "huggingface")?.value.clone());
        let features = said.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
        Ok(Opened { path: path.to_owned(), reader: Mutex::new(reader), rows, leaves, images, paths, features })
    }

    /// All values of a column, of which some may be absent.
    fn levels<T: DataType>(
        &self,
        reader: &mut ColumnReaderImpl<T>,
        rows: usize,
        no: &dyn Fn(&str) -> Diagnostics,
    ) -> Result<Levels<T::T>, Diagnostics> {
        let mut out = Levels { values: Vec::new(), definition: Vec::new(), repetition: Vec::new() };
        let mut read = 0;
        while read < rows {
            let (definition, repetition) = (Some(&mut out.definition), Some(&mut out.repetition));
            let more = reader.read_records(rows - read, definition, repetition, &mut out.values);
            let (more, ..) = more.map_err(|e| damaged(&self.path, &e))?;
            if more == 0 {
                return Err(no(&format!("it has {read} of {rows} rows")));
            }
            read += more;
        }
        Ok(out)
    }

    /// The bytes of each row, one or none.
    fn optional(&self, part: usize, leaf: usize) -> Result<Vec<Option<Bytes>>, Diagnostics> {
        let failed = |e: ParquetError| damaged(&self.path, &e);
        let reader = self.reader.lock().unwrap_or_else(PoisonError::into_inner);
        let own = reader.get_row_group(part).map_err(failed)?;
        let present = own.metadata().column(leaf).column_descr_ptr().max_def_level();
        let no = |what: &str| self.wrong(&format!("column '{}', row group {part}: {what}", self.leaves[leaf]));
        let ColumnReader::ByteArrayColumnReader(mut column) = own.get_column_reader(leaf).map_err(failed)? else {
            return Err(no("it has no images"));
        };
        let read = self.levels(&mut column, self.rows[part], &no)?;
        // A value is a part of its page.
        let mut values = read.values.into_iter().map(Bytes::from_owner);
        let out: Vec<Option<Bytes>> = match present {
            0 => values.map(Some).collect(),
            _ => read.definition.iter().map(|level| if *level == present { values.next() } else { None }).collect(),
        };
        if out.len() != self.rows[part] {
            return Err(no(&format!("it has {} of {} rows", out.len(), self.rows[part])));
        }
        Ok(out)
    }

    fn all<T: DataType, R>(
        &self,
        mut reader: ColumnReaderImpl<T>,
        rows: usize,
        (present, repeated): (i16, i16),
        each: Option<usize>,
        no: &dyn Fn(&str) -> Diagnostics,
        value: impl Fn(&T::T) -> R,
    ) -> Result<Vec<R>, Diagnostics> {
        let Levels { values, definition, repetition } = self.levels(&mut reader, rows, no)?;
        if definition.iter().any(|level| *level < present) {
            return Err(no("a value is absent"));
        }
        let each = each.unwrap_or_else(|| values.len() / rows.max(1));
        // A level of 0 begins a row.
        let begins = |i: usize| repetition.get(i).is_none_or(|level| *level == 0);
        let is_even = values.len() == each * rows && (repeated == 0 || (0..rows).all(|row| begins(row * each)));
        let is_even = is_even && (repeated == 0 || repetition.iter().filter(|level| **level == 0).count() == rows);
        if !is_even {
            return Err(no(&format!("lists have different lengths, and {each} values a row are expected")));
        }
        Ok(values.iter().map(value).collect())
    }
}

fn damaged(path: &Path, e: &ParquetError) -> Diagnostics {
    error(Code::INPUT, format!("'{}' cannot be read as Parquet: {e}", path.display())).into()
}

impl ColumnFile for Opened {
    fn path(&self) -> &Path {
        &self.path
    }

    fn rows(&self) -> &[usize] {
        &self.rows
    }

    fn leaves(&self) -> &[String] {
        &self.leaves
    }

    fn decode(&self, part: usize, leaf: usize, each: Option<usize>) -> Result<Decoded, Diagnostics> {
        let failed = |e: ParquetError| damaged(&self.path, &e);
        let reader = self.reader.lock().unwrap_or_else(PoisonError::into_inner);
        let own = reader.get_row_group(part).map_err(failed)?;
        let column = own.get_column_reader(leaf).map_err(failed)?;
        let descriptor = own.metadata().column(leaf).column_descr_ptr();
        let levels = (descriptor.max_def_level(), descriptor.max_rep_level());
        let rows = self.rows[part];
        let name = &self.leaves[leaf];
        let no = |what: &str| self.wrong(&format!("column '{name}', row group {part}: {what}"));
        let decoded = match column {
            ColumnReader::BoolColumnReader(r) => {
                Decoded::Ints(self.all(r, rows, levels, each, &no, |v| i64::from(*v))?)
            }
            ColumnReader::Int32ColumnReader(r) => {
                Decoded::Ints(self.all(r, rows, levels, each, &no, |v| i64::from(*v))?)
            }
            ColumnReader::Int64ColumnReader(r) => Decoded::Ints(self.all(r, rows, levels, each, &no, |v| *v)?),
            ColumnReader::FloatColumnReader(r) => {
                Decoded::Floats(self.all(r, rows, levels, each, &no, |v| f64::from(*v))?)
            }
            ColumnReader::DoubleColumnReader(r) => Decoded::Floats(self.all(r, rows, levels, each, &no, |v| *v)?),
            ColumnReader::ByteArrayColumnReader(r) => Decoded::Texts(
                self.all(r, rows, levels, each, &no, |v| String::from_utf8_lossy(v.data()).into_owned())?,
            ),
            ColumnReader::Int96ColumnReader(_) | ColumnReader::FixedLenByteArrayColumnReader(_) => {
                return Err(no("its type is none of numbers and texts"));
            }
        };
        Ok(decoded)
    }

    fn images(&self) -> &[(String, usize)] {
        &self.images
    }

    fn encoded(&self, part: usize, leaf: usize) -> Result<Vec<RowImage>, Diagnostics> {
        let bytes = self.optional(part, leaf)?;
        let are_whole = bytes.iter().all(Option::is_some);
        let paths = match self.paths.get(&leaf).filter(|_| !are_whole) {
            Some(paths) => self.optional(part, *paths)?,
            None => vec![None; bytes.len()],
        };
        let images = bytes.into_iter().zip(paths).map(|(bytes, path)| RowImage::of(bytes, path));
        let absent = || self.wrong(&format!("column '{}', row group {part}: a value is absent", self.leaves[leaf]));
        images.collect::<Option<_>>().ok_or_else(absent)
    }

    fn encoded_bytes(&self, part: usize, leaf: usize) -> usize {
        let reader = self.reader.lock().unwrap_or_else(PoisonError::into_inner);
        let column = reader.metadata().row_groups().get(part).map(|group| group.column(leaf).uncompressed_size());
        column.and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(0)
    }

    fn classes(&self, column: &str) -> Vec<String> {
        let names = self.features["info"]["features"][column]["names"].as_array();
        names.into_iter().flatten().filter_map(|name| name.as_str().map(str::to_owned)).collect()
    }
}

/// Opens a file.
///
/// # Errors
/// When it cannot be read, or is none of this format.
pub(super) fn open(path: &Path) -> Result<Arc<dyn ColumnFile>, Diagnostics> {
    Ok(Arc::new(Opened::new(path)?))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use of_ir::{DType, Dim, Type};
    use parquet::basic::{Compression, ZstdLevel};
    use parquet::column::writer::ColumnWriter;
    use parquet::data_type::ByteArray;
    use parquet::file::properties::WriterProperties;
    use parquet::file::writer::SerializedFileWriter;
    use parquet::schema::parser::parse_message_type;

    use super::super::columns::texts;
    use super::super::data::{ColumnSpec, DataOptions, Dataset};
    use super::*;

    const SCHEMA: &str = "message m { required group x (LIST) { repeated group list { optional float element; } }
        required int32 y; optional int64 gap; required binary text (UTF8); required double z; }";

    /// Row groups of four rows: x is [i, i + 0.5], y is i, z is -i; row `short` has one element in x, `absent` has no gap.
    fn write(path: &Path, groups: usize, (short, absent): (usize, usize), compression: Compression) {
        let schema = Arc::new(parse_message_type(SCHEMA).unwrap());
        let properties = Arc::new(WriterProperties::builder().set_compression(compression).build());
        let mut writer = SerializedFileWriter::new(File::create(path).unwrap(), schema, properties).unwrap();
        for group in 0..groups {
            let rows: Vec<usize> = (4 * group..4 * group + 4).collect();
            let mut own = writer.next_row_group().unwrap();
            while let Some(mut column) = own.next_column().unwrap() {
                match column.untyped() {
                    ColumnWriter::FloatColumnWriter(w) => {
                        let count = |row: usize| if row == short { 1 } else { 2 };
                        let each = rows.iter().flat_map(|row| (0..count(*row)).map(move |i| (*row, i)));
                        let (values, repeated): (Vec<f32>, Vec<i16>) =
                            each.map(|(row, i)| (row as f32 + 0.5 * i as f32, i16::from(i > 0))).unzip();
                        w.write_batch(&values, Some(&vec![2; values.len()]), Some(&repeated)).unwrap()
                    }
                    ColumnWriter::Int32ColumnWriter(w) => {
                        w.write_batch(&rows.iter().map(|i| *i as i32).collect::<Vec<_>>(), None, None).unwrap()
                    }
                    ColumnWriter::Int64ColumnWriter(w) => {
                        let there = |i: &&usize| **i != absent;
                        let values: Vec<i64> = rows.iter().filter(there).map(|i| *i as i64).collect();
                        let levels: Vec<i16> = rows.iter().map(|i| i16::from(*i != absent)).collect();
                        w.write_batch(&values, Some(&levels), None).unwrap()
                    }
                    ColumnWriter::ByteArrayColumnWriter(w) => {
                        let text = |i: &usize| ByteArray::from(format!("row {i}").as_str());
                        w.write_batch(&rows.iter().map(text).collect::<Vec<_>>(), None, None).unwrap()
                    }
                    ColumnWriter::DoubleColumnWriter(w) => {
                        w.write_batch(&rows.iter().map(|i| -(*i as f64)).collect::<Vec<_>>(), None, None).unwrap()
                    }
                    _ => unreachable!(),
                };
                column.close().unwrap();
            }
            own.close().unwrap();
        }
        writer.close().unwrap();
    }

    fn column(name: &str, dtype: DType, dims: &[Dim]) -> ColumnSpec {
        let shape = std::iter::once(Dim::symbol("n")).chain(dims.iter().cloned()).collect();
        ColumnSpec { name: name.into(), ty: Type::tensor(dtype, shape) }
    }

    fn read(files: &[&Path], wanted: &[ColumnSpec], cached_bytes: usize) -> Result<Dataset, Diagnostics> {
        let files: Vec<OsString> = files.iter().map(OsString::from).collect();
        Dataset::read_with(&files, wanted, &DataOptions { cached_bytes, ..DataOptions::default() })
    }

    const EVEN: (usize, usize) = (usize::MAX, usize::MAX);

    #[test]
    fn columns_are_read_from_row_groups_as_batches_need_them() {
        let dir = tempfile::tempdir().unwrap();
        let paths = ["a.parquet", "b.parquet"].map(|name| dir.path().join(name));
        write(&paths[0], 3, EVEN, Compression::SNAPPY);
        write(&paths[1], 1, EVEN, Compression::ZSTD(ZstdLevel::default()));
        let wanted = [
            column("x", DType::F32, &[Dim::symbol("t")]),
            column("z", DType::F64, &[Dim::from(1i64)]),
            column("y", DType::I64, &[]),
        ];
        for cached in [1, 1 << 20] {
            let data = read(&[&paths[0], &paths[1]], &wanted, cached).unwrap();
            assert_eq!(data.len(), 16);
            let batch = data.batch(&[15, 2, 9, 3]).unwrap();
            let tensor = |i: usize| batch[i].as_tensor().unwrap();
            assert_eq!(tensor(0).to_elements::<f32>().unwrap(), [3.0, 3.5, 2.0, 2.5, 9.0, 9.5, 3.0, 3.5]);
            assert_eq!(
                (tensor(1).dims(), tensor(1).to_elements::<f64>().unwrap()),
                (&[4, 1][..], vec![-3.0, -2.0, -9.0, -3.0])
            );
            assert_eq!(tensor(2).to_elements::<i64>().unwrap(), [3, 2, 9, 3]);
            let (_, held) = data.split(0.25).unwrap();
            assert_eq!(held.batch(&[0, 3]).unwrap()[2].as_tensor().unwrap().to_elements::<i64>().unwrap(), [3, 3]);
        }
    }

    #[test]
    fn classes_become_probabilities_where_the_loss_takes_them() {
        let dir = tempfile::tempdir().unwrap();
        let paths = ["a.parquet", "b.parquet"].map(|name| dir.path().join(name));
        write(&paths[0], 1, EVEN, Compression::SNAPPY);
        write(&paths[1], 1, EVEN, Compression::SNAPPY);
        let files = paths.map(OsString::from);
        let wanted = |labels, classes: i64| {
            [column("x", DType::F32, &[Dim::from(2i64)]), column(labels, DType::F32, &[Dim::from(classes)])]
        };
        let options = DataOptions { has_probabilities: true, ..DataOptions::default() };
        let data = Dataset::read_with(&files, &wanted("y", 4), &options).unwrap();
        let batch = data.batch(&[7, 1]).unwrap();
        let labels = batch[1].as_tensor().unwrap();
        assert_eq!(labels.to_elements::<f32>().unwrap(), [0.0, 0.0, 0.0, 1.0, 0.0, 1.0, 0.0, 0.0]);
        let e = Dataset::read_with(&files, &wanted("y", 3), &options).unwrap_err().to_string();
        assert!(e.contains("the data of 'y' has 3, and classes are 0 to 2"), "{e}");
        // Lists are probabilities already, and other numbers are no classes.
        let soft = [column("z", DType::F64, &[Dim::from(1i64)]), column("x", DType::F32, &[Dim::from(2i64)])];
        let batch = Dataset::read_with(&files, &soft, &options).unwrap().batch(&[6]).unwrap();
        assert_eq!(batch[1].as_tensor().unwrap().to_elements::<f32>().unwrap(), [2.0, 2.5]);
        let e = Dataset::read_with(&files, &wanted("z", 4), &options).unwrap_err().to_string();
        assert!(e.contains("a row has 1 numbers for 'z'"), "{e}");
    }

    #[test]
    fn orders_of_data_that_is_larger_than_memory_shuffle_windows_of_row_groups() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.parquet");
        write(&path, 8, EVEN, Compression::UNCOMPRESSED);
        let wanted = [column("x", DType::F32, &[Dim::from(2i64)]), column("y", DType::I64, &[])];
        // Row groups of x have 32 bytes.
        let data = read(&[&path], &wanted, 70).unwrap();
        let order = data.order(3, 1);
        assert_eq!((order.clone(), data.order(3, 1)), (data.order(3, 1), order.clone()));
        assert!(order != data.order(3, 2) && order != data.order(4, 1));
        let mut all = order.clone();
        all.sort_unstable();
        assert_eq!(all, (0..32).collect::<Vec<_>>());
        for window in order.chunks(8) {
            let mut groups: Vec<usize> = window.iter().map(|sample| sample / 4).collect();
            assert!(!groups.is_sorted() || window.windows(2).any(|pair| pair[0] > pair[1]));
            groups.sort_unstable();
            groups.dedup();
            assert_eq!(groups.len(), 2, "{window:?}");
        }
        let whole = read(&[&path], &wanted, 1 << 20).unwrap();
        assert_eq!(whole.order(3, 1), super::super::order::sample_order(32, 3, 1));
    }

    #[test]
    fn unfit_columns_are_refused_with_the_reason() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.parquet");
        let label = || column("y", DType::I64, &[]);
        let error = |wanted: &[ColumnSpec]| {
            let data = read(&[&path], wanted, 1 << 20);
            data.and_then(|data| data.batch(&(0..data.len()).collect::<Vec<_>>())).unwrap_err().to_string()
        };
        write(&path, 2, (5, 2), Compression::SNAPPY);
        for (wanted, words) in [
            (column("x", DType::F32, &[Dim::symbol("t")]), "column 'x', row group 1: lists have different lengths"),
            (column("x", DType::F32, &[Dim::from(3i64)]), "a row has 2 numbers for 'x'"),
            (column("gap", DType::I64, &[]), "column 'gap', row group 0: a value is absent"),
            (column("text", DType::F32, &[]), "column 'text' has texts"),
            (column("z", DType::I64, &[]), "column 'z' has other numbers, and the input is i64"),
            (column("other", DType::F32, &[]), "the data has no values for 'other'"),
        ] {
            let wrong = error(&[wanted, label()]);
            assert!(wrong.contains(words), "{words}: {wrong}");
        }
        let wrong = error(&[column("p", DType::F32, &[]), column("q", DType::F32, &[])]);
        assert!(wrong.contains("no column is called p or q; there are x, y, gap, text, z"), "{wrong}");
        std::fs::write(&path, "PAR1 no more").unwrap();
        assert!(error(&[label()]).contains("cannot be read as Parquet"));
        write(&path, 1, EVEN, Compression::SNAPPY);
        let texts = texts(&path, "text", Some("y")).unwrap();
        assert_eq!(texts[3], ("row 3".to_owned(), Some(3)));
    }
}
