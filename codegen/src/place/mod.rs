//! Placement: which ops run on which backend.
//!
//! Backends claim ops in the order that the user gave. A group that native code would fuse into one kernel goes to a backend as
//! a whole, or not at all. Adjacent claimed groups are clustered into subgraphs, as long as no subgraph depends on itself
//! through ops outside of it; subgraphs that are not worth a call are dissolved. Each remaining one becomes an `of.subgraph`. A
//! report says why each other op was left out, and what would help.

mod cluster;
mod outline;
mod rendezvous;
mod unit;

use std::collections::BTreeMap;

use of_diag::{Code, Diagnostic, Diagnostics, Location};
use of_ir::{Func, Graph, IdMap, OpId, RegionId, Type, ValueId};
use of_ops::OpSpec;
use of_ops::boxing::Transfer;
use of_ops::control::Subgraph;
use of_ops::list::as_op;
use of_ops::structural::{Constant, NoneValue};

use crate::analysis::phases::{Phases, Pipeline, is_in_time};
use crate::analysis::roles;
use crate::analysis::roles::{Role, Roles, is_rendezvous};
use crate::backend::Backend;
use crate::extract::read_by;
use crate::place::cluster::Nodes;
use crate::place::unit::Unit;
use crate::{fuse, transfer};

/// The name of native code in lists of backends.
pub const NATIVE: &str = "native";

/// Minimum seconds of a native kernel.
const KERNEL_SECONDS: f64 = 1e-6;

/// Operations a second of native code on one current core.
const NATIVE_FLOPS_PER_SECOND: f64 = 5e10;

/// Memory bandwidth of native code, in bytes a second.
const NATIVE_BYTES_PER_SECOND: f64 = 1e10;

/// Operations a second of ops without native code.
pub(crate) const INTERPRETED_OPS_PER_SECOND: f64 = 1e8;

/// A placement that the user fixed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pin {
    /// Name of an op (with or without `of.`), a location as messages print it, or the name of an ONNX node.
    pub op: String,
    /// Name of a backend, or [`NATIVE`].
    pub backend: String,
}

/// A placement request.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// Every available backend.
    pub known: &'a [&'a dyn Backend],
    /// Names of the requested backends, best first.
    pub wanted: &'a [String],
    /// Pinned placements; the first match wins.
    pub pins: &'a [Pin],
    /// Subgraphs of fewer ops are dissolved; with 0 none is, whatever its cost.
    pub min_subgraph_size: usize,
}

/// An op that a requested backend does not run.
#[derive(Clone, PartialEq, Debug)]
pub struct Rejected {
    /// Name of the op.
    pub op: String,
    /// Where it comes from.
    pub location: Location,
    /// Name of the backend.
    pub backend: String,
    /// Reason for the refusal.
    pub reason: String,
    /// Suggested fix.
    pub fix: Option<String>,
}

/// A subgraph that runs on a backend.
#[derive(Clone, PartialEq, Debug)]
pub struct PlacedSubgraph {
    /// Name of the backend.
    pub backend: String,
    /// Names of its ops, excluding views and shape computations.
    pub ops: Vec<String>,
    /// Bytes that enter and leave the subgraph.
    pub transfer: f64,
    /// Modelled seconds in native code.
    pub native: f64,
    /// Modelled seconds of the call and its data transfers.
    pub overhead: f64,
    /// Locations of its transfers between ranks.
    pub rendezvous: Vec<Location>,
}

/// The result of placement.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Placement {
    /// The subgraphs, each on one backend.
    pub subgraphs: Vec<PlacedSubgraph>,
    /// Rejected ops in the order of the function, for each requested backend.
    pub rejected: Vec<Rejected>,
    /// Number of ops that could have been placed.
    pub ops: usize,
}

/// Assigns the ops of `func` to backends; subgraphs become `of.subgraph` ops.
///
/// # Errors
/// When a backend is unknown, or refuses an op that is pinned to it.
pub fn place(func: &mut Func, request: &Request<'_>) -> Result<Placement, Diagnostic> {
    Ok(place_all(&mut [func], request)?.swap_remove(0))
}

/// Places the ops of several functions, such as those of ranks, each separately. A pin need not match in all of them.
///
/// # Errors
/// As [`place`].
pub fn place_all(funcs: &mut [&mut Func], request: &Request<'_>) -> Result<Vec<Placement>, Diagnostic> {
    let mut wanted = Vec::new();
    for name in request.wanted {
        wanted.push(backend(request, name)?);
    }
    for pin in request.pins.iter().filter(|p| p.backend != NATIVE) {
        backend(request, &pin.backend)?;
    }
    let mut placing = Placing { request, wanted, used: vec![false; request.pins.len()], on_host: BTreeMap::new() };
    let placements = loop {
        let mut placements = Vec::with_capacity(funcs.len());
        let mut placed: Vec<Func> = funcs.iter().map(|f| (**f).clone()).collect();
        for func in &mut placed {
            let mut placement = Placement::default();
            let entry = func.graph.entry();
            let inputs = func.graph.args().to_vec();
            region(func, entry, &inputs, &mut placing, &mut placement)?;
            placements.push(placement);
        }
        let on_host = rendezvous::conflicts(&placed, request.known);
        if on_host.is_empty() {
            funcs.iter_mut().zip(placed).for_each(|(func, placed)| **func = placed);
            break placements;
        }
        placing.on_host.extend(on_host);
    };
    match request.pins.iter().zip(&placing.used).find(|(_, used)| !**used) {
        None => Ok(placements),
        Some((pin, _)) => Err(Diagnostic::error(
            Code::INPUT,
            funcs.first().map_or(Location::Unknown, |f| f.loc.clone()),
            format!("no op has the name or location '{}': none can be placed on '{}'", pin.op, pin.backend),
        )
        .hint("ops are named as after all passes: 'of-opt explain MODEL --placement' lists them")),
    }
}

/// Places every op of functions, such as those of ranks, on `backend`, regardless of cost. Transfers between ranks stay on the
/// host where the backend does not support them.
///
/// # Errors
/// Each unsupported op, with the reason; once where several functions have it.
pub fn entirely(funcs: &mut [&mut Func], backend: &dyn Backend) -> Result<Vec<Placement>, Diagnostics> {
    let mut rejected: Vec<Diagnostic> = Vec::new();
    for g in funcs.iter().map(|f| &f.graph) {
        for op in g.region_ops(g.entry()).filter(|op| as_op::<Transfer>(g, *op).is_none()) {
            let (Err(why), data) = (backend.claims(g, op), g.op(op)) else { continue };
            let what = format!("'{}' does not run on '{}': {why}", data.name(), backend.name());
            let d = Diagnostic::error(Code::UNSUPPORTED, data.loc.clone(), what);
            let d = match backend.remedy(g, op) {
                Some(fix) => d.hint(fix),
                None => d,
            };
            if !rejected.contains(&d) {
                rejected.push(d);
            }
        }
    }
    if !rejected.is_empty() {
        return Err(Diagnostics(rejected));
    }
    let (known, wanted) = ([backend], [backend.name().to_string()]);
    Ok(place_all(funcs, &Request { known: &known, wanted: &wanted, pins: &[], min_subgraph_size: 0 })?)
}

/// The backend called `name`.
fn backend<'a>(request: &Request<'a>, name: &str) -> Result<&'a dyn Backend, Diagnostic> {
    request.known.iter().copied().find(|b| b.name() == name).ok_or_else(|| {
        let known = request.known.iter().map(|b| b.name()).filter(|name| *name != "cuda");
        let known: Vec<&str> = std::iter::once(NATIVE).chain(known).chain(["cuda:ARCH"]).collect();
        Diagnostic::error(Code::INPUT, Location::Unknown, format!("there is no backend '{name}'"))
            .hint(format!("there are {}", known.join(", ")))
    })
}

/// The request, and the results so far.
struct Placing<'a> {
    request: &'a Request<'a>,
    wanted: Vec<&'a dyn Backend>,
    /// Which pins matched an op.
    used: Vec<bool>,
    /// Transfers that stay on the host, and why: not all ranks would execute them the same way.
    on_host: BTreeMap<i64, &'static str>,
}

/// Places the ops of one region, then those inside the remaining control flow.
fn region(
    func: &mut Func,
    at: RegionId,
    inputs: &[ValueId],
    placing: &mut Placing<'_>,
    placement: &mut Placement,
) -> Result<(), Diagnostic> {
    let g = &func.graph;
    let roles = Roles::of(g, at, inputs);
    let mut units = Vec::new();
    let phases = Phases::of(g, at, Pipeline::of(func))?;
    for ops in fusion_units(g, at, &roles, phases.as_ref()) {
        units.extend(choose(g, ops, &roles, placing, &mut placement.rejected)?);
    }
    let phase_of = phases.map(|phases| phases.by_op()).unwrap_or_default();
    placement.ops += units.iter().filter(|u| u.computes).map(|u| u.ops.len()).sum::<usize>();
    let mut nodes = Nodes::new(g, &units, &roles, &phase_of);
    nodes.merge_clusters();
    let mut subgraphs = Vec::new();
    for members in nodes.clusters() {
        let placed = profitable(g, &members, &units, placing.request, &mut placement.rejected);
        if let Some(placed) = placed {
            placement.subgraphs.push(placed);
            subgraphs.push(members);
        } else {
            nodes.dissolve(&members);
        }
    }
    let position: IdMap<OpId, usize> = g.region_ops(at).enumerate().map(|(i, op)| (op, i)).collect();
    let order = nodes.order();
    if order.iter().map(Vec::len).sum::<usize>() != units.len() {
        let what = "internal error: fusion groups depend on each other in a cycle";
        return Err(Diagnostic::error(Code::CODEGEN, func.loc.clone(), what));
    }
    let in_order = |members: Vec<usize>| {
        let on = subgraphs.contains(&members).then(|| units[members[0]].on.map(|b| b.name().to_string())).flatten();
        let mut ops: Vec<OpId> = members.iter().flat_map(|u| units[*u].ops.clone()).collect();
        of_ir::sort::by_key(&mut ops, |op| position[op]);
        (on, ops)
    };
    let order: Vec<(Option<String>, Vec<OpId>)> = order.into_iter().map(in_order).collect();
    let left: Vec<OpId> = order.iter().filter(|(on, _)| on.is_none()).flat_map(|(_, ops)| ops.clone()).collect();
    outline::outline(&mut func.graph, at, &order)?;
    for op in left {
        if roles::control(&func.graph, op).is_none() {
            continue;
        }
        let bodies = func.graph.op(op).regions.clone();
        for inner in bodies {
            let mut inputs = func.graph.region_args(inner).to_vec();
            read_by(&func.graph, op, &mut inputs);
            region(func, inner, &inputs, placing, placement)?;
        }
    }
    Ok(())
}

/// The ops of a region in groups that native code would fuse; constants and the terminator are excluded.
fn fusion_units(g: &Graph, at: RegionId, roles: &Roles, phases: Option<&Phases>) -> Vec<Vec<OpId>> {
    // A group composed of groups with separate kernels may be divided.
    let parts = |group: fuse::Group| if group.parts.is_empty() { vec![group] } else { group.parts };
    // Only ops of one phase are fused.
    let lists: Vec<Vec<OpId>> = match phases {
        Some(phases) => phases.list.iter().map(|phase| phase.ops.clone()).collect(),
        None => vec![g.region_ops(at).collect()],
    };
    let mut out: Vec<Vec<OpId>> = lists
        .into_iter()
        .flat_map(|ops| fuse::fuse(g, ops, roles, Vec::new(), false))
        .flat_map(parts)
        .map(|g| g.ops)
        .collect();
    let mut grouped: IdMap<OpId, ()> = out.iter().flatten().map(|op| (*op, ())).collect();
    for op in g.region_ops(at) {
        let data = g.op(op);
        let placed = !matches!(data.name(), Constant::NAME | NoneValue::NAME | Subgraph::NAME);
        if placed && !data.def.traits().terminator && grouped.insert(op, ()).is_none() {
            out.push(vec![op]);
        }
    }
    let position: IdMap<OpId, usize> = g.region_ops(at).enumerate().map(|(i, op)| (op, i)).collect();
    for ops in &mut out {
        of_ir::sort::by_key(ops, |op| position[op]);
    }
    of_ir::sort::by_key(&mut out, |ops| position[&ops[0]]);
    out
}

/// Chooses the backend of a group: as a whole, unless pins divide it.
fn choose<'a>(
    g: &Graph,
    ops: Vec<OpId>,
    roles: &Roles,
    placing: &mut Placing<'a>,
    rejected: &mut Vec<Rejected>,
) -> Result<Vec<Unit<'a>>, Diagnostic> {
    let (request, wanted) = (placing.request, placing.wanted.clone());
    let pins: Vec<Option<usize>> =
        ops.iter().map(|op| request.pins.iter().position(|p| matches_op(g, *op, &p.op))).collect();
    let mut names: Vec<&str> = Vec::new();
    for pin in pins.iter().flatten() {
        placing.used[*pin] = true;
        names.push(&request.pins[*pin].backend);
    }
    names.dedup();
    let mut on = None;
    match names[..] {
        [] => {
            for b in wanted {
                match refusals(g, &ops, roles, &placing.on_host, b) {
                    list if list.is_empty() => {
                        on = Some(b);
                        break;
                    }
                    list => report(g, &ops, b, list, roles, rejected),
                }
            }
        }
        [NATIVE] => {
            for b in wanted {
                let fix = "--pin pins it to native code".to_string();
                rejected.extend(ops.iter().map(|op| left(g, *op, b.name(), fix.clone(), None)));
            }
        }
        [name] => {
            let b = backend(request, name)?;
            let list = refusals(g, &ops, roles, &placing.on_host, b);
            let by_hand = list.iter().find(|(op, _)| pins[ops.iter().position(|o| o == op).unwrap_or(0)].is_some());
            if let Some((op, why)) = by_hand {
                let data = g.op(*op);
                let what = format!("'{name}' does not run '{}', which is pinned to it: {why}", data.name());
                let d = Diagnostic::error(Code::UNSUPPORTED, data.loc.clone(), what);
                return Err(match b.remedy(g, *op) {
                    Some(fix) => d.hint(fix),
                    None => d,
                });
            }
            // Fused ops follow a pinned op, where possible.
            if !list.is_empty() {
                return one_by_one(g, ops, roles, placing, rejected);
            }
            on = Some(b);
        }
        _ => return one_by_one(g, ops, roles, placing, rejected),
    }
    let computes =
        |op: &OpId| !matches!(roles.get(*op), Role::Nothing | Role::Alias | Role::Transfer) && !roles.is_shape(g, *op);
    let computes = ops.iter().any(computes);
    let native = seconds(g, &ops, roles);
    Ok(vec![Unit { ops, on, pinned: !names.is_empty(), native, computes }])
}

fn one_by_one<'a>(
    g: &Graph,
    ops: Vec<OpId>,
    roles: &Roles,
    placing: &mut Placing<'a>,
    rejected: &mut Vec<Rejected>,
) -> Result<Vec<Unit<'a>>, Diagnostic> {
    let mut out = Vec::new();
    for op in ops {
        out.extend(choose(g, vec![op], roles, placing, rejected)?);
    }
    Ok(out)
}

/// The ops that a backend refuses, with reasons.
fn refusals(
    g: &Graph,
    ops: &[OpId],
    roles: &Roles,
    on_host: &BTreeMap<i64, &str>,
    b: &dyn Backend,
) -> Vec<(OpId, String)> {
    let why = |op: &OpId| match as_op::<Transfer>(g, *op) {
        Some(t) if on_host.contains_key(&t.id) => on_host.get(&t.id).map(|why| (*why).into()),
        // Subgraphs of open extents are compiled during the run, by each rank separately.
        Some(_) if !roles.symbols.is_empty() => Some("the function has extents that are bound at run time".into()),
        Some(_) => transfer::exchanged(g, *op, b).err(),
        None if is_in_time(g.op(*op).name()) => Some("values enter and leave microbatches on the host".into()),
        None => b.claims(g, *op).err(),
    };
    ops.iter().filter_map(|op| Some((*op, why(op)?))).collect()
}

/// Records why a group was left out: claimed ops stay with refused ones.
fn report(
    g: &Graph,
    ops: &[OpId],
    b: &dyn Backend,
    list: Vec<(OpId, String)>,
    roles: &Roles,
    rejected: &mut Vec<Rejected>,
) {
    for op in ops {
        if matches!(roles.get(*op), Role::Nothing) {
            continue;
        }
        let own = list.iter().find(|(o, _)| o == op);
        let (reason, fix) = match own {
            Some((_, why)) => (why.clone(), b.remedy(g, *op)),
            None => {
                let (other, _) = &list[0];
                (format!("native code fuses it with '{}', which is refused", g.op(*other).name()), None)
            }
        };
        rejected.push(left(g, *op, b.name(), reason, fix));
    }
}

fn left(g: &Graph, op: OpId, backend: &str, reason: String, fix: Option<String>) -> Rejected {
    let data = g.op(op);
    Rejected { op: data.name().into(), location: data.loc.clone(), backend: backend.into(), reason, fix }
}

/// Whether a pin matches an op.
pub fn matches_op(g: &Graph, op: OpId, what: &str) -> bool {
    let data = g.op(op);
    let name = data.name();
    let from = |l: &&Location| match l {
        Location::Onnx { node, .. } if **node == *what => true,
        l => l.to_string() == what,
    };
    name == what || name.strip_prefix("of.") == Some(what) || data.loc.roots().iter().any(from)
}

/// Modelled seconds of a native kernel of these ops: the maximum of arithmetic and memory time. Intermediate values stay in
/// registers.
fn seconds(g: &Graph, ops: &[OpId], roles: &Roles) -> f64 {
    let (mut flops, mut bytes, mut slow) = (0.0, 0.0, 0.0);
    for op in ops {
        let work = of_ops::work::of(g, *op);
        if matches!(roles.get(*op), Role::Reference(_)) {
            slow += (work.flops + work.bytes()) / INTERPRETED_OPS_PER_SECOND;
            continue;
        }
        flops += work.flops;
        let data = g.op(*op);
        let inside = |v: &ValueId| g.def_op(*v).is_some_and(|d| ops.contains(&d));
        let read = data.operands.iter().filter(|v| !inside(v));
        let written = data.results.iter().filter(|v| g.uses(**v).iter().any(|u| !ops.contains(&u.op)));
        bytes += read.chain(written).map(|v| of_ops::work::bytes(g.ty(*v))).sum::<f64>().min(work.bytes());
    }
    slow + KERNEL_SECONDS + f64::max(flops / NATIVE_FLOPS_PER_SECOND, bytes / NATIVE_BYTES_PER_SECOND)
}

/// Returns the subgraph if it is large enough and worth its call; else reports why not.
fn profitable(
    g: &Graph,
    members: &[usize],
    units: &[Unit<'_>],
    request: &Request<'_>,
    rejected: &mut Vec<Rejected>,
) -> Option<PlacedSubgraph> {
    let b = units[members[0]].on?;
    let of = |f: fn(&Unit<'_>) -> bool| members.iter().any(|u| f(&units[*u]));
    let ops: Vec<OpId> = members.iter().flat_map(|u| units[*u].ops.clone()).collect();
    let counted: usize = members.iter().filter(|u| units[**u].computes).map(|u| units[*u].ops.len()).sum();
    let transfer = boundary_values(g, &ops).iter().map(|v| of_ops::work::bytes(g.ty(*v))).sum();
    let native = members.iter().map(|u| units[*u].native).sum();
    let overhead = b.overhead().launch + transfer / b.overhead().bandwidth;
    let name = b.name().to_string();
    let reason = if of(|u| u.pinned) {
        None
    } else if !of(|u| u.computes) {
        Some(("it computes nothing, and the backend claims no neighbour of it".to_string(), None))
    } else if counted < request.min_subgraph_size {
        let fix = format!("--min-subgraph-size {counted} takes it");
        Some((
            format!(
                "its subgraph has {}, fewer than --min-subgraph-size {}",
                plural(counted),
                request.min_subgraph_size
            ),
            Some(fix),
        ))
    } else if request.min_subgraph_size > 0 && overhead > native {
        let times =
            format!("calling {name} takes {:.1} us, native code {:.1} us for all of it", overhead * 1e6, native * 1e6);
        let fix = format!("--pin {}={name} takes it all the same", g.op(ops[0]).name());
        Some((format!("its subgraph of {} is not worth a call: {times}", plural(counted)), Some(fix)))
    } else {
        None
    };
    match reason {
        None => {
            let computing = members.iter().filter(|u| units[**u].computes).flat_map(|u| &units[*u].ops);
            let names = computing.map(|op| g.op(*op).name().to_string()).collect();
            let rendezvous = ops.iter().filter(|op| is_rendezvous(g, **op)).map(|op| g.op(*op).loc.clone()).collect();
            Some(PlacedSubgraph { backend: name, ops: names, transfer, native, overhead, rendezvous })
        }
        Some((reason, fix)) => {
            let reported = |u: &&usize| units[**u].computes || units[**u].ops.iter().any(|op| is_rendezvous(g, *op));
            let ops = members.iter().filter(reported).flat_map(|u| &units[*u].ops);
            rejected.extend(ops.map(|op| left(g, *op, &name, reason.clone(), fix.clone())));
            None
        }
    }
}

fn plural(ops: usize) -> String {
    if ops == 1 { "1 op".into() } else { format!("{ops} ops") }
}

/// Values that enter or leave a set of ops, excluding constants.
fn boundary_values(g: &Graph, ops: &[OpId]) -> Vec<ValueId> {
    let mut read = Vec::new();
    ops.iter().for_each(|op| read_by(g, *op, &mut read));
    let inside = |op: Option<OpId>| op.is_some_and(|op| ops.contains(&op));
    let mut out: Vec<ValueId> = read
        .into_iter()
        .filter(|v| !inside(g.def_op(*v)) && g.constant(*v).is_none() && *g.ty(*v) != Type::None)
        .collect();
    out.extend(outline::outputs(g, ops));
    out.sort();
    out.dedup();
    out
}
