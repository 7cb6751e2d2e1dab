//! Reductions over arbitrary axes that are not row-wise.

use std::fmt::Write;

use crate::isa::Isa;
use crate::kernel::body::ReduceKind;
use crate::kernel::extent::Extent;
use crate::kernel::space;
use crate::print::c::rowwise::{combine, horizontal_reduce};
use crate::print::expr::neutral;
use crate::print::{Source, index};

/// Terms of a partial sum: rounding errors increase with the length of a sum.
const PARTIAL_SUM_TERMS: usize = 256;

/// Minimum parts of the work, where several vectors of results are reduced together.
const MIN_PARTS: usize = 8;

/// Reduces f32 over `axes`, ascending; arguments are the input and the output, whose reduced axes have extent 1.
pub fn reduce(kind: ReduceKind, dims: &[Extent], axes: &[usize], isa: &Isa) -> Source {
    let strides = space::row_major(dims);
    let last = dims.len() - 1;
    // Vectors run along the last axis: over results if it is kept, else over terms of one result.
    let kept_last = !axes.contains(&last);
    let kept: Vec<usize> = (0..dims.len()).filter(|a| !(axes.contains(a) || kept_last && *a == last)).collect();
    let outer: Vec<Extent> = kept.iter().map(|a| dims[*a].clone()).collect();
    let from: Vec<Extent> = kept.iter().map(|a| strides[*a].clone()).collect();
    let n = if kept_last { dims[last].clone() } else { 1usize.into() };
    let rows: Extent = outer.iter().product();
    // Long contiguous reads are faster than single lines of many rows.
    let vectors = (rows.size_hint() * (n.size_hint() / isa.lanes) / MIN_PARTS).min(n.size_hint() / isa.lanes);
    let side = [8, 4, 2].into_iter().find(|side| *side <= vectors).unwrap_or(1);
    let width = side * isa.lanes;
    let blocks = n.div_ceil(&width.into());
    let mut c = String::from("  for (i64 it = begin; it < end; it++) {\n");
    let _ = writeln!(c, "    const i64 row = it / {blocks};");
    let _ = writeln!(c, "    const f32 *p = (const f32 *)args[0] + ({});", index::flat_offset(&outer, &from, "row"));
    let _ = writeln!(c, "    f32 *q = (f32 *)args[1] + row * {n};");
    let runs = runs(dims, &strides, axes);
    if !kept_last {
        terms(kind, &runs, true, &["load(r)".into()], &mut c);
        let _ = writeln!(c, "    q[0] = {}(acc0);", horizontal_reduce(kind));
    } else {
        let _ = writeln!(c, "    const i64 i = it % {blocks} * {width};");
        let whole = n.is_multiple_of(width);
        if !whole {
            let _ = writeln!(c, "    if (i + {width} <= {n}) {{");
        }
        let loads: Vec<String> = (0..side).map(|v| format!("load(r + i + {})", v * isa.lanes)).collect();
        terms(kind, &runs, false, &loads, &mut c);
        for v in 0..side {
            let _ = writeln!(c, "    store(q + i + {}, acc{v});", v * isa.lanes);
        }
        if !whole {
            let _ = writeln!(c, "    }} else for (i64 j = i; j < {n}; j += LANES) {{");
            let _ = writeln!(c, "    const i64 rest = dim_min(LANES, {n} - j);");
            terms(kind, &runs, false, &["load_part(r + j, rest)".into()], &mut c);
            c.push_str("    store_part(q + j, acc0, rest); }\n");
        }
    }
    c.push_str("  }\n");
    Source::new(c, rows * blocks, 1)
}

/// Extents and strides of the reduced axes, with adjacent axes merged.
fn runs(dims: &[Extent], strides: &[Extent], axes: &[usize]) -> Vec<(Extent, Extent)> {
    let mut out: Vec<(Extent, Extent)> = Vec::new();
    for (k, a) in axes.iter().enumerate() {
        let next = k > 0 && axes[k - 1] + 1 == *a;
        match out.last_mut().filter(|_| next) {
            Some(run) => *run = (&run.0 * &dims[*a], strides[*a].clone()),
            None => out.push((dims[*a].clone(), strides[*a].clone())),
        }
    }
    out
}

/// Accumulates all terms into `acc0`, `acc1` …; each of `loads` is a vector at the pointer `r`. Its lanes are terms of different
/// results or, with `along`, consecutive terms of the last run.
fn terms(kind: ReduceKind, runs: &[(Extent, Extent)], along: bool, loads: &[String], c: &mut String) {
    let Some(((m, step), outer)) = runs.split_last() else { return };
    let start = |name: &str| {
        let list: Vec<String> = (0..loads.len()).map(|v| format!("{name}{v} = SPLAT({})", neutral(kind))).collect();
        format!("vf {};", list.join(", "))
    };
    let _ = writeln!(c, "    {}", start("acc"));
    let mut at = String::from("p");
    for (k, (extent, stride)) in outer.iter().enumerate() {
        let _ = writeln!(c, "    for (i64 r{k} = 0; r{k} < {extent}; r{k}++)");
        let _ = write!(at, " + r{k} * {stride}");
    }
    let (width, stride) = if along { ("LANES", "1".to_string()) } else { ("1", step.to_string()) };
    let _ = writeln!(c, "    {{ i64 k = 0; for (; k + {width} <= {m};) {{");
    let _ = writeln!(c, "      {} const i64 to = dim_min(k + {PARTIAL_SUM_TERMS} * {width}, {m});", start("part"));
    let _ = writeln!(c, "      for (; k + {width} <= to; k += {width}) {{ const f32 *r = {at} + k * {stride};");
    for (v, load) in loads.iter().enumerate() {
        let _ = writeln!(c, "        {}", combine(kind, &format!("part{v}"), load));
    }
    c.push_str("      }\n");
    for v in 0..loads.len() {
        let _ = writeln!(c, "      {}", combine(kind, &format!("acc{v}"), &format!("part{v}")));
    }
    c.push_str("      }\n");
    if along {
        let rest = format!("pick(head_mask({m} - k), load_part({at} + k, {m} - k), SPLAT({}))", neutral(kind));
        let _ = writeln!(c, "      if (k < {m}) {}", combine(kind, "acc0", &rest));
    }
    c.push_str("    }\n");
}
