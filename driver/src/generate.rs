//! Code generation for prepared functions: from typed options to the options of `of_codegen`.

use std::sync::Arc;

use of_codegen::kernel::schedule::Schedules;
use of_codegen::{Compiled, Progress, Target};
use of_codegen::{Isa, Language};
use of_diag::{Code, Diagnostics};
use of_ir::Func;
use of_passes::{CPU_PIPELINE, Manager};

use crate::backends::Backends;
use crate::error::error;
use crate::model::Model;
use crate::observer::Observer;
use crate::options::CompileOptions;

/// What code generation needs in addition to the functions.
pub struct Generator<'a> {
    /// The model that the functions come from.
    pub model: &'a Model,
    /// How to compile.
    pub options: &'a CompileOptions,
    /// The backends that compile the ops placed on them.
    pub backends: &'a Backends,
    /// Tuned register tiles.
    pub schedules: &'a Schedules,
    /// Receives progress.
    pub observer: &'a dyn Observer,
}

impl Generator<'_> {
    /// Compiles prepared functions into one plan, with a program for each.
    ///
    /// # Errors
    /// When an op is not supported or a kernel cannot be compiled.
    pub fn compile(&self, funcs: &[(String, Func)]) -> Result<Compiled, Diagnostics> {
        let funcs: Vec<(String, &Func)> = funcs.iter().map(|(n, f)| (n.clone(), f)).collect();
        self.with_options(|options| of_codegen::compile(&funcs, options))
    }

    /// Every pass of the pipeline, for the plan.
    fn passes(&self) -> String {
        let text = self.options.pipeline.as_deref().unwrap_or(CPU_PIPELINE);
        // The passes ran before, so the text has no error.
        Manager::parse(text).map_or_else(|_| text.to_string(), |manager| manager.text())
    }

    /// Runs `compile` with the options of `of_codegen` that belong to these.
    ///
    /// # Errors
    /// Those of `compile`, and an unknown instruction set.
    pub fn with_options<T>(
        &self,
        compile: impl FnOnce(&of_codegen::CompileOptions<'_>) -> Result<T, Diagnostics>,
    ) -> Result<T, Diagnostics> {
        let activity = self.observer.begin("generating code");
        let compilers = self.backends.compilers();
        let options = of_codegen::CompileOptions {
            model: self.model.module.name.clone(),
            flags: self.options.recorded_flags.clone(),
            passes: self.passes(),
            inputs: self.model.hashed_files()?,
            threads: u32::try_from(self.options.worker_threads()).unwrap_or(u32::MAX),
            target: Target {
                winograd: self.options.winograd,
                cpu_code: self.options.cpu_code,
                keep_subnormals: self.options.keep_subnormals,
                schedules: self.schedules,
                ..Target::new(isa(self.options.target.isa.as_deref())?, &compilers)
            },
            limits: self.options.limits.clone(),
            cache: self.options.cache.clone(),
            progress: activity.progress().map(|report| {
                let kernels = move |p| match p {
                    Progress::Kernels(done, all) => report("compiling kernels", done, all),
                };
                Arc::new(kernels) as _
            }),
        };
        compile(&options)
    }
}

/// The CPU instruction set called `name`, else the best of this machine.
///
/// # Errors
/// When no instruction set has that name.
pub fn isa(name: Option<&str>) -> Result<&'static Isa, Diagnostics> {
    let Some(name) = name else { return Ok(Isa::host()) };
    Isa::by_name(name).filter(|i| i.language != Language::Cuda).ok_or_else(|| {
        let known = of_codegen::isa::ISAS.iter().filter(|i| i.language != Language::Cuda);
        let known: Vec<_> = known.map(|i| i.name).collect();
        error(Code::INPUT, format!("unknown instruction set '{name}'"))
            .hint(format!("choose from {}", known.join(", ")))
            .into()
    })
}
