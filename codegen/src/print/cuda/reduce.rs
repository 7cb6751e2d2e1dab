//! Reductions over arbitrary axes that are not row-wise.

use std::fmt::Write;

use crate::kernel::body::ReduceKind;
use crate::kernel::extent::{Extent, numbers};
use crate::kernel::space;
use crate::print::cuda::launch::{THREADS, thread_per_index};
use crate::print::cuda::rowwise::operation;
use crate::print::expr::neutral;
use crate::print::{Source, index};

/// Results that occupy a GPU with a thread each.
const MIN_RESULTS_FOR_THREADS: usize = 1 << 12;

/// Maximum elements that one thread always reduces alone.
const MAX_SEQUENTIAL_ELEMENTS: usize = 32;

/// Number of parts for a reduction with few results of many elements: each part is a block's work.
pub fn parts(dims: &[Extent], axes: &[usize]) -> usize {
    /// Minimum elements of a part.
    const MIN_PART_ELEMENTS: usize = 1 << 12;
    /// Blocks that occupy a GPU.
    const GPU_BLOCKS: usize = 1 << 10;
    let Some(dims) = numbers(dims) else { return 1 };
    let n: usize = axes.iter().map(|a| dims[*a]).product();
    let count = dims.iter().product::<usize>() / n.max(1);
    if count * 8 > GPU_BLOCKS { 1 } else { (n / MIN_PART_ELEMENTS).min(GPU_BLOCKS / count.max(1)).max(1) }
}

/// Reduces f32 over `axes`; arguments are the input and the output, whose reduced axes have extent 1.
pub fn reduce(kind: ReduceKind, dims: &[Extent], axes: &[usize]) -> Source {
    partial(kind, dims, axes, 1)
}

/// The same in `parts`, which are the last axis of the output.
pub fn partial(kind: ReduceKind, dims: &[Extent], axes: &[usize], parts: usize) -> Source {
    let strides = space::row_major(dims);
    let kept: Vec<usize> = (0..dims.len()).filter(|a| !axes.contains(a)).collect();
    let pick = |list: &[usize], of: &[Extent]| list.iter().map(|a| of[*a].clone()).collect::<Vec<_>>();
    let (outer, from) = (pick(&kept, dims), pick(&kept, &strides));
    let (reduced, steps) = (pick(axes, dims), pick(axes, &strides));
    let (count, n): (Extent, Extent) = (outer.iter().product(), reduced.iter().product());
    let (op, start) = (operation(kind), neutral(kind));
    let first = index::flat_offset(&outer, &from, "result");
    let s = space::collapse(&reduced, &[steps]);
    let sum = |from: &str, by: &str| {
        let at = index::flat_offset(&s.dims, &s.strides[0], "r");
        format!(
            "    const i64 result = it / {parts};
    PTR(const f32) p = ARG(const f32, 0) + ({first});
    f32 a = {start};
    for (i64 r = {from}; r < {n}; r += {by}) a = {op}::of(a, p[{at}]);\n"
        )
    };
    if parts == 1 && (count.size_hint() >= MIN_RESULTS_FOR_THREADS || n.size_hint() <= MAX_SEQUENTIAL_ELEMENTS) {
        let text = sum("0", "1") + "    ARG(f32, 1)[it] = a;\n";
        return thread_per_index(&count, "it", "", &text);
    }
    let mut c = String::from("  SHARED(f32, parts, THREADS / 32);\n  BLOCKS(it) {\n");
    let step = format!("{parts} * THREADS");
    c.push_str(&sum(&format!("it % {parts} * THREADS + threadIdx.x"), &step));
    let _ = writeln!(c, "    a = block_reduce<{op}>(a, parts);\n    if (threadIdx.x == 0) ARG(f32, 1)[it] = a;\n  }}");
    debug_assert!(THREADS.is_multiple_of(64));
    Source::new(c, count * parts, 1)
}
