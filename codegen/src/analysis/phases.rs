//! The phases of a step with microbatches, and the order in which a rank runs them.
//!
//! Ops run once or in each microbatch, in the parts of the step ([`TimeShape`]). In a pipeline stage the ops of a microbatch fall into the forward and
//! the backward phase, and each transfer with another stage is a phase of its own, because it is due when the stage that receives
//! begins the microbatch. The order is that of the schedule 1F1B, so all ranks enter their rendezvous in one order.

use of_diag::{Code, Diagnostic};
use of_ir::{Func, Graph, IdMap, OpId, RegionId};
use of_ops::OpSpec;
use of_ops::time::schedule::schedule;
use of_ops::time::{Accumulate, PIPELINE, Pack, TimeShape, Unpack, is_in_microbatches, readers, transfer_of};

/// What a phase of a microbatch does.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
enum Work {
    /// Transfers of the forward pass from an earlier stage, which it names, to this one, which comes second.
    Receive(usize, usize),
    /// The forward pass; also everything that runs once.
    Forward,
    /// Transfers of the forward pass to a later stage.
    Send(usize, usize),
    /// Transfers of the backward pass from a later stage.
    ReceiveBack(usize, usize),
    Backward,
    /// Transfers of the backward pass to an earlier stage.
    SendBack(usize, usize),
}

/// A phase of a step: its part of the step, and its work there.
type Phase = (usize, Work);

/// The pipeline that a function is a stage of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pipeline {
    stages: usize,
    training: bool,
    stage: usize,
}

impl Pipeline {
    /// The pipeline that the attributes of a function state; one stage where they state none.
    pub fn of(func: &Func) -> Pipeline {
        let list: Vec<i64> = func.attrs.typed(PIPELINE).unwrap_or_default();
        let at = |i: usize, default: usize| list.get(i).and_then(|n| usize::try_from(*n).ok()).unwrap_or(default);
        Pipeline { stages: at(0, 1).max(1), training: at(1, 0) == 1, stage: at(2, 0) }
    }
}

/// A phase of a region.
#[derive(Clone, Debug)]
pub(crate) struct PhaseOps {
    pub ops: Vec<OpId>,
    /// The part of the step, which is odd where the phase runs in microbatches.
    pub part: usize,
    /// How many times it runs.
    pub times: usize,
}

/// The phases of a region.
#[derive(Clone, Debug)]
pub(crate) struct Phases {
    /// The phases in order. The first and the last run once and may have no ops.
    pub list: Vec<PhaseOps>,
    /// Phases by index, and how many times they run one after another.
    pub schedule: Vec<(Vec<usize>, usize)>,
}

impl Phases {
    /// The phases of a region; `None` where nothing runs in microbatches.
    ///
    /// # Errors
    /// When numbers of microbatches differ, or microbatches depend on what comes after them.
    pub fn of(g: &Graph, region: RegionId, pipeline: Pipeline) -> Result<Option<Phases>, Diagnostic> {
        let Some(time) = TimeShape::of(g, region)? else { return Ok(None) };
        let ops: Vec<OpId> = g.region_ops(region).collect();
        let mut phase_of: IdMap<OpId, Phase> = IdMap::default();
        for op in &ops {
            let part = time.op(*op);
            let work = if is_in_microbatches(part) { work(g, *op, part, pipeline, &phase_of)? } else { Work::Forward };
            phase_of.insert(*op, (part, work));
        }
        // What only the backward phase reads is computed there, so that its operands are kept instead: recomputation.
        for op in ops.iter().rev().filter(|op| transfer_of(g, **op).is_none()) {
            let Some(&(part, Work::Forward)) = phase_of.get(op) else { continue };
            let mut users = readers(g, region, *op).into_iter().map(|reader| phase_of.get(&reader)).peekable();
            let backward = |p: &Phase| p.0 == part && matches!(p.1, Work::Backward | Work::SendBack(..));
            if is_in_microbatches(part) && users.peek().is_some() && users.all(|p| p.is_some_and(backward)) {
                phase_of.insert(*op, (part, Work::Backward));
            }
        }
        let last = phase_of.values().map(|(part, _)| part + part % 2).max().unwrap_or(0);
        let mut present: Vec<Phase> =
            phase_of.values().copied().chain([(0, Work::Forward), (last, Work::Forward)]).collect();
        present.sort_unstable();
        present.dedup();
        let of = |phase: &Phase| ops.iter().copied().filter(|op| phase_of.get(op) == Some(phase)).collect();
        let phase = |phase: &Phase| {
            let times = if is_in_microbatches(phase.0) { time.count } else { 1 };
            PhaseOps { ops: of(phase), part: phase.0, times }
        };
        let schedule = compress(&sequence(&present, pipeline, time.count));
        Ok(Some(Phases { list: present.iter().map(phase).collect(), schedule }))
    }

    /// The index of the phase of each op.
    pub fn by_op(&self) -> IdMap<OpId, usize> {
        self.list.iter().enumerate().flat_map(|(i, phase)| phase.ops.iter().map(move |op| (*op, i))).collect()
    }
}

/// Whether an op passes values between the microbatches and what runs once. Such ops copy in memory of the host.
pub(crate) fn is_in_time(name: &str) -> bool {
    matches!(name, Unpack::NAME | Pack::NAME | Accumulate::NAME)
}

/// The work of an op of a microbatch, after that of its operands.
fn work(g: &Graph, op: OpId, part: usize, pipeline: Pipeline, known: &IdMap<OpId, Phase>) -> Result<Work, Diagnostic> {
    let captured = g.captured(op);
    let reads = g.op(op).operands.iter().chain(&captured);
    let reads = reads.filter_map(|v| known.get(&g.def_op(*v)?)).filter(|phase| phase.0 == part);
    let is_backward = |p: &&Phase| matches!(p.1, Work::ReceiveBack(..) | Work::Backward | Work::SendBack(..));
    let backward = reads.filter(is_backward).count() > 0;
    let stages = transfer_of(g, op).map(|transfer| transfer.stage_ranks).filter(|s| s.len() == 3);
    let Some(stages) = stages else { return Ok(if backward { Work::Backward } else { Work::Forward }) };
    let stage = |i: usize| usize::try_from(stages[i]).unwrap_or(0);
    let (from, to) = (stage(1), stage(2));
    match (from < to, from == pipeline.stage) {
        (true, true) if backward => {
            let what = format!("the backward pass of stage {from} sends a value to stage {to}, which comes later");
            let d = Diagnostic::error(Code::UNSUPPORTED, g.op(op).loc.clone(), what);
            Err(d.hint("use fewer stages"))
        }
        (true, true) => Ok(Work::Send(from, to)),
        (true, false) => Ok(Work::Receive(from, to)),
        (false, true) => Ok(Work::SendBack(from, to)),
        (false, false) => Ok(Work::ReceiveBack(from, to)),
    }
}

/// The phases in the order of the schedule, by their position in `phases`.
fn sequence(phases: &[Phase], pipeline: Pipeline, count: usize) -> Vec<usize> {
    let (forward, backward, _) = schedule(pipeline.stages, count, pipeline.training);
    let own = pipeline.stage.min(pipeline.stages - 1);
    let mut events = Vec::new();
    for (index, (part, work)) in phases.iter().enumerate() {
        for t in 0..if is_in_microbatches(*part) { count } else { 1 } {
            // A transfer is due before the stage that receives begins. Those of one time have one order on all ranks.
            let start = |times: &[Vec<usize>], stage: usize| times.get(stage).map_or(0, |times| times[t]);
            let key = match *work {
                Work::Receive(from, to) | Work::Send(from, to) => (start(&forward, to), 0, from, to),
                Work::ReceiveBack(from, to) | Work::SendBack(from, to) => (start(&backward, to), 0, from, to),
                Work::Forward => (start(&forward, own), 1, 0, 0),
                Work::Backward => (start(&backward, own), 1, 0, 0),
            };
            events.push((*part, key, t, index));
        }
    }
    events.sort_unstable();
    events.into_iter().map(|(.., index)| index).collect()
}

/// A sequence with its repetitions: of all repeated parts, the one that covers most of it is a loop.
fn compress(sequence: &[usize]) -> Vec<(Vec<usize>, usize)> {
    let n = sequence.len();
    let (mut covered, mut best) = (0, (0, 0, 0));
    for period in 1..=n / 2 {
        let mut run = 0;
        // `run` counts elements that equal the one a period later.
        for at in (0..n - period).rev() {
            run = if sequence[at] == sequence[at + period] { run + 1 } else { 0 };
            let times = run / period + 1;
            if times > 1 && times * period > covered + period {
                (covered, best) = (times * period - period, (at, period, times));
            }
        }
    }
    let (start, period, times) = best;
    if times < 2 {
        return vec![(sequence.to_vec(), 1)];
    }
    let end = start + period * times;
    let parts = [(&sequence[..start], 1), (&sequence[start..start + period], times), (&sequence[end..], 1)];
    parts.into_iter().filter(|(list, _)| !list.is_empty()).map(|(list, times)| (list.to_vec(), times)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expand(loops: &[(Vec<usize>, usize)]) -> Vec<usize> {
        loops.iter().flat_map(|(list, times)| list.repeat(*times)).collect()
    }

    #[test]
    fn schedules_have_one_size_for_any_number_of_microbatches() {
        let inside = [Work::Forward, Work::Send(0, 1), Work::ReceiveBack(1, 0), Work::Backward].map(|work| (1, work));
        let phases = [&[(0, Work::Forward)][..], &inside, &[(2, Work::Forward)]].concat();
        let pipeline = Pipeline { stages: 3, training: true, stage: 0 };
        let compressed = |count| {
            let all = sequence(&phases, pipeline, count);
            let loops = compress(&all);
            assert_eq!(expand(&loops), all);
            assert_eq!(all.len(), 4 * count + 2);
            loops
        };
        let sizes = |count| compressed(count).iter().map(|(list, _)| list.len()).sum::<usize>();
        assert!(sizes(64) <= sizes(8), "{} and {}", sizes(64), sizes(8));
        assert!(sizes(64) < 40, "{:?}", compressed(64));
    }

    #[test]
    fn sequences_without_repetition_are_one_loop() {
        assert_eq!(compress(&[0, 1, 2]), [(vec![0, 1, 2], 1)]);
        assert_eq!(compress(&[0, 1, 1, 1, 2]), [(vec![0], 1), (vec![1], 3), (vec![2], 1)]);
    }
}
