//! Modules and functions.

use std::fmt;

use indexmap::IndexMap;
use of_diag::Location;

use crate::text::{Constants, PrintOptions, print_func, print_module};
use crate::{Attrs, Graph, Mesh, Type};

/// A function: a graph with named inputs and outputs.
#[derive(Clone)]
pub struct Func {
    /// The body; its arguments are the inputs, the operands of its terminator the outputs.
    pub graph: Graph,
    /// Names of the inputs, one an argument.
    pub inputs: Vec<String>,
    /// Names of the outputs, one an operand of the terminator.
    pub outputs: Vec<String>,
    /// Anything else that is known about it.
    pub attrs: Attrs,
    /// Where it comes from.
    pub loc: Location,
}

impl Func {
    /// A function around a finished graph, with the inputs `x0`, `x1` … and the outputs `y0`, `y1` …
    pub fn numbered(graph: Graph) -> Func {
        Func {
            inputs: (0..graph.args().len()).map(|i| format!("x{i}")).collect(),
            outputs: (0..graph.outputs().len()).map(|i| format!("y{i}")).collect(),
            attrs: Attrs::new(),
            loc: Location::Unknown,
            graph,
        }
    }

    /// Types of the inputs.
    pub fn input_types(&self) -> Vec<Type> {
        self.graph.args().iter().map(|v| self.graph.ty(*v).clone()).collect()
    }

    /// Types of the outputs.
    pub fn output_types(&self) -> Vec<Type> {
        self.graph.outputs().iter().map(|v| self.graph.ty(*v).clone()).collect()
    }
}

/// Functions and meshes under their names, in order of definition.
#[derive(Clone, Default)]
pub struct Module {
    /// Name of the model, for people.
    pub name: String,
    /// Meshes by symbol.
    pub meshes: IndexMap<String, Mesh>,
    /// Functions by symbol; `main` is the entry.
    pub funcs: IndexMap<String, Func>,
}

impl Module {
    /// The entry function: `main`, or the only one.
    pub fn main(&self) -> Option<&Func> {
        self.funcs.get("main").or_else(|| if self.funcs.len() == 1 { self.funcs.values().next() } else { None })
    }

    /// The entry function, to change.
    pub fn main_mut(&mut self) -> Option<&mut Func> {
        if self.funcs.contains_key("main") {
            self.funcs.get_mut("main")
        } else if self.funcs.len() == 1 {
            self.funcs.values_mut().next()
        } else {
            None
        }
    }
}

const FOR_PEOPLE: PrintOptions<'_> = PrintOptions { generic: false, locations: false, constants: Constants::Elided };

/// The text, without large constants.
impl fmt::Debug for Func {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&print_func("_", self, &FOR_PEOPLE))
    }
}

/// The text, without large constants.
impl fmt::Debug for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&print_module(self, &FOR_PEOPLE))
    }
}
