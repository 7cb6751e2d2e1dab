//! Protocol buffers as text: a reader of the part of the format that configurations of models use.
//!
//! Source: <https://protobuf.dev/reference/protobuf/textformat-spec/>.

/// A message: its fields in order. A repeated field occurs several times.
#[derive(Debug, Default, PartialEq)]
pub struct Message {
    /// The fields.
    pub fields: Vec<Field>,
}

/// A field with one value.
#[derive(Debug, PartialEq)]
pub struct Field {
    /// Name.
    pub name: String,
    /// Line of the name, from 1 on.
    pub line: usize,
    /// Value.
    pub value: Value,
}

/// The value of a field.
#[derive(Debug, PartialEq)]
pub enum Value {
    /// A number, `true`, or the name of an enum's value.
    Word(String),
    /// Text in quotes.
    Text(String),
    /// A message in braces.
    Message(Message),
}

/// How deep messages may be nested.
const MAX_DEPTH: usize = 32;

/// Reads a message.
///
/// # Errors
/// What is wrong, with the line.
pub fn parse(text: &str) -> Result<Message, String> {
    let mut parser = Parser { rest: text, line: 1 };
    let message = parser.message(None, 0)?;
    Ok(message)
}

struct Parser<'t> {
    rest: &'t str,
    line: usize,
}

impl<'t> Parser<'t> {
    fn skip_space(&mut self) {
        loop {
            let trimmed = self.rest.trim_start();
            let skipped = self.rest.len() - trimmed.len();
            self.line += self.rest[..skipped].matches('\n').count();
            self.rest = trimmed;
            if !self.rest.starts_with('#') {
                return;
            }
            self.rest = self.rest.find('\n').map_or("", |end| &self.rest[end..]);
        }
    }

    /// Whether the next character is this one, which is then consumed.
    fn eat(&mut self, c: char) -> bool {
        self.skip_space();
        self.rest.strip_prefix(c).map(|rest| self.rest = rest).is_some()
    }

    fn error<T>(&self, what: &str) -> Result<T, String> {
        Err(format!("line {}: {what}", self.line))
    }

    fn word(&mut self) -> Result<&'t str, String> {
        self.skip_space();
        let end = self.rest.find(|c: char| !(c.is_ascii_alphanumeric() || "_-+.".contains(c)));
        let (word, rest) = self.rest.split_at(end.unwrap_or(self.rest.len()));
        if word.is_empty() {
            let found = self.rest.chars().next().map_or("the end".into(), |c| format!("'{}'", c.escape_debug()));
            return self.error(&format!("a name or number must stand before {found}"));
        }
        self.rest = rest;
        Ok(word)
    }

    fn text(&mut self, quote: char) -> Result<String, String> {
        let mut out = String::new();
        let mut chars = self.rest.char_indices();
        while let Some((at, c)) = chars.next() {
            match c {
                _ if c == quote => {
                    self.rest = &self.rest[at + 1..];
                    return Ok(out);
                }
                '\n' => break,
                '\\' => match chars.next().map(|(_, c)| c) {
                    Some('n') => out.push('\n'),
                    Some('t') => out.push('\t'),
                    Some(c @ ('\\' | '"' | '\'')) => out.push(c),
                    _ => return self.error("the escape sequence is not supported"),
                },
                c => out.push(c),
            }
        }
        self.error("a text does not end on its line")
    }

    fn value(&mut self, depth: usize) -> Result<Value, String> {
        if self.eat('{') {
            return self.message(Some('}'), depth + 1).map(Value::Message);
        }
        for quote in ['"', '\''] {
            if self.eat(quote) {
                return self.text(quote).map(Value::Text);
            }
        }
        self.word().map(|word| Value::Word(word.to_owned()))
    }

    fn message(&mut self, end: Option<char>, depth: usize) -> Result<Message, String> {
        if depth > MAX_DEPTH {
            return self.error("messages are nested too deeply");
        }
        let mut message = Message::default();
        loop {
            self.skip_space();
            match end {
                Some(c) if self.eat(c) => return Ok(message),
                None if self.rest.is_empty() => return Ok(message),
                Some(_) if self.rest.is_empty() => return self.error("a message does not end: '}' is missing"),
                _ => {}
            }
            let line = self.line;
            let name = self.word()?.to_owned();
            let colon = self.eat(':');
            if self.eat('[') {
                let mut first = true;
                while !self.eat(']') {
                    if !first && !self.eat(',') {
                        return self.error("',' or ']' must follow an element of a list");
                    }
                    first = false;
                    let value = self.value(depth)?;
                    message.fields.push(Field { name: name.clone(), line, value });
                }
            } else {
                if !colon && !self.rest.starts_with('{') {
                    return self.error(&format!("':' must follow the name '{name}'"));
                }
                let value = self.value(depth)?;
                message.fields.push(Field { name, line, value });
            }
            // A separator may follow a field.
            if !self.eat(',') {
                self.eat(';');
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_lists_and_messages() {
        let text = "# a comment\nname: \"x\\\"y\" dims: [1, -1]\ninput { a: TYPE_FP32 }; input [ { a: 1 }, { b: 2 } ]";
        let message = parse(text).unwrap();
        let names: Vec<_> = message.fields.iter().map(|f| (f.name.as_str(), f.line)).collect();
        assert_eq!(names, [("name", 2), ("dims", 2), ("dims", 2), ("input", 3), ("input", 3), ("input", 3)]);
        assert_eq!(message.fields[0].value, Value::Text("x\"y".into()));
        assert_eq!(message.fields[2].value, Value::Word("-1".into()));
    }

    #[test]
    fn mistakes_are_errors_with_their_line() {
        for (text, what) in [
            ("a: 1\nb", "line 2: ':' must follow the name 'b'"),
            ("a: \"x", "line 1: a text does not end on its line"),
            ("a {", "line 1: a message does not end"),
            ("a: [1 2]", "line 1: ',' or ']' must follow"),
            ("}", "line 1: a name or number must stand before '}'"),
            (&"a {".repeat(100), "nested too deeply"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(what), "{error}");
        }
    }
}
