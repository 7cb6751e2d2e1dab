//! Errors as exceptions: the text of the command line, and the parts of each diagnostic.

use of_diag::{Diagnostic, Diagnostics, Location, Renderer};
use of_driver::error;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

/// The exception for diagnostics. `renderer` has the texts that they point into.
pub fn exception(py: Python<'_>, list: &Diagnostics, renderer: &Renderer) -> PyErr {
    let made = || {
        let text: String = list.0.iter().map(|d| renderer.render(d)).collect();
        let parts = list.0.iter().map(|d| diagnostic(py, d)).collect::<PyResult<Vec<_>>>()?;
        py.import("of_opt._errors")?.getattr("exception")?.call1((text.trim_end(), parts))
    };
    match made() {
        Ok(exception) => PyErr::from_value(exception),
        Err(e) => e,
    }
}

/// The exception for one error.
pub fn raised(py: Python<'_>, list: &Diagnostics) -> PyErr {
    exception(py, list, &Renderer::default())
}

/// The exception for an input that does not fit.
pub fn input_error(py: Python<'_>, message: impl Into<String>, hint: Option<&str>) -> PyErr {
    let made = error(of_diag::Code::INPUT, message);
    raised(py, &hint.map_or(made.clone(), |hint| made.hint(hint)).into())
}

/// Severity, code, message, location, notes and hint, as `of_opt.Diagnostic` takes them.
pub fn diagnostic<'py>(py: Python<'py>, d: &Diagnostic) -> PyResult<Bound<'py, PyTuple>> {
    let location = (d.location != Location::Unknown).then(|| d.location.to_string());
    (d.severity.as_str(), d.code.0, &d.message, location, &d.notes, &d.hint).into_pyobject(py)
}
