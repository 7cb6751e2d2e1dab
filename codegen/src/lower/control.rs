//! Control flow: its regions become programs of the plan, which the runtime runs.

use std::collections::HashSet;
use std::mem;
use std::sync::Arc;

use of_diag::{Code, Diagnostic};
use of_ir::{Dim, IdSet, OpId, RegionId, Type, ValueId};

use crate::analysis::roles;
use crate::analysis::roles::Roles;
use crate::extract::read_by;
use crate::lower::{Lowered, Lowering};
use crate::physical::{Flops, Operand, RegionCall, StepKind};

impl Lowering<'_, '_> {
    /// A step that runs the regions of `op`.
    pub(super) fn control(&mut self, op: OpId) -> Result<(), Diagnostic> {
        let data = self.g.op(op);
        let Some(kind) = roles::control(self.g, op) else {
            let what = format!("'{}' is no control flow", data.name());
            return Err(Diagnostic::error(Code::CODEGEN, data.loc.clone(), what));
        };
        let (mut inputs, mut is_present) = (Vec::new(), Vec::new());
        for v in &data.operands {
            let there = *self.g.ty(*v) != Type::None;
            is_present.push(there);
            if there {
                inputs.push(self.typed_operand(*v)?);
            }
        }
        let mut region_calls = Vec::new();
        for region in data.regions.iter().copied() {
            let captures = self.captures(op, region);
            let args = self.g.region_args(region).to_vec();
            let program = self.body_program(region, &args, &captures)?;
            let mut captured = Vec::new();
            for v in &captures {
                captured.push(self.capture(*v, &mut inputs)?);
            }
            region_calls.push(RegionCall { program, captures: captured });
        }
        let outputs: Vec<usize> = data.results.iter().map(|v| self.new_value(*v)).collect();
        let (title, locations) = (self.title(&[op]), self.locations(&[op]));
        self.step(
            title,
            locations,
            StepKind::Control { kind, inputs, is_present, region_calls, outputs },
            Flops::default(),
            0,
        );
        Ok(())
    }

    /// The index of a captured value among the inputs of the step.
    fn capture(&mut self, v: ValueId, inputs: &mut Vec<Operand>) -> Result<u32, Diagnostic> {
        let buffer = self.typed_operand(v)?;
        inputs.push(buffer);
        Ok((inputs.len() - 1) as u32)
    }

    /// The outer values that the region reads, excluding constants: these are weights that all programs share. The values that
    /// bind its symbols are captured too, unless another capture binds them.
    pub(super) fn captures(&self, op: OpId, region: RegionId) -> Vec<ValueId> {
        let mut read = Vec::new();
        read_by(self.g, op, &mut read);
        // Other ops may read the same values any number of times, so the uses of a value are not searched.
        let inside = self.read_inside(region);
        let constant = |v: &ValueId| self.constants.tensor(*v).is_some() || *self.g.ty(*v) == Type::None;
        let mut seen = IdSet::default();
        let mut out: Vec<ValueId> =
            read.into_iter().filter(|v| inside.contains(v) && !constant(v) && seen.insert(*v)).collect();
        let shape = |v: ValueId| self.g.ty(v).as_tensor().and_then(|t| t.shape.clone()).unwrap_or_default();
        // The symbols that some value binds by an extent of its own.
        let mut bound: HashSet<Arc<str>> = HashSet::default();
        let symbols = |v: ValueId| shape(v).iter().filter_map(|d| d.as_symbol().cloned()).collect::<Vec<_>>();
        bound.extend(out.iter().flat_map(|v| symbols(*v)));
        // A binder may have other symbols, which need binders too.
        let mut next = 0;
        while let Some(v) = out.get(next).copied() {
            for s in shape(v).iter().flat_map(Dim::symbols) {
                if bound.contains(&s) {
                    continue;
                }
                if let Some(binder) = self.roles.binder(&s, op) {
                    bound.insert(s);
                    if seen.insert(binder) {
                        bound.extend(symbols(binder));
                        out.push(binder);
                    }
                }
            }
            next += 1;
        }
        out
    }

    /// The operands of all ops inside a region.
    fn read_inside(&self, region: RegionId) -> IdSet<ValueId> {
        let mut out = HashSet::default();
        let mut open = vec![region];
        while let Some(r) = open.pop() {
            for op in self.g.region_ops(r) {
                let data = self.g.op(op);
                out.extend(data.operands.iter().copied());
                open.extend(&data.regions);
            }
        }
        out
    }

    /// Lowers a region whose inputs are its arguments and captures, and returns its index among the inner programs.
    fn body_program(&mut self, region: RegionId, args: &[ValueId], captures: &[ValueId]) -> Result<usize, Diagnostic> {
        let values: Vec<ValueId> = args.iter().chain(captures).copied().collect();
        let name = |(i, v): (usize, &ValueId)| {
            let own = self.g.name(*v).map_or_else(String::new, |n| format!(" {n}"));
            (*v, format!("{i}{own}"))
        };
        let inputs: Vec<(ValueId, String)> = values.iter().enumerate().map(name).collect();
        let outputs: Vec<String> = (0..self.g.yields(region).len()).map(|i| i.to_string()).collect();
        let roles = Roles::of(self.g, region, &values);
        let outer = (mem::replace(&mut self.roles, roles), mem::take(&mut self.out));
        let saved = (mem::take(&mut self.operand_of), mem::take(&mut self.kernel_of));
        let variables = mem::take(&mut self.variables);
        let result = self.region(region, &inputs, &outputs);
        self.variables = variables;
        let inner: Lowered = mem::replace(&mut self.out, outer.1);
        self.roles = outer.0;
        (self.operand_of, self.kernel_of) = saved;
        result?;
        self.out.inner.push(inner);
        Ok(self.out.inner.len() - 1)
    }
}
