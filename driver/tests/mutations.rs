//! Plans whose structure was changed: what the verifier accepts runs without a crash.
//!
//! Every number of the structure is changed in turn, and random pairs of numbers that are near each other, with checksums that
//! hold. A mutant that is accepted runs, and may fail with an error. Mutants run in a child process, which prints the number of
//! each before it starts: a signal ends the child, and the parent knows the mutant.

use std::io::{BufRead, BufReader, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use of_driver::{Backends, Cache, Compiler, Model, Session, SessionOptions};
use of_plan::{PlanFile, SectionKind};
use of_runtime::{Tensor, Value};
use prost::Message;

/// A loop with a branch, an indexed op and an op without a kernel, over an open extent.
const CONTROL: &str = "\
func @main(%x: tensor<?(N)x4xf32>, %i: tensor<3xi64>, %n: tensor<f32>) -> (tensor<3x4xf32>, tensor<f32>, tensor<?(N)xf32>) {
  %rows = of.gather %x, %i {axis = 0}
  %last_axis = of.constant {value = dense<[1]> : tensor<1xi64>}
  %sums = of.reduce_sum %x, %last_axis {keepdims = false}
  %steps = of.constant {value = dense<5> : tensor<i64>}
  %second = of.constant {value = dense<1> : tensor<i64>}
  %none = of.none
  %last = of.loop %steps, %none, %n : (tensor<i64>, none, tensor<f32>) -> (tensor<f32>) {
  ^(%k: tensor<i64>, %c: tensor<i1>, %s: tensor<f32>):
    %is = of.eq %k, %second : (tensor<i64>, tensor<i64>) -> tensor<i1>
    %m = of.if %is : (tensor<i1>) -> tensor<f32> {
      %q = of.mul %s, %s : (tensor<f32>, tensor<f32>) -> tensor<f32>
      of.yield %q : (tensor<f32>) -> ()
    }, {
      %p = of.add %s, %n : (tensor<f32>, tensor<f32>) -> tensor<f32>
      of.yield %p : (tensor<f32>) -> ()
    }
    of.yield %c, %m : (tensor<i1>, tensor<f32>) -> ()
  }
  of.return %rows, %last, %sums
}
";

/// The variable that tells a child which plan to mutate and where to start.
const TASK: &str = "OF_TEST_MUTANTS";

/// The bytes of a plan, and inputs for it.
fn plan(name: &str) -> (Vec<u8>, Vec<Value>) {
    let digits = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/digits/digits.onnx");
    let floats = |dims: &[i64]| -> Value {
        let count: i64 = dims.iter().product();
        Tensor::from_elements(dims.to_vec(), &vec![0.5_f32; count as usize]).unwrap().into()
    };
    let compiler = Compiler::new().threads(2).cache(Cache::none());
    let images = vec![floats(&[3, 1, 8, 8])];
    let (compiled, inputs) = match name {
        "fixed" => (compiler.shape("N", 3).compile(Model::open(digits).unwrap()), images),
        "open" => (compiler.compile(Model::open(digits).unwrap()), images),
        "interpreted" => (compiler.backend("reference").compile(Model::open(digits).unwrap()), images),
        _ => {
            let indices = Tensor::from_elements(vec![3], &[0_i64, 2, -1]).unwrap().into();
            let model = Model::from_text(CONTROL, "control", None).unwrap();
            (compiler.compile(model), vec![floats(&[6, 4]), indices, floats(&[])])
        }
    };
    (compiled.unwrap().to_bytes().unwrap(), inputs)
}

/// A field of a protocol buffer, without its schema.
#[derive(Clone)]
enum Node {
    Number(u64),
    Packed(Vec<u64>),
    Message(Vec<(u64, Node)>),
    Bytes(Vec<u8>),
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    prost::encoding::decode_varint(bytes).ok()
}

/// The fields of bytes, if these can be read as a message.
fn fields(mut bytes: &[u8]) -> Option<Vec<(u64, Node)>> {
    let mut out = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes)?;
        let node = match (key & 7, key >> 3) {
            (_, 0 | 33..) => return None,
            (0, _) => Node::Number(varint(&mut bytes)?),
            (2, _) => {
                let len = usize::try_from(varint(&mut bytes)?).ok()?;
                let (own, rest) = bytes.split_at_checked(len)?;
                bytes = rest;
                node(own)
            }
            _ => return None,
        };
        out.push((key, node));
    }
    Some(out)
}

fn node(bytes: &[u8]) -> Node {
    let letters = bytes.iter().filter(|b| b.is_ascii_alphabetic() || b"/_-. ".contains(b)).count();
    if bytes.len() > 2 && 10 * letters >= 6 * bytes.len() {
        return Node::Bytes(bytes.to_vec());
    }
    let numbers = |mut bytes: &[u8]| {
        let mut out = Vec::new();
        while !bytes.is_empty() {
            out.push(varint(&mut bytes)?);
        }
        Some(out)
    };
    let candidates = [fields(bytes).map(Node::Message), numbers(bytes).map(Node::Packed)];
    let is_exact = |node: &Node| node.bytes() == bytes && bytes.len() != blake3::OUT_LEN;
    candidates.into_iter().flatten().find(is_exact).unwrap_or_else(|| Node::Bytes(bytes.to_vec()))
}

impl Node {
    /// What stands after the key, and after the length where there is one.
    fn bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Node::Number(n) => prost::encoding::encode_varint(*n, &mut out),
            Node::Packed(numbers) => numbers.iter().for_each(|n| prost::encoding::encode_varint(*n, &mut out)),
            Node::Message(fields) => encode(fields, &mut out),
            Node::Bytes(bytes) => out.clone_from(bytes),
        }
        out
    }
}

fn encode(fields: &[(u64, Node)], out: &mut Vec<u8>) {
    for (key, node) in fields {
        prost::encoding::encode_varint(*key, out);
        let own = node.bytes();
        if !matches!(node, Node::Number(_)) {
            prost::encoding::encode_varint(own.len() as u64, out);
        }
        out.extend(own);
    }
}

/// Visits every number.
fn visit(fields: &mut [(u64, Node)], change: &mut dyn FnMut(&mut u64)) {
    for (_, node) in fields {
        match node {
            Node::Number(n) => change(n),
            Node::Packed(numbers) => numbers.iter_mut().for_each(&mut *change),
            Node::Message(fields) => visit(fields, change),
            Node::Bytes(_) => {}
        }
    }
}

/// Other values in place of a number: near ones, small ones, and ones that overflow.
fn others(n: u64) -> [u64; 8] {
    [0, 1, 4, n.wrapping_add(1), n.wrapping_sub(1), n.wrapping_mul(2), n.wrapping_mul(64), u64::MAX >> 1]
}

/// The structures of all mutants, made one by one from a number.
struct Mutants {
    fields: Vec<(u64, Node)>,
    numbers: usize,
    pairs: usize,
}

impl Mutants {
    fn of(structure: &[u8]) -> Mutants {
        let mut fields = fields(structure).expect("the structure is a message");
        let mut numbers = 0;
        visit(&mut fields, &mut |_| numbers += 1);
        Mutants { fields, numbers, pairs: 2 * numbers }
    }

    fn count(&self) -> usize {
        self.numbers * others(0).len() + self.pairs
    }

    /// Mutant `index`, and what was changed in it.
    fn get(&self, index: usize) -> (Vec<u8>, String) {
        let values = others(0).len();
        let mut rng = fastrand::Rng::with_seed(index as u64);
        let changes = match index.checked_sub(self.numbers * values) {
            None => vec![(index / values, index % values)],
            Some(_) => {
                let first = rng.usize(0..self.numbers);
                let second = (first + rng.usize(1..12)) % self.numbers;
                vec![(first, rng.usize(0..values)), (second, rng.usize(0..values))]
            }
        };
        let (mut fields, mut at, mut said) = (self.fields.clone(), 0, String::new());
        visit(&mut fields, &mut |n| {
            if let Some((_, value)) = changes.iter().find(|(place, _)| *place == at) {
                let other = others(*n)[*value];
                said += &format!("number {at}: {n} -> {other}; ");
                *n = other;
            }
            at += 1;
        });
        let mut out = Vec::new();
        encode(&fields, &mut out);
        (out, said)
    }
}

/// What became of a mutant.
fn outcome(bytes: &[u8], structure: Vec<u8>, inputs: &[Value], backends: &Backends) -> &'static str {
    let Ok(file) = PlanFile::from_bytes(&of_plan::with_structure(bytes, structure)) else { return "refused" };
    if file.verify().is_err() {
        return "refused";
    }
    let options = SessionOptions { threads: 2, memory: Some(1 << 30), ..SessionOptions::default() };
    let Ok(mut session) = Session::first(Arc::new(file), &options, backends) else { return "no session" };
    for _ in 0..2 {
        if session.run_values(inputs.to_vec()).is_err() {
            return "failed";
        }
    }
    "ran"
}

#[test]
#[ignore = "run by another test, which counts its crashes"]
fn child() {
    let task = std::env::var(TASK).expect("it is started by the other test");
    let (name, start) = task.split_once(' ').unwrap();
    let (bytes, inputs) = plan(name);
    let file = PlanFile::from_bytes(&bytes).unwrap();
    let structure = file.plan().encode_to_vec();
    assert_eq!(file.section_len(SectionKind::Structure), structure.len() as u64);
    let (mutants, backends) = (Mutants::of(&structure), Backends::builtin());
    assert_eq!(Node::Message(mutants.fields.clone()).bytes(), structure);
    file.verify().unwrap();
    assert_eq!(outcome(&bytes, structure, &inputs, &backends), "ran");
    // A mutant that hangs is as bad as one that crashes.
    let running = Arc::new(AtomicU64::new(0));
    let watched = Arc::clone(&running);
    std::thread::spawn(move || {
        let mut before = u64::MAX;
        loop {
            std::thread::sleep(Duration::from_secs(60));
            let now = watched.load(Ordering::Relaxed);
            if now == before {
                std::process::abort();
            }
            before = now;
        }
    });
    std::panic::set_hook(Box::new(|_| ()));
    let mut out = std::io::stdout().lock();
    for index in start.parse().unwrap()..mutants.count() {
        running.store(index as u64, Ordering::Relaxed);
        let (structure, said) = mutants.get(index);
        writeln!(out, "\nmutant {index} {said}").unwrap();
        out.flush().unwrap();
        let result = catch_unwind(AssertUnwindSafe(|| outcome(&bytes, structure, &inputs, &backends)));
        writeln!(out, "\nresult {}", result.unwrap_or("panicked")).unwrap();
    }
    writeln!(out, "\nend").unwrap();
}

/// How many mutants were refused, and how many ran; every crash is reported.
fn survey(name: &str) {
    let (mut start, mut crashes) = (0, Vec::new());
    let mut counts = std::collections::BTreeMap::new();
    loop {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child", "--ignored", "--nocapture", "--test-threads=1"])
            .env(TASK, format!("{name} {start}"))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (mut last, mut ended) = (None, false);
        for line in BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok) {
            if let Some(mutant) = line.strip_prefix("mutant ") {
                last = Some(mutant.to_string());
            } else if let Some(result) = line.strip_prefix("result ") {
                *counts.entry(result.to_string()).or_insert(0) += 1;
                if result == "panicked" {
                    crashes.push(format!("{} panicked", last.take().unwrap_or_default()));
                }
            }
            ended |= line == "end";
        }
        let status = child.wait().unwrap();
        if ended {
            break;
        }
        let mutant = last.unwrap_or_else(|| panic!("{name}: the child ended before its first mutant: {status}"));
        start = mutant.split(' ').next().unwrap().parse::<usize>().unwrap() + 1;
        crashes.push(format!("{mutant} {status}"));
        assert!(crashes.len() < 40, "{name}: {crashes:#?}");
    }
    println!("{name}: {counts:?}");
    assert!(crashes.is_empty(), "{name}: {} crashes {crashes:#?}", crashes.len());
    // Without a crash, both happened: the verifier did its work, and accepted plans ran.
    assert!(counts["refused"] > 0 && counts["ran"] > 0, "{counts:?}");
}

#[test]
fn mutants_of_a_plan_of_fixed_extents_do_not_crash() {
    survey("fixed");
}

#[test]
fn mutants_of_a_plan_of_open_extents_do_not_crash() {
    survey("open");
}

#[test]
fn mutants_of_a_plan_with_control_flow_do_not_crash() {
    survey("control");
}

#[test]
fn mutants_of_a_plan_for_the_interpreter_do_not_crash() {
    survey("interpreted");
}
