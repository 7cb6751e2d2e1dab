//! Attributes: compile-time parameters of ops.

use std::sync::Arc;

use crate::{DType, Dim, NdSbp, Tensor, Type};

/// The value of an attribute.
#[derive(Clone, PartialEq, Debug)]
pub enum Attr {
    /// Present or absent.
    Unit,
    /// Truth value.
    Bool(bool),
    /// 64-bit integer.
    Int(i64),
    /// 64-bit float; ONNX's 32-bit floats convert exactly.
    Float(f64),
    /// Text.
    Str(Arc<str>),
    /// Integers.
    Ints(Vec<i64>),
    /// Floats.
    Floats(Vec<f64>),
    /// Texts.
    Strs(Vec<Arc<str>>),
    /// A dense constant.
    Tensor(Tensor),
    /// A type.
    Type(Type),
    /// An element type.
    DType(DType),
    /// Dimensions with symbols.
    Dims(Vec<Dim>),
    /// A placement.
    Sbp(NdSbp),
    /// A reference to a symbol of the module: a function or a mesh.
    Symbol(Arc<str>),
    /// Any attributes.
    Array(Vec<Attr>),
}

impl Attr {
    /// What it is, for messages.
    pub const fn kind(&self) -> &'static str {
        match self {
            Attr::Unit => "unit",
            Attr::Bool(_) => "bool",
            Attr::Int(_) => "integer",
            Attr::Float(_) => "float",
            Attr::Str(_) => "string",
            Attr::Ints(_) => "integer list",
            Attr::Floats(_) => "float list",
            Attr::Strs(_) => "string list",
            Attr::Tensor(_) => "tensor",
            Attr::Type(_) => "type",
            Attr::DType(_) => "element type",
            Attr::Dims(_) => "dimensions",
            Attr::Sbp(_) => "sbp",
            Attr::Symbol(_) => "symbol",
            Attr::Array(_) => "array",
        }
    }
}

/// Rust types that attributes convert to and from, so that ops hold typed fields.
pub trait AttrValue: Sized {
    /// The accepted values, for messages.
    const KIND: &'static str;
    /// The typed value; `None` where the attribute is of another kind.
    fn from_attr(attr: &Attr) -> Option<Self>;
    /// The attribute; `None` where it is left out (an absent `Option`).
    fn into_attr(self) -> Option<Attr>;
    /// The default of an omitted attribute; `None` if it is required.
    fn absent() -> Option<Self> {
        None
    }
}

macro_rules! attr_values {
    ($($rust:ty, $variant:ident, $kind:literal;)*) => {$(
        impl AttrValue for $rust {
            const KIND: &'static str = $kind;
            fn from_attr(attr: &Attr) -> Option<Self> {
                match attr { Attr::$variant(v) => Some(v.clone()), _ => None }
            }
            fn into_attr(self) -> Option<Attr> {
                Some(Attr::$variant(self))
            }
        }
    )*};
}

attr_values! {
    bool, Bool, "bool";
    i64, Int, "integer";
    f64, Float, "float";
    Arc<str>, Str, "string";
    Vec<i64>, Ints, "integer list";
    Vec<f64>, Floats, "float list";
    Vec<Arc<str>>, Strs, "string list";
    Tensor, Tensor, "tensor";
    Type, Type, "type";
    DType, DType, "element type";
    Vec<Dim>, Dims, "dimensions";
    NdSbp, Sbp, "sbp";
}

impl<T: AttrValue> AttrValue for Option<T> {
    const KIND: &'static str = T::KIND;
    fn from_attr(attr: &Attr) -> Option<Self> {
        T::from_attr(attr).map(Some)
    }
    fn into_attr(self) -> Option<Attr> {
        self.and_then(T::into_attr)
    }
    fn absent() -> Option<Self> {
        Some(None)
    }
}

/// The attributes of one op, sorted by name.
///
/// A name with a dot (`of.sbp_hint`) belongs to a pass or a backend rather than to the op's declaration.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Attrs(Vec<(Arc<str>, Attr)>);

impl Attrs {
    /// None.
    pub fn new() -> Self {
        Self::default()
    }

    /// The attribute called `name`.
    pub fn get(&self, name: &str) -> Option<&Attr> {
        self.0.binary_search_by(|(n, _)| (**n).cmp(name)).ok().map(|i| &self.0[i].1)
    }

    /// Sets or replaces.
    pub fn set(&mut self, name: impl Into<Arc<str>>, value: Attr) {
        let name = name.into();
        match self.0.binary_search_by(|(n, _)| n.cmp(&name)) {
            Ok(i) => self.0[i].1 = value,
            Err(i) => self.0.insert(i, (name, value)),
        }
    }

    /// Sets from a typed value; an absent `Option` sets nothing.
    pub fn put(&mut self, name: &str, value: impl AttrValue) {
        if let Some(a) = value.into_attr() {
            self.set(name, a);
        }
    }

    /// Removes and returns.
    pub fn remove(&mut self, name: &str) -> Option<Attr> {
        self.0.binary_search_by(|(n, _)| (**n).cmp(name)).ok().map(|i| self.0.remove(i).1)
    }

    /// All of them, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = (&Arc<str>, &Attr)> {
        self.0.iter().map(|(n, a)| (n, a))
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A typed read.
    ///
    /// # Errors
    /// When it is missing and must not be, or is of another kind.
    pub fn typed<T: AttrValue>(&self, name: &str) -> Result<T, AttrError> {
        match self.get(name) {
            None => T::absent().ok_or_else(|| AttrError::Missing { name: name.into(), kind: T::KIND }),
            Some(a) => {
                T::from_attr(a).ok_or_else(|| AttrError::Kind { name: name.into(), kind: T::KIND, got: a.kind() })
            }
        }
    }
}

impl FromIterator<(Arc<str>, Attr)> for Attrs {
    fn from_iter<I: IntoIterator<Item = (Arc<str>, Attr)>>(iter: I) -> Self {
        let mut a = Attrs::new();
        iter.into_iter().for_each(|(n, v)| a.set(n, v));
        a
    }
}

/// Why an attribute cannot be read.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AttrError {
    /// It must be there and is not.
    #[error("attribute '{name}' ({kind}) is missing")]
    Missing {
        /// Attribute name.
        name: String,
        /// What the op declares.
        kind: &'static str,
    },
    /// It is of another kind.
    #[error("attribute '{name}' must be {kind}, it is {got}")]
    Kind {
        /// Attribute name.
        name: String,
        /// What the op declares.
        kind: &'static str,
        /// The actual value.
        got: &'static str,
    },
    /// The value is not one of those allowed.
    #[error("attribute '{name}': {why}")]
    Value {
        /// Attribute name.
        name: String,
        /// What is wrong with it.
        why: String,
    },
}
