//! Regions: reading their ops, and adding ops to them.

use of_ir::{NewOp, RegionId, Rewriter, ValueId};
use of_ops::structural::{Constant, NoneValue};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::error::input_error;

use super::attributes::to_attrs;
use super::constants::to_tensor;
use super::locations::to_location;
use super::op::Op;
use super::shared::Place;
use super::types::to_type;
use super::value::Value;

/// One block of ops: the body of a function, or a region of an op.
#[pyclass(frozen, module = "of_opt.ir", skip_from_py_object)]
#[derive(Clone)]
pub struct Region {
    pub place: Place,
    pub id: RegionId,
}

/// What an op is made of.
struct Parts<'a, 'py> {
    operands: Vec<Bound<'py, PyAny>>,
    attributes: Option<&'a Bound<'py, PyDict>>,
    regions: Vec<PyRef<'py, Region>>,
    location: Option<&'a Bound<'py, PyAny>>,
}

impl Region {
    /// Edits the function at the end of this region.
    ///
    /// # Errors
    /// Those of `f`, and when a pass has changed the module since the handle was made.
    pub fn edit<T>(
        &self,
        py: Python<'_>,
        location: of_diag::Location,
        f: impl FnOnce(&mut Rewriter<'_>) -> Result<T, of_diag::Diagnostic>,
    ) -> PyResult<T> {
        let mut state = self.place.shared.lock(py);
        let func = self.place.func_mut(py, &mut state)?;
        let mut rewriter = Rewriter::new(&mut func.graph, "build");
        rewriter.at_end(self.id);
        rewriter.set_location(location);
        let made = f(&mut rewriter);
        made.map_err(|e| state.raised(py, &e.into()))
    }

    /// The values of operands: values, None for one that is left out, and arrays and integers as constants.
    fn operands(
        &self,
        py: Python<'_>,
        given: &[Bound<'_, PyAny>],
        location: &of_diag::Location,
    ) -> PyResult<Vec<ValueId>> {
        let one = |value: &Bound<'_, PyAny>| -> PyResult<ValueId> {
            if let Ok(value) = value.cast::<Value>() {
                let value = value.get();
                if !value.place.is(&self.place) {
                    let what = format!("an operand is of another function than @{}", self.place.func);
                    return Err(input_error(py, what, Some("or a pass has changed the module since it was made")));
                }
                return Ok(value.id);
            }
            if value.is_none() {
                return self.edit(py, location.clone(), |rewriter| rewriter.create_one(NoneValue {}, &[]));
            }
            let constant = Constant { value: to_tensor(value)? };
            self.edit(py, location.clone(), |rewriter| rewriter.create_one(constant, &[]))
        };
        given.iter().map(one).collect()
    }

    fn create(&self, py: Python<'_>, name: &str, parts: &Parts<'_, '_>) -> PyResult<Op> {
        let def = of_ops::decl(name).map(of_ops::OpDecl::as_def).ok_or_else(|| {
            let known = of_ops::registry();
            let end = name.rsplit('.').next().unwrap_or(name);
            let near = known.iter().map(|op| op.name()).filter(|op| op.contains(end)).take(5).collect::<Vec<_>>();
            let hint = match near.is_empty() || end.is_empty() {
                true => "'of-opt ops' lists all".to_owned(),
                false => format!("there are {}", near.join(", ")),
            };
            input_error(py, format!("no op is called '{name}'"), Some(&hint))
        })?;
        let location = to_location(py, parts.location)?;
        let attrs = to_attrs(def, parts.attributes)?;
        for region in &parts.regions {
            if !region.place.is(&self.place) {
                return Err(input_error(py, "a region is of another function", None));
            }
            let taken = self.place.read(py, |graph| graph.region_parent(region.id).is_some())?;
            if taken || region.id == self.id {
                return Err(input_error(py, "a region belongs to an op already", Some("make one with 'region'")));
            }
        }
        let operands = self.operands(py, &parts.operands, &location)?;
        let regions: Vec<RegionId> = parts.regions.iter().map(|region| region.id).collect();
        let new = (def, attrs);
        let id = self.edit(py, location, |rewriter| create(rewriter, new, &operands, &regions))?;
        Ok(Op { place: self.place.clone(), id })
    }
}

fn create(
    rewriter: &mut Rewriter<'_>,
    new: impl NewOp,
    operands: &[ValueId],
    regions: &[RegionId],
) -> Result<of_ir::OpId, of_diag::Diagnostic> {
    match regions {
        [] => rewriter.create(new, operands),
        _ => rewriter.create_with_regions(new, operands, regions),
    }
}

#[pymethods]
impl Region {
    /// The arguments.
    #[getter]
    fn arguments(&self, py: Python<'_>) -> PyResult<Vec<Value>> {
        self.place.read(py, |graph| {
            let one = |id: &ValueId| Value { place: self.place.clone(), id: *id };
            graph.region_args(self.id).iter().map(one).collect()
        })
    }

    /// The ops of this block, in order, without those in their regions.
    #[getter]
    fn ops(&self, py: Python<'_>) -> PyResult<Vec<Op>> {
        self.place.read(py, |graph| graph.region_ops(self.id).map(|id| Op { place: self.place.clone(), id }).collect())
    }

    /// Adds an op at the end.
    #[pyo3(signature = (name, operands = Vec::new(), attributes = None, *, regions = Vec::new(), location = None))]
    fn op<'py>(
        &self,
        py: Python<'py>,
        name: &str,
        operands: Vec<Bound<'py, PyAny>>,
        attributes: Option<&Bound<'py, PyDict>>,
        regions: Vec<PyRef<'py, Region>>,
        location: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Op> {
        self.create(py, name, &Parts { operands, attributes, regions, location })
    }

    /// Adds a constant at the end. It shares the memory of a row-major array.
    #[pyo3(signature = (value, *, location = None))]
    fn constant(
        &self,
        py: Python<'_>,
        value: &Bound<'_, PyAny>,
        location: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Value> {
        let location = to_location(py, location)?;
        let constant = Constant { value: to_tensor(value)? };
        let id = self.edit(py, location, |rewriter| rewriter.create_one(constant, &[]))?;
        Ok(Value { place: self.place.clone(), id })
    }

    /// A new region with arguments of these types, for an op with regions.
    #[pyo3(signature = (types = Vec::new()))]
    fn region(&self, py: Python<'_>, types: Vec<String>) -> PyResult<Region> {
        let types = types.iter().map(|text| to_type(py, text)).collect::<PyResult<Vec<_>>>()?;
        let id = self.edit(py, of_diag::Location::Unknown, |rewriter| {
            let region = rewriter.new_region();
            for ty in types {
                rewriter.add_arg(region, ty, None);
            }
            Ok(region)
        })?;
        Ok(Region { place: self.place.clone(), id })
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        self.place.read(py, |graph| {
            let (args, ops) = (graph.region_args(self.id).len(), graph.region_ops(self.id).count());
            format!("Region({args} arguments, {ops} ops)")
        })
    }
}
