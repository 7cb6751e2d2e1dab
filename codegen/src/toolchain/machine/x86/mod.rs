//! x86-64 with AVX2 or AVX-512.

pub mod asm;
mod emit;
pub mod opcode;

pub use emit::emit;

use crate::isa::Isa;
use crate::toolchain::machine::target::{MemoryOperands, Target};
use crate::toolchain::machine::x86::asm::Gp;

/// The registers of the parameters.
const PARAMETERS: [u8; 4] = [Gp::Rdi as u8, Gp::Rsi as u8, Gp::Rdx as u8, Gp::Rcx as u8];

/// General-purpose registers that hold values. The others are temporaries: rax, rcx and rdx; rsp points to the frame.
const GENERAL: [u8; 12] = [
    Gp::Rsi as u8,
    Gp::Rdi as u8,
    Gp::R8 as u8,
    Gp::R9 as u8,
    Gp::R10 as u8,
    Gp::R11 as u8,
    Gp::Rbx as u8,
    Gp::Rbp as u8,
    Gp::R12 as u8,
    Gp::R13 as u8,
    Gp::R14 as u8,
    Gp::R15 as u8,
];

const VECTORS: [u8; 32] = {
    let (mut all, mut i) = ([0; 32], 0);
    while i < all.len() {
        all[i] = i as u8;
        i += 1;
    }
    all
};

const LAST_FIRST: [u8; 32] = {
    let (mut all, mut i) = ([0; 32], 0);
    while i < all.len() {
        all[i] = 31 - i as u8;
        i += 1;
    }
    all
};

const AVX2: Target = Target {
    lanes: 8,
    avx512: false,
    narrow_elements: false,
    byte_products: false,
    neon: false,
    memory: MemoryOperands::Vectors,
    vectors: VECTORS.split_at(16).0,
    temporaries: LAST_FIRST.split_at(16).1,
    general: &GENERAL,
    parameters: PARAMETERS,
    frame: Gp::Rsp as u8,
};

const AVX512: Target = Target {
    lanes: 16,
    avx512: true,
    narrow_elements: true,
    memory: MemoryOperands::Broadcasts,
    vectors: &VECTORS,
    temporaries: &LAST_FIRST,
    ..AVX2
};

const AVX512_VNNI: Target = Target { byte_products: true, ..AVX512 };

/// What the parts that all targets share know of an instruction set, if there is code for it.
pub fn target(isa: &Isa) -> Option<&'static Target> {
    Some(match isa.name {
        "avx2" => &AVX2,
        _ if !isa.features.contains(&"avx512dq") => return None,
        _ if isa.has_byte_dot_product() => &AVX512_VNNI,
        _ => &AVX512,
    })
}
