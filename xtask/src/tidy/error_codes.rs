//! Codes of diagnostics: each that `diag/src/diagnostic.rs` declares has a section in `tools/of-opt/errors.md` and is used by some source, and no file
//! names another.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::lexer;
use crate::workspace::read;

const DECLARATIONS: &str = "diag/src/diagnostic.rs";
const PAGE: &str = "tools/of-opt/errors.md";

/// Compares codes to choose an exit code, and reports none of them.
const READER: &str = "tools/of-opt/src/exit.rs";

/// Everything that is wrong.
///
/// # Errors
/// When a file cannot be read.
pub fn check(root: &Path, files: &[PathBuf]) -> Result<Vec<String>, String> {
    let declared = declarations(&read(&root.join(DECLARATIONS))?);
    let mut wrong = sections(&declared, &read(&root.join(PAGE))?);
    let mut used = BTreeSet::new();
    for file in files {
        let name = file.to_string_lossy().replace('\\', "/");
        let extension = file.extension().and_then(|e| e.to_str()).unwrap_or_default();
        // Tests name codes that do not exist, and use codes that are not reported.
        if is_test(&name) || !matches!(extension, "rs" | "py" | "md") {
            continue;
        }
        let text = read(&root.join(file))?;
        let texts: Vec<(usize, String)> = if extension == "rs" {
            // What is no Rust is reported by the rules for sources.
            let Ok(code) = lexer::read(&text) else { continue };
            let tests = code.lines.iter().position(|l| l.contains("#[cfg(test)]")).unwrap_or(usize::MAX);
            if name != DECLARATIONS && name != READER {
                used.extend(code.lines.iter().take(tests).flat_map(|l| names(l)).map(str::to_owned));
            }
            code.strings.into_iter().filter(|(line, _)| *line <= tests).collect()
        } else {
            (1..).zip(text.lines().map(str::to_owned)).collect()
        };
        for (line, text) in &texts {
            for code in codes(text).filter(|c| !declared.values().any(|d| d == c)) {
                wrong.push(format!("{name}:{line}: no code '{code}' is declared in {DECLARATIONS}"));
            }
        }
    }
    let unused = declared.iter().filter(|(name, _)| !used.contains(*name));
    wrong.extend(unused.map(|(name, code)| format!("{DECLARATIONS}: no source reports {code}, Code::{name}")));
    Ok(wrong)
}

/// The codes that the macro `codes!` declares, by name.
fn declarations(text: &str) -> BTreeMap<String, String> {
    let one = |line: &str| {
        let (name, code) = line.trim().split_once(" = \"")?;
        let code = code.strip_suffix("\";")?;
        (codes(code).next() == Some(code)).then(|| (name.to_owned(), code.to_owned()))
    };
    text.lines().filter_map(one).collect()
}

/// Codes without a section, sections without a code, and codes with two.
fn sections(declared: &BTreeMap<String, String>, page: &str) -> Vec<String> {
    let headings: Vec<&str> =
        page.lines().filter_map(|l| l.strip_prefix("## ")?.split_once(": ").map(|(code, _)| code)).collect();
    let count = |code: &str| headings.iter().filter(|h| **h == code).count();
    let unlike = declared.values().filter(|code| count(code) != 1);
    let mut wrong: Vec<String> = unlike
        .map(|code| format!("{PAGE}: {code} has {} sections '## {code}: Title' instead of one", count(code)))
        .collect();
    let unknown = headings.iter().filter(|h| !declared.values().any(|code| code == *h));
    wrong.extend(unknown.map(|h| format!("{PAGE}: the section {h} is of a code that {DECLARATIONS} does not declare")));
    wrong
}

fn is_test(name: &str) -> bool {
    name.starts_with("tests/") || name.starts_with("xtask/") || name.contains("/tests/") || name.ends_with("/tests.rs")
}

/// The names after `Code::` in a line of code.
fn names(line: &str) -> impl Iterator<Item = &str> {
    let part = |c: char| c.is_ascii_uppercase() || c == '_';
    line.split("Code::").skip(1).map(move |rest| rest.split(|c| !part(c)).next().unwrap_or_default())
}

/// The words of a text that look like codes: `E` and four digits.
fn codes(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|w| w.len() == 5 && w.starts_with('E') && w.bytes().skip(1).all(|b| b.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_without_a_section_and_sections_without_a_code_are_found() {
        let declared =
            declarations("codes! {\n    /// Text.\n    SYNTAX = \"E0101\";\n    NAME = \"E0102\";\n    X = \"y\";\n}");
        assert_eq!(declared.len(), 2);
        let wrong = sections(&declared, "## E0101: a\n## E0103: b\n## E0101: c\n");
        assert_eq!(wrong.len(), 3, "{wrong:?}");
        // By the names of codes: NAME comes before SYNTAX.
        assert!(wrong[0].contains("E0102 has 0") && wrong[1].contains("E0101 has 2 sections"), "{wrong:?}");
        assert!(wrong[2].contains("the section E0103"), "{wrong:?}");
    }

    #[test]
    fn uses_and_words_are_found() {
        let line = "match e { A => Code::MODEL, _ => of_diag::Code::PASS_BUG(x) }";
        assert_eq!(names(line).collect::<Vec<_>>(), ["MODEL", "PASS_BUG"]);
        assert_eq!(codes("error[E0101]: E01012, xE0101, E0102").collect::<Vec<_>>(), ["E0101", "E0102"]);
    }
}
