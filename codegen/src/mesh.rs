//! Programs of several ranks: each is lowered, and those that come out the same share one template.

use std::collections::BTreeMap;

use of_diag::{Code, Diagnostic, Location};
use of_ir::{Func, PartialKind, Sbp, Type};
use of_plan::{
    Arg, ArgSource, AxisLayout, Exec, LayoutKind, MeshPort, MeshProgram, OwnWeight, PlanBuilder, Program, Rank,
};

use crate::physical::element_type;

/// What the ranks of a mesh run.
pub struct MeshFuncs<'m> {
    /// Name of the entry point.
    pub name: String,
    /// Ranks along each axis of the mesh.
    pub shape: Vec<usize>,
    /// The function as all ranks see it: what its inputs and outputs are, and how they lie.
    pub whole: &'m Func,
    /// Functions of ranks.
    pub funcs: Vec<&'m Func>,
    /// For each rank, its function.
    pub ranks: Vec<usize>,
}

/// The plan's spelling of a layout along one axis.
pub fn axis_layout(sbp: Sbp) -> AxisLayout {
    match sbp {
        Sbp::Split(dim) => AxisLayout::split(u32::from(dim)),
        Sbp::Broadcast => AxisLayout::of(LayoutKind::Broadcast),
        Sbp::Partial(PartialKind::Sum) => AxisLayout::of(LayoutKind::Sum),
        Sbp::Partial(PartialKind::Max) => AxisLayout::of(LayoutKind::Max),
        Sbp::Partial(PartialKind::Min) => AxisLayout::of(LayoutKind::Min),
        Sbp::Partial(PartialKind::Prod) => AxisLayout::of(LayoutKind::Prod),
    }
}

/// The entry point of a mesh whose ranks run these programs.
pub fn program(mesh: &MeshFuncs<'_>, ranks: Vec<Rank>) -> Result<MeshProgram, Diagnostic> {
    let port = |(name, ty): (&String, &Type)| {
        let unsupported = || {
            let what = format!("'{name}' is {ty}: ranks take tensors of known extents and whole bytes");
            Diagnostic::error(Code::UNSUPPORTED, Location::Unknown, what)
        };
        let t = ty.as_tensor().ok_or_else(unsupported)?;
        let dims = t.fixed_dims().ok_or_else(unsupported)?;
        if t.dtype.bits().is_none_or(|b| b < 8) {
            return Err(unsupported());
        }
        let broadcast = || mesh.shape.iter().map(|_| axis_layout(Sbp::Broadcast)).collect();
        let layout = t.sbp.as_ref().map_or_else(broadcast, |s| s.axes.iter().copied().map(axis_layout).collect());
        let dims = dims.into_iter().map(|d| d as i64).collect();
        Ok(MeshPort { name: name.clone(), dtype: element_type(t.dtype) as i32, dims, layout })
    };
    let g = &mesh.whole.graph;
    let types = |values: &[of_ir::ValueId]| values.iter().map(|v| g.ty(*v).clone()).collect::<Vec<_>>();
    let (inputs, outputs) = (types(g.args()), types(g.outputs()));
    Ok(MeshProgram {
        name: mesh.name.clone(),
        shape: mesh.shape.iter().map(|n| *n as u32).collect(),
        inputs: mesh.whole.inputs.iter().zip(&inputs).map(port).collect::<Result<_, _>>()?,
        outputs: mesh.whole.outputs.iter().zip(&outputs).map(port).collect::<Result<_, _>>()?,
        ranks,
    })
}

/// What a rank with program `own` has in place of the weights of `template`; `None` where they differ in more.
pub fn unify(template: &Program, own: &Program, builder: &PlanBuilder<'_>) -> Option<Vec<OwnWeight>> {
    if template.tasks.len() != own.tasks.len() {
        return None;
    }
    let mut own = Program { name: template.name.clone(), ..own.clone() };
    let mut swaps: BTreeMap<u32, u32> = BTreeMap::new();
    for (a, b) in template.tasks.iter().zip(&mut own.tasks) {
        let (theirs, mine) = (args(a.exec.as_ref()?), args_mut(b.exec.as_mut()?));
        for (a, b) in theirs.into_iter().zip(mine) {
            if let (Some(ArgSource::Weight(of)), Some(ArgSource::Weight(by))) = (a.source, b.source) {
                if *swaps.entry(of).or_insert(by) != by {
                    return None;
                }
                b.source = a.source;
            }
        }
    }
    let weights = &builder.plan().weights;
    let differ = |(of, by): &(u32, u32)| weights[*of as usize].offset != weights[*by as usize].offset;
    let same_type = |(of, by): &(u32, u32)| {
        let (a, b) = (&weights[*of as usize], &weights[*by as usize]);
        a.dtype == b.dtype && a.dims == b.dims
    };
    let swaps: Vec<(u32, u32)> = swaps.into_iter().collect();
    let fits = own == *template && swaps.iter().all(same_type);
    fits.then(|| swaps.into_iter().filter(differ).map(|(of, by)| OwnWeight { of, by }).collect())
}

fn args(exec: &Exec) -> Vec<&Arg> {
    match exec {
        Exec::Kernel(e) => e.args.iter().collect(),
        Exec::Backend(e) => e.inputs.iter().collect(),
        Exec::Control(e) => e.inputs.iter().collect(),
        Exec::Copy(e) => vec![&e.src],
        Exec::Boxing(e) => vec![&e.src],
        Exec::Feed(_) | Exec::Fetch(_) => Vec::new(),
    }
}

fn args_mut(exec: &mut Exec) -> Vec<&mut Arg> {
    match exec {
        Exec::Kernel(e) => e.args.iter_mut().collect(),
        Exec::Backend(e) => e.inputs.iter_mut().collect(),
        Exec::Control(e) => e.inputs.iter_mut().collect(),
        Exec::Copy(e) => vec![&mut e.src],
        Exec::Boxing(e) => vec![&mut e.src],
        Exec::Feed(_) | Exec::Fetch(_) => Vec::new(),
    }
}
