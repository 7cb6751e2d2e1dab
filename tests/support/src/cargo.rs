//! Cargo, started by a test.

use std::process::Command;

/// The cargo that runs this test, without what it sets for the package of the test: a build script that reads such variables would
/// run again for every package whose tests build something.
pub fn cargo() -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    for name in names.filter(|name| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")) {
        cargo.env_remove(name);
    }
    cargo
}
