//! Every error code of `of-diag` has a test that produces it.
//!
//! `tests/lit/errors/CODE.of` is the smallest input of `of-opt` with that code; the lit runner runs it. Codes that no input of the
//! program can reach are produced through the API, in `BY_API`.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use of_diag::{Code, Diagnostic, Diagnostics, Location};
use of_ir::{Func, Graph, Module, Rewriter, Tensor, Type, verify_module};
use of_ops::elementwise::Relu;
use of_ops::interpret;
use of_ops::movement::Gather;
use of_ops::structural::Return;
use of_passes::{Manager, NoOptions, Pass, PassContext};

/// How to produce the codes that no text has: the parser knows no value before its definition, and the runtime checks inputs
/// before the interpreter does. A pass that panics is a bug.
const BY_API: [(Code, fn() -> Diagnostic); 3] = [
    (Code::DOMINANCE, a_value_read_before_its_definition),
    (Code::EVAL, an_index_out_of_range_in_the_interpreter),
    (Code::PASS_BUG, a_pass_that_panics),
];

struct Panics;

impl Pass for Panics {
    const NAME: &'static str = "panics";
    const SUMMARY: &'static str = "panics";
    type Options = NoOptions;
    fn run(_: &NoOptions, _: &mut Module, _: &mut PassContext<'_>) -> Result<(), Diagnostics> {
        panic!("on purpose")
    }
}

fn a_pass_that_panics() -> Diagnostic {
    let mut manager = Manager::default();
    manager.add::<Panics>(NoOptions);
    manager.run(&mut Module::default(), &mut |_| {}).unwrap_err().0.remove(0)
}

fn a_value_read_before_its_definition() -> Diagnostic {
    let mut graph = Graph::new();
    let entry = graph.entry();
    let mut rw = Rewriter::new(&mut graph, "test");
    rw.set_location(Location::source("test.of", 1, 1));
    let x = rw.add_arg(entry, Type::fixed(of_ir::DType::F32, &[2]), None);
    let first = rw.create_one(Relu {}, &[x]).unwrap();
    let second = rw.create_one(Relu {}, &[first]).unwrap();
    rw.create(Return {}, &[second]).unwrap();
    let ops: Vec<_> = rw.graph().region_ops(entry).collect();
    rw.move_before(ops[1], ops[0]);
    let mut module = Module::default();
    module.funcs.insert("main".into(), Func::numbered(graph));
    verify_module(&module).unwrap_err().0.remove(0)
}

fn an_index_out_of_range_in_the_interpreter() -> Diagnostic {
    let mut graph = Graph::new();
    let entry = graph.entry();
    let mut rw = Rewriter::new(&mut graph, "test");
    rw.set_location(Location::source("test.of", 1, 1));
    let x = rw.add_arg(entry, Type::fixed(of_ir::DType::I64, &[2]), None);
    let y = rw.create_one(Gather { axis: 0 }, &[x, x]).unwrap();
    rw.create(Return {}, &[y]).unwrap();
    interpret::run_graph(&graph, &[Tensor::from_i64s(&[0, 9]).into()]).unwrap_err()
}

#[test]
fn every_error_code_has_a_test() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("errors");
    let by_api: BTreeSet<&str> = BY_API.iter().map(|(code, _)| code.0).collect();
    let mut by_text = BTreeSet::new();
    for entry in fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        let code = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains(&format!("// CHECK: error[{code}]: ")), "{}: it expects no {code}", path.display());
        by_text.insert(code);
    }
    let all: BTreeSet<&str> = Code::ALL.iter().map(|(code, _)| code.0).collect();
    let tested: BTreeSet<&str> = by_text.iter().map(String::as_str).chain(by_api).collect();
    assert_eq!(tested, all, "each code of of-diag has tests/lit/errors/CODE.of, or an entry of BY_API");
}

#[test]
fn codes_that_no_text_has_are_produced_by_the_api() {
    for (code, produce) in BY_API {
        let got = produce();
        assert_eq!(got.code, code, "{got}");
        // A bug of a pass has no place in the model; a note says so.
        assert!(got.location != Location::Unknown || !got.notes.is_empty(), "{got}");
    }
}
