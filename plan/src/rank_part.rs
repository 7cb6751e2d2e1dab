//! What one rank of a mesh reads of its plan.

use std::collections::BTreeSet;

use crate::{Arg, ArgSource, Exec, Initial, Plan, Task, Variable};

/// The weights that a rank reads in any mesh of a plan: those of its programs, and the initial values of its variables.
pub(crate) fn weights(plan: &Plan, rank: usize) -> BTreeSet<u32> {
    let mut out = BTreeSet::new();
    for own in plan.meshes.iter().filter_map(|mesh| mesh.ranks.get(rank)) {
        let own_of = |weight: u32| {
            let entry = own.weight_overrides.iter().find(|entry| entry.original == weight);
            entry.map_or(weight, |entry| entry.replacement)
        };
        let (mut seen, mut open) = (BTreeSet::new(), vec![own.program]);
        while let Some(number) = open.pop() {
            let Some(program) = plan.programs.get(number as usize).filter(|_| seen.insert(number)) else { continue };
            out.extend(program.tasks.iter().flat_map(weights_of).map(own_of));
            out.extend(program.variables.iter().filter_map(initial_weight).map(own_of));
            for task in &program.tasks {
                if let Some(Exec::Control(exec)) = &task.exec {
                    open.extend(exec.bodies.iter().map(|body| body.program));
                }
            }
        }
    }
    out
}

/// The weights that a task reads.
pub fn weights_of(task: &Task) -> impl Iterator<Item = u32> {
    args(task).into_iter().filter_map(|arg| match arg.source {
        Some(ArgSource::Weight(weight)) => Some(weight),
        _ => None,
    })
}

/// The weight that is the initial value of a variable.
pub(crate) fn initial_weight(variable: &Variable) -> Option<u32> {
    match variable.initial {
        Some(Initial::Weight(weight)) => Some(weight),
        _ => None,
    }
}

fn args(task: &Task) -> Vec<&Arg> {
    match &task.exec {
        Some(Exec::Kernel(exec)) => exec.args.iter().collect(),
        Some(Exec::Backend(exec)) => exec.inputs.iter().collect(),
        Some(Exec::Control(exec)) => exec.inputs.iter().collect(),
        Some(Exec::Copy(exec)) => vec![&exec.src],
        Some(Exec::Boxing(exec)) => exec.transfers().map(|(_, src, _)| src).collect(),
        Some(Exec::Concat(exec)) => exec.parts.iter().map(|part| &part.src).collect(),
        Some(Exec::Feed(_) | Exec::Fetch(_)) | None => Vec::new(),
    }
}
