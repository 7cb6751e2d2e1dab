//! What the codes of diagnostics mean: the sections of `tools/of-opt/errors.md`, one for each code.

use of_diag::Code;

/// The page. It is a file of this crate, so that a package of the crate holds it, and not of of-diag, on which every crate depends.
const PAGE: &str = include_str!("../errors.md");

/// What begins a section: `## E0101: Title`.
const HEADING: &str = "\n## ";

/// A code in full: what causes it, a small example, and the cure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Explanation {
    /// The code.
    pub code: Code,
    /// One line.
    pub title: &'static str,
    /// Markdown: paragraphs on the cause, listings of an example, and a paragraph that begins with `**Cure.**`.
    pub text: &'static str,
}

impl Explanation {
    /// The explanation of every code, in the order of the page.
    pub fn all() -> impl Iterator<Item = Explanation> {
        PAGE.split(HEADING).skip(1).filter_map(|section| {
            let (heading, text) = section.split_once('\n')?;
            let (code, title) = heading.split_once(": ")?;
            Some(Explanation { code: Code(code), title, text: text.trim() })
        })
    }

    /// The explanation of a code as users write it: `E0501`, `e501` or `501`.
    pub fn find(code: &str) -> Option<Explanation> {
        let number = number(code)?;
        Self::all().find(|e| self::number(e.code.0) == Some(number))
    }
}

/// The number of a code as users write it.
pub fn number(code: &str) -> Option<u32> {
    let digits = code.strip_prefix(['E', 'e']).unwrap_or(code);
    // A sign would parse as well.
    digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_one_explanation() {
        let declared: Vec<Code> = Code::ALL.iter().map(|(code, _)| *code).collect();
        let explained: Vec<Code> = Explanation::all().map(|e| e.code).collect();
        assert_eq!(explained, declared, "errors.md has one section '## CODE: Title' for each code, in their order");
        assert_eq!(PAGE.matches(HEADING).count(), declared.len());
    }

    #[test]
    fn explanations_are_complete() {
        for e in Explanation::all() {
            let Some((cause, cure)) = e.text.split_once("\n**Cure.** ") else { panic!("{} has no cure", e.code.0) };
            assert!(!cause.trim().is_empty() && !cause.starts_with("```"), "{} has no cause", e.code.0);
            assert!(!cure.trim().is_empty(), "{} has no cure", e.code.0);
            assert!(!e.title.is_empty() && !e.title.ends_with('.'), "{}: {}", e.code.0, e.title);
        }
    }

    #[test]
    fn codes_are_found_as_users_write_them() {
        for text in ["E0501", "e0501", "E501", "e501", "501", "0501"] {
            assert_eq!(Explanation::find(text).map(|e| e.code), Some(Code::CODEGEN), "{text}");
        }
        for text in ["", "E", "E9999", "+501", "EE501", "99999999999", "CODEGEN"] {
            assert_eq!(Explanation::find(text), None, "{text}");
        }
    }
}
