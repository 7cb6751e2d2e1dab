//! Types. The pretty form is `Type`'s `Display`; the generic form keeps symbols in the encoding, because MLIR knows
//! only `?`. The parser accepts both everywhere.

use std::fmt::Write;

use of_diag::Code;

use super::cursor::{ParseResult, Parser, WithHint};
use super::lexer::{Kind, Token};
use crate::{DType, Dim, NdSbp, PartialKind, Sbp, TensorType, Type};

/// Writes a type in the given form.
pub(super) fn write_type(out: &mut String, ty: &Type, generic: bool) {
    let _ = match ty {
        _ if !generic => write!(out, "{ty}"),
        Type::Tensor(t) => {
            write_tensor(out, t);
            Ok(())
        }
        Type::Sequence(inner) | Type::Optional(inner) => {
            out.push_str(if matches!(ty, Type::Sequence(_)) { "!of.seq<" } else { "!of.opt<" });
            write_type(out, inner, true);
            out.write_char('>')
        }
        Type::None => out.write_str("none"),
    };
}

fn write_tensor(out: &mut String, t: &TensorType) {
    // MLIR gives no encoding to a tensor without rank, so that one is a type of our dialect.
    let Some(shape) = &t.shape else {
        let _ = match &t.sbp {
            None => write!(out, "tensor<*x{}>", t.dtype),
            Some(sbp) => write!(out, "!of.tensor<*x{}, #of.sbp<{sbp}>>", t.dtype),
        };
        return;
    };
    out.push_str("tensor<");
    let mut symbolic = false;
    for d in shape {
        let _ = match d.as_const() {
            Some(c) if c >= 0 => write!(out, "{c}x"),
            _ => {
                symbolic |= d.as_symbol().is_none_or(|s| &**s != "?");
                out.write_str("?x")
            }
        };
    }
    let _ = write!(out, "{}", t.dtype);
    let dims = || shape.iter().map(Dim::to_string).collect::<Vec<_>>().join(", ");
    let _ = match (&t.sbp, symbolic) {
        (None, false) => Ok(()),
        (None, true) => write!(out, ", #of.dims<[{}]>", dims()),
        (Some(sbp), false) => write!(out, ", #of.sbp<{sbp}>"),
        (Some(sbp), true) => write!(out, ", #of.global<[{}], {sbp}>", dims()),
    };
    out.push('>');
}

impl Parser<'_> {
    /// Whether a type begins here.
    pub fn at_type(&self) -> bool {
        self.tok.kind == Kind::Bang || self.at_word("tensor") || self.at_word("none")
    }

    /// A type.
    pub fn ty(&mut self) -> ParseResult<Type> {
        self.nested(|p| match (p.tok.kind, p.peek()) {
            (Kind::Ident, "tensor") | (Kind::Bang, "!of.tensor") => p.tensor_type().map(Type::Tensor),
            (Kind::Ident, "none") => {
                p.bump();
                Ok(Type::None)
            }
            (Kind::Bang, word @ ("!of.seq" | "!of.opt")) => {
                p.bump();
                p.expect(b'<', "before the inner type")?;
                let inner = Box::new(p.ty()?);
                p.expect(b'>', "after the inner type")?;
                Ok(if word == "!of.seq" { Type::Sequence(inner) } else { Type::Optional(inner) })
            }
            _ => Err(p.expected("a type").with_hint("tensor<…>, !of.seq<…>, !of.opt<…> or none")),
        })
    }

    /// `(type, …)`.
    pub fn types(&mut self, what: &str) -> ParseResult<Vec<Type>> {
        let mut types = Vec::new();
        self.list(b'(', b')', what, |p| {
            types.push(p.ty()?);
            Ok(())
        })?;
        Ok(types)
    }

    /// `tensor<…>`, where only a tensor is allowed.
    pub fn tensor_type(&mut self) -> ParseResult<TensorType> {
        let start = self.tok;
        if !self.at_word("tensor") && self.peek() != "!of.tensor" {
            return Err(self.expected("a tensor type"));
        }
        self.bump();
        self.expect(b'<', "before the shape")?;
        let mut shape = self.shape()?;
        let dtype = self.dtype()?;
        let mut sbp = None;
        if self.eat(b',') {
            sbp = self.encoding(&mut shape, start)?;
        }
        self.expect(b'>', "after the tensor type")?;
        Ok(TensorType { dtype, shape, sbp })
    }

    /// `4x?x?(N*2)x`, or `*x`. The lexer sees `4` and `x5xf32`, so the reading goes on after each `x`.
    fn shape(&mut self) -> ParseResult<Option<Vec<Dim>>> {
        if self.eat(b'*') {
            self.times()?;
            return Ok(None);
        }
        let mut shape = Vec::new();
        loop {
            let t = self.tok;
            match t.kind {
                Kind::Punct(b'?') => {
                    self.bump();
                    if self.eat(b'(') {
                        shape.push(self.dim()?);
                        self.expect(b')', "after the dimension")?;
                    } else {
                        shape.push(Dim::unknown());
                    }
                }
                Kind::Int | Kind::Float => {
                    // `0x4xf32` begins like a hexadecimal number.
                    let digits = self.peek().bytes().take_while(u8::is_ascii_digit).count();
                    let number = Token { end: t.start + digits, ..t };
                    let n: i64 =
                        self.str_of(number).parse().map_err(|_| self.error(t, "a dimension is out of range"))?;
                    shape.push(n.into());
                    self.seek(number.end);
                }
                _ => return Ok(Some(shape)),
            }
            self.times()?;
        }
    }

    fn times(&mut self) -> ParseResult<()> {
        if self.tok.kind != Kind::Ident || !self.peek().starts_with('x') {
            return Err(self.expected("'x' after a dimension"));
        }
        self.seek(self.tok.start + 1);
        Ok(())
    }

    /// `f32`, `!of.string`.
    pub fn dtype(&mut self) -> ParseResult<DType> {
        let known = matches!(self.tok.kind, Kind::Ident | Kind::Bang).then(|| DType::from_mlir_name(self.peek()));
        match known.flatten() {
            Some(d) => {
                self.bump();
                Ok(d)
            }
            None => {
                let all: Vec<_> = DType::ALL.iter().map(|d| d.mlir_name()).collect();
                Err(self.expected("an element type").with_hint(&format!("one of {}", all.join(", "))))
            }
        }
    }

    fn encoding(&mut self, shape: &mut Option<Vec<Dim>>, start: Token) -> ParseResult<Option<NdSbp>> {
        let name = self.tok;
        if name.kind != Kind::Hash || !matches!(self.peek(), "#of.sbp" | "#of.dims" | "#of.global") {
            return Err(self.expected("#of.sbp<…>, #of.dims<…> or #of.global<…>"));
        }
        self.bump();
        self.expect(b'<', "before the encoding")?;
        let word = self.str_of(name);
        if word != "#of.sbp" {
            let dims = self.dims()?;
            let fits = |d: &Dim, listed: &Dim| d.is_unknown() || d == listed;
            match shape {
                Some(s) if s.len() == dims.len() && s.iter().zip(&dims).all(|(d, l)| fits(d, l)) => *s = dims,
                _ => {
                    let what = "the dimensions of the encoding do not fit the shape";
                    return Err(self.error_of(Code::SHAPE, start, what));
                }
            }
        }
        let sbp = match word {
            "#of.dims" => None,
            "#of.sbp" => Some(self.nd_sbp()?),
            _ => {
                self.expect(b',', "after the dimensions")?;
                Some(self.nd_sbp()?)
            }
        };
        self.expect(b'>', "after the encoding")?;
        Ok(sbp)
    }

    /// `@m, [S(0), B, P(sum)]`.
    pub fn nd_sbp(&mut self) -> ParseResult<NdSbp> {
        let mesh = self.symbol("the name of a mesh")?;
        self.expect(b',', "after the mesh")?;
        let mut axes = smallvec::SmallVec::new();
        self.list(b'[', b']', "the SBP", |p| {
            axes.push(p.sbp()?);
            Ok(())
        })?;
        Ok(NdSbp { mesh, axes })
    }

    fn sbp(&mut self) -> ParseResult<Sbp> {
        let t = self.tok;
        let word = if t.kind == Kind::Ident { self.peek() } else { "" };
        let sbp = match word {
            "B" => {
                self.bump();
                return Ok(Sbp::Broadcast);
            }
            "S" => {
                self.bump();
                self.expect(b'(', "before the axis")?;
                Sbp::Split(self.number("an axis")?)
            }
            "P" => {
                self.bump();
                self.expect(b'(', "before the kind of partial value")?;
                let kind = PartialKind::ALL.into_iter().find(|k| self.at_word(k.name()));
                let Some(kind) = kind else {
                    return Err(self.expected("sum, max, min or prod"));
                };
                self.bump();
                Sbp::Partial(kind)
            }
            _ => return Err(self.expected("S(axis), B or P(sum|max|min|prod)")),
        };
        self.expect(b')', "after the SBP")?;
        Ok(sbp)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::parse_type;

    #[test]
    fn both_forms_read_back() {
        for (pretty, generic) in [
            ("tensor<4x5xf32>", "tensor<4x5xf32>"),
            ("tensor<0x4xf32>", "tensor<0x4xf32>"),
            ("tensor<f8E4M3FN>", "tensor<f8E4M3FN>"),
            ("tensor<?xi1>", "tensor<?xi1>"),
            ("tensor<?(N*2)x64x!of.string>", "tensor<?x64x!of.string, #of.dims<[N*2, 64]>>"),
            ("tensor<?(\"a b\")x?xf32>", "tensor<?x?xf32, #of.dims<[\"a b\", ?]>>"),
            ("tensor<?(-1)xf32>", "tensor<?xf32, #of.dims<[-1]>>"),
            ("tensor<*xf32>", "tensor<*xf32>"),
            ("tensor<*xf32, #of.sbp<@m, [B]>>", "!of.tensor<*xf32, #of.sbp<@m, [B]>>"),
            ("tensor<4xf32, #of.sbp<@m, [S(0), P(max)]>>", "tensor<4xf32, #of.sbp<@m, [S(0), P(max)]>>"),
            ("tensor<?(N)xf32, #of.sbp<@\"a b\", [B]>>", "tensor<?xf32, #of.global<[N], @\"a b\", [B]>>"),
            ("!of.seq<!of.opt<tensor<?(N)xui4>>>", "!of.seq<!of.opt<tensor<?xui4, #of.dims<[N]>>>>"),
            ("none", "none"),
        ] {
            for text in [pretty, generic] {
                let ty = parse_type(text).unwrap_or_else(|e| panic!("{text}: {e}"));
                let mut out = String::new();
                write_type(&mut out, &ty, true);
                assert_eq!((ty.to_string().as_str(), out.as_str()), (pretty, generic));
            }
        }
    }

    #[test]
    fn bad_types_are_refused() {
        let deep = "!of.seq<".repeat(10_000);
        for (text, why) in [
            ("tensor<4x5>", "expected 'x' after a dimension, found '>'"),
            ("tensor<4xf33>", "expected an element type, found 'f33'"),
            ("tensor<99999999999999999999xf32>", "out of range"),
            ("tensor<4xf32, #of.dims<[5]>>", "do not fit the shape"),
            ("tensor<4xf32, #of.dims<[4, N]>>", "do not fit the shape"),
            ("tensor<4xf32, #x>", "expected #of.sbp"),
            ("tensor<4xf32, #of.sbp<@m, [S(300)]>>", "an axis is out of range"),
            ("tensor<4xf32, #of.sbp<@m, [P(mean)]>>", "expected sum, max, min or prod"),
            ("vector<4xf32>", "expected a type"),
            ("tensor<4xf32> x", "expected the end"),
            (&deep, "nested more than"),
        ] {
            let e = parse_type(text).unwrap_err().to_string();
            assert!(e.contains(why), "{text}: {e}");
        }
    }
}
