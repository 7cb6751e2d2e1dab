//! Prediction: the simulated step of the ranks of a mesh, with the costs that the mesh's description gives.

use of_diag::{Code, Diagnostics};
use of_plan::{ElementType, Plan, Program};
use of_runtime::{CacheLevel, Link, Machine, RanksOptions, RanksTimeline, simulate_ranks};
use of_sharding::{MeshAxis, MeshSpec};

use crate::error::error;

/// Simulates a step of a plan on a mesh of the shape that the plan was compiled for.
///
/// # Errors
/// When the plan is for one rank or for a mesh of another shape, or the simulation finds a deadlock.
pub fn simulate(plan: &Plan, spec: &MeshSpec, options: &RanksOptions) -> Result<RanksTimeline, Diagnostics> {
    let mesh = plan
        .meshes
        .first()
        .ok_or_else(|| error(Code::INPUT, "the plan is for one rank").hint("compile it with --mesh"))?;
    let stages = mesh.stages().and_then(|axis| Some((axis, *mesh.extents().get(axis)?)));
    let given = spec.shape();
    let spec = &stages.map_or_else(|| spec.clone(), |(axis, stages)| spec.with_stage_axis(axis, stages));
    if mesh.extents() != spec.shape() {
        let cut = stages.map(|(axis, _)| format!(" (axis {axis} is that of the stages)")).unwrap_or_default();
        let what = format!("the plan is for a mesh of {:?}{cut}, the given one is {given:?}", mesh.extents());
        let devices: usize = mesh.extents().iter().product();
        let hint = format!("the mesh that it was compiled for has {devices} devices");
        return Err(error(Code::INPUT, what).hint(hint).into());
    }
    let machine = machine(spec);
    let mut costs = |rank: u32, program: &Program| machine.costs_ns(plan, mesh, rank, program);
    simulate_ranks(plan, mesh, options, &mut costs).map_err(|e| error(Code::RUN, e.to_string()).into())
}

/// The simulator's machine for a mesh.
fn machine(spec: &MeshSpec) -> Machine {
    let near = |list: &[of_sharding::CacheLevel]| {
        list.iter().map(|n| CacheLevel { bytes: n.bytes as u64, bandwidth: n.bandwidth }).collect::<Vec<_>>()
    };
    let link = |a: &MeshAxis| Link { bandwidth: a.bandwidth, latency: a.latency, short: near(&a.cache) };
    let element = |name: &String| ElementType::ALL.iter().copied().find(|t| t.name() == *name);
    Machine {
        flops: spec.flops.iter().filter_map(|(name, peak)| Some((element(name)?, *peak))).collect(),
        other_flops: spec.flops.get("other").copied().unwrap_or(f64::INFINITY),
        pointwise: spec.pointwise.unwrap_or(f64::INFINITY),
        bandwidth: spec.bandwidth,
        caches: near(&spec.caches),
        ranks_per_core: spec.cores.map_or(1.0, |cores| (spec.devices() as f64 / cores as f64).max(1.0)),
        overhead: spec.overhead,
        links: spec.axes.iter().map(link).collect(),
    }
}
