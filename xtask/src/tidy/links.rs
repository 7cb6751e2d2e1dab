//! Paths in Markdown files: a link, or a path in backticks that begins with a folder of the repository, names something that exists.

use std::path::{Path, PathBuf};

use crate::workspace::read;

/// Every broken path, with its line.
///
/// # Errors
/// When a file cannot be read.
pub fn check(root: &Path, files: &[PathBuf]) -> Result<Vec<String>, String> {
    let mut wrong = Vec::new();
    for file in files.iter().filter(|f| f.extension().is_some_and(|e| e == "md")) {
        let text = read(&root.join(file))?;
        for (n, line) in (1..).zip(text.lines()) {
            for path in links(line).filter(|p| !relative(root, file, p).exists()) {
                wrong.push(format!("{}:{n}: the link '{path}' leads nowhere", file.display()));
            }
            for path in code(line).flat_map(alternatives).filter(|p| is_path(root, p) && !exists(root, p)) {
                wrong.push(format!("{}:{n}: there is no '{path}'", file.display()));
            }
        }
    }
    Ok(wrong)
}

/// The targets of Markdown links to files, without anchors.
fn links(line: &str) -> impl Iterator<Item = &str> {
    line.split("](").skip(1).filter_map(|rest| rest.split(')').next()).filter_map(|link| {
        let path = link.split('#').next().unwrap_or(link);
        (!path.is_empty() && !path.contains("://")).then_some(path)
    })
}

/// The texts between backticks.
fn code(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

/// `a/{b,c}` as `a/b` and `a/c`.
fn alternatives(text: &str) -> Vec<String> {
    match text.split_once('{').and_then(|(front, rest)| Some((front, rest.split_once('}')?))) {
        Some((front, (choices, back))) => choices.split(',').map(|c| format!("{front}{c}{back}")).collect(),
        None => vec![text.to_string()],
    }
}

fn relative(root: &Path, file: &Path, link: &str) -> PathBuf {
    root.join(file.parent().unwrap_or(Path::new(""))).join(link)
}

/// Whether a text looks like a path of the repository: its first part is a folder of the root, and it has no other characters than a
/// path has.
fn is_path(root: &Path, text: &str) -> bool {
    let plain = text.chars().all(|c| c.is_alphanumeric() || "._-/*<>".contains(c));
    text.split_once('/').is_some_and(|(first, _)| !first.is_empty() && plain && root.join(first).is_dir())
}

/// Whether a path exists; of one with placeholders (`<area>`, `*`) the folder before the first of them.
fn exists(root: &Path, path: &str) -> bool {
    let fixed = path.find(['*', '<']).map_or(path, |at| path[..at].rsplit_once('/').map_or("", |(folder, _)| folder));
    root.join(fixed).exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_and_paths_are_found() {
        let line = "see [a](docs/a.md#part), [b](https://x.org/y) and `ir/src/{dim,sbp}.rs`, `a + b`";
        assert_eq!(links(line).collect::<Vec<_>>(), ["docs/a.md"]);
        assert_eq!(code(line).flat_map(alternatives).collect::<Vec<_>>(), ["ir/src/dim.rs", "ir/src/sbp.rs", "a + b"]);
    }

    #[test]
    fn placeholders_in_paths_are_ignored() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        assert!(is_path(root, "src/tidy/<name>.rs") && exists(root, "src/tidy/<name>.rs"));
        assert!(!exists(root, "src/tidy/absent.rs"));
        assert!(!is_path(root, "a/b"));
    }
}
