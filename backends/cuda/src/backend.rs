//! The compiler's side: a function becomes a plan of kernels for one device.

use of_codegen::native::cache::Cache;
use of_codegen::native::{Isa, isa};
use of_codegen::{Backend, CompileOptions, Target, compile, roles};
use of_diag::{Code, Diagnostic, Location};
use of_ir::{Func, Graph, OpId};

/// Name in plans.
pub const NAME: &str = "cuda";

/// The compiler for GPUs of one architecture.
#[derive(Clone, Debug)]
pub struct Cuda {
    isa: &'static Isa,
    cache: Cache,
}

impl Cuda {
    /// For `arch`: `sm_90`, or `shim` for the emulated GPU, each also with what its products may be (`sm_90+tf32`; see [`isa`]); compiled
    /// kernels are kept in `cache`.
    ///
    /// # Errors
    /// The architectures that there are, where it is none of them.
    pub fn new(arch: &str, cache: Cache) -> Result<Cuda, String> {
        let name = if arch.starts_with("shim") { format!("cuda-{arch}") } else { arch.to_string() };
        let isa = Isa::by_name(&name).filter(|i| i.is_gpu()).ok_or_else(|| {
            let known: Vec<_> =
                isa::ISAS.iter().filter(|i| i.is_gpu()).map(|i| i.name.trim_start_matches("cuda-")).collect();
            format!("there is no GPU architecture '{arch}'; there are {}", known.join(", "))
        })?;
        Ok(Cuda { isa, cache })
    }
}

impl Backend for Cuda {
    fn name(&self) -> &'static str {
        NAME
    }

    fn claims(&self, graph: &Graph, op: OpId) -> Result<(), String> {
        roles::fixed(graph, op)
    }

    fn compile(&self, func: &Func) -> Result<Vec<u8>, Diagnostic> {
        let options = CompileOptions {
            model: String::new(),
            // What the loader chooses the driver by.
            flags: vec![self.isa.name.to_string()],
            inputs: Vec::new(),
            threads: 1,
            target: Target { winograd: false, ..Target::new(self.isa, &[]) },
            cache: self.cache.clone(),
            progress: None,
        };
        let broken = || Diagnostic::error(Code::CODEGEN, Location::Unknown, "the function was not compiled");
        let compiled = compile(&[("main".into(), func)], &options)
            .map_err(|mut all| if all.0.is_empty() { broken() } else { all.0.remove(0) })?;
        compiled.bytes()
    }
}
