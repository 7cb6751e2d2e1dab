//! MLIR: a function as the text of a kernel, linalg on tensors.
//!
//! Every op has a row in the table of its topic: a function that prints it, or says why it cannot be printed. An op is
//! claimed when its text can be written, so that claims and text never differ. Composites are expanded first.
//!
//! The function in the text is called as kernels of plans are: `i32 kernel(args, begin, end, scratch)`, inputs before
//! outputs, and it gives back 0, or 1 where an index is out of range. It makes tensors of its pointers, and writes its results to others.

mod build;
mod contraction;
mod elementwise;
mod math;
mod movement;
pub mod pointer;
mod reduction;
pub mod scalar;
pub mod schedule;
mod window;

use std::collections::{BTreeSet, HashMap};
use std::fmt::Write;

use of_codegen::expand::expanded;
use of_codegen::native::Isa;
use of_ir::{DType, Func, Graph, OpId, Tensor, Type, ValueId};
use of_ops::OpSpec;
use of_ops::structural::{Constant, NoneValue};

use scalar::stored;
use schedule::Tile;

/// Prints the op and gives its results, or says in one sentence why not.
type Print = fn(&mut Emitter<'_>, OpId) -> Result<Vec<Val>, String>;

/// Rows of op names.
type Table = &'static [(&'static str, Print)];

/// Element type and extents of a tensor that goes in or out.
pub type Port = (DType, Vec<usize>);

/// A kernel as text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Module {
    /// MLIR in the dialects `func`, `linalg`, `tensor`, `arith`, `math`, `bufferization` and `llvm`.
    pub text: String,
    /// What its arguments point to, at first.
    pub inputs: Vec<Port>,
    /// And then.
    pub outputs: Vec<Port>,
}

/// The kernel of a function whose extents are all numbers.
///
/// # Errors
/// The first op that cannot be printed, with the reason.
pub fn module(func: &Func, isa: &Isa) -> Result<Module, String> {
    let func = expanded(func, "mlir", |name| row(name).is_some())?;
    let g = &func.graph;
    let mut e = Emitter {
        g,
        isa,
        text: String::new(),
        next: 0,
        values: HashMap::new(),
        checks: Vec::new(),
        tiles: BTreeSet::new(),
    };
    let mut inputs = Vec::new();
    for v in g.args() {
        let port = tensor_of(g.ty(*v))?;
        let val = e.argument(inputs.len(), &port)?;
        e.values.insert(*v, val);
        inputs.push(port);
    }
    for op in g.region_ops(g.entry()) {
        if !g.op(op).def.traits().terminator {
            e.op(op)?;
        }
    }
    let mut outputs = Vec::new();
    for v in g.outputs() {
        let val = e.value(*v)?;
        e.give(inputs.len() + outputs.len(), &val)?;
        outputs.push((val.dtype, val.dims));
    }
    let status = e.status();
    Ok(Module { text: kernel(&e.text, &status, &e.tiles, isa)?, inputs, outputs })
}

/// The module whose kernel has these statements and gives back the i32 `status`, with products in `tiles`.
///
/// # Errors
/// When no code is made for `isa`.
pub fn kernel(statements: &str, status: &str, tiles: &BTreeSet<Tile>, isa: &Isa) -> Result<String, String> {
    let (target, script) = (attributes(isa)?, schedule::script(tiles));
    Ok(format!(
        "module attributes {{transform.with_named_sequence}} {{\n  func.func @kernel(%args: !llvm.ptr, %begin: i64, %end: i64, %scratch: !llvm.ptr) -> i32 \
         attributes {{passthrough = [\"no-builtins\", {target}]}} {{\n{statements}    return {status} : i32\n  }}\n{script}}}\n"
    ))
}

/// What LLVM is told of the instruction set. Without `no-builtins`, it would make calls of `memcpy` of loops.
fn attributes(isa: &Isa) -> Result<String, String> {
    let width =
        |bits: usize| format!("[\"prefer-vector-width\", \"{bits}\"], [\"min-legal-vector-width\", \"{bits}\"]");
    let features: Vec<String> = isa.features.iter().map(|f| format!("+{f}")).collect();
    let features = format!("[\"target-features\", \"{}\"]", features.join(","));
    match (isa.arch, isa.lanes) {
        ("x86_64", lanes @ (8 | 16)) if !isa.is_gpu() => Ok(format!("{features}, {}", width(32 * lanes))),
        ("aarch64", _) => Ok(features),
        _ => Err(format!("no code is made for {}: rounding needs instructions that AVX2 came with", isa.name)),
    }
}

/// The row of an op.
fn row(name: &str) -> Option<Print> {
    let tables = [elementwise::TABLE, contraction::TABLE, window::TABLE, movement::TABLE, reduction::TABLE];
    tables.iter().flat_map(|t| t.iter()).find(|(n, _)| *n == name).map(|(_, f)| *f)
}

/// Element type and extents of a value that has a form.
fn tensor_of(ty: &Type) -> Result<Port, String> {
    let Type::Tensor(t) = ty else { return Err(format!("there is no form for values of type {ty}")) };
    stored(t.dtype)?;
    let dims = t.fixed_dims().ok_or("its extents are not all numbers: code is made for fixed shapes")?;
    if dims.contains(&0) {
        return Err("it has no elements: nothing is computed of empty tensors".into());
    }
    Ok((t.dtype, dims))
}

/// An SSA value of the text: a tensor.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Val {
    name: String,
    dtype: DType,
    dims: Vec<usize>,
}

impl Val {
    /// `tensor<2x3xf32>`.
    fn ty(&self) -> String {
        type_text(self.dtype, &self.dims)
    }

    fn rank(&self) -> usize {
        self.dims.len()
    }

    /// Number of elements.
    fn len(&self) -> usize {
        self.dims.iter().product()
    }
}

fn type_text(dtype: DType, dims: &[usize]) -> String {
    format!("tensor<{}>", shape_text(dtype, dims))
}

/// `2x3xf32`.
fn shape_text(dtype: DType, dims: &[usize]) -> String {
    let dims: String = dims.iter().map(|d| format!("{d}x")).collect();
    format!("{dims}{}", stored(dtype).unwrap_or("none"))
}

/// Prints one function.
struct Emitter<'g> {
    g: &'g Graph,
    isa: &'g Isa,
    text: String,
    next: usize,
    values: HashMap<ValueId, Val>,
    /// Truth values of rank 0: whether the indices of an op are in range.
    checks: Vec<Val>,
    /// How its products are computed.
    tiles: BTreeSet<Tile>,
}

impl Emitter<'_> {
    fn op(&mut self, op: OpId) -> Result<(), String> {
        let data = self.g.op(op);
        let name = data.name();
        let results = match name {
            NoneValue::NAME => return Ok(()),
            Constant::NAME => match self.g.constant(data.results[0]) {
                // One that has no form may be an attribute of sorts, which nothing reads as a value.
                Some(t) if tensor_of(self.g.ty(data.results[0])).is_ok() => vec![self.constant(&t)?],
                _ => return Ok(()),
            },
            _ => match self.numbers(op) {
                Some(t) => vec![self.constant(&t)?],
                None => {
                    for v in &data.results {
                        tensor_of(self.g.ty(*v)).map_err(|why| format!("'{name}': {why}"))?;
                    }
                    let print = match of_ops::get(self.g, op).and_then(|o| o.scalar()) {
                        Some(_) => elementwise::print,
                        None => row(name).ok_or_else(|| format!("'{name}' has no form in linalg here"))?,
                    };
                    print(self, op).map_err(|why| format!("'{name}': {why}"))?
                }
            },
        };
        for (v, val) in data.results.iter().zip(results) {
            let (dtype, dims) = tensor_of(self.g.ty(*v))?;
            if (val.dtype, &val.dims) != (dtype, &dims) {
                return Err(format!("'{name}' is printed as {}, its type is {}", val.ty(), type_text(dtype, &dims)));
            }
            self.values.insert(*v, val);
        }
        Ok(())
    }

    /// The result of an op that follows from shapes.
    fn numbers(&self, op: OpId) -> Option<Tensor> {
        let [v] = self.g.op(op).results[..] else { return None };
        let (dtype, dims) = tensor_of(self.g.ty(v)).ok()?;
        let numbers: Vec<i128> =
            self.g.dims_value(v)?.iter().map(|d| d.as_const().map(i128::from)).collect::<Option<_>>()?;
        Tensor::from_elements(dtype, dims, of_ir::Elements::Int(numbers)).ok()
    }

    /// The text's value of a value.
    fn value(&self, v: ValueId) -> Result<Val, String> {
        let unreadable = || match tensor_of(self.g.ty(v)) {
            Err(why) => why,
            Ok(_) => "an operand was not printed".to_string(),
        };
        self.values.get(&v).cloned().ok_or_else(unreadable)
    }

    /// Operand `i` of an op.
    fn operand(&self, op: OpId, i: usize) -> Result<Val, String> {
        self.optional(op, i)?.ok_or_else(|| format!("operand {i} is left out"))
    }

    /// Operand `i`, unless it is left out.
    fn optional(&self, op: OpId, i: usize) -> Result<Option<Val>, String> {
        match self.g.op(op).operands.get(i) {
            Some(v) if *self.g.ty(*v) != Type::None => self.value(*v).map(Some),
            _ => Ok(None),
        }
    }

    fn operands(&self, op: OpId) -> Result<Vec<Val>, String> {
        self.g.op(op).operands.iter().map(|v| self.value(*v)).collect()
    }

    /// Operand `i` as integers; `None` where it is left out.
    fn ints(&self, op: OpId, i: usize) -> Result<Option<Vec<i64>>, String> {
        let Some(v) = self.g.op(op).operands.get(i).filter(|v| *self.g.ty(**v) != Type::None) else { return Ok(None) };
        let derived = || self.g.dims_value(*v)?.iter().map(of_ir::Dim::as_const).collect();
        let known = self.g.constant(*v).and_then(|t| t.to_i64s()).or_else(derived);
        known.map(Some).ok_or_else(|| format!("operand {i} is not known before the run"))
    }

    /// Element type and extents of result `i`.
    fn result(&self, op: OpId, i: usize) -> Result<Port, String> {
        tensor_of(self.g.ty(self.g.op(op).results[i]))
    }

    /// The op as its struct.
    fn attrs<T: OpSpec>(&self, op: OpId) -> Result<T, String> {
        of_ops::list::as_op::<T>(self.g, op).ok_or_else(|| "its attributes do not decode".to_string())
    }

    fn fresh(&mut self) -> String {
        self.next += 1;
        format!("%v{}", self.next - 1)
    }

    fn line(&mut self, text: &str) {
        let _ = writeln!(self.text, "    {text}");
    }

    /// The tensor that argument `i` of the kernel points to.
    fn argument(&mut self, i: usize, (dtype, dims): &Port) -> Result<Val, String> {
        let memory = pointer::argument(&mut self.text, &mut self.next, i, stored(*dtype)?, dims);
        let val = Val { name: self.fresh(), dtype: *dtype, dims: dims.clone() };
        let (shape, ty) = (shape_text(*dtype, dims), val.ty());
        self.line(&format!("{} = bufferization.to_tensor {memory} restrict : memref<{shape}> to {ty}", val.name));
        Ok(val)
    }

    /// Writes a result to where argument `i` of the kernel points.
    fn give(&mut self, i: usize, val: &Val) -> Result<(), String> {
        let memory = pointer::argument(&mut self.text, &mut self.next, i, stored(val.dtype)?, &val.dims);
        let (shape, ty) = (shape_text(val.dtype, &val.dims), val.ty());
        self.line(&format!(
            "bufferization.materialize_in_destination {} in restrict writable {memory} : ({ty}, memref<{shape}>) -> ()",
            val.name
        ));
        Ok(())
    }

    /// What the kernel gives back: 1 where a check failed.
    fn status(&mut self) -> String {
        let mut status = self.fresh();
        self.line(&format!("{status} = arith.constant 0 : i32"));
        for check in std::mem::take(&mut self.checks) {
            let element = self.fresh();
            self.line(&format!("{element} = tensor.extract {}[] : {}", check.name, check.ty()));
            let mut s = scalar::Scalars::new(&mut self.text, &mut self.next, None);
            let held = s.loaded(scalar::Item { name: element, dtype: DType::Bool });
            let (failed, own) = (s.number(DType::I32, 1.0), scalar::Item { name: status, dtype: DType::I32 });
            status = s.select(&held, &own, &failed).name;
        }
        status
    }
}
