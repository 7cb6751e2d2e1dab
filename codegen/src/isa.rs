//! Instruction sets that kernels are compiled for.

use of_ir::DType;
use of_plan::cpu::has_feature;

/// The source language of kernels for an instruction set, and its compiler.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Language {
    /// C, compiled by the machine's C compiler.
    C,
    /// The same, compiled by clang to a module of WebAssembly.
    WebAssembly,
    /// CUDA C++, compiled by NVRTC.
    Cuda,
    /// The text of [`Language::Cuda`], compiled by the machine's C++ compiler with a header that emulates a GPU. Threads of a
    /// block are fibers. Invalid accesses and barriers that not all threads reach end the kernel with a status.
    CudaEmulated,
}

impl Language {
    /// Whether kernels in it are for CPUs, or for machines like them.
    pub fn is_for_cpus(self) -> bool {
        matches!(self, Language::C | Language::WebAssembly)
    }
}

/// Which compiler makes the machine code of kernels for a CPU.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum CpuCode {
    /// The machine's C compiler.
    C,
    /// The compiler in process ([`crate::toolchain::machine`]). The C compiler compiles the kernels of an instruction set that it does
    /// not cover, and those that it refuses; the summary of a compilation says so.
    #[default]
    Machine,
}

/// An instruction set: compiler flags and required machine features.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Isa {
    /// Name in plans and on the command line.
    pub name: &'static str,
    /// Language of its kernels.
    pub language: Language,
    /// f32 lanes of a vector; 1 for GPUs, where each thread is a lane.
    pub lanes: usize,
    /// Vector registers.
    pub registers: usize,
    /// Flags for the C compiler.
    pub flags: &'static [&'static str],
    /// CPU features by rustc's names; on a GPU the features that its kernels may use.
    pub features: &'static [&'static str],
    /// 16-bit float types that contractions multiply directly from memory, accumulating in f32.
    pub native_16bit_contractions: &'static [DType],
    /// Architecture by rustc's name.
    pub arch: &'static str,
}

/// Bytes of a cache line.
pub const CACHE_LINE_BYTES: usize = 64;

/// Bytes of a core's L2 cache, which kernels are tiled for.
pub const L2_BYTES: usize = 1 << 20;

/// The baseline of x86-64, available on every such machine.
const BASELINE: Isa = Isa {
    name: "x86-64",
    language: Language::C,
    lanes: 4,
    registers: 16,
    flags: &[],
    features: &[],
    native_16bit_contractions: &[],
    arch: "x86_64",
};

/// Every instruction set, best first within an architecture.
pub const ISAS: &[Isa] = &[
    avx512("avx512amx", 10),
    avx512("avx512bf16", 8),
    avx512("avx512vnni", 7),
    avx512("avx512", 6),
    Isa {
        name: "avx2",
        language: Language::C,
        lanes: 8,
        registers: 16,
        flags: &["-mavx2", "-mfma", "-mf16c"],
        features: &["avx2", "fma", "f16c"],
        native_16bit_contractions: &[],
        arch: "x86_64",
    },
    BASELINE,
    Isa {
        name: "aarch64",
        language: Language::C,
        lanes: 4,
        registers: 32,
        flags: &[],
        features: &["neon"],
        native_16bit_contractions: &[],
        arch: "aarch64",
    },
    Isa {
        name: "wasm32",
        language: Language::WebAssembly,
        lanes: 4,
        registers: 16,
        flags: &["-msimd128", "-mbulk-memory"],
        features: &["simd128"],
        native_16bit_contractions: &[],
        arch: "wasm32",
    },
    gpu("sm_80", SM_80, &[]),
    gpu("sm_80+tf32", SM_80, &["tf32"]),
    gpu("sm_80+tf32x3", SM_80, &["tf32x3"]),
    gpu("sm_80+bf16", SM_80, &["bf16"]),
    gpu("sm_80+f16", SM_80, &["f16"]),
    gpu("sm_90", SM_90, &[]),
    gpu("sm_90+tf32", SM_90, &["tf32"]),
    gpu("sm_90+tf32x3", SM_90, &["tf32x3"]),
    gpu("sm_90+bf16", SM_90, &["bf16"]),
    gpu("sm_90+f16", SM_90, &["f16"]),
    gpu("sm_100", SM_100, &[]),
    gpu("sm_100+tf32", SM_100, &["tf32"]),
    gpu("sm_100+tf32x3", SM_100, &["tf32x3"]),
    gpu("sm_100+bf16", SM_100, &["bf16"]),
    gpu("sm_100+f16", SM_100, &["f16"]),
    gpu(CUDA_EMULATED, &[], &[]),
    gpu("cuda-emulated+tf32", &[], &["tf32"]),
    gpu("cuda-emulated+tf32x3", &[], &["tf32x3"]),
    gpu("cuda-emulated+bf16", &[], &["bf16"]),
    gpu("cuda-emulated+f16", &[], &["f16"]),
];

/// The GPU that the CPU emulates.
pub const CUDA_EMULATED: &str = "cuda-emulated";

const SM_80: &[&str] = &["--gpu-architecture=sm_80"];

const SM_90: &[&str] = &["--gpu-architecture=sm_90"];

const SM_100: &[&str] = &["--gpu-architecture=sm_100"];

/// Features of the AVX-512 instruction sets; each set has a prefix of this list.
const AVX512: &[&str] =
    &["avx512f", "avx512bw", "avx512vl", "avx512dq", "fma", "avx2", "avx512vnni", "avx512bf16", "amx-tile", "amx-int8"];

const AVX512_FLAGS: &[&str] = &[
    "-mprefer-vector-width=512",
    "-mavx512f",
    "-mavx512bw",
    "-mavx512vl",
    "-mavx512dq",
    "-mfma",
    "-mavx2",
    "-mavx512vnni",
    "-mavx512bf16",
    "-mamx-tile",
    "-mamx-int8",
];

/// An instruction set of 512-bit vectors with the first `count` features of [`AVX512`].
const fn avx512(name: &'static str, count: usize) -> Isa {
    let (features, flags) = (AVX512.split_at(count).0, AVX512_FLAGS.split_at(1 + count).0);
    let native_16bit_contractions: &[DType] = if count >= 8 { &[DType::BF16] } else { &[] };
    Isa {
        name,
        language: Language::C,
        lanes: 16,
        registers: 32,
        flags,
        features,
        native_16bit_contractions,
        arch: "x86_64",
    }
}

/// A GPU, or without flags the emulated one, with the requested precisions. `tf32` multiplies f32 on tensor cores with ten bits
/// of mantissa. `tf32x3` uses three such products, which together keep nearly all bits. `bf16` and `f16` round to those types.
/// Sums are f32.
const fn gpu(name: &'static str, flags: &'static [&'static str], features: &'static [&'static str]) -> Isa {
    let (language, arch) = if flags.is_empty() { (Language::CudaEmulated, "x86_64") } else { (Language::Cuda, "cuda") };
    let native_16bit_contractions = &[DType::F16, DType::BF16];
    Isa { name, language, lanes: 1, registers: 255, flags, features, native_16bit_contractions, arch }
}

impl Isa {
    /// The instruction set called `name`.
    pub fn by_name(name: &str) -> Option<&'static Isa> {
        ISAS.iter().find(|i| i.name == name)
    }

    /// The best instruction set of this machine.
    pub fn host() -> &'static Isa {
        ISAS.iter().find(|i| i.runs_here()).unwrap_or(&BASELINE)
    }

    /// Whether this machine has it.
    pub fn runs_here(&self) -> bool {
        self.arch == std::env::consts::ARCH && self.features.iter().all(|f| has_feature(f))
    }

    /// Whether one instruction loads or stores the first lanes of a vector.
    pub fn has_masks(&self) -> bool {
        self.features.contains(&"avx512f")
    }

    /// Whether one instruction multiplies four pairs of bytes and adds the products exactly.
    pub fn has_byte_dot_product(&self) -> bool {
        self.features.contains(&"avx512vnni")
    }

    /// Whether one instruction multiplies two pairs of bytes and adds the products with saturation, and none does so exactly.
    pub fn has_saturating_byte_products(&self) -> bool {
        self.features.contains(&"avx2") && !self.has_byte_dot_product()
    }

    /// Whether it multiplies matrices of bytes, exactly, in registers of 16 rows of 64 bytes.
    pub fn has_matrix_registers(&self) -> bool {
        self.features.contains(&"amx-int8")
    }

    /// Whether it multiplies floats of this type directly from memory, accumulating in f32.
    pub fn contracts_natively(&self, dtype: DType) -> bool {
        match dtype {
            DType::F32 => true,
            _ => self.native_16bit_contractions.contains(&dtype),
        }
    }
}

/// How tensor cores multiply operands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MmaPrecision {
    /// f32, rounded to ten bits of mantissa.
    Tf32,
    /// f32, each operand split into the sum of two such numbers; the product of the small parts is omitted.
    Tf32x3,
    /// f32, rounded to bf16.
    Bf16,
    /// f32, rounded to f16.
    F16,
    /// 16-bit floats of this type, unconverted.
    Half(DType),
}

impl MmaPrecision {
    /// How tensor cores of `isa` multiply floats of this type, if they do.
    pub fn of(isa: &Isa, dtype: DType) -> Option<MmaPrecision> {
        match isa.features {
            _ if matches!(dtype, DType::F16 | DType::BF16) => Some(MmaPrecision::Half(dtype)),
            _ if dtype != DType::F32 => None,
            ["tf32"] => Some(MmaPrecision::Tf32),
            ["tf32x3"] => Some(MmaPrecision::Tf32x3),
            ["bf16"] => Some(MmaPrecision::Bf16),
            ["f16"] => Some(MmaPrecision::F16),
            _ => None,
        }
    }
}
