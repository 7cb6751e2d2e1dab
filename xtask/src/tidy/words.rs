//! Words of an earlier vocabulary, and the terms to write instead.
//!
//! A word of [`REPLACED`] is an error in any text file: in code, comments, documentation and messages, alone or as a part of an
//! identifier. Its entry lists the folders in which it may still occur. To close a word everywhere, empty that list;
//! `cargo xtask tidy --words` counts what is left. A single use cannot be allowed.
//!
//! A word with an everyday meaning belongs into the list only with its prefix.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::paths::is_text;

/// A word that was replaced.
struct Word {
    /// The word, in lower case.
    old: &'static str,
    /// What to write instead.
    new: &'static str,
    /// Folders and files in which it may still occur.
    open: &'static [&'static str],
}

impl Word {
    const fn new(old: &'static str, new: &'static str, open: &'static [&'static str]) -> Word {
        Word { old, new, open }
    }

    /// Whether the word may still occur in a file.
    fn may_be_in(&self, file: &str) -> bool {
        self.open
            .iter()
            .any(|path| file.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')))
    }
}

/// Every replaced word. Words whose list of folders is empty are closed.
const REPLACED: &[Word] = &[
    Word::new("of.either", "of.alternatives", &[]),
    Word::new("of.hold", "of.optimization_barrier", &[]),
    Word::new("of.embed", "of.to_partial", &[]),
    Word::new("of.exchange", "of.reshard", &[]),
    Word::new("of.take_slice", "of.local_slice", &[]),
    Word::new("of.place", "of.sharding_constraint", &[]),
    Word::new("of.max_of", "of.variadic_max", &[]),
    Word::new("of.min_of", "of.variadic_min", &[]),
    Word::new("of.sum_of", "of.variadic_sum", &[]),
    Word::new("of.mean_of", "of.variadic_mean", &[]),
    Word::new("of.softmax_zero", "of.softmax_ignore_zero", &[]),
    Word::new("of.fail", "of.trap", &[]),
    Word::new("of.recip", "of.reciprocal", &[]),
    Word::new("of.bit_not", "of.bitwise_not", &[]),
    Word::new("of.bit_and", "of.bitwise_and", &[]),
    Word::new("of.bit_or", "of.bitwise_or", &[]),
    Word::new("of.bit_xor", "of.bitwise_xor", &[]),
    Word::new("stack-appends", "loop-append-to-scan-output", &[]),
    Word::new("widen-floats", "legalize-float16", &[]),
    Word::new("narrow-contractions", "fold-widening-into-contractions", &[]),
    Word::new("separate-score-matrices", "duplicate-shared-attention-ops", &[]),
    Word::new("backend-for", "pin", &[]),
    Word::new("cuda:shim", "cuda:emulated", &[]),
    Word::new("cuda-shim", "cuda-emulated", &[]),
    Word::new("regst", "register", &[]),
    Word::new("of_left_out", "OF_ATTR_ABSENT", &[]),
    Word::new("tell-extents", "bind-shape-symbols", &[]),
    Word::new("tell_extents", "bind_shape_symbols", &[]),
    Word::new("min-region", "min-subgraph-size", &[]),
    Word::new("of.embed", "of.to_partial", &[]),
    Word::new("of.exchange", "of.reshard", &[]),
    Word::new("of.take_slice", "of.local_slice", &[]),
    Word::new("of.place", "of.sharding_constraint", &[]),
    Word::new("of.max_of", "of.variadic_max", &[]),
    Word::new("of.min_of", "of.variadic_min", &[]),
    Word::new("of.sum_of", "of.variadic_sum", &[]),
    Word::new("of.mean_of", "of.variadic_mean", &[]),
    Word::new("of.softmax_zero", "of.softmax_ignore_zero", &[]),
    Word::new("of.fail", "of.trap", &[]),
    Word::new("of.recip", "of.reciprocal", &[]),
    Word::new("of.bit_not", "of.bitwise_not", &[]),
    Word::new("stack-appends", "loop-append-to-scan-output", &[]),
    Word::new("widen-floats", "legalize-float16", &[]),
    Word::new("narrow-contractions", "fold-widening-into-contractions", &[]),
    Word::new("separate-score-matrices", "duplicate-shared-attention-ops", &[]),
    Word::new("cuda-shim", "cuda-emulated", &[]),
    Word::new("backend-for", "pin", &[]),
    Word::new("untold", "unbound", &[]),
    Word::new("seat", "rank context", &[]),
    Word::new("spelling", "text form", &[]),
    Word::new("nobody", "the passive with its subject", &[]),
    Word::new("beside", "asynchronous; next to; against", &[]),
    Word::new("meet", "rendezvous; combine", &[]),
    Word::new("meets", "rendezvous; combines", &[]),
    Word::new("meeting", "rendezvous", &[]),
    Word::new("turns", "microbatches; converts, makes", &[]),
    Word::new("grow", "cluster; extend, enlarge", &[]),
    Word::new("told", "bound", &[]),
    Word::new("lies", "layout; strides; is", &[]),
    Word::new("halves", "16-bit contractions; 16-bit floats; parts", &[]),
    Word::new("halved", "narrowed to 16 bits", &[]),
    // Lanes of SIMD vectors; the lit tests print kernels.
    Word::new("lanes", "session pool", &["backends", "codegen", "runtime", "tests/lit/tests/snapshots"]),
];

/// This file names the words, and the text of the licence is fixed.
const EXEMPT: [&str; 2] = ["xtask/src/tidy/words.rs", "LICENSE"];

/// A use of a replaced word: the word, the file and the line.
type Use = (&'static Word, String, usize);

/// Every use of a replaced word where it may not occur.
///
/// # Errors
/// When a file cannot be read.
pub fn check(root: &Path, files: &[PathBuf]) -> Result<Vec<String>, String> {
    let wrong = uses(root, files)?.into_iter().filter(|(word, file, _)| !word.may_be_in(file));
    Ok(wrong.map(|(word, file, line)| format!("{file}:{line}: '{}' was replaced by: {}", word.old, word.new)).collect())
}

/// Prints how often each word that is not closed occurs, and in which folders most.
///
/// # Errors
/// When a file cannot be read.
pub fn count(root: &Path, files: &[PathBuf]) -> Result<(), String> {
    let found = uses(root, files)?;
    for word in REPLACED.iter().filter(|w| !w.open.is_empty()) {
        let mut folders: BTreeMap<&str, usize> = BTreeMap::new();
        for (_, file, _) in found.iter().filter(|(w, ..)| w.old == word.old) {
            *folders.entry(file.split('/').next().unwrap_or_default()).or_default() += 1;
        }
        let all: usize = folders.values().sum();
        let mut folders: Vec<_> = folders.into_iter().collect();
        folders.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
        let most: Vec<String> = folders.iter().take(4).map(|(folder, n)| format!("{folder} {n}")).collect();
        println!("{all:5}  {} ({}): {}", word.old, word.new, most.join(", "));
    }
    Ok(())
}

fn uses(root: &Path, files: &[PathBuf]) -> Result<Vec<Use>, String> {
    let mut found = Vec::new();
    for f in files.iter().filter(|f| is_text(f)) {
        let name = f.to_string_lossy().replace('\\', "/");
        if EXEMPT.contains(&name.as_str()) {
            continue;
        }
        let bytes = std::fs::read(root.join(f)).map_err(|e| format!("{name}: {e}"))?;
        let Ok(text) = std::str::from_utf8(&bytes) else { continue };
        for (n, line) in (1..).zip(text.lines()) {
            let line = words_apart(line);
            found.extend(REPLACED.iter().filter(|w| holds(&line, w.old)).map(|w| (w, name.clone(), n)));
        }
    }
    Ok(found)
}

/// A line in lower case, with a space between the words of identifiers in camel case.
fn words_apart(line: &str) -> String {
    let mut out = String::with_capacity(line.len() + 8);
    let mut before = ' ';
    for c in line.chars() {
        if before.is_lowercase() && c.is_uppercase() {
            out.push(' ');
        }
        out.extend(c.to_lowercase());
        before = c;
    }
    out
}

/// Whether a line of [`words_apart`] holds a word, alone or as a part of an identifier in snake case.
fn holds(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back().is_some_and(char::is_alphanumeric);
        let after = line[at + word.len()..].chars().next().is_some_and(char::is_alphanumeric);
        !before && !after
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(line: &str, word: &str) -> bool {
        holds(&words_apart(line), word)
    }

    #[test]
    fn words_are_found_whole_and_in_identifiers() {
        assert!(found("What lies there", "lies") && found("fn lies_on(x)", "lies") && found("// Lies.", "lies"));
        assert!(found("struct RankSeat;", "seat") && found("let seatOf = 1;", "seat"));
        assert!(!found("implies, supplies", "lies") && !found("turnsole", "turns") && !found("Seattle", "seat"));
        assert!(found("%y = of.either %x", "of.either") && !found("half.eithers", "of.either"));
    }

    #[test]
    fn a_word_is_allowed_only_in_its_open_folders() {
        let word = Word::new("told", "bound", &["plan", "docs/a.md"]);
        assert!(word.may_be_in("plan/src/lib.rs") && word.may_be_in("docs/a.md"));
        assert!(!word.may_be_in("planner/x.rs") && !word.may_be_in("docs/b.md"));
    }

    #[test]
    fn every_word_is_listed_once_in_lower_case() {
        let mut seen = std::collections::BTreeSet::new();
        assert!(REPLACED.iter().all(|w| seen.insert(w.old) && w.old == w.old.to_lowercase()));
    }
}
