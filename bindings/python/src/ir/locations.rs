//! Locations of ops that Python makes.

use of_diag::Location;
use pyo3::prelude::*;

use crate::error::input_error;

/// A location: `(file, line)`, `(file, line, column)`, or a node of another framework's graph as `(node, index, op)`. None is the
/// line of Python that calls.
pub fn to_location(py: Python<'_>, given: Option<&Bound<'_, PyAny>>) -> PyResult<Location> {
    let Some(given) = given else { return caller(py) };
    if let Ok((node, index, op)) = given.extract::<(String, u32, String)>() {
        return Ok(Location::onnx(node, index, op));
    }
    if let Ok((file, line, column)) = given.extract::<(String, u32, u32)>() {
        return Ok(Location::source(file, line, column));
    }
    let (file, line) = given.extract::<(String, u32)>().map_err(|_| {
        let hint = "it is (file, line), (file, line, column) or (node, index, op)";
        input_error(py, "the location is of another form", Some(hint))
    })?;
    Ok(Location::source(file, line, 1))
}

/// The line of Python that calls.
fn caller(py: Python<'_>) -> PyResult<Location> {
    let frame = py.import("sys")?.call_method0("_getframe")?;
    let line: Option<u32> = frame.getattr("f_lineno")?.extract()?;
    let file: String = frame.getattr("f_code")?.getattr("co_filename")?.extract()?;
    Ok(Location::source(file, line.unwrap_or(1), 1))
}
