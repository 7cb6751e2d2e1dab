//! The phases of a step with microbatches, and the order in which a rank runs them.
//!
//! Ops run once or in each microbatch, in the parts of the step ([`TimeShape`]). In a pipeline stage the ops of a microbatch fall into the forward and
//! the backward phase, and each transfer with another stage is a phase of its own, because it is due when the stage that receives
//! begins the microbatch. The order is that of the schedule 1F1B, so all ranks enter their rendezvous in one order.
//!
//! Where transfers overlap with computation, a rank launches them: what it sends, when it is made, and what it receives, before it computes with the
//! microbatch in front. So a transfer is due on both ranks when the one that receives begins the work before, or later, when
//! the value is made, and all ranks launch their transfers in the order of these times.

use of_diag::{Code, Diagnostic};
use of_ir::{Func, Graph, IdMap, OpId, RegionId};
use of_ops::OpSpec;
use of_ops::time::schedule::{PipelineShape, Schedule};
use of_ops::time::{
    Accumulate, OVERLAPPED_PIPELINE, PIPELINE, Pack, TimeShape, Unpack, is_in_microbatches, readers, transfer_of,
};

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

impl Work {
    /// For a transfer, whether it is one of the backward pass, and the stages that it is from and to.
    fn transfer(self) -> Option<(bool, usize, usize)> {
        match self {
            Work::Receive(from, to) | Work::Send(from, to) => Some((false, from, to)),
            Work::ReceiveBack(from, to) | Work::SendBack(from, to) => Some((true, from, to)),
            Work::Forward | Work::Backward => None,
        }
    }
}

/// A phase of a step: its part of the step, and its work there.
type Phase = (usize, Work);

/// The pipeline that a function is a stage of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pipeline {
    stages: usize,
    training: bool,
    overlapped: bool,
    stage: usize,
}

impl Pipeline {
    /// The pipeline that the attributes of a function state; one stage where they state none.
    pub fn of(func: &Func) -> Pipeline {
        let list: Vec<i64> = func.attrs.typed(PIPELINE).unwrap_or_default();
        let at = |i: usize, default: usize| list.get(i).and_then(|n| usize::try_from(*n).ok()).unwrap_or(default);
        let overlapped = func.attrs.typed(OVERLAPPED_PIPELINE).unwrap_or(false);
        let stages = at(0, 1).max(1);
        Pipeline { stages, training: at(1, 0) == 1, overlapped, stage: at(2, 0).min(stages - 1) }
    }

    fn shape(&self, microbatches: usize) -> PipelineShape {
        let Pipeline { stages, training, overlapped, .. } = *self;
        PipelineShape { stages, microbatches, training, overlapped }
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
    /// Whether it is of transfers that the rank launches, to go on with other phases meanwhile.
    pub launches: bool,
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
            let launches = pipeline.overlapped && phase.1.transfer().is_some();
            PhaseOps { ops: of(phase), part: phase.0, times, launches }
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

/// A phase at its place in the order of a rank.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Event {
    part: usize,
    /// How many forward and backward passes the rank begins before it.
    slot: usize,
    /// Whether it is such a pass, before which transfers come.
    is_pass: bool,
    /// For a transfer, when it is due, and the stages: all ranks have one order of these.
    due: (usize, usize, usize),
    microbatch: usize,
    index: usize,
}

/// The phases in the order of the schedule, by their position in `phases`.
fn sequence(phases: &[Phase], pipeline: Pipeline, count: usize) -> Vec<usize> {
    let shape = pipeline.shape(count);
    let schedule = shape.schedule();
    let passes = schedule.stage(pipeline.stage).len();
    let mut events = Vec::new();
    for (index, &(part, work)) in phases.iter().enumerate() {
        let in_microbatches = is_in_microbatches(part);
        for microbatch in 0..if in_microbatches { count } else { 1 } {
            let backward = work == Work::Backward;
            let (slot, due) = match work.transfer() {
                Some(transfer) => place(shape, &schedule, pipeline.stage, transfer, microbatch),
                None if in_microbatches => {
                    (shape.position(pipeline.stage, backward, microbatch).unwrap_or(passes), (0, 0, 0))
                }
                None => (0, (0, 0, 0)),
            };
            events.push(Event { part, slot, is_pass: work.transfer().is_none(), due, microbatch, index });
        }
    }
    // A transfer comes no earlier than those that are due before it.
    events.sort_unstable_by_key(|event| (event.part, event.due, event.microbatch, event.index));
    let mut last = (0, 0);
    for event in events.iter_mut().filter(|event| !event.is_pass) {
        last = last.max((event.part, event.slot));
        event.slot = last.1;
    }
    events.sort_unstable();
    events.into_iter().map(|event| event.index).collect()
}

/// The place of a transfer among the passes of a stage, and when it is due.
///
/// A transfer that blocks its ranks is due when the stage that receives begins. One that is launched is due when that stage begins with the microbatch in
/// front, or later, when the value is made: so values of two microbatches are there, and none waits for one that is due later.
fn place(
    shape: PipelineShape,
    schedule: &Schedule,
    stage: usize,
    (backward, from, to): (bool, usize, usize),
    microbatch: usize,
) -> (usize, (usize, usize, usize)) {
    let pass = |stage: usize| {
        let position = shape.position(stage, backward, microbatch)?;
        Some((position, *schedule.stage(stage).get(position)?))
    };
    let Some(((made, maker), (_, reader))) = pass(from).zip(pass(to)) else {
        return (schedule.stage(stage).len(), (usize::MAX, from, to));
    };
    if !shape.overlapped {
        let slot = schedule.stage(stage).partition_point(|work| work.start < reader.start);
        return (slot, (reader.start, from, to));
    }
    let front = microbatch.checked_sub(1).and_then(|before| shape.position(to, backward, before)).unwrap_or(0);
    let begins = if microbatch == 0 { 0 } else { schedule.stage(to)[front].start };
    (if stage == from { made + 1 } else { front }, (maker.end.max(begins), from, to))
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
        let pipeline = Pipeline { stages: 3, training: true, overlapped: false, stage: 0 };
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
