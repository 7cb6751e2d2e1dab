//! The pass manager: runs pipelines, with lookup, timing, printing, verification and crash reproducers.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::time::Instant;

use of_diag::{Code, Diagnostic, Diagnostics, Location, closest};
use of_ir::Module;
use of_ir::text::{Constants, PrintOptions, print_module};

use crate::module_state::ModuleState;
use crate::pass::WithOptions;
use crate::syntax::{FILE, Item, parse_items, show_item};
use crate::unified_diff::unified_diff;
use crate::{Configured, PIPELINES, Pass, PassContext, PassRun, Report, find, passes, pipeline, reproducer};

/// What the manager does besides running passes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settings {
    /// Print the module before these passes; `*` means all.
    pub print_before: Vec<String>,
    /// Print the module after these passes; `*` means all.
    pub print_after: Vec<String>,
    /// Print what each pass changes in the module's text, as a unified diff. Large constants are not part of the text.
    pub print_changed: bool,
    /// Write the module after each pass to a file of this folder, and to the first file the module before all passes.
    pub print_dir: Option<PathBuf>,
    /// Print modules in the generic form that upstream MLIR reads.
    pub print_generic: bool,
    /// Print the location of every op.
    pub print_locations: bool,
    /// Verify the module after every pass.
    pub verify_each: bool,
    /// The directory for crash reproducers: the module before a pass that fails. None are written without it.
    pub reproducers: Option<PathBuf>,
}

/// Debug builds verify after every pass.
const VERIFIES: bool = cfg!(debug_assertions);

impl Default for Settings {
    fn default() -> Self {
        Settings {
            print_before: Vec::new(),
            print_after: Vec::new(),
            print_changed: false,
            print_dir: None,
            print_generic: false,
            print_locations: false,
            verify_each: VERIFIES,
            reproducers: None,
        }
    }
}

/// How far a run is, between two passes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress<'a> {
    /// Passes that ended.
    pub done: usize,
    /// All passes.
    pub all: usize,
    /// The pass that just ended; `None` before the first.
    pub ended: Option<&'a str>,
    /// The pass that begins now; `None` after the last.
    pub next: Option<&'a str>,
}

/// Called before each pass and after the last one. An error ends the run.
pub type Checkpoint = Box<dyn Fn(&Progress<'_>) -> Result<(), Diagnostic>>;

/// A pipeline that is ready to run.
#[derive(Default)]
pub struct Manager {
    passes: Vec<Box<dyn Configured>>,
    /// Called between passes.
    pub checkpoint: Option<Checkpoint>,
    /// Printing, verification and reproducers.
    pub settings: Settings,
}

impl Manager {
    /// Parses a pipeline: passes and names of pipelines, e.g. `simplify,specialize{batch=8}`.
    ///
    /// # Errors
    /// Unknown names, options and values, each with its position in the text, as file [`crate::PIPELINE_FILE`].
    pub fn parse(text: &str) -> Result<Manager, Diagnostics> {
        let mut m = Manager::default();
        m.append(text)?;
        Ok(m)
    }

    /// Appends the pipeline `text`.
    ///
    /// # Errors
    /// As [`Manager::parse`].
    pub fn append(&mut self, text: &str) -> Result<(), Diagnostics> {
        let mut errors = Diagnostics::default();
        for item in parse_items(text)? {
            if let Err(d) = self.add_item(&item) {
                errors.0.extend(d.0);
            }
        }
        errors.into_result(())
    }

    /// Adds a pass with its options.
    pub fn add<P: Pass>(&mut self, options: P::Options) -> &mut Self {
        self.passes.push(Box::new(WithOptions::<P> { values: options }));
        self
    }

    /// The pipeline as text, with names of pipelines replaced by their passes.
    pub fn text(&self) -> String {
        spell(&self.passes)
    }

    fn add_item(&mut self, item: &Item) -> Result<(), Diagnostics> {
        let at = Location::source(FILE, 1, item.col);
        let error = |what: String| Diagnostic::error(Code::PIPELINE, at.clone(), what);
        if let Some(p) = pipeline(&item.name) {
            if !item.options.is_empty() {
                return Err(error(format!("'{}' is a pipeline, it has no options", p.name))
                    .hint(format!("it expands to {}", p.text))
                    .into());
            }
            self.passes.extend(Manager::parse(p.text)?.passes);
            return Ok(());
        }
        let Some(pass) = find(&item.name) else {
            return Err(error(format!("no pass '{}'", item.name)).hint(suggest(&item.name)).into());
        };
        let configured = pass.configure(&item.options).map_err(|e| {
            let known: Vec<_> = pass.options().iter().map(|o| o.name).collect();
            let hint =
                if known.is_empty() { "it has no options".into() } else { format!("it has {}", known.join(", ")) };
            error(format!("pass '{}': {e}", item.name)).hint(hint)
        })?;
        self.passes.push(configured);
        Ok(())
    }

    /// Runs all passes. Printed output goes to `out`. A pass that was run before, with the same options, and neither
    /// changed the module nor printed or warned, is skipped until another pass changes the module.
    ///
    /// After a pass that failed, the module is as that pass left it. After a pass that panicked, it is as before the
    /// pass where reproducers are enabled, and undefined otherwise.
    ///
    /// # Errors
    /// The errors of the first pass that fails, or that it broke the module.
    pub fn run(&self, module: &mut Module, out: &mut dyn FnMut(&str)) -> Result<Report, Diagnostics> {
        let started = Instant::now();
        let mut report = Report::default();
        let first = self.settings.reproducers.as_ref().map(|_| module.clone());
        let mut text = if self.settings.print_changed { self.print(module) } else { String::new() };
        let mut state = ModuleState::of(module);
        let mut ops = count_ops(module);
        // Passes that found nothing to do in the module as it is. They would find nothing again.
        let mut idle: Vec<String> = Vec::new();
        self.check(0)?;
        self.write_text(0, "input", module)?;
        for (i, pass) in self.passes.iter().enumerate() {
            let span = tracing::info_span!("pass", name = pass.name());
            let _in = span.enter();
            if is_named(&self.settings.print_before, pass.name()) {
                out(&banner("before", pass.name(), &self.print(module)));
            }
            let item = show_item(pass.name(), &pass.options());
            let mut run = PassRun { name: item.clone(), ops_before: ops, ops_after: ops, ..PassRun::default() };
            if idle.contains(&item) {
                run.skipped = true;
            } else {
                let output = self.step((i, pass.as_ref()), module, first.as_ref(), (&mut run, &mut report), out)?;
                let now = ModuleState::of(module);
                if now != state {
                    idle.clear();
                    ops = count_ops(module);
                    run.ops_after = ops;
                } else if !output {
                    idle.push(item);
                }
                state = now;
            }
            tracing::debug!(ms = run.time.as_secs_f64() * 1e3, ops, skipped = run.skipped, "done");
            report.passes.push(run);
            self.write_text(i + 1, pass.name(), module)?;
            if self.settings.print_changed {
                let now = self.print(module);
                if now != text {
                    out(&banner("changes by", pass.name(), &unified_diff(&text, &now)));
                }
                text = now;
            }
            if is_named(&self.settings.print_after, pass.name()) {
                out(&banner("after", pass.name(), &self.print(module)));
            }
            self.check(i + 1)?;
        }
        let in_passes = report.passes.iter().map(|p| p.time).sum();
        report.overhead = started.elapsed().saturating_sub(in_passes);
        Ok(report)
    }

    /// Writes the module after `done` passes to the folder of [`Settings::print_dir`].
    fn write_text(&self, done: usize, name: &str, module: &Module) -> Result<(), Diagnostic> {
        let Some(dir) = &self.settings.print_dir else { return Ok(()) };
        let path = dir.join(format!("{done:02}-{name}.of"));
        let written = std::fs::create_dir_all(dir).and_then(|()| of_files::write(&path, self.print(module)));
        written.map_err(|e| {
            Diagnostic::error(Code::IO, Location::Unknown, format!("'{}' cannot be written: {e}", path.display()))
        })
    }

    /// Calls the checkpoint after `done` passes.
    fn check(&self, done: usize) -> Result<(), Diagnostic> {
        let Some(checkpoint) = &self.checkpoint else { return Ok(()) };
        let name = |i: usize| self.passes.get(i).map(|p| p.name());
        let ended = done.checked_sub(1).and_then(name);
        checkpoint(&Progress { done, all: self.passes.len(), ended, next: name(done) })
    }

    /// Runs pass `index`, and completes `run`. Returns whether the pass printed or warned.
    fn step(
        &self,
        (index, pass): (usize, &dyn Configured),
        module: &mut Module,
        first: Option<&Module>,
        (run, report): (&mut PassRun, &mut Report),
        out: &mut dyn FnMut(&str),
    ) -> Result<bool, Diagnostics> {
        let mut printed = false;
        let mut print = |text: &str| {
            printed = true;
            out(text);
        };
        let mut cx = PassContext::new(&mut print);
        let started = Instant::now();
        // The pass shares only the module, which is not used after a panic.
        let outcome = catch_unwind(AssertUnwindSafe(|| pass.run(module, &mut cx)));
        run.time = started.elapsed();
        let PassContext { warnings, counters, .. } = cx;
        run.counters = counters;
        let warned = !warnings.0.is_empty();
        report.warnings.0.extend(warnings.0);
        match outcome {
            Err(payload) => {
                let why = format!("pass '{}' panicked: {}", pass.name(), reproducer::panic_text(payload.as_ref()));
                let before = first.and_then(|m| self.before(index, m));
                let broken = self.broken(index, why, before.as_ref());
                if let Some(b) = before {
                    *module = b;
                }
                return Err(broken.into());
            }
            Ok(result) => result?,
        }
        if self.settings.verify_each
            && let Err(mut found) = of_ir::verify_module(module)
        {
            let why = format!("after pass '{}' the module does not verify", pass.name());
            let before = first.and_then(|m| self.before(index, m));
            found.0.insert(0, self.broken(index, why, before.as_ref()));
            return Err(found);
        }
        Ok(printed || warned)
    }

    /// The module before pass `index`. It runs the earlier passes again on a copy of the first module, since a copy
    /// before each pass would take longer than many passes. `None` where one of them now fails.
    fn before(&self, index: usize, first: &Module) -> Option<Module> {
        let mut module = first.clone();
        let silent = &mut |_: &str| {};
        let mut run = |p: &dyn Configured| p.run(&mut module, &mut PassContext::new(silent)).ok();
        self.passes[..index].iter().try_for_each(|p| run(p.as_ref())).map(|()| module)
    }

    /// The error for a pass that broke the module, with a reproducer where enabled.
    fn broken(&self, index: usize, why: String, before: Option<&Module>) -> Diagnostic {
        let d = Diagnostic::error(Code::PASS_BUG, Location::Unknown, why)
            .note("this is a bug of the pass, not of the model");
        let (Some(dir), Some(before)) = (&self.settings.reproducers, before) else { return d };
        let rest = &self.passes[index..];
        match reproducer::write(dir, rest[0].name(), before, &spell(rest)) {
            Ok(path) => {
                d.hint(format!("'{}' holds the module before the pass and says how to run it again", path.display()))
            }
            Err(e) => d.note(format!("the reproducer could not be written: {e}")),
        }
    }

    fn print(&self, module: &Module) -> String {
        let Settings { print_generic: generic, print_locations: locations, .. } = self.settings;
        print_module(module, &PrintOptions { generic, locations, constants: Constants::Elided })
    }
}

fn spell(passes: &[Box<dyn Configured>]) -> String {
    passes.iter().map(|p| show_item(p.name(), &p.options())).collect::<Vec<_>>().join(",")
}

fn banner(when: &str, pass: &str, text: &str) -> String {
    format!("// -----// IR {when} {pass} //----- //\n{text}\n")
}

/// Whether a list of passes to print at names `pass`.
fn is_named(list: &[String], pass: &str) -> bool {
    list.iter().any(|p| p == pass || p == "*")
}

fn count_ops(module: &Module) -> usize {
    module.funcs.values().map(|f| f.graph.walk().len()).sum()
}

/// The hint for an unknown pass `name`: the closest known name.
fn suggest(name: &str) -> String {
    let known = || passes().into_iter().map(|p| p.name()).chain(PIPELINES.iter().map(|p| p.name));
    match closest(name, known()) {
        Some(k) => format!("did you mean '{k}'? 'of-opt passes' lists them all"),
        None => "'of-opt passes' lists them all".into(),
    }
}

#[cfg(test)]
mod tests;
