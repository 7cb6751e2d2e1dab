//! Control edges that a memory planner or a scheduler needs, added to a program as control registers.

use crate::verify::{Reach, successive_blocks};
use crate::{ControlStorage, Links, Program, Regst, Storage};

/// Makes every thread run its tasks in the order of `Program::tasks`: adds a control register between each pair of
/// tasks that follow one another on a thread and have no edge yet. After that, memory planned by lifetimes over the
/// order of a one-thread program verifies. Does nothing to a program whose registers name tasks that do not exist.
pub fn chain_threads(program: &mut Program) {
    let Some(links) = Links::of(program) else { return };
    let mut edges: Vec<(u32, u32)> = links.edges().collect();
    edges.sort_unstable();
    let mut last = std::collections::HashMap::new();
    for index in 0..program.tasks.len() as u32 {
        let thread = program.tasks[index as usize].thread;
        if let Some(previous) = last.insert(thread, index)
            && edges.binary_search(&(previous, index)).is_err()
        {
            add_control(program, previous, index);
        }
    }
}

/// Adds the control edges that memory reuse needs and no more: where two registers overlap and nothing orders them, the
/// users of the one whose producer stands first in `Program::tasks` come before the producer of the other. The blocks
/// must have been given out by lifetimes over that order, which must be topological.
pub fn order_reuse(program: &mut Program) {
    let Some(links) = Links::of(program) else { return };
    if links.edges().any(|(from, to)| from >= to) {
        return;
    }
    let mut reach = Reach::within_piece(program, &links);
    let positions: Vec<usize> = (0..program.tasks.len()).collect();
    for (earlier, later) in successive_blocks(program, &links, &positions) {
        let producer = links.producer[later as usize];
        let users = links.consumers[earlier as usize].iter().copied().chain([links.producer[earlier as usize]]);
        for user in users.filter(|&user| user < producer) {
            if !reach.before(user, producer) {
                reach.order_edge(user, producer);
                add_control(program, user, producer);
            }
        }
    }
}

fn add_control(program: &mut Program, from: u32, to: u32) {
    let id = program.regsts.len() as u32;
    let producer = program.tasks[from as usize].id;
    let consumer = program.tasks[to as usize].id;
    program.tasks[from as usize].produces.push(id);
    program.tasks[to as usize].consumes.push(id);
    program.regsts.push(Regst {
        id,
        name: format!("{}/then", program.tasks[from as usize].name),
        producer,
        consumers: vec![consumer],
        num: 1,
        storage: Some(Storage::Control(ControlStorage {})),
        ..Regst::default()
    });
}
