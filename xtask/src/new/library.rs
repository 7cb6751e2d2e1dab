//! `cargo xtask new backend` and `new ops`: a crate outside of the workspace, from an example.

use std::fs;
use std::path::Path;

use super::{camel, is_name};
use crate::workspace::{read, write};

/// An example that is copied.
pub struct Example {
    /// Its folder.
    folder: &'static str,
    /// What its names begin with.
    name: &'static str,
    /// What its crate's name ends with.
    suffix: &'static str,
}

/// A backend.
pub const BACKEND: Example = Example { folder: "examples/toy-backend", name: "toy", suffix: "backend" };
/// Ops.
pub const OPS: Example = Example { folder: "examples/user-op", name: "demo", suffix: "ops" };

/// Makes the crate `NAME-backend` or `NAME-ops` in the folder `out`.
///
/// # Errors
/// When the name is none, or the folder is not empty.
pub fn library(root: &Path, example: &Example, name: &str, out: &str) -> Result<(), String> {
    let Example { folder, name: own, suffix } = example;
    if !is_name(name, '-') {
        return Err(format!("'{name}' is no name: lower-case words joined by '-'"));
    }
    let out = std::env::current_dir().map_err(|e| e.to_string())?.join(out);
    if fs::read_dir(&out).is_ok_and(|mut d| d.next().is_some()) {
        return Err(format!("{} is not empty", out.display()));
    }
    // Types are in camel case, crates have a suffix; ops and ONNX domains begin with the name.
    let word = name.replace('-', "_");
    let named = |text: String| {
        let text =
            text.replace(&camel(own), &camel(name)).replace(&format!("{own}_{suffix}"), &format!("{word}_{suffix}"));
        let text = text
            .replace(&format!("\"{own}\""), &format!("\"{name}\""))
            .replace(&format!("\"{own}-"), &format!("\"{name}-"));
        text.replace(&format!("\"{own}."), &format!("\"{word}.")).replace(&format!(".{own}::"), &format!(".{word}::"))
    };
    let manifest = read(&root.join(folder).join("Cargo.toml"))?;
    // The crates are those of this clone.
    let manifest = named(manifest).replace("path = \"../../", &format!("path = \"{}/", root.display()));
    write(&out.join("Cargo.toml"), &manifest)?;
    write(&out.join("src/lib.rs"), &named(read(&root.join(folder).join("src/lib.rs"))?))?;
    // The same versions of everything, so that nothing new is downloaded.
    write(&out.join("Cargo.lock"), &read(&root.join("Cargo.lock"))?)?;
    eprintln!("{}: see src/lib.rs; 'cargo build --release' there makes the library", out.display());
    Ok(())
}
