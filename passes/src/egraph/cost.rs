//! What an op costs on a target: the roofline of its arithmetic and its memory traffic.

use of_ir::{Graph, OpId};
use of_ops::work::{self, is_view};
use of_ops::{Kind, list};

/// A machine, as far as the choice between equal programs depends on it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Target {
    /// Name in options.
    pub name: &'static str,
    /// Arithmetic of contractions, operations a microsecond.
    pub contraction: f64,
    /// Arithmetic of anything else.
    pub scalar: f64,
    /// Memory, bytes a microsecond.
    pub bandwidth: f64,
    /// Microseconds to start a kernel.
    pub launch: f64,
    /// The share of an elementwise op's traffic and start that is left where it joins the kernel before it. 1 on a
    /// target that runs each op alone.
    pub fused: f64,
    /// Numbers that one processor computes at a time, and processors: a kernel with less work than all of them can take
    /// up is as slow as a full one.
    pub tile: f64,
    /// See `tile`.
    pub processors: f64,
}

/// Every target, the default first.
pub const TARGETS: &[Target] = &[
    // One core with AVX-512 at 2.x GHz; what the kernels of this project reach.
    Target {
        name: "cpu",
        contraction: 100e3,
        scalar: 12e3,
        bandwidth: 12e3,
        launch: 1.0,
        fused: 0.1,
        tile: 1.0,
        processors: 1.0,
    },
    // NVIDIA T4 with a library call an op, which TASO and TENSAT measured on: 8.1 Tflop/s of f32, 320 GB/s, 40
    // multiprocessors, kernels of tiles of 64 x 64. Source: NVIDIA T4 data sheet.
    Target {
        name: "t4",
        contraction: 8.1e6,
        scalar: 4e6,
        bandwidth: 320e3,
        launch: 5.0,
        fused: 1.0,
        tile: 64.0 * 64.0,
        processors: 40.0,
    },
];

impl Target {
    /// The target called `name`.
    pub fn named(name: &str) -> Option<&'static Target> {
        TARGETS.iter().find(|t| t.name == name)
    }

    /// Microseconds that `op` takes.
    pub fn cost(&self, graph: &Graph, op: OpId) -> f64 {
        let data = graph.op(op);
        let Some(imp) = list::get(graph, op).filter(|i| i.decl().kind() != Kind::Structural) else { return 0.0 };
        if is_view(data.name()) {
            return 0.0;
        }
        let w = work::of(graph, op);
        let view = graph.view(op);
        let types: Vec<_> = data.results.iter().map(|v| graph.ty(*v).clone()).collect();
        let numbers: f64 = types.iter().map(work::elements).sum();
        let elementwise = imp.scalar().is_some();
        let contracts = imp.flops(&view, &types).is_some();
        let share = if elementwise { self.fused } else { 1.0 };
        let rate = if contracts { self.contraction } else { self.scalar };
        // Whole rounds of tiles over the processors.
        let round = self.tile * self.processors;
        let waste = if contracts && numbers > 0.0 { (numbers / round).ceil() * round / numbers } else { 1.0 };
        share * self.launch + (w.flops * waste / rate).max(share * w.bytes() / self.bandwidth)
    }
}
