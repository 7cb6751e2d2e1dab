//! Random jobs: programs of several ranks, with transfers between them.

use of_plan::{AxisLayout, BoxingExec, Exec, LayoutKind, Program, TaskGraph, Transfer};

use super::super::simulation_graph::Graph;
use super::microbatches;

/// The programs of a job's ranks.
pub struct Job {
    pub ranks: Vec<RankProgram>,
    pub steps: u64,
    /// For each transfer its blocks: from, to, and elements of each time.
    pub transfers: Vec<Vec<Block>>,
}

/// A block that a rank sends to another.
pub struct Block {
    pub from: u32,
    pub to: u32,
    /// The bytes of each time: in a step, or in a microbatch of a step.
    pub bytes: Vec<Vec<u8>>,
}

/// The program of a rank.
pub struct RankProgram {
    pub program: Program,
    pub graph: TaskGraph,
    /// For each task its transfer.
    pub transfer: Vec<Option<usize>>,
}

impl Job {
    /// A job of ranks that run the tasks of a step in an order that follows from their data, or of one with microbatches.
    pub fn random(rng: &mut fastrand::Rng) -> Job {
        if rng.u32(..4) == 0 { microbatches::job(rng) } else { Self::of_steps(rng) }
    }

    fn of_steps(rng: &mut fastrand::Rng) -> Job {
        let (ranks, steps) = (rng.u32(2..=4), rng.u64(1..=3));
        let transfers: Vec<Vec<Block>> = (0..rng.usize(1..=4)).map(|_| blocks(rng, ranks, steps)).collect();
        let ranks = (0..ranks).map(|rank| RankProgram::random(rng, rank, &transfers)).collect();
        Job { ranks, steps, transfers }
    }
}

pub(super) fn blocks(rng: &mut fastrand::Rng, ranks: u32, times: u64) -> Vec<Block> {
    let pairs: Vec<(u32, u32)> =
        (0..ranks).flat_map(|from| (0..ranks).map(move |to| (from, to))).filter(|(from, to)| from != to).collect();
    let all = rng.bool();
    let mut out = Vec::new();
    for (from, to) in pairs {
        if all || rng.bool() {
            let len = match rng.u32(..40) {
                0 => 0,
                1 => rng.usize(8000..60_000),
                2..10 => rng.usize(100..3000),
                _ => rng.usize(1..100),
            };
            let bytes = (0..times).map(|_| (0..len).map(|_| rng.u8(..)).collect()).collect();
            out.push(Block { from, to, bytes });
        }
    }
    out
}

impl RankProgram {
    fn random(rng: &mut fastrand::Rng, rank: u32, transfers: &[Vec<Block>]) -> RankProgram {
        let threads = rng.u32(1..=3);
        let mut graph = Graph::new("main", threads);
        let mut transfer = Vec::new();
        let mut last: Option<usize> = None;
        let mut offset = 0;
        let own = (0..transfers.len()).filter(|id| transfers[*id].iter().any(|b| b.from == rank || b.to == rank));
        let mut own: Vec<Option<usize>> = own.map(Some).collect();
        for _ in 0..rng.usize(1..8) {
            own.insert(rng.usize(..=own.len()), None);
        }
        // For each task its readers, which are known once all tasks are.
        let mut readers: Vec<Vec<usize>> = Vec::new();
        let mut order = Vec::new();
        for id in own {
            // All transfers of a rank are on one thread, one after another, as in a plan.
            let thread = if id.is_some() { 0 } else { rng.u32(..threads) };
            let concurrent = id.is_some() && rng.bool();
            let task = graph.task(&format!("t{}", transfer.len()), thread, concurrent.then(|| boxing(true)));
            transfer.push(id);
            readers.push(Vec::new());
            for readers in &mut readers[task.saturating_sub(4)..task] {
                if rng.u32(..3) == 0 {
                    readers.push(task);
                }
            }
            if id.is_some() {
                order.extend(last.replace(task).map(|from| (from, task)));
            }
        }
        for (from, to) in readers.iter().enumerate() {
            let register = graph.block(&format!("r{from}"), from, to, 4, offset);
            let copies = rng.u32(1..=3);
            graph.0.registers[register as usize].copies = copies;
            offset += 64 * u64::from(copies);
        }
        for (from, to) in order {
            graph.control(from, to);
        }
        // Steps overlap only where that cannot change the order of transfers.
        graph.0.pipelined = transfer.iter().flatten().count() < 2 && rng.bool();
        let program = graph.finish();
        let graph = TaskGraph::of(&program).unwrap_or_else(|| panic!("the tasks and registers of a program agree"));
        RankProgram { program, graph, transfer }
    }
}

/// What says that a task is a transfer with other ranks, and whether it is asynchronous; which blocks it has, the job says.
pub(super) fn boxing(is_async: bool) -> Exec {
    let transfer = Transfer { from: vec![AxisLayout::of(LayoutKind::Sum)], ..Transfer::default() };
    Exec::Boxing(BoxingExec { transfer, is_async, ..BoxingExec::default() })
}
