//! No file contains an absolute path of a developer's machine.

use std::path::{Path, PathBuf};

/// Folders that contain home directories.
const HOMES: &[&str] = &["home", "root", "work", "Users", "mnt", "scratch"];

/// Places that a specification names: where KServe puts the models of a service, and what images for MPI of Kubeflow Trainer have.
const SPECIFIED: &[&str] = &["/mnt/models", "/home/mpiuser/.ssh", "/home/mpiuser/.sshd_config"];

/// Text files, by extension; files without one are read as well.
const TEXT: &[&str] = &[
    "rs", "md", "toml", "sh", "py", "of", "yml", "yaml", "json", "c", "h", "cpp", "hpp", "pyi", "txt", "proto", "svg",
];

/// Everything that is wrong.
///
/// # Errors
/// When a file cannot be read.
pub fn check(root: &Path, files: &[PathBuf]) -> Result<Vec<String>, String> {
    let mut wrong = Vec::new();
    for f in files {
        if !is_text(f) {
            continue;
        }
        let bytes = std::fs::read(root.join(f)).map_err(|e| format!("{}: {e}", f.display()))?;
        let Ok(text) = std::str::from_utf8(&bytes) else { continue };
        for (n, line) in (1..).zip(text.lines()) {
            if let Some(path) = machine_path(line) {
                wrong.push(format!("{}:{n}: '{path}' is a place on one machine", f.display()));
            }
        }
    }
    Ok(wrong)
}

/// Whether a file holds text, by its name.
pub fn is_text(f: &Path) -> bool {
    f.extension().is_none_or(|e| TEXT.iter().any(|t| e == *t))
}

/// An absolute path below a home folder.
fn machine_path(line: &str) -> Option<&str> {
    HOMES.iter().find_map(|home| {
        let pattern = format!("/{home}/");
        line.match_indices(&pattern).find_map(|(at, _)| {
            // After a name it is the middle of a relative path or of an address.
            let before = line[..at].chars().next_back();
            let absolute = before.is_none_or(|c| !c.is_alphanumeric() && !"._-~}$*/\\".contains(c));
            let rest = &line[at + pattern.len()..];
            let named = rest.chars().next().is_some_and(|c| c.is_alphanumeric() || c == '.' || c == '_');
            let end = rest.find(|c: char| c.is_whitespace() || "\"'`)>,".contains(c)).unwrap_or(rest.len());
            let path = &line[at..at + pattern.len() + end];
            let specified = SPECIFIED.contains(&path.trim_end_matches('.'));
            (absolute && named && !specified).then_some(path)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_absolute_paths_below_homes_are_found() {
        let home = format!("/{}/me/x.rs", "home");
        assert_eq!(machine_path(&format!("see `{home}`, please")), Some(home.as_str()));
        assert_eq!(machine_path(&format!("args: [{:?}]", SPECIFIED[0])), None);
        assert_eq!(machine_path("docs/work/x.md"), None);
        assert_eq!(machine_path("https://example.org/home/x"), None);
        assert_eq!(machine_path("/usr/lib/x"), None);
    }
}
