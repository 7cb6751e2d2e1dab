//! Transfers between ranks: one step, or two where that moves fewer bytes.

use of_diag::{Code, Diagnostic};
use of_ir::{OpId, Sbp};
use of_ops::boxing::Transfer;
use of_ops::list::as_op;
use of_plan::AxisLayout;

use super::Lowering;
use crate::mesh::axis_layout;
use crate::physical::{Flops, Operand, Place, Work};

/// From so many bytes on, many ranks sum a slice each and gather the slices, as Thakur, Rabenseifner and Gropp do for
/// long messages ("Optimization of Collective Communication Operations in MPICH", 2005): each then reads twice what it
/// has, rather than what all have.
const LONG: u64 = 16384;

impl Lowering<'_, '_> {
    /// The steps of a rank's share in a transfer.
    pub(super) fn transfer(&mut self, op: OpId) -> Result<(), Diagnostic> {
        let data = self.g.op(op);
        let error = |what: &str| Diagnostic::error(Code::UNSUPPORTED, data.loc.clone(), what.to_string());
        let own = as_op::<Transfer>(self.g, op).ok_or_else(|| error("the attributes of a transfer do not decode"))?;
        let (x, y) = (data.operands[0], data.results[0]);
        let dtype = self.dtype(x);
        let src = self.place(x)?;
        let object = matches!(src.place, Place::Slot(s) if self.out.physical.slots[s].bytes.is_none());
        if object || dtype.bits().is_none_or(|b| b < 8) {
            return Err(error(&format!("ranks do not exchange {}", self.g.ty(x))));
        }
        let axes: Vec<usize> = own.axes.iter().filter_map(|a| usize::try_from(*a).ok()).collect();
        let stage = |i: usize| own.stages.get(i).and_then(|s| u32::try_from(*s).ok());
        let layout = |of: &of_ir::NdSbp, side: usize| {
            let one = |a: &usize| match stage(0).filter(|axis| *axis as usize == *a) {
                Some(_) => stage(side).map(AxisLayout::at),
                None => of.axes.get(*a).copied().map(axis_layout),
            };
            axes.iter().filter_map(one).collect()
        };
        let whole = of_plan::Transfer {
            id: u32::try_from(own.id).map_err(|_| error("a transfer has a number beyond 32 bits"))?,
            axes: axes.iter().map(|a| *a as u32).collect(),
            dims: own.dims.clone(),
            from: layout(&own.from, 1),
            to: layout(&own.to, 2),
        };
        let dst = self.new_value(y);
        let bytes = self.out.physical.slots[dst].bytes.ok_or_else(|| error("the part of a rank has no known size"))?;
        let sums = matches!(
            (&axes[..], axes.first().map(|a| (own.from.axes[*a], own.to.axes[*a]))),
            ([_], Some((Sbp::Partial(_), Sbp::Broadcast)))
        );
        let ranks = own.ranks.first().copied().unwrap_or(1).max(1);
        if !sums || ranks <= 2 || bytes < LONG {
            self.boxing(op, whole, src, dst);
            return Ok(());
        }
        // As a list of elements, of which each rank sums a slice.
        let count: i64 = own.dims.iter().product();
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
