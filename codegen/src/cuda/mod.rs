//! Kernels for GPUs: the loop nests of [`crate::native::nest`] as CUDA C++.
//!
//! A kernel's text is a function `body(args, begin, end)` behind `prelude.cuh`. It runs the iterations `[begin, end)`, an
//! iteration a block of [`THREADS`] threads, and each thread returns a status as kernels for CPUs do. The same text is
//! compiled by NVRTC for a GPU, where the largest status of all threads becomes the kernel's ([`nvrtc`]), and behind
//! `shim.h` for a CPU that emulates one, as an ordinary kernel of the plan ([`shim`]).

mod attention;
mod contraction;
pub mod cublaslt;
pub mod cudnn;
mod elementwise;
pub mod epilogue;
pub mod library;
mod moves;
pub mod nvrtc;
mod points;
pub mod reduce;
mod rows;
pub mod shim;
mod table;
pub mod tensor;
mod window;

use std::fmt::Write;

use crate::native::{Extent, Isa, Language, Nest, Source};

/// Threads of every block.
pub const THREADS: usize = 256;

/// The head of every kernel's text: types, accesses, mathematical functions.
const PRELUDE: &str = concat!(include_str!("prelude.cuh"), include_str!("../functions.c"));

/// The kernel of a nest.
///
/// # Errors
/// Why it has none.
pub fn print(nest: &Nest, isa: &Isa) -> Result<Source, String> {
    let mut source = match nest {
        Nest::Elementwise { body, dims } => elementwise::elementwise(body, dims),
        Nest::Rows { body, dims, inner } => rows::rows(body, dims, *inner)?,
        Nest::Contraction { spec, body, axes, out, .. } => contraction::contraction(spec, body, axes, out, isa)?,
        Nest::Attention(a) => attention::attention(a, isa)?,
        Nest::Table(t) => table::table(t)?,
        Nest::Window { spec, body } => window::window(spec, body),
        Nest::Reduce { kind, dims, axes } => reduce::reduce(*kind, dims, axes),
        Nest::Partial { kind, dims, axes, parts } => reduce::partial(*kind, dims, axes, *parts),
        Nest::Copy { pieces, bytes, out } => moves::copy(pieces, *bytes, *out),
        Nest::Pad { axes, bytes, fill } => moves::pad(axes, *bytes, *fill),
        Nest::Gather(gather) => moves::gather(gather),
        Nest::Points(points) => moves::points(points),
        Nest::Scatter(scatter) => moves::scatter(scatter),
        Nest::Regions(regions) => moves::points(&regions.points()),
        Nest::Walk(walk) => {
            let text = walk.position() + &walk.body;
            each(&(&walk.axis.outer * &walk.axis.inner), "it", &walk.head, &text)
        }
        Nest::Once(text) => once(text),
        Nest::Own(own) if own.per_thread => each(&own.count.into(), "i", &own.head, &own.text),
        Nest::Own(own) => {
            let c = format!("{}  BLOCKS(block) {{\n{}  __syncthreads();\n  }}\n", own.head, own.text);
            Source::new(c, own.count.into(), 1)
        }
    };
    if isa.language == Language::Shim {
        source.scratch_bytes = shim::SCRATCH;
    }
    Ok(source)
}

/// The whole text of a kernel for `isa`.
pub fn text(source: &Source, isa: &Isa) -> String {
    let head = if isa.language == Language::Shim { shim::HEADER } else { "" };
    let mut out = format!("#define ARGS {}\n{head}{PRELUDE}\n", source.args.max(1));
    out.push_str("static __device__ i32 body(const Args &args, const i64 begin, const i64 end) {\n");
    let _ = write!(out, "{}  return 0;\n}}\nENTRY\n", source.body);
    out
}

/// A kernel of one thread for each number `name` below `count`: `head` stands before everything, `text` is for one number.
fn each(count: &Extent, name: &str, head: &str, text: &str) -> Source {
    let mut c = head.to_string();
    c.push_str("  BLOCKS(block) {\n");
    let _ = writeln!(c, "    const i64 {name} = block * THREADS + threadIdx.x;");
    let _ = writeln!(c, "    if ({name} >= {count}) continue;\n{text}  }}");
    Source::new(c, count.div_ceil(&THREADS.into()), 1)
}

/// A kernel of a single thread.
fn once(text: &str) -> Source {
    let c = format!("  BLOCKS(block) {{\n    if (threadIdx.x != 0) continue;\n{text}  }}\n");
    Source::new(c, 1usize.into(), 1)
}

/// The C type of an index below each of these numbers: short where they are known to be small, as division is slow.
fn index_type<'a>(most: impl IntoIterator<Item = &'a Extent>) -> &'static str {
    const SMALL: usize = 1 << 30;
    if most.into_iter().all(|n| n.number().is_some_and(|n| n < SMALL)) { "i32" } else { "i64" }
}

/// The elements that an access walks over, at most.
fn span(dims: &[Extent], strides: &[Extent]) -> Extent {
    dims.iter().zip(strides).fold(Extent::from(1usize), |n, (d, s)| n + (d - 1usize) * s)
}
