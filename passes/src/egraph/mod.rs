//! `optimize`: rewrites by equality saturation.
//!
//! A function is cut into regions ([`region`]). Each becomes an e-graph ([`graph`], [`language`]) whose classes hold
//! equal expressions; the rules of [`crate::rules`] add more of them ([`saturate`]); what costs least on the target
//! ([`cost`]) is taken out ([`extract`], and `exact`). Every op that is made says in its location which rules made it, and of what.
//!
//! Sources: Willsey et al., "egg: Fast and Extensible Equality Saturation" (2021); Yang et al., "Equality Saturation for
//! Tensor Graph Superoptimization" (2021), from which the multi-pattern merges are.

pub mod cost;
mod exact;
pub mod extract;
pub mod graph;
pub mod language;
pub mod pattern;
pub mod provenance;
pub mod region;
pub mod rule;
pub mod saturate;
pub mod view;

use std::time::{Duration, Instant};

use of_diag::{Code, Diagnostic, Diagnostics, Location};
use of_ir::{Func, Module, RegionId, Rewriter};

use crate::{Pass, PassContext, pass_options};
use cost::{MACHINES, Target};
use region::{Outcome, Task, optimize, runs};
use saturate::{Limits, Rules, Stop};

pass_options! {
    /// Options of `optimize`.
    pub struct OptimizeOptions {
        /// What the costs are of: cpu, t4 (each op a kernel), or the devices of a mesh: NAME[AxB] or a file
        target: String = MACHINES[0].name.into(),
        /// E-nodes of a region
        nodes: usize = 6000,
        /// Rounds of a region
        rounds: usize = 8,
        /// Ops of a region
        region: usize = 200,
        /// The last resort: no rule is tried after this many seconds
        seconds: usize = 60,
        /// Ways to compute each value that are left for 'shard' to choose from
        alternatives: usize = 1,
        /// Seconds for integer programs of the choice, which improve it and say what none costs less than; 0 for none
        exact: f64 = 10.0,
    }
}

/// The share by which the costs of a choice and of the best may differ for what is not counted, such as views.
const SMALL: f64 = 1e-4;
/// A day: no option asks for more.
const MOST_SECONDS: f64 = 86400.0;

/// The pass.
pub struct Optimize;

impl Pass for Optimize {
    const NAME: &'static str = "optimize";
    const SUMMARY: &'static str = "equal ops that cost less on the target, by equality saturation";
    type Options = OptimizeOptions;

    fn run(options: &OptimizeOptions, module: &mut Module, cx: &mut PassContext<'_>) -> Result<(), Diagnostics> {
        if options.exact.is_nan() || options.exact < 0.0 {
            return Err(
                Diagnostic::error(Code::PIPELINE, Location::Unknown, "option 'exact' is seconds from 0 on").into()
            );
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

/// What all regions together came to.
#[derive(Default)]
struct Total {
    before: f64,
    after: f64,
    bound: f64,
    regions: usize,
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
        let mut blocks = vec![rw.graph().entry()];
        while let Some(block) = blocks.pop() {
            blocks.extend(inner_blocks(&rw, block));
            for run in runs(rw.graph(), block, options.region) {
                let exact = Duration::from_secs_f64(options.exact.min(MOST_SECONDS)).saturating_sub(self.solving);
                let task = Task { rules, target, limits, exact, ways: options.alternatives };
                if let Some(o) = optimize(&mut rw, &run, &task)? {
                    self.add(o);
                }
            }
        }
        Ok(())
    }

    fn add(&mut self, o: Outcome) {
        tracing::debug!(before = o.before, after = o.after, nodes = o.nodes, stop = ?o.stop, "region");
        self.before += o.before;
        self.after += o.after;
        self.bound += o.bound.min(o.after);
        self.regions += 1;
        self.nodes += o.nodes;
        self.solving += o.solving;
        self.out_of_time |= o.stop == Stop::Time;
    }

    fn report(&self, options: &OptimizeOptions, cx: &mut PassContext<'_>) {
        let ns = |us: f64| (us * 1e3).round() as usize;
        cx.count("regions", self.regions);
        cx.count("e-nodes", self.nodes);
        cx.count("ns before", ns(self.before));
        cx.count("ns after", ns(self.after));
        let exact = options.exact > 0.0;
        if exact {
            cx.count("ns at least", ns(self.bound));
        }
        if self.out_of_time || (exact && self.bound < self.after * (1.0 - SMALL)) {
            let what = "'optimize' ran out of time: another run may find more or less";
            let d = Diagnostic::warning(Code::PIPELINE, Location::Unknown, what);
            cx.warn(d.hint("fewer nodes or rounds, or more seconds: 'optimize{seconds=600,exact=600}'"));
        }
    }
}

fn inner_blocks(rw: &Rewriter<'_>, block: RegionId) -> Vec<RegionId> {
    rw.graph().region_ops(block).flat_map(|op| rw.graph().op(op).regions.to_vec()).collect()
}
