//! Every `of.place` becomes the collectives that bring it about.

use std::collections::HashMap;

use of_diag::{Code, Diagnostic, Diagnostics};
use of_ir::{Attrs, Func, NdSbp, NewOp, OpDef, OpId, PartialKind, Rewriter, Type, ValueId};
use of_ops::boxing::{AllGather, AllReduce, AllToAll, Embed, Exchange, Place, ReduceScatter, TakeSlice};
use of_ops::{OpSpec, list};

use crate::boxing::{Collective, Router};
use crate::{MeshSpec, cost, layout};

/// The op of a collective.
pub fn op_name(c: Collective) -> &'static str {
    match c {
        Collective::Slice => TakeSlice::NAME,
        Collective::Embed => Embed::NAME,
        Collective::AllGather => AllGather::NAME,
        Collective::ReduceScatter => ReduceScatter::NAME,
        Collective::AllReduce => AllReduce::NAME,
        Collective::AllToAll => AllToAll::NAME,
        Collective::Exchange => Exchange::NAME,
    }
}

/// The collective of an op.
pub fn collective(name: &str) -> Option<Collective> {
    use Collective as C;
    let all = [C::Slice, C::Embed, C::AllGather, C::ReduceScatter, C::AllReduce, C::AllToAll, C::Exchange];
    all.into_iter().find(|c| op_name(*c) == name)
}

struct Made {
    def: &'static dyn OpDef,
    attrs: Attrs,
}

impl NewOp for Made {
    fn def(&self) -> &'static dyn OpDef {
        self.def
    }
    fn into_attrs(self) -> Attrs {
        self.attrs
    }
}

/// Replaces every `of.place` in `func` by the steps of the fastest transfer on `mesh`; gives their number.
///
/// # Errors
/// An operand that does not say how it lies on this mesh, or is no tensor of known extents.
pub fn insert_boxing(func: &mut Func, mesh: &MeshSpec) -> Result<usize, Diagnostics> {
    let mut errors = Diagnostics::default();
    let mut routers: HashMap<(usize, Vec<PartialKind>), Router> = HashMap::new();
    let mut steps = 0;
    let mut rw = Rewriter::new(&mut func.graph, "insert-boxing");
    for op in rw.graph().walk() {
        if rw.graph().op(op).name() == Place::NAME {
            match lower(&mut rw, op, mesh, &mut routers) {
                Ok(n) => steps += n,
                Err(d) => errors.0.push(d),
            }
        }
    }
    errors.into_result(steps)
}

fn lower(
    rw: &mut Rewriter<'_>,
    op: OpId,
    mesh: &MeshSpec,
    routers: &mut HashMap<(usize, Vec<PartialKind>), Router>,
) -> Result<usize, Diagnostic> {
    let data = rw.graph().op(op);
    let loc = data.loc.clone();
    let (value, result): (ValueId, ValueId) = (data.operands[0], data.results[0]);
    let wrong = |what: &str| Diagnostic::error(Code::SBP, loc.clone(), format!("'of.place': {what}"));
    let sbp = |v: ValueId| match rw.graph().ty(v) {
        Type::Tensor(t) => t.sbp.clone(),
        _ => None,
    };
    let Some(from) = sbp(value) else {
        return Err(wrong("the operand does not say how it lies on the mesh").hint("run 'infer-sbp' or 'shard' first"));
    };
    let to = sbp(result).ok_or_else(|| wrong("the result does not say how it lies on the mesh"))?;
    let Some((bytes, dims)) = cost::size(rw.graph(), value) else {
        return Err(wrong("the operand is no tensor of known extents").hint("give numbers to open dimensions"));
    };
    if from.axes.len() != mesh.axes.len() || to.axes.len() != mesh.axes.len() {
        return Err(wrong(&format!("the mesh has {} axes, the tensor lies as {from}", mesh.axes.len())));
    }
    let mut kinds: Vec<PartialKind> = [&from, &to].into_iter().filter_map(|s| layout::partial_kind(&s.axes)).collect();
    kinds.sort_unstable();
    kinds.dedup();
    let router = routers.entry((dims.len(), kinds.clone())).or_insert_with(|| Router::new(mesh, dims.len(), &kinds));
    let usable = router.usable(&dims);
    let path = router
        .path(&from.axes, &to.axes, bytes, &usable)
        .ok_or_else(|| wrong(&format!("there is no way from {from} to {to} where every device has an element")))?;
    rw.rewrite(op, &[]);
    let mut value = value;
    for step in &path {
        let def = list::decl(op_name(step.collective)).ok_or_else(|| wrong("an op of the transfer is not known"))?;
        let mut attrs = Attrs::new();
        attrs.put("axes", step.axes.iter().map(|a| *a as i64).collect::<Vec<i64>>());
        attrs.put("to", NdSbp { mesh: to.mesh.clone(), axes: step.to.clone() });
        value = rw.create_one(Made { def: def.as_def(), attrs }, &[value])?;
    }
    rw.replace(op, &[value]);
    Ok(path.len())
}
