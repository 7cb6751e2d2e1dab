//! Instructions of the emitter's assembler for AArch64, as a disassembler reads them.

use std::process::Command;

use of_codegen::toolchain::machine::aarch64::asm::{
    self, Access, Asm, FAR, Mem, SP, X, ZERO, between, general, neon, wide,
};
use of_codegen::toolchain::machine::operation::{Cond, Shift, ShiftInt};
use of_test_support::component::{AARCH64, require};

/// Checks that the instructions that `emit` adds are read as `want`; constants behind them are not read.
fn check(emit: impl FnOnce(&mut Asm), want: &[String]) {
    let mut asm = Asm::default();
    emit(&mut asm);
    let length = asm.position();
    let code = asm.finish().unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), &code[..length]).unwrap();
    let words = ["-D", "-b", "binary", "-m", "aarch64", "--no-show-raw-insn"];
    let out = Command::new("aarch64-linux-gnu-objdump").args(words).arg(file.path()).output();
    let Some(out) = require(&AARCH64, out) else { return };
    let text = String::from_utf8(out.stdout).unwrap();
    let lines = text.lines().filter_map(|l| l.split_once(":\t")).map(|(_, i)| i.split("//").next().unwrap());
    let got: Vec<String> = lines.map(|l| l.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    assert_eq!(got, want);
}

/// The numbers of registers, of which the operands of an instruction take several.
const NUMBERS: [u8; 6] = [0, 1, 8, 15, 16, 31];

/// What adds instructions.
type Call = Box<dyn Fn(&mut Asm)>;

#[test]
fn vector_instructions_are_encoded() {
    let three = [
        (neon::FADD, "fadd", "4s"),
        (wide(neon::FADD), "fadd", "2d"),
        (neon::FSUB, "fsub", "4s"),
        (neon::FMUL, "fmul", "4s"),
        (neon::FDIV, "fdiv", "4s"),
        (wide(neon::FDIV), "fdiv", "2d"),
        (neon::FMLA, "fmla", "4s"),
        (wide(neon::FMLS), "fmls", "2d"),
        (neon::FCMEQ, "fcmeq", "4s"),
        (neon::FCMGE, "fcmge", "4s"),
        (wide(neon::FCMGT), "fcmgt", "2d"),
        (neon::AND, "and", "16b"),
        (neon::EOR, "eor", "16b"),
        (neon::BSL, "bsl", "16b"),
        (neon::BIT, "bit", "16b"),
        (neon::BIF, "bif", "16b"),
        (neon::ADD, "add", "4s"),
        (neon::SUB, "sub", "4s"),
        (neon::MUL, "mul", "4s"),
        (neon::SMAX, "smax", "4s"),
        (neon::SMIN, "smin", "4s"),
        (neon::CMEQ, "cmeq", "4s"),
        (neon::CMGT, "cmgt", "4s"),
        (neon::ADD_64, "add", "2d"),
        (neon::SUB_64, "sub", "2d"),
        (neon::MUL_16, "mul", "8h"),
        (neon::ADDP, "addp", "4s"),
        (neon::TRN1, "trn1", "4s"),
        (neon::TRN2, "trn2", "4s"),
        (neon::ZIP1_64, "zip1", "2d"),
        (neon::ZIP2_64, "zip2", "2d"),
    ];
    let two = [
        (neon::FSQRT, "fsqrt", "4s", "4s"),
        (neon::FRINTN, "frintn", "4s", "4s"),
        (neon::FRINTM, "frintm", "4s", "4s"),
        (neon::FRINTP, "frintp", "4s", "4s"),
        (neon::FCVTNS, "fcvtns", "4s", "4s"),
        (neon::FCVTZS, "fcvtzs", "4s", "4s"),
        (neon::SCVTF, "scvtf", "4s", "4s"),
        (neon::FNEG, "fneg", "4s", "4s"),
        (wide(neon::FNEG), "fneg", "2d", "2d"),
        (neon::NOT, "mvn", "16b", "16b"),
        (neon::SADALP, "sadalp", "4s", "8h"),
        (neon::FCVTL, "fcvtl", "4s", "4h"),
        (neon::FCVTN, "fcvtn", "4h", "4s"),
        (neon::FCVTL_64, "fcvtl", "2d", "2s"),
        (neon::FCVTN_64, "fcvtn", "2s", "2d"),
        (neon::XTN_16, "xtn", "4h", "4s"),
        (neon::XTN_8, "xtn", "8b", "8h"),
        (neon::SXTL_16, "sxtl", "4s", "4h"),
        (neon::UXTL_16, "uxtl", "4s", "4h"),
        (neon::SXTL_8, "sxtl", "8h", "8b"),
        (neon::UXTL_8, "uxtl", "8h", "8b"),
        (neon::REV64, "rev64", "4s", "4s"),
    ];
    let mut calls: Vec<Call> = Vec::new();
    let mut want: Vec<String> = Vec::new();
    for (i, a) in NUMBERS.into_iter().enumerate() {
        let (b, c) = (NUMBERS[(i + 1) % NUMBERS.len()], NUMBERS[(i + 3) % NUMBERS.len()]);
        for (word, name, lanes) in three {
            calls.push(Box::new(move |asm| asm.vectors(word, a, b, c)));
            want.push(format!("{name} v{a}.{lanes}, v{b}.{lanes}, v{c}.{lanes}"));
        }
        for (word, name, to, from) in two {
            calls.push(Box::new(move |asm| asm.two(word, a, b)));
            want.push(format!("{name} v{a}.{to}, v{b}.{from}"));
        }
        for (word, name) in [(neon::FMUL_LANE, "fmul"), (neon::FMLA_LANE, "fmla"), (neon::FMLS_LANE, "fmls")] {
            calls.push(Box::new(move |asm| asm.vectors(word, a, b, c)));
            want.push(format!("{name} v{a}.4s, v{b}.4s, v{c}.s[0]"));
        }
        for (word, name, size) in [
            (neon::FADD_ONE, "fadd", 's'),
            (wide(neon::FSUB_ONE), "fsub", 'd'),
            (neon::FMUL_ONE, "fmul", 's'),
            (wide(neon::FDIV_ONE), "fdiv", 'd'),
        ] {
            calls.push(Box::new(move |asm| asm.vectors(word, a, b, c)));
            want.push(format!("{name} {size}{a}, {size}{b}, {size}{c}"));
        }
        for (word, name) in [(neon::FMADD, "fmadd"), (neon::FMSUB, "fmsub"), (neon::FNMSUB, "fnmsub")] {
            calls.push(Box::new(move |asm| asm.fused(word, a, [b, c, a])));
            want.push(format!("{name} s{a}, s{b}, s{c}, s{a}"));
        }
        calls.push(Box::new(move |asm| {
            asm.vectors(neon::TBL, a, b, c);
            asm.vectors(neon::EXT_HALF, a, b, c);
            asm.vectors(neon::SMULL, a, b, c);
            asm.vectors(neon::SMULL_HIGH, a, b, c);
            asm.two(neon::UMAXV, a, b);
            asm.two(neon::DUP, a, b);
            asm.two(neon::DUP_64, a, b);
            asm.two(neon::FCVT_TO_64, a, b);
            asm.two(neon::FCVT_FROM_64, a, b);
            asm.two(between::SMOV, 3, b);
            asm.two(between::FMOV_FROM_S, 3, b);
            asm.two(between::FMOV_FROM_D, 3, b);
            asm.two(between::FMOV_TO_S, a, 3);
            asm.two(between::FMOV_TO_D, a, 3);
            asm.two(between::DUP, a, 3);
            asm.two(between::SCVTF, a, 3);
            asm.two(wide(between::SCVTF), a, 3);
            asm.two(between::FCVTZS, 3, b);
            asm.two(wide(between::FCVTZS), 3, b);
            asm.mov_vector(a, b);
            asm.shift_lanes(Shift::Left, 32, a, b, 23);
            asm.shift_lanes(Shift::Right, 32, a, b, 16);
            asm.shift_lanes(Shift::RightSigned, 32, a, b, 31);
            asm.shift_lanes(Shift::Left, 64, a, b, 52);
            asm.shift_lanes(Shift::Right, 64, a, b, 52);
            asm.shift_lanes(Shift::RightSigned, 16, a, b, 8);
            asm.shift_lanes(Shift::Left, 16, a, b, 8);
        }));
        want.extend([
            format!("tbl v{a}.16b, {{v{b}.16b}}, v{c}.16b"),
            format!("ext v{a}.16b, v{b}.16b, v{c}.16b, #8"),
            format!("smull v{a}.4s, v{b}.4h, v{c}.4h"),
            format!("smull2 v{a}.4s, v{b}.8h, v{c}.8h"),
            format!("umaxv s{a}, v{b}.4s"),
            format!("dup v{a}.4s, v{b}.s[0]"),
            format!("dup v{a}.2d, v{b}.d[0]"),
            format!("fcvt d{a}, s{b}"),
            format!("fcvt s{a}, d{b}"),
            format!("smov x3, v{b}.s[0]"),
            format!("fmov w3, s{b}"),
            format!("fmov x3, d{b}"),
            format!("fmov s{a}, w3"),
            format!("fmov d{a}, x3"),
            format!("dup v{a}.4s, w3"),
            format!("scvtf s{a}, x3"),
            format!("scvtf d{a}, x3"),
            format!("fcvtzs x3, s{b}"),
            format!("fcvtzs x3, d{b}"),
            format!("mov v{a}.16b, v{b}.16b"),
            format!("shl v{a}.4s, v{b}.4s, #23"),
            format!("ushr v{a}.4s, v{b}.4s, #16"),
            format!("sshr v{a}.4s, v{b}.4s, #31"),
            format!("shl v{a}.2d, v{b}.2d, #52"),
            format!("ushr v{a}.2d, v{b}.2d, #52"),
            format!("sshr v{a}.8h, v{b}.8h, #8"),
            format!("shl v{a}.8h, v{b}.8h, #8"),
        ]);
    }
    check(|asm| calls.iter().for_each(|call| call(asm)), &want);
}

#[test]
fn constants_are_encoded() {
    let emit = |asm: &mut Asm| {
        for bits in [0, 255, 0x00ff_0000, !0, 0xffff_00ff, 0x7f00_0000] {
            asm.lanes(7, bits);
        }
        for x in [1.0f32, -0.625, 31.0, 0.1875] {
            asm.lanes(16, x.to_bits());
        }
        // What no instruction has is read from behind the code, once.
        asm.lanes(31, 0x1234_5678);
        asm.lanes(0, 0x1234_5678);
        asm.lanes(1, 0.1f32.to_bits());
    };
    let want = [
        "movi v7.4s, #0x0",
        "movi v7.4s, #0xff",
        "movi v7.4s, #0xff, lsl #16",
        "mvni v7.4s, #0x0",
        "mvni v7.4s, #0xff, lsl #8",
        "movi v7.4s, #0x7f, lsl #24",
        "fmov v16.4s, #1.000000000000000000e+00",
        "fmov v16.4s, #-6.250000000000000000e-01",
        "fmov v16.4s, #3.100000000000000000e+01",
        "fmov v16.4s, #1.875000000000000000e-01",
        "ldr q31, 0x40",
        "ldr q0, 0x40",
        "ldr q1, 0x50",
    ];
    check(emit, &want.map(String::from));
}

#[test]
fn accesses_are_encoded() {
    let (mut calls, mut want): (Vec<(Access, u8, Mem)>, Vec<String>) = Default::default();
    let general = [
        (asm::load(1, false), "ldrb w"),
        (asm::load(1, true), "ldrsb x"),
        (asm::load(2, false), "ldrh w"),
        (asm::load(2, true), "ldrsh x"),
        (asm::load(4, false), "ldr w"),
        (asm::load(4, true), "ldrsw x"),
        (asm::load(8, false), "ldr x"),
        (asm::store(1), "strb w"),
        (asm::store(2), "strh w"),
        (asm::store(4), "str w"),
        (asm::store(8), "str x"),
    ];
    let vectors = [(1, 'b'), (2, 'h'), (4, 's'), (8, 'd'), (16, 'q')];
    let loads = vectors.map(|(bytes, name)| (asm::load_vector(bytes), format!("ldr {name}")));
    let stores = vectors.map(|(bytes, name)| (asm::store_vector(bytes), format!("str {name}")));
    let all = general.map(|(access, name)| (access, name.to_string())).into_iter().chain(loads).chain(stores);
    for (access, name) in all {
        let bytes = i32::from(access.bytes);
        let unscaled = name.replacen("ldr", "ldur", 1).replacen("str", "stur", 1);
        let shift = bytes.trailing_zeros();
        let scaled = if bytes == 1 { "x9, x10]".into() } else { format!("x9, x10, lsl #{shift}]") };
        for (at, name, text) in [
            (Mem::At(SP, 0), &name, "sp]".to_string()),
            (Mem::At(X(28), 4095 * bytes), &name, format!("x28, #{}]", 4095 * bytes)),
            (Mem::At(X(1), -256), &unscaled, "x1, #-256]".into()),
            (Mem::Index(SP, X(10), 0), &name, "sp, x10]".into()),
            (Mem::Index(X(9), X(10), shift as u8), &name, scaled),
        ] {
            calls.push((access, 11, at));
            want.push(format!("{name}11, [{text}"));
        }
        if bytes > 1 {
            calls.push((access, 11, Mem::At(X(1), 255)));
            want.push(format!("{unscaled}11, [x1, #255]"));
        }
    }
    let more = |asm: &mut Asm| {
        asm.access_and_move(asm::load_vector(8), 3, X(16), 8);
        asm.access_and_move(asm::store_vector(2), 3, X(16), 2);
        for bytes in [1, 2, 4] {
            asm.third(true, bytes, 3, X(16));
            asm.third(false, bytes, 3, X(16));
        }
        asm.load_broadcast(30, X(2));
        asm.prefetch(Mem::At(X(2), 64), false);
        asm.prefetch(Mem::At(X(2), 64), true);
        asm.prefetch(Mem::Index(X(2), X(3), 0), false);
    };
    let last = [
        "ldr d3, [x16], #8",
        "str h3, [x16], #2",
        "ld1 {v3.b}[2], [x16]",
        "st1 {v3.b}[2], [x16]",
        "ld1 {v3.h}[2], [x16]",
        "st1 {v3.h}[2], [x16]",
        "ld1 {v3.s}[2], [x16]",
        "st1 {v3.s}[2], [x16]",
        "ld1r {v30.4s}, [x2]",
        "prfm pldl1keep, [x2, #64]",
        "prfm pldl2keep, [x2, #64]",
        "prfm pldl1keep, [x2, x3]",
    ];
    want.extend(last.map(String::from));
    check(
        |asm| {
            calls.iter().for_each(|(access, r, at)| asm.access(*access, *r, *at));
            more(asm);
        },
        &want,
    );
}

#[test]
fn general_instructions_are_encoded() {
    let emit = |asm: &mut Asm| {
        for word in [general::ADD, general::SUB, general::AND, general::ORR, general::EOR, general::MUL] {
            asm.three(word, X(1), X(20), X(28));
        }
        asm.three(general::SMULH, X(1), X(2), X(3));
        asm.three(general::SDIV, X(1), X(2), X(3));
        asm.three(general::UDIV, X(1), X(2), X(3));
        asm.three(general::SUBS, ZERO, X(2), X(3));
        asm.msub(X(1), X(2), X(3), X(4));
        asm.add_shifted(X(1), SP, X(3), 3);
        asm.mov(X(1), X(28));
        asm.mov(X(1), SP);
        asm.mov(SP, X(16));
        asm.align_stack(X(17));
        asm.mov_imm(X(3), 0);
        asm.mov_imm(X(3), -1);
        asm.mov_imm(X(3), 0x1234_0000);
        asm.mov_imm(X(3), -2);
        asm.mov_imm(X(3), 0x1_0000_0001);
        asm.add_imm(X(3), X(4), 4095);
        asm.add_imm(SP, SP, -4096);
        asm.add_imm(X(3), SP, 0x12345);
        asm.add_imm(X(3), X(3), 0x12345);
        asm.cmp_imm(X(3), 7, FAR);
        asm.cmp_imm(X(3), -7, FAR);
        asm.cmp_imm(X(3), 5000, FAR);
        asm.extend(X(3), X(4), 1, true);
        asm.extend(X(3), X(4), 4, true);
        asm.extend(X(3), X(4), 4, false);
        asm.extend(X(3), X(4), 2, false);
        asm.shift_imm(ShiftInt::Left, X(3), X(4), 3);
        asm.shift_imm(ShiftInt::Right, X(3), X(4), 3);
        asm.shift_imm(ShiftInt::RightSigned, X(3), X(4), 63);
        asm.shift(ShiftInt::Left, X(3), X(4), X(5));
        asm.shift(ShiftInt::Right, X(3), X(4), X(5));
        asm.shift(ShiftInt::RightSigned, X(3), X(4), X(5));
        asm.select(Cond::Below, X(3), X(4), X(5));
        asm.set_if(Cond::LessEqual, X(3));
        let here = asm.label();
        asm.bind(here);
        for cond in [Cond::Equal, Cond::NotLess, Cond::Above, Cond::NotBelow] {
            asm.jump_if(cond, here);
        }
        asm.jump_if_clear(X(3), 1, here);
        asm.jump_if_zero(X(3), true, here);
        asm.jump_if_zero(X(3), false, here);
        asm.jmp(here);
        asm.ret();
    };
    let want = [
        "add x1, x20, x28",
        "sub x1, x20, x28",
        "and x1, x20, x28",
        "orr x1, x20, x28",
        "eor x1, x20, x28",
        "mul x1, x20, x28",
        "smulh x1, x2, x3",
        "sdiv x1, x2, x3",
        "udiv x1, x2, x3",
        "cmp x2, x3",
        "msub x1, x2, x3, x4",
        "add x1, sp, x3, lsl #3",
        "mov x1, x28",
        "mov x1, sp",
        "mov sp, x16",
        "and sp, x17, #0xffffffffffffffc0",
        "mov x3, #0x0",
        "mov x3, #0xffffffffffffffff",
        "mov x3, #0x12340000",
        "mov x3, #0xfffffffffffffffe",
        "mov x3, #0x1",
        "movk x3, #0x1, lsl #32",
        "add x3, x4, #0xfff",
        "sub sp, sp, #0x1, lsl #12",
        "mov x3, #0x2345",
        "movk x3, #0x1, lsl #16",
        "add x3, sp, x3",
        "mov x15, #0x2345",
        "movk x15, #0x1, lsl #16",
        "add x3, x3, x15, uxtx",
        "cmp x3, #0x7",
        "cmn x3, #0x7",
        "mov x15, #0x1388",
        "cmp x3, x15",
        "sxtb x3, w4",
        "sxtw x3, w4",
        "ubfx x3, x4, #0, #32",
        "ubfx x3, x4, #0, #16",
        "lsl x3, x4, #3",
        "lsr x3, x4, #3",
        "asr x3, x4, #63",
        "lsl x3, x4, x5",
        "lsr x3, x4, x5",
        "asr x3, x4, x5",
        "csel x3, x4, x5, cc",
        "cset x3, le",
        "b.eq 0xb8",
        "b.ge 0xb8",
        "b.hi 0xb8",
        "b.cs 0xb8",
        "tbz w3, #1, 0xb8",
        "cbz x3, 0xb8",
        "cbnz x3, 0xb8",
        "b 0xb8",
        "ret",
    ];
    check(emit, &want.map(String::from));
}
