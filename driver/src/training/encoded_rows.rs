//! Encoded images in the rows of a file of columns, Parquet or Arrow. The parts of a file are read when a batch needs them, and some stay in
//! memory as they are in the file.

use std::collections::VecDeque;
use std::fmt::{Debug, Formatter};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use of_diag::{Code, Diagnostics};
use rayon::prelude::*;

use super::columns::{ColumnFile, RowImage};
use crate::error::error;

/// Where encoded images come from that are read together.
pub(super) trait EncodedSource: Debug + Send + Sync {
    /// The bytes of the images of these numbers, which exist, in this order.
    ///
    /// # Errors
    /// When one cannot be read, or is absent.
    fn fetch(&self, images: &[usize]) -> Result<Vec<Bytes>, Diagnostics>;
    /// Bytes of the source that an image takes.
    fn bytes_of(&self, image: usize) -> usize;
    /// Names an image in messages.
    fn place(&self, image: usize) -> String;
    /// The part of the source that has an image, and is read at once.
    fn group(&self, _image: usize) -> usize {
        0
    }
    /// How many of these parts stay in memory; `None` is all.
    fn groups_at_once(&self) -> Option<usize> {
        None
    }
}

/// The images of a part, and the bytes of all of them.
struct Part {
    number: usize,
    images: Arc<Vec<RowImage>>,
    bytes: usize,
}

/// A column of encoded images.
pub(super) struct EncodedRows {
    file: Arc<dyn ColumnFile>,
    leaf: usize,
    /// The first row of each part, and the number of all.
    starts: Vec<usize>,
    /// Parts that were read, the newest last.
    cache: Mutex<VecDeque<Part>>,
    cached_bytes: usize,
}

impl Debug for EncodedRows {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        write!(f, "'{}' of '{}'", self.file.leaves()[self.leaf], self.file.path().display())
    }
}

impl EncodedRows {
    /// The column `leaf` of a file, of which parts of so many bytes stay in memory. `starts` are the first rows of parts.
    pub fn new(file: &Arc<dyn ColumnFile>, leaf: usize, starts: Vec<usize>, cached_bytes: usize) -> EncodedRows {
        EncodedRows { file: Arc::clone(file), leaf, starts, cache: Mutex::default(), cached_bytes }
    }

    fn part(&self, number: usize) -> Result<Arc<Vec<RowImage>>, Diagnostics> {
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = cache.iter().position(|part| part.number == number)
            && let Some(found) = cache.remove(at)
        {
            let images = Arc::clone(&found.images);
            cache.push_back(found);
            return Ok(images);
        }
        let images = Arc::new(self.file.encoded(number, self.leaf)?);
        let bytes = images.iter().map(RowImage::len).sum();
        cache.push_back(Part { number, images: Arc::clone(&images), bytes });
        while cache.len() > 1 && cache.iter().map(|part| part.bytes).sum::<usize>() > self.cached_bytes {
            cache.pop_front();
        }
        Ok(images)
    }

    /// The bytes of an image, which may be in a file of its own.
    fn read(&self, row: usize, image: RowImage) -> Result<Bytes, Diagnostics> {
        let path = match image {
            RowImage::Bytes(bytes) => return Ok(bytes),
            RowImage::File(path) => path,
        };
        let folder = self.file.path().parent().unwrap_or(Path::new(""));
        std::fs::read(folder.join(&path)).map(Bytes::from).map_err(|e| {
            let what = format!("{} has no bytes, and its file '{path}' cannot be read: {e}", self.place(row));
            let hint = match path.contains("://") {
                true => "the path is a URL: download the images, and write their bytes or paths into the column".into(),
                false => format!("such paths begin in the folder of '{}'", self.file.path().display()),
            };
            error(Code::IO, what).hint(hint).into()
        })
    }
}

impl EncodedSource for EncodedRows {
    fn fetch(&self, images: &[usize]) -> Result<Vec<Bytes>, Diagnostics> {
        // Each part once.
        let mut order: Vec<(usize, usize)> = images.iter().enumerate().map(|(i, row)| (self.group(*row), i)).collect();
        order.sort_unstable();
        let mut out = vec![RowImage::Bytes(Bytes::new()); images.len()];
        for own in order.chunk_by(|a, b| a.0 == b.0) {
            let number = own[0].0;
            let part = self.part(number)?;
            for (_, i) in own {
                let row = images[*i] - self.starts[number];
                let image = part.get(row).cloned();
                out[*i] = image.ok_or_else(|| self.file.wrong(&format!("part {number} has no row {row}")))?;
            }
        }
        out.into_par_iter().zip(images).map(|(image, row)| self.read(*row, image)).collect()
    }

    fn bytes_of(&self, image: usize) -> usize {
        let part = self.group(image);
        self.file.encoded_bytes(part, self.leaf) / self.file.rows()[part].max(1)
    }

    fn place(&self, image: usize) -> String {
        format!("row {image} of column '{}' in '{}'", self.file.leaves()[self.leaf], self.file.path().display())
    }

    fn group(&self, image: usize) -> usize {
        self.starts.partition_point(|start| *start <= image).saturating_sub(1)
    }

    fn groups_at_once(&self) -> Option<usize> {
        let bytes = |part| self.file.encoded_bytes(part, self.leaf);
        let parts = 0..self.file.rows().len();
        if parts.clone().map(bytes).sum::<usize>() <= self.cached_bytes {
            return None;
        }
        let largest = parts.map(bytes).max().unwrap_or(1);
        Some((self.cached_bytes / largest.max(1)).max(1))
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::fs::File;

    use of_ir::{DType, Dim, Type};
    use parquet::column::writer::ColumnWriter;
    use parquet::data_type::ByteArray;
    use parquet::file::metadata::KeyValue;
    use parquet::file::properties::WriterProperties;
    use parquet::file::writer::SerializedFileWriter;
    use parquet::schema::parser::parse_message_type;

    use super::super::batch_rows::BatchRows;
    use super::super::data::{ColumnSpec, DataOptions, Dataset};
    use super::*;

    /// As pyarrow writes the images of Hugging Face's package datasets, and names of classes.
    const STRUCTURE: &str = "message m { optional group image { optional binary bytes; optional binary path (UTF8); }
        optional int64 label; optional binary name (UTF8); }";
    const BINARY: &str = "message m { required binary jpg; required int64 label; required binary name (UTF8); }";

    /// A picture of one grey.
    fn picture(grey: u8) -> Vec<u8> {
        [&b"P6\n1 1\n255\n"[..], &[grey; 3]].concat()
    }

    /// Row groups of four rows. Row i is of grey i and class i % 3; row `damaged` is no picture, and row `absent` has none.
    fn write(path: &Path, schema: &str, groups: usize, (damaged, absent): (usize, usize)) {
        let features = r#"{"info": {"features": {"label": {"names": ["ant", "bee", "cat"], "_type": "ClassLabel"}}}}"#;
        let said = vec![KeyValue::new("huggingface".to_owned(), features.to_owned())];
        let properties = WriterProperties::builder().set_key_value_metadata(Some(said)).build();
        let is_optional = schema == STRUCTURE;
        let schema = Arc::new(parse_message_type(schema).unwrap());
        let mut writer = SerializedFileWriter::new(File::create(path).unwrap(), schema, Arc::new(properties)).unwrap();
        for group in 0..groups {
            let rows: Vec<usize> = (4 * group..4 * group + 4).collect();
            let mut own = writer.next_row_group().unwrap();
            let mut number = 0;
            while let Some(mut column) = own.next_column().unwrap() {
                let (last, levels) = (if is_optional { 3 } else { 2 }, is_optional.then(|| vec![1; 4]));
                match column.untyped() {
                    ColumnWriter::Int64ColumnWriter(w) => {
                        let labels: Vec<i64> = rows.iter().map(|row| *row as i64 % 3).collect();
                        w.write_batch(&labels, levels.as_deref(), None).unwrap()
                    }
                    ColumnWriter::ByteArrayColumnWriter(w) if number == 0 => {
                        let there = rows.iter().filter(|row| **row != absent);
                        let bytes = |row: &usize| if *row == damaged { vec![1, 2] } else { picture(*row as u8) };
                        let images: Vec<ByteArray> = there.map(|row| bytes(row).into()).collect();
                        let levels = rows.iter().map(|row| if *row == absent { 1 } else { 2 }).collect::<Vec<_>>();
                        w.write_batch(&images, is_optional.then_some(&levels[..]), None).unwrap()
                    }
                    ColumnWriter::ByteArrayColumnWriter(w) if number == last => {
                        let names = rows.iter().map(|row| ByteArray::from(["kea", "auk", "owl"][row % 3]));
                        w.write_batch(&names.collect::<Vec<_>>(), levels.as_deref(), None).unwrap()
                    }
                    // Paths are absent.
                    ColumnWriter::ByteArrayColumnWriter(w) => w.write_batch(&[], Some(&[1; 4]), None).unwrap(),
                    _ => unreachable!(),
                };
                column.close().unwrap();
                number += 1;
            }
            own.close().unwrap();
        }
        writer.close().unwrap();
    }

    fn read(paths: &[&Path], names: [&str; 2], options: &DataOptions) -> Result<Dataset, Diagnostics> {
        let n = || Dim::symbol("n");
        let image = [n(), Dim::from(1i64), Dim::from(1i64), Dim::from(3i64)].to_vec();
        let wanted = [
            ColumnSpec { name: names[0].into(), ty: Type::tensor(DType::U8, image) },
            ColumnSpec { name: names[1].into(), ty: Type::tensor(DType::I64, vec![n()]) },
        ];
        let files: Vec<OsString> = paths.iter().map(|path| path.as_os_str().to_owned()).collect();
        Dataset::read_with(&files, &wanted, options)
    }

    fn cached(cached_bytes: usize) -> DataOptions {
        DataOptions { cached_bytes, ..DataOptions::default() }
    }

    fn values(data: &Dataset, samples: &[usize]) -> (Vec<u8>, Vec<i64>) {
        let batch = data.batch(samples).unwrap();
        let greys = batch[0].as_tensor().unwrap().to_elements::<u8>().unwrap();
        let labels = batch[1].as_tensor().unwrap().to_elements::<i64>().unwrap();
        (greys.chunks(3).map(|pixel| pixel[0]).collect(), labels)
    }

    const NONE: (usize, usize) = (usize::MAX, usize::MAX);

    #[test]
    fn rows_of_parquet_are_images_that_a_batch_decodes() {
        let dir = tempfile::tempdir().unwrap();
        let paths = ["a.parquet", "b.parquet"].map(|name| dir.path().join(name));
        // The column has the name of the input, or is the only one of images for the only input.
        for (schema, input) in [(STRUCTURE, "image"), (BINARY, "jpg"), (STRUCTURE, "x"), (BINARY, "x")] {
            write(&paths[0], schema, 2, NONE);
            write(&paths[1], schema, 1, NONE);
            for options in [cached(1), cached(1 << 20)] {
                let data = read(&[&paths[0], &paths[1]], [input, "label"], &options).unwrap();
                assert_eq!((data.len(), data.has_images()), (12, true));
                assert_eq!(data.classes, ["ant", "bee", "cat"]);
                assert_eq!(values(&data, &[9, 2, 7, 0]), (vec![1, 2, 7, 0], vec![1, 2, 1, 0]));
                let (_, held) = data.split(0.25).unwrap();
                assert_eq!(values(&held, &[2, 0]).0, [3, 3]);
                assert_eq!(values(&data.decode_small().unwrap(), &[11]).0, [3]);
            }
        }
    }

    #[test]
    fn an_epoch_of_images_larger_than_memory_reads_row_groups_together() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.parquet");
        write(&path, STRUCTURE, 8, NONE);
        let bytes = read(&[&path], ["image", "label"], &cached(1)).unwrap();
        let order = bytes.order(3, 1);
        assert!(order == bytes.order(3, 1) && order != bytes.order(3, 2));
        for window in order.chunks(4) {
            assert!(window.iter().all(|sample| sample / 4 == window[0] / 4), "{window:?}");
        }
        let whole = read(&[&path], ["image", "label"], &cached(1 << 20)).unwrap();
        assert_eq!(whole.order(3, 1), super::super::order::sample_order(32, 3, 1));
    }

    #[test]
    fn labels_may_be_names_of_classes() {
        let dir = tempfile::tempdir().unwrap();
        let paths = ["a.parquet", "b.parquet"].map(|name| dir.path().join(name));
        write(&paths[0], STRUCTURE, 1, NONE);
        write(&paths[1], BINARY, 1, NONE);
        let data = read(&[&paths[0], &paths[1]], ["x", "name"], &cached(1)).unwrap();
        assert_eq!(data.classes, ["auk", "kea", "owl"]);
        assert_eq!(values(&data, &[0, 1, 2, 6]).1, [1, 0, 2, 2]);
        let classes = ["auk", "jay", "kea"].map(String::from).to_vec();
        let options = DataOptions { classes, ..cached(1) };
        let wrong = read(&[&paths[0]], ["x", "name"], &options).unwrap_err().to_string();
        assert!(wrong.contains("sample 2 (the first is 0) is of the class 'owl'"), "{wrong}");
    }

    #[test]
    fn damaged_and_absent_images_are_named_by_the_batch_that_needs_them() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.parquet");
        write(&path, STRUCTURE, 2, (6, usize::MAX));
        let data = read(&[&path], ["image", "label"], &cached(1)).unwrap();
        let wrong = data.batch(&[0, 6]).unwrap_err().to_string();
        assert!(wrong.contains("row 6 of column 'image' in '") && wrong.contains("a.parquet"), "{wrong}");
        // A rank decodes its own rows alone.
        let mesh = of_plan::MeshProgram {
            shape: vec![2],
            inputs: ["image", "label"]
                .map(|name| of_plan::MeshPort {
                    name: name.into(),
                    dtype: of_plan::ElementType::Ui8 as i32,
                    dims: vec![2],
                    layout: vec![of_plan::AxisLayout::split(0)],
                    microbatches: None,
                })
                .to_vec(),
            ..of_plan::MeshProgram::default()
        };
        assert!(data.batch_of_rows(&[0, 6], None, &BatchRows::of_rank(&mesh, 0)).is_ok());
        assert!(data.batch_of_rows(&[0, 6], None, &BatchRows::of_rank(&mesh, 1)).is_err());
        write(&path, STRUCTURE, 2, (usize::MAX, 5));
        let data = read(&[&path], ["image", "label"], &cached(1)).unwrap();
        let wrong = data.batch(&[4]).unwrap_err().to_string();
        assert!(wrong.contains("column 'image', row group 1: a value is absent"), "{wrong}");
        let wrong = read(&[&path], ["image", "labels"], &cached(1)).unwrap_err().to_string();
        assert!(wrong.contains("the data has no values for 'labels', only for image"), "{wrong}");
        assert!(wrong.contains("--labels"), "{wrong}");
    }

    /// Rows of a structure: bytes and paths, of which either may be absent.
    fn write_paths(path: &Path, rows: &[(Option<Vec<u8>>, Option<&str>)]) {
        let schema = "message m { optional group image { optional binary bytes; optional binary path (UTF8); } required int64 label; }";
        let schema = Arc::new(parse_message_type(schema).unwrap());
        let mut writer =
            SerializedFileWriter::new(File::create(path).unwrap(), schema, Arc::new(WriterProperties::default()))
                .unwrap();
        let mut own = writer.next_row_group().unwrap();
        let mut fields = [
            rows.iter().map(|(bytes, _)| bytes.clone()).collect::<Vec<_>>(),
            rows.iter().map(|(_, path)| path.map(|path| path.as_bytes().to_vec())).collect(),
        ]
        .into_iter();
        while let Some(mut column) = own.next_column().unwrap() {
            match column.untyped() {
                ColumnWriter::Int64ColumnWriter(w) => w.write_batch(&vec![0; rows.len()], None, None).unwrap(),
                ColumnWriter::ByteArrayColumnWriter(w) => {
                    let values = fields.next().unwrap();
                    let levels: Vec<i16> = values.iter().map(|value| 1 + i16::from(value.is_some())).collect();
                    let values: Vec<ByteArray> = values.into_iter().flatten().map(ByteArray::from).collect();
                    w.write_batch(&values, Some(&levels), None).unwrap()
                }
                _ => unreachable!(),
            };
            column.close().unwrap();
        }
        own.close().unwrap();
        writer.close().unwrap();
    }

    #[test]
    fn images_without_bytes_are_files_next_to_the_table() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.parquet");
        std::fs::create_dir(dir.path().join("more")).unwrap();
        std::fs::write(dir.path().join("more/7.ppm"), picture(7)).unwrap();
        let absolute = dir.path().join("more/7.ppm").display().to_string();
        let rows = [
            (None, Some("more/7.ppm")),
            (Some(picture(1)), Some("nowhere.ppm")),
            (None, Some("more/8.ppm")),
            (Some(picture(3)), None),
            (None, Some(&*absolute)),
            (None, Some("https://127.0.0.1/9.ppm")),
        ];
        write_paths(&path, &rows);
        let data = read(&[&path], ["image", "label"], &cached(1)).unwrap();
        assert_eq!(values(&data, &[4, 3, 1, 0]).0, [7, 3, 1, 7]);
        let wrong = data.batch(&[0, 2]).unwrap_err().to_string();
        assert!(wrong.contains("row 2 of column 'image' in '") && wrong.contains("a.parquet'"), "{wrong}");
        assert!(wrong.contains("has no bytes, and its file 'more/8.ppm' cannot be read: "), "{wrong}");
        assert!(wrong.contains("such paths begin in the folder of '"), "{wrong}");
        let wrong = data.batch(&[5]).unwrap_err().to_string();
        assert!(wrong.contains("the path is a URL: download the images"), "{wrong}");
        // A file that is not there at the first row ends the training before it begins.
        write_paths(&path, &rows[2..]);
        let wrong = read(&[&path], ["image", "label"], &cached(1)).unwrap_err().to_string();
        assert!(wrong.contains("row 0 of column 'image'") && wrong.contains("'more/8.ppm'"), "{wrong}");
        for neither in [None, Some("")] {
            write_paths(&path, &[(Some(picture(1)), None), (None, neither)]);
            let wrong = read(&[&path], ["image", "label"], &cached(1)).unwrap_err().to_string();
            assert!(wrong.contains("column 'image', row group 0: a value is absent"), "{wrong}");
        }
    }
}
