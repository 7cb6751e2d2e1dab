//! The observer: how the driver reports progress, warnings and notes while it works.

use std::any::Any;
use std::sync::Arc;

use of_codegen::Limits;
use of_codegen::place::Placement;
use of_diag::{Diagnostic, Diagnostics};
use of_passes::{Checkpoint, Progress};

/// Receives what happens during compilation. Every method has a default that ignores the event.
pub trait Observer {
    /// A step of the compilation begins; it ends when the returned [`Activity`] is dropped.
    fn begin(&self, step: &str) -> Activity {
        tracing::info!("{step}");
        Activity::default()
    }

    /// A warning or another diagnostic that does not stop the compilation.
    fn diagnostic(&self, diagnostic: &Diagnostic) {
        tracing::warn!("{}", diagnostic.message);
    }

    /// One line of information for the user.
    fn note(&self, _text: &str) {}

    /// The text of a source file, for diagnostics that point into it. Called before the file is parsed.
    fn source(&self, _file: &str, _text: &str) {}

    /// IR text that a `print` pass or a print setting requested.
    fn ir(&self, _text: &str) {}

    /// Ops were placed on backends. `ranks` gives for each rank of a mesh its index in `placements`; it is `None` where
    /// there is no mesh, and then each program has a placement.
    fn placed(&self, _placements: &[Placement], _ranks: Option<&[usize]>) {}
}

/// Reports each diagnostic of a list.
pub(crate) fn report(observer: &dyn Observer, diagnostics: &Diagnostics) {
    diagnostics.0.iter().for_each(|d| observer.diagnostic(d));
}

/// A checkpoint for a run of passes: reports its progress, and checks the limits.
pub fn checkpoint(activity: &Activity, limits: &Limits) -> Option<Checkpoint> {
    let (report, limits) = (activity.progress(), limits.clone());
    Some(Box::new(move |p: &Progress<'_>| {
        if let (Some(report), Some(next)) = (&report, p.next) {
            report(&format!("pass {next}"), p.done, p.all);
        }
        limits.check(&|| p.ended.map_or("the work before the passes".into(), |name| format!("pass '{name}'")))
    }))
}

/// Ignores every event, apart from logs.
#[derive(Clone, Copy, Default, Debug)]
pub struct Silent;

impl Observer for Silent {}

/// Receives the name of a step, and how many of how many parts of it are done.
pub type ProgressFn = Arc<dyn Fn(&str, usize, usize) + Send + Sync>;

/// A step in progress.
#[derive(Default)]
pub struct Activity {
    progress: Option<ProgressFn>,
    _guard: Option<Box<dyn Any>>,
}

impl Activity {
    /// A step that reports progress to `progress` and drops `guard` when it ends.
    pub fn new(progress: ProgressFn, guard: Box<dyn Any>) -> Activity {
        Activity { progress: Some(progress), _guard: Some(guard) }
    }

    /// Where the step reports its progress, if anywhere.
    pub fn progress(&self) -> Option<ProgressFn> {
        self.progress.clone()
    }
}
