//! Completion: names of ops and attributes from their declarations, values and symbols from the text.

use std::collections::BTreeSet;

use lsp_types::{
    CompletionItem, CompletionItemKind, CompletionTextEdit, Documentation, MarkupContent, MarkupKind, TextEdit,
};
use of_ir::OpDef;
use of_ir::text::{Span, Token, TokenKind, tokens};

use crate::analysis::Analysis;
use crate::hover::signature;
use crate::text::Text;

/// What may be written at a place.
#[derive(Debug, PartialEq)]
enum Context<'a> {
    /// An op.
    Op,
    /// An attribute of this op, other than those that it has.
    Attribute(&'a str, BTreeSet<&'a str>),
    /// A value.
    Value,
    /// A function or mesh.
    Symbol,
    /// Nothing that is known.
    Unknown,
}

/// The most lines of one op that are read for its name.
const MAX_LINES: usize = 32;

/// What may be written at a byte. `analysis` may be of an earlier text: while text is typed it seldom parses.
pub fn completion(text: &Text, analysis: Option<&Analysis>, at: usize) -> Vec<CompletionItem> {
    let (context, word) = context(text, at);
    let range = text.range(word);
    let item = |label: &str, kind: CompletionItemKind| CompletionItem {
        label: label.to_owned(),
        kind: Some(kind),
        text_edit: Some(CompletionTextEdit::Edit(TextEdit { range, new_text: label.to_owned() })),
        ..CompletionItem::default()
    };
    match context {
        Context::Op => {
            let op = |def: &'static dyn OpDef| CompletionItem {
                detail: Some(signature(def)),
                documentation: Some(markdown(def.summary())),
                ..item(def.name(), CompletionItemKind::FUNCTION)
            };
            of_ops::registry().iter().map(op).collect()
        }
        Context::Attribute(op, present) => {
            let Some(def) = of_ops::registry().get(op) else { return Vec::new() };
            let missing = def.signature().attrs.iter().filter(|a| !present.contains(a.name));
            let attribute = |a: &of_ir::AttrSlot| CompletionItem {
                detail: Some(format!("{}{}", a.kind, if a.optional { ", may be left out" } else { "" })),
                // Those that must be written come first.
                sort_text: Some(format!("{}{}", u8::from(a.optional), a.name)),
                text_edit: Some(CompletionTextEdit::Edit(TextEdit { range, new_text: format!("{} = ", a.name) })),
                ..item(a.name, CompletionItemKind::PROPERTY)
            };
            missing.map(attribute).collect()
        }
        Context::Value => {
            let values = analysis.map(|a| values(a, text, at)).unwrap_or_default();
            values.iter().map(|v| item(v, CompletionItemKind::VARIABLE)).collect()
        }
        Context::Symbol => {
            let Some(a) = analysis else { return Vec::new() };
            let funcs = a.index.funcs.iter().map(|f| analysis_name(&f.symbol, CompletionItemKind::FUNCTION));
            let meshes = a.index.meshes.iter().map(|m| analysis_name(&m.symbol, CompletionItemKind::MODULE));
            funcs.chain(meshes).map(|(name, kind)| item(&name, kind)).collect()
        }
        Context::Unknown => Vec::new(),
    }
}

fn analysis_name(symbol: &str, kind: CompletionItemKind) -> (String, CompletionItemKind) {
    (format!("@{symbol}"), kind)
}

fn markdown(text: &str) -> Documentation {
    Documentation::MarkupContent(MarkupContent { kind: MarkupKind::PlainText, value: text.to_owned() })
}

/// More names are no help; a client filters what it gets.
const MAX_VALUES: usize = 1000;

/// Names of the values that are defined before a byte, the nearest first.
fn values(a: &Analysis, text: &Text, at: usize) -> Vec<String> {
    // The line is the same in the earlier text, more or less.
    let at = a.text.line_start(text.line_of(at));
    let Some(func) = a.func_at(at) else { return Vec::new() };
    let before = func.names.partition_point(|n| n.at.start < at);
    let definitions = func.names[..before].iter().rev().filter(|n| n.is_definition);
    definitions.take(MAX_VALUES).map(|n| a.text.get(n.at).to_owned()).collect()
}

/// What may be written at a byte, and the word that is being written.
fn context(text: &Text, at: usize) -> (Context<'_>, Span) {
    let here = Span { start: at, end: at };
    // The op may have begun on an earlier line.
    let line = text.line_of(at);
    let first = (line.saturating_sub(MAX_LINES)..=line).rev().find(|l| begins_op(text, *l)).unwrap_or(line);
    let start = text.line_start(first);
    let before: Vec<Token> = tokens(text.as_str(), start).take_while(|t| t.start < at).collect();
    let commented = text.get(Span { start: text.line_start(line).max(start), end: at }).contains("//");
    let inside = |t: &Token| t.kind == TokenKind::Str && t.end > at;
    if commented || before.last().is_some_and(inside) {
        return (Context::Unknown, here);
    }
    let is_word = |t: &&Token| {
        t.end >= at && !matches!(t.kind, TokenKind::Punct(_) | TokenKind::Arrow | TokenKind::Str | TokenKind::Int)
    };
    let word = before.last().filter(is_word).map(|t| Span { start: t.start, end: at });
    let before = &before[..before.len() - usize::from(word.is_some())];
    let word = word.unwrap_or(here);
    let written = text.get(word);
    if written.starts_with('%') {
        return (Context::Value, word);
    }
    if written.starts_with('@') {
        return (Context::Symbol, word);
    }
    let span = |t: &Token| text.get((*t).into());
    let op = before.iter().position(|t| matches!(t.kind, TokenKind::Ident | TokenKind::Str) && span(t).contains('.'));
    let Some(op) = op else {
        // Before the op are its results at most.
        let results = |t: &Token| {
            matches!(t.kind, TokenKind::Value | TokenKind::Int | TokenKind::Punct(b'=' | b',' | b':' | b'}' | b'{'))
        };
        let begins = before.last().is_none_or(|t| matches!(t.kind, TokenKind::Punct(b'=' | b'}' | b'{')));
        let context = if begins && before.iter().all(results) { Context::Op } else { Context::Unknown };
        return (context, word);
    };
    let mut open: Vec<usize> = Vec::new();
    for (i, t) in before.iter().enumerate().skip(op + 1) {
        match t.kind {
            TokenKind::Punct(b'{' | b'(' | b'[' | b'<') => open.push(i),
            TokenKind::Punct(b'}' | b')' | b']' | b'>') => drop(open.pop()),
            _ => {}
        }
    }
    let begins = matches!(before.last().map(|t| t.kind), Some(TokenKind::Punct(b'{' | b',')));
    match open.last() {
        Some(brace) if open.len() == 1 && before[*brace].kind == TokenKind::Punct(b'{') && begins => {
            let keys = before[*brace..].windows(2).filter(|w| w[1].kind == TokenKind::Punct(b'='));
            let present = keys.map(|w| span(&w[0])).collect();
            (Context::Attribute(span(&before[op]).trim_matches('"'), present), word)
        }
        _ => (Context::Unknown, word),
    }
}

/// Whether an op may begin on a line: its first token is a result or a name with a point.
fn begins_op(text: &Text, line: usize) -> bool {
    let first = tokens(text.as_str(), text.line_start(line)).next().filter(|t| t.start < text.line_start(line + 1));
    first.is_some_and(|t| match t.kind {
        TokenKind::Value => true,
        TokenKind::Ident | TokenKind::Str => text.get(t.into()).contains('.'),
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::Encoding;

    /// The context at the `|` of a text.
    fn at(text: &str) -> (String, String) {
        let place = text.find('|').unwrap();
        let text = Text::new(text.replacen('|', "", 1), Encoding::Utf8);
        let (context, word) = context(&text, place);
        (format!("{context:?}"), text.get(word).to_owned())
    }

    #[test]
    fn contexts_follow_the_tokens_before() {
        let cases = [
            ("  |", "Op", ""),
            ("  of.ma|", "Op", "of.ma"),
            ("  %y = |", "Op", ""),
            ("  %y, %z:2 = of.|", "Op", "of."),
            ("  %y = of.matmul %|", "Value", "%"),
            ("  %y = of.matmul %x, %w|", "Value", "%w"),
            ("  %y = of.softmax %x {|", "Attribute(\"of.softmax\", {})", ""),
            ("  %y = of.softmax %x {axis = 1, b|", "Attribute(\"of.softmax\", {\"axis\"})", "b"),
            ("  %y = of.softmax %x {\n    axis = 1,\n    |", "Attribute(\"of.softmax\", {\"axis\"})", ""),
            ("  %y = of.softmax %x {axis = |", "Unknown", ""),
            ("  %y = of.softmax %x {axis = [1, |", "Unknown", ""),
            ("  %y = of.softmax %x : (tensor<4xf32, #of.sbp<@|", "Symbol", "@"),
            ("  // of.|", "Unknown", ""),
            ("  %y = of.x {a = \"of.|\"}", "Unknown", ""),
        ];
        for (text, context, word) in cases {
            assert_eq!(at(text), (context.into(), word.into()), "{text}");
        }
    }
}
