//! TFRecord files of `tf.train.Example`: named lists of numbers for each sample.

use std::collections::HashMap;
use std::path::Path;

use of_diag::Diagnostics;
use of_ir::{DType, Tensor};
use prost::Message;

use super::features::{self, BytesList, FloatList, Int64List, Values};
use super::tfrecord;
use crate::error::io_error;

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

/// Reads the features of these names from a file, as [`features::columns`].
///
/// # Errors
/// When the file cannot be read or is damaged, or as [`features::columns`].
pub fn read(path: &Path, names: &[&str]) -> Result<Vec<(String, Tensor)>, Diagnostics> {
    let bytes = std::fs::read(path).map_err(|e| io_error(path, "read", &e))?;
    let records = tfrecord::read(&bytes).map_err(|what| features::wrong(path, &what))?;
    features::columns(path, names, &records, |record| {
        let example = Example::decode(record).map_err(|e| format!("is no tf.train.Example: {e}"))?;
        Ok(example.features.unwrap_or_default().feature)
    })
}

impl From<Feature> for Option<Values> {
    fn from(feature: Feature) -> Option<Values> {
        Some(match feature.kind? {
            Kind::Floats(list) => Values::floats(DType::F32, list.value),
            Kind::Ints(list) => Values::ints(DType::I64, list.value),
            Kind::Bytes(list) => Values::bytes(&list.value),
        })
    }
}

#[cfg(test)]
mod tests {
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

    #[test]
    fn features_become_columns() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.tfrecord");
        let write = |records: &[Vec<u8>]| {
            let mut file = Vec::new();
            records.iter().for_each(|r| tfrecord::write(&mut file, r).unwrap());
            std::fs::write(&path, file).unwrap();
        };
        let bytes = Kind::Bytes(BytesList { value: vec![vec![1, 255]] });
        let sample = |x: f32, y: i64| record(&[("x", floats(&[x, 2.0])), ("y", ints(&[y])), ("raw", bytes.clone())]);
        write(&[sample(0.5, -1), sample(1.5, 7)]);
        let columns = read(&path, &["x", "y", "raw"]).unwrap();
        assert_eq!((columns[0].1.dims(), columns[0].1.to_f64s().unwrap()), (&[2, 2][..], vec![0.5, 2.0, 1.5, 2.0]));
        assert_eq!((columns[1].1.dtype(), columns[1].1.to_i64s().unwrap()), (DType::I64, vec![-1, 7]));
        assert_eq!((columns[2].1.dtype(), columns[2].1.to_i64s().unwrap()), (DType::U8, vec![1, 255, 1, 255]));
        for (records, words) in [
            (
                vec![sample(0.0, 1), record(&[("x", floats(&[1.0]))])],
                "feature 'x' of record 1 has 1 values of f32, and that of record 0 2",
            ),
            (vec![record(&[("x", ints(&[1]))])], "record 0 has no feature 'y', only x"),
            (vec![b"\xff\xff".to_vec()], "record 0 is no tf.train.Example"),
        ] {
            write(&records);
            let e = read(&path, &["x", "y"]).unwrap_err().to_string();
            assert!(e.contains(words), "{e}");
        }
    }
}
