//! Compilation: options, progress, warnings, and interruption.

use std::cell::RefCell;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use of_diag::{Code, Diagnostic, Diagnostics, Renderer};
use of_driver::model::{Format, format_of_bytes, open_for};
use of_driver::{
    CompileOptions, Compiler, CpuCode, Limits, MeshOptions, Model, ModelOrPlan, Observer, Precision, Target, error,
};
use of_plan::PlanFile;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};

use crate::error::{diagnostic, exception};
use crate::interrupt;
use crate::ir::Module;
use crate::plan::Plan;

/// Stack of the thread that compiles.
const STACK: usize = 64 << 20;

/// The options of `of_opt.compile`.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct Options {
    shapes: Vec<String>,
    variants: Vec<String>,
    threads: usize,
    target: String,
    isa: Option<String>,
    precision: String,
    calibration: Vec<OsString>,
    backends: Vec<String>,
    cpu_code: String,
    pipeline: Option<String>,
    winograd: bool,
    keep_subnormals: bool,
    initializer_inputs: Vec<String>,
    folder: Option<PathBuf>,
    memory: Option<u64>,
    time_limit: Option<f64>,
    memory_limit: Option<u64>,
    tune: Option<f64>,
    variables: Vec<String>,
    require_native: bool,
    record_rewrites: bool,
    mesh: Option<String>,
    layouts: Vec<String>,
}

/// What a compilation reports.
#[derive(Default)]
struct Report {
    renderer: RefCell<Renderer>,
    warnings: RefCell<Vec<Diagnostic>>,
}

impl Observer for Report {
    fn diagnostic(&self, diagnostic: &Diagnostic) {
        self.warnings.borrow_mut().push(diagnostic.clone());
    }

    fn source(&self, file: &str, text: &str) {
        self.renderer.borrow_mut().sources.add(file, text);
    }
}

/// The texts of the files that were read, for diagnostics that point into them.
#[derive(Default)]
pub struct Sources(RefCell<Vec<(String, String)>>);

impl Sources {
    /// File names and texts.
    pub fn into_inner(self) -> Vec<(String, String)> {
        self.0.into_inner()
    }
}

impl Observer for Sources {
    fn source(&self, file: &str, text: &str) {
        self.0.borrow_mut().push((file.to_owned(), text.to_owned()));
    }
}

/// What to compile.
enum Source {
    File(PathBuf),
    Bytes(Vec<u8>),
    /// IR, and what renders its diagnostics.
    Module(Box<of_ir::Module>, Renderer),
}

/// A compiled plan, or what is wrong; the texts that diagnostics point into; warnings.
type Outcome = (Result<PlanFile, Diagnostics>, Renderer, Vec<Diagnostic>);

/// A warning: its text, and its parts.
type Warning<'py> = (String, Bound<'py, PyTuple>);

/// Compiles a model: a module of the IR, bytes, or a file. Returns the plan and the warnings.
#[pyfunction]
#[pyo3(signature = (model, options))]
pub fn compile<'py>(
    py: Python<'py>,
    model: &Bound<'py, PyAny>,
    options: Options,
) -> PyResult<(Plan, Vec<Warning<'py>>)> {
    let source = if let Ok(module) = model.cast::<Module>() {
        let (module, renderer) = module.get().copy(py);
        Source::Module(Box::new(module), renderer)
    } else if let Ok(bytes) = model.cast::<PyBytes>() {
        Source::Bytes(bytes.as_bytes().to_vec())
    } else {
        Source::File(model.extract()?)
    };
    let cancelled = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&cancelled);
    let main = interrupt::is_main_thread(py)?;
    let work = move || -> Outcome {
        let report = Report::default();
        let result = compiled(source, &options, flag, &report);
        (result, report.renderer.into_inner(), report.warnings.into_inner())
    };
    let outcome = py.detach(|| on_a_thread(work, main, &cancelled));
    let (result, renderer, warnings) = match outcome {
        Ok(outcome) => outcome,
        Err(Ended::Interrupted(e)) => return Err(e),
        Err(Ended::Failed(list)) => return Err(exception(py, &list, &Renderer::default())),
    };
    let file = result.map_err(|list| exception(py, &list, &renderer))?;
    let warning = |d: &Diagnostic| Ok((renderer.render(d).trim_end().to_owned(), diagnostic(py, d)?));
    Ok((Plan::new(file), warnings.iter().map(warning).collect::<PyResult<_>>()?))
}

/// Why a compilation has no outcome.
enum Ended {
    Interrupted(PyErr),
    Failed(Diagnostics),
}

/// Compiles on a thread of its own, while the caller looks for signals.
fn on_a_thread(
    work: impl FnOnce() -> Outcome + Send + 'static,
    main: bool,
    cancelled: &AtomicBool,
) -> Result<Outcome, Ended> {
    let (done, outcome) = channel();
    let thread = std::thread::Builder::new().name("of-compile".into()).stack_size(STACK);
    let thread = thread.spawn(move || {
        // The caller waits for the outcome.
        let _ = done.send(work());
    });
    let failed = |what: String| Ended::Failed(error(Code::CODEGEN, what).into());
    let thread = thread.map_err(|e| failed(format!("cannot start a thread: {e}")))?;
    let mut interrupted = None;
    loop {
        match outcome.recv_timeout(interrupt::INTERVAL) {
            Ok(outcome) => {
                // It sent its outcome and has nothing left to do.
                let _ = thread.join();
                return interrupted.map_or(Ok(outcome), |e| Err(Ended::Interrupted(e)));
            }
            Err(RecvTimeoutError::Timeout) if main && interrupted.is_none() => {
                interrupted = Python::attach(|py| py.check_signals()).err();
                cancelled.fetch_or(interrupted.is_some(), Ordering::AcqRel);
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                let payload = thread.join().err();
                let payload = payload.as_deref();
                let text = payload.and_then(|p| p.downcast_ref::<&str>().copied());
                let text = text.or_else(|| payload?.downcast_ref::<String>().map(String::as_str));
                let text = text.unwrap_or("no message");
                return Err(failed(format!("the compiler panicked, which is a bug: {text}")));
            }
        }
    }
}

fn compiled(
    source: Source,
    given: &Options,
    cancelled: Arc<AtomicBool>,
    report: &Report,
) -> Result<PlanFile, Diagnostics> {
    let options = compile_options(given, cancelled)?;
    let model = match source {
        Source::File(path) => match open_for(&path, &given.initializer_inputs, &[], report)? {
            ModelOrPlan::Model(model) => *model,
            ModelOrPlan::Plan(_) => return Err(of_driver::model::already_compiled(&path).into()),
        },
        Source::Bytes(bytes) => model_of_bytes(bytes, given, report)?,
        Source::Module(module, renderer) => {
            report.renderer.replace(renderer);
            Model::from_module(*module)
        }
    };
    let compiler = Compiler::with_options(options).shapes(&given.shapes).variants(&given.variants).observer(report);
    let compiled = compiler.compile(model)?;
    compiled.summary().not_native.iter().filter(|op| op.computes()).for_each(|op| {
        let what = format!("'{}' runs on the interpreter: {}", op.op, op.reason);
        report.diagnostic(&Diagnostic::warning(Code::CODEGEN, op.location.clone(), what));
    });
    compiled.open()
}

/// A model of bytes: ONNX, or IR text.
fn model_of_bytes(bytes: Vec<u8>, given: &Options, report: &Report) -> Result<Model, Diagnostics> {
    const NAME: &str = "<bytes>";
    match format_of_bytes(&bytes[..bytes.len().min(4096)]) {
        Format::Plan => Err(error(Code::INPUT, "the bytes are a compiled plan; a model is needed").into()),
        Format::Text => {
            let text = String::from_utf8(bytes)
                .map_err(|_| error(Code::SYNTAX, "the bytes are neither an ONNX model nor IR text"))?;
            report.source(NAME, &text);
            Model::from_text(&text, NAME, given.folder.as_deref())
        }
        Format::Onnx => {
            let initializer_inputs = given.initializer_inputs.iter().cloned().collect();
            let folder = given.folder.clone();
            let options = of_onnx::Options { initializer_inputs, folder, ..of_onnx::Options::default() };
            Ok(Model::from_module(of_onnx::import_bytes(bytes, &options)?))
        }
    }
}

fn compile_options(given: &Options, cancelled: Arc<AtomicBool>) -> Result<CompileOptions, Diagnostics> {
    let choice = |what: &str, got: &str, known: &str| {
        Diagnostics::from(error(Code::INPUT, format!("unknown {what} '{got}'")).hint(format!("choose from {known}")))
    };
    let precision = match given.precision.as_str() {
        "model" => Precision::Model,
        "int8" => Precision::Int8,
        "bf16" => Precision::Bf16,
        "f16" => Precision::F16,
        other => return Err(choice("precision", other, "model, int8, bf16, f16")),
    };
    let cpu_code = match given.cpu_code.as_str() {
        "machine" => CpuCode::Machine,
        "c" => CpuCode::C,
        other => return Err(choice("source of CPU code", other, "machine, c")),
    };
    let seconds = |what: &str, value: f64| {
        let text = || Diagnostics::from(error(Code::INPUT, format!("{what} is no number of seconds: {value}")));
        Duration::try_from_secs_f64(value).map_err(|_| text())
    };
    let mut target = Target::parse(&given.target)?;
    target.isa.clone_from(&given.isa);
    let time = given.time_limit.map(|limit| seconds("time_limit", limit)).transpose()?;
    if given.mesh.is_none() && !given.layouts.is_empty() {
        return Err(error(Code::INPUT, "layouts are those of a mesh").hint("give mesh as well").into());
    }
    let mut options = CompileOptions {
        threads: given.threads,
        target,
        pipeline: given.pipeline.clone(),
        winograd: given.winograd,
        keep_subnormals: given.keep_subnormals,
        cpu_code,
        precision,
        calibration: given.calibration.clone(),
        tuning: given.tune.map(|limit| seconds("tune", limit)).transpose()?,
        memory: given.memory,
        variables: given.variables.clone(),
        require_native: given.require_native,
        record_rewrites: given.record_rewrites,
        mesh: given.mesh.clone().map(|mesh| MeshOptions {
            mesh,
            search: Vec::new(),
            stages: None,
            layouts: given.layouts.clone(),
        }),
        limits: Limits::new(Instant::now(), time, given.memory_limit).cancelled_by(cancelled),
        ..CompileOptions::default()
    };
    options.placement.backends.clone_from(&given.backends);
    Ok(options)
}
