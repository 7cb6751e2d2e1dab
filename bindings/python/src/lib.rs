//! The native part of the Python package `of_opt`: compilation by `of_driver`, plans, and sessions of `of_runtime`. The package's
//! own part in `python/of_opt` has the functions and exceptions that users see.

mod array;
mod compile;
mod dlpack;
mod error;
mod interrupt;
mod ir;
mod model_info;
mod notebook;
mod numpy;
mod plan;
mod ports;
mod ranks;
mod session;
mod values;
mod variables;

use pyo3::prelude::*;

/// The module `of_opt._native`.
#[pymodule(name = "_native")]
fn native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    of_driver::codegen_passes::register();
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<plan::Plan>()?;
    module.add_class::<ports::Port>()?;
    module.add_class::<session::Session>()?;
    module.add_class::<variables::Variables>()?;
    module.add_class::<array::Memory>()?;
    module.add_class::<ir::Module>()?;
    module.add_class::<ir::Function>()?;
    module.add_class::<ir::Region>()?;
    module.add_class::<ir::Op>()?;
    module.add_class::<ir::Value>()?;
    module.add_function(wrap_pyfunction!(ir::tensor_type, module)?)?;
    module.add_function(wrap_pyfunction!(ranks::serve_rank, module)?)?;
    module.add_function(wrap_pyfunction!(compile::compile, module)?)?;
    module.add_function(wrap_pyfunction!(model_info::model_info, module)?)
}
