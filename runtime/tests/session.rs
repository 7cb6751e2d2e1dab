//! Plans from end to end: machine code, executables, objects, errors.

#[path = "../../plan/tests/common/mod.rs"]
mod common;
mod support;

use std::sync::Arc;

use common::{Graph, feed, fetch};
use of_plan::*;
use of_runtime::*;
use support::*;

#[test]
#[cfg(target_arch = "x86_64")]
fn kernels_compute_on_any_number_of_workers() {
    let plan = kernel_plan(5000, 1, 1);
    let x: Vec<f32> = (0..5000).map(|i| i as f32).collect();
    let expected: Vec<f32> = x.iter().map(|x| x + x + 0.5).collect();
    for threads in [1, 2, 4] {
        let mut session = session(&plan, threads);
        assert_eq!(session.threads(), threads);
        for _ in 0..20 {
            let outputs = session.run(vec![tensor(&x)]).unwrap();
            assert_eq!(floats(&outputs[0]), expected);
        }
    }
}

/// A plan file is mapped, so a writer changes what its checksum was computed from. The hash is that of the copy that would run.
#[test]
#[cfg(target_arch = "x86_64")]
fn kernels_that_change_after_the_plan_was_opened_do_not_run() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("plan");
    let bytes = kernel_plan(64, 1, 1).bytes().into_owned();
    let at = |code: &[u8]| bytes.windows(code.len()).position(|w| w == code).unwrap() as u64;
    let open = || Arc::new(PlanFile::open(&path).unwrap());
    let start = |plan: Arc<PlanFile>| Session::new(plan, 0, Options::default(), &loaders());
    // Another instruction in a kernel, and in another kernel its last byte.
    for (place, kernel) in [(at(DOUBLE), "double"), (at(ADD) + ADD.len() as u64 - 1, "add")] {
        std::fs::write(&path, &bytes).unwrap();
        let plan = open();
        let file = std::fs::File::options().write(true).open(&path).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &[0x90], place).unwrap();
        let error = start(plan).map(drop).unwrap_err();
        assert!(matches!(&error, SessionError::Code { kernel: k } if k == kernel), "{error}");
    }
    std::fs::write(&path, &bytes).unwrap();
    assert_eq!(floats(&start(open()).unwrap().run(vec![tensor(&[1.0; 64])]).unwrap()[0]), [2.5; 64]);
}

#[test]
#[cfg(target_arch = "x86_64")]
fn registers_with_several_copies_slide() {
    for num in 1..=3 {
        for threads in 1..=3 {
            let plan = kernel_plan(64, threads, num);
            let mut session = session(&plan, 2);
            for round in 0..50 {
                let x = [round as f32; 64];
                let outputs = session.run(vec![tensor(&x)]).unwrap();
                assert_eq!(floats(&outputs[0]), [round as f32 * 2.0 + 0.5; 64]);
            }
        }
    }
}

#[test]
#[cfg(target_arch = "x86_64")]
fn run_into_uses_the_buffers_it_is_given() {
    let plan = kernel_plan(64, 1, 1);
    let mut session = session(&plan, 1);
    let mut inputs = [tensor(&[1.0; 64])];
    let mut outputs = session.new_outputs();
    let address = outputs[0].as_tensor().unwrap().bytes().unwrap().as_ptr();
    for _ in 0..3 {
        session.run_into(&mut inputs, &mut outputs).unwrap();
    }
    assert_eq!(floats(&outputs[0]), [2.5; 64]);
    assert_eq!(outputs[0].as_tensor().unwrap().bytes().unwrap().as_ptr(), address);
    assert_eq!(inputs[0], tensor(&[1.0; 64]));
    let error = session.run_into(&mut inputs, &mut []).unwrap_err();
    assert_eq!(error, RunError::OutputCount { expected: 1, got: 0 });
    assert_eq!(inputs[0], tensor(&[1.0; 64]), "inputs are left alone when the call is refused");
}

#[test]
#[cfg(target_arch = "x86_64")]
fn profiles_count_calls() {
    let plan = kernel_plan(64, 1, 1);
    let mut session = Session::new(plan, 0, Options { threads: 1, profile: true, ..Default::default() }, &[]).unwrap();
    (0..3).for_each(|_| drop(session.run(vec![tensor(&[1.0; 64])]).unwrap()));
    let timings = session.timings();
    assert_eq!(timings.len(), 4);
    assert!(timings.iter().all(|timing| timing.calls == 3 && timing.total >= timing.min * 3));
    assert_eq!(timings[1].name, "double");
    session.reset_timings();
    assert_eq!(session.timings()[0].calls, 0);
}

#[test]
#[cfg(target_arch = "x86_64")]
fn profiling_is_switched_between_runs() {
    let plan = kernel_plan(64, 1, 1);
    let mut session = Session::new(plan, 0, Options { threads: 1, ..Default::default() }, &[]).unwrap();
    let mut run = |on: Option<bool>| {
        on.into_iter().for_each(|on| session.set_profiling(on));
        session.run(vec![tensor(&[1.0; 64])]).unwrap();
        session.timings().iter().map(|timing| timing.calls).collect::<Vec<_>>()
    };
    assert_eq!((run(None), run(Some(true)), run(Some(false))), (vec![], vec![1; 4], vec![1; 4]));
    let before = of_runtime::clock_origin().elapsed();
    assert_eq!(run(Some(true)), [2; 4]);
    let after = of_runtime::clock_origin().elapsed();
    let last = |timing: &of_runtime::TaskTiming| before <= timing.start && timing.start + timing.last <= after;
    assert!(session.timings().iter().all(last), "times count from one moment");
}

#[test]
fn wrong_inputs_are_named() {
    let mut session = echo_session();
    let error = session.run(vec![]).unwrap_err();
    assert!(matches!(error, RunError::InputCount { expected: 1, got: 0, .. }), "{error}");
    let error = session.run(vec![tensor(&[0.0; 5])]).unwrap_err().to_string();
    assert!(error.contains("`x`") && error.contains("extent 5 at dimension 0 and must have 4"), "{error}");
    let error = session.run(vec![Value::Sequence(vec![])]).unwrap_err().to_string();
    assert!(error.contains("must be a tensor of f32[4]"), "{error}");
    assert!(session.run(vec![tensor(&[1.0; 4])]).is_ok());
}

#[test]
fn failures_leave_the_session_usable_and_panics_do_not() {
    for threads in [1, 2] {
        let mut session = backend_session(threads);
        assert_eq!(floats(&session.run(vec![tensor(&[1.0; 4])]).unwrap()[0]), [3.0; 4]);
        for _ in 0..5 {
            let error = session.run(vec![tensor(&[FAIL; 4])]).unwrap_err();
            let expected = ExecError::Failed("asked to fail".into());
            assert_eq!(error, RunError::Task { task: "first".into(), place: String::new(), source: expected });
            assert_eq!(floats(&session.run(vec![tensor(&[1.0; 4])]).unwrap()[0]), [3.0; 4]);
        }
        let error = session.run(vec![tensor(&[PANIC; 4])]).unwrap_err();
        assert_eq!(error, RunError::Panic { task: "first".into(), message: "asked to panic".into() });
        let error = session.run(vec![tensor(&[1.0; 4])]).unwrap_err();
        assert!(matches!(error, RunError::Poisoned(_)), "{error}");
    }
}

#[test]
fn backends_must_be_registered() {
    let plan = backend_plan(1);
    let error = Session::new(Arc::clone(&plan), 0, Options::default(), &[]).err().unwrap().to_string();
    assert!(error.contains("task first ") && error.contains("`add-one`") && error.contains("no backend"), "{error}");
    let error = Session::new(plan, 3, Options::default(), &[]).err().unwrap();
    assert!(matches!(error, SessionError::Program { index: 3, count: 1 }));
}

/// in -> (object) -> two executables, one of which gets text -> a dense and an object output.
#[test]
fn objects_pass_through() {
    let mut plan = common::builder();
    let text = plan.add_weight("text", ElementType::String, &[2], PlanBuilder::encode_strings(&["a", "bc"])).unwrap();
    let mut graph = Graph::new("main", 2);
    let source = graph.task("in", 0, feed(0));
    let list = backend(&mut plan, "list", vec![Arg::register(0, 0), Arg::weight(text, 0)], vec![1]);
    let list = graph.task("list", 1, list);
    let copy = Some(Exec::Copy(CopyExec {
        src: Arg::register(0, 0),
        dst: Arg::register(2, 0),
        bytes: 0,
        ..CopyExec::default()
    }));
    let copy = graph.task("copy", 0, copy);
    let (out0, out1) = (graph.task("out0", 0, fetch(0)), graph.task("out1", 1, fetch(1)));
    graph.object("x", source, &[list, copy], ElementType::F32);
    graph.object("list", list, &[out0], ElementType::Unknown);
    graph.object("copy", copy, &[out1], ElementType::F32);
    graph.port("x", 0, true);
    graph.port("list", 1, false);
    graph.port("copy", 2, false);
    plan.add_program(graph.finish());
    let plan = Arc::new(PlanFile::from_builder(&plan).unwrap());
    let mut session = Session::new(plan, 0, Options::default(), &loaders()).unwrap();
    for size in [0, 1, 7] {
        let x = tensor(&vec![1.0; size]);
        let outputs = session.run(vec![x.clone()]).unwrap();
        let strings = Tensor::from_strings(vec![2], vec!["a".into(), "bc".into()]).unwrap();
        assert_eq!(outputs, [Value::Sequence(vec![x.clone(), strings.into()]), x]);
    }
    let wrong = Tensor::from_elements(vec![1], &[1i32]).unwrap();
    assert!(session.run(vec![wrong.into()]).unwrap_err().to_string().contains("element type i32"));
}

#[test]
fn objects_must_be_set_and_have_the_right_type() {
    for (name, part) in [("forget", "no value"), ("confuse", "a tensor of i64 where it holds f32")] {
        let mut plan = common::builder();
        let mut graph = Graph::new("main", 1);
        let exec = backend(&mut plan, name, vec![], vec![0]);
        let first = graph.task("first", 0, exec);
        let sink = graph.task("out", 0, fetch(0));
        graph.object("y", first, &[sink], ElementType::F32);
        graph.port("y", 0, false);
        plan.add_program(graph.finish());
        let plan = Arc::new(PlanFile::from_builder(&plan).unwrap());
        let mut session = Session::new(plan, 0, Options::default(), &loaders()).unwrap();
        let error = session.run(vec![]).unwrap_err().to_string();
        assert!(error.contains("`first`") && error.contains("`y`") && error.contains(part), "{error}");
    }
}

/// Random graphs over several threads compute what a plain loop computes.
#[test]
fn random_graphs_on_threads() {
    for seed in 0..12 {
        let mut random = fastrand::Rng::with_seed(seed);
        let threads = random.u32(1..5);
        let (plan, edges) = random_plan(&mut random, threads, |_| "add-one");
        let mut session =
            Session::new(plan, 0, Options { threads: 2, profile: false, ..Default::default() }, &loaders()).unwrap();
        for round in 0..30 {
            let outputs = session.run(vec![tensor(&[round as f32; 4])]).unwrap();
            // Each task adds one to the sum of its inputs.
            let mut values = vec![round as f32];
            for inputs in &edges {
                values.push(inputs.iter().map(|&input| values[input]).sum::<f32>() + 1.0);
            }
            assert_eq!(floats(&outputs[0]), [*values.last().unwrap(); 4], "seed {seed}");
        }
        session.close().unwrap();
    }
}

#[test]
fn sessions_share_a_plan() {
    let plan = backend_plan(2);
    std::thread::scope(|scope| {
        for value in 0..4 {
            let plan = Arc::clone(&plan);
            scope.spawn(move || {
                let mut session = Session::new(plan, 0, Options::default(), &loaders()).unwrap();
                for _ in 0..50 {
                    let outputs = session.run(vec![tensor(&[value as f32; 4])]).unwrap();
                    assert_eq!(floats(&outputs[0]), [value as f32 + 2.0; 4]);
                }
            });
        }
    });
}

#[test]
fn plans_that_do_not_verify_are_refused() {
    let mut plan = common::builder();
    let mut graph = Graph::new("main", 1);
    let (a, b) = (graph.task("a", 0, None), graph.task("b", 0, None));
    graph.control(a, b);
    graph.control(b, a);
    plan.add_program(graph.finish());
    let bytes = plan.to_bytes_unverified().unwrap();
    let plan = Arc::new(PlanFile::from_bytes(&bytes).unwrap());
    let error = Session::new(plan, 0, Options::default(), &[]).err().unwrap();
    assert!(matches!(&error, SessionError::Invalid(_)) && error.to_string().contains("deadlock"), "{error}");
}

#[test]
#[cfg(target_arch = "x86_64")]
fn runs_end_early_while_they_are_cancelled() {
    let plan = kernel_plan(64, 1, 1);
    let mut session = session(&plan, 1);
    let canceller = Arc::clone(session.canceller());
    canceller.set(true);
    for _ in 0..2 {
        assert_eq!(session.run(vec![tensor(&[1.0; 64])]), Err(RunError::Cancelled));
    }
    canceller.set(false);
    assert_eq!(floats(&session.run(vec![tensor(&[1.0; 64])]).unwrap()[0]), [2.5; 64]);
    // A condition is asked before each task: this one ends the second of two runs in its middle.
    let asked = std::sync::atomic::AtomicUsize::new(0);
    let tasks = session.program().tasks.len();
    let condition = move || asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed) == tasks + 1;
    assert!(canceller.poll_with(Box::new(condition)));
    assert!(!canceller.poll_with(Box::new(|| true)), "there is a condition already");
    session.run(vec![tensor(&[1.0; 64])]).unwrap();
    assert_eq!(session.run(vec![tensor(&[1.0; 64])]), Err(RunError::Cancelled));
    assert_eq!(floats(&session.run(vec![tensor(&[2.0; 64])]).unwrap()[0]), [4.5; 64]);
}

/// The second task of a run waits until the first task of the next run has begun: with two copies of the register in between both
/// threads work at once.
#[test]
fn runs_of_a_pipelined_program_overlap() {
    use std::sync::Mutex;
    use std::sync::mpsc::{Receiver, Sender, channel};

    enum Half {
        First(Sender<()>),
        Second(Receiver<()>, u32),
    }
    impl Executable for Half {
        fn run(&mut self, _: &[ValueRef<'_>], outputs: &mut [ValueMut<'_>]) -> Result<(), ExecError> {
            if let [ValueMut::Dense(output)] = outputs {
                output.bytes.fill(0);
            }
            match self {
                Half::First(begun) => drop(begun.send(())),
                Half::Second(begun, run) => {
                    *run += 1;
                    // In the first run, the first task of two runs.
                    let awaited = if *run == 1 { 2 } else { usize::from(*run < RUNS) };
                    for _ in 0..awaited {
                        let next = begun.recv_timeout(std::time::Duration::from_secs(20));
                        next.map_err(|_| ExecError::Failed("the next run does not begin".into()))?;
                    }
                }
            }
            Ok(())
        }
    }
    struct Tasks(Mutex<Vec<Half>>, &'static str);
    impl Loader for Tasks {
        fn backend(&self) -> &str {
            self.1
        }
        fn load(&self, _: &[u8], _: LoadContext<'_>) -> Result<Box<dyn Executable>, LoadError> {
            Ok(Box::new(self.0.lock().unwrap().pop().unwrap()))
        }
    }
    const RUNS: u32 = 5;
    let session = |pipelined: bool| {
        let mut plan = common::builder();
        let mut graph = Graph::new("main", 2);
        let exec = backend(&mut plan, "first", Vec::new(), vec![0]);
        let first = graph.task("first", 0, exec);
        let exec = backend(&mut plan, "second", vec![Arg::register(0, 0)], vec![1]);
        let second = graph.task("second", 1, exec);
        let sink = graph.task("out", 1, fetch(0));
        for (at, (from, to)) in [(first, second), (second, sink)].into_iter().enumerate() {
            let register = graph.block("r", from, &[to], 4, 256 * at as u64);
            graph.0.registers[register as usize].copies = 2;
        }
        graph.port("y", 1, false);
        graph.0.pipelined = pipelined;
        plan.add_program(graph.finish());
        let plan = Arc::new(PlanFile::from_builder(&plan).unwrap());
        let (begun, wait) = channel();
        let loader = |half, name| Arc::new(Tasks(Mutex::new(vec![half]), name)) as Arc<dyn Loader>;
        let loaders = [loader(Half::First(begun), "first"), loader(Half::Second(wait, 0), "second")];
        Session::new(plan, 0, Options { threads: 1, ..Options::default() }, &loaders).unwrap()
    };
    assert_eq!(floats(&session(true).run_pipelined(Vec::new(), RUNS).unwrap()[0]), [0.0; 4]);
    let error = session(false).run_pipelined(Vec::new(), RUNS).unwrap_err();
    assert!(matches!(&error, RunError::NotPipelined { program } if program == "main"), "{error}");
}
