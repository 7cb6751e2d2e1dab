//! Elementwise groups: a thread computes four adjacent elements if they are contiguous.

use std::fmt::Write;

use crate::kernel::body::Body;
use crate::kernel::extent::Extent;
use crate::kernel::space;
use crate::kernel::space::Space;
use crate::print::cuda::launch::THREADS;
use crate::print::cuda::node_printer::{NodePrinter, VECTOR_WIDTH, pointers, position_type};
use crate::print::{Source, expr, index};

/// The kernel of an elementwise body over `dims`; arguments are the loads, then the stores.
pub fn elementwise(body: &Body, dims: &[Extent]) -> Source {
    let mut strides: Vec<Vec<Extent>> = body.loads.iter().map(|l| l.strides.clone()).collect();
    strides.push(space::row_major(dims));
    let s = space::collapse(dims, &strides);
    let (outer, inner) = s.dims.split_at(s.dims.len() - 1);
    let (flat, inner) = (outer.is_empty(), &inner[0]);
    let width = if flat || inner.is_multiple_of(VECTOR_WIDTH) { VECTOR_WIDTH } else { 1 };
    let total: Extent = s.dims.iter().product();
    let index = position_type(dims, &body.loads);

    let mut c = String::new();
    pointers(body, 0, &mut c);
    expr::scalar_constants(body, &mut c);
    c.push_str("  BLOCKS(block) {\n");
    let _ = writeln!(c, "    const {index} e = ({index})(block * THREADS + threadIdx.x) * {width};");
    if flat {
        let _ = writeln!(c, "    if (e + {width} <= {total}) {{\n      const {index} i = e;");
        points(body, &s, width, &mut c);
        let _ = writeln!(c, "    }} else for ({index} i = e; i < {total}; i++) {{");
        points(body, &s, 1, &mut c);
        c.push_str("    }\n");
    } else {
        let _ = writeln!(c, "    if (e < {total}) {{\n      const {index} row = e / {inner}, i = e % {inner};");
        points(body, &s, width, &mut c);
        c.push_str("    }\n");
    }
    c.push_str("  }\n");
    Source::new(c, total.div_ceil(&(THREADS * width).into()), 1)
}

/// The computation of `width` elements from position `i` of `row` on.
fn points(body: &Body, s: &Space, width: usize, c: &mut String) {
    let p = NodePrinter { body, width };
    let outer = s.dims.len() - 1;
    let at = |l: usize| {
        let (strides, step) = (&s.strides[l][..outer], &s.strides[l][outer]);
        let mut at = format!("p{l}");
        if outer > 0 && strides.iter().any(|s| !s.is(0)) {
            let _ = write!(at, " + ({})", index::flat_offset(&s.dims[..outer], strides, "row"));
        }
        if !step.is(0) {
            let _ = write!(at, " + i * {step}");
        }
        (at, step.clone(), step.is(1) && strides.iter().all(|s| s.is_multiple_of(VECTOR_WIDTH)))
    };
    for n in 0..body.nodes.len() {
        p.node(n, &at, &|_| String::new(), c);
    }
    for (k, (_, n)) in body.stores.iter().enumerate() {
        // Stores are dense.
        let at = if outer > 0 { format!("q{k} + e") } else { format!("q{k} + i") };
        p.store(*n, &at, c);
    }
}
