//! The cost model of `optimize`: the roofline of arithmetic and memory traffic of an op on a target.

use std::path::Path;

use of_diag::{Code, Diagnostic, Location};
use of_ir::{Graph, OpId};
use of_ops::contraction::MatMul;
use of_ops::elementwise::{Relu, Sigmoid, Tanh};
use of_ops::list::as_op;
use of_ops::movement::{Concat, GatherElements, GatherNd, Pad, ScatterElements, ScatterNd, Tile};
use of_ops::nn::Conv;
use of_ops::work::{self, is_view};
use of_ops::{Kind, OpSpec, list};
use of_sharding::{MeshSpec, cost};

use of_ops::maps::is_elementwise;

/// The target of the cost model.
#[derive(Clone, PartialEq, Debug)]
pub enum Target {
    /// A built-in machine.
    Machine(&'static Machine),
    /// One device of a mesh, costed as in the search for layouts.
    Device(MeshSpec),
}

/// The properties of a machine that decide between equal programs.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Machine {
    /// Name in options.
    pub name: &'static str,
    /// Contraction throughput in operations per microsecond.
    pub contraction: f64,
    /// Throughput of other arithmetic.
    pub scalar: f64,
    /// Memory bandwidth in bytes per microsecond.
    pub bandwidth: f64,
    /// Microseconds to launch a kernel.
    pub launch: f64,
    /// Share of the traffic and launch time of an elementwise op that remains when it fuses with its producer; 1 on a
    /// target that runs each op alone.
    pub fused: f64,
    /// Whether contraction kernels apply an activation to their result.
    pub activations: bool,
    /// Rows and columns of the result tile of a contraction; partial tiles cost as much as whole ones.
    pub tile: [f64; 2],
    /// Processors; a kernel with fewer tiles than processors is as slow as a full one.
    pub processors: f64,
}

/// All machines, the default first.
pub const MACHINES: &[Machine] = &[
    // One core with AVX-512: the throughput of this project's kernels, see docs/performance.md.
    Machine {
        name: "cpu",
        contraction: 150e3,
        scalar: 16e3,
        bandwidth: 15e3,
        launch: 1.0,
        fused: 0.1,
        activations: false,
        tile: [1.0, 16.0],
        processors: 1.0,
    },
    // NVIDIA T4 with a library call an op, which TASO and TENSAT measured on: 8.1 Tflop/s of f32, 320 GB/s, 40
    // multiprocessors, kernels of tiles of 64 x 64. Source: NVIDIA T4 data sheet. The calls for products and convolutions
    // take an activation (cudnnConvolutionBiasActivationForward and its like).
    Machine {
        name: "t4",
        contraction: 8.1e6,
        scalar: 4e6,
        bandwidth: 320e3,
        launch: 5.0,
        fused: 1.0,
        activations: true,
        tile: [64.0, 64.0],
        processors: 40.0,
    },
];

impl Target {
    /// The target that `text` names: a machine or a mesh.
    ///
    /// # Errors
    /// When it names neither, or the mesh description is wrong.
    pub fn named(text: &str) -> Result<Target, Diagnostic> {
        if let Some(m) = MACHINES.iter().find(|m| m.name == text) {
            return Ok(Target::Machine(m));
        }
        if text.ends_with(']') || Path::new(text).exists() {
            return MeshSpec::named(text).map(Target::Device);
        }
        let known: Vec<_> = MACHINES.iter().map(|m| m.name).collect();
        let what = format!("no cost model for target '{text}'");
        let hint = format!("targets are {}, or a mesh: NAME[AxB], or the path of a file", known.join(", "));
        Err(Diagnostic::error(Code::PIPELINE, Location::Unknown, what).hint(hint))
    }

    /// Microseconds of `op`. An elementwise op may fuse with an operand's kernel if one `joins`.
    pub fn cost(&self, graph: &Graph, op: OpId, joins: bool) -> f64 {
        let structural = list::get(graph, op).is_none_or(|i| i.decl().kind() == Kind::Structural);
        match self {
            _ if structural || is_view(graph.op(op).name()) => 0.0,
            Target::Machine(m) => m.cost(graph, op, joins),
            Target::Device(mesh) => 1e6 * (cost::single_device_seconds(graph, op, mesh) + mesh.overhead),
        }
    }

    /// Microseconds of `contraction` with `map`, its only reader, fused as an activation; `None` where that needs a
    /// kernel of its own. Where every elementwise op may fuse with its producer, [`Target::cost`] covers it.
    pub fn fused_cost(&self, graph: &Graph, contraction: OpId, map: OpId) -> Option<f64> {
        let name = |op: OpId| graph.op(op).name();
        let activates = matches!(self, Target::Machine(m) if m.activations)
            && matches!(name(map), Relu::NAME | Sigmoid::NAME | Tanh::NAME)
            && matches!(name(contraction), Conv::NAME | MatMul::NAME);
        activates.then(|| self.cost(graph, contraction, false))
    }
}

/// Whether an op copies in a kernel of its own, with which no elementwise op fuses.
pub fn copies(graph: &Graph, op: OpId) -> bool {
    const COPIES: [&str; 7] = [
        Concat::NAME,
        GatherElements::NAME,
        GatherNd::NAME,
        Pad::NAME,
        ScatterElements::NAME,
        ScatterNd::NAME,
        Tile::NAME,
    ];
    COPIES.contains(&graph.op(op).name())
}

impl Machine {
    fn cost(&self, graph: &Graph, op: OpId, joins: bool) -> f64 {
        let data = graph.op(op);
        let Some(imp) = list::get(graph, op) else { return 0.0 };
        let w = work::of(graph, op);
        let view = graph.view(op);
        let types: Vec<_> = data.results.iter().map(|v| graph.ty(*v).clone()).collect();
        let elementwise = is_elementwise(data.name());
        let contracts = imp.flops(&view, &types).is_some();
        let share = if elementwise && joins { self.fused } else { 1.0 };
        let rate = if contracts { self.contraction } else { self.scalar };
        let waste = if contracts { self.waste(graph, op) } else { 1.0 };
        share * self.launch + (w.flops * waste / rate).max(share * w.bytes() / self.bandwidth)
    }

    /// The factor by which whole rounds of whole tiles exceed the arithmetic of a contraction.
    fn waste(&self, graph: &Graph, op: OpId) -> f64 {
        let Some(shape) = graph.ty(graph.op(op).results[0]).as_tensor().and_then(|t| t.shape.as_ref()) else {
            return 1.0;
        };
        let numbers: f64 = shape.iter().map(work::extent).product();
        // Columns: the filters of one group, or the columns of a matrix.
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

#[cfg(test)]
mod tests {
    use of_ir::{DType, Rewriter, Type};

    use super::*;

    /// A mesh device costs what the search for layouts says: by element type, bandwidth and overhead.
    #[test]
    fn mesh_device_costs_follow_the_mesh_description() {
        let mut mesh = MeshSpec::named("dgx-h100[8]").unwrap();
        mesh.overhead = 2e-6;
        let cost = |dtype: DType, n: usize| {
            let mut graph = Graph::new();
            let entry = graph.entry();
            let mut rw = Rewriter::new(&mut graph, "test");
            let [x, y] = [(); 2].map(|()| rw.add_arg(entry, Type::fixed(dtype, &[n, n]), None));
            let product = rw.create_one(MatMul {}, &[x, y]).unwrap();
            let op = rw.graph().def_op(product).unwrap();
            Target::Device(mesh.clone()).cost(&graph, op, false)
        };
        for dtype in [DType::F16, DType::F64] {
            let want = 2e6 * 4096f64.powi(3) / mesh.flops(dtype) + 2.0;
            assert!((cost(dtype, 4096) / want - 1.0).abs() < 1e-9, "{dtype}");
        }
        let want = 1e6 * 3.0 * 4.0 * 64.0 * 64.0 / mesh.bandwidth + 2.0;
        assert!((cost(DType::F32, 64) / want - 1.0).abs() < 1e-9);
        assert!(matches!(Target::named("dgx-h100[8]"), Ok(Target::Device(_))));
        assert!(Target::named("abacus").unwrap_err().message.contains("no cost model for target 'abacus'"));
    }
}
