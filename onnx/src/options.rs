//! Import options.

use std::collections::BTreeSet;
use std::path::PathBuf;

/// How a model is imported.
#[derive(Clone, Debug)]
pub struct Options {
    /// The folder that must contain external data; if `None`, [`crate::import_file`] uses the folder of the model.
    pub folder: Option<PathBuf>,
    /// The most nodes that a model may have once its functions are inlined: nested calls can expand without bound.
    pub max_nodes: usize,
    /// Initializers that are inputs of the graph and become inputs of the module: a run gives their values. The other
    /// initializers are constants.
    pub initializer_inputs: BTreeSet<String>,
    /// Whether an `Identity` of an initializer is a constant of its own. PyTorch exports parameters that have equal values as one
    /// initializer and such nodes; training must not tie them.
    pub separate_copies: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options { folder: None, max_nodes: 4_000_000, initializer_inputs: BTreeSet::new(), separate_copies: false }
    }
}
