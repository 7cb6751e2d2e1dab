//! Plans: loading, saving, looking at them.

use std::path::PathBuf;
use std::sync::Arc;

use of_diag::{Code, Diagnostic, Diagnostics, Location};
use of_driver::model::{open_plan, plan_from_bytes};
use of_driver::session::entry_point;
use of_driver::{io_error, signed_plan};
use of_plan::PlanFile;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::error::{input_error, raised};
use crate::notebook::embedded;
use crate::ports::Port;

/// A compiled model: machine code, weights and memory layout.
#[pyclass(frozen, module = "of_opt")]
pub struct Plan {
    pub file: Arc<PlanFile>,
}

impl Plan {
    /// An open plan.
    pub fn new(file: PlanFile) -> Plan {
        Plan { file: Arc::new(file) }
    }
}

#[pymethods]
impl Plan {
    /// Opens a plan: a file, which is mapped into memory, or bytes, which are copied. With a required signature it is a file, which is read.
    #[staticmethod]
    #[pyo3(signature = (source, *, require_signature = None, signature = None))]
    fn load(
        py: Python<'_>,
        source: &Bound<'_, PyAny>,
        require_signature: Option<PathBuf>,
        signature: Option<PathBuf>,
    ) -> PyResult<Plan> {
        if signature.is_some() && require_signature.is_none() {
            let hint = "give the public key as require_signature";
            return Err(input_error(py, "a signature is checked only with a key", Some(hint)));
        }
        let opened = match (source.extract::<PathBuf>(), require_signature) {
            (Ok(path), Some(key)) => py.detach(|| signed_plan::open(&path, signature.as_deref(), &key)),
            (Ok(path), None) => py.detach(|| open_plan(&path)),
            (Err(_), Some(_)) => {
                return Err(input_error(py, "a signed plan is loaded from a file, not from bytes", None));
            }
            (Err(_), None) => {
                let bytes = py.get_type::<PyBytes>().call1((source,))?;
                let bytes = bytes.cast::<PyBytes>()?.as_bytes();
                py.detach(|| plan_from_bytes(bytes, "<bytes>"))
            }
        };
        opened.map(Plan::new).map_err(|e| raised(py, &e))
    }

    /// Writes the plan to a file.
    fn save(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        let written = py.detach(|| of_files::write(&path, self.file.bytes()));
        written.map_err(|e| raised(py, &io_error(&path, "write", &e).into()))
    }

    /// The bytes of the plan, as `save` writes them.
    fn to_bytes<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.file.bytes())
    }

    /// What is in the plan: the text of `of-opt inspect`, or its JSON.
    #[pyo3(signature = (*, json = false))]
    fn inspect(&self, py: Python<'_>, json: bool) -> String {
        py.detach(|| if json { of_plan::json(&self.file) } else { of_plan::text(&self.file) })
    }

    /// Proves that the plan cannot deadlock and that its memory is sound.
    fn verify(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.file.verify()).map_err(|findings| {
            let one = |f: &of_plan::Finding| Diagnostic::error(Code::PLAN, Location::Unknown, f.to_string());
            raised(py, &Diagnostics(findings.iter().map(one).collect()))
        })
    }

    /// The name of the model.
    #[getter]
    fn model(&self) -> String {
        self.file.plan().info.model.clone()
    }

    /// The inputs, in the order of the model.
    #[getter]
    fn inputs(&self, py: Python<'_>) -> PyResult<Vec<Port>> {
        let program = entry_point(&self.file).map_err(|e| raised(py, &e))?;
        Ok(program.inputs.iter().map(|port| Port::of(port, &program)).collect())
    }

    /// The outputs, in the order of the model.
    #[getter]
    fn outputs(&self, py: Python<'_>) -> PyResult<Vec<Port>> {
        let program = entry_point(&self.file).map_err(|e| raised(py, &e))?;
        Ok(program.outputs.iter().map(|port| Port::of(port, &program)).collect())
    }

    /// The variables, which a session keeps between runs; several programs have the same ones.
    #[getter]
    fn variables(&self) -> Vec<Port> {
        let program = self.file.plan().programs.iter().find(|program| !program.variables.is_empty());
        program.map_or(Vec::new(), |program| program.variables.iter().map(|v| Port::of_variable(v, program)).collect())
    }

    /// The interactive page, for notebooks.
    fn _repr_html_(&self, py: Python<'_>) -> String {
        py.detach(|| embedded(&of_page::plan::page(self.file.plan())))
    }

    fn __repr__(&self) -> String {
        let plan = self.file.plan();
        format!("Plan({}, {} bytes)", plan.info.model, self.file.file_len())
    }
}
