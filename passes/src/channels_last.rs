//! `channels-last`: converts convolutions and pools to channels-last layout (`[N, spatial…, C]`, NHWC).
//!
//! Each such op is wrapped in a pair of transposes. Transposes then sink through elementwise ops, reductions,
//! concatenations, slices, pads and repeats until they reach their inverse, and `canonicalize` removes both.
//!
//! This is layout assignment and propagation, from NCHW to NHWC.

use of_diag::{Diagnostic, Diagnostics};
use of_ir::{Func, OpId, Rewriter, Tensor, Type, ValueId};
use of_ops::OpSpec;
use of_ops::list::as_op;
use of_ops::movement::{Concat, Expand, Gather, Pad, Reshape, ScatterNd, Slice, Transpose};
use of_ops::nn::{
    AvgPool, Conv, ConvInteger, ConvTranspose, DepthwiseWeightGradient, MaxPool, MaxPoolGradient, Resize, RoiAlign,
};
use of_ops::reduction::{ReduceMax, ReduceMin, ReduceProd, ReduceSum};
use of_ops::structural::Constant;

use crate::builders::{permutation, transpose_by};
use crate::conv_transpose::conv_transpose_to_conv;
use crate::matchers::{def, dims, ints};

/// Converts every convolution and pool, then sinks transposes.
///
/// # Errors
/// When an op that it makes does not fit, a bug of the pass.
pub fn channels_last(func: &mut Func) -> Result<(), Diagnostics> {
    let mut rw = Rewriter::new(&mut func.graph, "channels-last");
    for op in rw.graph().walk() {
        convert(&mut rw, op)?;
    }
    loop {
        let mut changed = false;
        let mut rw = Rewriter::new(&mut func.graph, "channels-last");
        for op in rw.graph().walk() {
            if rw.graph().is_live(op) {
                changed |= sink(&mut rw, op)?;
            }
        }
        if !changed {
            return Ok(());
        }
        crate::fold_constants::fold_constants(func, &Default::default())?;
        crate::canonicalize::canonicalize(func, &Default::default())?;
    }
}

/// Wraps one op in transposes; transposed convolutions become convolutions first.
fn convert(rw: &mut Rewriter<'_>, op: OpId) -> Result<(), Diagnostic> {
    if conv_transpose_to_conv(rw, op)? {
        return Ok(());
    }
    macro_rules! wrap {
        ($($ty:ident),*) => {$(
            if let Some(o) = as_op::<$ty>(rw.graph(), op) && !o.channels_last {
                return wrap(rw, op, 1, $ty { channels_last: true, ..o });
            }
        )*};
    }
    wrap!(Conv, ConvTranspose, AvgPool, RoiAlign);
    if let Some(o) = as_op::<MaxPoolGradient>(rw.graph(), op)
        && !o.channels_last
    {
        return wrap(rw, op, 2, MaxPoolGradient { channels_last: true, ..o });
    }
    if let Some(o) = as_op::<DepthwiseWeightGradient>(rw.graph(), op)
        && !o.channels_last
        && rank(rw, op).is_some_and(|rank| rank >= 3)
    {
        // Its result is no image.
        let operands = images_last(rw, op, 2)?;
        let y = rw.create_one(DepthwiseWeightGradient { channels_last: true, ..o }, &operands)?;
        rw.replace(op, &[y]);
        return Ok(());
    }
    // A zero point of several numbers is aligned with the axes of the data as they are.
    let one = |z: &ValueId| dims(rw.graph(), *z).is_some_and(|d| d.iter().all(|n| *n == 1));
    if rw.graph().op(op).operands.get(2).is_none_or(|z| *rw.graph().ty(*z) == Type::None || one(z)) {
        wrap!(ConvInteger);
    }
    if let Some(o) = as_op::<MaxPool>(rw.graph(), op)
        && !o.channels_last
        && rw.graph().op(op).results.len() == 1
    {
        return wrap(rw, op, 1, MaxPool { channels_last: true, ..o });
    }
    Ok(())
}

/// Replaces an op by `new`, whose first operands, so many, and result are channels-last.
fn wrap(rw: &mut Rewriter<'_>, op: OpId, images: usize, new: impl of_ir::NewOp) -> Result<(), Diagnostic> {
    let Some(rank) = rank(rw, op).filter(|r| *r >= 3) else { return Ok(()) };
    let to_first: Vec<usize> = [0, rank - 1].into_iter().chain(1..rank - 1).collect();
    let operands = images_last(rw, op, images)?;
    let y = rw.create_one(new, &operands)?;
    let y = rw.create_one(transpose_by(&to_first), &[y])?;
    rw.replace(op, &[y]);
    Ok(())
}

/// The rank of an op's first operand.
fn rank(rw: &Rewriter<'_>, op: OpId) -> Option<usize> {
    rw.graph().ty(rw.graph().op(op).operands[0]).as_tensor().and_then(|t| t.rank())
}

/// The operands of an op before it, of which the first ones, so many, become channels-last.
fn images_last(rw: &mut Rewriter<'_>, op: OpId, images: usize) -> Result<Vec<ValueId>, Diagnostic> {
    let mut operands = rw.graph().op(op).operands.to_vec();
    let to_last: Vec<usize> = std::iter::once(0).chain(2..rank(rw, op).unwrap_or(0)).chain([1]).collect();
    rw.rewrite(op, &[]);
    for image in operands.iter_mut().take(images) {
        *image = rw.create_one(transpose_by(&to_last), &[*image])?;
    }
    Ok(operands)
}

/// f(transpose_p(x), …) = transpose_p(f(x, …))
fn sink(rw: &mut Rewriter<'_>, op: OpId) -> Result<bool, Diagnostic> {
    let g = rw.graph();
    let data = g.op(op);
    if data.results.len() != 1 {
        return Ok(false);
    }
    match data.name() {
        Reshape::NAME => return sink_repeat(rw, op),
        Transpose::NAME => return compose(rw, op),
        _ => {}
    }
    let found = data.operands.iter().find_map(|v| transposed(rw, *v).map(|(_, p)| (*v, p)));
    let Some((turned, p)) = found else { return Ok(false) };
    // A matrix is no image: behind each of several readers there would be a transpose that nothing cancels.
    if p.len() == 2 && g.uses(turned).len() > 1 {
        return Ok(false);
    }
    if of_ops::get(g, op).is_some_and(|o| o.scalar().is_some()) {
        return sink_elementwise(rw, op, &p);
    }
    match data.name() {
        ReduceSum::NAME | ReduceMax::NAME | ReduceMin::NAME | ReduceProd::NAME => sink_reduce(rw, op, &p),
        Concat::NAME => sink_concat(rw, op, &p),
        Slice::NAME => sink_slice(rw, op, &p),
        Pad::NAME => sink_pad(rw, op, &p),
        ScatterNd::NAME => sink_scatter(rw, op, &p),
        Resize::NAME => sink_resize(rw, op, &p),
        _ => Ok(false),
    }
}

/// transpose_p(transpose_q(x)) = transpose_(q∘p)(x), as `canonicalize` does, but in the same walk: otherwise each transpose of a chain
/// would take a walk of its own.
fn compose(rw: &mut Rewriter<'_>, op: OpId) -> Result<bool, Diagnostic> {
    let Some((x, p)) = transposed(rw, rw.graph().op(op).results[0]) else { return Ok(false) };
    let Some((source, q)) = transposed(rw, x) else { return Ok(false) };
    let composed: Vec<usize> = p.iter().map(|axis| q[*axis]).collect();
    rw.rewrite(op, &[]);
    let y = if composed.is_sorted() { source } else { rw.create_one(transpose_by(&composed), &[source])? };
    rw.replace(op, &[y]);
    Ok(true)
}

/// The source and permutation where a transpose of full rank defines `v`.
fn transposed(rw: &Rewriter<'_>, v: ValueId) -> Option<(ValueId, Vec<usize>)> {
    let (op, t) = def::<Transpose>(rw.graph(), v)?;
    let source = rw.graph().op(op).operands[0];
    let rank = rw.graph().ty(source).as_tensor()?.rank()?;
    Some((source, permutation(&t, rank)))
}

fn inverse(p: &[usize]) -> Vec<usize> {
    let mut out = vec![0; p.len()];
    p.iter().enumerate().for_each(|(i, a)| out[*a] = i);
    out
}

/// `v` before transpose `p`: the source of the transpose, or a constant or small tensor transposed back. `None` where
/// that needs a real transpose.
fn turned_back(rw: &mut Rewriter<'_>, v: ValueId, p: &[usize]) -> Result<Option<ValueId>, Diagnostic> {
    if let Some((source, q)) = transposed(rw, v)
        && q == p
    {
        return Ok(Some(source));
    }
    // A splat has no layout.
    if let Some((expand, _)) = def::<Expand>(rw.graph(), v)
        && let [one, shape] = rw.graph().op(expand).operands[..]
        && dims(rw.graph(), one).is_some_and(|d| d.iter().all(|n| *n == 1))
        && rw.graph().ty(v).as_tensor().and_then(|t| t.rank()) == Some(p.len())
    {
        let order = constant_ints(rw, &inverse(p).into_iter().map(|a| a as i64).collect::<Vec<_>>())?;
        let shape = rw.create_one(Gather { axis: 0 }, &[shape, order])?;
        return Ok(Some(rw.create_one(Expand {}, &[one, shape])?));
    }
    let Some(own) = dims(rw.graph(), v) else { return Ok(None) };
    // Operands of lower rank are broadcast at the front.
    let mut full = vec![1; p.len().saturating_sub(own.len())];
    full.extend(&own);
    if full.len() != p.len() {
        return Ok(None);
    }
    let moves_data = {
        let kept: Vec<usize> = inverse(p).into_iter().filter(|a| full[*a] != 1).collect();
        !kept.is_sorted()
    };
    if moves_data && rw.graph().constant(v).is_none() {
        return Ok(None);
    }
    if own.iter().all(|d| *d == 1) && own.len() <= 1 {
        return Ok(Some(v));
    }
    let v = if own.len() == p.len() { v } else { crate::builders::reshape_to(rw, v, &full)? };
    Ok(Some(rw.create_one(transpose_by(&inverse(p)), &[v])?))
}

fn sink_elementwise(rw: &mut Rewriter<'_>, op: OpId, p: &[usize]) -> Result<bool, Diagnostic> {
    let data = rw.graph().op(op);
    let (def, attrs, operands) = (data.def, data.attrs.clone(), data.operands.clone());
    if rw.graph().ty(data.results[0]).as_tensor().and_then(|t| t.rank()) != Some(p.len()) {
        return Ok(false);
    }
    rw.rewrite(op, &[]);
    let mut new = Vec::with_capacity(operands.len());
    for v in &operands {
        match turned_back(rw, *v, p)? {
            Some(v) => new.push(v),
            None => return Ok(false),
        }
    }
    let y = rw.create_one((def, attrs), &new)?;
    finish(rw, op, y, p)
}

fn finish(rw: &mut Rewriter<'_>, op: OpId, y: ValueId, p: &[usize]) -> Result<bool, Diagnostic> {
    let y = rw.create_one(transpose_by(p), &[y])?;
    rw.replace(op, &[y]);
    Ok(true)
}

fn constant_ints(rw: &mut Rewriter<'_>, v: &[i64]) -> Result<ValueId, Diagnostic> {
    rw.create_one(Constant { value: Tensor::from_i64s(v) }, &[])
}

/// Axes before the transpose.
fn axes_before(axes: &[i64], p: &[usize]) -> Option<Vec<i64>> {
    let rank = p.len() as i64;
    axes.iter().map(|a| Some(*p.get(usize::try_from(if *a < 0 { a + rank } else { *a }).ok()?)? as i64)).collect()
}

fn sink_reduce(rw: &mut Rewriter<'_>, op: OpId, p: &[usize]) -> Result<bool, Diagnostic> {
    let data = rw.graph().op(op);
    let (def, attrs, operands) = (data.def, data.attrs.clone(), data.operands.clone());
    if attrs.typed::<bool>("keepdims") != Ok(true) {
        return Ok(false);
    }
    let Some(axes) = operands.get(1).and_then(|a| ints(rw.graph(), *a)).and_then(|a| axes_before(&a, p)) else {
        return Ok(false);
    };
    let Some((x, _)) = transposed(rw, operands[0]) else { return Ok(false) };
    rw.rewrite(op, &[]);
    let axes = constant_ints(rw, &axes)?;
    let y = rw.create_one((def, attrs), &[x, axes])?;
    finish(rw, op, y, p)
}

fn sink_concat(rw: &mut Rewriter<'_>, op: OpId, p: &[usize]) -> Result<bool, Diagnostic> {
    let Some(concat) = as_op::<Concat>(rw.graph(), op) else { return Ok(false) };
    let operands = rw.graph().op(op).operands.clone();
    let Some(axis) = axes_before(&[concat.axis], p).map(|a| a[0]) else { return Ok(false) };
    rw.rewrite(op, &[]);
    let mut new = Vec::with_capacity(operands.len());
    for v in &operands {
        match turned_back(rw, *v, p)? {
            Some(v) => new.push(v),
            None => return Ok(false),
        }
    }
    let y = rw.create_one(Concat { axis }, &new)?;
    finish(rw, op, y, p)
}

/// Scatters rows to rows; the layout within a row does not matter.
fn sink_scatter(rw: &mut Rewriter<'_>, op: OpId, p: &[usize]) -> Result<bool, Diagnostic> {
    let Some(scatter) = as_op::<ScatterNd>(rw.graph(), op) else { return Ok(false) };
    let [x, rows, updates] = rw.graph().op(op).operands[..] else { return Ok(false) };
    let column = |s: &[of_ir::Dim]| s.len() == 2 && s[1].as_const() == Some(1);
    let named = rw.graph().ty(rows).as_tensor().and_then(|t| t.shape.as_ref());
    if p[0] != 0 || !named.is_some_and(|s| column(s)) {
        return Ok(false);
    }
    rw.rewrite(op, &[]);
    let (Some(x), Some(updates)) = (turned_back(rw, x, p)?, turned_back(rw, updates, p)?) else { return Ok(false) };
    let y = rw.create_one(scatter, &[x, rows, updates])?;
    finish(rw, op, y, p)
}

/// repeat(transpose_p(x)) = transpose_p(repeat(x)), where a reshape, an expand and a reshape repeat the elements of axes, as an
/// enlargement to the nearest element does.
fn sink_repeat(rw: &mut Rewriter<'_>, op: OpId) -> Result<bool, Diagnostic> {
    let Some(Repeat { x, p, from, factors }) = repeat_of_transpose(rw, op) else { return Ok(false) };
    rw.rewrite(op, &[]);
    let back = inverse(&p);
    let before = |list: &[usize]| back.iter().map(|axis| list[*axis]).collect::<Vec<_>>();
    let y = crate::builders::repeated(rw, x, &before(&from), &before(&factors))?;
    finish(rw, op, y, &p)
}

/// A transpose whose elements are repeated.
struct Repeat {
    /// Its source.
    x: ValueId,
    /// Its permutation.
    p: Vec<usize>,
    /// The extents of its result.
    from: Vec<usize>,
    /// How often the elements of each axis are repeated.
    factors: Vec<usize>,
}

/// The transpose that a reshape, an expand and the reshape `op` repeat.
fn repeat_of_transpose(rw: &Rewriter<'_>, op: OpId) -> Option<Repeat> {
    let g = rw.graph();
    let operand = |op: OpId| g.op(op).operands[0];
    let wide = operand(op);
    let column = operand(def::<Expand>(g, wide)?.0);
    let narrow = operand(def::<Reshape>(g, column)?.0);
    let (x, p) = transposed(rw, narrow)?;
    let (from, split, expanded, to) =
        (dims(g, narrow)?, dims(g, column)?, dims(g, wide)?, dims(g, g.op(op).results[0])?);
    if split.len() != expanded.len() || to.len() != from.len() {
        return None;
    }
    let (mut at, mut factors) = (0, Vec::with_capacity(from.len()));
    for (axis, extent) in from.iter().enumerate() {
        if split.get(at) != Some(extent) || expanded[at] != *extent {
            return None;
        }
        at += 1;
        let mut factor = 1;
        while split.get(at) == Some(&1) && split.len() - at > from.len() - axis - 1 {
            factor *= expanded[at];
            at += 1;
        }
        factors.push(factor);
    }
    let whole = from.iter().zip(&factors).map(|(d, f)| d * f).eq(to.iter().copied());
    (at == split.len() && whole && factors.iter().any(|f| *f > 1)).then_some(Repeat { x, p, from, factors })
}

/// resize(transpose_p(x)) = transpose_p(resize(x)), where the op repeats elements and extents are open. With fixed extents it was
/// replaced before.
fn sink_resize(rw: &mut Rewriter<'_>, op: OpId, p: &[usize]) -> Result<bool, Diagnostic> {
    let g = rw.graph();
    let Some(resize) = as_op::<Resize>(g, op).filter(|r| r.repeats_elements() && r.axes.is_none()) else {
        return Ok(false);
    };
    let [x, region, scales, ref sizes @ ..] = g.op(op).operands[..] else { return Ok(false) };
    let Some((x, _)) = transposed(rw, x) else { return Ok(false) };
    let Some(scales) = g.constant(scales).and_then(|t| t.to_f64s()).filter(|s| s.len() == p.len()) else {
        return Ok(false);
    };
    if sizes.iter().any(|v| *g.ty(*v) != Type::None) {
        return Ok(false);
    }
    let before: Vec<f32> = inverse(p).into_iter().map(|axis| scales[axis] as f32).collect();
    let Ok(scales) = Tensor::from_slice(&[before.len()], &before) else { return Ok(false) };
    rw.rewrite(op, &[]);
    let scales = rw.create_one(Constant { value: scales }, &[])?;
    let y = rw.create_one(resize, &[x, region, scales])?;
    finish(rw, op, y, p)
}

fn sink_slice(rw: &mut Rewriter<'_>, op: OpId, p: &[usize]) -> Result<bool, Diagnostic> {
    let data = rw.graph().op(op);
    let (def, attrs, operands) = (data.def, data.attrs.clone(), data.operands.to_vec());
    let Some((x, _)) = transposed(rw, operands[0]) else { return Ok(false) };
    let Some(starts) = ints(rw.graph(), operands[1]) else { return Ok(false) };
    let axes = match operands.get(3).filter(|v| *rw.graph().ty(**v) != Type::None) {
        Some(v) => ints(rw.graph(), *v),
        None => Some((0..starts.len() as i64).collect()),
    };
    let Some(axes) = axes.and_then(|a| axes_before(&a, p)) else { return Ok(false) };
    rw.rewrite(op, &[]);
    let mut new = operands.clone();
    new[0] = x;
    let axes = constant_ints(rw, &axes)?;
    new.truncate(3);
    new.push(axes);
    new.extend(operands.get(4));
    let y = rw.create_one((def, attrs), &new)?;
    finish(rw, op, y, p)
}

fn sink_pad(rw: &mut Rewriter<'_>, op: OpId, p: &[usize]) -> Result<bool, Diagnostic> {
    let data = rw.graph().op(op);
    let (def, attrs, operands) = (data.def, data.attrs.clone(), data.operands.to_vec());
    let Some((x, _)) = transposed(rw, operands[0]) else { return Ok(false) };
    // With an operand of axes the pads need no reordering beyond the axes; without one they name every axis in order.
    let Some(pads) = ints(rw.graph(), operands[1]) else { return Ok(false) };
    if operands.get(3).is_some_and(|v| *rw.graph().ty(*v) != Type::None) || pads.len() != 2 * p.len() {
        return Ok(false);
    }
    let mut before = vec![0; pads.len()];
    for (i, a) in p.iter().enumerate() {
        before[*a] = pads[i];
        before[p.len() + a] = pads[p.len() + i];
    }
    rw.rewrite(op, &[]);
    let mut new = operands.clone();
    new[0] = x;
    new[1] = constant_ints(rw, &before)?;
    let y = rw.create_one((def, attrs), &new)?;
    finish(rw, op, y, p)
}
