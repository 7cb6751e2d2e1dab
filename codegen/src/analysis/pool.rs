//! The specification of max pools that also return the positions of the maxima.

use of_ir::{DType, Graph, OpId};
use of_ops::list::as_op;
use of_ops::nn::MaxPool;

use crate::kernel::extent::{self, Extent};
use crate::kernel::indexed::Indexed;
use crate::kernel::nest::Nest;
use crate::kernel::window::WindowAxis;

/// The kernel of a max pool with positions: samples and channels are the outer axes.
///
/// # Errors
/// The reason why there is none.
pub fn arg_max(g: &Graph, op: OpId) -> Result<Nest, String> {
    let (x, y) = (g.op(op).operands[0], g.op(op).results[0]);
    let pool: MaxPool = as_op(g, op).ok_or("its attributes do not decode")?;
    let ty = g.ty(x).as_tensor().ok_or("no tensor")?;
    if pool.channels_last || pool.storage_order != 0 || ty.dtype != DType::F32 {
        return Err(
            "indices of maxima have native code only for f32, channels-first images, and row-major order".into()
        );
    }
    let shape = ty.shape.clone().ok_or("the rank of its input is not known")?;
    let windows = pool.geometry(&shape).map_err(|e| e.message)?.windows;
    let windows = (0..windows.input.len()).map(|a| WindowAxis::of(&windows, a)).collect();
    let input = shape.iter().cloned().map(Extent::from).collect();
    Ok(Nest::Indexed(Indexed::PoolArgMax { input, dims: extent::of_value(g, y), windows }))
}
