//! Kernels for CPUs: C on vectors, in GNU C with vector extensions.

mod attention;
mod columnwise;
mod contraction;
mod copy;
mod depthwise_weight_gradient;
mod elementwise;
mod indexed;
mod max_pool_gradient;
mod panels;
mod recurrence;
mod reduce;
mod roi_align;
mod rowwise;
pub(super) mod vector;
mod window;
mod winograd;

use of_plan::Environment;

use crate::isa::Isa;
use crate::kernel::body::{Body, Node, TypedNode};
use crate::kernel::nest::Nest;
use crate::kernel::prologue::Prologue;
use crate::print::printer::{Capabilities, Printer};
use crate::print::source::Source;
use crate::print::{axis_scan, expr, prologue};

/// The prelude of every kernel: types, vector helpers, mathematical functions.
const PRELUDE: &str = concat!(include_str!("prelude.c"), include_str!("../functions.c"));

/// The C printer.
pub struct C;

impl Printer for C {
    fn print(&self, nest: &Nest, isa: &Isa) -> Result<Source, String> {
        Ok(match nest {
            Nest::Elementwise { body, dims } => bounded(body, elementwise::elementwise(body, dims, isa)),
            Nest::RowWise { body, dims, inner } => bounded(body, rowwise::rowwise(body, dims, *inner, isa)?),
            Nest::ColumnWise(columns) => bounded(&columns.body, columnwise::columnwise(columns, isa)?),
            Nest::Contraction { spec, tile, body, axes, out } => {
                contraction::contraction(spec, *tile, body, axes, out, isa)?
            }
            Nest::Attention(a) => attention::attention(a, isa)?,
            Nest::Recurrence(r) => recurrence::recurrence(r, isa)?,
            Nest::ScoreMatrix(_) => return Err("score matrices that are not in memory are for GPUs".into()),
            Nest::Window { spec, body } => window::window(spec, body, isa)?,
            Nest::Winograd { spec, body } => winograd::winograd(spec, body, isa)?,
            Nest::WinogradFilters(spec) => winograd::filters(spec, isa),
            Nest::Reduce { kind, dims, axes } => reduce::reduce(*kind, dims, axes, isa),
            Nest::SplitReduction { .. } => return Err("reductions in parts are for GPUs".into()),
            Nest::Copy { boxes, bytes, out } => copy::copy(boxes, *bytes, *out, isa),
            Nest::Pad { axes, bytes, fill } => copy::pad(axes, *bytes, *fill),
            Nest::Gather(gather) => copy::gather(gather),
            Nest::Indexed(kernel) => indexed::indexed(kernel),
            Nest::Scatter(scatter) => indexed::scatter(scatter),
            Nest::RoiAlign(r) => roi_align::roi_align(r),
            Nest::DepthwiseWeightGradient(spec) => depthwise_weight_gradient::depthwise_weight_gradient(spec, isa),
            Nest::MaxPoolGradient(spec) => max_pool_gradient::max_pool_gradient(spec, isa),
            Nest::AxisScan(w) => {
                let text = format!(
                    "{}  for (i64 it = begin; it < end; it++) {{\n{}{}  }}\n",
                    axis_scan::head(w),
                    axis_scan::position(w),
                    axis_scan::body(w)
                );
                let grain = (4096 / w.axis.n.size_hint().max(1)).max(1) as i64;
                Source::new(text, &w.axis.outer * &w.axis.inner, grain)
            }
            Nest::ShapeValues { values, dtype } => once(expr::shape_values(values, *dtype)),
            Nest::CopyScalar(dtype) => once(expr::copy_scalar(*dtype)),
            Nest::User(_) => return Err("its kernel for CPUs is in the library that it comes from".into()),
        })
    }

    fn prologue(&self, p: &Prologue) -> String {
        prologue::declarations(p) + &prologue::checks(p)
    }

    fn text(&self, source: &Source, isa: &Isa) -> String {
        let calls = if source.calls_functions { "#define CALL_FUNCTIONS\n" } else { "" };
        format!(
            "#define LANES {}\n{calls}{PRELUDE}\ni32 kernel(void *const *restrict args, i64 begin, i64 end, void *restrict scratch) {{\n{}  return 0;\n}}\n",
            isa.lanes, source.body
        )
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            packed_weights: true,
            winograd: true,
            recurrences: true,
            column_reductions: true,
            ..Capabilities::default()
        }
    }

    fn environment(&self, isa: &Isa, threads: u32) -> Environment {
        Environment {
            arch: isa.arch.into(),
            cpu_features: isa.features.iter().map(|f| (*f).to_string()).collect(),
            threads,
            ranks: 1,
            ..Environment::default()
        }
    }
}

/// The most functions that are inlined into one elementwise or row-wise kernel. Each is some thirty instructions, for which a C
/// compiler takes 15 ms.
const MAX_INLINED: usize = 32;

/// The kernel of a body, which calls functions instead of inlining them where it has many. Bodies of products stay inlined: a call
/// would spill the accumulators.
fn bounded(body: &Body, source: Source) -> Source {
    let approximated = |n: &&TypedNode| matches!(&n.node, Node::Op(op, _) if op.max_error().is_some());
    Source { calls_functions: body.nodes.iter().filter(approximated).count() > MAX_INLINED, ..source }
}

/// A kernel with one iteration.
fn once(body: String) -> Source {
    Source::new(body, 1usize.into(), 1)
}
