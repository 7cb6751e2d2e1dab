//! The flight recorder of a rank: where its file is, and what becomes of it.

use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use of_diag::Diagnostics;
use of_driver::{io_error, why_stuck};
use of_plan::PlanFile;
use of_runtime::FlightRecorder;
use of_runtime::flight_recorder::{FlightLog, Phase, RecordingOf};
use of_transport::{Placement, host_name, job_name, plan_hash};

use super::{RankOptions, metrics};

/// The value of `--flight-recorder` without recordings.
const NONE: &str = "none";

/// How the names of folders in the folder for temporary files begin, and after how long without a change they are removed.
const DEFAULT: &str = "of-flight-";
const KEPT: Duration = Duration::from_secs(7 * 24 * 3600);

/// The folder of a job's recordings; `None` where there are to be none. The ranks of a job on a host have the same.
pub fn folder(options: &RankOptions, rendezvous: &str, token: &str) -> Option<PathBuf> {
    match &options.flight_recorder {
        Some(dir) if dir.as_os_str() == NONE => None,
        Some(dir) => Some(dir.clone()),
        None => Some(std::env::temp_dir().join(format!("{DEFAULT}{}", job_name(rendezvous, token)))),
    }
}

/// The recording of a rank.
pub struct Recording {
    pub recorder: Arc<FlightRecorder>,
    /// The folder, where the job that ends in order removes it.
    remove: Option<PathBuf>,
    is_done: bool,
}

/// Starts the recording of a rank. `None` where there is to be none, and where the default folder cannot be had.
///
/// # Errors
/// When the folder that was asked for cannot be written.
pub fn start(
    options: &RankOptions,
    placement: &Placement,
    (rendezvous, ranks): (&str, u32),
    plan: &PlanFile,
    model: &Path,
) -> Result<Option<Recording>, Diagnostics> {
    let token = placement.token.as_deref().unwrap_or_default();
    let Some(dir) = folder(options, rendezvous, token) else { return Ok(None) };
    let of = RecordingOf {
        rank: placement.rank,
        ranks,
        host: host_name(),
        plan_hash: plan_hash(plan),
        plan: std::fs::canonicalize(model).ok(),
    };
    if options.flight_recorder.is_none() {
        remove_old(&dir);
    }
    let tasks = plan.plan().programs.iter().map(|program| program.tasks.len()).max().unwrap_or(0);
    let path = why_stuck::recording(&dir, placement.rank);
    let hash = of.plan_hash;
    match made(&dir).and_then(|()| FlightRecorder::create(&path, &of, tasks)) {
        Ok(recorder) => {
            metrics::are_of(path);
            if let Err(error) = why_stuck::keep_plan(&dir, &hash, plan.plan()) {
                tracing::warn!(folder = %dir.display(), %error, "the recordings have no names of tasks without the plan");
            }
            let remove = options.flight_recorder.is_none().then_some(dir);
            Ok(Some(Recording { recorder: Arc::new(recorder), remove, is_done: false }))
        }
        Err(e) if options.flight_recorder.is_some() => Err(io_error(&dir, "written", &e).into()),
        Err(error) => {
            tracing::warn!(folder = %dir.display(), %error, "there is no flight recorder");
            Ok(None)
        }
    }
}

/// Removes folders of this user that jobs left long ago. Of the folder of this job, recordings of earlier ranks that ended in order: their
/// names may be the same.
fn remove_old(own: &Path) {
    let is_own = |entry: &std::fs::DirEntry| {
        let named = entry.file_name().to_str().is_some_and(|name| name.starts_with(DEFAULT));
        let of_user = |meta: &std::fs::Metadata| meta.is_dir() && meta.uid() == rustix::process::geteuid().as_raw();
        named && entry.metadata().is_ok_and(|meta| of_user(&meta))
    };
    let is_old = |entry: &std::fs::DirEntry| {
        let changed = entry.metadata().and_then(|meta| meta.modified());
        changed.is_ok_and(|time| time.elapsed().is_ok_and(|since| since > KEPT))
    };
    let all = std::fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten();
    for entry in all.filter(|entry| entry.path() != own && is_own(entry) && is_old(entry)) {
        // Another rank may do the same.
        let _ = std::fs::remove_dir_all(entry.path());
    }
    for entry in std::fs::read_dir(own).into_iter().flatten().flatten() {
        // What is kept of another plan is overwritten.
        if FlightLog::read(&entry.path()).is_ok_and(|log| log.phase == Phase::Ended) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// Makes a folder that only this user can write. One that is there must be this user's.
fn made(dir: &Path) -> std::io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    let owner = std::fs::symlink_metadata(dir)?.uid();
    let own = rustix::process::geteuid().as_raw();
    match owner == own || own == 0 {
        true => Ok(()),
        false => Err(std::io::Error::new(std::io::ErrorKind::PermissionDenied, "the folder is another user's")),
    }
}

impl Recording {
    /// The rank has ended in order. The last one of a job that did removes the default folder.
    pub fn done(mut self) {
        self.is_done = true;
        self.recorder.phase(Phase::Ended);
        let Some(dir) = &self.remove else { return };
        let ended = |path: PathBuf| FlightLog::read(&path).is_ok_and(|log| log.phase == Phase::Ended);
        let entries = std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
        if entries.filter(|path| !why_stuck::is_kept_plan(path)).all(ended) {
            // Another rank may do the same.
            let _ = std::fs::remove_dir_all(dir);
        }
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        if !self.is_done {
            // Where a run failed, its reason is there already.
            self.recorder.failed("it failed outside of a run: its own messages say why", Phase::Failed);
        }
    }
}
