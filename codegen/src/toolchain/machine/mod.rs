//! The compiler of kernels in process: no other program, no temporary file.
//!
//! It compiles the text that the printer for CPUs prints ([`crate::print::c`]), which is the C of a small language: integers,
//! pointers, vectors of 32-bit lanes, loops, branches, and functions that are inlined. So a kernel has one schedule, and the
//! machine's C compiler is an oracle for this one. What it does not know is left to that compiler, and the summary of a
//! compilation says why.
//!
//! [`front`] translates tokens to a program on virtual registers, whose [`builder`] shares equal computations and moves them out
//! of loops. [`optimize`] removes copies and forms operands, and [`allocate`] chooses registers. All of them know of the processor
//! what [`target`](mod@target) says. The emitters of [`x86`] and [`aarch64`] encode instructions; [`emitter`] is what they share.

pub mod aarch64;
mod allocate;
mod builder;
mod emitter;
mod front;
mod ir;
mod language;
mod lexer;
mod linear;
pub mod operation;
mod optimize;
mod target;
mod types;
pub mod x86;

use crate::isa::{Isa, Language};
use crate::toolchain::machine::allocate::Allocation;
use crate::toolchain::machine::ir::Program;
use crate::toolchain::machine::target::Target;

/// The emitter of a target.
type Emit = fn(&Program, &Allocation) -> Result<Vec<u8>, String>;

/// The target of an instruction set, and its emitter.
fn target(isa: &Isa) -> Option<(&'static Target, Emit)> {
    if isa.language != Language::C {
        return None;
    }
    let x86 = x86::target(isa).map(|t| (t, x86::emit as Emit));
    x86.or_else(|| aarch64::target(isa).map(|t| (t, aarch64::emit as Emit)))
}

/// Whether there is code for an instruction set: for AVX2, AVX-512 and NEON.
pub fn covers(isa: &Isa) -> bool {
    target(isa).is_some()
}

/// The machine code of a kernel with these statements, which begins with its entry point.
///
/// # Errors
/// The reason why there is none.
pub fn compile(body: &str, isa: &Isa) -> Result<Vec<u8>, String> {
    let missing = || format!("there is no code for the instruction set {}", isa.name);
    let (target, emit) = target(isa).ok_or_else(missing)?;
    let mut program = front::translate(body, &language::LANGUAGE, target)?;
    optimize::optimize(&mut program);
    emit(&program, &allocate::allocate(&program))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::toolchain::machine::ir::{FRAME, NONE, Op, Program, Reg};
    use crate::toolchain::machine::operation::{Alu, Cond, ShiftInt};

    /// Runs the integer instructions of a program on memory whose words have addresses that are multiples of 8.
    fn run(p: &Program, memory: &mut [i64]) -> i64 {
        let (mut values, mut at) = (vec![0i64; p.classes.len()], 0);
        values[FRAME as usize] = 1 << 20;
        let position = |label: u32| p.insts.iter().position(|i| i.op == Op::Label(label)).unwrap();
        let holds = |cond: Cond, a: i64, b: i64| match cond {
            Cond::Equal => a == b,
            Cond::NotEqual => a != b,
            Cond::Less => a < b,
            Cond::NotLess => a >= b,
            Cond::LessEqual => a <= b,
            Cond::Greater => a > b,
            other => panic!("{other:?}"),
        };
        for _ in 0..100_000 {
            let inst = &p.insts[at];
            let value = |r: Reg| values[r as usize];
            let [a, b, c, d] = inst.args;
            let second = if b == NONE { inst.imm } else { value(b) };
            let place = inst.mem.map_or(0, |m| value(m.base) + value(m.index) * i64::from(m.scale) + i64::from(m.disp));
            at += 1;
            values[inst.dst as usize] = match inst.op {
                Op::Imm => inst.imm,
                // The arguments are at the start of memory; there are eight iterations.
                Op::Param => [0, 0, 8, 0][inst.imm as usize],
                Op::Copy => value(a),
                Op::Lea => place,
                Op::Alu(Alu::Add) => value(a) + second,
                Op::Alu(Alu::Sub) => value(a) - second,
                Op::Alu(Alu::And) => value(a) & second,
                Op::Alu(Alu::Or) => value(a) | second,
                Op::Mul => value(a) * second,
                Op::MulHigh => ((i128::from(value(a)) * i128::from(value(b))) >> 64) as i64,
                Op::Divide(false, _) => value(a) / second,
                Op::Divide(true, _) => value(a) % second,
                Op::Shift(ShiftInt::Left) => value(a) << second,
                Op::Shift(ShiftInt::Right) => (value(a) as u64 >> second) as i64,
                Op::Shift(ShiftInt::RightSigned) => value(a) >> second,
                Op::Load(8, _) => memory[place as usize / 8],
                Op::Store(8) => {
                    memory[place as usize / 8] = value(a);
                    0
                }
                Op::Set(cond) => holds(cond, value(a), second).into(),
                Op::Select(cond) => value(if holds(cond, value(a), second) { c } else { d }),
                Op::Label(_) | Op::Loop(_) => 0,
                Op::Jump(to) => {
                    at = position(to);
                    0
                }
                Op::Branch(cond, to) => {
                    at = if holds(cond, value(a), second) { position(to) } else { at };
                    0
                }
                Op::Exit => return value(a),
                other => panic!("{other:?} is no integer instruction"),
            };
            values[NONE as usize] = 0;
        }
        panic!("it does not end");
    }

    /// Statements, and what they leave in `q[0]`, where `p` has the numbers from 0 on.
    const PROGRAMS: &[(&str, i64)] = &[
        ("i64 s = 0; for (i64 i = begin; i < end; i++) s += p[i]; q[0] = s;", 28),
        ("i64 s = 0; for (i64 i = 0; i < end; i++) { if (p[i] % 3 == 1) continue; s += p[i]; } q[0] = s;", 16),
        ("i64 x = 0; for (i64 i = 0; i < end; i++) { i64 v = x + p[i]; if (v > 9) break; x = v; } q[0] = x;", 6),
        ("i64 a = 1, b = 0; for (i64 i = 0; i < end; i++) { i64 t = a; a = b; b = t + b; } q[0] = b;", 21),
        ("i64 s = 0; for (i64 i = 0; i < end; i++) for (i64 j = 0; j < i; j++) s += p[j] * p[i]; q[0] = s;", 322),
        ("i64 s = 5; for (i64 i = 9; i < end; i++) s = 1; q[0] = s;", 5),
        ("i64 s = p[3] > p[2] ? p[5] : p[6]; if (s == 5) { s = 7; } else s = 1; q[0] = s;", 7),
        ("q[0] = dim_floordiv(p[0] - 7, p[2]) * 100 + dim_ceildiv(p[7], p[2]) * 10 + dim_mod(p[1] - 6, p[4]);", -357),
        ("i64 s = 0; for (i64 i = 0; i < end; i++) { s += i * 3 < 9 || i == 7; } q[0] = s + dim_min(p[4], p[3]);", 7),
        ("q[0] = (p[10] * 7 - 3) / 7 * 1000 + (p[1] - 20) / 3 * 10 + (p[2] - 20) % 7 + p[9] / 5 % 3;", 8937),
        (
            "i64 t = 0; for (i64 i = 0; i < end; i++) { i64 at = i; for (; at > 0; at--) { if (p[at] < 3) break; t += at; } } q[0] = t;",
            65,
        ),
        ("i64 h = 3; i64 a = p[h] > 2 ? h++ : h - 1; i64 b = p[h] > 4 ? h++ : h--; q[0] = 100 * a + 10 * b + h;", 343),
        ("i64 h = 3; i64 a = h > 2 ? h++ : h--; a += h < 2 ? h++ : h; q[0] = 10 * a + h;", 74),
        (
            "i64 n = 0; for (i64 i = 0; i < end;) { i += 2; n++; } q[0] = n / 2 * 10 + n % 2 + (n - 9) / 4 + (p[1] - 6) % 4;",
            18,
        ),
    ];

    #[test]
    fn statements_mean_the_same_before_and_after_optimization() {
        let (target, _) = target(Isa::by_name("avx512").unwrap()).unwrap();
        for (text, want) in PROGRAMS {
            let text = format!("const i64 *p = (const i64 *)args[0]; i64 *q = (i64 *)args[1]; {text}");
            let mut program = front::translate(&text, &language::LANGUAGE, target).unwrap();
            for optimized in [false, true] {
                if optimized {
                    optimize::optimize(&mut program);
                }
                // The addresses of the arguments, the numbers, the result.
                let mut memory: Vec<i64> = [80, 160].into_iter().chain([0; 8]).chain(0..11).collect();
                assert_eq!(run(&program, &mut memory), 0, "{text}");
                assert_eq!(memory[20], *want, "{text}, optimized: {optimized}");
            }
        }
    }

    #[test]
    fn what_has_no_translation_is_an_error() {
        let isa = Isa::by_name("avx512").unwrap();
        for text in ["while (1) ;", "i64 x = unknown(3);", "i64 x = &begin;", "goto end;", "i64 x = 1 +", "("] {
            assert!(compile(text, isa).is_err(), "{text}");
        }
    }
}
