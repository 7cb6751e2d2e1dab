//! Native code of many small functions: passes, placement, code generation and a run of each.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

use of_codegen::kernel::schedule;
use of_codegen::place::matches_op;
use of_diag::Diagnostics;
use of_ir::{Func, Module};
use of_ops::Value;
use of_passes::specialize::Bindings;
use of_plan::{Exec, PlanFile, Program};

use super::case::Case;
use crate::backends::Backends;
use crate::compiler::compile_bound;
use crate::generate::Generator;
use crate::model::Model;
use crate::observer::Silent;
use crate::options::{CompileOptions, SessionOptions};
use crate::prepare::{module_of, run_passes};
use crate::session::{Session, program_session};
use crate::{codegen_passes, tensor_files};

/// Functions that share a plan.
const BATCH: usize = 24;

/// Compiles and runs cases.
pub(super) struct Native<'a> {
    /// Name and meshes of the model.
    pub module: &'a Module,
    /// How to compile.
    pub options: &'a CompileOptions,
    /// The backends of these options.
    pub backends: &'a Backends,
    /// Whether the functions are parts of a model, which may lack ops that the options give to a backend by hand.
    pub parts: bool,
}

/// A run of a case.
pub(super) struct Ran {
    /// The outputs, or why there are none.
    pub outputs: Result<Vec<Value>, String>,
    /// The function after the passes.
    pub prepared: Option<Func>,
    /// The kernels and backends that computed it, by name.
    pub executors: BTreeSet<String>,
    /// blake3 of its kernels.
    pub kernels: BTreeSet<Vec<u8>>,
}

impl Ran {
    /// A run by the interpreter.
    pub fn interpreted() -> Ran {
        Ran { outputs: Ok(Vec::new()), prepared: None, executors: BTreeSet::new(), kernels: BTreeSet::new() }
    }

    fn failed(why: impl ToString) -> Ran {
        Ran { outputs: Err(why.to_string()), prepared: None, executors: BTreeSet::new(), kernels: BTreeSet::new() }
    }
}

impl Native<'_> {
    /// Runs cases as they stand in a model before passes. `done` is called with the number of cases that ran.
    pub fn run(&self, cases: &[&Case], done: &dyn Fn(usize)) -> Vec<Ran> {
        if self.options.mesh.is_some() {
            return cases.iter().enumerate().map(|(i, c)| self.on_mesh(c, i, done)).collect();
        }
        let pass = |c: &&Case| self.passes(&c.func).map_err(|e| e.to_string());
        self.finish(cases, cases.iter().map(pass).collect(), done)
    }

    /// Runs one case as it stands in a model before passes.
    pub fn run_one(&self, case: &Case) -> Ran {
        self.run(&[case], &|_| ()).pop().unwrap_or_else(|| Ran::failed("nothing ran"))
    }

    /// Runs cases of functions that the passes and the placement made: code generation only.
    pub fn run_prepared(&self, cases: &[&Case], done: &dyn Fn(usize)) -> Vec<Ran> {
        let funcs: Vec<Result<Func, String>> = cases.iter().map(|c| Ok(c.func.clone())).collect();
        let placed = funcs.iter().map(|f| f.as_ref().ok().cloned()).collect();
        self.generate(cases, placed, funcs, done)
    }

    /// A function after the passes, before its ops are placed on backends.
    pub fn passes(&self, func: &Func) -> Result<Func, Diagnostics> {
        let module = module_of(func.clone(), self.module);
        let mut funcs = run_passes(&module, &[Bindings::new()], self.options, &Silent)?;
        Ok(funcs.swap_remove(0).1)
    }

    /// A function after the passes, with its ops placed on backends.
    pub fn placed(&self, func: &Func) -> Result<Func, Diagnostics> {
        let mut func = self.passes(func)?;
        self.place(&mut [&mut func])?;
        Ok(func)
    }

    fn place(&self, funcs: &mut [&mut Func]) -> Result<(), Diagnostics> {
        let mut options = Cow::Borrowed(self.options);
        if self.parts {
            let pinned =
                |what: &str| funcs.iter().any(|f| f.graph.walk().iter().any(|op| matches_op(&f.graph, *op, what)));
            let pins = &mut options.to_mut().placement.pins;
            pins.retain(|p| p.rsplit_once('=').is_none_or(|(what, _)| pinned(what)));
        }
        self.backends.place(funcs, &options)?;
        codegen_passes::run(funcs, self.module, self.options, &Silent)
    }

    fn finish(&self, cases: &[&Case], prepared: Vec<Result<Func, String>>, done: &dyn Fn(usize)) -> Vec<Ran> {
        let mut placed: Vec<Option<Func>> = prepared.iter().map(|f| f.as_ref().ok().cloned()).collect();
        let mut prepared = prepared;
        let mut all: Vec<&mut Func> = placed.iter_mut().flatten().collect();
        if self.place(&mut all).is_err() {
            // Find those that a backend refuses.
            for (func, result) in placed.iter_mut().zip(&mut prepared) {
                if let Some(f) = func
                    && let Err(e) = self.place(&mut [f])
                {
                    *result = Err(e.to_string());
                    *func = None;
                }
            }
        }
        self.generate(cases, placed, prepared, done)
    }

    /// Generates code in batches, and runs it. `prepared` are the functions before placement, or why there are none.
    fn generate(
        &self,
        cases: &[&Case],
        placed: Vec<Option<Func>>,
        prepared: Vec<Result<Func, String>>,
        done: &dyn Fn(usize),
    ) -> Vec<Ran> {
        let mut out: Vec<Option<Ran>> = cases.iter().map(|_| None).collect();
        let ready: Vec<usize> = (0..cases.len()).filter(|i| placed[*i].is_some()).collect();
        let mut count = 0;
        for batch in ready.chunks(BATCH) {
            let funcs: Vec<(String, Func)> =
                batch.iter().filter_map(|i| Some((format!("p{i}"), placed[*i].clone()?))).collect();
            match self.compile(&funcs) {
                Ok(plan) => {
                    for (program, i) in batch.iter().enumerate() {
                        out[*i] = Some(self.execute(&plan, program, cases[*i]));
                    }
                }
                Err(_) => {
                    for (i, func) in batch.iter().zip(&funcs) {
                        out[*i] = Some(match self.compile(std::slice::from_ref(func)) {
                            Ok(plan) => self.execute(&plan, 0, cases[*i]),
                            Err(e) => Ran::failed(e),
                        });
                    }
                }
            }
            count += batch.len();
            done(count);
        }
        let finish = |(ran, prepared): (Option<Ran>, Result<Func, String>)| match (ran, prepared) {
            (Some(ran), prepared) => Ran { prepared: prepared.ok(), ..ran },
            (None, Err(why)) => Ran::failed(why),
            (None, Ok(_)) => Ran::failed("no code was generated"),
        };
        out.into_iter().zip(prepared).map(finish).collect()
    }

    fn compile(&self, funcs: &[(String, Func)]) -> Result<Arc<PlanFile>, Diagnostics> {
        let model = Model::from_module(Module { name: self.module.name.clone(), ..Module::default() });
        let (options, backends, schedules) = (self.options, self.backends, &schedule::NONE);
        let generator = Generator { model: &model, options, backends, schedules, observer: &Silent };
        Ok(Arc::new(generator.compile(funcs)?.open()?))
    }

    fn session(&self) -> SessionOptions {
        SessionOptions { threads: self.options.worker_threads(), profile: false, ..Default::default() }
    }

    fn execute(&self, plan: &Arc<PlanFile>, program: usize, case: &Case) -> Ran {
        let outputs = || -> Result<Vec<Value>, Diagnostics> {
            let mut session = program_session(Arc::clone(plan), program, &self.session(), self.backends)?;
            let inputs = tensor_files::to_runtime_all(case.inputs.clone())?;
            let outputs = session.run(inputs).map_err(|e| crate::session::run_error(&e))?;
            outputs.iter().map(tensor_files::from_runtime).collect()
        };
        let outputs = outputs().map_err(|e| e.to_string());
        let (executors, kernels) = executors(plan, &plan.plan().programs[program]);
        Ran { outputs, prepared: None, executors, kernels }
    }

    /// Compiles and runs a case alone, for the mesh of the options.
    fn on_mesh(&self, case: &Case, number: usize, done: &dyn Fn(usize)) -> Ran {
        let run = || -> Result<Ran, Diagnostics> {
            let model = Model::from_module(module_of(case.func.clone(), self.module));
            let built = compile_bound(&model, Bindings::new(), self.options, self.backends, &Silent)?;
            let plan = Arc::new(built.code.open()?);
            let inputs = tensor_files::to_runtime_all(case.inputs.clone())?;
            let mut session = Session::for_inputs(Arc::clone(&plan), &inputs, &self.session(), self.backends)?;
            let outputs =
                session.run_values(inputs)?.iter().map(tensor_files::from_runtime).collect::<Result<_, _>>()?;
            let all = plan.plan().programs.iter().map(|p| executors(&plan, p));
            let (names, kernels): (Vec<_>, Vec<_>) = all.unzip();
            let (executors, kernels) = (names.into_iter().flatten().collect(), kernels.into_iter().flatten().collect());
            Ok(Ran { outputs: Ok(outputs), prepared: self.passes(&case.func).ok(), executors, kernels })
        };
        let ran = run().unwrap_or_else(Ran::failed);
        done(number + 1);
        ran
    }
}

/// Names of what executes a program, and the hashes of its kernels; the programs of its regions included.
fn executors(plan: &PlanFile, program: &Program) -> (BTreeSet<String>, BTreeSet<Vec<u8>>) {
    let (mut names, mut kernels) = (BTreeSet::new(), BTreeSet::new());
    for task in &program.tasks {
        match &task.exec {
            Some(Exec::Kernel(exec)) => {
                if let Some(code) = plan.plan().code.get(exec.code as usize) {
                    names.insert(format!("kernel {}", code.name));
                    kernels.insert(code.blake3.clone());
                }
            }
            Some(Exec::Backend(exec)) => {
                names.insert(format!("backend '{}'", exec.backend));
            }
            Some(Exec::Control(exec)) => {
                let bodies = exec.bodies.iter().filter_map(|b| plan.plan().programs.get(b.program as usize));
                for (inner, own) in bodies.map(|p| executors(plan, p)) {
                    names.extend(inner);
                    kernels.extend(own);
                }
            }
            _ => {}
        }
    }
    (names, kernels)
}
