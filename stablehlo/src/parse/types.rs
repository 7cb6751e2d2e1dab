//! Types.

use of_ir::{DType, Dim, TensorType};

use super::ast::Ty;
use super::lexer::Kind;
use super::{Parsed, Parser};

impl<'a> Parser<'a> {
    /// A type.
    pub(super) fn ty(&mut self) -> Parsed<Ty> {
        let start = self.token.start;
        if self.is(Kind::Bang) {
            self.next();
            if self.is_punct(b'<') {
                self.angle_text()?;
            }
            return Ok(Ty::Other(self.text[start..self.lexer.pos.min(self.token.start)].trim().to_owned()));
        }
        let word = self.expect_kind(Kind::Ident, "a type")?;
        match word {
            "tensor" => {
                let body = self.angle_text()?;
                Ok(tensor(body).unwrap_or_else(|| Ty::Other(format!("tensor<{body}>"))))
            }
            "tuple" | "complex" | "memref" | "vector" => Ok(Ty::Other(format!("{word}<{}>", self.angle_text()?))),
            // `i32` of an attribute is a type as well.
            _ => Ok(match DType::from_mlir_name(word) {
                Some(dtype) => Ty::Tensor(TensorType::new(dtype, Vec::new())),
                None => Ty::Other(word.to_owned()),
            }),
        }
    }

    /// The text between `<` and its `>`, which come next.
    pub(super) fn angle_text(&mut self) -> Parsed<&'a str> {
        if !self.is_punct(b'<') {
            return Err(self.unexpected("'<'"));
        }
        let start = self.token.start + 1;
        let end = self.closing(start)?;
        let body = &self.text[start..end];
        self.seek(end + 1);
        Ok(body)
    }

    /// The place of the `>` that closes what is open before `start`.
    pub(super) fn closing(&self, start: usize) -> Parsed<usize> {
        let bytes = self.text.as_bytes();
        let (mut depth, mut i, mut in_string) = (1, start, false);
        while let Some(b) = bytes.get(i) {
            match b {
                b'\\' if in_string => i += 1,
                b'"' => in_string = !in_string,
                b'<' if !in_string => depth += 1,
                b'>' if !in_string && bytes[i - 1] != b'-' => {
                    depth -= 1;
                    if depth == 0 {
                        return Ok(i);
                    }
                }
                _ => {}
            }
            i += 1;
        }
        Err(self.error(start, "'<' is not closed"))
    }

    /// `(types)`, or one type.
    pub(super) fn types(&mut self) -> Parsed<Vec<Ty>> {
        if self.is_punct(b'(') { self.list(b'(', b')', Self::ty) } else { Ok(vec![self.ty()?]) }
    }

    /// What follows the colon of an operation: the types before the arrow, and those behind it.
    pub(super) fn signature(&mut self) -> Parsed<(Vec<Ty>, Option<Vec<Ty>>)> {
        let mut before = self.types()?;
        while self.eat(b',') {
            before.push(self.ty()?);
        }
        let after = match self.is(Kind::Arrow) {
            true => {
                self.next();
                Some(self.types()?)
            }
            false => None,
        };
        Ok((before, after))
    }
}

/// `2x3xf32`; `None` for a type that the IR lacks: complex numbers, quantized elements, open extents.
fn tensor(body: &str) -> Option<Ty> {
    // An encoding, such as bounds, follows a comma.
    if body.contains(',') {
        return None;
    }
    let mut rest = body.trim();
    let mut dims = Vec::new();
    while rest.starts_with(|c: char| c.is_ascii_digit()) {
        let (dim, tail) = rest.split_once('x')?;
        dims.push(Dim::from(dim.parse::<i64>().ok()?));
        rest = tail;
    }
    Some(Ty::Tensor(TensorType::new(DType::from_mlir_name(rest)?, dims)))
}
