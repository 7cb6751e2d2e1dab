//! Reductions over any axes, where they are no rows.

use std::fmt::Write;

use super::rows::operation;
use super::{THREADS, each};
use crate::lower::body::Reduce;
use crate::native::rowwise::neutral;
use crate::native::{Extent, Source, space};

/// Results that keep a GPU busy with a thread each.
const MANY: usize = 1 << 12;
/// Elements that a thread reduces by itself in any case.
const FEW: usize = 32;

/// Reduces f32 over `axes`; arguments are the input and the output, whose reduced axes have extent 1.
pub fn reduce(kind: Reduce, dims: &[Extent], axes: &[usize]) -> Source {
    let strides = space::row_major(dims);
    let kept: Vec<usize> = (0..dims.len()).filter(|a| !axes.contains(a)).collect();
    let pick = |list: &[usize], of: &[Extent]| list.iter().map(|a| of[*a].clone()).collect::<Vec<_>>();
    let (outer, from) = (pick(&kept, dims), pick(&kept, &strides));
    let (reduced, steps) = (pick(axes, dims), pick(axes, &strides));
    let (count, n): (Extent, Extent) = (outer.iter().product(), reduced.iter().product());
    let (op, start) = (operation(kind), neutral(kind));
    let first = space::offset(&outer, &from, "it");
    let s = space::collapse(&reduced, &[steps]);
    let sum = |from: &str, by: &str| {
        let at = space::offset(&s.dims, &s.strides[0], "r");
        format!(
            "    PTR(const f32) p = ARG(const f32, 0) + ({first});
    f32 a = {start};
    for (i64 r = {from}; r < {n}; r += {by}) a = {op}::of(a, p[{at}]);\n"
        )
    };
    if count.guess() >= MANY || n.guess() <= FEW {
        let text = sum("0", "1") + "    ARG(f32, 1)[it] = a;\n";
        return each(&count, "it", "", &text);
    }
    let mut c = String::from("  SHARED(f32, parts, THREADS / 32);\n  BLOCKS(it) {\n");
    c.push_str(&sum("threadIdx.x", "THREADS"));
    let _ = writeln!(c, "    a = across_block<{op}>(a, parts);\n    if (threadIdx.x == 0) ARG(f32, 1)[it] = a;\n  }}");
    debug_assert!(THREADS.is_multiple_of(64));
    Source::new(c, count, 1)
}
