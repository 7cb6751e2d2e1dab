//! What can execute ops: backends of this program, and those of shared libraries that the user names.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use of_codegen::Backend;
use of_codegen::place::{self, NATIVE, Pin, Placement, Request, place_all};
use of_cuda::Cuda;
use of_diag::{Code, Diagnostics};
use of_ir::Func;
use of_library::Library;
use of_mlir::Mlir;
use of_ops::OpSpec;
use of_ops::boxing::Transfer;
use of_reference::Reference;
use of_runtime::Loader;
use of_tensorrt::{Ranges, TensorRt};
use of_xla::{Serialized, Xla};

use crate::cli::Codegen;
use crate::console::Console;
use crate::show::count;
use crate::{driver, exit};

/// Backends of libraries.
static LOADED: OnceLock<Vec<Arc<Library>>> = OnceLock::new();

/// Loads the libraries that the command line names, before anything reads a model: their ops are known from then on, and
/// their backends are among all.
///
/// # Errors
/// When one is none, or has the name of something that there is already.
pub fn load(paths: &[PathBuf]) -> Result<(), Diagnostics> {
    let mut loaded: Vec<Arc<Library>> = Vec::new();
    for path in paths {
        let Some(library) = of_library::open(path).map_err(|e| exit::error(Code::INPUT, e.to_string()))? else {
            continue;
        };
        let name = Backend::name(&library);
        let known = Backends::all().compilers.iter().any(|b| b.name() == name);
        if name == NATIVE || known || loaded.iter().any(|l| Backend::name(&**l) == name) {
            let what = format!("'{}': there is a backend '{name}' already", path.display());
            return Err(exit::error(Code::INPUT, what).into());
        }
        loaded.push(Arc::new(library));
    }
    LOADED.get_or_init(|| loaded);
    Ok(())
}

/// Both halves of every backend.
pub struct Backends {
    compilers: Vec<Arc<dyn Backend>>,
    /// Those that load what the compilers wrote.
    pub loaders: Vec<Arc<dyn Loader>>,
}

impl Backends {
    /// Those of this program, the first of which takes every op that has no native code, and those of the libraries that were
    /// loaded.
    pub fn all() -> Backends {
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

    /// All, for the instruction set that `--isa` names, and the compiler for the GPU that `--target` or `--backend` names.
    ///
    /// # Errors
    /// When there is no such instruction set, target or GPU, or there are several.
    pub fn of(flags: &Codegen) -> Result<Backends, Diagnostics> {
        Backends::within(flags, &Ranges::new())
    }

    /// The same, for extents in these ranges where they have no numbers.
    ///
    /// # Errors
    /// As [`Backends::of`], and when there are ranges that no backend is asked to compile for.
    pub fn within(flags: &Codegen, ranges: &Ranges) -> Result<Backends, Diagnostics> {
        if !ranges.is_empty() {
            ranged(flags, ranges)?;
        }
        let mut all = Backends::all();
        for tensorrt in [TensorRt::default(), TensorRt::tf32()] {
            if let Some(own) = all.compilers.iter_mut().find(|b| b.name() == tensorrt.name()) {
                let times = driver::cache(flags).beside("tensorrt");
                *own = Arc::new(tensorrt.within(ranges.clone()).keeping_times(times));
            }
        }
        if let Some(mlir) = all.compilers.iter_mut().find(|b| b.name() == of_mlir::NAME) {
            *mlir = Arc::new(Mlir::new(driver::isa(flags.isa.as_deref())?));
        }
        let wrong = |what: String| exit::error(Code::INPUT, what).hint("choose from cpu, cuda:sm_90, cuda:shim");
        let target = flags.target.as_deref().filter(|t| *t != "cpu");
        if let Some(other) = target.filter(|t| gpu(t).is_none()) {
            return Err(wrong(format!("there is no target '{other}'")).into());
        }
        let mut archs: Vec<&str> =
            target.into_iter().chain(flags.backend.iter().map(String::as_str)).filter_map(gpu).collect();
        archs.dedup();
        match archs[..] {
            [] => {}
            [arch] => all.compilers.push(Arc::new(Cuda::new(arch, driver::cache(flags)).map_err(wrong)?)),
            _ => return Err(wrong(format!("a plan is for one GPU, not for {}", archs.join(" and "))).into()),
        }
        Ok(all)
    }

    /// The compilers.
    pub fn compilers(&self) -> Vec<&dyn Backend> {
        self.compilers.iter().map(|b| &**b).collect()
    }

    /// Places the ops of functions as the flags say, each by itself; `None` where they say nothing.
    ///
    /// # Errors
    /// When a backend is not known, or does not run what was given to it by hand.
    pub fn place(&self, funcs: &mut [&mut Func], flags: &Codegen) -> Result<Option<Vec<Placement>>, Diagnostics> {
        let gpu_alone = flags.target.as_deref().and_then(gpu).is_some();
        if let Some(cuda) = self.compilers.iter().find(|b| gpu_alone && b.name() == of_cuda::NAME) {
            return place::entirely(funcs, &**cuda).map(Some);
        }
        let pins = flags.backend_for.iter().map(|p| pin(p)).collect::<Result<Vec<_>, _>>()?;
        if flags.backend.is_empty() && pins.is_empty() {
            return Ok(None);
        }
        let mut named = flags.backend.iter().chain(pins.iter().map(|p| &p.backend));
        if !of_mlir::COMPILES && named.any(|b| b == of_mlir::NAME) {
            let what = "this of-opt was built without the backend 'mlir'; it runs plans that others compiled";
            return Err(exit::error(Code::INPUT, what).hint(of_mlir::HINT).into());
        }
        let known = self.compilers();
        let name = |b: &String| if gpu(b).is_some() { of_cuda::NAME.to_string() } else { b.clone() };
        let wanted: Vec<String> = flags.backend.iter().map(name).collect();
        let min_region = flags.min_region.unwrap_or(1);
        let request = Request { known: &known, wanted: &wanted, pins: &pins, min_region };
        Ok(Some(place_all(funcs, &request)?))
    }
}

/// Checks that ranges are of use: engines of TensorRT have them, and everything else takes any extent that has no number.
fn ranged(flags: &Codegen, ranges: &Ranges) -> Result<(), Diagnostics> {
    let list: Vec<String> = ranges.iter().map(|(name, range)| format!("{name}={range}")).collect();
    let list = list.join(",");
    if flags.mesh.is_some() {
        let what = format!("--shape {list}: ranges do not go with --mesh");
        return Err(exit::error(Code::INPUT, what).hint("give numbers").into());
    }
    let pinned = flags.backend_for.iter().filter_map(|p| p.rsplit_once('=')).map(|(_, backend)| backend);
    let mut asked = flags.backend.iter().map(String::as_str).chain(pinned);
    if asked.any(|b| b == of_tensorrt::NAME || b == of_tensorrt::NAME_TF32) {
        return Ok(());
    }
    let what =
        format!("--shape {list}: only engines of TensorRT are made for ranges, and --backend does not ask for one");
    let hint = "leave it out: what has no number stays open, and the plan takes any extent there";
    Err(exit::error(Code::INPUT, what).hint(hint).into())
}

/// The architecture in `cuda:sm_90`.
fn gpu(name: &str) -> Option<&str> {
    name.strip_prefix(of_cuda::NAME)?.strip_prefix(':')
}

/// `of.softmax=xla`, `layer1/conv=native`: the last `=` divides, as names of nodes may hold one.
fn pin(text: &str) -> Result<Pin, Diagnostics> {
    match text.rsplit_once('=') {
        Some((op, backend)) if !op.is_empty() && !backend.is_empty() => {
            Ok(Pin { op: op.into(), backend: backend.into() })
        }
        _ => Err(exit::error(Code::INPUT, format!("--backend-for {text}: OP=BACKEND is expected")).into()),
    }
}

/// Says what was placed; with -v, each op that was left out, and why.
pub fn say(p: &Placement, console: &Console) {
    for line in lines(p, console.verbose > 0) {
        console.note(&line);
    }
}

/// The report of a placement.
pub fn lines(p: &Placement, all: bool) -> Vec<String> {
    let mut names: Vec<&str> = p.regions.iter().map(|r| r.backend.as_str()).collect();
    names.extend(p.refused.iter().map(|r| r.backend.as_str()));
    names.sort_unstable();
    names.dedup();
    let mut out = Vec::new();
    for name in names {
        let regions: Vec<_> = p.regions.iter().filter(|r| r.backend == name).collect();
        let ops: usize = regions.iter().map(|r| r.ops.len()).sum();
        let refused: Vec<_> = p.refused.iter().filter(|r| r.backend == name).collect();
        let more = if all || refused.is_empty() { "" } else { "; -v says which and why" };
        let left = if refused.is_empty() { "nothing is".into() } else { count(refused.len(), "op") };
        let (ops, regions_of) = (count(ops, "op"), count(regions.len(), "region"));
        let met: usize = regions.iter().map(|r| r.rendezvous.len()).sum();
        let met = if met > 0 { format!(" with {} between ranks", count(met, "transfer")) } else { String::new() };
        out.push(format!("  {name}: {ops} in {regions_of}{met}, {left} left out{more}"));
        if !all {
            continue;
        }
        for (i, r) in regions.iter().enumerate() {
            let (native, call) = (r.native * 1e6, r.overhead * 1e6);
            out.push(format!(
                "    region {i}: {}; native code {native:.0} us, calling {name} {call:.0} us (modelled)",
                count(r.ops.len(), "op")
            ));
            let stays = format!("by {name}, from its memory to that of other ranks");
            out.extend(r.rendezvous.iter().map(|at| format!("    {} at {at}: {stays}", Transfer::NAME)));
        }
        for r in refused {
            let fix = r.fix.as_ref().map_or(String::new(), |f| format!("; {f}"));
            out.push(format!("    {} at {}: {}{fix}", r.op, r.location, r.reason));
        }
    }
    out
}
