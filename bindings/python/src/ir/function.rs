//! Functions.

use of_ir::text::{PrintOptions, print_func};
use of_ir::{Rewriter, ValueId};
use of_ops::structural::Return;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::error::input_error;

use super::locations::to_location;
use super::op::Op;
use super::region::Region;
use super::shared::Place;
use super::types::to_type;
use super::value::Value;

/// A function: named inputs and outputs, and a body.
#[pyclass(frozen, module = "of_opt.ir")]
pub struct Function {
    pub place: Place,
}

#[pymethods]
impl Function {
    /// The name.
    #[getter]
    fn name(&self) -> &str {
        &self.place.func
    }

    /// The names of the inputs.
    #[getter]
    fn inputs(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        let state = self.place.shared.lock(py);
        Ok(self.place.func(py, &state)?.inputs.clone())
    }

    /// The names of the outputs; empty until they are given.
    #[getter]
    fn outputs(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        let state = self.place.shared.lock(py);
        Ok(self.place.func(py, &state)?.outputs.clone())
    }

    /// The body.
    #[getter]
    fn body(&self, py: Python<'_>) -> PyResult<Region> {
        let id = self.place.read(py, of_ir::Graph::entry)?;
        Ok(Region { place: self.place.clone(), id })
    }

    /// All ops with those in regions, each before those in its regions.
    fn walk(&self, py: Python<'_>) -> PyResult<Vec<Op>> {
        self.place.read(py, |graph| graph.walk().into_iter().map(|id| Op { place: self.place.clone(), id }).collect())
    }

    /// Adds an input.
    fn input(&self, py: Python<'_>, name: &str, r#type: &str) -> PyResult<Value> {
        let ty = to_type(py, r#type)?;
        let mut state = self.place.shared.lock(py);
        let func = self.place.func_mut(py, &mut state)?;
        if func.inputs.iter().any(|known| known == name) {
            return Err(input_error(py, format!("@{} has an input '{name}' already", self.place.func), None));
        }
        func.inputs.push(name.to_owned());
        let entry = func.graph.entry();
        let id = Rewriter::new(&mut func.graph, "build").add_arg(entry, ty, Some(name.into()));
        Ok(Value { place: self.place.clone(), id })
    }

    /// Ends the function with these outputs.
    #[pyo3(signature = (outputs, *, location = None))]
    fn returns(
        &self,
        py: Python<'_>,
        outputs: &Bound<'_, PyDict>,
        location: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let location = to_location(py, location)?;
        let (mut names, mut values): (Vec<String>, Vec<ValueId>) = (Vec::new(), Vec::new());
        for (name, value) in outputs {
            let value = value.cast::<Value>().map_err(|_| input_error(py, "an output is no value", None))?.get();
            if !value.place.is(&self.place) {
                return Err(input_error(py, "an output is a value of another function", None));
            }
            names.push(name.extract()?);
            values.push(value.id);
        }
        let body = self.body(py)?;
        if self.place.read(py, |graph| graph.terminator(body.id).is_some())? {
            return Err(input_error(py, format!("@{} has its outputs already", self.place.func), None));
        }
        body.edit(py, location, |rewriter| rewriter.create(Return {}, &values))?;
        let mut state = self.place.shared.lock(py);
        self.place.func_mut(py, &mut state)?.outputs = names;
        Ok(())
    }

    fn __str__(&self, py: Python<'_>) -> PyResult<String> {
        let state = self.place.shared.lock(py);
        Ok(print_func(&self.place.func, self.place.func(py, &state)?, &PrintOptions::default()))
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!("Function(@{}, {} ops)", self.place.func, self.walk(py)?.len()))
    }
}
