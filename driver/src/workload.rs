//! A workload: a plan, and a value for each of its inputs, read from files or random.

use std::ffi::OsString;

use of_codegen::Summary;
use of_diag::{Code, Diagnostics};
use of_ops::Value as OpValue;
use of_passes::specialize::Bindings;
use of_plan::PlanFile;
use of_runtime::Value;

use crate::backends::Backends;
use crate::compiler::compile_bound;
use crate::error::error;
use crate::input_files::{self, NamedValue};
use crate::model::Model;
use crate::observer::Observer;
use crate::options::CompileOptions;
use crate::precision;
use crate::prepare::{main_func, verify};
use crate::session::{check_smallest, entry_point};
use crate::{random_inputs, shapes, tensor_files};

/// A plan and its inputs, in the order of the plan.
pub struct Workload {
    /// The plan.
    pub plan: PlanFile,
    /// A value for each input.
    pub inputs: Vec<Value>,
    /// Numbers about the generated code, where a model was compiled.
    pub summary: Option<Summary>,
}

/// Where the inputs of a workload come from.
#[derive(Clone, Copy, Debug)]
pub struct InputSource<'a> {
    /// Files and folders, as [`input_files::read`] takes them.
    pub files: &'a [OsString],
    /// Shape bindings, as [`shapes::bind`] takes them.
    pub shapes: &'a [String],
    /// How their contents become values.
    pub conversion: &'a input_files::Conversion,
    /// Whether inputs are random where `files` is empty.
    pub random: bool,
    /// The most bytes that random inputs may take; `None` is this machine's memory.
    pub memory: Option<u64>,
}

impl InputSource<'_> {
    fn is_random(&self) -> bool {
        self.random && self.files.is_empty()
    }

    /// The workload for a compiled plan.
    ///
    /// # Errors
    /// When a file cannot be read, or the inputs do not fit.
    pub fn for_plan(&self, plan: PlanFile, observer: &dyn Observer) -> Result<Workload, Diagnostics> {
        check_smallest(&plan, self.memory)?;
        let values = if self.is_random() {
            let program = entry_point(&plan)?;
            let types = shapes::of_plan(self.shapes, &program, observer)?;
            random_inputs::values(program.inputs.iter().map(|p| p.name.as_str()).zip(types), self.memory)?
        } else {
            if !self.shapes.is_empty() {
                let what = "the shapes of a plan's inputs are those of the files: --shape has no effect together with --inputs";
                return Err(error(Code::INPUT, what).hint("leave out --shape, or give the model").into());
            }
            input_files::read_for_plan(self.files, &plan, self.conversion)?
        };
        Ok(Workload { plan, inputs: tensor_files::to_runtime_all(values)?, summary: None })
    }

    /// The workload for a model, which is compiled for the shapes of the inputs.
    ///
    /// # Errors
    /// When a file cannot be read, the inputs do not fit, or an op is not supported.
    pub fn for_model(
        &self,
        mut model: Model,
        options: &CompileOptions,
        backends: &Backends,
        observer: &dyn Observer,
    ) -> Result<Workload, Diagnostics> {
        verify(&model.module)?;
        precision::lower(&mut model, options, observer)?;
        let func = main_func(&model.module)?;
        let mut bindings = Bindings::new();
        shapes::bind(self.shapes, func, &mut bindings)?;
        let values: Option<Vec<OpValue>> = if self.is_random() {
            if let Some(warning) = shapes::default_open(func, &mut bindings) {
                observer.diagnostic(&warning);
            }
            None
        } else {
            let ordered: Vec<NamedValue> =
                input_files::in_order(input_files::read(self.files, func, self.conversion)?, func)?;
            input_files::bind(&ordered, func, &mut bindings)?;
            Some(ordered.into_iter().map(|v| v.value).collect())
        };
        let compiled = compile_bound(&model, bindings, options, backends, observer)?;
        let (types, summary, plan) = (compiled.inputs, compiled.code.summary.clone(), compiled.code.open()?);
        let values = match values {
            Some(values) => values,
            // A mesh program takes whole inputs, whatever its ranks and microbatches take.
            None if !plan.plan().meshes.is_empty() => {
                let program = entry_point(&plan)?;
                random_inputs::values(
                    program.inputs.iter().map(|p| (p.name.as_str(), tensor_files::port_type(p))),
                    self.memory,
                )?
            }
            None => random_inputs::for_types(&types, self.memory)?,
        };
        let inputs = tensor_files::to_runtime_all(values)?;
        Ok(Workload { plan, inputs, summary: Some(summary) })
    }
}
