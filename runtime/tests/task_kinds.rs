//! Every kind of task runs: in a session, and in the simulator under random orders of delivery.

#[path = "../../plan/tests/common/mod.rs"]
mod common;
mod support;

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use common::kinds::{ROW, concat, input_wise, join, microbatches, task};
use common::{Graph, feed, fetch};
use of_plan::*;
use of_runtime::actor::{Action, Actor, Msg};
use of_runtime::flight_recorder::{TaskState, Wait, actors, registers};
use of_runtime::*;
use support::*;

const SEEDS: u64 = 100;

fn open(program: Program) -> Arc<PlanFile> {
    let mut plan = common::builder();
    plan.add_program(program);
    Arc::new(PlanFile::from_builder(&plan).unwrap_or_else(|e| panic!("{e}")))
}

#[test]
fn microbatches_run_every_kind() {
    for count in 1..=5 {
        for depth in 1..=count {
            let plan = open(microbatches(count, depth));
            let mut session = session(&plan, 1);
            for round in 0..3 {
                let x: Vec<f32> = (0..ROW * i64::from(count)).map(|i| (i * 7 % 30 + round) as f32).collect();
                let b: Vec<f32> = (0..ROW).map(|i| (i + round) as f32).collect();
                let whole = |values: &[f32], rows: i64| -> Value {
                    let dims = if values.len() as i64 == rows { vec![rows] } else { vec![values.len() as i64] };
                    Tensor::from_elements(dims, values).unwrap().into()
                };
                let out = session.run(vec![whole(&x, ROW), whole(&b, ROW)]).unwrap();
                let rows = || x.chunks_exact(ROW as usize);
                let sum: Vec<f32> = (0..ROW as usize).map(|i| rows().map(|row| row[i]).sum()).collect();
                assert_eq!(floats(&out[0]), sum, "{count} microbatches, {depth} in flight");
                assert_eq!(floats(&out[1]), x);
                assert_eq!(floats(&out[2]), b.repeat(count as usize));
            }
        }
    }
}

#[test]
fn microbatches_of_every_kind_are_simulated() {
    for (count, depth) in [(1, 1), (4, 1), (4, 2), (5, 5)] {
        let program = microbatches(count, depth);
        for seed in 0..SEEDS {
            let options = SimOptions { seed, iterations: 2, latency_ns: 3000, ..SimOptions::default() };
            let timeline = simulate(&program, &options).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
            assert_eq!(timeline.events.len(), 2 * program.acts());
            let acts = |task: usize| timeline.events.iter().filter(|event| event.task == task).count() as u32;
            assert_eq!((acts(task::TICK), acts(task::REPEAT), acts(task::ACC)), (2, 2 * count, 2 * count));
        }
    }
}

/// What the verifier refuses, copies that are too few, is a deadlock in the simulator.
#[test]
fn copies_that_are_too_few_end_in_a_deadlock() {
    let mut program = microbatches(4, 3);
    program.registers[common::kinds::register::SLICE].copies = 2;
    for seed in 0..SEEDS {
        let options = SimOptions { seed, latency_ns: 3000, ..SimOptions::default() };
        let error = simulate(&program, &options).unwrap_err();
        assert!(
            matches!(&error, SimError::Deadlock { waiting, .. } if waiting.contains(&"`unpack`".to_owned())),
            "{error}"
        );
    }
}

/// Acts of an input-wise task on its parts, in this order, and what it releases.
#[test]
fn an_input_wise_actor_acts_on_what_arrives() {
    let program = concat(&[4, 4, 4], 2);
    let graph = TaskGraph::of(&program).unwrap();
    let mut actor = Actor::of_program(&program, &graph).swap_remove(3);
    let mut send = |msg: Msg| {
        let mut actions = Vec::new();
        actor.on_message(msg, &mut |action| actions.push(action)).unwrap();
        (actions, actor.part())
    };
    let filled = |input: u32, iteration: u64| Msg::Filled { input, iteration };
    let acked = |to: u32, iteration: u64| Action::Send { to, msg: Msg::Acked { output: 0, iteration } };
    let act = |iteration: u64| Action::Act { iteration };
    assert_eq!(send(filled(2, 0)), (vec![act(0)], Some(2)));
    // The next iteration's part arrives while it acts, and waits for the other parts of this one.
    assert_eq!(send(filled(2, 1)).0, []);
    assert_eq!(send(Msg::Acted), (vec![acked(2, 0)], None));
    assert_eq!(send(filled(0, 0)), (vec![act(1)], Some(0)));
    assert_eq!(send(filled(1, 0)).0, []);
    assert_eq!(send(Msg::Acted), (vec![acked(0, 0), act(2)], Some(1)));
    let output = Action::Send { to: 4, msg: Msg::Filled { input: 0, iteration: 0 } };
    assert_eq!(send(Msg::Acted), (vec![output, acked(1, 0), act(3)], Some(2)));
    assert_eq!(send(Msg::Acted), (vec![acked(2, 1)], None));
}

/// All orders of arrival give the same value, and each is met.
#[test]
fn parts_that_arrive_in_any_order_give_one_value() {
    let elements = [4, 16, 8];
    for copies in 1..=3 {
        let plan = open(concat(&elements, copies));
        let mut session = session(&plan, 1);
        for round in 0..100 {
            let inputs: Vec<Vec<f32>> =
                elements.iter().zip(0..).map(|(n, i)| vec![(10 * round + i) as f32; *n as usize]).collect();
            let out = session.run(inputs.iter().map(|x| tensor(x)).collect()).unwrap();
            assert_eq!(floats(&out[0]), inputs.concat());
        }
        session.close().unwrap();
        let mut orders = std::collections::BTreeSet::new();
        for pipelined in [false, true] {
            let program = Program { pipelined, ..concat(&elements, copies) };
            for seed in 0..SEEDS {
                let options = SimOptions { seed, iterations: 5, latency_ns: 5000, ..SimOptions::default() };
                let timeline = simulate(&program, &options).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
                assert_eq!(timeline.events.len(), 5 * program.acts());
                let ends = timeline.events.iter().filter(|event| event.task < 3 && event.iteration == 0);
                orders.insert(ends.map(|event| event.task).collect::<Vec<_>>());
            }
        }
        assert_eq!(orders.len(), 6, "{orders:?}");
    }
}

/// A part is released by the act on it: its producer goes on, while the task waits for another part.
#[test]
fn a_part_is_released_before_the_others_arrive() {
    let begins = |input_wise: bool| {
        let mut program = Program { pipelined: true, ..concat(&[16, 16], 1) };
        if !input_wise {
            (program.tasks[2].kind, program.tasks[2].exec) = (TaskKind::Compute as i32, None);
        }
        verify(&Plan { programs: vec![without_ports(&program)], ..Plan::default() }).unwrap();
        // The first input takes 1, the second 50, each part 2.
        let options = SimOptions { iterations: 2, costs_ns: vec![1, 50, 2, 1], ..SimOptions::default() };
        let timeline = simulate(&program, &options).unwrap();
        let second = timeline.events.iter().filter(|event| event.task == 0).nth(1).unwrap();
        second.start_ns
    };
    // The thread of the first input has the output's task as well.
    assert_eq!((begins(true), begins(false)), (3, 53));
}

fn without_ports(program: &Program) -> Program {
    let mut program = program.clone();
    program
        .tasks
        .iter_mut()
        .filter(|t| matches!(t.exec, Some(Exec::Feed(_) | Exec::Fetch(_))))
        .for_each(|t| t.exec = None);
    (program.inputs, program.outputs) = (Vec::new(), Vec::new());
    program
}

/// What the verifier refuses, memory that only one part orders, some run of the simulator overwrites.
#[test]
fn memory_that_one_part_orders_is_caught() {
    let mut graph = Graph::new("main", 3);
    let (a, b, c) = (graph.task("a", 0, None), graph.task("b", 0, None), graph.task("c", 1, None));
    let whole = input_wise(&mut graph, "concat", 2);
    graph.block("x", a, &[b], 16, 0);
    graph.block("y", b, &[whole], 16, 128);
    graph.block("z", c, &[whole], 16, 192);
    let dst = graph.block("all", whole, &[], 32, 0);
    join(&mut graph, whole, dst);
    let program = graph.finish();
    let caught = |program: &Program| {
        let run = |seed| simulate(program, &SimOptions { seed, latency_ns: 3000, ..SimOptions::default() });
        (0..SEEDS).filter(|seed| matches!(run(*seed), Err(SimError::Overlap { .. }))).count()
    };
    assert!(caught(&program) > 0);
    let mut ordered = program.clone();
    order_reuse(&mut ordered);
    assert_eq!(caught(&ordered), 0);
}

/// Random graphs with input-wise tasks over several threads, whose memory is laid out badly on purpose and then ordered: the verifier
/// accepts them, no run of the simulator overwrites a value, and a session computes what a plain loop does.
#[test]
fn random_graphs_with_input_wise_tasks() {
    let mut joins = 0;
    for seed in 0..40 {
        let mut random = fastrand::Rng::with_seed(seed);
        let threads = random.u32(1..5);
        let (plan, inputs, is_concat) = random_joins(&mut random, threads);
        joins += is_concat.iter().filter(|own| **own).count();
        let program = &plan.plan().programs[0];
        for sim in 0..20 {
            let options = SimOptions { seed: sim, iterations: 3, latency_ns: 2500, ..SimOptions::default() };
            let timeline =
                simulate(program, &options).unwrap_or_else(|error| panic!("graph {seed}, seed {sim}: {error}"));
            assert_eq!(timeline.events.len(), 3 * program.acts());
        }
        let mut session = session(&plan, 2);
        for round in 0..10 {
            let outputs = session.run(vec![tensor(&[round as f32; 4])]).unwrap();
            let mut values = vec![vec![round as f32; 4]];
            for (from, concat) in inputs.iter().zip(&is_concat) {
                let read = || from.iter().map(|&input| &values[input]);
                let own = match concat {
                    true => read().flatten().copied().collect(),
                    false => (0..4).map(|i| read().map(|v| v[i]).sum::<f32>() + 1.0).collect(),
                };
                values.push(own);
            }
            assert_eq!(floats(&outputs[0]), *values.last().unwrap(), "seed {seed}");
        }
        session.close().unwrap();
    }
    assert!(joins > 50, "{joins}");
}

/// A graph of `add-one`s, which read the first elements of their inputs, and of input-wise tasks; the inputs of each by number of a value,
/// and whether it is input-wise.
fn random_joins(random: &mut fastrand::Rng, threads: u32) -> (Arc<PlanFile>, Vec<Vec<usize>>, Vec<bool>) {
    let count = random.usize(2..16);
    let mut inputs: Vec<Vec<usize>> = Vec::new();
    let mut is_concat = Vec::new();
    let mut elements = vec![4i64];
    for number in 0..count {
        let near = number.saturating_sub(3)..number + 1;
        let mut own: Vec<usize> = near.filter(|_| random.bool()).collect();
        if own.is_empty() {
            own.push(number);
        }
        let size: i64 = own.iter().map(|&input| elements[input]).sum();
        let concat = own.len() > 1 && size <= 64 && random.bool();
        elements.push(if concat { size } else { 4 });
        inputs.push(own);
        is_concat.push(concat);
    }
    let mut plan = common::builder();
    let mut graph = Graph::new("main", threads);
    graph.task("in", random.u32(..threads), feed(0));
    for (number, own) in inputs.iter().enumerate() {
        let (name, thread) = (format!("t{number}"), random.u32(..threads));
        if is_concat[number] {
            input_wise(&mut graph, &name, thread);
            continue;
        }
        let first = |&input: &usize| Arg::register(input as u32, 0).with_view(ElementType::F32, vec![4]);
        let exec = backend(&mut plan, "add-one", own.iter().map(first).collect(), vec![number as u32 + 1]);
        graph.task(&name, thread, exec);
    }
    let sink = graph.task("out", random.u32(..threads), fetch(0));
    for (value, size) in elements.into_iter().enumerate() {
        let mut to: Vec<usize> = (0..count).filter(|&t| inputs[t].contains(&value)).map(|t| t + 1).collect();
        if value == count {
            to.push(sink);
        }
        graph.block(&format!("r{value}"), value, &to, size, 256 * (value as u64 % 6));
    }
    (0..count).filter(|n| is_concat[*n]).for_each(|n| join(&mut graph, n + 1, n as u32 + 1));
    graph.port("x", 0, true);
    graph.port("y", count as u32, false);
    let mut program = graph.finish();
    order_reuse(&mut program);
    plan.add_program(program);
    (Arc::new(PlanFile::from_builder(&plan).unwrap_or_else(|e| panic!("{e}"))), inputs, is_concat)
}

/// In a real run a slow producer does not hold up the others: its part arrives last in one run and first in another.
#[test]
fn producers_end_in_either_order() {
    /// Waits for a message, and sends one when it is done.
    struct Gate(Option<Receiver<()>>, Option<Sender<()>>, f32);
    impl Executable for Gate {
        fn run(&mut self, _: &[ValueRef<'_>], outputs: &mut [ValueMut<'_>]) -> Result<(), ExecError> {
            let Gate(before, after, value) = self;
            if let Some(before) = before {
                before.recv().map_err(|_| ExecError::Failed("the other one does not end".into()))?;
            }
            let [ValueMut::Dense(output)] = outputs else { return Err(ExecError::Failed("one output".into())) };
            output.bytes.chunks_exact_mut(4).for_each(|to| to.copy_from_slice(&value.to_ne_bytes()));
            if let Some(after) = after {
                // The other one may have ended.
                let _ = after.send(());
            }
            Ok(())
        }
    }
    struct Gates(std::sync::Mutex<Vec<Gate>>);
    impl Loader for Gates {
        fn backend(&self) -> &str {
            "gate"
        }
        fn load(&self, _: &[u8], _: LoadContext<'_>) -> Result<Box<dyn Executable>, LoadError> {
            Ok(Box::new(self.0.lock().unwrap().pop().unwrap()))
        }
    }
    for slow in 0..2 {
        let mut plan = common::builder();
        let mut graph = Graph::new("main", 3);
        for number in 0..2 {
            let exec = backend(&mut plan, "gate", Vec::new(), vec![number]);
            graph.task(&format!("gate {number}"), number + 1, exec);
        }
        let whole = input_wise(&mut graph, "concat", 0);
        let sink = graph.task("out", 0, fetch(0));
        graph.block("a", 0, &[whole], 4, 0);
        graph.block("b", 1, &[whole], 4, 64);
        let dst = graph.block("all", whole, &[sink], 8, 128);
        join(&mut graph, whole, dst);
        graph.port("y", dst, false);
        plan.add_program(graph.finish());
        let plan = Arc::new(PlanFile::from_builder(&plan).unwrap());
        let (send, wait) = channel();
        let (mut send, mut wait) = (Some(send), Some(wait));
        let mut gate = |number: usize| match number == slow {
            true => Gate(wait.take(), None, number as f32),
            false => Gate(None, send.take(), number as f32),
        };
        // The last is loaded first.
        let gates = vec![gate(1), gate(0)];
        let loader: Arc<dyn Loader> = Arc::new(Gates(std::sync::Mutex::new(gates)));
        let mut session = Session::new(plan, 0, Options { threads: 1, ..Options::default() }, &[loader]).unwrap();
        for _ in 0..20 {
            assert_eq!(floats(&session.run(Vec::new()).unwrap()[0]), [0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0]);
        }
    }
}

/// The flight recorder says which part an input-wise task waits for, and that the others are released.
#[test]
fn recordings_name_the_part_that_is_missing() {
    let program = concat(&[4, 4, 4], 1);
    let acts = |counts: [u64; 5]| counts.map(|acts| TaskState { acts, acting: false });
    let (tasks, steps) = (acts([1, 1, 0, 2, 0]), 1);
    let waits = |tasks: &[TaskState]| actors(&program, tasks, steps).unwrap()[3].waits.clone();
    assert_eq!(waits(&tasks), [Wait::Value { register: 2, task: 2 }]);
    let used: Vec<u64> = registers(&program, &tasks).unwrap().iter().map(|register| register.used).collect();
    assert_eq!(used, [0, 0, 0, 1]);
    // Before its first part it waits for any, and after its last for the next step.
    assert_eq!(waits(&acts([0, 0, 0, 0, 0])).len(), 3);
    assert_eq!(waits(&acts([1, 0, 0, 0, 0])), []);
    assert_eq!(waits(&acts([1, 1, 1, 3, 0])), [Wait::Step]);
}
