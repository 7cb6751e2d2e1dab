//! What a device of a stage runs and holds while microbatches pass through it.

use std::ops::Range;

use of_ir::{Graph, OpId, ValueId};

use super::levels::Levels;
use crate::memory::{Device, Life, Span};
use crate::microbatches::Spread;

/// The devices of one stage.
pub(super) struct Stage<'a> {
    pub(super) graph: &'a Graph,
    pub(super) levels: &'a Levels,
    /// How each value is spread over the turns, by its position in the arena.
    pub(super) spread: &'a [Spread],
    /// The levels that it runs, and the position of the last op of them that it runs once a turn.
    pub(super) own: Range<usize>,
    pub(super) turn: usize,
    /// Microbatches of a step, and of how many of them it keeps what their backward ops need.
    pub(super) microbatches: usize,
    pub(super) in_flight: usize,
}

impl Device for Stage<'_> {
    fn runs(&self, op: OpId) -> bool {
        self.own.contains(&self.levels.ops[op.index()])
    }

    fn keeps(&self, v: ValueId) -> bool {
        match self.graph.def_op(v) {
            // Constants are made wherever they are read.
            Some(_) => self.graph.uses(v).iter().any(|u| self.runs(u.op)),
            None => self.own.contains(&self.levels.values[v.index()]),
        }
    }

    fn life(&self, v: ValueId, (from, to): Span, made: bool) -> Life {
        let (first_backward, turns) = (self.levels.forward.len(), self.microbatches as f64);
        match self.spread[v.index()] {
            // What backward ops need of the other turns in flight is there all the time.
            Spread::Cut if from < first_backward && to >= first_backward => {
                let others = (self.in_flight - 1) as f64 / turns;
                Life([(others, (0, to.max(self.turn))), (1.0 / turns, (from, to))])
            }
            Spread::Cut => Life::of(1.0 / turns, (from, to)),
            // The sum of the turns so far is there from the first one on, and what a turn adds while it is made.
            Spread::Summed if made => Life([(1.0, (0, to)), (1.0, (from, from))]),
            Spread::EveryTurn => Life::of(1.0, (0, to.max(self.turn))),
            Spread::Summed | Spread::Once => Life::of(1.0, (from, to)),
        }
    }
}
