//! Register allocation: a value is live from its first definition to its last reader, or to the end of the loop that it lives through.
//! Values get registers in the order of their weight, the number of uses weighted by loops, per instruction that they are live. What gets
//! none is in memory, or is computed again; inside of loops that have registers left it is in a register nevertheless. Vector constants
//! come last.

use crate::toolchain::machine::ir::{Class, FRAME, Inst, NONE, Op, Program, Reg};

/// How much more a value counts that is used in a loop.
const LOOP_WEIGHT: f32 = 16.0;
/// How much a constant counts: most instructions read it from memory as well.
const AGAIN_WEIGHT: f32 = 0.1;

/// Where a value is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// Nowhere: it is not used.
    None,
    /// In a general-purpose or vector register.
    Register(u8),
    /// In the frame, at this slot of its class.
    Slot(u32),
    /// Computed again where it is read: a number or constant.
    Again(i64),
}

/// A loop in which a value without a register has one. It is loaded where the loop begins.
#[derive(Clone, Copy, Debug)]
pub struct Split {
    /// The value.
    pub value: Reg,
    /// Its register.
    pub register: u8,
    /// The first and the last instruction of the loop.
    pub span: Span,
    /// When what the loop changes is stored.
    pub stores: Stores,
}

/// When a value that has a register in a loop is stored in its slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stores {
    /// Never: the loop does not change it, or nothing reads it after the loop.
    Never,
    /// Where it changes, because jumps leave the loop.
    AtChanges,
    /// Where the loop ends.
    AtEnd,
}

/// First and last instruction.
pub type Span = (u32, u32);

/// The places of all values.
pub struct Allocation {
    /// By register of the program.
    pub places: Vec<Place>,
    /// Values that are elsewhere in loops, by the start of the loop.
    pub splits: Vec<Split>,
    /// Slots of 8 bytes.
    pub slots: u32,
    /// Slots of a vector.
    pub vectors: u32,
    /// For each vector register the spans in which it holds a value, in order.
    pub busy: Vec<Vec<Span>>,
    /// The general-purpose registers that hold values.
    pub general: Vec<u8>,
}

/// A live range.
#[derive(Clone, Copy)]
struct Range {
    register: Reg,
    span: Span,
    weight: f32,
}

impl Range {
    /// Weight per instruction.
    fn density(&self) -> f32 {
        self.weight / (self.span.1 - self.span.0 + 1) as f32
    }
}

/// A loop.
struct Loop {
    span: Span,
    around: Option<u32>,
    depth: u8,
    /// Whether jumps leave it.
    leaves: bool,
}

/// The loops of a program, and the innermost one around each instruction.
struct Loops {
    all: Vec<Loop>,
    around: Vec<Option<u32>>,
}

impl Loops {
    fn of(p: &Program) -> Loops {
        let (mut around, mut all): (Vec<Option<u32>>, Vec<Loop>) = Default::default();
        let mut now: Option<u32> = None;
        for (i, inst) in p.insts.iter().enumerate() {
            if inst.op == Op::Loop(true) {
                let depth = 1 + now.map_or(0, |l: u32| all[l as usize].depth);
                all.push(Loop { span: (i as u32, 0), around: now, depth, leaves: false });
                now = Some(all.len() as u32 - 1);
            }
            around.push(now);
            if inst.op == Op::Loop(false)
                && let Some(l) = now
            {
                all[l as usize].span.1 = i as u32;
                now = all[l as usize].around;
            }
        }
        let mut loops = Loops { all, around };
        loops.find_leaving_jumps(p);
        loops
    }

    /// Marks the loops that jumps leave.
    fn find_leaving_jumps(&mut self, p: &Program) {
        let mut labels = vec![0; p.labels];
        for (i, inst) in p.insts.iter().enumerate() {
            if let Op::Label(l) = inst.op {
                labels[l as usize] = i as u32;
            }
        }
        for (i, inst) in p.insts.iter().enumerate() {
            let (Op::Jump(l) | Op::Branch(_, l)) = inst.op else { continue };
            let (to, mut around) = (labels[l as usize], self.around[i]);
            while let Some(l) = around {
                let l = &mut self.all[l as usize];
                l.leaves |= to < l.span.0 || to > l.span.1;
                around = l.around;
            }
        }
    }

    /// The loops around an instruction, from inside out.
    fn outward(&self, at: u32) -> impl Iterator<Item = &Loop> {
        std::iter::successors(self.around[at as usize], |l| self.all[*l as usize].around).map(|l| &self.all[l as usize])
    }

    /// How much a use there counts.
    fn weight(&self, at: u32) -> f32 {
        let depth = self.outward(at).next().map_or(0, |l| l.depth);
        LOOP_WEIGHT.powi(depth.min(11).into())
    }
}

/// The live ranges of all registers.
fn ranges(p: &Program, loops: &Loops, again: &[Option<i64>]) -> Vec<Range> {
    let empty = Range { register: NONE, span: (u32::MAX, 0), weight: 0.0 };
    let mut out = vec![empty; p.classes.len()];
    for (i, inst) in p.insts.iter().enumerate() {
        let at = i as u32;
        let weight = loops.weight(at);
        for r in inst.reads() {
            let range = &mut out[r as usize];
            range.weight += weight;
            range.span.1 = range.span.1.max(at);
            // It lives through loops that begin after its definition.
            for l in loops.outward(at).take_while(|l| l.span.0 > range.span.0) {
                range.span.1 = range.span.1.max(l.span.1);
            }
        }
        if inst.dst != NONE {
            let range = &mut out[inst.dst as usize];
            range.register = inst.dst;
            range.span = (range.span.0.min(at), range.span.1.max(at));
            range.weight += weight;
        }
    }
    out.retain(|r| r.register != NONE && r.register != FRAME);
    for r in out.iter_mut().filter(|r| again[r.register as usize].is_some()) {
        r.weight *= AGAIN_WEIGHT;
    }
    out
}

/// Numbers and constants that are computed again where they have no register.
fn computed_again(p: &Program) -> Vec<Option<i64>> {
    let mut again: Vec<Option<i64>> = vec![None; p.classes.len()];
    let mut known = vec![true; p.classes.len()];
    for Inst { op, dst, imm, .. } in &p.insts {
        let dst = *dst as usize;
        // Merged registers have several definitions.
        known[dst] &= matches!(op, Op::Imm | Op::Const) && again[dst].is_none();
        again[dst] = Some(*imm);
    }
    again.iter_mut().zip(known).filter(|(_, known)| !known).for_each(|(n, _)| *n = None);
    again
}

/// Registers of one class, with the spans in which they hold values.
struct Registers {
    numbers: Vec<u8>,
    busy: Vec<Vec<Span>>,
}

impl Registers {
    fn new(numbers: Vec<u8>) -> Registers {
        let busy = vec![Vec::new(); numbers.len()];
        Registers { numbers, busy }
    }

    /// Where a span belongs in those of a register, if that is free. A span may begin where another ends.
    fn position(&self, i: usize, span: Span) -> Option<usize> {
        let busy = &self.busy[i];
        let at = busy.partition_point(|s| s.1 <= span.0 && s.0 < span.0);
        busy.get(at).is_none_or(|s| s.0 >= span.1 && s.0 > span.0).then_some(at)
    }

    /// A register that is free in a span, one of the wanted if possible. At least `spare` others stay free.
    fn take(&mut self, span: Span, wanted: impl Iterator<Item = u8>, spare: usize) -> Option<u8> {
        let all = 0..self.numbers.len();
        if spare > 0 && all.clone().filter(|i| self.position(*i, span).is_some()).count() <= spare {
            return None;
        }
        let wanted = wanted.filter_map(|r| self.numbers.iter().position(|n| *n == r));
        let (i, at) = wanted.chain(all).find_map(|i| Some((i, self.position(i, span)?)))?;
        self.busy[i].insert(at, span);
        Some(self.numbers[i])
    }

    /// Frees a register in a span that it was taken for.
    fn release(&mut self, register: u8, span: Span) {
        if let Some(i) = self.numbers.iter().position(|n| *n == register) {
            self.busy[i].retain(|s| *s != span);
        }
    }
}

/// Pairs of values that cost a copy if they are in different registers: the result, and what the instruction replaces by it.
fn partners(p: &Program) -> Vec<Vec<Reg>> {
    let mut out = vec![Vec::new(); p.classes.len()];
    for inst in &p.insts {
        let from = match inst.op {
            Op::Fma(..) => inst.args[2],
            Op::Copy | Op::Alu(_) | Op::Mul | Op::Shift(_) | Op::Dot(_) | Op::Blend => inst.args[0],
            Op::Lea => inst.mem.map_or(NONE, |m| m.base),
            _ => NONE,
        };
        if from != NONE && from != FRAME && inst.dst != NONE {
            out[inst.dst as usize].push(from);
            out[from as usize].push(inst.dst);
        }
    }
    out
}

/// The key of a density, which orders the densest first.
fn first_densest(density: f32) -> u64 {
    (!density.to_bits()).into()
}

/// Elements by a key, equal ones in their order. One sort serves all types.
pub fn sorted<T: Copy>(list: &[T], key: &dyn Fn(&T) -> (u64, Span)) -> Vec<T> {
    let mut keys: Vec<(u64, Span, usize)> = list.iter().enumerate().map(|(i, x)| (key(x).0, key(x).1, i)).collect();
    keys.sort_unstable();
    keys.into_iter().map(|(_, _, i)| list[i]).collect()
}

/// Chooses the places of all values.
pub fn allocate(p: &Program) -> Allocation {
    let mut places = vec![Place::None; p.classes.len()];
    places[FRAME as usize] = Place::Register(p.target.frame);
    let again = computed_again(p);
    let loops = Loops::of(p);
    let partners = partners(p);
    let mut ranges = ranges(p, &loops, &again);
    ranges = sorted(&ranges, &|r| (first_densest(r.density()), r.span));
    let mut classes = [p.target.general, p.target.vectors].map(|all| Registers::new(all.to_vec()));
    let class = |r: Reg| usize::from(p.classes[r as usize] == Class::Vector);
    // Instructions read constants from memory as well: they get the registers that other values leave.
    let is_constant =
        |r: &Range| again[r.register as usize].is_some() && p.classes[r.register as usize] == Class::Vector;
    let (constants, values): (Vec<Range>, Vec<Range>) = ranges.into_iter().partition(is_constant);
    let mut without = Vec::new();
    for range in values {
        let r = range.register;
        let wanted = partners[r as usize].iter().filter_map(|x| match places[*x as usize] {
            Place::Register(n) => Some(n),
            _ => None,
        });
        // A parameter stays where it comes in, if it can.
        let own = p.target.parameters.iter().zip(&p.insts).find(|(_, i)| i.dst == r && i.op == Op::Param);
        let wanted = own.and_then(|(_, i)| p.target.parameters.get(i.imm as usize)).copied().into_iter().chain(wanted);
        match classes[class(r)].take(range.span, wanted, 0) {
            Some(n) => places[r as usize] = Place::Register(n),
            None => without.push(range),
        }
    }
    let without = sorted(&without, &|r| (0, r.span));
    let mut slots = [Slots::default(), Slots::default()];
    for range in &without {
        places[range.register as usize] = match again[range.register as usize] {
            Some(n) => Place::Again(n),
            None => Place::Slot(slots[class(range.register)].take(range.span)),
        };
    }
    let splits = splits(candidates(p, &loops, &without, &again), p, &mut classes);
    for Range { register, span, .. } in constants {
        let place = classes[1].take(span, [].into_iter(), 0).map(Place::Register);
        places[register as usize] = place.or(again[register as usize].map(Place::Again)).unwrap_or(Place::None);
    }
    let [slots, vectors] = slots.map(|s| s.count);
    let [general, by_order] = classes;
    let mut busy = vec![Vec::new(); by_order.numbers.len()];
    by_order.numbers.iter().zip(by_order.busy).for_each(|(n, spans)| busy[*n as usize] = spans);
    let used = general.numbers.iter().zip(&general.busy).filter(|(_, spans)| !spans.is_empty());
    let general = used.map(|(n, _)| *n).collect();
    Allocation { places, splits, slots, vectors, busy, general }
}

/// Vector registers that stay free in loops, as temporaries.
const SPARE_VECTORS: usize = 1;

/// A value in a loop, and how much its uses there count.
#[derive(Clone, Copy)]
struct Candidate {
    split: Split,
    weight: f32,
}

impl Candidate {
    fn density(&self) -> f32 {
        self.weight / (self.split.span.1 - self.split.span.0) as f32
    }
}

/// The loops that values without a register are used in.
fn candidates(p: &Program, loops: &Loops, without: &[Range], again: &[Option<i64>]) -> Vec<Candidate> {
    let mut range_of: Vec<Option<Span>> = vec![None; p.classes.len()];
    without.iter().for_each(|r| range_of[r.register as usize] = Some(r.span));
    let mut out: Vec<Candidate> = Vec::new();
    let mut of_value: Vec<Vec<usize>> = vec![Vec::new(); p.classes.len()];
    for (i, inst) in p.insts.iter().enumerate() {
        for value in inst.reads().chain([inst.dst]) {
            let Some(range) = range_of[value as usize] else { continue };
            for l in loops.outward(i as u32).filter(|l| l.span.0 > range.0) {
                let known = of_value[value as usize].iter().copied().find(|at| out[*at].split.span == l.span);
                let at = known.unwrap_or_else(|| {
                    let split = Split { value, register: 0, span: l.span, stores: Stores::Never };
                    out.push(Candidate { split, weight: 0.0 });
                    of_value[value as usize].push(out.len() - 1);
                    out.len() - 1
                });
                let again = if again[value as usize].is_some() { AGAIN_WEIGHT } else { 1.0 };
                out[at].weight += loops.weight(i as u32) * again;
                if inst.dst == value && range.1 > l.span.1 {
                    out[at].split.stores = if l.leaves { Stores::AtChanges } else { Stores::AtEnd };
                }
            }
        }
    }
    out
}

/// Registers that values without one have in loops: those of inner loops first, in which most time is spent.
fn splits(candidates: Vec<Candidate>, p: &Program, classes: &mut [Registers; 2]) -> Vec<Split> {
    let candidates = sorted(&candidates, &|c| (first_densest(c.density()), c.split.span));
    let mut out: Vec<Split> = Vec::new();
    for Candidate { split, .. } in candidates {
        let inside = |a: Span, b: Span| a.0 >= b.0 && a.1 <= b.1;
        if out.iter().any(|s| s.value == split.value && inside(split.span, s.span)) {
            continue;
        }
        let is_vector = p.classes[split.value as usize] == Class::Vector;
        let (registers, spare) = (&mut classes[usize::from(is_vector)], if is_vector { SPARE_VECTORS } else { 0 });
        // A register for the outer loop replaces those of loops inside.
        let (inner, others): (Vec<Split>, Vec<Split>) =
            out.into_iter().partition(|s| s.value == split.value && inside(s.span, split.span));
        out = others;
        inner.iter().for_each(|s| registers.release(s.register, s.span));
        match registers.take(split.span, inner.iter().map(|s| s.register), spare) {
            Some(register) => out.push(Split { register, ..split }),
            None => {
                for s in inner {
                    registers.take(s.span, [s.register].into_iter(), 0);
                    out.push(s);
                }
            }
        }
    }
    sorted(&out, &|s| (0, s.span))
}

/// Slots in the frame, which are used again.
#[derive(Default)]
struct Slots {
    count: u32,
    /// The end of the range that has each slot.
    ends: Vec<u32>,
}

impl Slots {
    /// The slot of a range that begins after those before.
    fn take(&mut self, span: Span) -> u32 {
        if let Some(i) = self.ends.iter().position(|end| *end < span.0) {
            self.ends[i] = span.1;
            return i as u32;
        }
        self.ends.push(span.1);
        self.count += 1;
        self.count - 1
    }
}
