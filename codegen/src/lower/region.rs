//! Pooling of regions as a loop nest.

use of_ir::{DType, Graph, OpId};
use of_ops::list::as_op;
use of_ops::nn::RoiAlign;

use crate::native::expr::ctype;
use crate::native::region::Regions;
use crate::native::{Nest, extent};

/// The loop nest of `of.roi_align`.
///
/// # Errors
/// Why it has none.
pub fn regions(g: &Graph, op: OpId) -> Result<Nest, String> {
    let data = g.op(op);
    let r: RoiAlign = as_op(g, op).ok_or("its attributes do not decode")?;
    let dtype = |i: usize| g.ty(data.operands[i]).as_tensor().map_or(DType::F32, |t| t.dtype);
    if !r.channels_last {
        return Err("only channels-last regions have native code".into());
    }
    if (dtype(0), dtype(1)) != (DType::F32, DType::F32) {
        return Err("only regions of f32 have native code".into());
    }
    let images = extent::of_value(g, data.operands[0]).try_into().map_err(|_| "its images have no four axes")?;
    let size = |n: i64| usize::try_from(n).map_err(|e| e.to_string());
    Ok(Nest::Regions(Regions {
        images,
        count: extent::of_value(g, data.results[0])[0].clone(),
        grid: (size(r.output_height)?, size(r.output_width)?),
        samples: Some(size(r.sampling_ratio)?).filter(|n| *n > 0),
        scale: r.spatial_scale,
        half: &*r.coordinate_transformation_mode == "half_pixel",
        mean: &*r.mode == "avg",
        index: ctype(dtype(2)),
    }))
}
