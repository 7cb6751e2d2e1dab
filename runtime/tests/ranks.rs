//! Ranks, as threads that run a plan by hand and as actors in simulated time.

#[path = "../../plan/tests/common/mod.rs"]
mod common;

use std::sync::Arc;

use common::{Graph, builder, feed, fetch};
use of_plan::*;
use of_runtime::{
    CacheLevel, Link, Machine, MeshSession, Options, RanksOptions, RanksTimeline, RunError, SessionError, SimError,
    Tensor, Value, simulate_ranks,
};

/// Ranks along `axes` of a mesh sum a vector of so many elements.
fn sum(id: u32, axes: &[u32], elements: i64) -> Transfer {
    Transfer {
        id,
        axes: axes.to_vec(),
        dims: vec![elements],
        from: vec![AxisLayout::of(LayoutKind::Sum); axes.len()],
        to: vec![AxisLayout::of(LayoutKind::Broadcast); axes.len()],
        ..Transfer::default()
    }
}

/// Input, some work, and a sum after each part of it.
fn template(name: &str, dtype: ElementType, sums: &[Transfer]) -> Program {
    let mut graph = Graph::new(name, 1);
    let source = graph.task("in", 0, feed(0));
    let mut last = source;
    for (i, transfer) in sums.iter().enumerate() {
        let work = graph.task(
            &format!("work {i}"),
            0,
            Some(Exec::Copy(CopyExec {
                src: Arg::register(2 * i as u32, 0),
                dst: Arg::register(2 * i as u32 + 1, 0),
                bytes: 32,
                ..CopyExec::default()
            })),
        );
        let exec = BoxingExec {
            transfer: transfer.clone(),
            src: Arg::register(2 * i as u32 + 1, 0),
            dst: 2 * i as u32 + 2,
            ..BoxingExec::default()
        };
        let boxing = graph.task(&format!("sum {i}"), 0, Some(Exec::Boxing(exec)));
        graph.block(&format!("a{i}"), last, &[work], 8, 128 * i as u64);
        graph.block(&format!("b{i}"), work, &[boxing], 8, 128 * i as u64 + 64);
        last = boxing;
    }
    let sink = graph.task("out", 0, fetch(0));
    let y = graph.block("y", last, &[sink], 8, 128 * sums.len() as u64);
    graph.port("x", 0, true);
    graph.port("y", y, false);
    let mut program = graph.finish();
    for register in &mut program.registers {
        register.dtype = dtype as i32;
    }
    program.inputs[0].dtype = dtype as i32;
    program.outputs[0].dtype = dtype as i32;
    program.inner = true;
    chain_threads(&mut program);
    program
}

fn plan(shape: &[u32], templates: Vec<Program>, ranks: Vec<u32>, input: LayoutKind) -> PlanBuilder<'static> {
    let mut plan = builder();
    let dtype = templates[0].inputs[0].dtype;
    templates.into_iter().for_each(|t| {
        plan.add_program(t);
    });
    let port = |name: &str, kind| MeshPort {
        microbatches: None,
        name: name.into(),
        dtype,
        dims: vec![8],
        layout: vec![AxisLayout::of(kind); shape.len()],
    };
    plan.add_mesh(MeshProgram {
        variables: Vec::new(),
        name: "main".into(),
        shape: shape.to_vec(),
        inputs: vec![port("x", input)],
        outputs: vec![port("y", LayoutKind::Broadcast)],
        ranks: ranks.into_iter().map(|program| Rank { program, weight_overrides: Vec::new() }).collect(),
    });
    plan
}

fn open(plan: &PlanBuilder<'static>) -> Result<MeshSession, SessionError> {
    let file = PlanFile::from_builder(plan).unwrap_or_else(|e| panic!("{e}"));
    MeshSession::new(Arc::new(file), 0, Options { threads: 1, profile: true, ..Default::default() }, &[])
}

#[test]
fn all_reduce_sums_the_ranks() {
    let x: Vec<f32> = (0..8).map(|x| x as f32).collect();
    let given: Value = Tensor::from_elements([8], &x).unwrap().into();
    for (shape, ranks) in [(vec![1], 1), (vec![3], 3), (vec![2, 2], 4), (vec![8], 8)] {
        let axes: Vec<u32> = (0..shape.len() as u32).collect();
        let sums = [sum(1, &axes, 8), sum(2, &axes, 8)];
        // Whole on every rank, each sum multiplies by the number of ranks; given as parts of a sum, the first one not.
        for (input, times) in [(LayoutKind::Broadcast, ranks * ranks), (LayoutKind::Sum, ranks)] {
            let plan = plan(&shape, vec![template("t", ElementType::F32, &sums)], vec![0; ranks], input);
            let mut session = open(&plan).unwrap_or_else(|e| panic!("{e}"));
            for _ in 0..3 {
                let y = session.run(std::slice::from_ref(&given)).unwrap_or_else(|e| panic!("{e}"));
                let y = y[0].as_tensor().and_then(|t| t.to_elements::<f32>()).unwrap();
                assert_eq!(y, x.iter().map(|x| x * times as f32).collect::<Vec<_>>(), "{shape:?} {input:?}");
            }
            assert_eq!(session.timings(0).iter().find(|t| t.name == "sum 1").map(|t| t.calls), Some(3));
            session.reset_timings();
            assert_eq!(session.timings(0)[0].calls, 0);
            assert!(session.step() > std::time::Duration::ZERO);
        }
    }
}

#[test]
fn unsupported_reduction_is_reported_before_the_run() {
    let sums = [sum(1, &[0], 8)];
    let input = LayoutKind::Broadcast;
    let plan = plan(&[2], vec![template("t", ElementType::F8E5M2, &sums)], vec![0, 0], input);
    assert!(matches!(open(&plan), Err(SessionError::Combine { dtype: "f8E5M2", .. })));
}

#[test]
fn inputs_must_be_whole() {
    let plan = plan(&[2], vec![template("t", ElementType::F32, &[])], vec![0, 0], LayoutKind::Broadcast);
    let mut session = open(&plan).unwrap_or_else(|e| panic!("{e}"));
    let short: Value = Tensor::from_elements([4], &[0f32; 4]).unwrap().into();
    assert!(matches!(session.run(&[short]), Err(RunError::Input { index: 0, .. })));
    assert!(matches!(session.run(&[]), Err(RunError::InputCount { expected: 1, got: 0, .. })));
}

/// Simulates; the work of template `t` takes `1000 (t + 1)` ns, a sum 100 ns, all else nothing.
fn simulated(plan: &PlanBuilder<'static>, options: &RanksOptions) -> Result<RanksTimeline, SimError> {
    let plan = plan.plan();
    simulate_ranks(plan, &plan.meshes[0], options, &mut |rank, program| {
        let template = u64::from(plan.meshes[0].ranks[rank as usize].program);
        let cost = |task: &Task| match &task.exec {
            Some(Exec::Copy(_)) => 1000 * (template + 1),
            Some(Exec::Boxing(_)) => 100,
            _ => 0,
        };
        program.tasks.iter().map(cost).collect()
    })
}

#[test]
fn a_thousand_equivalent_ranks_are_simulated_as_one() {
    let sums = [sum(1, &[1], 8), sum(2, &[0], 8), sum(3, &[0, 1], 8)];
    let plan = plan(&[16, 64], vec![template("t", ElementType::F32, &sums)], vec![0; 1024], LayoutKind::Broadcast);
    let t = simulated(&plan, &RanksOptions::default()).unwrap();
    assert_eq!((t.classes.len(), t.classes[0].ranks.len(), t.makespan_ns), (1, 1024, 3300));
    assert_eq!(t.classes[0].utilisation(t.makespan_ns), 1.0);
    assert_eq!(t.classes[0].chunk_bytes, 128 * 3 + 32);
    // Where each takes another time, each is simulated.
    let jitter = RanksOptions { jitter: 0.1, seed: 7, ..RanksOptions::default() };
    let late = simulated(&plan, &jitter).unwrap();
    assert!(late.makespan_ns > 3300 && late.makespan_ns <= 3630, "{}", late.makespan_ns);
    assert_eq!(late.classes.len(), 1024);
    assert_eq!(simulated(&plan, &jitter).unwrap(), late);
    assert!(late.classes.iter().any(|c| c.timeline.events.iter().any(|e| e.waited_ns > 0)));
}

#[test]
fn ranks_wait_in_a_rendezvous() {
    // Rank 5 of 2 x 4 is slow: first its row waits, then all.
    let sums = [sum(1, &[1], 8), sum(2, &[0], 8)];
    let both = vec![template("fast", ElementType::F32, &sums), template("slow", ElementType::F32, &sums)];
    let ranks = (0..8).map(|r| u32::from(r == 5)).collect();
    let plan = plan(&[2, 4], both, ranks, LayoutKind::Broadcast);
    let t = simulated(&plan, &RanksOptions::default()).unwrap();
    let mut members: Vec<Vec<u32>> = t.classes.iter().map(|c| c.ranks.clone()).collect();
    members.sort();
    assert_eq!(members, [vec![0, 2, 3], vec![1], vec![4, 6, 7], vec![5]]);
    // In the row of rank 5 the first sum begins at 2000; the slow rank ends its second work at 4100.
    assert_eq!(t.makespan_ns, 4200);
    let waits = |rank: u32, sum: &str| {
        let class = t.classes.iter().find(|c| c.ranks.contains(&rank)).unwrap();
        let program = &plan.plan().programs[class.program as usize];
        let at = program.tasks.iter().position(|t| t.name == sum).unwrap();
        class.timeline.events.iter().find(|e| e.task == at).unwrap().waited_ns
    };
    assert_eq!([waits(4, "sum 0"), waits(0, "sum 0"), waits(5, "sum 0")], [1000, 0, 0]);
    assert_eq!([waits(0, "sum 1"), waits(1, "sum 1"), waits(4, "sum 1")], [1000, 2000, 0]);
}

#[test]
fn ranks_share_cores() {
    let template = || vec![template("t", ElementType::F32, &[sum(1, &[0], 8)])];
    let plan = plan(&[4], template(), vec![0; 4], LayoutKind::Broadcast);
    for (cores, takes) in [(1, 4400), (2, 2200), (4, 1100)] {
        let t = simulated(&plan, &RanksOptions { cores: Some(cores), ..RanksOptions::default() }).unwrap();
        assert_eq!(t.makespan_ns, takes, "{cores} cores");
        // The wait for a core is part of what each task waited, and is not work.
        let events = || t.classes.iter().flat_map(|class| &class.timeline.events);
        assert!(events().all(|event| event.core_wait_ns <= event.waited_ns));
        assert_eq!(t.classes.iter().any(|class| class.core_wait_ns() > 0), cores < 4, "{cores} cores");
        let worked: f64 =
            t.classes.iter().map(|class| class.utilisation(t.makespan_ns) * class.ranks.len() as f64).sum();
        assert!((worked - f64::from(cores as u32)).abs() < 1e-9, "{worked} on {cores} cores");
    }
}

/// Threads of a rank work at the same time: no share of the time is more than all of it.
#[test]
fn a_rank_with_several_threads_works_all_the_time_at_most() {
    let mut graph = Graph::new("t", 2);
    graph.task("work 0", 0, None);
    graph.task("work 1", 1, None);
    let mut plan = builder();
    plan.add_program(graph.finish());
    plan.add_mesh(MeshProgram {
        name: "main".into(),
        shape: vec![1],
        ranks: vec![Rank { program: 0, weight_overrides: Vec::new() }],
        ..MeshProgram::default()
    });
    let plan = plan.plan();
    let t = simulate_ranks(plan, &plan.meshes[0], &RanksOptions::default(), &mut |_, _| vec![1000, 600]).unwrap();
    assert_eq!((t.makespan_ns, t.classes[0].utilisation(t.makespan_ns)), (1000, 1.0));
}

/// What a stage of several does with so many microbatches: it receives from the one before, computes, and sends to the next.
fn stage(number: u32, stages: u32, microbatches: u32) -> Program {
    let mut graph = Graph::new(&format!("stage {number}"), 1);
    let transfer = |from: u32, microbatch: u32| Transfer {
        id: 1 + microbatch * stages + from,
        axes: vec![0],
        dims: vec![8],
        from: vec![AxisLayout::at(from)],
        to: vec![AxisLayout::at(from + 1)],
        ..Transfer::default()
    };
    for microbatch in 0..microbatches {
        if number > 0 {
            let exec = BoxingExec {
                transfer: transfer(number - 1, microbatch),
                src: Arg::register(0, 0),
                dst: 0,
                ..BoxingExec::default()
            };
            graph.task("receive", 0, Some(Exec::Boxing(exec)));
        }
        graph.task("work", 0, None);
        if number + 1 < stages {
            let exec = BoxingExec {
                transfer: transfer(number, microbatch),
                src: Arg::register(0, 0),
                dst: 0,
                ..BoxingExec::default()
            };
            graph.task("send", 0, Some(Exec::Boxing(exec)));
        }
    }
    let mut program = graph.finish();
    chain_threads(&mut program);
    program
}

#[test]
fn a_pipeline_has_its_bubble() {
    // M microbatches on S stages take M + S - 1 steps, if all take equally long and transfers are free.
    for (stages, microbatches) in [(1, 3), (2, 1), (2, 8), (4, 8)] {
        let mut plan = builder();
        (0..stages).for_each(|s| {
            plan.add_program(stage(s, stages, microbatches));
        });
        plan.add_mesh(MeshProgram {
            variables: Vec::new(),
            name: "main".into(),
            shape: vec![stages, 2],
            ranks: (0..2 * stages).map(|r| Rank { program: r / 2, weight_overrides: Vec::new() }).collect(),
            ..MeshProgram::default()
        });
        let plan = plan.plan();
        let t = simulate_ranks(plan, &plan.meshes[0], &RanksOptions::default(), &mut |_, program| {
            program.tasks.iter().map(|t| if t.exec.is_none() { 1000 } else { 0 }).collect()
        })
        .unwrap();
        assert_eq!(
            t.makespan_ns,
            1000 * u64::from(microbatches + stages - 1),
            "{stages} stages, {microbatches} microbatches"
        );
        // The two ranks of a stage do the same.
        assert_eq!(t.classes.len(), stages as usize);
        let busy = f64::from(microbatches) / f64::from(microbatches + stages - 1);
        assert!(t.classes.iter().all(|c| (c.utilisation(t.makespan_ns) - busy).abs() < 1e-9));
    }
}

#[test]
fn simulator_finds_deadlocks() {
    let templates = vec![
        template("a", ElementType::F32, &[sum(1, &[0], 8), sum(2, &[0], 8)]),
        template("b", ElementType::F32, &[sum(2, &[0], 8), sum(1, &[0], 8)]),
    ];
    let plan = plan(&[2], templates, vec![0, 1], LayoutKind::Broadcast);
    assert!(verify(plan.plan()).is_err());
    assert!(matches!(simulated(&plan, &RanksOptions::default()), Err(SimError::Deadlock { .. })));
}

#[test]
fn task_costs_follow_the_machine_model() {
    let plan = plan(&[4], vec![template("t", ElementType::F32, &[sum(1, &[0], 8)])], vec![0; 4], LayoutKind::Broadcast);
    let plan = plan.plan();
    let machine = Machine {
        flops: vec![],
        other_flops: 1e9,
        pointwise: f64::INFINITY,
        bandwidth: 1e9,
        caches: vec![],
        ranks_per_core: 1.0,
        overhead: 1e-6,
        links: vec![Link { bandwidth: 1e9, latency: 5e-6, short: vec![] }],
    };
    let costs = machine.costs_ns(plan, &plan.meshes[0], 0, &plan.programs[0]);
    // 32 bytes in and out; for the sum two rounds and 96 bytes from others.
    assert_eq!(costs, [1064, 1064, 1000 + 10_000 + 96, 1064]);
    // All of it is in a cache after the first run, and short messages are faster.
    let near = vec![CacheLevel { bytes: 1 << 20, bandwidth: 4e9 }];
    let link = Link { short: vec![CacheLevel { bytes: 1 << 10, bandwidth: 2e9 }], ..machine.links[0].clone() };
    let machine = Machine { caches: near, links: vec![link], ..machine };
    let costs = machine.costs_ns(plan, &plan.meshes[0], 0, &plan.programs[0]);
    assert_eq!(costs, [1016, 1016, 1000 + 10_000 + 48, 1016]);
}
