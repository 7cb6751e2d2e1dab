//! OFRecord files, the data sets of OneFlow: records of named lists of numbers, each after its length (i64, little-endian).
//!
//! Source of the format: OneFlow, `oneflow/core/record/record.proto` and `ofrecord_reader.cpp`.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use bytes::Bytes;
use prost::Message;

use super::features::{BytesList, Extent, Features, FloatList, Format, Int64List, Numbers};

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

impl From<Kind> for Numbers {
    fn from(kind: Kind) -> Numbers {
        match kind {
            Kind::Bytes(list) => list.into(),
            Kind::Floats(list) => Numbers::Floats(list.value),
            Kind::Doubles(list) => Numbers::Doubles(list.value),
            Kind::Int32s(list) => Numbers::Int32s(list.value),
            Kind::Int64s(list) => Numbers::Int64s(list.value),
        }
    }
}

/// Whether a file is called as OneFlow's are: `part-00000`, or `NAME.ofrecord`.
pub fn is_ofrecord(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let part = name.strip_prefix("part-").is_some_and(|n| !n.is_empty() && n.bytes().all(|c| c.is_ascii_digit()));
    part || path.extension().is_some_and(|e| e.eq_ignore_ascii_case("ofrecord"))
}

/// Files of such records.
pub const FORMAT: Format = Format { index, decode };

/// Bytes of a length.
const LENGTH: u64 = 8;

fn index(file: &mut BufReader<File>, bytes: u64) -> std::io::Result<Result<Vec<Extent>, String>> {
    let (mut at, mut out) = (0, Vec::new());
    while at < bytes {
        let wrong = |what: &str| Ok(Err(format!("record {} at byte {at}: {what}", out.len())));
        if bytes - at < LENGTH {
            return wrong("the file ends in it");
        }
        let mut length = [0; LENGTH as usize];
        file.read_exact(&mut length)?;
        let (offset, length) = (at + LENGTH, u64::try_from(i64::from_le_bytes(length)).ok());
        let Some(length) = length.filter(|length| *length <= bytes - offset) else {
            return wrong("the file ends in it");
        };
        let Ok(own) = u32::try_from(length) else { return wrong("it has 4 GiB or more") };
        out.push(Extent { offset, bytes: own });
        file.seek_relative(i64::from(own))?;
        at = offset + length;
    }
    Ok(Ok(out))
}

fn decode(record: Bytes) -> Result<Features, String> {
    let record = Record::decode(record).map_err(|e| format!("no OFRecord: {e}"))?;
    Ok(record.feature.into_iter().map(|(name, feature)| (name, feature.kind.map(Numbers::from))).collect())
}

#[cfg(test)]
mod tests {
    use of_ir::{DType, Dim, Type};

    use super::super::data::{ColumnSpec, DataOptions, Dataset};
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
                ("raw", Kind::Bytes(BytesList { value: vec![vec![1].into(), vec![n as u8].into()] })),
            ]
        };
        let whole = file(&[&sample(1), &sample(2)]);
        std::fs::write(&path, &whole).unwrap();
        let column = |name: &str, dtype: DType, count: i64| ColumnSpec {
            name: name.into(),
            ty: Type::tensor(dtype, vec![Dim::symbol("n"), Dim::from(count)]),
        };
        let wanted = [
            column("image", DType::F32, 2),
            column("weight", DType::F64, 1),
            column("label", DType::I32, 1),
            column("raw", DType::U8, 2),
            column("id", DType::I64, 1),
        ];
        let read = |wanted: &[ColumnSpec], cached_bytes: usize| {
            let options = DataOptions { cached_bytes, ..DataOptions::default() };
            Dataset::read_with(&[path.as_os_str().to_owned()], wanted, &options)
        };
        for cached in [0, 1 << 20] {
            let batch = read(&wanted, cached).unwrap().batch(&[1, 0]).unwrap();
            let tensor = |i: usize| batch[i].as_tensor().unwrap();
            assert_eq!(tensor(0).to_elements::<f32>().unwrap(), [0.5, 2.0, 0.5, 1.0]);
            assert_eq!(tensor(1).to_elements::<f64>().unwrap(), [0.1, 0.1]);
            assert_eq!(tensor(2).to_elements::<i32>().unwrap(), [-2, -1]);
            assert_eq!(tensor(3).to_elements::<u8>().unwrap(), [1, 2, 1, 1]);
            assert_eq!(tensor(4).to_elements::<i64>().unwrap(), [2 << 40, 1 << 40]);
        }

        let refused = |bytes: &[u8], name: &str| {
            std::fs::write(&path, bytes).unwrap();
            read(&[column(name, DType::I64, 1)], 1 << 20).unwrap_err().to_string()
        };
        assert!(refused(&whole, "y").contains("record 0 has no feature 'y', only id, image, label, raw, weight"));
        assert!(refused(&whole[..whole.len() - 1], "id").contains("record 1 at byte"));
        assert!(refused(&[255; 20], "id").contains("record 0 at byte 0: the file ends in it"));
        assert!(refused(&[2, 0, 0, 0, 0, 0, 0, 0, 255, 255], "id").contains("record 0: no OFRecord"));
        let other = [("id", Kind::Int64s(Int64List { value: vec![1, 2] }))];
        let mixed = file(&[&sample(1), &other]);
        assert!(refused(&mixed, "id").contains("of record 1 has 2 values of i64, and that of record 0 1 of i64"));
    }
}
