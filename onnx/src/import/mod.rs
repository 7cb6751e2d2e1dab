//! From a model to a module, node by node.

mod attribute;
mod body;
mod declared;
mod emit;
mod function;
mod inlining;
mod model;
mod node;
mod placement;
mod region;
mod report;
mod scope;

use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;

use indexmap::IndexMap;
use of_diag::{Diagnostics, Location};
use of_ir::{IdMap, Mesh, Module, RegionId, Rewriter, ValueId};

use crate::external::External;
use crate::proto::FunctionProto;

pub(crate) use attribute::{Attributes, dtype_attr, literal};
pub(crate) use body::model_inputs;
pub(crate) use emit::{as_is, declaration, is_declared};
pub(crate) use model::model;
pub(crate) use node::{ImportResult, Node};
pub(crate) use region::Region;
pub(crate) use report::ImportError;

use report::Report;
use scope::Scope;

/// The oldest operator set of ai.onnx that is read.
pub const OLDEST_OPSET: i64 = 1;
/// The newest operator set of ai.onnx that is read.
pub const NEWEST_OPSET: i64 = 28;

/// A module and the warnings about the model.
#[derive(Debug)]
pub struct Imported {
    /// The module; its entry is `main`.
    pub module: Module,
    /// Warnings, e.g. declared shapes that inference contradicts.
    pub warnings: Diagnostics,
    /// The files of external data that the model's tensors were in.
    pub data_files: Vec<PathBuf>,
}

/// A function of the model: domain, name, overload.
type FunctionKey<'m> = (&'m str, &'m str, &'m str);

/// What differs between the model's graph and the body of a function.
#[derive(Default)]
struct Context<'m> {
    /// Versions of operator sets by domain.
    opsets: HashMap<&'m str, i64>,
    /// Attributes of the call, for nodes that refer to them.
    attrs: Attributes<'m>,
    /// The calls around it, for locations and against recursion.
    calls: Vec<Call<'m>>,
}

/// A call of a function that is being read.
#[derive(Clone)]
struct Call<'m> {
    function: &'m FunctionProto,
    /// As locations name it.
    name: String,
}

/// The state of an import.
pub(crate) struct Importer<'m, 'g> {
    /// Creates ops, at the end of the region that is being filled.
    pub rw: Rewriter<'g>,
    region: RegionId,
    /// The node that is read; new ops come from it.
    location: Location,
    external: &'m External,
    functions: &'m HashMap<FunctionKey<'m>, &'m FunctionProto>,
    context: Context<'m>,
    scope: Scope<'m>,
    /// The model's device configurations.
    meshes: &'m IndexMap<String, Mesh>,
    report: Report,
    /// The keys of maps by their values, see `ops/ml/maps.rs`.
    pub map_keys: IdMap<ValueId, ValueId>,
    /// How many random ops have no seed of their own so far.
    unseeded: i64,
    /// The initializers that are inputs here, see `Options`.
    initializer_inputs: &'m BTreeSet<String>,
    /// Whether an `Identity` of an initializer is a constant of its own.
    pub separate_copies: bool,
    /// How many more nodes may be read, those of loop bodies each time; `None` once there were too many, which is
    /// reported.
    nodes_left: Option<usize>,
    /// How many subgraphs and calls are around the node that is read.
    depth: usize,
}

/// Subgraphs and calls within each other; more than any model has, and few enough for the stack.
const DEEPEST: usize = 64;

impl Importer<'_, '_> {
    /// Goes one level deeper, for a subgraph or a call.
    fn enter(&mut self) -> Result<(), ImportError> {
        if self.depth == DEEPEST {
            return Err(ImportError::invalid(format!("more than {DEEPEST} subgraphs and calls within each other")));
        }
        self.depth += 1;
        Ok(())
    }

    /// Comes back from where [`Importer::enter`] went.
    fn leave(&mut self) {
        self.depth -= 1;
    }
}

/// `ai.onnx` and nothing are the same domain.
fn domain(name: &str) -> &str {
    if name == "ai.onnx" { "" } else { name }
}
