//! `infer-shapes`: runs inference again and keeps what it newly knows.

use of_diag::Diagnostics;
use of_ir::{Dim, Func, Graph, OpId, RegionId, Rewriter, TensorType, Type};

/// Re-infers every op of `func`, inner regions first, and refines the types of its results.
///
/// # Errors
/// Every op whose operands no longer fit it (a shape that was given does not suit the model).
pub fn infer_shapes(func: &mut Func) -> Result<(), Diagnostics> {
    let mut order = Vec::new();
    post_order(&func.graph, func.graph.entry(), &mut order);
    let mut errors = Diagnostics::default();
    let mut rw = Rewriter::new(&mut func.graph, "infer-shapes");
    for op in order {
        let data = rw.graph().op(op);
        match data.def.infer(&rw.graph().view(op)) {
            Err(e) => errors.0.push(e.at(data.name(), &data.loc)),
            Ok(types) => {
                let results = data.results.clone();
                for (v, inferred) in results.iter().zip(types) {
                    let refined = refine(rw.graph().ty(*v), &inferred);
                    rw.set_type(*v, refined);
                }
            }
        }
    }
    errors.into_result(())
}

/// Ops so that those inside a region come before the op that holds it.
fn post_order(g: &Graph, region: RegionId, out: &mut Vec<OpId>) {
    for op in g.region_ops(region) {
        for r in &g.op(op).regions {
            post_order(g, *r, out);
        }
        out.push(op);
    }
}

/// The inferred type, with the declared one where inference knows nothing.
fn refine(declared: &Type, inferred: &Type) -> Type {
    match (declared, inferred) {
        (Type::Tensor(d), Type::Tensor(i)) if d.dtype == i.dtype => {
            let shape = match (&d.shape, &i.shape) {
                (Some(a), Some(b)) if a.len() == b.len() => {
                    Some(a.iter().zip(b).map(|(x, y)| if prefer_declared(x, y) { x.clone() } else { y.clone() }).collect())
                }
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
