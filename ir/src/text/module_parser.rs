//! The state that the parsers of a module's items and of their ops share.

use of_diag::{Code, Diagnostic};

use super::cursor::Parser;
use super::lexer::Token;
use super::locs::Aliases;
use super::source_index::{FuncSource, SourceIndex};
use crate::{Module, Registry};

/// What the parts of one module's text have in common.
pub(super) struct ModuleParser<'a> {
    pub p: Parser<'a>,
    pub registry: &'a Registry,
    pub aliases: Aliases,
    /// Errors after which parsing continues.
    pub errors: Vec<Diagnostic>,
    /// The items parsed so far.
    pub module: Module,
    /// A number above those of all generated symbols of the text.
    pub fresh: u32,
    /// What the text names, on request. Parsing then goes on after errors of syntax.
    pub index: Option<SourceIndex>,
}

impl ModuleParser<'_> {
    /// Records an error after which parsing continues.
    pub fn report(&mut self, code: Code, at: Token, what: String) {
        let e = self.p.error_of(code, at, what);
        self.errors.push(*e);
    }

    /// Records a syntax error after which parsing goes on, unless the last error has its place and was the cause.
    pub fn report_syntax(&mut self, e: Diagnostic) {
        if self.errors.last().is_none_or(|last| last.location != e.location) {
            self.errors.push(e);
        }
    }

    /// The index of the function that is being read.
    pub fn func_index(&mut self) -> Option<&mut FuncSource> {
        self.index.as_mut()?.funcs.last_mut()
    }
}
