//! Programs that have every kind of task, for tests of the verifier, the simulator and the runtime.

use of_plan::*;

use super::{Graph, feed, fetch};

/// Elements of a microbatch: 64 bytes, so that copies of a register follow one another without gaps.
pub const ROW: i64 = 16;
const ROW_BYTES: u64 = ROW as u64 * 4;

/// The tasks of [`microbatches`] by index.
pub mod task {
    pub const TICK: usize = 2;
    pub const UNPACK: usize = 3;
    pub const REPEAT: usize = 4;
    pub const ACC: usize = 5;
    pub const PACK: usize = 6;
    pub const PACK_REPEATED: usize = 7;
}

/// The registers of [`microbatches`] by id.
pub mod register {
    pub const WHOLE: usize = 0;
    pub const SLICE: usize = 2;
    pub const REPEATED: usize = 3;
}

/// A program of so many microbatches with all kinds of tasks that only such programs have. `x` has a row for each microbatch, and `b`
/// one row. The outputs are the sum of the rows of `x`, `x` itself, and `b` once for each microbatch.
///
/// Each microbatch has two phases: the first unpacks and repeats, the second accumulates and packs. The first runs `depth` microbatches ahead, so
/// registers between both have as many copies.
pub fn microbatches(count: u32, depth: u32) -> Program {
    let mut graph = Graph::new("main", 1);
    let x = graph.task("x", 0, feed(0));
    let b = graph.task("b", 0, feed(1));
    let tick = time_task(&mut graph, "tick", TaskKind::Tick, None);
    let copy = |from: u32, to: u32| CopyExec {
        src: Arg::register(from, 0),
        dst: Arg::register(to, 0),
        bytes: ROW_BYTES,
        ..CopyExec::default()
    };
    let exec = CopyExec { src_step: ROW_BYTES, ..copy(0, 2) };
    let unpack = time_task(&mut graph, "unpack", TaskKind::Unpack, Some(exec));
    let repeat = time_task(&mut graph, "repeat", TaskKind::Repeat, Some(copy(1, 3)));
    let exec = CopyExec { combine: LayoutKind::Sum as i32, ..copy(2, 4) };
    let acc = time_task(&mut graph, "acc", TaskKind::Acc, Some(exec));
    let exec = CopyExec { dst_step: ROW_BYTES, ..copy(2, 5) };
    let pack = time_task(&mut graph, "pack", TaskKind::Pack, Some(exec));
    let exec = CopyExec { dst_step: ROW_BYTES, ..copy(3, 6) };
    let pack_repeated = time_task(&mut graph, "pack repeated", TaskKind::Pack, Some(exec));
    let sinks: Vec<usize> = (0..3).map(|port| graph.task(&format!("out {port}"), 0, fetch(port))).collect();
    let (one, all) = (ROW, ROW * i64::from(count));
    let registers = [
        ("x", x, vec![unpack], all, 1),
        ("b", b, vec![repeat], one, 1),
        ("slice", unpack, vec![acc, pack], one, depth),
        ("repeated", repeat, vec![pack_repeated], one, depth),
        ("sum", acc, vec![sinks[0]], one, 1),
        ("all", pack, vec![sinks[1]], all, 1),
        ("many", pack_repeated, vec![sinks[2]], all, 1),
    ];
    let mut offset = 0;
    for (name, from, to, elements, copies) in registers {
        let id = graph.block(name, from, &to, elements, offset);
        graph.0.registers[id as usize].copies = copies;
        offset += elements as u64 * 4 * u64::from(copies);
    }
    // A token of a run, which all acts of a microbatch's task read.
    graph.control(b, tick);
    graph.control(tick, repeat);
    for (name, register, input) in
        [("x", 0, true), ("b", 1, true), ("sum", 4, false), ("all", 5, false), ("many", 6, false)]
    {
        graph.port(name, register, input);
    }
    let phase = |first, tasks, times| Phase { first, tasks, times };
    graph.0.phases = vec![phase(0, 3, 1), phase(3, 2, count), phase(5, 3, count), phase(8, 3, 1)];
    let run = |phases: &[u32], times| ScheduleLoop { phases: phases.to_vec(), times };
    let all = [run(&[0], 1), run(&[1], depth), run(&[2, 1], count - depth), run(&[2], depth), run(&[3], 1)];
    graph.0.schedule = all.into_iter().filter(|own| own.times > 0).collect();
    graph.finish()
}

/// A task of a kind that copies, or that runs nothing.
fn time_task(graph: &mut Graph, name: &str, kind: TaskKind, exec: Option<CopyExec>) -> usize {
    let task = graph.task(name, 0, exec.map(Exec::Copy));
    graph.0.tasks[task].kind = kind as i32;
    task
}

/// Adds an input-wise task, whose registers are not there yet: [`join`] follows when they are.
pub fn input_wise(graph: &mut Graph, name: &str, thread: u32) -> usize {
    let task = graph.task(name, thread, None);
    graph.0.tasks[task].kind = TaskKind::InputWise as i32;
    task
}

/// Says that an input-wise task puts its inputs one after another into `dst`.
pub fn join(graph: &mut Graph, task: usize, dst: u32) {
    let registers = &graph.0.registers;
    let data = graph.0.tasks[task].consumes.iter().filter(|id| !registers[**id as usize].is_control());
    let mut offset = 0;
    let part = |id: &u32| {
        let bytes = registers[*id as usize].block().unwrap().bytes;
        offset += bytes;
        ConcatPart { src: Arg::register(*id, 0), offset: offset - bytes, bytes }
    };
    let parts = data.map(part).collect();
    graph.0.tasks[task].exec = Some(Exec::Concat(ConcatExec { parts, dst }));
}

/// Inputs of so many elements, each fed on a thread of its own, which an input-wise task on a further thread puts one after another.
/// Registers have so many copies.
pub fn concat(elements: &[i64], copies: u32) -> Program {
    let threads = elements.len() as u32;
    let mut graph = Graph::new("main", threads + 1);
    let feeds: Vec<usize> = (0..threads).map(|port| graph.task(&format!("in {port}"), port, feed(port))).collect();
    let task = input_wise(&mut graph, "concat", threads);
    let sink = graph.task("out", 0, fetch(0));
    let mut offset = 0;
    let whole = elements.iter().sum();
    let ends = feeds.iter().zip(elements).map(|(feed, n)| (*feed, task, *n)).chain([(task, sink, whole)]);
    for (number, (from, to, n)) in ends.enumerate() {
        let id = graph.block(&format!("r{number}"), from, &[to], n, offset);
        graph.0.registers[id as usize].copies = copies;
        offset += (n as u64 * 4).next_multiple_of(64) * u64::from(copies);
    }
    join(&mut graph, task, threads);
    (0..threads).for_each(|id| graph.port(&format!("x{id}"), id, true));
    graph.port("y", threads, false);
    graph.finish()
}
