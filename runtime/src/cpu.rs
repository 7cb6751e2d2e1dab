//! The check that this machine can run a plan's kernels.

use of_plan::Environment;
use of_plan::cpu::has_feature;

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
    match environment.cpu_features.iter().find(|feature| !has_feature(feature)) {
        Some(feature) => Err(SessionError::CpuFeature { feature: feature.clone() }),
        None => Ok(()),
    }
}

/// Where the runtime knows how written code becomes instructions.
const SUPPORTED: bool = cfg!(any(target_arch = "x86_64", target_arch = "aarch64", target_family = "wasm"));

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
