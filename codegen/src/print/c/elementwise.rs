//! Kernels of elementwise groups.

use std::fmt::Write;

use of_ir::DType;

use crate::isa::Isa;
use crate::kernel::body::{Body, Node};
use crate::kernel::extent::Extent;
use crate::kernel::space::Space;
use crate::print::c::vector;
use crate::print::c::vector::vtype;
use crate::print::elementwise::{CHUNK_ELEMENTS, Length, schedule};
use crate::print::expr::ctype;
use crate::print::{Source, expr, index};

/// The kernel of an elementwise body over `dims`; arguments are the loads, then the stores.
pub fn elementwise(body: &Body, dims: &[Extent], isa: &Isa) -> Source {
    let (s, length) = schedule(body, dims);
    let rows = length.rows(&s);
    let vector = vector::fits_lanes(body);
    let mut c = String::new();
    if vector {
        vector::vector_constants(body, &mut c);
    } else {
        expr::scalar_constants(body, &mut c);
    }
    c.push_str("  for (i64 row = begin; row < end; row++) {\n");
    let count = match &length {
        Length::Whole(n) => {
            pointers(body, &s, false, &mut c);
            n.to_string()
        }
        Length::Chunk(n) => {
            pointers(body, &s, true, &mut c);
            let _ = writeln!(c, "    const i64 count = dim_min({CHUNK_ELEMENTS}, {n} - row * {CHUNK_ELEMENTS});");
            "count".into()
        }
    };
    let number = match &length {
        Length::Whole(n) => n.number(),
        Length::Chunk(_) => None,
    };
    if vector {
        let lanes = isa.lanes;
        if number.is_none_or(|n| n >= lanes) {
            let _ = writeln!(c, "    for (i64 i = 0; i + LANES <= {count}; i += LANES) {{");
            points(body, &s, &Lanes::All, &mut c);
            c.push_str("    }\n");
        }
        match number {
            Some(n) if n.is_multiple_of(lanes) => {}
            Some(n) => {
                let _ = writeln!(c, "    {{ const i64 i = {};", n - n % lanes);
                points(body, &s, &Lanes::Some((n % lanes).to_string()), &mut c);
                c.push_str("    }\n");
            }
            None => {
                let _ = writeln!(
                    c,
                    "    if ({count} % LANES) {{ const i64 i = {count} / LANES * LANES, rest = {count} % LANES;"
                );
                points(body, &s, &Lanes::Some("rest".into()), &mut c);
                c.push_str("    }\n");
            }
        }
    } else {
        let _ = writeln!(c, "    for (i64 i = 0; i < {count}; i++) {{");
        points(body, &s, &Lanes::One, &mut c);
        c.push_str("    }\n");
    }
    c.push_str("  }\n");
    let grain = match length {
        Length::Whole(n) => (CHUNK_ELEMENTS / n.size_hint().max(1)).max(1) as i64,
        Length::Chunk(_) => 1,
    };
    Source::new(c, rows, grain)
}

/// The points that a statement computes at once.
pub enum Lanes {
    /// One, as a scalar.
    One,
    /// All lanes of a vector.
    All,
    /// The first lanes of a vector; how many is a C expression.
    Some(String),
}

/// Pointers to the row of each access.
fn pointers(body: &Body, s: &Space, chunks: bool, c: &mut String) {
    let outer = &s.dims[..s.dims.len() - 1];
    let mut row = |name: String, dtype: DType, arg: usize, strides: &[Extent], read: bool| {
        let t = ctype(dtype);
        let cst = if read { "const " } else { "" };
        let at = match strides {
            [step] if chunks => format!("row * {}", step * CHUNK_ELEMENTS),
            _ => index::flat_offset(outer, &strides[..outer.len()], "row"),
        };
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

/// Loads, computations and stores of one point or of a vector of points.
pub fn points(body: &Body, s: &Space, lanes: &Lanes, c: &mut String) {
    let name = |n: usize| format!("t{n}");
    for (i, t) in body.nodes.iter().enumerate() {
        c.push_str(&expr::division_check(body, &t.node, &name));
        let value = match &t.node {
            Node::Const(_) | Node::Anchor | Node::Reduce(..) => continue,
            Node::Load(l) => {
                let stride = &s.strides[*l][s.dims.len() - 1];
                match lanes {
                    Lanes::One => expr::widened(t.dtype, &format!("p{l}[i * {stride}]")),
                    Lanes::All => load_vector(&format!("p{l}"), t.dtype, stride, None),
                    Lanes::Some(n) => load_vector(&format!("p{l}"), t.dtype, stride, Some(n)),
                }
            }
            Node::Op(op, args) => match lanes {
                Lanes::One => expr::scalar(body, *op, args, t.dtype, &name),
                _ => vector::vector(body, *op, args, &name),
            },
        };
        let ty = if matches!(lanes, Lanes::One) { expr::stype(t.dtype) } else { vtype(t.dtype) };
        let _ = writeln!(c, "      const {ty} t{i} = {value};");
    }
    for (k, (_, n)) in body.stores.iter().enumerate() {
        let store = |part| vector::store(body, *n, &format!("q{k} + i"), part);
        let _ = match lanes {
            Lanes::All => writeln!(c, "      {}", store(None)),
            Lanes::Some(l) => writeln!(c, "      {}", store(Some(l))),
            Lanes::One => {
                writeln!(c, "      q{k}[i] = {};", expr::narrowed(body.nodes[*n].dtype, &format!("t{n}")))
            }
        };
    }
}

/// Loads a vector of elements from `i` on at the pointer `p` with element stride `stride`; all lanes, or the first `part` (a C
/// expression).
pub fn load_vector(p: &str, dtype: DType, stride: &Extent, part: Option<&str>) -> String {
    let at = match stride.number() {
        Some(0) => p.to_string(),
        Some(1) => format!("{p} + i"),
        _ => format!("{p} + i * {stride}"),
    };
    vector::load(dtype, &at, stride, part)
}
