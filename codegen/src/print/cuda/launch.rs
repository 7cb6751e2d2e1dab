//! Kernel launches: blocks of threads, and loops that distribute the work over threads.

use std::fmt::Write;

use crate::kernel::extent::Extent;
use crate::print::source::Source;

/// Threads of every block.
pub const THREADS: usize = 256;

/// A kernel of one thread for each number `name` below `count`: `head` precedes everything, `text` is the body for one number.
pub fn thread_per_index(count: &Extent, name: &str, head: &str, text: &str) -> Source {
    let mut c = head.to_string();
    c.push_str("  BLOCKS(block) {\n");
    let _ = writeln!(c, "    const i64 {name} = block * THREADS + threadIdx.x;");
    let _ = writeln!(c, "    if ({name} >= {count}) continue;\n{text}  }}");
    Source::new(c, count.div_ceil(&THREADS.into()), 1)
}

/// A kernel of a single thread.
pub fn single_thread(text: &str) -> Source {
    let c = format!("  BLOCKS(block) {{\n    if (threadIdx.x != 0) continue;\n{text}  }}\n");
    Source::new(c, 1usize.into(), 1)
}

/// The C type of an index below these numbers: 32-bit if they are known to be small, as division is slow.
pub fn index_type<'a>(most: impl IntoIterator<Item = &'a Extent>) -> &'static str {
    const MAX_I32_INDEX: usize = 1 << 30;
    if most.into_iter().all(|n| n.number().is_some_and(|n| n < MAX_I32_INDEX)) { "i32" } else { "i64" }
}

/// The maximum number of elements that an access spans.
pub fn span(dims: &[Extent], strides: &[Extent]) -> Extent {
    dims.iter().zip(strides).fold(Extent::from(1usize), |n, (d, s)| n + (d - 1usize) * s)
}
