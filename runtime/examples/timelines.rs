//! Two tasks on two threads, as reading data and training are: `cargo run --release -p of-runtime --example timelines`.
//!
//! One thread prepares what the other one uses. With two copies of the register in between both work at once, so that a step takes as
//! long as the slower task. With one copy they alternate. The simulator and a real run are compared; tasks sleep, so cores do not matter.

#[path = "../../plan/tests/common/mod.rs"]
mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{Graph, fetch};
use of_plan::{Arg, BackendExec, Exec, PlanFile};
use of_runtime::{
    ExecError, Executable, LoadContext, LoadError, Loader, Options, Session, SimOptions, ValueMut, ValueRef, simulate,
};

/// Runs of a measurement.
const RUNS: u32 = 100;

/// An executable that takes so many microseconds.
struct Sleep(u64);

impl Executable for Sleep {
    fn run(&mut self, _: &[ValueRef<'_>], _: &mut [ValueMut<'_>]) -> Result<(), ExecError> {
        std::thread::sleep(Duration::from_micros(self.0));
        Ok(())
    }
}

struct Sleeps;

impl Loader for Sleeps {
    fn backend(&self) -> &str {
        "sleep"
    }

    fn load(&self, payload: &[u8], _: LoadContext<'_>) -> Result<Box<dyn Executable>, LoadError> {
        let text = std::str::from_utf8(payload).ok().and_then(|text| text.parse().ok());
        text.map(|us| Box::new(Sleep(us)) as Box<dyn Executable>).ok_or_else(|| LoadError::Payload("no number".into()))
    }
}

/// A program whose tasks take so many microseconds, with so many copies of the register between them.
fn plan(us: [u64; 2], copies: u32) -> Arc<PlanFile> {
    let mut plan = common::builder();
    let mut graph = Graph::new("main", 2);
    let mut task = |graph: &mut Graph, name: &str, thread: u32, us: u64, inputs: Vec<Arg>, outputs: Vec<u32>| {
        let (offset, len) = plan.add_payload(us.to_string());
        let backend = "sleep".into();
        let exec = BackendExec { backend, offset, len, inputs, outputs, ..BackendExec::default() };
        graph.task(name, thread, Some(Exec::Backend(exec)))
    };
    let prepare = task(&mut graph, "prepare", 0, us[0], Vec::new(), vec![0]);
    let train = task(&mut graph, "train", 1, us[1], vec![Arg::register(0, 0)], vec![1]);
    let sink = graph.task("loss", 1, fetch(0));
    for (at, (from, to)) in [(prepare, train), (train, sink)].into_iter().enumerate() {
        let register = graph.block("batch", from, &[to], 4, 256 * at as u64);
        graph.0.registers[register as usize].copies = copies;
    }
    graph.port("loss", 1, false);
    graph.0.pipelined = true;
    plan.add_program(graph.finish());
    Arc::new(PlanFile::from_builder(&plan).expect("the plan verifies"))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("| tasks | copies | simulator, us a step | real run, us a step | over the slower task |");
    println!("|---|---:|---:|---:|---:|");
    for (name, us) in [("slow training", [3000, 10_000]), ("slow preprocessing", [10_000, 3000])] {
        for copies in [1, 2] {
            let plan = plan(us, copies);
            let costs_ns = vec![us[0] * 1000, us[1] * 1000, 0];
            let options = SimOptions { iterations: u64::from(RUNS), costs_ns, ..SimOptions::default() };
            let simulated = simulate(&plan.plan().programs[0], &options)?.makespan_ns as f64 / 1e3 / f64::from(RUNS);
            let options = Options { threads: 1, ..Options::default() };
            let mut session = Session::new(plan, 0, options, &[Arc::new(Sleeps)])?;
            let start = Instant::now();
            session.run_pipelined(Vec::new(), RUNS)?;
            let real = start.elapsed().as_secs_f64() * 1e6 / f64::from(RUNS);
            let over = real / us[0].max(us[1]) as f64;
            println!("| {name} | {copies} | {simulated:.0} | {real:.0} | {over:.3} |");
        }
    }
    Ok(())
}
