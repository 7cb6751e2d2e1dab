//! What `run` and `bench` begin with: a plan, and a value for every input, given or made up.

use of_codegen::Summary;
use of_codegen::kernel::schedule;
use of_diag::Diagnostics;
use of_passes::specialize::Bindings;
use of_plan::PlanFile;
use of_runtime::Value;

use crate::backends::Backends;
use crate::cli::{Codegen, ModelFile, Shapes};
use crate::console::Console;
use crate::inputs::{self, InputFiles};
use crate::model::{Model, Source, load};
use crate::ranks::{self, Which};
use crate::{driver, engine, precision, random, shapes, values};

/// What the command line says of a model that is to run.
pub struct Request<'a> {
    /// The file.
    pub model: &'a ModelFile,
    /// Files of inputs.
    pub inputs: &'a InputFiles,
    /// Numbers for open dimensions.
    pub shapes: &'a Shapes,
    /// How to compile what is not compiled.
    pub codegen: &'a Codegen,
    /// What can execute ops.
    pub backends: &'a Backends,
    /// Whether values are made up where there are no files.
    pub makes_up: bool,
    /// Says what became of the ops of a model that was compiled.
    pub summary: fn(&Summary, &Console),
}

impl Request<'_> {
    /// Whether values are made up.
    fn makes_up(&self) -> bool {
        self.makes_up && self.inputs.inputs.is_empty()
    }

    /// The plan and the inputs.
    ///
    /// # Errors
    /// When a file cannot be read, the inputs do not fit, or something is not supported.
    pub fn ready(&self, console: &mut Console) -> Result<(PlanFile, Vec<Value>), Diagnostics> {
        match load(&self.model.model, console)? {
            Model::Plan(plan) => {
                self.codegen.checks_plan(&[])?;
                let values = self.for_plan(&plan, console)?;
                Ok((*plan, values))
            }
            Model::Module(mut source) => {
                driver::verify(&source.module)?;
                precision::lower(&mut source, self.codegen, console)?;
                self.compiled(&source, console)
            }
        }
    }

    fn for_plan(&self, plan: &PlanFile, console: &Console) -> Result<Vec<Value>, Diagnostics> {
        if !self.makes_up() {
            return values::to_runtime_all(inputs::read_for_plan(self.inputs, plan)?);
        }
        let program = engine::entry(plan)?;
        let types = shapes::of_plan(&self.shapes.shape, &program, console)?;
        let named = program.inputs.iter().map(|p| p.name.as_str()).zip(types);
        values::to_runtime_all(random::values(named)?)
    }

    /// Compiles a model for the shapes of the inputs.
    fn compiled(&self, source: &Source, console: &mut Console) -> Result<(PlanFile, Vec<Value>), Diagnostics> {
        let func = driver::main_func(&source.module)?;
        let mut bindings = Bindings::new();
        shapes::bind(&self.shapes.shape, func, &mut bindings)?;
        let given = if self.makes_up() {
            if let Some(warning) = shapes::default_open(func, &mut bindings) {
                console.say(&warning);
            }
            None
        } else {
            let ordered = inputs::in_order(inputs::read(self.inputs, func)?, func)?;
            inputs::bind(&ordered, func, &mut bindings)?;
            Some(ordered.into_iter().map(|g| g.value).collect())
        };
        if let Some(mesh) = &self.codegen.mesh {
            let ranked =
                ranks::prepare(&source.module, &bindings, self.codegen, mesh, Which::All, self.backends, console)?;
            let compiled = ranks::compile(&ranked, source, self.codegen, self.backends, Vec::new(), console)?;
            (self.summary)(&compiled.summary, console);
            let plan = compiled.open()?;
            let made_up = || {
                let program = engine::entry(&plan)?;
                random::values(program.inputs.iter().map(|p| (p.name.as_str(), values::port_type(p))))
            };
            let values = given.map_or_else(made_up, Ok)?;
            return Ok((plan, values::to_runtime_all(values)?));
        }
        let (codegen, backends) = (self.codegen, self.backends);
        let funcs = driver::prepare(&source.module, &[bindings], codegen, backends, console)?;
        let compiled = driver::compile(&funcs, source, codegen, backends, Vec::new(), &schedule::NONE, console)?;
        (self.summary)(&compiled.summary, console);
        let values = match given {
            Some(v) => v,
            None => {
                let (func, types) = (&funcs[0].1, funcs[0].1.input_types());
                random::values(func.inputs.iter().map(String::as_str).zip(types.into_iter().map(Some)))?
            }
        };
        Ok((compiled.open()?, values::to_runtime_all(values)?))
    }
}
