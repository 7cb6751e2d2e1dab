//! The check that this machine can run a plan's kernels.

use of_plan::Environment;

use crate::SessionError;

/// Checks the processor against what the plan needs. `kernels` says whether it holds any machine code.
pub(crate) fn check(environment: &Environment, kernels: bool) -> Result<(), SessionError> {
    if !kernels {
        return Ok(());
    }
    let machine = std::env::consts::ARCH;
    if let Some(gpu) = &environment.cuda_arch {
        return Err(SessionError::Arch { plan: gpu.clone(), machine });
    }
    if environment.arch != machine || !SUPPORTED {
        return Err(SessionError::Arch { plan: environment.arch.clone(), machine });
    }
    match environment.cpu_features.iter().find(|feature| !has(feature)) {
        Some(feature) => Err(SessionError::CpuFeature { feature: feature.clone() }),
        None => Ok(()),
    }
}

/// Kernels are mapped without an instruction cache flush, which x86-64 does not need and others do.
const SUPPORTED: bool = cfg!(target_arch = "x86_64");

/// Whether the processor has a feature; one that is not known here counts as absent.
#[cfg(target_arch = "x86_64")]
fn has(feature: &str) -> bool {
    macro_rules! features {
        ($($name:tt),* $(,)?) => {
            match feature {
                "x86-64" => true,
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

#[cfg(not(target_arch = "x86_64"))]
fn has(_: &str) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_for_other_machines_are_refused() {
        let here = |features: &[&str]| Environment {
            arch: std::env::consts::ARCH.into(),
            cpu_features: features.iter().map(|&f| f.into()).collect(),
            ..Environment::default()
        };
        if SUPPORTED {
            assert!(check(&here(&["sse2"]), true).is_ok());
        }
        let error = check(&here(&["teleport"]), true).unwrap_err().to_string();
        assert!(error.contains("teleport") || !SUPPORTED, "{error}");
        assert!(check(&here(&["teleport"]), false).is_ok());
        let other = Environment { arch: "pdp11".into(), ..Environment::default() };
        assert!(matches!(check(&other, true), Err(SessionError::Arch { .. })));
    }
}
