//! The devices of a pipeline stage: what they run, and the live ranges of values while microbatches are in flight.

use std::ops::Range;

use of_ir::{Graph, OpId, ValueId};
use of_ops::time::schedule::PipelineShape;

use super::layers::Layers;
use crate::liveness::{Device, LiveRange, OpRange};
use crate::microbatches::MicrobatchKind;

/// The devices of one stage.
pub(super) struct StageDevice<'a> {
    pub(super) graph: &'a Graph,
    pub(super) layers: &'a Layers,
    /// The microbatch kind of each value, by position in the arena.
    pub(super) kinds: &'a [MicrobatchKind],
    /// The layers that it runs, and the position of their last op that runs once per microbatch.
    pub(super) layer_range: Range<usize>,
    pub(super) last_varying: usize,
    /// The pipeline, and the microbatches in flight at this stage.
    pub(super) shape: PipelineShape,
    pub(super) in_flight: usize,
}

impl StageDevice<'_> {
    /// Whether this stage and another one have a value.
    fn crosses(&self, v: ValueId) -> bool {
        let foreign = |op: OpId| !self.runs(op);
        self.graph.def_op(v).is_some_and(foreign) || self.graph.uses(v).iter().any(|u| foreign(u.op))
    }
}

impl Device for StageDevice<'_> {
    fn runs(&self, op: OpId) -> bool {
        self.layer_range.contains(&self.layers.ops[op.index()])
    }

    fn holds_source(&self, v: ValueId) -> bool {
        match self.graph.def_op(v) {
            // Constants are made wherever they are read.
            Some(_) => self.graph.uses(v).iter().any(|u| self.runs(u.op)),
            None => self.layer_range.contains(&self.layers.values[v.index()]),
        }
    }

    fn live_range(&self, v: ValueId, (from, to): OpRange, made: bool) -> LiveRange {
        let (first_backward, count) = (self.layers.forward.len(), self.shape.microbatches as f64);
        // Of what is under way to or from another stage meanwhile there is one more.
        let under_way = usize::from(self.shape.overlapped && self.crosses(v));
        match self.kinds[v.index()] {
            // Activations of the other microbatches in flight are held throughout.
            MicrobatchKind::Split if from < first_backward && to >= first_backward => {
                let others = (self.in_flight - 1 + under_way) as f64 / count;
                LiveRange([(others, (0, to.max(self.last_varying))), (1.0 / count, (from, to))])
            }
            MicrobatchKind::Split if under_way > 0 => {
                LiveRange([(1.0 / count, (0, to.max(self.last_varying))), (1.0 / count, (from, to))])
            }
            MicrobatchKind::Split => LiveRange::of(1.0 / count, (from, to)),
            // The accumulator lives from the first microbatch on, each term while it is made.
            MicrobatchKind::Accumulated if made => LiveRange([(1.0, (0, to)), (1.0, (from, from))]),
            MicrobatchKind::Shared => LiveRange::of(1.0, (0, to.max(self.last_varying))),
            MicrobatchKind::Accumulated | MicrobatchKind::Whole => LiveRange::of(1.0, (from, to)),
        }
    }
}
