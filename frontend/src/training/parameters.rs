//! Parameters: which constants of a model are parameters, and how they become variables.

use of_diag::Location;
use of_ir::{Attr, Graph, IdSet, Module, OpId, Tensor, Type, ValueId};
use of_ops::list::as_op;
use of_ops::nn::BatchNorm;
use of_ops::structural::Constant;

use crate::Builder;

/// A variable under construction.
pub(super) struct Variable {
    /// Its current value: an input.
    pub value: ValueId,
    /// Its next value; `None` where it stays.
    pub next: Option<ValueId>,
    /// Its first value: a tensor, or 0 for zeros.
    pub initial: Attr,
}

impl Variable {
    /// A variable of zeros.
    pub fn zeros(value: ValueId, next: ValueId) -> Variable {
        Variable { value, next: Some(next), initial: Attr::Int(0) }
    }
}

/// A named float constant of a model.
struct Named {
    name: String,
    op: OpId,
    value: Tensor,
}

/// The named float constants of rank 1 or more.
fn named_constants(g: &Graph) -> Vec<Named> {
    let mut out: Vec<Named> = Vec::new();
    for op in g.region_ops(g.entry()) {
        let Some(Constant { value }) = as_op::<Constant>(g, op) else { continue };
        let result = g.op(op).results[0];
        let given = match &g.op(op).loc {
            Location::Onnx { op, .. } => &**op == "Initializer",
            _ => true,
        };
        let Some(name) = g.name(result).filter(|_| given) else { continue };
        let float = value.dtype().is_float() && !value.dims().is_empty() && value.bytes().is_some();
        if float && !g.uses(result).is_empty() && !out.iter().any(|known| *known.name == **name) {
            out.push(Named { name: name.to_string(), op, value });
        }
    }
    out
}

/// The names of scalars of an ONNX model that look like parameters. A training keeps their values, as constants of the graph look alike.
pub fn scalar_parameters(module: &Module) -> Vec<String> {
    let Some(func) = module.main() else { return Vec::new() };
    let g = &func.graph;
    let mut out: Vec<String> = Vec::new();
    for op in g.region_ops(g.entry()) {
        let Some(Constant { value }) = as_op::<Constant>(g, op) else { continue };
        let result = g.op(op).results[0];
        let is_initializer = matches!(&g.op(op).loc, Location::Onnx { op, .. } if &**op == "Initializer");
        let is_scalar = value.dtype().is_float() && value.dims().is_empty() && !g.uses(result).is_empty();
        let Some(name) = g.name(result).filter(|_| is_initializer && is_scalar) else { continue };
        // Names that exporters of PyTorch give to constants of the graph.
        let is_constant = name.contains(['/', ':']) || name.starts_with("val_") || name.starts_with("scalar_tensor");
        if !is_constant && !out.iter().any(|known| **known == **name) {
            out.push(name.to_string());
        }
    }
    out
}

/// What ops read values as.
#[derive(Default)]
struct Readings {
    /// Values that a gradient may come back to: some op reads them as data, and its result is read so, too, or leaves the function.
    as_data: IdSet<ValueId>,
    /// Values that decide what an op reads as configuration ([`of_ops::Op::operands_without_gradient`]).
    as_configuration: IdSet<ValueId>,
}

impl Readings {
    /// From the last op to the first, so that readers come before what they read. `outputs` leave a function without a terminator.
    fn of(g: &Graph, outputs: &[ValueId]) -> Readings {
        let mut out = Readings { as_data: outputs.iter().copied().collect(), ..Readings::default() };
        for op in g.walk().into_iter().rev() {
            let data = g.op(op);
            let is_float = |v: ValueId| matches!(g.ty(v), Type::Tensor(t) if t.dtype.is_float());
            let is_tensor = |v: ValueId| matches!(g.ty(v), Type::Tensor(_));
            // Sequences and the like may hold floats.
            let passes = |v: &ValueId| if is_tensor(*v) { out.as_data.contains(v) && is_float(*v) } else { true };
            let is_structural = data.def.traits().terminator || data.def.traits().effect || !data.regions.is_empty();
            let reads_data = is_structural || data.results.iter().any(passes);
            let configures = data.results.iter().any(|v| out.as_configuration.contains(v));
            let without = of_ops::get(g, op).map_or(&[][..], |op| op.operands_without_gradient());
            for (i, v) in data.operands.iter().enumerate() {
                let is_configuration = without.contains(&i);
                if reads_data && !is_configuration {
                    out.as_data.insert(*v);
                }
                if is_float(*v) && (is_configuration || configures) {
                    out.as_configuration.insert(*v);
                }
            }
        }
        out
    }
}

/// The constants that are parameters: name, op, value. A constant that ops read as configuration alone, such as the scales of a
/// resize, or whose readers give no floats, as thresholds of comparisons, is none. `outputs` leave a function without a terminator.
pub(super) fn parameters(g: &Graph, outputs: &[ValueId]) -> Vec<(String, OpId, Tensor)> {
    let readings = Readings::of(g, outputs);
    let is_parameter = |named: &Named| readings.as_data.contains(&g.op(named.op).results[0]);
    named_constants(g).into_iter().filter(is_parameter).map(|named| (named.name, named.op, named.value)).collect()
}

/// The names of the float constants that are no variables of a training: those that are no parameters, and frozen ones that an op also
/// reads as configuration, whose gradient needs their value.
pub(super) fn fixed_constants(g: &Graph, outputs: &[ValueId], is_frozen: &dyn Fn(&str) -> bool) -> Vec<String> {
    let readings = Readings::of(g, outputs);
    let is_fixed = |named: &Named| {
        let v = g.op(named.op).results[0];
        !readings.as_data.contains(&v) || (readings.as_configuration.contains(&v) && is_frozen(&named.name))
    };
    named_constants(g).into_iter().filter(is_fixed).map(|named| named.name).collect()
}

/// Names of the parameters that are statistics of batch normalisations, which training does not differentiate.
pub(super) fn statistics(b: &Builder) -> Vec<String> {
    let g = b.graph();
    let norms = g.walk().into_iter().filter(|op| as_op::<BatchNorm>(g, *op).is_some());
    let of_norm = |op: OpId| g.op(op).operands[3..5].to_vec();
    norms.flat_map(of_norm).filter_map(|v| g.name(v).map(|name| name.to_string())).collect()
}

/// Makes inputs of parameters, but for those in `fixed`. `variable` gives the name of the input.
pub(super) fn parameter_inputs(
    b: &mut Builder,
    outputs: &[ValueId],
    fixed: &[String],
    variable: impl Fn(&str) -> String,
) -> Vec<(String, Variable, Tensor)> {
    let mut out = Vec::new();
    for (name, op, value) in parameters(b.graph(), outputs).into_iter().filter(|(name, ..)| !fixed.contains(name)) {
        let old = b.graph().op(op).results[0];
        let input = b.input(&variable(&name), b.ty(old).clone());
        b.replace_uses(old, input);
        out.push((name, Variable { value: input, next: None, initial: Attr::Tensor(value.clone()) }, value));
    }
    out
}
