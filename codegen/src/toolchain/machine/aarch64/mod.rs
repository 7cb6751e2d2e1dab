//! AArch64 with NEON.

pub mod asm;
mod emit;

pub use emit::emit;

use crate::isa::Isa;
use crate::toolchain::machine::target::{MemoryOperands, Target};

/// Vector registers that hold values: first those that the caller does not expect to be kept.
const VECTORS: [u8; 32] = [
    0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 8, 9, 10, 11, 12, 13, 14,
    15,
];

const TEMPORARIES: [u8; 32] = [
    31, 30, 29, 28, 27, 26, 25, 24, 23, 22, 21, 20, 19, 18, 17, 16, 7, 6, 5, 4, 3, 2, 1, 0, 15, 14, 13, 12, 11, 10, 9,
    8,
];

/// General-purpose registers that hold values. x15 to x17 are temporaries, x18 belongs to the platform, x29 and x30 to the caller.
const GENERAL: [u8; 25] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28];

const NEON: Target = Target {
    lanes: 4,
    avx512: false,
    narrow_elements: true,
    byte_products: true,
    neon: true,
    memory: MemoryOperands::No,
    vectors: &VECTORS,
    temporaries: &TEMPORARIES,
    general: &GENERAL,
    parameters: [0, 1, 2, 3],
    frame: asm::SP.0,
};

/// What the parts that all targets share know of an instruction set, if there is code for it.
pub fn target(isa: &Isa) -> Option<&'static Target> {
    (isa.arch == "aarch64").then_some(&NEON)
}
