//! The pattern of one check line: plain text, `{{regex}}`, `[[NAME:regex]]` and `[[NAME]]`.

use std::collections::HashMap;
use std::ops::Range;

use regex_lite::Regex;

/// Values of variables.
pub(crate) type Vars = HashMap<String, String>;

/// A part of a pattern.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Part {
    Text(String),
    Regex(String),
    Define(String, String),
    Use(String),
    /// The line of the check, plus so much.
    Line(i64),
}

/// What a check line looks for.
#[derive(Clone, Debug)]
pub(crate) struct Pattern {
    parts: Vec<Part>,
    line: usize,
}

/// Where a pattern was found, and the variables that it defines there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Found {
    pub range: Range<usize>,
    pub vars: Vec<(String, String)>,
}

impl Pattern {
    /// Reads a pattern from line `line`, counted from 1.
    pub fn parse(text: &str, line: usize) -> Result<Pattern, String> {
        let mut parts = Vec::new();
        let mut plain = String::new();
        let mut rest = text;
        while !rest.is_empty() {
            let (part, after) = if let Some(r) = rest.strip_prefix("{{") {
                // A brace that belongs to the regex may come just before the closing ones.
                let mut end = r.find("}}").ok_or("'{{' has no '}}'")?;
                while r[end..].starts_with("}}}") {
                    end += 1;
                }
                (Part::Regex(r[..end].to_owned()), &r[end + 2..])
            } else if rest.starts_with("[[")
                && let Some((part, after)) = variable(&rest[2..])?
            {
                (part, after)
            } else {
                let c = rest.chars().next().unwrap_or_default();
                plain.push(c);
                rest = &rest[c.len_utf8()..];
                continue;
            };
            if !plain.is_empty() {
                parts.push(Part::Text(std::mem::take(&mut plain)));
            }
            parts.push(part);
            rest = after;
        }
        if !plain.is_empty() {
            parts.push(Part::Text(plain));
        }
        let p = Pattern { parts, line };
        // A wrong regex is reported even where the pattern is never looked for.
        p.regex(None).map(|_| p)
    }

    /// Whether it looks for nothing.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Finds the first place at or after `from`, not beyond `to`.
    ///
    /// The error names a variable that has no value.
    pub fn find(&self, text: &str, within: Range<usize>, vars: &Vars) -> Result<Option<Found>, String> {
        let regex = self.regex(Some(vars))?;
        let text = &text[..within.end];
        let mut from = within.start;
        while from <= text.len() {
            let Some(c) = regex.captures_at(text, from) else {
                return Ok(None);
            };
            let Some(whole) = c.get(0) else { return Ok(None) };
            if let Some(vars) = self.bindings(|i| c.name(&format!("v{i}")).map(|m| m.as_str().to_owned())) {
                return Ok(Some(Found { range: whole.range(), vars }));
            }
            // A variable that is used on the line that defines it had another value there.
            let step = text[whole.start()..].chars().next().map_or(1, char::len_utf8);
            from = whole.start() + step;
        }
        Ok(None)
    }

    /// The variables that a match defines; `None` where uses of them do not agree with it.
    fn bindings(&self, capture: impl Fn(usize) -> Option<String>) -> Option<Vec<(String, String)>> {
        let mut own: Vec<(String, String)> = Vec::new();
        for (i, part) in self.parts.iter().enumerate() {
            match part {
                Part::Define(name, _) => own.push((name.clone(), capture(i).unwrap_or_default())),
                Part::Use(name) => {
                    if let (Some(value), Some((_, want))) = (capture(i), own.iter().find(|(n, _)| n == name))
                        && value != *want
                    {
                        return None;
                    }
                }
                _ => {}
            }
        }
        Some(own)
    }

    /// The whole pattern as one regex; without `vars` only to check it.
    fn regex(&self, vars: Option<&Vars>) -> Result<Regex, String> {
        let mut out = String::from("(?m)");
        let mut own: HashMap<&str, &str> = HashMap::new();
        for (i, part) in self.parts.iter().enumerate() {
            match part {
                Part::Text(t) => out.push_str(&regex_lite::escape(t)),
                Part::Regex(r) => out.push_str(&format!("(?:{r})")),
                Part::Line(offset) => {
                    let line = i64::try_from(self.line).unwrap_or(0) + offset;
                    out.push_str(&line.to_string());
                }
                Part::Define(name, r) => {
                    own.insert(name, r);
                    out.push_str(&format!("(?P<v{i}>{r})"));
                }
                Part::Use(name) => match (own.get(name.as_str()), vars) {
                    // Defined further left: matched again and compared afterwards.
                    (Some(r), _) => out.push_str(&format!("(?P<v{i}>{r})")),
                    (None, None) => {}
                    (None, Some(vars)) => match vars.get(name) {
                        Some(v) => out.push_str(&regex_lite::escape(v)),
                        None => return Err(format!("variable '{name}' has no value here")),
                    },
                },
            }
        }
        Regex::new(&out).map_err(|e| format!("this regex is wrong: {e}"))
    }
}

/// What follows `[[`; `None` where that is plain text, e.g. a nested list.
fn variable(rest: &str) -> Result<Option<(Part, &str)>, String> {
    if let Some(r) = rest.strip_prefix("@LINE") {
        let Some((offset, after)) = r.split_once("]]") else {
            return Ok(None);
        };
        let offset = if offset.is_empty() { Ok(0) } else { offset.trim_start_matches('+').parse() };
        return match offset {
            Ok(n) => Ok(Some((Part::Line(n), after))),
            Err(_) => Err("'@LINE' takes '+' or '-' and a number".to_owned()),
        };
    }
    let len = rest.bytes().take_while(|b| b.is_ascii_alphanumeric() || *b == b'_').count();
    let (name, after) = rest.split_at(len);
    if len == 0 || name.starts_with(|c: char| c.is_ascii_digit()) {
        return Ok(None);
    }
    if let Some(after) = after.strip_prefix("]]") {
        return Ok(Some((Part::Use(name.to_owned()), after)));
    }
    let Some(r) = after.strip_prefix(':') else {
        return Ok(None);
    };
    // The regex may hold a class, `[[V:[a-z]]]`: the last of several brackets closes.
    let mut end = r.find("]]").ok_or_else(|| format!("'[[{name}:' has no ']]'"))?;
    while r[end..].starts_with("]]]") {
        end += 1;
    }
    Ok(Some((Part::Define(name.to_owned(), r[..end].to_owned()), &r[end + 2..])))
}

#[cfg(test)]
mod tests {
    use super::*;

    type Place = (usize, usize, Vec<(String, String)>);

    fn find(pattern: &str, text: &str) -> Option<Place> {
        let p = Pattern::parse(pattern, 7).unwrap();
        let vars = Vars::from([("OLD".to_owned(), "a+b".to_owned())]);
        p.find(text, 0..text.len(), &vars).unwrap().map(|f| (f.range.start, f.range.end, f.vars))
    }

    #[test]
    fn patterns_match_text_regexes_and_variables() {
        assert_eq!(find("a.c", "abc a.c"), Some((4, 7, vec![])));
        assert_eq!(find("x{{[0-9]{2}}}y", "x1y x12y"), Some((4, 8, vec![])));
        assert_eq!(find("[[OLD]]!", "aab! a+b!"), Some((5, 9, vec![])));
        assert_eq!(find("dense<[[1, 2]]>", "dense<[[1, 2]]>"), Some((0, 15, vec![])));
        assert_eq!(find("l[[@LINE-1]]", "l6"), Some((0, 2, vec![])));
        let v = vec![("V".to_owned(), "%b".to_owned())];
        assert_eq!(find("[[V:%[a-z]]] = f [[V]];", "%a = f %b; %b = f %b;"), Some((11, 21, v)));
    }

    #[test]
    fn malformed_patterns_are_refused() {
        for (p, why) in
            [("{{a", "no '}}'"), ("{{(}}", "regex is wrong"), ("[[A:x", "no ']]'"), ("[[@LINE*2]]", "takes")]
        {
            assert!(Pattern::parse(p, 1).unwrap_err().contains(why), "{p}");
        }
        let p = Pattern::parse("[[NEW]]", 1).unwrap();
        assert!(p.find("x", 0..1, &Vars::new()).unwrap_err().contains("'NEW' has no value"));
    }
}
