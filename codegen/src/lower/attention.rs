//! Lowers attention: two contractions and the row-wise ops between them.

use of_diag::Diagnostic;
use of_ir::{DType, OpId, ValueId};
use of_ops::list::as_op;
use of_ops::movement::Transpose;

use crate::analysis::roles::Role;
use crate::analysis::view::View;
use crate::fuse::{Group, Shape};
use crate::kernel::attention::Attention;
use crate::kernel::nest::Nest;
use crate::kernel::space::row_major;
use crate::lower::{Lowering, points};
use crate::physical::Flops;

impl Lowering<'_, '_> {
    /// `rows(maps(q k)) v`, whose operands may be strided views.
    pub(super) fn attention(&mut self, group: &Group) -> Result<Result<(), Diagnostic>, String> {
        let is_rows = |p: &Group| matches!(p.shape, Shape::Rowwise(_));
        let at = group.parts.iter().position(is_rows).filter(|at| *at > 0).ok_or("the group has no rows")?;
        let [moves @ .., first, rows] = &group.parts[..=at] else { return Err("the group has no product".into()) };
        let second = group.parts.get(at + 1).ok_or("the group has no second product")?;
        let (one, two) = (self.product(first)?, self.product(second)?);
        let (scores, mut along, mut after) = (self.body(first, 0)?, self.body(rows, 1)?, self.body(second, 0)?);
        let dims = &first.space;
        let lead = dims.len().checked_sub(2).ok_or("a product with a vector")?;
        if second.space.len() != dims.len() || second.space[..=lead] != dims[..=lead] {
            return Err("the second product has other batches".into());
        }
        let [(made, score)] = scores.stores[..] else { return Err("the first product has several results".into()) };
        let [(_, value)] = after.stores[..] else { return Err("the second product has several results".into()) };
        let at_scores = along.loads.iter().position(|l| l.value == made).ok_or("the rows do not read the product")?;
        let (kept, weights): (Vec<_>, Vec<_>) = along.stores.iter().partition(|(_, n)| along.nodes[*n].per_row);
        let (kept, numbers): (Vec<ValueId>, Vec<usize>) = kept.into_iter().copied().unzip();
        along.stores = weights.into_iter().copied().collect();
        if along.stores.len() != 1 {
            return Err("the rows have several results".into());
        }
        let operands = self.operands(one).iter().chain(self.operands(two)).map(|v| self.dtype(*v));
        let element = self.dtype(self.operands(one)[0]);
        let made = [scores.nodes[score].dtype, after.nodes[value].dtype];
        let fits = |t: DType| self.isa.multiplies(t);
        if !made.into_iter().all(fits) || !fits(element) || operands.into_iter().any(|t| t != element) {
            return Err(format!("only attention of floats that {} multiplies is fused into one kernel", self.isa.name));
        }
        let batch = &dims[..lead];
        let [q, k, v] = [self.operands(one)[0], self.operands(one)[1], self.operands(two)[1]]
            .map(|v| View::of(self.g, &self.roles, v));
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
            after.stores[0].0 = y;
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
            along,
            kept: numbers,
            at: at_scores,
            after,
            out,
        };
        let source = Nest::Attention(Box::new(nest.clone())).print(self.isa)?;
        let products = 2 * points(dims) * points(&[&nest.depth + &nest.columns]);
        let flops = Flops { products, pointwise: self.pointwise(rows) };
        // The title names the contractions first.
        let ops = [first, rows, second].into_iter().chain(moves).chain(group.parts.get(at + 2));
        let ops: Vec<OpId> = ops.flat_map(|p| p.ops.clone()).collect();
        let (scores, along, after) = (nest.scores.loads.iter(), nest.along.loads.iter(), nest.after.loads.iter());
        let others = along.enumerate().filter(|(l, _)| *l != at_scores).map(|(_, l)| l);
        let loads: Vec<ValueId> = scores.chain(others).chain(after).map(|l| l.value).collect();
        let to = nest.after.stores[0].0;
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
