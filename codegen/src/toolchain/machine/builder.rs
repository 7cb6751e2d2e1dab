//! Builds programs: equal computations are shared, and those that do not change in a loop are moved before it.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use crate::toolchain::machine::ir::{Address, Class, FRAME, Inst, NONE, Op, Program, Reg};
use crate::toolchain::machine::lexer::Fast;
use crate::toolchain::machine::linear::Linear;
use crate::toolchain::machine::operation::{Alu, ShiftInt};
use crate::toolchain::machine::target::Target;

type Key = (Op, [Reg; 4], Option<Address>, i64);

/// The instructions of a sequence, and its number.
pub type Closed = (Vec<Inst>, u32);

/// A sequence of instructions under construction.
struct Sequence {
    insts: Vec<Inst>,
    number: u32,
    is_loop: bool,
    known: HashMap<Key, Reg, BuildHasherDefault<Fast>>,
}

/// A program under construction.
pub struct Builder {
    open: Vec<Sequence>,
    classes: Vec<Class>,
    /// How deep in the open sequences a register is defined.
    depth: Vec<u16>,
    /// The definition of a register, where it has one.
    definitions: Vec<Option<Inst>>,
    sequences: u32,
    labels: u32,
    /// Bytes of arrays in the frame.
    pub frame: usize,
    /// Constants in memory.
    pub data: Vec<Vec<u8>>,
    /// The processors that the program is for.
    pub target: &'static Target,
}

impl Builder {
    /// An empty program.
    pub fn new(target: &'static Target) -> Builder {
        let (frame, data) = (0, Vec::new());
        let mut b = Builder {
            open: Vec::new(),
            classes: vec![Class::Int; 2],
            depth: vec![0; 2],
            definitions: vec![None; 2],
            sequences: 0,
            labels: 0,
            frame,
            data,
            target,
        };
        b.begin(false);
        b
    }

    /// The program.
    pub fn finish(mut self) -> Program {
        let (insts, _) = self.end();
        let Builder { classes, labels, frame, data, target, .. } = self;
        Program { insts, classes, labels: labels as usize, frame, data, target }
    }

    /// Begins a sequence: the body of a loop, or a branch.
    pub fn begin(&mut self, is_loop: bool) {
        let known = HashMap::default();
        self.open.push(Sequence { insts: Vec::new(), number: self.sequences, is_loop, known });
        self.sequences += 1;
    }

    /// Ends a sequence and returns its instructions.
    pub fn end(&mut self) -> Closed {
        self.open.pop().map(|s| (s.insts, s.number)).unwrap_or_default()
    }

    /// Opens a branch again, to add to its end.
    pub fn reopen(&mut self, (insts, number): Closed) {
        self.open.push(Sequence { insts, number, is_loop: false, known: HashMap::default() });
    }

    /// Forgets what was computed in the open sequence, whose variables change.
    pub fn forget_all(&mut self) {
        self.last().known.clear();
    }

    /// Appends instructions of another sequence.
    pub fn append(&mut self, insts: Vec<Inst>) {
        self.last().insts.extend(insts);
    }

    /// Appends pure instructions of another sequence as if they had been built here.
    pub fn adopt(&mut self, insts: Vec<Inst>) {
        let depth = (self.open.len() - 1) as u16;
        let number = self.last().number;
        for inst in insts {
            self.depth[inst.dst as usize] = depth;
            self.last().insts.push(Inst { sequence: number, ..inst });
        }
    }

    fn last(&mut self) -> &mut Sequence {
        let i = self.open.len() - 1;
        &mut self.open[i]
    }

    /// A new label.
    pub fn label(&mut self) -> u32 {
        self.labels += 1;
        self.labels - 1
    }

    /// A register that merges values of a variable, defined by copies.
    pub fn merge(&mut self, class: Class) -> Reg {
        self.classes.push(class);
        self.depth.push((self.open.len() - 1) as u16);
        self.definitions.push(None);
        (self.classes.len() - 1) as Reg
    }

    /// Says that a merged register is defined by the open sequence from now on.
    pub fn redefine(&mut self, r: Reg) {
        self.depth[r as usize] = (self.open.len() - 1) as u16;
    }

    /// Forgets computations with a merged register, whose value changes.
    pub fn forget(&mut self, r: Reg) {
        let later = &mut self.definitions[r as usize..];
        later.iter_mut().filter(|d| d.is_some_and(|i| i.reads().any(|x| x == r))).for_each(|d| *d = None);
        for s in &mut self.open {
            s.known
                .retain(|(_, args, mem, _), _| !args.contains(&r) && mem.is_none_or(|m| m.base != r && m.index != r));
        }
    }

    /// Whether the last instruction defines a register.
    pub fn is_last(&self, r: Reg) -> bool {
        self.open.last().and_then(|s| s.insts.last()).is_some_and(|i| i.dst == r)
    }

    /// What a register holds.
    pub fn class(&self, r: Reg) -> Class {
        self.classes[r as usize]
    }

    /// The instruction that defines a register, if it is one.
    pub fn definition(&self, r: Reg) -> Option<&Inst> {
        self.definitions[r as usize].as_ref()
    }

    /// Appends an instruction with an effect.
    pub fn effect(&mut self, inst: Inst) {
        let sequence = self.last().number;
        self.last().insts.push(Inst { sequence, ..inst });
    }

    /// Appends an instruction with a result that must stay here: a load, a quotient.
    pub fn here(&mut self, class: Class, inst: Inst) -> Reg {
        let dst = self.merge(class);
        let sequence = self.last().number;
        let inst = Inst { dst, sequence, ..inst };
        self.definitions[dst as usize] = Some(inst);
        self.last().insts.push(inst);
        dst
    }

    /// The result of a computation without effects.
    pub fn pure(&mut self, class: Class, inst: Inst) -> Reg {
        let key = (inst.op, inst.args, inst.mem, inst.imm);
        let needs = inst.reads().map(|r| self.depth[r as usize]).max().unwrap_or(0) as usize;
        let top = self.open.len() - 1;
        for i in (needs..=top).rev() {
            if let Some(r) = self.open[i].known.get(&key) {
                return *r;
            }
        }
        let outside = (needs + 1..=top).find(|i| self.open[*i].is_loop).map_or(top, |i| i - 1);
        let dst = self.classes.len() as Reg;
        self.classes.push(class);
        self.depth.push(outside as u16);
        let s = &mut self.open[outside];
        let inst = Inst { dst, sequence: s.number, ..inst };
        s.insts.push(inst);
        s.known.insert(key, dst);
        self.definitions.push(Some(inst));
        dst
    }

    // ---- integers ----

    /// A number in a register.
    pub fn imm(&mut self, n: i64) -> Reg {
        self.pure(Class::Int, Inst { imm: n, ..Inst::new(Op::Imm, NONE, &[]) })
    }

    /// An operation on a register and a number or register.
    pub fn int(&mut self, op: Op, a: Reg, b: &Linear) -> Reg {
        match b.as_number().filter(|n| i32::try_from(*n).is_ok()) {
            Some(n) => self.pure(Class::Int, Inst { imm: n, ..Inst::new(op, NONE, &[a]) }),
            None => {
                let b = self.value(b);
                self.pure(Class::Int, Inst::new(op, NONE, &[a, b]))
            }
        }
    }

    /// The registers of a form with their factors, those of outer loops first. A difference begins with what it is subtracted from.
    fn by_depth(&self, form: &Linear) -> Vec<(Reg, i64)> {
        let mut terms = form.terms.to_vec();
        terms.sort_by_key(|(r, n)| (self.depth[*r as usize], *n < 0, *r));
        terms
    }

    /// The sum of registers with factors; `None` if there are none.
    fn sum(&mut self, terms: &[(Reg, i64)]) -> Option<Reg> {
        let mut out: Option<Reg> = None;
        for (r, n) in terms {
            let scaled = matches!(n, 1 | 2 | 4 | 8);
            out = Some(match out {
                None if *n == 1 => *r,
                Some(base) if scaled => self.lea(Address { base, index: *r, scale: *n as u8, disp: 0 }),
                Some(base) if *n == -1 => self.pure(Class::Int, Inst::new(Op::Alu(Alu::Sub), NONE, &[base, *r])),
                _ => {
                    let product = match n {
                        n if *n > 0 && n.count_ones() == 1 => {
                            self.int(Op::Shift(ShiftInt::Left), *r, &Linear::number(n.trailing_zeros().into()))
                        }
                        n => self.int(Op::Mul, *r, &Linear::number(*n)),
                    };
                    match out {
                        None => product,
                        Some(base) => self.lea(Address { base, index: product, scale: 1, disp: 0 }),
                    }
                }
            });
        }
        out
    }

    fn lea(&mut self, mem: Address) -> Reg {
        self.pure(Class::Int, Inst { mem: Some(mem), ..Inst::new(Op::Lea, NONE, &[]) })
    }

    /// The value of a form in a register.
    pub fn value(&mut self, form: &Linear) -> Reg {
        let terms = self.by_depth(form);
        let Some(sum) = self.sum(&terms) else { return self.imm(form.constant) };
        match i32::try_from(form.constant) {
            Ok(0) => sum,
            Ok(disp) => self.lea(Address { base: sum, index: NONE, scale: 1, disp }),
            Err(_) => {
                let index = self.imm(form.constant);
                self.lea(Address { base: sum, index, scale: 1, disp: 0 })
            }
        }
    }

    /// The place in memory at an address: what changes in the innermost loop is the index.
    pub fn address(&mut self, form: &Linear) -> Address {
        let Ok(disp) = i32::try_from(form.constant) else {
            return Address { base: self.value(form), index: NONE, scale: 1, disp: 0 };
        };
        let mut terms = self.by_depth(form);
        let deepest = terms.last().map_or(0, |(r, _)| self.depth[*r as usize]);
        let fits =
            |(r, n): &(Reg, i64)| self.depth[*r as usize] == deepest && matches!(n, 1 | 2 | 4 | 8) && *r != FRAME;
        let index = if terms.len() > 1 { terms.iter().rposition(fits) } else { None };
        let (index, scale) = index.map_or((NONE, 1), |i| terms.remove(i));
        let base = match self.sum(&terms) {
            Some(base) => base,
            None => self.imm(0),
        };
        Address { base, index, scale: scale as u8, disp }
    }

    // ---- vectors ----

    /// A word in all lanes.
    pub fn constant(&mut self, bits: u32) -> Reg {
        self.pure(Class::Vector, Inst { imm: bits.into(), ..Inst::new(Op::Const, NONE, &[]) })
    }

    /// A float in all lanes.
    pub fn float(&mut self, x: f32) -> Reg {
        self.constant(x.to_bits())
    }

    /// A vector operation on registers.
    pub fn vector(&mut self, op: Op, args: &[Reg]) -> Reg {
        self.pure(Class::Vector, Inst::new(op, NONE, args))
    }
}
