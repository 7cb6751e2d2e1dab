//! Variables: their slots, their next values, and which kernels may update them in place.

use of_diag::{Code, Diagnostic, Location};
use of_ir::{RegionId, ValueId};
use of_ops::training::InitialValue;
use of_plan::{Initial, Zeros};

use crate::analysis::roles::is_rendezvous;
use crate::fuse::{Group, merge_updates};
use crate::kernel::body::Body;
use crate::kernel::extent::Extent;
use crate::kernel::space::{collapse, row_major};
use crate::lower::{Lowering, slot_type};
use crate::physical::{BufferRef, Flops, Operand, StepKind, VariableSpec};

impl Lowering<'_, '_> {
    /// Adds variable `k`, whose value before the run is in `slot`.
    pub(super) fn variable(&mut self, k: usize, name: &str, slot: usize) -> Result<(), Diagnostic> {
        let own = &self.out.physical.slots[slot];
        let (dtype, dims) = (own.dtype, own.dims.clone());
        let (Some(dtype), Some(_)) = (dtype.filter(|d| d.bits().is_some_and(|bits| bits >= 8)), own.bytes) else {
            let what = format!("variable '{name}' is not a tensor of known extents whose elements are whole bytes");
            let d = Diagnostic::error(Code::UNSUPPORTED, Location::Unknown, what);
            return Err(d.hint("give numbers to open dimensions (--shape)"));
        };
        let initial = match self.variables[k].initial.clone() {
            None => None,
            Some(InitialValue::Zeros) => Some(Initial::Zeros(Zeros {})),
            Some(InitialValue::Tensor(tensor)) => {
                let given: Vec<i64> = tensor.dims().iter().map(|d| *d as i64).collect();
                if (tensor.dtype(), &given) != (dtype, &dims) {
                    let what =
                        format!("the initial value of '{name}' is {}{given:?}, not {dtype}{dims:?}", tensor.dtype());
                    return Err(Diagnostic::error(Code::TYPE, Location::Unknown, what));
                }
                self.constants.unchanged(name, &tensor)?.map(Initial::Weight)
            }
        };
        self.out.physical.slots[slot].variable = Some(self.out.physical.variables.len());
        self.out.physical.variables.push(VariableSpec { name: name.to_string(), slot, next: None, initial });
        self.step(format!("variable {name}"), Vec::new(), StepKind::Variable { dst: slot }, Flops::default(), 0);
        Ok(())
    }

    /// Groups of a region, in which updates of small variables share kernels. Where ranks exchange values, the order of groups was chosen
    /// before, and stays.
    pub(super) fn merge_updates(&self, region: RegionId, groups: Vec<Group>) -> Vec<Group> {
        let is_exchange = |group: &Group| group.ops.iter().any(|op| is_rendezvous(self.g, *op));
        if self.variables.is_empty() || groups.iter().any(is_exchange) {
            return groups;
        }
        let outputs = self.g.yields(region);
        let updates = self.variables.iter().filter_map(|variable| outputs.get(variable.next?).copied());
        merge_updates(self.g, region, groups, &updates.collect())
    }

    /// Notes the next value of variable `k` of the function, which is `v`.
    pub(super) fn next_value(&mut self, k: usize, v: ValueId, next: Operand) -> Result<(), Diagnostic> {
        let (input, dtype) = (self.g.args()[self.variables[k].input], slot_type(self.g.ty(v)));
        let own = self.operand_of.get(&input).and_then(|o| match o.buffer {
            BufferRef::Slot(slot) => Some(slot),
            BufferRef::Weight(_) => None,
        });
        let variable = self.out.physical.variables.iter_mut().find(|variable| Some(variable.slot) == own);
        match variable {
            Some(variable) if slot_type(self.g.ty(input)) == dtype => {
                variable.next = Some(next);
                Ok(())
            }
            _ => {
                let what = format!("the next value of a variable of type {} is {}", self.g.ty(input), self.g.ty(v));
                Err(Diagnostic::error(Code::TYPE, Location::Unknown, what))
            }
        }
    }

    /// Notes for the last step, an elementwise kernel over `space`, which of its slots may share memory.
    pub(super) fn note_in_place(&mut self, body: &Body, space: &[Extent]) {
        if self.variables.is_empty() {
            return;
        }
        let dense = row_major(space);
        // Whether an access goes through memory in the order of the stores.
        let is_dense = |strides: &[Extent]| {
            let s = collapse(space, &[strides.to_vec(), dense.clone()]);
            s.strides[0] == s.strides[1]
        };
        let Some(step) = self.out.physical.steps.last() else { return };
        let StepKind::Kernel { args, writes, .. } = &step.kind else { return };
        let mut pairs = Vec::new();
        for (load, arg) in body.loads.iter().zip(args) {
            let BufferRef::Slot(read) = arg.buffer else { continue };
            // Every access to the slot must be to the element that is written.
            let mut all = body.loads.iter().zip(args).filter(|(_, a)| a.buffer == arg.buffer);
            if !all.all(|(l, a)| a.offset == 0 && is_dense(&l.strides)) {
                continue;
            }
            for ((value, _), written) in body.stores.iter().zip(writes) {
                if self.dtype(*value).bits() == load.dtype.bits() && !pairs.contains(&(read, *written)) {
                    pairs.push((read, *written));
                }
            }
        }
        if let Some(step) = self.out.physical.steps.last_mut() {
            step.in_place = pairs;
        }
    }

    /// Notes for the last step, a scatter, that it may write into the memory of its data, which it then does not copy.
    pub(super) fn note_scatter_in_place(&mut self) {
        if self.variables.is_empty() {
            return;
        }
        let Some(step) = self.out.physical.steps.last_mut() else { return };
        let StepKind::Kernel { args, writes, .. } = &step.kind else { return };
        let ([data, indices, updates, ..], [to]) = (&args[..], &writes[..]) else { return };
        let BufferRef::Slot(from) = data.buffer else { return };
        if data.offset == 0 && [indices, updates].iter().all(|other| other.buffer != data.buffer) {
            step.in_place = vec![(from, *to)];
        }
    }
}
