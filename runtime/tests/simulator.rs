//! The actors under random orders of delivery: everything ends, iterations keep their order, no live register is destroyed.

#[path = "../../plan/tests/common/mod.rs"]
mod common;

use common::Graph;
use common::movers::{Order, two_movers};
use of_plan::*;
use of_runtime::actor::{Action, Actor, Msg};
use of_runtime::{SimError, SimOptions, simulate};

const SEEDS: u64 = 250;

fn check(program: &Program, iterations: u64) {
    verify(&Plan { programs: vec![program.clone()], ..Plan::default() }).unwrap();
    for seed in 0..SEEDS {
        let options = SimOptions { seed, iterations, costs_ns: Vec::new(), latency_ns: 3000 };
        let timeline = simulate(program, &options).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        assert_eq!(timeline.events.len() as u64, iterations * program.tasks.len() as u64);
        assert_eq!(simulate(program, &options).unwrap(), timeline, "seed {seed} is not deterministic");
    }
}

/// A chain over some threads; with `num` registers at each step, all in memory of their own.
fn chain(length: usize, threads: u32, num: u32) -> Program {
    let mut graph = Graph::new("main", threads);
    (0..length).for_each(|n| {
        graph.task(&format!("t{n}"), n as u32 % threads, None);
    });
    for n in 0..length - 1 {
        let register = graph.block(&format!("r{n}"), n, &[n + 1], 16, 64 * 4 * n as u64);
        graph.0.registers[register as usize].copies = num;
    }
    graph.0.pipelined = true;
    graph.finish()
}

#[test]
fn chains() {
    for num in 1..=3 {
        for threads in 1..=3 {
            check(&chain(6, threads, num), 7);
        }
    }
}

#[test]
fn chains_that_reuse_memory() {
    for pipelined in [false, true] {
        let mut graph = Graph::new("main", 1);
        (0..8).for_each(|n| {
            graph.task(&format!("t{n}"), 0, None);
        });
        (0..7).for_each(|n| {
            graph.block(&format!("r{n}"), n, &[n + 1], 16, 64 * (n as u64 % 2));
        });
        if pipelined {
            graph.control(0, 7);
            graph.0.pipelined = true;
        }
        check(&graph.finish(), 5);
    }
}

#[test]
fn diamonds() {
    for num in 1..=3 {
        let mut graph = Graph::new("main", 3);
        let a = graph.task("a", 0, None);
        let (b, c) = (graph.task("b", 1, None), graph.task("c", 2, None));
        let d = graph.task("d", 0, None);
        let mut offset = 0;
        for (name, from, to) in [("x", a, vec![b, c, d]), ("y", b, vec![d]), ("z", c, vec![d]), ("end", d, vec![])] {
            let register = graph.block(name, from, &to, 16, offset);
            graph.0.registers[register as usize].copies = num;
            offset += 64 * u64::from(num);
        }
        graph.0.pipelined = true;
        check(&graph.finish(), 6);
    }
}

/// Random graphs whose memory is laid out badly on purpose and then ordered.
#[test]
fn random_graphs_with_ordered_reuse() {
    for seed in 0..30 {
        let mut random = fastrand::Rng::with_seed(seed);
        let threads = random.u32(1..4);
        let mut graph = Graph::new("main", threads);
        let tasks = random.usize(3..20);
        (0..tasks).for_each(|n| {
            graph.task(&format!("t{n}"), random.u32(..threads), None);
        });
        for from in 0..tasks - 1 {
            // Consumers are near, so that the lifetimes over the order of the tasks are short.
            let to: Vec<_> = (from + 1..tasks.min(from + 4)).filter(|_| random.bool()).collect();
            graph.block(&format!("r{from}"), from, &to, 16, 64 * (from as u64 % 5));
        }
        let mut program = graph.finish();
        order_reuse(&mut program);
        let plan = Plan { programs: vec![program.clone()], ..Plan::default() };
        assert_eq!(verify(&plan), Ok(()), "seed {seed}");
        for sim in 0..20 {
            let options = SimOptions { seed: sim, iterations: 3, costs_ns: Vec::new(), latency_ns: 2500 };
            simulate(&program, &options).unwrap_or_else(|error| panic!("graph {seed}, seed {sim}: {error}"));
        }
        let mut chained = plan.programs[0].clone();
        chain_threads(&mut chained);
        assert_eq!(verify(&Plan { programs: vec![chained.clone()], ..Plan::default() }), Ok(()), "seed {seed}");
        simulate(&chained, &SimOptions { seed, iterations: 2, latency_ns: 1000, ..SimOptions::default() }).unwrap();
    }
}

/// What the verifier refuses, the simulator must catch in the act for some seed: the two know nothing of each other.
#[test]
fn unordered_reuse_is_caught() {
    let mut graph = Graph::new("main", 2);
    let a = graph.task("a", 0, None);
    let (b, c, d) = (graph.task("b", 0, None), graph.task("c", 1, None), graph.task("d", 1, None));
    graph.block("x", a, &[b, c], 16, 0);
    graph.block("y", b, &[d], 16, 64);
    graph.block("z", c, &[d], 16, 64);
    let program = graph.finish();
    assert!(verify(&Plan { programs: vec![program.clone()], ..Plan::default() }).is_err());
    let caught = (0..SEEDS).filter(|&seed| {
        let options = SimOptions { seed, latency_ns: 3000, ..SimOptions::default() };
        matches!(simulate(&program, &options), Err(SimError::Overlap { .. }))
    });
    assert!(caught.count() > 0);
}

#[test]
fn cycles_end_in_a_deadlock() {
    let mut graph = Graph::new("main", 1);
    let (a, b, c) = (graph.task("a", 0, None), graph.task("b", 0, None), graph.task("c", 0, None));
    graph.control(a, b);
    graph.control(b, c);
    graph.control(c, b);
    let error = simulate(&graph.finish(), &SimOptions::default()).unwrap_err();
    assert!(matches!(&error, SimError::Deadlock { waiting, .. } if waiting.contains(&"`b`".to_owned())), "{error}");
}

/// The deadlock of two movements and two computations on one device happens in every order of delivery, and in no order where the compiler
/// ordered the memory. Without an order some run overwrites a value.
#[test]
fn contradicting_orders_of_memory_end_in_a_deadlock() {
    let run = |order, seed| {
        let options = SimOptions { seed, iterations: 3, latency_ns: 3000, ..SimOptions::default() };
        simulate(&two_movers(order), &options)
    };
    for seed in 0..SEEDS {
        let Err(SimError::Deadlock { waiting, .. }) = run(Order::Crossed, seed) else { panic!("seed {seed}") };
        assert_eq!(waiting, ["`m1`", "`o1`", "`r1`", "`m2`", "`o2`", "`r2`"], "seed {seed}");
        run(Order::Compiled, seed).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
    let overwrites = |seed: &u64| matches!(run(Order::Free, *seed), Err(SimError::Overlap { .. }));
    assert!((0..SEEDS).any(|seed| overwrites(&seed)));
}

/// A thread prepares what another one uses: the slower of both sets the pace where the register between them has two copies. With one
/// copy they alternate. These are the timelines of the paper on OneFlow, for slow training and for slow preprocessing.
#[test]
fn the_slower_task_sets_the_pace_of_two_copies() {
    const RUNS: u64 = 100;
    let step = |[prepare, train]: [u64; 2], copies: u32| {
        let mut graph = Graph::new("main", 2);
        let tasks = [graph.task("prepare", 0, None), graph.task("train", 1, None)];
        let batch = graph.block("batch", tasks[0], &[tasks[1]], 16, 0);
        graph.0.registers[batch as usize].copies = copies;
        graph.0.pipelined = true;
        let program = graph.finish();
        verify(&Plan { programs: vec![program.clone()], ..Plan::default() }).unwrap();
        let options = SimOptions { iterations: RUNS, costs_ns: vec![prepare, train], ..SimOptions::default() };
        simulate(&program, &options).unwrap().makespan_ns as f64 / RUNS as f64
    };
    for (name, costs) in [("slow training", [3000, 10_000]), ("slow preprocessing", [10_000, 3000])] {
        for (copies, expected) in [(1, 13_000.0), (2, 10_000.0), (3, 10_000.0)] {
            let ns = step(costs, copies);
            assert!(
                (expected..expected * 1.03).contains(&ns),
                "{name}, {copies} copies: {ns} ns a step, not {expected}"
            );
        }
    }
}

/// Two registers at each step let all tasks of a chain work at the same time: the makespan is the fill plus the iterations.
#[test]
fn pipelining_and_back_pressure_show_in_the_timeline() {
    let makespan = |num| {
        let options = SimOptions { iterations: 10, costs_ns: vec![100; 4], ..SimOptions::default() };
        simulate(&chain(4, 4, num), &options).unwrap().makespan_ns
    };
    assert_eq!(makespan(2), 100 * (4 + 9));
    // With one register a task and its neighbour alternate.
    assert_eq!(makespan(1), 100 * (4 + 2 * 9));
    let slow_end = SimOptions { iterations: 10, costs_ns: vec![1, 1, 1, 1000], ..SimOptions::default() };
    let timeline = simulate(&chain(4, 4, 2), &slow_end).unwrap();
    assert_eq!(timeline.makespan_ns, 3 + 10 * 1000);
    // The source is held back by the free registers, not by its own speed.
    let last_start = timeline.events.iter().filter(|event| event.task == 0).map(|event| event.start_ns).max().unwrap();
    assert!(last_start > 2000, "{last_start}");
    assert!(timeline.peak_live_bytes <= 3 * 2 * 64);
}

#[test]
fn bad_options_are_refused() {
    let program = chain(3, 1, 1);
    let costs = SimOptions { costs_ns: vec![1], ..SimOptions::default() };
    assert!(matches!(simulate(&program, &costs), Err(SimError::Setup { .. })));
    let none = SimOptions { iterations: 0, ..SimOptions::default() };
    assert!(matches!(simulate(&program, &none), Err(SimError::Setup { .. })));
    let changes: [fn(&mut Program); 5] = [
        |program| program.registers[0].copies = 0,
        |program| program.registers[0].consumers.clear(),
        |program| program.tasks[0].produces.push(9),
        |program| program.registers[0].producer = 99,
        |program| program.threads.clear(),
    ];
    for change in changes {
        let mut broken = program.clone();
        change(&mut broken);
        assert!(matches!(simulate(&broken, &SimOptions::default()), Err(SimError::Setup { .. })));
    }
}

#[test]
fn actors_refuse_messages_they_cannot_get() {
    let program = chain(2, 1, 1);
    let graph = TaskGraph::of(&program).unwrap();
    let fresh = || Actor::of_program(&program, &graph);
    let mut actors = fresh();
    let (source, sink) = actors.split_at_mut(1);
    let mut none = |action: Action| panic!("{action:?}");
    assert!(sink[0].on_message(Msg::Filled { input: 1, iteration: 0 }, &mut none).is_err());
    assert!(sink[0].on_message(Msg::Filled { input: 0, iteration: 1 }, &mut none).is_err());
    assert!(sink[0].on_message(Msg::Start { iterations: 1 }, &mut none).is_err());
    assert!(sink[0].on_message(Msg::Acted, &mut none).is_err());
    assert!(source[0].on_message(Msg::Acked { output: 0, iteration: 0 }, &mut none).is_err());
    assert!(source[0].on_message(Msg::Start { iterations: 0 }, &mut none).is_err());
    let mut actions = Vec::new();
    fresh()[0].on_message(Msg::Start { iterations: 2 }, &mut |action| actions.push(action)).unwrap();
    assert_eq!(actions, [Action::Act { iteration: 0 }]);
}
