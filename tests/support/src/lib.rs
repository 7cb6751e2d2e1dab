//! What tests of several crates share.
//!
//! - `browser` (feature `browser`): what a browser shows of a page.
//! - [`cargo`]: the cargo that builds what a test runs.
//! - `collector` (feature `collector`): a collector of OpenTelemetry.
//! - [`component`]: outside components, such as XLA's plugin; a missing one is reported, or fails the test.
//! - [`listings`]: listings of Markdown pages, run as tests.
//! - [`signals`]: programs that tests interrupt.
//! - `op`, `compare`, `claims` (feature `ops`): graphs of one op and the samples of every op; whether two results agree
//!   within a tolerance; which ops an executor takes.
//! - `plans`, `ranks`, `aarch64`, `wasm` (feature `plans`): functions with their plans, sessions and inputs, on one device, on a mesh,
//!   on an emulated processor or in WebAssembly.

#[cfg(feature = "plans")]
pub mod aarch64;
#[cfg(feature = "browser")]
pub mod browser;
pub mod cargo;
#[cfg(feature = "ops")]
pub mod claims;
#[cfg(feature = "collector")]
pub mod collector;
#[cfg(feature = "ops")]
pub mod compare;
pub mod component;
pub mod listings;
#[cfg(feature = "ops")]
pub mod op;
#[cfg(feature = "plans")]
pub mod plans;
#[cfg(feature = "plans")]
pub mod ranks;
pub mod signals;
#[cfg(feature = "plans")]
pub mod wasm;
