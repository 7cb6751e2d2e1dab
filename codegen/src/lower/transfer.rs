//! Transfers between ranks: one step, or two where that moves fewer bytes.

use of_diag::{Code, Diagnostic};
use of_ir::{Graph, OpId};
use of_ops::boxing::Transfer;
use of_ops::list::as_op;
use of_plan::{AxisLayout, LayoutKind, Rendezvous};

use super::Lowering;
use crate::Backend;
use crate::mesh::{EXCHANGED, EXCHANGED_HINT, axis_layout};
use crate::physical::{Flops, Operand, Place, Work, element_type};

/// From so many bytes on, many ranks sum a slice each and gather the slices, as Thakur, Rabenseifner and Gropp do for
/// long messages ("Optimization of Collective Communication Operations in MPICH", 2005): each then reads twice what it
/// has, rather than what all have.
const LONG: u64 = 16384;

/// What an `of.transfer` is in a plan, and the ranks along each axis of the mesh that takes part; 1 along others.
///
/// # Errors
/// When ranks do not exchange such values.
pub fn meeting(g: &Graph, op: OpId) -> Result<(Rendezvous, Vec<usize>), Diagnostic> {
    let data = g.op(op);
    let error = |what: &str| Diagnostic::error(Code::UNSUPPORTED, data.loc.clone(), what.to_string());
    let own = as_op::<Transfer>(g, op).ok_or_else(|| error("the attributes of a transfer do not decode"))?;
    let dtype = g.ty(data.operands[0]).as_tensor().map(|t| t.dtype).filter(|t| t.bits().is_some_and(|b| b >= 8));
    let refused =
        || error(&format!("{} passes between ranks, which take and give {EXCHANGED}", g.ty(data.operands[0])));
    let dtype = dtype.ok_or_else(|| refused().hint(EXCHANGED_HINT))?;
    let axes: Vec<usize> = own.axes.iter().filter_map(|a| usize::try_from(*a).ok()).collect();
    let stage = |i: usize| own.stages.get(i).and_then(|s| u32::try_from(*s).ok());
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
    };
    Ok((Rendezvous { transfer, dtype: element_type(dtype) as i32 }, mesh))
}

/// Whether a backend does the share of a rank in an `of.transfer`.
///
/// # Errors
/// Why not.
pub(crate) fn exchanged(g: &Graph, op: OpId, backend: &dyn Backend) -> Result<(), String> {
    let (meeting, mesh) = meeting(g, op).map_err(|d| d.message)?;
    backend.exchanges(&meeting, &mesh)
}

impl Lowering<'_, '_> {
    /// The steps of a rank's share in a transfer.
    pub(super) fn transfer(&mut self, op: OpId) -> Result<(), Diagnostic> {
        let whole = meeting(self.g, op)?.0.transfer;
        let data = self.g.op(op);
        let error = |what: &str| Diagnostic::error(Code::UNSUPPORTED, data.loc.clone(), what.to_string());
        let (x, y) = (data.operands[0], data.results[0]);
        let (src, dtype) = (self.place(x)?, self.dtype(x));
        if matches!(src.place, Place::Slot(s) if self.out.physical.slots[s].bytes.is_none()) {
            let what = format!("{} passes between ranks, which take and give {EXCHANGED}", self.g.ty(x));
            return Err(error(&what).hint(EXCHANGED_HINT));
        }
        let dst = self.new_value(y);
        let bytes = self.out.physical.slots[dst].bytes.ok_or_else(|| error("the part of a rank has no known size"))?;
        let sums = matches!((&whole.from[..], &whole.to[..]), ([a], [b])
            if a.kind().is_partial() && b.kind() == LayoutKind::Broadcast);
        let ranks = as_op::<Transfer>(self.g, op).and_then(|own| own.ranks.first().copied()).unwrap_or(1).max(1);
        // A library of collectives has its own ways.
        if !sums || ranks <= 2 || bytes < LONG || self.isa.is_gpu() {
            self.boxing(op, whole, src, dst);
            return Ok(());
        }
        // As a list of elements, of which each rank sums a slice.
        let count: i64 = whole.dims.iter().product();
        let slice = self.scratch_slot(
            format!("v{}/slice", y.index()),
            dtype,
            &[(count as usize).div_ceil(ranks as usize).into()],
        );
        let middle = vec![AxisLayout::split(0)];
        let first = of_plan::Transfer { dims: vec![count], to: middle.clone(), ..whole.clone() };
        let second = of_plan::Transfer { id: whole.id + 1, dims: vec![count], from: middle, ..whole };
        self.boxing(op, first, src, slice);
        self.boxing(op, second, Operand::whole(Place::Slot(slice)), dst);
        Ok(())
    }

    fn boxing(&mut self, op: OpId, transfer: of_plan::Transfer, src: Operand, dst: usize) {
        let bytes = self.bytes_of(&src).unwrap_or(0) + self.out.physical.slots[dst].bytes.unwrap_or(0);
        let locations = self.locations(&[op]);
        let name = format!("transfer {}", transfer.id);
        self.step(name, locations, Work::Boxing { transfer, src, dst }, Flops::default(), bytes);
    }
}
