//! `optimize`: rewrites by equality saturation.
//!
//! A function is cut into segments of bounded length ([`crate::egraph::segment`]). Each becomes an e-graph, the rules
//! of [`crate::rules`] saturate it, and extraction takes the expressions that cost least on the target. This file has
//! the pass and its options; the e-graph is in [`crate::egraph`].

use std::time::{Duration, Instant};

use of_diag::{Code, Diagnostic, Diagnostics, Location};
use of_ir::{Func, IdSet, Module, RegionId, Rewriter};
use of_ops::exactness::rounded_values;

use crate::egraph::cost::{MACHINES, Target};
use crate::egraph::saturate::{Limits, Rules, StopReason};
use crate::egraph::segment::{SegmentConfig, SegmentResult, optimize, segments};
use crate::{Pass, PassContext, pass_options};

pass_options! {
    /// Options of `optimize`.
    pub struct OptimizeOptions {
        /// Cost model: cpu, t4 (each op a kernel), or the devices of a mesh: NAME[AxB] or a file
        target: String = MACHINES[0].name.into(),
        /// E-nodes per segment
        nodes: usize = 6000,
        /// Saturation rounds per segment
        rounds: usize = 8,
        /// Ops per segment
        segment: usize = 200,
        /// Time limit in seconds: no rule runs after it
        seconds: usize = 60,
        /// Alternatives kept per value, for 'shard' to choose from
        alternatives: usize = 1,
        /// Seconds for exact extraction by integer programming, with a lower bound; 0 for none
        exact: f64 = 10.0,
        /// Apply rules that are not exact where results are then rounded to integers or compared, too
        round_inexact: bool = false,
    }
}

/// Relative difference of costs that is ignored, for free ops such as views.
const SMALL: f64 = 1e-4;
/// One day: the upper limit of time options.
const MAX_SECONDS: f64 = 86400.0;

/// The pass.
pub struct Optimize;

impl Pass for Optimize {
    const NAME: &'static str = "optimize";
    const SUMMARY: &'static str = "rewrites to ops that cost less on the target, by equality saturation";
    type Options = OptimizeOptions;

    fn run(options: &OptimizeOptions, module: &mut Module, cx: &mut PassContext<'_>) -> Result<(), Diagnostics> {
        if options.exact.is_nan() || options.exact < 0.0 {
            return Err(Diagnostic::error(
                Code::PIPELINE,
                Location::Unknown,
                "option 'exact' must be a non-negative number of seconds",
            )
            .into());
        }
        let target = Target::named(&options.target)?;
        let until = Instant::now().checked_add(Duration::from_secs(options.seconds as u64));
        let limits = Limits { nodes: options.nodes, rounds: options.rounds, until };
        let rules = Rules::new(crate::rules::all());
        let mut total = Total::default();
        for func in module.funcs.values_mut() {
            total.function(func, &rules, &target, &limits, options)?;
        }
        total.report(options, cx);
        Ok(())
    }
}

/// Sums over all segments.
#[derive(Default)]
struct Total {
    before: f64,
    after: f64,
    bound: f64,
    segments: usize,
    nodes: usize,
    solving: Duration,
    out_of_time: bool,
}

impl Total {
    fn function(
        &mut self,
        func: &mut Func,
        rules: &Rules,
        target: &Target,
        limits: &Limits,
        options: &OptimizeOptions,
    ) -> Result<(), Diagnostic> {
        let mut rw = Rewriter::new(&mut func.graph, Optimize::NAME);
        let kept = if options.round_inexact { IdSet::default() } else { rounded_values(rw.graph()) };
        let mut blocks = vec![rw.graph().entry()];
        while let Some(block) = blocks.pop() {
            blocks.extend(inner_blocks(&rw, block));
            for run in segments(rw.graph(), block, options.segment) {
                let exact = Duration::from_secs_f64(options.exact.min(MAX_SECONDS)).saturating_sub(self.solving);
                let alternatives = options.alternatives;
                let task = SegmentConfig { rules, target, limits, exact, kept: &kept, alternatives };
                if let Some(o) = optimize(&mut rw, &run, &task)? {
                    self.add(o);
                }
            }
        }
        Ok(())
    }

    fn add(&mut self, o: SegmentResult) {
        tracing::debug!(before = o.before, after = o.after, nodes = o.nodes, stop = ?o.stop, "segment");
        self.before += o.before;
        self.after += o.after;
        self.bound += o.bound.min(o.after);
        self.segments += 1;
        self.nodes += o.nodes;
        self.solving += o.solving;
        self.out_of_time |= o.stop == StopReason::Time;
    }

    fn report(&self, options: &OptimizeOptions, cx: &mut PassContext<'_>) {
        let ns = |us: f64| (us * 1e3).round() as usize;
        cx.count("segments", self.segments);
        cx.count("e-nodes", self.nodes);
        cx.count("ns before", ns(self.before));
        cx.count("ns after", ns(self.after));
        let exact = options.exact > 0.0;
        if exact {
            cx.count("ns at least", ns(self.bound));
        }
        if self.out_of_time || (exact && self.bound < self.after * (1.0 - SMALL)) {
            let what = "'optimize' ran out of time: results may differ between runs";
            let d = Diagnostic::warning(Code::PIPELINE, Location::Unknown, what);
            cx.warn(d.hint("use fewer nodes or rounds, or more seconds: 'optimize{seconds=600,exact=600}'"));
        }
    }
}

fn inner_blocks(rw: &Rewriter<'_>, block: RegionId) -> Vec<RegionId> {
    rw.graph().region_ops(block).flat_map(|op| rw.graph().op(op).regions.to_vec()).collect()
}
