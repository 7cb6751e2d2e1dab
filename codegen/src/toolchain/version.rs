//! The version that a compiler reports.

use std::process::{Command, Stdio};

/// The first line of `program --version`; empty if the program does not run.
pub fn of(program: &str) -> String {
    let out = Command::new(program).arg("--version").stdin(Stdio::null()).output();
    out.map(|o| String::from_utf8_lossy(&o.stdout).lines().next().unwrap_or_default().to_string()).unwrap_or_default()
}
