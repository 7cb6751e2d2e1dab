//! Where a text names functions, meshes, ops and values. Editors need it; compilation does not, so it is made on request.

use super::lexer::Token;
use crate::{OpId, ValueId};

/// A range of bytes of the text.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub struct Span {
    /// The first byte.
    pub start: usize,
    /// The byte after the last one.
    pub end: usize,
}

impl Span {
    /// Whether byte `at` is in it, or the end is at `at`: a cursor after the last character is still at the word.
    pub fn touches(self, at: usize) -> bool {
        self.start <= at && at <= self.end
    }
}

impl From<Token> for Span {
    fn from(t: Token) -> Span {
        Span { start: t.start, end: t.end }
    }
}

/// Everything that a text names, in the order of the text.
#[derive(Clone, Default, Debug)]
pub struct SourceIndex {
    /// Meshes.
    pub meshes: Vec<MeshSource>,
    /// Functions.
    pub funcs: Vec<FuncSource>,
}

/// A mesh in the text.
#[derive(Clone, Debug)]
pub struct MeshSource {
    /// Its name.
    pub symbol: String,
    /// Its first word.
    pub at: Span,
}

/// A function in the text.
#[derive(Clone, Default, Debug)]
pub struct FuncSource {
    /// Its name, the key in [`crate::Module::funcs`]; empty where it could not be read.
    pub symbol: String,
    /// The name in the text.
    pub name: Span,
    /// From its first to its last token.
    pub whole: Span,
    /// Its ops, also those in regions, in the order of their beginnings.
    pub ops: Vec<OpSource>,
    /// Definitions and uses of values, in the order of the text.
    pub names: Vec<NameSource>,
    /// Whether the module holds it. If not, the ids below refer to a graph that is gone.
    pub in_module: bool,
    /// Definitions so far.
    definitions: u32,
}

/// An op in the text.
#[derive(Clone, Debug)]
pub struct OpSource {
    /// The op; `None` where the text has an error.
    pub op: Option<OpId>,
    /// Its name, with quotes in the generic form.
    pub name: Span,
    /// From its first to its last token, regions included.
    pub whole: Span,
}

/// A definition or a use of a value.
#[derive(Clone, Copy, Debug)]
pub struct NameSource {
    /// The name with its `%`, and `#1` where it has one.
    pub at: Span,
    /// The value. A definition of several (`%a:2`) names the first.
    pub value: ValueId,
    /// The number of values that it names: more than one only for definitions.
    pub count: u32,
    /// What is equal for a definition and its uses, and for no other names of the function.
    pub definition: u32,
    /// Whether it is the definition.
    pub is_definition: bool,
}

impl SourceIndex {
    /// The function that byte `at` is in.
    pub fn func_at(&self, at: usize) -> Option<&FuncSource> {
        self.funcs.iter().find(|f| f.whole.touches(at))
    }
}

impl FuncSource {
    /// A function of which only the first token is read.
    pub(super) fn begin(first: Token) -> Self {
        FuncSource { whole: first.into(), name: first.into(), ..FuncSource::default() }
    }

    /// The name of a value at byte `at`.
    pub fn name_at(&self, at: usize) -> Option<&NameSource> {
        let after = self.names.partition_point(|n| n.at.start <= at);
        // Names do not overlap, but one may begin where the other ends.
        self.names[..after].iter().rev().take(2).find(|n| n.at.touches(at))
    }

    /// The innermost op that byte `at` is in.
    pub fn op_at(&self, at: usize) -> Option<&OpSource> {
        let after = self.ops.partition_point(|o| o.whole.start <= at);
        self.ops[..after].iter().rev().find(|o| o.whole.touches(at))
    }

    /// The definition and uses of what `name` refers to.
    pub fn names_of(&self, name: &NameSource) -> impl Iterator<Item = &NameSource> {
        let definition = name.definition;
        self.names.iter().filter(move |n| n.definition == definition)
    }

    /// The definition of what `name` refers to.
    pub fn definition_of(&self, name: &NameSource) -> Option<&NameSource> {
        self.names_of(name).find(|n| n.is_definition)
    }

    /// Where an op is.
    pub fn source_of(&self, op: OpId) -> Option<&OpSource> {
        self.ops.iter().find(|o| o.op == Some(op))
    }

    /// Adds a definition and returns its number.
    pub(super) fn define(&mut self, at: Token, values: &[ValueId]) -> u32 {
        let definition = self.definitions;
        self.definitions += 1;
        if let Some(first) = values.first() {
            let count = u32::try_from(values.len()).unwrap_or(u32::MAX);
            self.names.push(NameSource { at: at.into(), value: *first, count, definition, is_definition: true });
        }
        definition
    }

    /// Adds a use.
    pub(super) fn refer(&mut self, at: Token, value: ValueId, definition: u32) {
        self.names.push(NameSource { at: at.into(), value, count: 1, definition, is_definition: false });
    }

    /// Ends the function after its last token. Results are defined after the regions of their op are read.
    pub(super) fn finish(&mut self, end: usize) {
        self.whole.end = end.max(self.whole.start);
        if !self.names.is_sorted_by_key(|n| n.at) {
            crate::sort::by_key(&mut self.names, |n| n.at);
        }
    }
}
