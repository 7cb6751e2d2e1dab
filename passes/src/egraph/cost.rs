//! What an op costs on a target: the roofline of its arithmetic and its memory traffic.

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

use crate::facts::is_map;

/// What costs are of.
#[derive(Clone, PartialEq, Debug)]
pub enum Target {
    /// A machine that is known by name.
    Machine(&'static Machine),
    /// One device of a mesh, as the search for layouts counts it.
    Device(MeshSpec),
}

/// A machine, as far as the choice between equal programs depends on it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Machine {
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
    /// Whether the kernel of a contraction applies an activation to what it stores.
    pub activations: bool,
    /// Rows and columns of a contraction's result that a processor computes at a time: parts of tiles cost as much as
    /// whole ones.
    pub tile: [f64; 2],
    /// Processors; a kernel with fewer tiles than processors is as slow as a full one.
    pub processors: f64,
}

/// All of them, the default first.
pub const MACHINES: &[Machine] = &[
    // One core with AVX-512: what the kernels of this project reach, see docs/performance.md.
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
    /// The target that `text` names: a machine, or a mesh.
    ///
    /// # Errors
    /// When there is neither, or what describes the mesh is wrong.
    pub fn named(text: &str) -> Result<Target, Diagnostic> {
        if let Some(m) = MACHINES.iter().find(|m| m.name == text) {
            return Ok(Target::Machine(m));
        }
        if text.ends_with(']') || Path::new(text).exists() {
            return MeshSpec::named(text).map(Target::Device);
        }
        let known: Vec<_> = MACHINES.iter().map(|m| m.name).collect();
        let what = format!("there are no costs of target '{text}'");
        let hint = format!("there are {}, and those of a mesh: NAME[AxB], or the path of a file", known.join(", "));
        Err(Diagnostic::error(Code::PIPELINE, Location::Unknown, what).hint(hint))
    }

    /// Microseconds that `op` takes. An elementwise op may join the kernel of an operand if one `joins`.
    pub fn cost(&self, graph: &Graph, op: OpId, joins: bool) -> f64 {
        let structural = list::get(graph, op).is_none_or(|i| i.decl().kind() == Kind::Structural);
        match self {
            _ if structural || is_view(graph.op(op).name()) => 0.0,
            Target::Machine(m) => m.cost(graph, op, joins),
            Target::Device(mesh) => 1e6 * (cost::alone(graph, op, mesh) + mesh.overhead),
        }
    }

    /// Microseconds that `map` takes in the kernel of `contraction`, whose result it reads alone; `None` where it has to be
    /// a kernel of its own. Where every elementwise op may join the kernel before it, [`Target::cost`] says so already.
    pub fn joined(&self, graph: &Graph, contraction: OpId, map: OpId) -> Option<f64> {
        let name = |op: OpId| graph.op(op).name();
        let activates = matches!(self, Target::Machine(m) if m.activations)
            && matches!(name(map), Relu::NAME | Sigmoid::NAME | Tanh::NAME)
            && matches!(name(contraction), Conv::NAME | MatMul::NAME);
        activates.then(|| self.cost(graph, contraction, false))
    }
}

/// Whether an op copies in a kernel of its own, which no elementwise op joins.
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
        let elementwise = is_map(data.name());
        let contracts = imp.flops(&view, &types).is_some();
        let share = if elementwise && joins { self.fused } else { 1.0 };
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

#[cfg(test)]
mod tests {
    use of_ir::{DType, Rewriter, Type};

    use super::*;

    /// By the element type, the bandwidth and the overhead of the mesh, as the search for layouts counts a device that has
    /// all of an op.
    #[test]
    fn devices_of_a_mesh_cost_what_their_mesh_says() {
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
        assert!(Target::named("abacus").unwrap_err().message.contains("no costs of target 'abacus'"));
    }
}
