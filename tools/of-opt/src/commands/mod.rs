//! One file for each subcommand; [`opt`] is what runs without one.

pub mod backends;
pub mod bench;
pub mod cache;
pub mod compile;
pub mod completions;
pub mod debug;
pub mod diff;
pub mod explain;
pub mod explain_error;
pub mod export;
pub mod import;
pub mod inspect;
#[cfg(feature = "serve")]
pub mod load;
pub mod lsp;
pub mod man;
pub mod measure;
pub mod ops;
pub mod ops_markdown;
pub mod opt;
pub mod passes;
pub mod profile;
pub mod run;
#[cfg(feature = "serve")]
pub mod serve;
pub mod sign;
pub mod simulate;
pub mod train;
mod train_adapters;
mod train_classes;
pub mod train_config;
mod train_flags;
mod train_steps;
mod train_weights;
pub mod verify;
pub mod view;
pub mod why_stuck;
pub mod zoo;
