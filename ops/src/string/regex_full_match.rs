//! `of.regex_full_match`.

use std::sync::Arc;

use of_ir::{DType, Elements, OpError, OpView, Tensor, Type};
use regex::{Regex, RegexBuilder};

use super::{operand, strings};
use crate::sample::Rng;
use crate::{Evaluated, Inferred, Inputs, Op, op, op_basics};

op! {
    /// Whether the pattern matches each string as a whole. The syntax is RE2's. Source: ONNX RegexFullMatch.
    pub struct RegexFullMatch = "of.regex_full_match" [Primitive, onnx: "RegexFullMatch"] {
        operands: (x),
        results: (y),
        attrs: { pattern: Arc<str> },
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let pattern = r.pick(&["s[0-4]", "s\\d|t", "(?i)S.*", "", "[^[:digit:]]+"]).into();
        Some((vec![r.tensor(DType::String, &[2, 3], 0.0, 1.0).into()], RegexFullMatch { pattern }))
    };
}

/// A pattern may compile to this many bytes; one that repeats repetitions is refused.
pub(super) const MAX_PROGRAM: usize = 10 << 20;

/// The class of a Perl escape, which is of ASCII alone in RE2.
fn perl_class(c: char) -> Option<&'static str> {
    Some(match c {
        'd' => "[0-9]",
        'D' => "[^0-9]",
        's' => "[\\t\\n\\f\\r ]",
        'S' => "[^\\t\\n\\f\\r ]",
        'w' => "[0-9A-Za-z_]",
        'W' => "[^0-9A-Za-z_]",
        _ => return None,
    })
}

/// An RE2 pattern in the syntax of the crate `regex`.
///
/// They differ in Perl classes and `\b`, which RE2 takes as ASCII; in `\Q…\E`, which `regex` lacks; and inside brackets,
/// where `regex` gives `[`, `&&`, `--` and `~~` a meaning.
pub(super) fn translate(pattern: &str) -> String {
    let (mut out, mut rest) = (String::with_capacity(pattern.len()), pattern);
    let mut class = false;
    while let Some(c) = rest.chars().next() {
        let after = &rest[c.len_utf8()..];
        rest = after;
        match c {
            '\\' => {
                let Some(e) = after.chars().next() else {
                    out.push('\\');
                    continue;
                };
                rest = &after[e.len_utf8()..];
                match perl_class(e) {
                    Some(text) => out.push_str(text),
                    None if e == 'Q' && !class => {
                        let (quoted, more) = rest.split_once("\\E").unwrap_or((rest, ""));
                        out.push_str(&regex::escape(quoted));
                        rest = more;
                    }
                    None if e == 'b' && !class => out.push_str("(?-u:\\b)"),
                    None => out.extend(['\\', e]),
                }
            }
            '[' if class => match after.strip_prefix(':').and_then(|a| a.split_once(":]")) {
                Some((name, more)) => {
                    out.push_str(&format!("[:{name}:]"));
                    rest = more;
                }
                None => out.push_str("\\["),
            },
            '[' => {
                class = true;
                out.push('[');
                if let Some(more) = rest.strip_prefix('^') {
                    out.push('^');
                    rest = more;
                }
                // A bracket that closes at once is an element.
                if let Some(more) = rest.strip_prefix(']') {
                    out.push_str("\\]");
                    rest = more;
                }
            }
            ']' if class => {
                class = false;
                out.push(']');
            }
            '&' | '~' if class => out.extend(['\\', c]),
            _ => out.push(c),
        }
    }
    out
}

impl RegexFullMatch {
    fn compile(&self) -> Result<Regex, OpError> {
        let whole = format!("\\A(?:{})\\z", translate(&self.pattern));
        RegexBuilder::new(&whole)
            .size_limit(MAX_PROGRAM)
            .build()
            .map_err(|e| OpError::attr(format!("pattern '{}' is not one: {e}", self.pattern)))
    }
}

impl Op for RegexFullMatch {
    op_basics!(RegexFullMatch);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        self.compile()?;
        Ok(vec![Type::Tensor(operand(cx, 0)?.with_dtype(DType::Bool))])
    }

    fn eval(&self, inputs: &mut Inputs<'_>) -> Evaluated {
        let x = inputs.tensor(0)?;
        let regex = self.compile()?;
        let found = strings(x)?.iter().map(|s| i128::from(regex.is_match(s))).collect();
        Ok(vec![Tensor::from_elements(DType::Bool, x.dims().to_vec(), Elements::Int(found))?.into()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regex_patterns_follow_re2() {
        let m = |p: &str, s: &str| RegexFullMatch { pattern: p.into() }.compile().unwrap().is_match(s);
        assert!(m("a|ab", "ab") && !m("a", "ab") && !m("b", "ab"));
        assert!(m("[[a]", "[") && m("[]a]+", "]a") && m("[a&&b]+", "&ab"));
        assert!(m("[\\w.]+", "a.b") && !m("\\w", "é") && m("\\d+", "17") && !m("\\d", "٣"));
        assert!(m("\\Qa.b\\E+", "a.bb") && !m("\\Qa.b\\E", "axb"));
        assert!(m("[[:alpha:]]\\b.", "x!") && m("(?i)ABC", "abc"));
        assert!(RegexFullMatch { pattern: "(".into() }.compile().is_err());
    }
}
