//! Products that are calls of cuBLASLt.

use of_diag::Diagnostic;
use of_ir::{OpId, ValueId};
use of_ops::OpSpec;
use of_ops::contraction::MatMul;
use of_ops::list::as_op;
use of_ops::movement::Transpose;

use super::Lowering;
use super::body::Body;
use crate::cuda::cublaslt::{self, Matrix, Product};
use crate::fuse::Group;
use crate::native::contraction::{Contraction, RowAxes};
use crate::native::{Extent, extent};
use crate::physical::{Flops, Operand, Work};
use crate::place::Refused;

/// A call, and the values that it adds.
pub(super) struct Call {
    product: Product,
    adds: Vec<ValueId>,
}

impl Lowering<'_, '_> {
    /// The contraction of `op` as a call, if it was asked for; where it is none, the reason is kept for the user.
    pub(super) fn call(
        &mut self,
        op: OpId,
        spec: &Contraction,
        b: &Body,
        axes: &RowAxes,
        out: &[Extent],
    ) -> Option<Call> {
        if !self.cublaslt {
            return None;
        }
        match cublaslt::product(spec, b, axes, out, self.isa) {
            Ok((product, adds)) => Some(Call { product, adds: adds.iter().map(|l| b.loads[*l].value).collect() }),
            Err(reason) => {
                let (op, location) = (self.g.op(op).name().to_string(), self.g.op(op).loc.clone());
                self.out.refused.push(Refused { op, location, backend: cublaslt::NAME.into(), reason, fix: None });
                None
            }
        }
    }

    /// The operands of a call: what was transposed for it alone is read as it lay before.
    pub(super) fn untransposed(&mut self, call: &mut Call, operands: [ValueId; 2]) -> [ValueId; 2] {
        let p = &mut call.product;
        let mut out = operands;
        for ((matrix, rows), v) in [(&mut p.left, p.rows), (&mut p.right, p.depth)].into_iter().zip(&mut out) {
            // Rows of several matrices may be those of one, whose columns are not.
            let dims = extent::of_value(self.g, *v);
            let alone = dims[dims.len() - 2].is(rows as i64);
            if let Some(op) = self.g.def_op(*v).filter(|op| alone && self.waiting.contains(op)) {
                *matrix = Matrix { transposed: true, line: rows, ..*matrix };
                *v = self.g.op(op).operands[0];
            }
        }
        out
    }

    /// The step of a call.
    pub(super) fn called(
        &mut self,
        group: &Group,
        call: Call,
        operands: [Operand; 2],
        b: &Body,
        flops: Flops,
    ) -> Result<(), Diagnostic> {
        let mut inputs = operands.to_vec();
        for v in &call.adds {
            inputs.push(self.place(*v)?);
        }
        let outputs: Vec<usize> = b.stores.iter().map(|(v, _)| self.new_value(*v)).collect();
        let payload = self.constants.builder().add_payload(call.product.write());
        let bytes = call.product.spans().into_iter().flatten().sum::<u64>()
            * call.product.dtype.bits().map_or(4, |b| b as u64 / 8);
        let (title, locations) =
            (format!("{}: {}", cublaslt::NAME, self.title(&group.ops)), self.locations(&group.ops));
        let work = Work::Backend { backend: cublaslt::NAME, payload, inputs, outputs, meetings: Vec::new() };
        self.step(title, locations, work, flops, bytes);
        Ok(())
    }

    /// Whether `op` transposes matrices for a product alone, which a call may read as they are.
    pub(super) fn may_wait(&self, op: OpId) -> bool {
        let Some(t) = as_op::<Transpose>(self.g, op).filter(|_| self.cublaslt) else { return false };
        let uses = self.g.uses(self.g.op(op).results[0]);
        let [reader] = uses else { return false };
        let rank = self.dims(self.g.op(op).operands[0]).len();
        let perm = t.permutation(rank).unwrap_or_default();
        let swapped: Vec<usize> =
            (0..rank.saturating_sub(2)).chain([rank.wrapping_sub(1), rank.wrapping_sub(2)]).collect();
        rank >= 2 && perm == swapped && self.g.op(reader.op).name() == MatMul::NAME
    }
}
