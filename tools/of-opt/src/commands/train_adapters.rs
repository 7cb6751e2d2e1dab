//! The adapters that `of-opt train` trains: fresh ones, or those of a file.

use of_diag::Diagnostics;
use of_driver::training::{BaseStorage, Lora};

use super::train::{LoraBaseArg, Train};
use crate::exit;

/// The adapters of --lora or --adapter.
///
/// # Errors
/// When a file cannot be read, or a flag has no effect next to adapters.
pub(super) fn adapters(c: &Train) -> Result<Option<Lora>, Diagnostics> {
    let fresh =
        c.lora.map(|(rank, alpha)| Lora { targets: c.lora_target.clone(), seed: c.seed, ..Lora::new(rank, alpha) });
    let adapters = match &c.adapter {
        Some(path) => Some(Lora::read(path)?),
        None => fresh,
    };
    let base = match c.lora_base {
        None | Some(LoraBaseArg::Model) => BaseStorage::Model,
        Some(LoraBaseArg::Int8) => BaseStorage::Int8,
        Some(LoraBaseArg::Int4) => BaseStorage::Int4,
    };
    if adapters.is_some() && !c.freeze.is_empty() {
        let what = "--freeze has no effect next to adapters, which keep all parameters of the model as they are";
        return Err(exit::usage(format!("{what}: --lora-target chooses which weights get one")).into());
    }
    if adapters.is_some() && c.prune.is_some() && c.merge {
        return Err(
            exit::usage("--merge would fill the zeros of --prune: write the model with separate adapters").into()
        );
    }
    Ok(adapters.map(|lora| Lora { base, ..lora }))
}
