//! Packages of the system, by apt-get.

use std::process::Command;

/// Installs packages.
///
/// # Errors
/// When there is no apt-get, the user may not use it, or it fails.
pub fn install(packages: &[&str]) -> Result<(), String> {
    let done = |command: &mut Command| command.status().map_err(|e| e.to_string()).map(|status| status.success());
    let words = |program| {
        let mut command = Command::new(program);
        // Nothing but the value of OF_REQUIRE goes to the output of `cargo xtask components`.
        command.stdout(std::io::stderr());
        command
    };
    let arguments = ["install", "--yes"].iter().chain(packages);
    // Who is not root needs sudo.
    let (first, second) = (arguments.clone(), ["--non-interactive", "apt-get"].iter().chain(arguments));
    if done(words("apt-get").args(first))? || done(words("sudo").args(second))? {
        return Ok(());
    }
    Err(format!("'apt-get install {}' fails", packages.join(" ")))
}
