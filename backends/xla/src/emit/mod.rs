//! StableHLO: a function as the text of an MLIR module that XLA compiles.
//!
//! Every op has a row in the table of its topic ([`of_emit`]).
//!
//! XLA clamps an index that is out of range; here it is an error. Ops that read through indices add a check, and the last
//! result of the module says whether all checks held.

mod build;
mod contraction;
mod control;
mod elementwise;
mod index;
mod lookup;
mod ml;
mod movement;
mod random;
mod reduction;
mod signal;
mod transfer;
mod window;

use std::ops::{Deref, DerefMut};

use of_codegen::expand::expanded;
use of_emit::{Function, Port, Print, Printer, Val, find, tensor_type};
use of_ir::{DType, Func, OpId, Tensor, Type, ValueDef};

pub use transfer::exchanges;

/// Ops of one topic by name, and how each is printed.
type Table = &'static [(&'static str, fn(&mut Emitter<'_>, OpId) -> Result<Vec<Val>, String>)];

/// A module as text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Module {
    /// MLIR in the dialects `func`, `stablehlo` and `chlo`.
    pub text: String,
    /// Element types and extents of the results.
    pub results: Vec<Port>,
    /// Whether there is one more result, an i1 of rank 0: whether every index was in range.
    pub checked: bool,
    /// The mesh of ranks that run it together, with 1 along axes that do not participate. Trailing axes of 1 are dropped:
    /// the mesh is empty for one device.
    pub mesh: Vec<usize>,
}

/// Prints the module of a function with fixed extents.
///
/// # Errors
/// The first op that cannot be printed, with the reason.
pub fn module(func: &Func) -> Result<Module, String> {
    let func = expanded(func, "stablehlo", |name| Emitter::row(name).is_some())?;
    let g = &func.graph;
    let mesh = transfer::mesh(g)?;
    let mut e = Emitter { function: Function::new(g, tensor_of, "%"), mesh };
    let mut args = Vec::new();
    for (i, v) in g.args().iter().enumerate() {
        let (dtype, dims) = tensor_of(g.ty(*v))?;
        let val = Val { name: format!("%arg{i}"), dtype, dims };
        args.push(val.clone());
        e.set(*v, val);
    }
    e.ops(g.entry())?;
    let mut results = g.outputs().iter().map(|v| e.value(*v)).collect::<Result<Vec<_>, _>>()?;
    let own = results.iter().map(|r| (r.dtype, r.dims.clone())).collect();
    let args = donated(&args, &results);
    let checked = !e.checks.is_empty();
    if checked {
        results.push(e.all_checks());
    }
    let names: Vec<&str> = results.iter().map(|r| r.name.as_str()).collect();
    let types: Vec<String> = results.iter().map(Typed::ty).collect();
    let (names, types) = (names.join(", "), types.join(", "));
    let end = if results.is_empty() { "return".to_string() } else { format!("return {names} : {types}") };
    let text = format!(
        "module @subgraph {{\n  func.func public @main({}) -> ({types}) {{\n{}    {end}\n  }}\n}}\n",
        args.join(", "),
        e.text.lines
    );
    Ok(Module { text, results: own, checked, mesh: e.mesh })
}

/// The arguments as text. A result reuses the memory of the first argument of its type that is not donated yet: only this
/// run reads its uploaded inputs. The caller says which arguments are not donated.
fn donated(args: &[Val], results: &[Val]) -> Vec<String> {
    let mut text: Vec<String> = args.iter().map(|a| format!("{}: {}", a.name, a.ty())).collect();
    let mut taken = vec![false; args.len()];
    for (i, r) in results.iter().enumerate() {
        let free = |(at, a): (usize, &Val)| !taken[at] && (a.dtype, &a.dims) == (r.dtype, &r.dims);
        if let Some(at) = args.iter().enumerate().position(free) {
            taken[at] = true;
            text[at] += &format!(" {{tf.aliasing_output = {i} : i32}}");
        }
    }
    text
}

/// Element type and extents of a value that XLA supports.
fn tensor_of(ty: &Type) -> Result<Port, String> {
    let Type::Tensor(t) = ty else { return Err(format!("XLA has no values of type {ty}")) };
    match t.dtype {
        DType::String => return Err("XLA has no strings".into()),
        d if d.is_packed() => return Err(format!("elements of {d} are packed in plans and unpacked in XLA's buffers")),
        d if d.is_float() && d.bits() == Some(8) => return Err(format!("XLA rounds {d} differently")),
        _ => {}
    }
    let dims = t.fixed_dims().ok_or("its extents are not all numbers: XLA compiles for fixed shapes")?;
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
    tensor_type(dtype.mlir_name(), dims)
}

/// Prints one function.
struct Emitter<'g> {
    function: Function<'g>,
    /// See [`Module::mesh`].
    mesh: Vec<usize>,
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
    const DIALECT: &'static str = "StableHLO";

    fn row(name: &str) -> Option<Print<Self>> {
        let tables = [
            elementwise::TABLE,
            contraction::TABLE,
            window::TABLE,
            movement::TABLE,
            random::TABLE,
            signal::TABLE,
            index::TABLE,
            lookup::TABLE,
            ml::TABLE,
            reduction::TABLE,
            transfer::TABLE,
            control::TABLE,
        ];
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
    /// Operand `i`, behind an optimization barrier, so that all readers get the same value.
    ///
    /// XLA may compute a value once for each reader, with sums in a different order each time. A softmax subtracts the
    /// maximum of values. For large values the difference of two roundings is large, and its exponential is infinite.
    fn computed_once(&mut self, op: OpId, i: usize) -> Result<Val, String> {
        let x = self.operand(op, i)?;
        let v = self.g.op(op).operands[i];
        // A captured value is an operand of the region's op in XLA, and readers outside cannot see a barrier inside.
        let home = match self.g.def(v) {
            ValueDef::Result(by, _) => self.g.op(by).parent,
            ValueDef::Arg(region, _) => region,
        };
        let captured = home != self.g.op(op).parent;
        if !x.dtype.is_float() || captured || self.g.uses(v).len() < 2 || self.g.constant(v).is_some() {
            return Ok(x);
        }
        let held = self.emit("stablehlo.optimization_barrier", &[&x], "", x.dtype, &x.dims);
        self.set(v, held.clone());
        Ok(held)
    }

    /// Whether every check of the region passed.
    fn all_checks(&mut self) -> Val {
        let checks = std::mem::take(&mut self.checks);
        let mut all = self.truth(true);
        for c in &checks {
            all = self.binary("and", &all, c);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_reuses_one_argument_of_its_type() {
        let val = |name: &str, dims: &[usize]| Val { name: name.into(), dtype: DType::F32, dims: dims.to_vec() };
        let args = [val("%arg0", &[2]), val("%arg1", &[3]), val("%arg2", &[3])];
        let text = donated(&args, &[val("%0", &[3]), val("%1", &[3]), val("%2", &[3])]);
        let with = |i: usize| format!("tensor<3xf32> {{tf.aliasing_output = {i} : i32}}");
        assert_eq!(text, ["%arg0: tensor<2xf32>".into(), format!("%arg1: {}", with(0)), format!("%arg2: {}", with(1))]);
    }
}
