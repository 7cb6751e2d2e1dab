//! Identifiers and strings, quoted as in MLIR.

use std::fmt::{Result, Write};

/// Whether `s` needs no quotes as an attribute name, a symbol or an op name: `letter (letter|digit|_|$|.)*`.
pub(crate) fn is_bare(s: &str) -> bool {
    let mut bytes = s.bytes();
    bytes.next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_')
        && bytes.all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'$' | b'.'))
}

/// Whether `s` may follow `%` as the given name of a value. Numbers are for values without a name.
pub(crate) fn is_value_name(s: &str) -> bool {
    let first = |b: u8| b.is_ascii_alphabetic() || matches!(b, b'_' | b'$' | b'.' | b'-');
    let mut bytes = s.bytes();
    bytes.next().is_some_and(first) && bytes.all(|b| first(b) || b.is_ascii_digit())
}

/// A string with quotes and escapes.
pub(crate) fn write_string(out: &mut impl Write, s: &str) -> Result {
    out.write_char('"')?;
    for c in s.chars() {
        match c {
            '"' => out.write_str("\\22")?,
            '\\' => out.write_str("\\\\")?,
            c if c.is_ascii_control() => write!(out, "\\{:02X}", c as u32)?,
            c => out.write_char(c)?,
        }
    }
    out.write_char('"')
}

/// A name, quoted only where it must be.
pub(crate) fn write_name(out: &mut impl Write, s: &str) -> Result {
    if is_bare(s) { out.write_str(s) } else { write_string(out, s) }
}

/// A symbol reference: `@main`, `@"odd name"`.
pub(crate) fn write_symbol(out: &mut impl Write, s: &str) -> Result {
    out.write_char('@')?;
    write_name(out, s)
}

/// The text of a quoted string, unescaped; `quoted` includes the quotes. The error is the reason.
pub(super) fn unquote(quoted: &str) -> std::result::Result<String, &'static str> {
    let inner = quoted.strip_prefix('"').and_then(|s| s.strip_suffix('"')).ok_or("a string must end with '\"'")?;
    if !inner.contains('\\') {
        return Ok(inner.to_owned());
    }
    let mut out = Vec::with_capacity(inner.len());
    let mut bytes = inner.bytes();
    while let Some(b) = bytes.next() {
        if b != b'\\' {
            out.push(b);
            continue;
        }
        let hex = |b: Option<u8>| b.and_then(|b| (b as char).to_digit(16)).map(|d| d as u8);
        out.push(match bytes.next() {
            Some(c @ (b'"' | b'\\')) => c,
            Some(b'n') => b'\n',
            Some(b't') => b'\t',
            first => match (hex(first), hex(bytes.next())) {
                (Some(high), Some(low)) => high * 16 + low,
                _ => return Err("an escape is one of \\\\ \\\" \\n \\t or two hexadecimal digits"),
            },
        });
    }
    String::from_utf8(out).map_err(|_| "a string must be valid UTF-8")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_round_trip() {
        for s in ["", "plain", "q\"q", "b\\b", "line\nnext\ttab\0nul\x7f", "é漢"] {
            let mut out = String::new();
            write_string(&mut out, s).unwrap();
            assert!(!out[1..out.len() - 1].contains(['"', '\n', '\t']), "{out}");
            assert_eq!(unquote(&out).unwrap(), s);
        }
        assert_eq!(unquote(r#""\C3\A9\n\"""#).unwrap(), "é\n\"");
        assert!(unquote(r#""\C3""#).is_err());
        assert!(unquote(r#""\q0""#).is_err());
    }

    #[test]
    fn names_are_quoted_only_when_needed() {
        assert!(is_bare("of.x_1$") && !is_bare("1x") && !is_bare("") && !is_bare("a-b") && !is_bare("é"));
        assert!(is_value_name("-a.1") && !is_value_name("12") && !is_value_name("a/b"));
    }
}
