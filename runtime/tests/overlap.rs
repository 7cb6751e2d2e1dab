//! Asynchronous transfers: ranks compute while data is under way, as threads and in simulated time.

#[path = "../../plan/tests/common/mod.rs"]
mod common;

use std::sync::Arc;

use common::{Graph, builder, feed, fetch};
use of_plan::*;
use of_runtime::{MeshSession, Options, RanksOptions, Tensor, Value, simulate_ranks};

const ELEMENTS: i64 = 8;

fn sum(id: u32) -> Transfer {
    let layout = |kind| vec![AxisLayout::of(kind)];
    let (from, to) = (layout(LayoutKind::Sum), layout(LayoutKind::Broadcast));
    Transfer { id, axes: vec![0], dims: vec![ELEMENTS], from, to, ..Transfer::default() }
}

fn copy(from: u32, to: u32) -> Option<Exec> {
    let (src, dst) = (Arg::register(from, 0), Arg::register(to, 0));
    Some(Exec::Copy(CopyExec { src, dst, bytes: 4 * ELEMENTS as u64, ..CopyExec::default() }))
}

/// A step of training: a backward pass whose layers each give a gradient, a sum of each over the ranks, and updates at the end. The
/// register of layer `i` is `1 + i`, that of its sum `1 + layers + i`.
fn step(layers: u32, is_async: bool) -> Graph {
    let mut graph = Graph::new("step", 1);
    let source = graph.task("in", 0, feed(0));
    let (mut made, mut sums) = (Vec::new(), Vec::new());
    for i in 0..layers {
        made.push(graph.task(&format!("backward {i}"), 0, copy(0, 1 + i)));
        let (src, dst) = (Arg::register(1 + i, 0), 1 + layers + i);
        let exec = BoxingExec { transfer: sum(1 + i), src, dst, is_async, ..BoxingExec::default() };
        sums.push(graph.task(&format!("sum {i}"), 0, Some(Exec::Boxing(exec))));
    }
    let next: Vec<usize> =
        (0..layers).map(|i| graph.task(&format!("update {i}"), 0, copy(1 + layers + i, 1 + 2 * layers + i))).collect();
    let outputs: Vec<usize> = (0..layers).map(|i| graph.task(&format!("out {i}"), 0, fetch(i))).collect();
    let mut place = (0..).map(|n| 64 * n);
    let mut block = |graph: &mut Graph, name: &str, from: usize, to: &[usize]| {
        graph.block(name, from, to, ELEMENTS, place.next().unwrap())
    };
    block(&mut graph, "x", source, &made);
    (0..layers as usize).for_each(|i| _ = block(&mut graph, "gradient", made[i], &[sums[i]]));
    (0..layers as usize).for_each(|i| _ = block(&mut graph, "sum", sums[i], &[next[i]]));
    let results: Vec<u32> = (0..layers as usize).map(|i| block(&mut graph, "next", next[i], &[outputs[i]])).collect();
    graph.port("x", 0, true);
    (0..).zip(results).for_each(|(i, register)| graph.port(&format!("y{i}"), register, false));
    graph
}

fn plan(mut program: Program, ranks: u32) -> PlanBuilder<'static> {
    program.inner = true;
    let layers = program.outputs.len();
    let mut plan = builder();
    plan.add_program(program);
    let port = |name: String| MeshPort {
        microbatches: None,
        name,
        dtype: ElementType::F32 as i32,
        dims: vec![ELEMENTS],
        layout: vec![AxisLayout::of(LayoutKind::Broadcast)],
    };
    plan.add_mesh(MeshProgram {
        variables: Vec::new(),
        name: "main".into(),
        shape: vec![ranks],
        inputs: vec![port("x".into())],
        outputs: (0..layers).map(|i| port(format!("y{i}"))).collect(),
        ranks: (0..ranks).map(|_| Rank { program: 0, weight_overrides: Vec::new() }).collect(),
    });
    plan
}

/// With control edges around the transfers.
fn overlapped(layers: u32) -> Program {
    let mut program = step(layers, true).finish();
    chain_around_transfers(&mut program);
    program
}

/// Nanoseconds of a step, where each layer's backward pass takes `compute` and each sum `transfer`.
fn simulated(program: Program, compute: u64, transfer: u64) -> u64 {
    let plan = plan(program, 4);
    let plan = plan.plan();
    let costs = |task: &Task| match &task.exec {
        Some(Exec::Copy(_)) if task.name.starts_with("backward") => compute,
        Some(Exec::Boxing(_)) => transfer,
        _ => 0,
    };
    let result = simulate_ranks(
        plan,
        &plan.meshes[0],
        &RanksOptions { iterations: 3, ..RanksOptions::default() },
        &mut |_, program| program.tasks.iter().map(costs).collect(),
    );
    let timeline = result.unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(timeline.makespan_ns % 3, 0);
    timeline.makespan_ns / 3
}

#[test]
fn a_step_takes_the_longer_of_computation_and_transfers() {
    // All transfers but the last, or all computation but the first, are hidden.
    assert_eq!(simulated(overlapped(8), 1000, 600), 8 * 1000 + 600);
    assert_eq!(simulated(overlapped(8), 1000, 1500), 1000 + 8 * 1500);
    let mut chained = step(8, false).finish();
    chain_threads(&mut chained);
    assert_eq!(simulated(chained, 1000, 600), 8 * 1600);
}

#[test]
fn asynchronous_transfers_give_what_others_give() {
    let x: Vec<f32> = (0..ELEMENTS).map(|x| x as f32 + 0.25).collect();
    for ranks in [1, 2, 3, 5] {
        let file = PlanFile::from_builder(&plan(overlapped(6), ranks)).unwrap_or_else(|e| panic!("{e}"));
        let options = Options { threads: 1, profile: true, ..Options::default() };
        let mut session = MeshSession::new(Arc::new(file), 0, options, &[]).unwrap_or_else(|e| panic!("{e}"));
        for run in 1..=200 {
            let given: Vec<f32> = x.iter().map(|x| x * run as f32).collect();
            let given: Value = Tensor::from_elements([ELEMENTS], &given).unwrap().into();
            let got = session.run(std::slice::from_ref(&given)).unwrap_or_else(|e| panic!("{e}"));
            for y in got {
                let y = y.as_tensor().and_then(Tensor::to_elements::<f32>).unwrap();
                assert_eq!(y, x.iter().map(|x| x * (run * ranks) as f32).collect::<Vec<_>>(), "run {run}");
            }
        }
        let timings = session.timings((ranks - 1) as usize);
        let sums = timings.iter().filter(|task| task.is_async).map(|task| (task.name.as_str(), task.calls));
        let expected: Vec<String> = (0..6).map(|i| format!("sum {i}")).collect();
        assert_eq!(sums.collect::<Vec<_>>(), expected.iter().map(|name| (name.as_str(), 200)).collect::<Vec<_>>());
    }
}

/// Memory of a gradient that is reused while its transfer may be under way, and transfers without an order, are found.
#[test]
fn the_verifier_knows_that_transfers_are_asynchronous() {
    let text = |findings: Vec<Finding>| findings.iter().map(Finding::to_string).collect::<Vec<_>>().join("; ");
    let verified = |program: Program| verify(plan(program, 2).plan()).map_err(text);
    // The third gradient is where the first was.
    let reuse = |program: &mut Program| {
        let offset = program.registers[1].block().unwrap().offset;
        let Some(Storage::Block(block)) = &mut program.registers[3].storage else { panic!("a block") };
        block.offset = offset;
    };
    let mut program = overlapped(3);
    assert_eq!(verified(program.clone()), Ok(()));
    reuse(&mut program);
    let findings = verified(program).unwrap_err();
    assert!(findings.contains("they share memory and can be live at once: no edge makes `sum 0`"), "{findings}");
    // With the edge the third layer waits for the first sum.
    let mut program = step(3, true).finish();
    reuse(&mut program);
    chain_around_transfers(&mut program);
    assert_eq!(verified(program.clone()), Ok(()));
    assert_eq!(simulated(program, 1000, 5000), 1000 + 3 * 5000);
    // Nothing orders transfers that only the computation chains.
    let mut program = overlapped(3);
    let (first, second) = (2, 4);
    let between = |register: &Register, program: &Program| {
        register.is_control()
            && program.tasks[first].produces.contains(&register.id)
            && program.tasks[second].consumes.contains(&register.id)
    };
    let edge = program.registers.iter().find(|register| between(register, &program)).unwrap().id;
    program.tasks[second].consumes.retain(|register| *register != edge);
    program.registers[edge as usize].consumers.clear();
    let findings = verified(program).unwrap_err();
    assert!(findings.contains("transfer 2 does not come after transfer 1 of `sum 0`"), "{findings}");
}

/// A local transfer is no rendezvous: it needs no place in the order of the others.
#[test]
fn local_transfers_have_no_order() {
    let mut program = overlapped(2);
    let exec = |program: &mut Program, name: &str| {
        let task = program.tasks.iter().position(|task| task.name == name).unwrap();
        let Some(Exec::Boxing(exec)) = &mut program.tasks[task].exec else { panic!("a transfer") };
        exec.transfer.from = vec![AxisLayout::of(LayoutKind::Broadcast)];
        exec.transfer.id = 7;
        exec.is_async = false;
    };
    assert_eq!(verify(plan(program.clone(), 2).plan()).map_err(|f| f[0].to_string()), Ok(()));
    exec(&mut program, "sum 0");
    assert_eq!(verify(plan(program.clone(), 2).plan()).map_err(|f| f[0].to_string()), Ok(()));
    // Two tasks of one number would be one rendezvous.
    let second = program.tasks.iter_mut().find(|task| task.name == "sum 1").unwrap();
    if let Some(Exec::Boxing(exec)) = &mut second.exec {
        exec.transfer.id = 7;
    }
    let findings = verify(plan(program, 2).plan()).unwrap_err();
    assert!(findings[0].to_string().contains("transfer 7 is that of `sum 0`, too"), "{}", findings[0]);
}

/// Ranks run on until the condition holds; after that the session runs again.
#[test]
fn a_condition_ends_the_run_of_all_ranks() {
    let file = PlanFile::from_builder(&plan(overlapped(2), 3)).unwrap_or_else(|e| panic!("{e}"));
    let options = Options { threads: 3, ..Options::default() };
    let mut session = MeshSession::new(Arc::new(file), 0, options, &[]).unwrap_or_else(|e| panic!("{e}"));
    let x: Value = Tensor::from_elements([ELEMENTS], &[1.0_f32; ELEMENTS as usize]).unwrap().into();
    let ends = Arc::new(std::sync::atomic::AtomicBool::new(true));
    let condition = Arc::clone(&ends);
    let ends_run = move || condition.load(std::sync::atomic::Ordering::Acquire);
    session.poll_with(std::time::Duration::ZERO, Box::new(ends_run));
    // A run may end before the condition is evaluated.
    let cancelled = (0..10_000).map(|_| session.run(std::slice::from_ref(&x))).find_map(Result::err);
    assert_eq!(cancelled, Some(of_runtime::RunError::Cancelled));
    ends.store(false, std::sync::atomic::Ordering::Release);
    let sums = session.run(std::slice::from_ref(&x)).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(sums[0].as_tensor().and_then(Tensor::to_elements::<f32>).unwrap(), [3.0; ELEMENTS as usize]);
}
