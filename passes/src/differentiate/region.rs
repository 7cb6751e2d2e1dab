//! Gradients of regions: clones a body and differentiates it, for branches, scans and loops.

use of_diag::{Code, Diagnostic, Location};
use of_ir::{Graph, IdMap, OpId, RegionId, Rewriter, ValueId};
use of_ops::control::If;
use of_ops::elementwise::{Add, Mul};
use of_ops::reduction::ReduceSum;
use of_ops::structural::Yield;
use of_ops::training::Gradient;

use super::{Tape, add_new, is_float, resolve};

/// Clones the ops of `body` at the insertion point, with `args` for its arguments. Returns its yields.
pub(super) fn clone_body(rw: &mut Rewriter<'_>, body: RegionId, args: &[ValueId]) -> Vec<ValueId> {
    let mut map: IdMap<ValueId, ValueId> =
        rw.graph().region_args(body).iter().copied().zip(args.iter().copied()).collect();
    let ops: Vec<OpId> = rw.graph().region_ops(body).collect();
    for op in ops {
        if !rw.graph().op(op).def.traits().terminator {
            rw.copy_op(op, &mut map);
        }
    }
    rw.graph().yields(body).iter().map(|v| map.get(v).copied().unwrap_or(*v)).collect()
}

/// The gradients with respect to `xs`, given those of results: an [`Gradient`] of the sum of the products of each
/// result with its gradient.
pub(super) fn vector_jacobian(
    rw: &mut Rewriter<'_>,
    results: &[(ValueId, ValueId)],
    xs: &[ValueId],
) -> Result<OpId, Diagnostic> {
    let mut y: Option<ValueId> = None;
    for (result, g) in results {
        let product = rw.create_one(Mul {}, &[*result, *g])?;
        let part = rw.create_one(ReduceSum { keepdims: false }, &[product])?;
        y = Some(match y {
            Some(y) => rw.create_one(Add {}, &[y, part])?,
            None => part,
        });
    }
    let y = y.ok_or_else(|| Diagnostic::error(Code::CODEGEN, Location::Unknown, "a region without gradients"))?;
    rw.create(Gradient {}, &[&[y], xs].concat())
}

impl Tape {
    /// Active floats from outside that the regions of `op` capture.
    pub(super) fn active_captures(&self, g: &Graph, op: OpId) -> Vec<ValueId> {
        g.captured(op).into_iter().filter(|v| self.active.contains(v) && is_float(g, *v)).collect()
    }

    /// Propagates the gradients of the branch `op` to its captures: a branch on the same condition, whose regions are
    /// clones with their gradients.
    pub(super) fn branch(&mut self, rw: &mut Rewriter<'_>, gradient: OpId, op: OpId) -> Result<(), Diagnostic> {
        let data = rw.graph().op(op).clone();
        let xs = self.active_captures(rw.graph(), op);
        let given = |v: &ValueId| self.grads.get(v).copied();
        let by: Vec<Option<ValueId>> = data.results.iter().map(given).collect();
        rw.rewrite(op, &[gradient]);
        rw.before(gradient);
        let (mut regions, mut inner) = (Vec::new(), Vec::new());
        for body in &data.regions {
            let (region, made) = rw.region_with(|rw, _| -> Result<OpId, Diagnostic> {
                let results = clone_body(rw, *body, &[]);
                let seeds: Vec<_> = results.into_iter().zip(&by).filter_map(|(v, g)| Some((v, (*g)?))).collect();
                let inner = vector_jacobian(rw, &seeds, &xs)?;
                let out = rw.graph().op(inner).results.to_vec();
                rw.create(Yield {}, &out)?;
                Ok(inner)
            });
            regions.push(region);
            inner.push(made.map_err(|d| d.or_at(&data.loc))?);
        }
        let back = rw.create_with_regions(If {}, &data.operands, &regions)?;
        for (inner, region) in inner.into_iter().zip(regions) {
            if let Err(more) = resolve(rw, inner, Some(region)) {
                add_new(&mut self.errors, more);
            }
        }
        rw.rewrite(op, &[gradient]);
        rw.before(gradient);
        let results = rw.graph().op(back).results.to_vec();
        for (v, g) in xs.into_iter().zip(results) {
            self.add(rw, v, g)?;
        }
        Ok(())
    }
}
