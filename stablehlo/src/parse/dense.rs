//! `dense<…>`: a splat, nested lists, or a string of hexadecimal digits.

use of_diag::{Code, Diagnostic};
use of_ir::{Blob, DType, Elements, Tensor, TensorType};

use super::ast::Ty;
use super::lexer::Kind;
use super::{Parsed, Parser};

/// Numbers as they are written.
enum Number {
    Int(i128),
    Float(f64),
    /// `0x7FC00000`: the bits of a float.
    Bits(u64),
}

impl Parser<'_> {
    /// What follows `dense`: `<…> : type`. The inner error is a type that the IR lacks, which only constants need.
    pub(super) fn dense(&mut self) -> Parsed<Result<Tensor, Diagnostic>> {
        let pos = self.token.start;
        let body = pos + 1;
        let end = if self.is_punct(b'<') { self.closing(body)? } else { return Err(self.unexpected("'<'")) };
        self.seek(end + 1);
        self.expect(b':')?;
        let ty = match self.ty()? {
            Ty::Tensor(t) => t,
            Ty::Other(t) => {
                let message = format!("constants of type {t} are not supported");
                return Ok(Err(Diagnostic::error(Code::UNSUPPORTED, self.lines.location(pos), message)));
            }
        };
        let after = self.token.start;
        self.seek(body);
        let tensor = self.dense_body(&ty, end);
        self.seek(after);
        tensor.map(Ok)
    }

    fn dense_body(&mut self, ty: &TensorType, end: usize) -> Parsed<Tensor> {
        let pos = self.token.start;
        let dims = ty.fixed_dims().unwrap_or_default();
        let n: usize = dims.iter().product();
        if self.is(Kind::Str) {
            return self.hexadecimal(ty.dtype, dims);
        }
        let mut numbers = Vec::new();
        let mut splat = true;
        while self.token.start < end {
            match self.token.kind {
                Kind::Punct(b'[' | b']' | b',') => {
                    splat = false;
                    self.next();
                }
                _ => numbers.push(self.number()?),
            }
        }
        if splat && numbers.len() != 1 && n != 0 {
            return Err(self.error(pos, "a constant without elements"));
        }
        let cells = self.encode(ty.dtype, &numbers, pos)?;
        let tensor = |dims: Vec<usize>, cells: Vec<u8>| {
            Tensor::from_cells(ty.dtype, dims, cells).map_err(|e| self.error(pos, e.to_string()))
        };
        if splat && n != 1 { tensor(dims, cells.repeat(n)) } else { tensor(dims, cells) }
    }

    fn number(&mut self) -> Parsed<Number> {
        let negative = self.eat(b'-');
        let (kind, text) = (self.token.kind, self.here());
        let wrong = || self.unexpected("a number");
        let number = match kind {
            Kind::Int if text.starts_with("0x") => {
                Number::Bits(u64::from_str_radix(&text[2..], 16).map_err(|_| wrong())?)
            }
            Kind::Int => Number::Int(text.parse::<i128>().map_err(|_| wrong())?),
            Kind::Float => Number::Float(text.parse().map_err(|_| wrong())?),
            Kind::Ident if text == "true" => Number::Int(1),
            Kind::Ident if text == "false" => Number::Int(0),
            _ => return Err(wrong()),
        };
        self.next();
        Ok(match number {
            Number::Int(i) if negative => Number::Int(-i),
            Number::Float(x) if negative => Number::Float(-x),
            other => other,
        })
    }

    /// Numbers as cells of `dtype`.
    fn encode(&self, dtype: DType, numbers: &[Number], pos: usize) -> Parsed<Vec<u8>> {
        let width = dtype.bits().unwrap_or(8).div_ceil(8);
        if numbers.iter().any(|n| matches!(n, Number::Bits(_))) {
            let mut out = Vec::with_capacity(numbers.len() * width);
            for n in numbers {
                match n {
                    Number::Bits(bits) => out.extend_from_slice(&bits.to_le_bytes()[..width]),
                    other => out.extend(self.encode(dtype, std::slice::from_ref(other), pos)?),
                }
            }
            return Ok(out);
        }
        let elements = match dtype.is_float() {
            true => Elements::Float(numbers.iter().map(as_float).collect()),
            false => Elements::Int(numbers.iter().map(as_int).collect()),
        };
        let t = Tensor::from_elements(dtype, vec![numbers.len()], elements);
        let t = t.map_err(|e| self.error(pos, e.to_string()))?;
        Ok(t.cells().map_or_else(Vec::new, |c| c.1.into_owned()))
    }

    /// `"0x0000803F…"`: the bytes of all elements, or of one that is repeated.
    fn hexadecimal(&mut self, dtype: DType, dims: Vec<usize>) -> Parsed<Tensor> {
        let t = self.next();
        let digits = self.slice(t).trim_matches('"');
        let error = |what: &str| self.error(t.start, what.to_owned());
        let digits = digits.strip_prefix("0x").ok_or_else(|| error("a constant's string must begin with 0x"))?;
        let nibble = |b: u8| char::from(b).to_digit(16).map(|d| d as u8);
        let pairs = digits.as_bytes().chunks(2);
        let bytes: Option<Vec<u8>> = pairs.map(|p| Some(nibble(*p.first()?)? << 4 | nibble(*p.get(1)?)?)).collect();
        let mut bytes = bytes.ok_or_else(|| error("a constant's string must be hexadecimal digits"))?;
        let n: usize = dims.iter().product();
        if dtype == DType::Bool {
            // A bit an element, and a byte for a splat.
            bytes = match bytes.as_slice() {
                [splat] if n > 8 => vec![u8::from(*splat != 0); n],
                bits => (0..n).map(|i| bits.get(i / 8).map_or(0, |b| b >> (i % 8) & 1)).collect(),
            };
        }
        let width = dtype.bits().unwrap_or(8).div_ceil(8);
        if bytes.len() == width && n > 1 {
            bytes = bytes.repeat(n);
        }
        let tensor = match dtype.is_packed() {
            // MLIR gives a byte to each.
            true => Tensor::from_cells(dtype, dims, bytes),
            false => Tensor::from_bytes(dtype, dims, Blob::new(bytes)),
        };
        tensor.map_err(|e| error(&e.to_string()))
    }
}

fn as_float(n: &Number) -> f64 {
    match n {
        Number::Int(i) => *i as f64,
        Number::Float(x) => *x,
        Number::Bits(bits) => f64::from_bits(*bits),
    }
}

fn as_int(n: &Number) -> i128 {
    match n {
        Number::Int(i) => *i,
        Number::Float(x) => *x as i128,
        Number::Bits(bits) => (*bits).into(),
    }
}
