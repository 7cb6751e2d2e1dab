//! Values that stay in a session: runs of native code against the interpreter, whose caller hands each output to the next step.

use std::sync::Arc;

use of_codegen::Isa;
use of_codegen::{CompileOptions, Target, compile, rewrite};
use of_ir::{Attr, Blob, DType, Func, Tensor, text};
use of_ops::sample::Rng;
use of_ops::training::{CARRIED, INITIAL_VALUES, VARIABLES, variables};
use of_ops::{Value, interpret};
use of_plan::{FindingKind, PlanFile, Program, Register, Storage};
use of_reference::{Reference, from_runtime, to_runtime};
use of_runtime::{FrozenVariables, Options, RunError, Session};
use of_test_support::compare::{Tolerance, assert_close};
use of_test_support::plans as support;

/// A function whose outputs become inputs of the next step, and its program.
struct Case {
    func: Func,
    session: Session,
    plan: Arc<PlanFile>,
    /// The values of the variables, by number of the input.
    state: Vec<(usize, Value)>,
}

/// The function of a text after the passes, in which these outputs are next values of these inputs.
fn function(source: &str, carried: &[i64]) -> Func {
    let module = text::parse_module(source, "test", &of_ops::registry(), None).unwrap_or_else(|d| panic!("{d}"));
    let mut func = support::after_passes(module);
    func.attrs.set(CARRIED, Attr::Ints(carried.to_vec()));
    let mut inputs: Vec<i64> = carried.iter().copied().filter(|i| *i >= 0).collect();
    inputs.sort_unstable();
    func.attrs.set(VARIABLES, Attr::Ints(inputs));
    func
}

fn plan(funcs: &[(&str, &Func)]) -> Arc<PlanFile> {
    let options = CompileOptions::new(Target::new(Isa::host(), &[&Reference]), support::cache());
    let owned: Vec<(String, Func)> = funcs
        .iter()
        .map(|(name, f)| ((*name).to_string(), rewrite::for_isa(f, Isa::host()).unwrap().into_owned()))
        .collect();
    let funcs: Vec<(String, &Func)> = owned.iter().map(|(name, f)| (name.clone(), f)).collect();
    Arc::new(compile(&funcs, &options).unwrap_or_else(|d| panic!("{d}")).open().unwrap_or_else(|d| panic!("{d}")))
}

fn options() -> Options {
    Options { threads: 2, profile: false, ..Default::default() }
}

impl Case {
    fn new(source: &str, carried: &[i64], seed: u64) -> Case {
        let func = function(source, carried);
        let plan = plan(&[("main", &func)]);
        let session = Session::new(Arc::clone(&plan), 0, options(), &[Arc::new(Reference)]).unwrap();
        let mut r = Rng::new(seed);
        let state: Vec<(usize, Value)> = variables(&func)
            .unwrap()
            .iter()
            .map(|v| {
                let ty = func.graph.ty(func.graph.args()[v.input]).as_tensor().unwrap().clone();
                (v.input, r.tensor(ty.dtype, &ty.fixed_dims().unwrap(), -1.0, 1.0).into())
            })
            .collect();
        for (input, value) in &state {
            let of_runtime::Value::Tensor(tensor) = to_runtime(value).unwrap() else { panic!("no tensor") };
            session.variables().unwrap().set(&func.inputs[*input], &tensor).unwrap();
        }
        Case { func, session, plan, state }
    }

    /// One step with random inputs: the outputs, and afterwards the variables, are those of the interpreter.
    fn step(&mut self, what: &str, r: &mut Rng) {
        let g = &self.func.graph;
        let mut inputs = Vec::new();
        for (i, arg) in g.args().iter().enumerate() {
            let ty = g.ty(*arg).as_tensor().unwrap().clone();
            inputs.push(match self.state.iter().find(|(input, _)| *input == i) {
                Some((_, value)) => value.clone(),
                None => r.tensor(ty.dtype, &ty.fixed_dims().unwrap(), -1.0, 1.0).into(),
            });
        }
        let want = interpret::run_graph(g, &inputs).unwrap_or_else(|d| panic!("{what}: {d}"));
        let given = inputs.iter().enumerate().filter(|(i, _)| !self.state.iter().any(|(input, _)| input == i));
        let given = given.map(|(_, v)| to_runtime(v).unwrap()).collect();
        let got = self.session.run(given).unwrap_or_else(|e| panic!("{what}: {e}"));
        let got: Vec<Value> = got.iter().map(|v| from_runtime(v).unwrap()).collect();
        let listed = variables(&self.func).unwrap();
        let is_next = |output: &usize| listed.iter().any(|v| v.next == Some(*output));
        let outputs: Vec<Value> = (0..want.len()).filter(|o| !is_next(o)).map(|o| want[o].clone()).collect();
        assert_close(what, &got, &outputs, Tolerance::elementwise(1e-5));
        for v in &listed {
            let name = &self.func.inputs[v.input];
            let value = from_runtime(&self.session.variables().unwrap().get(name).unwrap().into()).unwrap();
            let state = self.state.iter_mut().find(|(input, _)| *input == v.input).unwrap();
            if let Some(output) = v.next {
                state.1 = want[output].clone();
            }
            assert_close(
                &format!("{what}: variable {name}"),
                &[value],
                std::slice::from_ref(&state.1),
                Tolerance::elementwise(1e-5),
            );
        }
    }

    fn program(&self) -> &Program {
        &self.plan.plan().programs[0]
    }

    /// How each variable gets its next value: `in place`, `direct` or `copy`.
    fn updates(&self) -> Vec<&'static str> {
        let program = self.program();
        let updated = |register: &Register| {
            let task = program.tasks.iter().find(|task| task.id == register.producer)?;
            program.variables_written(task).any(|v| Some(v) == program.variable_of(register)).then_some(task)
        };
        let mut out: Vec<(usize, &str)> = Vec::new();
        for register in &program.registers {
            let Some(task) = updated(register) else { continue };
            let how = match &task.exec {
                Some(of_plan::Exec::Copy(_)) => "copy",
                _ if register.inplace_of.is_empty() => "direct",
                _ => "in place",
            };
            out.push((program.variable_of(register).unwrap(), how));
        }
        out.sort_unstable();
        out.into_iter().map(|(_, how)| how).collect()
    }
}

/// The text of a function of tensors `x` and variables `v0` …, all 37 x 3.
fn source(variables: usize, body: &str, outputs: &str) -> String {
    const T: &str = "tensor<37x3xf32>";
    let args: String = (0..variables).map(|i| format!(", %v{i}: {T}")).collect();
    let count = outputs.split(',').count();
    let types = vec![T; count].join(", ");
    let body = body.replace(" T", &format!(" {T}"));
    format!("func @main(%x: {T}{args}) -> ({types}) {{\n{body}\n  of.return {outputs} : ({types}) -> ()\n}}")
}

#[test]
fn variables_are_updated_where_they_are() {
    let add = |y: &str, a: &str, b: &str| format!("  {y} = of.add {a}, {b} : ( T, T) -> T\n");
    let mul = |y: &str, a: &str, b: &str| format!("  {y} = of.mul {a}, {b} : ( T, T) -> T\n");
    let exp = |y: &str, a: &str| format!("  {y} = of.exp {a} : ( T) -> T\n");
    let back = "  %t = of.transpose %v0 {perm = [0, 1]} : ( T) -> T\n";
    let sum = "  %a = of.constant {value = dense<[0]> : tensor<1xi64>} : () -> tensor<1xi64>\n  %s = of.reduce_sum %v0, %a {keepdims = true} : ( T, tensor<1xi64>) -> tensor<1x3xf32>\n  %n = of.add %x, %s : ( T, tensor<1x3xf32>) -> T\n";
    /// What it is, variables, ops, outputs, which are next values, how the variables get them.
    type Update = (&'static str, usize, String, &'static str, Vec<i64>, Vec<&'static str>);
    let cases: Vec<Update> = vec![
        ("an update by its own elements", 1, add("%n", "%v0", "%x"), "%n", vec![1], vec!["in place"]),
        ("a value that does not read the old one", 1, exp("%n", "%x"), "%n", vec![1], vec!["direct"]),
        (
            "a reader before the update",
            1,
            exp("%y", "%v0") + &add("%n", "%v0", "%x"),
            "%y, %n",
            vec![-1, 1],
            vec!["in place"],
        ),
        ("sums of the old value", 1, sum.to_string(), "%n", vec![1], vec!["direct"]),
        ("an unchanged variable", 1, exp("%y", "%v0"), "%y, %v0", vec![-1, 1], vec![]),
        ("an input becomes the value", 1, exp("%y", "%v0"), "%y, %x", vec![-1, 1], vec!["copy"]),
        ("two variables change places", 2, exp("%y", "%v0"), "%y, %v1, %v0", vec![-1, 1, 2], vec!["copy", "copy"]),
        ("one value for two variables", 2, add("%n", "%v0", "%v1"), "%n, %n", vec![1, 2], vec!["in place", "copy"]),
        (
            "a chain of two updates",
            2,
            add("%m", "%v0", "%x") + &mul("%n", "%v1", "%m"),
            "%m, %n",
            vec![1, 2],
            vec!["in place", "in place"],
        ),
        ("a transposed read", 1, back.to_string() + &add("%n", "%t", "%x"), "%n", vec![1], vec!["in place"]),
    ];
    for (what, count, body, outputs, carried, expected) in cases {
        let mut case = Case::new(&source(count, &body, outputs), &carried, 7);
        assert_eq!(case.updates(), expected, "{what}");
        let mut r = Rng::new(11);
        for step in 0..4 {
            case.step(&format!("{what}, step {step}"), &mut r);
        }
    }
}

#[test]
fn update_waits_for_readers_of_the_old_value() {
    // The product reads the old value after the update stands in the text.
    let text = r"func @main(%x: tensor<5x5xf32>, %v: tensor<5x5xf32>) -> (tensor<5x5xf32>, tensor<5x5xf32>) {
  %n = of.add %v, %x : (tensor<5x5xf32>, tensor<5x5xf32>) -> tensor<5x5xf32>
  %y = of.matmul %v, %x : (tensor<5x5xf32>, tensor<5x5xf32>) -> tensor<5x5xf32>
  of.return %n, %y : (tensor<5x5xf32>, tensor<5x5xf32>) -> ()
}";
    let mut case = Case::new(text, &[1, -1], 3);
    assert_eq!(case.updates(), ["in place"]);
    let mut r = Rng::new(5);
    (0..4).for_each(|step| case.step(&format!("step {step}"), &mut r));
    // Where a later reader needs both values, the update cannot wait.
    let text = r"func @main(%x: tensor<5x5xf32>, %v: tensor<5x5xf32>) -> (tensor<5x5xf32>, tensor<5x5xf32>) {
  %n = of.add %v, %x : (tensor<5x5xf32>, tensor<5x5xf32>) -> tensor<5x5xf32>
  %y = of.matmul %v, %n : (tensor<5x5xf32>, tensor<5x5xf32>) -> tensor<5x5xf32>
  of.return %n, %y : (tensor<5x5xf32>, tensor<5x5xf32>) -> ()
}";
    let mut case = Case::new(text, &[1, -1], 3);
    assert_eq!(case.updates(), ["copy"]);
    (0..4).for_each(|step| case.step(&format!("both values, step {step}"), &mut r));
}

/// The inputs of a region are its own, whatever their numbers.
#[test]
fn control_flow_reads_variables() {
    const T: &str = "tensor<4x4xf32>";
    let text = format!(
        r"func @main(%v: {T}, %c: tensor<i1>) -> ({T}, {T}) {{
  %y = of.if %c : (tensor<i1>) -> ({T}) {{
    %a = of.exp %v : ({T}) -> {T}
    of.yield %a : ({T}) -> ()
  }}, {{
    %b = of.matmul %v, %v : ({T}, {T}) -> {T}
    of.yield %b : ({T}) -> ()
  }}
  %n = of.tanh %y : ({T}) -> {T}
  of.return %y, %n : ({T}, {T}) -> ()
}}"
    );
    let mut case = Case::new(&text, &[-1, 0], 3);
    let mut r = Rng::new(5);
    (0..6).for_each(|step| case.step(&format!("step {step}"), &mut r));
}

/// Random functions of elementwise ops, sums and transposes over several variables, whose next values are random results.
#[test]
fn random_functions_keep_their_variables() {
    const T: &str = "tensor<8x8xf32>";
    for seed in 0..150 {
        let mut r = Rng::new(seed);
        let count = r.int(1, 4) as usize;
        let mut values: Vec<String> =
            std::iter::once("%x".to_string()).chain((0..count).map(|i| format!("%v{i}"))).collect();
        let mut body = String::new();
        for i in 0..r.int(1, 10) {
            let a = values[r.int(0, values.len() as i64 - 1) as usize].clone();
            let b = values[r.int(0, values.len() as i64 - 1) as usize].clone();
            let y = format!("%y{i}");
            body.push_str(&match r.int(0, 5) {
                0 => format!("  {y} = of.transpose {a} {{perm = [1, 0]}} : ({T}) -> {T}\n"),
                1 => format!("  {y} = of.tanh {a} : ({T}) -> {T}\n"),
                2 => format!("  {y}p = of.matmul {a}, {b} : ({T}, {T}) -> {T}\n  {y} = of.tanh {y}p : ({T}) -> {T}\n"),
                3 => format!("  {y} = of.softmax {a} {{axis = -1}} : ({T}) -> {T}\n"),
                4 => format!("  {y} = of.sub {a}, {b} : ({T}, {T}) -> {T}\n"),
                _ => format!("  {y} = of.mul {a}, {b} : ({T}, {T}) -> {T}\n"),
            });
            values.push(y);
        }
        // A tanh keeps the numbers of many steps small.
        let mut outputs = Vec::new();
        for i in 0..=count {
            let from = values[r.int(0, values.len() as i64 - 1) as usize].clone();
            if r.int(0, 3) > 0 {
                body.push_str(&format!("  %o{i} = of.tanh {from} : ({T}) -> {T}\n"));
                outputs.push(format!("%o{i}"));
            } else {
                outputs.push(from);
            }
        }
        let args: String = (0..count).map(|i| format!(", %v{i}: {T}")).collect();
        let types = vec![T; outputs.len()].join(", ");
        let list = outputs.join(", ");
        let text = format!("func @main(%x: {T}{args}) -> ({types}) {{\n{body}  of.return {list} : ({types}) -> ()\n}}");
        let carried: Vec<i64> = (0..=count as i64).map(|i| if i == 0 { -1 } else { i }).collect();
        let mut case = Case::new(&text, &carried, seed);
        for step in 0..4 {
            case.step(&format!("seed {seed}, step {step}\n{text}"), &mut r);
        }
    }
}

fn counter() -> Func {
    let text = r"func @main(%x: tensor<4xf32>, %i: tensor<i64>, %v: tensor<4xf32>) -> (tensor<f32>, tensor<4xf32>) {
  %a = of.constant {value = dense<[0]> : tensor<1xi64>} : () -> tensor<1xi64>
  %n = of.add %v, %x : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %y = of.gather %n, %i {axis = 0} : (tensor<4xf32>, tensor<i64>) -> tensor<f32>
  of.return %y, %n : (tensor<f32>, tensor<4xf32>) -> ()
}";
    function(text, &[-1, 2])
}

fn tensor(values: &[f32]) -> of_runtime::Tensor {
    of_runtime::Tensor::from_elements([values.len() as i64], values).unwrap()
}

fn index(i: i64) -> of_runtime::Value {
    of_runtime::Tensor::from_elements(Vec::new(), &[i]).unwrap().into()
}

#[test]
fn runs_wait_until_lent_values_are_returned() {
    let mut session = Session::new(plan(&[("main", &counter())]), 0, options(), &[Arc::new(Reference)]).unwrap();
    let variables = Arc::clone(session.variables().unwrap());
    assert!(variables.lend("v").unwrap_err().to_string().contains("variable `v` has no value"));
    variables.set("v", &tensor(&[5.0; 4])).unwrap();
    let changes: [&(dyn Fn(&mut Session) + Sync); 3] = [
        &|session| drop(session.run(vec![tensor(&[1.0; 4]).into(), index(0)]).unwrap()),
        &|session| session.variables().unwrap().set("v", &tensor(&[5.0; 4])).unwrap(),
        &|session| session.variables().unwrap().reset(),
    ];
    for (change, before) in changes.into_iter().zip([5.0, 6.0, 5.0]) {
        let (lent, again) = (variables.lend("v").unwrap(), variables.lend("v").unwrap());
        // They are in one place, and a clone that is written to is in another.
        assert_eq!(lent.bytes().unwrap().as_ptr(), again.bytes().unwrap().as_ptr());
        let mut own = lent.clone();
        own.bytes_mut().unwrap().fill(0);
        let (begin, begun) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let changing = scope.spawn(|| {
                begin.send(()).unwrap();
                change(&mut session);
            });
            begun.recv().unwrap();
            drop(again);
            std::thread::sleep(std::time::Duration::from_millis(20));
            assert!(!changing.is_finished());
            assert_eq!(lent.to_elements::<f32>().unwrap(), [before; 4]);
            drop(lent);
            changing.join().unwrap();
        });
    }
    assert!(variables.lend("v").is_err(), "it has no value after the reset");
}

#[test]
fn frozen_values_stay_while_runs_update_the_variables() {
    let mut session = Session::new(plan(&[("main", &counter())]), 0, options(), &[Arc::new(Reference)]).unwrap();
    let variables = Arc::clone(session.variables().unwrap());
    let ones = || vec![tensor(&[1.0; 4]).into(), index(0)];
    assert!(variables.freeze().unwrap_err().to_string().contains("variable `v` has no value"));
    variables.set("v", &tensor(&[0.0; 4])).unwrap();
    let mut frozen = Vec::new();
    for _ in 0..3 {
        frozen.push(variables.freeze().unwrap());
        session.run(ones()).unwrap();
    }
    frozen.push(variables.freeze().unwrap());
    variables.set("v", &tensor(&[7.0; 4])).unwrap();
    frozen.push(variables.freeze().unwrap());
    variables.reset();
    let value = |frozen: &FrozenVariables| {
        let bytes = frozen.copy(0).unwrap();
        bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect::<Vec<_>>()
    };
    for (frozen, want) in frozen.iter().zip([0.0, 1.0, 2.0, 3.0, 7.0]) {
        assert_eq!(value(frozen), [want; 4]);
    }
    // What is released is not saved.
    frozen[0].release(0);
    assert!(frozen[0].copy(0).is_err() && frozen[1].copy(0).is_ok());
    drop(frozen);
    // A run waits for a reader.
    variables.set("v", &tensor(&[8.0; 4])).unwrap();
    let frozen = variables.freeze().unwrap();
    let (begun, reads) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut read = Vec::new();
            let mut take = |bytes: &[u8]| {
                begun.send(()).unwrap();
                std::thread::sleep(std::time::Duration::from_millis(30));
                read.extend_from_slice(bytes);
            };
            frozen.read(0, &mut take).unwrap();
            read
        });
        reads.recv().unwrap();
        session.run(ones()).unwrap();
        assert_eq!(reader.join().unwrap(), [8f32; 4].map(f32::to_le_bytes).concat());
    });
    assert_eq!((value(&frozen), variables.get("v").unwrap()), (vec![8.0; 4], tensor(&[9.0; 4])));
}

#[test]
fn values_are_set_reset_and_lost() {
    let mut func = counter();
    let plan_without = plan(&[("main", &func)]);
    let mut session = Session::new(plan_without, 0, options(), &[Arc::new(Reference)]).unwrap();
    let ones = || vec![tensor(&[1.0; 4]).into(), index(0)];
    let error = session.run(ones()).unwrap_err();
    assert_eq!(error.to_string(), "variable `v` has no value: set it before the run");
    let variables = Arc::clone(session.variables().unwrap());
    for (name, value, words) in [
        ("w", tensor(&[0.0; 4]), "variable `w` does not exist; there are v"),
        ("v", tensor(&[0.0; 3]), "is f32[4] and cannot be set to f32[3]"),
    ] {
        assert!(variables.set(name, &value).unwrap_err().to_string().contains(words));
    }
    variables.set("v", &tensor(&[5.0; 4])).unwrap();
    session.run(ones()).unwrap();
    assert_eq!(variables.get("v").unwrap(), tensor(&[6.0; 4]));
    // A run whose input does not fit changes nothing.
    assert!(session.run(vec![tensor(&[1.0; 3]).into(), index(0)]).is_err());
    assert_eq!(variables.get("v").unwrap(), tensor(&[6.0; 4]));
    // One that fails after the update loses the value, and says so until it is set.
    let error = session.run(vec![tensor(&[1.0; 4]).into(), index(9)]).unwrap_err();
    assert!(matches!(error, RunError::Task { .. }), "{error}");
    for _ in 0..2 {
        let error = session.run(ones()).unwrap_err().to_string();
        assert!(error.contains("variable `v` is lost, because a run failed"), "{error}");
    }
    assert!(variables.get("v").is_err());
    variables.set("v", &tensor(&[1.0; 4])).unwrap();
    session.run(ones()).unwrap();
    assert_eq!(variables.get("v").unwrap(), tensor(&[2.0; 4]));

    // Initial values are in the plan.
    let initial = Tensor::from_slice(&[4], &[1f32, 2.0, 3.0, 4.0]).unwrap();
    func.attrs.set(INITIAL_VALUES, Attr::Array(vec![Attr::Tensor(initial)]));
    let mut session = Session::new(plan(&[("main", &func)]), 0, options(), &[Arc::new(Reference)]).unwrap();
    session.run(ones()).unwrap();
    let variables = session.variables().unwrap();
    assert_eq!(variables.get("v").unwrap(), tensor(&[2.0, 3.0, 4.0, 5.0]));
    variables.reset();
    assert_eq!(variables.get("v").unwrap(), tensor(&[1.0, 2.0, 3.0, 4.0]));
    func.attrs.set(INITIAL_VALUES, Attr::Array(vec![Attr::Int(0)]));
    let session = Session::new(plan(&[("main", &func)]), 0, options(), &[Arc::new(Reference)]).unwrap();
    assert_eq!(session.variables().unwrap().get("v").unwrap(), tensor(&[0.0; 4]));
}

/// Checks that little of the map that has these bytes is in memory.
fn assert_takes_no_memory(bytes: &[u8]) {
    if cfg!(not(target_os = "linux")) {
        return;
    }
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let range = |line: &str| {
        let (start, end) = line.split_whitespace().next()?.split_once('-')?;
        Some(usize::from_str_radix(start, 16).ok()?..usize::from_str_radix(end, 16).ok()?)
    };
    let is_own = |line: &&str| range(line).is_some_and(|range| range.contains(&(bytes.as_ptr() as usize)));
    let own = maps.lines().skip_while(|line| !is_own(line)).find_map(|line| line.strip_prefix("Rss:")).unwrap();
    let resident: usize = own.split_whitespace().next().unwrap().parse().unwrap();
    assert!(resident * 1024 < bytes.len() / 8, "{resident} KiB of {}", bytes.len() / 1024);
}

#[test]
fn initial_values_in_a_mapped_file_take_no_memory() {
    // They are not aligned in the file, as those of models are not.
    const LEN: usize = 1 << 20;
    let values: Vec<f32> = (0..LEN).map(|i| i as f32).collect();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model");
    let bytes: Vec<u8> = [7, 7].into_iter().chain(values.iter().flat_map(|x| x.to_le_bytes())).collect();
    std::fs::write(&path, &bytes).unwrap();
    let file = Blob::map(&path).unwrap();
    let initial = Tensor::from_bytes(DType::F32, vec![LEN], file.slice(2..2 + 4 * LEN).unwrap()).unwrap();
    let text = format!(
        r"func @main(%v: tensor<{LEN}xf32>) -> (tensor<{LEN}xf32>) {{
  %y = of.add %v, %v : (tensor<{LEN}xf32>, tensor<{LEN}xf32>) -> tensor<{LEN}xf32>
  of.return %y : (tensor<{LEN}xf32>) -> ()
}}"
    );
    let mut func = function(&text, &[0]);
    func.attrs.set(INITIAL_VALUES, Attr::Array(vec![Attr::Tensor(initial)]));
    let plan = plan(&[("main", &func)]);
    let weight = plan.weight(0).unwrap();
    assert_eq!(weight.as_ptr(), file[2..].as_ptr(), "it is copied");
    let mut session = Session::new(Arc::clone(&plan), 0, options(), &[Arc::new(Reference)]).unwrap();
    assert_takes_no_memory(&file);
    session.run(Vec::new()).unwrap();
    let variables = session.variables().unwrap();
    let doubled: Vec<f32> = values.iter().map(|x| 2.0 * x).collect();
    assert!(variables.get("v").unwrap().to_elements::<f32>().unwrap() == doubled);
    variables.reset();
    assert!(variables.get("v").unwrap().to_elements::<f32>().unwrap() == values);
    assert!(file[..] == bytes);
}

#[test]
fn many_zeros_of_a_plan_take_no_memory() {
    const LEN: usize = 1 << 22;
    let zeros = Tensor::from_slice(&[LEN], &vec![0f32; LEN]).unwrap();
    let mut func = function(
        &format!(
            r"func @main(%v: tensor<{LEN}xf32>) -> (tensor<{LEN}xf32>) {{
  %y = of.exp %v : (tensor<{LEN}xf32>) -> tensor<{LEN}xf32>
  of.return %y : (tensor<{LEN}xf32>) -> ()
}}"
        ),
        &[0],
    );
    func.attrs.set(INITIAL_VALUES, Attr::Array(vec![Attr::Tensor(zeros)]));
    let plan = plan(&[("main", &func)]);
    let weight = plan.weight(0).unwrap();
    assert!(weight.len() == 4 * LEN && weight.iter().all(|b| *b == 0));
    assert_takes_no_memory(weight);
    assert!(PlanFile::from_bytes(&plan.bytes()).unwrap().weight(0).unwrap() == weight);
}

#[test]
fn programs_of_a_plan_share_variables() {
    let mut train = counter();
    train.attrs.set(INITIAL_VALUES, Attr::Array(vec![Attr::Int(0)]));
    let text = r"func @main(%v: tensor<4xf32>) -> (tensor<4xf32>) {
  %y = of.exp %v : (tensor<4xf32>) -> tensor<4xf32>
  of.return %y : (tensor<4xf32>) -> ()
}";
    let mut eval = function(text, &[-1]);
    eval.attrs.set(VARIABLES, Attr::Ints(vec![0]));
    let plan = plan(&[("train", &train), ("eval", &eval)]);
    let mut train = Session::new(Arc::clone(&plan), 0, options(), &[Arc::new(Reference)]).unwrap();
    let shared = Arc::clone(train.variables().unwrap());
    let mut eval = Session::sharing(plan, 1, options(), &[Arc::new(Reference)], &shared).unwrap();
    for step in 1..4 {
        train.run(vec![tensor(&[1.0; 4]).into(), index(0)]).unwrap();
        let out = eval.run(Vec::new()).unwrap();
        let value = out[0].as_tensor().unwrap().to_elements::<f32>().unwrap()[0];
        assert!((value - (step as f32).exp()).abs() < 1e-4 * value, "{value}");
    }
}

#[test]
fn wrong_variables_are_refused() {
    let mut func = counter();
    let mut refused = |attr: &str, value: Attr| {
        let before = func.attrs.get(attr).cloned();
        func.attrs.set(attr, value);
        let error = variables(&func).map(|_| ()).unwrap_err().to_string();
        match before {
            Some(before) => func.attrs.set(attr, before),
            None => drop(func.attrs.remove(attr)),
        }
        error
    };
    assert!(refused(VARIABLES, Attr::Ints(vec![7])).contains("has 7, which is no other input"));
    assert!(refused(VARIABLES, Attr::Ints(vec![2, 2])).contains("has 2, which is no other input"));
    assert!(refused(CARRIED, Attr::Ints(vec![2, 2])).contains("must give 'v' one output"));
    assert!(refused(INITIAL_VALUES, Attr::Int(1)).contains("must be a list"));
    assert!(refused(INITIAL_VALUES, Attr::Array(vec![Attr::Bool(true)])).contains("is a bool"));

    let finding = |change: &dyn Fn(&mut Program)| {
        let mut plan = plan(&[("main", &counter())]).plan().clone();
        change(&mut plan.programs[0]);
        of_plan::verify(&plan).err().map(|findings| findings[0].kind)
    };
    let written = |p: &Program| p.registers.iter().position(|r| !r.inplace_of.is_empty()).unwrap();
    assert_eq!(finding(&|_| ()), None);
    assert_eq!(finding(&|p| p.variables[0].offset = 64), Some(FindingKind::Range));
    assert_eq!(finding(&|p| p.variables[0].dims = vec![3]), Some(FindingKind::Type));
    assert_eq!(finding(&|p| p.variables.clear()), Some(FindingKind::Range));
    assert_eq!(finding(&|p| p.variables[0].initial = Some(of_plan::Initial::Weight(99))), Some(FindingKind::Type));
    assert_eq!(finding(&|p| p.variables.push(p.variables[0].clone())), Some(FindingKind::Duplicate));
    // Without the declaration that it works in place, the update overwrites a value that is read.
    assert_eq!(
        finding(&|p| {
            let at = written(p);
            p.registers[at].inplace_of.clear();
        }),
        Some(FindingKind::Overlap)
    );
    assert_eq!(
        finding(&|p| {
            let at = written(p);
            if let Some(Storage::Block(block)) = &mut p.registers[at].storage {
                block.offset += 4;
            }
        }),
        Some(FindingKind::Call)
    );
}
