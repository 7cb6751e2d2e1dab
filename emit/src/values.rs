//! The values of a graph in the text.

use std::collections::HashMap;

use of_ir::{Elements, Graph, IdMap, OpId, Tensor, Type, ValueId};
use of_ops::OpSpec;

use crate::value::{Port, Val};

/// The values of a graph: the printed form of each, and its compile-time properties.
pub struct Values<'g> {
    /// The graph.
    pub g: &'g Graph,
    printed: IdMap<ValueId, Val>,
    port: fn(&Type) -> Result<Port, String>,
}

impl<'g> Values<'g> {
    /// Creates an empty map for a graph. `port` returns the type of a value in the text, or why it is not supported.
    pub fn new(g: &'g Graph, port: fn(&Type) -> Result<Port, String>) -> Values<'g> {
        Values { g, printed: HashMap::default(), port }
    }

    /// The printed type of a value, or why it is not supported.
    ///
    /// # Errors
    /// The reason.
    pub fn port(&self, v: ValueId) -> Result<Port, String> {
        (self.port)(self.g.ty(v))
    }

    /// Sets the printed form of a value.
    pub fn set(&mut self, v: ValueId, val: Val) {
        self.printed.insert(v, val);
    }

    /// The printed form of a value.
    ///
    /// # Errors
    /// When its type is not supported.
    pub fn value(&self, v: ValueId) -> Result<Val, String> {
        let unreadable = || match self.port(v) {
            Err(why) => why,
            Ok(_) => "an operand was not printed".to_string(),
        };
        self.printed.get(&v).cloned().ok_or_else(unreadable)
    }

    /// Operand `i` of an op.
    ///
    /// # Errors
    /// When its type is not supported, or the operand is absent.
    pub fn operand(&self, op: OpId, i: usize) -> Result<Val, String> {
        self.optional(op, i)?.ok_or_else(|| format!("operand {i} is left out"))
    }

    /// Operand `i`, if present.
    ///
    /// # Errors
    /// When its type is not supported.
    pub fn optional(&self, op: OpId, i: usize) -> Result<Option<Val>, String> {
        match self.g.op(op).operands.get(i) {
            Some(v) if *self.g.ty(*v) != Type::None => self.value(*v).map(Some),
            _ => Ok(None),
        }
    }

    /// All operands of an op.
    ///
    /// # Errors
    /// When the type of one is not supported.
    pub fn operands(&self, op: OpId) -> Result<Vec<Val>, String> {
        self.g.op(op).operands.iter().map(|v| self.value(*v)).collect()
    }

    /// Operand `i` as integers; `None` if it is absent.
    ///
    /// # Errors
    /// When they are not known at compile time.
    pub fn ints(&self, op: OpId, i: usize) -> Result<Option<Vec<i64>>, String> {
        let Some(v) = self.g.op(op).operands.get(i).filter(|v| *self.g.ty(**v) != Type::None) else { return Ok(None) };
        let derived = || self.g.dims_value(*v)?.iter().map(of_ir::Dim::as_const).collect();
        let known = self.g.constant(*v).and_then(|t| t.to_i64s()).or_else(derived);
        known.map(Some).ok_or_else(|| format!("operand {i} is not known before the run"))
    }

    /// Element type and extents of result `i`.
    ///
    /// # Errors
    /// When its type is not supported.
    pub fn result(&self, op: OpId, i: usize) -> Result<Port, String> {
        self.port(self.g.op(op).results[i])
    }

    /// The op as its struct.
    ///
    /// # Errors
    /// When its attributes do not match the struct.
    pub fn attrs<T: OpSpec>(&self, op: OpId) -> Result<T, String> {
        of_ops::list::as_op::<T>(self.g, op).ok_or_else(|| "its attributes do not decode".to_string())
    }

    /// The result of an op that depends on shapes alone, as a constant.
    pub(crate) fn folded(&self, op: OpId) -> Option<Tensor> {
        let [v] = self.g.op(op).results[..] else { return None };
        let (dtype, dims) = self.port(v).ok()?;
        let numbers: Vec<i128> =
            self.g.dims_value(v)?.iter().map(|d| d.as_const().map(i128::from)).collect::<Option<_>>()?;
        Tensor::from_elements(dtype, dims, Elements::Int(numbers)).ok()
    }
}
