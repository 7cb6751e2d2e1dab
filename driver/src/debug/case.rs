//! Cases: parts of a model as functions of their own, with the values that they must compute.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};

use of_codegen::extract::extract_with;
use of_diag::{Code, Diagnostic, Location};
use of_ir::{Func, Graph, IdMap, OpId, Type, ValueId};
use of_ops::Value;
use of_ops::interpret::{run_graph_with_hook, type_of};
use of_passes::specialize::{Bindings, bind_input, specialize};

/// Values of the outermost region of a graph.
pub(super) type Values = IdMap<ValueId, Value>;

/// A part of a model as a function, with its inputs and the outputs that are right for them.
#[derive(Clone, Debug)]
pub struct Case {
    /// The function. Constants are part of it.
    pub func: Func,
    /// A value for each input.
    pub inputs: Vec<Value>,
    /// The value that each output must have.
    pub expected: Vec<Value>,
}

impl Case {
    /// The ops of one region as a case; `None` where nothing reads their results, or a value that they read is unknown.
    pub(super) fn of(graph: &Graph, ops: &[OpId], values: &Values) -> Option<Case> {
        let extracted = extract_with(graph, ops, usize::MAX);
        let all = |list: &[ValueId]| list.iter().map(|v| values.get(v).cloned()).collect::<Option<Vec<_>>>();
        let (inputs, expected) = (all(&extracted.inputs)?, all(&extracted.outputs)?);
        let mut func = extracted.func;
        let mut taken = HashSet::default();
        func.inputs = names(graph, &extracted.inputs, "in", &mut taken);
        func.outputs = names(graph, &extracted.outputs, "out", &mut taken);
        func.loc = ops.first().map_or(Location::Unknown, |op| graph.op(*op).loc.clone());
        (!expected.is_empty()).then_some(Case { func, inputs, expected })
    }

    /// The same with the extents of its inputs instead of symbols; unchanged where they contradict its types.
    pub(super) fn specialized(self) -> Case {
        let mut bindings = Bindings::new();
        let bind = |(name, value): (&String, &Value)| match value {
            Value::Tensor(t) => bind_input(&self.func, name, t.dims(), &mut bindings).is_ok(),
            _ => true,
        };
        let bound = self.func.inputs.iter().zip(&self.inputs).all(bind);
        let mut func = self.func.clone();
        if bound && specialize(&mut func, &bindings).is_ok() { Case { func, ..self } } else { self }
    }

    /// Ops other than constants and the terminator.
    pub(super) fn ops(&self) -> Vec<OpId> {
        computing(&self.func.graph)
    }
}

/// The names of values in the model; a value without a name gets a number.
fn names(graph: &Graph, values: &[ValueId], prefix: &str, taken: &mut HashSet<String>) -> Vec<String> {
    let one = |(i, v): (usize, &ValueId)| {
        let mut name = graph.name(*v).map_or_else(|| format!("{prefix}{i}"), ToString::to_string);
        while !taken.insert(name.clone()) {
            name.push('_');
        }
        name
    };
    values.iter().enumerate().map(one).collect()
}

/// The ops of the outermost region that compute something, in execution order.
pub(super) fn computing(graph: &Graph) -> Vec<OpId> {
    let computes = |op: &OpId| {
        let data = graph.op(*op);
        let nothing = data.results.iter().all(|v| *graph.ty(*v) == Type::None);
        !data.def.traits().terminator && !data.def.traits().constant && !nothing
    };
    graph.region_ops(graph.entry()).filter(computes).collect()
}

/// Every value of the outermost region: as `known` has it by name, otherwise as the interpreter computes it.
///
/// # Errors
/// When an op cannot be evaluated, or a known value has another type than inference says.
pub(super) fn evaluate(graph: &Graph, inputs: &[Value], known: &HashMap<String, Value>) -> Result<Values, Diagnostic> {
    let values: RefCell<Values> = RefCell::new(graph.args().iter().copied().zip(inputs.iter().cloned()).collect());
    run_graph_with_hook(graph, inputs, &|op, operands, evaluate| {
        let data = graph.op(op);
        if data.parent != graph.entry() || data.def.traits().terminator {
            return evaluate(operands);
        }
        let observed = |v: &ValueId| graph.name(*v).and_then(|n| known.get(&**n)).cloned();
        let observed: Vec<Option<Value>> = data.results.iter().map(observed).collect();
        let results = if !observed.is_empty() && observed.iter().all(Option::is_some) {
            observed.into_iter().flatten().collect()
        } else {
            let computed = evaluate(operands)?;
            computed.into_iter().zip(observed).map(|(own, other)| other.unwrap_or(own)).collect::<Vec<_>>()
        };
        for (v, value) in data.results.iter().zip(&results) {
            let (own, ty) = (type_of(value), graph.ty(*v));
            if matches!(value, Value::Tensor(_)) && !own.compatible(ty) {
                let what = format!("'{}' is {own} in the other runtime, inference says {ty}", data.name());
                return Err(Diagnostic::error(Code::RUN, data.loc.clone(), what));
            }
        }
        values.borrow_mut().extend(data.results.iter().copied().zip(results.iter().cloned()));
        Ok(results)
    })?;
    Ok(values.into_inner())
}
