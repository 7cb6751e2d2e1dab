//! `of.tokenizer`.

use std::sync::Arc;

use of_ir::{DType, Dim, OpError, OpView, Tensor, TensorType, Type};
use regex_automata::nfa::thompson::pikevm::{Cache, PikeVM};
use regex_automata::{Anchored, Input, MatchKind};

use super::regex_full_match::{MAX_PROGRAM, translate};
use super::{operand, strings};
use crate::sample::Rng;
use crate::{Evaluated, Inferred, Inputs, Op, op, op_basics, shape};

op! {
    /// Splits strings into tokens: `[C]` or `[N, C]` to `[.., D]`, where `D` is the largest number of tokens of a string.
    ///
    /// With `separators`, tokens are the texts between the matches of these patterns, one pattern after the other; one
    /// empty separator gives the characters. Otherwise tokens are the matches of `tokenexp`. The longest match counts, and
    /// an empty one ends the string. Tokens of less than `mincharnum` characters are dropped. With `mark`, U+0002 and
    /// U+0003 stand around the tokens of a string. Source: onnxruntime, Tokenizer.
    pub struct Tokenizer = "of.tokenizer" [Primitive, onnx: "com.microsoft::Tokenizer"] {
        operands: (x),
        results: (y),
        attrs: {
            mark: bool,
            /// Stands behind the tokens of a shorter string.
            pad_value: Arc<str>,
            separators: Option<Vec<Arc<str>>>,
            tokenexp: Option<Arc<str>>,
            mincharnum: i64,
        },
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let dims = if r.int(0, 1) == 0 { vec![3] } else { vec![2, 2] };
        let n = dims.iter().product();
        let words = (0..n).map(|_| r.pick(&["a b", "", "aab ab", "x;y  z", "h\u{e9}", "abb"]).to_owned()).collect();
        let (separators, tokenexp) = match r.int(0, 2) {
            0 => (Some(vec![" ".into(), ";".into()]), None),
            1 => (Some(vec!["".into()]), None),
            _ => (None, Some("a+|a+b".into())),
        };
        let mincharnum = if separators.as_ref().is_some_and(|s| s.len() == 2) { r.int(1, 2) } else { 1 };
        let op = Tokenizer { mark: r.int(0, 1) == 0, pad_value: "#".into(), separators, tokenexp, mincharnum };
        Some((vec![Tensor::from_strings(dims, words).ok()?.into()], op))
    };
}

/// How a string is taken apart.
enum Method {
    Characters,
    Between(Vec<Pattern>),
    Matches(Pattern),
}

/// A pattern whose longest match counts.
struct Pattern {
    first: PikeVM,
    longest: PikeVM,
}

impl Pattern {
    fn new(pattern: &str) -> Result<Pattern, OpError> {
        let build = |kind: MatchKind| {
            PikeVM::builder()
                .configure(PikeVM::config().match_kind(kind))
                .thompson(regex_automata::nfa::thompson::Config::new().nfa_size_limit(Some(MAX_PROGRAM)))
                .build(&translate(pattern))
                .map_err(|e| OpError::attr(format!("the pattern '{pattern}' is not valid: {e}")))
        };
        Ok(Pattern { first: build(MatchKind::LeftmostFirst)?, longest: build(MatchKind::All)? })
    }

    /// A search in many strings.
    fn caches(&self) -> [Cache; 2] {
        [self.first.create_cache(), self.longest.create_cache()]
    }

    /// The leftmost match from `start` on, the longest of those that begin there.
    fn find(&self, [first, longest]: &mut [Cache; 2], text: &str, start: usize) -> Option<(usize, usize)> {
        let from = self.first.find(first, Input::new(text).range(start..))?.start();
        let anchored = Input::new(text).range(from..).anchored(Anchored::Yes);
        Some((from, self.longest.find(longest, anchored)?.end()))
    }
}

impl Tokenizer {
    fn method(&self) -> Result<Method, OpError> {
        let least = self.mincharnum;
        if least < 1 {
            return Err(OpError::attr(format!("mincharnum is {least}, it must be positive")));
        }
        match (self.separators.as_deref().unwrap_or_default(), self.tokenexp.as_deref()) {
            ([one], _) if one.is_empty() && least > 1 => {
                Err(OpError::attr(format!("characters are no tokens of {least} characters")))
            }
            ([one], _) if one.is_empty() => Ok(Method::Characters),
            ([], None | Some("")) => Err(OpError::attr("separators or tokenexp must be given")),
            ([], Some(pattern)) => Ok(Method::Matches(Pattern::new(pattern)?)),
            (list, _) => Ok(Method::Between(list.iter().map(|s| Pattern::new(s)).collect::<Result<_, _>>()?)),
        }
    }

    /// The tokens of `text`.
    fn tokens<'t>(&self, method: &Method, text: &'t str) -> Vec<&'t str> {
        let least = usize::try_from(self.mincharnum).unwrap_or(usize::MAX);
        let long = |token: &str| token.chars().take(least).count() == least;
        match method {
            Method::Characters => text.char_indices().map(|(i, c)| &text[i..i + c.len_utf8()]).collect(),
            Method::Between(separators) => separators.iter().fold(vec![text], |pieces, separator| {
                let mut caches = separator.caches();
                let mut out = Vec::new();
                for piece in pieces {
                    between(separator, &mut caches, piece, &mut |token| {
                        if long(token) {
                            out.push(token);
                        }
                    });
                }
                out
            }),
            Method::Matches(pattern) => {
                let (mut caches, mut out, mut start) = (pattern.caches(), Vec::new(), 0);
                while let Some((from, to)) = pattern.find(&mut caches, text, start).filter(|(from, to)| from < to) {
                    if long(&text[from..to]) {
                        out.push(&text[from..to]);
                        start = to;
                    } else {
                        start = from + text[from..].chars().next().map_or(1, char::len_utf8);
                    }
                }
                out
            }
        }
    }
}

/// Calls `token` with the texts between the matches of `separator`.
fn between<'t>(separator: &Pattern, caches: &mut [Cache; 2], text: &'t str, token: &mut impl FnMut(&'t str)) {
    let mut start = 0;
    while let Some((from, to)) = separator.find(caches, text, start) {
        token(&text[start..from]);
        if from == to {
            return;
        }
        start = to;
    }
    token(&text[start..]);
}

impl Op for Tokenizer {
    op_basics!(Tokenizer);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        self.method()?;
        let x = operand(cx, 0)?;
        let shape = match &x.shape {
            Some(s) if s.is_empty() || s.len() > 2 => {
                return Err(OpError::shape(format!("the strings must have rank 1 or 2, they are {}", shape::show(s))));
            }
            Some(s) => Some(s.iter().cloned().chain([Dim::unknown()]).collect()),
            None => None,
        };
        Ok(vec![Type::Tensor(TensorType { dtype: DType::String, shape, sbp: None })])
    }

    fn eval(&self, inputs: &mut Inputs<'_>) -> Evaluated {
        let (method, x) = (self.method()?, inputs.tensor(0)?);
        let rows: Vec<Vec<&str>> = strings(x)?.iter().map(|text| self.tokens(&method, text)).collect();
        let longest = rows.iter().map(Vec::len).max().unwrap_or(0);
        // Without any token nothing is marked.
        let mark = self.mark && longest > 0;
        let width = longest + 2 * usize::from(mark);
        let dims = [x.dims(), &[width]].concat();
        let mut out = Vec::with_capacity(shape::count(&dims)?);
        for (i, row) in rows.iter().enumerate() {
            out.extend(mark.then(|| "\u{2}".to_owned()));
            out.extend(row.iter().map(ToString::to_string));
            out.extend(mark.then(|| "\u{3}".to_owned()));
            out.resize((i + 1) * width, self.pad_value.to_string());
        }
        Ok(vec![Tensor::from_strings(dims, out)?.into()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rows that onnxruntime gives.
    fn rows(texts: &[&str], separators: &[&str], tokenexp: Option<&str>, least: i64, mark: bool) -> Vec<Vec<String>> {
        let separators = (!separators.is_empty()).then(|| separators.iter().map(|s| Arc::from(*s)).collect());
        let tokenexp = tokenexp.map(Arc::from);
        let op = Tokenizer { mark, pad_value: "#".into(), separators, tokenexp, mincharnum: least };
        let x = Tensor::from_strings(vec![texts.len()], texts.iter().map(ToString::to_string).collect()).unwrap();
        let values = [x.into()];
        let mut inputs = Inputs { values: &values, types: &[], region: &mut |_, _| Ok(vec![]) };
        let crate::Value::Tensor(t) = op.eval(&mut inputs).unwrap().remove(0) else { unreachable!() };
        let width = t.dims()[1];
        (0..texts.len()).map(|i| t.strings().unwrap()[i * width..][..width].to_vec()).collect()
    }

    #[test]
    fn tokens_are_those_of_onnxruntime() {
        assert_eq!(rows(&["a b", "", " x  y "], &[" "], None, 1, false), [["a", "b"], ["#", "#"], ["x", "y"]]);
        let marked = rows(&["a b", "c"], &[" "], None, 1, true);
        assert_eq!(marked, [["\u{2}", "a", "b", "\u{3}"], ["\u{2}", "c", "\u{3}", "#"]]);
        assert_eq!(rows(&["", ""], &[" "], None, 1, true), [[""; 0], [""; 0]]);
        assert_eq!(rows(&["h\u{e9}y", "b"], &[""], None, 1, false), [["h", "\u{e9}", "y"], ["b", "#", "#"]]);
        assert_eq!(rows(&["ab cd;e"], &[" ", ";"], None, 1, false), [["ab", "cd", "e"]]);
        assert_eq!(rows(&["aab ab abb"], &[" "], None, 3, false), [["aab", "abb"]]);
        assert_eq!(rows(&["abc"], &["x*"], None, 1, false), [[""; 0]]);
        assert_eq!(rows(&["aab abb", "c"], &[], Some("a+|a+b"), 1, false), [["aab", "ab"], ["#", "#"]]);
        assert_eq!(rows(&["aab ab abb"], &[], Some("[a-c]+"), 3, false), [["aab", "abb"]]);
        assert_eq!(rows(&["abc"], &[], Some("x*"), 1, false), [[""; 0]]);
    }

    #[test]
    fn invalid_patterns_are_refused() {
        let op = |separators: Option<Vec<Arc<str>>>, tokenexp: Option<&str>, mincharnum| {
            let tokenexp = tokenexp.map(Arc::from);
            Tokenizer { mark: false, pad_value: "".into(), separators, tokenexp, mincharnum }.method().is_err()
        };
        assert!(op(None, None, 1) && op(None, Some("["), 1) && op(Some(vec![" ".into()]), None, 0));
        assert!(op(Some(vec!["".into()]), None, 2) && !op(None, Some("a"), 1));
    }
}
