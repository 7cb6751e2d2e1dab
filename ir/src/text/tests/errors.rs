//! Every kind of parse error: its location, code and message.

use super::read;

/// Each text, and the first line of each error that it gives.
const CASES: &[(&str, &[&str])] = &[
    ("funk @f() {}", &["t.of:1:1: error[E0101]: expected a function or a mesh, found 'funk'"]),
    ("func @f() {\n  t.return", &["t.of:2:11: error[E0101]: expected '}' after the region, found the end of the text"]),
    ("func f() {}", &["t.of:1:6: error[E0101]: expected the name of the function, found 'f'"]),
    (
        "func @f(%x: tensor<f32>) {\n  %y = t.mame %x : (tensor<f32>) -> tensor<f32>\n  %z = \"t.what\"(%y) : (tensor<f32>) -> none\n  t.any %z, %q\n}",
        &[
            "t.of:2:8: error[E0103]: there is no op 't.mame'",
            "t.of:3:8: error[E0103]: there is no op 't.what'",
            "t.of:4:13: error[E0102]: '%q' is not defined here",
        ],
    ),
    (
        "func @f(%x: tensor<f32>) {\n  t.any %x : (tensor<4xf32>) -> ()\n  t.any %x : () -> ()\n  t.return\n}",
        &[
            "t.of:2:9: error[E0203]: '%x' has type tensor<f32>, here it is declared tensor<4xf32>",
            "t.of:3:14: error[E0202]: 0 operand types given for 1 operands",
        ],
    ),
    (
        "func @f(%x: none) {\n  %x = t.any\n  %a, %b = t.any : () -> none\n  t.return\n}",
        &[
            "t.of:2:3: error[E0102]: '%x' is defined twice",
            "t.of:2:8: error[E0202]: 't.any' has 0 results, 1 are named",
            "t.of:3:12: error[E0202]: 't.any' has 1 results, 2 are named",
        ],
    ),
    (
        "func @f(%x: none) -> (tensor<f32>) { t.return %x }\nfunc @f() -> (none) { t.return }",
        &[
            "t.of:1:23: error[E0203]: the function declares tensor<f32> and returns none",
            "t.of:2:6: error[E0202]: the function declares 1 results and returns 0",
            "t.of:2:6: error[E0102]: function @f is defined twice",
        ],
    ),
    ("func @f() -> (tensor<f32>) { t.return %x }", &["t.of:1:39: error[E0102]: '%x' is not defined here"]),
    (
        "func @f() -> (tensor<f32>) {\n  %x = t.what\n  t.return %x\n}",
        &["t.of:2:8: error[E0103]: there is no op 't.what'"],
    ),
    (
        "func @f() {\n  t.same\n  %c = t.const\n  t.if %c\n  t.return\n}",
        &[
            "t.of:2:3: error[E0202]: 't.same' needs at least 1 operands, it has 0",
            "t.of:3:8: error[E0201]: 't.const': 'value' must be a tensor",
        ],
    ),
    (
        "func @f() {\n  t.loop { t.any\n    %i = t.any : () -> none\n    t.yield\n  }\n  t.return %i\n}",
        &["t.of:6:12: error[E0102]: '%i' is not defined here"],
    ),
    (
        "func @f() {\n  %a:2 = t.any : () -> (none, none)\n  t.return %a#2\n}",
        &["t.of:3:12: error[E0102]: '%a' has 2 results, this is number 2"],
    ),
    (
        "func @f() {\n  %a:9000 = t.what\n  t.any %a#7\n  %b:9000, %c = t.any\n  t.return %b#3, %c\n}",
        &[
            "t.of:2:13: error[E0103]: there is no op 't.what'",
            "t.of:4:17: error[E0202]: 't.any' has 0 results, 9001 are named",
        ],
    ),
    ("func @f() {\n  %a:0 = t.any\n}", &["t.of:2:6: error[E0101]: the number of results is out of range"]),
    ("func @f() {\n  t.any {a = 1, a = 2}\n}", &["t.of:2:17: error[E0102]: duplicate attribute 'a'"]),
    (
        "func @f() {\n  t.any {a = 1 b}\n}",
        &["t.of:2:16: error[E0101]: expected ',' or '}' in the attributes, found 'b'"],
    ),
    ("func @f() {\n  é\n}", &["t.of:2:3: error[E0101]: expected an op, but this character begins nothing"]),
    ("func @é", &["t.of:1:6: error[E0101]: expected the name of the function, but a symbol name follows '@'"]),
    (
        "func @f() {\n  t.any {\"é\", a = \"x\n}",
        &["t.of:2:19: error[E0101]: expected an attribute, but this string is not closed on its line"],
    ),
    ("func @f() {\n  \"t.any\"()\n}", &["t.of:3:1: error[E0101]: expected ':' and the types, found '}'"]),
    (
        "func @f() { t.loop {^a: t.yield\n^b: t.yield} }",
        &["t.of:2:1: error[E0101]: a region holds one block, this is a second"],
    ),
    ("of.mesh @m {shape = [2]}", &["t.of:1:1: error[E0201]: a mesh needs devices and shape"]),
    ("of.mesh @m {devices = \"cpu\", shape = [-2]}", &["t.of:1:1: error[E0201]: a mesh needs devices and shape"]),
    (
        "\"of.func\"() ({ \"t.return\"() : () -> () }) {} : () -> ()",
        &["t.of:1:1: error[E0201]: a function needs sym_name, a string"],
    ),
    (
        "\"of.func\"() ({ \"t.return\"() : () -> () }) {x} : () -> ()",
        &["t.of:1:44: error[E0201]: 'of.func' has no attribute 'x'"],
    ),
    ("module { module {} }", &["t.of:1:10: error[E0101]: modules cannot be nested"]),
    ("func @f(%x: none {of.nam = \"x\"}) {}", &["t.of:1:19: error[E0201]: only of.name is allowed here"]),
    (
        "func @f() { t.any {a = #of.data<\"x\", 0, 4, \"0000000000000000000000000000000000000000000000000000000000000000\"> : tensor<f32>} }",
        &["t.of:1:33: error[E0303]: this text was not read from a file, so it has no data file"],
    ),
];

#[test]
fn parse_errors_report_location_and_hint() {
    for (text, want) in CASES {
        let e = read(text).err().unwrap_or_else(|| panic!("this parses:\n{text}"));
        let got: Vec<String> =
            e.0.iter().map(|d| d.to_string().lines().next().unwrap_or_default().to_owned()).collect();
        assert_eq!(got, *want, "{text}");
    }
}

#[test]
fn unknown_names_suggest_similar_ones() {
    let e = read("func @f() { t.yeild t.nothinglikeit }").unwrap_err();
    assert_eq!(e.0[0].hint.as_deref(), Some("did you mean 't.yield'?"));
    assert_eq!(e.0[1].hint.as_deref(), Some("'of-opt ops' lists all ops"));
}

#[test]
fn deep_nesting_is_an_error() {
    let regions = format!("func @f() {{ {}", "t.loop { ".repeat(5000));
    let generic = format!("func @f() {{ {}", "\"t.loop\"() ({ ".repeat(5000));
    let types = format!("func @f(%x: {}", "!of.opt<".repeat(5000));
    let locs = format!("func @f() {{ t.any loc({}", "fused[".repeat(5000));
    let dense = format!("func @f() {{ t.any {{a = dense<{}", "[".repeat(5000));
    for text in [regions, generic, types, locs, dense] {
        let e = read(&text).unwrap_err().to_string();
        assert!(e.contains("nested more than 96 levels deep"), "{e}");
    }
}
