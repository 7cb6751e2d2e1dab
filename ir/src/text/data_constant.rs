//! Constants whose bytes are in a data file: `#of.data<"NAME", OFFSET, LENGTH, "HASH"> : TYPE`.

use of_diag::{Code, Diagnostic};

use super::cursor::{ParseResult, Parser, WithHint};
use super::lexer::Token;
use crate::Tensor;

impl Parser<'_> {
    /// What follows `#of.data`.
    pub fn data_constant(&mut self, start: Token) -> ParseResult<Tensor> {
        self.expect(b'<', "after '#of.data'")?;
        let name_at = self.tok;
        let name = self.string("the name of the data file")?;
        self.expect(b',', "after the file")?;
        let offset: usize = self.number("an offset")?;
        self.expect(b',', "after the offset")?;
        let len: usize = self.number("a length")?;
        self.expect(b',', "after the length")?;
        let hash_at = self.tok;
        let hash = self.string("the hash of the bytes")?;
        let hash = blake3::Hash::from_hex(hash.as_bytes())
            .map_err(|_| self.error(hash_at, "a blake3 hash has 64 hexadecimal digits"))?;
        self.expect(b'>', "after the hash")?;
        let (dtype, dims) = self.constant_type()?;

        let fail = |p: &Self, at, what: String| -> Box<Diagnostic> { p.error_of(Code::EXTERNAL_DATA, at, what) };
        let file = self.data.file(&name).map_err(|why| fail(self, name_at, why))?;
        let bytes = offset.checked_add(len).and_then(|end| file.slice(offset..end)).ok_or_else(|| {
            let what = format!("bytes {offset} to {offset}+{len} are not in '{name}', which has {}", file.len());
            fail(self, name_at, what).with_hint("the file was cut off, or belongs to another model")
        })?;
        if !self.data.has_hash(&name, offset, &bytes, hash) {
            return Err(fail(self, hash_at, format!("the bytes in '{name}' have another hash"))
                .with_hint("the file was damaged, or belongs to another model"));
        }
        self.tensor_of_bytes(start, dtype, dims, bytes)
    }
}
