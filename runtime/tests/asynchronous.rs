//! Asynchronous executables on a device that is a thread: overlap, launch notification, and failures.

#[path = "../../plan/tests/common/mod.rs"]
mod common;
mod support;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use common::{Graph, feed, fetch};
use of_plan::*;
use of_runtime::*;
use support::*;

/// What happened, in order.
#[derive(Default)]
struct Log {
    lines: Mutex<Vec<String>>,
    more: Condvar,
}

impl Log {
    fn say(&self, line: String) {
        self.lines.lock().unwrap().push(line);
        self.more.notify_all();
    }

    /// Waits for a line, but not for ever.
    fn await_line(&self, line: &str) {
        let lines = self.lines.lock().unwrap();
        drop(self.more.wait_timeout_while(lines, Duration::from_secs(5), |all| all.iter().all(|l| l != line)).unwrap());
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.lines.lock().unwrap())
    }
}

type Job = Box<dyn FnOnce() + Send>;
type Floats = Arc<Mutex<Vec<f32>>>;

/// A device that executes jobs one after another, in the order in which they are enqueued.
#[derive(Clone)]
struct Device {
    queue: Sender<Job>,
    log: Arc<Log>,
    /// What the work of a task waits for, and how long it takes.
    until: Vec<(&'static str, &'static str)>,
    takes: Duration,
}

impl Device {
    fn new(until: &[(&'static str, &'static str)], takes: Duration) -> Device {
        let (queue, jobs) = channel::<Job>();
        std::thread::spawn(move || jobs.into_iter().for_each(|job| job()));
        Device { queue, log: Arc::default(), until: until.to_vec(), takes }
    }

    /// Its executables, those that run on the host and say so, and others.
    fn loaders(&self) -> Vec<Arc<dyn Loader>> {
        let mut out = loaders();
        out.push(Arc::new(On { device: self.clone(), is_async: true }));
        out.push(Arc::new(On { device: self.clone(), is_async: false }));
        out
    }

    fn session(&self, plan: &Arc<PlanFile>) -> Session {
        Session::new(Arc::clone(plan), 0, Options { threads: 1, profile: true, ..Default::default() }, &self.loaders())
            .unwrap()
    }
}

struct On {
    device: Device,
    is_async: bool,
}

impl Loader for On {
    fn backend(&self) -> &str {
        if self.is_async { "async" } else { "host" }
    }

    fn load(&self, _: &[u8], context: LoadContext<'_>) -> Result<Box<dyn Executable>, LoadError> {
        let (name, device) = (context.task.name.clone(), self.device.clone());
        if !self.is_async {
            return Ok(Box::new(Host { name, device }));
        }
        let handles = context.handles.iter().map(|h| h.clone().map(|h| h.downcast::<Mutex<Vec<f32>>>().unwrap()));
        let (handles, readers) = (handles.collect(), context.readers(0));
        Ok(Box::new(AddOneThere { name, device, handles, readers, made: Arc::default(), idle: Arc::new(true.into()) }))
    }
}

/// `add-one` that says when it runs.
struct Host {
    name: String,
    device: Device,
}

impl Executable for Host {
    fn run(&mut self, inputs: &[ValueRef<'_>], outputs: &mut [ValueMut<'_>]) -> Result<(), ExecError> {
        self.device.log.say(self.name.clone());
        AddOne.run(inputs, outputs)
    }
}

/// `add-one` on the device.
struct AddOneThere {
    name: String,
    device: Device,
    handles: Vec<Option<Floats>>,
    readers: Readers,
    made: Floats,
    idle: Arc<AtomicBool>,
}

impl Executable for AddOneThere {
    fn run(&mut self, _: &[ValueRef<'_>], _: &mut [ValueMut<'_>]) -> Result<(), ExecError> {
        Err(ExecError::Failed("it is begun and ended".into()))
    }

    fn handle(&self, _: usize) -> Option<Handle> {
        self.readers.inside.then(|| Arc::clone(&self.made) as Handle)
    }

    fn as_async(&mut self) -> Option<&mut dyn AsyncExecutable> {
        Some(self)
    }
}

impl AsyncExecutable for AddOneThere {
    fn begin(&mut self, inputs: &[ValueRef<'_>], over: &OnComplete) -> Result<(), ExecError> {
        assert!(self.idle.swap(false, Ordering::SeqCst), "begun twice");
        let floats = |bytes: &[u8]| bytes.chunks_exact(4).map(|b| f32::from_ne_bytes(b.try_into().unwrap())).collect();
        let given = inputs.iter().zip(&self.handles).map(|(input, handle)| match (input, handle) {
            (_, Some(value)) => Arc::clone(value),
            (ValueRef::Dense(t), None) => Arc::new(Mutex::new(floats(t.bytes))),
            _ => panic!("an object"),
        });
        let (given, made, over): (Vec<Floats>, _, _) = (given.collect(), Arc::clone(&self.made), Arc::clone(over));
        let (device, name, idle) = (self.device.clone(), self.name.clone(), Arc::clone(&self.idle));
        self.device.log.say(format!("{name} begins"));
        let job = move || {
            std::thread::sleep(device.takes);
            device.until.iter().filter(|(task, _)| *task == name).for_each(|(_, line)| device.log.await_line(line));
            let given: Vec<Vec<f32>> = given.iter().map(|value| value.lock().unwrap().clone()).collect();
            let sum = |i: usize| given.iter().map(|value| value[i]).sum::<f32>();
            *made.lock().unwrap() = (0..given[0].len()).map(|i| sum(i) + 1.0).collect();
            device.log.say(format!("{name} is over"));
            idle.store(true, Ordering::SeqCst);
            over();
            if name == "twice" {
                over();
            }
        };
        self.device.queue.send(Box::new(job)).unwrap();
        Ok(())
    }

    fn end(&mut self, outputs: &mut [ValueMut<'_>]) -> Result<(), ExecError> {
        assert!(self.idle.load(Ordering::SeqCst), "ended before it is over");
        // A panic leaves the lock to others whole.
        let made = self.made.lock().unwrap().clone();
        match made[0] - 1.0 {
            FAIL => return Err(ExecError::Failed("asked to fail".into())),
            PANIC => panic!("asked to panic"),
            _ => {}
        }
        let [ValueMut::Dense(output)] = outputs else { panic!("another output") };
        let handed_on = self.readers.inside && !self.readers.outside;
        assert_eq!(output.bytes.is_empty(), handed_on, "{}", self.name);
        for (place, x) in output.bytes.chunks_exact_mut(4).zip(&made) {
            place.copy_from_slice(&x.to_ne_bytes());
        }
        Ok(())
    }
}

impl Drop for AddOneThere {
    fn drop(&mut self) {
        while !self.idle.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        self.device.log.say(format!("{} is dropped", self.name));
    }
}

/// `out = (in + 1) + (in + 1) + 1`: one sum by `first`, the other by `second`, which follows it on its thread.
fn branches(first: &str, second: (&str, &str)) -> Arc<PlanFile> {
    let mut plan = common::builder();
    let mut graph = Graph::new("main", 1);
    let source = graph.task("in", 0, feed(0));
    let exec = backend(&mut plan, first, vec![Arg::register(0, 0)], vec![1]);
    let a = graph.task("first", 0, exec);
    let exec = backend(&mut plan, second.0, vec![Arg::register(0, 0)], vec![2]);
    let b = graph.task(second.1, 0, exec);
    let exec = backend(&mut plan, "host", vec![Arg::register(1, 0), Arg::register(2, 0)], vec![3]);
    let join = graph.task("join", 0, exec);
    let sink = graph.task("out", 0, fetch(0));
    graph.block("x", source, &[a, b], 4, 0);
    graph.block("y", a, &[join], 4, 64);
    graph.block("z", b, &[join], 4, 128);
    graph.block("w", join, &[sink], 4, 0);
    graph.port("x", 0, true);
    graph.port("w", 3, false);
    finished(plan, graph)
}

/// `out = in + 1 + 1 + 1` by two tasks on the device and one behind them; each has the memory of the one before the last.
fn line(threads: u32, last: &str) -> Arc<PlanFile> {
    let mut plan = common::builder();
    let mut graph = Graph::new("main", threads);
    let source = graph.task("in", 0, feed(0));
    let exec = backend(&mut plan, "async", vec![Arg::register(0, 0)], vec![1]);
    let first = graph.task("first", threads - 1, exec);
    let exec = backend(&mut plan, "async", vec![Arg::register(1, 0)], vec![2]);
    let second = graph.task("second", 0, exec);
    let exec = backend(&mut plan, last, vec![Arg::register(2, 0)], vec![3]);
    let third = graph.task("third", threads - 1, exec);
    let sink = graph.task("out", 0, fetch(0));
    for (name, from, to, offset) in
        [("x", source, first, 0), ("y", first, second, 64), ("z", second, third, 0), ("w", third, sink, 64)]
    {
        graph.block(name, from, &[to], 4, offset);
    }
    graph.port("x", 0, true);
    graph.port("w", 3, false);
    finished(plan, graph)
}

fn finished(mut plan: PlanBuilder<'static>, graph: Graph) -> Arc<PlanFile> {
    let mut program = graph.finish();
    chain_threads(&mut program);
    plan.add_program(program);
    Arc::new(PlanFile::from_builder(&plan).unwrap())
}

#[test]
fn host_tasks_overlap_asynchronous_work() {
    let device = Device::new(&[("first", "branch")], Duration::ZERO);
    let mut session = device.session(&branches("async", ("host", "branch")));
    for round in 0..20 {
        let outputs = session.run(vec![tensor(&[round as f32; 4])]).unwrap();
        assert_eq!(floats(&outputs[0]), [2.0 * round as f32 + 3.0; 4]);
        assert_eq!(device.log.take(), ["first begins", "branch", "first is over", "join"]);
    }
    session.close().unwrap();
}

#[test]
fn same_backend_consumer_is_launched_at_once() {
    for threads in [1, 2] {
        let device = Device::new(&[("first", "second begins")], Duration::ZERO);
        let mut session = device.session(&line(threads, "host"));
        for round in 0..20 {
            let outputs = session.run(vec![tensor(&[round as f32; 4])]).unwrap();
            assert_eq!(floats(&outputs[0]), [round as f32 + 3.0; 4]);
            assert_eq!(
                device.log.take(),
                ["first begins", "second begins", "first is over", "second is over", "third"]
            );
        }
    }
}

#[test]
fn unread_output_keeps_its_memory_until_completion() {
    let mut plan = common::builder();
    let mut graph = Graph::new("main", 1);
    let source = graph.task("in", 0, feed(0));
    let exec = backend(&mut plan, "async", vec![Arg::register(0, 0)], vec![1]);
    let first = graph.task("first", 0, exec);
    let exec = backend(&mut plan, "host", vec![Arg::register(0, 0)], vec![2]);
    let branch = graph.task("branch", 0, exec);
    let sink = graph.task("out", 0, fetch(0));
    graph.block("x", source, &[first, branch], 4, 0);
    graph.block("unread", first, &[], 4, 64);
    graph.block("y", branch, &[sink], 4, 64);
    graph.port("x", 0, true);
    graph.port("y", 2, false);
    let device = Device::new(&[], Duration::from_millis(20));
    let mut session = device.session(&finished(plan, graph));
    assert_eq!(floats(&session.run(vec![tensor(&[1.0; 4])]).unwrap()[0]), [2.0; 4]);
    assert_eq!(device.log.take(), ["first begins", "first is over", "branch"]);
}

#[test]
fn late_error_names_its_task() {
    // All tasks in flight fail, and the first of them gives the reason.
    let device = Device::new(&[("first", "second begins")], Duration::ZERO);
    let mut session = device.session(&line(1, "async"));
    for _ in 0..5 {
        let error = session.run(vec![tensor(&[FAIL; 4])]).unwrap_err();
        let expected = ExecError::Failed("asked to fail".into());
        assert_eq!(error, RunError::Task { task: "first".into(), place: String::new(), source: expected });
        assert_eq!(floats(&session.run(vec![tensor(&[1.0; 4])]).unwrap()[0]), [4.0; 4]);
    }
    let error = session.run(vec![tensor(&[PANIC; 4])]).unwrap_err();
    assert_eq!(error, RunError::Panic { task: "first".into(), message: "asked to panic".into() });
    let error = session.run(vec![tensor(&[1.0; 4])]).unwrap_err();
    assert!(matches!(error, RunError::Poisoned(_)), "{error}");
}

#[test]
fn failure_waits_for_work_in_flight() {
    let device = Device::new(&[("first", "branch")], Duration::from_millis(5));
    let mut session = device.session(&branches("async", ("host", "branch")));
    let error = session.run(vec![tensor(&[FAIL; 4])]).unwrap_err();
    // The host's is the first.
    assert!(matches!(&error, RunError::Task { task, .. } if task == "branch"), "{error}");
    assert_eq!(device.log.take(), ["first begins", "branch", "first is over"]);
    assert_eq!(floats(&session.run(vec![tensor(&[1.0; 4])]).unwrap()[0]), [5.0; 4]);
}

#[test]
fn session_can_be_dropped_with_work_in_flight() {
    // A task that reports completion twice ends the run at once, while the other is in flight.
    let device = Device::new(&[("first", "run ends")], Duration::ZERO);
    let other = Device::new(&[], Duration::ZERO);
    let loaders: Vec<Arc<dyn Loader>> = vec![
        Arc::new(On { device: device.clone(), is_async: true }),
        Arc::new(Named("other", On { device: other, is_async: true })),
    ];
    let mut session = Session::new(two_devices(), 0, Options::default(), &loaders).unwrap();
    let error = session.run(vec![tensor(&[1.0; 4])]).unwrap_err();
    assert!(error.to_string().contains("`twice` completed without being in flight"), "{error}");
    let error = session.run(vec![tensor(&[1.0; 4])]).unwrap_err();
    assert!(matches!(error, RunError::Poisoned(_)), "{error}");
    assert_eq!(device.log.take(), ["first begins"]);
    device.log.say("run ends".into());
    drop(session);
    assert_eq!(device.log.take(), ["run ends", "first is over", "first is dropped"]);
}

/// Under another name.
struct Named(&'static str, On);

impl Loader for Named {
    fn backend(&self) -> &str {
        self.0
    }

    fn load(&self, payload: &[u8], context: LoadContext<'_>) -> Result<Box<dyn Executable>, LoadError> {
        self.1.load(payload, context)
    }
}

/// Two asynchronous tasks, each on its own device.
fn two_devices() -> Arc<PlanFile> {
    let mut plan = common::builder();
    let mut graph = Graph::new("main", 1);
    let source = graph.task("in", 0, feed(0));
    let exec = backend(&mut plan, "async", vec![Arg::register(0, 0)], vec![1]);
    let first = graph.task("first", 0, exec);
    let exec = backend(&mut plan, "other", vec![Arg::register(0, 0)], vec![2]);
    let twice = graph.task("twice", 0, exec);
    let sinks = [graph.task("out0", 0, fetch(0)), graph.task("out1", 0, fetch(1))];
    graph.block("x", source, &[first, twice], 4, 0);
    graph.block("y", first, &[sinks[0]], 4, 64);
    graph.block("z", twice, &[sinks[1]], 4, 128);
    graph.port("x", 0, true);
    graph.port("y", 1, false);
    graph.port("z", 2, false);
    finished(plan, graph)
}

#[test]
fn timings_measure_asynchronous_work() {
    let takes = Duration::from_millis(30);
    let device = Device::new(&[], takes);
    let mut session = device.session(&line(1, "host"));
    session.run(vec![tensor(&[1.0; 4])]).unwrap();
    let timings = session.timings();
    let [first, second, third] = [1, 2, 3].map(|task| &timings[task]);
    assert!(first.is_async && second.is_async && !third.is_async);
    // The second was begun with the first, and its work began when the first was over.
    assert_eq!(second.start, first.start + first.last);
    assert!(first.last >= takes && second.last >= takes, "{timings:?}");
    assert!(third.start >= second.start + second.last, "{timings:?}");

    let device = Device::new(&[("first", "branch")], takes);
    let mut session = device.session(&branches("async", ("host", "branch")));
    session.run(vec![tensor(&[1.0; 4])]).unwrap();
    let timings = session.timings();
    let [first, branch, join] = [1, 2, 3].map(|task| &timings[task]);
    assert!(branch.start > first.start && branch.start + branch.last < first.start + first.last, "{timings:?}");
    assert!(first.last >= takes && join.start >= first.start + first.last, "{timings:?}");
}

/// Random graphs, on some threads and a device, compute what a plain loop computes.
#[test]
fn random_graphs_with_an_asynchronous_device() {
    for seed in 0..24 {
        let mut random = fastrand::Rng::with_seed(seed);
        let threads = random.u32(1..4);
        let some = |random: &mut fastrand::Rng| if random.bool() { "async" } else { "add-one" };
        let (plan, edges) = random_plan(&mut random, threads, some);
        let device = Device::new(&[], Duration::from_micros(random.u64(..100)));
        let mut session = device.session(&plan);
        for round in 0..10 {
            let outputs = session.run(vec![tensor(&[round as f32; 4])]).unwrap();
            let mut values = vec![round as f32];
            for inputs in &edges {
                values.push(inputs.iter().map(|&input| values[input]).sum::<f32>() + 1.0);
            }
            assert_eq!(floats(&outputs[0]), [*values.last().unwrap(); 4], "seed {seed}");
        }
        session.close().unwrap();
    }
}
