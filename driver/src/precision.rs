//! Precision lowering: products and convolutions in fewer bits, calibrated and checked on calibration inputs.

use std::ffi::{OsStr, OsString};
use std::sync::Arc;

use of_codegen::kernel::schedule;
use of_diag::{Code, Diagnostics};
use of_ir::{DType, Func, Module};
use of_ops::Value;
use of_passes::quantize::{self, Histogram, Range};
use of_passes::specialize::Bindings;
use of_passes::{Manager, PRIMITIVES_PIPELINE};

use crate::backends::Backends;
use crate::calibration_sets::calibration_sets;
use crate::error::{count, error};
use crate::generate::Generator;
use crate::model::Model;
use crate::observer::Observer;
use crate::options::{CompileOptions, Precision, SessionOptions};
use crate::output_change::OutputChange;
use crate::prepare::{main_func, prepare};
use crate::session::Session;
use crate::{input_files, tensor_files};

/// Lowers the model to the precision that the options name, and notes how its outputs on the calibration inputs change.
///
/// # Errors
/// When calibration inputs are missing or do not fit, or the model does not run on them.
pub fn lower(model: &mut Model, options: &CompileOptions, observer: &dyn Observer) -> Result<(), Diagnostics> {
    if options.precision == Precision::Model {
        return Ok(());
    }
    let mut module = model.module.clone();
    Manager::parse(PRIMITIVES_PIPELINE)?.run(&mut module, &mut |s| observer.ir(s))?;
    let func = main_func(&module)?.clone();
    let sets = calibration_sets(&options.calibration)?;
    // Calibration runs native code on this CPU, whatever the plan is for.
    let options_here = CompileOptions {
        threads: options.threads,
        limits: options.limits.clone(),
        cache: options.cache.clone(),
        reproducers: options.reproducers.clone(),
        ..CompileOptions::default()
    };
    let mut runner =
        Runner { model, backends: Backends::new(&options_here)?, options: options_here, observer, session: None };
    let lowered = match options.precision {
        Precision::Bf16 => Lowered::to_16_bits(&func, DType::BF16, &sets, &mut runner)?,
        Precision::F16 => Lowered::to_16_bits(&func, DType::F16, &sets, &mut runner)?,
        Precision::Int8 | Precision::Model => Lowered::to_int8(&func, &sets, &mut runner)?,
    };
    runner.session = None;
    let mut changes = vec![OutputChange::default(); func.outputs.len()];
    for (set, before) in sets.iter().zip(&lowered.reference) {
        for ((change, a), b) in changes.iter_mut().zip(runner.run(&lowered.func, set)?).zip(before) {
            change.add(&a, b);
        }
    }
    note_changes(&lowered.summary, &func.outputs, &changes, sets.len(), observer);
    if let Some(main) = module.main_mut() {
        *main = lowered.func;
    }
    model.module = module;
    Ok(())
}

fn note_changes(summary: &str, outputs: &[String], changes: &[OutputChange], sets: usize, observer: &dyn Observer) {
    if sets == 0 {
        observer.note(summary);
        observer.note("  the change of the outputs is unknown: --calibration gives inputs to measure it on");
        return;
    }
    observer.note(&format!("{summary}, {} of calibration inputs", count(sets, "set")));
    for (name, change) in outputs.iter().zip(changes) {
        observer.note(&format!("  output '{name}': {}", change.text()));
    }
}

/// A function in another precision.
struct Lowered {
    func: Func,
    /// One line for the user.
    summary: String,
    /// The outputs of the function before lowering, for each calibration set.
    reference: Vec<Vec<Value>>,
}

impl Lowered {
    /// Rounds the operands of products to 16-bit floats.
    fn to_16_bits(func: &Func, dtype: DType, sets: &[OsString], runner: &mut Runner<'_>) -> Result<Self, Diagnostics> {
        let reference = sets.iter().map(|set| runner.run(func, set)).collect::<Result<_, _>>()?;
        let mut lowered = func.clone();
        let products = quantize::round_contractions(&mut lowered, dtype)?;
        if products == 0 {
            let what = format!("{dtype}: the model has no products or convolutions of f32 with more than a few terms");
            return Err(error(Code::UNSUPPORTED, what).into());
        }
        let summary = format!("{dtype}: {} and convolutions", count(products, "product"));
        Ok(Lowered { func: lowered, summary, reference })
    }

    /// Quantizes products to 8-bit integers, with the ranges of values on the calibration sets.
    fn to_int8(func: &Func, sets: &[OsString], runner: &mut Runner<'_>) -> Result<Self, Diagnostics> {
        let sites = quantize::sites(func);
        if sites.is_empty() {
            let what = "int8: the model has no product or convolution with constant weights that can be quantized";
            return Err(error(Code::UNSUPPORTED, what).into());
        }
        let observed = quantize::observed(func, &sites)?;
        let mut histograms = vec![Histogram::default(); sites.values.len()];
        let mut reference = Vec::with_capacity(sets.len());
        for set in sets {
            let mut results = runner.run(&observed, set)?;
            for (h, value) in histograms.iter_mut().zip(results.drain(func.outputs.len()..)) {
                if let Value::Tensor(t) = &value
                    && let Some(numbers) = t.as_slice::<f32>()
                {
                    h.add(&numbers);
                }
            }
            reference.push(results);
        }
        let ranges: Vec<Range> = histograms.iter().map(Histogram::range).collect();
        let mut lowered = func.clone();
        quantize::quantize(&mut lowered, &sites, &ranges)?;
        let mut summary = format!("int8: {} and convolutions in 8-bit integers", count(sites.len(), "product"));
        if sites.inside > 0 {
            summary += &format!("; {} in loops and branches keep their precision", sites.inside);
        }
        Ok(Lowered { func: lowered, summary, reference })
    }
}

/// Runs functions on calibration sets; a function is compiled again where a set has other shapes.
struct Runner<'a> {
    model: &'a Model,
    options: CompileOptions,
    backends: Backends,
    observer: &'a dyn Observer,
    session: Option<(Bindings, Session)>,
}

impl Runner<'_> {
    fn run(&mut self, func: &Func, set: &OsStr) -> Result<Vec<Value>, Diagnostics> {
        let values =
            input_files::in_order(input_files::read(&[set.into()], func, &input_files::Conversion::default())?, func)?;
        let mut bindings = Bindings::new();
        input_files::bind(&values, func, &mut bindings)?;
        let inputs = tensor_files::to_runtime_all(values.into_iter().map(|v| v.value).collect())?;
        let open = self.session.take().filter(|(b, _)| *b == bindings);
        let mut session = match open {
            Some((_, session)) => session,
            None => self.compile(func, &bindings, &inputs)?,
        };
        let outputs = session.run_values(inputs)?;
        self.session = Some((bindings, session));
        outputs.iter().map(tensor_files::from_runtime).collect()
    }

    fn compile(&self, func: &Func, bindings: &Bindings, inputs: &[of_runtime::Value]) -> Result<Session, Diagnostics> {
        let mut module = Module { name: self.model.module.name.clone(), ..Module::default() };
        module.funcs.insert("main".into(), func.clone());
        let Runner { model, options, backends, observer, .. } = self;
        let funcs = prepare(&module, std::slice::from_ref(bindings), options, backends, *observer)?;
        let generator = Generator { model, options, backends, schedules: &schedule::NONE, observer: *observer };
        let plan = Arc::new(generator.compile(&funcs)?.open()?);
        let session = SessionOptions { threads: options.worker_threads(), profile: false, ..Default::default() };
        Session::for_inputs(plan, inputs, &session, backends)
    }
}
