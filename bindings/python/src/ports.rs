//! Inputs and outputs of a plan, as Python sees them.

use of_plan::{Port as PlanPort, Program, Variable};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::numpy;

/// An input, output or variable: name, dtype, shape.
#[pyclass(frozen, module = "of_opt", skip_from_py_object)]
#[derive(Clone)]
pub struct Port {
    /// The name in the model.
    #[pyo3(get)]
    name: String,
    /// The name of the dtype: "float32", "bfloat16", "bool", "str" for text, "object" for a sequence or an optional value.
    #[pyo3(get)]
    dtype: &'static str,
    /// The type for people, such as "f32[N, 3, 224, 224]".
    #[pyo3(get)]
    type_text: String,
    shape: Option<Vec<Extent>>,
}

#[derive(Clone, IntoPyObjectRef)]
enum Extent {
    Fixed(i64),
    Named(String),
    Open(Option<i64>),
}

impl Port {
    /// A port of a program.
    pub fn of(port: &PlanPort, program: &Program) -> Port {
        let extent = |(axis, dim): (usize, &i64)| match port.extent(axis, program) {
            _ if *dim >= 0 => Extent::Fixed(*dim),
            Some(extent) => Extent::Named(extent.text(&program.symbols)),
            None => Extent::Open(None),
        };
        let any_rank = port.object && port.dims.is_empty();
        Port {
            name: port.name.clone(),
            dtype: numpy::name(port.dtype()),
            type_text: port.type_text(program),
            shape: (!any_rank).then(|| port.dims.iter().enumerate().map(extent).collect()),
        }
    }

    /// A variable of a program.
    pub fn of_variable(variable: &Variable, program: &Program) -> Port {
        let Variable { name, dtype, dims, .. } = variable.clone();
        Port::of(&PlanPort { name, dtype, dims, ..PlanPort::default() }, program)
    }
}

#[pymethods]
impl Port {
    /// The extents: numbers, text such as "N" or "2*N + 1" for an open extent, None for one without a name. None if the rank is
    /// open.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyTuple>>> {
        self.shape.as_ref().map(|shape| PyTuple::new(py, shape)).transpose()
    }

    fn __repr__(&self) -> String {
        format!("Port({}: {})", self.name, self.type_text)
    }
}
