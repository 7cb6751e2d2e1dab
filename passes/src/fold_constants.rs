//! `fold-constants`: evaluates at compile time what depends only on constants and shapes.

use std::cell::Cell;

use of_diag::{Diagnostic, Diagnostics};
use of_ir::{DType, Elements, Func, Graph, OpId, RegionId, Rewriter, Tensor, Type, ValueId};
use of_ops::control::If;
use of_ops::structural::Constant;
use of_ops::training::Gradient;
use of_ops::{Inputs, Kind, OpSpec, Value, list, work};

use crate::canonicalize::moves_behind_gathers;
use crate::infer_shapes::reinfer;
use crate::matchers::splat;
use crate::pass_options;

/// Limits of what is evaluated at compile time. They depend on the constants of the function, so that a small file cannot ask for
/// much memory or time, and weights of any size are converted.
struct Limits {
    /// Results of this many bytes are computed in any case.
    result_bytes: usize,
    /// Bytes of all constants: results that are larger stay ops, unless they are no larger than one of their operands. The sum of the
    /// operands says nothing: an op may read one value twice.
    constant_bytes: usize,
    /// Bytes that remain for larger results that a contraction reads: as constants they are packed once, at compile time.
    contracted_bytes: Cell<usize>,
}

pass_options! {
    /// Options of `fold-constants`.
    pub struct FoldOptions {
        /// Results of this many bytes are computed in any case; larger ones where weights are converted
        result_bytes: usize = 16 << 20,
    }
}

/// Ops of more arithmetic stay, unless it is little for each byte of the operands, as where weights are converted. The
/// interpreter takes a second for this much.
const MAX_FLOPS: f64 = 134_217_728.0;
const MAX_FLOPS_PER_BYTE: f64 = 64.0;

/// A result may have so many times the bytes of its largest operand, as integers of four bits that become floats have. More is indices or a
/// filled tensor, such as the counters of random numbers, which take less time to compute than to read.
const MAX_GROWTH: usize = 16;

/// Bytes of all results that are folded only because a contraction reads them.
const MAX_CONTRACTED_BYTES: usize = 1 << 30;

impl Limits {
    fn of(g: &Graph, options: &FoldOptions) -> Limits {
        let stored = |op: OpId| {
            let data = g.op(op);
            data.def.constant(&data.attrs).and_then(|t| t.bytes().map(|b| b.len())).unwrap_or(0)
        };
        let all = g.walk().into_iter().map(stored).fold(0, usize::saturating_add);
        Limits {
            result_bytes: options.result_bytes,
            constant_bytes: all,
            contracted_bytes: Cell::new(MAX_CONTRACTED_BYTES),
        }
    }

    /// Whether results of these types may become constants.
    fn allow(&self, g: &Graph, op: OpId, types: &[Type], largest_operand: usize) -> bool {
        let bytes = result_bytes(types);
        let converted = largest_operand.saturating_mul(MAX_GROWTH).min(self.constant_bytes);
        if bytes <= self.result_bytes.max(largest_operand).max(converted) {
            return true;
        }
        let Some(left) = self.contracted_bytes.get().checked_sub(bytes) else { return false };
        let contracted = g.op(op).results.iter().any(|v| is_contracted(g, *v, MAX_LAYOUT_OPS));
        if contracted {
            self.contracted_bytes.set(left);
        }
        contracted
    }
}

/// Replaces every op with known results by constants, and every branch with a known condition by the region that it
/// runs.
///
/// It walks once in execution order and refines types on the way. So a shape that a branch decides is known to later
/// ops, such as the condition of the next branch.
///
/// # Errors
/// None so far: an op that cannot be evaluated stays, and fails at run time.
pub fn fold_constants(func: &mut Func, options: &FoldOptions) -> Result<(), Diagnostics> {
    let limits = Limits::of(&func.graph, options);
    let mut rw = Rewriter::new(&mut func.graph, "fold-constants");
    let entry = rw.graph().entry();
    fold_region(&mut rw, entry, &limits)?;
    Ok(())
}

fn fold_region(rw: &mut Rewriter<'_>, region: RegionId, limits: &Limits) -> Result<(), Diagnostic> {
    let ops: Vec<OpId> = rw.graph().region_ops(region).collect();
    fold_ops(rw, ops, limits)
}

fn fold_ops(rw: &mut Rewriter<'_>, ops: Vec<OpId>, limits: &Limits) -> Result<(), Diagnostic> {
    for op in ops {
        if let Some(inner) = inline_branch(rw, op) {
            fold_ops(rw, inner, limits)?;
            continue;
        }
        for region in rw.graph().op(op).regions.clone() {
            fold_region(rw, region, limits)?;
        }
        // `infer-shapes` reports errors.
        let _ = reinfer(rw, op);
        if foldable(rw, op) {
            fold(rw, op, limits)?;
        }
    }
    Ok(())
}

/// if true { a } else { b } = a. Returns the ops that moved out of the region.
fn inline_branch(rw: &mut Rewriter<'_>, op: OpId) -> Option<Vec<OpId>> {
    let data = rw.graph().op(op);
    if data.name() != If::NAME {
        return None;
    }
    let condition = splat(rw.graph(), data.operands[0])?;
    let region = data.regions[usize::from(condition == 0.0)];
    let mut inner: Vec<OpId> = rw.graph().region_ops(region).collect();
    let yields = rw.graph().yields(region).to_vec();
    inner.retain(|o| !rw.graph().op(*o).def.traits().terminator);
    for o in &inner {
        rw.move_before(*o, op);
    }
    rw.replace(op, &yields);
    Some(inner)
}

fn fold(rw: &mut Rewriter<'_>, op: OpId, limits: &Limits) -> Result<(), Diagnostic> {
    let values = match from_shapes(rw, op) {
        Some(t) => Some(vec![t]),
        None => evaluate(rw, op, limits),
    };
    let Some(values) = values else { return Ok(()) };
    rw.rewrite(op, &[]);
    let mut results: Vec<ValueId> = Vec::with_capacity(values.len());
    for value in values {
        results.push(rw.create_one(Constant { value }, &[])?);
    }
    rw.replace(op, &results);
    Ok(())
}

fn foldable(rw: &Rewriter<'_>, op: OpId) -> bool {
    let data = rw.graph().op(op);
    let t = data.def.traits();
    // A constant would not keep the layout.
    let placed = |v: &ValueId| rw.graph().ty(*v).as_tensor().is_some_and(|t| t.sbp.is_some());
    let computes = !t.constant && !t.effect && !t.terminator && data.regions.is_empty() && !data.results.is_empty();
    computes && !data.results.iter().any(placed)
}

/// An integer tensor that follows from shapes, e.g. the result of `of.shape`.
fn from_shapes(rw: &Rewriter<'_>, op: OpId) -> Option<Tensor> {
    let g = rw.graph();
    let [result] = g.op(op).results.as_slice() else { return None };
    let Type::Tensor(t) = g.ty(*result) else { return None };
    if !t.dtype.is_int() {
        return None;
    }
    let dims = g.dims_value(*result)?;
    let ints = dims.iter().map(|d| d.as_const().map(i128::from)).collect::<Option<Vec<_>>>()?;
    let shape = t.fixed_dims().unwrap_or_else(|| if t.rank() == Some(0) { vec![] } else { vec![ints.len()] });
    Tensor::from_elements(t.dtype, shape, Elements::Int(ints)).ok()
}

/// The op's own evaluation on constant operands.
fn evaluate(rw: &Rewriter<'_>, op: OpId, limits: &Limits) -> Option<Vec<Tensor>> {
    let g = rw.graph();
    let data = g.op(op);
    let decl = of_ops::decl(data.name())?;
    if decl.kind() == Kind::Structural && data.operands.is_empty() {
        return None;
    }
    let mut largest_operand = 0;
    let mut values = Vec::with_capacity(data.operands.len());
    for v in &data.operands {
        if *g.ty(*v) == Type::None {
            values.push(Value::None);
        } else {
            let t = g.constant(*v).filter(|_| !is_varied(g, *v))?;
            largest_operand = t.bytes().map_or(0, |b| b.len()).max(largest_operand);
            values.push(Value::Tensor(t));
        }
    }
    // A table of narrow elements stays one: 'canonicalize' widens the rows that are read.
    if moves_behind_gathers(g, op) {
        return None;
    }
    let types: Vec<Type> = data.results.iter().map(|v| g.ty(*v).clone()).collect();
    let flops = MAX_FLOPS.max(largest_operand as f64 * MAX_FLOPS_PER_BYTE);
    if !limits.allow(g, op, &types, largest_operand) || work::of(g, op).flops > flops {
        return None;
    }
    let imp = decl.decode(&data.attrs).ok()?;
    let mut no_region = |_: usize, _: &[Value]| Err(of_ir::OpError::eval("the op has no region"));
    let mut inputs = Inputs { values: &values, types: &types, region: &mut no_region };
    let out = imp.eval(&mut inputs).ok()?;
    out.into_iter().map(|v| if let Value::Tensor(t) = v { Some(t) } else { None }).collect()
}

/// Whether an `of.gradient` differentiates by `v`: then results that depend on it are not constant.
fn is_varied(g: &Graph, v: ValueId) -> bool {
    g.uses(v).iter().any(|u| u.operand > 0 && g.op(u.op).name() == Gradient::NAME)
}

/// Ops that may rearrange or convert a value before a contraction reads it.
const MAX_LAYOUT_OPS: usize = 4;

/// Whether an op that is not elementwise and has a multiply-add or more for each element of its operands and results reads `v`,
/// directly or after up to `depth` ops with one operand.
fn is_contracted(g: &Graph, v: ValueId, depth: usize) -> bool {
    g.uses(v).iter().any(|u| {
        let elementwise = list::get(g, u.op).is_none_or(|o| o.scalar().is_some());
        let data = g.op(u.op);
        let elements = data.operands.iter().chain(&data.results).map(|v| work::elements(g.ty(*v))).fold(0.0, f64::max);
        if !elementwise && work::of(g, u.op).flops >= 2.0 * elements {
            return true;
        }
        depth > 0 && data.operands.len() == 1 && data.results.iter().any(|r| is_contracted(g, *r, depth - 1))
    })
}

/// Bytes of the results; 0 where unknown, as these are small in practice.
fn result_bytes(types: &[Type]) -> usize {
    types
        .iter()
        .filter_map(|t| t.as_tensor())
        .filter(|t| t.dtype != DType::String)
        .filter_map(|t| t.dtype.byte_len(t.fixed_dims()?.iter().try_fold(1usize, |n, d| n.checked_mul(*d))?))
        .fold(0, usize::saturating_add)
}
