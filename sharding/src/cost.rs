//! Op costs on one device: the roofline of arithmetic and memory traffic.

use of_ir::{Dim, Graph, OpId, Sbp, TensorType, ValueId};

use crate::MeshSpec;
use crate::layout::{self, Layout};

/// Work of an op on whole tensors.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Work {
    /// Arithmetic operations.
    pub flops: f64,
    /// Peak operations per second of a device for the element type of the result.
    pub peak: f64,
}

/// The work of `op`.
pub fn work(g: &Graph, op: OpId, mesh: &MeshSpec) -> Work {
    let data = g.op(op);
    let dtype = data.results.iter().find_map(|v| g.ty(*v).as_tensor()).map_or(of_ir::DType::F32, |t| t.dtype);
    Work { flops: of_ops::work::of(g, op).flops, peak: mesh.flops(dtype) }
}

/// Seconds of an op whose operands and results have these sizes in bytes and these layouts: the maximum of arithmetic
/// and memory time. A mesh axis divides the arithmetic where it splits any tensor; otherwise all its devices do the
/// same work.
pub fn seconds(work: Work, values: &[(f64, &Layout)], mesh: &MeshSpec, shape: &[usize]) -> f64 {
    let divided: usize = (0..shape.len())
        .filter(|a| values.iter().any(|(_, l)| matches!(l[*a], Sbp::Split(_))))
        .map(|a| shape[a])
        .product();
    let bytes: f64 = values.iter().map(|(b, l)| b * layout::share(l, shape)).sum();
    (work.flops / divided as f64 / work.peak).max(bytes / mesh.bandwidth)
}

/// Seconds of `op` on one device that holds all of it. Unknown extents count as [`of_ops::work::OPEN`].
pub fn single_device_seconds(g: &Graph, op: OpId, mesh: &MeshSpec) -> f64 {
    let work = work(g, op, mesh);
    (work.flops / work.peak).max(of_ops::work::of(g, op).bytes() / mesh.bandwidth)
}

/// Size in bytes and extents of a value, where it is a tensor whose extents have names. An open extent counts as
/// [`of_ops::work::OPEN`] in the size. As an extent it is the number of slices that it has for any values of its symbols: what
/// divides it, where the number of devices does, and 1 elsewhere.
pub fn size(g: &Graph, v: ValueId, devices: usize) -> Option<(f64, Vec<usize>)> {
    let t = g.ty(v).as_tensor()?;
    t.dtype.bits()?;
    Some((of_ops::work::bytes(g.ty(v)), extents(t, devices)?))
}

/// The extents of [`size`].
pub fn extents(t: &TensorType, devices: usize) -> Option<Vec<usize>> {
    let extent = |d: &Dim| match d.as_const() {
        Some(n) => usize::try_from(n).ok(),
        None if d.is_unknown() => None,
        None => usize::try_from(d.content()).ok().map(|n| if n.is_multiple_of(devices.max(1)) { n } else { 1 }),
    };
    t.shape.as_ref()?.iter().map(extent).collect()
}
