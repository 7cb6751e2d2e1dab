//! Features of this machine's processor, by rustc's names.

/// Whether the processor has a feature and the system lets this process use it. An unknown feature counts as absent.
#[cfg(target_arch = "x86_64")]
pub fn has_feature(feature: &str) -> bool {
    macro_rules! features {
        ($($name:tt),* $(,)?) => {
            match feature {
                "x86-64" => true,
                "amx-tile" | "amx-int8" => matrix_registers(),
                $($name => std::is_x86_feature_detected!($name),)*
                _ => false,
            }
        };
    }
    features!(
        "aes",
        "avx",
        "avx2",
        "avx512bf16",
        "avx512bitalg",
        "avx512bw",
        "avx512cd",
        "avx512dq",
        "avx512f",
        "avx512fp16",
        "avx512ifma",
        "avx512vbmi",
        "avx512vbmi2",
        "avx512vl",
        "avx512vnni",
        "avx512vpopcntdq",
        "avxifma",
        "avxvnni",
        "avxvnniint8",
        "avxvnniint16",
        "bmi1",
        "bmi2",
        "f16c",
        "fma",
        "fxsr",
        "gfni",
        "lzcnt",
        "movbe",
        "pclmulqdq",
        "popcnt",
        "sha",
        "sse",
        "sse2",
        "sse3",
        "sse4.1",
        "sse4.2",
        "ssse3",
        "vaes",
        "vpclmulqdq",
        "xsave",
    )
}

/// Whether the processor has a feature. An unknown feature counts as absent.
#[cfg(not(target_arch = "x86_64"))]
pub fn has_feature(feature: &str) -> bool {
    // The host of a module refuses kernels whose instructions it lacks.
    cfg!(target_arch = "aarch64") && feature == "neon" || cfg!(target_family = "wasm") && feature == "simd128"
}

/// Whether the processor has matrix registers for bytes (AMX), and Linux permits them. Their state is large, so a process must ask
/// for it once; the permission holds for all its threads.
///
/// Source: Intel's Software Developer's Manual, volume 2, `CPUID` leaf 7; Linux, `Documentation/arch/x86/xstate.rst`.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn matrix_registers() -> bool {
    use std::sync::LazyLock;

    static PERMITTED: LazyLock<bool> = LazyLock::new(|| {
        const TILE_AND_INT8: u32 = 0b11 << 24;
        let leaf = std::arch::x86_64::__cpuid_count(7, 0);
        leaf.edx & TILE_AND_INT8 == TILE_AND_INT8 && request_tile_state()
    });
    *PERMITTED
}

#[cfg(all(target_arch = "x86_64", not(target_os = "linux")))]
fn matrix_registers() -> bool {
    false
}

/// Asks Linux for the state of matrix registers: `arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)`.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn request_tile_state() -> bool {
    const SYS_ARCH_PRCTL: i64 = 158;
    const ARCH_REQ_XCOMP_PERM: i64 = 0x1023;
    const XFEATURE_XTILEDATA: i64 = 18;
    let status: i64;
    // SAFETY: the system call reads no memory of this process and writes none; the kernel overwrites rcx and r11.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") SYS_ARCH_PRCTL => status,
            in("rdi") ARCH_REQ_XCOMP_PERM,
            in("rsi") XFEATURE_XTILEDATA,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    status == 0
}
