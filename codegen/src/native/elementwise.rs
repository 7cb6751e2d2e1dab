//! Kernels of elementwise groups.

use std::fmt::Write;

use of_ir::DType;

use super::expr::{self, ctype, vtype};
use super::space::{self, Space};
use super::{Isa, Source};
use crate::lower::body::{Body, Node};

/// Elements that one iteration computes at least, where the space is flat.
const CHUNK: usize = 4096;

/// The kernel of an elementwise body over `dims`; arguments are the loads, then the stores.
pub fn elementwise(body: &Body, dims: &[usize], isa: &Isa) -> Source {
    let out = space::row_major(dims);
    let mut strides: Vec<Vec<i64>> = body.loads.iter().map(|l| l.strides.clone()).collect();
    strides.push(out);
    let mut s = space::collapse(dims, &strides);
    if s.dims.len() == 1 {
        // A flat space is cut into chunks, so that it can run in parallel.
        let n = s.dims[0];
        if n > CHUNK && n.is_multiple_of(CHUNK) {
            s.dims = vec![n / CHUNK, CHUNK];
            s.strides.iter_mut().for_each(|v| *v = vec![v[0] * CHUNK as i64, v[0]]);
        }
    }
    let vector = expr::vectorizable(body);
    let mut c = String::new();
    let inner = *s.dims.last().unwrap_or(&1);
    let rows: usize = s.dims[..s.dims.len() - 1].iter().product();
    if vector {
        expr::vector_constants(body, &mut c);
    } else {
        expr::scalar_constants(body, &mut c);
    }
    c.push_str("  for (i64 row = begin; row < end; row++) {\n");
    pointers(body, &s, &mut c);
    if vector {
        let lanes = isa.lanes;
        if inner >= lanes {
            let _ = writeln!(c, "    for (i64 i = 0; i + LANES <= {inner}; i += LANES) {{");
            points(body, &s, Some(lanes), true, &mut c);
            c.push_str("    }\n");
        }
        if !inner.is_multiple_of(lanes) {
            let _ = writeln!(c, "    {{ const i64 i = {};", inner - inner % lanes);
            points(body, &s, Some(inner % lanes), false, &mut c);
            c.push_str("    }\n");
        }
    } else {
        let _ = writeln!(c, "    for (i64 i = 0; i < {inner}; i++) {{");
        points(body, &s, None, false, &mut c);
        c.push_str("    }\n");
    }
    c.push_str("  }\n");
    let grain = (CHUNK / inner.max(1)).max(1) as i64;
    Source { body: c, iterations: rows as i64, grain, scratch_bytes: 0 }
}

/// Pointers to the row of each access.
fn pointers(body: &Body, s: &Space, c: &mut String) {
    let outer = &s.dims[..s.dims.len() - 1];
    let mut row = |name: String, dtype: DType, arg: usize, strides: &[i64], read: bool| {
        let t = ctype(dtype);
        let cst = if read { "const " } else { "" };
        let at = space::offset(outer, &strides[..outer.len()], "row");
        let _ = writeln!(c, "    {cst}{t} *{name} = ({cst}{t} *)args[{arg}] + ({at});");
    };
    for (i, l) in body.loads.iter().enumerate() {
        row(format!("p{i}"), l.dtype, i, &s.strides[i], true);
    }
    let out = s.strides.last().map(Vec::as_slice).unwrap_or(&[]);
    for (k, (_, n)) in body.stores.iter().enumerate() {
        row(format!("q{k}"), body.nodes[*n].dtype, body.loads.len() + k, out, false);
    }
}

/// Loads, computations and stores of one point (`lanes` is `None`) or of a vector of points, all of its lanes or some.
fn points(body: &Body, s: &Space, lanes: Option<usize>, full: bool, c: &mut String) {
    let name = |n: usize| format!("t{n}");
    for (i, t) in body.nodes.iter().enumerate() {
        let value = match &t.node {
            Node::Const(_) | Node::Anchor | Node::Reduce(..) => continue,
            Node::Load(l) => {
                let stride = *s.strides[*l].last().unwrap_or(&0);
                match lanes {
                    Some(n) => load_vector(*l, t.dtype, stride, n, full),
                    None => format!("p{l}[i * {stride}]"),
                }
            }
            Node::Op(op, args) if lanes.is_some() => expr::vector(body, *op, args, &name),
            Node::Op(op, args) => expr::scalar(body, *op, args, t.dtype, &name),
        };
        let ty = if lanes.is_some() { vtype(t.dtype) } else { ctype(t.dtype) };
        let _ = writeln!(c, "      const {ty} t{i} = {value};");
    }
    for (k, (_, n)) in body.stores.iter().enumerate() {
        let _ = match lanes {
            Some(l) => {
                let (at, value) = (format!("q{k} + i"), format!("t{n}"));
                writeln!(c, "      {}", expr::store(body.nodes[*n].dtype, &at, &value, l, full))
            }
            None => writeln!(c, "      q{k}[i] = t{n};"),
        };
    }
}

/// A vector of an access whose elements lie `stride` apart.
pub fn load_vector(l: usize, dtype: DType, stride: i64, lanes: usize, full: bool) -> String {
    let at = match stride {
        0 => format!("p{l}"),
        1 => format!("p{l} + i"),
        s => format!("p{l} + i * {s}"),
    };
    expr::load(dtype, &at, stride, lanes, full)
}
