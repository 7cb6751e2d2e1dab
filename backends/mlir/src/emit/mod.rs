//! MLIR: a function as the text of a kernel, linalg on tensors.
//!
//! Every op has a row in the table of its topic ([`of_emit`]).
//!
//! The function in the text has the signature of kernels in plans: `i32 kernel(args, begin, end, scratch)`, inputs before
//! outputs. It returns 0, or 1 if an index is out of range. It builds tensors from its argument pointers and stores its
//! results through them.

pub mod arith;
mod build;
mod contraction;
mod elementwise;
mod math;
mod movement;
pub mod pointer;
mod reduction;
mod scalar;
pub mod schedule;
mod window;

use std::collections::BTreeSet;
use std::ops::{Deref, DerefMut};

use of_codegen::Isa;
use of_codegen::expand::expanded;
use of_emit::{Function, Port, Print, Printer, Val, find, shaped, tensor_type};
use of_ir::{DType, Func, OpId, Tensor, Type};

use arith::stored;
use schedule::Tile;

/// Ops of one topic by name, and how each is printed.
type Table = &'static [(&'static str, fn(&mut Emitter<'_>, OpId) -> Result<Vec<Val>, String>)];

/// A kernel as text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Module {
    /// MLIR in the dialects `func`, `linalg`, `tensor`, `arith`, `math`, `bufferization` and `llvm`.
    pub text: String,
    /// Types of the inputs.
    pub inputs: Vec<Port>,
    /// Types of the outputs.
    pub outputs: Vec<Port>,
}

/// Prints the kernel of a function with fixed extents.
///
/// # Errors
/// The first op that cannot be printed, with the reason.
pub fn module(func: &Func, isa: &Isa) -> Result<Module, String> {
    let func = expanded(func, "mlir", |name| Emitter::row(name).is_some())?;
    let g = &func.graph;
    let mut e = Emitter { function: Function::new(g, tensor_of, "%v"), isa, tiles: BTreeSet::new() };
    let mut inputs = Vec::new();
    for v in g.args() {
        let port = tensor_of(g.ty(*v))?;
        let val = e.argument(inputs.len(), &port)?;
        e.set(*v, val);
        inputs.push(port);
    }
    e.ops(g.entry())?;
    let mut outputs = Vec::new();
    for v in g.outputs() {
        let val = e.value(*v)?;
        e.give(inputs.len() + outputs.len(), &val)?;
        outputs.push((val.dtype, val.dims));
    }
    let status = e.status();
    Ok(Module { text: kernel(&e.text.lines, &status, &e.tiles, isa)?, inputs, outputs })
}

/// The module whose kernel has these statements and returns the i32 `status`, with products in `tiles`.
///
/// # Errors
/// When `isa` is not supported.
pub fn kernel(statements: &str, status: &str, tiles: &BTreeSet<Tile>, isa: &Isa) -> Result<String, String> {
    let (target, script) = (attributes(isa)?, schedule::script(tiles));
    Ok(format!(
        "module attributes {{transform.with_named_sequence}} {{\n  func.func @kernel(%args: !llvm.ptr, %begin: i64, %end: i64, %scratch: !llvm.ptr) -> i32 \
         attributes {{passthrough = [\"no-builtins\", {target}]}} {{\n{statements}    return {status} : i32\n  }}\n{script}}}\n"
    ))
}

/// The function attributes for LLVM. Without `no-builtins`, LLVM would turn loops into calls of `memcpy`.
fn attributes(isa: &Isa) -> Result<String, String> {
    let width =
        |bits: usize| format!("[\"prefer-vector-width\", \"{bits}\"], [\"min-legal-vector-width\", \"{bits}\"]");
    let features: Vec<String> = isa.features.iter().map(|f| format!("+{f}")).collect();
    let features = format!("[\"target-features\", \"{}\"]", features.join(","));
    match (isa.arch, isa.lanes) {
        ("x86_64", lanes @ (8 | 16)) => Ok(format!("{features}, {}", width(32 * lanes))),
        ("aarch64", _) => Ok(features),
        _ => Err(format!("{} is not supported: rounding needs instructions of AVX2", isa.name)),
    }
}

/// Element type and extents of a value, if its type is supported.
fn tensor_of(ty: &Type) -> Result<Port, String> {
    let Type::Tensor(t) = ty else { return Err(format!("values of type {ty} are not supported")) };
    stored(t.dtype)?;
    let dims = t.fixed_dims().ok_or("its extents are not all numbers: MLIR compiles for fixed shapes")?;
    if dims.contains(&0) {
        return Err("it has no elements: empty tensors are not supported".into());
    }
    Ok((t.dtype, dims))
}

/// A value with its type as text.
trait Typed {
    /// `tensor<2x3xf32>`.
    fn ty(&self) -> String;
}

impl Typed for Val {
    fn ty(&self) -> String {
        type_text(self.dtype, &self.dims)
    }
}

fn type_text(dtype: DType, dims: &[usize]) -> String {
    tensor_type(stored(dtype).unwrap_or("none"), dims)
}

/// `2x3xf32`.
fn shape_text(dtype: DType, dims: &[usize]) -> String {
    shaped(stored(dtype).unwrap_or("none"), dims)
}

/// Prints one function.
struct Emitter<'g> {
    function: Function<'g>,
    isa: &'g Isa,
    /// The schedule of its products.
    tiles: BTreeSet<Tile>,
}

impl<'g> Deref for Emitter<'g> {
    type Target = Function<'g>;

    fn deref(&self) -> &Function<'g> {
        &self.function
    }
}

impl<'g> DerefMut for Emitter<'g> {
    fn deref_mut(&mut self) -> &mut Function<'g> {
        &mut self.function
    }
}

impl<'g> Printer<'g> for Emitter<'g> {
    const DIALECT: &'static str = "linalg";

    fn row(name: &str) -> Option<Print<Self>> {
        let tables = [elementwise::TABLE, contraction::TABLE, window::TABLE, movement::TABLE, reduction::TABLE];
        find(&tables, name).map(|print| print as Print<Self>)
    }

    fn elementwise() -> Print<Self> {
        elementwise::print
    }

    fn literal(&mut self, value: &Tensor) -> Result<Val, String> {
        self.constant(value)
    }

    fn type_text(dtype: DType, dims: &[usize]) -> String {
        type_text(dtype, dims)
    }
}

impl Emitter<'_> {
    /// The tensor that argument `i` of the kernel points to.
    fn argument(&mut self, i: usize, (dtype, dims): &Port) -> Result<Val, String> {
        let memory = pointer::argument(&mut self.text, i, stored(*dtype)?, dims);
        let val = Val { name: self.fresh(), dtype: *dtype, dims: dims.clone() };
        let (shape, ty) = (shape_text(*dtype, dims), val.ty());
        self.line(&format!("{} = bufferization.to_tensor {memory} restrict : memref<{shape}> to {ty}", val.name));
        Ok(val)
    }

    /// Stores a result to the memory of kernel argument `i`.
    fn give(&mut self, i: usize, val: &Val) -> Result<(), String> {
        let memory = pointer::argument(&mut self.text, i, stored(val.dtype)?, &val.dims);
        let (shape, ty) = (shape_text(val.dtype, &val.dims), val.ty());
        self.line(&format!(
            "bufferization.materialize_in_destination {} in restrict writable {memory} : ({ty}, memref<{shape}>) -> ()",
            val.name
        ));
        Ok(())
    }

    /// The return value of the kernel: 1 if a check failed.
    fn status(&mut self) -> String {
        let mut status = self.fresh();
        self.line(&format!("{status} = arith.constant 0 : i32"));
        for check in std::mem::take(&mut self.checks) {
            let element = self.fresh();
            self.line(&format!("{element} = tensor.extract {}[] : {}", check.name, check.ty()));
            let mut s = arith::Scalars::new(&mut self.text, None);
            let held = s.loaded(arith::Item { name: element, dtype: DType::Bool });
            let (failed, own) = (s.number(DType::I32, 1.0), arith::Item { name: status, dtype: DType::I32 });
            status = s.select(&held, &own, &failed).name;
        }
        status
    }
}
