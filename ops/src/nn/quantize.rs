//! Conversions between real and quantised numbers: `of.quantize_linear`, `of.dequantize_linear`,
//! `of.dynamic_quantize_linear`.
//!
//! Dynamic quantization computes scale and zero point from the data in each run.

use of_ir::{DType, Dim, OpError, OpView, Rewriter, TensorType, Type, ValueId};

use crate::build::{Build, BuildResult, diagnostic};
use crate::elementwise::{Cast, Max, Min, Round};
use crate::sample::Rng;
use crate::{Expanded, Inferred, Op, Value, op, op_basics, shape};

op! {
    /// `y = saturate(round(x / scale) + zero_point)`, ties to even; a float result rounds as a conversion to it does.
    ///
    /// `scale` is one number, one an element of `axis`, or, with `block_size`, one a block along `axis`. Source: ONNX
    /// QuantizeLinear.
    pub struct QuantizeLinear = "of.quantize_linear" [Composite, onnx: "QuantizeLinear"] {
        operands: (x, scale, zero_point?),
        results: (y),
        attrs: {
            axis: i64,
            /// Elements a block; 0 without blocks.
            block_size: i64,
            /// Element type of the result, that of the zero point where there is one; absent for this, or ui8.
            dtype: Option<DType>,
            /// Element type of the division; absent for f32, or f64 where the scale is.
            precision: Option<DType>,
            /// Whether an 8-bit float result saturates, as [`crate::elementwise::Cast`] does; absent for true.
            saturate: Option<bool>,
        }
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let (dims, scale, axis, block_size) = sample(&mut r);
        let s = r.tensor(DType::F32, &scale, 0.02, 0.1);
        let dtype = r.pick(&QUANTISED);
        let zero = if r.int(0, 1) == 0 { r.tensor(dtype, &scale, 0.0, 4.0).into() } else { Value::None };
        let (precision, saturate) = (r.pick(&[None, Some(DType::F64)]), r.pick(&[None, Some(false)]));
        let op = QuantizeLinear { axis, block_size, dtype: Some(dtype), precision, saturate };
        Some((vec![r.f32s(&dims), s.into(), zero], op))
    };
}

op! {
    /// `y = (x - zero_point) * scale`.
    ///
    /// `scale` is one number, one an element of `axis`, or, with `block_size`, one a block along `axis`. Source: ONNX
    /// DequantizeLinear.
    pub struct DequantizeLinear = "of.dequantize_linear" [Composite, onnx: "DequantizeLinear"] {
        operands: (x, scale, zero_point?),
        results: (y),
        attrs: {
            axis: i64,
            /// Elements a block; 0 without blocks.
            block_size: i64,
            /// Element type of the result; absent for that of the scale, which must not be f8E8M0FNU then.
            dtype: Option<DType>,
        }
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let (dims, scale, axis, block_size) = sample(&mut r);
        let s = r.tensor(DType::F32, &scale, 0.02, 0.1);
        let dtype = r.pick(&QUANTISED);
        let x = r.tensor(dtype, &dims, 0.0, 99.0);
        let zero = if r.int(0, 1) == 0 { r.tensor(dtype, &scale, 0.0, 4.0).into() } else { Value::None };
        Some((vec![x.into(), s.into(), zero], DequantizeLinear { axis, block_size, dtype: None }))
    };
}

op! {
    /// Quantises to ui8 with a scale and zero point that cover the range of `x` and zero.
    ///
    /// `scale = (max(x, 0) - min(x, 0)) / 255`, `zero_point = round(-min / scale)`. Source: ONNX DynamicQuantizeLinear.
    pub struct DynamicQuantizeLinear = "of.dynamic_quantize_linear" [Composite, onnx: "DynamicQuantizeLinear"] {
        operands: (x),
        results: (y, scale, zero_point),
        attrs: {}
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let dims = r.dims(2, 1, 5);
        Some((vec![r.f32s(&dims)], DynamicQuantizeLinear {}))
    };
}

/// Types that the samples quantise to, of every width.
const QUANTISED: [DType; 8] =
    [DType::U8, DType::I8, DType::I16, DType::U4, DType::I4, DType::I2, DType::F8E4M3FN, DType::F4E2M1FN];

/// Dimensions of an input and its scale, axis and block size.
fn sample(r: &mut Rng) -> (Vec<usize>, Vec<usize>, i64, i64) {
    let dims = r.dims(3, 2, 5);
    let axis = r.int(-3, 2);
    let at = axis.rem_euclid(3) as usize;
    match r.int(0, 2) {
        0 => (dims, vec![], axis, 0),
        1 => (dims.clone(), vec![dims[at]], axis, 0),
        _ => {
            let mut scale = dims.clone();
            scale[at] = dims[at].div_ceil(2);
            (dims, scale, axis, 2)
        }
    }
}

/// Whether a parameter is one number for the whole tensor.
pub(super) fn per_tensor(s: &[Dim]) -> bool {
    s.is_empty() || s.len() == 1 && s[0].as_const() == Some(1)
}

/// Checks the parameters' shapes against the input's.
fn check(cx: &OpView<'_>, axis: i64, block: i64) -> Result<(), OpError> {
    if !(0..1 << 31).contains(&block) {
        return Err(OpError::attr(format!("block_size is {block}, it must not be negative")));
    }
    let (x, scale) = (cx.tensor(0)?, cx.tensor(1)?);
    if let (Some(p), Some(Type::Tensor(TensorType { shape: Some(z), .. }))) = (&scale.shape, cx.ty(2))
        && !(per_tensor(p) && per_tensor(z))
        && (p.len() != z.len() || p.iter().zip(z).any(|(a, b)| a.provably_ne(b)))
    {
        let (p, z) = (shape::show(p), shape::show(z));
        return Err(OpError::shape(format!("the zero point has shape {z}, the scale {p}")));
    }
    let (Some(s), Some(p)) = (&x.shape, &scale.shape) else {
        return Ok(());
    };
    // A length that is not known may be 1.
    if per_tensor(p) || p.len() == 1 && p[0].as_const().is_none() {
        return Ok(());
    }
    let axis = shape::axis(axis, s.len())?;
    let fits = if block == 0 {
        p.len() == 1 && !p[0].provably_ne(&s[axis])
    } else {
        p.len() == s.len() && (0..s.len()).all(|a| a == axis || !p[a].provably_ne(&s[a]))
    };
    if !fits {
        return Err(OpError::shape(format!(
            "a scale of shape {} does not fit axis {axis} of {}",
            shape::show(p),
            shape::show(s)
        )));
    }
    if block > 0
        && let (Some(n), Some(blocks)) = (s[axis].as_const(), p[axis].as_const())
        && blocks != n.div_euclid(block) + i64::from(n % block != 0)
    {
        return Err(OpError::shape(format!("{blocks} blocks of {block} do not cover an axis of {n}")));
    }
    Ok(())
}

/// A scale or zero point with dimensions that broadcast to the input's.
fn broadcast(b: &mut Build<'_, '_>, p: ValueId, x: ValueId, axis: i64, block: i64) -> BuildResult {
    let (rank, ps) = (b.rank(x)?, b.shape(p).unwrap_or_default());
    if ps.is_empty() || rank == 0 {
        return Ok(p);
    }
    let axis = if per_tensor(&ps) { 0 } else { shape::axis(axis, rank).map_err(diagnostic)? };
    if block == 0 || per_tensor(&ps) {
        return b.unsqueeze(p, &(0..rank - 1 - axis).map(|i| i + 1).collect::<Vec<_>>());
    }
    // Each parameter is repeated along the axis; the last block may be cut short.
    let size = |s: Option<of_ir::Shape>| s.and_then(|s| super::window::fixed(&s));
    let (Some(pd), Some(n)) = (size(b.shape(p)), b.shape(x).and_then(|s| s[axis].as_const())) else {
        return Err(diagnostic(OpError::shape("blocks need known sizes")));
    };
    if pd.len() != rank {
        return Err(diagnostic(OpError::shape("blocks need one parameter axis an input axis")));
    }
    let mut wide: Vec<i64> = pd.iter().map(|d| *d as i64).collect();
    wide.insert(axis + 1, block);
    let mut flat: Vec<i64> = pd.iter().map(|d| *d as i64).collect();
    flat[axis] *= block;
    let column = b.unsqueeze(p, &[axis + 1])?;
    let dims = b.ints(&wide)?;
    let repeated = b.expand(column, dims)?;
    let merged = b.reshape(repeated, &flat)?;
    if flat[axis] == n { Ok(merged) } else { b.head(merged, &[axis], &[n as usize]) }
}

/// Rounds a scaled value, adds the zero point and saturates to `to`.
pub(super) fn requantise(b: &mut Build<'_, '_>, v: ValueId, zero: Option<ValueId>, to: DType) -> BuildResult {
    let v = moved(b, v, zero, to)?;
    b.cast(v, to)
}

/// A scaled value that conversion to `to` brings into its final form: rounded, with the zero point added.
fn moved(b: &mut Build<'_, '_>, v: ValueId, zero: Option<ValueId>, to: DType) -> BuildResult {
    // Conversion to a float rounds by itself.
    let mut v = if to.is_float() { v } else { b.op(Round {}, &[v])? };
    if let Some(z) = zero {
        let z = b.cast(z, b.dtype(v))?;
        v = b.add(v, z)?;
    }
    // A cast saturates by itself, except to packed integers.
    if let (true, Some((low, high))) = (to.is_packed(), to.int_range()) {
        let (low, high) = (b.number(low as f64, v)?, b.number(high as f64, v)?);
        v = b.op(Max {}, &[v, low])?;
        v = b.op(Min {}, &[v, high])?;
    }
    Ok(v)
}

impl Op for QuantizeLinear {
    op_basics!(QuantizeLinear);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        let x = cx.tensor(0)?;
        check(cx, self.axis, self.block_size)?;
        let dtype = match (cx.ty(2), self.dtype) {
            (Some(Type::Tensor(z)), Some(to)) if z.dtype != to => {
                return Err(OpError::ty(format!("the zero point is {}, the result {to}", z.dtype)));
            }
            (Some(Type::Tensor(z)), _) => z.dtype,
            (_, to) => to.unwrap_or(DType::U8),
        };
        if let Some(p) = self.precision.filter(|p| !p.is_float() || p.bits() <= Some(8)) {
            return Err(OpError::attr(format!("cannot divide in {p}")));
        }
        if matches!(dtype, DType::String | DType::Bool) || x.dtype == DType::String {
            return Err(OpError::ty(format!("cannot quantise {} to {dtype}", x.dtype)));
        }
        Ok(vec![Type::Tensor(x.with_dtype(dtype))])
    }

    fn expand(&self, rw: &mut Rewriter<'_>, operands: &[ValueId]) -> Expanded {
        let mut b = Build::new(rw);
        let x = operands[0];
        let zero = b.given(operands, 2);
        let to = zero.map_or(self.dtype.unwrap_or(DType::U8), |z| b.dtype(z));
        let scale = broadcast(&mut b, operands[1], x, self.axis, self.block_size)?;
        // 16-bit floats divide in f32 unless another type is asked for, so that rounding sees the exact quotient.
        let wide = if b.dtype(scale) == DType::F64 { DType::F64 } else { DType::F32 };
        let divide = self.precision.unwrap_or(wide);
        let (x, divisor) = (b.cast(x, divide)?, b.cast(scale, divide)?);
        let ratio = b.div(x, divisor)?;
        // Zero points may be larger than a narrow type holds exactly.
        let ratio = if divide.bits() < wide.bits() { b.cast(ratio, wide)? } else { ratio };
        let zero = match zero {
            Some(z) => Some(broadcast(&mut b, z, x, self.axis, self.block_size)?),
            None => None,
        };
        let v = moved(&mut b, ratio, zero, to)?;
        Ok(vec![b.op(Cast { saturate: self.saturate, ..Cast::to(to) }, &[v])?])
    }
}

impl Op for DequantizeLinear {
    op_basics!(DequantizeLinear);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        let (x, scale) = (cx.tensor(0)?, cx.tensor(1)?);
        check(cx, self.axis, self.block_size)?;
        if !scale.dtype.is_float() || matches!(x.dtype, DType::String | DType::Bool) {
            return Err(OpError::ty(format!("cannot dequantise {} with a scale of {}", x.dtype, scale.dtype)));
        }
        if matches!(cx.ty(2), Some(Type::Tensor(z)) if z.dtype != x.dtype) {
            return Err(OpError::ty("the zero point must have the type of the input"));
        }
        let to = self.dtype.unwrap_or(scale.dtype);
        if !to.is_float() || to.bits() <= Some(8) {
            return Err(
                OpError::ty(format!("cannot dequantise to {to}")).hint("the result is a float of 16 bits or more")
            );
        }
        Ok(vec![Type::Tensor(x.with_dtype(to))])
    }

    fn expand(&self, rw: &mut Rewriter<'_>, operands: &[ValueId]) -> Expanded {
        let mut b = Build::new(rw);
        let (x, to) = (operands[0], self.dtype.unwrap_or(b.dtype(operands[1])));
        let scale = broadcast(&mut b, operands[1], x, self.axis, self.block_size)?;
        let wide = if b.dtype(scale) == DType::F64 { DType::F64 } else { DType::F32 };
        let exact = if b.dtype(x).is_float() { wide } else { DType::I32 };
        let mut v = b.cast(x, exact)?;
        if let Some(z) = b.given(operands, 2) {
            let z = broadcast(&mut b, z, x, self.axis, self.block_size)?;
            let z = b.cast(z, exact)?;
            v = b.sub(v, z)?;
        }
        let (v, scale) = (b.cast(v, wide)?, b.cast(scale, wide)?);
        let y = b.mul(v, scale)?;
        Ok(vec![b.cast(y, to)?])
    }
}

impl Op for DynamicQuantizeLinear {
    op_basics!(DynamicQuantizeLinear);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        let x = cx.tensor(0)?;
        if !x.dtype.is_float() {
            return Err(OpError::ty(format!("the input must be floating-point, it is {}", x.dtype)));
        }
        Ok(vec![Type::Tensor(x.with_dtype(DType::U8)), Type::tensor(x.dtype, vec![]), Type::tensor(DType::U8, vec![])])
    }

    fn expand(&self, rw: &mut Rewriter<'_>, operands: &[ValueId]) -> Expanded {
        use crate::elementwise::{Max, Min};
        let mut b = Build::new(rw);
        let x = operands[0];
        let axes: Vec<usize> = (0..b.rank(x)?).collect();
        let (low, high) = if axes.is_empty() { (x, x) } else { (b.min(x, &axes, false)?, b.max(x, &axes, false)?) };
        let zero = b.number(0.0, x)?;
        let (low, high) = (b.op(Min {}, &[low, zero])?, b.op(Max {}, &[high, zero])?);
        let range = b.sub(high, low)?;
        // An input of zeros alone gets the scale 1.
        let is_zero = b.op(crate::elementwise::Eq {}, &[range, zero])?;
        let steps = b.number(255.0, x)?;
        let scale = b.div(range, steps)?;
        let one = b.cast(is_zero, b.dtype(x))?;
        let scale = b.add(scale, one)?;
        let start = b.div(low, scale)?;
        let negated = b.sub(zero, start)?;
        let point = requantise(&mut b, negated, None, DType::U8)?;
        let ratio = b.div(x, scale)?;
        let y = requantise(&mut b, ratio, Some(point), DType::U8)?;
        Ok(vec![y, scale, point])
    }
}
