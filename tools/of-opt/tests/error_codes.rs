//! Every error code has a test that produces it: the example of its section in `tools/of-opt/errors.md`. Codes that no input of the program can
//! reach are produced through the API, in `BY_API`. And `of-opt explain-error` prints the sections.

use std::path::Path;
use std::process::{Command, Output};

use of_diag::{Code, Diagnostic, Diagnostics, Location};
use of_ir::{Func, Graph, Module, Rewriter, Tensor, Type, verify_module};
use of_ops::elementwise::Relu;
use of_ops::interpret;
use of_ops::movement::Gather;
use of_ops::structural::Return;
use of_passes::{Manager, NoOptions, Pass, PassContext};
use of_test_support::listings::{listings, run};

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

fn of_opt(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_of-opt")).args(args).env("NO_COLOR", "1").output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// What `of-opt explain-error --json` says of each code.
fn explanations() -> Vec<serde_json::Value> {
    serde_json::from_slice(&of_opt(&["explain-error", "--json"]).stdout).unwrap()
}

#[test]
fn every_error_code_has_an_example_that_produces_it() {
    let programs = Path::new(env!("CARGO_BIN_EXE_of-opt")).parent().unwrap();
    let all = explanations();
    assert_eq!(all.len(), Code::ALL.len());
    for e in &all {
        let code = e["code"].as_str().unwrap();
        let example = listings(e["text"].as_str().unwrap());
        if BY_API.iter().any(|(c, _)| c.0 == code) {
            assert!(example.is_empty(), "{code} has an example: it needs no entry of BY_API");
            continue;
        }
        let shown = example.last().map_or("", |l| &l.text);
        assert!(shown.contains(&format!("error[{code}]: ")), "the example of {code} does not end with its message");
        let dir = tempfile::tempdir().unwrap();
        let codes = run(&example, dir.path(), programs).unwrap_or_else(|why| panic!("errors.md, {code}, {why}"));
        assert_eq!(codes.last().copied().map(i64::from), e["exit_code"].as_i64(), "the exit code of {code}");
    }
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

#[test]
fn codes_are_explained_and_listed() {
    let list = text(&of_opt(&["explain-error"]).stdout);
    let all = text(&of_opt(&["explain-error", "--json"]).stdout);
    for (code, _) in Code::ALL {
        assert!(list.contains(&format!("{}  ", code.0)) && all.contains(code.0), "{}", code.0);
    }
    let one = text(&of_opt(&["explain-error", "e501"]).stdout);
    assert!(one.starts_with("E0501: Code generation failed\n\n"), "{one}");
    assert!(one.contains("\n    CC=absent-compiler of-opt compile net.of") && !one.contains("```"), "{one}");
    assert!(one.contains("\nCure: Install a C compiler") && one.ends_with("\nExit code: 1\n"), "{one}");
    assert_eq!(text(&of_opt(&["explain-error", "501"]).stdout), one);
    let two = text(&of_opt(&["explain-error", "E0501", "E0101"]).stdout);
    assert!(two.starts_with(&one) && two.contains("\nE0101: "), "{two}");
}

#[test]
fn unknown_codes_are_errors_with_the_closest_code() {
    let out = of_opt(&["explain-error", "E0511", "E0101", "nonsense"]);
    assert_eq!((out.status.code(), text(&out.stdout).as_str()), (Some(2), ""));
    let said = text(&out.stderr);
    assert!(said.contains("error[E0701]: there is no error code 'E0511'\n  hint: did you mean 'E0502'?"), "{said}");
    assert!(
        said.contains("error[E0701]: there is no error code 'nonsense'\n  hint: 'of-opt explain-error' lists"),
        "{said}"
    );
}

#[test]
fn errors_end_with_the_command_that_explains_them() {
    let last = |args: &[&str]| text(&of_opt(args).stderr).lines().last().map(str::to_owned);
    assert_eq!(last(&["absent.of"]).as_deref(), Some("for more: of-opt explain-error E0801"));
    assert!(last(&["absent.of", "--quiet"]).unwrap().starts_with("error[E0801]: 'absent.of' cannot be read"));
}
