//! Ops that ONNX has no word for, rewritten into ops that it has.

use of_diag::{Code, Diagnostic, Diagnostics};
use of_ir::{Attr, DType, Elements, Func, NewOp, OpId, Rewriter, Tensor, Type, ValueId};
use of_ops::contraction::{Gemm, MatMul};
use of_ops::control::{Loop, OptionalOf};
use of_ops::elementwise::{
    Add, And, BitNot, Cast, Ceil, Clip, Eq, Floor, Fmod, Ge, Gt, Le, Lt, MeanOf, Mod, Ne, Neg, Not, PRelu, Pow, Recip,
    Relu, Round, Rsqrt, Select, Shl, Shr, Sqrt, Sub, SumOf, Xor,
};
use of_ops::list::as_op;
use of_ops::ml::TreeEnsemble;
use of_ops::movement::{Expand, OneHot, Reshape, Split, Transpose};
use of_ops::random::{RandomNormal, RandomUniform};
use of_ops::reduction::{
    CumSum, ReduceL1, ReduceL2, ReduceLogSum, ReduceLogSumExp, ReduceMax, ReduceMean, ReduceMin, ReduceProd, ReduceSum,
    ReduceSumSquare,
};
use of_ops::structural::{Constant, ShapeOf};
use of_ops::{Kind, OpSpec};

use super::graph::operator;
use super::opset;
use super::spelling::whole_shape;

/// Rewritten ops may need rewriting in turn; deeper nesting than this never ends.
const DEEPEST: usize = 16;

const WIDE: &[DType] = &[DType::I32, DType::I64, DType::U32, DType::U64];
const WIDE_AND_BYTES: &[DType] = &[DType::I32, DType::I64, DType::U32, DType::U64, DType::I8, DType::U8];
const SIGNED: &[DType] = &[DType::I8, DType::I16, DType::I32, DType::I64];
const INTEGERS: &[DType] =
    &[DType::I8, DType::I16, DType::I32, DType::I64, DType::U8, DType::U16, DType::U32, DType::U64];

/// Ops that take more element types than their operators: the types that are no floats and that the operator takes, and
/// the type that computes the same for the others. Composites are expanded instead.
const NARROWER: &[(&[&str], &[DType], DType)] = &[
    (&[MatMul::NAME, Gemm::NAME, CumSum::NAME, ReduceSum::NAME, ReduceProd::NAME], WIDE, DType::I32),
    (&[ReduceL1::NAME, ReduceL2::NAME, ReduceLogSum::NAME, ReduceLogSumExp::NAME], WIDE, DType::I32),
    (&[ReduceMean::NAME, ReduceSumSquare::NAME], WIDE, DType::I32),
    (&[ReduceMax::NAME, ReduceMin::NAME], WIDE_AND_BYTES, DType::I32),
    (&[Lt::NAME, Le::NAME, Gt::NAME, Ge::NAME], INTEGERS, DType::I32),
    (&[Pow::NAME], &[DType::I32, DType::I64], DType::I64),
    (&[Relu::NAME], SIGNED, DType::I32),
    (&[SumOf::NAME, MeanOf::NAME], &[], DType::I32),
];

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
        return channels_first(rw, op);
    }
    if matches!(data.name(), RandomUniform::NAME | RandomNormal::NAME) {
        return random(rw, op);
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
            b.op(Recip {}, &[root])
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
        // ONNX stretches the slope alone.
        PRelu::NAME if b.stretched() => expand(b.rw, op),
        OneHot::NAME if b.rank(x) == Some(0) => one_hot(&mut b),
        Cast::NAME if dtype.is_float() => saturate(&mut b, dtype),
        TreeEnsemble::NAME if !matches!(dtype, DType::F32 | DType::F64) => via(&mut b, dtype, DType::F32),
        name => {
            let narrower = NARROWER.iter().find(|(names, ..)| names.contains(&name));
            match narrower {
                Some((_, takes, wide)) if !dtype.is_float() && !takes.contains(&dtype) => {
                    if is_composite(name) {
                        expand(b.rw, op)
                    } else {
                        via(&mut b, dtype, *wide)
                    }
                }
                _ => {
                    let data = b.rw.graph().op(op);
                    let written = operator(data);
                    let young = written.is_some_and(|o| opset::needed(b.rw.graph(), data, o) > newest);
                    if (young || written.is_none()) && is_composite(name) { expand(b.rw, op) } else { Ok(false) }
                }
            }
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
    let (Some(rank), 1) = (rank, data.results.len()) else {
        let what = format!("'{}' with channels last has no counterpart in ONNX", data.name());
        return Err(Diagnostic::error(Code::UNSUPPORTED, data.loc.clone(), what)
            .hint("export the model before 'channels-last'"));
    };
    let rank = rank as i64;
    let to_first: Vec<i64> = [0, rank - 1].into_iter().chain(1..rank - 1).collect();
    let to_last: Vec<i64> = std::iter::once(0).chain(2..rank).chain([1]).collect();
    attrs.set("channels_last", Attr::Bool(false));
    let mut b = Build { rw, op };
    b.replace(|b, _| {
        operands[0] = b.op(Transpose { perm: Some(to_first) }, &[operands[0]])?;
        let y = b.op((def, attrs), &operands)?;
        b.op(Transpose { perm: Some(to_last) }, &[y])
    })
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

/// The row of one index: ONNX wants indices of rank 1 at least.
fn one_hot(b: &mut Build<'_, '_>) -> Result<bool, Diagnostic> {
    b.replace(|b, v| {
        let row = b.op(Constant { value: Tensor::from_i64s(&[-1]) }, &[])?;
        let index = b.op(Reshape { allowzero: false }, &[v[0], row])?;
        let y = b.op(OneHot { axis: -1 }, &[index, v[1], v[2]])?;
        b.op(Reshape { allowzero: false }, &[y, row])
    })
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
    // The number of the iteration comes first, which no body gives back, then the condition.
    for (i, arg) in args.into_iter().enumerate().skip(2) {
        let given = rw.graph().op(end).operands[i - 1];
        let optional = |v: ValueId| matches!(rw.graph().ty(v), Type::Optional(_));
        if optional(arg) && !optional(given) {
            rw.rewrite(end, &[]);
            let held = rw.create_one(OptionalOf { ty: None }, &[given])?;
            rw.set_operand(end, i - 1, held);
            changed = true;
        }
    }
    Ok(changed)
}

/// A division whose last pieces run out: ONNX wants to be told their lengths.
fn split(rw: &mut Rewriter<'_>, op: OpId) -> Result<bool, Diagnostic> {
    let data = rw.graph().op(op);
    let Some(split) = as_op::<Split>(rw.graph(), op).filter(|_| data.operands.len() == 1) else { return Ok(false) };
    let (x, n) = (data.operands[0], data.results.len());
    let dims = rw.graph().ty(x).as_tensor().and_then(|t| t.fixed_dims());
    let Some(length) = dims.and_then(|d| d.get(of_ops::shape::axis(split.axis, d.len()).ok()?).copied()) else {
        return Ok(false);
    };
    let each = length.div_ceil(n);
    if each * (n - 1) <= length {
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

/// The op on operands of a wider type; the result gets the old one.
fn via(b: &mut Build<'_, '_>, from: DType, wide: DType) -> Result<bool, Diagnostic> {
    let data = b.rw.graph().op(b.op);
    let (def, attrs, results) = (data.def, data.attrs.clone(), data.results.len());
    if results != 1 {
        return Ok(false);
    }
    b.replace(|b, v| {
        let mut operands = Vec::with_capacity(v.len());
        for v in v {
            operands.push(if b.dtype(*v) == Some(from) { b.cast(*v, wide)? } else { *v });
        }
        let y = b.op((def, attrs), &operands)?;
        if b.dtype(y) == Some(wide) { b.cast(y, from) } else { Ok(y) }
    })
}

/// The remainder with the sign of the divisor, from the one with the sign of the dividend.
fn modulo(b: &mut Build<'_, '_>, x: ValueId, y: ValueId, dtype: DType) -> Made {
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

/// A signed shift: that of the complement for what is negative.
fn shift_right(b: &mut Build<'_, '_>, x: ValueId, n: ValueId, dtype: DType) -> Made {
    let zero = b.number(0.0, dtype)?;
    let negative = b.op(Lt {}, &[x, zero])?;
    let turned = b.op(BitNot {}, &[x])?;
    let size = b.op(Select {}, &[negative, turned, x])?;
    let (size, n) = (b.cast(size, unsigned(dtype))?, b.cast(n, unsigned(dtype))?);
    let shifted = b.op(Shr {}, &[size, n])?;
    let shifted = b.cast(shifted, dtype)?;
    let turned = b.op(BitNot {}, &[shifted])?;
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

type Made = Result<ValueId, Diagnostic>;

/// Makes what stands for one op.
struct Build<'r, 'g> {
    rw: &'r mut Rewriter<'g>,
    op: OpId,
}

impl Build<'_, '_> {
    fn op(&mut self, op: impl NewOp, operands: &[ValueId]) -> Made {
        self.rw.create_one(op, operands)
    }

    fn cast(&mut self, v: ValueId, to: DType) -> Made {
        self.op(Cast::to(to), &[v])
    }

    fn number(&mut self, value: f64, dtype: DType) -> Made {
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

    /// Whether the result has another shape than the first operand, as far as is known.
    fn stretched(&self) -> bool {
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

    /// Replaces the op by what `make` makes of its operands. The result keeps its type, which may say more than
    /// inference does.
    fn replace(&mut self, make: impl FnOnce(&mut Self, &[ValueId]) -> Made) -> Result<bool, Diagnostic> {
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
