//! Random jobs with microbatches: pipelines, whose ranks run the phases of a forward and a backward pass by a schedule.

use of_plan::{Phase, ScheduleLoop, TaskGraph};

use super::super::simulation_graph::Graph;
use super::jobs::{Block, Job, RankProgram, blocks, boxing};

/// Phases of a rank: before the microbatches, forward, backward, and after them.
const PHASES: usize = 4;

/// The transfers of each phase.
type Phases = [Vec<usize>; PHASES];

/// A job whose orders of transfers have no cycle, as the verifier of plans demands: others are drawn again.
pub(super) fn job(rng: &mut fastrand::Rng) -> Job {
    loop {
        let (ranks, steps, microbatches) = (rng.u32(2..=4), rng.u64(1..=2), rng.u64(1..=4));
        let mut transfers: Vec<Vec<Block>> = Vec::new();
        let mut phases: Phases = Default::default();
        for (phase, times) in [1, microbatches, microbatches, 1].into_iter().enumerate() {
            for _ in 0..rng.usize(..=if times == 1 { 1 } else { 2 }) {
                phases[phase].push(transfers.len());
                transfers.push(blocks(rng, ranks, steps * times));
            }
        }
        let orders: Vec<Vec<ScheduleLoop>> = (0..ranks).map(|rank| schedule(rng, ranks - rank, microbatches)).collect();
        if !is_acyclic(&transfers, &phases, &orders) {
            continue;
        }
        let program = |(rank, order): (u32, Vec<ScheduleLoop>)| rank_program(rng, rank, &transfers, &phases, order);
        let ranks = (0..ranks).zip(orders).map(program).collect();
        return Job { ranks, steps, transfers };
    }
}

/// One forward, one backward (1F1B), after so many forward passes as there are stages from here on, or a random number.
fn schedule(rng: &mut fastrand::Rng, stages: u32, microbatches: u64) -> Vec<ScheduleLoop> {
    let microbatches = microbatches as u32;
    let first = if rng.bool() { stages.min(microbatches) } else { rng.u32(1..=microbatches) };
    let run = |phases: &[u32], times| ScheduleLoop { phases: phases.to_vec(), times };
    let all = [run(&[0], 1), run(&[1], first), run(&[2, 1], microbatches - first), run(&[2], first), run(&[3], 1)];
    all.into_iter().filter(|own| own.times > 0).collect()
}

/// Whether all ranks come to the end when each takes part in its transfers in the order of its schedule.
fn is_acyclic(transfers: &[Vec<Block>], phases: &Phases, orders: &[Vec<ScheduleLoop>]) -> bool {
    let takes_part = |rank: usize, id: usize| {
        transfers[id].iter().any(|block| block.from as usize == rank || block.to as usize == rank)
    };
    let sequence = |rank: usize| -> Vec<usize> {
        let of_loop = |own: &ScheduleLoop| {
            let once: Vec<usize> = own.phases.iter().flat_map(|phase| phases[*phase as usize].clone()).collect();
            once.repeat(own.times as usize)
        };
        orders[rank].iter().flat_map(of_loop).filter(|id| takes_part(rank, *id)).collect()
    };
    let sequences: Vec<Vec<usize>> = (0..orders.len()).map(sequence).collect();
    let mut at = vec![0; orders.len()];
    let next = |at: &[usize], rank: usize| sequences[rank].get(at[rank]).copied();
    loop {
        let ready = (0..transfers.len()).find(|id| {
            let mut members = (0..orders.len()).filter(|rank| takes_part(*rank, *id)).peekable();
            members.peek().is_some() && members.all(|rank| next(&at, rank) == Some(*id))
        });
        match ready {
            Some(id) => (0..orders.len()).filter(|rank| takes_part(*rank, id)).for_each(|rank| at[rank] += 1),
            None => return at.iter().zip(&sequences).all(|(at, sequence)| *at == sequence.len()),
        }
    }
}

/// A rank's tasks: in each phase its transfers with others between them. Values go from task to task of a phase, and from the forward
/// to the backward pass, with a copy for each microbatch that may be under way.
fn rank_program(
    rng: &mut fastrand::Rng,
    rank: u32,
    transfers: &[Vec<Block>],
    phases: &Phases,
    schedule: Vec<ScheduleLoop>,
) -> RankProgram {
    let mut graph = Graph::new("main", 1);
    let mut transfer = Vec::new();
    let times = |phase: u32| {
        let own = schedule.iter().map(|own| own.times * own.phases.iter().filter(|p| **p == phase).count() as u32);
        own.sum::<u32>()
    };
    let mut tasks: Vec<Vec<usize>> = Vec::new();
    let launches = rng.bool();
    for (phase, own) in phases.iter().enumerate() {
        let is_own = |id: &&usize| transfers[**id].iter().any(|block| block.from == rank || block.to == rank);
        let mut own: Vec<Option<usize>> = own.iter().filter(is_own).map(|id| Some(*id)).collect();
        for _ in 0..rng.usize(1..=3) {
            own.insert(rng.usize(..=own.len()), None);
        }
        let first = transfer.len();
        for id in own {
            // Some plans have transfers that their rank launches, and others next to them.
            let exec = id.map(|_| boxing(launches && rng.bool()));
            graph.task(&format!("t{}", transfer.len()), 0, exec);
            transfer.push(id);
        }
        let count = transfer.len() - first;
        graph.0.phases.push(Phase { first: first as u32, tasks: count as u32, times: times(phase as u32) });
        tasks.push((first..first + count).collect());
    }
    let mut offset = 0;
    let in_flight = times(1);
    let later = |phase: usize, task: usize| {
        let own = tasks[phase].iter().copied().filter(move |other| *other > task);
        let backward = if phase == 1 { tasks[2].clone() } else { Vec::new() };
        own.chain(backward).collect::<Vec<usize>>()
    };
    for phase in 0..PHASES {
        for &task in &tasks[phase] {
            let readers: Vec<usize> = later(phase, task).into_iter().filter(|_| rng.u32(..3) == 0).collect();
            let register = graph.block(&format!("r{task}"), task, &readers, 4, offset);
            let several = readers.iter().any(|reader| tasks[2].contains(reader)) && phase == 1;
            let copies = if several { in_flight } else { rng.u32(1..=2) };
            graph.0.registers[register as usize].copies = copies;
            offset += 64 * u64::from(copies);
        }
    }
    graph.0.schedule = schedule;
    let program = graph.finish();
    let graph = TaskGraph::of(&program).unwrap_or_else(|| panic!("the tasks and registers of a program agree"));
    RankProgram { program, graph, transfer }
}
