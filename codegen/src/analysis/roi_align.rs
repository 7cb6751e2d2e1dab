//! The specification of `of.roi_align`.

use of_ir::{DType, Graph, OpId};
use of_ops::list::as_op;
use of_ops::nn;

use crate::kernel::extent;
use crate::kernel::nest::Nest;
use crate::kernel::roi_align::RoiAlign;

/// The kernel of `of.roi_align`.
///
/// # Errors
/// The reason why there is none.
pub fn roi_align(g: &Graph, op: OpId) -> Result<Nest, String> {
    let data = g.op(op);
    let r: nn::RoiAlign = as_op(g, op).ok_or("its attributes do not decode")?;
    let dtype = |i: usize| g.ty(data.operands[i]).as_tensor().map_or(DType::F32, |t| t.dtype);
    if !r.channels_last {
        return Err("only channels-last regions have native code".into());
    }
    if (dtype(0), dtype(1)) != (DType::F32, DType::F32) {
        return Err("only regions of f32 have native code".into());
    }
    let images = extent::of_value(g, data.operands[0]).try_into().map_err(|_| "its images have no four axes")?;
    let size = |n: i64| usize::try_from(n).map_err(|e| e.to_string());
    Ok(Nest::RoiAlign(RoiAlign {
        images,
        count: extent::of_value(g, data.results[0])[0].clone(),
        grid: (size(r.output_height)?, size(r.output_width)?),
        samples: Some(size(r.sampling_ratio)?).filter(|n| *n > 0),
        scale: r.spatial_scale,
        half_pixel: &*r.coordinate_transformation_mode == "half_pixel",
        average: &*r.mode == "avg",
        index: dtype(2),
    }))
}
