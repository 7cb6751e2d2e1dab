//! Values in time: slices of a value for each microbatch, and what is stacked or combined from all of them.

use of_diag::{Code, Diagnostic};
use of_ir::{OpId, PartialKind, TensorType, ValueId};
use of_ops::OpSpec;
use of_ops::list::as_op;
use of_ops::time::{Accumulate, Pack, Unpack, partial_kind};
use of_plan::LayoutKind;

use crate::lower::Lowering;
use crate::physical::{BufferRef, Flops, StepKind, TimeCopy};

impl Lowering<'_, '_> {
    /// Checks that all values of a region have known sizes, which values in microbatches need.
    pub(super) fn check_sizes(&self, ops: impl Iterator<Item = OpId>) -> Result<(), Diagnostic> {
        let open = |v: &ValueId| self.g.ty(*v).as_tensor().and_then(TensorType::fixed_dims).is_none();
        for op in ops {
            let data = self.g.op(op);
            let constant = data.def.traits().constant || data.results.is_empty();
            if let Some(v) = data.results.iter().find(|v| !constant && open(v)) {
                let what = format!("{} is computed in microbatches, which need known extents", self.g.ty(*v));
                let d = Diagnostic::error(Code::UNSUPPORTED, data.loc.clone(), what);
                return Err(d.hint("give numbers to open dimensions (--shape)"));
            }
        }
        Ok(())
    }

    /// Emits the step of an op that is in time.
    pub(super) fn in_time(&mut self, op: OpId) -> Result<(), Diagnostic> {
        let data = self.g.op(op);
        let (x, y) = (data.operands[0], data.results[0]);
        let src = self.operand(x)?;
        let dst = self.new_value(y);
        let size = |l: &Self, v: ValueId| {
            let t = l.g.ty(v).as_tensor()?;
            t.dtype.byte_len(t.fixed_dims()?.iter().product())
        };
        let bytes = |v: ValueId| size(self, v).map(|n| n as u64);
        let unsupported = || {
            let what = format!("{} is cut into microbatches, but its elements have no known bytes", self.g.ty(x));
            Diagnostic::error(Code::UNSUPPORTED, data.loc.clone(), what)
        };
        let (from, to) = bytes(x).zip(bytes(y)).ok_or_else(unsupported)?;
        let source_in_memory = match src.buffer {
            BufferRef::Slot(s) => self.out.physical.slots[s].bytes.is_some(),
            BufferRef::Weight(_) => true,
        };
        if !source_in_memory || self.out.physical.slots[dst].bytes.is_none() {
            return Err(unsupported());
        }
        let copy = match data.name() {
            Unpack::NAME => TimeCopy::Unpack { bytes: to },
            Pack::NAME => TimeCopy::Pack { bytes: from },
            _ => {
                let kind = as_op::<Accumulate>(self.g, op).and_then(|own| partial_kind(&own.kind));
                TimeCopy::Accumulate {
                    bytes: from,
                    kind: match kind.unwrap_or(PartialKind::Sum) {
                        PartialKind::Sum => LayoutKind::Sum,
                        PartialKind::Max => LayoutKind::Max,
                        PartialKind::Min => LayoutKind::Min,
                        PartialKind::Prod => LayoutKind::Prod,
                    },
                }
            }
        };
        let flops = match copy {
            TimeCopy::Accumulate { .. } => {
                Flops::pointwise(self.dims(y).iter().filter_map(|d| d.number()).product::<usize>() as u64)
            }
            TimeCopy::Unpack { .. } | TimeCopy::Pack { .. } => Flops::default(),
        };
        let (name, locations) = (self.title(&[op]), self.locations(&[op]));
        self.step(name, locations, StepKind::Time { copy, src, dst }, flops, 2 * from.min(to));
        Ok(())
    }
}
