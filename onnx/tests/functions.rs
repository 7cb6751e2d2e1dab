//! Functions of the model.

mod support;

use of_diag::Code;
use of_onnx::proto::attribute_proto::AttributeType;
use of_onnx::proto::{FunctionProto, ModelProto};
use of_onnx::{Options, import_bytes};
use support::*;

/// A model that calls functions of the domain `local`.
fn model(graph: Build, functions: Vec<FunctionProto>) -> ModelProto {
    let mut model = graph.model(18);
    model.opset_import.push(set("local", 1));
    model.functions = functions;
    model
}

fn call(function: &str, attrs: &[of_onnx::proto::AttributeProto]) -> Build {
    Build::new()
        .input("x", F32, &["2"])
        .node(function, &["x"], &["y"], attrs)
        .named("call")
        .domain("local")
        .outputs(&["y"])
}

fn x() -> of_ir::Tensor {
    x32(&[2], &[-2.0, 3.0])
}

/// `LeakyRelu` whose slope is the attribute `slope` of the function.
fn leaky(attributes: &[&str]) -> FunctionProto {
    Build::new()
        .arg("a")
        .node("LeakyRelu", &["a"], &["b"], &[reference("alpha", "slope", AttributeType::Float)])
        .outputs(&["b"])
        .function("local", "Leaky", attributes)
}

#[test]
fn attributes_are_passed_to_nodes() {
    let m = model(call("Leaky", &[float("slope", 0.5)]), vec![leaky(&["slope"])]);
    gives(&m, &[x()], &[(&[2], &[-1.0, 3.0])]);
    // Without it the node has its own default.
    let m = model(call("Leaky", &[]), vec![leaky(&["slope"])]);
    gives(&m, &[x()], &[(&[2], &[-0.02, 3.0])]);
    // The function's default.
    let mut f = leaky(&[]);
    f.attribute_proto = vec![float("slope", 0.25)];
    gives(&model(call("Leaky", &[]), vec![f.clone()]), &[x()], &[(&[2], &[-0.5, 3.0])]);
    gives(&model(call("Leaky", &[float("slope", 1.0)]), vec![f]), &[x()], &[(&[2], &[-2.0, 3.0])]);
    let m = model(call("Leaky", &[float("odd", 0.5)]), vec![leaky(&["slope"])]);
    refused(&bad(&m), Code::MODEL, &["no attribute 'odd'"]);
}

#[test]
fn tensors_are_attributes_too() {
    let f = Build::new()
        .arg("a")
        .node("Constant", &[], &["c"], &[reference("value", "by", AttributeType::Tensor)])
        .node("Mul", &["a", "c"], &["b"], &[])
        .outputs(&["b"])
        .function("local", "Scale", &["by"]);
    let m = model(call("Scale", &[tensor("by", f32s("", &[2], &[3.0, 4.0]))]), vec![f]);
    gives(&m, &[x()], &[(&[2], &[-6.0, 12.0])]);
}

#[test]
fn nested_functions_forward_attributes() {
    let outer = Build::new()
        .arg("a")
        .node("Leaky", &["a"], &["b"], &[reference("slope", "steep", AttributeType::Float)])
        .domain("local")
        .named("inner")
        .node("Leaky", &["b"], &["c"], &[float("slope", 0.1)])
        .domain("local")
        .outputs(&["c"])
        .function("local", "Outer", &["steep"]);
    let m = model(call("Outer", &[float("steep", 0.5)]), vec![outer, leaky(&["slope"])]);
    gives(&m, &[x()], &[(&[2], &[-0.1, 3.0])]);
    let module = good(&m);
    let relus = ops(&module.main().unwrap().graph, "of.leaky_relu");
    assert_eq!(onnx(&relus[0].loc), ("call/inner/b".into(), 0, "LeakyRelu".into()));
    assert_eq!(onnx(&relus[1].loc).0, "call/c/b");
}

#[test]
fn function_bodies_are_isolated() {
    // Body and graph use the same names without conflict.
    let f = Build::new().arg("y").node("Neg", &["y"], &["x"], &[]).outputs(&["x"]).function("local", "F", &[]);
    gives(&model(call("F", &[]), vec![f]), &[x()], &[(&[2], &[2.0, -3.0])]);
    let f = Build::new().arg("a").node("Neg", &["x"], &["b"], &[]).outputs(&["b"]).function("local", "F", &[]);
    refused(&bad(&model(call("F", &[]), vec![f])), Code::MODEL, &["'x' is used before"]);
}

#[test]
fn function_arguments_may_be_omitted() {
    let f = Build::new()
        .arg("a")
        .arg("low")
        .arg("high")
        .node("Clip", &["a", "low", "high"], &["b"], &[])
        .outputs(&["b"])
        .function("local", "Bound", &[]);
    let g = Build::new()
        .input("x", F32, &["2"])
        .init(f32s("one", &[], &[1.0]))
        .node("Bound", &["x", "", "one"], &["high"], &[])
        .domain("local")
        .node("Bound", &["x", "one"], &["low"], &[])
        .domain("local")
        .outputs(&["high", "low"]);
    gives(&model(g, vec![f.clone()]), &[x()], &[(&[2], &[-2.0, 1.0]), (&[2], &[1.0, 3.0])]);
    let g = Build::new().input("x", F32, &["2"]).node("Bound", &["x", "x", "x", "x"], &["y"], &[]).domain("local");
    refused(&bad(&model(g.outputs(&["y"]), vec![f])), Code::MODEL, &["takes 3 inputs"]);
}

#[test]
fn function_outputs_may_be_arguments() {
    let f = Build::new()
        .arg("a")
        .node("Neg", &["a"], &["b"], &[])
        .node("Exp", &["a"], &["unused"], &[])
        .outputs(&["b", "a", "unused"])
        .function("local", "F", &[]);
    let g = Build::new().input("x", F32, &["2"]).node("F", &["x"], &["p", "q"], &[]).domain("local");
    gives(&model(g.outputs(&["p", "q"]), vec![f]), &[x()], &[(&[2], &[2.0, -3.0]), (&[2], &[-2.0, 3.0])]);
    let f = Build::new().arg("a").outputs(&["gone"]).function("local", "F", &[]);
    refused(&bad(&model(call("F", &[]), vec![f])), Code::MODEL, &["'gone'"]);
}

#[test]
fn omitted_argument_cannot_be_an_output() {
    let f = Build::new().arg("a").arg("b").outputs(&["b"]).function("local", "F", &[]);
    let errors = bad(&model(call("F", &[]), vec![f]));
    assert!(!errors.is_empty());
}

#[test]
fn function_overloads_are_distinguished() {
    let f = |op: &str, overload: &str| {
        let mut f = Build::new().arg("a").node(op, &["a"], &["b"], &[]).outputs(&["b"]).function("local", "F", &[]);
        f.overload = Some(overload.into());
        f
    };
    let g = Build::new()
        .input("x", F32, &["2"])
        .node("F", &["x"], &["p"], &[])
        .domain("local")
        .node("F", &["x"], &["q"], &[])
        .domain("local")
        .overload("loud")
        .outputs(&["p", "q"]);
    let m = model(g.clone(), vec![f("Neg", ""), f("Relu", "loud")]);
    gives(&m, &[x()], &[(&[2], &[2.0, -3.0]), (&[2], &[0.0, 3.0])]);
    refused(&bad(&model(g, vec![f("Neg", "")])), Code::UNSUPPORTED, &["F", "local"]);
}

#[test]
fn a_function_may_replace_an_operator() {
    let mut f = Build::new().arg("a").node("Neg", &["a"], &["b"], &[]).outputs(&["b"]).function("", "Relu", &[]);
    f.opset_import = vec![set("", 18)];
    let g = Build::new().input("x", F32, &["2"]).node("Relu", &["x"], &["y"], &[]).outputs(&["y"]);
    gives(&model(g, vec![f]), &[x()], &[(&[2], &[2.0, -3.0])]);
}

#[test]
fn function_bodies_have_their_own_operator_sets() {
    let mut f = Build::new()
        .arg("a")
        .node("ReduceSum", &["a"], &["b"], &[ints("axes", &[0]), int("keepdims", 0)])
        .outputs(&["b"])
        .function("local", "F", &[]);
    f.opset_import = vec![set("", 11)];
    gives(&model(call("F", &[]), vec![f.clone()]), &[x()], &[(&[], &[1.0])]);
    f.opset_import.clear();
    refused(&bad(&model(call("F", &[]), vec![f.clone()])), Code::UNSUPPORTED, &["'axes'"]);
    f.opset_import = vec![set("", 0)];
    refused(&bad(&model(call("F", &[]), vec![f])), Code::UNSUPPORTED, &["opset 0"]);
}

#[test]
fn function_bodies_may_contain_subgraphs() {
    let leaky = Build::new()
        .node("LeakyRelu", &["a"], &["t"], &[reference("alpha", "slope", AttributeType::Float)])
        .outputs(&["t"]);
    let other = Build::new().node("Neg", &["a"], &["e"], &[]).outputs(&["e"]);
    let f = Build::new()
        .arg("c")
        .arg("a")
        .node("If", &["c"], &["b"], &[graph("then_branch", leaky), graph("else_branch", other)])
        .outputs(&["b"])
        .function("local", "Choose", &["slope"]);
    let g = Build::new()
        .input("c", BOOL, &[])
        .input("x", F32, &["2"])
        .node("Choose", &["c", "x"], &["y"], &[float("slope", 0.5)])
        .domain("local")
        .outputs(&["y"]);
    let m = model(g, vec![f]);
    gives(&m, &[truth(true), x()], &[(&[2], &[-1.0, 3.0])]);
    gives(&m, &[truth(false), x()], &[(&[2], &[2.0, -3.0])]);
}

#[test]
fn graph_attributes_to_functions_are_refused() {
    let f = Build::new()
        .arg("c")
        .node(
            "If",
            &["c"],
            &["b"],
            &[
                reference("then_branch", "body", AttributeType::Graph),
                reference("else_branch", "body", AttributeType::Graph),
            ],
        )
        .outputs(&["b"])
        .function("local", "F", &["body"]);
    let body = Build::new().init(f32s("k", &[], &[1.0])).outputs(&["k"]);
    let g = Build::new().input("c", BOOL, &[]).node("F", &["c"], &["y"], &[graph("body", body)]).domain("local");
    refused(&bad(&model(g.outputs(&["y"]), vec![f])), Code::UNSUPPORTED, &["subgraph"]);
}

/// A function that calls each of the others.
fn caller(name: &str, callees: &[&str]) -> FunctionProto {
    let mut b = Build::new().arg("a");
    for (i, callee) in callees.iter().enumerate() {
        b = b.node(callee, &["a"], &[&format!("b{i}")], &[]).domain("local");
    }
    b.outputs(&["b0"]).function("local", name, &[])
}

#[test]
fn recursive_functions_are_refused() {
    let itself = model(call("F", &[]), vec![caller("F", &["F"])]);
    let errors = bad(&itself);
    refused(&errors, Code::MODEL, &["'F' calls itself"]);
    let each_other = model(call("F", &[]), vec![caller("F", &["G"]), caller("G", &["F"])]);
    refused(&bad(&each_other), Code::MODEL, &["'F' calls itself"]);
    // Without an early end, this one would take as many calls as 4 to the power of the depth.
    let many = model(call("F", &[]), vec![caller("F", &["F", "F", "F", "F"])]);
    let errors = bad(&many);
    assert!(errors.len() <= 8, "{} errors", errors.len());
}

#[test]
fn exponential_function_inlining_is_bounded() {
    let name = |i: usize| format!("F{i}");
    let mut functions: Vec<FunctionProto> = (0..30).map(|i| caller(&name(i), &[&name(i + 1), &name(i + 1)])).collect();
    functions.push(Build::new().arg("a").node("Neg", &["a"], &["b"], &[]).outputs(&["b"]).function(
        "local",
        "F30",
        &[],
    ));
    let m = model(call("F0", &[]), functions);
    let options = Options { max_nodes: 10_000, ..Options::default() };
    let errors = import_bytes(encode(&m), &options).unwrap_err().0;
    refused(&errors, Code::MODEL, &["function 'F16' is 16384 nodes"]);
    assert_eq!(errors.len(), 1, "{errors:#?}");
}

#[test]
fn saturated_counts_of_nodes_are_refused() {
    let name = |i: usize| format!("F{i}");
    let functions = (0..70).map(|i| caller(&name(i), &[&name(i + 1), &name(i + 1)])).collect();
    let errors = bad(&model(call("F0", &[]), functions));
    assert_eq!(errors.len(), 1, "{errors:#?}");
    refused(&errors, Code::MODEL, &["nodes once the functions that it calls are inlined"]);
}

#[test]
fn functions_defined_twice_are_refused() {
    let f = |op: &str| Build::new().arg("a").node(op, &["a"], &["b"], &[]).outputs(&["b"]).function("local", "F", &[]);
    let m = model(call("F", &[]), vec![f("Neg"), f("Relu")]);
    refused(&bad(&m), Code::MODEL, &["function 'F' of domain 'local' is defined twice"]);
}

#[test]
fn deep_call_chains_import() {
    let name = |i: usize| format!("F{i}");
    let mut functions: Vec<FunctionProto> = (0..40).map(|i| caller(&name(i), &[&name(i + 1)])).collect();
    functions.push(Build::new().arg("a").node("Neg", &["a"], &["b"], &[]).outputs(&["b"]).function(
        "local",
        "F40",
        &[],
    ));
    gives(&model(call("F0", &[]), functions), &[x()], &[(&[2], &[2.0, -3.0])]);
}

#[test]
fn subgraph_nesting_is_bounded() {
    // Calls in branches of branches, in functions that call each other: deep without being long.
    let name = |i: usize| format!("F{i}");
    let deep = |callee: &str, levels: usize| {
        let mut body = Build::new().node(callee, &["c"], &["b"], &[]).domain("local").outputs(&["b"]);
        for _ in 0..levels {
            let both = [graph("then_branch", body.clone()), graph("else_branch", Build::new().outputs(&["c"]))];
            body = Build::new().node("If", &["c"], &["b"], &both).outputs(&["b"]);
        }
        body
    };
    let m = |calls: usize, levels: usize| {
        let mut functions: Vec<FunctionProto> = (0..calls)
            .map(|i| {
                let mut body = deep(&name(i + 1), levels);
                body = body.arg("c");
                body.function("local", &name(i), &[])
            })
            .collect();
        let last = Build::new().arg("c").node("Not", &["c"], &["b"], &[]).outputs(&["b"]);
        functions.push(last.function("local", &name(calls), &[]));
        let g = Build::new().input("c", BOOL, &[]).node("F0", &["c"], &["y"], &[]).domain("local").outputs(&["y"]);
        model(g, functions)
    };
    gives(&m(5, 8), &[truth(true)], &[(&[], &[0.0])]);
    refused(&bad(&m(40, 25)), Code::MODEL, &["within each other"]);
}
