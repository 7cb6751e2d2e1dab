//! `dense<…> : tensor<…>`: small constants as numbers, others as hexadecimal bytes.

use std::borrow::Cow;
use std::fmt::Write;

use half::{bf16, f16};
use of_diag::Code;

use super::cursor::{ParseResult, Parser};
use super::lexer::{Kind, Token};
use super::quote;
use crate::{Blob, DType, Elements, Power, Rounding, Tensor, packing, small_float};

/// Constants of at most this many elements are written as numbers.
pub(super) const MAX_INLINE_ELEMENTS: usize = 64;

/// A splat has at most this many elements, so that a short text cannot exhaust memory.
const MAX_SPLAT_ELEMENTS: usize = 1 << 20;

// ---- printing ----

/// Writes a tensor inline.
pub(super) fn write_dense(out: &mut String, t: &Tensor) {
    out.push_str("dense<");
    if let Some(strings) = t.strings() {
        write_nested(out, t.dims(), &mut strings.iter(), &mut |out, s| {
            let _ = quote::write_string(out, s);
        });
    } else if t.len() > MAX_INLINE_ELEMENTS && !is_written_as_splat(t) {
        write_hex(out, &to_mlir(t));
    } else {
        let splat = is_written_as_splat(t);
        let dims = if splat { &[] } else { t.dims() };
        write_numbers(out, t, dims);
    }
    let _ = write!(out, "> : {}", crate::Type::Tensor(t.ty()));
}

/// Whether one number is written for all elements.
pub(super) fn is_written_as_splat(t: &Tensor) -> bool {
    (2..=MAX_SPLAT_ELEMENTS).contains(&t.len()) && t.is_splat()
}

/// The bytes as MLIR stores them: truth values as bits, the first the lowest, other packed elements a byte each.
fn to_mlir(t: &Tensor) -> Cow<'_, [u8]> {
    let cells = t.cells().map_or(Cow::Borrowed(&[][..]), |c| c.1);
    if t.dtype() == DType::Bool { packing::pack(1, &cells).into() } else { cells }
}

/// The inverse of [`to_mlir`] for `n` elements, as cells; `None` where the bytes do not fit.
fn from_mlir(dtype: DType, n: usize, bytes: Vec<u8>) -> Option<Vec<u8>> {
    if dtype == DType::Bool {
        return (bytes.len() == n.div_ceil(8)).then(|| packing::unpack(1, n, &bytes));
    }
    let mask = packing::mask(dtype.bits()?.min(8));
    let fits = !dtype.is_packed() || bytes.len() == n && bytes.iter().all(|b| b & !mask == 0);
    fits.then_some(bytes)
}

fn write_hex(out: &mut String, bytes: &[u8]) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    out.reserve(bytes.len() * 2 + 4);
    out.push_str("\"0x");
    for b in bytes {
        out.push(DIGITS[usize::from(b >> 4)] as char);
        out.push(DIGITS[usize::from(b & 15)] as char);
    }
    out.push('"');
}

fn write_numbers(out: &mut String, t: &Tensor, dims: &[usize]) {
    let dtype = t.dtype();
    match t.elements() {
        Elements::Int(v) => write_nested(out, dims, &mut v.iter(), &mut |out, x| {
            let _ = match dtype {
                DType::Bool => write!(out, "{}", *x != 0),
                _ => write!(out, "{x}"),
            };
        }),
        Elements::Float(_) => {
            let (width, bytes) = t.cells().unwrap_or((1, Cow::Borrowed(&[])));
            let bits = bytes.chunks_exact(width).map(|c| c.iter().rev().fold(0u64, |n, b| n << 8 | u64::from(*b)));
            write_nested(out, dims, &mut bits.into_iter(), &mut |out, b| write_float(out, dtype, b));
        }
        Elements::Str(_) => {}
    }
}

/// Elements in nested brackets, as the shape says; nothing at all for a tensor without elements.
fn write_nested<T>(
    out: &mut String,
    dims: &[usize],
    items: &mut dyn Iterator<Item = T>,
    item: &mut dyn FnMut(&mut String, T),
) {
    let Some((n, inner)) = dims.split_first() else {
        if let Some(x) = items.next() {
            item(out, x);
        }
        return;
    };
    if dims.contains(&0) {
        return;
    }
    out.push('[');
    for i in 0..*n {
        if i > 0 {
            out.push_str(", ");
        }
        write_nested(out, inner, items, item);
    }
    out.push(']');
}

/// Writes the shortest decimal number that reads back to the same bits, or the bits where there is none.
pub(super) fn write_float(out: &mut String, dtype: DType, bits: u64) {
    let value = float_value(dtype, bits);
    let shortest = match dtype {
        DType::F64 => format!("{value:?}"),
        _ => format!("{:?}", value as f32),
    };
    let exact = value.is_finite() && shortest.parse().is_ok_and(|v| float_bits(dtype, v) == bits);
    if !exact {
        let digits = dtype.bits().unwrap_or(8) / 4;
        let _ = write!(out, "0x{bits:0digits$X}");
        return;
    }
    // MLIR requires a point before the exponent.
    match shortest.find('e') {
        Some(e) if !shortest.contains('.') => {
            let _ = write!(out, "{}.0{}", &shortest[..e], &shortest[e..]);
        }
        _ => out.push_str(&shortest),
    }
}

fn float_value(dtype: DType, bits: u64) -> f64 {
    match dtype {
        DType::F64 => f64::from_bits(bits),
        DType::F32 => f32::from_bits(bits as u32).into(),
        DType::F16 => f16::from_bits(bits as u16).into(),
        DType::BF16 => bf16::from_bits(bits as u16).into(),
        _ => small_float::decode(dtype, bits as u8),
    }
}

fn float_bits(dtype: DType, value: f64) -> u64 {
    match dtype {
        DType::F64 => value.to_bits(),
        DType::F32 => (value as f32).to_bits().into(),
        DType::F16 => f16::from_f32(crate::tensor::odd_f32(value)).to_bits().into(),
        DType::BF16 => bf16::from_f32(crate::tensor::odd_f32(value)).to_bits().into(),
        // A decimal number is rounded to the nearest value of the type.
        _ => small_float::encode(dtype, value, Rounding { power: Power::Nearest, ..Rounding::DEFAULT }).into(),
    }
}

// ---- parsing ----

/// One element as written; its type comes after the last one.
#[derive(Clone, Copy)]
struct Literal {
    negative: bool,
    token: Token,
}

/// The elements in order, and the shape that their brackets have.
#[derive(Default)]
struct Literals {
    items: Vec<Literal>,
    dims: Vec<usize>,
    /// Which entries of `dims` are known: those whose first bracket has been closed.
    closed: Vec<bool>,
    /// How many brackets enclose an element.
    rank: Option<usize>,
}

impl Parser<'_> {
    /// `dense<…> : tensor<…>`.
    pub fn dense(&mut self) -> ParseResult<Tensor> {
        let start = self.bump();
        self.expect(b'<', "after 'dense'")?;
        let mut all = Literals::default();
        if !self.at(b'>') {
            self.dense_node(0, &mut all)?;
        }
        self.expect(b'>', "after the elements")?;
        let (dtype, dims) = self.constant_type()?;
        let count = dims.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
        let Some(count) = count.filter(|n| *n <= isize::MAX as usize / 16) else {
            return Err(self.error_of(Code::SHAPE, start, "the tensor is too large"));
        };
        let bracketless = all.rank == Some(0);
        if bracketless && dtype != DType::String && all.items[0].token.kind == Kind::Str {
            return self.hex_tensor(all.items[0].token, dtype, dims);
        }
        if bracketless {
            if count > MAX_SPLAT_ELEMENTS {
                let what = format!("a splat has at most {MAX_SPLAT_ELEMENTS} elements, here {count}");
                return Err(self.error_of(Code::SHAPE, start, what));
            }
            all.items = vec![all.items[0]; count];
        } else if all.items.len() != count || (count > 0 && all.dims != dims) {
            let what = format!("the elements have shape {:?}, the type says {dims:?}", all.dims);
            return Err(self.error_of(Code::SHAPE, start, what));
        }
        self.tensor_of(start, dtype, dims, &all.items)
    }

    /// `: tensor<…>` with known dimensions.
    pub fn constant_type(&mut self) -> ParseResult<(DType, Vec<usize>)> {
        self.expect(b':', "before the type of the constant")?;
        let at = self.tok;
        let ty = self.tensor_type()?;
        match ty.fixed_dims() {
            Some(dims) if ty.sbp.is_none() => Ok((ty.dtype, dims)),
            _ => Err(self.error_of(Code::TYPE, at, "a constant needs fixed dimensions and no placement")),
        }
    }

    fn dense_node(&mut self, level: usize, all: &mut Literals) -> ParseResult<()> {
        if !self.at(b'[') {
            if *all.rank.get_or_insert(level) != level {
                return Err(self.error(self.tok, "the brackets have different depths"));
            }
            all.items.push(self.dense_item()?);
            return Ok(());
        }
        let open = self.tok;
        if all.rank.is_some_and(|r| level >= r) {
            return Err(self.error(open, "the brackets have different depths"));
        }
        if all.dims.len() == level {
            all.dims.push(0);
            all.closed.push(false);
        }
        let mut n = 0;
        self.enter()?;
        self.list(b'[', b']', "the elements", |p| {
            n += 1;
            p.dense_node(level + 1, all)
        })?;
        self.leave();
        if std::mem::replace(&mut all.closed[level], true) && all.dims[level] != n {
            let what = format!("{n} elements are in these brackets, {} in those before", all.dims[level]);
            return Err(self.error(open, what));
        }
        all.dims[level] = n;
        Ok(())
    }

    fn dense_item(&mut self) -> ParseResult<Literal> {
        let negative = self.eat(b'-');
        let ok = match self.tok.kind {
            Kind::Int | Kind::Float => true,
            Kind::Str => !negative,
            Kind::Ident => !negative && matches!(self.peek(), "true" | "false"),
            _ => false,
        };
        if ok { Ok(Literal { negative, token: self.bump() }) } else { Err(self.expected("an element")) }
    }

    fn tensor_of(&self, start: Token, dtype: DType, dims: Vec<usize>, items: &[Literal]) -> ParseResult<Tensor> {
        let made = if dtype == DType::String {
            let strings = items.iter().map(|l| match l.token.kind {
                Kind::Str => Ok(self.unquote(l.token)?.to_string()),
                _ => Err(self.wrong_element(l, dtype)),
            });
            Tensor::from_strings(dims, strings.collect::<ParseResult<_>>()?)
        } else if dtype.is_float() {
            let width = dtype.bits().unwrap_or(8).div_ceil(8);
            let mut bytes = Vec::with_capacity(items.len() * width);
            for l in items {
                let bits = self.float_literal(l, dtype)?;
                bytes.extend_from_slice(&bits.to_le_bytes()[..width]);
            }
            Tensor::from_cells(dtype, dims, bytes)
        } else {
            let ints = items.iter().map(|l| self.int_literal(l, dtype)).collect::<ParseResult<_>>()?;
            Tensor::from_elements(dtype, dims, Elements::Int(ints))
        };
        made.map_err(|e| self.error_of(Code::SHAPE, start, e.to_string()))
    }

    fn wrong_element(&self, l: &Literal, dtype: DType) -> Box<of_diag::Diagnostic> {
        self.error_of(Code::TYPE, l.token, format!("'{}' is not a valid {dtype}", self.str_of(l.token)))
    }

    /// A number, or the bits of one in hexadecimal.
    fn float_literal(&self, l: &Literal, dtype: DType) -> ParseResult<u64> {
        let text = self.str_of(l.token);
        let wrong = || self.wrong_element(l, dtype);
        match (l.token.kind, text.strip_prefix("0x")) {
            (Kind::Int, Some(hex)) if !l.negative => {
                let bits = u64::from_str_radix(hex, 16).map_err(|_| wrong())?;
                let fits = dtype.bits().is_some_and(|n| n == 64 || bits >> n == 0);
                if fits { Ok(bits) } else { Err(wrong()) }
            }
            (Kind::Int | Kind::Float, None) => {
                let v: f64 = text.parse().map_err(|_| wrong())?;
                let v = if l.negative { -v } else { v };
                let bits = float_bits(dtype, v);
                // A type without a sign has no negative numbers.
                if float_value(dtype, bits).is_nan() { Err(wrong()) } else { Ok(bits) }
            }
            _ => Err(wrong()),
        }
    }

    fn int_literal(&self, l: &Literal, dtype: DType) -> ParseResult<i128> {
        let text = self.str_of(l.token);
        let value: Option<i128> = match (l.token.kind, text.strip_prefix("0x")) {
            (Kind::Ident, _) if dtype == DType::Bool => Some((text == "true").into()),
            (Kind::Int, Some(hex)) => i128::from_str_radix(hex, 16).ok(),
            (Kind::Int, None) => text.parse().ok(),
            _ => None,
        };
        let value = value.map(|v| if l.negative { -v } else { v });
        let range = dtype.int_range();
        value
            .filter(|v| range.is_some_and(|(lo, hi)| (lo..=hi).contains(v)))
            .ok_or_else(|| self.wrong_element(l, dtype))
    }

    fn hex_tensor(&self, at: Token, dtype: DType, dims: Vec<usize>) -> ParseResult<Tensor> {
        let text = self.str_of(at);
        let digit = |b: u8| (b as char).to_digit(16).map(|d| d as u8);
        let bytes = text.strip_prefix("\"0x").and_then(|s| s.strip_suffix('"')).and_then(|hex| {
            let pairs = hex.as_bytes().chunks(2);
            pairs.map(|c| Some(digit(c[0])? * 16 + digit(*c.get(1)?)?)).collect::<Option<Vec<u8>>>()
        });
        let Some(bytes) = bytes else {
            return Err(self.error(at, "bytes are written \"0x…\" with two hexadecimal digits each"));
        };
        let Some(bytes) = from_mlir(dtype, dims.iter().product(), bytes) else {
            return Err(self.error_of(Code::SHAPE, at, format!("these bytes are no {dims:?} {dtype}")));
        };
        Tensor::from_cells(dtype, dims, bytes).map_err(|e| self.error_of(Code::SHAPE, at, e.to_string()))
    }

    /// A tensor over stored bytes.
    pub fn tensor_of_bytes(&self, at: Token, dtype: DType, dims: Vec<usize>, bytes: Blob) -> ParseResult<Tensor> {
        if dtype == DType::Bool && bytes.iter().any(|b| *b > 1) {
            return Err(self.error_of(Code::TYPE, at, "a stored i1 is one byte, 0 or 1"));
        }
        Tensor::from_bytes(dtype, dims, bytes).map_err(|e| self.error_of(Code::SHAPE, at, e.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::{parse_attr, tests::random};

    fn text_of(t: &Tensor) -> String {
        let mut out = String::new();
        write_dense(&mut out, t);
        out
    }

    fn read(text: &str) -> Result<Tensor, String> {
        match parse_attr(text).map_err(|e| e.to_string())? {
            crate::Attr::Tensor(t) => Ok(t),
            other => Err(format!("{other:?}")),
        }
    }

    #[test]
    fn every_bit_pattern_of_the_small_floats_reads_back() {
        for dtype in DType::ALL.into_iter().filter(|d| d.is_float()) {
            let width = dtype.bits().unwrap().div_ceil(8);
            let patterns = 1u32 << dtype.bits().unwrap().min(16);
            for i in (0..patterns).step_by(if width == 1 { 1 } else { 37 }) {
                // Wide types get the pattern in their upper bits, where sign and exponent are.
                let bits = u64::from(i) << (width * 8).saturating_sub(16) | u64::from(i % 3 == 0 && width > 2);
                let bytes = bits.to_le_bytes()[..width].to_vec();
                let t = Tensor::from_bytes(dtype, vec![], Blob::new(bytes)).unwrap();
                assert_eq!(read(&text_of(&t)).unwrap(), t, "{dtype} {bits:#x}");
            }
        }
    }

    #[test]
    fn random_tensors_read_back() {
        let mut rng = fastrand::Rng::with_seed(11);
        for _ in 0..400 {
            let t = random::tensor(&mut rng);
            let text = text_of(&t);
            assert_eq!(read(&text).unwrap_or_else(|e| panic!("{text}: {e}")), t, "{text}");
        }
    }

    #[test]
    fn dense_literals_print_in_short_form() {
        let f = |v: &[f32], dims: &[usize]| text_of(&Tensor::from_slice(dims, v).unwrap());
        assert_eq!(
            f(&[1.0, 0.1, f32::NAN, 1e30], &[2, 2]),
            "dense<[[1.0, 0.1], [0x7FC00000, 1.0e30]]> : tensor<2x2xf32>"
        );
        assert_eq!(f(&[2.0; 100], &[100]), "dense<2.0> : tensor<100xf32>");
        assert_eq!(f(&[], &[0, 3]), "dense<> : tensor<0x3xf32>");
        assert!(f(&(0..65).map(|i| i as f32).collect::<Vec<_>>(), &[65]).starts_with("dense<\"0x000000000000803F"));
    }

    #[test]
    fn wrong_constants_are_refused() {
        for (text, why) in [
            ("dense<[1, 2]> : tensor<3xi32>", "the elements have shape [2], the type says [3]"),
            ("dense<[[1, 2], [3]]> : tensor<2x2xi32>", "1 elements are in these brackets, 2 in those before"),
            ("dense<[1, [2]]> : tensor<2xi32>", "different depths"),
            ("dense<[[1], 2]> : tensor<2xi32>", "different depths"),
            ("dense<300> : tensor<ui8>", "'300' is not a valid ui8"),
            ("dense<1.5> : tensor<i8>", "'1.5' is not a valid i8"),
            ("dense<\"a\"> : tensor<i8>", "two hexadecimal digits"),
            ("dense<\"0x01\"> : tensor<i16>", "needs 2 bytes, there are 1"),
            ("dense<\"0x02\"> : tensor<9xi1>", "these bytes are no [9] i1"),
            ("dense<0x1FF> : tensor<f8E5M2>", "is not a valid f8E5M2"),
            ("dense<0x10> : tensor<f4E2M1FN>", "is not a valid f4E2M1FN"),
            ("dense<-1.0> : tensor<f8E8M0FNU>", "'1.0' is not a valid f8E8M0FNU"),
            ("dense<2> : tensor<i2>", "'2' is not a valid i2"),
            ("dense<\"0x04\"> : tensor<1xui2>", "these bytes are no [1] ui2"),
            ("dense<0> : tensor<99999999xi8>", "at most 1048576 elements"),
            ("dense<0> : tensor<99999999999x99999999999xi8>", "too large"),
            ("dense<0> : tensor<?xi8>", "fixed dimensions"),
            ("dense<[]> : tensor<1xi8>", "have shape [0]"),
            ("dense<[x]> : tensor<1xi8>", "expected an element"),
        ] {
            let e = read(text).unwrap_err();
            assert!(e.contains(why), "{text}: {e}");
        }
    }
}
