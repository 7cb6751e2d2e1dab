//! Instruction sets that kernels are printed for.

use std::fmt;

use of_ir::DType;

/// An instruction set.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Isa {
    /// aarch64 with its baseline NEON.
    Neon,
    /// x86-64 with nothing beyond its baseline.
    Sse2,
    /// x86-64 with AVX2, FMA and F16C.
    Avx2,
    /// x86-64 with AVX-512 F, BW, DQ and VL.
    Avx512,
}

impl Isa {
    /// Every instruction set, the best of each architecture last.
    pub const ALL: [Isa; 4] = [Isa::Neon, Isa::Sse2, Isa::Avx2, Isa::Avx512];

    /// The name that plans and cache keys use.
    pub const fn name(self) -> &'static str {
        match self {
            Isa::Neon => "neon",
            Isa::Sse2 => "sse2",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
        }
    }

    /// The inverse of [`Isa::name`].
    pub fn from_name(name: &str) -> Option<Isa> {
        Self::ALL.into_iter().find(|i| i.name() == name)
    }

    /// The best instruction set of the running machine; `None` on an architecture without one here.
    pub fn host() -> Option<Isa> {
        Self::ALL.into_iter().rev().find(|i| i.runs_here())
    }

    /// Whether the running machine executes it.
    pub fn runs_here(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        {
            match self {
                Isa::Neon => false,
                Isa::Sse2 => true,
                Isa::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c"),
                Isa::Avx512 => {
                    Isa::Avx2.runs_here()
                        && is_x86_feature_detected!("avx512f")
                        && is_x86_feature_detected!("avx512bw")
                        && is_x86_feature_detected!("avx512dq")
                        && is_x86_feature_detected!("avx512vl")
                }
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        {
            self == Isa::Neon && cfg!(target_arch = "aarch64")
        }
    }

    /// The architecture as Rust and plans name it.
    pub const fn arch(self) -> &'static str {
        match self {
            Isa::Neon => "aarch64",
            _ => "x86_64",
        }
    }

    /// CPU features beyond the architecture's baseline, as plans name them.
    pub const fn features(self) -> &'static [&'static str] {
        match self {
            Isa::Neon | Isa::Sse2 => &[],
            Isa::Avx2 => &["avx2", "fma", "f16c"],
            Isa::Avx512 => &["avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512dq", "avx512vl"],
        }
    }

    /// Bytes of a vector register.
    pub const fn vector_bytes(self) -> usize {
        match self {
            Isa::Neon | Isa::Sse2 => 16,
            Isa::Avx2 => 32,
            Isa::Avx512 => 64,
        }
    }

    /// Number of vector registers.
    pub const fn registers(self) -> usize {
        match self {
            Isa::Sse2 | Isa::Avx2 => 16,
            Isa::Neon | Isa::Avx512 => 32,
        }
    }

    /// Flags that make a C compiler use it.
    pub const fn flags(self) -> &'static [&'static str] {
        match self {
            Isa::Neon => &[],
            Isa::Sse2 => &["-march=x86-64"],
            Isa::Avx2 => &["-march=x86-64", "-mavx2", "-mfma", "-mf16c"],
            Isa::Avx512 => &[
                "-march=x86-64",
                "-mavx2",
                "-mfma",
                "-mf16c",
                "-mavx512f",
                "-mavx512bw",
                "-mavx512dq",
                "-mavx512vl",
                "-mprefer-vector-width=512",
            ],
        }
    }

    /// Lanes of a vector that holds values of all the given types: as many as fit a register of the widest of them,
    /// at least 32 bits, and never fewer than four.
    pub fn lanes(self, types: impl IntoIterator<Item = DType>) -> usize {
        let widest = types.into_iter().filter_map(DType::bits).max().unwrap_or(32).max(32) / 8;
        (self.vector_bytes() / widest).max(4)
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
