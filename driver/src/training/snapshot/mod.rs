//! Snapshots of a training: all variables and the position in the data.
//!
//! To begin one freezes the variables, which copies nothing: a thread writes them while the next steps run, and a step that is about to
//! update a variable saves what the thread has not read yet. Ranks that are processes write a part each. A snapshot is there when its
//! last file is, which replaces the one before: it is whole or not at all.

mod format;
mod place;
mod tensors;
mod writer;

use std::collections::{BTreeMap, HashMap};
use std::io::Write;
use std::sync::Arc;

pub(super) use format::{Parts, SnapshotBytes};
use format::{PartsFile, check_file, parse_index};
use of_diag::{Code, Diagnostics};
use of_runtime::{RankVariables, Tensor};
pub use place::{SnapshotFile, SnapshotFiles, SnapshotPlace};
pub use tensors::write_tensors;
use writer::{Job, Ranks, SnapshotWriter};

use crate::error::error;
use crate::session::{SessionVariables, run_error};

/// How far a training is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Steps that are done.
    pub step: usize,
    /// What shuffles the data, and gives the numbers of dropouts.
    pub seed: u64,
    /// Samples of a step.
    pub batch: usize,
    /// Samples of the data. With these numbers the step is a position in the data.
    pub samples: usize,
}

impl Progress {
    /// As the metadata of a file.
    pub(super) fn fields(self) -> BTreeMap<String, String> {
        let fields = [
            ("format", "of-opt".to_string()),
            ("step", self.step.to_string()),
            ("seed", self.seed.to_string()),
            ("batch", self.batch.to_string()),
            ("samples", self.samples.to_string()),
        ];
        fields.into_iter().map(|(name, value)| (name.to_string(), value)).collect()
    }

    fn of_fields(fields: &HashMap<String, String>) -> Option<Progress> {
        let field = |name: &str| fields.get(name)?.parse::<u64>().ok();
        let size = |name: &str| field(name).map(|n| n as usize);
        Some(Progress { step: size("step")?, seed: field("seed")?, batch: size("batch")?, samples: size("samples")? })
    }
}

/// What a snapshot says about its training, by names.
pub type Notes = BTreeMap<String, String>;

/// Writes the snapshots of a training.
#[derive(Default)]
pub struct Snapshots {
    writer: SnapshotWriter,
    /// What distinguishes the files of these ranks, which all see one folder.
    id: Option<u64>,
}

impl Snapshots {
    /// Before the first step: ranks that are processes find out whether each can write where the others see it; all must do so.
    ///
    /// # Errors
    /// When a rank cannot write, or sees no file of another one.
    pub fn prepare(&mut self, place: &SnapshotPlace, variables: SessionVariables<'_>) -> Result<(), Diagnostics> {
        match variables {
            SessionVariables::Rank(ranks) => self.id(place, ranks).map(drop),
            _ => Ok(()),
        }
    }

    /// Begins to write a snapshot; all ranks must do so. Where an earlier one is still being written, `waits` says whether to wait for
    /// it, rather than to leave this one out. Returns whether it was begun.
    ///
    /// # Errors
    /// When a variable has no value, or an earlier snapshot could not be written.
    pub fn begin(
        &mut self,
        place: &SnapshotPlace,
        variables: SessionVariables<'_>,
        (progress, notes): (Progress, &Notes),
        waits: bool,
    ) -> Result<bool, Diagnostics> {
        if waits || !self.writer.is_busy() {
            self.writer.finish()?;
        }
        let busy = self.writer.is_busy();
        let ranks = match variables {
            SessionVariables::Rank(ranks) => {
                // They write the same ones.
                let words = ranks.tell_all(u64::from(busy)).map_err(|e| run_error(&e))?;
                if words.iter().any(|busy| *busy > 0) {
                    return Ok(false);
                }
                let id = self.id(place, ranks)?;
                Some(Ranks { rank: ranks.rank(), count: words.len(), id, alive: Arc::new(ranks.watch()) })
            }
            _ if busy => return Ok(false),
            _ => None,
        };
        let file = PartsFile::with_notes(variables.freeze_parts().map_err(|e| run_error(&e))?, progress, notes)?;
        self.writer.begin(Job { place: place.clone(), file, progress, ranks })?;
        Ok(true)
    }

    /// Waits for the snapshots that were begun.
    ///
    /// # Errors
    /// When one could not be written.
    pub fn finish(&mut self) -> Result<(), Diagnostics> {
        self.writer.finish()
    }

    /// The ranks are others from now on.
    pub fn begin_session(&mut self) {
        self.writer.abandon();
        self.id = None;
    }

    /// The number of this job, after a check that all ranks see the files of each other.
    fn id(&mut self, place: &SnapshotPlace, ranks: &RankVariables) -> Result<u64, Diagnostics> {
        if let Some(id) = self.id {
            return Ok(id);
        }
        // Before any rank writes its part.
        place.files().watch(&place.index()).map_err(|e| io_problem(place, "looked at", &e))?;
        let tell = |word: u64| ranks.tell_all(word).map_err(|e| run_error(&e));
        let ids = tell(fastrand::u64(..))?;
        let id = ids[0];
        let name = |rank: usize| format!("{}.{id:016x}-0.{}-of-{}.json", place.stem(), rank + 1, ids.len());
        let own = name(ranks.rank());
        let put = || {
            let mut file = place.files().create(&own)?;
            file.write_all(b"{}")?;
            file.finish()
        };
        put().map_err(|e| io_problem(place, "written", &e))?;
        tell(0)?;
        let unseen = (0..ids.len()).find(|rank| !matches!(place.files().written(&name(*rank)), Ok(Some(_))));
        tell(0)?;
        place.files().remove(&own).map_err(|e| io_problem(place, "written", &e))?;
        if let Some(unseen) = unseen {
            let what = format!(
                "rank {} sees no file that rank {unseen} wrote where '{}' is to be: each rank writes a part of a snapshot",
                ranks.rank(),
                place.shown()
            );
            let hint = "on several hosts, name a folder that all see, or s3://BUCKET/NAME.safetensors";
            return Err(error(Code::INPUT, what).hint(hint).into());
        }
        self.id = Some(id);
        Ok(id)
    }
}

/// Sets variables from the snapshot at a place, and returns how far the training was, and what was noted. It may be of other ranks. `check` may
/// reject it.
///
/// # Errors
/// When there is none, it cannot be read, or is of another training: a variable is absent or has another type. Then nothing changes.
pub fn restore(
    place: &SnapshotPlace,
    variables: SessionVariables<'_>,
    check: impl FnOnce(&Notes) -> Result<(), Diagnostics>,
) -> Result<(Progress, Notes), Diagnostics> {
    let damaged = |what: String| Diagnostics::from(error(Code::INPUT, format!("'{}' {what}", place.shown())));
    let snapshot = read(place)?;
    let notes = snapshot.notes();
    check(&notes)?;
    let parts = snapshot.parts().map_err(damaged)?;
    // All are checked before the first is set, so that an error changes nothing.
    let mut values = Vec::new();
    for (name, dtype, dims) in variables.types() {
        let bytes = parts.whole(name, dtype, dims).map_err(damaged)?;
        let value = Tensor::from_bytes(dtype, dims, &bytes).map_err(|e| damaged(e.to_string()))?;
        values.push((name, value));
    }
    for (name, value) in values {
        variables.set(name, &value).map_err(|e| run_error(&e))?;
    }
    Ok((snapshot.progress, notes))
}

/// The newest snapshot at a place: that of one file, or that of an index.
pub(super) fn read(place: &SnapshotPlace) -> Result<SnapshotBytes, Diagnostics> {
    let problem = |e: std::io::Error| io_problem(place, "read", &e);
    let of = |name: &str, what: &str| Diagnostics::from(error(Code::INPUT, format!("'{name}' {what}")));
    let single = place.files().read(place.name()).map_err(problem)?;
    let single = single.map(|bytes| match check_file(&bytes) {
        Ok((progress, _)) => Ok(SnapshotBytes::new(progress, vec![bytes])),
        Err(what) => Err(of(place.shown(), &what)),
    });
    let index = place.index();
    let Some(bytes) = place.files().read(&index).map_err(problem)? else {
        return single.unwrap_or_else(|| Err(problem(std::io::ErrorKind::NotFound.into())));
    };
    let (progress, list) = parse_index(&bytes).ok_or_else(|| of(&index, "is no index of a snapshot"))?;
    if let Some(Ok(single)) = single
        && single.progress.step > progress.step
    {
        return Ok(single);
    }
    let mut files = Vec::with_capacity(list.len());
    for (name, known) in list {
        let bytes = place.files().read(&name).map_err(problem)?;
        let bytes = bytes.ok_or_else(|| of(&name, &format!("is not there, but the index '{index}' names it")))?;
        let (own, hash) = check_file(&bytes).map_err(|what| of(&name, &what))?;
        if own != progress || hash.to_hex().as_str() != known {
            return Err(of(&name, &format!("is another file than the index '{index}' names")));
        }
        files.push(bytes);
    }
    Ok(SnapshotBytes::new(progress, files))
}

/// The error of a place that cannot be read or written.
fn io_problem(place: &SnapshotPlace, how: &str, e: &std::io::Error) -> Diagnostics {
    let problem = error(Code::IO, format!("'{}' cannot be {how}: {e}", place.shown()));
    match e.kind() {
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => {
            let hint = "an earlier snapshot stays as it is: free some room, and start again with --resume";
            problem.hint(hint).into()
        }
        _ => problem.into(),
    }
}
