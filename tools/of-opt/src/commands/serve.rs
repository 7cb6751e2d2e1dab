//! `of-opt serve`: a model server that compiles models.

use std::path::{Path, PathBuf};

use clap::Args;
use of_diag::{Code, Diagnostics};
use of_driver::ensemble::{Step, merge};
use of_driver::{Backends, CompileOptions, Compiler, Model, ModelOrPlan, Silent, error, model};
use of_opt_serve::ServeFlags;
use of_plan::PlanFile;
use of_serving::{Ensemble, EnsembleStep, Opener};

use crate::arguments::Codegen;
use crate::console::Console;
use crate::{exit, signals};

/// Flags.
#[derive(Args, Debug)]
pub struct Serve {
    /// What is served, where, and to whom.
    #[command(flatten)]
    pub serve: ServeFlags,
    /// Code generation, for models that are not compiled yet.
    #[command(flatten)]
    pub codegen: Codegen,
}

/// Executes the subcommand: serves until a signal.
///
/// # Errors
/// When the server cannot start, or requests were not answered in time at its end.
pub fn serve(c: &Serve, console: &Console) -> Result<(), Diagnostics> {
    let options = c.codegen.options()?;
    if options.mesh.is_some() {
        return Err(exit::usage("--mesh has no effect here: the server starts no ranks").into());
    }
    let opener = opener(options, c.serve.require_signature.clone())?;
    let ended = of_opt_serve::run(&c.serve, c.codegen.threads.unwrap_or(0), opener, |text| console.print(text));
    signals::clean_up();
    ended
}

/// Opens plans, signed ones only if there is a key, and compiles models.
fn opener(options: CompileOptions, key: Option<PathBuf>) -> Result<Opener, Diagnostics> {
    let loaders = Backends::new(&options)?.loaders;
    let (compile, is_signed) = (options.clone(), key.is_some());
    let open = move |path: &Path| match &key {
        Some(key) => of_opt_serve::open_signed(path, key),
        None => open(path, &options).map_err(|e| e.to_string()),
    };
    let ensemble = move |ensemble: &Ensemble| open_ensemble(ensemble, &compile, is_signed).map_err(|e| e.to_string());
    Ok(Opener { open: Box::new(open), open_ensemble: Box::new(ensemble), loaders })
}

/// Merges the models of an ensemble, and compiles them as one plan.
fn open_ensemble(ensemble: &Ensemble, options: &CompileOptions, is_signed: bool) -> Result<PlanFile, Diagnostics> {
    if is_signed {
        let what = "an ensemble is compiled when it is loaded, and --require-signature serves signed plans only";
        return Err(error(Code::INPUT, what).into());
    }
    let step = |step: &EnsembleStep| -> Result<Step, Diagnostics> {
        let model = Model::open(&step.file)?;
        Ok(Step { name: step.name.clone(), model, inputs: step.inputs.clone(), outputs: step.outputs.clone() })
    };
    let steps = ensemble.steps.iter().map(step).collect::<Result<_, _>>()?;
    let model = merge(&ensemble.name, steps, &ensemble.inputs, &ensemble.outputs)?;
    Compiler::with_options(options.clone()).compile(model)?.open()
}

fn open(path: &Path, options: &CompileOptions) -> Result<PlanFile, Diagnostics> {
    match model::open(path, &Silent)? {
        ModelOrPlan::Plan(plan) => Ok(*plan),
        ModelOrPlan::Model(model) => Compiler::with_options(options.clone()).compile(*model)?.open(),
    }
}
