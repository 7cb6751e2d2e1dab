//! Definitions, references, and symbols.

use lsp_types::{DocumentHighlight, DocumentHighlightKind, DocumentSymbol, Range, SymbolKind};
use of_ir::text::{OpSource, Span, TokenKind, tokens};
use serde::Serialize;

use crate::analysis::Analysis;

/// A place in a document.
#[derive(Serialize)]
pub struct Location<'a> {
    uri: &'a str,
    range: Range,
}

/// A use or definition.
struct Place {
    at: Span,
    is_definition: bool,
}

/// Where the value, function or mesh at a byte is defined.
pub fn definition<'a>(analysis: &Analysis, uri: &'a str, at: usize) -> Vec<Location<'a>> {
    let all = places(analysis, at).into_iter().filter(|p| p.is_definition);
    all.map(|p| Location { uri, range: analysis.text.range(p.at) }).collect()
}

/// Where it is used.
pub fn references<'a>(analysis: &Analysis, uri: &'a str, at: usize, with_definition: bool) -> Vec<Location<'a>> {
    let all = places(analysis, at).into_iter().filter(|p| with_definition || !p.is_definition);
    all.map(|p| Location { uri, range: analysis.text.range(p.at) }).collect()
}

/// All its places, definitions as writes.
pub fn highlight(analysis: &Analysis, at: usize) -> Vec<DocumentHighlight> {
    let kind = |p: &Place| match p.is_definition {
        true => DocumentHighlightKind::WRITE,
        false => DocumentHighlightKind::READ,
    };
    let all = places(analysis, at).into_iter();
    all.map(|p| DocumentHighlight { range: analysis.text.range(p.at), kind: Some(kind(&p)) }).collect()
}

fn places(analysis: &Analysis, at: usize) -> Vec<Place> {
    if let Some((func, name)) = analysis.name_at(at) {
        return func.names_of(name).map(|n| Place { at: n.at, is_definition: n.is_definition }).collect();
    }
    match analysis.token_at(at).filter(|t| t.kind == TokenKind::Symbol) {
        Some(token) => symbols(analysis, analysis.text.get(token.into())),
        None => Vec::new(),
    }
}

/// Every token of the text that is this symbol. Definitions are those that functions and meshes begin with.
fn symbols(analysis: &Analysis, symbol: &str) -> Vec<Place> {
    let text = analysis.text.as_str();
    let is_definition = |at: Span| {
        let mut meshes = analysis.index.meshes.iter();
        analysis.index.funcs.iter().any(|f| f.name == at)
            || meshes.any(|m| tokens(text, m.at.end).next().is_some_and(|t| Span::from(t) == at))
    };
    let mut all = Vec::new();
    let mut last_line = None;
    for (found, _) in text.match_indices(symbol) {
        // The tokens of a line say whether it is a word of its own, and not a part of a comment.
        let line = analysis.text.line_of(found);
        if last_line.replace(line) == Some(line) {
            continue;
        }
        let end = analysis.text.line_start(line + 1);
        let on_line = tokens(text, analysis.text.line_start(line)).take_while(|t| t.start < end);
        for t in on_line.filter(|t| t.kind == TokenKind::Symbol && &text[t.start..t.end] == symbol) {
            let at = Span::from(t);
            all.push(Place { at, is_definition: is_definition(at) });
        }
    }
    all
}

/// More ops are no outline. They stay reachable as definitions and references.
const MAX_SYMBOLS: usize = 10_000;

/// Functions and meshes, and in functions their ops.
pub fn symbols_of(analysis: &Analysis) -> Vec<DocumentSymbol> {
    let meshes = analysis.index.meshes.iter().map(|m| {
        let detail = analysis.module.meshes.get(&m.symbol).map(|m| m.devices.clone());
        symbol(analysis, format!("@{}", m.symbol), detail, SymbolKind::NAMESPACE, m.at, m.at)
    });
    let mut left = MAX_SYMBOLS;
    let funcs = analysis.index.funcs.iter().map(|f| {
        let name = if f.symbol.is_empty() { "(no name)".into() } else { format!("@{}", f.symbol) };
        let detail = Some(format!("{} ops", f.ops.len()));
        let ops = &f.ops[..f.ops.len().min(left)];
        left -= ops.len();
        let mut s = symbol(analysis, name, detail, SymbolKind::FUNCTION, f.whole, f.name);
        s.children = Some(nested(analysis, ops, &mut 0, (usize::MAX, MAX_DEPTH)));
        s
    });
    meshes.chain(funcs).collect()
}

/// Ops in deeper regions are next to their op: readers of JSON limit the depth.
const MAX_DEPTH: usize = 16;

/// The ops from `next` on that begin before `end`, those of regions inside of their op, up to a depth.
fn nested(
    analysis: &Analysis,
    ops: &[OpSource],
    next: &mut usize,
    (end, depth): (usize, usize),
) -> Vec<DocumentSymbol> {
    let mut all = Vec::new();
    while let Some(op) = ops.get(*next).filter(|o| o.whole.start < end) {
        *next += 1;
        let name = analysis.text.get(op.name).trim_matches('"').to_owned();
        // The results are what stands before the name.
        let results = analysis.text.get(Span { start: op.whole.start, end: op.name.start });
        let results = results.trim_end_matches(['=', ' ', '\n']).to_owned();
        let (name, detail) = if results.is_empty() { (name, None) } else { (results, Some(name)) };
        let mut s = symbol(analysis, name, detail, SymbolKind::VARIABLE, op.whole, op.name);
        let inner = if depth > 0 { nested(analysis, ops, next, (op.whole.end, depth - 1)) } else { Vec::new() };
        s.children = (!inner.is_empty()).then_some(inner);
        all.push(s);
    }
    all
}

fn symbol(
    analysis: &Analysis,
    name: String,
    detail: Option<String>,
    kind: SymbolKind,
    whole: Span,
    at: Span,
) -> DocumentSymbol {
    // Clients refuse a selection outside of the range.
    let whole = Span { start: whole.start.min(at.start), end: whole.end.max(at.end) };
    #[allow(deprecated, reason = "the struct has a deprecated field and no constructor")]
    DocumentSymbol {
        name,
        detail,
        kind,
        tags: None,
        deprecated: None,
        range: analysis.text.range(whole),
        selection_range: analysis.text.range(at),
        children: None,
    }
}
