//! Products of quantised numbers: `of.matmul_integer`, `of.conv_integer`, `of.qlinear_matmul`, `of.qlinear_conv`.

use std::sync::Arc;

use of_ir::{DType, Dim, Elements, OpError, OpView, Rewriter, Shape, Tensor, TensorType, Type, ValueId};

use super::conv::Conv;
use super::quantize::requantise;
use super::window::notset;
use crate::build::{Build, BuildResult};
use crate::contraction::MatMul;
use crate::sample::Rng;
use crate::{Evaluated, Expanded, Inferred, Inputs, Op, Value, op, op_basics, shape};

op! {
    /// `(a - a_zero) (b - b_zero)` in i32. Zero points are one number, or one per row of `a`, one per column of `b`.
    /// Source: ONNX MatMulInteger.
    pub struct MatMulInteger = "of.matmul_integer" [Primitive, onnx: "MatMulInteger"] {
        operands: (a, b, a_zero?, b_zero?),
        results: (y),
        attrs: {}
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let (p, q) = (kind(&mut r), kind(&mut r));
        let d = r.dims(3, 1, 5);
        let mut operands: Vec<Value> = vec![byte(&mut r, p, &[d[0], d[1]]), byte(&mut r, q, &[d[1], d[2]])];
        if r.int(0, 1) == 0 {
            let per_column = if r.int(0, 1) == 0 { vec![d[2]] } else { vec![] };
            operands.extend([byte(&mut r, p, &[]), byte(&mut r, q, &per_column)]);
        }
        Some((operands, MatMulInteger {}))
    };
}

op! {
    /// The convolution of `x - x_zero` and `w - w_zero` in i32. Source: ONNX ConvInteger.
    pub struct ConvInteger = "of.conv_integer" [Primitive, onnx: "ConvInteger"] {
        operands: (x, w, x_zero?, w_zero?),
        results: (y),
        attrs: {
            strides: Vec<i64>,
            /// Begin of every spatial axis, then end of every spatial axis.
            pads: Vec<i64>,
            dilations: Vec<i64>,
            group: i64,
            /// `NOTSET`, `SAME_UPPER`, `SAME_LOWER` or `VALID`.
            auto_pad: Arc<str>,
            /// `x` and `y` are `[N, spatial…, C]`.
            channels_last: bool,
        }
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let (p, q) = (kind(&mut r), kind(&mut r));
        let (n, ci, co) = (r.int(1, 2) as usize, r.int(1, 3) as usize, r.int(1, 3) as usize);
        let mut operands = vec![byte(&mut r, p, &[n, ci, 4, 5]), byte(&mut r, q, &[co, ci, 2, 3])];
        if r.int(0, 1) == 0 {
            let per_channel = if r.int(0, 1) == 0 { vec![co] } else { vec![] };
            operands.extend([byte(&mut r, p, &[]), byte(&mut r, q, &per_channel)]);
        }
        let pads = vec![r.int(0, 1); 4];
        let op = ConvInteger { strides: vec![], pads, dilations: vec![], group: 1, auto_pad: notset(), channels_last: false };
        Some((operands, op))
    };
}

op! {
    /// The matrix product of quantised operands, quantised:
    /// `y = requantise((a - a_zero) (b - b_zero) * a_scale * b_scale / y_scale, y_zero)`. Source: ONNX QLinearMatMul.
    pub struct QLinearMatMul = "of.qlinear_matmul" [Composite, onnx: "QLinearMatMul"] {
        operands: (a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero),
        results: (y),
        attrs: {}
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let (p, q) = (kind(&mut r), kind(&mut r));
        let d = r.dims(3, 1, 5);
        let (a, b) = (byte(&mut r, p, &[d[0], d[1]]), byte(&mut r, q, &[d[1], d[2]]));
        let mut one = || -> Value { r.tensor(DType::F32, &[], 0.02, 0.1).into() };
        let (sa, sb, sy) = (one(), one(), one());
        let (za, zb, zy) = (byte(&mut r, p, &[]), byte(&mut r, q, &[]), byte(&mut r, p, &[]));
        Some((vec![a, sa, za, b, sb, zb, sy, zy], QLinearMatMul {}))
    };
}

op! {
    /// The convolution of quantised operands, quantised; the bias is i32 in units of `x_scale * w_scale`. Source: ONNX
    /// QLinearConv.
    pub struct QLinearConv = "of.qlinear_conv" [Composite, onnx: "QLinearConv"] {
        operands: (x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, b?),
        results: (y),
        attrs: {
            strides: Vec<i64>,
            /// Begin of every spatial axis, then end of every spatial axis.
            pads: Vec<i64>,
            dilations: Vec<i64>,
            group: i64,
            /// `NOTSET`, `SAME_UPPER`, `SAME_LOWER` or `VALID`.
            auto_pad: Arc<str>,
            /// `x` and `y` are `[N, spatial…, C]`.
            channels_last: bool,
        }
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let (p, q) = (kind(&mut r), kind(&mut r));
        let (n, ci, co) = (r.int(1, 2) as usize, r.int(1, 3) as usize, r.int(1, 3) as usize);
        let (x, w) = (byte(&mut r, p, &[n, ci, 4, 5]), byte(&mut r, q, &[co, ci, 2, 3]));
        let per_channel = if r.int(0, 1) == 0 { vec![co] } else { vec![] };
        let mut scale = |dims: &[usize]| -> Value { r.tensor(DType::F32, dims, 0.02, 0.1).into() };
        let (sx, sw, sy) = (scale(&[]), scale(&per_channel), scale(&[]));
        let (zx, zw, zy) = (byte(&mut r, p, &[]), byte(&mut r, q, &per_channel), byte(&mut r, p, &[]));
        let bias = if r.int(0, 1) == 0 { r.tensor(DType::I32, &[co], -99.0, 99.0).into() } else { Value::None };
        let op = QLinearConv {
            strides: vec![],
            pads: vec![1; 4],
            dilations: vec![],
            group: 1,
            auto_pad: notset(),
            channels_last: false,
        };
        Some((vec![x, sx, zx, w, sw, zw, sy, zy, bias], op))
    };
}

/// The type of an operand and its zero point: bytes, signed or not.
fn kind(r: &mut Rng) -> DType {
    r.pick(&[DType::U8, DType::I8])
}

/// Random bytes of any value.
fn byte(r: &mut Rng, dtype: DType, dims: &[usize]) -> Value {
    let (low, high) = if dtype == DType::U8 { (0.0, 255.0) } else { (-128.0, 127.0) };
    r.tensor(dtype, dims, low, high).into()
}

/// How a parameter with one value a row or column of a matrix broadcasts against it.
fn along_rows(b: &mut Build<'_, '_>, p: ValueId) -> BuildResult {
    let single = b.shape(p).is_some_and(|s| super::quantize::per_tensor(&s));
    match b.rank(p)? {
        1 if single => b.squeeze(p, &[0]),
        1 => b.unsqueeze(p, &[1]),
        _ => Ok(p),
    }
}

/// A parameter with one value an output channel, against a tensor of the given rank whose channels are axis `axis`.
fn along_channels(b: &mut Build<'_, '_>, p: ValueId, rank: usize, axis: usize) -> BuildResult {
    let single = b.shape(p).is_some_and(|s| super::quantize::per_tensor(&s));
    match b.rank(p)? {
        1 if single => b.squeeze(p, &[0]),
        1 => b.unsqueeze(p, &(1..rank - axis).collect::<Vec<_>>()),
        _ => Ok(p),
    }
}

/// `t - zero` in i32, where `zero` broadcasts to `t`.
fn minus(t: &Tensor, zero: Option<&Tensor>) -> Result<Tensor, OpError> {
    let ints = |t: &Tensor| match t.elements() {
        Elements::Int(v) => Ok(v),
        _ => Err(OpError::eval(format!("quantised numbers are integers, not {}", t.dtype()))),
    };
    let mut v = ints(t)?;
    if let Some(z) = zero {
        let lead = t.dims().len().checked_sub(z.dims().len());
        let fits = lead.is_some_and(|l| z.dims().iter().zip(&t.dims()[l..]).all(|(a, b)| *a == 1 || a == b));
        let (Some(lead), true) = (lead, fits) else {
            return Err(OpError::eval(format!("a zero point of {:?} does not fit {:?}", z.dims(), t.dims())));
        };
        let (own, strides) = (z.dims(), shape::strides(z.dims()));
        let z = ints(z)?;
        let mut at = 0;
        shape::for_each_index(t.dims(), |i| {
            let from = |(j, d): (usize, &usize)| if *d == 1 { 0 } else { i[lead + j] * strides[j] };
            v[at] -= z[own.iter().enumerate().map(from).sum::<usize>()];
            at += 1;
        });
    }
    Ok(Tensor::from_elements(DType::I32, t.dims().to_vec(), Elements::Int(v))?)
}

/// The plain op on centred operands.
fn evaluate(op: &dyn Op, a: Tensor, b: Tensor) -> Evaluated {
    op.eval(&mut Inputs { values: &[a.into(), b.into()], types: &[], region: &mut |_, _| Ok(Vec::new()) })
}

/// `sum * scale_a * scale_b / scale_y`, requantised.
fn rescaled(b: &mut Build<'_, '_>, sum: ValueId, scales: [ValueId; 3], zero: ValueId) -> BuildResult {
    let mut scale = |v: ValueId| b.cast(v, DType::F32);
    let [x, w, y] = [scale(scales[0])?, scale(scales[1])?, scale(scales[2])?];
    let both = b.mul(x, w)?;
    let factor = b.div(both, y)?;
    let real = b.cast(sum, DType::F32)?;
    let v = b.mul(real, factor)?;
    requantise(b, v, Some(zero), b.dtype(zero))
}

/// The type of the result that the op would have on its plain operands, with another element type.
fn plain(cx: &OpView<'_>, op: &dyn Op, operands: [usize; 2], to: DType) -> Inferred {
    for i in operands {
        let t = cx.tensor(i)?;
        if !t.dtype.is_int() && !t.dtype.is_float() {
            return Err(OpError::ty(format!("operand {i} must be numbers, it is {}", t.dtype)));
        }
    }
    let shapes: Vec<Option<&of_ir::Shape>> =
        operands.iter().map(|i| cx.tensor(*i).ok().and_then(|t| t.shape.as_ref())).collect();
    let (Some(_), Some(_)) = (shapes[0], shapes[1]) else {
        return Ok(vec![Type::Tensor(TensorType::unranked(to))]);
    };
    // Element types of the two may differ, which the plain op does not accept.
    let mut scratch = of_ir::Graph::new();
    let mut rw = Rewriter::new(&mut scratch, "infer");
    let entry = rw.graph().entry();
    let ids: Vec<ValueId> =
        shapes.iter().flatten().map(|s| rw.add_arg(entry, Type::tensor(DType::I32, (*s).clone()), None)).collect();
    let attrs = op.attrs();
    let types = op.infer(&OpView { graph: rw.graph(), operands: &ids, attrs: &attrs, regions: &[] })?;
    Ok(types
        .into_iter()
        .map(|t| match t {
            Type::Tensor(t) => Type::Tensor(t.with_dtype(to)),
            other => other,
        })
        .collect())
}

/// Checks that a parameter broadcasts to `whole`. One of rank 1 has an entry for each index of axis `along`.
fn parameter(cx: &OpView<'_>, i: usize, whole: Option<&Shape>, along: Option<usize>) -> Result<(), OpError> {
    let (Some(p), Some(whole)) = (shape_of(cx, i), whole) else { return Ok(()) };
    let mut p = p.clone();
    match (p.len(), along) {
        (1, Some(_)) if super::quantize::per_tensor(&p) => p.clear(),
        (1, Some(axis)) => p.resize(whole.len().saturating_sub(axis), Dim::from(1i64)),
        _ => {}
    }
    shape::within(&format!("operand {i}"), &p, whole)
}

/// The axis of the rows of a matrix.
fn rows(whole: Option<&Shape>) -> Option<usize> {
    whole.map(|s| s.len().saturating_sub(2))
}

/// The shape of operand `i`, where its rank is known.
fn shape_of<'a>(cx: &OpView<'a>, i: usize) -> Option<&'a Shape> {
    cx.ty(i)?.as_tensor()?.shape.as_ref()
}

impl Op for MatMulInteger {
    op_basics!(MatMulInteger);

    fn flops(&self, cx: &OpView<'_>, results: &[Type]) -> Option<f64> {
        crate::estimate::product(cx, results)
    }

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        parameter(cx, 2, shape_of(cx, 0), rows(shape_of(cx, 0)))?;
        parameter(cx, 3, shape_of(cx, 1), None)?;
        plain(cx, &MatMul {}, [0, 1], DType::I32)
    }

    fn eval(&self, inputs: &mut Inputs<'_>) -> Evaluated {
        let (a, b) = (inputs.tensor(0)?, inputs.tensor(1)?);
        // Per-row zero points of `a` vary along its second-to-last axis.
        let za = match inputs.opt_tensor(2) {
            Some(z) if z.dims().len() == 1 => Some(z.reshaped(vec![z.len(), 1])?),
            z => z.cloned(),
        };
        let (x, y) = (minus(a, za.as_ref())?, minus(b, inputs.opt_tensor(3))?);
        evaluate(&MatMul {}, x, y)
    }
}

impl Op for QLinearMatMul {
    op_basics!(QLinearMatMul);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        let result = plain(cx, &MatMul {}, [0, 3], cx.tensor(7)?.dtype)?;
        let whole = result[0].as_tensor().and_then(|t| t.shape.as_ref());
        let (a, b) = (shape_of(cx, 0), shape_of(cx, 3));
        for (i, whole, along) in [
            (1, whole, rows(whole)),
            (2, a, rows(a)),
            (4, whole, None),
            (5, b, None),
            (6, whole, rows(whole)),
            (7, whole, rows(whole)),
        ] {
            parameter(cx, i, whole, along)?;
        }
        Ok(result)
    }

    fn expand(&self, rw: &mut Rewriter<'_>, operands: &[ValueId]) -> Expanded {
        let &[a, sa, za, c, sc, zc, sy, zy] = operands else {
            return Ok(vec![]);
        };
        let mut b = Build::new(rw);
        let sum = b.op(MatMulInteger {}, &[a, c, za, zc])?;
        let (sa, sy, zy) = (along_rows(&mut b, sa)?, along_rows(&mut b, sy)?, along_rows(&mut b, zy)?);
        Ok(vec![rescaled(&mut b, sum, [sa, sc, sy], zy)?])
    }
}

/// The convolution with the attributes of a quantised one.
macro_rules! plain_conv {
    ($op:expr) => {
        Conv {
            strides: $op.strides.clone(),
            pads: $op.pads.clone(),
            dilations: $op.dilations.clone(),
            group: $op.group,
            auto_pad: $op.auto_pad.clone(),
            channels_last: $op.channels_last,
        }
    };
}

impl Op for ConvInteger {
    op_basics!(ConvInteger);

    fn flops(&self, cx: &OpView<'_>, results: &[Type]) -> Option<f64> {
        crate::estimate::filter(cx, results.first()?)
    }

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        parameter(cx, 2, shape_of(cx, 0), None)?;
        parameter(cx, 3, shape_of(cx, 1), Some(0))?;
        plain(cx, &plain_conv!(self), [0, 1], DType::I32)
    }

    fn eval(&self, inputs: &mut Inputs<'_>) -> Evaluated {
        let (x, w) = (inputs.tensor(0)?, inputs.tensor(1)?);
        let rank = w.dims().len();
        let scalar = |z: &Tensor| if z.len() == 1 { z.reshaped(vec![]) } else { Ok(z.clone()) };
        let zx = inputs.opt_tensor(2).map(scalar).transpose()?;
        // Per-output-channel zero points vary along the first axis of `w`.
        let zw = match inputs.opt_tensor(3) {
            Some(z) if z.len() > 1 => Some(z.reshaped([&[z.len()], vec![1; rank - 1].as_slice()].concat())?),
            z => z.map(scalar).transpose()?,
        };
        let (x, w) = (minus(x, zx.as_ref())?, minus(w, zw.as_ref())?);
        evaluate(&plain_conv!(self), x, w)
    }
}

impl Op for QLinearConv {
    op_basics!(QLinearConv);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        let result = plain(cx, &plain_conv!(self), [0, 3], cx.tensor(7)?.dtype)?;
        let whole = result[0].as_tensor().and_then(|t| t.shape.as_ref());
        let channels = whole.map(|s| super::layout::channel_axis(s.len(), self.channels_last));
        let (x, w) = (shape_of(cx, 0), shape_of(cx, 3));
        for (i, whole, along) in
            [(1, whole, None), (2, x, None), (4, whole, channels), (5, w, Some(0)), (6, whole, None), (7, whole, None)]
        {
            parameter(cx, i, whole, along)?;
        }
        if let (Some(bias), Some(w)) = (shape_of(cx, 8), w)
            && (bias.len() != 1 || bias[0].provably_ne(&w[0]))
        {
            return Err(OpError::shape(format!(
                "the bias has shape {}, there are {} filters",
                shape::show(bias),
                w[0]
            )));
        }
        Ok(result)
    }

    fn expand(&self, rw: &mut Rewriter<'_>, operands: &[ValueId]) -> Expanded {
        let &[x, sx, zx, w, sw, zw, sy, zy, ..] = operands else {
            return Ok(vec![]);
        };
        let mut b = Build::new(rw);
        let rank = b.rank(w)?;
        let axis = super::layout::channel_axis(rank, self.channels_last);
        let QLinearConv { strides, pads, dilations, group, auto_pad, channels_last } = self.clone();
        let conv = ConvInteger { strides, pads, dilations, group, auto_pad, channels_last };
        let mut sum = b.op(conv, &[x, w, zx, zw])?;
        if let Some(bias) = b.given(operands, 8) {
            let bias = b.cast(bias, DType::I32)?;
            let bias = along_channels(&mut b, bias, rank, axis)?;
            sum = b.add(sum, bias)?;
        }
        let sw = along_channels(&mut b, sw, rank, axis)?;
        Ok(vec![rescaled(&mut b, sum, [sx, sw, sy], zy)?])
    }
}
