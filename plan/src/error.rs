//! Errors of reading and writing plan files.

use std::path::PathBuf;

use crate::Finding;

/// Why a plan could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The file could not be read.
    #[error("cannot read plan `{path}`: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file is something else.
    #[error("not a plan: the first bytes are not a plan's; make one with `of-opt compile MODEL -o MODEL.plan`")]
    NotAPlan,
    /// The file comes from a newer compiler.
    #[error(
        "the plan has format version {found}, and this program reads up to version {supported}; \
         use a newer program or compile the model again"
    )]
    NewerVersion {
        /// Version of the file.
        found: u32,
        /// Newest version that this program reads.
        supported: u32,
    },
    /// The file comes from a compiler whose format is no longer read.
    #[error("the plan has format version {found}, and this program reads version {supported}; compile the model again")]
    OldVersion {
        /// Version of the file.
        found: u32,
        /// Version that this program reads.
        supported: u32,
    },
    /// The bytes are not those that were written.
    #[error("the plan is damaged: {what}; copy it again or compile the model again")]
    Damaged {
        /// What does not hold, and where.
        what: String,
    },
    /// The checksums hold and the content makes no sense.
    #[error("the plan is malformed: {what}; compile the model again")]
    Malformed {
        /// What does not hold, and where.
        what: String,
    },
    /// The structure contradicts itself.
    #[error("the plan is invalid: {}{}", .0[0], more(.0))]
    Invalid(Vec<Finding>),
}

fn more(findings: &[Finding]) -> String {
    if findings.len() > 1 { format!(" (and {} more)", findings.len() - 1) } else { String::new() }
}

/// Why something could not be added to a plan.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// The bytes of a weight do not fit its type.
    #[error("weight `{name}` of type {dtype}{dims:?} needs {expected} bytes and has {got}")]
    WeightSize {
        /// The weight.
        name: String,
        /// Its element type.
        dtype: &'static str,
        /// Its extents.
        dims: Vec<i64>,
        /// Bytes that the type needs.
        expected: u64,
        /// Bytes that were given.
        got: u64,
    },
    /// A weight has an extent that no tensor has.
    #[error("weight `{name}` has no size: element type {dtype}, extents {dims:?}")]
    WeightType {
        /// The weight.
        name: String,
        /// Its element type.
        dtype: &'static str,
        /// Its extents.
        dims: Vec<i64>,
    },
    /// An alias names a weight or bytes that do not exist.
    #[error("weight `{name}` would be outside of weight number {of}")]
    WeightAlias {
        /// The weight.
        name: String,
        /// The one it should alias.
        of: u32,
    },
    /// The entry point of a kernel is outside its blob.
    #[error("kernel `{name}` has its entry at byte {entry} of a blob of {len} bytes")]
    KernelEntry {
        /// The kernel.
        name: String,
        /// Offset of the entry.
        entry: u64,
        /// Bytes of the blob.
        len: u64,
    },
}

/// Why a plan could not be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// The file system refused.
    #[error("cannot write plan `{path}`: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The plan does not verify, so it would be refused when opened.
    #[error("the plan does not verify: {}{}", .0[0], more(.0))]
    Invalid(Vec<Finding>),
}
