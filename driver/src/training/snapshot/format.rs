//! The files of a snapshot.
//!
//! A snapshot of one process is one file of safetensors. Of a variable that ranks divide, a file has parts, whose names say where they
//! are: `weight[0:512,0:64]`. The last tensor is the hash of all bytes before its own. Ranks that are processes write a file each, and
//! an index that names all; it is written last.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, BufWriter, Write};

use of_diag::Diagnostics;
use of_plan::Runs;
use of_runtime::{FrozenPart, RunError};
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorInfo};
use serde_json::json;

use super::place::SnapshotFile;
use super::tensors::{dtype, header, lacks};
use super::{Notes, Progress};

/// The name of the tensor that is the hash of the others.
const HASH: &str = "blake3";
const HASH_LEN: usize = blake3::OUT_LEN;

/// A file of parts that is ready to be written.
pub struct PartsFile {
    header: Vec<u8>,
    /// In the order in which they are in the file.
    parts: Vec<FrozenPart>,
}

/// Why a file was not written.
pub enum WriteError {
    Io(io::Error),
    Run(RunError),
}

impl From<io::Error> for WriteError {
    fn from(error: io::Error) -> Self {
        WriteError::Io(error)
    }
}

impl PartsFile {
    /// A file of these parts, without notes.
    ///
    /// # Errors
    /// When safetensors lacks the type of one.
    #[cfg(test)]
    pub fn new(parts: Vec<FrozenPart>, progress: Progress) -> Result<PartsFile, Diagnostics> {
        PartsFile::with_notes(parts, progress, &Notes::new())
    }

    /// A file of these parts, with notes about the training.
    ///
    /// # Errors
    /// When safetensors lacks the type of one.
    pub fn with_notes(mut parts: Vec<FrozenPart>, progress: Progress, notes: &Notes) -> Result<PartsFile, Diagnostics> {
        // Elements are aligned, and those that a run updates first come first.
        parts.sort_by_key(|part| std::cmp::Reverse(part.dtype.bits()));
        let mut tensors = Vec::with_capacity(parts.len() + 1);
        let mut end = 0;
        for part in &parts {
            let dtype = dtype(part.dtype).ok_or_else(|| lacks(&part.name, part.dtype))?;
            let start = end;
            end += part.len() as usize;
            let shape = part.block.iter().map(|(_, n)| *n).collect();
            tensors.push((part_name(part), TensorInfo { dtype, shape, data_offsets: (start, end) }));
        }
        let hash = TensorInfo { dtype: Dtype::U8, shape: vec![HASH_LEN], data_offsets: (end, end + HASH_LEN) };
        tensors.push((HASH.into(), hash));
        let unlike = |e: String| crate::error::error(of_diag::Code::RUN, format!("a snapshot has no header: {e}"));
        let mut fields = progress.fields();
        fields.extend(notes.iter().map(|(name, value)| (name.clone(), value.clone())));
        let header = header(fields, tensors).map_err(unlike)?;
        Ok(PartsFile { header, parts })
    }

    /// Writes the file, and gives its hash. Runs may update the variables meanwhile.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write(self, file: Box<dyn SnapshotFile>) -> Result<String, WriteError> {
        let mut hasher = blake3::Hasher::new();
        let mut out = BufWriter::with_capacity(1 << 16, file);
        hasher.update(&self.header);
        out.write_all(&self.header)?;
        for part in &self.parts {
            let mut written = Ok(());
            let read = part.read(&mut |bytes| {
                if written.is_ok() {
                    hasher.update(bytes);
                    written = out.write_all(bytes);
                }
            });
            read.map_err(WriteError::Run)?;
            written?;
            part.release();
        }
        let hash = hasher.finalize();
        out.write_all(hash.as_bytes())?;
        out.into_inner().map_err(io::IntoInnerError::into_error)?.finish()?;
        Ok(hash.to_hex().to_string())
    }
}

/// The name of a part in a file.
fn part_name(part: &FrozenPart) -> String {
    let mut name = part.name.clone();
    if !part.is_whole() {
        let ranges: Vec<String> = part.block.iter().map(|(at, n)| format!("{at}:{}", at + n)).collect();
        let _ = write!(name, "[{}]", ranges.join(","));
    }
    name
}

/// The variable that a tensor of a file is a part of, and where it is.
fn parse_part(name: &str) -> Option<(&str, Vec<(usize, usize)>)> {
    let (variable, ranges) = name.strip_suffix(']')?.rsplit_once('[')?;
    let range = |text: &str| {
        let (at, end) = text.split_once(':')?;
        let at: usize = at.parse().ok()?;
        Some((at, end.parse::<usize>().ok()?.checked_sub(at)?))
    };
    Some((variable, ranges.split(',').map(range).collect::<Option<_>>()?))
}

/// The files of a snapshot, read.
pub struct SnapshotBytes {
    pub progress: Progress,
    files: Vec<Vec<u8>>,
}

/// What is wrong with a file.
type Problem = String;

/// Checks a file, and gives how far the training was.
pub fn check_file(bytes: &[u8]) -> Result<(Progress, blake3::Hash), Problem> {
    let (_, metadata) = SafeTensors::read_metadata(bytes).map_err(|e| format!("is no snapshot: {e}"))?;
    let progress = metadata.metadata().as_ref().and_then(Progress::of_fields);
    let progress = progress.ok_or("is no snapshot of a training: it has no step")?;
    let file = SafeTensors::deserialize(bytes).map_err(|e| format!("is no snapshot: {e}"))?;
    let (Ok(known), Some(end)) = (file.tensor(HASH), bytes.len().checked_sub(HASH_LEN)) else {
        return Err("has no hash of its tensors: it was not written by this version".into());
    };
    let hash = blake3::Hasher::new().update_rayon(&bytes[..end]).finalize();
    if known.data() != hash.as_bytes() {
        return Err("is damaged: its hash is not that of its tensors".into());
    }
    Ok((progress, hash))
}

impl SnapshotBytes {
    /// The files of a snapshot, which were checked.
    pub fn new(progress: Progress, files: Vec<Vec<u8>>) -> SnapshotBytes {
        SnapshotBytes { progress, files }
    }

    /// What the snapshot says about its training, with the fields of its progress; empty where it is damaged.
    pub fn notes(&self) -> Notes {
        let first = self.files.first().and_then(|bytes| SafeTensors::read_metadata(bytes).ok());
        let fields = first.and_then(|(_, metadata)| metadata.metadata().clone());
        fields.into_iter().flatten().collect()
    }

    /// What is in the files, to take values from.
    pub fn parts(&self) -> Result<Parts<'_>, Problem> {
        let mut tensors: BTreeMap<String, Vec<Found<'_>>> = BTreeMap::new();
        for bytes in &self.files {
            let file = SafeTensors::deserialize(bytes).map_err(|e| format!("is no snapshot: {e}"))?;
            for (name, tensor) in file.iter().filter(|(name, _)| *name != HASH) {
                let (shape, dtype) = (tensor.shape().to_vec(), tensor.dtype());
                let whole = shape.iter().map(|n| (0, *n)).collect();
                let found = |block| Found { block, dtype, shape: shape.clone(), bytes: tensor.data() };
                tensors.entry(name.into()).or_default().push(found(whole));
                if let Some((variable, block)) = parse_part(name) {
                    tensors.entry(variable.into()).or_default().push(found(block));
                }
            }
        }
        Ok(Parts { tensors })
    }
}

/// The tensors of a snapshot, by the names of variables.
pub struct Parts<'b> {
    tensors: BTreeMap<String, Vec<Found<'b>>>,
}

struct Found<'b> {
    block: Vec<(usize, usize)>,
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: &'b [u8],
}

impl Parts<'_> {
    /// Name, type and extents of each tensor, whole. Parts of a tensor are no tensors.
    pub fn list(&self) -> impl Iterator<Item = (&str, Dtype, Vec<usize>)> {
        let of_parts = |found: &[Found<'_>]| {
            let extent = |axis: usize| found.iter().filter_map(|part| part.block.get(axis)).map(|(at, n)| at + n).max();
            (0..found[0].block.len()).map(|axis| extent(axis).unwrap_or(0)).collect()
        };
        let whole = self.tensors.iter().filter(|(name, _)| parse_part(name).is_none());
        whole
            .filter(|(_, found)| !found.is_empty())
            .map(move |(name, found)| (name.as_str(), found[0].dtype, of_parts(found)))
    }

    /// The bytes of a variable, whole.
    pub fn whole(&self, name: &str, of: of_plan::ElementType, dims: &[i64]) -> Result<Vec<u8>, Problem> {
        let own = self.tensors.get(name).map(Vec::as_slice).unwrap_or_default();
        let Some(first) = own.first() else {
            return Err(format!("has no '{name}': it is of another model or optimizer"));
        };
        let outer: Vec<(usize, usize)> = dims.iter().map(|d| (0, *d as usize)).collect();
        let own = own.iter().find(|part| part.block == outer).map_or(own, std::slice::from_ref);
        let fits = |part: &Found<'_>| {
            let inside = part.block.iter().zip(&outer).all(|((at, n), (_, extent))| at + n <= *extent);
            let lengths = part.block.iter().map(|(_, n)| *n);
            dtype(of) == Some(part.dtype)
                && part.block.len() == dims.len()
                && inside
                && lengths.eq(part.shape.iter().copied())
        };
        let len = of.byte_len(dims).unwrap_or(0) as usize;
        if !own.iter().all(fits) || own.iter().map(|part| part.bytes.len()).sum::<usize>() != len {
            let has = match own {
                [whole] => format!("{:?}{:?}", whole.dtype, whole.shape),
                _ => format!("{} parts of {:?}", own.len(), first.dtype),
            };
            return Err(format!("has '{name}' as {has}, and the model {of}{dims:?}"));
        }
        let element = of.bits() as usize / 8;
        let mut out = vec![0; len];
        for part in own {
            let runs = Runs::of(&part.block, &outer);
            let run = (runs.len() * element).max(1);
            for (start, bytes) in runs.starts().zip(part.bytes.chunks_exact(run)) {
                out[start * element..start * element + run].copy_from_slice(bytes);
            }
        }
        Ok(out)
    }
}

/// What a rank says of the file that it wrote.
#[derive(serde::Serialize, serde::Deserialize)]
pub struct PartsWritten {
    pub file: String,
    pub blake3: String,
    pub tensors: Vec<String>,
}

impl PartsFile {
    /// The names of the tensors.
    pub fn names(&self) -> Vec<String> {
        self.parts.iter().map(part_name).collect()
    }
}

/// The index of a snapshot of several files.
pub fn index(progress: Progress, files: &[PartsWritten]) -> Vec<u8> {
    let tensors = files.iter().flat_map(|file| file.tensors.iter().map(move |name| (name, &file.file)));
    let weight_map: BTreeMap<&String, &String> = tensors.collect();
    let hashes: BTreeMap<&String, &String> = files.iter().map(|file| (&file.file, &file.blake3)).collect();
    let index = json!({ "metadata": progress.fields(), "weight_map": weight_map, "blake3": hashes });
    serde_json::to_vec_pretty(&index).unwrap_or_default()
}

/// The files that an index names, with their hashes, and how far the training was.
pub fn parse_index(bytes: &[u8]) -> Option<(Progress, Vec<(String, String)>)> {
    #[derive(serde::Deserialize)]
    struct Index {
        metadata: std::collections::HashMap<String, String>,
        blake3: BTreeMap<String, String>,
    }
    let index: Index = serde_json::from_slice(bytes).ok()?;
    let is_plain = |name: &String| !name.is_empty() && !name.contains(['/', '\\']);
    index
        .blake3
        .keys()
        .all(is_plain)
        .then(|| (Progress::of_fields(&index.metadata), index.blake3.into_iter().collect()))
        .and_then(|(progress, files)| Some((progress?, files)))
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    struct Memory(Arc<Mutex<Vec<u8>>>);

    impl Write for Memory {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl SnapshotFile for Memory {
        fn finish(self: Box<Self>) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_file_has_its_notes_under_its_hash() {
        let progress = Progress { step: 3, seed: 1, batch: 2, samples: 5 };
        let notes = Notes::from([("ema".to_owned(), "0.9".to_owned())]);
        let written = |file: PartsFile| {
            let memory = Arc::new(Mutex::new(Vec::new()));
            assert!(file.write(Box::new(Memory(Arc::clone(&memory)))).is_ok());
            let bytes = memory.lock().unwrap().clone();
            let (own, hash) = check_file(&bytes).unwrap();
            assert_eq!(own, progress);
            (SnapshotBytes::new(own, vec![bytes]).notes(), hash)
        };
        let (with, hash) = written(PartsFile::with_notes(Vec::new(), progress, &notes).unwrap());
        let (without, other) = written(PartsFile::new(Vec::new(), progress).unwrap());
        assert_eq!((with.get("ema"), without.get("ema")), (Some(&"0.9".to_owned()), None));
        assert_ne!(hash, other);
    }
}
