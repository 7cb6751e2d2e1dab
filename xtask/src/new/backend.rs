//! `cargo xtask new backend`: a crate outside of the workspace, from the example.

use std::fs;
use std::path::Path;

use super::{camel, is_name};
use crate::workspace::{read, write};

/// The example that is copied, and its names.
const EXAMPLE: &str = "examples/toy-backend";
const NAME: &str = "toy";

/// Makes the crate `NAME-backend` in the folder `out`.
///
/// # Errors
/// When the name is none, or the folder is not empty.
pub fn backend(root: &Path, name: &str, out: &str) -> Result<(), String> {
    if !is_name(name, '-') {
        return Err(format!("'{name}' is no name: lower-case words joined by '-'"));
    }
    let out = std::env::current_dir().map_err(|e| e.to_string())?.join(out);
    if fs::read_dir(&out).is_ok_and(|mut d| d.next().is_some()) {
        return Err(format!("{} is not empty", out.display()));
    }
    let named = |text: String| {
        let text =
            text.replace("Toy", &camel(name)).replace("toy_backend", &format!("{}_backend", name.replace('-', "_")));
        text.replace("\"toy\"", &format!("\"{name}\"")).replace(&format!("\"{NAME}-"), &format!("\"{name}-"))
    };
    let manifest = read(&root.join(EXAMPLE).join("Cargo.toml"))?;
    // The crates are those of this clone.
    let manifest = named(manifest).replace("path = \"../../", &format!("path = \"{}/", root.display()));
    write(&out.join("Cargo.toml"), &manifest)?;
    write(&out.join("src/lib.rs"), &named(read(&root.join(EXAMPLE).join("src/lib.rs"))?))?;
    // The same versions of everything, so that nothing new is downloaded.
    write(&out.join("Cargo.lock"), &read(&root.join("Cargo.lock"))?)?;
    eprintln!("{}: see src/lib.rs; 'cargo build --release' there makes the library", out.display());
    Ok(())
}
