//! Lowers attention: two contractions and the row-wise ops between them.

use of_diag::Diagnostic;
use of_ir::{DType, OpId, ValueId};
use of_ops::list::as_op;
use of_ops::movement::Transpose;

use crate::analysis::roles::Role;
use crate::analysis::view::OperandView;
use crate::fuse::{Group, GroupKind};
use crate::kernel::attention::Attention;
use crate::kernel::nest::Nest;
use crate::kernel::space::row_major;
use crate::lower::{Lowering, points};
use crate::physical::Flops;

impl Lowering<'_, '_> {
    /// `rows(maps(q k)) v`, whose operands may be strided views.
    pub(super) fn attention(&mut self, group: &Group) -> Result<Result<(), Diagnostic>, String> {
        let is_rows = |p: &Group| matches!(p.kind, GroupKind::Rowwise(_));
        let at = group.parts.iter().position(is_rows).filter(|at| *at > 0).ok_or("the group has no rows")?;
        let [moves @ .., first, rows] = &group.parts[..=at] else { return Err("the group has no product".into()) };
        let second = group.parts.get(at + 1).ok_or("the group has no second product")?;
        let (one, two) = (self.product(first)?, self.product(second)?);
        let (scores, mut row_body, mut epilogue) = (self.body(first, 0)?, self.body(rows, 1)?, self.body(second, 0)?);
        let dims = &first.space;
        let lead = dims.len().checked_sub(2).ok_or("a product with a vector")?;
        if second.space.len() != dims.len() || second.space[..=lead] != dims[..=lead] {
            return Err("the second product has other batches".into());
        }
        let [(made, score)] = scores.stores[..] else { return Err("the first product has several results".into()) };
        let [(_, value)] = epilogue.stores[..] else { return Err("the second product has several results".into()) };
        let scores_load =
            row_body.loads.iter().position(|l| l.value == made).ok_or("the rows do not read the product")?;
        let (kept, weights): (Vec<_>, Vec<_>) = row_body.stores.iter().partition(|(_, n)| row_body.nodes[*n].per_row);
        let (kept, numbers): (Vec<ValueId>, Vec<usize>) = kept.into_iter().copied().unzip();
        row_body.stores = weights.into_iter().copied().collect();
        if row_body.stores.len() != 1 {
            return Err("the rows have several results".into());
        }
        let operands = self.operands(one).iter().chain(self.operands(two)).map(|v| self.dtype(*v));
        let element = self.dtype(self.operands(one)[0]);
        let made = [scores.nodes[score].dtype, epilogue.nodes[value].dtype];
        let fits = |t: DType| self.isa.contracts_natively(t);
        if !made.into_iter().all(fits) || !fits(element) || operands.into_iter().any(|t| t != element) {
            return Err(format!("only attention of floats that {} multiplies is fused into one kernel", self.isa.name));
        }
        let batch = &dims[..lead];
        let [q, k, v] = [self.operands(one)[0], self.operands(one)[1], self.operands(two)[1]]
            .map(|v| OperandView::of(self.g, &self.roles, v));
        let depth = self.dims(self.operands(one)[0]).last().cloned().ok_or("a product with a vector")?;
        // The result in the layout of the last group of the parts.
        let mut out = row_major(&second.space);
        if let Some(op) = group.parts.get(at + 2).map(|t| t.ops[0]) {
            let y = self.g.op(op).results[0];
            let t = as_op::<Transpose>(self.g, op).ok_or("the result is moved by an op other than a transpose")?;
            let own = row_major(&self.dims(y));
            for (axis, from) in t.permutation(own.len()).map_err(|e| e.message)?.into_iter().enumerate() {
                out[from] = own[axis].clone();
            }
            epilogue.stores[0].0 = y;
        }
        let nest = Attention {
            element,
            batch: batch.to_vec(),
            rows: dims[lead].clone(),
            depth,
            keys: dims[lead + 1].clone(),
            columns: second.space[lead + 1].clone(),
            q: q.layout(batch, false)?,
            k: k.layout(batch, true)?,
            v: v.layout(batch, false)?,
            scores,
            row_body,
            saved_row_stats: numbers,
            scores_load,
            epilogue,
            out,
        };
        let source = Nest::Attention(Box::new(nest.clone())).print(self.isa)?;
        let products = 2 * points(dims) * points(&[&nest.depth + &nest.columns]);
        let flops = Flops { products, pointwise: self.pointwise(rows) };
        // The title names the contractions first.
        let ops = [first, rows, second].into_iter().chain(moves).chain(group.parts.get(at + 2));
        let ops: Vec<OpId> = ops.flat_map(|p| p.ops.clone()).collect();
        let (scores, row_body, epilogue) =
            (nest.scores.loads.iter(), nest.row_body.loads.iter(), nest.epilogue.loads.iter());
        let others = row_body.enumerate().filter(|(l, _)| *l != scores_load).map(|(_, l)| l);
        let loads: Vec<ValueId> = scores.chain(others).chain(epilogue).map(|l| l.value).collect();
        let to = nest.epilogue.stores[0].0;
        Ok((|| {
            let read = [q.root, k.root, v.root].into_iter().chain(loads);
            let reads = read.map(|v| self.operand(v)).collect::<Result<Vec<_>, _>>()?;
            let writes = [to].into_iter().chain(kept).map(|v| self.new_value(v)).collect();
            self.kernel(&ops, source, reads, writes, flops);
            Ok(())
        })())
    }

    fn product(&self, group: &Group) -> Result<OpId, String> {
        let is_anchor = |op: &OpId| *self.roles.get(*op) == Role::Anchor;
        Ok(group.ops.iter().copied().find(is_anchor).ok_or("the group has no product")?)
    }

    fn operands(&self, op: OpId) -> &[ValueId] {
        &self.g.op(op).operands
    }
}
