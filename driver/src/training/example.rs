//! TFRecord files of `tf.train.Example`: named lists of numbers for each sample.

use std::collections::HashMap;

use bytes::Bytes;
use prost::Message;

use super::features::{BytesList, Features as NamedNumbers, FloatList, Format, Int64List, Numbers};
use super::tfrecord;

/// Source: TensorFlow, `tensorflow/core/example/example.proto` and `feature.proto`.
#[derive(Clone, PartialEq, Message)]
struct Example {
    #[prost(message, optional, tag = "1")]
    features: Option<Features>,
}

#[derive(Clone, PartialEq, Message)]
struct Features {
    #[prost(map = "string, message", tag = "1")]
    feature: HashMap<String, Feature>,
}

#[derive(Clone, PartialEq, Message)]
struct Feature {
    #[prost(oneof = "Kind", tags = "1, 2, 3")]
    kind: Option<Kind>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum Kind {
    #[prost(message, tag = "1")]
    Bytes(BytesList),
    #[prost(message, tag = "2")]
    Floats(FloatList),
    #[prost(message, tag = "3")]
    Ints(Int64List),
}

/// Files of such records.
pub const FORMAT: Format = Format { index: tfrecord::index, decode };

fn decode(record: Bytes) -> Result<NamedNumbers, String> {
    let data = record.slice_ref(tfrecord::checked(&record)?);
    let example = Example::decode(data).map_err(|e| format!("no tf.train.Example: {e}"))?;
    let features = example.features.unwrap_or_default().feature;
    Ok(features.into_iter().map(|(name, feature)| (name, feature.kind.map(Numbers::from))).collect())
}

impl From<Kind> for Numbers {
    fn from(kind: Kind) -> Numbers {
        match kind {
            Kind::Bytes(list) => list.into(),
            Kind::Floats(list) => Numbers::Floats(list.value),
            Kind::Ints(list) => Numbers::Int64s(list.value),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use of_diag::Diagnostics;
    use of_ir::{DType, Dim, Type};

    use super::super::data::{ColumnSpec, DataOptions, Dataset};
    use super::*;

    fn record(features: &[(&str, Kind)]) -> Vec<u8> {
        let feature = features.iter().map(|(n, k)| ((*n).to_string(), Feature { kind: Some(k.clone()) })).collect();
        Example { features: Some(Features { feature }) }.encode_to_vec()
    }

    fn floats(value: &[f32]) -> Kind {
        Kind::Floats(FloatList { value: value.to_vec() })
    }

    fn ints(value: &[i64]) -> Kind {
        Kind::Ints(Int64List { value: value.to_vec() })
    }

    fn write(path: &Path, records: &[Vec<u8>]) {
        let mut file = Vec::new();
        records.iter().for_each(|r| tfrecord::write(&mut file, r).unwrap());
        std::fs::write(path, file).unwrap();
    }

    fn column(name: &str, dtype: DType, rest: &[Dim]) -> ColumnSpec {
        let dims = std::iter::once(Dim::symbol("n")).chain(rest.iter().cloned()).collect();
        ColumnSpec { name: name.into(), ty: Type::tensor(dtype, dims) }
    }

    fn read(paths: &[&Path], wanted: &[ColumnSpec], cached_bytes: usize) -> Result<Dataset, Diagnostics> {
        let files: Vec<_> = paths.iter().map(|path| path.as_os_str().to_owned()).collect();
        Dataset::read_with(&files, wanted, &DataOptions { cached_bytes, ..DataOptions::default() })
    }

    #[test]
    fn features_become_columns_in_memory_or_as_batches_need_them() {
        let dir = tempfile::tempdir().unwrap();
        let paths = ["a.tfrecord", "b.tfrecord"].map(|name| dir.path().join(name));
        let sample = |x: f32, y: i64| {
            let raw = Kind::Bytes(BytesList { value: vec![vec![1].into(), vec![y as u8].into()] });
            record(&[("x", floats(&[x, 2.0])), ("y", ints(&[y])), ("raw", raw)])
        };
        write(&paths[0], &[sample(0.5, 1), sample(1.5, 7)]);
        write(&paths[1], &[sample(2.5, 255)]);
        let wanted = [
            column("x", DType::F32, &[Dim::symbol("t")]),
            column("raw", DType::F32, &[Dim::from(2i64), Dim::from(1i64)]),
            column("y", DType::I64, &[]),
        ];
        for cached in [0, 1 << 20] {
            let data = read(&[&paths[0], &paths[1]], &wanted, cached).unwrap();
            assert_eq!((data.len(), data.is_read_as_needed()), (3, cached == 0));
            let batch = data.batch(&[2, 0]).unwrap();
            let tensor = |i: usize| batch[i].as_tensor().unwrap();
            assert_eq!(tensor(0).to_elements::<f32>().unwrap(), [2.5, 2.0, 0.5, 2.0]);
            assert_eq!(
                (tensor(1).dims(), tensor(1).to_elements::<f32>().unwrap()),
                (&[2, 2, 1][..], vec![1., 255., 1., 1.])
            );
            assert_eq!(tensor(2).to_elements::<i64>().unwrap(), [255, 1]);
            let (train, held) = data.split(0.34).unwrap();
            assert_eq!((train.len(), held.len()), (2, 1));
        }
    }

    #[test]
    fn wrong_records_are_named_when_they_are_needed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.tfrecord");
        let wanted = [column("x", DType::F32, &[Dim::from(2i64)]), column("y", DType::I64, &[])];
        let sample = |y: i64| record(&[("x", floats(&[0.0, 2.0])), ("y", ints(&[y]))]);
        for (records, words) in [
            (
                vec![sample(1), record(&[("x", floats(&[1.0])), ("y", ints(&[1]))])],
                "feature 'x' of record 1 has 1 values of f32, and that of record 0 2 of f32",
            ),
            (vec![record(&[("x", floats(&[1.0, 2.0]))])], "record 0 has no feature 'y', only x"),
            (vec![b"\xff\xff".to_vec()], "record 0: no tf.train.Example"),
            (vec![], "there are no records"),
            (
                vec![record(&[("x", floats(&[1.0])), ("y", ints(&[1]))])],
                "feature 'x' of record 0 has 1 values, and the input is",
            ),
            (
                vec![record(&[("x", floats(&[1.0, 2.0])), ("y", floats(&[1.0]))])],
                "feature 'y' of record 0 is f32, and the input is i64",
            ),
        ] {
            write(&path, &records);
            // In memory all records are read at once.
            let e = read(&[&path], &wanted, 1 << 20).unwrap_err().to_string();
            assert!(e.contains(words), "{words}: {e}");
        }
        write(&path, &[sample(1), sample(2)]);
        let mut bytes = std::fs::read(&path).unwrap();
        let last = bytes.len() - 5;
        bytes[last] ^= 1;
        std::fs::write(&path, bytes).unwrap();
        let data = read(&[&path], &wanted, 0).unwrap();
        assert!(data.batch(&[0]).is_ok());
        let e = data.batch(&[0, 1]).unwrap_err().to_string();
        assert!(e.contains("x.tfrecord': record 1: its data is damaged"), "{e}");
    }

    #[test]
    fn encoded_images_are_decoded_and_labels_may_be_names() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.tfrecord");
        let bytes = |bytes: &[u8]| Kind::Bytes(BytesList { value: vec![bytes.to_vec().into()] });
        let sample = |grey: u8, name: &str| {
            let image = [&b"P6\n1 1\n255\n"[..], &[grey; 3]].concat();
            let label = ints(&[i64::from(grey) / 10]);
            let features =
                [("image/encoded", bytes(&image)), ("image/class/label", label), ("name", bytes(name.as_bytes()))];
            record(&features)
        };
        write(&path, &[sample(10, "owl"), sample(20, "auk"), sample(30, "owl")]);
        let image = [Dim::from(3i64), Dim::from(1i64), Dim::from(1i64)];
        for (labels, expected, classes) in
            [("image/class/label", [3, 1], &[][..]), ("name", [1, 1], &["auk".to_owned(), "owl".to_owned()])]
        {
            // The feature of the only input may have the usual name.
            for input in ["image/encoded", "x"] {
                for cached in [1, 1 << 20] {
                    let wanted = [column(input, DType::F32, &image), column(labels, DType::I64, &[])];
                    let data = read(&[&path, &path], &wanted, cached).unwrap();
                    assert_eq!((data.len(), data.has_images(), &data.classes[..]), (6, true, classes));
                    let batch = data.batch(&[5, 0]).unwrap();
                    let pixels = batch[0].as_tensor().unwrap().to_elements::<f32>().unwrap();
                    assert_eq!(pixels, [[30.0f32 / 255.0; 3], [10.0 / 255.0; 3]].concat());
                    assert_eq!(batch[1].as_tensor().unwrap().to_elements::<i64>().unwrap(), expected);
                }
            }
        }
        // As many bytes as the input has values are pixels.
        write(&path, &[record(&[("x", bytes(b"BM3")), ("y", ints(&[0]))])]);
        let wanted = [column("x", DType::U8, &image), column("y", DType::I64, &[])];
        let data = read(&[&path], &wanted, 1).unwrap();
        assert_eq!(data.batch(&[0]).unwrap()[0].as_tensor().unwrap().to_elements::<u8>().unwrap(), b"BM3");
    }
}
