//! Reductions of columns, and the elementwise ops of the same pass.

use of_diag::Diagnostic;
use of_ir::{DType, OpId, ValueId};

use crate::analysis::roles::Role;
use crate::fuse::{Group, GroupKind};
use crate::kernel::body::{Body, Load, Node};
use crate::kernel::columnwise::ColumnWise;
use crate::kernel::extent::Extent;
use crate::kernel::nest::Nest;
use crate::lower::{Lowering, points};
use crate::physical::{BufferRef, Flops, Operand};

impl Lowering<'_, '_> {
    /// One kernel, or two where the rows are divided into parts: the second reduces the partial results.
    pub(super) fn columnwise(&mut self, group: &Group, outer: usize) -> Result<Result<(), Diagnostic>, String> {
        let body = self.body(group, 0)?;
        let mut first = ColumnWise { body, dims: group.space.clone(), outer, parts: 1 };
        let (rows, columns) = (first.rows(), first.columns());
        first.parts = ColumnWise::best_parts(&rows, &columns);
        let body = first.body.clone();
        if first.parts == 1 {
            let source = Nest::ColumnWise(first).print(self.isa)?;
            return Ok(self.finish(group, source, &body, Vec::new(), Flops::default()));
        }
        let between = vec![Extent::from(first.parts), columns];
        let second = of_parts(&first, &between);
        let reduced: Vec<bool> = (0..body.stores.len()).map(|k| first.is_reduction(k)).collect();
        let first = Nest::ColumnWise(first).print(self.isa)?;
        let sums: Vec<ValueId> = second.body.stores.iter().map(|(v, _)| *v).collect();
        let second = Nest::ColumnWise(second).print(self.isa)?;
        let run = |l: &mut Self| {
            let reads = body.loads.iter().map(|load| l.operand(load.value)).collect::<Result<Vec<_>, _>>()?;
            let mut parts = Vec::new();
            let mut writes = Vec::new();
            for ((v, _), reduced) in body.stores.iter().zip(reduced) {
                if !reduced {
                    writes.push(l.new_value(*v));
                    continue;
                }
                let slot = l.scratch_slot(format!("parts of {}", l.constants.name(*v)), DType::F32, &between);
                writes.push(slot);
                parts.push(Operand::whole(BufferRef::Slot(slot)));
            }
            let flops = Flops::pointwise(l.pointwise(group));
            l.kernel(&group.ops, first, reads, writes, flops);
            let writes = sums.iter().map(|v| l.new_value(*v)).collect();
            let flops = Flops::pointwise(points(&between) * sums.len() as u64);
            l.kernel(&group.ops, second, parts, writes, flops);
            Ok(())
        };
        Ok(run(self))
    }

    /// Lowers the reductions of a group behind its elementwise ops.
    pub(super) fn apart(&mut self, group: &Group) -> Result<(), Diagnostic> {
        let is_reduction = |op: &OpId| matches!(self.roles.get(*op), Role::ColumnReduce(_));
        let (reductions, maps): (Vec<OpId>, Vec<OpId>) = group.ops.iter().copied().partition(is_reduction);
        if !maps.is_empty() {
            let mut first = Group::of(maps, GroupKind::Elementwise, group.space.clone());
            first.recomputed.clone_from(&group.recomputed);
            first.unstored.clone_from(&group.unstored);
            reductions.iter().for_each(|op| _ = first.unstored.remove(&self.g.op(*op).operands[0]));
            self.group(&first)?;
        }
        for op in reductions {
            let dims = self.dims(self.g.op(op).results[0]);
            self.group(&Group::of(vec![op], GroupKind::Single, dims))?;
        }
        Ok(())
    }
}

/// The reduction of the partial results `[parts, columns]` of another.
fn of_parts(first: &ColumnWise, dims: &[Extent]) -> ColumnWise {
    let mut body = Body::default();
    for (v, n) in &first.body.stores {
        let Node::Reduce(kind, _) = first.body.nodes[*n].node else { continue };
        body.loads.push(Load { value: *v, dtype: DType::F32, strides: vec![dims[1].clone(), 1usize.into()] });
        let x = body.push(Node::Load(body.loads.len() - 1), DType::F32, false);
        let sum = body.push(Node::Reduce(kind, x), DType::F32, true);
        body.stores.push((*v, sum));
    }
    ColumnWise { body, dims: dims.to_vec(), outer: 1, parts: 1 }
}
