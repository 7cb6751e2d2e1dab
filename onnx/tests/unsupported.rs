//! What is not supported is reported all at once.

mod support;

use of_diag::{Code, Diagnostic, Severity};
use support::*;

fn unsupported(errors: &[Diagnostic]) -> Vec<&Diagnostic> {
    errors.iter().filter(|d| d.code == Code::UNSUPPORTED && d.severity == Severity::Error).collect()
}

#[test]
fn every_unsupported_node_is_listed_with_its_reason() {
    let mut model = Build::new()
        .input("x", F32, &["2"])
        .node("NoSuchOp", &["x"], &["a"], &[])
        .named("first")
        .node("Relu", &["a"], &["b"], &[])
        .node("Fancy", &["b"], &["c"], &[])
        .named("second")
        .domain("com.example")
        .node("Fancy", &["c"], &["d"], &[])
        .named("third")
        .domain("com.other")
        .node("Selu", &["d"], &["e"], &[int("shine", 1)])
        .named("fourth")
        .node("Selu", &["x"], &["f"], &[int("shine", 1)])
        .named("fifth")
        .node("Relu", &["x"], &["g"], &[int("glow", 1)])
        .named("sixth")
        .outputs(&["e", "f", "g"])
        .model(18);
    model.opset_import.push(set("com.example", 3));
    let errors = bad(&model);
    let list = unsupported(&errors);
    let rows = [
        ("first", 0, "NoSuchOp", "ai.onnx", "opset 18", "not known"),
        ("second", 2, "Fancy", "com.example", "opset 3", "domain's operators are not known"),
        ("third", 3, "Fancy", "com.other", "no imported operator set", "imports no operator set"),
        ("fifth", 5, "Selu", "ai.onnx", "opset 18", "'shine'"),
        ("sixth", 6, "Relu", "ai.onnx", "opset 18", "'glow'"),
    ];
    assert_eq!(list.len(), rows.len(), "{errors:#?}");
    for (d, (node, index, op, domain, opset, reason)) in list.iter().zip(rows) {
        assert_eq!(onnx(&d.location), (node.into(), index, op.into()));
        for part in [op, domain, opset, reason] {
            assert!(d.message.contains(part), "'{part}' is not in {d:#?}");
        }
    }
}

#[test]
fn operators_after_an_unknown_one_are_checked() {
    // What is fed by something unknown cannot be imported, and is known to be unknown itself.
    let model = Build::new()
        .input("x", F32, &["2"])
        .node("A", &["x"], &["a"], &[])
        .node("B", &["a"], &["b"], &[])
        .node("Add", &["a", "b"], &["c"], &[])
        .node("C", &["c"], &["d"], &[])
        .outputs(&["d"])
        .model(18);
    let errors = bad(&model);
    let names: Vec<String> = unsupported(&errors).iter().map(|d| onnx(&d.location).2).collect();
    assert_eq!(names, ["A", "B", "C"], "{errors:#?}");
}

#[test]
fn nodes_with_the_same_error_share_a_line() {
    let mut b = Build::new().input("x", F32, &["2"]);
    for i in 0..20 {
        b = b.node("NoSuchOp", &["x"], &[&format!("y{i}")], &[]).named(&format!("n{i}"));
    }
    let errors = bad(&b.outputs(&["y0"]).model(18));
    let list = unsupported(&errors);
    assert_eq!(list.len(), 1, "{errors:#?}");
    assert_eq!(onnx(&list[0].location), ("n0".into(), 0, "NoSuchOp".into()));
    let note = &list[0].notes[0];
    assert!(note.contains("19 more nodes") && note.contains("'n1' (#1)") && note.contains("and 3 more"), "{note}");
    let total = errors.iter().find(|d| d.severity == Severity::Note).unwrap();
    assert!(total.message.contains("1 operators in 20 nodes"), "{total:#?}");
}

#[test]
fn unsupported_operators_in_subgraphs_are_listed() {
    let branch = |op: &str, out: &str| Build::new().node(op, &["x"], &[out], &[]).outputs(&[out]);
    let model = |condition: &str| {
        Build::new()
            .input("x", F32, &["2"])
            .input("c", BOOL, &[])
            .node("Outer", &["c"], &["odd"], &[])
            .node(
                "If",
                &[condition],
                &["y"],
                &[graph("then_branch", branch("Then", "t")), graph("else_branch", branch("Else", "e"))],
            )
            .outputs(&["y"])
            .model(18)
    };
    // Also where the node itself depends on something that is not there.
    for condition in ["c", "odd"] {
        let errors = bad(&model(condition));
        let mut names: Vec<String> = unsupported(&errors).iter().map(|d| onnx(&d.location).2).collect();
        names.sort();
        assert_eq!(names, ["Else", "Outer", "Then"], "{errors:#?}");
    }
}

#[test]
fn unsupported_operators_in_functions_are_listed_per_call() {
    let body = Build::new().arg("a").node("Inner", &["a"], &["b"], &[]).named("deep").outputs(&["b"]);
    let mut model = Build::new()
        .input("x", F32, &["2"])
        .node("F", &["x"], &["y"], &[])
        .named("call")
        .domain("local")
        .outputs(&["y"])
        .model(18);
    model.opset_import.push(set("local", 1));
    model.functions.push(body.function("local", "F", &[]));
    let errors = bad(&model);
    let list = unsupported(&errors);
    assert_eq!(list.len(), 1, "{errors:#?}");
    assert_eq!(onnx(&list[0].location), ("call/deep".into(), 0, "Inner".into()));
}

#[test]
fn other_import_errors_are_listed_too() {
    let model = Build::new()
        .input("x", F32, &["2"])
        .input("z", F32, &["3"])
        .node("Odd", &["x"], &["a"], &[])
        .node("Add", &["x", "z"], &["b"], &[])
        .node("Relu", &["gone"], &["c"], &[])
        .outputs(&["a", "b", "c"])
        .model(18);
    let errors = bad(&model);
    refused(&errors, Code::UNSUPPORTED, &["Odd"]);
    refused(&errors, Code::SHAPE, &[]);
    refused(&errors, Code::MODEL, &["'gone'"]);
}

#[test]
fn errors_do_not_cascade_to_consumers() {
    let complex = of_onnx::proto::tensor_proto::DataType::Complex64;
    let model = Build::new().input("x", complex, &["2"]).node("Relu", &["x"], &["y"], &[]).outputs(&["y"]).model(18);
    let errors = bad(&model);
    assert_eq!(errors.len(), 1, "{errors:#?}");
    refused(&errors, Code::UNSUPPORTED, &["complex64"]);
}
