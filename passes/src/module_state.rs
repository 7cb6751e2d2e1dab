//! Whether a module changed.

use of_diag::Location;
use of_ir::{Attrs, Func, Mesh, Module, Version};

/// A module without its graphs, and the versions of those. Modules of equal states are equal.
#[derive(PartialEq)]
pub(crate) struct ModuleState {
    name: String,
    meshes: Vec<(String, Mesh)>,
    funcs: Vec<FuncState>,
}

#[derive(PartialEq)]
struct FuncState {
    name: String,
    graph: Version,
    inputs: Vec<String>,
    outputs: Vec<String>,
    attrs: Attrs,
    loc: Location,
}

impl ModuleState {
    pub fn of(module: &Module) -> ModuleState {
        let func = |(name, f): (&String, &Func)| FuncState {
            name: name.clone(),
            graph: f.graph.version(),
            inputs: f.inputs.clone(),
            outputs: f.outputs.clone(),
            attrs: f.attrs.clone(),
            loc: f.loc.clone(),
        };
        let funcs = module.funcs.iter().map(func).collect();
        let meshes = module.meshes.iter().map(|(name, mesh)| (name.clone(), mesh.clone())).collect();
        ModuleState { name: module.name.clone(), meshes, funcs }
    }
}
