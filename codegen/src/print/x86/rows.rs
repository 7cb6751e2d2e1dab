//! Row-wise kernels: softmax, normalisations, any mixture of maps and reductions.
//!
//! Each stage walks along the row once; a reduction ends a stage. Values of one number a row are vectors on the stack.

use std::collections::BTreeSet;

use of_ir::DType;

use crate::kernel::body::{Body, Node, ReduceKind};
use crate::kernel::extent::Extent;
use crate::kernel::prologue::Prologue;
use crate::kernel::rowwise::{needed_nodes, saved, stages};
use crate::kernel::space;
use crate::print::c::vector::fits_lanes;
use crate::print::x86::access::{Access, Part, Step, bytes};
use crate::print::x86::asm::Gp::{Rax, Rcx};
use crate::print::x86::asm::{Alu, Args, Mem, Rm, op};
use crate::print::x86::block::{Block, Inst, Value, two};
use crate::print::x86::body::Values;
use crate::print::x86::frame::Frame;
use crate::print::x86::points::Points;
use crate::print::x86::row::{Row, bases, point, step};

/// The most reductions of one stage, whose sums are in registers.
const MOST_SUMS: usize = 4;

/// A row-wise kernel.
struct Rows<'a> {
    body: &'a Body,
    stages: Vec<usize>,
    saved: Vec<usize>,
    avx512: bool,
    /// The slot of each node with one value a row.
    slots: Vec<Option<usize>>,
    row: Row,
    /// Loads of the body, then of saved values.
    loads: Vec<Access>,
    /// The same with one element for the row.
    singles: Vec<Access>,
    /// Stores of the body, then of saved values.
    stores: Vec<Access>,
}

/// The kernel of `body` over `dims`, of which the last `inner` axes form a row; arguments are the loads, then the stores.
///
/// # Errors
/// The reason why there is none.
pub fn rows(body: &Body, dims: &[Extent], inner: usize, p: &Prologue, avx512: bool) -> Result<Vec<u8>, String> {
    let sums = body.nodes.iter().any(|t| matches!(t.node, Node::Reduce(..)) && t.dtype != DType::F32);
    if !fits_lanes(body) || sums {
        return Err("reductions of other elements than f32".into());
    }
    let (outer, along) = dims.split_at(dims.len() - inner);
    let n: Extent = along.iter().product();
    let mut f = Frame::enter(avx512, p);
    let row = Row::new(&mut f, n.number());
    let stages = stages(body);
    let saved = if n.number().is_some() { saved(body, &stages) } else { Vec::new() };
    let mut r =
        Rows { body, stages, saved, avx512, slots: Vec::new(), row, loads: vec![], singles: vec![], stores: vec![] };
    r.slots = body.nodes.iter().map(|t| (t.per_row && !matches!(t.node, Node::Const(_))).then(|| f.vector())).collect();
    r.accesses(&mut f, outer, along)?;
    let mut emitted = Ok(());
    f.rows(|f| {
        for (i, (l, access)) in body.loads.iter().zip(&r.loads).enumerate() {
            f.offset(outer, &l.strides[..outer.len()]);
            point(f, access, i);
        }
        for (k, ((_, v), access)) in body.stores.iter().zip(&r.stores).enumerate() {
            f.asm.load(Rax, f.row.mem());
            if !body.nodes[*v].per_row {
                f.times(&n);
            }
            point(f, access, body.loads.len() + k);
        }
        if n.number().is_none() {
            f.extent(&n);
            r.row.start(f);
        }
        emitted = r.row(f);
    });
    emitted?;
    f.finish()
}

impl Rows<'_> {
    /// Accesses of loads, stores and saved values.
    fn accesses(&mut self, f: &mut Frame, outer: &[Extent], along: &[Extent]) -> Result<(), String> {
        let body = self.body;
        let mut places = bases(f, body.loads.len() + body.stores.len() + self.saved.len()).into_iter();
        for (l, base) in body.loads.iter().zip(places.by_ref()) {
            let stride = space::single_stride(along, &l.strides[outer.len()..]);
            let stride = stride.ok_or("an access has no constant stride between rows")?;
            let step = step(f, &stride, bytes(l.dtype));
            self.loads.push(Access { base, dtype: l.dtype, step });
        }
        for ((_, v), base) in body.stores.iter().zip(places.by_ref()) {
            self.stores.push(Access { base, dtype: body.nodes[*v].dtype, step: Step::Next });
        }
        let lanes = if self.avx512 { 16 } else { 8 };
        let pitch = self.row.number.map_or(0, |n| 4 * (n.next_multiple_of(lanes) + lanes));
        for (k, base) in (0..self.saved.len()).zip(places) {
            f.asm.load(Rax, f.scratch.mem());
            f.asm.mov_imm(Rcx, (k * pitch) as i64);
            f.asm.alu(Alu::Add, Rax, Rm::Reg(Rcx as u8));
            base.set(f);
            let access = Access { base, dtype: DType::F32, step: Step::Next };
            self.loads.push(access);
            self.stores.push(access);
        }
        self.singles = self.loads.iter().map(|a| Access { step: Step::Same, ..*a }).collect();
        Ok(())
    }

    /// One row. Only the last loop stores, so a row may be stored in place.
    fn row(&self, f: &mut Frame) -> Result<(), String> {
        let last = self.stages.iter().copied().max().unwrap_or(0);
        for stage in 0..=last {
            self.row_values(f, stage)?;
            self.walk(f, stage)?;
        }
        self.row_values(f, last + 1)?;
        let mut block = Block::new(self.avx512);
        for (k, (_, v)) in self.body.stores.iter().enumerate().filter(|(_, (_, v))| self.body.nodes[*v].per_row) {
            let value = self.known(&mut block).get(&mut block, *v)?;
            block.store(k, self.body.nodes[*v].dtype, value);
        }
        Points::new(&block, &self.loads, &self.stores, &[]).unpinned().emit(f, Part::One);
        Ok(())
    }

    /// The values that slots hold.
    fn known(&self, block: &mut Block) -> Values<'_> {
        let mut values = Values::new(self.body);
        values.known = self.slots.iter().map(|s| s.map(|s| block.push(Inst::Slot(s)))).collect();
        values
    }

    /// Values of one number a row that are known when `stage` begins.
    fn row_values(&self, f: &mut Frame, stage: usize) -> Result<(), String> {
        let mut block = Block::new(self.avx512);
        let mut values = self.known(&mut block);
        for (i, t) in self.body.nodes.iter().enumerate() {
            let computed = matches!(t.node, Node::Load(_) | Node::Op(..));
            if let Some(slot) = self.slots[i].filter(|_| computed && self.stages[i] == stage) {
                values.known[i] = None;
                let v = values.get(&mut block, i)?;
                block.push(Inst::Keep(slot, v));
            }
        }
        Points::new(&block, &self.singles, &[], &[]).unpinned().emit(f, Part::All);
        Ok(())
    }

    /// One pass over the row: the reductions and stores of `stage` and what they need.
    fn walk(&self, f: &mut Frame, stage: usize) -> Result<(), String> {
        let body = self.body;
        let here = |i: usize| self.stages[i] == stage;
        let sums: Vec<(usize, ReduceKind, usize)> = (body.nodes.iter().enumerate())
            .filter_map(|(i, t)| if let Node::Reduce(k, a) = t.node { Some((i, k, a)) } else { None })
            .filter(|(i, ..)| here(*i))
            .collect();
        if sums.len() > MOST_SUMS {
            return Err(format!("more than {MOST_SUMS} reductions of one stage"));
        }
        let kept: Vec<(usize, usize)> = self.saved.iter().copied().enumerate().filter(|(_, v)| here(*v)).collect();
        let stored = body.stores.iter().map(|(_, v)| *v).enumerate();
        let stored: Vec<(usize, usize)> = stored.filter(|(_, v)| !body.nodes[*v].per_row && here(*v)).collect();
        if sums.is_empty() && kept.is_empty() && stored.is_empty() {
            return Ok(());
        }
        let accumulators: Vec<u8> = (0..sums.len() as u8).collect();
        for (register, (_, kind, _)) in accumulators.iter().zip(&sums) {
            let start = Rm::Mem(Mem::Word(neutral(*kind).to_bits()));
            f.asm.vector(op(1, 2, 0x18), Args::new(*register, 0, start));
        }
        let whole = self.points(stage, &sums, &kept, &stored, false)?;
        let tail = self.points(stage, &sums, &kept, &stored, true)?;
        let [whole, tail] = [&whole, &tail].map(|b| Points::new(b, &self.loads, &self.stores, &accumulators));
        whole.load_pins(f);
        self.row.walk(f, &whole, &tail.unpinned());
        let mut block = Block::new(self.avx512);
        for (k, (i, kind, _)) in sums.iter().enumerate() {
            let mut v = block.push(Inst::Accumulator(k));
            let steps: &[usize] = if self.avx512 { &[8, 4, 2, 1] } else { &[4, 2, 1] };
            for step in steps {
                let turned = block.push(Inst::Exchange(v, *step));
                v = combine(&mut block, *kind, v, turned);
            }
            if let Some(slot) = self.slots[*i] {
                block.push(Inst::Keep(slot, v));
            }
        }
        Points::new(&block, &[], &[], &accumulators).unpinned().emit(f, Part::All);
        Ok(())
    }

    /// The block of one vector of points; lanes beyond the row add the neutral element to sums.
    fn points(
        &self,
        stage: usize,
        sums: &[(usize, ReduceKind, usize)],
        kept: &[(usize, usize)],
        stored: &[(usize, usize)],
        tail: bool,
    ) -> Result<Block, String> {
        let body = self.body;
        let mut needed = BTreeSet::new();
        let targets = sums.iter().map(|s| s.2).chain(kept.iter().chain(stored).map(|(_, v)| *v));
        targets.for_each(|t| needed_nodes(body, &self.stages, &self.saved, t, stage, &mut needed));
        let mut block = Block::new(self.avx512);
        let mut values = self.known(&mut block);
        for (k, v) in self.saved.iter().enumerate().filter(|(_, v)| self.stages[**v] < stage && needed.contains(v)) {
            values.known[*v] = Some(block.push(Inst::Load(body.loads.len() + k)));
        }
        for n in needed.iter().filter(|n| matches!(body.nodes[**n].node, Node::Op(..))) {
            values.get(&mut block, *n)?;
        }
        for (k, (_, kind, a)) in sums.iter().enumerate() {
            let mut x = values.get(&mut block, *a)?;
            if tail {
                let (mask, none) = (block.push(Inst::Slot(self.row.mask)), block.float(neutral(*kind)));
                x = block.select(mask, x, none);
            }
            let sum = block.push(Inst::Accumulator(k));
            let sum = combine(&mut block, *kind, sum, x);
            block.push(Inst::Accumulate(k, sum));
        }
        let stored_values = stored.iter().map(|(_, v)| values.get(&mut block, *v)).collect::<Result<Vec<_>, _>>()?;
        for (k, v) in kept {
            let value = values.get(&mut block, *v)?;
            block.store(body.stores.len() + k, DType::F32, value);
        }
        for ((k, v), value) in stored.iter().zip(stored_values) {
            block.store(*k, body.nodes[*v].dtype, value);
        }
        Ok(block)
    }
}

/// The neutral element of a reduction.
fn neutral(kind: ReduceKind) -> f32 {
    match kind {
        ReduceKind::Sum => 0.0,
        ReduceKind::Prod => 1.0,
        ReduceKind::Max => f32::NEG_INFINITY,
        ReduceKind::Min => f32::INFINITY,
    }
}

/// Combines a value with a reduction.
fn combine(block: &mut Block, kind: ReduceKind, sum: Value, x: Value) -> Value {
    match kind {
        ReduceKind::Sum => block.two(two::ADD, sum, x),
        ReduceKind::Prod => block.two(two::MUL, sum, x),
        ReduceKind::Max => block.extremum(true, sum, x),
        ReduceKind::Min => block.extremum(false, sum, x),
    }
}
