//! Programs of several ranks: each is lowered, and identical ones share one template.

use std::collections::BTreeMap;

use of_diag::{Code, Diagnostic};
use of_ir::{Dim, Func, Module, PartialKind, Sbp, Type, ValueId};
use of_ops::boxing::{MICROBATCH_INPUTS, MICROBATCH_OUTPUTS};
use of_ops::training::variables;
use of_plan::{
    Arg, ArgSource, AxisLayout, Exec, Initial, LayoutKind, MeshPort, MeshProgram, Microbatches, PlanBuilder, Program,
    Rank, WeightOverride,
};

use crate::physical::element_type;

/// The functions that the ranks of a mesh run.
pub struct MeshFuncs<'m> {
    /// Name of the entry point.
    pub name: String,
    /// Ranks along each axis of the mesh.
    pub shape: Vec<usize>,
    /// The unpartitioned function: its inputs and outputs, and their SBP layouts.
    pub whole: &'m Func,
    /// The module with the meshes that its types name.
    pub module: &'m Module,
    /// Functions of ranks.
    pub funcs: Vec<&'m Func>,
    /// The index of each rank's function.
    pub ranks: Vec<usize>,
    /// Transfers that follow one another share a rendezvous of at most so many bytes; 0 where each has its own.
    pub fused_bytes: u64,
}

/// Values that ranks can exchange.
pub(crate) const EXCHANGED: &str = "tensors of known rank, with no extent of 0, whose elements are whole bytes";

/// How to make other values exchangeable.
pub(crate) const EXCHANGED_HINT: &str =
    "cast small integers to i8, and keep strings, empty tensors and values of unknown rank on one device";

/// The plan's form of an SBP component along one axis.
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

/// The programs of the ranks of several entry points.
pub(crate) struct RankPrograms<'m> {
    /// Functions, with the names of their programs.
    pub funcs: Vec<(String, &'m Func)>,
    /// For each function the number of a group: functions of one group are of the same ranks.
    pub groups: Vec<usize>,
    /// For each entry point and each rank the index of its function.
    pub of_ranks: Vec<Vec<usize>>,
}

impl<'m> RankPrograms<'m> {
    /// Ranks with the same function in the first entry point are a group. A function of another one that is of several groups becomes a
    /// program for each of them, since their variables may have other extents.
    pub fn of(meshes: &[MeshFuncs<'m>]) -> RankPrograms<'m> {
        let mut out = RankPrograms { funcs: Vec::new(), groups: Vec::new(), of_ranks: Vec::new() };
        for mesh in meshes {
            let mut known: BTreeMap<(usize, usize), usize> = BTreeMap::new();
            let mut of_ranks = Vec::with_capacity(mesh.ranks.len());
            for (rank, own) in mesh.ranks.iter().enumerate() {
                let group = meshes[0].ranks.get(rank).copied().unwrap_or(0);
                let number = known.len();
                of_ranks.push(*known.entry((*own, group)).or_insert_with(|| {
                    out.funcs.push((format!("{}@{number}", mesh.name), mesh.funcs[*own]));
                    out.groups.push(group);
                    out.funcs.len() - 1
                }));
            }
            out.of_ranks.push(of_ranks);
        }
        out
    }
}

/// Makes the variables of every entry point those of all of them. The error names one that has several layouts.
pub(crate) fn share_variables(entry_points: &mut [MeshProgram]) -> Result<(), String> {
    let (mut all, mut places): (Vec<MeshPort>, BTreeMap<&str, usize>) = Default::default();
    for port in entry_points.iter().flat_map(|mesh| &mesh.variables) {
        let place = *places.entry(&port.name).or_insert(all.len());
        if place == all.len() {
            all.push(port.clone());
        } else if all[place] != *port {
            return Err(format!("variable '{}' has one layout in one function and another in a second", port.name));
        }
    }
    entry_points.iter_mut().for_each(|mesh| mesh.variables.clone_from(&all));
    Ok(())
}

/// The entry point of a mesh whose ranks run these programs.
pub fn program(mesh: &MeshFuncs<'_>, ranks: Vec<Rank>) -> Result<MeshProgram, Diagnostic> {
    let port = |name: &str, ty: &Type, microbatches: Option<Microbatches>| {
        let unsupported = || {
            let what = format!("'{name}' is {ty}: ranks exchange only {EXCHANGED}");
            Diagnostic::error(Code::UNSUPPORTED, mesh.whole.loc.clone(), what).hint(EXCHANGED_HINT)
        };
        let t = ty.as_tensor().ok_or_else(unsupported)?;
        let extent = |d: &Dim| d.as_const().map_or(Some(of_plan::OPEN), |n| (n > 0).then_some(n));
        let shape = t.shape.as_ref().ok_or_else(unsupported)?;
        let mut dims = shape.iter().map(extent).collect::<Option<Vec<i64>>>().ok_or_else(unsupported)?;
        if t.dtype.bits().is_none_or(|b| b < 8) {
            return Err(unsupported());
        }
        // The function has a stack of microbatches.
        let outer =
            |s: Sbp| if let (Sbp::Split(d), true) = (s, microbatches.is_some()) { Sbp::Split(d.max(1) - 1) } else { s };
        if let Some(t) = microbatches {
            dims.remove(0);
            dims.iter_mut().skip(t.axis as usize).take(1).for_each(|n| *n *= i64::from(t.count));
        }
        let mut layout: Vec<AxisLayout> = match &t.sbp {
            Some(s) => s.axes.iter().copied().map(outer).map(axis_layout).collect(),
            None => mesh.shape.iter().map(|_| axis_layout(Sbp::Broadcast)).collect(),
        };
        if let Some(part) = t.sbp.as_ref().and_then(|s| mesh.module.meshes.get(&*s.mesh)?.part) {
            layout.insert(part.axis.min(layout.len()), AxisLayout::at(part.index as u32));
        }
        Ok(MeshPort { name: name.into(), dtype: element_type(t.dtype) as i32, dims, layout, microbatches })
    };
    let ports = |names: &[String], values: &[ValueId], microbatches: &str| {
        let cuts: Vec<i64> = mesh.whole.attrs.typed(microbatches).unwrap_or_default();
        let one = |(i, (name, v)): (usize, (&String, &ValueId))| {
            let own = cuts.get(2 * i..2 * i + 2).filter(|c| c[0] > 1);
            let own = own.map(|c| Microbatches { count: c[0] as u32, axis: c[1] as u32 });
            port(name, mesh.whole.graph.ty(*v), own)
        };
        let all = names.iter().zip(values).enumerate().map(one).collect::<Result<Vec<_>, Diagnostic>>()?;
        Ok::<_, Diagnostic>(all.into_iter().enumerate())
    };
    let g = &mesh.whole.graph;
    let kept = variables(mesh.whole)?;
    let inputs: Vec<_> = ports(&mesh.whole.inputs, g.args(), MICROBATCH_INPUTS)?.collect();
    let is_variable = |i: &usize| kept.iter().any(|v| v.input == *i);
    let is_next = |i: &usize| kept.iter().any(|v| v.next == Some(*i));
    let outputs = ports(&mesh.whole.outputs, g.outputs(), MICROBATCH_OUTPUTS)?;
    let of_variables = inputs.iter().filter(|(i, _)| is_variable(i)).map(|(_, port)| port.clone()).collect();
    Ok(MeshProgram {
        name: mesh.name.clone(),
        shape: mesh.shape.iter().map(|n| *n as u32).collect(),
        inputs: inputs.into_iter().filter(|(i, _)| !is_variable(i)).map(|(_, port)| port).collect(),
        outputs: outputs.filter(|(i, _)| !is_next(i)).map(|(_, port)| port).collect(),
        ranks,
        variables: of_variables,
    })
}

/// Weight overrides that make `template` the program `own`; `None` if the programs differ in anything else.
pub fn unify(template: &Program, own: &Program, builder: &PlanBuilder<'_>) -> Option<Vec<WeightOverride>> {
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
    for (a, b) in template.variables.iter().zip(&mut own.variables) {
        if let (Some(Initial::Weight(of)), Some(Initial::Weight(by))) = (a.initial, b.initial) {
            if *swaps.entry(of).or_insert(by) != by {
                return None;
            }
            b.initial = a.initial;
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
    fits.then(|| {
        swaps
            .into_iter()
            .filter(differ)
            .map(|(original, replacement)| WeightOverride { original, replacement })
            .collect()
    })
}

fn args(exec: &Exec) -> Vec<&Arg> {
    match exec {
        Exec::Kernel(e) => e.args.iter().collect(),
        Exec::Backend(e) => e.inputs.iter().collect(),
        Exec::Control(e) => e.inputs.iter().collect(),
        Exec::Copy(e) => vec![&e.src],
        Exec::Boxing(e) => e.transfers().map(|(_, src, _)| src).collect(),
        Exec::Concat(e) => e.parts.iter().map(|part| &part.src).collect(),
        Exec::Feed(_) | Exec::Fetch(_) => Vec::new(),
    }
}

fn args_mut(exec: &mut Exec) -> Vec<&mut Arg> {
    match exec {
        Exec::Kernel(e) => e.args.iter_mut().collect(),
        Exec::Backend(e) => e.inputs.iter_mut().collect(),
        Exec::Control(e) => e.inputs.iter_mut().collect(),
        Exec::Copy(e) => vec![&mut e.src],
        Exec::Boxing(e) => std::iter::once(&mut e.src).chain(e.fused.iter_mut().map(|own| &mut own.src)).collect(),
        Exec::Concat(e) => e.parts.iter_mut().map(|part| &mut part.src).collect(),
        Exec::Feed(_) | Exec::Fetch(_) => Vec::new(),
    }
}
