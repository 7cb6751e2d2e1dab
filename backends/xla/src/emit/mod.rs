//! StableHLO: a function as the text of an MLIR module that XLA compiles.
//!
//! Every op has a row in the table of its topic: a function that prints it, or says why it cannot be printed. An op is
//! claimed when its text can be written, so that claims and text never differ. Composites are expanded first.
//!
//! XLA clamps an index that is out of range; here that is an error. What reads through indices adds a check, and the
//! last result of the module says whether all of them held.

mod build;
mod contraction;
mod control;
mod elementwise;
mod index;
mod movement;
mod reduction;
mod window;

use std::collections::HashMap;
use std::fmt::Write;

use of_codegen::expand::expanded;
use of_ir::{DType, Func, Graph, OpId, RegionId, Tensor, Type, ValueId};
use of_ops::OpSpec;
use of_ops::structural::{Constant, NoneValue};

/// Prints the op and gives its results, or says in one sentence why not.
type Print = fn(&mut Emitter<'_>, OpId) -> Result<Vec<Val>, String>;

/// Rows of op names.
type Table = &'static [(&'static str, Print)];

/// A module as text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Module {
    /// MLIR in the dialects `func`, `stablehlo` and `chlo`.
    pub text: String,
    /// Element types and extents of the results.
    pub results: Vec<(DType, Vec<usize>)>,
    /// Whether there is one more result, an i1 of rank 0: whether every index was in range.
    pub checked: bool,
}

/// The module of a function whose extents are all numbers.
///
/// # Errors
/// The first op that cannot be printed, with the reason.
pub fn module(func: &Func) -> Result<Module, String> {
    let func = expanded(func, "stablehlo", |name| row(name).is_some())?;
    let g = &func.graph;
    let mut e = Emitter { g, text: String::new(), next: 0, values: HashMap::new(), checks: Vec::new() };
    let mut args = Vec::new();
    for (i, v) in g.args().iter().enumerate() {
        let (dtype, dims) = tensor_of(g.ty(*v))?;
        let val = Val { name: format!("%arg{i}"), dtype, dims };
        args.push(val.clone());
        e.values.insert(*v, val);
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
    let types: Vec<String> = results.iter().map(Val::ty).collect();
    let (names, types) = (names.join(", "), types.join(", "));
    let end = if results.is_empty() { "return".to_string() } else { format!("return {names} : {types}") };
    let text = format!(
        "module @subgraph {{\n  func.func public @main({}) -> ({types}) {{\n{}    {end}\n  }}\n}}\n",
        args.join(", "),
        e.text
    );
    Ok(Module { text, results: own, checked })
}

/// The arguments as text. A result takes over the memory of the first one of its type that none before takes: nobody else
/// reads what is brought to the device for a run. Whoever calls says which arguments stay.
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

/// The row of an op.
fn row(name: &str) -> Option<Print> {
    let tables = [
        elementwise::TABLE,
        contraction::TABLE,
        window::TABLE,
        movement::TABLE,
        index::TABLE,
        reduction::TABLE,
        control::TABLE,
    ];
    tables.iter().flat_map(|t| t.iter()).find(|(n, _)| *n == name).map(|(_, f)| *f)
}

/// Element type and extents of a value that XLA can hold.
fn tensor_of(ty: &Type) -> Result<(DType, Vec<usize>), String> {
    let Type::Tensor(t) = ty else { return Err(format!("XLA has no values of type {ty}")) };
    match t.dtype {
        DType::String => return Err("XLA has no text".into()),
        d if d.is_packed() => return Err(format!("elements of {d} are packed here and not in XLA's buffers")),
        d if d.is_float() && d.bits() == Some(8) => return Err(format!("XLA rounds {d} by rules of its own")),
        _ => {}
    }
    let dims = t.fixed_dims().ok_or("its extents are not all numbers: XLA compiles for fixed shapes")?;
    Ok((t.dtype, dims))
}

/// An SSA value of the text.
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
    let dims: String = dims.iter().map(|d| format!("{d}x")).collect();
    format!("tensor<{dims}{}>", dtype.mlir_name())
}

/// Prints one function.
struct Emitter<'g> {
    g: &'g Graph,
    text: String,
    next: usize,
    values: HashMap<ValueId, Val>,
    /// i1 of rank 0, one for each use of indices in the region that is printed: whether they are in range.
    checks: Vec<Val>,
}

impl<'g> Emitter<'g> {
    /// Prints the ops of a region, but for its terminator.
    fn ops(&mut self, region: RegionId) -> Result<(), String> {
        let ops: Vec<OpId> = self.g.region_ops(region).collect();
        for op in ops {
            if self.g.op(op).def.traits().terminator {
                break;
            }
            self.op(op)?;
        }
        Ok(())
    }

    fn op(&mut self, op: OpId) -> Result<(), String> {
        let data = self.g.op(op);
        let name = data.name();
        let results = match name {
            NoneValue::NAME => return Ok(()),
            Constant::NAME => match self.g.constant(data.results[0]) {
                // One that XLA cannot hold may be an attribute of sorts, which nothing reads as a value.
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
                        None => row(name).ok_or_else(|| format!("'{name}' has no form in StableHLO here"))?,
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

    /// Operand `i`, which all later readers see as this one does.
    ///
    /// XLA may compute a value once for each reader, and sums in another order each time. A softmax subtracts the maximum from
    /// the values that it is the maximum of: where these are large, the difference of two roundings is, and its exponential
    /// is infinite.
    fn computed_once(&mut self, op: OpId, i: usize) -> Result<Val, String> {
        let x = self.operand(op, i)?;
        let v = self.g.op(op).operands[i];
        if !x.dtype.is_float() || self.g.uses(v).len() < 2 || self.g.constant(v).is_some() {
            return Ok(x);
        }
        let held = self.emit("stablehlo.optimization_barrier", &[&x], "", x.dtype, &x.dims);
        self.values.insert(v, held.clone());
        Ok(held)
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
    fn result(&self, op: OpId, i: usize) -> Result<(DType, Vec<usize>), String> {
        tensor_of(self.g.ty(self.g.op(op).results[i]))
    }

    /// The op as its struct.
    fn attrs<T: OpSpec>(&self, op: OpId) -> Result<T, String> {
        of_ops::list::as_op::<T>(self.g, op).ok_or_else(|| "its attributes do not decode".to_string())
    }

    fn fresh(&mut self) -> String {
        self.next += 1;
        format!("%{}", self.next - 1)
    }

    fn line(&mut self, text: &str) {
        let _ = writeln!(self.text, "    {text}");
    }

    /// Whether every check of the region held.
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
    fn a_result_takes_over_one_argument_of_its_type() {
        let val = |name: &str, dims: &[usize]| Val { name: name.into(), dtype: DType::F32, dims: dims.to_vec() };
        let args = [val("%arg0", &[2]), val("%arg1", &[3]), val("%arg2", &[3])];
        let text = donated(&args, &[val("%0", &[3]), val("%1", &[3]), val("%2", &[3])]);
        let with = |i: usize| format!("tensor<3xf32> {{tf.aliasing_output = {i} : i32}}");
        assert_eq!(text, ["%arg0: tensor<2xf32>".into(), format!("%arg1: {}", with(0)), format!("%arg2: {}", with(1))]);
    }
}
