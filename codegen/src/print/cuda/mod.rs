//! Kernels for GPUs: CUDA C++, for NVRTC and for a CPU that emulates a GPU.
//!
//! A kernel's text is a function `body(args, begin, end)` after `prelude.cuh`. It runs the iterations `[begin, end)`; an
//! iteration is a block of [`THREADS`] threads, and each thread returns a status as CPU kernels do. NVRTC compiles the text for
//! a GPU, where the kernel's status is the largest of all threads. With `emulator.h` it compiles for a CPU that emulates a GPU, as
//! an ordinary kernel of the plan ([`emulator`]).

mod attention;
mod contraction;
mod copy;
mod depthwise_weight_gradient;
mod elementwise;
pub mod emulator;
mod epilogue;
mod launch;
mod matrix_tile;
mod max_pool_gradient;
mod node_printer;
mod operands;
mod reduce;
mod rowwise;
mod score_matrix;
mod tensor_core;
mod window;

use std::fmt::Write;

use of_ir::DType;
use of_plan::Environment;

pub use launch::THREADS;
use launch::{single_thread, thread_per_index};

use crate::isa::Isa;
use crate::kernel::extent::Extent;
use crate::kernel::nest::Nest;
use crate::kernel::prologue::Prologue;
use crate::kernel::user_kernel::UserKernel;
use crate::print::expr::ctype;
use crate::print::printer::{Capabilities, Printer};
use crate::print::source::Source;
use crate::print::{axis_scan, expr, indexed, prologue, roi_align};

/// The prelude of every kernel: types, accesses, mathematical functions.
const PRELUDE: &str = concat!(include_str!("prelude.cuh"), include_str!("../functions.c"));

/// The CUDA C++ printer.
pub struct Cuda;

/// The printer of the same text for the emulated GPU.
pub struct Emulated;

impl Printer for Cuda {
    fn print(&self, nest: &Nest, isa: &Isa) -> Result<Source, String> {
        kernel(nest, isa)
    }

    fn prologue(&self, p: &Prologue) -> String {
        prologue::declarations(p) + &prologue::sizes(p) + &prologue::checks(p)
    }

    fn text(&self, source: &Source, _isa: &Isa) -> String {
        text(source, "")
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { recomputed_scores: true, library_calls: true, collectives: true, ..Capabilities::default() }
    }

    fn reduction_parts(&self, dims: &[Extent], axes: &[usize]) -> usize {
        reduce::parts(dims, axes)
    }

    fn environment(&self, isa: &Isa, threads: u32) -> Environment {
        // Any host machine can run ops without a kernel.
        let (arch, cuda_arch) = (std::env::consts::ARCH.into(), Some(isa.name.to_string()));
        Environment { arch, threads, ranks: 1, cuda_arch, ..Environment::default() }
    }
}

impl Printer for Emulated {
    fn print(&self, nest: &Nest, isa: &Isa) -> Result<Source, String> {
        Ok(Source { scratch_bytes: emulator::SCRATCH, ..kernel(nest, isa)? })
    }

    fn prologue(&self, p: &Prologue) -> String {
        Cuda.prologue(p)
    }

    fn text(&self, source: &Source, _isa: &Isa) -> String {
        text(source, emulator::HEADER)
    }

    fn capabilities(&self) -> Capabilities {
        Cuda.capabilities()
    }

    fn reduction_parts(&self, dims: &[Extent], axes: &[usize]) -> usize {
        Cuda.reduction_parts(dims, axes)
    }

    fn environment(&self, isa: &Isa, threads: u32) -> Environment {
        Environment { arch: isa.arch.into(), threads, ranks: 1, ..Environment::default() }
    }
}

/// The kernel of a nest.
fn kernel(nest: &Nest, isa: &Isa) -> Result<Source, String> {
    // A thread that ends with an error must not leave others at a barrier.
    match nest {
        Nest::RowWise { body, .. } | Nest::Contraction { body, .. } | Nest::Window { body, .. }
            if body.divides_integers() =>
        {
            return Err("integers are divided in elementwise kernels only".into());
        }
        _ => {}
    }
    Ok(match nest {
        Nest::Elementwise { body, dims } => elementwise::elementwise(body, dims),
        Nest::RowWise { body, dims, inner } => rowwise::rows(body, dims, *inner)?,
        Nest::ColumnWise(_) => return Err("reductions of columns with elementwise ops are for CPUs".into()),
        Nest::Contraction { spec, body, axes, out, .. } => contraction::contraction(spec, body, axes, out, isa)?,
        Nest::Attention(a) => attention::attention(a, isa)?,
        Nest::ScoreMatrix(m) => score_matrix::score_matrix(m)?,
        Nest::Window { spec, body } => window::window(spec, body)?,
        Nest::Recurrence(_) => return Err("loops as kernels are for CPUs".into()),
        Nest::Winograd { .. } | Nest::WinogradFilters(_) => return Err("Winograd's algorithm is for CPUs".into()),
        Nest::Reduce { kind, dims, axes } => reduce::reduce(*kind, dims, axes),
        Nest::SplitReduction { kind, dims, axes, parts } => reduce::partial(*kind, dims, axes, *parts),
        Nest::Copy { boxes, bytes, out } => copy::copy(boxes, *bytes, *out),
        Nest::Pad { axes, bytes, fill } => copy::pad(axes, *bytes, *fill),
        Nest::Gather(gather) => copy::gather(gather),
        Nest::Indexed(kernel) => copy::elements(&indexed::element_text(kernel)),
        Nest::Scatter(scatter) => copy::scatter(scatter),
        Nest::RoiAlign(r) => copy::elements(&roi_align::element_text(r)),
        Nest::DepthwiseWeightGradient(spec) => copy::elements(&depthwise_weight_gradient::element_text(spec)),
        Nest::MaxPoolGradient(spec) => copy::elements(&max_pool_gradient::element_text(spec)),
        Nest::AxisScan(w) => {
            let text = axis_scan::position(w) + &axis_scan::body(w);
            thread_per_index(&(&w.axis.outer * &w.axis.inner), "it", &axis_scan::head(w), &text)
        }
        Nest::ShapeValues { values, dtype } => single_thread(&expr::shape_values(values, *dtype)),
        Nest::CopyScalar(dtype) => single_thread(&expr::copy_scalar(*dtype)),
        Nest::User(user) => user_kernel(user),
    })
}

/// The whole text of a kernel after a header.
fn text(source: &Source, header: &str) -> String {
    let mut out = format!("#define ARGS {}\n{header}{PRELUDE}\n", source.args.max(1));
    out.push_str("static __device__ i32 body(const Args &args, const i64 begin, const i64 end) {\n");
    let _ = write!(out, "{}  return 0;\n}}\nENTRY\n", source.body);
    out
}

/// The kernel of a user op, after declarations of its arguments.
fn user_kernel(user: &UserKernel) -> Source {
    let mut head = String::new();
    for (i, a) in user.arguments.iter().enumerate() {
        // Kernels handle other element types by size only.
        let ty = match a.dtype {
            DType::F16 | DType::BF16 => "u16",
            dtype => ctype(dtype),
        };
        let constant = if a.written { "" } else { "const " };
        let _ = writeln!(head, "  PTR({constant}{ty}) {} = ARG({constant}{ty}, {i});", a.name);
    }
    if user.per_thread {
        return thread_per_index(&user.count.into(), "i", &head, &user.text);
    }
    let c = format!("{head}  BLOCKS(block) {{\n{}  __syncthreads();\n  }}\n", user.text);
    Source::new(c, user.count.into(), 1)
}
