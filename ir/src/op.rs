//! The interface between the IR and the ops that it holds. The IR names no op: it knows them through [`OpDef`].

use std::collections::HashMap;

use of_diag::{Code, Diagnostic, Location};

use crate::{AttrError, Attrs, Dim, Graph, RegionId, Tensor, TensorType, Type, ValueId};

/// How many values one slot of an op's signature has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arity {
    /// Exactly one.
    One,
    /// One, or the value of `of.none`; trailing ones may be left away.
    Optional,
    /// Any number; only at the end of the list.
    Variadic,
}

/// One operand or result of a declaration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Slot {
    /// Name in documentation and messages.
    pub name: &'static str,
    /// How many.
    pub arity: Arity,
}

/// One attribute of a declaration.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct AttrSlot {
    /// Name in text.
    pub name: &'static str,
    /// Kind in documentation and messages.
    pub kind: &'static str,
    /// Whether it may be left out.
    pub optional: bool,
}

/// What an op looks like from outside.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Signature {
    /// Operands in order.
    pub operands: &'static [Slot],
    /// Results in order.
    pub results: &'static [Slot],
    /// Attributes in order of declaration.
    pub attrs: &'static [AttrSlot],
    /// Number of regions.
    pub regions: usize,
}

/// Properties of an op that passes query without knowing the op.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Traits {
    /// Ends a region.
    pub terminator: bool,
    /// Must not be removed, duplicated or reordered with its like, e.g. random numbers without a seed.
    pub effect: bool,
    /// A constant: no operands, its value is an attribute.
    pub constant: bool,
}

/// An op as the IR sees it. Implementations live in the crate of the ops, or in a user's shared library.
pub trait OpDef: Send + Sync + 'static {
    /// Full name, e.g. `of.matmul`.
    fn name(&self) -> &'static str;
    /// One line.
    fn summary(&self) -> &'static str;
    /// Operands, results, attributes, regions.
    fn signature(&self) -> Signature;
    /// Facts for passes.
    fn traits(&self) -> Traits {
        Traits::default()
    }
    /// Types of the results, from operands, attributes and regions; the op's own verification at the same time.
    ///
    /// # Errors
    /// When operands or attributes are invalid; location and op name are added by the caller.
    fn infer(&self, cx: &OpView<'_>) -> Result<Vec<Type>, OpError>;
    /// The value of result 0, an integer tensor of rank 0 or 1, as dimensions, where it follows from shapes.
    fn dims(&self, _cx: &OpView<'_>) -> Option<Vec<Dim>> {
        None
    }
    /// The value of a constant.
    fn constant(&self, _attrs: &Attrs) -> Option<Tensor> {
        None
    }
}

/// An op's operands, attributes and regions, existing or about to be made.
#[derive(Clone, Copy)]
pub struct OpView<'a> {
    /// The graph that holds the operands.
    pub graph: &'a Graph,
    /// Operand values.
    pub operands: &'a [ValueId],
    /// Attributes.
    pub attrs: &'a Attrs,
    /// Regions, already filled.
    pub regions: &'a [RegionId],
}

impl<'a> OpView<'a> {
    /// Operand `i`, unless left out.
    pub fn operand(&self, i: usize) -> Option<ValueId> {
        self.operands.get(i).copied().filter(|v| *self.graph.ty(*v) != Type::None)
    }

    /// The type of operand `i`, unless left out.
    pub fn ty(&self, i: usize) -> Option<&'a Type> {
        self.operand(i).map(|v| self.graph.ty(v))
    }

    /// The tensor type of operand `i`.
    ///
    /// # Errors
    /// When it is left out or no tensor.
    pub fn tensor(&self, i: usize) -> Result<&'a TensorType, OpError> {
        match self.ty(i) {
            Some(Type::Tensor(t)) => Ok(t),
            Some(other) => Err(OpError::ty(format!("operand {i} must be a tensor, it is {other}"))),
            None => Err(OpError::ty(format!("operand {i} is missing"))),
        }
    }

    /// The value of operand `i` where a constant defines it.
    pub fn constant(&self, i: usize) -> Option<Tensor> {
        self.graph.constant(self.operand(i)?)
    }

    /// The value of operand `i`, an integer tensor of rank 0 or 1, as dimensions where it follows from shapes.
    pub fn dims(&self, i: usize) -> Option<Vec<Dim>> {
        self.graph.dims_value(self.operand(i)?)
    }

    /// The value of operand `i` as integers, where known.
    pub fn ints(&self, i: usize) -> Option<Vec<i64>> {
        self.dims(i)?.iter().map(Dim::as_const).collect()
    }
}

/// What an op finds wrong with its operands, attributes or values.
#[derive(Clone, PartialEq, Debug)]
pub struct OpError {
    /// Which kind.
    pub code: Code,
    /// The message.
    pub message: String,
    /// What to do.
    pub hint: Option<String>,
}

impl From<OpError> for Diagnostic {
    /// Without a location, which the rewriter or importer knows.
    fn from(e: OpError) -> Diagnostic {
        let mut d = Diagnostic::error(e.code, Location::Unknown, e.message);
        d.hint = e.hint;
        d
    }
}

impl OpError {
    /// An error of the given kind.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), hint: None }
    }

    /// Types do not fit.
    pub fn ty(message: impl Into<String>) -> Self {
        Self::new(Code::TYPE, message)
    }

    /// Shapes do not fit.
    pub fn shape(message: impl Into<String>) -> Self {
        Self::new(Code::SHAPE, message)
    }

    /// An attribute is wrong.
    pub fn attr(message: impl Into<String>) -> Self {
        Self::new(Code::ATTRIBUTE, message)
    }

    /// A value cannot be computed.
    pub fn eval(message: impl Into<String>) -> Self {
        Self::new(Code::EVAL, message)
    }

    /// Adds a hint.
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// The diagnostic for op `name` at `location`.
    pub fn at(self, name: &str, location: &Location) -> Diagnostic {
        let mut d = Diagnostic::error(self.code, location.clone(), format!("'{name}': {}", self.message));
        d.hint = self.hint;
        d
    }
}

impl From<AttrError> for OpError {
    fn from(e: AttrError) -> Self {
        OpError::attr(e.to_string())
    }
}

impl From<crate::TensorError> for OpError {
    fn from(e: crate::TensorError) -> Self {
        OpError::eval(e.to_string())
    }
}

/// The ops that text and models may use.
#[derive(Clone, Default)]
pub struct Registry {
    by_name: HashMap<&'static str, &'static dyn OpDef>,
}

impl Registry {
    /// A registry of the given ops; of two with one name the later wins.
    pub fn new(ops: impl IntoIterator<Item = &'static dyn OpDef>) -> Self {
        Self { by_name: ops.into_iter().map(|o| (o.name(), o)).collect() }
    }

    /// Adds or replaces.
    pub fn add(&mut self, op: &'static dyn OpDef) {
        self.by_name.insert(op.name(), op);
    }

    /// The op called `name`.
    pub fn get(&self, name: &str) -> Option<&'static dyn OpDef> {
        self.by_name.get(name).copied()
    }

    /// Every op, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = &'static dyn OpDef> {
        let mut all: Vec<_> = self.by_name.values().copied().collect();
        crate::sort::by_key(&mut all, |o| o.name());
        all.into_iter()
    }
}
