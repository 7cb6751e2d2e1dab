//! The registry of backends: those of this crate, and those of shared libraries.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use of_codegen::Backend;
use of_codegen::place::{self, NATIVE, Pin, Placement, Request, place_all};
use of_cuda::Cuda;
pub use of_cuda::Timing as DeviceTiming;
use of_diag::{Code, Diagnostics};
use of_ir::Func;
use of_library::Library;
use of_mlir::Mlir;
use of_reference::Reference;
use of_runtime::Loader;
use of_tensorrt::{Ranges, TensorRt};
use of_xla::{Serialized, Xla};

use crate::error::error;
use crate::generate::isa;
use crate::options::{CompileOptions, cuda_arch};

/// Backends of libraries.
static LOADED: OnceLock<Vec<Arc<Library>>> = OnceLock::new();

/// Loads the libraries that the command line names, before anything reads a model: their ops are known from then on, and
/// their backends are among all.
///
/// # Errors
/// When a file is not such a library, or a name exists already.
pub fn load_libraries(paths: &[PathBuf]) -> Result<(), Diagnostics> {
    let mut loaded: Vec<Arc<Library>> = Vec::new();
    for path in paths {
        let Some(library) = of_library::open(path).map_err(|e| error(Code::INPUT, e.to_string()))? else {
            continue;
        };
        let name = Backend::name(&library);
        let known = Backends::builtin().compilers.iter().any(|b| b.name() == name);
        if name == NATIVE || known || loaded.iter().any(|l| Backend::name(&**l) == name) {
            let what = format!("'{}': there is a backend '{name}' already", path.display());
            return Err(error(Code::INPUT, what).into());
        }
        loaded.push(Arc::new(library));
    }
    LOADED.get_or_init(|| loaded);
    Ok(())
}

/// The compiler and the loader of every backend.
pub struct Backends {
    compilers: Vec<Arc<dyn Backend>>,
    /// Those that load what the compilers wrote.
    pub loaders: Vec<Arc<dyn Loader>>,
}

impl Backends {
    /// Those of this program, the first of which takes every op that has no native code, and those of the libraries that were
    /// loaded.
    pub fn builtin() -> Backends {
        let mut all = Backends {
            compilers: vec![Arc::new(Reference), Arc::new(Xla), Arc::new(Serialized), Arc::new(Mlir::default())],
            loaders: vec![
                Arc::new(Reference),
                Arc::new(Xla),
                Arc::new(Serialized),
                Arc::new(Mlir::default()),
                Arc::new(of_cuda::Device::default()),
            ],
        };
        for tensorrt in [TensorRt::default(), TensorRt::tf32()].map(Arc::new) {
            all.compilers.push(tensorrt.clone());
            all.loaders.push(tensorrt);
        }
        for library in LOADED.get().into_iter().flatten() {
            all.compilers.push(library.clone());
            all.loaders.push(library.clone());
        }
        all
    }

    /// All backends for the instruction set of the options, with the compiler for the GPU that target or backends name.
    ///
    /// # Errors
    /// When there is no such instruction set or GPU, or there are several GPUs.
    pub fn new(options: &CompileOptions) -> Result<Backends, Diagnostics> {
        Backends::with_ranges(options, &Ranges::new())
    }

    /// As [`Backends::new`], for engines of TensorRT whose open extents are in these ranges.
    ///
    /// # Errors
    /// As [`Backends::new`], and when there are ranges but no backend that compiles for ranges.
    pub fn with_ranges(options: &CompileOptions, ranges: &Ranges) -> Result<Backends, Diagnostics> {
        if !ranges.is_empty() {
            check_ranges(options, ranges)?;
        }
        let mut all = Backends::builtin();
        for tensorrt in [TensorRt::default(), TensorRt::tf32()] {
            if let Some(own) = all.compilers.iter_mut().find(|b| b.name() == tensorrt.name()) {
                let times = options.cache.sibling("tensorrt");
                *own = Arc::new(tensorrt.within(ranges.clone()).keeping_times(times));
            }
        }
        if let Some(mlir) = all.compilers.iter_mut().find(|b| b.name() == of_mlir::NAME) {
            *mlir = Arc::new(Mlir::new(isa(options.target.isa.as_deref())?));
        }
        let wrong = |what: String| error(Code::INPUT, what).hint("choose from cpu, cuda:sm_90, cuda:emulated");
        let named = options.placement.backends.iter().filter_map(|name| cuda_arch(name));
        let mut archs: Vec<&str> = options.target.cuda.as_deref().into_iter().chain(named).collect();
        archs.dedup();
        match archs[..] {
            [] => {}
            [arch] => all
                .compilers
                .push(Arc::new(Cuda::new(arch, options.cache.clone()).map_err(wrong)?.within(options.limits.clone()))),
            _ => return Err(wrong(format!("a plan is for one GPU, not for {}", archs.join(" and "))).into()),
        }
        Ok(all)
    }

    /// Makes GPUs measure this of each run of the programs that are loaded from now on.
    pub fn time_devices(&mut self, timing: DeviceTiming) {
        let loader: Arc<dyn Loader> = Arc::new(of_cuda::Device::default().timed(timing));
        if let Some(own) = self.loaders.iter_mut().find(|l| l.backend() == loader.backend()) {
            *own = loader;
        }
    }

    /// The compilers.
    pub fn compilers(&self) -> Vec<&dyn Backend> {
        self.compilers.iter().map(|b| &**b).collect()
    }

    /// Places the ops of functions as the flags say, each by itself; `None` where they say nothing.
    ///
    /// # Errors
    /// When a backend is not known, or does not run an op that is pinned to it.
    pub fn place(
        &self,
        funcs: &mut [&mut Func],
        options: &CompileOptions,
    ) -> Result<Option<Vec<Placement>>, Diagnostics> {
        let gpu_alone = options.target.cuda.is_some();
        if let Some(cuda) = self.compilers.iter().find(|b| gpu_alone && b.name() == of_cuda::NAME) {
            return place::entirely(funcs, &**cuda).map(Some);
        }
        let pins = options.placement.pins.iter().map(|p| pin(p)).collect::<Result<Vec<_>, _>>()?;
        if options.placement.backends.is_empty() && pins.is_empty() {
            return Ok(None);
        }
        let mut named = options.placement.backends.iter().chain(pins.iter().map(|p| &p.backend));
        if !of_mlir::COMPILES && named.any(|b| b == of_mlir::NAME) {
            let what = "this of-opt was built without the backend 'mlir'; it runs plans that others compiled";
            return Err(error(Code::INPUT, what).hint(of_mlir::HINT).into());
        }
        let known = self.compilers();
        let name = |b: &String| if cuda_arch(b).is_some() { of_cuda::NAME.to_string() } else { b.clone() };
        let wanted: Vec<String> = options.placement.backends.iter().map(name).collect();
        let min_subgraph_size = options.placement.min_ops.unwrap_or(1);
        let request = Request { known: &known, wanted: &wanted, pins: &pins, min_subgraph_size };
        Ok(Some(place_all(funcs, &request)?))
    }
}

/// Checks that ranges have an effect: only TensorRT engines use them, and everything else accepts any symbolic extent.
fn check_ranges(options: &CompileOptions, ranges: &Ranges) -> Result<(), Diagnostics> {
    let list: Vec<String> = ranges.iter().map(|(name, range)| format!("{name}={range}")).collect();
    let list = list.join(",");
    if options.mesh.is_some() {
        let what = format!("--shape {list}: ranges do not go with --mesh");
        return Err(error(Code::INPUT, what).hint("give numbers").into());
    }
    let pinned = options.placement.pins.iter().filter_map(|p| p.rsplit_once('=')).map(|(_, backend)| backend);
    let mut asked = options.placement.backends.iter().map(String::as_str).chain(pinned);
    if asked.any(|b| b == of_tensorrt::NAME || b == of_tensorrt::NAME_TF32) {
        return Ok(());
    }
    let what =
        format!("--shape {list}: only engines of TensorRT are made for ranges, and --backend does not ask for one");
    let hint = "leave it out: what has no number stays open, and the plan takes any extent there";
    Err(error(Code::INPUT, what).hint(hint).into())
}

/// `of.softmax=xla`, `layer1/conv=native`: the last `=` divides, as names of nodes may hold one.
fn pin(text: &str) -> Result<Pin, Diagnostics> {
    match text.rsplit_once('=') {
        Some((op, backend)) if !op.is_empty() && !backend.is_empty() => {
            Ok(Pin { op: op.into(), backend: backend.into() })
        }
        _ => Err(error(Code::INPUT, format!("--pin {text}: OP=BACKEND is expected")).into()),
    }
}
