//! Reductions along axes.

use of_ir::{DType, OpId};
use of_ops::scalar::ScalarOp;

use super::build::{Axis, axes};
use super::{Emitter, Table, Val};

/// Ops of this file.
pub const TABLE: Table = &[
    ("of.reduce_max", |e, op| reduce(e, op, ScalarOp::Max)),
    ("of.reduce_min", |e, op| reduce(e, op, ScalarOp::Min)),
    ("of.reduce_prod", |e, op| reduce(e, op, ScalarOp::Mul)),
    ("of.reduce_sum", |e, op| reduce(e, op, ScalarOp::Add)),
];

/// The initial value of a reduction by `f`.
pub fn start(f: ScalarOp, dtype: DType) -> f64 {
    let (low, high) = dtype.int_range().map_or((f64::NEG_INFINITY, f64::INFINITY), |(l, h)| (l as f64, h as f64));
    match f {
        ScalarOp::Max if dtype == DType::Bool => 0.0,
        ScalarOp::Max => low,
        ScalarOp::Min => high,
        ScalarOp::Mul => 1.0,
        _ => 0.0,
    }
}

fn reduce(e: &mut Emitter<'_>, op: OpId, f: ScalarOp) -> Result<Vec<Val>, String> {
    let x = e.operand(op, 0)?;
    let (dtype, dims) = e.result(op, 0)?;
    let sums = matches!(f, ScalarOp::Add | ScalarOp::Mul);
    if dtype == DType::Bool && sums {
        return Err("sums of bools are not supported".into());
    }
    let away = of_ops::reduction::reduced_axes(e.ints(op, 1)?.as_deref(), x.rank()).map_err(|e| e.message)?;
    // Sums of 16-bit floats accumulate in f32.
    let wide = if sums && matches!(dtype, DType::F16 | DType::BF16) { DType::F32 } else { dtype };
    let kept: Vec<usize> = (0..x.rank()).filter(|a| !away.contains(a)).collect();
    let extents: Vec<usize> = kept.iter().map(|a| x.dims[*a]).collect();
    let first = e.splat(wide, &extents, start(f, wide));
    let kinds: Vec<Axis> =
        (0..x.rank()).map(|a| if away.contains(&a) { Axis::Reduction } else { Axis::Parallel }).collect();
    let y = e.generic(&[(&x, axes(0..x.rank()))], (&first, axes(kept)), &kinds, |s, items, so_far| {
        let x = s.cast(&items[0], wide)?;
        s.apply(f, &[so_far.clone(), x])
    })?;
    let y = e.convert(&y, dtype)?;
    Ok(vec![e.reshape(&y, &dims)])
}
