//! FileCheck against texts that fit and texts that do not.

use of_lit::filecheck::{Options, check};

fn run(checks: &str, input: &str) -> Result<(), String> {
    check("f.of", checks, input, &Options::default())
}

#[track_caller]
fn fails(checks: &str, input: &str, why: &str) {
    let e = run(checks, input).expect_err("this must not fit");
    assert!(e.contains(why), "{e}");
}

const TEXT: &str = "func @a {\n  %0 = add %x,   %y\n  %1 = mul %0, %0\n\n  return %1\n}\nfunc @b {\n  %0 = sub %x\n}\n";

#[test]
fn checks_match_in_order_and_on_lines() {
    run("// CHECK: func @a\n// CHECK-NEXT: add %x, %y\n// CHECK: return\n// CHECK-SAME: %1", TEXT).unwrap();
    run("// CHECK: mul\n// CHECK-EMPTY:\n// CHECK-NEXT: return %1", TEXT).unwrap();
    fails("// CHECK: return\n// CHECK: add", TEXT, "f.of:2: this is not found");
    fails("// CHECK: func @a\n// CHECK-NEXT: mul", TEXT, "note: it is on line 3 of the text");
    fails("// CHECK: add\n// CHECK-SAME: mul", TEXT, "f.of:2: this is not on the rest of the line");
    fails("// CHECK: add\n// CHECK-EMPTY:", TEXT, "the next line is not empty");
    fails("// CHECK: sub\n// CHECK-NEXT: }\n// CHECK-NEXT: x", TEXT, "this is not on the next line");
}

#[test]
fn check_not_rejects_text_in_between() {
    run("// CHECK: func @a\n// CHECK-NOT: sub\n// CHECK: func @b", TEXT).unwrap();
    run("// CHECK-NOT: div", TEXT).unwrap();
    fails("// CHECK: func @a\n// CHECK-NOT: mul\n// CHECK: func @b", TEXT, "f.of:2: this must not occur here");
    fails("// CHECK: func @b\n// CHECK-NOT: sub", TEXT, "must not occur here");
    fails("// CHECK-NOT: add\n// CHECK: mul", TEXT, "must not occur here");
}

#[test]
fn check_labels_divide_the_text() {
    let labels = "// CHECK-LABEL: func @a\n// CHECK: add\n// CHECK-NOT: sub\n// CHECK-LABEL: func @b\n// CHECK: sub";
    run(labels, TEXT).unwrap();
    fails("// CHECK-LABEL: func @a\n// CHECK: sub\n// CHECK-LABEL: func @b", TEXT, "f.of:2: this is not found");
    fails("// CHECK-LABEL: func @b\n// CHECK: sub\n// CHECK-LABEL: func @a", TEXT, "f.of:3: this is not found");
}

#[test]
fn check_dag_matches_in_any_order() {
    run("// CHECK-DAG: mul\n// CHECK-DAG: add\n// CHECK: return", TEXT).unwrap();
    run("// CHECK-DAG: %0 = {{.*}}\n// CHECK-DAG: %0 = {{.*}}", TEXT).unwrap();
    run("// CHECK-DAG: [[M:%.]] = mul\n// CHECK-DAG: [[A:%.]] = add\n// CHECK: return [[M]]", TEXT).unwrap();
    fails("// CHECK-DAG: mul\n// CHECK-DAG: mul", TEXT, "f.of:2: this is not found");
    fails("// CHECK-NOT: add\n// CHECK-DAG: mul\n// CHECK-DAG: return", TEXT, "must not occur here");
    fails("// CHECK-DAG: return\n// CHECK-DAG: mul\n// CHECK: add", TEXT, "f.of:3: this is not found");
}

#[test]
fn variables_and_line_numbers_are_substituted() {
    run("// CHECK: [[V:%[0-9]+]] = add\n// CHECK: mul [[V]], [[V]]", TEXT).unwrap();
    fails("// CHECK: [[V:%[0-9]+]] = add\n// CHECK: return [[V]]", TEXT, "with V = \"%0\"");
    fails("// CHECK: [[V]]", TEXT, "variable 'V' has no value here");
    run("x\n// CHECK: f.of:[[@LINE-1]]:", "f.of:1: bad").unwrap();
}

#[test]
fn other_prefixes_are_ignored() {
    let options = Options { prefixes: vec!["A".into(), "B".into()], ..Options::default() };
    let checks = "// A: add\n// CHECK: nothing\n// MY-A: nothing\n// NOA: nothing\n// B-NEXT: mul\n";
    check("f.of", checks, TEXT, &options).unwrap();
}

#[test]
fn files_without_checks_are_refused() {
    fails("of.x", TEXT, "there is no check line with CHECK");
    fails("// CHECK: x", " \n", "the text to check is empty");
    fails("// CHECK:", TEXT, "only -EMPTY");
    fails("// CHECK-NEXT: x", TEXT, "no check before this one");
    fails("// CHECK: {{(}}", TEXT, "f.of:1: this regex is wrong");
    let options = Options { allow_empty: true, ..Options::default() };
    check("f.of", "// CHECK-NOT: error", "", &options).unwrap();
}

#[test]
fn failures_show_the_text() {
    let e = run("// CHECK: func @b\n// CHECK: mul", TEXT).unwrap_err();
    assert!(e.starts_with("f.of:2: this is not found\n  // CHECK: mul\n"), "{e}");
    assert!(e.contains(">    7 | func @b {\n     8 |  %0 = sub %x\n"), "{e}");
}
