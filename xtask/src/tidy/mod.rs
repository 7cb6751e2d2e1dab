//! `cargo xtask tidy`: invariants that neither the compiler nor clippy checks.

mod circles;
mod crates;
mod error_codes;
mod features;
mod lexer;
mod links;
mod paths;
mod sources;
mod words;

use crate::workspace::{files, root};

/// Checks everything and prints each thing that is wrong.
///
/// # Errors
/// How many things are wrong.
pub fn tidy() -> Result<(), String> {
    let root = root();
    let files = files(&root)?;
    let mut wrong = crates::check(&root)?;
    wrong.extend(features::check()?);
    wrong.extend(sources::check(&root, &files)?);
    wrong.extend(paths::check(&root, &files)?);
    wrong.extend(circles::check(&root, &files)?);
    wrong.extend(words::check(&root, &files)?);
    wrong.extend(error_codes::check(&root, &files)?);
    wrong.extend(links::check(&root, &files)?);
    for w in &wrong {
        eprintln!("tidy: {w}");
    }
    match wrong.len() {
        0 => Ok(()),
        n => Err(format!("tidy found {n} things")),
    }
}

/// Prints how often words occur that are still being replaced.
///
/// # Errors
/// When a file cannot be read.
pub fn words() -> Result<(), String> {
    let root = root();
    words::count(&root, &files(&root)?)
}
