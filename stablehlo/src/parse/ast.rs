//! What a parsed module is made of. Names are slices of the text.

use of_ir::{Tensor, TensorType};

/// A place in the text: a byte offset.
pub(crate) type Pos = usize;

/// A module.
pub(crate) struct Module<'a> {
    /// Its name without `@`; empty where it has none.
    pub name: String,
    pub funcs: Vec<Func<'a>>,
}

/// A function.
pub(crate) struct Func<'a> {
    pub name: String,
    pub args: Vec<Arg<'a>>,
    pub result_attrs: Vec<Vec<(String, Attr)>>,
    pub body: Vec<Op<'a>>,
    pub pos: Pos,
}

/// An argument of a function or of a region.
#[derive(Clone)]
pub(crate) struct Arg<'a> {
    /// The name with `%`.
    pub name: &'a str,
    pub ty: Ty,
    /// The name that a location says: that of the program's argument.
    pub label: Option<String>,
    pub pos: Pos,
}

/// A type.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Ty {
    Tensor(TensorType),
    /// A type that the IR lacks, as the text has it.
    Other(String),
}

/// A region of one block.
pub(crate) struct Region<'a> {
    pub args: Vec<Arg<'a>>,
    /// The last one is the terminator.
    pub ops: Vec<Op<'a>>,
}

/// An operation, whatever form it was printed in.
pub(crate) struct Op<'a> {
    /// `stablehlo.add`.
    pub name: String,
    /// Names of results with `%`, and how many values each is.
    pub results: Vec<(&'a str, usize)>,
    /// Names of operands with `%`, and with `#1` for one of a group.
    pub operands: Vec<&'a str>,
    pub attrs: Vec<(String, Attr)>,
    /// Bare words of the pretty form: `GT`, `FLOAT`.
    pub words: Vec<String>,
    pub regions: Vec<Region<'a>>,
    /// Types of the results; empty for terminators.
    pub types: Vec<Ty>,
    pub pos: Pos,
}

/// The value of an attribute.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Attr {
    Unit,
    Bool(bool),
    Int(i64),
    Float(f64),
    Str(String),
    List(Vec<Attr>),
    Dict(Vec<(String, Attr)>),
    Dense(Tensor),
    /// `@name`.
    Symbol(String),
    /// `GT`, `f`.
    Word(String),
    /// `#name<…>`: the name, and what stands between the brackets as a dictionary or words.
    Dialect(String, Box<Attr>),
    Types(Vec<Ty>, Vec<Ty>),
}

impl Attr {
    /// Integers of a list or a dense array.
    pub fn ints(&self) -> Option<Vec<i64>> {
        match self {
            Attr::List(list) => list.iter().map(Attr::int).collect(),
            Attr::Dense(t) => t.to_i64s(),
            _ => None,
        }
    }

    /// One integer.
    pub fn int(&self) -> Option<i64> {
        match self {
            Attr::Int(i) => Some(*i),
            _ => None,
        }
    }

    /// The entry `key` of a dictionary.
    pub fn get(&self, key: &str) -> Option<&Attr> {
        match self {
            Attr::Dict(entries) => find(entries, key),
            Attr::Dialect(_, body) => body.get(key),
            _ => None,
        }
    }
}

/// The value of `key`.
pub(crate) fn find<'t>(entries: &'t [(String, Attr)], key: &str) -> Option<&'t Attr> {
    entries.iter().find(|(k, _)| k == key).map(|(_, v)| v)
}

impl Op<'_> {
    /// The attribute `key`.
    pub fn attr(&self, key: &str) -> Option<&Attr> {
        find(&self.attrs, key)
    }

    /// Number of results.
    pub fn result_count(&self) -> usize {
        self.results.iter().map(|r| r.1).sum()
    }
}
