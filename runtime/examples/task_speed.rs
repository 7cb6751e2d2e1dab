//! Figures of the runtime itself: `cargo run --release -p of-runtime --example task_speed`.

#[path = "../../plan/tests/common/mod.rs"]
mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{Graph, feed, fetch, kernel};
use of_plan::*;
use of_runtime::*;

fn main() {
    if cfg!(target_arch = "x86_64") {
        cost_of_a_task();
    }
    cost_of_a_loop();
    time_to_open_100_mb();
}

fn fastest(times: u32, mut f: impl FnMut()) -> Duration {
    let time = |_| {
        let start = Instant::now();
        f();
        start.elapsed()
    };
    (0..times).map(time).min().unwrap()
}

/// A chain of kernels that return at once; each also reads the two results before.
fn idle_plan(tasks: usize, readers: usize, threads: u32) -> Arc<PlanFile> {
    let mut plan = common::builder();
    // xor eax, eax; ret: the status is 0.
    let code = plan.add_kernel("ret", "x86-64", vec![0x31, 0xc0, 0xc3], 0).unwrap();
    let mut graph = Graph::new("main", threads);
    graph.task("in", 0, feed(0));
    for number in 0..tasks {
        let args = (number.saturating_sub(readers - 1)..=number + 1)
            .map(|register| Arg::register(register as u32, 0))
            .collect();
        graph.task(&format!("t{number}"), number as u32 % threads, kernel(code, args, 1));
    }
    graph.task("out", 0, fetch(0));
    for from in 0..=tasks {
        let last = if from == tasks { from + 1 } else { (from + readers).min(tasks) };
        let to: Vec<_> = (from + 1..=last).collect();
        graph.block(&format!("r{from}"), from, &to, 16, 64 * (from as u64 % 8));
    }
    graph.port("x", 0, true);
    graph.port("y", tasks as u32, false);
    let mut program = graph.finish();
    order_reuse(&mut program);
    plan.add_program(program);
    Arc::new(PlanFile::from_builder(&plan).unwrap())
}

/// The kernels are one x86 instruction.
fn cost_of_a_task() {
    const TASKS: usize = 1000;
    for (readers, threads) in [(1, 1), (2, 1), (3, 1), (1, 2)] {
        let plan = idle_plan(TASKS, readers, threads);
        let start = Instant::now();
        let mut session =
            Session::new(plan, 0, Options { threads: 1, profile: false, ..Default::default() }, &[]).unwrap();
        let load = start.elapsed();
        let mut inputs = [Tensor::zeros(ElementType::F32, vec![16]).unwrap().into()];
        let mut outputs = session.new_outputs();
        let best = fastest(if threads == 1 { 2000 } else { 50 }, || {
            session.run_into(&mut inputs, &mut outputs).unwrap();
        });
        let each = best.as_nanos() as f64 / TASKS as f64;
        eprintln!("{readers} inputs, {threads} threads: {each:.0} ns a task; session made in {load:?}");
    }
}

fn cost_of_a_loop() {
    for threads in [1, 2] {
        let pool = Pool::new(threads, false).unwrap();
        let best = fastest(20, || (0..10_000).for_each(|_| pool.parallel_for(64, 1, |_, _, _| {})));
        eprintln!("parallel_for on {threads} workers: {:.0} ns", best.as_nanos() as f64 / 1e4);
    }
}

fn time_to_open_100_mb() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("large.plan");
    let mut plan = common::small_plan();
    let mut random = fastrand::Rng::with_seed(1);
    for number in 0..100 {
        let mut bytes = vec![0; 1 << 20];
        random.fill(&mut bytes);
        plan.add_weight(format!("w{number}"), ElementType::F32, &[1 << 18], bytes).unwrap();
    }
    let write = fastest(3, || plan.write_file(&path).unwrap());
    let open = fastest(10, || drop(PlanFile::open(&path).unwrap()));
    eprintln!("100 MiB plan: written in {write:?}, opened in {open:?}");
}
