//! Plans and executables for tests of the runtime.
#![allow(dead_code, reason = "every test file uses another part")]

use std::sync::Arc;

use of_plan::*;
use of_runtime::*;

use crate::common::{self, Graph, feed, fetch, kernel};

/// `y[i] = x[i] + x[i]`, and a note in the scratch memory.
pub const DOUBLE: &[u8] = &[
    0x31, 0xc0, // xor eax, eax
    0x48, 0x89, 0x31, // mov [rcx], rsi
    0x4c, 0x8b, 0x07, // mov r8, [rdi]
    0x4c, 0x8b, 0x4f, 0x08, // mov r9, [rdi + 8]
    0x48, 0x39, 0xd6, // cmp rsi, rdx
    0x7d, 0x15, // jge ret
    0xf3, 0x41, 0x0f, 0x10, 0x04, 0xb0, // movss xmm0, [r8 + 4 rsi]
    0xf3, 0x0f, 0x58, 0xc0, // addss xmm0, xmm0
    0xf3, 0x41, 0x0f, 0x11, 0x04, 0xb1, // movss [r9 + 4 rsi], xmm0
    0x48, 0xff, 0xc6, // inc rsi
    0xeb, 0xe6, // jmp cmp
    0xc3, // ret
];

/// `z[i] = x[i] + y[i]`.
pub const ADD: &[u8] = &[
    0x31, 0xc0, // xor eax, eax
    0x4c, 0x8b, 0x07, // mov r8, [rdi]
    0x4c, 0x8b, 0x4f, 0x08, // mov r9, [rdi + 8]
    0x4c, 0x8b, 0x57, 0x10, // mov r10, [rdi + 16]
    0x48, 0x39, 0xd6, // cmp rsi, rdx
    0x7d, 0x17, // jge ret
    0xf3, 0x41, 0x0f, 0x10, 0x04, 0xb0, // movss xmm0, [r8 + 4 rsi]
    0xf3, 0x41, 0x0f, 0x58, 0x04, 0xb1, // addss xmm0, [r9 + 4 rsi]
    0xf3, 0x41, 0x0f, 0x11, 0x04, 0xb2, // movss [r10 + 4 rsi], xmm0
    0x48, 0xff, 0xc6, // inc rsi
    0xeb, 0xe4, // jmp cmp
    0xc3, // ret
];

pub fn tensor(values: &[f32]) -> Value {
    Tensor::from_elements(vec![values.len() as i64], values).unwrap().into()
}

pub fn floats(value: &Value) -> Vec<f32> {
    value.as_tensor().unwrap().to_elements().unwrap()
}

pub fn session(plan: &Arc<PlanFile>, threads: usize) -> Session {
    Session::new(Arc::clone(plan), 0, Options { threads, profile: false, ..Default::default() }, &loaders()).unwrap()
}

/// `out = in + in + 0.5`, by two kernels; tasks are dealt to `threads`, registers have `num` copies.
pub fn kernel_plan(elements: i64, threads: u32, num: u32) -> Arc<PlanFile> {
    let mut plan = common::builder();
    let double = plan.add_kernel("double", "x86-64", DOUBLE, 0).unwrap();
    // The entry need not be the first byte.
    let add = plan.add_kernel("add", "x86-64", [&[0xcc], ADD].concat(), 1).unwrap();
    let half: Vec<u8> = (0..elements).flat_map(|_| 0.5f32.to_ne_bytes()).collect();
    let half = plan.add_weight("half", ElementType::F32, &[elements], half).unwrap();
    let mut graph = Graph::new("main", threads);
    let on = |task: u32| task % threads;
    let source = graph.task("in", on(0), feed(0));
    let args = vec![Arg::register(0, 0), Arg::register(1, 0)];
    let double = graph.task("double", on(1), kernel(double, args, elements));
    let args = vec![Arg::register(1, 0), Arg::weight(half, 0), Arg::register(2, 0)];
    let add = graph.task("add", on(2), kernel(add, args, elements));
    let sink = graph.task("out", on(3), fetch(0));
    let stride = (elements as u64 * 4).next_multiple_of(64) * u64::from(num);
    // The result takes the place of the input.
    for (name, from, to, offset) in [("x", source, double, 0), ("y", double, add, stride), ("z", add, sink, 0)] {
        let register = graph.block(name, from, &[to], elements, offset);
        graph.0.registers[register as usize].copies = num;
    }
    graph.port("x", 0, true);
    graph.port("z", 2, false);
    plan.add_program(graph.finish());
    Arc::new(PlanFile::from_builder(&plan).unwrap())
}

/// An input value that makes `add-one` fail, and one that makes it panic.
pub const FAIL: f32 = -1.0;
pub const PANIC: f32 = -2.0;

pub struct AddOne;

impl Executable for AddOne {
    /// One more than the sum of the inputs.
    fn run(&mut self, inputs: &[ValueRef<'_>], outputs: &mut [ValueMut<'_>]) -> Result<(), ExecError> {
        let [ValueMut::Dense(output)] = outputs else {
            return Err(ExecError::Failed("one output".into()));
        };
        for (place, target) in output.bytes.chunks_exact_mut(4).enumerate() {
            let mut sum = 1.0f32;
            for input in inputs {
                let ValueRef::Dense(input) = input else {
                    return Err(ExecError::Failed("dense inputs".into()));
                };
                let bytes = &input.bytes[place * 4..place * 4 + 4];
                sum += f32::from_ne_bytes(bytes.try_into().unwrap());
            }
            match sum - 1.0 {
                FAIL => return Err(ExecError::Failed("asked to fail".into())),
                PANIC => panic!("asked to panic"),
                _ => target.copy_from_slice(&sum.to_ne_bytes()),
            }
        }
        Ok(())
    }
}

/// What an executable on objects does.
#[derive(Clone, Copy)]
enum OnObjects {
    List,
    Forget,
    Confuse,
}

impl Executable for OnObjects {
    fn run(&mut self, inputs: &[ValueRef<'_>], outputs: &mut [ValueMut<'_>]) -> Result<(), ExecError> {
        let [ValueMut::Object(output)] = outputs else {
            return Err(ExecError::Failed("one object".into()));
        };
        let owned = |input: &ValueRef<'_>| match input {
            ValueRef::Object(value) => Ok((*value).clone()),
            ValueRef::Dense(_) => Err(ExecError::Failed("objects only".into())),
        };
        **output = match self {
            OnObjects::List => Some(Value::Sequence(inputs.iter().map(owned).collect::<Result<_, _>>()?)),
            OnObjects::Forget => None,
            OnObjects::Confuse => Some(Tensor::zeros(ElementType::I64, vec![2])?.into()),
        };
        Ok(())
    }
}

struct TestLoader(&'static str);

impl Loader for TestLoader {
    fn backend(&self) -> &str {
        self.0
    }

    fn load(&self, payload: &[u8], context: LoadContext<'_>) -> Result<Box<dyn Executable>, LoadError> {
        if payload != self.0.as_bytes() || context.exec.backend != self.0 {
            return Err(LoadError::Payload(format!("{payload:?}")));
        }
        Ok(match self.0 {
            "add-one" => Box::new(AddOne),
            "list" => Box::new(OnObjects::List),
            "forget" => Box::new(OnObjects::Forget),
            _ => Box::new(OnObjects::Confuse),
        })
    }
}

pub fn loaders() -> Vec<Arc<dyn Loader>> {
    let loader = |name| Arc::new(TestLoader(name)) as Arc<dyn Loader>;
    ["add-one", "list", "forget", "confuse"].into_iter().map(loader).collect()
}

/// A call of one of the executables above.
pub fn backend(plan: &mut PlanBuilder<'_>, name: &str, inputs: Vec<Arg>, outputs: Vec<u32>) -> Option<Exec> {
    let (offset, len) = plan.add_payload(String::from(name));
    let backend = name.into();
    Some(Exec::Backend(BackendExec { backend, offset, len, inputs, outputs, ..BackendExec::default() }))
}

/// in -> add-one -> add-one -> out.
pub fn backend_plan(threads: u32) -> Arc<PlanFile> {
    let mut plan = common::builder();
    let mut graph = Graph::new("main", threads);
    let source = graph.task("in", 0, feed(0));
    let exec = backend(&mut plan, "add-one", vec![Arg::register(0, 0)], vec![1]);
    let first = graph.task("first", threads - 1, exec);
    let exec = backend(&mut plan, "add-one", vec![Arg::register(1, 0)], vec![2]);
    let second = graph.task("second", 0, exec);
    let sink = graph.task("out", threads - 1, fetch(0));
    graph.block("x", source, &[first], 4, 0);
    graph.block("y", first, &[second], 4, 64);
    graph.block("z", second, &[sink], 4, 0);
    graph.port("x", 0, true);
    graph.port("z", 2, false);
    plan.add_program(graph.finish());
    Arc::new(PlanFile::from_builder(&plan).unwrap())
}

pub fn backend_session(threads: u32) -> Session {
    session(&backend_plan(threads), 1)
}

/// in -> out.
pub fn echo_session() -> Session {
    let mut plan = common::builder();
    let mut graph = Graph::new("main", 1);
    let (source, sink) = (graph.task("in", 0, feed(0)), graph.task("out", 0, fetch(0)));
    graph.block("x", source, &[sink], 4, 0);
    graph.port("x", 0, true);
    graph.port("y", 0, false);
    plan.add_program(graph.finish());
    session(&Arc::new(PlanFile::from_builder(&plan).unwrap()), 1)
}

/// A graph of `add-one`s, or whatever else the name of a task's backend is, with random inputs, memory shared wherever an order can be made; with the inputs of each, as
/// numbers of values, of which the first is the program's input.
pub fn random_plan(
    random: &mut fastrand::Rng,
    threads: u32,
    name: fn(&mut fastrand::Rng) -> &'static str,
) -> (Arc<PlanFile>, Vec<Vec<usize>>) {
    let count = random.usize(2..25);
    let mut edges: Vec<Vec<usize>> = Vec::new();
    for number in 0..count {
        let near = number.saturating_sub(3)..number + 1;
        let mut inputs: Vec<usize> = near.filter(|_| random.bool()).collect();
        if inputs.is_empty() {
            inputs.push(number);
        }
        edges.push(inputs);
    }
    let mut plan = common::builder();
    let mut graph = Graph::new("main", threads);
    graph.task("in", random.u32(..threads), feed(0));
    for (number, inputs) in edges.iter().enumerate() {
        let args = inputs.iter().map(|&input| Arg::register(input as u32, 0)).collect();
        let exec = backend(&mut plan, name(random), args, vec![number as u32 + 1]);
        graph.task(&format!("t{number}"), random.u32(..threads), exec);
    }
    let sink = graph.task("out", random.u32(..threads), fetch(0));
    for value in 0..=count {
        let mut to: Vec<usize> = (0..count).filter(|&task| edges[task].contains(&value)).map(|task| task + 1).collect();
        if value == count {
            to.push(sink);
        }
        graph.block(&format!("r{value}"), value, &to, 4, 64 * (value as u64 % 6));
    }
    graph.port("x", 0, true);
    graph.port("y", count as u32, false);
    let mut program = graph.finish();
    order_reuse(&mut program);
    plan.add_program(program);
    (Arc::new(PlanFile::from_builder(&plan).unwrap()), edges)
}
