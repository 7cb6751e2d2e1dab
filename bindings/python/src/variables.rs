//! Variables: the values that a session keeps between runs, as a mapping.

use std::sync::Arc;

use of_driver::session::run_error;
use of_plan::{ElementType, PlanFile};
use of_runtime::{RunError, Value};
use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use pyo3::types::{PyIterator, PyList};

use crate::error::{input_error, raised};
use crate::values::{from_value, to_value};

/// The variables of a session: names and current values. Sessions of one plan may share them.
#[pyclass(frozen, mapping, module = "of_opt")]
pub struct Variables {
    /// The plan whose sessions may share them.
    pub plan: Arc<PlanFile>,
    /// `None` where the plan has no variables.
    pub values: Option<Arc<of_runtime::Variables>>,
}

impl Variables {
    fn names(&self) -> impl Iterator<Item = &str> {
        self.values.iter().flat_map(|values| values.list()).map(|variable| variable.name.as_str())
    }

    /// The values, if there is a variable of this name.
    fn of(&self, name: &str) -> PyResult<&Arc<of_runtime::Variables>> {
        if let Some(values) = self.values.as_ref().filter(|_| self.names().any(|known| known == name)) {
            return Ok(values);
        }
        let names: Vec<_> = self.names().take(8).collect();
        let known = match names.is_empty() {
            true => "the plan has none".to_owned(),
            false => format!("its variables are {}", names.join(", ")),
        };
        Err(PyKeyError::new_err(format!("the plan has no variable '{name}': {known}")))
    }
}

#[pymethods]
impl Variables {
    fn __len__(&self) -> usize {
        self.names().count()
    }

    fn __contains__(&self, name: &Bound<'_, PyAny>) -> bool {
        name.extract::<String>().is_ok_and(|name| self.names().any(|known| known == name))
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyIterator>> {
        self.keys(py)?.try_iter()
    }

    fn __getitem__<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
        let values = self.of(name)?;
        // It waits for a run that is under way.
        let value = py.detach(|| values.get(name)).map_err(|e| raised(py, &run_error(&e)))?;
        from_value(py, value.into())
    }

    fn __setitem__(&self, py: Python<'_>, name: &str, value: &Bound<'_, PyAny>) -> PyResult<()> {
        let values = self.of(name)?;
        let dtype = values.list().iter().find(|variable| variable.name == name).map(of_plan::Variable::dtype);
        let mut owners = Vec::new();
        let Value::Tensor(tensor) = to_value(value, dtype.unwrap_or(ElementType::Unknown), &mut owners)? else {
            return Err(input_error(py, format!("the value for variable '{name}' is no tensor"), None));
        };
        let set = py.detach(|| values.set(name, &tensor));
        drop((tensor, owners));
        set.map_err(|e: RunError| raised(py, &run_error(&e)))
    }

    /// The names.
    fn keys<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        PyList::new(py, self.names())
    }

    /// Names and current values.
    fn items<'py>(&self, py: Python<'py>) -> PyResult<Vec<(String, Bound<'py, PyAny>)>> {
        self.names().map(|name| Ok((name.to_owned(), self.__getitem__(py, name)?))).collect()
    }

    /// Gives every variable its initial value; those without one have none afterwards.
    fn reset(&self, py: Python<'_>) {
        if let Some(values) = &self.values {
            py.detach(|| values.reset());
        }
    }

    fn __repr__(&self) -> String {
        format!("Variables({})", self.names().collect::<Vec<_>>().join(", "))
    }
}
