//! GPU programs run asynchronously to the host, on a stub driver that starts launched work late.

#[path = "../../../plan/tests/common/mod.rs"]
mod by_hand;
mod common;

use std::sync::Arc;
use std::time::Duration;

use by_hand::{Graph, feed, fetch};
use common::{cache, function_of, numbers, said, shared, stub};
use of_codegen::Backend;
use of_cuda::{Cuda, Device};
use of_plan::*;
use of_runtime::*;

const SQUARE: &str = "func @main(%x: tensor<16x16xf32>) -> (tensor<16x16xf32>) {
  %y = of.matmul %x, %x\n  of.return %y\n}\n";

fn square() -> Vec<u8> {
    Cuda::new("sm_90+cublaslt", cache()).unwrap().compile(&function_of(SQUARE)).unwrap_or_else(|d| panic!("{d}"))
}

/// Negates on the host and logs it.
struct Host;

impl Loader for Host {
    fn backend(&self) -> &str {
        "host"
    }

    fn load(&self, _: &[u8], _: LoadContext<'_>) -> Result<Box<dyn Executable>, LoadError> {
        Ok(Box::new(Host))
    }
}

impl Executable for Host {
    fn run(&mut self, inputs: &[ValueRef<'_>], outputs: &mut [ValueMut<'_>]) -> Result<(), ExecError> {
        let ([ValueRef::Dense(x)], [ValueMut::Dense(y)]) = (inputs, outputs) else { panic!("other operands") };
        for (x, y) in x.bytes.chunks_exact(4).zip(y.bytes.chunks_exact_mut(4)) {
            y.copy_from_slice(&(-f32::from_ne_bytes(x.try_into().unwrap())).to_ne_bytes());
        }
        eprintln!("host");
        Ok(())
    }
}

/// `x` to the fourth by two subgraphs, of which the second reads the first one's result on the device; then the host
/// computes `-x`.
fn plan() -> Arc<PlanFile> {
    let mut plan = by_hand::builder();
    let mut graph = Graph::new("main", 1);
    let mut on = |backend: &str, payload: Vec<u8>, from, to| {
        let (offset, len) = plan.add_payload(payload);
        let (backend, inputs, outputs) = (backend.into(), vec![Arg::register(from, 0)], vec![to]);
        Some(Exec::Backend(BackendExec { backend, offset, len, inputs, outputs, ..BackendExec::default() }))
    };
    let source = graph.task("in", 0, feed(0));
    let first = graph.task("first", 0, on("cuda", square(), 0, 1));
    let second = graph.task("second", 0, on("cuda", square(), 1, 2));
    let host = graph.task("host", 0, on("host", Vec::new(), 0, 3));
    let outs = [0, 1].map(|port| graph.task("out", 0, fetch(port)));
    for (name, from, to, at) in [
        ("x", source, &[first, host][..], 0),
        ("a", first, &[second], 1),
        ("b", second, &[outs[0]], 2),
        ("c", host, &[outs[1]], 3),
    ] {
        let register = graph.block(name, from, to, 256, 1024 * at);
        graph.0.registers[register as usize].dims = vec![16, 16];
    }
    graph.port("x", 0, true);
    graph.port("b", 2, false);
    graph.port("c", 3, false);
    let mut program = graph.finish();
    chain_threads(&mut program);
    plan.add_program(program);
    Arc::new(PlanFile::from_builder(&plan).unwrap())
}

fn session(plan: &Arc<PlanFile>) -> Session {
    let loaders: [Arc<dyn Loader>; 2] = [Arc::new(Device::default()), Arc::new(Host)];
    Session::new(Arc::clone(plan), 0, Options { threads: 1, profile: true, ..Default::default() }, &loaders)
        .unwrap_or_else(|e| panic!("{e}"))
}

fn input(seed: usize) -> (Value, Vec<f32>) {
    let x: Vec<f32> = (0..256).map(|i| ((i * 7 + seed) % 13) as f32 / 13.0 - 0.4).collect();
    (Tensor::from_elements(vec![16, 16], &x).unwrap().into(), x)
}

/// The host has an independent branch, and one that reads the GPU's result.
const BRANCHES: &str =
    "func @main(%x: tensor<32x16xf32>, %w: tensor<16x32xf32>) -> (tensor<16x32xf32>, tensor<32x32xf32>, tensor<32x32xf32>) {
  %a = of.matmul %x, %w\n  %t = of.tanh %w\n  %h = of.tanh %a\n  of.return %t, %h, %a\n}\n";

/// Runs it once and compares.
fn run(session: &mut Session, seed: usize) -> Result<(), RunError> {
    let (value, x) = input(seed);
    let got = session.run(vec![value])?;
    let product = |a: &[f32]| -> Vec<f32> {
        (0..256).map(|i| (0..16).map(|k| a[i / 16 * 16 + k] * a[k * 16 + i % 16]).sum()).collect()
    };
    let want = [product(&product(&x)), x.iter().map(|x| -x).collect()];
    for (got, want) in got.iter().zip(&want) {
        let (got, want) = (numbers(got), want.iter().map(|x| f64::from(*x)));
        assert!(got.iter().zip(want).all(|(a, b)| (a - b).abs() < 1e-4));
    }
    Ok(())
}

fn late() -> Duration {
    Duration::from_millis(std::env::var("STUB_LATE").map_or(0, |ms| ms.parse().unwrap()))
}

/// Runs in a process that has a driver; the variable `DOES` selects the scenario.
#[test]
#[ignore = "run by another test, in a process whose environment names a driver"]
fn on_a_driver() {
    match std::env::var("DOES").as_deref() {
        Ok("runs") => {
            let mut session = session(&plan());
            (0..3).for_each(|seed| run(&mut session, seed).unwrap());
            session.close().unwrap();
            eprintln!("it agrees");
        }
        Ok("times") => {
            let mut session = session(&plan());
            run(&mut session, 1).unwrap();
            let timings = session.timings();
            let [first, second, host] = [1, 2, 3].map(|task| &timings[task]);
            let end = |t: &TaskTiming| t.start + t.last;
            assert!(first.is_async && second.is_async && !host.is_async, "{timings:?}");
            assert!(first.last >= late() && end(host) < end(first), "{timings:?}");
            // Both were enqueued at once, and the second completes right after the first.
            assert!(second.start == end(first) && second.last < late(), "{timings:?}");
            eprintln!("the times are right");
        }
        Ok("compiled") => {
            let plan = shared(BRANCHES, "sm_90+cublaslt", 1);
            let mut session = session(&plan);
            let tensor = |dims: [i64; 2]| Tensor::from_elements(dims.to_vec(), &[0.5f32; 512]).unwrap().into();
            session.run(vec![tensor([32, 16]), tensor([16, 32])]).unwrap();
            let (timings, tasks) = (session.timings(), &plan.plan().programs[0].tasks);
            let subgraph = timings.iter().find(|t| t.is_async).unwrap();
            let kernel = |t: &&TaskTiming| matches!(tasks[t.task].exec, Some(Exec::Kernel(_)));
            let [branch, reader] = timings.iter().filter(kernel).collect::<Vec<_>>()[..] else { panic!("{timings:?}") };
            let end = |t: &TaskTiming| t.start + t.last;
            assert!(branch.start > subgraph.start && end(branch) < end(subgraph), "{timings:?}");
            assert!(reader.start >= end(subgraph) && subgraph.last >= late(), "{timings:?}");
            eprintln!("the times are right");
        }
        Ok("breaks") => {
            let mut session = session(&plan());
            eprintln!("{}", run(&mut session, 1).unwrap_err());
            run(&mut session, 2).unwrap();
            eprintln!("then it runs");
        }
        Ok("is dropped") => {
            let (program, task, exec) = (Program::default(), Task::default(), BackendExec::default());
            let context = LoadContext {
                program: &program,
                task: &task,
                exec: &exec,
                threads: 1,
                device: 0,
                rank_context: None,
                handles: &[],
                output_handles: &[],
            };
            let mut executable = Device::default().load(&square(), context).unwrap();
            let (value, over) = (input(1).0, Arc::new(|| ()) as OnComplete);
            executable.as_async().unwrap().begin(&[ValueRef::Object(&value)], &over).unwrap();
            drop(executable);
            eprintln!("dropped");
        }
        Ok("several") => {
            let plan = plan();
            std::thread::scope(|scope| {
                for seed in 0..4 {
                    let plan = &plan;
                    scope.spawn(move || {
                        let mut session = session(plan);
                        (0..20).for_each(|round| run(&mut session, 20 * seed + round).unwrap());
                    });
                }
            });
            eprintln!("all agree");
        }
        _ => {}
    }
}

/// The log of driver, host and test, in order.
fn lines(does: &str, variables: &[(&str, &str)]) -> Vec<String> {
    let dir = tempfile::tempdir().unwrap();
    let library = stub(dir.path());
    let library = library.to_str().unwrap();
    let own = [("OF_CUDA_DRIVER", library), ("OF_CUBLASLT", library), ("STUB_SAYS", "1"), ("DOES", does)];
    let out = said("on_a_driver", &[&own[..], variables].concat());
    let talk =
        ["launched", "through", "host", "it agrees", "the times are right", "then it runs", "dropped", "all agree"];
    let said = |l: &&str| talk.contains(l) || l.starts_with("task `") || l.contains("panicked");
    out.lines().filter(said).map(str::to_string).collect()
}

#[test]
fn the_host_continues_and_dependent_device_work_is_launched() {
    let run = ["launched", "launched", "host", "through", "through"];
    assert_eq!(lines("runs", &[("STUB_LATE", "300")]), [&run[..], &run, &run, &["it agrees"]].concat());
}

#[test]
fn reported_times_are_device_times() {
    for does in ["times", "compiled"] {
        let got = lines(does, &[("STUB_LATE", "300")]);
        assert_eq!(got.last().map(String::as_str), Some("the times are right"), "{does}");
    }
}

#[test]
fn asynchronous_errors_name_their_subgraph() {
    for (number, task) in [("1", "first"), ("2", "second")] {
        let got = lines("breaks", &[("STUB_LATE", "30"), ("STUB_BREAKS", number)]);
        let said: Vec<_> = got.iter().filter(|l| !["launched", "through", "host"].contains(&l.as_str())).collect();
        let words = format!("task `{task}` failed: cuStreamSynchronize failed: refused (719)");
        assert_eq!(said, [&words, "then it runs"], "{got:?}");
    }
}

#[test]
fn dropping_a_run_waits_for_work_in_flight() {
    assert_eq!(lines("is dropped", &[("STUB_LATE", "100")]), ["launched", "through", "dropped"]);
}

#[test]
fn sessions_share_the_poller() {
    assert_eq!(lines("several", &[("STUB_LATE", "1")]).last().map(String::as_str), Some("all agree"));
}
