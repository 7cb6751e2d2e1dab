//! The syntax of pipelines: names with options in braces, separated by commas.

use of_diag::{Code, Diagnostic, Diagnostics, Location};

/// The file name of a pipeline text in diagnostics.
pub const FILE: &str = "<pipeline>";

/// One name of a pipeline, not yet resolved.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Item {
    /// Name of a pass or pipeline.
    pub name: String,
    /// The options in the braces.
    pub options: Vec<(String, String)>,
    /// Column of the name, in characters from 1.
    pub col: u32,
}

/// Parses a pipeline. A value with commas, spaces or braces is quoted or in brackets, which a name may precede
/// (`cpu[2]`). An option without a value is `true`.
///
/// # Errors
/// The first syntax error.
pub fn parse_items(text: &str) -> Result<Vec<Item>, Diagnostics> {
    let mut p = Cursor { chars: text.chars().collect(), at: 0 };
    let mut items = Vec::new();
    loop {
        p.space();
        if p.at == p.chars.len() && items.is_empty() {
            return Ok(items);
        }
        let col = p.col();
        let name = p.word("the name of a pass")?;
        p.space();
        let options = if p.eat('{') { p.options()? } else { Vec::new() };
        items.push(Item { name, options, col });
        p.space();
        if p.at == p.chars.len() {
            return Ok(items);
        }
        if !p.eat(',') {
            return Err(p.error("a comma"));
        }
    }
}

struct Cursor {
    chars: Vec<char>,
    at: usize,
}

impl Cursor {
    fn col(&self) -> u32 {
        self.at as u32 + 1
    }

    fn peek(&self) -> Option<char> {
        self.chars.get(self.at).copied()
    }

    fn space(&mut self) {
        while self.peek().is_some_and(char::is_whitespace) {
            self.at += 1;
        }
    }

    fn eat(&mut self, c: char) -> bool {
        let is = self.peek() == Some(c);
        self.at += usize::from(is);
        is
    }

    fn error(&self, expected: &str) -> Diagnostics {
        let found = self.peek().map_or_else(|| "the end".to_string(), |c| format!("'{c}'"));
        Diagnostic::error(
            Code::PIPELINE,
            Location::source(FILE, 1, self.col()),
            format!("expected {expected}, found {found}"),
        )
        .hint("a pipeline looks like 'infer-shapes,specialize{batch=8},canonicalize'")
        .into()
    }

    fn word(&mut self, what: &str) -> Result<String, Diagnostics> {
        let start = self.at;
        while self.peek().is_some_and(|c| !c.is_whitespace() && !"{},=\"[]".contains(c)) {
            self.at += 1;
        }
        if start == self.at { Err(self.error(what)) } else { Ok(self.chars[start..self.at].iter().collect()) }
    }

    fn options(&mut self) -> Result<Vec<(String, String)>, Diagnostics> {
        let mut out = Vec::new();
        loop {
            self.space();
            if self.eat('}') {
                return Ok(out);
            }
            let key = if self.peek() == Some('"') { self.quoted()? } else { self.word("the name of an option")? };
            self.space();
            let value = if self.eat('=') { self.value()? } else { "true".into() };
            out.push((key, value));
            self.space();
            if !self.eat(',') && self.peek() != Some('}') {
                return Err(self.error("a comma or '}'"));
            }
        }
    }

    fn value(&mut self) -> Result<String, Diagnostics> {
        self.space();
        match self.peek() {
            Some('"') => self.quoted(),
            Some('[') => {
                let start = self.at;
                while self.peek().is_some_and(|c| c != ']') {
                    self.at += 1;
                }
                if !self.eat(']') {
                    return Err(self.error("']'"));
                }
                Ok(self.chars[start..self.at].iter().collect())
            }
            _ => {
                // A name may be followed by a list: `cpu[2]`.
                let word = self.word("a value")?;
                Ok(if self.peek() == Some('[') { word + &self.value()? } else { word })
            }
        }
    }

    /// A quoted text; a backslash escapes quotes and backslashes.
    fn quoted(&mut self) -> Result<String, Diagnostics> {
        self.at += 1;
        let mut out = String::new();
        loop {
            match self.peek() {
                Some('"') => {
                    self.at += 1;
                    return Ok(out);
                }
                Some('\\') => {
                    self.at += 1;
                    let Some(c) = self.peek() else { return Err(self.error("a character")) };
                    out.push(c);
                }
                Some(c) => out.push(c),
                None => return Err(self.error("'\"'")),
            }
            self.at += 1;
        }
    }
}

/// Prints a pass with its options so that [`parse_items`] reads it.
pub fn show_item(name: &str, options: &[(String, String)]) -> String {
    if options.is_empty() {
        return name.into();
    }
    let plain = |s: &str| !s.is_empty() && !s.chars().any(|c| c.is_whitespace() || "{},=\"[]\\".contains(c));
    let quote = |s: &str| {
        if plain(s) { s.to_string() } else { format!("\"{}\"", s.replace('\\', "\\\\").replace('"', "\\\"")) }
    };
    let list: Vec<String> = options.iter().map(|(k, v)| format!("{}={}", quote(k), quote(v))).collect();
    format!("{name}{{{}}}", list.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_parse_and_print_back() {
        let items = parse_items(" dce, specialize{batch=8, \"batch size\"=2} ,x{keep=[a, b],all,t=\"q\\\"\"}").unwrap();
        let spelled: Vec<_> = items.iter().map(|i| show_item(&i.name, &i.options)).collect();
        assert_eq!(spelled, ["dce", "specialize{batch=8,\"batch size\"=2}", "x{keep=\"[a, b]\",all=true,t=\"q\\\"\"}"]);
        assert_eq!(items[1].col, 7);
        let again = parse_items(&spelled.join(",")).unwrap();
        for (a, b) in items.iter().zip(&again) {
            assert_eq!((&a.name, &a.options), (&b.name, &b.options));
        }
        assert_eq!(parse_items("x{m=cpu[2, 4],n}").unwrap()[0].options[0].1, "cpu[2, 4]");
        assert_eq!(parse_items("  ").unwrap(), []);
    }

    #[test]
    fn errors_report_the_column() {
        let text =
            |t: &str| parse_items(t).unwrap_err().0[0].to_string().lines().next().unwrap_or_default().to_string();
        assert_eq!(text("dce,,cse"), "<pipeline>:1:5: error[E0401]: expected the name of a pass, found ','");
        assert_eq!(text("dce cse"), "<pipeline>:1:5: error[E0401]: expected a comma, found 'c'");
        assert_eq!(text("x{a=1"), "<pipeline>:1:6: error[E0401]: expected a comma or '}', found the end");
        assert_eq!(text("x{a=\"1"), "<pipeline>:1:7: error[E0401]: expected '\"', found the end");
    }
}
