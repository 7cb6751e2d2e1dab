//! Transfers between ranks: one step, or two where that moves fewer bytes.

use of_diag::{Code, Diagnostic};
use of_ir::OpId;
use of_ops::boxing::Transfer;
use of_ops::list::as_op;
use of_plan::{AxisLayout, LayoutKind};

use crate::lower::Lowering;
use crate::mesh::{EXCHANGED, EXCHANGED_HINT};
use crate::physical::{BufferRef, Flops, Operand, StepKind};
use crate::transfer::rendezvous;

/// From this many bytes on, more than two ranks use a reduce-scatter and an all-gather, as Thakur, Rabenseifner and Gropp do for
/// long messages ("Optimization of Collective Communication Operations in MPICH", 2005). Each rank then reads twice its data,
/// instead of the data of all ranks.
const MIN_SPLIT_ELEMENTS: u64 = 16384;

impl Lowering<'_, '_> {
    /// Emits the steps of a rank's share of a transfer.
    pub(super) fn transfer(&mut self, op: OpId) -> Result<(), Diagnostic> {
        let whole = rendezvous(self.g, op)?.0.transfer;
        let data = self.g.op(op);
        let error = |what: &str| Diagnostic::error(Code::UNSUPPORTED, data.loc.clone(), what.to_string());
        let (x, y) = (data.operands[0], data.results[0]);
        let open = whole.is_open();
        // A run compares the extents of an open value, so it must have the type of the operand.
        let src = if open { self.typed_operand(x)? } else { self.operand(x)? };
        let dtype = self.dtype(x);
        if !open && matches!(src.buffer, BufferRef::Slot(s) if self.out.physical.slots[s].bytes.is_none()) {
            let what = format!("{} passes between ranks, which exchange only {EXCHANGED}", self.g.ty(x));
            return Err(error(&what).hint(EXCHANGED_HINT));
        }
        let dst = self.new_value(y);
        if open {
            self.boxing(op, whole, src, dst);
            return Ok(());
        }
        let bytes = self.out.physical.slots[dst].bytes.ok_or_else(|| error("the part of a rank has no known size"))?;
        let sums = matches!((&whole.from[..], &whole.to[..]), ([a], [b])
            if a.kind().is_partial() && b.kind() == LayoutKind::Broadcast);
        let ranks = as_op::<Transfer>(self.g, op).and_then(|own| own.ranks.first().copied()).unwrap_or(1).max(1);
        // A library of collectives selects its algorithms itself.
        if !sums || ranks <= 2 || bytes < MIN_SPLIT_ELEMENTS || self.caps.collectives {
            self.boxing(op, whole, src, dst);
            return Ok(());
        }
        // A flat list of elements, of which each rank sums a slice.
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
        self.boxing(op, second, Operand::whole(BufferRef::Slot(slice)), dst);
        Ok(())
    }

    fn boxing(&mut self, op: OpId, transfer: of_plan::Transfer, src: Operand, dst: usize) {
        let bytes = self.bytes_of(&src).unwrap_or(0) + self.out.physical.slots[dst].bytes.unwrap_or(0);
        let locations = self.locations(&[op]);
        let name = format!("transfer {}", transfer.id);
        self.step(name, locations, StepKind::Boxing { transfer, src, dst, is_async: false }, Flops::default(), bytes);
    }
}
