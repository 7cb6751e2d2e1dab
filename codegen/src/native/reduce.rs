//! Kernels of reductions over any axes, where they are no rows.

use std::fmt::Write;

use super::rowwise::neutral;
use super::{Extent, Isa, Source, space};
use crate::lower::body::Reduce;

/// Reduces f32 over `axes`; arguments are the input and the output, whose reduced axes have extent 1.
pub fn reduce(kind: Reduce, dims: &[Extent], axes: &[usize], isa: &Isa) -> Source {
    let strides = space::row_major(dims);
    let last = dims.len() - 1;
    // Vectors run along the last axis where it is kept.
    let vector = !axes.contains(&last);
    let kept: Vec<usize> = (0..dims.len()).filter(|a| !(axes.contains(a) || vector && *a == last)).collect();
    let outer: Vec<Extent> = kept.iter().map(|a| dims[*a].clone()).collect();
    let from: Vec<Extent> = kept.iter().map(|a| strides[*a].clone()).collect();
    let n = if vector { dims[last].clone() } else { 1usize.into() };
    let blocks = n.div_ceil(&isa.lanes.into());
    let rows: Extent = outer.iter().product();
    let (f, h) = match kind {
        Reduce::Sum => ("acc += {};", "acc += {};"),
        Reduce::Prod => ("acc *= {};", "acc *= {};"),
        Reduce::Max => ("acc = vmax(acc, {});", "{ f32 v = {}; acc = (v > acc || v != v) ? v : acc; }"),
        Reduce::Min => ("acc = vmin(acc, {});", "{ f32 v = {}; acc = (v < acc || v != v) ? v : acc; }"),
    };
    let mut loops = String::new();
    let mut at = String::from("0");
    for a in axes {
        let _ = write!(loops, "for (i64 r{a} = 0; r{a} < {}; r{a}++) ", dims[*a]);
        let _ = write!(at, " + r{a} * {}", strides[*a]);
    }
    let mut c = String::from("  for (i64 it = begin; it < end; it++) {\n");
    let _ = writeln!(c, "    const i64 row = it / {blocks};");
    let _ = writeln!(c, "    const f32 *p = (const f32 *)args[0] + ({});", space::offset(&outer, &from, "row"));
    let _ = writeln!(c, "    f32 *q = (f32 *)args[1] + row * {n};");
    if vector {
        let _ = writeln!(c, "    const i64 i = it % {blocks} * LANES;");
        let rest = n.number().map_or_else(|| format!("({n} % LANES)"), |n| (n % isa.lanes).to_string());
        let whole = |c: &mut String| {
            let _ = writeln!(
                c,
                "      vf acc = SPLAT({}); {loops} {{ {} }} store(q + i, acc);",
                neutral(kind),
                f.replace("{}", &format!("load(p + i + {at})"))
            );
        };
        let part = |c: &mut String| {
            let value = f.replace("{}", &format!("load_part(p + i + {at}, {rest})"));
            let _ = writeln!(
                c,
                "      vf acc = SPLAT({}); {loops} {{ {value} }} store_part(q + i, acc, {rest});",
                neutral(kind)
            );
        };
        if n.is_multiple_of(isa.lanes) {
            whole(&mut c);
        } else {
            let _ = writeln!(c, "    if (i + LANES <= {n}) {{");
            whole(&mut c);
            c.push_str("    } else {\n");
            part(&mut c);
            c.push_str("    }\n");
        }
    } else {
        let _ = writeln!(
            c,
            "    f32 acc = {}; {loops} {{ {} }} q[0] = acc;",
            neutral(kind),
            h.replacen("{}", &format!("p[{at}]"), 1)
        );
    }
    c.push_str("  }\n");
    Source::new(c, rows * blocks, 1)
}
