//! Import options.

use std::path::PathBuf;

/// How a model is imported.
#[derive(Clone, Debug)]
pub struct Options {
    /// The folder that external data must lie in; [`crate::import_file`] takes that of the model where it is `None`.
    pub folder: Option<PathBuf>,
    /// The most nodes that a model may have once its functions are inlined: calls of calls can grow without bound.
    pub max_nodes: usize,
}

impl Default for Options {
    fn default() -> Self {
        Options { folder: None, max_nodes: 4_000_000 }
    }
}
