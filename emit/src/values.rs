//! The values of a graph in the text.

use std::collections::HashMap;

use of_ir::{Elements, Graph, OpId, Tensor, Type, ValueId};
use of_ops::OpSpec;

use crate::value::{Port, Val};

/// The values of a graph: what was printed for each, and what is known of it before the run.
pub struct Values<'g> {
    /// The graph.
    pub g: &'g Graph,
    printed: HashMap<ValueId, Val>,
    port: fn(&Type) -> Result<Port, String>,
}

impl<'g> Values<'g> {
    /// Nothing is printed of a graph yet. `port` says what a value of a type is in the text, or why it has no form there.
    pub fn new(g: &'g Graph, port: fn(&Type) -> Result<Port, String>) -> Values<'g> {
        Values { g, printed: HashMap::new(), port }
    }

    /// What a value is in the text, or why it has no form there.
    ///
    /// # Errors
    /// That reason.
    pub fn port(&self, v: ValueId) -> Result<Port, String> {
        (self.port)(self.g.ty(v))
    }

    /// Says what a value is from here on.
    pub fn set(&mut self, v: ValueId, val: Val) {
        self.printed.insert(v, val);
    }

    /// What was printed of a value.
    ///
    /// # Errors
    /// When it has no form.
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
    /// When it has no form, or is left out.
    pub fn operand(&self, op: OpId, i: usize) -> Result<Val, String> {
        self.optional(op, i)?.ok_or_else(|| format!("operand {i} is left out"))
    }

    /// Operand `i`, unless it is left out.
    ///
    /// # Errors
    /// When it has no form.
    pub fn optional(&self, op: OpId, i: usize) -> Result<Option<Val>, String> {
        match self.g.op(op).operands.get(i) {
            Some(v) if *self.g.ty(*v) != Type::None => self.value(*v).map(Some),
            _ => Ok(None),
        }
    }

    /// All operands of an op.
    ///
    /// # Errors
    /// When one has no form.
    pub fn operands(&self, op: OpId) -> Result<Vec<Val>, String> {
        self.g.op(op).operands.iter().map(|v| self.value(*v)).collect()
    }

    /// Operand `i` as integers; `None` where it is left out.
    ///
    /// # Errors
    /// When they are not known before the run.
    pub fn ints(&self, op: OpId, i: usize) -> Result<Option<Vec<i64>>, String> {
        let Some(v) = self.g.op(op).operands.get(i).filter(|v| *self.g.ty(**v) != Type::None) else { return Ok(None) };
        let derived = || self.g.dims_value(*v)?.iter().map(of_ir::Dim::as_const).collect();
        let known = self.g.constant(*v).and_then(|t| t.to_i64s()).or_else(derived);
        known.map(Some).ok_or_else(|| format!("operand {i} is not known before the run"))
    }

    /// Element type and extents of result `i`.
    ///
    /// # Errors
    /// When it has no form.
    pub fn result(&self, op: OpId, i: usize) -> Result<Port, String> {
        self.port(self.g.op(op).results[i])
    }

    /// The op as its struct.
    ///
    /// # Errors
    /// When its attributes are not those of the struct.
    pub fn attrs<T: OpSpec>(&self, op: OpId) -> Result<T, String> {
        of_ops::list::as_op::<T>(self.g, op).ok_or_else(|| "its attributes do not decode".to_string())
    }

    /// The result of an op whose elements follow from shapes alone, as a constant.
    pub(crate) fn folded(&self, op: OpId) -> Option<Tensor> {
        let [v] = self.g.op(op).results[..] else { return None };
        let (dtype, dims) = self.port(v).ok()?;
        let numbers: Vec<i128> =
            self.g.dims_value(v)?.iter().map(|d| d.as_const().map(i128::from)).collect::<Option<_>>()?;
        Tensor::from_elements(dtype, dims, Elements::Int(numbers)).ok()
    }
}
