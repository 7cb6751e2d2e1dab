//! Lowers contractions that read a recomputed score matrix.

use of_diag::Diagnostic;
use of_ir::{DType, OpId, ValueId};
use of_ops::list::as_op;
use of_ops::movement::Transpose;
use of_ops::work;

use crate::analysis::score_matrix::ScoreConsumer;
use crate::analysis::view::OperandView;
use crate::fuse::{Group, GroupKind};
use crate::kernel::body::Node;
use crate::kernel::extent::Extent;
use crate::kernel::nest::Nest;
use crate::kernel::score_matrix::ScoreMatrix;
use crate::kernel::space::row_major;
use crate::kernel::{expr, score_matrix};
use crate::lower::body::body;
use crate::lower::{Lowering, points};
use crate::physical::Flops;

impl Lowering<'_, '_> {
    /// Emits one kernel for the sums over keys and one for the sums over rows; each recomputes the score matrix.
    pub(super) fn score_matrix(&mut self, group: &Group) -> Result<Result<(), Diagnostic>, String> {
        let found = group.score_matrix.as_deref().ok_or("the group has no score matrix")?;
        let dims = &group.space;
        let [batch @ .., rows, keys] = &dims[..] else { return Err("a product with a vector".into()) };
        let inside: Vec<OpId> =
            group.ops.iter().copied().filter(|op| found.products.contains(op) || found.maps.contains(op)).collect();
        let at = |op: &OpId| inside.iter().position(|o| o == op);
        if at(&found.products[0]) > at(&found.products[1]) {
            return Err("its products are in another order".into());
        }
        let group = Group::of(inside, GroupKind::Elementwise, dims.clone());
        let body = body(self.g, &group, &self.roles, 0, &self.special);
        if let Some(why) = expr::unsupported_reason(&body) {
            return Err(why);
        }
        let views =
            |side: usize| found.products.map(|p| OperandView::of(self.g, &self.roles, self.g.op(p).operands[side]));
        let (left, right) = (views(0), views(1));
        let layouts = |v: &[OperandView; 2], transposed: bool| {
            Ok::<_, String>([v[0].layout(batch, transposed)?, v[1].layout(batch, transposed)?])
        };
        let depth = |p: OpId| self.dims(self.g.op(p).operands[0]).last().cloned().ok_or("a product with a vector");
        let nest = ScoreMatrix {
            batch: batch.to_vec(),
            rows: rows.clone(),
            keys: keys.clone(),
            depth: [depth(found.products[0])?, depth(found.products[1])?],
            left: layouts(&left, false)?,
            right: layouts(&right, true)?,
            body,
            over_rows: false,
            sums: Vec::new(),
        };
        let mut kernels = Vec::new();
        let maps: f64 = found.maps.iter().map(|op| work::of(self.g, *op).flops).sum();
        let pointwise = if points(dims) > 0 { maps as u64 } else { 0 };
        for over_rows in [false, true] {
            let sums: Vec<&ScoreConsumer> = found.sums.iter().filter(|s| s.over_rows == over_rows).collect();
            if sums.is_empty() {
                continue;
            }
            let views = if over_rows { &left } else { &right };
            let own = sums.iter().map(|s| self.sum(s, &nest, views)).collect::<Result<Vec<_>, _>>()?;
            let flops: Extent = own.iter().map(|s| &nest.depth[s.0.factor]).chain(&nest.depth).sum();
            let (own, values): (Vec<_>, Vec<ValueId>) = own.into_iter().unzip();
            let source =
                Nest::ScoreMatrix(Box::new(ScoreMatrix { over_rows, sums: own, ..nest.clone() })).print(self.isa)?;
            let products = 2 * points(dims) * points(&[flops]);
            kernels.push((source, values, Flops { products, pointwise }));
        }
        let loads: Vec<ValueId> = nest.body.loads.iter().map(|l| l.value).collect();
        // The title names the contractions first.
        let ops: Vec<OpId> = found.ops().into_iter().chain(group.ops.iter().copied()).collect();
        let ops: Vec<OpId> = ops.iter().enumerate().filter(|(i, op)| !ops[..*i].contains(op)).map(|o| *o.1).collect();
        Ok((|| {
            for (source, values, flops) in kernels {
                let read = left.iter().chain(&right).map(|v| v.root).chain(loads.iter().copied());
                let reads = read.map(|v| self.operand(v)).collect::<Result<Vec<_>, _>>()?;
                let writes = values.into_iter().map(|v| self.new_value(v)).collect();
                self.kernel(&ops, source, reads, writes, flops);
            }
            Ok(())
        })())
    }

    /// A sum, and the value that it computes; `views` are those of the operands with the lines that it sums.
    fn sum(
        &self,
        s: &ScoreConsumer,
        nest: &ScoreMatrix,
        views: &[OperandView; 2],
    ) -> Result<(score_matrix::ScoreSum, ValueId), String> {
        let (_, node) = nest
            .body
            .stores
            .iter()
            .find(|(v, _)| *v == s.value)
            .ok_or("a sum of a value that the kernel does not compute")?;
        if nest.body.nodes[*node].dtype != DType::F32 || matches!(nest.body.nodes[*node].node, Node::Const(_)) {
            return Err("only sums of f32 have one kernel".into());
        }
        let other = OperandView::of(self.g, &self.roles, s.other(self.g));
        let (factor, own) = (&views[s.factor], if s.over_rows { &nest.left } else { &nest.right });
        if other.root != factor.root || other.layout(&nest.batch, s.is_transposed())? != own[s.factor] {
            return Err("a sum reads lines of another operand".into());
        }
        let y = self.g.op(s.op).results[0];
        let mut out = row_major(&self.dims(y));
        let value = match s.moved_by {
            None => y,
            Some(op) => {
                let to = self.g.op(op).results[0];
                let own = row_major(&self.dims(to));
                let t = as_op::<Transpose>(self.g, op).ok_or("the result is moved by an op other than a transpose")?;
                for (axis, from) in t.permutation(own.len()).map_err(|e| e.message)?.into_iter().enumerate() {
                    out[from] = own[axis].clone();
                }
                to
            }
        };
        if s.is_transposed() {
            let last = out.len() - 1;
            out.swap(last - 1, last);
        }
        Ok((score_matrix::ScoreSum { node: *node, factor: s.factor, out }, value))
    }
}
