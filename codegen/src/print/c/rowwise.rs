//! Row-wise kernels in C: softmax, normalisations, any mixture of maps and reductions.

use std::collections::BTreeSet;
use std::fmt::Write;

use of_ir::DType;

use crate::isa::Isa;
use crate::kernel::body::{Body, Node, ReduceKind, TypedNode};
use crate::kernel::extent::Extent;
use crate::kernel::rowwise::{needed_nodes, saved, stages};
use crate::kernel::space;
use crate::print::c::elementwise::load_vector;
use crate::print::c::vector;
use crate::print::c::vector::vtype;
use crate::print::expr::{ctype, neutral};
use crate::print::{Source, expr, index};

/// The kernel of `body` over `dims`, of which the last `inner` axes form a row.
///
/// # Errors
/// When an access has no single stride along the row, or a function has no vector form.
pub fn rowwise(body: &Body, dims: &[Extent], inner: usize, isa: &Isa) -> Result<Source, String> {
    let r = RowPrinter::of(body, dims, inner, isa)?;
    let outer_dims = &dims[..dims.len() - inner];
    let rows: Extent = outer_dims.iter().product();
    let mut c = String::new();
    r.head("scratch", &mut c);
    c.push_str("  for (i64 row = begin; row < end; row++) {\n");
    for (i, l) in body.loads.iter().enumerate() {
        let t = ctype(l.dtype);
        let at = index::flat_offset(outer_dims, &l.strides[..outer_dims.len()], "row");
        let _ = writeln!(c, "    const {t} *p{i} = (const {t} *)args[{i}] + ({at});");
    }
    for (k, (_, v)) in body.stores.iter().enumerate() {
        let t = &body.nodes[*v];
        let step = if t.per_row { 1usize.into() } else { r.n.clone() };
        let ty = ctype(t.dtype);
        let _ = writeln!(c, "    {ty} *q{k} = ({ty} *)args[{}] + row * {step};", body.loads.len() + k);
    }
    r.row(&mut c);
    c.push_str("  }\n");
    let grain = (4096 / r.n.size_hint().max(1)).max(1) as i64;
    Ok(Source { scratch_bytes: r.scratch() as u64, ..Source::new(c, rows, grain) })
}

/// Prints the loops along a row.
pub struct RowPrinter<'a> {
    body: &'a Body,
    stages: Vec<usize>,
    saved: Vec<usize>,
    /// The stride of each load along the row.
    steps: Vec<Extent>,
    n: Extent,
    isa: &'a Isa,
}

impl<'a> RowPrinter<'a> {
    /// Rows of `body` over `dims`, of which the last `inner` axes form a row.
    ///
    /// # Errors
    /// When an access has no single stride along the row, or a function has no vector form.
    pub fn of(body: &'a Body, dims: &[Extent], inner: usize, isa: &'a Isa) -> Result<RowPrinter<'a>, String> {
        let sums = |t: &TypedNode| matches!(t.node, Node::Reduce(..)) && t.dtype != DType::F32;
        if !vector::vectorizable(body) || body.nodes.iter().any(sums) {
            return Err("only reductions of f32 rows have native code".into());
        }
        let (outer_dims, inner_dims) = dims.split_at(dims.len() - inner);
        let n: Extent = inner_dims.iter().product();
        let mut steps = Vec::new();
        for l in &body.loads {
            steps.push(
                space::single_stride(inner_dims, &l.strides[outer_dims.len()..])
                    .ok_or("an access has no constant stride between rows")?,
            );
        }
        let stages = stages(body);
        // Scratch is sized before the run, so rows of unknown length save nothing.
        let saved = if n.number().is_some() { saved(body, &stages) } else { Vec::new() };
        Ok(RowPrinter { body, stages, saved, steps, n, isa })
    }

    /// Floats between two saved values.
    fn pitch(&self) -> usize {
        self.n.number().map_or(0, |n| n.next_multiple_of(self.isa.lanes) + self.isa.lanes)
    }

    /// Bytes of scratch.
    pub fn scratch(&self) -> usize {
        self.saved.len() * self.pitch() * 4
    }

    /// Statements before the rows: constants, and pointers to saved values from `scratch` (a C expression) on.
    pub fn head(&self, scratch: &str, c: &mut String) {
        vector::vector_constants(self.body, c);
        for (k, v) in self.saved.iter().enumerate() {
            let _ = writeln!(c, "  f32 *const s{v} = (f32 *)({scratch}) + {};", k * self.pitch());
        }
    }

    /// One row: loads read `p0` …, stores write `q0` … Only the last loop stores, so a row may be stored in place.
    pub fn row(&self, c: &mut String) {
        let last = self.stages.iter().copied().max().unwrap_or(0);
        for stage in 0..=last {
            self.row_values(stage, c);
            self.print_pass(stage, c);
        }
        self.row_values(last + 1, c);
        for (k, (_, v)) in self.body.stores.iter().enumerate() {
            if self.body.nodes[*v].per_row {
                let value = expr::narrowed(self.body.nodes[*v].dtype, &format!("t{v}[0]"));
                let _ = writeln!(c, "    q{k}[0] = {value};");
            }
        }
    }

    /// Values of one number a row that are known when `stage` begins.
    fn row_values(&self, stage: usize, c: &mut String) {
        let name = |n: usize| format!("t{n}");
        for (i, t) in self.body.nodes.iter().enumerate() {
            if !t.per_row || self.stages[i] != stage {
                continue;
            }
            let value = match &t.node {
                Node::Load(l) => vector::splat(t.dtype, &format!("p{l}")),
                Node::Op(op, args) => vector::vector(self.body, *op, args, &name),
                _ => continue,
            };
            let _ = writeln!(c, "    const {} t{i} = {value};", vtype(t.dtype));
        }
    }

    /// One pass over the row: the reductions and stores of `stage` and their dependencies.
    fn print_pass(&self, stage: usize, c: &mut String) {
        let body = self.body;
        let reductions: Vec<(usize, ReduceKind, usize)> = (body.nodes.iter().enumerate())
            .filter(|(i, _)| self.stages[*i] == stage)
            .filter_map(|(i, t)| if let Node::Reduce(k, a) = t.node { Some((i, k, a)) } else { None })
            .collect();
        let mut targets: BTreeSet<usize> = reductions.iter().map(|(_, _, a)| *a).collect();
        targets.extend(self.saved.iter().filter(|v| self.stages[**v] == stage));
        let stored: Vec<(usize, usize)> = (body.stores.iter().enumerate())
            .map(|(k, (_, v))| (k, *v))
            .filter(|(_, v)| !body.nodes[*v].per_row && self.stages[*v] == stage)
            .collect();
        targets.extend(stored.iter().map(|(_, v)| *v));
        if targets.is_empty() {
            return;
        }
        let mut needed = BTreeSet::new();
        targets.iter().for_each(|t| needed_nodes(body, &self.stages, &self.saved, *t, stage, &mut needed));
        let (n, lanes) = (&self.n, self.isa.lanes);
        // Several vectors with separate accumulators hide the latency of additions.
        let several =
            if reductions.is_empty() || needed.len() > 8 { 1 } else { (n.size_hint() / lanes / 2).clamp(1, 4) };
        for (i, kind, _) in &reductions {
            for u in 0..several {
                let _ = writeln!(c, "    vf a{i}_{u} = SPLAT({});", neutral(*kind));
            }
        }
        let mut from = Extent::from(0usize);
        if several > 1 {
            from = n.div_floor(&(several * lanes).into()) * (several * lanes);
            let _ = writeln!(c, "    for (i64 i0 = 0; i0 < {from}; i0 += {several} * LANES) {{");
            for u in 0..several {
                let _ = writeln!(c, "    {{ const i64 i = i0 + {u} * LANES;");
                self.points(stage, &needed, &reductions, &stored, (None, u), c);
                c.push_str("    }\n");
            }
            c.push_str("    }\n");
        }
        if (n - &from).number().is_none_or(|left| left >= lanes) {
            let _ = writeln!(c, "    for (i64 i = {from}; i + LANES <= {n}; i += LANES) {{");
            self.points(stage, &needed, &reductions, &stored, (None, 0), c);
            c.push_str("    }\n");
        }
        match n.number() {
            Some(n) if n.is_multiple_of(lanes) => {}
            Some(n) => {
                let _ = writeln!(c, "    {{ const i64 i = {};", n - n % lanes);
                self.points(stage, &needed, &reductions, &stored, (Some(&(n % lanes).to_string()), 0), c);
                c.push_str("    }\n");
            }
            None => {
                let _ = writeln!(c, "    if ({n} % LANES) {{ const i64 i = {n} / LANES * LANES, rest = {n} % LANES;");
                self.points(stage, &needed, &reductions, &stored, (Some("rest"), 0), c);
                c.push_str("    }\n");
            }
        }
        for (i, kind, _) in &reductions {
            for u in 1..several {
                let _ = writeln!(c, "    {}", combine(*kind, &format!("a{i}_0"), &format!("a{i}_{u}")));
            }
        }
        for (i, kind, _) in &reductions {
            let _ = writeln!(c, "    const vf t{i} = SPLAT({}(a{i}_0));", horizontal_reduce(*kind));
        }
    }

    /// One vector of the loop: all of its lanes, or the first `part` (a C expression), and its accumulators.
    fn points(
        &self,
        stage: usize,
        needed: &BTreeSet<usize>,
        reductions: &[(usize, ReduceKind, usize)],
        stored: &[(usize, usize)],
        (part, sum): (Option<&str>, usize),
        c: &mut String,
    ) {
        let name = |n: usize| format!("t{n}");
        for i in needed {
            let t = &self.body.nodes[*i];
            let value = if self.saved.contains(i) && self.stages[*i] < stage {
                format!("load(s{i} + i)")
            } else {
                match &t.node {
                    Node::Load(l) => load_vector(&format!("p{l}"), t.dtype, &self.steps[*l], part),
                    Node::Op(op, args) => vector::vector(self.body, *op, args, &name),
                    _ => continue,
                }
            };
            let _ = writeln!(c, "      const {} t{i} = {value};", vtype(t.dtype));
            if self.saved.contains(i) && self.stages[*i] == stage {
                let _ = writeln!(c, "      store(s{i} + i, t{i});");
            }
        }
        for (i, kind, a) in reductions {
            // Lanes beyond the row take the neutral element.
            let x = match part {
                None => format!("t{a}"),
                Some(n) => format!("pick(head_mask({n}), t{a}, SPLAT({}))", neutral(*kind)),
            };
            let _ = writeln!(c, "      {}", combine(*kind, &format!("a{i}_{sum}"), &x));
        }
        for (k, v) in stored {
            let _ = writeln!(c, "      {}", vector::store(self.body, *v, &format!("q{k} + i"), part));
        }
    }
}

/// The function that reduces the lanes of a vector.
pub fn horizontal_reduce(kind: ReduceKind) -> &'static str {
    match kind {
        ReduceKind::Sum => "hsum",
        ReduceKind::Max => "hmax",
        ReduceKind::Min => "hmin",
        ReduceKind::Prod => "hprod",
    }
}

/// The statement that combines the vector `x` into `sum`.
pub fn combine(kind: ReduceKind, sum: &str, x: &str) -> String {
    match kind {
        ReduceKind::Sum => format!("{sum} = {sum} + {x};"),
        ReduceKind::Prod => format!("{sum} = {sum} * {x};"),
        ReduceKind::Max => format!("{sum} = vmax({sum}, {x});"),
        ReduceKind::Min => format!("{sum} = vmin({sum}, {x});"),
    }
}
