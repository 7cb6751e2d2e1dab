//! Attributes. Every kind has its own syntax, so that printing and parsing preserve attributes exactly.
//!
//! | kind | generic | pretty, where shorter |
//! |---|---|---|
//! | unit, bool, string, symbol, type | `unit`, `true`, `"a"`, `@f`, `tensor<4xf32>` | |
//! | integer, float | `3 : i64`, `1.5 : f64`, `0x7FF0000000000000 : f64` | `3`, `1.5` |
//! | integers, floats | `array<i64: 1, 2>`, `array<f64: 1.5>` | `[1, 2]`, `[1.5]` |
//! | strings | `["a", "b"]`, `#of.strs<[]>` | |
//! | any attributes | `[1 : i64, "a"]`, `#of.array<["a"]>` where it would read as one of the lists above | |
//! | element type, dimensions, placement | `#of.dtype<f32>`, `#of.dims<[N*2, 64]>`, `#of.sbp<@m, [S(0)]>` | |
//! | tensor | `dense<…> : tensor<…>`, `#of.data<…> : tensor<…>` | |

use std::collections::HashSet;
use std::fmt::Write;
use std::sync::Arc;

use of_diag::Code;

use super::cursor::{ParseResult, Parser, WithHint};
use super::dense;
use super::lexer::{Kind, Token};
use super::{Constants, PrintOptions, quote, types};
use crate::{Attr, Attrs, DType, Tensor};

// ---- printing ----

/// Writes ` {a = 1, b}`; nothing where there are none.
pub(super) fn write_attrs(out: &mut String, attrs: &Attrs, options: &PrintOptions<'_>) {
    if !attrs.is_empty() {
        out.push(' ');
        write_dict(out, attrs, options);
    }
}

/// Writes `{a = 1, b}`.
pub(super) fn write_dict(out: &mut String, attrs: &Attrs, options: &PrintOptions<'_>) {
    out.push('{');
    for (i, (name, value)) in attrs.iter().enumerate() {
        if i > 0 {
            out.push_str(", ");
        }
        let _ = quote::write_name(out, name);
        if *value != Attr::Unit {
            out.push_str(" = ");
            write_attr(out, value, options);
        }
    }
    out.push('}');
}

/// Writes one attribute.
pub(super) fn write_attr(out: &mut String, attr: &Attr, options: &PrintOptions<'_>) {
    let generic = options.generic;
    let _ = match attr {
        Attr::Unit => out.write_str("unit"),
        Attr::Bool(b) => write!(out, "{b}"),
        Attr::Int(i) => write!(out, "{i}{}", if generic { " : i64" } else { "" }),
        Attr::Float(v) => {
            dense::write_float(out, DType::F64, v.to_bits());
            out.write_str(if generic || !v.is_finite() { " : f64" } else { "" })
        }
        Attr::Str(s) => quote::write_string(out, s),
        Attr::Symbol(s) => quote::write_symbol(out, s),
        Attr::Type(t) => {
            types::write_type(out, t, generic);
            Ok(())
        }
        Attr::DType(d) => write!(out, "#of.dtype<{d}>"),
        Attr::Sbp(s) => write!(out, "#of.sbp<{s}>"),
        Attr::Dims(dims) => {
            out.push_str("#of.dims<");
            write_list(out, dims, |out, d| {
                let _ = write!(out, "{d}");
            });
            out.write_char('>')
        }
        Attr::Ints(v) => {
            let plain = !generic && !v.is_empty();
            write_numbers(out, "i64", plain, v, |out, i| {
                let _ = write!(out, "{i}");
            });
            Ok(())
        }
        Attr::Floats(v) => {
            let plain = !generic && !v.is_empty() && v.iter().all(|x| x.is_finite());
            write_numbers(out, "f64", plain, v, |out, x| dense::write_float(out, DType::F64, x.to_bits()));
            Ok(())
        }
        Attr::Strs(v) if v.is_empty() => out.write_str("#of.strs<[]>"),
        Attr::Strs(v) => {
            write_list(out, v, |out, s| {
                let _ = quote::write_string(out, s);
            });
            Ok(())
        }
        Attr::Array(v) => {
            let wrap = list_kind(v) != ListKind::Mixed || v.is_empty();
            out.push_str(if wrap { "#of.array<" } else { "" });
            write_list(out, v, |out, a| write_attr(out, a, options));
            out.write_str(if wrap { ">" } else { "" })
        }
        Attr::Tensor(t) => {
            write_tensor(out, t, options);
            Ok(())
        }
    };
}

fn write_list<T>(out: &mut String, items: &[T], mut item: impl FnMut(&mut String, &T)) {
    out.push('[');
    for (i, x) in items.iter().enumerate() {
        if i > 0 {
            out.push_str(", ");
        }
        item(out, x);
    }
    out.push(']');
}

fn write_numbers<T>(out: &mut String, ty: &str, plain: bool, items: &[T], mut item: impl FnMut(&mut String, &T)) {
    if plain {
        return write_list(out, items, item);
    }
    let _ = write!(out, "array<{ty}");
    for (i, x) in items.iter().enumerate() {
        out.push_str(if i == 0 { ": " } else { ", " });
        item(out, x);
    }
    out.push('>');
}

fn write_tensor(out: &mut String, t: &Tensor, options: &PrintOptions<'_>) {
    let large = t.len() > dense::MAX_INLINE_ELEMENTS && !dense::is_written_as_splat(t);
    let ty = || crate::Type::Tensor(t.ty());
    let _ = match (&options.constants, t.bytes()) {
        (Constants::Elided, _) if large => write!(out, "dense_resource<__elided__> : {}", ty()),
        (Constants::DataFile(file), Some(bytes)) if large => {
            let (offset, hash) = file.put(bytes);
            out.push_str("#of.data<");
            let _ = quote::write_string(out, file.name());
            write!(out, ", {offset}, {}, \"{hash}\"> : {}", bytes.len(), ty())
        }
        _ => {
            dense::write_dense(out, t);
            Ok(())
        }
    };
}

/// What `[…]` means.
#[derive(PartialEq, Eq)]
enum ListKind {
    Ints,
    Floats,
    Strs,
    Mixed,
}

fn list_kind(items: &[Attr]) -> ListKind {
    let all = |f: fn(&Attr) -> bool| !items.is_empty() && items.iter().all(f);
    if all(|a| matches!(a, Attr::Int(_))) {
        ListKind::Ints
    } else if all(|a| matches!(a, Attr::Float(_))) {
        ListKind::Floats
    } else if all(|a| matches!(a, Attr::Str(_))) {
        ListKind::Strs
    } else {
        ListKind::Mixed
    }
}

/// Parses `[…]` as a list attribute.
fn list_attr(items: Vec<Attr>) -> Attr {
    match list_kind(&items) {
        ListKind::Ints => {
            Attr::Ints(items.iter().filter_map(|a| if let Attr::Int(i) = a { Some(*i) } else { None }).collect())
        }
        ListKind::Floats => {
            Attr::Floats(items.iter().filter_map(|a| if let Attr::Float(v) = a { Some(*v) } else { None }).collect())
        }
        ListKind::Strs => {
            Attr::Strs(items.into_iter().filter_map(|a| if let Attr::Str(s) = a { Some(s) } else { None }).collect())
        }
        ListKind::Mixed => Attr::Array(items),
    }
}

// ---- parsing ----

impl Parser<'_> {
    /// `{a = 1, b}`; `value` parses what follows `name =`; its last argument says whether there is a value.
    pub fn dict(
        &mut self,
        mut value: impl FnMut(&mut Self, Token, Arc<str>, bool) -> ParseResult<()>,
    ) -> ParseResult<()> {
        let mut seen: HashSet<Arc<str>> = HashSet::new();
        self.list(b'{', b'}', "the attributes", |p| {
            let at = p.tok;
            let name: Arc<str> = match at.kind {
                Kind::Ident => p.word().into(),
                Kind::Str => p.string("a name")?,
                _ => return Err(p.expected("the name of an attribute")),
            };
            if !seen.insert(name.clone()) {
                return Err(p.error_of(Code::NAME, at, format!("duplicate attribute '{name}'")));
            }
            let given = p.eat(b'=');
            value(p, at, name, given)
        })
    }

    /// `{a = 1, b}` as attributes.
    pub fn attrs(&mut self) -> ParseResult<Attrs> {
        let mut all = Attrs::new();
        self.dict(|p, _, name, given| {
            let value = if given { p.attr()? } else { Attr::Unit };
            all.set(name, value);
            Ok(())
        })?;
        Ok(all)
    }

    /// One attribute.
    pub fn attr(&mut self) -> ParseResult<Attr> {
        self.nested(|p| match p.tok.kind {
            Kind::Str => p.string("a string").map(Attr::Str),
            Kind::Symbol => p.symbol("a symbol").map(Attr::Symbol),
            Kind::Int | Kind::Float | Kind::Punct(b'-') => p.number_attr(),
            Kind::Punct(b'[') => Ok(list_attr(p.attr_list()?)),
            Kind::Hash => p.dialect_attr(),
            Kind::Ident if p.at_word("true") => {
                p.bump();
                Ok(Attr::Bool(true))
            }
            Kind::Ident if p.at_word("false") => {
                p.bump();
                Ok(Attr::Bool(false))
            }
            Kind::Ident if p.at_word("unit") => {
                p.bump();
                Ok(Attr::Unit)
            }
            Kind::Ident if p.at_word("array") => p.array_attr(),
            Kind::Ident if p.at_word("dense") => p.dense().map(Attr::Tensor),
            Kind::Ident if p.at_word("dense_resource") => Err(p
                .error(p.tok, "this constant was left out when the text was printed")
                .with_hint("print it without eliding")),
            _ if p.at_type() => p.ty().map(Attr::Type),
            Kind::Punct(b'{') => Err(p.error(p.tok, "a dictionary is no attribute of an op")),
            _ => Err(p.expected("an attribute")),
        })
    }

    fn attr_list(&mut self) -> ParseResult<Vec<Attr>> {
        let mut items = Vec::new();
        self.list(b'[', b']', "the list", |p| {
            items.push(p.attr()?);
            Ok(())
        })?;
        Ok(items)
    }

    /// `-3`, `3 : i64`, `1.5e-3`, `0x7FF0000000000000 : f64`.
    fn number_attr(&mut self) -> ParseResult<Attr> {
        let start = self.tok;
        let negative = self.eat(b'-');
        let number = self.tok;
        if !matches!(number.kind, Kind::Int | Kind::Float) {
            return Err(self.expected("a number"));
        }
        self.bump();
        let ty = if self.at(b':') { Some(self.number_type()?) } else { None };
        let is_float = ty.unwrap_or(number.kind == Kind::Float);
        if is_float {
            self.float(number, negative).map(Attr::Float)
        } else {
            self.int(start, number, negative).map(Attr::Int)
        }
    }

    /// `: i64`; whether it is a float.
    fn number_type(&mut self) -> ParseResult<bool> {
        self.bump();
        let ty = if self.tok.kind == Kind::Ident { self.peek() } else { "" };
        let float = match ty {
            "f64" | "f32" => true,
            "i64" | "i32" | "i16" | "i8" | "index" | "si64" => false,
            _ => return Err(self.expected("i64 or f64")),
        };
        self.bump();
        Ok(float)
    }

    fn int(&self, start: Token, t: Token, negative: bool) -> ParseResult<i64> {
        let text = self.str_of(t);
        let magnitude = match text.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16).ok(),
            None => text.parse().ok(),
        };
        let value = magnitude.map(|m| if negative { -i128::from(m) } else { i128::from(m) });
        value.and_then(|v| i64::try_from(v).ok()).ok_or_else(|| self.error(start, "this is no 64-bit integer"))
    }

    fn float(&self, t: Token, negative: bool) -> ParseResult<f64> {
        let text = self.str_of(t);
        let value = match text.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16).ok().map(f64::from_bits),
            None => text.parse().ok(),
        };
        value.map(|v: f64| if negative { -v } else { v }).ok_or_else(|| self.error(t, "this is no 64-bit float"))
    }

    /// `array<i64: 1, 2>`.
    fn array_attr(&mut self) -> ParseResult<Attr> {
        self.bump();
        self.expect(b'<', "after 'array'")?;
        let ty = self.tok;
        let float = match self.peek() {
            "f64" => true,
            "i64" => false,
            _ => return Err(self.expected("i64 or f64")),
        };
        self.bump();
        let (mut ints, mut floats) = (Vec::new(), Vec::new());
        let mut more = !self.at(b'>');
        if more {
            self.expect(b':', &format!("after '{}'", self.str_of(ty)))?;
        }
        while more {
            let start = self.tok;
            let negative = self.eat(b'-');
            if !matches!(self.tok.kind, Kind::Int | Kind::Float) {
                return Err(self.expected("a number"));
            }
            let t = self.bump();
            if float {
                floats.push(self.float(t, negative)?)
            } else {
                ints.push(self.int(start, t, negative)?)
            };
            more = self.eat(b',');
        }
        self.expect(b'>', "after the numbers")?;
        Ok(if float { Attr::Floats(floats) } else { Attr::Ints(ints) })
    }

    /// `#of.…<…>`.
    fn dialect_attr(&mut self) -> ParseResult<Attr> {
        let t = self.bump();
        if self.str_of(t) == "#of.data" {
            return self.data_constant(t).map(Attr::Tensor);
        }
        if !matches!(self.str_of(t), "#of.dims" | "#of.dtype" | "#of.sbp" | "#of.strs" | "#of.array") {
            let e = self.error(t, format!("there is no attribute '{}'", self.str_of(t)));
            return Err(e.with_hint("#of.dims, #of.dtype, #of.sbp, #of.data, #of.strs or #of.array"));
        }
        self.expect(b'<', "before the attribute")?;
        let attr = match self.str_of(t) {
            "#of.dims" => Attr::Dims(self.dims()?),
            "#of.dtype" => Attr::DType(self.dtype()?),
            "#of.sbp" => Attr::Sbp(self.nd_sbp()?),
            "#of.array" => Attr::Array(self.attr_list()?),
            _ => {
                let mut strings = Vec::new();
                self.list(b'[', b']', "the strings", |p| {
                    strings.push(p.string("a string")?);
                    Ok(())
                })?;
                Attr::Strs(strings)
            }
        };
        self.expect(b'>', "after the attribute")?;
        Ok(attr)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::{parse_attr, tests::random};

    #[test]
    fn random_attributes_read_back_in_both_forms() {
        let mut rng = fastrand::Rng::with_seed(5);
        for _ in 0..3000 {
            let a = random::attr(&mut rng, 2);
            for generic in [false, true] {
                let options = PrintOptions { generic, ..PrintOptions::default() };
                let mut out = String::new();
                write_attr(&mut out, &a, &options);
                let back = parse_attr(&out).unwrap_or_else(|e| panic!("{out}: {e}"));
                // As debug text, because NaN is not equal to itself.
                assert_eq!(format!("{back:?}"), format!("{a:?}"), "{out}");
            }
        }
    }

    #[test]
    fn informal_attribute_syntax_parses() {
        for (text, want) in [
            ("-3", Attr::Int(-3)),
            ("3 : i32", Attr::Int(3)),
            ("1e-3", Attr::Float(0.001)),
            ("-9223372036854775808", Attr::Int(i64::MIN)),
            ("-0.0 : f64", Attr::Float(-0.0)),
            ("[1, -2]", Attr::Ints(vec![1, -2])),
            ("[1.5, 2.0]", Attr::Floats(vec![1.5, 2.0])),
            ("[\"a\"]", Attr::Strs(vec!["a".into()])),
            ("[]", Attr::Array(vec![])),
            ("[1, \"a\"]", Attr::Array(vec![Attr::Int(1), Attr::Str("a".into())])),
        ] {
            assert_eq!(parse_attr(text).unwrap_or_else(|e| panic!("{text}: {e}")), want);
        }
    }

    #[test]
    fn wrong_attributes_are_refused() {
        let deep = "[".repeat(10_000);
        for (text, why) in [
            ("9223372036854775808", "no 64-bit integer"),
            ("1.5 : i64", "no 64-bit integer"),
            ("3 : foo", "expected i64 or f64"),
            ("- x", "expected a number"),
            ("#of.what<3>", "no attribute '#of.what'"),
            ("#of.strs<[1]>", "expected a string"),
            ("array<i8: 1>", "expected i64 or f64"),
            ("array<i64 1>", "expected ':'"),
            ("{a = 1}", "a dictionary is no attribute"),
            ("\"a", "not closed"),
            ("\"\\q\"", "an escape is one of"),
            ("dense_resource<__elided__> : tensor<4xf32>", "left out"),
            ("#of.data<\"x\", 0, 4, \"00\"> : tensor<f32>", "64 hexadecimal digits"),
            ("[1 2]", "expected ',' or ']' in the list, found '2'"),
            (&deep, "nested more than"),
        ] {
            let e = parse_attr(text).unwrap_err().to_string();
            assert!(e.contains(why), "{text}: {e}");
        }
    }
}
