//! Semantic tokens: what the words of a text are, which its grammar cannot tell. A value is an argument, a constant or neither, and a
//! place defines it or uses it.

use of_ir::Func;
use of_ir::text::{FuncSource, NameSource, Span};
use serde::Serialize;

use crate::analysis::Analysis;

/// Kinds of tokens by number, as the protocol calls them.
pub const TYPES: [&str; 5] = ["namespace", "function", "method", "parameter", "variable"];
/// Bits of a token, as the protocol calls them. A constant is read-only.
pub const MODIFIERS: [&str; 2] = ["declaration", "readonly"];

const MESH: u32 = 0;
const FUNCTION: u32 = 1;
const OP: u32 = 2;
const ARGUMENT: u32 = 3;
const VALUE: u32 = 4;

const DECLARATION: u32 = 1;
const CONSTANT: u32 = 2;

/// Five numbers for each token: lines and characters after the token before, length, kind, bits.
#[derive(Serialize, Default)]
pub struct SemanticTokens {
    data: Vec<u32>,
}

/// A token: its place, kind and bits.
type Found = (Span, u32, u32);

/// The tokens that begin in a part of the text.
pub fn semantic_tokens(analysis: &Analysis, part: Span) -> SemanticTokens {
    let inside = |span: Span| part.start <= span.start && span.start < part.end;
    let meshes = analysis.index.meshes.iter().map(|mesh| (mesh.at, MESH, DECLARATION));
    let mut found: Vec<Found> = meshes.filter(|(at, ..)| inside(*at)).collect();
    for func in &analysis.index.funcs {
        if func.whole.end < part.start || func.whole.start >= part.end {
            continue;
        }
        if !func.symbol.is_empty() && inside(func.name) {
            found.push((func.name, FUNCTION, DECLARATION));
        }
        add(&mut found, func, analysis.func(func), part);
    }
    found.sort_by_key(|(at, ..)| *at);
    encoded(analysis, &found)
}

/// Adds the ops and values of a function.
fn add(found: &mut Vec<Found>, source: &FuncSource, func: Option<&Func>, part: Span) {
    let ops = &source.ops[source.ops.partition_point(|op| op.whole.start < part.start)..];
    // An op may begin before the part, and have its name in it.
    let before = source.ops.len() - ops.len();
    let first = source.ops[..before].last().filter(|op| op.name.start >= part.start);
    let known = first.into_iter().chain(ops.iter().take_while(|op| op.whole.start < part.end));
    let known = known.filter(|op| op.op.is_some() && op.name.start < part.end);
    found.extend(known.map(|op| (op.name, OP, 0)));
    let names = &source.names[source.names.partition_point(|name| name.at.start < part.start)..];
    let names = names.iter().take_while(|name| name.at.start < part.end);
    found.extend(names.map(|name| {
        let (kind, bits) = value(name, func);
        (name.at, kind, bits | if name.is_definition { DECLARATION } else { 0 })
    }));
}

/// The kind of a value, and whether it is a constant.
fn value(name: &NameSource, func: Option<&Func>) -> (u32, u32) {
    let Some(graph) = func.map(|func| &func.graph) else { return (VALUE, 0) };
    match graph.def_op(name.value) {
        None => (ARGUMENT, 0),
        Some(op) => {
            let data = graph.op(op);
            (VALUE, if data.def.constant(&data.attrs).is_some() { CONSTANT } else { 0 })
        }
    }
}

fn encoded(analysis: &Analysis, found: &[Found]) -> SemanticTokens {
    let mut data = Vec::with_capacity(5 * found.len());
    let (mut line, mut character) = (0, 0);
    for (at, kind, bits) in found {
        let (start, end) = (analysis.text.position(at.start), analysis.text.position(at.end));
        // A token is in one line, and none begins before the one before it.
        if start.line != end.line || (start.line, start.character) < (line, character) {
            continue;
        }
        let after = start.character - if start.line == line { character } else { 0 };
        data.extend([start.line - line, after, end.character - start.character, *kind, *bits]);
        (line, character) = (start.line, start.character);
    }
    SemanticTokens { data }
}
