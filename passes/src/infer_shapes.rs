//! `infer-shapes`: repeats type inference and refines result types.

use of_diag::{Diagnostic, Diagnostics};
use of_ir::{Dim, Func, Graph, OpError, OpId, RegionId, Rewriter, TensorType, Type};
use of_ops::OpSpec;
use of_ops::control::If;
use of_ops::structural::Trap;

use crate::infer_ranks::infer_ranks;

/// Re-infers every op of `func`, inner regions first, and refines the types of its results; then again with the ranks that
/// follow from readers.
///
/// # Errors
/// Every op that does not accept its operands, e.g. because a given shape does not suit the model. Within a branch such
/// an op becomes `of.trap` instead.
pub fn infer_shapes(func: &mut Func) -> Result<(), Diagnostics> {
    let mut rw = Rewriter::new(&mut func.graph, "infer-shapes");
    infer_forward(&mut rw)?;
    while infer_ranks(&mut rw) {
        infer_forward(&mut rw)?;
    }
    Ok(())
}

fn infer_forward(rw: &mut Rewriter<'_>) -> Result<(), Diagnostics> {
    let mut order = Vec::new();
    post_order(rw.graph(), rw.graph().entry(), &mut order);
    let mut errors = Diagnostics::default();
    for op in order {
        let Err(e) = reinfer(rw, op) else { continue };
        let data = rw.graph().op(op);
        let d = e.at(data.name(), &data.loc);
        if !data.def.traits().terminator && in_branch(rw.graph(), op) {
            trap_instead(rw, op, &d)?;
        } else {
            errors.0.push(d);
        }
    }
    errors.into_result(())
}

/// Whether `op` runs conditionally.
fn in_branch(g: &Graph, op: OpId) -> bool {
    let parent = |op: OpId| g.region_parent(g.op(op).parent);
    std::iter::successors(parent(op), |op| parent(*op)).any(|op| g.op(op).name() == If::NAME)
}

/// Replaces an op by `of.trap`. A model may choose branches by shape: a branch that does not fit fails only if it is
/// taken.
fn trap_instead(rw: &mut Rewriter<'_>, op: OpId, why: &Diagnostic) -> Result<(), Diagnostics> {
    tracing::info!("{why}; the branch cannot be taken");
    rw.rewrite(op, &[]);
    let mut values = Vec::new();
    let results = rw.graph().op(op).results.clone();
    for v in results {
        let ty = rw.graph().ty(v).clone();
        values.push(rw.create_one(Trap { message: why.message.as_str().into(), result_type: ty }, &[])?);
    }
    rw.replace(op, &values);
    Ok(())
}

/// Re-infers `op` and refines the types of its results.
pub(crate) fn reinfer(rw: &mut Rewriter<'_>, op: OpId) -> Result<(), OpError> {
    let data = rw.graph().op(op);
    let types = data.def.infer(&rw.graph().view(op))?;
    let results = data.results.clone();
    for (v, inferred) in results.iter().zip(types) {
        let refined = refine(rw.graph().ty(*v), &inferred);
        rw.set_type(*v, refined);
    }
    Ok(())
}

/// Ops in post-order: ops inside a region come before the op that holds it.
fn post_order(g: &Graph, region: RegionId, out: &mut Vec<OpId>) {
    for op in g.region_ops(region) {
        for r in &g.op(op).regions {
            post_order(g, *r, out);
        }
        out.push(op);
    }
}

/// The inferred type, or the declared one where inference has no result.
fn refine(declared: &Type, inferred: &Type) -> Type {
    match (declared, inferred) {
        (Type::Tensor(d), Type::Tensor(i)) if d.dtype == i.dtype => {
            let shape = match (&d.shape, &i.shape) {
                (Some(a), Some(b)) if a.len() == b.len() => Some(
                    a.iter().zip(b).map(|(x, y)| if prefer_declared(x, y) { x.clone() } else { y.clone() }).collect(),
                ),
                (declared, None) => declared.clone(),
                (_, inferred) => inferred.clone(),
            };
            Type::Tensor(TensorType { dtype: d.dtype, shape, sbp: d.sbp.clone() })
        }
        (Type::Sequence(d), Type::Sequence(i)) => Type::Sequence(Box::new(refine(d, i))),
        (Type::Optional(d), Type::Optional(i)) => Type::Optional(Box::new(refine(d, i))),
        _ => inferred.clone(),
    }
}

fn prefer_declared(declared: &Dim, inferred: &Dim) -> bool {
    inferred.is_unknown() || (declared.as_const().is_some() && inferred.as_const().is_none())
}
