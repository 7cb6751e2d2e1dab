//! The thread that writes snapshots, while steps go on. It is kept: to start one for each snapshot would stop the steps for longer than to
//! wake it.

use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use of_diag::{Code, Diagnostics};

use super::format::{PartsFile, PartsWritten, WriteError, index};
use super::place::{SUFFIX, SnapshotPlace};
use super::{Progress, io_problem};
use crate::error::error;
use crate::session::run_error;

/// How often the first rank looks for files of the others.
const LOOK: Duration = Duration::from_millis(5);

/// A snapshot that is to be written.
pub struct Job {
    pub place: SnapshotPlace,
    pub file: PartsFile,
    pub progress: Progress,
    pub ranks: Option<Ranks>,
}

/// The ranks that write a snapshot together.
#[derive(Clone)]
pub struct Ranks {
    pub rank: usize,
    pub count: usize,
    /// What distinguishes their files from those of other jobs.
    pub id: u64,
    /// Whether the others are still there.
    pub alive: Arc<dyn Fn() -> bool + Send + Sync>,
}

/// Writes snapshots, one at a time.
#[derive(Default)]
pub struct SnapshotWriter {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
    /// Whether to wait no longer for files of other ranks.
    abandons: AtomicBool,
}

#[derive(Default)]
struct Queue {
    next: Option<Job>,
    /// Whether one is being written.
    writes: bool,
    failed: Option<Diagnostics>,
    /// Whether the thread ends when there is no next one.
    ends: bool,
}

impl SnapshotWriter {
    /// Whether one is being written.
    pub fn is_busy(&self) -> bool {
        let queue = lock(&self.shared.queue);
        queue.writes || queue.next.is_some()
    }

    /// Begins to write a snapshot, after the one that is being written.
    ///
    /// # Errors
    /// When an earlier one could not be written, or there is no thread.
    pub fn begin(&mut self, job: Job) -> Result<(), Diagnostics> {
        self.finish()?;
        if self.thread.is_none() {
            let shared = Arc::clone(&self.shared);
            let thread = std::thread::Builder::new().name("of-snapshot".into()).spawn(move || write_all(&shared));
            self.thread = Some(thread.map_err(|e| error(Code::RUN, format!("a thread cannot be started: {e}")))?);
        }
        lock(&self.shared.queue).next = Some(job);
        self.shared.changed.notify_all();
        Ok(())
    }

    /// Waits until all are written.
    ///
    /// # Errors
    /// When one could not be.
    pub fn finish(&mut self) -> Result<(), Diagnostics> {
        let mut queue = lock(&self.shared.queue);
        while queue.writes || queue.next.is_some() {
            queue = self.shared.wait(queue);
        }
        queue.failed.take().map_or(Ok(()), Err)
    }

    /// Waits until nothing is written, but not for ranks that are gone: a snapshot that lacks their files does not come to be.
    pub fn abandon(&mut self) {
        self.shared.abandons.store(true, Ordering::Release);
        // What failed concerns ranks that are gone.
        let _ = self.finish();
        self.shared.abandons.store(false, Ordering::Release);
    }
}

impl Drop for SnapshotWriter {
    fn drop(&mut self) {
        self.shared.abandons.store(true, Ordering::Release);
        lock(&self.shared.queue).ends = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // A panic was caught and reported.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn wait<'q>(&self, queue: MutexGuard<'q, Queue>) -> MutexGuard<'q, Queue> {
        self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes snapshots until the writer is dropped and there is no next one.
fn write_all(shared: &Shared) {
    let mut queue = lock(&shared.queue);
    loop {
        let Some(job) = queue.next.take() else {
            if queue.ends {
                return;
            }
            queue = shared.wait(queue);
            continue;
        };
        queue.writes = true;
        drop(queue);
        let written = catch_unwind(AssertUnwindSafe(|| write(job, &shared.abandons)));
        queue = lock(&shared.queue);
        queue.writes = false;
        let panicked = |_| Err(error(Code::RUN, "the thread that writes snapshots panicked").into());
        if let Err(failed) = written.unwrap_or_else(panicked) {
            queue.failed = Some(failed);
        }
        shared.changed.notify_all();
    }
}

/// Writes a snapshot, and removes the files of the one before.
fn write(job: Job, abandons: &AtomicBool) -> Result<(), Diagnostics> {
    let Job { place, file, progress, ranks } = job;
    let problem = |e: io::Error| io_problem(&place, "written", &e);
    let write = |name: &str, file: PartsFile| {
        let written = place.files().create(name).map_err(WriteError::Io).and_then(|to| file.write(to));
        written.map_err(|e| match e {
            WriteError::Io(e) => io_problem(&place, "written", &e),
            WriteError::Run(e) => run_error(&e),
        })
    };
    if ranks.is_none() && !place.files().has_conditional_commits() {
        write(place.name(), file)?;
        return remove_parts(&place).map_err(problem);
    }
    place.files().watch(&place.index()).map_err(problem)?;
    let alone = || Ranks { rank: 0, count: 1, id: fastrand::u64(..), alive: Arc::new(|| true) };
    let ranks = ranks.unwrap_or_else(alone);
    let step = progress.step;
    let name = |rank: usize| format!("{}.{:016x}-{step}.{}-of-{}", place.stem(), ranks.id, rank + 1, ranks.count);
    let own = format!("{}{SUFFIX}", name(ranks.rank));
    let tensors = file.names();
    let written = PartsWritten { blake3: write(&own, file)?, file: own, tensors };
    if ranks.rank > 0 {
        return said(&place, &format!("{}.json", name(ranks.rank)), &written).map_err(problem);
    }
    let mut all = vec![written];
    for rank in 1..ranks.count {
        let name = format!("{}.json", name(rank));
        loop {
            // What a rank wrote before it ended counts.
            let ended = abandons.load(Ordering::Acquire) || !(ranks.alive)();
            if let Some(bytes) = place.files().read(&name).map_err(problem)? {
                let odd = |e| error(Code::IO, format!("'{name}' is no list of tensors: {e}"));
                all.push(serde_json::from_slice(&bytes).map_err(odd)?);
                break;
            }
            if ended {
                return Ok(());
            }
            std::thread::sleep(LOOK);
        }
    }
    // Listed before the commit: parts that are there later may be of another job, whose index replaced this one.
    let mut others = parts(&place).map_err(problem)?;
    others.retain(|name| all.iter().all(|part| part.file != *name));
    place.files().commit(&place.index(), &index(progress, &all)).map_err(problem)?;
    others.push(place.name().into());
    others.iter().try_for_each(|name| place.files().remove(name)).map_err(problem)
}

fn said(place: &SnapshotPlace, name: &str, written: &PartsWritten) -> io::Result<()> {
    let mut file = place.files().create(name)?;
    file.write_all(&serde_json::to_vec(written)?)?;
    file.finish()
}

/// Removes a snapshot that consists of several files.
fn remove_parts(place: &SnapshotPlace) -> io::Result<()> {
    let files = place.files();
    let index = place.index();
    if files.written(&index)?.is_none() {
        return Ok(());
    }
    files.remove(&index)?;
    parts(place)?.iter().try_for_each(|name| files.remove(name))
}

/// The names of all files of ranks at a place.
fn parts(place: &SnapshotPlace) -> io::Result<Vec<String>> {
    let prefix = format!("{}.", place.stem());
    let mut names = place.files().names(&prefix)?;
    names.retain(|name| is_part(&name[prefix.len()..]));
    Ok(names)
}

/// Whether a name, behind the stem, is that of a file of one rank: `ID-STEP.RANK-of-COUNT` with an ending.
fn is_part(name: &str) -> bool {
    let number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let own = name.strip_suffix(SUFFIX).or_else(|| name.strip_suffix(".json"));
    let parts =
        own.and_then(|own| own.split_once('.')).and_then(|(id, rank)| id.split_once('-').zip(rank.split_once("-of-")));
    parts.is_some_and(|((id, step), (rank, count))| {
        id.len() == 16 && id.bytes().all(|b| b.is_ascii_hexdigit()) && number(step) && number(rank) && number(count)
    })
}

/// The guard of a mutex whose holder may have panicked: what it protects is always whole.
fn lock(queue: &Mutex<Queue>) -> MutexGuard<'_, Queue> {
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::SystemTime;

    use super::super::place::{SnapshotFile, SnapshotFiles};
    use super::*;

    /// A store in memory, as one job sees it.
    #[derive(Default)]
    struct Store {
        files: Arc<Mutex<BTreeMap<String, Vec<u8>>>>,
        /// The index as it was seen last.
        seen: Mutex<Option<Option<Vec<u8>>>>,
        /// What happens after the next commit.
        then: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    }

    struct Upload(Arc<Mutex<BTreeMap<String, Vec<u8>>>>, String, Vec<u8>);

    impl Write for Upload {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.2.write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl SnapshotFile for Upload {
        fn finish(self: Box<Self>) -> io::Result<()> {
            self.0.lock().unwrap().insert(self.1, self.2);
            Ok(())
        }
    }

    impl SnapshotFiles for Store {
        fn create(&self, name: &str) -> io::Result<Box<dyn SnapshotFile>> {
            Ok(Box::new(Upload(Arc::clone(&self.files), name.into(), Vec::new())))
        }

        fn watch(&self, name: &str) -> io::Result<()> {
            let now = self.read(name)?;
            self.seen.lock().unwrap().get_or_insert(now);
            Ok(())
        }

        fn commit(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
            self.watch(name)?;
            if self.seen.lock().unwrap().replace(Some(bytes.to_vec())) != Some(self.read(name)?) {
                return Err(io::Error::other("another job wrote it"));
            }
            self.files.lock().unwrap().insert(name.into(), bytes.to_vec());
            let then = self.then.lock().unwrap().take();
            if let Some(then) = then {
                then();
            }
            Ok(())
        }

        fn read(&self, name: &str) -> io::Result<Option<Vec<u8>>> {
            Ok(self.files.lock().unwrap().get(name).cloned())
        }

        fn written(&self, name: &str) -> io::Result<Option<SystemTime>> {
            Ok(self.read(name)?.map(|_| SystemTime::UNIX_EPOCH))
        }

        fn names(&self, prefix: &str) -> io::Result<Vec<String>> {
            Ok(self.files.lock().unwrap().keys().filter(|name| name.starts_with(prefix)).cloned().collect())
        }

        fn remove(&self, name: &str) -> io::Result<()> {
            self.files.lock().unwrap().remove(name);
            Ok(())
        }

        fn has_conditional_commits(&self) -> bool {
            true
        }
    }

    fn write_one(place: &SnapshotPlace, step: usize) -> Result<(), Diagnostics> {
        let progress = Progress { step, ..Progress::default() };
        let file = PartsFile::new(Vec::new(), progress)?;
        write(Job { place: place.clone(), file, progress, ranks: None }, &AtomicBool::new(false))
    }

    /// A job that stands still between its index and the removal of older files removes none of a job that wrote meanwhile.
    #[test]
    fn files_of_a_later_snapshot_stay() {
        let one = Arc::new(Store::default());
        let two = Arc::new(Store { files: Arc::clone(&one.files), ..Store::default() });
        let place = |files: &Arc<Store>| SnapshotPlace::of_store(Arc::clone(files) as _, "s.safetensors", "s");
        let (of_one, of_two) = (place(&one), place(&two));
        write_one(&of_one, 1).unwrap();
        *one.then.lock().unwrap() = Some(Box::new(move || write_one(&of_two, 7).unwrap()));
        write_one(&of_one, 2).unwrap();
        assert_eq!(super::super::read(&of_one).unwrap().progress.step, 7);
        assert!(write_one(&of_one, 3).is_err());
        assert_eq!(super::super::read(&of_one).unwrap().progress.step, 7);
    }

    #[test]
    fn files_of_ranks_have_names_that_no_other_file_has() {
        assert!(is_part("00000000000000ff-12.1-of-4.safetensors"));
        assert!(is_part("00000000000000ff-12.1-of-4.json"));
        for other in [
            "safetensors",
            "index.json",
            "best-12.1-of-4.safetensors",
            "00000000000000ff-x.1-of-4.json",
            "00000000000000ff-12.json",
        ] {
            assert!(!is_part(other), "{other}");
        }
    }
}
