//! The pretty and the generic form, and other syntax that the parser accepts.

use super::{module, show};
use crate::Dim;
use crate::text::{PrintOptions, print_func, print_module, print_op_short};

const PRETTY: &str = r#"of.mesh @m {devices = "cpu", shape = [2, 4]}

func @main(%x: tensor<?(N)x64xf32>, %c: tensor<i1> {of.name = "the condition"}) -> (tensor<?(N)x64xf32>, tensor<f32> {of.name = "y"}) {
  %0 = t.const {value = dense<[1.0, 2.0]> : tensor<2xf32>} : () -> tensor<2xf32>
  %y = t.same %x {axis = 1, of.hint} : (tensor<?(N)x64xf32>) -> tensor<?(N)x64xf32>
  %1, %2 = t.if %c : (tensor<i1>) -> (tensor<f32>, none) {
    t.yield %x : (tensor<?(N)x64xf32>) -> ()
  }, {
  ^(%i: tensor<i64>):
    t.yield %i : (tensor<i64>) -> ()
  }
  t.return %y, %1 : (tensor<?(N)x64xf32>, tensor<f32>) -> ()
}
"#;

const GENERIC: &str = r#""builtin.module"() ({
  "of.mesh"() {devices = "cpu", shape = array<i64: 2, 4>, sym_name = "m"} : () -> ()

  "of.func"() ({
  ^bb0(%x: tensor<?x64xf32, #of.dims<[N, 64]>>, %c: tensor<i1>):
    %0 = "t.const"() {value = dense<[1.0, 2.0]> : tensor<2xf32>} : () -> tensor<2xf32>
    %y = "t.same"(%x) {axis = 1 : i64, of.hint} : (tensor<?x64xf32, #of.dims<[N, 64]>>) -> tensor<?x64xf32, #of.dims<[N, 64]>>
    %1, %2 = "t.if"(%c) ({
      "t.yield"(%x) : (tensor<?x64xf32, #of.dims<[N, 64]>>) -> ()
    }, {
    ^bb0(%i: tensor<i64>):
      "t.yield"(%i) : (tensor<i64>) -> ()
    }) : (tensor<i1>) -> (tensor<f32>, none)
    "t.return"(%y, %1) : (tensor<?x64xf32, #of.dims<[N, 64]>>, tensor<f32>) -> ()
  }) {inputs = ["x", "the condition"], outputs = ["y", "y"], sym_name = "main"} : () -> ()
}) : () -> ()
"#;

#[test]
fn pretty_and_generic_forms_convert_to_each_other() {
    let m = module(PRETTY);
    assert_eq!(m.main().unwrap().outputs, ["y", "y"]);
    assert_eq!(show(&m, true), GENERIC);
    assert_eq!(show(&module(GENERIC), false), PRETTY);
}

#[test]
fn types_and_results_may_be_left_out() {
    let m = module(
        "module @net { func @f(%x: tensor<4xf32>) { %y = t.same %x {of.tag} t.any %x {a = [1]} t.any %x, %y t.any %c, %d:2 = t.any : () -> (none, none, none) t.return %y } }",
    );
    assert_eq!(
        show(&m, false),
        "module @net {
  func @f(%x: tensor<4xf32>) -> (tensor<4xf32>) {
    %y = t.same %x {of.tag} : (tensor<4xf32>) -> tensor<4xf32>
    t.any %x {a = [1]} : (tensor<4xf32>) -> ()
    t.any %x, %y : (tensor<4xf32>, tensor<4xf32>) -> ()
    t.any : () -> ()
    %c, %d, %d_1 = t.any : () -> (none, none, none)
    t.return %y : (tensor<4xf32>) -> ()
  }
}
"
    );
}

#[test]
fn regions_and_attribute_dictionaries_are_distinguished() {
    let m = module(
        "func @f(%x: tensor<i1>) {
  t.if %x { t.yield }, {t.yield}
  t.if %x {t.yield, a} { t.yield }, { t.yield %x }
  t.if %x {t.yield} : (tensor<i1>) -> () { t.yield }, { t.yield }
  t.if %x {} {\"t.yield\"() : () -> ()}, {%a, %b = t.any : () -> (none, none) t.yield}
  t.return
}",
    );
    let text = show(&m, false);
    let heads: Vec<&str> = text.lines().filter(|l| l.contains("t.if")).collect();
    assert_eq!(
        heads,
        [
            "  t.if %x : (tensor<i1>) -> () {",
            "  t.if %x {a, t.yield} : (tensor<i1>) -> () {",
            "  t.if %x {t.yield} : (tensor<i1>) -> () {",
            "  t.if %x : (tensor<i1>) -> () {",
        ]
    );
}

#[test]
fn mlir_opt_output_parses() {
    let m = module(
        "module @n {
  \"of.func\"() ({
  ^bb0(%arg0: tensor<?xf32> loc(\"a\":1:2)):
    %0:2 = \"t.any\"(%arg0) {b = [1, \"a\"], f = 1.000000e+00 : f64} : (tensor<?xf32>) -> (tensor<f32>, none) loc(#loc1)
    \"t.return\"(%0#1, %0#0) : (none, tensor<f32>) -> ()
  }) {sym_name = \"main\"} : () -> () loc(unknown)
} loc(#loc)
#loc = loc(unknown)
#loc1 = loc(\"a.of\":7:8)
",
    );
    let f = m.main().unwrap();
    assert_eq!((m.name.as_str(), f.inputs[0].as_str()), ("n", "arg0"));
    assert_eq!(f.outputs, ["0#1", "0#0"]);
    assert_eq!(f.graph.op(f.graph.walk()[0]).loc.to_string(), "a.of:7:8");
}

#[test]
fn unknown_dimensions_get_names_that_the_text_does_not_use() {
    let m = module("func @f(%x: tensor<?x?(u4)xf32>, %y: tensor<?xf32>) { t.return %x : (tensor<?x?xf32>) -> () }");
    assert!(show(&m, false).starts_with("func @f(%x: tensor<?(u5)x?(u4)xf32>, %y: tensor<?(u6)xf32>)"));
    assert_eq!(m.main().unwrap().input_types()[1].as_tensor().unwrap().shape, Some(vec![Dim::symbol("u6")]));
}

#[test]
fn single_functions_and_ops_are_printed() {
    let m = module(PRETTY);
    let f = m.main().unwrap();
    assert!(PRETTY.ends_with(&print_func("main", f, &PrintOptions::default())));
    let short: Vec<String> = f.graph.walk().into_iter().map(|o| print_op_short(&f.graph, o)).collect();
    assert_eq!(short[2], "%0, %1 = t.if %c : (tensor<i1>) -> (tensor<f32>, none) {…}");
}

#[test]
fn value_names_are_kept_and_numbered_if_duplicate() {
    let m = module(
        "func @f(%a: none, %a_1: none, %7: none) { t.loop { ^(%b: none): t.yield } t.loop {^(%b: none): t.yield} t.return }",
    );
    let text = show(&m, false);
    assert!(text.contains("(%a: none, %a_1: none, %0: none {of.name = \"7\"})"), "{text}");
    assert!(text.contains("^(%b: none)") && text.contains("^(%b_1: none)"), "{text}");
}

#[test]
fn elided_constants_do_not_parse() {
    let many = (0..65).map(|i| i.to_string()).collect::<Vec<_>>().join(", ");
    let m = module(&format!("func @f() {{ %c = t.const {{value = dense<[{many}]> : tensor<65xi8>}} t.return }}"));
    let options = PrintOptions { constants: crate::text::Constants::Elided, ..PrintOptions::default() };
    let text = print_module(&m, &options);
    assert!(text.contains("dense_resource<__elided__> : tensor<65xi8>"), "{text}");
    assert!(super::read(&text).is_err());
}
