//! Row-wise groups: a warp processes a short row, a block a long one.
//!
//! Each stage iterates over the row once, as on a CPU. Expensive values for later stages stay in registers if the row length is
//! known; else they are recomputed.

use std::collections::BTreeSet;
use std::fmt::Write;

use of_ir::DType;

use crate::kernel::body::{Body, Node, ReduceKind};
use crate::kernel::extent::Extent;
use crate::kernel::rowwise::{needed_nodes, saved, stages};
use crate::kernel::space;
use crate::print::cuda::launch::THREADS;
use crate::print::cuda::node_printer::{NodePrinter, VECTOR_WIDTH, pointers};
use crate::print::expr::{ctype, neutral};
use crate::print::{Source, expr, index};

/// Maximum elements of a row for a warp.
const MAX_WARP_ROW: usize = 1024;

/// Registers of a thread for saved values.
const MAX_SAVED_REGISTERS: usize = 64;

/// The kernel of `body` over `dims`, of which the last `inner` axes form a row.
///
/// # Errors
/// When an access has no single stride along the row.
pub fn rows(body: &Body, dims: &[Extent], inner: usize) -> Result<Source, String> {
    if body.nodes.iter().any(|t| matches!(t.node, Node::Reduce(..)) && t.dtype != DType::F32) {
        return Err("only reductions of f32 rows have native code".into());
    }
    let (outer_dims, inner_dims) = dims.split_at(dims.len() - inner);
    let n: Extent = inner_dims.iter().product();
    let count: Extent = outer_dims.iter().product();
    let mut steps = Vec::new();
    for l in &body.loads {
        steps.push(
            space::single_stride(inner_dims, &l.strides[outer_dims.len()..])
                .ok_or("an access has no constant stride between rows")?,
        );
    }
    let lanes = if n.size_hint() <= MAX_WARP_ROW { 32 } else { THREADS };
    let width = if n.is_multiple_of(VECTOR_WIDTH) && n.size_hint() >= VECTOR_WIDTH * 32 { VECTOR_WIDTH } else { 1 };
    let stages = stages(body);
    let iterations = n.number().map(|n| n.div_ceil(lanes * width));
    let saved = match iterations {
        Some(iterations) => Some(saved(body, &stages))
            .filter(|s| s.len() * iterations * width <= MAX_SAVED_REGISTERS)
            .unwrap_or_default(),
        None => Vec::new(),
    };
    let wide: Vec<bool> = (body.loads.iter().zip(&steps))
        .map(|(l, s)| s.is(1) && l.strides[..outer_dims.len()].iter().all(|s| s.is_multiple_of(VECTOR_WIDTH)))
        .collect();
    let r = RowPrinter {
        p: NodePrinter { body, width },
        stages: &stages,
        saved: &saved,
        steps: &steps,
        wide: &wide,
        n: &n,
        lanes,
    };

    let mut c = String::new();
    pointers(body, 0, &mut c);
    expr::scalar_constants(body, &mut c);
    if lanes == THREADS {
        c.push_str("  SHARED(f32, parts, THREADS / 32);\n");
    }
    let per_block = THREADS / lanes;
    let _ = writeln!(c, "  const i32 lane = threadIdx.x % {lanes};");
    c.push_str("  BLOCKS(block) {\n");
    let _ = writeln!(c, "    const i64 row = block * {per_block} + threadIdx.x / {lanes};");
    let _ = writeln!(c, "    if (row >= {count}) continue;");
    for (i, l) in body.loads.iter().enumerate() {
        let at = index::flat_offset(outer_dims, &l.strides[..outer_dims.len()], "row");
        let _ = writeln!(c, "    PTR(const {}) P{i} = p{i} + ({at});", ctype(l.dtype));
    }
    for v in r.saved {
        let _ = writeln!(c, "    f32 s{v}[{}];", iterations.unwrap_or(1) * width);
    }
    let last = stages.iter().copied().max().unwrap_or(0);
    for stage in 0..=last {
        r.row_values(stage, &mut c);
        r.print_pass(stage, iterations, &mut c);
    }
    r.row_values(last + 1, &mut c);
    for (k, (_, v)) in body.stores.iter().enumerate() {
        if body.nodes[*v].per_row {
            let value = expr::narrowed(body.nodes[*v].dtype, &format!("t{v}"));
            let _ = writeln!(c, "    if (lane == 0) q{k}[row] = {value};");
        }
    }
    c.push_str("  }\n");
    Ok(Source::new(c, count.div_ceil(&per_block.into()), 1))
}

struct RowPrinter<'a> {
    p: NodePrinter<'a>,
    stages: &'a [usize],
    /// Nodes whose values stay in registers.
    saved: &'a [usize],
    /// The stride of each load along the row, and whether four elements of it may be read at once.
    steps: &'a [Extent],
    wide: &'a [bool],
    n: &'a Extent,
    /// Threads that share a row.
    lanes: usize,
}

impl RowPrinter<'_> {
    /// Values of one number a row that are known when `stage` begins.
    fn row_values(&self, stage: usize, c: &mut String) {
        let body = self.p.body;
        for (i, t) in body.nodes.iter().enumerate() {
            if !t.per_row || self.stages[i] != stage {
                continue;
            }
            let value = match &t.node {
                Node::Load(l) => expr::widened(t.dtype, &format!("*P{l}")),
                Node::Op(op, args) => expr::scalar(body, *op, args, t.dtype, &|a| self.p.name(a, 0)),
                _ => continue,
            };
            let _ = writeln!(c, "    const {} t{i} = {value};", expr::stype(t.dtype));
        }
    }

    /// One pass over the row: the reductions and stores of `stage` and their dependencies.
    fn print_pass(&self, stage: usize, iterations: Option<usize>, c: &mut String) {
        let (body, width) = (self.p.body, self.p.width);
        let reductions: Vec<(usize, ReduceKind, usize)> = (body.nodes.iter().enumerate())
            .filter(|(i, _)| self.stages[*i] == stage)
            .filter_map(|(i, t)| if let Node::Reduce(k, a) = t.node { Some((i, k, a)) } else { None })
            .collect();
        let stored: Vec<(usize, usize)> = (body.stores.iter().enumerate())
            .map(|(k, (_, v))| (k, *v))
            .filter(|(_, v)| !body.nodes[*v].per_row && self.stages[*v] == stage)
            .collect();
        let mut targets: BTreeSet<usize> = reductions.iter().map(|(_, _, a)| *a).collect();
        targets.extend(self.saved.iter().filter(|v| self.stages[**v] == stage));
        targets.extend(stored.iter().map(|(_, v)| *v));
        if targets.is_empty() {
            return;
        }
        let mut needed = BTreeSet::new();
        targets.iter().for_each(|t| needed_nodes(body, self.stages, self.saved, *t, stage, &mut needed));
        for (i, kind, _) in &reductions {
            let _ = writeln!(c, "    f32 a{i} = {};", neutral(*kind));
        }
        let step = self.lanes * width;
        match iterations {
            Some(iterations) => {
                let _ = writeln!(c, "    #pragma unroll\n    for (i32 u = 0; u < {iterations}; u++) {{");
                let _ = writeln!(c, "      const i32 i = u * {step} + lane * {width};");
                if !self.n.is_multiple_of(step) {
                    let _ = writeln!(c, "      if (i >= {}) continue;", self.n);
                }
            }
            None => {
                let _ = writeln!(c, "    for (i64 i = lane * {width}; i < {}; i += {step}) {{", self.n);
            }
        }
        for i in &needed {
            let saved = self.saved.contains(i);
            if saved && self.stages[*i] < stage {
                for v in 0..width {
                    let _ = writeln!(c, "      const f32 {} = s{i}[u * {width} + {v}];", self.p.name(*i, v));
                }
                continue;
            }
            let at = |l: usize| {
                let step = &self.steps[l];
                let at = if step.is(0) { format!("P{l}") } else { format!("P{l} + i * {step}") };
                (at, step.clone(), self.wide[l])
            };
            self.p.node(*i, &at, &|_| String::new(), c);
            if saved {
                for v in 0..width {
                    let _ = writeln!(c, "      s{i}[u * {width} + {v}] = {};", self.p.name(*i, v));
                }
            }
        }
        for (i, kind, a) in &reductions {
            for v in 0..width {
                let _ = writeln!(c, "      a{i} = {}::of(a{i}, {});", operation(*kind), self.p.name(*a, v));
            }
        }
        for (k, v) in stored {
            // A row value may be stored at each of its points.
            self.p.store(v, &format!("q{k} + row * {} + i", self.n), c);
        }
        c.push_str("    }\n");
        for (i, kind, _) in &reductions {
            let all = if self.lanes == THREADS {
                format!("block_reduce<{}>(a{i}, parts)", operation(*kind))
            } else {
                format!("warp_reduce<{}>(a{i})", operation(*kind))
            };
            let _ = writeln!(c, "    const f32 t{i} = {all};");
        }
    }
}

/// The name of a reduction in the prelude.
pub fn operation(kind: ReduceKind) -> &'static str {
    match kind {
        ReduceKind::Sum => "Sum",
        ReduceKind::Max => "Max",
        ReduceKind::Min => "Min",
        ReduceKind::Prod => "Prod",
    }
}
