//! Variables: the values that a session keeps between runs, as a mapping.

use std::sync::Arc;

use of_diag::Diagnostics;
use of_driver::session::run_error;
use of_plan::{ElementType, PlanFile};
use of_runtime::{Tensor, Value};
use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use pyo3::types::{PyIterator, PyList};

use crate::error::{input_error, raised};
use crate::ranks::Ranks;
use crate::values::{from_value, to_value};

/// The variables of a session: names and current values. Sessions of one plan may share them.
#[pyclass(frozen, mapping, module = "of_opt")]
pub struct Variables {
    /// The plan whose sessions may share them.
    pub plan: Arc<PlanFile>,
    /// Where their values are.
    pub values: Values,
}

/// Where the values of variables are.
#[derive(Clone)]
pub enum Values {
    /// The plan has no variables.
    None,
    One(Arc<of_runtime::Variables>),
    /// Each rank of a mesh has its part.
    Ranks(Arc<Ranks>),
}

impl Values {
    /// Names and element types.
    fn list(&self) -> Vec<(&str, ElementType)> {
        match self {
            Values::None => Vec::new(),
            Values::One(values) => values.list().iter().map(|v| (v.name.as_str(), v.dtype())).collect(),
            Values::Ranks(ranks) => ranks.list().iter().map(|port| (port.name.as_str(), port.dtype())).collect(),
        }
    }

    fn get(&self, name: &str) -> Result<Tensor, Diagnostics> {
        match self {
            Values::One(values) => values.get(name).map_err(|e| run_error(&e)),
            Values::Ranks(ranks) => ranks.get(name),
            Values::None => Err(Diagnostics::default()),
        }
    }

    fn set(&self, name: &str, value: &Tensor) -> Result<(), Diagnostics> {
        match self {
            Values::One(values) => values.set(name, value).map_err(|e| run_error(&e)),
            Values::Ranks(ranks) => ranks.set(name, value),
            Values::None => Ok(()),
        }
    }

    fn reset(&self) -> Result<(), Diagnostics> {
        match self {
            Values::One(values) => values.reset(),
            Values::Ranks(ranks) if !ranks.list().is_empty() => ranks.reset()?,
            Values::Ranks(_) | Values::None => {}
        }
        Ok(())
    }
}

impl Variables {
    fn names(&self) -> impl Iterator<Item = &str> {
        self.values.list().into_iter().map(|(name, _)| name)
    }

    /// The values, if there is a variable of this name.
    fn of(&self, name: &str) -> PyResult<&Values> {
        if self.names().any(|known| known == name) {
            return Ok(&self.values);
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
        let value = py.detach(|| values.get(name)).map_err(|e| raised(py, &e))?;
        from_value(py, value.into())
    }

    fn __setitem__(&self, py: Python<'_>, name: &str, value: &Bound<'_, PyAny>) -> PyResult<()> {
        let values = self.of(name)?;
        let dtype = values.list().into_iter().find(|(known, _)| *known == name).map(|(_, dtype)| dtype);
        let mut owners = Vec::new();
        let Value::Tensor(tensor) = to_value(value, dtype.unwrap_or(ElementType::Unknown), &mut owners)? else {
            return Err(input_error(py, format!("the value for variable '{name}' is no tensor"), None));
        };
        let set = py.detach(|| values.set(name, &tensor));
        drop((tensor, owners));
        set.map_err(|e| raised(py, &e))
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
    fn reset(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.values.reset()).map_err(|e| raised(py, &e))
    }

    fn __repr__(&self) -> String {
        format!("Variables({})", self.names().collect::<Vec<_>>().join(", "))
    }
}
