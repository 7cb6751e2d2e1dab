//! Locations. A place in a text is MLIR's file location, a node of ONNX a name location around the operator and its
//! index, a derived location a fused one:
//!
//! ```text
//! loc(unknown)   loc("a.of":3:5)   loc("conv1"("onnx:Conv":12:0))   loc(fused<"canonicalize">["a.of":3:5, …])
//! ```

use std::cell::Cell;
use std::collections::HashMap;
use std::fmt::Write;
use std::sync::Arc;

use of_diag::{Code, Location};

use super::cursor::{ParseResult, Parser};
use super::lexer::Kind;
use super::quote;

const ONNX: &str = "onnx:";

/// Writes ` loc(…)`.
pub(super) fn write_loc(out: &mut String, loc: &Location) {
    out.push_str(" loc(");
    write_inner(out, loc);
    out.push(')');
}

fn write_inner(out: &mut String, loc: &Location) {
    let _ = match loc {
        Location::Unknown => out.write_str("unknown"),
        Location::Source { file, line, col } => {
            let _ = quote::write_string(out, file);
            write!(out, ":{line}:{col}")
        }
        Location::Onnx { node, index, op } => {
            let _ = quote::write_string(out, node);
            out.push('(');
            let _ = quote::write_string(out, &format!("{ONNX}{op}"));
            write!(out, ":{index}:0)")
        }
        Location::Derived { by, from } => {
            out.push_str("fused<");
            let _ = quote::write_string(out, by);
            out.push_str(">[");
            for (i, l) in from.iter().enumerate() {
                if i > 0 {
                    out.push_str(", ");
                }
                write_inner(out, l);
            }
            // MLIR requires at least one.
            out.write_str(if from.is_empty() { "unknown]" } else { "]" })
        }
    };
}

/// The size of nested aliases is exponential in their text, so one location has at most this many parts.
const MAX_PARTS: usize = 4096;

/// Where the text defines its location aliases (`#loc3 = loc(…)`, which upstream prints after everything else).
#[derive(Default)]
pub(super) struct Aliases {
    definitions: HashMap<String, usize>,
    /// Parts of the location that is being read.
    parts: Cell<usize>,
}

impl Aliases {
    /// Finds the definitions: each is on its own line.
    pub fn find(text: &str) -> Self {
        let mut all = HashMap::new();
        let mut at = 0;
        for line in text.split_inclusive('\n') {
            if line.starts_with('#')
                && let Some((name, _)) = line.split_once(" = loc(")
            {
                all.insert(name.to_owned(), at + name.len() + " = ".len());
            }
            at += line.len();
        }
        Aliases { definitions: all, parts: Cell::new(0) }
    }
}

impl Parser<'_> {
    /// `loc(…)`, if it comes next.
    pub fn trailing_loc(&mut self, aliases: &Aliases) -> ParseResult<Option<Location>> {
        if self.at_word("loc") { self.loc(aliases).map(Some) } else { Ok(None) }
    }

    /// `loc(…)`.
    pub fn loc(&mut self, aliases: &Aliases) -> ParseResult<Location> {
        aliases.parts.set(0);
        self.loc_outer(aliases)
    }

    fn loc_outer(&mut self, aliases: &Aliases) -> ParseResult<Location> {
        if !self.eat_word("loc") {
            return Err(self.expected("'loc'"));
        }
        self.expect(b'(', "after 'loc'")?;
        let l = self.loc_inner(aliases)?;
        self.expect(b')', "after the location")?;
        Ok(l)
    }

    fn loc_inner(&mut self, aliases: &Aliases) -> ParseResult<Location> {
        aliases.parts.set(aliases.parts.get() + 1);
        if aliases.parts.get() > MAX_PARTS {
            return Err(self.error(self.tok, format!("a location has more than {MAX_PARTS} parts")));
        }
        self.nested(|p| match p.tok.kind {
            Kind::Ident if p.at_word("unknown") => {
                p.bump();
                Ok(Location::Unknown)
            }
            Kind::Ident if p.at_word("fused") => {
                p.bump();
                p.fused(aliases)
            }
            Kind::Str => p.named(aliases),
            Kind::Hash => {
                let t = p.bump();
                let Some(at) = aliases.definitions.get(p.str_of(t)) else {
                    return Err(p.error_of(Code::NAME, t, format!("'{}' is not defined", p.str_of(t))));
                };
                p.seek(*at);
                let l = p.loc_outer(aliases)?;
                p.seek(t.end);
                Ok(l)
            }
            _ => Err(p.expected("a location")),
        })
    }

    fn fused(&mut self, aliases: &Aliases) -> ParseResult<Location> {
        let mut by: Arc<str> = "fused".into();
        if self.eat(b'<') {
            by = self.string("the name of a pass")?;
            self.expect(b'>', "after the name of the pass")?;
        }
        let mut from = Vec::new();
        self.list(b'[', b']', "the locations", |p| {
            from.push(p.loc_inner(aliases)?);
            Ok(())
        })?;
        if from == [Location::Unknown] {
            from.clear();
        }
        Ok(Location::Derived { by, from: from.into() })
    }

    fn named(&mut self, aliases: &Aliases) -> ParseResult<Location> {
        let name = self.string("a name")?;
        if self.eat(b':') {
            let line = self.number("a line")?;
            self.expect(b':', "between line and column")?;
            let col = self.number("a column")?;
            return Ok(Location::Source { file: name, line, col });
        }
        if !self.eat(b'(') {
            return Ok(Location::Derived { by: name, from: [].into() });
        }
        let inner = self.loc_inner(aliases)?;
        self.expect(b')', "after the location")?;
        Ok(match &inner {
            Location::Source { file, line, col: 0 } if file.starts_with(ONNX) => {
                Location::onnx(name, *line, &file[ONNX.len()..])
            }
            _ => Location::Derived { by: name, from: [inner].into() },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> ParseResult<Location> {
        Parser::new(text, "t", None).loc(&Aliases::find(text))
    }

    #[test]
    fn locations_read_back() {
        let source = Location::source("a \"b\".of", 3, 5);
        let onnx = Location::onnx("conv:1/é", 12, "com.x::Conv");
        let empty = Location::Derived { by: "p".into(), from: [].into() };
        let derived = Location::derived("canonicalize/mul-one", [&source, &onnx, &empty]);
        for l in [Location::Unknown, source, onnx, empty, derived] {
            let mut out = String::new();
            write_loc(&mut out, &l);
            assert_eq!(read(&out).unwrap(), l, "{out}");
        }
    }

    #[test]
    fn location_aliases_are_resolved_and_cycles_refused() {
        let text = "loc(#loc1)\n#loc = loc(\"a\":1:2)\n#loc1 = loc(fused[#loc, unknown])\n#loc2 = loc(#loc2)\n";
        let l = read(text).unwrap();
        assert_eq!(l.to_string(), "fused(a:1:2, unknown)");
        assert!(read(&text.replacen("#loc1", "#loc2", 1)).unwrap_err().message.contains("nested"));
        assert!(read("loc(#loc9)").unwrap_err().message.contains("not defined"));
    }
}
