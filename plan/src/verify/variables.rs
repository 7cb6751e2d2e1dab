//! Variables: each has its own memory, is read before it is written, and is written once.

use std::collections::{HashMap, HashSet};

use super::FindingKind;
use super::checker::Checker;
use crate::task_graph::task_indexes;
use crate::{Initial, Program, Register, VALUE_ALIGN, Variable};

/// The registers of a variable.
#[derive(Clone, Copy, Default)]
struct Uses {
    read: Option<u32>,
    written: Option<u32>,
}

pub(super) fn check(checker: &mut Checker<'_>, program: &Program) {
    let mut names = HashSet::new();
    let mut end = Some(0);
    for variable in &program.variables {
        let place = format!("variable `{}`", variable.name);
        if !names.insert(&variable.name) {
            checker.report(FindingKind::Duplicate, &place, "the name occurs twice");
        }
        if variable.bytes().is_none_or(|bytes| bytes == 0) {
            checker.report(FindingKind::Type, &place, "its type has no size");
        }
        if end.is_none_or(|end| variable.offset < end) || !variable.offset.is_multiple_of(VALUE_ALIGN) {
            checker.report(FindingKind::Overlap, &place, "it overlaps the variable before it, or is not aligned");
        }
        end = variable.end();
        if let Some(problem) = wrong_initial(checker, variable) {
            checker.report(FindingKind::Type, &place, problem);
        }
    }
    let chunks: Vec<u64> = program.chunks.iter().filter(|c| c.is_of_variables()).map(|c| c.bytes).collect();
    let wanted: &[u64] = if program.variables.is_empty() { &[] } else { &[end.unwrap_or(u64::MAX)] };
    if chunks != wanted {
        checker.report(
            FindingKind::Range,
            "",
            format!("its chunks of variables have {chunks:?} bytes, not {wanted:?}"),
        );
        return;
    }
    let index = task_indexes(program);
    let mut uses = vec![Uses::default(); program.variables.len()];
    for register in program.registers.iter().filter(|r| in_variables(program, r)) {
        if let Err((kind, message)) = register_of_variable(program, register, &index, &mut uses) {
            checker.report(kind, &format!("register {} `{}`", register.id, register.name), message);
        }
    }
    let position = |id: u32| program.registers.get(id as usize).and_then(|register| index.get(&register.producer));
    for (variable, uses) in program.variables.iter().zip(&uses) {
        if let (Some(read), Some(written)) = (uses.read, uses.written)
            && position(read) >= position(written)
        {
            let place = format!("variable `{}`", variable.name);
            checker.report(FindingKind::Lifetime, &place, "the task that reads it comes after the one that writes it");
        }
    }
}

fn wrong_initial(checker: &Checker<'_>, variable: &Variable) -> Option<String> {
    let Some(Initial::Weight(index)) = variable.initial else { return None };
    match checker.plan.weights.get(index as usize) {
        None => Some(format!("its initial value is weight {index}, which does not exist")),
        Some(weight) if weight.dtype != variable.dtype || weight.dims != variable.dims => {
            Some(format!("its initial value `{}` has another type", weight.name))
        }
        Some(_) => None,
    }
}

fn in_variables(program: &Program, register: &Register) -> bool {
    let chunk = register.block().and_then(|block| program.chunks.get(block.chunk as usize));
    chunk.is_some_and(crate::Chunk::is_of_variables)
}

/// Checks that a register is exactly one variable, and notes whether it is read or written.
fn register_of_variable(
    program: &Program,
    register: &Register,
    tasks: &HashMap<u64, u32>,
    uses: &mut [Uses],
) -> Result<(), (FindingKind, &'static str)> {
    let index = program.variable_of(register).ok_or((FindingKind::Overlap, "it is in the memory of no variable"))?;
    let variable = &program.variables[index];
    let bytes = register.block().map(|block| block.bytes);
    if register.dtype != variable.dtype || register.dims != variable.dims || bytes != variable.bytes() {
        return Err((FindingKind::Type, "its type is not that of its variable"));
    }
    if register.copies != 1 {
        return Err((FindingKind::Range, "a variable has one copy"));
    }
    let producer = tasks.get(&register.producer).and_then(|&at| program.tasks.get(at as usize));
    let is_read = producer.is_some_and(|task| task.exec.is_none());
    let own = if is_read { &mut uses[index].read } else { &mut uses[index].written };
    match own.replace(register.id) {
        None => Ok(()),
        Some(_) if is_read => Err((FindingKind::Duplicate, "another task reads its variable")),
        Some(_) => Err((FindingKind::Duplicate, "another task writes its variable")),
    }
}
