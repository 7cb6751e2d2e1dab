//! Reductions over axes: a table of primitives.

use of_diag::Diagnostic;
use of_ir::{
    Dim, Elements, OpError, OpView, PartialKind, Rewriter, Sbp, SbpSignature, Shape, Tensor, TensorType, Type, ValueId,
};

use crate::elementwise::{Cast, Div, Eq, Mul};
use crate::movement::Expand;
use crate::sample::Rng;
use crate::structural::ShapeOf;
use crate::{Evaluated, GradCx, Inferred, Inputs, Op, op, op_basics, shape};

/// The axes of an operand of the given rank that a reduction removes; all of them when none is named.
///
/// # Errors
/// When an axis is out of range or named twice.
pub fn reduced_axes(axes: Option<&[i64]>, rank: usize) -> Result<Vec<usize>, OpError> {
    match axes {
        Some(a) if !a.is_empty() => shape::axes(a, rank),
        _ => Ok((0..rank).collect()),
    }
}

/// The shape after a reduction.
pub(super) fn result_shape(from: &Shape, axes: &[usize], keepdims: bool) -> Shape {
    let dims = from.iter().enumerate();
    if keepdims {
        dims.map(|(i, d)| if axes.contains(&i) { Dim::from(1i64) } else { d.clone() }).collect()
    } else {
        dims.filter(|(i, _)| !axes.contains(i)).map(|(_, d)| d.clone()).collect()
    }
}

/// Result type of a reduction whose axes are operand 1.
pub(super) fn infer(cx: &OpView<'_>, keepdims: bool) -> Inferred {
    let t = cx.tensor(0)?;
    if !t.dtype.is_float() && !t.dtype.is_int() && t.dtype != of_ir::DType::Bool {
        return Err(OpError::ty(format!("operands must be numbers, they are {}", t.dtype)));
    }
    let named = cx.operand(1).is_some();
    let shape = match (&t.shape, cx.ints(1)) {
        (Some(s), axes) if axes.is_some() || !named => {
            Some(result_shape(s, &reduced_axes(axes.as_deref(), s.len())?, keepdims))
        }
        (Some(s), _) if keepdims => Some(vec![Dim::unknown(); s.len()]),
        _ => None,
    };
    Ok(vec![Type::Tensor(TensorType { dtype: t.dtype, shape, sbp: None })])
}

/// Position in the result of every element of the operand, in order, and the dimensions of the result.
pub(super) fn targets(dims: &[usize], axes: &[usize], keepdims: bool) -> (Vec<usize>, Vec<usize>) {
    let kept: Vec<usize> = (0..dims.len()).map(|a| if axes.contains(&a) { 1 } else { dims[a] }).collect();
    let strides = shape::strides(&kept);
    let mut out = Vec::with_capacity(dims.iter().product());
    shape::for_each_index(dims, |i| {
        out.push(i.iter().enumerate().filter(|(a, _)| !axes.contains(a)).map(|(a, x)| x * strides[a]).sum());
    });
    let result = if keepdims { kept } else { (0..dims.len()).filter(|a| !axes.contains(a)).map(|a| dims[a]).collect() };
    (out, result)
}

macro_rules! reductions {
    ($($(#[doc = $doc:literal])* $name:ident = $opname:literal [$onnx:literal] $partial:ident
       float $f0:expr, |$fa:ident, $fb:ident| $ff:expr; int $i0:expr, |$ia:ident, $ib:ident| $fi:expr;
       grad |$cx:ident, $g:ident| $grad:expr;)*) => {$(
        op! {
            $(#[doc = $doc])*
            pub struct $name = $opname [Primitive, onnx: $onnx] {
                operands: (x, axes?),
                results: (y),
                attrs: {
                    /// Reduced axes stay with extent 1.
                    keepdims: bool,
                },
            }
            samples: |seed| {
                let mut r = Rng::new(seed);
                let dims = r.dims(3, 1, 4);
                let axes = r.pick(&[vec![0], vec![-1], vec![1, 2], vec![0, 2], vec![0, 1, 2]]);
                Some((vec![r.f32s(&dims), Tensor::from_i64s(&axes).into()], $name { keepdims: r.int(0, 1) == 1 }))
            };
        }

        impl Op for $name {
            op_basics!($name);

            fn infer(&self, cx: &OpView<'_>) -> Inferred {
                infer(cx, self.keepdims)
            }

            fn eval(&self, inputs: &mut Inputs<'_>) -> Evaluated {
                let x = inputs.tensor(0)?;
                let axes = match inputs.opt_tensor(1) {
                    Some(_) => Some(inputs.ints(1)?),
                    None => None,
                };
                let axes = reduced_axes(axes.as_deref(), x.dims().len())?;
                let (to, dims) = targets(x.dims(), &axes, self.keepdims);
                let n = dims.iter().product();
                let elements = match x.elements() {
                    Elements::Float(v) => {
                        let mut out = vec![$f0; n];
                        v.iter().zip(&to).for_each(|(x, t)| { let ($fa, $fb): (f64, f64) = (out[*t], *x); out[*t] = $ff; });
                        Elements::Float(out)
                    }
                    Elements::Int(v) => {
                        let (low, high) = x.dtype().int_range().unwrap_or((0, 1));
                        let _ = (low, high);
                        let start: fn(i128, i128) -> i128 = $i0;
                        let mut out = vec![start(low, high); n];
                        v.iter().zip(&to).for_each(|(x, t)| { let ($ia, $ib): (i128, i128) = (out[*t], *x); out[*t] = $fi; });
                        Elements::Int(out)
                    }
                    Elements::Str(_) => return Err(OpError::eval("strings cannot be reduced")),
                };
                Ok(vec![Tensor::from_elements(x.dtype(), dims, elements)?.into()])
            }

            fn sbp(&self, cx: &OpView<'_>) -> Vec<SbpSignature> {
                signatures(cx, self.keepdims, PartialKind::$partial)
            }

            fn gradient(&self, cx: &mut GradCx<'_, '_>) -> Option<Result<Vec<Option<ValueId>>, Diagnostic>> {
                let $g = cx.grads[0]?;
                let keepdims = self.keepdims;
                let mut run = || -> Result<Vec<Option<ValueId>>, Diagnostic> {
                    let $g = cx.broadcast($g, keepdims)?;
                    let $cx = &mut *cx;
                    let grad: ValueId = $grad(keepdims)?;
                    Ok(vec![Some(grad), None])
                };
                Some(run())
            }
        }
    )*};
}

/// Splits of kept axes, partial results of split reduced axes, and partial values of the same kind.
fn signatures(cx: &OpView<'_>, keepdims: bool, kind: PartialKind) -> Vec<SbpSignature> {
    let (Ok(t), axes) = (cx.tensor(0), cx.ints(1)) else { return Vec::new() };
    let Some(rank) = t.rank() else { return Vec::new() };
    if cx.operand(1).is_some() && axes.is_none() {
        return Vec::new();
    }
    let Ok(axes) = reduced_axes(axes.as_deref(), rank) else { return Vec::new() };
    let n = cx.operands.len();
    let with = |first: Sbp, result: Sbp| {
        let mut list = vec![Sbp::Broadcast; n];
        list[0] = first;
        SbpSignature::new(&list, &[result])
    };
    let mut out: Vec<SbpSignature> = (0..rank)
        .map(|a| {
            let split = Sbp::Split(a as u8);
            if axes.contains(&a) {
                with(split, Sbp::Partial(kind))
            } else {
                let gone = if keepdims { 0 } else { axes.iter().filter(|x| **x < a).count() };
                with(split, Sbp::Split((a - gone) as u8))
            }
        })
        .collect();
    out.push(with(Sbp::Partial(kind), Sbp::Partial(kind)));
    out
}

impl GradCx<'_, '_> {
    /// The gradient of a reduction's result broadcast to the shape of its operand.
    fn broadcast(&mut self, g: ValueId, keepdims: bool) -> Result<ValueId, Diagnostic> {
        let g = if keepdims { g } else { self.keep(g)? };
        let dims = self.rw.create_one(ShapeOf { start: None, end: None }, &[self.operands[0]])?;
        self.rw.create_one(Expand {}, &[g, dims])
    }

    /// The reduced axes of `v`, which the reduction of operand 0 removed, restored with extent 1.
    fn keep(&mut self, v: ValueId) -> Result<ValueId, Diagnostic> {
        let error = |e: OpError| e.at("gradient of a reduction", &of_diag::Location::Unknown);
        let view = OpView { graph: self.rw.graph(), operands: self.operands, attrs: &Default::default(), regions: &[] };
        let rank = shape::ranked(view.tensor(0).map_err(error)?).map_err(error)?.len();
        let axes = reduced_axes(view.ints(1).as_deref(), rank).map_err(error)?;
        let axes: Vec<i64> = axes.into_iter().map(|a| a as i64).collect();
        let axes = crate::structural::Constant::ints(self.rw, &axes)?;
        self.rw.create_one(crate::movement::Unsqueeze {}, &[v, axes])
    }

    /// The gradient goes, in equal parts, to the elements that are equal to the result.
    fn make_equal(&mut self, g: ValueId, keepdims: bool) -> Result<ValueId, Diagnostic> {
        let y = self.broadcast(self.results[0], keepdims)?;
        let same = self.rw.create_one(Eq {}, &[self.operands[0], y])?;
        let dtype = self.rw.graph().ty(g).as_tensor().map_or(of_ir::DType::F32, |t| t.dtype);
        let same = self.rw.create_one(Cast::to(dtype), &[same])?;
        let mut operands = vec![same];
        operands.extend(self.operands.get(1));
        let count = self.rw.create_one(ReduceSum { keepdims }, &operands)?;
        let count = self.broadcast(count, keepdims)?;
        let share = self.rw.create_one(Div {}, &[same, count])?;
        self.rw.create_one(Mul {}, &[g, share])
    }

    /// The product of all others is the result divided by the element.
    fn of_product(&mut self, g: ValueId, keepdims: bool) -> Result<ValueId, Diagnostic> {
        let y = self.broadcast(self.results[0], keepdims)?;
        let rest = self.rw.create_one(Div {}, &[y, self.operands[0]])?;
        self.rw.create_one(Mul {}, &[g, rest])
    }
}

reductions! {
    /// Largest element along axes; of no element the smallest value of the type.
    ReduceMax = "of.reduce_max" ["ReduceMax"] Max
        float f64::NEG_INFINITY, |a, b| if a.is_nan() || b.is_nan() { f64::NAN } else { a.max(b) };
        int |low, _| low, |a, b| a.max(b);
        grad |cx, g| |k: bool| cx.make_equal(g, k);
    /// Smallest element along axes; of no element the largest value of the type.
    ReduceMin = "of.reduce_min" ["ReduceMin"] Min
        float f64::INFINITY, |a, b| if a.is_nan() || b.is_nan() { f64::NAN } else { a.min(b) };
        int |_, high| high, |a, b| a.min(b);
        grad |cx, g| |k: bool| cx.make_equal(g, k);
    /// Product along axes.
    ReduceProd = "of.reduce_prod" ["ReduceProd"] Prod
        float 1.0, |a, b| a * b;
        int |_, _| 1, |a, b| a.wrapping_mul(b);
        grad |cx, g| |k: bool| cx.of_product(g, k);
    /// Sum along axes.
    ReduceSum = "of.reduce_sum" ["ReduceSum"] Sum
        float 0.0, |a, b| a + b;
        int |_, _| 0, |a, b| a.wrapping_add(b);
        grad |_cx, g| |_k: bool| Ok::<ValueId, Diagnostic>(g);
}

/// Sums `grad` over the axes along which `like` was broadcast to its shape.
///
/// # Errors
/// When a rank is not known.
pub fn unbroadcast(rw: &mut Rewriter<'_>, grad: ValueId, like: ValueId) -> Result<ValueId, Diagnostic> {
    let shape_of = |rw: &Rewriter<'_>, v: ValueId| rw.graph().ty(v).as_tensor().and_then(|t| t.shape.clone());
    let (Some(from), Some(to)) = (shape_of(rw, grad), shape_of(rw, like)) else {
        return Err(
            OpError::shape("the rank of a gradient is not known").at("of.reduce_sum", &of_diag::Location::Unknown)
        );
    };
    if from == to {
        return Ok(grad);
    }
    let lead = from.len().saturating_sub(to.len());
    let one = |d: &Dim| d.as_const() == Some(1);
    let axes: Vec<i64> =
        (0..from.len()).filter(|a| *a < lead || (one(&to[a - lead]) && !one(&from[*a]))).map(|a| a as i64).collect();
    if axes.is_empty() {
        return Ok(grad);
    }
    let axes = crate::structural::Constant::ints(rw, &axes)?;
    let sum = rw.create_one(ReduceSum { keepdims: true }, &[grad, axes])?;
    if lead == 0 { Ok(sum) } else { reshape_like(rw, sum, like) }
}

/// `x` with the shape of `like`.
fn reshape_like(rw: &mut Rewriter<'_>, x: ValueId, like: ValueId) -> Result<ValueId, Diagnostic> {
    let dims = rw.create_one(ShapeOf { start: None, end: None }, &[like])?;
    rw.create_one(crate::movement::Reshape { allowzero: true }, &[x, dims])
}
