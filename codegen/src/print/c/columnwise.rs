//! Reductions of columns in C, vectorised over columns: a few rows at a time, as they are in memory.

use std::fmt::Write;

use of_ir::DType;

use crate::isa::Isa;
use crate::kernel::body::{Body, Node, ReduceKind};
use crate::kernel::columnwise::ColumnWise;
use crate::kernel::extent::Extent;
use crate::kernel::space::single_stride;
use crate::print::c::elementwise::load_vector;
use crate::print::c::rowwise::combine;
use crate::print::c::vector::{self, vtype};
use crate::print::expr::{ctype, neutral};
use crate::print::{Source, index};

/// The most columns of an iteration: their accumulators stay in the L1 cache.
const MAX_COLUMNS: usize = 2048;

/// Rows that are reduced in registers before an accumulator is read and written, and the most nodes that are printed so often.
const ROWS: usize = 4;
const MAX_REPEATED_NODES: usize = 24;

/// The kernel; arguments are the loads, then the stores of the body. The results of reductions are the accumulators.
///
/// # Errors
/// When an access has no constant stride between columns, or a function has no vector form.
pub fn columnwise(spec: &ColumnWise, isa: &Isa) -> Result<Source, String> {
    let body = &spec.body;
    if !vector::fits_lanes(body) || body.nodes.iter().any(|t| t.per_row && t.dtype != DType::F32) {
        return Err("only reductions of f32 columns have native code".into());
    }
    let p = Columns::of(spec)?;
    let (rows, columns, parts) = (spec.rows(), spec.columns(), spec.parts);
    let width = MAX_COLUMNS.next_multiple_of(isa.lanes);
    let blocks = columns.div_ceil(&width.into());
    let mut c = String::new();
    vector::vector_constants(body, &mut c);
    c.push_str("  for (i64 it = begin; it < end; it++) {\n");
    let _ = writeln!(c, "    const i64 part = it / {blocks}, i0 = it % {blocks} * {width};");
    let _ = writeln!(c, "    const i64 i1 = dim_min(i0 + {width}, {columns});");
    let each = rows.div_ceil(&parts.into());
    let _ = writeln!(c, "    const i64 r1 = dim_min((part + 1) * {each}, {rows});");
    for k in (0..body.stores.len()).filter(|k| spec.is_reduction(*k)) {
        let arg = body.loads.len() + k;
        let _ = writeln!(c, "    f32 *const q{k} = (f32 *)args[{arg}] + part * {columns};");
        let start = format!("SPLAT({})", neutral(p.kind_of(k)));
        let _ = writeln!(c, "    for (i64 i = i0; i + LANES <= i1; i += LANES) store(q{k} + i, {start});");
        let _ = writeln!(c, "    if ((i1 - i0) % LANES) {{ const i64 rest = (i1 - i0) % LANES;");
        let _ = writeln!(c, "      store_part(q{k} + i1 - rest, {start}, rest); }}");
    }
    let _ = writeln!(c, "    i64 r = part * {each};");
    let several = if body.nodes.len() <= MAX_REPEATED_NODES { ROWS } else { 1 };
    if several > 1 {
        let _ = writeln!(c, "    for (; r + {several} <= r1; r += {several}) {{");
        p.some_rows(several, isa, &mut c);
        c.push_str("    }\n");
    }
    c.push_str("    for (; r < r1; r++) {\n");
    p.some_rows(1, isa, &mut c);
    c.push_str("    }\n  }\n");
    Ok(Source::new(c, blocks * parts, 1))
}

/// Prints the loops over columns.
struct Columns<'a> {
    spec: &'a ColumnWise,
    /// The stride of each load between columns.
    steps: Vec<Extent>,
    /// For each node, whether all rows have the same values.
    same: Vec<bool>,
    /// The reductions: their nodes, kinds, operands and stores.
    reductions: Vec<(usize, ReduceKind, usize, usize)>,
}

impl<'a> Columns<'a> {
    fn of(spec: &'a ColumnWise) -> Result<Columns<'a>, String> {
        let (body, outer) = (&spec.body, spec.outer);
        let step = |strides: &Vec<Extent>| single_stride(&spec.dims[outer..], &strides[outer..]);
        let steps: Option<Vec<Extent>> = body.loads.iter().map(|l| step(&l.strides)).collect();
        let steps = steps.ok_or("an access has no constant stride between columns")?;
        let fixed = |l: usize| body.loads[l].strides[..outer].iter().all(|s| s.is(0));
        let mut same: Vec<bool> = Vec::with_capacity(body.nodes.len());
        for t in &body.nodes {
            same.push(match &t.node {
                Node::Load(l) => fixed(*l),
                Node::Const(_) => true,
                Node::Op(_, args) => args.iter().all(|a| same[*a]),
                Node::Reduce(..) | Node::Anchor => false,
            });
        }
        let reduction = |(k, (_, n)): (usize, &(of_ir::ValueId, usize))| match body.nodes[*n].node {
            Node::Reduce(kind, x) => Some((*n, kind, x, k)),
            _ => None,
        };
        let reductions = body.stores.iter().enumerate().filter_map(reduction).collect();
        Ok(Columns { spec, steps, same, reductions })
    }

    fn body(&self) -> &'a Body {
        &self.spec.body
    }

    /// The kind of the reduction that store `k` has.
    fn kind_of(&self, k: usize) -> ReduceKind {
        self.reductions.iter().find(|(_, _, _, store)| *store == k).map_or(ReduceKind::Sum, |(_, kind, _, _)| *kind)
    }

    /// `count` rows from `r` on.
    fn some_rows(&self, count: usize, isa: &Isa, c: &mut String) {
        let (body, outer, columns) = (self.body(), self.spec.outer, self.spec.columns());
        for (l, load) in body.loads.iter().enumerate() {
            let t = ctype(load.dtype);
            // Rows that are the same have one pointer.
            let own = if load.strides[..outer].iter().all(|s| s.is(0)) { 1 } else { count };
            for k in 0..own {
                let row = format!("(r + {k})");
                let (dims, strides) = (&self.spec.dims[..outer], &load.strides[..outer]);
                let at = match single_stride(dims, strides) {
                    Some(step) => format!("{row} * {step}"),
                    None => index::flat_offset(dims, strides, &row),
                };
                let _ = writeln!(c, "      const {t} *const p{l}_{k} = (const {t} *)args[{l}] + ({at});");
            }
        }
        for (k, (_, n)) in body.stores.iter().enumerate().filter(|(k, _)| !self.spec.is_reduction(*k)) {
            let (t, arg) = (ctype(body.nodes[*n].dtype), body.loads.len() + k);
            let _ = writeln!(c, "      {t} *const q{k} = ({t} *)args[{arg}] + r * {columns};");
        }
        c.push_str("      i64 i = i0;\n      for (; i + LANES <= i1; i += LANES) {\n");
        self.points(count, None, c);
        c.push_str("      }\n");
        if !columns.is_multiple_of(isa.lanes) {
            c.push_str("      if (i < i1) {\n        const i64 rest = i1 - i;\n");
            self.points(count, Some("rest"), c);
            c.push_str("      }\n");
        }
    }

    /// One vector of columns: all of its lanes, or the first `part` (a C expression).
    fn points(&self, count: usize, part: Option<&str>, c: &mut String) {
        let body = self.body();
        self.nodes(true, 0, part, c);
        for (n, kind, ..) in &self.reductions {
            let _ = writeln!(c, "        vf a{n} = SPLAT({});", neutral(*kind));
        }
        for k in 0..count {
            c.push_str("        {\n");
            self.nodes(false, k, part, c);
            for (n, kind, x, _) in &self.reductions {
                let _ = writeln!(c, "        {}", combine(*kind, &format!("a{n}"), &format!("t{x}")));
            }
            for (s, (_, n)) in body.stores.iter().enumerate().filter(|(s, _)| !self.spec.is_reduction(*s)) {
                let at = format!("q{s} + {} + i", self.spec.columns() * k);
                let _ = writeln!(c, "        {}", vector::store(body, *n, &at, part));
            }
            c.push_str("        }\n");
        }
        for (n, kind, _, s) in &self.reductions {
            let at = format!("q{s} + i");
            let whole = vector::load(DType::F32, &at, &1usize.into(), part);
            let _ = writeln!(c, "        {}", combine(*kind, &format!("a{n}"), &whole));
            let _ = match part {
                None => writeln!(c, "        store({at}, a{n});"),
                Some(rest) => writeln!(c, "        store_part({at}, a{n}, {rest});"),
            };
        }
    }

    /// The nodes of row `k` whose values are the same in all rows, or are not.
    fn nodes(&self, same: bool, k: usize, part: Option<&str>, c: &mut String) {
        let body = self.body();
        let name = |n: usize| format!("t{n}");
        for (n, t) in body.nodes.iter().enumerate().filter(|(n, _)| self.same[*n] == same) {
            let value = match &t.node {
                Node::Load(l) => {
                    load_vector(&format!("p{l}_{}", if same { 0 } else { k }), t.dtype, &self.steps[*l], part)
                }
                Node::Op(op, args) => vector::vector(body, *op, args, &name),
                Node::Const(_) | Node::Reduce(..) | Node::Anchor => continue,
            };
            let _ = writeln!(c, "        const {} t{n} = {value};", vtype(t.dtype));
        }
    }
}
