//! Overlap of computation and exchanges, on a stub driver that executes enqueued work as late as possible, or as early.

mod common;

use common::ranks::{compare, module, whole};
use common::{cache, said, stub};
use of_cuda::{Cuda, DeviceProgram, Endpoints, Segment, Step};
use of_ir::Module;
use of_ops::sample::Rng;
use of_plan::{Exec, PlanFile};

/// Layouts of a matrix on the ranks.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Layout {
    Whole,
    Rows,
    Columns,
    Sum,
}

impl Layout {
    fn sbp(self) -> &'static str {
        match self {
            Layout::Whole => "#of.sbp<@m, [B]>",
            Layout::Rows => "#of.sbp<@m, [S(0)]>",
            Layout::Columns => "#of.sbp<@m, [S(1)]>",
            Layout::Sum => "#of.sbp<@m, [P(sum)]>",
        }
    }

    /// The layout of a matrix product that needs no transfer, if there is one.
    fn times(self, other: Layout) -> Option<Layout> {
        Some(match (self, other) {
            (Layout::Whole, Layout::Whole) => Layout::Whole,
            (Layout::Whole, Layout::Columns) => Layout::Columns,
            (Layout::Rows, Layout::Whole) => Layout::Rows,
            (Layout::Columns, Layout::Rows) => Layout::Sum,
            _ => return None,
        })
    }
}

/// A function of square matrices, built line by line.
struct Text {
    extent: usize,
    values: Vec<Layout>,
    lines: String,
    /// The number of values that are inputs.
    inputs: usize,
    read: Vec<bool>,
}

impl Text {
    fn new(extent: usize, inputs: &[Layout]) -> Text {
        let read = vec![false; inputs.len()];
        Text { extent, values: inputs.to_vec(), lines: String::new(), inputs: inputs.len(), read }
    }

    fn ty(&self, layout: Layout) -> String {
        format!("tensor<{0}x{0}xf32, {1}>", self.extent, layout.sbp())
    }

    fn value(&mut self, layout: Layout, op: &str, operands: &[usize]) -> usize {
        let own = self.values.len();
        let types: Vec<String> = operands.iter().map(|v| self.ty(self.values[*v])).collect();
        self.lines += &format!("  %v{own} = {op} : ({}) -> {}\n", types.join(", "), self.ty(layout));
        self.values.push(layout);
        self.read.push(false);
        operands.iter().for_each(|v| self.read[*v] = true);
        own
    }

    fn multiply(&mut self, a: usize, b: usize) -> usize {
        let layout = self.values[a].times(self.values[b]).expect("a product without a transfer");
        self.value(layout, &format!("of.matmul %v{a}, %v{b}"), &[a, b])
    }

    fn place(&mut self, v: usize, to: Layout) -> usize {
        self.value(to, &format!("of.sharding_constraint %v{v} {{sharding = {}}}", to.sbp()), &[v])
    }

    /// The function; its results are the values without readers.
    fn module(&self, mesh: &str) -> Module {
        let args: Vec<String> = (0..self.inputs).map(|v| format!("%v{v}: {}", self.ty(self.values[v]))).collect();
        let results: Vec<usize> = (self.inputs..self.values.len()).filter(|v| !self.read[*v]).collect();
        let types: Vec<String> = results.iter().map(|v| self.ty(self.values[*v])).collect();
        let (names, types): (Vec<_>, _) = (results.iter().map(|v| format!("%v{v}")).collect(), types.join(", "));
        let (args, names) = (args.join(", "), names.join(", "));
        let end = format!("  of.return {names} : ({types}) -> ()\n}}\n");
        module(mesh, &format!("func @main({args}) -> ({types}) {{\n{}{end}", self.lines))
    }
}

/// A gather to all ranks that overlaps with two products; the third product reads its result.
fn gathered() -> Text {
    let mut text = Text::new(64, &[Layout::Whole, Layout::Columns]);
    let a = text.multiply(0, 1);
    let all = text.place(a, Layout::Whole);
    let b = text.multiply(0, 0);
    let c = text.multiply(b, 0);
    text.multiply(all, c);
    text
}

/// Random products and transfers.
fn random(extent: usize, seed: u64) -> Text {
    let mut r = Rng::new(seed);
    let inputs = [Layout::Whole, Layout::Columns, Layout::Rows];
    let mut text = Text::new(extent, &inputs);
    while text.values.len() < 18 {
        let mut below = |n: usize| r.int(0, n as i64 - 1) as usize;
        let (a, b) = (below(text.values.len()), below(inputs.len()));
        let to = [Layout::Whole, Layout::Rows, Layout::Columns, Layout::Sum][below(4)];
        if below(5) < 2 && text.values[a] != to {
            text.place(a, to);
        } else if text.values[a].times(text.values[b]).is_some() {
            text.multiply(a, b);
        }
    }
    text
}

/// The work that is enqueued on the first rank's device.
fn program(plan: &PlanFile) -> PlanFile {
    let task = plan.plan().programs[0].tasks.iter().find_map(|t| match &t.exec {
        Some(Exec::Backend(e)) => plan.payload(e),
        _ => None,
    });
    PlanFile::from_bytes(task.unwrap()).unwrap()
}

#[test]
fn independent_products_overlap_with_an_exchange() {
    let cuda = Cuda::new("sm_90+cublaslt", cache()).unwrap();
    let inner = program(&whole(&gathered().module("cpu[2]"), "cpu[2]", &cuda));
    let program = DeviceProgram::of(&inner, &Endpoints::default()).unwrap();
    let parts = program.segments();
    let products = |part: &Segment| match part {
        Segment::Compute(steps) => {
            program.steps[steps.clone()].iter().filter(|s| matches!(s, Step::Call { .. })).count()
        }
        _ => 0,
    };
    let [Segment::Compute(_), Segment::Exchange(0), Segment::Compute(_), Segment::Await(0), Segment::Compute(_)] =
        parts[..]
    else {
        panic!("{parts:?}")
    };
    assert_eq!([0, 2, 4].map(|i| products(&parts[i])), [1, 2, 1], "{parts:?}");
}

/// Runs in a process that has a driver.
#[test]
#[ignore = "run by another test, in a process whose environment names a driver"]
fn on_a_driver() {
    let cuda = Cuda::new("sm_90+cublaslt", cache()).unwrap();
    for (mesh, extent) in [("cpu[2]", 32), ("cpu[4]", 64)] {
        for seed in 0..12 {
            let module = random(extent, seed).module(mesh);
            compare(&format!("{mesh}, seed {seed}"), &module, &whole(&module, mesh, &cuda));
        }
    }
    let module = gathered().module("cpu[2]");
    compare("gathered", &module, &whole(&module, "cpu[2]", &cuda));
    println!("all agree");
}

#[test]
fn results_are_correct_for_late_and_early_execution() {
    let dir = tempfile::tempdir().unwrap();
    let library = stub(dir.path());
    let library = library.to_str().unwrap();
    let variables = ["OF_CUDA_DRIVER", "OF_CUBLASLT", "OF_NCCL"].map(|name| (name, library));
    for order in [&[][..], &[("STUB_EAGER", "1")]] {
        let out = said("on_a_driver", &[&variables[..], &[("STUB_DEVICES", "4"), ("STUB_SAYS", "1")], order].concat());
        assert!(out.contains("all agree"), "{order:?}: {out}");
        let overlaps = out.matches("overlaps\n").count();
        assert!(overlaps > 50, "{order:?}: only {overlaps} calls overlap with others");
    }
}
