//! `dce`: dead code elimination, removes ops whose results have no readers.

use of_ir::{Func, OpId, RegionId, Rewriter};

/// Removes dead ops, inner regions included.
pub fn dce(func: &mut Func) {
    let entry = func.graph.entry();
    let mut rw = Rewriter::new(&mut func.graph, "dce");
    sweep(&mut rw, entry);
}

/// Backward, so that an op is erased together with the ops that only it reads.
fn sweep(rw: &mut Rewriter<'_>, region: RegionId) {
    let ops: Vec<OpId> = rw.graph().region_ops(region).collect();
    for op in ops.into_iter().rev() {
        let data = rw.graph().op(op);
        let traits = data.def.traits();
        let dead = data.results.iter().all(|v| rw.graph().uses(*v).is_empty());
        if dead && !traits.terminator && !traits.effect {
            rw.erase(op);
            continue;
        }
        for r in data.regions.clone() {
            sweep(rw, r);
        }
    }
}
