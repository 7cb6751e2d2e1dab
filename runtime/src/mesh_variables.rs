//! The variables of a mesh: whole values, of which each rank keeps its part.

use std::sync::Arc;

use of_plan::{MeshPort, MeshProgram, PlanFile, coords, holds};

use crate::frozen_parts::{Share, partial_variables};
use crate::mesh_ports::{contributes, gather_port, scatter_port};
use crate::{FrozenPart, RunError, Tensor, Variables};

/// The values of a mesh's variables.
#[derive(Debug)]
pub struct MeshVariables {
    plan: Arc<PlanFile>,
    mesh: usize,
    /// For each rank its parts, where it has any.
    ranks: Vec<Option<Arc<Variables>>>,
}

impl MeshVariables {
    /// The parts of all ranks; `None` where the mesh has no variables.
    pub(crate) fn new(plan: &Arc<PlanFile>, mesh: usize, ranks: Vec<Option<Arc<Variables>>>) -> Option<Self> {
        let any = !plan.plan().meshes[mesh].variables.is_empty();
        any.then(|| Self { plan: Arc::clone(plan), mesh, ranks })
    }

    /// The parts of a rank, where it has any.
    pub(crate) fn of_rank(&self, rank: usize) -> Option<&Arc<Variables>> {
        self.ranks.get(rank)?.as_ref()
    }

    fn program(&self) -> &MeshProgram {
        &self.plan.plan().meshes[self.mesh]
    }

    /// The variables: names, types and layouts.
    pub fn list(&self) -> &[MeshPort] {
        &self.program().variables
    }

    /// The value of a variable, whole.
    ///
    /// # Errors
    /// When there is no such variable, or it has no value.
    pub fn get(&self, name: &str) -> Result<Tensor, RunError> {
        let (program, port) = (self.program(), self.port(name)?);
        let mut own: Vec<Option<Tensor>> = Vec::with_capacity(self.ranks.len());
        for (rank, variables) in self.ranks.iter().enumerate() {
            let variables = variables.as_ref().filter(|_| contributes(program, port, rank));
            own.push(variables.map(|variables| variables.get(name)).transpose()?);
        }
        gather_port(program, port, &|rank| own.get(rank)?.as_ref()?.bytes())
    }

    /// Sets the value of a variable: each rank gets its part.
    ///
    /// # Errors
    /// When there is no such variable, or the value has another type.
    pub fn set(&self, name: &str, value: &Tensor) -> Result<(), RunError> {
        let (program, port) = (self.program(), self.port(name)?);
        let ranks = self.ranks.iter().enumerate();
        ranks.into_iter().try_for_each(|(rank, own)| set_part(program, port, value, rank, own.as_deref()))
    }

    /// Freezes the values of all ranks as they are, whole or in parts.
    ///
    /// # Errors
    /// When a variable has no value.
    pub fn freeze_parts(&self) -> Result<Vec<FrozenPart>, RunError> {
        let program = self.program();
        let mut parts = Vec::new();
        for index in partial_variables(program) {
            let port = &program.variables[index];
            parts.push(FrozenPart::of_value(port, self.get(&port.name)?));
        }
        for (rank, own) in self.ranks.iter().enumerate() {
            if let Some(own) = own {
                parts.extend(Share::of(program, rank, own.list()).parts(&own.freeze()?));
            }
        }
        Ok(parts)
    }

    /// Gives every variable its initial value; those without one have none afterwards.
    pub fn reset(&self) {
        self.ranks.iter().flatten().for_each(|variables| variables.reset());
    }

    /// After a run that failed on some rank: the others may be a step ahead, so no variable keeps its value.
    pub(crate) fn lose(&self) {
        self.ranks.iter().flatten().for_each(|variables| variables.lose());
    }

    fn port(&self, name: &str) -> Result<&MeshPort, RunError> {
        Ok(&self.list()[find(self.program(), name)?])
    }
}

/// The index of the variable of a name.
pub(crate) fn find(program: &MeshProgram, name: &str) -> Result<usize, RunError> {
    let list = &program.variables;
    list.iter().position(|port| port.name == name).ok_or_else(|| {
        let names: Vec<_> = list.iter().take(8).map(|port| port.name.as_str()).collect();
        let more = if list.len() > names.len() { ", …" } else { "" };
        let problem = format!("does not exist; there are {}{more}", names.join(", "));
        RunError::Variable { name: name.into(), problem }
    })
}

/// Sets a rank's part of a variable to its part of a whole value. `own` are the rank's variables, where it has any.
pub(crate) fn set_part(
    program: &MeshProgram,
    port: &MeshPort,
    value: &Tensor,
    rank: usize,
    own: Option<&Variables>,
) -> Result<(), RunError> {
    let wrong = |problem: String| RunError::Variable { name: port.name.clone(), problem };
    let whole = value.bytes().filter(|_| value.dtype() == port.dtype() && value.dims() == port.dims);
    let whole = whole.ok_or_else(|| {
        let given = format!("{}{:?}", value.dtype(), value.dims());
        wrong(format!("is {}{:?} and cannot be set to {given}", port.dtype(), port.dims))
    })?;
    let mesh = program.extents();
    let coords = coords(&mesh, rank);
    let Some(own) = own.filter(|_| holds(&port.layout, &coords)) else { return Ok(()) };
    let dims: Vec<i64> = port.block(&mesh, &coords, 0).iter().map(|(_, n)| *n as i64).collect();
    let mut part = Tensor::zeros(port.dtype(), dims).map_err(|error| wrong(error.to_string()))?;
    scatter_port(program, port, whole, rank, &mut part)?;
    own.set(&port.name, &part)
}
