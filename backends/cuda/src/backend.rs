//! The compiler side: a function is compiled to a plan of kernels for one device.

use of_codegen::analysis::roles;
use of_codegen::isa::{self, Isa};
use of_codegen::toolchain::cache::Cache;
use of_codegen::vendor_libraries::{VendorLibraries, VendorLibrary};
use of_codegen::{Backend, CompileOptions, Limits, Overhead, Target, compile, extract, rewrite, specialize};
use of_diag::{Code, Diagnostic, Location};
use of_ir::{Func, Graph, OpId};
use of_plan::{BackendTransfer, Collective};
use of_runtime::identity_element;

use crate::ffi::nccl;
use crate::payload;

/// Name in plans.
pub const NAME: &str = "cuda";

/// The compiler for GPUs of one architecture.
#[derive(Clone, Debug)]
pub struct Cuda {
    isa: &'static Isa,
    /// Libraries whose calls replace kernels.
    libraries: VendorLibraries,
    cache: Cache,
    limits: Limits,
}

impl Cuda {
    /// Creates the compiler for `arch`: `sm_90`, or `emulated` for the emulated GPU. A suffix selects the precision of products
    /// (`sm_90+tf32`; see [`isa`]). Last and in any order, `+cublaslt` selects that library for products and `+cudnn` for
    /// convolutions. Compiled kernels are kept in `cache`.
    ///
    /// # Errors
    /// The list of known architectures, where `arch` is not one of them.
    pub fn new(arch: &str, cache: Cache) -> Result<Cuda, String> {
        let (arch, libraries) = VendorLibraries::of(arch);
        let name = if arch.starts_with("emulated") { format!("cuda-{arch}") } else { arch.to_string() };
        let isa = Isa::by_name(&name).filter(|i| !i.language.is_for_cpus()).ok_or_else(|| {
            let known: Vec<_> = isa::ISAS
                .iter()
                .filter(|i| !i.language.is_for_cpus())
                .map(|i| i.name.trim_start_matches("cuda-"))
                .collect();
            format!(
                "GPU architecture '{arch}' is unknown; known are {}, each optionally followed by +cublaslt and +cudnn",
                known.join(", ")
            )
        })?;
        Ok(Cuda { isa, libraries, cache, limits: Limits::default() })
    }

    /// Compiles within these limits.
    pub fn within(self, limits: Limits) -> Cuda {
        Cuda { limits, ..self }
    }

    /// The arguments of [`Cuda::new`].
    pub(crate) fn arch(&self) -> String {
        format!("{}{}", self.isa.name.trim_start_matches("cuda-"), self.libraries)
    }
}

impl Backend for Cuda {
    fn name(&self) -> &'static str {
        NAME
    }

    /// An op with symbolic extents is compiled for the extents of each run. It is claimed if it has a kernel for some
    /// extents.
    fn claims(&self, graph: &Graph, op: OpId) -> Result<(), String> {
        // Constants are known at compile time, however large they are.
        let func = extract::extract_with(graph, &[op], usize::MAX).func;
        if specialize::is_fixed(&func) {
            return roles::check_gpu_compatible(graph, op);
        }
        if !specialize::unbound_symbols(&func).is_empty() {
            return Err("its result shape is data-dependent".into());
        }
        let some = specialize::with_sample_extents(&func);
        let own = some.graph.region_ops(some.graph.entry()).find(|o| some.graph.op(*o).name() == graph.op(op).name());
        roles::check_gpu_compatible(&some.graph, own.ok_or("it is not there")?)
    }

    /// What a library of collectives does, for element types that it supports.
    fn exchanges(&self, rendezvous: &BackendTransfer, mesh: &[usize]) -> Result<(), String> {
        let share = Collective::of(&rendezvous.transfer, mesh, 0)?;
        match share.combines {
            Some(_) if !nccl::combines(rendezvous.dtype()) => Err(format!("NCCL cannot reduce {}", rendezvous.dtype())),
            _ if share.fills.is_some_and(|kind| identity_element(rendezvous.dtype(), kind).is_none()) => {
                Err(format!("{} cannot be reduced, so it has no partial values", rendezvous.dtype()))
            }
            _ => Ok(()),
        }
    }

    fn is_async(&self) -> bool {
        !self.isa.name.starts_with(isa::CUDA_EMULATED)
    }

    fn keeps_variables(&self) -> bool {
        true
    }

    /// Cost of launching a recorded graph, of synchronization, and of transfers over the bus.
    fn overhead(&self) -> Overhead {
        Overhead { launch: 3e-5, bandwidth: 2e10 }
    }

    /// Weights are on the device from the start. A function with symbolic extents is text, which has no room for them.
    fn largest_constant(&self, open: bool) -> usize {
        if open { extract::MAX_INLINE_ELEMENTS } else { usize::MAX }
    }

    fn compile(&self, func: &Func) -> Result<Vec<u8>, Diagnostic> {
        if !specialize::is_fixed(func) {
            return Ok(payload::write(func, &self.arch()));
        }
        let options = CompileOptions {
            model: String::new(),
            // The loader chooses the driver by this.
            flags: vec![self.isa.name.to_string()],
            inputs: Vec::new(),
            passes: String::new(),
            threads: 1,
            target: Target { winograd: false, libraries: self.libraries, ..Target::new(self.isa, &[]) },
            cache: self.cache.clone(),
            limits: self.limits.clone(),
            progress: None,
        };
        let broken = || Diagnostic::error(Code::CODEGEN, Location::Unknown, "the function was not compiled");
        // The passes of the driver are for its target, the CPU. Those for the GPU run here, on the function of the subgraph.
        let func = rewrite::for_isa(func, self.isa)?;
        let compiled = compile(&[("main".into(), &func)], &options)
            .map_err(|mut all| if all.0.is_empty() { broken() } else { all.0.remove(0) })?;
        let kept = &compiled.summary.rejected;
        for r in kept {
            tracing::info!("{} at {} is a kernel instead of a call of {}: {}", r.op, r.location, r.backend, r.reason);
        }
        for library in VendorLibrary::ALL {
            let count = kept.iter().filter(|r| r.backend == library.name()).count();
            if count > 0 {
                let what = library.op_kinds();
                tracing::warn!("{what} without a call of {}: {count}; -v lists them with reasons", library.name());
            }
        }
        compiled.bytes()
    }
}
