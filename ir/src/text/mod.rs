//! The text form of the IR: MLIR.
//!
//! Two forms, which the parser accepts side by side:
//!
//! - **generic**: what `mlir-opt --allow-unregistered-dialect` accepts. A function is an `"of.func"`, because upstream
//!   wants `func.return` in its own, and the IR names no op.
//! - **pretty**: what people read. Ops without quotes, functions with a signature, symbols inside the shape.
//!
//! ```text
//! of.mesh @m {devices = "cpu", shape = [2, 4]}
//!
//! func @main(%x: tensor<?(N)x64xf32>, %w: tensor<64x8xf32>) -> (tensor<?(N)x8xf32> {of.name = "logits"}) {
//!   %y = of.matmul %x, %w : (tensor<?(N)x64xf32>, tensor<64x8xf32>) -> tensor<?(N)x8xf32>
//!   of.return %y : (tensor<?(N)x8xf32>) -> ()
//! }
//! ```
//!
//! A pretty op may leave out `: (…) -> …`; inference then gives the result types. The regions of a pretty op are
//! after its types: `of.if %c : (tensor<i1>) -> tensor<f32> { … }, { … }`.

mod attrs;
mod cursor;
mod data;
mod data_constant;
mod dense;
mod dims;
mod file;
mod lexer;
mod locs;
mod module_parser;
mod names;
mod op_parser;
mod parser;
mod printer;
pub(crate) mod quote;
mod source_index;
#[cfg(test)]
mod tests;
mod types;

use std::path::Path;

use of_diag::Diagnostics;

use crate::{Attr, Dim, Func, Graph, Module, OpId, Registry, Type};

pub use data::{CheckedData, DataFile};
pub use file::{read_module, write_module};
pub use lexer::{Kind as TokenKind, Token};
pub use source_index::{FuncSource, MeshSource, NameSource, OpSource, SourceIndex, Span};

/// Where constants of more than 64 elements go. Those that one number describes always stay in the text.
#[derive(Clone, Copy, Default)]
pub enum Constants<'a> {
    /// Into the text, as hexadecimal bytes.
    #[default]
    Inline,
    /// Nowhere: for people. Such text does not parse.
    Elided,
    /// Into a separate data file.
    DataFile(&'a DataFile),
}

/// How to print.
#[derive(Clone, Copy, Default)]
pub struct PrintOptions<'a> {
    /// The form that upstream MLIR reads.
    pub generic: bool,
    /// A `loc(…)` after every op and function.
    pub locations: bool,
    /// Where large constants go.
    pub constants: Constants<'a>,
}

/// Reads a module. `file_name` is for locations; data files are looked for in `base_dir`, none are read without it.
///
/// The module is not verified.
///
/// # Errors
/// The first error of syntax, and before it everything that does not hinder reading on: unknown ops, undefined values,
/// types that do not fit.
pub fn parse_module(
    text: &str,
    file_name: &str,
    registry: &Registry,
    base_dir: Option<&Path>,
) -> Result<Module, Diagnostics> {
    parser::parse_module(text, file_name, registry, base_dir)
}

/// A module with the places of what its text names, for editors.
pub struct Indexed {
    /// What could be read. With errors, parts are missing and values have placeholders of type `none`: it is for looking
    /// up types, and must not be compiled.
    pub module: Module,
    /// Places of names.
    pub index: SourceIndex,
    /// Everything that is wrong, in the order of the text.
    pub errors: Diagnostics,
}

/// Reads a module as [`parse_module`] does, and remembers where the text names functions, ops and values. It goes on
/// after errors of syntax, with the next line that begins an op or function. `checked` remembers constants of data files.
pub fn parse_indexed(
    text: &str,
    file_name: &str,
    registry: &Registry,
    base_dir: Option<&Path>,
    checked: &CheckedData,
) -> Indexed {
    parser::parse_indexed(text, file_name, registry, base_dir, checked)
}

/// The tokens of a text from byte `start` on, or from the next character if that is inside one.
pub fn tokens(text: &str, start: usize) -> impl Iterator<Item = Token> + '_ {
    let start = (start..text.len()).find(|i| text.is_char_boundary(*i)).unwrap_or(text.len());
    let mut lexer = lexer::Lexer::new(text);
    lexer.seek(start);
    std::iter::from_fn(move || Some(lexer.next()).filter(|t| t.kind != TokenKind::Eof))
}

/// Reads a type, in either form.
///
/// # Errors
/// When the text is invalid.
pub fn parse_type(text: &str) -> Result<Type, Diagnostics> {
    parser::parse_whole(text, "<type>", |p| p.ty())
}

/// Reads an attribute, in either form.
///
/// # Errors
/// When the text is invalid.
pub fn parse_attr(text: &str) -> Result<Attr, Diagnostics> {
    parser::parse_whole(text, "<attribute>", |p| p.attr())
}

/// Reads a dimension: `64`, `N`, `N*2 + 1`, `(N floordiv 2)`, `max(N, 8)`. A name that is no identifier is quoted.
///
/// # Errors
/// When the text is invalid.
pub fn parse_dim(text: &str) -> Result<Dim, Diagnostics> {
    parser::parse_whole(text, "<dimension>", |p| p.dim())
}

/// Prints a module.
pub fn print_module(module: &Module, options: &PrintOptions<'_>) -> String {
    printer::module(module, options)
}

/// Prints one function under the given name.
pub fn print_func(name: &str, func: &Func, options: &PrintOptions<'_>) -> String {
    let mut out = String::new();
    printer::func(&mut out, name, func, 0, options);
    out
}

/// Prints one op on one line, without regions and large constants, for messages. Values without a name are numbered
/// within this line only.
pub fn print_op_short(graph: &Graph, op: OpId) -> String {
    printer::op_short(graph, op)
}

/// Prints one attribute in the pretty form.
pub fn print_attr(attr: &Attr) -> String {
    let mut out = String::new();
    attrs::write_attr(&mut out, attr, &PrintOptions::default());
    out
}
