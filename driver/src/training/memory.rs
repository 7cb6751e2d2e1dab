//! The memory of a training: what its plan says, and what the process has.

use std::collections::BTreeMap;

use of_plan::{Exec, MeshPort, Plan, Program};
use of_runtime::RankVariables;

use super::Trainer;
use crate::process;

/// Batches in memory: that of a step, one that is ready, and one that is being prepared.
const BATCHES: u64 = 3;

/// What the compiler says about the memory of a training in this process, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlannedMemory {
    /// Values of a step: activations, gradients, and what is between them.
    pub values: u64,
    /// Values of evaluations, as far as they have memory of their own and not that of a step.
    pub evaluation: u64,
    /// Variables: parameters, and the state of the optimizer.
    pub variables: u64,
    /// Constants that tasks read.
    pub constants: u64,
    /// Scratch memory of kernels, of all workers.
    pub scratch: u64,
}

impl PlannedMemory {
    /// All of it.
    pub fn bytes(&self) -> u64 {
        self.values + self.evaluation + self.variables + self.constants + self.scratch
    }
}

/// The memory of a training that is about to begin.
#[derive(Clone, Copy, Debug)]
pub struct ExpectedMemory {
    /// What the compiler says.
    pub planned: PlannedMemory,
    /// The process with all of that, in bytes: what is resident when the first step begins, values and scratch memory, whose pages come when
    /// they are written, and batches of data. `None` where the system does not report what is resident.
    pub resident: Option<u64>,
    /// The most that the process had before the first step.
    peak_before: Option<u64>,
}

impl ExpectedMemory {
    /// The most that the process had resident in the steps that are over, in bytes. `None` where the system does not report it.
    pub fn measured(&self) -> Option<u64> {
        let peak = process::peak_bytes()?;
        // Where compilation took more, the steps took what is resident now: no page of a value is given back.
        if self.peak_before.is_some_and(|before| peak <= before) { process::resident_bytes() } else { Some(peak) }
    }
}

impl Trainer {
    /// The memory that the steps from now on will take. `evaluates` says whether there will be evaluations.
    pub fn expected_memory(&self, evaluates: bool) -> ExpectedMemory {
        let planned = self.planned_memory(evaluates);
        // The variables have their first values, and are resident.
        let coming = planned.values + planned.evaluation + planned.scratch + BATCHES * self.batch_bytes();
        let resident = process::resident_bytes().map(|resident| resident + coming);
        ExpectedMemory { planned, resident, peak_before: process::peak_bytes() }
    }

    /// Bytes of a batch, as far as it is read.
    fn batch_bytes(&self) -> u64 {
        let (plan, rows) = (self.plan.plan(), self.rows());
        let read = |(number, port): (usize, &MeshPort)| {
            let needed = rows.needed(number, self.batch).len() as u64;
            Some(port.dtype().byte_len(&port.dims)? * needed / self.batch.max(1) as u64)
        };
        let of_mesh = plan.meshes.first().map(|mesh| mesh.inputs.iter().enumerate().filter_map(read).sum());
        let of_program = || {
            let inputs = plan.programs.first().map(|program| &program.inputs[..]).unwrap_or_default();
            inputs.iter().filter_map(|port| port.dtype().byte_len(&port.dims)).sum()
        };
        of_mesh.unwrap_or_else(of_program)
    }

    fn planned_memory(&self, evaluates: bool) -> PlannedMemory {
        let (plan, own) = (self.plan.plan(), self.sessions.of_rank().map(RankVariables::rank));
        let steps = programs_of(plan, 0, own);
        let mut memory = PlannedMemory::default();
        for program in &steps {
            memory.values += values(plan, program);
            memory.variables += variables(program);
            memory.scratch += scratch(plan, program);
        }
        if evaluates {
            let of_ranks: Vec<_> =
                (1..=self.sessions.evaluations()).map(|number| programs_of(plan, number, own)).collect();
            for (rank, step) in steps.iter().enumerate() {
                let programs = || of_ranks.iter().filter_map(|programs| programs.get(rank).copied());
                // They follow one another in the memory of the largest, and steps do so, too. All share their variables.
                let most = programs().map(own_values).max().unwrap_or(0);
                memory.evaluation += most.saturating_sub(own_values(step))
                    + programs().map(|program| values(plan, program) - own_values(program)).sum::<u64>();
                memory.scratch += programs().map(|program| scratch(plan, program)).sum::<u64>();
            }
        }
        memory.constants = constants(plan, &steps);
        memory
    }
}

/// The programs of an entry point of a plan: of each rank, or of the rank that this process is.
fn programs_of(plan: &Plan, entry_point: usize, rank: Option<usize>) -> Vec<&Program> {
    if plan.meshes.is_empty() {
        return plan.programs.get(entry_point).into_iter().collect();
    }
    let ranks = plan.meshes.get(entry_point).map(|mesh| &mesh.ranks[..]).unwrap_or_default();
    let own = ranks.iter().enumerate().filter(|(number, _)| rank.is_none_or(|own| own == *number));
    own.filter_map(|(_, own)| plan.programs.get(own.program as usize)).collect()
}

/// Bytes of the values of a program.
fn own_values(program: &Program) -> u64 {
    program.peak_bytes.saturating_sub(variables(program))
}

/// Bytes of the values of a program and of those that its tasks run.
fn values(plan: &Plan, program: &Program) -> u64 {
    own_values(program) + inner(plan, program).map(|inner| values(plan, inner)).sum::<u64>()
}

/// Bytes of the scratch memory of a session: each worker has that of the kernel that needs the most.
fn scratch(plan: &Plan, program: &Program) -> u64 {
    let of_task = |task: &of_plan::Task| match &task.exec {
        Some(Exec::Kernel(exec)) => exec.scratch_bytes,
        _ => 0,
    };
    let most = program.tasks.iter().map(of_task).max().unwrap_or(0);
    most * u64::from(plan.environment.threads.max(1))
}

/// Bytes of the variables of a program.
fn variables(program: &Program) -> u64 {
    program.variable_chunk().map_or(0, |chunk| chunk.bytes)
}

/// The programs that the tasks of a program run.
fn inner<'p>(plan: &'p Plan, program: &'p Program) -> impl Iterator<Item = &'p Program> {
    let bodies = program.tasks.iter().flat_map(|task| match &task.exec {
        Some(Exec::Control(exec)) => &exec.bodies[..],
        _ => &[],
    });
    bodies.filter_map(|body| plan.programs.get(body.program as usize))
}

/// Bytes of the weights that tasks of programs read, each once.
fn constants(plan: &Plan, programs: &[&Program]) -> u64 {
    let mut open = programs.to_vec();
    let mut read: BTreeMap<u64, u64> = BTreeMap::new();
    while let Some(program) = open.pop() {
        for weight in program.tasks.iter().flat_map(of_plan::weights_of) {
            if let Some(weight) = plan.weights.get(weight as usize) {
                let len = read.entry(weight.offset).or_default();
                *len = weight.len.max(*len);
            }
        }
        open.extend(inner(plan, program));
    }
    read.into_values().sum()
}
