//! Snapshots of a training: all variables and the position in the data, as safetensors.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use of_diag::{Code, Diagnostics};
use of_files::AtomicFile;
use of_plan::ElementType;
use of_runtime::Tensor;
use safetensors::tensor::{Dtype, View};
use safetensors::{SafeTensors, serialize};

use crate::error::{error, io_error};
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

struct Stored<'t>(&'t Tensor, Vec<usize>, Dtype);

impl View for Stored<'_> {
    fn dtype(&self) -> Dtype {
        self.2
    }

    fn shape(&self) -> &[usize] {
        &self.1
    }

    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(self.0.bytes().unwrap_or_default())
    }

    fn data_len(&self) -> usize {
        self.0.bytes().map_or(0, <[u8]>::len)
    }
}

fn dtype(of: ElementType) -> Option<Dtype> {
    Some(match of {
        ElementType::F64 => Dtype::F64,
        ElementType::F32 => Dtype::F32,
        ElementType::F16 => Dtype::F16,
        ElementType::Bf16 => Dtype::BF16,
        ElementType::I64 => Dtype::I64,
        ElementType::I32 => Dtype::I32,
        ElementType::I16 => Dtype::I16,
        ElementType::I8 => Dtype::I8,
        ElementType::Ui8 => Dtype::U8,
        ElementType::I1 => Dtype::BOOL,
        _ => return None,
    })
}

/// Names of variables and their values.
pub type Values = Vec<(String, Tensor)>;

/// Copies of all variables; `None` on ranks that do not report.
///
/// # Errors
/// When a variable has no value.
pub fn copy(variables: SessionVariables<'_>) -> Result<Option<Values>, Diagnostics> {
    let mut values = Vec::new();
    let names = variables.names();
    for name in &names {
        let value = variables.reported(name).map_err(|e| run_error(&e))?;
        values.extend(value.map(|value| ((*name).to_string(), value)));
    }
    Ok((values.len() == names.len()).then_some(values))
}

/// Writes values to a file, which appears whole or not at all, and survives a power failure.
///
/// # Errors
/// When the file cannot be written, or a value has a type that safetensors lacks.
pub fn write(path: &Path, values: &[(String, Tensor)], progress: Progress) -> Result<(), Diagnostics> {
    let mut parts = Vec::with_capacity(values.len());
    for (name, value) in values {
        parts.push((name.as_str(), stored(name, value)?));
    }
    let hash = hash(parts.iter().map(|(name, part)| (*name, part.2, part.1.as_slice(), part.0.bytes())).collect());
    let fields = [("step", progress.step), ("batch", progress.batch), ("samples", progress.samples)];
    let mut metadata: HashMap<String, String> =
        fields.iter().map(|(name, n)| ((*name).to_string(), n.to_string())).collect();
    metadata.insert("format".into(), "of-opt".into());
    metadata.insert("seed".into(), progress.seed.to_string());
    metadata.insert(HASH.into(), hash);
    write_tensors(path, values, metadata)
}

/// The field of the metadata with the hash of all tensors.
const HASH: &str = "blake3";

/// What is hashed of a tensor: name, type, shape and bytes.
type Hashed<'t> = (&'t str, Dtype, &'t [usize], Option<&'t [u8]>);

/// A hash of tensors in the order of the names.
fn hash(mut tensors: Vec<Hashed<'_>>) -> String {
    tensors.sort_unstable_by_key(|(name, ..)| *name);
    let mut hasher = blake3::Hasher::new();
    for (name, dtype, shape, bytes) in tensors {
        let bytes = bytes.unwrap_or_default();
        hasher.update(format!("{name:?} {dtype:?} {shape:?} {}\n", bytes.len()).as_bytes());
        hasher.update_rayon(bytes);
    }
    hasher.finalize().to_hex().to_string()
}

fn stored<'t>(name: &str, value: &'t Tensor) -> Result<Stored<'t>, Diagnostics> {
    let dtype = dtype(value.dtype()).ok_or_else(|| {
        error(Code::UNSUPPORTED, format!("variable '{name}' is {}, which safetensors lacks", value.dtype()))
    })?;
    Ok(Stored(value, value.dims().iter().map(|d| *d as usize).collect(), dtype))
}

/// Writes snapshots in a thread, while steps go on. Of snapshots that are begun while one is being written, the newest is written. The
/// thread is kept: to start one for each snapshot would stop the steps for longer than to wake it.
#[derive(Default)]
pub struct SnapshotWriter {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    next: Option<(PathBuf, Values, Progress)>,
    /// Whether one is being written.
    writes: bool,
    failed: Option<Diagnostics>,
    /// Whether the thread ends when there is no next one.
    ends: bool,
}

impl SnapshotWriter {
    /// Begins to write a snapshot.
    ///
    /// # Errors
    /// When an earlier one could not be written, or there is no thread.
    pub fn begin(&mut self, path: &Path, values: Values, progress: Progress) -> Result<(), Diagnostics> {
        let mut queue = lock(&self.shared.queue);
        if let Some(failed) = queue.failed.take() {
            return Err(failed);
        }
        if self.thread.is_none() {
            let shared = Arc::clone(&self.shared);
            let thread = std::thread::Builder::new().name("of-snapshot".into()).spawn(move || write_all(&shared));
            self.thread = Some(thread.map_err(|e| error(Code::RUN, format!("a thread cannot be started: {e}")))?);
        }
        let replaced = queue.next.replace((path.to_owned(), values, progress));
        drop(queue);
        self.shared.changed.notify_all();
        drop(replaced);
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
}

impl Drop for SnapshotWriter {
    fn drop(&mut self) {
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
        let Some((path, values, progress)) = queue.next.take() else {
            if queue.ends {
                return;
            }
            queue = shared.wait(queue);
            continue;
        };
        queue.writes = true;
        drop(queue);
        let written = catch_unwind(AssertUnwindSafe(|| write(&path, &values, progress)));
        drop(values);
        queue = lock(&shared.queue);
        queue.writes = false;
        let panicked = |_| Err(error(Code::RUN, "the thread that writes snapshots panicked").into());
        if let Err(failed) = written.unwrap_or_else(panicked) {
            queue.failed = Some(failed);
        }
        shared.changed.notify_all();
    }
}

/// The guard of a mutex whose holder may have panicked: what it protects is always whole.
fn lock(queue: &Mutex<Queue>) -> MutexGuard<'_, Queue> {
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes tensors with their names.
///
/// # Errors
/// As [`write`].
pub fn write_tensors(
    path: &Path,
    values: &[(String, Tensor)],
    metadata: HashMap<String, String>,
) -> Result<(), Diagnostics> {
    let mut parts = Vec::with_capacity(values.len());
    for (name, value) in values {
        parts.push((name.as_str(), stored(name, value)?));
    }
    let bytes = serialize(parts, Some(metadata)).map_err(|e| error(Code::IO, format!("{}: {e}", path.display())))?;
    write_durably(path, &bytes).map_err(|e| io_error(path, "written", &e).into())
}

/// Writes a file whole or not at all; it is on the disk when this returns.
fn write_durably(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let file = AtomicFile::new(path)?;
    let mut part = file.create()?;
    part.write_all(bytes)?;
    if !file.is_regular() {
        return Ok(());
    }
    part.sync_all()?;
    file.keep()?;
    // The new name is in the folder, which is written as well.
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

/// Sets variables from a file that [`write`] made, and returns how far the training was.
///
/// # Errors
/// When the file cannot be read, or is of another training: a variable is absent or has another type.
pub fn read(path: &Path, variables: SessionVariables<'_>) -> Result<Progress, Diagnostics> {
    let damaged = |what: String| Diagnostics::from(error(Code::INPUT, format!("'{}' {what}", path.display())));
    let bytes = std::fs::read(path).map_err(|e| io_error(path, "read", &e))?;
    let not = |e: safetensors::SafeTensorError| damaged(format!("is no snapshot: {e}"));
    let file = SafeTensors::deserialize(&bytes).map_err(not)?;
    let (_, metadata) = SafeTensors::read_metadata(&bytes).map_err(not)?;
    let field =
        |name: &str| metadata.metadata().as_ref().and_then(|m| m.get(name)).and_then(|text| text.parse::<u64>().ok());
    let (Some(step), Some(seed), Some(batch), Some(samples)) =
        (field("step"), field("seed"), field("batch"), field("samples"))
    else {
        return Err(damaged("is no snapshot of a training: it has no step".into()));
    };
    let known = metadata.metadata().as_ref().and_then(|m| m.get(HASH));
    let tensors: Vec<_> = file.iter().collect();
    let tensors = tensors.iter().map(|(name, own)| (*name, own.dtype(), own.shape(), Some(own.data())));
    if known != Some(&hash(tensors.collect())) {
        return Err(damaged("is damaged: its hash is not that of its tensors".into()));
    }
    // All are checked before the first is set, so that an error changes nothing.
    let mut values = Vec::new();
    for (name, dtype_of, dims_of) in variables.types() {
        let own =
            file.tensor(name).map_err(|_| damaged(format!("has no '{name}': it is of another model or optimizer")))?;
        let dims: Vec<i64> = own.shape().iter().map(|d| *d as i64).collect();
        if dtype(dtype_of) != Some(own.dtype()) || dims != dims_of {
            let what = format!("has '{name}' as {:?}{dims:?}, and the model {dtype_of}{dims_of:?}", own.dtype());
            return Err(damaged(what));
        }
        let value = Tensor::from_bytes(dtype_of, dims, own.data()).map_err(|e| damaged(e.to_string()))?;
        values.push((name, value));
    }
    for (name, value) in values {
        variables.set(name, &value).map_err(|e| run_error(&e))?;
    }
    Ok(Progress { step: step as usize, seed, batch: batch as usize, samples: samples as usize })
}
