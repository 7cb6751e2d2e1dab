//! Storage of constants: in the model, or in an external data file.

use std::fs::File;
use std::io::{self, BufWriter, Read, Write};

use of_ir::{Blob, Tensor};

use crate::proto::tensor_proto::DataLocation;
use crate::proto::{StringStringEntryProto, TensorProto};
use crate::tensor::tensor_proto;

/// The alignment of external data: whole pages, so that runtimes can map the file.
const ALIGNMENT: u64 = 4096;

/// Smaller data stays in the model, where readers that want shapes and axes find it.
const MIN_EXTERNAL_BYTES: usize = 1024;

/// The data of a model while it is collected. Nothing is copied: a part shares the bytes of its constant.
#[derive(Default)]
pub(super) struct Weights {
    /// Name of the data file; `None` where everything stays in the model.
    location: Option<String>,
    parts: Vec<(u64, Blob)>,
    end: u64,
}

impl Weights {
    /// Data in a file of this name in the folder of the model.
    pub fn external(location: String) -> Weights {
        Weights { location: Some(location), ..Weights::default() }
    }

    /// A constant as the model holds it.
    pub fn store(&mut self, name: &str, value: &Tensor) -> TensorProto {
        let mut proto = TensorProto { name: Some(name.into()), ..tensor_proto(value) };
        let (Some(location), Some(bytes)) = (&self.location, value.bytes()) else { return proto };
        if bytes.len() < MIN_EXTERNAL_BYTES {
            return proto;
        }
        let offset = self.end.next_multiple_of(ALIGNMENT);
        self.end = offset + bytes.len() as u64;
        self.parts.push((offset, bytes.clone()));
        let entry = |key: &str, value: String| StringStringEntryProto { key: Some(key.into()), value: Some(value) };
        proto.raw_data = None;
        proto.data_location = Some(DataLocation::External as i32);
        proto.external_data = vec![
            entry("location", location.clone()),
            entry("offset", offset.to_string()),
            entry("length", bytes.len().to_string()),
        ];
        proto
    }

    /// Whether there is anything for the data file.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Writes the data file, one constant after the other.
    pub fn write(&self, file: File) -> io::Result<()> {
        let mut file = BufWriter::new(file);
        let mut at = 0;
        for (offset, bytes) in &self.parts {
            io::copy(&mut io::repeat(0).take(offset - at), &mut file)?;
            file.write_all(bytes)?;
            at = offset + bytes.len() as u64;
        }
        file.into_inner().map_err(io::IntoInnerError::into_error)?.sync_data()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn external_weights_are_page_aligned_and_small_ones_inline() {
        let mut w = Weights::external("d".into());
        let small = w.store("s", &Tensor::scalar(1f32));
        assert!(small.raw_data.is_some() && w.is_empty());
        let big = |n: usize| Tensor::from_slice(&[n], &vec![7u8; n]).unwrap();
        w.store("a", &big(5000));
        let b = w.store("b", &big(2000));
        assert_eq!(b.external_data[1].value(), "8192");
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("d");
        w.write(File::create(&path).unwrap()).unwrap();
        let bytes = std::fs::read(path).unwrap();
        assert_eq!(bytes.len(), 8192 + 2000);
        assert!(bytes[5000..8192].iter().all(|b| *b == 0) && bytes[8192..].iter().all(|b| *b == 7));
    }
}
