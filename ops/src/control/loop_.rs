//! `of.loop`.

use std::cell::OnceCell;
use std::collections::HashSet;
use std::sync::Arc;

use of_ir::{DType, Dim, OpError, OpView, Tensor, TensorType, Type};

use super::join::join;
use super::{check_condition, region, region_error, truth, yields};
use crate::{Evaluated, Inferred, Inputs, Op, Value, op, op_basics, shape};

op! {
    /// Repeats its region while the condition holds, at most `max_trip` times.
    ///
    /// The region gets the iteration number, the condition and the carried values; it yields the next condition, the next
    /// carried values, and scan outputs, which are stacked along a new first axis. The results are the last carried
    /// values and the stacks. Without `max_trip` or `condition` that bound is not there.
    pub struct Loop = "of.loop" [Structural, onnx: "Loop"] {
        operands: (max_trip?, condition?, carried*),
        results: (ys*),
        regions: 1,
        attrs: {},
    }
    samples: |_seed| None;
}

/// A loop that runs longer has no bound.
const MAX_ITERATIONS: i64 = 1 << 40;

impl Op for Loop {
    op_basics!(Loop);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        if cx.operand(0).is_some() && !cx.tensor(0)?.dtype.is_int() {
            return Err(OpError::ty("the number of iterations must be an integer"));
        }
        if cx.operand(1).is_some() {
            check_condition(cx.tensor(1)?)?;
        }
        let body = region(cx, 0)?;
        let carried: Vec<Type> = cx.operands.iter().skip(2).map(|v| cx.graph.ty(*v).clone()).collect();
        let args = cx.graph.region_args(body);
        if args.len() != carried.len() + 2 {
            let message = format!(
                "the region has {} arguments, it must have {}: iteration, condition, carried",
                args.len(),
                carried.len() + 2
            );
            return Err(region_error(message));
        }
        let out = yields(cx, 0)?;
        let Some((condition, rest)) = out.split_first().filter(|(_, r)| r.len() >= carried.len()) else {
            return Err(region_error(format!(
                "the region must yield a condition and {} carried values",
                carried.len()
            )));
        };
        match condition {
            Type::Tensor(t) => check_condition(t)?,
            other => return Err(OpError::ty(format!("the region's condition is {other}"))),
        }
        let (next, scans) = rest.split_at(carried.len());
        let mut results = Vec::new();
        for (i, (first, next)) in carried.iter().zip(next).enumerate() {
            let arg = cx.graph.ty(args[i + 2]);
            if !first.compatible(arg) && join(first, arg).is_err() {
                return Err(OpError::ty(format!("carried value {i} is {first}, the region takes {arg}")));
            }
            // Without an iteration the first value is the result, otherwise one that the region yields.
            results.push(join(first, next)?);
        }
        let trips = self.trips(cx);
        let outer = Outer::new(cx);
        for (i, s) in scans.iter().enumerate() {
            let Type::Tensor(t) = s else {
                return Err(OpError::ty(format!("scan output {i} is {s}, it must be a tensor")));
            };
            // What is inside the region cannot be named outside it, unless it is a number.
            let stacked = t.shape.as_ref().map(|s| {
                let inner = s.iter().map(|d| outer.dim(d));
                std::iter::once(trips.clone()).chain(inner).collect()
            });
            results.push(Type::Tensor(TensorType { dtype: t.dtype, shape: stacked, sbp: None }));
        }
        Ok(results)
    }

    fn eval(&self, inputs: &mut Inputs<'_>) -> Evaluated {
        let limit = match inputs.opt_tensor(0) {
            Some(_) => {
                inputs.ints(0)?.first().copied().ok_or_else(|| OpError::eval("the number of iterations is empty"))?
            }
            None => i64::MAX,
        };
        let mut condition = match inputs.values.get(1) {
            None | Some(Value::None) => true,
            Some(v) => truth(v)?,
        };
        let mut carried = inputs.values.get(2..).unwrap_or_default().to_vec();
        let mut stacks: Vec<Vec<Value>> = Vec::new();
        let mut i = 0;
        while condition && i < limit {
            if i >= MAX_ITERATIONS {
                return Err(OpError::eval("the loop does not end"));
            }
            let mut args = vec![Tensor::scalar(i).into(), bool_value(condition)?];
            args.extend(carried.iter().cloned());
            let out = (inputs.region)(0, &args)?;
            let Some((next, rest)) = out.split_first().filter(|(_, r)| r.len() >= carried.len()) else {
                return Err(OpError::eval("the region yields too few values"));
            };
            condition = truth(next)?;
            let (next, scans) = rest.split_at(carried.len());
            carried = next.to_vec();
            stacks.resize(scans.len(), Vec::new());
            stacks.iter_mut().zip(scans).for_each(|(s, v)| s.push(v.clone()));
            i += 1;
        }
        let n = carried.len();
        let mut out = carried;
        if stacks.is_empty() {
            // Nothing ran: the stacks are empty, their other dimensions as declared.
            for t in inputs.types.get(n..).unwrap_or_default() {
                out.push(empty(t, 0)?.into());
            }
        }
        for s in stacks {
            out.push(stack(&s)?.into());
        }
        Ok(out)
    }
}

impl Loop {
    /// Number of iterations, where nothing but `max_trip` ends the loop.
    fn trips(&self, cx: &OpView<'_>) -> Dim {
        let stays = || -> Option<bool> {
            let body = cx.regions.first()?;
            let next = *cx.graph.yields(*body).first()?;
            let passed_on = cx.graph.region_args(*body).get(1) == Some(&next);
            let is_true = |t: Tensor| t.to_i64s().is_some_and(|v| v == [1]);
            let always = passed_on || is_true(cx.graph.constant(next)?);
            let at_first = match cx.operand(1) {
                None => true,
                Some(v) => cx.graph.constant(v).is_some_and(is_true),
            };
            Some(always && at_first)
        };
        let limit = cx.dims(0).and_then(|d| d.into_iter().next());
        match limit {
            Some(n) if cx.operand(0).is_some() && stays() == Some(true) => match n.as_const() {
                Some(c) => c.max(0).into(),
                None => n,
            },
            _ => Dim::unknown(),
        }
    }
}

/// Dimensions as they can be named outside of the regions of an op.
pub(super) struct Outer<'a> {
    cx: &'a OpView<'a>,
    /// The symbols that are defined outside: by the types of operands, of the function's arguments, and of values from outside
    /// that the regions read.
    symbols: OnceCell<HashSet<Arc<str>>>,
}

impl<'a> Outer<'a> {
    pub fn new(cx: &'a OpView<'a>) -> Self {
        Outer { cx, symbols: OnceCell::new() }
    }

    /// `d`, or an unknown dimension where a symbol of it is known in a region only.
    pub fn dim(&self, d: &Dim) -> Dim {
        let inside = |s: &Arc<str>| !self.symbols.get_or_init(|| self.defined()).contains(s);
        if d.symbols().iter().any(inside) { Dim::unknown() } else { d.clone() }
    }

    fn defined(&self) -> HashSet<Arc<str>> {
        let g = self.cx.graph;
        let captured = self.cx.regions.iter().flat_map(|r| g.read_from_outside(*r));
        let mut seen = HashSet::new();
        for v in self.cx.operands.iter().chain(g.args()).copied().chain(captured) {
            g.ty(v).map_dims(&mut |d| {
                seen.extend(d.symbols());
                d.clone()
            });
        }
        seen
    }
}

/// A bool of rank 0.
pub(super) fn bool_value(b: bool) -> Result<Value, OpError> {
    Ok(Tensor::from_elements(DType::Bool, Vec::new(), of_ir::Elements::Int(vec![i128::from(b)]))?.into())
}

/// No elements, `axis` being the one along which none was stacked.
pub(super) fn empty(t: &Type, axis: i64) -> Result<Tensor, OpError> {
    let Type::Tensor(t) = t else { return Err(OpError::eval("a scan output must be a tensor")) };
    let number = |d: &Dim| d.as_const().and_then(|n| usize::try_from(n).ok()).unwrap_or(0);
    let mut dims: Vec<usize> = t.shape.as_ref().map_or_else(|| vec![0], |s| s.iter().map(number).collect());
    if t.shape.is_some() {
        let stacked = shape::axis(axis, dims.len())?;
        dims[stacked] = 0;
    }
    crate::movement::cells::Cells::zeros(t.dtype, 0)?.into_tensor(t.dtype, dims)
}

/// Tensors of one shape along a new first axis.
pub(super) fn stack(list: &[Value]) -> Result<Tensor, OpError> {
    let rows = list.iter().map(|v| match v {
        Value::Tensor(t) => Ok(t.reshaped([&[1], t.dims()].concat())?),
        _ => Err(OpError::eval("a scan output must be a tensor")),
    });
    let rows = rows.collect::<Result<Vec<_>, OpError>>()?;
    shape::count(&[rows.len()])?;
    crate::movement::concat(&rows.iter().collect::<Vec<_>>(), 0)
}

#[cfg(test)]
mod tests {
    use of_ir::{Graph, Rewriter, ValueId};

    use super::*;
    use crate::elementwise::{Add, Lt};
    use crate::interpret::run_graph;
    use crate::structural::{Constant, NoneValue, Return, Yield};

    /// `x += 2` while `x < 7`, scanning `x`.
    fn count_up(limit: Option<i64>) -> (Vec<Value>, Vec<Type>) {
        let mut g = Graph::new();
        let entry = g.entry();
        let mut rw = Rewriter::new(&mut g, "test");
        let x = rw.add_arg(entry, Type::fixed(DType::I64, &[]), None);
        let body = rw.new_region();
        rw.at_end(body);
        rw.add_arg(body, Type::fixed(DType::I64, &[]), None);
        rw.add_arg(body, Type::fixed(DType::Bool, &[]), None);
        let v = rw.add_arg(body, Type::fixed(DType::I64, &[]), None);
        let number = |rw: &mut Rewriter<'_>, n: i64| rw.create_one(Constant { value: Tensor::scalar(n) }, &[]).unwrap();
        let (two, seven) = (number(&mut rw, 2), number(&mut rw, 7));
        let next = rw.create_one(Add {}, &[v, two]).unwrap();
        let goes_on = rw.create_one(Lt {}, &[next, seven]).unwrap();
        rw.create(Yield {}, &[goes_on, next, next]).unwrap();
        rw.at_end(entry);
        let none = rw.create_one(NoneValue {}, &[]).unwrap();
        let limit = match limit {
            Some(n) => number(&mut rw, n),
            None => none,
        };
        let op = rw.create_with_regions(Loop {}, &[limit, none, x], &[body]).unwrap();
        let results: Vec<ValueId> = rw.graph().op(op).results.to_vec();
        let types = results.iter().map(|v| rw.graph().ty(*v).clone()).collect();
        rw.create(Return {}, &results).unwrap();
        (run_graph(&g, &[Tensor::scalar(0i64).into()]).unwrap(), types)
    }

    #[test]
    fn loop_ends_by_condition_or_trip_count() {
        let (out, types) = count_up(None);
        assert_eq!(out, [Tensor::scalar(8i64).into(), Tensor::from_i64s(&[2, 4, 6, 8]).into()]);
        assert_eq!(types[0], Type::fixed(DType::I64, &[]));
        assert_eq!(types[1].as_tensor().unwrap().rank(), Some(1));
        assert_eq!(count_up(Some(2)).0[1], Tensor::from_i64s(&[2, 4]).into());
        assert_eq!(count_up(Some(0)).0, [Tensor::scalar(0i64).into(), Tensor::from_i64s(&[]).into()]);
    }
}
