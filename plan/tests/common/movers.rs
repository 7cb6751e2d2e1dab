//! Two data movements and two computations on one device, which need each other's memory.

use of_plan::*;

use super::Graph;

/// In which order the tasks use the memory of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Any: no edge orders them.
    Free,
    /// Each computation waits for the memory that the other one reads.
    Crossed,
    /// As the compiler orders it: by [`order_reuse`] over a list of the tasks.
    Compiled,
}

/// `m1` moves the input of `o1` to the device, and `m2` that of `o2`. The device has room for two values, A and B. The first chain needs A and
/// then B, the second B and then A.
pub fn two_movers(order: Order) -> Program {
    const A: u64 = 0;
    const B: u64 = 64;
    let mut graph = Graph::new("main", 2);
    let mut chain = |number: u32, from: u64, to: u64| {
        let mover = graph.task(&format!("m{number}"), 0, None);
        let computation = graph.task(&format!("o{number}"), 1, None);
        let reader = graph.task(&format!("r{number}"), 0, None);
        graph.block(&format!("x{number}"), mover, &[computation], 16, from);
        graph.block(&format!("y{number}"), computation, &[reader], 16, to);
        computation
    };
    let (o1, o2) = (chain(1, A, B), chain(2, B, A));
    if order == Order::Crossed {
        graph.control(o1, o2);
        graph.control(o2, o1);
    }
    let mut program = graph.finish();
    if order == Order::Compiled {
        order_reuse(&mut program);
    }
    program
}
