//! Random graphs, computed in several ways whose results must agree.
//!
//! [`generate`] makes a valid function with inputs from a seed. [`check`] evaluates it with the interpreter, which is the
//! oracle, then prints and parses it, runs the passes, compiles and runs it with fixed and with symbolic dimensions
//! ([`open`]), and compares. The tolerance for floats is measured: [`evaluate`] also runs with injected rounding errors, and
//! [`compare`] allows their effect. [`shrink`] minimizes failing cases.
//!
//! [`targets`] are the readers of files as fuzz targets, and [`mutate`] changes files for them.

pub mod check;
pub mod compare;
mod copy;
pub mod emit;
pub mod evaluate;
pub mod generate;
pub mod mutate;
pub mod open;
pub mod shrink;
pub mod targets;

use of_ir::{Func, Graph, Module};
use of_ops::Value;

use open::Opening;

/// A function and values for its inputs.
#[derive(Clone)]
pub struct Case {
    /// The function.
    pub func: Func,
    /// One value for each input.
    pub inputs: Vec<Value>,
    /// Which dimensions are symbolic in the additional run.
    pub opening: Opening,
}

impl Case {
    /// A case around a finished graph.
    pub fn new(graph: Graph, inputs: Vec<Value>) -> Case {
        let func = Func::numbered(graph);
        Case { func, inputs, opening: Opening::Closed }
    }

    /// A module with the function as `main`.
    pub fn module(&self) -> Module {
        module(self.func.clone())
    }
}

/// A module with `func` as `main`.
pub fn module(func: Func) -> Module {
    let mut module = Module::default();
    module.funcs.insert("main".into(), func);
    module
}
