//! The 1F1B pipeline schedule: when each stage runs the forward and backward part of each microbatch.

/// Units of time of a microbatch's forward pass in a stage.
const FORWARD: usize = 1;
/// Units of time of its backward pass.
const BACKWARD: usize = 2;

/// The numbers that a schedule follows from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PipelineShape {
    /// Number of stages.
    pub stages: usize,
    /// Microbatches of a step.
    pub microbatches: usize,
    /// Whether there is a backward pass.
    pub training: bool,
    /// Whether transfers between stages overlap with computation. Each is then under way for as long as a forward pass takes, so stages
    /// hold more microbatches.
    pub overlapped: bool,
}

/// What a stage does in some time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Work {
    /// When it begins. The first work begins at 1.
    pub start: usize,
    /// When it has ended.
    pub end: usize,
    /// Whether it is the backward pass.
    pub backward: bool,
    /// The microbatch.
    pub microbatch: usize,
}

/// The work of each stage, in order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Schedule {
    stages: Vec<Vec<Work>>,
}

impl PipelineShape {
    /// Microbatches that a stage of a training holds the activations of at most: it runs the forward pass of so many before the
    /// backward pass of the first of them. Where transfers overlap, each of the stages behind counts twice, because a microbatch
    /// is on its way there and back for about as long as it is computed with.
    pub fn in_flight(&self, stage: usize) -> usize {
        let behind = self.stages.saturating_sub(stage + 1);
        (1 + behind * if self.overlapped { 2 } else { 1 }).min(self.microbatches)
    }

    /// The sequence of a stage: forward passes to begin with, then one backward and one forward alternately.
    fn sequence(&self, stage: usize) -> Vec<(bool, usize)> {
        if !self.training {
            return (0..self.microbatches).map(|m| (false, m)).collect();
        }
        let ahead = self.in_flight(stage);
        let mut list: Vec<(bool, usize)> = (0..ahead).map(|m| (false, m)).collect();
        for m in 0..self.microbatches {
            list.push((true, m));
            if ahead + m < self.microbatches {
                list.push((false, ahead + m));
            }
        }
        list
    }

    /// The position of a microbatch's forward or backward pass in the work of a stage; `None` where there is no such pass.
    pub fn position(&self, stage: usize, backward: bool, microbatch: usize) -> Option<usize> {
        if microbatch >= self.microbatches || (backward && !self.training) {
            return None;
        }
        let ahead = if self.training { self.in_flight(stage) } else { self.microbatches };
        Some(match backward {
            false if microbatch < ahead => microbatch,
            false => 2 * microbatch + 1 - ahead,
            true => ahead + microbatch + microbatch.min(self.microbatches - ahead),
        })
    }

    /// The schedule.
    pub fn schedule(&self) -> Schedule {
        let transfer = if self.overlapped { FORWARD } else { 0 };
        let sequences: Vec<Vec<(bool, usize)>> = (0..self.stages).map(|stage| self.sequence(stage)).collect();
        let mut out = Schedule { stages: vec![Vec::new(); self.stages] };
        let end = |out: &Schedule, stage: usize, backward, microbatch| {
            Some(out.stages[stage].get(self.position(stage, backward, microbatch)?)?.end)
        };
        loop {
            let mut changed = false;
            for (stage, sequence) in sequences.iter().enumerate() {
                while let Some(&(backward, microbatch)) = sequence.get(out.stages[stage].len()) {
                    let last = stage + 1 == self.stages;
                    let ready = match (backward, stage) {
                        (false, 0) => Some(0),
                        (false, _) => end(&out, stage - 1, false, microbatch).map(|end| end + transfer),
                        (true, _) if last => end(&out, stage, false, microbatch),
                        (true, _) => end(&out, stage + 1, true, microbatch).map(|end| end + transfer),
                    };
                    let Some(ready) = ready else { break };
                    let start = ready.max(out.stages[stage].last().map_or(1, |work| work.end));
                    let end = start + if backward { BACKWARD } else { FORWARD };
                    out.stages[stage].push(Work { start, end, backward, microbatch });
                    changed = true;
                }
            }
            if !changed {
                return out;
            }
        }
    }
}

impl Schedule {
    /// The work of a stage, in order.
    pub fn stage(&self, stage: usize) -> &[Work] {
        self.stages.get(stage).map_or(&[], Vec::as_slice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn starts(schedule: &Schedule, stage: usize, backward: bool) -> Vec<usize> {
        schedule.stage(stage).iter().filter(|work| work.backward == backward).map(|work| work.start).collect()
    }

    #[test]
    fn schedule_is_1f1b() {
        // Three stages, four microbatches: stages wait only while the pipeline fills and drains.
        let shape = PipelineShape { stages: 3, microbatches: 4, training: true, overlapped: false };
        let schedule = shape.schedule();
        assert_eq!(starts(&schedule, 0, false)[..3], [1, 2, 3]);
        assert_eq!((starts(&schedule, 2, false)[0], starts(&schedule, 2, true)[0]), (3, 4));
        assert_eq!((starts(&schedule, 1, true)[0], starts(&schedule, 0, true)[0]), (6, 8));
        assert_eq!(schedule.stage(0).last().unwrap().end, 1 + 3 * (4 + 3 - 1));
        let inference = PipelineShape { stages: 2, microbatches: 3, training: false, overlapped: false }.schedule();
        assert_eq!((starts(&inference, 0, false), starts(&inference, 1, false)), (vec![1, 2, 3], vec![2, 3, 4]));
    }

    #[test]
    fn stages_hold_as_many_microbatches_as_in_flight_says() {
        for (overlapped, microbatches) in [(false, 9), (true, 9), (false, 2), (true, 5)] {
            let shape = PipelineShape { stages: 4, microbatches, training: true, overlapped };
            let schedule = shape.schedule();
            for stage in 0..4 {
                let (mut held, mut most) = (0, 0);
                for (position, work) in schedule.stage(stage).iter().enumerate() {
                    assert_eq!(shape.position(stage, work.backward, work.microbatch), Some(position));
                    held = if work.backward { held - 1 } else { held + 1 };
                    most = most.max(held);
                }
                assert_eq!(most, shape.in_flight(stage), "stage {stage}");
            }
        }
    }

    /// With transfers that take as long as a forward pass, every stage computes all the time once the pipeline is full.
    #[test]
    fn overlapped_transfers_cost_nothing_in_a_full_pipeline() {
        for stages in 2..=6 {
            let end = |microbatches| {
                let shape = PipelineShape { stages, microbatches, training: true, overlapped: true };
                shape.schedule().stage(0).last().unwrap().end
            };
            assert_eq!(end(40) - end(30), 10 * (FORWARD + BACKWARD), "{stages} stages");
        }
    }
}
