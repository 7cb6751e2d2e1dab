//! Values.

use std::hash::{DefaultHasher, Hash, Hasher};

use of_ir::{Type, ValueDef, ValueId};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use super::op::Op;
use super::shared::Place;
use super::types::{Extent, dtype_name};

/// A result of an op, or an argument of a region.
#[pyclass(frozen, module = "of_opt.ir", skip_from_py_object)]
#[derive(Clone)]
pub struct Value {
    pub place: Place,
    pub id: ValueId,
}

#[pymethods]
impl Value {
    /// The type as text, such as "tensor<?(N)x4xf32>".
    #[getter]
    fn r#type(&self, py: Python<'_>) -> PyResult<String> {
        self.place.read(py, |graph| graph.ty(self.id).to_string())
    }

    /// The name of the element type's dtype; None if it is no tensor.
    #[getter]
    fn dtype(&self, py: Python<'_>) -> PyResult<Option<&'static str>> {
        self.place.read(py, |graph| graph.ty(self.id).as_tensor().map(|t| dtype_name(t.dtype)))
    }

    /// The extents: numbers, and text such as "N" or "N*2 + 1" for symbols. None if it is no tensor, or its rank is open.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyTuple>>> {
        let shape = self.place.read(py, |graph| match graph.ty(self.id) {
            Type::Tensor(t) => t.shape.as_ref().map(|dims| dims.iter().map(Extent::of).collect::<Vec<_>>()),
            _ => None,
        })?;
        shape.map(|shape| PyTuple::new(py, shape)).transpose()
    }

    /// The name in the text; None if it has a number there.
    #[getter]
    fn name(&self, py: Python<'_>) -> PyResult<Option<String>> {
        self.place.read(py, |graph| graph.name(self.id).map(|name| name.to_string()))
    }

    /// The op whose result it is; None for an argument.
    #[getter]
    fn op(&self, py: Python<'_>) -> PyResult<Option<Op>> {
        self.place.read(py, |graph| match graph.def(self.id) {
            ValueDef::Result(op, _) => Some(Op { place: self.place.clone(), id: op }),
            ValueDef::Arg(..) => None,
        })
    }

    /// The ops that read it, with the number of the operand.
    #[getter]
    fn uses(&self, py: Python<'_>) -> PyResult<Vec<(Op, u32)>> {
        self.place.read(py, |graph| {
            let one = |u: &of_ir::Use| (Op { place: self.place.clone(), id: u.op }, u.operand);
            graph.uses(self.id).iter().map(one).collect()
        })
    }

    fn __eq__(&self, other: &Bound<'_, PyAny>) -> bool {
        other.cast::<Value>().is_ok_and(|other| self.place.is(&other.get().place) && self.id == other.get().id)
    }

    fn __hash__(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        (self.id, &self.place.func).hash(&mut hasher);
        hasher.finish()
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        self.place.read(py, |graph| {
            let name =
                graph.name(self.id).map_or_else(|| format!("value {}", self.id.index()), |name| format!("%{name}"));
            format!("Value({name}: {})", graph.ty(self.id))
        })
    }
}
