//! The C interface of PJRT plugins: generated declarations, and owned handles that are safe to use.
//!
//! `bindings.rs` is generated from version 0.114 of `pjrt_c_api.h` by `cargo xtask pjrt-bindings`. Newer versions append fields
//! and functions, and a plugin reads as many bytes of a struct as the caller says it has.

mod api;
#[allow(
    dead_code,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    unreachable_pub,
    missing_docs,
    clippy::all,
    reason = "generated: names are those of the C header, and assertions on layouts are written as C would compute them"
)]
mod bindings;
mod buffer;
mod client;
mod executable;

pub use api::PluginError;
pub use bindings::*;
pub use buffer::Buffer;
pub use client::Client;
pub use executable::LoadedExecutable;
