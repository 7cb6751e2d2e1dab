//! Words of an earlier vocabulary, which must not come back.
//!
//! [`GONE`] holds what the tree no longer has: one of them in any text file is an error. [`LEAVING`] holds what is still being
//! replaced: `cargo xtask tidy --words` counts it. A word moves from the second list to the first when its count is 0.
//! There is no way to allow a single use. A word with an everyday meaning belongs in neither list, unless with its prefix.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::paths::is_text;

/// A word, and the term to write instead.
type Word = (&'static str, &'static str);

/// Words that must not stand anywhere.
const GONE: &[Word] = &[
    ("of.either", "of.alternatives"),
    ("of.hold", "of.optimization_barrier"),
    ("tell-extents", "bind-shape-symbols"),
    ("tell_extents", "bind_shape_symbols"),
];

/// Words that still stand in some places.
const LEAVING: &[Word] = &[
    ("beside", "asynchronous; next to; against"),
    ("seat", "rank context"),
    ("meet", "rendezvous"),
    ("meets", "rendezvous"),
    ("meeting", "rendezvous"),
    ("turns", "microbatches"),
    ("lanes", "session pool; SIMD lanes"),
    ("grow", "cluster"),
    ("told", "bound"),
    ("lies", "layout; strides; is"),
    ("halves", "16-bit contractions; 16-bit floats"),
    ("halved", "narrowed to 16 bits"),
    ("spelling", "attribute mapping"),
    ("nobody", "the passive with its subject"),
];

/// This file names them all, and a changelog may name what a release renamed.
const EXEMPT: [&str; 2] = ["xtask/src/tidy/words.rs", "CHANGELOG.md"];

/// Every occurrence of a removed word.
///
/// # Errors
/// When a file cannot be read.
pub fn check(root: &Path, files: &[PathBuf]) -> Result<Vec<String>, String> {
    let place = |(word, instead): &Word, file: &str, line: usize| format!("{file}:{line}: '{word}' is now: {instead}");
    Ok(find(root, files, GONE)?.iter().map(|(word, file, line)| place(word, file, *line)).collect())
}

/// Prints how often each word that is still being replaced occurs, and in which folder most.
///
/// # Errors
/// When a file cannot be read.
pub fn count(root: &Path, files: &[PathBuf]) -> Result<(), String> {
    let found = find(root, files, LEAVING)?;
    for (word, instead) in LEAVING {
        let mut folders: BTreeMap<&str, usize> = BTreeMap::new();
        for (_, file, _) in found.iter().filter(|(w, ..)| w.0 == *word) {
            *folders.entry(file.split('/').next().unwrap_or_default()).or_default() += 1;
        }
        let all: usize = folders.values().sum();
        let mut folders: Vec<_> = folders.into_iter().collect();
        folders.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
        let most: Vec<String> = folders.iter().take(4).map(|(folder, n)| format!("{folder} {n}")).collect();
        println!("{all:5}  {word} ({instead}): {}", most.join(", "));
    }
    Ok(())
}

fn find(root: &Path, files: &[PathBuf], words: &'static [Word]) -> Result<Vec<(&'static Word, String, usize)>, String> {
    let mut found = Vec::new();
    for f in files.iter().filter(|f| is_text(f)) {
        let name = f.to_string_lossy().replace('\\', "/");
        if EXEMPT.contains(&name.as_str()) {
            continue;
        }
        let bytes = std::fs::read(root.join(f)).map_err(|e| format!("{name}: {e}"))?;
        let Ok(text) = std::str::from_utf8(&bytes) else { continue };
        for (n, line) in (1..).zip(text.lines()) {
            found.extend(words.iter().filter(|w| holds(line, w.0)).map(|w| (w, name.clone(), n)));
        }
    }
    Ok(found)
}

/// Whether a line holds a word, alone or as a part of an identifier in snake case.
fn holds(line: &str, word: &str) -> bool {
    let line = line.to_lowercase();
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back().is_some_and(char::is_alphanumeric);
        let after = line[at + word.len()..].chars().next().is_some_and(char::is_alphanumeric);
        !before && !after
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_found_whole_and_in_identifiers() {
        assert!(holds("What lies there", "lies") && holds("fn lies_on(x)", "lies") && holds("// Lies.", "lies"));
        assert!(!holds("implies, supplies", "lies") && !holds("turnsole", "turns"));
        assert!(holds("%y = of.either %x", "of.either") && !holds("half.eithers", "of.either"));
    }

    #[test]
    fn no_word_is_in_both_lists() {
        assert!(GONE.iter().all(|(word, _)| LEAVING.iter().all(|(other, _)| word != other)));
    }
}
