//! Writes a placement into the graph.

use of_diag::{Diagnostic, Location};
use of_ir::{Graph, OpId, RegionId, Rewriter, ValueId};
use of_ops::control::Subgraph;
use of_ops::structural::Yield;

/// Values of `ops` that other ops read.
pub fn outputs(g: &Graph, ops: &[OpId]) -> Vec<ValueId> {
    // A read inside another op's region counts as a read by that op.
    let reads = |u: OpId| {
        let mut at = Some(u);
        while let Some(op) = at {
            if ops.contains(&op) {
                return false;
            }
            at = g.region_parent(g.op(op).parent);
        }
        true
    };
    let results = ops.iter().flat_map(|op| g.op(*op).results.to_vec());
    results.filter(|v| g.uses(*v).iter().any(|u| reads(u.op))).collect()
}

/// Reorders the ops of a region, and outlines those of each backend into an `of.subgraph`.
///
/// # Errors
/// When an op cannot be made, which is a bug.
pub fn outline(graph: &mut Graph, at: RegionId, order: &[(Option<String>, Vec<OpId>)]) -> Result<(), Diagnostic> {
    let Some(end) = graph.terminator(at) else { return Ok(()) };
    let mut rw = Rewriter::new(graph, "place");
    for (on, ops) in order {
        for op in ops {
            rw.move_before(*op, end);
        }
        let Some(backend) = on else { continue };
        let values = outputs(rw.graph(), ops);
        let froms: Vec<Location> = ops.iter().map(|op| rw.graph().op(*op).loc.clone()).collect();
        let (region, yielded) = rw.region_with(|rw, _| rw.create(Yield {}, &values));
        let yielded = yielded?;
        for op in ops {
            rw.move_before(*op, yielded);
        }
        rw.before(end);
        rw.set_location(Location::derived("place", &froms));
        let new = rw.create_with_regions(Subgraph { backend: backend.as_str().into() }, &[], &[region])?;
        let results = rw.graph().op(new).results.to_vec();
        for (v, result) in values.iter().zip(&results) {
            // The outer type is more precise than the region's where a symbol has a name.
            let ty = rw.graph().ty(*v).clone();
            rw.set_type(*result, ty);
            if let Some(name) = rw.graph().name(*v).cloned() {
                rw.set_name(*result, name);
            }
            for u in rw.graph().uses(*v).to_vec() {
                if !rw.graph().encloses(region, rw.graph().op(u.op).parent) {
                    rw.set_operand(u.op, u.operand as usize, *result);
                }
            }
        }
    }
    Ok(())
}
