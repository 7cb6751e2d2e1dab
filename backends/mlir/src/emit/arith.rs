//! Builder for the dialect `arith`: constants, comparisons and conversions, on single elements or on vectors.

use of_emit::{Text, element_bytes, hex};
use of_ir::DType;

/// An SSA value of the text: an element, or a vector of elements. A bool is an `i1` here and a byte in memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Item {
    /// Its name, with the `%`.
    pub name: String,
    /// Its element type.
    pub dtype: DType,
}

/// Prints ops on scalars or vectors, one for each line.
pub struct Scalars<'t> {
    text: &'t mut Text,
    /// Elements of a vector; `None` for single elements.
    lanes: Option<usize>,
}

/// The type of an element in memory. Integers are signless in MLIR; signedness is in the ops.
///
/// # Errors
/// Unsupported types.
pub fn stored(dtype: DType) -> Result<&'static str, String> {
    Ok(match dtype {
        DType::F64 => "f64",
        DType::F32 => "f32",
        DType::F16 => "f16",
        DType::BF16 => "bf16",
        DType::Bool | DType::I8 | DType::U8 => "i8",
        DType::I16 | DType::U16 => "i16",
        DType::I32 | DType::U32 => "i32",
        DType::I64 | DType::U64 => "i64",
        other => return Err(format!("elements of {other} are not supported by the MLIR printer")),
    })
}

/// An element as MLIR writes constants: bits of a float, a signed integer.
pub fn literal(dtype: DType, x: f64) -> String {
    let bytes = element_bytes(dtype, x);
    if dtype.is_float() {
        return format!("0x{}", hex(bytes.iter().rev()));
    }
    let negative = bytes.last().is_some_and(|b| b & 0x80 != 0);
    let mut wide = [if negative { 0xff } else { 0 }; 8];
    wide[..bytes.len()].copy_from_slice(&bytes);
    i64::from_le_bytes(wide).to_string()
}

impl<'t> Scalars<'t> {
    /// Appends to `text`.
    pub fn new(text: &'t mut Text, lanes: Option<usize>) -> Self {
        Scalars { text, lanes }
    }

    /// The type of a value.
    pub fn ty(&self, dtype: DType) -> String {
        let element = if dtype == DType::Bool { "i1" } else { stored(dtype).unwrap_or("none") };
        match self.lanes {
            Some(n) => format!("vector<{n}x{element}>"),
            None => element.into(),
        }
    }

    /// A line that defines a value.
    pub fn line(&mut self, dtype: DType, text: &str) -> Item {
        let name = self.text.fresh();
        self.text.line(&format!("{name} = {text}"));
        Item { name, dtype }
    }

    /// A number, splat over all lanes.
    pub fn number(&mut self, dtype: DType, x: f64) -> Item {
        let text = match dtype {
            DType::Bool => if x == 0.0 { "false" } else { "true" }.to_string(),
            _ => literal(dtype, x),
        };
        let ty = self.ty(dtype);
        let value = match self.lanes {
            Some(_) => format!("dense<{text}> : {ty}"),
            None if dtype == DType::Bool => text,
            None => format!("{text} : {ty}"),
        };
        self.line(dtype, &format!("arith.constant {value}"))
    }

    /// An i32, splat over all lanes, for integer arithmetic on the bits of f32.
    pub fn int(&mut self, x: i64) -> Item {
        self.number(DType::I32, x as f64)
    }

    /// An op whose operands and result have one type.
    pub fn op(&mut self, name: &str, args: &[&Item]) -> Item {
        let dtype = args[0].dtype;
        let names: Vec<&str> = args.iter().map(|a| a.name.as_str()).collect();
        // Multiply-add contraction is allowed, as in C kernels.
        let fused = matches!(name, "arith.addf" | "arith.subf" | "arith.mulf");
        let flags = if fused { " fastmath<contract>" } else { "" };
        let ty = self.ty(dtype);
        self.line(dtype, &format!("{name} {}{flags} : {ty}", names.join(", ")))
    }

    /// `arith.cmpf` or `arith.cmpi` with a predicate.
    pub fn compare(&mut self, predicate: &str, x: &Item, y: &Item) -> Item {
        let op = if x.dtype.is_float() { "cmpf" } else { "cmpi" };
        let ty = self.ty(x.dtype);
        self.line(DType::Bool, &format!("arith.{op} {predicate}, {}, {} : {ty}", x.name, y.name))
    }

    /// `a` if `c`, else `b`.
    pub fn select(&mut self, c: &Item, a: &Item, b: &Item) -> Item {
        let ty = match self.lanes {
            Some(_) => format!("{}, {}", self.ty(DType::Bool), self.ty(a.dtype)),
            None => self.ty(a.dtype),
        };
        self.line(a.dtype, &format!("arith.select {}, {}, {} : {ty}", c.name, a.name, b.name))
    }

    /// A conversion by the op `name`.
    pub fn convert(&mut self, name: &str, x: &Item, to: DType) -> Item {
        let (a, b) = (self.ty(x.dtype), self.ty(to));
        self.line(to, &format!("arith.{name} {} : {a} to {b}", x.name))
    }

    /// Converts an element read from memory to a value: bools are bytes in memory.
    pub fn loaded(&mut self, x: Item) -> Item {
        if x.dtype != DType::Bool {
            return x;
        }
        let byte = Item { name: x.name, dtype: DType::U8 };
        let zero = self.number(DType::U8, 0.0);
        self.compare("ne", &byte, &zero)
    }

    /// Converts a value to its form in memory.
    pub fn to_store(&mut self, x: &Item) -> Item {
        if x.dtype == DType::Bool { self.convert("extui", x, DType::U8) } else { x.clone() }
    }
}
