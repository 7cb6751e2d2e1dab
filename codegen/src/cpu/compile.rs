//! Kernels to blobs, many at a time.

use std::collections::HashMap;
use std::sync::Arc;

use rayon::prelude::*;

use super::cache::Cache;
use super::flatten::{Blob, FlattenError, flatten};
use super::target::Isa;
use super::toolchain::{Toolchain, ToolchainError};
use crate::kernel::{ENTRY, Kernel, PrintError, print_c};

/// Why a kernel has no machine code.
#[derive(Debug, thiserror::Error)]
pub enum CpuError {
    /// The kernel has no C form.
    #[error("kernel `{kernel}` cannot be printed: {error}")]
    Print {
        /// Name of the kernel.
        kernel: String,
        /// Why.
        error: PrintError,
    },
    /// The C compiler is missing or failed.
    #[error(transparent)]
    Toolchain(#[from] ToolchainError),
    /// The object code is not self-contained.
    #[error(transparent)]
    Flatten(#[from] FlattenError),
}

/// Compiles kernels for one instruction set.
#[derive(Clone, Debug)]
pub struct Compiler {
    isa: Isa,
    toolchain: Toolchain,
    cache: Cache,
}

impl Compiler {
    /// A compiler with the machine's C compiler.
    ///
    /// # Errors
    /// If no C compiler is found.
    pub fn new(isa: Isa, cache: Cache) -> Result<Self, CpuError> {
        Ok(Self { isa, toolchain: Toolchain::find(isa)?, cache })
    }

    /// The instruction set.
    pub const fn isa(&self) -> Isa {
        self.isa
    }

    /// The blob of every kernel, in order; equal kernels share one. Runs on rayon's threads.
    ///
    /// # Errors
    /// That of the first kernel, in order, that fails.
    pub fn compile_all(&self, kernels: &[Kernel]) -> Result<Vec<Arc<Blob>>, CpuError> {
        let sources: Vec<Result<String, CpuError>> = kernels
            .par_iter()
            .map(|k| print_c(k).map_err(|error| CpuError::Print { kernel: k.name.clone(), error }))
            .collect();
        let sources = sources.into_iter().collect::<Result<Vec<_>, _>>()?;
        self.compile_sources(&sources)
    }

    /// The blob of every C text, in order; each must define [`ENTRY`].
    ///
    /// # Errors
    /// That of the first text, in order, that fails.
    pub fn compile_sources(&self, sources: &[String]) -> Result<Vec<Arc<Blob>>, CpuError> {
        let keys: Vec<blake3::Hash> =
            sources.par_iter().map(|s| Cache::key(s, self.toolchain.identity())).collect();
        let mut distinct = Vec::new();
        let mut position = HashMap::new();
        for (source, key) in sources.iter().zip(&keys) {
            position.entry(*key).or_insert_with(|| {
                distinct.push((source, key));
                distinct.len() - 1
            });
        }
        // The longest texts first, so that none of them is left for the end.
        let mut order: Vec<usize> = (0..distinct.len()).collect();
        order.sort_by_key(|i| std::cmp::Reverse(distinct[*i].0.len()));
        let mut blobs: Vec<(usize, Result<Arc<Blob>, CpuError>)> = order
            .into_par_iter()
            .with_max_len(1)
            .map(|i| (i, self.one(distinct[i].0, distinct[i].1).map(Arc::new)))
            .collect();
        blobs.sort_by_key(|b| b.0);
        let blobs = blobs.into_iter().map(|b| b.1).collect::<Result<Vec<_>, _>>()?;
        self.cache.trim();
        Ok(keys.iter().filter_map(|k| position.get(k).map(|i| blobs[*i].clone())).collect())
    }

    fn one(&self, source: &str, key: &blake3::Hash) -> Result<Blob, CpuError> {
        if let Some(blob) = self.cache.get(key) {
            return Ok(blob);
        }
        let blob = flatten(&self.toolchain.compile(source)?, ENTRY)?;
        self.cache.put(key, &blob);
        Ok(blob)
    }
}
