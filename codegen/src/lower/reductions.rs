//! Reductions in parts, and reductions of columns with the elementwise ops of the same pass.

use of_diag::Diagnostic;
use of_ir::{DType, OpId, ValueId};

use crate::analysis::reduction::reduce_kind;
use crate::analysis::roles::Role;
use crate::fuse::{Group, GroupKind};
use crate::kernel::body::{Body, Load, Node, ReduceKind};
use crate::kernel::columnwise::ColumnWise;
use crate::kernel::extent::Extent;
use crate::kernel::nest::Nest;
use crate::lower::anchor::Outcome;
use crate::lower::{Lowering, points};
use crate::physical::{BufferRef, Flops, Operand};
use crate::print::{Source, printer};

impl Lowering<'_, '_> {
    /// One kernel, or two where the rows are divided into parts: the second reduces the partial results.
    pub(super) fn columnwise(&mut self, group: &Group, outer: usize) -> Outcome {
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

    /// The number of parts of a reduction that is split into two steps.
    pub(super) fn parts(&self, dims: &[Extent], axes: &[usize]) -> Option<usize> {
        Some(printer(self.isa.language).reduction_parts(dims, axes)).filter(|parts| *parts > 1)
    }

    /// Emits a reduction in two steps: partial results, then their reduction.
    pub(super) fn split_reduction(&mut self, op: OpId, dims: &[Extent], axes: &[usize], parts: usize) -> Outcome {
        let kind = reduce_kind(self.g.op(op).name());
        let count: Extent = (0..dims.len()).filter(|a| !axes.contains(a)).map(|a| &dims[a]).product();
        let between = vec![count, parts.into()];
        let first = Nest::SplitReduction { kind, dims: dims.to_vec(), axes: axes.to_vec(), parts }.print(self.isa)?;
        self.in_parts(op, first, Flops::pointwise(points(dims)), kind, between, 1)
    }

    /// Emits the kernel `first`, which writes partial results of these extents, and one that reduces axis `axis` of them.
    pub(super) fn in_parts(
        &mut self,
        op: OpId,
        first: Source,
        flops: Flops,
        kind: ReduceKind,
        between: Vec<Extent>,
        axis: usize,
    ) -> Outcome {
        let (reads, y) = (self.roles.reads(self.g, op), self.g.op(op).results[0]);
        let second = Nest::Reduce { kind, dims: between.clone(), axes: vec![axis] }.print(self.isa)?;
        let run = |l: &mut Self| {
            let reads = reads.iter().map(|v| l.operand(*v)).collect::<Result<Vec<_>, _>>()?;
            let slot = l.scratch_slot(format!("parts of {}", l.constants.name(y)), DType::F32, &between);
            l.kernel(&[op], first, reads, vec![slot], flops);
            let whole = l.new_value(y);
            let flops = Flops::pointwise(points(&between));
            l.kernel(&[op], second, vec![Operand::whole(BufferRef::Slot(slot))], vec![whole], flops);
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
