//! Control edges for schedulers and memory planners, added to a program as control registers.

use crate::verify::{HappensBefore, successive_blocks};
use crate::{ControlStorage, Program, Register, Storage, TaskGraph};

/// Makes every thread run its tasks in the order of `Program::tasks`: adds a control register between each pair of
/// tasks that follow one another on a thread and have no edge yet that orders them. After that, memory planned by lifetimes over the
/// order of a one-thread program verifies. Does nothing to a program whose registers name tasks that do not exist.
pub fn chain_threads(program: &mut Program) {
    let Some(graph) = TaskGraph::of(program) else { return };
    let mut edges: Vec<(u32, u32)> = graph.edges_to_begin(program).collect();
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

/// As [`chain_threads`], for a program with asynchronous transfers and one thread: these are not between the thread's other tasks, but
/// between the transfers before and after. What the reuse of memory needs is added as by [`order_reuse`].
pub fn chain_around_transfers(program: &mut Program) {
    let Some(graph) = TaskGraph::of(program) else { return };
    let mut edges: Vec<(u32, u32)> = graph.edges_to_begin(program).collect();
    edges.sort_unstable();
    let (mut last, mut last_transfer) = (None, None);
    for index in 0..program.tasks.len() as u32 {
        let task = &program.tasks[index as usize];
        let (concurrent, waits_for_others) = (task.is_async_transfer(), task.waits_for_others());
        let before = if concurrent { None } else { last.replace(index) };
        let transfer_before = if waits_for_others { last_transfer.replace(index) } else { None };
        for from in before.into_iter().chain(transfer_before.filter(|transfer| before != Some(*transfer))) {
            if edges.binary_search(&(from, index)).is_err() {
                add_control(program, from, index);
            }
        }
    }
    order_reuse(program);
}

/// Adds the control edges that memory reuse needs and no more. Where two registers overlap and happens-before does not order
/// them, the users of the register with the earlier producer must end before the other's producer acts. "Earlier" is by
/// position in `Program::tasks`. That order must be topological, and the blocks must come from lifetimes over it.
pub fn order_reuse(program: &mut Program) {
    let Some(graph) = TaskGraph::of(program) else { return };
    if graph.edges().any(|(from, to)| from >= to) {
        return;
    }
    let mut order = HappensBefore::within_iteration(program, &graph);
    let positions: Vec<usize> = (0..program.tasks.len()).collect();
    for (earlier, later) in successive_blocks(program, &graph, &positions) {
        let producer = graph.producer[later as usize];
        let users = graph.consumers[earlier as usize].iter().copied().chain([graph.producer[earlier as usize]]);
        for user in users.filter(|&user| user < producer) {
            if !order.before(user, producer) {
                order.add_edge(user, producer);
                add_control(program, user, producer);
            }
        }
    }
}

fn add_control(program: &mut Program, from: u32, to: u32) {
    let id = program.registers.len() as u32;
    let producer = program.tasks[from as usize].id;
    let consumer = program.tasks[to as usize].id;
    program.tasks[from as usize].produces.push(id);
    program.tasks[to as usize].consumes.push(id);
    program.registers.push(Register {
        id,
        name: format!("{}/then", program.tasks[from as usize].name),
        producer,
        consumers: vec![consumer],
        copies: 1,
        storage: Some(Storage::Control(ControlStorage {})),
        ..Register::default()
    });
}
