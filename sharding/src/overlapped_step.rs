//! Decisions for steps whose transfers take place while the device computes.

use of_diag::Diagnostic;

use crate::MeshSpec;
use crate::decide::{Decision, decide, decide_within};
use crate::liveness::WholeFunction;
use crate::model::Model;
use crate::search::{Effort, Problem};
use crate::weights::Weights;

/// The part of the time of transfers that nothing hides: of the first gathers of a step, and its last sums.
const EXPOSED: f64 = 1.0 / 8.0;

/// The processor time of a byte that a rank sends and of one that it receives, over TCP, in passes over memory: copies to and from the
/// system, its packets, checksums, and what this takes from the caches of kernels. On one core a rank, 9.4 MB more each way made a step 16 ms
/// longer, on memory of 27 GB/s.
const PASSES: f64 = 48.0;

/// The part of a transfer that overlaps with computation which it adds to a step all the same; at 1 nothing is gained. Cores send and
/// receive themselves.
pub(crate) fn exposed(mesh: &MeshSpec) -> f64 {
    let fastest = mesh.axes.iter().map(|axis| axis.bandwidth).fold(0.0, f64::max);
    let processor = if mesh.device == "cpu" { PASSES * fastest / mesh.bandwidth } else { 0.0 };
    (EXPOSED + processor).min(1.0)
}

/// Prices of the link that are tried.
const LINK_PRICES: usize = 4;

/// As [`decide`], for a step whose transfers of variables and of gradients take place while the device computes. So it takes the larger
/// of the times of device and link, and what takes place alone: `alone + max(device, link) + exposed * link`.
///
/// A maximum is no sum over nodes and edges, so this is Lagrangian relaxation. For each price p of the link,
/// `(1 - p) * device + p * link` is at most that maximum, and the search for this sum gives labels and a lower bound. The price is
/// bisected: a higher one gives labels that transfer less.
///
/// # Errors
/// When nothing fits.
pub fn decide_overlapped(model: &Model<'_>, memory: f64, effort: &Effort) -> Result<Decision, Diagnostic> {
    let mut best = decide(model, memory, effort)?;
    let exposed = exposed(model.mesh);
    if exposed >= 1.0 || !(0..model.problem.edges.len()).any(|edge| model.overlaps(edge)) {
        return Ok(best);
    }
    let (mut low, mut high, mut price) = (0.0, 1.0, 0.0);
    let mut bound = 0.0f64;
    (best.cost, best.weights) = (StepTimes::of(model, &best.labels).together(exposed), Weights::at(price, exposed));
    for _ in 0..LINK_PRICES {
        let weights = Weights::at(price, exposed);
        let found = decide_within(model, &model.weighted(weights), &[&WholeFunction], memory, effort);
        // Other labels fit, those of `best`.
        let Ok(found) = found else { break };
        bound = bound.max(found.bound);
        let times = StepTimes::of(model, &found.labels);
        if times.together(exposed) < best.cost {
            best = Decision { cost: times.together(exposed), weights, ..found };
        }
        let is_proved = best.cost - bound <= effort.gap * best.cost;
        if is_proved || (price == 0.0 && times.link <= times.device) {
            break;
        }
        if times.link > times.device {
            low = price
        } else {
            high = price
        }
        price = f64::midpoint(low, high);
    }
    best.bound = bound.min(best.cost);
    Ok(best)
}

/// Seconds of a step with these labels, whose transfers overlap with computation: the cost of [`decide_overlapped`].
pub fn overlapped_seconds(model: &Model<'_>, labels: &[usize]) -> f64 {
    StepTimes::of(model, labels).together(exposed(model.mesh))
}

/// Seconds of the parts of a step.
#[derive(Default)]
struct StepTimes {
    /// Computation that transfers overlap with.
    device: f64,
    /// Transfers that overlap with it.
    link: f64,
    /// What takes place alone.
    alone: f64,
}

impl StepTimes {
    fn of(model: &Model<'_>, labels: &[usize]) -> StepTimes {
        let Problem { interner, nodes, edges } = &model.problem;
        let mut times = StepTimes::default();
        for (node, (costs, label)) in nodes.iter().zip(labels).enumerate() {
            let seconds = interner.costs(*costs)[*label];
            let part = if model.is_heavy(node) { 1.0 } else { Weights::UNFUSED };
            times.device += seconds * part;
            times.alone += seconds * (1.0 - part);
        }
        for (i, edge) in edges.iter().enumerate() {
            let seconds = model.problem.edge_cost(edge, labels[edge.a], labels[edge.b]);
            *if model.overlaps(i) { &mut times.link } else { &mut times.alone } += seconds;
        }
        times
    }

    fn together(&self, exposed: f64) -> f64 {
        self.alone + self.device.max(self.link) + exposed * self.link
    }
}
