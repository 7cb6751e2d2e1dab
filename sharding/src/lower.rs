//! Lowers every `of.sharding_constraint` to the collectives of its transfer.

use std::collections::HashMap;

use of_diag::{Code, Diagnostic, Diagnostics};
use of_ir::{Attrs, Func, NdSbp, NewOp, OpDef, OpId, PartialKind, Rewriter, Type, ValueId};
use of_ops::boxing::{
    AllGather, AllReduce, AllToAll, LocalSlice, ReduceScatter, Reshard, Send, ShardingConstraint, ToPartial,
};
use of_ops::{OpSpec, list};

use crate::boxing::{CollectiveKind, Router, Step};
use crate::cross_mesh::{self, Endpoint};
use crate::{Meshes, cost, layout};

/// The op of a collective.
pub fn op_name(c: CollectiveKind) -> &'static str {
    match c {
        CollectiveKind::LocalSlice => LocalSlice::NAME,
        CollectiveKind::ToPartial => ToPartial::NAME,
        CollectiveKind::AllGather => AllGather::NAME,
        CollectiveKind::ReduceScatter => ReduceScatter::NAME,
        CollectiveKind::AllReduce => AllReduce::NAME,
        CollectiveKind::AllToAll => AllToAll::NAME,
        CollectiveKind::Reshard => Reshard::NAME,
    }
}

/// The collective of an op.
pub fn collective(name: &str) -> Option<CollectiveKind> {
    use CollectiveKind as C;
    let all = [C::LocalSlice, C::ToPartial, C::AllGather, C::ReduceScatter, C::AllReduce, C::AllToAll, C::Reshard];
    all.into_iter().find(|c| op_name(*c) == name)
}

/// A collective op with its attributes.
struct CollectiveOp {
    def: &'static dyn OpDef,
    attrs: Attrs,
}

impl NewOp for CollectiveOp {
    fn def(&self) -> &'static dyn OpDef {
        self.def
    }
    fn into_attrs(self) -> Attrs {
        self.attrs
    }
}

/// Routers by name of the mesh, rank of the tensor, and kinds of partial values.
type Routers = HashMap<(String, usize, Vec<PartialKind>), Router>;

/// Replaces every `of.sharding_constraint` in `func` by the steps of the fastest transfer on its mesh, or between two meshes. Returns
/// the number of steps.
///
/// # Errors
/// An operand without a layout on its mesh, or that is not a tensor whose extents are known or have names.
pub fn insert_boxing(func: &mut Func, meshes: &Meshes) -> Result<usize, Diagnostics> {
    let mut errors = Diagnostics::default();
    let mut routers = Routers::new();
    let mut steps = 0;
    let mut rw = Rewriter::new(&mut func.graph, "insert-boxing");
    for op in rw.graph().walk() {
        if rw.graph().op(op).name() == ShardingConstraint::NAME {
            match lower(&mut rw, op, meshes, &mut routers) {
                Ok(n) => steps += n,
                Err(d) => errors.0.push(d),
            }
        }
    }
    errors.into_result(steps)
}

fn lower(rw: &mut Rewriter<'_>, op: OpId, meshes: &Meshes, routers: &mut Routers) -> Result<usize, Diagnostic> {
    let data = rw.graph().op(op);
    let loc = data.loc.clone();
    let (value, result): (ValueId, ValueId) = (data.operands[0], data.results[0]);
    let wrong = |what: &str| Diagnostic::error(Code::SBP, loc.clone(), format!("'of.sharding_constraint': {what}"));
    let sbp = |v: ValueId| match rw.graph().ty(v) {
        Type::Tensor(t) => t.sbp.clone(),
        _ => None,
    };
    let Some(from) = sbp(value) else {
        return Err(wrong("the operand has no layout on the mesh").hint("run 'infer-sbp' or 'shard' first"));
    };
    let to = sbp(result).ok_or_else(|| wrong("the result has no layout on the mesh"))?;
    let Some((bytes, dims)) = cost::size(rw.graph(), value, meshes.ranks().devices()) else {
        let (what, hint) = match rw.graph().ty(value) {
            Type::Tensor(t) if t.dtype == of_ir::DType::String => {
                ("strings cannot be sent between devices", "replicate the tensor")
            }
            _ => (
                "the operand is not a tensor whose extents are known or have names",
                "bind its dimensions with 'specialize'",
            ),
        };
        return Err(wrong(what).hint(hint));
    };
    for side in [&from, &to] {
        let axes = meshes.spec(&side.mesh).axes.len();
        if side.axes.len() != axes {
            return Err(wrong(&format!("the mesh has {axes} axes, but the layout is {side}")));
        }
    }
    let mut kinds: Vec<PartialKind> = [&from, &to].into_iter().filter_map(|s| layout::partial_kind(&s.axes)).collect();
    kinds.sort_unstable();
    kinds.dedup();
    let key = |side: &NdSbp| (side.mesh.to_string(), dims.len(), kinds.clone());
    for side in [&from, &to] {
        routers.entry(key(side)).or_insert_with(|| Router::new(meshes.spec(&side.mesh), dims.len(), &kinds));
    }
    let (first, second) = (&routers[&key(&from)], &routers[&key(&to)]);
    let none = || wrong(&format!("no transfer from {from} to {to} leaves every device an element"));
    let on = |side: &NdSbp, axes: &layout::Layout| NdSbp { mesh: side.mesh.clone(), axes: axes.clone() };
    let mut ops: Vec<(&str, Option<Vec<i64>>, NdSbp)> = Vec::new();
    let step = |side: &NdSbp, s: &Step| {
        (op_name(s.collective), Some(s.axes.iter().map(|a| *a as i64).collect()), on(side, &s.to))
    };
    if from.mesh == to.mesh {
        let path = first.path(&from.axes, &to.axes, bytes, &first.usable(&dims)).ok_or_else(none)?;
        ops.extend(path.iter().map(|s| step(&to, s)));
    } else {
        let side = |of: &NdSbp, router| (meshes.spec(&of.mesh), router);
        let ((a, b), (c, d)) = (side(&from, first), side(&to, second));
        let (source, target) = (Endpoint { mesh: a, router: b }, Endpoint { mesh: c, router: d });
        let path = cross_mesh::path((source, &from.axes), (target, &to.axes), meshes.link(), &dims, bytes);
        let path = path.ok_or_else(none)?;
        ops.extend(path.before.iter().map(|s| step(&from, s)));
        ops.push((Send::NAME, None, on(&to, &path.sent.1)));
        ops.extend(path.after.iter().map(|s| step(&to, s)));
    }
    rw.rewrite(op, &[]);
    let (mut value, count) = (value, ops.len());
    for (name, axes, sharding) in ops {
        let def = list::decl(name).ok_or_else(|| wrong("unknown op of the transfer"))?;
        let mut attrs = Attrs::new();
        if let Some(axes) = axes {
            attrs.put("axes", axes);
        }
        attrs.put("sharding", sharding);
        value = rw.create_one(CollectiveOp { def: def.as_def(), attrs }, &[value])?;
    }
    rw.replace(op, &[value]);
    Ok(count)
}
