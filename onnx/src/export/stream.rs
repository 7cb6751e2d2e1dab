//! Messages that go to a file while they are encoded, so that memory never holds them whole.

use std::io::{self, Write};

use bytes::buf::UninitSlice;
use bytes::{Buf, BufMut};
use prost::Message;

/// Bytes that are collected before they are written.
const COLLECTED: usize = 1 << 16;

/// Writes a message. Bytes of tensors go to the file from where they are.
///
/// # Errors
/// When they cannot be written.
pub(super) fn write(message: &impl Message, file: impl Write) -> io::Result<()> {
    let mut out = Stream { file, collected: Vec::with_capacity(COLLECTED), failed: None };
    // The stream takes any number of bytes.
    message.encode(&mut out).map_err(io::Error::other)?;
    out.flush();
    out.failed.map_or(Ok(()), Err)
}

/// A buffer without an end, whose bytes go to a file.
struct Stream<W> {
    file: W,
    collected: Vec<u8>,
    /// The first error. What comes after it is dropped.
    failed: Option<io::Error>,
}

impl<W: Write> Stream<W> {
    fn flush(&mut self) {
        let collected = std::mem::take(&mut self.collected);
        self.write(&collected);
        self.collected = collected;
        self.collected.clear();
    }

    fn write(&mut self, bytes: &[u8]) {
        if self.failed.is_none() {
            self.failed = self.file.write_all(bytes).err();
        }
    }
}

// SAFETY: the unwritten memory is that of a vector, whose own implementation gives it and takes it over.
#[allow(unsafe_code, reason = "the trait is unsafe to implement")]
unsafe impl<W: Write> BufMut for Stream<W> {
    fn remaining_mut(&self) -> usize {
        usize::MAX
    }

    unsafe fn advance_mut(&mut self, count: usize) {
        // SAFETY: the caller has initialised so many bytes of `chunk_mut`.
        unsafe { self.collected.advance_mut(count) };
    }

    fn chunk_mut(&mut self) -> &mut UninitSlice {
        if self.collected.len() >= COLLECTED {
            self.flush();
        }
        self.collected.chunk_mut()
    }

    fn put<T: Buf>(&mut self, mut from: T) {
        while from.has_remaining() {
            let len = from.chunk().len();
            self.put_slice(from.chunk());
            from.advance(len);
        }
    }

    fn put_slice(&mut self, bytes: &[u8]) {
        if self.collected.len() + bytes.len() > COLLECTED {
            self.flush();
        }
        if bytes.len() < COLLECTED {
            self.collected.extend_from_slice(bytes);
            return;
        }
        self.write(bytes);
        of_files::release(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::{GraphProto, ModelProto, NodeProto, TensorProto};

    fn model(weights: impl IntoIterator<Item = usize>) -> ModelProto {
        let tensor = |len: usize| TensorProto {
            name: Some(format!("weight of {len} bytes")),
            dims: vec![len as i64],
            raw_data: Some((0..len).map(|i| (i * 7 + len) as u8).collect::<Vec<u8>>().into()),
            ..TensorProto::default()
        };
        let node = |i: usize| NodeProto {
            op_type: Some("Relu".into()),
            name: Some(format!("node {i}")),
            ..NodeProto::default()
        };
        let graph = GraphProto {
            initializer: weights.into_iter().map(tensor).collect(),
            node: (0..5000).map(node).collect(),
            ..GraphProto::default()
        };
        ModelProto { ir_version: Some(10), graph: Some(graph), ..ModelProto::default() }
    }

    #[test]
    fn the_bytes_are_those_of_the_whole_message() {
        let around = [COLLECTED - 1, COLLECTED, COLLECTED + 1].into_iter().flat_map(|n| n - 40..n + 2);
        let models =
            [model([]), model([0, 1, 63, 64, 65, 4096]), model(around), model([5 * COLLECTED + 3, 3, COLLECTED])];
        for model in models.iter().chain([&ModelProto::default()]) {
            let mut written = Vec::new();
            write(model, &mut written).unwrap();
            assert!(written == model.encode_to_vec());
        }
    }

    /// A file on a disk of so many bytes.
    struct Disk(usize);

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 = self.0.checked_sub(bytes.len()).ok_or(io::ErrorKind::StorageFull)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_full_disk_is_an_error_wherever_it_ends() {
        let model = model([3 * COLLECTED, 10]);
        let len = model.encoded_len();
        assert!(write(&model, Disk(len)).is_ok());
        for room in [0, 1, COLLECTED, 2 * COLLECTED, len - 1] {
            assert_eq!(write(&model, Disk(room)).unwrap_err().kind(), io::ErrorKind::StorageFull, "{room}");
        }
    }
}
