//! Sets of calibration inputs: which folders and files make one run each.

use std::ffi::OsString;
use std::path::Path;

use of_diag::Diagnostics;

use crate::error::io_error;

/// The sets of calibration inputs that `given` names: a folder is a set, or its subfolders are; a file is a set.
///
/// # Errors
/// When a folder cannot be read.
pub fn calibration_sets(given: &[OsString]) -> Result<Vec<OsString>, Diagnostics> {
    let mut out = Vec::new();
    for item in given {
        let dir = Path::new(item);
        if !dir.is_dir() {
            out.push(item.clone());
            continue;
        }
        let entries = std::fs::read_dir(dir).map_err(|e| io_error(dir, "read", &e))?;
        let (mut inside, mut files) = (Vec::new(), false);
        for entry in entries {
            let path = entry.map_err(|e| io_error(dir, "read", &e))?.path();
            match path.is_dir() {
                true => inside.push(path.into_os_string()),
                false => files = true,
            }
        }
        inside.sort();
        if files || inside.is_empty() { out.push(item.clone()) } else { out.extend(inside) }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subfolders_are_sets() {
        let dir = tempfile::tempdir().unwrap();
        for set in ["b", "a"] {
            std::fs::create_dir(dir.path().join(set)).unwrap();
            std::fs::write(dir.path().join(set).join("input_0.pb"), b"").unwrap();
        }
        let path = |name: &str| dir.path().join(name).into_os_string();
        assert_eq!(calibration_sets(&[dir.path().into()]).unwrap(), [path("a"), path("b")]);
        assert_eq!(calibration_sets(&[path("b")]).unwrap(), [path("b")]);
        assert_eq!(calibration_sets(&["x=f.npy".into()]).unwrap(), ["x=f.npy"]);
    }
}
