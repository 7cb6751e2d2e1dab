//! What an op costs on a target: the roofline of its arithmetic and its memory traffic.

use of_ir::{Graph, OpId};
use of_ops::list::as_op;
use of_ops::nn::Conv;
use of_ops::work::{self, is_view};
use of_ops::{Kind, list};

use crate::facts::is_map;

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
    /// Rows and columns of a contraction's result that a processor computes at a time: parts of tiles cost as much as
    /// whole ones.
    pub tile: [f64; 2],
    /// Processors; a kernel with fewer tiles than processors is as slow as a full one.
    pub processors: f64,
}

/// Every target, the default first.
pub const TARGETS: &[Target] = &[
    // One core with AVX-512: what the kernels of this project reach, see docs/performance.md.
    Target {
        name: "cpu",
        contraction: 150e3,
        scalar: 16e3,
        bandwidth: 15e3,
        launch: 1.0,
        fused: 0.1,
        tile: [1.0, 16.0],
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
        tile: [64.0, 64.0],
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
        let elementwise = is_map(data.name());
        let contracts = imp.flops(&view, &types).is_some();
        let share = if elementwise { self.fused } else { 1.0 };
        let rate = if contracts { self.contraction } else { self.scalar };
        let waste = if contracts { self.waste(graph, op) } else { 1.0 };
        share * self.launch + (w.flops * waste / rate).max(share * w.bytes() / self.bandwidth)
    }
    /// How much more than a contraction's arithmetic whole rounds of whole tiles are.
    fn waste(&self, graph: &Graph, op: OpId) -> f64 {
        let Some(shape) = graph.ty(graph.op(op).results[0]).as_tensor().and_then(|t| t.shape.as_ref()) else {
            return 1.0;
        };
        let numbers: f64 = shape.iter().map(work::extent).product();
        // Columns: the filters of one group, or those of a matrix.
        let (groups, all) = match as_op::<Conv>(graph, op) {
            Some(c) => (c.group as f64, shape.get(if c.channels_last { shape.len() - 1 } else { 1 })),
            None => (1.0, shape.last()),
        };
        let (all, [high, wide]) = (all.map_or(1.0, work::extent), self.tile);
        if numbers <= 0.0 || all <= 0.0 {
            return 1.0;
        }
        let tiles = groups * (numbers / all / high).ceil() * (all / groups / wide).ceil();
        ((tiles / self.processors).ceil() * self.processors * high * wide / numbers).max(1.0)
    }
}
