//! Legalization: ops that ONNX lacks are rewritten into ops that it has.

use of_diag::{Code, Diagnostic, Diagnostics};
use of_ir::{Attr, DType, Elements, Func, NewOp, OpId, Rewriter, Tensor, Type, ValueId};
use of_ops::contraction::Einsum;
use of_ops::control::{If, Loop, OptionalOf, Scan};
use of_ops::elementwise::{
    Add, And, BitwiseNot, Cast, Ceil, Clip, Eq, Floor, Fmod, Lt, Mod, Ne, Neg, Not, PRelu, Pow, Reciprocal, Round,
    Rsqrt, Select, Shl, Shr, Sqrt, Sub, Xor,
};
use of_ops::list::as_op;
use of_ops::ml::{PairwiseCoupling, TreeEnsemble};
use of_ops::movement::{Compress, Expand, OneHot, Range, Reshape, Split, Squeeze, Transpose, Trilu, Unsqueeze};
use of_ops::nn::{Attention, ConvTranspose, MeanVarianceNorm, MelWeightMatrix, Resize};
use of_ops::random::{RandomNormal, RandomUniform};
use of_ops::reduction::{
    CumProd, CumSum, Hardmax, ReduceL1, ReduceL2, ReduceLogSum, ReduceLogSumExp, ReduceMax, ReduceMean, ReduceMin,
    ReduceProd, ReduceSum, ReduceSumSquare, TopK,
};
use of_ops::structural::{Constant, ShapeOf};
use of_ops::{Kind, OpSpec};

use super::attribute_mapping::whole_shape;
use super::graph::operator;
use super::opset;
use super::type_constraints;

/// Rewritten ops may need rewriting in turn; deeper nesting than this never ends.
const DEEPEST: usize = 16;

/// Rewrites every op that has no counterpart up to operator set `newest`.
///
/// # Errors
/// When an op must be rewritten and cannot: the rank of an operand is not known.
pub(super) fn legalize(func: &mut Func, newest: i64) -> Result<(), Diagnostics> {
    for _ in 0..DEEPEST {
        let mut rw = Rewriter::new(&mut func.graph, "export");
        let mut changed = false;
        for op in rw.graph().walk() {
            if rw.graph().is_live(op) {
                let loc = rw.graph().op(op).loc.clone();
                changed |= rewrite(&mut rw, op, newest).map_err(|d| d.or_at(&loc))?;
            }
        }
        if !changed {
            return Ok(());
        }
    }
    Err(Diagnostic::error(Code::CODEGEN, func.loc.clone(), "the rewriting for ONNX does not end").into())
}

/// Rewrites one op if need be.
fn rewrite(rw: &mut Rewriter<'_>, op: OpId, newest: i64) -> Result<bool, Diagnostic> {
    let data = rw.graph().op(op);
    if data.attrs.get("channels_last") == Some(&Attr::Bool(true)) {
        return if operator(data).is_some() { channels_first(rw, op) } else { expand(rw, op) };
    }
    if matches!(data.name(), RandomUniform::NAME | RandomNormal::NAME) {
        return random(rw, op);
    }
    if matches!(data.name(), Loop::NAME | If::NAME | Scan::NAME) && data.results.is_empty() {
        // An op without results has no effect.
        rw.erase(op);
        return Ok(true);
    }
    if data.name() == Loop::NAME {
        return optional_state(rw, op);
    }
    let Some(x) = data.operands.first().copied() else { return Ok(false) };
    let Some(t) = rw.graph().ty(x).as_tensor() else { return Ok(false) };
    let dtype = t.dtype;
    let mut b = Build { rw, op };
    match b.rw.graph().op(op).name() {
        Rsqrt::NAME => b.replace(|b, v| {
            let root = b.op(Sqrt {}, &[v[0]])?;
            b.op(Reciprocal {}, &[root])
        }),
        Ne::NAME => b.replace(|b, v| {
            let equal = b.op(Eq {}, &[v[0], v[1]])?;
            b.op(Not {}, &[equal])
        }),
        Mod::NAME if dtype.is_float() => b.replace(|b, v| modulo(b, v[0], v[1], dtype)),
        Neg::NAME if dtype.is_int() && !dtype.is_signed_int() => b.replace(|b, v| {
            let zero = b.number(0.0, dtype)?;
            b.op(Sub {}, &[zero, v[0]])
        }),
        Floor::NAME | Ceil::NAME | Round::NAME if !dtype.is_float() => b.same(),
        Shl::NAME if dtype.is_signed_int() => b.replace(|b, v| {
            let (x, n) = (b.cast(v[0], unsigned(dtype))?, b.cast(v[1], unsigned(dtype))?);
            let y = b.op(Shl {}, &[x, n])?;
            b.cast(y, dtype)
        }),
        Shr::NAME if dtype.is_signed_int() => b.replace(|b, v| shift_right(b, v[0], v[1], dtype)),
        Clip::NAME if !b.scalars(1) => expand(b.rw, op),
        Split::NAME => split(b.rw, op),
        // ONNX broadcasts the slope alone.
        PRelu::NAME if b.broadcasts() => expand(b.rw, op),
        OneHot::NAME if b.rank(x) == Some(0) => one_hot(&mut b),
        Cast::NAME if dtype.is_float() => saturate(&mut b, dtype),
        Hardmax::NAME if b.rank(x) == Some(0) => b.replace(|b, v| {
            let row = b.shaped(v[0], &[1])?;
            let y = b.op(Hardmax { axis: 0 }, &[row])?;
            b.shaped(y, &[])
        }),
        // ONNX wants an axis. A number has none, so the op compresses the flattened operand.
        Compress::NAME if b.rank(x) == Some(0) => b.replace(|b, v| {
            let row = b.shaped(v[0], &[1])?;
            b.op(Compress { axis: None }, &[row, v[1]])
        }),
        MeanVarianceNorm::NAME if dtype != DType::F32 => expand(b.rw, op),
        PairwiseCoupling::NAME if matches!(dtype, DType::F16 | DType::BF16) => convert(&mut b, &[Some(DType::F32)]),
        Attention::NAME if b.rank(x) != Some(4) && b.ranks(3).contains(&Some(4)) => expand(b.rw, op),
        Attention::NAME if b.rank(x) != Some(3) && b.ranks(3).contains(&Some(3)) => expand(b.rw, op),
        Einsum::NAME if b.uneven_ellipses() => expand(b.rw, op),
        Resize::NAME if b.axes_from_the_end().is_some() => axes_from_the_start(&mut b),
        ConvTranspose::NAME if padded_by_itself(&b).is_some() => explicit_pads(&mut b),
        // Runtimes want thresholds of the type that they compute with.
        TreeEnsemble::NAME if !matches!(dtype, DType::F64 | DType::F32) => convert(&mut b, &[Some(DType::F32)]),
        _ if misshapen(&b).is_some() => parameters(&mut b),
        // Signed and unsigned integer products wrap to the same bits.
        Pow::NAME if dtype == DType::U64 => convert(&mut b, &[Some(DType::I64), Some(DType::I64)]),
        name => {
            let g = b.rw.graph();
            let data = g.op(op);
            let written = operator(data);
            let young = written.is_some_and(|o| opset::needed(g, data, o) > newest);
            let schema = written.filter(|_| !young).and_then(|o| type_constraints::version(o, newest));
            if let Some(s) = schema.filter(|s| s.unfit(g, &data.operands, &data.results).is_some()) {
                if let Some(to) = s.wider(g, &data.operands).filter(|to| to.iter().any(Option::is_some)) {
                    return convert(&mut b, &to);
                }
                return if is_composite(name) { expand(b.rw, op) } else { Ok(false) };
            }
            let has_parts = || of_ops::get(g, op).is_some_and(|o| o.expands() && o.scalar().is_none());
            let expands = is_composite(name) && young || written.is_none() && has_parts();
            if expands { expand(b.rw, op) } else { Ok(false) }
        }
    }
}

fn is_composite(name: &str) -> bool {
    of_ops::list::decl(name).is_some_and(|d| d.kind() == Kind::Composite)
}

/// Replaces a composite by its expansion.
fn expand(rw: &mut Rewriter<'_>, op: OpId) -> Result<bool, Diagnostic> {
    let data = rw.graph().op(op);
    let (name, loc, operands) = (data.name(), data.loc.clone(), data.operands.clone());
    let Some(imp) = of_ops::get(rw.graph(), op) else { return Ok(false) };
    let ranked = |v: &ValueId| rw.graph().ty(*v).as_tensor().is_none_or(|t| t.shape.is_some());
    let refuse = |why: &str| {
        let what = format!("'{name}' has no operator of these types in ONNX, and does not expand: {why}");
        Diagnostic::error(Code::UNSUPPORTED, loc.clone(), what)
            .hint("give the model fixed shapes, or allow a newer operator set")
    };
    if !operands.iter().all(ranked) {
        return Err(refuse("the rank of an operand is not known"));
    }
    rw.rewrite(op, &[]);
    let values = imp.expand(rw, &operands).map_err(|d| refuse(&d.message))?;
    if values.len() != rw.graph().op(op).results.len() {
        return Err(refuse("its expansion has another number of results"));
    }
    rw.replace(op, &values);
    Ok(true)
}

/// An op whose data has its channels last, between transposes.
fn channels_first(rw: &mut Rewriter<'_>, op: OpId) -> Result<bool, Diagnostic> {
    let data = rw.graph().op(op);
    let (def, mut attrs, mut operands) = (data.def, data.attrs.clone(), data.operands.to_vec());
    let rank = operands.first().and_then(|v| rw.graph().ty(*v).as_tensor()?.rank());
    let Some(rank) = rank else {
        let what = format!("'{}' with channels last has an operand of unknown rank", data.name());
        return Err(Diagnostic::error(Code::UNSUPPORTED, data.loc.clone(), what)
            .hint("give the model shapes, or export it before 'channels-last'"));
    };
    let rank = rank as i64;
    let to_first: Vec<i64> = [0, rank - 1].into_iter().chain(1..rank - 1).collect();
    let to_last: Vec<i64> = std::iter::once(0).chain(2..rank).chain([1]).collect();
    attrs.set("channels_last", Attr::Bool(false));
    rw.rewrite(op, &[]);
    operands[0] = rw.create_one(Transpose { perm: Some(to_first) }, &[operands[0]])?;
    let new = rw.create((def, attrs), &operands)?;
    // Positions of maxima count in `[N, C, spatial…]` whatever the layout.
    let pairs: Vec<(ValueId, ValueId)> = {
        let results = |op: OpId| rw.graph().op(op).results.clone();
        results(new).into_iter().zip(results(op)).collect()
    };
    let mut last = Vec::with_capacity(pairs.len());
    for (y, old) in pairs {
        let ty = rw.graph().ty(old).clone();
        let y = rw.create_one(Transpose { perm: Some(to_last.clone()) }, &[y])?;
        rw.set_type(y, ty);
        last.push(y);
    }
    rw.replace(op, &last);
    Ok(true)
}

/// A conversion of real numbers to short integers saturates; ONNX leaves open what becomes of numbers out of range.
fn saturate(b: &mut Build<'_, '_>, from: DType) -> Result<bool, Diagnostic> {
    let Some(Cast { to, .. }) = as_op::<Cast>(b.rw.graph(), b.op) else { return Ok(false) };
    let short = matches!(to, DType::I8 | DType::U8 | DType::I16 | DType::U16);
    let Some((low, high)) = to.int_range().filter(|_| short) else { return Ok(false) };
    let g = b.rw.graph();
    let bounded = g.def_op(g.op(b.op).operands[0]).map(|d| g.op(d)).filter(|d| d.name() == Clip::NAME);
    // The bounds as numbers of that type.
    let [low, high] = [low, high].map(|x| Tensor::from_elements(from, vec![], Elements::Int(vec![x])));
    let invalid = |e: of_ir::TensorError| crate::tensor::invalid(e.to_string());
    let (low, high) = (low.map_err(invalid)?, high.map_err(invalid)?);
    let bound = |i: usize| {
        let v = bounded.and_then(|d| d.operands.get(i).copied())?;
        g.constant(v)?.to_f64s()?.first().copied()
    };
    let within = |x: Option<f64>, t: &Tensor, side: std::cmp::Ordering| {
        let limit = t.to_f64s().and_then(|v| v.first().copied());
        x.zip(limit).and_then(|(x, limit)| x.partial_cmp(&limit)).is_some_and(|o| o != side)
    };
    if within(bound(1), &low, std::cmp::Ordering::Less) && within(bound(2), &high, std::cmp::Ordering::Greater) {
        return Ok(false);
    }
    b.replace(|b, v| {
        let (low, high) = (b.op(Constant { value: low }, &[])?, b.op(Constant { value: high }, &[])?);
        let x = b.op(Clip {}, &[v[0], low, high])?;
        b.cast(x, to)
    })
}

/// The row of one index: ONNX requires indices of rank 1 or more.
fn one_hot(b: &mut Build<'_, '_>) -> Result<bool, Diagnostic> {
    b.replace(|b, v| {
        let row = b.op(Constant { value: Tensor::from_i64s(&[-1]) }, &[])?;
        let index = b.op(Reshape { allowzero: false }, &[v[0], row])?;
        let y = b.op(OneHot { axis: -1 }, &[index, v[1], v[2]])?;
        b.op(Reshape { allowzero: false }, &[y, row])
    })
}

/// Operands that hold a number or a list of numbers, and the rank that operators want of them; ops take any.
const PARAMETERS: &[(&[&str], &[usize], usize)] = &[
    (&[Range::NAME], &[0, 1, 2], 0),
    (&[MelWeightMatrix::NAME], &[0, 1, 2, 3, 4], 0),
    (&[OneHot::NAME, CumSum::NAME, CumProd::NAME, Trilu::NAME], &[1], 0),
    (&[TopK::NAME, Squeeze::NAME, Unsqueeze::NAME], &[1], 1),
    (&[ReduceL1::NAME, ReduceL2::NAME, ReduceLogSum::NAME, ReduceLogSumExp::NAME, ReduceMax::NAME], &[1], 1),
    (&[ReduceMean::NAME, ReduceMin::NAME, ReduceProd::NAME, ReduceSum::NAME, ReduceSumSquare::NAME], &[1], 1),
];

/// The operands of another rank than the operator wants, and that rank.
fn misshapen(b: &Build<'_, '_>) -> Option<(Vec<usize>, usize)> {
    let data = b.rw.graph().op(b.op);
    let (_, at, rank) = PARAMETERS.iter().find(|(names, ..)| names.contains(&data.name()))?;
    let one = |v: ValueId| {
        let dims = b.rw.graph().ty(v).as_tensor().and_then(|t| t.fixed_dims());
        dims.is_some_and(|d| d.iter().product::<usize>() == 1)
    };
    let wrong = |i: &usize| {
        let Some(v) = data.operands.get(*i) else { return false };
        b.rank(*v).is_some_and(|r| r != *rank) && (*rank == 1 || one(*v))
    };
    let wrong: Vec<usize> = at.iter().copied().filter(wrong).collect();
    (!wrong.is_empty()).then_some((wrong, *rank))
}

fn parameters(b: &mut Build<'_, '_>) -> Result<bool, Diagnostic> {
    let Some((wrong, rank)) = misshapen(b) else { return Ok(false) };
    b.rw.rewrite(b.op, &[]);
    for i in wrong {
        let v = b.rw.graph().op(b.op).operands[i];
        let v = b.shaped(v, if rank == 0 { &[] } else { &[-1] })?;
        b.rw.set_operand(b.op, i, v);
    }
    Ok(true)
}

/// Runtimes do not support negative axes of Resize, although ONNX does.
fn axes_from_the_start(b: &mut Build<'_, '_>) -> Result<bool, Diagnostic> {
    let Some(axes) = b.axes_from_the_end() else { return Ok(false) };
    b.rw.rewrite(b.op, &[]);
    b.rw.set_attr(b.op, "axes", Attr::Ints(axes));
    Ok(true)
}

/// The pads of a transposed convolution with an `output_padding` that works its pads out: the inference of ONNX gives it
/// another shape than its definition.
fn padded_by_itself(b: &Build<'_, '_>) -> Option<Vec<i64>> {
    let g = b.rw.graph();
    let (op, data) = (as_op::<ConvTranspose>(g, b.op)?, g.op(b.op));
    if !op.auto_pad.starts_with("SAME") || op.channels_last || op.output_padding.iter().all(|p| *p == 0) {
        return None;
    }
    let fixed = |v: ValueId| g.ty(v).as_tensor().and_then(|t| t.fixed_dims());
    let (x, w) = (fixed(data.operands[0])?, fixed(data.operands[1])?);
    let y = fixed(data.results[0])?;
    let rank = x.len().checked_sub(2)?;
    let of = |list: &[i64], i: usize, default: i64| list.get(i).copied().unwrap_or(default);
    let total = |i: usize| {
        let reach = (w[i + 2] as i64 - 1) * of(&op.dilations, i, 1) + 1;
        of(&op.strides, i, 1) * (x[i + 2] as i64 - 1) + of(&op.output_padding, i, 0) + reach - y[i + 2] as i64
    };
    let total: Vec<i64> = (0..rank).map(total).collect();
    let upper = &*op.auto_pad == "SAME_UPPER";
    let begin = total.iter().map(|t| if upper { t / 2 } else { t - t / 2 });
    let end = total.iter().map(|t| if upper { t - t / 2 } else { t / 2 });
    total.iter().all(|t| *t >= 0).then(|| begin.chain(end).collect())
}

fn explicit_pads(b: &mut Build<'_, '_>) -> Result<bool, Diagnostic> {
    let Some(pads) = padded_by_itself(b) else { return Ok(false) };
    b.rw.rewrite(b.op, &[]);
    b.rw.set_attr(b.op, "pads", Attr::Ints(pads));
    b.rw.set_attr(b.op, "auto_pad", Attr::Str("NOTSET".into()));
    Ok(true)
}

/// Random numbers of a shape that is computed: ONNX has those of the shape of another value.
fn random(rw: &mut Rewriter<'_>, op: OpId) -> Result<bool, Diagnostic> {
    let g = rw.graph();
    let Some(shape) = g.op(op).operands.first().copied() else { return Ok(false) };
    if g.constant(shape).is_some() || whole_shape(g, shape).is_some() {
        return Ok(false);
    }
    let (def, attrs) = (g.op(op).def, g.op(op).attrs.clone());
    let mut b = Build { rw, op };
    b.replace(|b, _| {
        let zero = b.number(0.0, DType::F32)?;
        let filled = b.op(Expand {}, &[zero, shape])?;
        let shape = b.op(ShapeOf { start: None, end: None }, &[filled])?;
        b.op((def, attrs), &[shape])
    })
}

/// A loop whose state begins as an optional and goes on as a value: in ONNX it stays an optional.
fn optional_state(rw: &mut Rewriter<'_>, op: OpId) -> Result<bool, Diagnostic> {
    let g = rw.graph();
    let Some(body) = g.op(op).regions.first().copied() else { return Ok(false) };
    let (Some(end), args) = (g.terminator(body), g.region_args(body).to_vec()) else { return Ok(false) };
    let mut changed = false;
    // The iteration number comes first, which no body yields, then the condition.
    for (i, arg) in args.into_iter().enumerate().skip(2) {
        let given = rw.graph().op(end).operands[i - 1];
        let optional = |v: ValueId| matches!(rw.graph().ty(v), Type::Optional(_));
        if optional(arg) && !optional(given) {
            rw.rewrite(end, &[]);
            let held = rw.create_one(OptionalOf { element_type: None }, &[given])?;
            rw.set_operand(end, i - 1, held);
            changed = true;
        }
    }
    Ok(changed)
}

/// A split whose last pieces are shorter: ONNX needs explicit lengths.
fn split(rw: &mut Rewriter<'_>, op: OpId) -> Result<bool, Diagnostic> {
    let data = rw.graph().op(op);
    let Some(split) = as_op::<Split>(rw.graph(), op).filter(|_| data.operands.len() == 1) else { return Ok(false) };
    let (x, n) = (data.operands[0], data.results.len());
    let dims = rw.graph().ty(x).as_tensor().and_then(|t| t.fixed_dims());
    let Some(length) = dims.and_then(|d| d.get(of_ops::shape::axis(split.axis, d.len()).ok()?).copied()) else {
        return Ok(false);
    };
    let each = length.div_ceil(n);
    if each * (n - 1) < length {
        return Ok(false);
    }
    let sizes: Vec<i64> = (0..n).map(|i| length.saturating_sub(each * i).min(each) as i64).collect();
    let results = data.results.clone();
    rw.rewrite(op, &[]);
    let sizes = rw.create_one(Constant { value: Tensor::from_i64s(&sizes) }, &[])?;
    let new = rw.create(split, &[x, sizes])?;
    let values = rw.graph().op(new).results.to_vec();
    for (old, new) in results.iter().zip(&values) {
        let ty = rw.graph().ty(*old).clone();
        rw.set_type(*new, ty);
    }
    rw.replace(op, &values);
    Ok(true)
}

/// The op on operands of these types, where they are to have others; its results have the types that they had.
fn convert(b: &mut Build<'_, '_>, to: &[Option<DType>]) -> Result<bool, Diagnostic> {
    let data = b.rw.graph().op(b.op);
    let (def, attrs, operands, results) = (data.def, data.attrs.clone(), data.operands.clone(), data.results.clone());
    b.rw.rewrite(b.op, &[]);
    let mut converted = operands.to_vec();
    for (v, to) in converted.iter_mut().zip(to) {
        if let Some(to) = to.filter(|to| b.dtype(*v).is_some_and(|d| d != *to)) {
            *v = b.cast(*v, to)?;
        }
    }
    let new = b.rw.create((def, attrs), &converted)?;
    let mut values = b.rw.graph().op(new).results.to_vec();
    for (new, old) in values.iter_mut().zip(&results) {
        let ty = b.rw.graph().ty(*old).clone();
        if let Some(dtype) = ty.as_tensor().map(|t| t.dtype).filter(|d| b.dtype(*new) != Some(*d)) {
            *new = b.cast(*new, dtype)?;
        }
        b.rw.set_type(*new, ty);
    }
    b.rw.replace(b.op, &values);
    Ok(true)
}

/// The remainder with the sign of the divisor, from the one with the sign of the dividend.
fn modulo(b: &mut Build<'_, '_>, x: ValueId, y: ValueId, dtype: DType) -> BuildResult {
    let r = b.op(Fmod {}, &[x, y])?;
    let zero = b.number(0.0, dtype)?;
    let (below, divisor) = (b.op(Lt {}, &[r, zero])?, b.op(Lt {}, &[y, zero])?);
    let differ = b.op(Xor {}, &[below, divisor])?;
    let is_zero = b.op(Eq {}, &[r, zero])?;
    let is_not = b.op(Not {}, &[is_zero])?;
    let moves = b.op(And {}, &[differ, is_not])?;
    let moved = b.op(Add {}, &[r, y])?;
    b.op(Select {}, &[moves, moved, r])
}

/// A signed shift: for negative values, the shift of the complement.
fn shift_right(b: &mut Build<'_, '_>, x: ValueId, n: ValueId, dtype: DType) -> BuildResult {
    let zero = b.number(0.0, dtype)?;
    let negative = b.op(Lt {}, &[x, zero])?;
    let turned = b.op(BitwiseNot {}, &[x])?;
    let size = b.op(Select {}, &[negative, turned, x])?;
    let (size, n) = (b.cast(size, unsigned(dtype))?, b.cast(n, unsigned(dtype))?);
    let shifted = b.op(Shr {}, &[size, n])?;
    let shifted = b.cast(shifted, dtype)?;
    let turned = b.op(BitwiseNot {}, &[shifted])?;
    b.op(Select {}, &[negative, turned, shifted])
}

fn unsigned(dtype: DType) -> DType {
    match dtype {
        DType::I8 => DType::U8,
        DType::I16 => DType::U16,
        DType::I32 => DType::U32,
        _ => DType::U64,
    }
}

type BuildResult = Result<ValueId, Diagnostic>;

/// Builds the replacement of one op.
struct Build<'r, 'g> {
    rw: &'r mut Rewriter<'g>,
    op: OpId,
}

impl Build<'_, '_> {
    fn op(&mut self, op: impl NewOp, operands: &[ValueId]) -> BuildResult {
        self.rw.create_one(op, operands)
    }

    fn cast(&mut self, v: ValueId, to: DType) -> BuildResult {
        self.op(Cast::to(to), &[v])
    }

    fn number(&mut self, value: f64, dtype: DType) -> BuildResult {
        let value = Tensor::from_elements(dtype, vec![], Elements::Float(vec![value]));
        let value = value.map_err(|e| crate::tensor::invalid(e.to_string()))?;
        self.op(Constant { value }, &[])
    }

    fn dtype(&self, v: ValueId) -> Option<DType> {
        self.rw.graph().ty(v).as_tensor().map(|t| t.dtype)
    }

    fn rank(&self, v: ValueId) -> Option<usize> {
        self.rw.graph().ty(v).as_tensor().and_then(|t| t.rank())
    }

    /// Ranks of the first `n` operands.
    fn ranks(&self, n: usize) -> Vec<Option<usize>> {
        self.rw.graph().op(self.op).operands.iter().take(n).map(|v| self.rank(*v)).collect()
    }

    /// The value in another shape; of a constant, a constant.
    fn shaped(&mut self, v: ValueId, shape: &[i64]) -> BuildResult {
        if let Some(t) = self.rw.graph().constant(v) {
            let dims = if shape.is_empty() { vec![] } else { vec![t.len()] };
            let value = t.reshaped(dims).map_err(|e| crate::tensor::invalid(e.to_string()))?;
            return self.op(Constant { value }, &[]);
        }
        let shape = self.op(Constant { value: Tensor::from_i64s(shape) }, &[])?;
        self.op(Reshape { allowzero: false }, &[v, shape])
    }

    /// The axes of a resampling, counted from the start, if one is counted from the end.
    fn axes_from_the_end(&self) -> Option<Vec<i64>> {
        let g = self.rw.graph();
        let axes = as_op::<Resize>(g, self.op)?.axes.filter(|a| a.iter().any(|a| *a < 0))?;
        let rank = self.rank(g.op(self.op).operands[0])? as i64;
        Some(axes.into_iter().map(|a| if a < 0 { a + rank } else { a }).collect())
    }

    /// Whether the ellipses of an equation cover different numbers of axes, which ONNX forbids.
    fn uneven_ellipses(&self) -> bool {
        let g = self.rw.graph();
        let Some(Einsum { equation }) = as_op::<Einsum>(g, self.op) else { return false };
        let terms = equation.split("->").next().unwrap_or_default().split(',');
        let of = |(term, v): (&str, &ValueId)| {
            let letters = term.chars().filter(char::is_ascii_alphabetic).count();
            term.contains("...").then(|| Some(self.rank(*v)? - letters))?
        };
        let axes: Vec<usize> = terms.zip(&g.op(self.op).operands).filter_map(of).collect();
        axes.windows(2).any(|w| w[0] != w[1])
    }

    /// Whether the result has another shape than the first operand, as far as is known.
    fn broadcasts(&self) -> bool {
        let data = self.rw.graph().op(self.op);
        let shape = |v: ValueId| self.rw.graph().ty(v).as_tensor().and_then(|t| t.shape.clone());
        shape(data.operands[0]) != shape(data.results[0])
    }

    /// Whether the operands from `first` on have rank 0, or are left out.
    fn scalars(&self, first: usize) -> bool {
        let scalar = |v: &ValueId| match self.rw.graph().ty(*v) {
            Type::Tensor(t) => t.rank() == Some(0),
            _ => true,
        };
        self.rw.graph().op(self.op).operands.iter().skip(first).all(scalar)
    }

    /// Replaces the op by the result of `make` on its operands. The result keeps its type, which may say more than
    /// inference does.
    fn replace(&mut self, make: impl FnOnce(&mut Self, &[ValueId]) -> BuildResult) -> Result<bool, Diagnostic> {
        let data = self.rw.graph().op(self.op);
        let (operands, result) = (data.operands.clone(), data.results[0]);
        let ty = self.rw.graph().ty(result).clone();
        self.rw.rewrite(self.op, &[]);
        let y = make(self, &operands)?;
        self.rw.set_type(y, ty);
        self.rw.replace(self.op, &[y]);
        Ok(true)
    }

    /// Replaces the op by its operand.
    fn same(&mut self) -> Result<bool, Diagnostic> {
        let x = self.rw.graph().op(self.op).operands[0];
        self.rw.replace(self.op, &[x]);
        Ok(true)
    }
}
