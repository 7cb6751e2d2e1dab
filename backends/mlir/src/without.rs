//! The replacement of the compiler in builds without the feature `mlir`.

use crate::HINT;
use crate::payload::Compiled;

/// Returns the message that names a build that compiles.
///
/// # Errors
/// Always.
pub fn compile(_text: &str) -> Result<Compiled, String> {
    Err(format!("this build has no MLIR; {HINT}"))
}
