//! Describes transfers between ranks in the plan.

use of_diag::{Code, Diagnostic};
use of_ir::{Graph, OpId};
use of_ops::boxing::Transfer;
use of_ops::list::as_op;
use of_plan::{AxisLayout, BackendTransfer};

use crate::backend::Backend;
use crate::mesh::{EXCHANGED, EXCHANGED_HINT, axis_layout};
use crate::physical::element_type;

/// The plan's rendezvous of an `of.transfer`, and the ranks along each participating axis of the mesh; 1 along others.
///
/// # Errors
/// When ranks cannot exchange such values.
pub fn rendezvous(g: &Graph, op: OpId) -> Result<(BackendTransfer, Vec<usize>), Diagnostic> {
    let data = g.op(op);
    let error = |what: &str| Diagnostic::error(Code::UNSUPPORTED, data.loc.clone(), what.to_string());
    let own = as_op::<Transfer>(g, op).ok_or_else(|| error("the attributes of a transfer do not decode"))?;
    let dtype = g.ty(data.operands[0]).as_tensor().map(|t| t.dtype).filter(|t| t.bits().is_some_and(|b| b >= 8));
    let refused =
        || error(&format!("{} passes between ranks, which exchange only {EXCHANGED}", g.ty(data.operands[0])));
    let dtype = dtype.ok_or_else(|| refused().hint(EXCHANGED_HINT))?;
    let axes: Vec<usize> = own.axes.iter().filter_map(|a| usize::try_from(*a).ok()).collect();
    let stage = |i: usize| own.stage_ranks.get(i).and_then(|s| u32::try_from(*s).ok());
    let layout = |of: &of_ir::NdSbp, side: usize| {
        let one = |a: &usize| match stage(0).filter(|axis| *axis as usize == *a) {
            Some(_) => stage(side).map(AxisLayout::at),
            None => of.axes.get(*a).copied().map(axis_layout),
        };
        axes.iter().filter_map(one).collect()
    };
    let mut mesh = vec![1; axes.last().map_or(0, |a| a + 1)];
    axes.iter().zip(&own.ranks).for_each(|(axis, n)| mesh[*axis] = usize::try_from(*n).unwrap_or(1));
    let transfer = of_plan::Transfer {
        id: u32::try_from(own.id).map_err(|_| error("a transfer has a number beyond 32 bits"))?,
        axes: axes.iter().map(|a| *a as u32).collect(),
        dims: own.dims.clone(),
        from: layout(&own.from, 1),
        to: layout(&own.to, 2),
        factors: Vec::new(),
    };
    Ok((BackendTransfer { transfer, dtype: element_type(dtype) as i32 }, mesh))
}

/// Whether a backend executes a rank's share of an `of.transfer`.
///
/// # Errors
/// The reason for the refusal.
pub(crate) fn exchanged(g: &Graph, op: OpId, backend: &dyn Backend) -> Result<(), String> {
    let (rendezvous, mesh) = rendezvous(g, op).map_err(|d| d.message)?;
    if rendezvous.transfer.is_open() {
        return Err("the runtime alone exchanges values whose extents a run decides".into());
    }
    backend.exchanges(&rendezvous, &mesh)
}
