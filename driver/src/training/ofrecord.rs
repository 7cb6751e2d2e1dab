//! OFRecord files, the data sets of OneFlow: records of named lists of numbers, each after its length (i64, little-endian).
//!
//! Source of the format: OneFlow, `oneflow/core/record/record.proto` and `ofrecord_reader.cpp`.

use std::collections::HashMap;
use std::path::Path;

use of_diag::Diagnostics;
use of_ir::{DType, Tensor};
use prost::Message;

use super::features::{self, BytesList, FloatList, Int64List, Values};
use crate::error::io_error;

#[derive(Clone, PartialEq, Message)]
struct Record {
    #[prost(map = "string, message", tag = "1")]
    feature: HashMap<String, Feature>,
}

#[derive(Clone, PartialEq, Message)]
struct Feature {
    #[prost(oneof = "Kind", tags = "1, 2, 3, 4, 5")]
    kind: Option<Kind>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum Kind {
    #[prost(message, tag = "1")]
    Bytes(BytesList),
    #[prost(message, tag = "2")]
    Floats(FloatList),
    #[prost(message, tag = "3")]
    Doubles(DoubleList),
    #[prost(message, tag = "4")]
    Int32s(Int32List),
    #[prost(message, tag = "5")]
    Int64s(Int64List),
}

#[derive(Clone, PartialEq, Message)]
struct DoubleList {
    #[prost(double, repeated, tag = "1")]
    value: Vec<f64>,
}

#[derive(Clone, PartialEq, Message)]
struct Int32List {
    #[prost(int32, repeated, tag = "1")]
    value: Vec<i32>,
}

impl From<Feature> for Option<Values> {
    fn from(feature: Feature) -> Option<Values> {
        Some(match feature.kind? {
            Kind::Bytes(list) => Values::bytes(&list.value),
            Kind::Floats(list) => Values::floats(DType::F32, list.value),
            Kind::Doubles(list) => Values::floats(DType::F64, list.value),
            Kind::Int32s(list) => Values::ints(DType::I32, list.value),
            Kind::Int64s(list) => Values::ints(DType::I64, list.value),
        })
    }
}

/// Whether a file is called as OneFlow's are: `part-00000`, or `NAME.ofrecord`.
pub fn is_ofrecord(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let part = name.strip_prefix("part-").is_some_and(|n| !n.is_empty() && n.bytes().all(|c| c.is_ascii_digit()));
    part || path.extension().is_some_and(|e| e.eq_ignore_ascii_case("ofrecord"))
}

/// Reads the features of these names from a file, as [`features::columns`].
///
/// # Errors
/// When the file cannot be read or ends in a record, or as [`features::columns`].
pub fn read(path: &Path, names: &[&str]) -> Result<Vec<(String, Tensor)>, Diagnostics> {
    let bytes = std::fs::read(path).map_err(|e| io_error(path, "read", &e))?;
    let (mut rest, mut records) = (&bytes[..], Vec::new());
    while !rest.is_empty() {
        let next = || {
            let (length, rest) = rest.split_first_chunk::<8>()?;
            rest.split_at_checked(usize::try_from(i64::from_le_bytes(*length)).ok()?)
        };
        let Some((record, after)) = next() else {
            let (number, at) = (records.len(), bytes.len() - rest.len());
            return Err(features::wrong(path, &format!("record {number} at byte {at}: the file ends in it")));
        };
        records.push(record);
        rest = after;
    }
    features::columns(path, names, &records, |record| {
        let record = Record::decode(record).map_err(|e| format!("is no OFRecord: {e}"))?;
        Ok(record.feature)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(records: &[&[(&str, Kind)]]) -> Vec<u8> {
        let encode = |features: &&[(&str, Kind)]| {
            let feature = |(name, kind): &(&str, Kind)| ((*name).to_owned(), Feature { kind: Some(kind.clone()) });
            let data = Record { feature: features.iter().map(feature).collect() }.encode_to_vec();
            [&(data.len() as i64).to_le_bytes()[..], &data].concat()
        };
        records.iter().flat_map(encode).collect()
    }

    #[test]
    fn features_become_columns() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("part-00000");
        assert!(is_ofrecord(&path) && is_ofrecord(Path::new("train.ofrecord")));
        assert!(!is_ofrecord(Path::new("part-")) && !is_ofrecord(Path::new("part-x")));
        let sample = |n: i32| {
            [
                ("image", Kind::Floats(FloatList { value: vec![0.5, n as f32] })),
                ("weight", Kind::Doubles(DoubleList { value: vec![0.1] })),
                ("label", Kind::Int32s(Int32List { value: vec![-n] })),
                ("id", Kind::Int64s(Int64List { value: vec![i64::from(n) << 40] })),
                ("raw", Kind::Bytes(BytesList { value: vec![vec![1], vec![n as u8]] })),
            ]
        };
        let whole = file(&[&sample(1), &sample(2)]);
        std::fs::write(&path, &whole).unwrap();
        let columns = read(&path, &["image", "weight", "label", "id", "raw"]).unwrap();
        let types: Vec<DType> = columns.iter().map(|(_, tensor)| tensor.dtype()).collect();
        assert_eq!(types, [DType::F32, DType::F64, DType::I32, DType::I64, DType::U8]);
        assert_eq!((columns[0].1.dims(), columns[0].1.to_f64s().unwrap()), (&[2, 2][..], vec![0.5, 1.0, 0.5, 2.0]));
        assert_eq!(columns[1].1.to_f64s().unwrap(), [0.1, 0.1]);
        let ints = |at: usize| columns[at].1.to_i64s().unwrap();
        assert_eq!((ints(2), ints(3), ints(4)), (vec![-1, -2], vec![1 << 40, 2 << 40], vec![1, 1, 1, 2]));

        let refused = |bytes: &[u8], name: &str| {
            std::fs::write(&path, bytes).unwrap();
            read(&path, &[name]).unwrap_err().to_string()
        };
        assert!(refused(&whole, "y").contains("record 0 has no feature 'y', only id, image, label, raw, weight"));
        assert!(refused(&whole[..whole.len() - 1], "id").contains("record 1 at byte"));
        assert!(refused(&[255; 20], "id").contains("record 0 at byte 0: the file ends in it"));
        assert!(refused(&[2, 0, 0, 0, 0, 0, 0, 0, 255, 255], "id").contains("record 0 is no OFRecord"));
        let other = [("id", Kind::Int64s(Int64List { value: vec![1, 2] }))];
        let mixed = file(&[&sample(1), &other]);
        assert!(refused(&mixed, "id").contains("of record 1 has 2 values of i64, and that of record 0 1 of i64"));
    }
}
