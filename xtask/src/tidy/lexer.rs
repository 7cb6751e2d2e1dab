//! The tokens of a Rust file, without its comments and documentation, and its strings. proc-macro2 reads them.

use proc_macro2::{Delimiter, Group, LineColumn, TokenStream, TokenTree};

/// The code of a Rust file.
#[derive(Default)]
pub struct Code {
    /// The tokens of each line at their columns. Comments and literals are blanks.
    pub lines: Vec<String>,
    /// Each string literal, escapes as they are written, with the number of its line from 1.
    pub strings: Vec<(usize, String)>,
}

/// Reads a Rust file.
///
/// # Errors
/// When it is not made of Rust's tokens.
pub fn read(text: &str) -> Result<Code, String> {
    let tokens: TokenStream = text.parse().map_err(|e| format!("these are no tokens of Rust: {e}"))?;
    let mut code = Code { lines: vec![String::new(); text.lines().count().max(1)], strings: Vec::new() };
    code.add(tokens);
    Ok(code)
}

impl Code {
    fn add(&mut self, tokens: TokenStream) {
        let mut tokens = tokens.into_iter().peekable();
        while let Some(token) = tokens.next() {
            let at = token.span().start();
            match token {
                TokenTree::Group(g) => self.group(&g),
                TokenTree::Ident(i) => self.push(at, &i.to_string()),
                TokenTree::Literal(l) => self.literal(at.line, &l.to_string()),
                TokenTree::Punct(p) => {
                    let bang = |t: &TokenTree| matches!(t, TokenTree::Punct(b) if b.as_char() == '!');
                    let inner = tokens.next_if(|t| p.as_char() == '#' && bang(t));
                    if p.as_char() == '#' && tokens.next_if(is_doc).is_some() {
                        continue;
                    }
                    self.push(at, &p.to_string());
                    inner.iter().for_each(|b| self.push(b.span().start(), &b.to_string()));
                }
            }
        }
    }

    fn group(&mut self, g: &Group) {
        let (open, close) = match g.delimiter() {
            Delimiter::Parenthesis => ("(", ")"),
            Delimiter::Brace => ("{", "}"),
            Delimiter::Bracket => ("[", "]"),
            Delimiter::None => ("", ""),
        };
        self.push(g.span_open().start(), open);
        self.add(g.stream());
        self.push(g.span_close().start(), close);
    }

    fn literal(&mut self, line: usize, text: &str) {
        if let (Some(first), Some(last)) = (text.find('"'), text.rfind('"'))
            && first < last
            && !text.starts_with(['\'', 'b'])
        {
            self.strings.push((line, text[first + 1..last].to_owned()));
        }
    }

    fn push(&mut self, at: LineColumn, token: &str) {
        let Some(text) = self.lines.get_mut(at.line - 1) else { return };
        let missing = at.column.saturating_sub(text.chars().count());
        text.extend(std::iter::repeat_n(' ', missing));
        text.push_str(token);
    }
}

/// Whether what follows `#` is documentation: comments become attributes.
fn is_doc(token: &TokenTree) -> bool {
    let TokenTree::Group(g) = token else { return false };
    let mut inside = g.stream().into_iter();
    let doc = matches!(inside.next(), Some(TokenTree::Ident(i)) if i == "doc");
    doc && matches!(inside.next(), Some(TokenTree::Punct(p)) if p.as_char() == '=')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lexer_keeps_lines_and_drops_comments() {
        let text = "//! \"doc\"\na // unsafe\nb /* x /* y */ z */ c \"un\\\"safe\" r#\"q\"r\"# 'u' '\\n' &'a d\n/// doc\nfn f() { todo!() }\n\
                    #[cfg(test)]\n#![allow(x)]";
        let code = read(text).unwrap();
        assert_eq!(code.lines[1], "a");
        assert_eq!(code.lines[2].find("c"), text.lines().nth(2).unwrap().find("c \""));
        assert_eq!(code.lines[2].split_whitespace().collect::<Vec<_>>(), ["b", "c", "&'a", "d"]);
        assert_eq!(code.lines[3..], ["", "fn f() { todo!() }", "#[cfg(test)]", "#![allow(x)]"]);
        assert_eq!(code.strings, [(3, "un\\\"safe".to_string()), (3, "q\"r".to_string())]);
        assert!(read("fn f( {").is_err());
    }
}
