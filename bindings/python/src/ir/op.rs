//! Ops.

use std::hash::{DefaultHasher, Hash, Hasher};

use of_ir::text::print_op_short;
use of_ir::{OpData, OpId, Type};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::error::input_error;

use super::attributes::from_attrs;
use super::region::Region;
use super::shared::Place;
use super::value::Value;

/// An op of a function.
#[pyclass(frozen, module = "of_opt.ir", skip_from_py_object)]
#[derive(Clone)]
pub struct Op {
    pub place: Place,
    pub id: OpId,
}

impl Op {
    fn read<T>(&self, py: Python<'_>, f: impl FnOnce(&OpData) -> T) -> PyResult<T> {
        self.place.read(py, |graph| f(graph.op(self.id)))
    }

    fn value(&self, id: of_ir::ValueId) -> Value {
        Value { place: self.place.clone(), id }
    }
}

#[pymethods]
impl Op {
    /// The full name, such as "of.matmul".
    #[getter]
    fn name(&self, py: Python<'_>) -> PyResult<&'static str> {
        self.read(py, OpData::name)
    }

    /// The operands; None for one that is left out.
    #[getter]
    fn operands(&self, py: Python<'_>) -> PyResult<Vec<Option<Value>>> {
        self.place.read(py, |graph| {
            let one = |id: &of_ir::ValueId| (*graph.ty(*id) != Type::None).then(|| self.value(*id));
            graph.op(self.id).operands.iter().map(one).collect()
        })
    }

    /// The results.
    #[getter]
    fn results(&self, py: Python<'_>) -> PyResult<Vec<Value>> {
        self.read(py, |op| op.results.iter().map(|id| self.value(*id)).collect())
    }

    /// The only result.
    #[getter]
    fn result(&self, py: Python<'_>) -> PyResult<Value> {
        match self.read(py, |op| (op.results.len(), op.results.first().copied()))? {
            (1, Some(id)) => Ok(self.value(id)),
            (count, _) => Err(input_error(py, format!("the op has {count} results"), Some("take one of 'results'"))),
        }
    }

    /// The attributes by name.
    #[getter]
    fn attributes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let attrs = self.read(py, |op| op.attrs.clone())?;
        from_attrs(py, &attrs)
    }

    /// The regions.
    #[getter]
    fn regions(&self, py: Python<'_>) -> PyResult<Vec<Region>> {
        self.read(py, |op| op.regions.iter().map(|id| Region { place: self.place.clone(), id: *id }).collect())
    }

    /// Where it comes from, as text; None if nothing is known.
    #[getter]
    fn location(&self, py: Python<'_>) -> PyResult<Option<String>> {
        self.read(py, |op| (op.loc != of_diag::Location::Unknown).then(|| op.loc.to_string()))
    }

    fn __eq__(&self, other: &Bound<'_, PyAny>) -> bool {
        other.cast::<Op>().is_ok_and(|other| self.place.is(&other.get().place) && self.id == other.get().id)
    }

    fn __hash__(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        (self.id, &self.place.func).hash(&mut hasher);
        hasher.finish()
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        self.place.read(py, |graph| format!("Op({})", print_op_short(graph, self.id).trim_end()))
    }
}
