//! Modules.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use of_diag::{Diagnostics, Renderer};
use of_driver::Model;
use of_driver::model::{ModelOrPlan, already_compiled, open_for};
use of_ir::text::{Constants, PrintOptions, print_module};
use of_ir::{Attrs, Func, Graph};
use of_passes::Manager;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::compile::Sources;
use crate::error::{exception, input_error};
use crate::notebook::embedded;

use super::constants::to_tensor;
use super::function::Function;
use super::locations::to_location;
use super::shared::{Place, Shared, State};

/// A module of the IR.
#[pyclass(frozen, module = "of_opt.ir")]
pub struct Module {
    shared: Shared,
}

impl Module {
    fn of(
        read: Result<of_ir::Module, Diagnostics>,
        sources: Vec<(String, String)>,
        py: Python<'_>,
    ) -> PyResult<Module> {
        let mut state = State::new(of_ir::Module::default(), sources);
        state.module = read.map_err(|e| state.raised(py, &e))?;
        Ok(Module { shared: Shared::new(state) })
    }

    /// A copy of the module, which shares its constants, and what renders its diagnostics.
    pub fn copy(&self, py: Python<'_>) -> (of_ir::Module, Renderer) {
        let state = self.shared.lock(py);
        (state.module.clone(), state.renderer())
    }

    fn text(&self, py: Python<'_>, generic: bool, locations: bool, elide: bool) -> String {
        py.detach(|| {
            let constants = if elide { Constants::Elided } else { Constants::Inline };
            print_module(&self.shared.detached().module, &PrintOptions { generic, locations, constants })
        })
    }
}

#[pymethods]
impl Module {
    /// An empty module.
    #[new]
    #[pyo3(signature = (name = String::new()))]
    fn new(name: String) -> Module {
        let module = of_ir::Module { name, ..of_ir::Module::default() };
        Module { shared: Shared::new(State::new(module, Vec::new())) }
    }

    /// Reads IR text.
    #[staticmethod]
    #[pyo3(signature = (text, *, file = "<text>", folder = None))]
    fn parse(py: Python<'_>, text: &str, file: &str, folder: Option<PathBuf>) -> PyResult<Module> {
        let read = py.detach(|| Model::from_text(text, file, folder.as_deref()));
        Module::of(read.map(|model| model.module), vec![(file.to_owned(), text.to_owned())], py)
    }

    /// Reads a StableHLO module; arguments that have a value are constants.
    #[staticmethod]
    #[pyo3(signature = (text, *, file = "<text>", constants = BTreeMap::new()))]
    fn parse_stablehlo(
        py: Python<'_>,
        text: &str,
        file: &str,
        constants: BTreeMap<usize, Bound<'_, PyAny>>,
    ) -> PyResult<Module> {
        let constants = constants.into_iter().map(|(i, value)| Ok((i, to_tensor(&value)?)));
        let constants = constants.collect::<PyResult<BTreeMap<_, _>>>()?;
        let read = py.detach(|| Model::from_stablehlo(text, file, &constants));
        Module::of(read.map(|model| model.module), vec![(file.to_owned(), text.to_owned())], py)
    }

    /// Reads a file: an ONNX model or IR text.
    #[staticmethod]
    fn load(py: Python<'_>, path: PathBuf) -> PyResult<Module> {
        let (read, sources) = py.detach(|| {
            let sources = Sources::default();
            let read = load(&path, &sources);
            (read, sources.into_inner())
        });
        Module::of(read, sources, py)
    }

    /// The name of the model.
    #[getter]
    fn name(&self, py: Python<'_>) -> String {
        self.shared.lock(py).module.name.clone()
    }

    /// The functions by name.
    #[getter]
    fn functions<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let functions = PyDict::new(py);
        let state = self.shared.lock(py);
        for name in state.module.funcs.keys() {
            functions.set_item(name, Function { place: Place::new(&self.shared, &state, &**name) })?;
        }
        Ok(functions)
    }

    /// The entry function: "main", or the only one.
    #[getter]
    fn main(&self, py: Python<'_>) -> PyResult<Function> {
        let state = self.shared.lock(py);
        let funcs = &state.module.funcs;
        let name = if funcs.len() == 1 { funcs.keys().next().map(String::as_str) } else { Some("main") };
        let found = name.filter(|name| funcs.contains_key(*name));
        let found = found.ok_or_else(|| input_error(py, "the module has no function @main", None))?;
        Ok(Function { place: Place::new(&self.shared, &state, found) })
    }

    /// Adds a function without inputs and ops.
    #[pyo3(signature = (name = "main", *, location = None))]
    fn function(&self, py: Python<'_>, name: &str, location: Option<&Bound<'_, PyAny>>) -> PyResult<Function> {
        let loc = to_location(py, location)?;
        let mut state = self.shared.lock(py);
        if state.module.funcs.contains_key(name) {
            return Err(input_error(py, format!("the module has a function @{name} already"), None));
        }
        let (inputs, outputs, attrs) = (Vec::new(), Vec::new(), Attrs::new());
        let func = Func { graph: Graph::new(), inputs, outputs, attrs, loc };
        state.module.funcs.insert(name.to_owned(), func);
        Ok(Function { place: Place::new(&self.shared, &state, name) })
    }

    /// Checks structure, types and attributes.
    fn verify(&self, py: Python<'_>) -> PyResult<()> {
        let state = self.shared.lock(py);
        of_ir::verify_module(&state.module).map_err(|e| state.raised(py, &e))
    }

    /// Runs passes and pipelines. Returns the name, the time in seconds and the number of ops afterwards of each pass.
    fn run(&self, py: Python<'_>, pipeline: &str) -> PyResult<Vec<(String, f64, usize)>> {
        let report = py.detach(|| {
            let mut state = self.shared.detached();
            state.invalidate();
            let run = |state: &mut State| -> Result<_, Diagnostics> {
                let manager = Manager::parse(pipeline)?;
                of_ir::verify_module(&state.module)?;
                manager.run(&mut state.module, &mut |_| {})
            };
            run(&mut state).map_err(|e| (e, state.renderer()))
        });
        let report = report.map_err(|(e, renderer)| exception(py, &e, &renderer))?;
        Ok(report.passes.into_iter().map(|pass| (pass.name, pass.time.as_secs_f64(), pass.ops_after)).collect())
    }

    /// The text.
    #[pyo3(signature = (*, generic = false, locations = false, elide = false))]
    fn to_text(&self, py: Python<'_>, generic: bool, locations: bool, elide: bool) -> String {
        self.text(py, generic, locations, elide)
    }

    fn __str__(&self, py: Python<'_>) -> String {
        self.text(py, false, false, true)
    }

    /// The interactive page, for notebooks.
    fn _repr_html_(&self, py: Python<'_>) -> String {
        py.detach(|| embedded(&of_page::model::page(&self.shared.detached().module)))
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let state = self.shared.lock(py);
        let names: Vec<String> = state.module.funcs.keys().map(|name| format!("@{name}")).collect();
        format!("Module({})", names.join(", "))
    }
}

fn load(path: &Path, sources: &Sources) -> Result<of_ir::Module, Diagnostics> {
    match open_for(path, &[], &[], sources)? {
        ModelOrPlan::Model(model) => Ok(model.module),
        ModelOrPlan::Plan(_) => Err(already_compiled(path).into()),
    }
}
