//! `legalize-float16`: computes reductions, contractions and comparisons of 16-bit floats in f32.
//!
//! Elementwise ops and data movements have 16-bit kernels. Reductions and contractions do not: they accumulate in f32
//! anyway. Casts of constants are folded, other casts fuse with adjacent ops.

use of_diag::{Diagnostic, Diagnostics};
use of_ir::{DType, Func, OpId, Rewriter, ValueId};
use of_ops::OpSpec;
use of_ops::contraction::MatMul;
use of_ops::elementwise::Cast;
use of_ops::nn::{AvgPool, Conv, ConvTranspose, DepthwiseWeightGradient, MaxPool, MaxPoolGradient, Resize};
use of_ops::reduction::{ArgMax, ArgMin, CumSum, ReduceMax, ReduceMin, ReduceProd, ReduceSum, TopK};

/// Ops with f32 kernels only.
const WIDENED: &[&str] = &[
    MatMul::NAME,
    Conv::NAME,
    ConvTranspose::NAME,
    DepthwiseWeightGradient::NAME,
    AvgPool::NAME,
    MaxPool::NAME,
    MaxPoolGradient::NAME,
    Resize::NAME,
    ReduceSum::NAME,
    ReduceMax::NAME,
    ReduceMin::NAME,
    ReduceProd::NAME,
    ArgMax::NAME,
    ArgMin::NAME,
    CumSum::NAME,
    TopK::NAME,
];

/// Inserts casts around every such op.
///
/// # Errors
/// When an op that it makes does not fit, a bug of the pass.
pub fn legalize_float16(func: &mut Func) -> Result<(), Diagnostics> {
    let mut rw = Rewriter::new(&mut func.graph, "legalize-float16");
    for op in rw.graph().walk() {
        if WIDENED.contains(&rw.graph().op(op).name()) {
            widen(&mut rw, op)?;
        }
    }
    Ok(())
}

fn widen(rw: &mut Rewriter<'_>, op: OpId) -> Result<(), Diagnostic> {
    let data = rw.graph().op(op);
    let (def, attrs) = (data.def, data.attrs.clone());
    let (mut operands, results) = (data.operands.to_vec(), data.results.to_vec());
    if !operands.iter().any(|v| half(rw, *v).is_some()) {
        return Ok(());
    }
    let narrow: Vec<Option<DType>> = results.iter().map(|v| half(rw, *v)).collect();
    rw.rewrite(op, &[]);
    for v in &mut operands {
        if half(rw, *v).is_some() {
            *v = rw.create_one(Cast::to(DType::F32), &[*v])?;
        }
    }
    let wide = rw.create((def, attrs), &operands)?;
    let mut out = rw.graph().op(wide).results.to_vec();
    for (v, narrow) in out.iter_mut().zip(narrow) {
        if let Some(to) = narrow {
            *v = rw.create_one(Cast::to(to), &[*v])?;
        }
    }
    rw.replace(op, &out);
    Ok(())
}

/// The element type of `v` if it is a 16-bit float.
fn half(rw: &Rewriter<'_>, v: ValueId) -> Option<DType> {
    rw.graph().ty(v).as_tensor().map(|t| t.dtype).filter(|d| matches!(d, DType::F16 | DType::BF16))
}
