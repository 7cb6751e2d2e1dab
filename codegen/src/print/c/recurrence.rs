//! Recurrences in C: all iterations of a loop for a block of rows, stage by stage.

use std::fmt::Write;

use of_ir::DType;

use crate::isa::{CACHE_LINE_BYTES, Isa};
use crate::kernel::body::Body;
use crate::kernel::contraction::AccessStrides;
use crate::kernel::extent::Extent;
use crate::kernel::recurrence::{Access, Memory, Product, Recurrence, Stage};
use crate::kernel::space::Space;
use crate::print::Source;
use crate::print::c::contraction::Block;
use crate::print::c::elementwise::{Lanes, points};
use crate::print::c::vector;
use crate::print::expr;
use crate::print::expr::ctype;

/// The kernel.
///
/// # Errors
/// When a product has no form inside another kernel.
pub fn recurrence(r: &Recurrence, isa: &Isa) -> Result<Source, String> {
    let mut p = Printer { r, isa, text: String::new(), partial_sums: 0 };
    let (block, rows) = (r.block, &r.rows);
    let whole = rows.number().is_some_and(|n| n <= block);
    p.line("  for (i64 it = begin; it < end; it++) {");
    if whole {
        p.line(&format!("  const i64 first = 0, count = {rows};"));
    } else {
        p.line(&format!("  const i64 first = it * {block}, count = dim_min({block}, {rows} - first);"));
    }
    if !r.start.is_empty() {
        p.line("  { const i64 t = 0;");
        p.stages(&r.start)?;
        p.line("  }");
    }
    p.line(&format!("  for (i64 t = 0; t < {}; t++) {{", r.trips));
    p.stages(&r.stages)?;
    p.line("  }\n  }");
    let scratch_bytes = (p.scratch_at(r.scratch.len()) + 4 * p.partial_sums) as u64;
    Ok(Source { scratch_bytes, ..Source::new(p.text, rows.div_ceil(&block.into()), 1) })
}

struct Printer<'a> {
    r: &'a Recurrence,
    isa: &'a Isa,
    text: String,
    /// Floats for partial sums of products.
    partial_sums: usize,
}

impl Printer<'_> {
    fn line(&mut self, text: &str) {
        self.text.push_str(text);
        self.text.push('\n');
    }

    /// The first byte of a buffer of scratch memory.
    fn scratch_at(&self, buffer: usize) -> usize {
        let bytes = |(dtype, columns): &(DType, usize)| {
            (self.r.block * columns * dtype.bits().map_or(4, |b| b / 8)).next_multiple_of(CACHE_LINE_BYTES)
        };
        self.r.scratch[..buffer].iter().map(bytes).sum()
    }

    /// C expression of the pointer to the first row of an access in iteration `t`.
    fn pointer(&self, a: &Access, dtype: DType, is_read: bool) -> String {
        let t = if is_read { format!("const {}", ctype(dtype)) } else { ctype(dtype).to_string() };
        let base = match a.memory {
            Memory::Read(i) => format!("({t} *)args[{i}]"),
            Memory::Write(i) => format!("({t} *)args[{}]", self.r.reads + i),
            Memory::Scratch(i) => format!("({t} *)((u8 *)scratch + {})", self.scratch_at(i)),
        };
        let mut out = base;
        let mut add = |variable: &str, step: &Extent| {
            if !step.is(0) {
                let _ = write!(out, " + {variable} * {step}");
            }
        };
        add("1", &a.offset);
        add("t", &a.per_iteration);
        if !matches!(a.memory, Memory::Scratch(_)) {
            add("first", &a.row);
        }
        out
    }

    fn stages(&mut self, stages: &[Stage]) -> Result<(), String> {
        for stage in stages {
            self.line("  {");
            match stage {
                Stage::Product(product) => self.product(product)?,
                Stage::Elementwise { body, columns, loads, stores } => self.elementwise(body, *columns, loads, stores),
            }
            self.line("  }");
        }
        Ok(())
    }

    fn product(&mut self, product: &Product) -> Result<(), String> {
        let Product { spec, tile, left, right, body, loads, store } = product;
        let strides = |a: &Access| AccessStrides {
            batch: Vec::new(),
            outer: 0usize.into(),
            inner: a.row.clone(),
            column: a.column.clone(),
        };
        let [(_, stored)] = body.stores[..] else { return Err("a product has several results".into()) };
        let [element, right_element] = match spec.element.k_group() {
            2 => [DType::BF16; 2],
            _ => [DType::F32; 2],
        };
        let pointers: Vec<String> = body.loads.iter().zip(loads).map(|(l, a)| self.pointer(a, l.dtype, true)).collect();
        let load_strides: Vec<AccessStrides> = loads.iter().map(strides).collect();
        let (left, right) = (self.pointer(left, element, true), self.pointer(right, right_element, true));
        let result = self.pointer(store, body.nodes[stored].dtype, false);
        let block = Block {
            spec,
            tile: *tile,
            body,
            loads: &pointers,
            load_strides: &load_strides,
            store_strides: &strides(store),
            left: &left,
            right: &right,
            result: &result,
            factors: None,
        };
        self.partial_sums = self.partial_sums.max(block.sums(self.isa));
        let sums = format!("(f32 *)((u8 *)scratch + {})", self.scratch_at(self.r.scratch.len()));
        block.print(&sums, self.isa, &mut self.text)
    }

    fn elementwise(&mut self, body: &Body, columns: usize, loads: &[Access], stores: &[Access]) {
        let c = &mut String::new();
        let is_vector = vector::vectorizable(body);
        if is_vector {
            vector::vector_constants(body, c);
        } else {
            expr::scalar_constants(body, c);
        }
        c.push_str("    for (i64 r = 0; r < count; r++) {\n");
        for (i, (l, a)) in body.loads.iter().zip(loads).enumerate() {
            let at = self.pointer(a, l.dtype, true);
            let _ = writeln!(c, "    const {} *p{i} = {at} + r * {};", ctype(l.dtype), a.row);
        }
        for (i, ((_, n), a)) in body.stores.iter().zip(stores).enumerate() {
            let dtype = body.nodes[*n].dtype;
            let at = self.pointer(a, dtype, false);
            let _ = writeln!(c, "    {} *q{i} = {at} + r * {};", ctype(dtype), a.row);
        }
        let strides = loads.iter().map(|a| vec![a.column.clone()]).chain([vec![1usize.into()]]).collect();
        let space = Space { dims: vec![columns.into()], strides };
        let lanes = self.isa.lanes;
        if is_vector {
            let (full, rest) = (columns - columns % lanes, columns % lanes);
            if full > 0 {
                let _ = writeln!(c, "    for (i64 i = 0; i < {full}; i += LANES) {{");
                points(body, &space, &Lanes::All, c);
                c.push_str("    }\n");
            }
            if rest > 0 {
                let _ = writeln!(c, "    {{ const i64 i = {full};");
                points(body, &space, &Lanes::Some(rest.to_string()), c);
                c.push_str("    }\n");
            }
        } else {
            let _ = writeln!(c, "    for (i64 i = 0; i < {columns}; i++) {{");
            points(body, &space, &Lanes::One, c);
            c.push_str("    }\n");
        }
        c.push_str("    }\n");
        self.text.push_str(c);
    }
}
