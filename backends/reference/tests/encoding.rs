//! Instructions of the emitter's assembler for x86-64, as a disassembler reads them.

use std::process::Command;

use of_codegen::toolchain::machine::operation::{Cond, Shift, ShiftInt};
use of_codegen::toolchain::machine::x86::asm::Gp::{R8, R11, R12, R13, Rax, Rbp, Rbx, Rcx, Rdi, Rsi, Rsp};
use of_codegen::toolchain::machine::x86::asm::{Alu, Args, Asm, Mem, Op, Rm, lane_shift, op};
use of_codegen::toolchain::machine::x86::opcode::{matrix, one, two};
use of_test_support::component::{OBJDUMP, require};

/// The instructions of a kernel in Intel's syntax, one string each.
fn disassembled(code: &[u8]) -> Option<Vec<String>> {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), code).unwrap();
    let words = ["-D", "-b", "binary", "-m", "i386:x86-64", "-M", "intel", "--no-show-raw-insn"];
    let out = require(&OBJDUMP, Command::new("objdump").args(words).arg(file.path()).output())?;
    let text = String::from_utf8(out.stdout).unwrap();
    let lines = text.lines().filter_map(|l| l.split_once(":\t")).map(|(_, i)| i.split('#').next().unwrap().trim());
    Some(lines.map(|l| l.split_whitespace().collect::<Vec<_>>().join(" ")).collect())
}

/// Checks that the instructions that `emit` adds are read as `want`.
fn check(evex: bool, emit: impl FnOnce(&mut Asm), want: &[String]) {
    let mut asm = Asm::new(evex);
    emit(&mut asm);
    let length = asm.position();
    let code = asm.finish();
    let Some(got) = disassembled(&code[..length]) else { return };
    // A displacement of 0 is there where it has to be, and a prefix is named where a shorter one would do.
    let plain = |text: &str| text.replace("+0x0]", "]").replace("{evex} ", "");
    for (got, want) in got.iter().zip(want) {
        assert_eq!(plain(got), plain(want));
    }
    assert_eq!(got.len(), want.len());
}

/// The name of a vector instruction, for AVX2 and AVX-512.
const TWO: &[(Op, &str, &str)] = &[
    (two::ADD, "vaddps", "vaddps"),
    (two::SUB, "vsubps", "vsubps"),
    (two::MUL, "vmulps", "vmulps"),
    (two::DIV, "vdivps", "vdivps"),
    (two::MIN, "vminps", "vminps"),
    (two::MAX, "vmaxps", "vmaxps"),
    (two::AND, "vpand", "vpandd"),
    (two::OR, "vpor", "vpord"),
    (two::XOR, "vpxor", "vpxord"),
    (two::IADD, "vpaddd", "vpaddd"),
    (two::ISUB, "vpsubd", "vpsubd"),
    (two::IMUL, "vpmulld", "vpmulld"),
    (two::IMAX, "vpmaxsd", "vpmaxsd"),
    (two::IMIN, "vpminsd", "vpminsd"),
    (op(1, 2, 0xa8), "vfmadd213ps", "vfmadd213ps"),
    (op(1, 2, 0xb8), "vfmadd231ps", "vfmadd231ps"),
    (op(1, 2, 0xac), "vfnmadd213ps", "vfnmadd213ps"),
    (op(1, 2, 0xbc), "vfnmadd231ps", "vfnmadd231ps"),
    (op(1, 2, 0x98), "vfmadd132ps", "vfmadd132ps"),
    (op(1, 2, 0x9a), "vfmsub132ps", "vfmsub132ps"),
    (op(1, 2, 0x9c), "vfnmadd132ps", "vfnmadd132ps"),
];

const ONE: &[(Op, &str)] = &[
    (one::SQRT, "vsqrtps"),
    (one::TRUNCATE_TO_INT, "vcvttps2dq"),
    (one::TO_FLOAT, "vcvtdq2ps"),
    (one::LOAD, "vmovups"),
    (one::MOVE, "vmovaps"),
];

#[test]
fn vector_instructions_are_encoded() {
    for (evex, v, size) in [(false, "ymm", "YMMWORD"), (true, "zmm", "ZMMWORD")] {
        let numbers: &[u8] = if evex { &[0, 7, 8, 15, 16, 23, 24, 31] } else { &[0, 7, 8, 15] };
        let (mut calls, mut want) = (Vec::new(), Vec::new());
        let places = [
            (Mem::at(Rsp, 64), "[rsp+0x40]"),
            (Mem::at(R12, 64), "[r12+0x40]"),
            (Mem::at(R13, 64), "[r13+0x40]"),
            (Mem::At(R13, Some((R12, 4)), 64), "[r13+r12*4+0x40]"),
            (Mem::At(Rsi, Some((Rax, 1)), 64), "[rsi+rax*1+0x40]"),
            (Mem::At(R13, None, 0), "[r13]"),
            (Mem::At(Rbx, Some((Rax, 8)), 0), "[rbx+rax*8]"),
            (Mem::at(Rdi, 100), "[rdi+0x64]"),
            (Mem::at(Rdi, -128), "[rdi-0x80]"),
            (Mem::at(R12, 1 << 20), "[r12+0x100000]"),
        ];
        for (i, a) in numbers.iter().enumerate() {
            let (b, c) = (numbers[(i + 1) % numbers.len()], numbers[(i + 3) % numbers.len()]);
            for (op, vex_name, evex_name) in TWO {
                let name = if evex { evex_name } else { vex_name };
                calls.push((*op, Args::new(*a, b, Rm::Reg(c))));
                want.push(format!("{name} {v}{a},{v}{b},{v}{c}"));
                for (mem, text) in places {
                    calls.push((*op, Args::new(*a, b, Rm::Mem(mem))));
                    want.push(format!("{name} {v}{a},{v}{b},{size} PTR {text}"));
                    if evex {
                        calls.push((*op, Args { broadcast: true, ..Args::new(*a, b, Rm::Mem(mem)) }));
                        want.push(format!("{name} {v}{a},{v}{b},DWORD BCST {text}"));
                    }
                }
            }
            for (op, name) in ONE {
                calls.push((*op, Args::new(*a, 0, Rm::Reg(c))));
                want.push(format!("{name} {v}{a},{v}{c}"));
                for (mem, text) in places {
                    calls.push((*op, Args::new(*a, 0, Rm::Mem(mem))));
                    want.push(format!("{name} {v}{a},{size} PTR {text}"));
                }
            }
            for (mem, text) in places {
                calls.push((one::BROADCAST, Args::new(*a, 0, Rm::Mem(mem))));
                want.push(format!("vbroadcastss {v}{a},DWORD PTR {text}"));
                let short = Args { bits: 128, ..Args::new(*a, 0, Rm::Mem(mem)) };
                calls.push((op(2, 1, 0x10), short));
                want.push(format!("vmovss xmm{a},DWORD PTR {text}"));
            }
            for (how, name) in [(Shift::Left, "vpslld"), (Shift::Right, "vpsrld"), (Shift::RightSigned, "vpsrad")] {
                calls.push((op(1, 1, 0x72), Args { imm: Some(23), ..Args::new(lane_shift(how), *a, Rm::Reg(c)) }));
                want.push(format!("{name} {v}{a},{v}{c},0x17"));
            }
        }
        check(evex, |asm| calls.into_iter().for_each(|(op, args)| asm.vector(op, args)), &want);
    }
}

#[test]
fn masks_and_constants_are_encoded() {
    let masked = |zero| Args { mask: 2, zero, ..Args::new(17, 0, Rm::Mem(Mem::at(Rsi, 64))) };
    let emit = |asm: &mut Asm| {
        asm.kmovw(2, Rcx);
        asm.kmovw(1, R11);
        asm.vector(op(0, 1, 0x10), masked(true));
        asm.vector(op(0, 1, 0x11), masked(false));
        asm.vector(op(2, 2, 0x31), masked(false));
        asm.vector(op(1, 3, 0x25), Args { imm: Some(0xca), ..Args::new(3, 20, Rm::Reg(31)) });
        asm.vector(op(0, 1, 0xc2), Args { imm: Some(4), ..Args::new(1, 20, Rm::Reg(31)) });
        asm.vector(op(2, 2, 0x38), Args::new(30, 0, Rm::Reg(1)));
        asm.vector(op(1, 2, 0x2c), Args { mask: 1, zero: true, ..Args::new(9, 10, Rm::Reg(11)) });
        asm.kmovw_from(Rcx, 1);
        asm.kmovw_from(R11, 2);
        asm.vector(op(1, 2, 0x65), Args { mask: 1, ..Args::new(9, 20, Rm::Reg(31)) });
        asm.vector(op(1, 2, 0x50), Args::new(9, 20, Rm::Reg(31)));
        asm.vector(op(2, 2, 0x52), Args::new(9, 20, Rm::Reg(31)));
        asm.vector(op(1, 1, 0x6e), Args { bits: 128, ..Args::new(20, 0, Rm::Reg(R11 as u8)) });
        asm.vector(Op { wide: true, ..op(2, 1, 0x2a) }, Args { bits: 128, ..Args::new(20, 20, Rm::Reg(R8 as u8)) });
    };
    let want = [
        "kmovw k2,ecx",
        "kmovw k1,r11d",
        "vmovups zmm17{k2}{z},ZMMWORD PTR [rsi+0x40]",
        "vmovups ZMMWORD PTR [rsi+0x40]{k2},zmm17",
        "vpmovdb XMMWORD PTR [rsi+0x40]{k2},zmm17",
        "vpternlogd zmm3,zmm20,zmm31,0xca",
        "vcmpneqps k1,zmm20,zmm31",
        "vpmovm2d zmm30,k1",
        "vscalefps zmm9{k1}{z},zmm10,zmm11",
        "kmovw ecx,k1",
        "kmovw r11d,k2",
        "vblendmps zmm9{k1},zmm20,zmm31",
        "vpdpbusd zmm9,zmm20,zmm31",
        "vdpbf16ps zmm9,zmm20,zmm31",
        "vmovd xmm20,r11d",
        "vcvtsi2ss xmm20,xmm20,r8",
    ];
    check(true, emit, &want.map(String::from));
}

#[test]
fn general_instructions_are_encoded() {
    let emit = |asm: &mut Asm| {
        asm.mov(R8, Rax);
        asm.mov_imm(R12, -1);
        asm.mov_imm(R12, 7);
        asm.mov_imm(R12, 1 << 40);
        asm.load(R11, Rm::Mem(Mem::at(Rbp, -48)), 8, false);
        asm.store(Mem::at(Rsp, 64), R13, 8);
        asm.load(Rcx, Rm::Mem(Mem::At(R13, Some((R12, 2)), 64)), 2, false);
        asm.load(R8, Rm::Mem(Mem::at(Rbp, 0)), 1, true);
        asm.load(R8, Rm::Reg(Rsi as u8), 4, true);
        asm.load(Rcx, Rm::Reg(Rsi as u8), 1, false);
        asm.store(Mem::at(R8, 64), Rsi, 1);
        asm.store(Mem::at(R8, 64), Rsi, 2);
        asm.store(Mem::at(R8, 1 << 10), R11, 4);
        asm.alu(Alu::Cmp, Rax, Rm::Reg(R11 as u8));
        asm.alu_imm(Alu::And, Rsp, -64);
        asm.alu_imm(Alu::Or, R8, 1 << 10);
        asm.imul(R8, Rm::Mem(Mem::at(Rbp, -48)));
        asm.imul_imm(R11, Rm::Reg(R8 as u8), 768);
        asm.multiply(Rm::Reg(R8 as u8));
        asm.multiply(Rm::Mem(Mem::at(Rbp, -48)));
        asm.exchange(R8, Rsi);
        asm.divide(Rcx, true);
        asm.divide(R8, false);
        asm.shift_imm(ShiftInt::RightSigned, R8, 3);
        asm.shift_cl(ShiftInt::Left, R8);
        asm.move_if(Cond::Below, R8, Rm::Reg(Rcx as u8));
        asm.set_if(Cond::LessEqual, Rsi);
        asm.prefetch(Mem::at(R8, 64), true);
        asm.prefetch(Mem::at(R8, 64), false);
        asm.push(R12);
        asm.pop(Rbp);
        let here = asm.label();
        asm.bind(here);
        asm.jump_if(Cond::NotLess, here);
        asm.vzeroupper();
        asm.ret();
    };
    let want = [
        "mov r8,rax",
        "mov r12,0xffffffffffffffff",
        "mov r12d,0x7",
        "movabs r12,0x10000000000",
        "mov r11,QWORD PTR [rbp-0x30]",
        "mov QWORD PTR [rsp+0x40],r13",
        "movzx ecx,WORD PTR [r13+r12*2+0x40]",
        "movsx r8,BYTE PTR [rbp+0x0]",
        "movsxd r8,esi",
        "movzx ecx,sil",
        "mov BYTE PTR [r8+0x40],sil",
        "mov WORD PTR [r8+0x40],si",
        "mov DWORD PTR [r8+0x400],r11d",
        "cmp rax,r11",
        "and rsp,0xffffffffffffffc0",
        "or r8,0x400",
        "imul r8,QWORD PTR [rbp-0x30]",
        "imul r11,r8,0x300",
        "imul r8",
        "imul QWORD PTR [rbp-0x30]",
        "xchg rsi,r8",
        "cqo",
        "idiv rcx",
        "mov edx,0x0",
        "div r8",
        "sar r8,0x3",
        "shl r8,cl",
        "cmovb r8,rcx",
        "setle sil",
        "prefetcht1 BYTE PTR [r8+0x40]",
        "prefetcht0 BYTE PTR [r8+0x40]",
        "rex push r12",
        "pop rbp",
    ];
    let mut asm = Asm::new(false);
    emit(&mut asm);
    let Some(got) = disassembled(&asm.finish()) else { return };
    let got: Vec<String> = got.iter().map(|g| g.replace("rex.B ", "").replace("rex ", "")).collect();
    let want: Vec<String> = want.iter().map(|w| w.replace("rex ", "")).collect();
    assert_eq!(got[..want.len()], want);
    assert!(got[want.len()].starts_with("jge"), "{got:?}");
    assert_eq!(got[want.len() + 1..], ["vzeroupper", "ret"]);
}

#[test]
fn instructions_of_matrix_registers_are_encoded() {
    let (mut calls, mut want) = (Vec::new(), Vec::new());
    for (i, (base, index)) in [(Rdi, Rax), (R13, R12), (Rbp, R8), (R12, Rcx), (Rsp, Rbx)].into_iter().enumerate() {
        let (a, b, c) = (i as u8, 7 - i as u8, (i as u8 + 4) % 8);
        let name = |r: of_codegen::toolchain::machine::x86::asm::Gp| format!("{r:?}").to_lowercase();
        let at = Mem::At(base, Some((index, 1)), 0);
        let text = format!("[{}+{}*1]", name(base), name(index));
        calls.push((matrix::LOAD, a, Rm::Mem(at), 0));
        want.push(format!("tileloadd tmm{a},{text}"));
        calls.push((matrix::STORE, a, Rm::Mem(at), 0));
        want.push(format!("tilestored {text},tmm{a}"));
        calls.push((matrix::CONFIG, 0, Rm::Mem(Mem::at(base, 64)), 0));
        want.push(format!("ldtilecfg [{}+0x40]", name(base)));
        calls.push((matrix::ZERO, a, Rm::Reg(0), 0));
        want.push(format!("tilezero tmm{a}"));
        calls.push((matrix::DOT_SIGNED, a, Rm::Reg(b), c));
        want.push(format!("tdpbssd tmm{a},tmm{b},tmm{c}"));
        calls.push((matrix::DOT_UNSIGNED, a, Rm::Reg(b), c));
        want.push(format!("tdpbusd tmm{a},tmm{b},tmm{c}"));
    }
    calls.push((matrix::RELEASE, 0, Rm::Reg(0), 0));
    want.push("tilerelease".into());
    check(true, |asm| calls.into_iter().for_each(|(op, reg, rm, second)| asm.matrix(op, reg, rm, second)), &want);
}
