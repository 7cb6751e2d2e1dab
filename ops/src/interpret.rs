//! The interpreter: evaluates a graph op by op, each by its reference evaluation.

use std::collections::HashMap;
use std::sync::Arc;

use of_diag::{Code, Diagnostic, Location};
use of_ir::{Dim, Graph, IdMap, OpError, OpId, OpView, RegionId, Rewriter, Tensor, Type, ValueId};

use crate::elementwise::broadcast_dims;
use crate::list::as_op;
use crate::structural::{Constant, NoneValue, Return};
use crate::time::{Accumulate, Pack, Unpack, pack, unpack};
use crate::{Evaluated, Inputs, Kind, Op, OpSpec, Value, decl, division, scalar_eval};

/// The results of an op for operands that may be others than the graph's.
pub type Evaluate<'a> = dyn FnMut(&[Value]) -> Result<Vec<Value>, Diagnostic> + 'a;

/// Wraps the evaluation of every op, in regions too. Arguments: the op, its operands, and a function that computes the
/// results for them. What a terminator returns are its operands.
pub type EvaluateHook<'a> = dyn Fn(OpId, &[Value], &mut Evaluate<'_>) -> Result<Vec<Value>, Diagnostic> + 'a;

/// The outputs of `graph` for the given inputs.
///
/// # Errors
/// When an op cannot be evaluated on its operands, with its location.
pub fn run_graph(graph: &Graph, inputs: &[Value]) -> Result<Vec<Value>, Diagnostic> {
    run_graph_with_hook(graph, inputs, &|_, operands, evaluate| evaluate(operands))
}

/// As [`run_graph`], calling `hook` for each evaluation, which may observe or change operands and results.
///
/// # Errors
/// As [`run_graph`], and any error of `hook`.
pub fn run_graph_with_hook(graph: &Graph, inputs: &[Value], hook: &EvaluateHook<'_>) -> Result<Vec<Value>, Diagnostic> {
    if inputs.len() != graph.args().len() {
        let what = format!("{} inputs were given, there are {}", inputs.len(), graph.args().len());
        return Err(Diagnostic::error(Code::INPUT, Location::Unknown, what));
    }
    let (values, left) = (IdMap::default(), IdMap::default());
    let microbatches = IdMap::default();
    let (symbols, extents) = Default::default();
    Frame { graph, hook, values, microbatches, left, symbols, extents }.region(graph.entry(), inputs)
}

struct Frame<'g> {
    graph: &'g Graph,
    hook: &'g EvaluateHook<'g>,
    values: IdMap<ValueId, Value>,
    /// For each value of a microbatch, that of every microbatch.
    microbatches: IdMap<ValueId, Vec<Value>>,
    /// Readers of each value of the outermost region that are still to come; the value is dropped after the last.
    left: IdMap<ValueId, usize>,
    /// The values of symbols, from the extents of computed values.
    symbols: HashMap<Arc<str>, i64>,
    /// The values of extents of computed values that determine no symbol, such as `n floordiv 3`.
    extents: HashMap<Dim, i64>,
}

impl Frame<'_> {
    fn region(&mut self, region: RegionId, args: &[Value]) -> Result<Vec<Value>, Diagnostic> {
        let g = self.graph;
        for (v, value) in g.region_args(region).iter().zip(args) {
            self.set(*v, value.clone());
        }
        for op in g.region_ops(region) {
            if g.op(op).def.traits().terminator {
                let operands = g.op(op).operands.iter().map(|v| self.value(*v)).collect::<Result<Vec<_>, _>>()?;
                return (self.hook)(op, &operands, &mut |operands| Ok(operands.to_vec()));
            }
            self.op(op)?;
        }
        Err(Diagnostic::error(Code::REGION, Location::Unknown, "a region has no terminator"))
    }

    fn value(&self, v: ValueId) -> Result<Value, Diagnostic> {
        let missing = || Diagnostic::error(Code::DOMINANCE, Location::Unknown, "a value is read before it is computed");
        self.values.get(&v).cloned().ok_or_else(missing)
    }

    fn set(&mut self, v: ValueId, value: Value) {
        let shape = self.graph.ty(v).as_tensor().and_then(|t| t.shape.as_ref());
        if let (Some(shape), Value::Tensor(t)) = (shape, &value) {
            for (d, n) in shape.iter().zip(t.dims()) {
                let rest = d.substitute(&|s| self.symbols.get(s).map(|n| Dim::from(*n)));
                match rest.solve(*n as i64) {
                    Some((symbol, Some(value))) => {
                        self.symbols.insert(symbol, value);
                    }
                    _ if rest.as_const().is_none() => {
                        self.extents.insert(d.clone(), *n as i64);
                    }
                    _ => {}
                }
            }
        }
        self.values.insert(v, value);
    }

    fn op(&mut self, op: OpId) -> Result<(), Diagnostic> {
        if self.is_of_microbatches(op) {
            return self.in_microbatches(op);
        }
        let operands = self.graph.op(op).operands.iter().map(|v| self.value(*v)).collect::<Result<Vec<_>, _>>()?;
        let results = (self.hook)(op, &operands, &mut |operands| self.evaluate(op, operands))?;
        self.keep(op, results)
    }

    fn is_of_microbatches(&self, op: OpId) -> bool {
        let data = self.graph.op(op);
        data.name() == Unpack::NAME || data.operands.iter().any(|v| self.microbatches.contains_key(v))
    }

    /// Evaluates an op in each microbatch ([`crate::time`]).
    fn in_microbatches(&mut self, op: OpId) -> Result<(), Diagnostic> {
        let g = self.graph;
        let data = g.op(op);
        let failed = |e: OpError| e.at(data.name(), &data.loc);
        let result = || data.results.first().copied().ok_or_else(|| failed(OpError::eval("it has no result")));
        if data.name() == Unpack::NAME {
            let slices = unpack(&self.value(data.operands[0])?).map_err(failed)?;
            self.microbatches.insert(result()?, slices);
            return Ok(());
        }
        let all = data.operands.first().and_then(|v| self.microbatches.get(v));
        let combined = match (data.name(), all) {
            (Pack::NAME, Some(all)) => Some(pack(all)),
            (Accumulate::NAME, Some(all)) => as_op::<Accumulate>(g, op).map(|own| own.combine(all)),
            _ => None,
        };
        if let Some(combined) = combined {
            let y = result()?;
            self.set(y, combined.map_err(failed)?);
            return Ok(());
        }
        let count = data.operands.iter().filter_map(|v| self.microbatches.get(v).map(Vec::len)).min().unwrap_or(0);
        let mut results: Vec<Vec<Value>> = vec![Vec::new(); data.results.len()];
        for t in 0..count {
            let own = |v: &ValueId| match self.microbatches.get(v) {
                Some(values) => Ok(values[t].clone()),
                None => self.value(*v),
            };
            let operands = data.operands.iter().map(own).collect::<Result<Vec<_>, _>>()?;
            let made = (self.hook)(op, &operands, &mut |operands| self.evaluate(op, operands))?;
            results.iter_mut().zip(made).for_each(|(all, value)| all.push(value));
        }
        self.microbatches.extend(data.results.iter().copied().zip(results));
        Ok(())
    }

    fn evaluate(&mut self, op: OpId, operands: &[Value]) -> Result<Vec<Value>, Diagnostic> {
        let g = self.graph;
        let data = g.op(op);
        // Control flow that computes nothing has results as declared: with the extents of this run.
        let number = |s: &str| self.symbols.get(s).map(|n| Dim::from(*n));
        let extent = |d: &Dim| {
            let own = d.substitute(&number);
            // An extent of an earlier iteration of a loop must not hide what the symbols say now.
            if own.as_const().is_some() { own } else { self.extents.get(d).map_or(own, |n| Dim::from(*n)) }
        };
        let declared = |v: &ValueId| g.ty(*v).map_dims(&mut |d| extent(d));
        let types: Vec<Type> = data.results.iter().map(declared).collect();
        let unknown =
            || Diagnostic::error(Code::UNKNOWN_OP, data.loc.clone(), format!("'{}' has no evaluation", data.name()));
        let decl = decl(data.name()).ok_or_else(unknown)?;
        // What is too large is refused before memory for it is asked for, which would end the process.
        for dims in types.iter().filter_map(|t| t.as_tensor()?.fixed_dims()).filter(|_| !data.operands.is_empty()) {
            crate::shape::count(&dims).map_err(|e| e.at(data.name(), &data.loc))?;
        }
        let imp = decl.decode(&data.attrs).map_err(|e| e.at(data.name(), &data.loc))?;
        if let Some(quotient) = self.guarded(op, &*imp, operands) {
            return quotient.map(|v| vec![v]).map_err(|e| e.at(data.name(), &data.loc));
        }
        let regions = data.regions.clone();
        let mut inner: Option<Diagnostic> = None;
        let result = {
            let mut run = |i: usize, args: &[Value]| -> Evaluated {
                let region = regions.get(i).ok_or_else(|| OpError::eval("the op has no such region"))?;
                self.region(*region, args).map_err(|d| {
                    let message = d.message.clone();
                    inner.get_or_insert(d);
                    OpError::eval(message)
                })
            };
            let mut inputs = Inputs { values: operands, types: &types, region: &mut run };
            match decl.kind() {
                Kind::Composite => match imp.eval(&mut inputs) {
                    Ok(v) => Ok(v),
                    Err(_) => return expanded(&data.loc, data.name(), &*imp, operands),
                },
                _ => imp.eval(&mut inputs),
            }
        };
        // The innermost op that failed has the best location.
        result.map_err(|e| inner.unwrap_or_else(|| e.at(data.name(), &data.loc)))
    }

    /// The result of a division of integers whose quotients by zero are not chosen ([`division`]); `None` for other ops.
    fn guarded(&self, op: OpId, imp: &dyn Op, operands: &[Value]) -> Option<Result<Value, OpError>> {
        let [Value::Tensor(a), Value::Tensor(b)] = operands else { return None };
        let scalar = imp.scalar().filter(|s| division::divides_integers(*s, b.dtype()))?;
        let quotient = || {
            let dims = broadcast_dims(&[a.dims(), b.dims()])?;
            Ok(scalar_eval::broadcast(scalar, &[a, b], &dims)?.into())
        };
        division::is_guarded(self.graph, op).then(quotient)
    }

    /// Stores results and drops operands without further readers.
    fn keep(&mut self, op: OpId, values: Vec<Value>) -> Result<(), Diagnostic> {
        let g = self.graph;
        let data = g.op(op);
        if values.len() < data.results.len() {
            let what = format!("'{}' gave {} results of {}", data.name(), values.len(), data.results.len());
            return Err(Diagnostic::error(Code::EVAL, data.loc.clone(), what));
        }
        for (v, value) in data.results.iter().zip(values) {
            self.set(*v, value);
        }
        if data.parent == g.entry() {
            for v in &data.operands {
                let left = self.left.entry(*v).or_insert_with(|| g.uses(*v).len());
                *left -= 1;
                if *left == 0 && g.def_op(*v).is_some() {
                    self.values.remove(v);
                }
            }
        }
        Ok(())
    }
}

/// Evaluates a composite without an evaluation rule by its expansion on constant operands.
fn expanded(loc: &Location, name: &str, op: &dyn crate::Op, operands: &[Value]) -> Result<Vec<Value>, Diagnostic> {
    let mut graph = Graph::new();
    let entry = graph.entry();
    let mut args = Vec::new();
    let mut rw = Rewriter::new(&mut graph, "evaluate");
    let mut values = Vec::new();
    for v in operands {
        let id = match v {
            // Small tensors may be shapes or axes, which the expansion must know.
            Value::Tensor(t) if t.len() <= 64 => rw.create_one(Constant { value: t.clone() }, &[])?,
            Value::None => rw.create_one(NoneValue {}, &[])?,
            other => {
                args.push(other.clone());
                rw.add_arg(entry, type_of(other), None)
            }
        };
        values.push(id);
    }
    // An expansion relies on what inference checks. Where ranks were unknown before the run, it has not checked these operands.
    let attrs = op.attrs();
    let cx = OpView { graph: rw.graph(), operands: &values, attrs: &attrs, regions: &[] };
    op.infer(&cx).map_err(|e| e.at(name, loc))?;
    let results = op.expand(&mut rw, &values).map_err(|d| {
        let mut d = d.or_at(loc);
        if !d.message.contains(name) {
            d.message = format!("'{name}': {}", d.message);
        }
        d
    })?;
    rw.create(Return {}, &results)?;
    debug_assert_eq!(Return::NAME, "of.return");
    run_graph(&graph, &args)
}

/// The type of a value.
pub fn type_of(v: &Value) -> Type {
    match v {
        Value::Tensor(t) => Type::Tensor(Tensor::ty(t)),
        Value::Sequence(list) => Type::Sequence(Box::new(list.first().map_or(Type::None, type_of))),
        Value::Optional(Some(v)) => Type::Optional(Box::new(type_of(v))),
        Value::Optional(None) => Type::Optional(Box::new(Type::None)),
        Value::None => Type::None,
    }
}
