//! `canonicalize`: local rewrites that help on every target. One function per rule, documented by its equation.
//!
//! Pattern rewrites for algebraic simplification: a greedy driver applies them until nothing changes (a fixpoint).

mod far_windows;
mod gather_map;
mod pads;
mod resize;
mod sequences;
#[cfg(test)]
mod tests;
mod zero_points;

use of_diag::{Diagnostic, Diagnostics};
use of_ir::{Dim, Func, Graph, IdSet, OpId, Rewriter, Tensor, Type, ValueId};
use of_ops::contraction::MatMul;
use of_ops::elementwise::{Add, Cast, Div, Mul, Pow, Sub};
use of_ops::exactness::{Exactness, rounded_values};
use of_ops::movement::{Concat, Expand, Reshape, ScatterElements, ScatterNd, Slice, Split, Squeeze, Transpose};
use of_ops::nn::Conv;
use of_ops::reduction::{ReduceMax, ReduceMin, ReduceProd, ReduceSum};
use of_ops::structural::{Constant, ShapeOf};
use of_ops::{Op, OpSpec};

use crate::builders::{permutation, reshape_to, transpose_by};
use crate::infer_shapes::infer_shapes;
use crate::matchers::holds_all_values;
use crate::matchers::{def, dims, ints, single_use, splat};
use crate::pass_options;
use far_windows::far_windows;
use gather_map::gather_map;
pub use gather_map::moves_behind_gathers;
use pads::{conv_pad, pad_nothing};
use resize::resize_whole;
use sequences::{optional_element, sequence_at, sequence_concat, sequence_length};
use zero_points::{conv_zero_points, matmul_zero_points};

/// A local rewrite.
pub(crate) struct LocalRule {
    /// Its name.
    pub(crate) name: &'static str,
    /// How far results may be from those before.
    pub(crate) exactness: Exactness,
    /// Rewrites an op and returns whether it did.
    rewrite: fn(&mut Rewriter<'_>, OpId) -> Result<bool, Diagnostic>,
}

macro_rules! rules {
    ($($name:literal, $exactness:ident, $rewrite:path;)*) => {
        &[$(LocalRule { name: $name, exactness: Exactness::$exactness, rewrite: $rewrite },)*]
    };
}

/// Every rule, tried in this order on every op.
pub(crate) const RULES: &[LocalRule] = rules! {
    "neutral", Exact, neutral;
    "add-zero", ZeroSign, add_zero;
    "add-integers", Exact, add_integers;
    "pow-square", Exact, pow_square;
    "pow-cube", Rounding, pow_cube;
    "same-type", Exact, same_type;
    "cast-cast", Exact, cast_cast;
    "transpose-transpose", Exact, transpose_transpose;
    "transpose-of-ones", Exact, transpose_of_ones;
    "transpose-of-product", Exact, transpose_of_product;
    "reshape-reshape", Exact, reshape_reshape;
    "shape-of-same", Exact, shape_of_same;
    "split-known", Exact, split_known;
    "reduce-keepdims", Exact, reduce_keepdims;
    "expand-operand", Exact, expand_operand;
    "resize-whole", Exact, resize_whole;
    "scatter-rows", Exact, scatter_rows;
    "gather-map", Exact, gather_map;
    "pad-nothing", Exact, pad_nothing;
    "conv-pad", ZeroSign, conv_pad;
    "conv-far-windows", Exact, far_windows;
    "conv-mul", SumOrder, conv_mul;
    "conv-add", SumOrder, conv_add;
    "matmul-vector", Exact, matmul_vector;
    "matmul-row-sums", SumOrder, matmul_row_sums;
    "matmul-zero-points", Exact, matmul_zero_points;
    "conv-zero-points", Exact, conv_zero_points;
    "sequence-at", Exact, sequence_at;
    "sequence-concat", Exact, sequence_concat;
    "sequence-length", Exact, sequence_length;
    "optional-element", Exact, optional_element;
};

/// The rules that replace sequences and optionals whose elements are known by tensors.
const TENSOR_RULES: &[LocalRule] = rules! {
    "sequence-at", Exact, sequence_at;
    "sequence-concat", Exact, sequence_concat;
    "sequence-length", Exact, sequence_length;
    "optional-element", Exact, optional_element;
};

pass_options! {
    /// Options of `canonicalize`.
    pub struct CanonicalizeOptions {
        /// Apply rules that are not exact where results are then rounded to integers or compared, too
        round_inexact: bool = false,
    }
}

/// Applies the rules until none matches.
///
/// # Errors
/// When a rule makes an op that does not fit, a bug of the rule.
pub fn canonicalize(func: &mut Func, options: &CanonicalizeOptions) -> Result<(), Diagnostics> {
    apply(func, RULES, options)
}

/// Replaces sequences and optionals whose elements are known by these, and refines the types of their readers.
///
/// # Errors
/// When a rule makes an op that does not fit, a bug of the rule.
pub(crate) fn sequences_to_tensors(func: &mut Func) -> Result<(), Diagnostics> {
    let has_any = func.graph.walk().into_iter().any(|op| {
        let results = &func.graph.op(op).results;
        results.iter().any(|v| matches!(func.graph.ty(*v), Type::Sequence(_) | Type::Optional(_)))
    });
    if !has_any {
        return Ok(());
    }
    apply(func, TENSOR_RULES, &CanonicalizeOptions::default())?;
    infer_shapes(func)
}

fn apply(func: &mut Func, rules: &[LocalRule], options: &CanonicalizeOptions) -> Result<(), Diagnostics> {
    /// Limit for rules that undo one another; real graphs converge within a few rounds.
    const ROUNDS: usize = 32;
    for _ in 0..ROUNDS {
        let mut changed = false;
        let kept = if options.round_inexact { IdSet::default() } else { rounded_values(&func.graph) };
        let mut rw = Rewriter::new(&mut func.graph, "canonicalize");
        for op in rw.graph().walk() {
            for rule in rules {
                if !rw.graph().is_live(op) {
                    break;
                }
                let float = |v: &ValueId| rw.graph().ty(*v).as_tensor().is_none_or(|t| t.dtype.is_float());
                let keeps = |v: &ValueId| kept.contains(v) && float(v);
                if !rule.exactness.keeps_roundings() && rw.graph().op(op).results.iter().any(keeps) {
                    continue;
                }
                rw.set_rule(rule.name);
                let did = (rule.rewrite)(&mut rw, op)?;
                if did {
                    tracing::trace!(rule = rule.name, "applied");
                }
                changed |= did;
            }
        }
        if !changed {
            break;
        }
        crate::dce::dce(func);
    }
    Ok(())
}

fn replace(rw: &mut Rewriter<'_>, op: OpId, by: ValueId) -> Result<bool, Diagnostic> {
    rw.replace(op, &[by]);
    Ok(true)
}

fn as_op<T: OpSpec>(rw: &Rewriter<'_>, op: OpId) -> Option<T> {
    of_ops::list::as_op::<T>(rw.graph(), op)
}

/// The only result of `op`.
fn result(rw: &Rewriter<'_>, op: OpId) -> ValueId {
    rw.graph().op(op).results[0]
}

fn same_tensor_type(rw: &Rewriter<'_>, a: ValueId, b: ValueId) -> bool {
    let g = rw.graph();
    g.ty(a) == g.ty(b) && g.ty(a).as_tensor().is_some_and(|t| t.shape.is_some())
}

/// x - 0 = x * 1 = x / 1 = x;  x + 0 = x for integers;  x + -0 = x for floats
fn neutral(rw: &mut Rewriter<'_>, op: OpId) -> Result<bool, Diagnostic> {
    let float = |v: &ValueId| rw.graph().ty(*v).as_tensor().is_some_and(|t| t.dtype.is_float());
    let data = rw.graph().op(op);
    let (neutral, commutes): (f64, bool) = match data.name() {
        Add::NAME if data.results.iter().any(float) => (-0.0, true),
        Add::NAME => (0.0, true),
        Sub::NAME => (0.0, false),
        Mul::NAME => (1.0, true),
        Div::NAME => (1.0, false),
        _ => return Ok(false),
    };
    without_operand(rw, op, commutes, |c| c.to_bits() == neutral.to_bits())
}

/// x + 0 = x;  x - -0 = x. Where x is -0, the sum is +0.
fn add_zero(rw: &mut Rewriter<'_>, op: OpId) -> Result<bool, Diagnostic> {
    match rw.graph().op(op).name() {
        Add::NAME => without_operand(rw, op, true, |c| c == 0.0),
        Sub::NAME => without_operand(rw, op, false, |c| c == 0.0),
        _ => Ok(false),
    }
}

/// Replaces `op` by one of its two operands, where the other one is a constant that `neutral` accepts.
fn without_operand(
    rw: &mut Rewriter<'_>,
    op: OpId,
    commutes: bool,
    neutral: impl Fn(f64) -> bool,
) -> Result<bool, Diagnostic> {
    let (a, b, r) = (rw.graph().op(op).operands[0], rw.graph().op(op).operands[1], result(rw, op));
    if splat(rw.graph(), b).is_some_and(&neutral) && same_tensor_type(rw, a, r) {
        return replace(rw, op, a);
    }
    if commutes && splat(rw.graph(), a).is_some_and(&neutral) && same_tensor_type(rw, b, r) {
        return replace(rw, op, b);
    }
    Ok(false)
}

/// The base of a power whose exponent is `exponent`.
fn power(rw: &Rewriter<'_>, op: OpId, exponent: f64) -> Option<ValueId> {
    as_op::<Pow>(rw, op)?;
    let x = rw.graph().op(op).operands[0];
    let fits = splat(rw.graph(), rw.graph().op(op).operands[1]) == Some(exponent);
    (fits && same_tensor_type(rw, x, result(rw, op))).then_some(x)
}

/// x^1 = x;  x^2 = x x. A power of 1/2 is not a square root: they differ for -0 and -inf.
fn pow_square(rw: &mut Rewriter<'_>, op: OpId) -> Result<bool, Diagnostic> {
    if let Some(x) = power(rw, op, 1.0) {
        return replace(rw, op, x);
    }
    let Some(x) = power(rw, op, 2.0) else { return Ok(false) };
    rw.replace_with(op, Mul {}, &[x, x])?;
    Ok(true)
}

/// x^3 = x x x
fn pow_cube(rw: &mut Rewriter<'_>, op: OpId) -> Result<bool, Diagnostic> {
    let Some(x) = power(rw, op, 3.0) else { return Ok(false) };
    rw.rewrite(op, &[]);
    let square = rw.create_one(Mul {}, &[x, x])?;
    let cube = rw.create_one(Mul {}, &[square, x])?;
    rw.replace(op, &[cube]);
    Ok(true)
}

/// Casts, movements and concatenations that are the identity.
fn same_type(rw: &mut Rewriter<'_>, op: OpId) -> Result<bool, Diagnostic> {
    let data = rw.graph().op(op);
    let Some(&x) = data.operands.first() else { return Ok(false) };
    let whole = match data.name() {
        // A reshape or expansion to the same shape keeps every element; so does a full slice.
        Reshape::NAME | Expand::NAME | Cast::NAME => true,
        Slice::NAME => {
            data.operands.get(4).is_none_or(|s| ints(rw.graph(), *s).is_some_and(|s| s.iter().all(|x| *x == 1)))
        }
        Concat::NAME => data.operands.len() == 1,
        _ => false,
    };
    if whole && same_tensor_type(rw, x, result(rw, op)) { replace(rw, op, x) } else { Ok(false) }
}

/// cast(cast x) = cast x where the first cast preserves every value
fn cast_cast(rw: &mut Rewriter<'_>, op: OpId) -> Result<bool, Diagnostic> {
    let Some(outer) = as_op::<Cast>(rw, op) else { return Ok(false) };
    let wide = rw.graph().op(op).operands[0];
    let Some(x) = def::<Cast>(rw.graph(), wide).map(|(inner, _)| rw.graph().op(inner).operands[0]) else {
        return Ok(false);
    };
    let dtype = |v: ValueId| rw.graph().ty(v).as_tensor().map(|t| t.dtype);
    if !dtype(wide).zip(dtype(x)).is_some_and(|(wide, narrow)| holds_all_values(wide, narrow)) {
        return Ok(false);
    }
    rw.replace_with(op, outer, &[x])?;
    Ok(true)
}

/// transpose_p(transpose_q(x)) = transpose_(q∘p)(x);  transpose_id(x) = x
fn transpose_transpose(rw: &mut Rewriter<'_>, op: OpId) -> Result<bool, Diagnostic> {
    let Some(outer) = as_op::<Transpose>(rw, op) else { return Ok(false) };
    let x = rw.graph().op(op).operands[0];
    let Some(rank) = rw.graph().ty(x).as_tensor().and_then(|t| t.rank()) else { return Ok(false) };
    let p = permutation(&outer, rank);
    if p.iter().enumerate().all(|(i, j)| i == *j) {
        return replace(rw, op, x);
    }
    let Some((inner_op, inner)) = def::<Transpose>(rw.graph(), x) else { return Ok(false) };
    let q = permutation(&inner, rank);
    let composed: Vec<usize> = p.iter().map(|i| q[*i]).collect();
    let source = rw.graph().op(inner_op).operands[0];
    rw.rewrite(op, &[inner_op]);
    let new = rw.create_one(transpose_by(&composed), &[source])?;
    replace(rw, op, new)
}

/// A transpose that moves only axes of extent 1 is a reshape.
fn transpose_of_ones(rw: &mut Rewriter<'_>, op: OpId) -> Result<bool, Diagnostic> {
    let Some(t) = as_op::<Transpose>(rw, op) else { return Ok(false) };
    let (x, r) = (rw.graph().op(op).operands[0], result(rw, op));
    let (Some(from), Some(to)) = (dims(rw.graph(), x), dims(rw.graph(), r)) else { return Ok(false) };
    let p = permutation(&t, from.len());
    let moved: Vec<usize> = p.into_iter().filter(|a| from[*a] != 1).collect();
    if !moved.is_sorted() {
        return Ok(false);
    }
    rw.rewrite(op, &[]);
    let new = reshape_to(rw, x, &to)?;
    replace(rw, op, new)
}

/// (aᵀ b)ᵀ = bᵀ a, also where such products are summed over batches, as in the gradient of a transposed weight: one transpose less. `b` is
/// no larger than what is not transposed any more.
fn transpose_of_product(rw: &mut Rewriter<'_>, op: OpId) -> Result<bool, Diagnostic> {
    let g = rw.graph();
    // Whether an op swaps the last two axes, and what it reads.
    let swapped = |op: OpId| {
        let t = of_ops::list::as_op::<Transpose>(g, op)?;
        let x = g.op(op).operands[0];
        let rank = dims(g, x)?.len();
        let p = permutation(&t, rank);
        let (rest, last) = p.split_at_checked(rank.checked_sub(2)?)?;
        (rest.iter().copied().eq(0..rank - 2) && last == [rank - 1, rank - 2]).then_some(x)
    };
    let Some(x) = swapped(op).filter(|x| single_use(g, *x)) else { return Ok(false) };
    // A reshape of batches, such as `reduce-keepdims` makes, keeps the matrices.
    let reshaped = def::<Reshape>(g, x).map(|(op, _)| g.op(op).operands[0]).filter(|from| {
        let matrix = |v: ValueId| dims(g, v).and_then(|d| d.last_chunk::<2>().copied());
        single_use(g, *from) && matrix(*from).is_some() && matrix(*from) == matrix(x)
    });
    let read = reshaped.unwrap_or(x);
    let sum = def::<ReduceSum>(g, read).map(|(op, sum)| (g.op(op).operands.to_vec(), sum));
    let y = match &sum {
        None => read,
        Some((operands, _)) => {
            let [y, axes] = operands[..] else { return Ok(false) };
            let (Some(from), Some(axes)) = (dims(g, y), ints(g, axes)) else { return Ok(false) };
            let is_batch = |axis: &i64| of_ops::shape::axis(*axis, from.len()).is_ok_and(|axis| axis + 2 < from.len());
            if axes.is_empty() || !axes.iter().all(is_batch) || !single_use(g, y) {
                return Ok(false);
            }
            y
        }
    };
    let Some((product, _)) = def::<MatMul>(g, y) else { return Ok(false) };
    let [left, right] = g.op(product).operands[..] else { return Ok(false) };
    let Some((turned, _)) = def::<Transpose>(g, left) else { return Ok(false) };
    let Some(a) = swapped(turned) else { return Ok(false) };
    let size = |v: ValueId| dims(g, v).filter(|d| d.len() >= 2).map(|d| d.iter().product::<usize>());
    let (Some(of_a), Some(of_b), Some(of_y)) = (size(a), size(right), size(x)) else { return Ok(false) };
    if of_b > of_a + of_y {
        return Ok(false);
    }
    let rank = dims(g, right).map_or(0, |d| d.len());
    let to = dims(g, result(rw, op));
    rw.rewrite(op, &[product]);
    let mut p: Vec<usize> = (0..rank).collect();
    p.swap(rank - 2, rank - 1);
    let b = rw.create_one(transpose_by(&p), &[right])?;
    let mut y = rw.create_one(MatMul {}, &[b, a])?;
    if let Some((operands, sum)) = sum {
        y = rw.create_one(sum, &[y, operands[1]])?;
    }
    if let Some(to) = to.filter(|_| reshaped.is_some()) {
        y = reshape_to(rw, y, &to)?;
    }
    replace(rw, op, y)
}

/// reshape(reshape(x)) = reshape(x), where the result's dimensions are fixed
fn reshape_reshape(rw: &mut Rewriter<'_>, op: OpId) -> Result<bool, Diagnostic> {
    if as_op::<Reshape>(rw, op).is_none() {
        return Ok(false);
    }
    let (x, r) = (rw.graph().op(op).operands[0], result(rw, op));
    let Some((inner, _)) = def::<Reshape>(rw.graph(), x) else { return Ok(false) };
    let Some(to) = dims(rw.graph(), r) else { return Ok(false) };
    let source = rw.graph().op(inner).operands[0];
    rw.rewrite(op, &[inner]);
    let new = reshape_to(rw, source, &to)?;
    replace(rw, op, new)
}

/// shape(f(x, y)) = shape(x) for an elementwise f, where broadcasting changes no extent of x. Ops that divide by an extent
/// then share it.
fn shape_of_same(rw: &mut Rewriter<'_>, op: OpId) -> Result<bool, Diagnostic> {
    let Some(shape_of) = as_op::<ShapeOf>(rw, op) else { return Ok(false) };
    let g = rw.graph();
    let y = g.op(op).operands[0];
    let shape = |v: ValueId| g.ty(v).as_tensor().and_then(|t| t.shape.as_ref());
    let (Some(def), Some(extents)) = (g.def_op(y), shape(y)) else { return Ok(false) };
    if of_ops::list::get(g, def).is_none_or(|f| f.scalar().is_none()) {
        return Ok(false);
    }
    let operands = &g.op(def).operands;
    let Some(x) = operands.iter().copied().find(|x| shape(*x) == Some(extents)) else { return Ok(false) };
    if !operands.iter().all(|v| fits(g, *v, x, extents, MAX_DEPTH)) {
        return Ok(false);
    }
    rw.replace_with(op, shape_of, &[x])?;
    Ok(true)
}

/// How many ops [`fits`] looks back.
const MAX_DEPTH: usize = 8;

/// Whether broadcasting `v` and `x`, whose extents these are, provably gives the extents of `x`: each extent of `v` is 1, or that
/// of `x` whatever the run. Inference supposes that two open extents are equal where one might be 1: equal types prove nothing.
fn fits(g: &Graph, v: ValueId, x: ValueId, extents: &[Dim], depth: usize) -> bool {
    let Some(own) = g.ty(v).as_tensor().and_then(|t| t.shape.as_ref()) else { return false };
    let keeps = |(own, result): (&Dim, &Dim)| own.as_const() == Some(1) || result.as_const().is_some();
    if v == x || own.iter().rev().zip(extents.iter().rev()).all(keeps) {
        return true;
    }
    let (Some(def), Some(depth)) = (g.def_op(v), depth.checked_sub(1)) else { return false };
    let operands = &g.op(def).operands;
    macro_rules! keeps_axes {
        ($($op:ident),*) => { false $(|| of_ops::list::as_op::<$op>(g, def).is_some_and(|r| r.keepdims))* };
    }
    if keeps_axes!(ReduceSum, ReduceMax, ReduceMin, ReduceProd) {
        return fits(g, operands[0], x, extents, depth);
    }
    let is_map = of_ops::list::get(g, def).is_some_and(|f| f.scalar().is_some());
    is_map && operands.iter().all(|v| fits(g, *v, x, extents, depth))
}

/// split(x) = slices of x, where the lengths are fixed
fn split_known(rw: &mut Rewriter<'_>, op: OpId) -> Result<bool, Diagnostic> {
    let Some(split) = as_op::<Split>(rw, op) else { return Ok(false) };
    let (x, results) = (rw.graph().op(op).operands[0], rw.graph().op(op).results.clone());
    let length = |v: &ValueId| {
        let shape = rw.graph().ty(*v).as_tensor()?.shape.as_ref()?;
        let axis = of_ops::shape::axis(split.axis, shape.len()).ok()?;
        Some((axis, shape[axis].as_const()?))
    };
    let Some(pieces) = results.iter().map(length).collect::<Option<Vec<_>>>() else { return Ok(false) };
    rw.rewrite(op, &[]);
    let (mut slices, mut start) = (Vec::new(), 0);
    for (axis, length) in pieces {
        let end = start + length;
        let mut operands = vec![x];
        for bound in [start, end, axis as i64] {
            let value = Tensor::from_i64s(&[bound]);
            operands.push(rw.create_one(Constant { value }, &[])?);
        }
        slices.push(rw.create_one(Slice {}, &operands)?);
        start = end;
    }
    rw.replace(op, &slices);
    Ok(true)
}

/// reduce(x) without kept axes = reshape(reduce(x) with kept axes)
fn reduce_keepdims(rw: &mut Rewriter<'_>, op: OpId) -> Result<bool, Diagnostic> {
    let operands = rw.graph().op(op).operands.clone();
    let to = rw.graph().op(op).results.first().and_then(|v| dims(rw.graph(), *v));
    let is_known = |v: &ValueId| rw.graph().constant(*v).is_some() && rw.graph().dims_value(*v).is_some();
    let axes = operands.get(1).copied().filter(is_known);
    let ranked = operands.first().is_some_and(|v| rw.graph().ty(*v).as_tensor().is_some_and(|t| t.shape.is_some()));
    if to.is_none() && (axes.is_none() || !ranked) {
        return Ok(false);
    }
    macro_rules! keep {
        ($($op:ident),*) => {$(
            if let Some(r) = as_op::<$op>(rw, op) && !r.keepdims {
                rw.rewrite(op, &[]);
                let kept = rw.create_one($op { keepdims: true }, &operands)?;
                let new = match (&to, axes) {
                    (None, Some(axes)) => Squeeze {}.expand(rw, &[kept, axes])?,
                    (to, _) => vec![reshape_to(rw, kept, to.as_deref().unwrap_or_default())?],
                };
                return replace(rw, op, new[0]);
            }
        )*};
    }
    keep!(ReduceSum, ReduceMax, ReduceMin, ReduceProd);
    Ok(false)
}

/// map(expand(x), y) = map(x, y) where y has the shape of the result: elementwise ops broadcast their operands
fn expand_operand(rw: &mut Rewriter<'_>, op: OpId) -> Result<bool, Diagnostic> {
    let g = rw.graph();
    if of_ops::list::get(g, op).is_none_or(|o| o.scalar().is_none()) {
        return Ok(false);
    }
    let shape = |v: ValueId| g.ty(v).as_tensor()?.shape.as_deref();
    let (operands, Some(to)) = (&g.op(op).operands, shape(result(rw, op))) else { return Ok(false) };
    let stretched = |v: ValueId| {
        let x = g.op(def::<Expand>(g, v)?.0).operands[0];
        let own = shape(x)?;
        let aligned = to.get(to.len().checked_sub(own.len())?..)?;
        own.iter().zip(aligned).all(|(d, to)| d.as_const() == Some(1) || d == to).then_some(x)
    };
    let found = operands.iter().enumerate().find_map(|(i, v)| {
        let whole = operands.iter().enumerate().any(|(j, y)| j != i && shape(*y) == Some(to));
        if whole { Some((i, stretched(*v)?)) } else { None }
    });
    let Some((i, x)) = found else { return Ok(false) };
    rw.set_operand(op, i, x);
    Ok(true)
}

/// scatter_elements(x, expand(i), u) = scatter_nd(x, i, u) where all elements of a row of u go to one row of x
fn scatter_rows(rw: &mut Rewriter<'_>, op: OpId) -> Result<bool, Diagnostic> {
    let Some(ScatterElements { axis, reduction }) = as_op(rw, op) else { return Ok(false) };
    let [x, indices, updates] = rw.graph().op(op).operands[..] else { return Ok(false) };
    let Some((expand, _)) = def::<Expand>(rw.graph(), indices) else { return Ok(false) };
    let rows = rw.graph().op(expand).operands[0];
    let shape = |v: ValueId| rw.graph().ty(v).as_tensor()?.shape.clone();
    let (Some(to), Some(own), Some(all), Some(from)) = (shape(x), shape(rows), shape(indices), shape(updates)) else {
        return Ok(false);
    };
    let whole = of_ops::shape::axis(axis, to.len()) == Ok(0) && to[1..] == from[1..] && all == from;
    let one_a_row = own.len() == from.len() && own[0] == from[0] && own[1..].iter().all(|d| d.as_const() == Some(1));
    if to.len() < 2 || !whole || !one_a_row {
        return Ok(false);
    }
    rw.rewrite(op, &[]);
    let column = rw.create_one(Constant { value: Tensor::from_i64s(&[0, 1]) }, &[])?;
    let rows = rw.create_one(Reshape { allowzero: false }, &[rows, column])?;
    rw.replace_with(op, ScatterNd { reduction }, &[x, rows, updates])?;
    Ok(true)
}

/// The convolution that defines `v` and has no other reader, and `c` as one number per channel of it.
fn conv_and_channels(rw: &Rewriter<'_>, v: ValueId, c: ValueId) -> Option<(OpId, Conv, Tensor)> {
    let g = rw.graph();
    let (conv_op, conv) = def::<Conv>(g, v)?;
    if !single_use(g, v) {
        return None;
    }
    let (rank, channels) = (dims(g, v)?.len(), dims(g, g.op(conv_op).operands[1])?[0]);
    let constant = g.constant(c)?;
    let own = constant.dims();
    // Aligned at the last axis, only the channel axis may differ from 1.
    let channel_axis = if conv.channels_last { rank - 1 } else { 1 };
    let lead = rank.checked_sub(own.len())?;
    // Aligned at the last axis, only the channel axis may differ from 1.
    let fits = own.iter().enumerate().all(|(i, d)| *d == 1 || (lead + i == channel_axis && *d == channels));
    if !fits || !constant.dtype().is_float() {
        return None;
    }
    if constant.len() == channels {
        return Some((conv_op, conv, constant.reshaped(vec![channels]).ok()?));
    }
    let value = constant.elements();
    let of_ir::Elements::Float(one) = value else { return None };
    let all = vec![*one.first()?; channels];
    Some((conv_op, conv, Tensor::from_elements(constant.dtype(), vec![channels], of_ir::Elements::Float(all)).ok()?))
}

/// conv(x, w, b) * c = conv(x, w * c, b * c)
fn conv_mul(rw: &mut Rewriter<'_>, op: OpId) -> Result<bool, Diagnostic> {
    if as_op::<Mul>(rw, op).is_none() {
        return Ok(false);
    }
    let (a, b) = (rw.graph().op(op).operands[0], rw.graph().op(op).operands[1]);
    let Some((conv_op, conv, scale)) = conv_and_channels(rw, a, b).or_else(|| conv_and_channels(rw, b, a)) else {
        return Ok(false);
    };
    let operands = rw.graph().op(conv_op).operands.clone();
    // Only constant weights: otherwise every run would compute the product.
    if rw.graph().constant(operands[1]).is_none() {
        return Ok(false);
    }
    let Some(weight_dims) = dims(rw.graph(), operands[1]) else { return Ok(false) };
    let mut column = vec![1; weight_dims.len()];
    column[0] = weight_dims[0];
    let column =
        scale.reshaped(column).map_err(|e| of_ir::OpError::from(e).at("of.mul", &of_diag::Location::Unknown))?;
    rw.rewrite(op, &[conv_op]);
    let column = rw.create_one(Constant { value: column }, &[])?;
    let w = rw.create_one(Mul {}, &[operands[1], column])?;
    let mut new = vec![operands[0], w];
    if let Some(bias) = operands.get(2).filter(|b| *rw.graph().ty(**b) != of_ir::Type::None) {
        let scale = rw.create_one(Constant { value: scale }, &[])?;
        new.push(rw.create_one(Mul {}, &[*bias, scale])?);
    }
    let y = rw.create_one(conv, &new)?;
    replace(rw, op, y)
}

/// conv(x, w, b) + c = conv(x, w, b + c)
fn conv_add(rw: &mut Rewriter<'_>, op: OpId) -> Result<bool, Diagnostic> {
    if as_op::<Add>(rw, op).is_none() {
        return Ok(false);
    }
    let (a, b) = (rw.graph().op(op).operands[0], rw.graph().op(op).operands[1]);
    let Some((conv_op, conv, shift)) = conv_and_channels(rw, a, b).or_else(|| conv_and_channels(rw, b, a)) else {
        return Ok(false);
    };
    let operands = rw.graph().op(conv_op).operands.clone();
    rw.rewrite(op, &[conv_op]);
    let shift = rw.create_one(Constant { value: shift }, &[])?;
    let bias = match operands.get(2).filter(|b| *rw.graph().ty(**b) != of_ir::Type::None) {
        Some(bias) => rw.create_one(Add {}, &[*bias, shift])?,
        None => shift,
    };
    let y = rw.create_one(conv, &[operands[0], operands[1], bias])?;
    replace(rw, op, y)
}

/// (x + a) + b = x + (a + b) for integers and constants a and b, such as a correction for a zero point and a bias. Their
/// sum is as large as one of them.
fn add_integers(rw: &mut Rewriter<'_>, op: OpId) -> Result<bool, Diagnostic> {
    let g = rw.graph();
    let is_int = |v: ValueId| g.ty(v).as_tensor().is_some_and(|t| t.dtype.is_int());
    if as_op::<Add>(rw, op).is_none() || !is_int(g.op(op).results[0]) {
        return Ok(false);
    }
    // The constant operand of a sum, and the other one.
    let parts = |op: OpId| match g.op(op).operands[..] {
        [x, a] if g.constant(a).is_some() => Some((x, a)),
        [a, x] if g.constant(a).is_some() => Some((x, a)),
        _ => None,
    };
    let Some((sum, b)) = parts(op) else { return Ok(false) };
    let Some((inner, _)) = def::<Add>(g, sum).filter(|_| single_use(g, sum)) else { return Ok(false) };
    let Some((x, a)) = parts(inner) else { return Ok(false) };
    let (Some(da), Some(db)) = (dims(g, a), dims(g, b)) else { return Ok(false) };
    let one = |d: &[usize]| d.iter().all(|n| *n == 1);
    if da != db && !one(&da) && !one(&db) {
        return Ok(false);
    }
    rw.rewrite(op, &[inner]);
    let known = rw.create_one(Add {}, &[a, b])?;
    let y = rw.create_one(Add {}, &[x, known])?;
    replace(rw, op, y)
}

/// A product with a vector becomes one with a matrix that has an axis of 1, so that backends see matrices only.
fn matmul_vector(rw: &mut Rewriter<'_>, op: OpId) -> Result<bool, Diagnostic> {
    if as_op::<MatMul>(rw, op).is_none() {
        return Ok(false);
    }
    let (a, b) = (rw.graph().op(op).operands[0], rw.graph().op(op).operands[1]);
    let (Some(da), Some(db), Some(to)) = (dims(rw.graph(), a), dims(rw.graph(), b), dims(rw.graph(), result(rw, op)))
    else {
        return Ok(false);
    };
    if da.len() > 1 && db.len() > 1 {
        return Ok(false);
    }
    rw.rewrite(op, &[]);
    let a = if da.len() == 1 { reshape_to(rw, a, &[1, da[0]])? } else { a };
    let b = if db.len() == 1 { reshape_to(rw, b, &[db[0], 1])? } else { b };
    let y = rw.create_one(MatMul {}, &[a, b])?;
    let y = reshape_to(rw, y, &to)?;
    replace(rw, op, y)
}

/// sum_n p[r, n] (g v^T)[r, n] = sum_c g[r, c] (p v)[r, c], where p v is computed already. In the gradient of attention
/// the row sum then does not need the score matrix.
fn matmul_row_sums(rw: &mut Rewriter<'_>, op: OpId) -> Result<bool, Diagnostic> {
    let g = rw.graph();
    let (Some(sum), [x, axes]) = (of_ops::list::as_op::<ReduceSum>(g, op), &g.op(op).operands[..]) else {
        return Ok(false);
    };
    let (Some((product, _)), Some(axes_read)) = (def::<Mul>(g, *x), ints(g, *axes)) else { return Ok(false) };
    let shape = |v: ValueId| g.ty(v).as_tensor()?.shape.clone();
    let rank = shape(*x).map_or(0, |s| s.len());
    let last = matches!(axes_read[..], [a] if of_ops::shape::axis(a, rank) == Ok(rank - 1));
    if rank < 2 || !sum.keepdims || !last {
        return Ok(false);
    }
    let [a, b] = g.op(product).operands[..] else { return Ok(false) };
    let found = [(a, b), (b, a)].into_iter().find_map(|(p, gv)| {
        let (second, _) = def::<MatMul>(g, gv)?;
        let [grad, vt] = g.op(second).operands[..] else { return None };
        let is_first = |u: &of_ir::Use| u.operand == 0 && of_ops::list::as_op::<MatMul>(g, u.op).is_some();
        let firsts = g.uses(p).iter().filter(|u| is_first(u)).map(|u| u.op);
        let first = firsts.into_iter().find(|first| swapped(g, g.op(*first).operands[1], vt))?;
        let y = g.op(first).results[0];
        let same = shape(p) == shape(gv) && shape(y).is_some() && shape(y) == shape(grad);
        (same && before(g, first, second)).then_some((grad, y))
    });
    let Some((grad, y)) = found else { return Ok(false) };
    let axes = *axes;
    rw.rewrite(op, &[product]);
    let new = rw.create_one(Mul {}, &[grad, y])?;
    let new = rw.create_one(sum, &[new, axes])?;
    replace(rw, op, new)
}

/// Whether `b` is `a` with its last two axes swapped.
fn swapped(g: &Graph, a: ValueId, b: ValueId) -> bool {
    let seen = |v: ValueId| {
        let rank = g.ty(v).as_tensor().and_then(|t| t.rank()).unwrap_or(0);
        match def::<Transpose>(g, v).and_then(|(op, t)| Some((op, t.permutation(rank).ok()?))) {
            Some((op, perm)) => (g.op(op).operands[0], perm),
            None => (v, (0..rank).collect()),
        }
    };
    let ((of, mut perm), (other, own)) = (seen(a), seen(b));
    if let [.., x, y] = &mut perm[..] {
        std::mem::swap(x, y);
    }
    of == other && own.len() > 1 && perm == own
}

/// Whether `a` is before `b` in one region.
fn before(g: &Graph, a: OpId, b: OpId) -> bool {
    let region = g.op(a).parent;
    region == g.op(b).parent && g.region_ops(region).find(|op| *op == a || *op == b) == Some(a)
}
