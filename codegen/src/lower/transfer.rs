//! Transfers between ranks: one step, or several where that takes less time.

use of_diag::{Code, Diagnostic};
use of_ir::OpId;
use of_ops::boxing::Transfer;
use of_ops::list::as_op;
use of_plan::{AllReduce, LayoutKind};

use crate::lower::Lowering;
use crate::mesh::{EXCHANGED, EXCHANGED_HINT};
use crate::physical::{BufferRef, Flops, Operand, StepKind};
use crate::transfer::rendezvous;

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
        let ranks = as_op::<Transfer>(self.g, op).and_then(|own| u32::try_from(*own.ranks.first()?).ok()).unwrap_or(1);
        // A library of collectives selects its algorithms itself.
        let algorithm = if sums && !self.caps.collectives { AllReduce::of(ranks, bytes) } else { AllReduce::Exchange };
        let rounds = algorithm.transfers(&whole, ranks);
        let (last, before) = rounds.split_last().ok_or_else(|| error("a transfer has no rounds"))?;
        let mut src = src;
        for (i, round) in before.iter().enumerate() {
            // The largest part that a rank has: slices of slices.
            let group = round.group(&[vec![1; whole.axes[0] as usize], vec![ranks as usize]].concat(), 0);
            let part = self.scratch_slot(
                format!("v{}/round{i}", y.index()),
                dtype,
                &[round.elements(&group, group.me, true).into()],
            );
            self.boxing(op, round.clone(), src, part);
            src = Operand::whole(BufferRef::Slot(part));
        }
        self.boxing(op, last.clone(), src, dst);
        Ok(())
    }

    fn boxing(&mut self, op: OpId, transfer: of_plan::Transfer, src: Operand, dst: usize) {
        let bytes = self.bytes_of(&src).unwrap_or(0) + self.out.physical.slots[dst].bytes.unwrap_or(0);
        let locations = self.locations(&[op]);
        let name = format!("transfer {}", transfer.id);
        let kind = StepKind::Boxing { transfer, src, dst, is_async: false, fused: Vec::new(), staging: None };
        self.step(name, locations, kind, Flops::default(), bytes);
    }
}

#[cfg(test)]
mod tests {
    use of_plan::AxisLayout;

    use super::*;

    #[test]
    fn every_transfer_has_numbers_for_its_rounds() {
        let (from, to) = (vec![AxisLayout::of(LayoutKind::Sum)], vec![AxisLayout::of(LayoutKind::Broadcast)]);
        for ranks in 2..=4096u32 {
            let whole = of_plan::Transfer {
                axes: vec![0],
                dims: vec![1 << 14],
                from: from.clone(),
                to: to.clone(),
                ..of_plan::Transfer::default()
            };
            for bytes in [8, 1 << 14, 1 << 16, 1 << 20] {
                let rounds = AllReduce::of(ranks, bytes).transfers(&whole, ranks).len();
                assert!(rounds as i64 <= Transfer::numbers(ranks as usize), "{rounds} rounds of {ranks} ranks");
            }
        }
    }
}
