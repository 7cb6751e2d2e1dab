//! Operators with subgraphs.

mod support;

use of_diag::Code;
use of_onnx::proto::ModelProto;
use support::*;

fn branch(op: &str, inputs: &[&str], out: &str) -> Build {
    Build::new().node(op, inputs, &[out], &[]).outputs(&[out])
}

#[test]
fn branches_capture_outer_values() {
    let model = Build::new()
        .input("c", BOOL, &[])
        .input("x", F32, &["2"])
        .init(f32s("ten", &[], &[10.0]))
        .node("Neg", &["x"], &["n"], &[])
        .node(
            "If",
            &["c"],
            &["y"],
            &[
                graph("then_branch", branch("Mul", &["n", "ten"], "t")),
                graph(
                    "else_branch",
                    Build::new().init(f32s("one", &[], &[1.0])).node("Add", &["n", "one"], &["e"], &[]).outputs(&["e"]),
                ),
            ],
        )
        .outputs(&["y"])
        .model(18);
    let x = || x32(&[2], &[1.0, 2.0]);
    gives(&model, &[truth(true), x()], &[(&[2], &[-10.0, -20.0])]);
    gives(&model, &[truth(false), x()], &[(&[2], &[0.0, -1.0])]);
}

/// Not from the last node of a branch.
#[test]
fn control_flow_comes_from_its_own_node() {
    let model = Build::new()
        .input("c", BOOL, &[])
        .input("x", F32, &["2"])
        .node(
            "If",
            &["c"],
            &["y"],
            &[graph("then_branch", branch("Neg", &["x"], "t")), graph("else_branch", branch("Abs", &["x"], "e"))],
        )
        .outputs(&["y"])
        .model(18);
    let imported = import(&model).unwrap_or_else(|d| panic!("{d}"));
    let graph = &imported.module.main().unwrap().graph;
    let located = |name: &str| {
        let op = graph.walk().into_iter().find(|op| graph.op(*op).name() == name);
        graph.op(op.unwrap_or_else(|| panic!("no {name}"))).loc.to_string()
    };
    assert_eq!(located("of.if"), "node 'y' (#0, If)");
    assert_eq!(located("of.abs"), "node 'e' (#0, Abs)");
}

#[test]
fn branches_may_yield_captured_and_multiple_values() {
    let both = |a: &str, b: &str| Build::new().outputs(&[a, b]);
    let model = Build::new()
        .input("c", BOOL, &[])
        .input("x", F32, &["1"])
        .input("z", F32, &["1"])
        .node("If", &["c"], &["p", "q"], &[graph("then_branch", both("x", "z")), graph("else_branch", both("z", "x"))])
        .outputs(&["p", "q"])
        .model(18);
    let (x, z) = (x32(&[1], &[1.0]), x32(&[1], &[2.0]));
    gives(&model, &[truth(true), x.clone(), z.clone()], &[(&[1], &[1.0]), (&[1], &[2.0])]);
    gives(&model, &[truth(false), x, z], &[(&[1], &[2.0]), (&[1], &[1.0])]);
}

#[test]
fn branches_nest_and_may_differ_in_shape() {
    let inner = Build::new()
        .node(
            "If",
            &["d"],
            &["i"],
            &[graph("then_branch", branch("Relu", &["x"], "a")), graph("else_branch", branch("Neg", &["x"], "a"))],
        )
        .outputs(&["i"]);
    let model = Build::new()
        .input("c", BOOL, &[])
        .input("d", BOOL, &[])
        .input("x", F32, &["2"])
        .node(
            "If",
            &["c"],
            &["y"],
            &[
                graph("then_branch", inner),
                graph(
                    "else_branch",
                    Build::new().node("Concat", &["x", "x"], &["e"], &[int("axis", 0)]).outputs(&["e"]),
                ),
            ],
        )
        .outputs(&["y"])
        .model(18);
    let x = || x32(&[2], &[-1.0, 2.0]);
    gives(&model, &[truth(true), truth(true), x()], &[(&[2], &[0.0, 2.0])]);
    gives(&model, &[truth(true), truth(false), x()], &[(&[2], &[1.0, -2.0])]);
    gives(&model, &[truth(false), truth(false), x()], &[(&[4], &[-1.0, 2.0, -1.0, 2.0])]);
}

#[test]
fn subgraph_names_are_scoped() {
    let model = |out: &str| {
        Build::new()
            .input("c", BOOL, &[])
            .input("x", F32, &["1"])
            .node(
                "If",
                &["c"],
                &["y"],
                &[
                    graph("then_branch", branch("Relu", &["x"], "inside")),
                    graph("else_branch", branch("Neg", &["x"], "inside")),
                ],
            )
            .outputs(&[out])
            .model(18)
    };
    good(&model("y"));
    refused(&bad(&model("inside")), Code::MODEL, &["'inside'"]);
}

#[test]
fn malformed_if_is_refused() {
    let model = |then: Build, other: Build, outputs: &[&str]| -> ModelProto {
        Build::new()
            .input("c", BOOL, &[])
            .input("x", F32, &["1"])
            .node("If", &["c"], outputs, &[graph("then_branch", then), graph("else_branch", other)])
            .outputs(&["y"])
            .model(18)
    };
    let relu = || branch("Relu", &["x"], "r");
    bad(&model(relu(), relu().outputs(&["r"]), &["y"]));
    refused(&bad(&model(relu(), relu(), &["y", "z"])), Code::MODEL, &["1 values", "2 outputs"]);
    refused(&bad(&model(relu(), relu().arg("i"), &["y"])), Code::MODEL, &["1 inputs"]);
    let integer = Build::new().init(i64s("i", &[1], &[1])).outputs(&["i"]);
    refused(&bad(&model(relu(), integer, &["y"])), Code::TYPE, &[]);
    let missing = Build::new().input("c", BOOL, &[]).node("If", &["c"], &["y"], &[]).outputs(&["y"]).model(18);
    refused(&bad(&missing), Code::MODEL, &["then_branch"]);
}

/// Body of a loop that doubles its carried value, adds the iteration and an outer value, and scans what it had before.
fn doubling() -> Build {
    Build::new()
        .input("i", I64, &[])
        .input("go", BOOL, &[])
        .arg("v")
        .node("Add", &["v", "v"], &["twice"], &[])
        .node("Add", &["twice", "outer"], &["next"], &[])
        .node("Identity", &["go"], &["on"], &[])
        .node("Identity", &["v"], &["seen"], &[])
        .outputs(&["on", "next", "seen", "i"])
}

#[test]
fn loop_carries_state_and_scans_outputs() {
    let model = Build::new()
        .input("n", I64, &[])
        .input("x", F32, &["2"])
        .init(f32s("outer", &[], &[1.0]))
        .node("Loop", &["n", "", "x"], &["last", "seen", "steps"], &[graph("body", doubling())])
        .outputs(&["last", "seen", "steps"])
        .model(18);
    let n = |n: i64| of_ir::Tensor::scalar(n);
    gives(
        &model,
        &[n(3), x32(&[2], &[0.0, 1.0])],
        &[(&[2], &[7.0, 15.0]), (&[3, 2], &[0.0, 1.0, 1.0, 3.0, 3.0, 7.0]), (&[3], &[0.0, 1.0, 2.0])],
    );
    gives(&model, &[n(0), x32(&[2], &[0.0, 1.0])], &[(&[2], &[0.0, 1.0]), (&[0, 2], &[]), (&[0], &[])]);
}

#[test]
fn loops_end_by_their_condition() {
    let body = Build::new()
        .input("i", I64, &[])
        .input("go", BOOL, &[])
        .arg("v")
        .node("Add", &["v", "v"], &["next"], &[])
        .node("Less", &["next", "limit"], &["on"], &[])
        .outputs(&["on", "next"]);
    let model = Build::new()
        .input("c", BOOL, &[])
        .input("x", F32, &[])
        .init(f32s("limit", &[], &[50.0]))
        .node("Loop", &["", "c", "x"], &["y"], &[graph("body", body)])
        .outputs(&["y"])
        .model(18);
    gives(&model, &[truth(true), x32(&[], &[3.0])], &[(&[], &[96.0])]);
    gives(&model, &[truth(false), x32(&[], &[3.0])], &[(&[], &[3.0])]);
}

#[test]
fn loop_state_may_change_shape() {
    let body = Build::new()
        .input("i", I64, &[])
        .input("go", BOOL, &[])
        .arg("v")
        .arg("fixed")
        .node("Concat", &["v", "fixed"], &["longer"], &[int("axis", 0)])
        .outputs(&["go", "longer", "fixed"]);
    let model = Build::new()
        .input("n", I64, &[])
        .input("x", F32, &["1", "2"])
        .input("z", F32, &["1", "2"])
        .node("Loop", &["n", "", "x", "z"], &["y", "w"], &[graph("body", body)])
        .outputs(&["y", "w"])
        .model(18);
    let module = good(&model);
    let types = module.main().unwrap().output_types();
    let shape = types[0].as_tensor().unwrap().shape.clone().unwrap();
    assert!(shape[0].as_const().is_none() && shape[1].as_const() == Some(2), "{shape:?}");
    assert_eq!(types[1], of_ir::Type::fixed(of_ir::DType::F32, &[1, 2]));
    let (x, z) = (x32(&[1, 2], &[1.0, 2.0]), x32(&[1, 2], &[3.0, 4.0]));
    let n = of_ir::Tensor::scalar(2i64);
    gives(&model, &[n, x, z], &[(&[3, 2], &[1.0, 2.0, 3.0, 4.0, 3.0, 4.0]), (&[1, 2], &[3.0, 4.0])]);
}

/// Each loop reads its body again because the shape of its state changes.
#[test]
fn readings_of_nested_loops_are_bounded() {
    let nested = |depth: usize| {
        let mut body = Build::new().input("i", I64, &[]).input("go", BOOL, &[]).arg("v");
        body = body.node("Concat", &["v", "v"], &["w"], &[int("axis", 0)]).outputs(&["go", "w"]);
        for d in 0..depth {
            let [i, go, v, w] = ["i", "go", "v", "w"].map(|n| format!("{n}{d}"));
            let outer = Build::new().input(&i, I64, &[]).input(&go, BOOL, &[]).arg(&v);
            body = outer.node("Loop", &["n", "", &v], &[&w], &[graph("body", body)]).outputs(&[&go, &w]);
        }
        Build::new()
            .input("n", I64, &[])
            .input("x", F32, &["1", "2"])
            .node("Loop", &["n", "", "x"], &["y"], &[graph("body", body)])
            .outputs(&["y"])
            .model(18)
    };
    good(&nested(4));
    refused(&bad(&nested(20)), Code::MODEL, &["too many nodes"]);
}

#[test]
fn loop_state_may_change_rank() {
    let body = Build::new()
        .input("i", I64, &[])
        .input("go", BOOL, &[])
        .arg("v")
        .init(i64s("zero", &[1], &[0]))
        .node("Unsqueeze", &["v", "zero"], &["w"], &[])
        .outputs(&["go", "w"]);
    let model = Build::new()
        .input("n", I64, &[])
        .input("x", F32, &["2"])
        .node("Loop", &["n", "", "x"], &["y"], &[graph("body", body)])
        .outputs(&["y"])
        .model(18);
    let n = of_ir::Tensor::scalar(2i64);
    gives(&model, &[n, x32(&[2], &[1.0, 2.0])], &[(&[1, 1, 2], &[1.0, 2.0])]);
}

#[test]
fn loops_nest_and_carry_sequences() {
    let inner = Build::new()
        .input("j", I64, &[])
        .input("go2", BOOL, &[])
        .arg("a")
        .node("Add", &["a", "f"], &["b"], &[])
        .outputs(&["go2", "b"]);
    let outer = Build::new()
        .input("i", I64, &[])
        .input("go", BOOL, &[])
        .arg("list")
        .arg("v")
        .node("Cast", &["i"], &["f"], &[int("to", 1)])
        .node("Loop", &["two", "", "v"], &["next"], &[graph("body", inner)])
        .node("SequenceInsert", &["list", "next"], &["more"], &[])
        .outputs(&["go", "more", "next"]);
    let model = Build::new()
        .input("n", I64, &[])
        .input("x", F32, &["1"])
        .init(i64s("two", &[], &[2]))
        .node("SequenceEmpty", &[], &["empty"], &[])
        .node("Loop", &["n", "", "empty", "x"], &["list", "last"], &[graph("body", outer)])
        .node("ConcatFromSequence", &["list"], &["y"], &[int("axis", 0)])
        .outputs(&["y", "last"])
        .model(18);
    let n = of_ir::Tensor::scalar(3i64);
    gives(&model, &[n, x32(&[1], &[10.0])], &[(&[3], &[10.0, 12.0, 16.0]), (&[1], &[16.0])]);
}

#[test]
fn malformed_loops_are_refused() {
    let model = |body: Build| {
        Build::new()
            .input("n", I64, &[])
            .input("x", F32, &["2"])
            .init(f32s("outer", &[], &[1.0]))
            .node("Loop", &["n", "", "x"], &["y"], &[graph("body", body)])
            .outputs(&["y"])
            .model(18)
    };
    let base = || Build::new().input("i", I64, &[]).input("go", BOOL, &[]);
    refused(&bad(&model(base().outputs(&["go"]))), Code::MODEL, &["2 inputs", "3"]);
    refused(&bad(&model(base().arg("v").outputs(&["go"]))), Code::MODEL, &["0 values", "1 are carried"]);
    bad(&model(base().arg("v").outputs(&["v", "v"])));
    bad(&model(base().arg("v").outputs(&["go", "i"])));
    refused(&bad(&model(doubling().arg("v"))), Code::MODEL, &["inputs"]);
    refused(&bad(&model(base().arg("i").outputs(&["go", "i"]))), Code::MODEL, &["'i' is defined twice"]);
    refused(
        &bad(&model(base().arg("v").node("Odd", &["v"], &["w"], &[]).outputs(&["go", "w"]))),
        Code::UNSUPPORTED,
        &["Odd"],
    );
}

/// Body of a scan: running sum, which is also its output, with an outer factor.
fn sums() -> Build {
    Build::new()
        .arg("s")
        .arg("e")
        .node("Mul", &["e", "factor"], &["scaled"], &[])
        .node("Add", &["s", "scaled"], &["next"], &[])
        .outputs(&["next", "next"])
}

#[test]
fn scans_run_over_slices() {
    let scan = |attrs: &[_]| {
        let mut all = vec![graph("body", sums()), int("num_scan_inputs", 1)];
        all.extend_from_slice(attrs);
        Build::new()
            .input("s", F32, &["2"])
            .input("x", F32, &["3", "2"])
            .init(f32s("factor", &[], &[10.0]))
            .node("Scan", &["s", "x"], &["last", "all"], &all)
            .outputs(&["last", "all"])
            .model(18)
    };
    let inputs = [x32(&[2], &[1.0, 2.0]), x32(&[3, 2], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])];
    let forward = [11.0, 22.0, 41.0, 62.0, 91.0, 122.0];
    gives(&scan(&[]), &inputs, &[(&[2], &[91.0, 122.0]), (&[3, 2], &forward)]);
    let backward = [int("unused", 0)];
    refused(&bad(&scan(&backward)), Code::UNSUPPORTED, &["'unused'"]);
    let directions = [ints("scan_input_directions", &[1]), ints("scan_output_directions", &[1])];
    let turned = [91.0, 122.0, 81.0, 102.0, 51.0, 62.0];
    gives(&scan(&directions), &inputs, &[(&[2], &[91.0, 122.0]), (&[3, 2], &turned)]);
    let stacked = [11.0, 41.0, 91.0, 22.0, 62.0, 122.0];
    gives(&scan(&[ints("scan_output_axes", &[1])]), &inputs, &[(&[2], &[91.0, 122.0]), (&[2, 3], &stacked)]);
}

#[test]
fn scans_along_other_axes() {
    let model = |axis: i64| {
        Build::new()
            .input("s", F32, &["3"])
            .input("x", F32, &["3", "2"])
            .init(f32s("factor", &[], &[1.0]))
            .node(
                "Scan",
                &["s", "x"],
                &["last", "all"],
                &[graph("body", sums()), int("num_scan_inputs", 1), ints("scan_input_axes", &[axis])],
            )
            .outputs(&["last", "all"])
            .model(18)
    };
    let inputs = [x32(&[3], &[0.0; 3]), x32(&[3, 2], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])];
    for axis in [1, -1] {
        gives(&model(axis), &inputs, &[(&[3], &[3.0, 7.0, 11.0]), (&[2, 3], &[1.0, 3.0, 5.0, 3.0, 7.0, 11.0])]);
    }
    bad(&model(2));
}

#[test]
fn malformed_scans_are_refused() {
    let model = |opset, scans| {
        Build::new()
            .input("s", F32, &["2"])
            .input("x", F32, &["3", "2"])
            .init(f32s("factor", &[], &[1.0]))
            .node("Scan", &["s", "x"], &["last", "all"], &[graph("body", sums()), int("num_scan_inputs", scans)])
            .outputs(&["last", "all"])
            .model(opset)
    };
    for scans in [0, 3, -1, i64::MIN, i64::MAX] {
        refused(&bad(&model(18, scans)), Code::MODEL, &["num_scan_inputs"]);
    }
    refused(&bad(&model(8, 1)), Code::UNSUPPORTED, &["sequence_lens"]);
}

#[test]
fn scan_of_opset_8_has_a_batch_axis() {
    let model = |dims: [&str; 3], attrs: &[_]| {
        let mut all = vec![graph("body", sums()), int("num_scan_inputs", 1)];
        all.extend_from_slice(attrs);
        Build::new()
            .input("s", F32, &[dims[0], dims[2]])
            .input("x", F32, &dims)
            .init(f32s("factor", &[], &[10.0]))
            .node("Scan", &["", "s", "x"], &["last", "all"], &all)
            .outputs(&["last", "all"])
            .model(8)
    };
    let inputs = [x32(&[2, 1], &[1.0, 2.0]), x32(&[2, 3, 1], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])];
    let forward = [11.0, 31.0, 61.0, 42.0, 92.0, 152.0];
    for dims in [["2", "3", "1"], ["batch", "n", "1"]] {
        gives(&model(dims, &[]), &inputs, &[(&[2, 1], &[61.0, 152.0]), (&[2, 3, 1], &forward)]);
    }
    let backward = [31.0, 51.0, 61.0, 62.0, 112.0, 152.0];
    let turned = model(["2", "3", "1"], &[ints("directions", &[1])]);
    gives(&turned, &inputs, &[(&[2, 1], &[61.0, 152.0]), (&[2, 3, 1], &backward)]);
    refused(&bad(&model(["2", "3", "1"], &[int("unused", 0)])), Code::UNSUPPORTED, &["'unused'"]);
    let empty = Build::new().node("Scan", &[""], &["y"], &[graph("body", sums()), int("num_scan_inputs", 1)]);
    refused(&bad(&empty.outputs(&["y"]).model(8)), Code::MODEL, &["something to scan"]);
}

/// A model of sequences of tensors that differ in their first extent: made, changed and read in every way.
fn sequences_of_different_shapes() -> ModelProto {
    let double = Build::new().arg("e").node("Add", &["e", "e"], &["d"], &[]).outputs(&["d"]);
    // Appends the doubled element `i` to the sequence that is carried, and scans nothing.
    let body = Build::new()
        .arg("i")
        .arg("go")
        .arg("l")
        .node("SequenceAt", &["split", "i"], &["e"], &[])
        .node("Add", &["e", "e"], &["d"], &[])
        .node("SequenceInsert", &["l", "d"], &["m"], &[])
        .node("Identity", &["go"], &["on"], &[])
        .outputs(&["on", "m"]);
    let branch =
        |position: &str, out: &str| Build::new().node("SequenceAt", &["made", position], &[out], &[]).outputs(&[out]);
    Build::new()
        .input("a", F32, &["N", "2"])
        .input("b", F32, &["M", "2"])
        .input("c", BOOL, &[])
        .init(i64s("zero", &[], &[0]))
        .init(i64s("one", &[], &[1]))
        .init(i64s("two", &[], &[2]))
        .init(i64s("lengths", &[2], &[1, 2]))
        .init(bools("yes", &[], &[true]))
        .node("SequenceConstruct", &["a", "b"], &["made"], &[])
        .node("SequenceAt", &["made", "zero"], &["at0"], &[])
        .node("SequenceAt", &["made", "one"], &["at1"], &[])
        .node("SplitToSequence", &["a", "lengths"], &["split"], &[int("axis", 0)])
        .node("SequenceAt", &["split", "zero"], &["split0"], &[])
        .node("SequenceAt", &["split", "one"], &["split1"], &[])
        .node("SequenceInsert", &["made", "split1", "one"], &["three"], &[])
        .node("SequenceErase", &["three", "zero"], &["erased"], &[])
        .node("SequenceAt", &["erased", "zero"], &["erased0"], &[])
        .node("SequenceAt", &["erased", "one"], &["erased1"], &[])
        .node("SequenceMap", &["erased"], &["mapped"], &[graph("body", double)])
        .node("SequenceAt", &["mapped", "zero"], &["mapped0"], &[])
        .node("SequenceAt", &["mapped", "one"], &["mapped1"], &[])
        .node("SequenceEmpty", &[], &["empty"], &[])
        .node("Loop", &["two", "yes", "empty"], &["looped"], &[graph("body", body)])
        .node("SequenceAt", &["looped", "zero"], &["looped0"], &[])
        .node("SequenceAt", &["looped", "one"], &["looped1"], &[])
        .node("ConcatFromSequence", &["looped"], &["joined"], &[int("axis", 0)])
        .node(
            "If",
            &["c"],
            &["chosen"],
            &[graph("then_branch", branch("zero", "t")), graph("else_branch", branch("one", "e"))],
        )
        .outputs(&[
            "at0", "at1", "split0", "split1", "erased0", "erased1", "mapped0", "mapped1", "looped0", "looped1",
            "joined", "chosen",
        ])
        .model(18)
}

#[test]
fn elements_of_a_sequence_have_extents_of_their_own() {
    let (a, b) = ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [7.0, 8.0]);
    let double = |v: &[f64]| v.iter().map(|x| 2.0 * x).collect::<Vec<f64>>();
    let all: Vec<f64> = a.to_vec();
    let (first, rest) = (&all[..2], &all[2..]);
    for c in [true, false] {
        let chosen: (&[usize], &[f64]) = if c { (&[3, 2], &all) } else { (&[1, 2], &b) };
        gives(
            &sequences_of_different_shapes(),
            &[x32(&[3, 2], &a.map(|x| x as f32)), x32(&[1, 2], &b.map(|x| x as f32)), truth(c)],
            &[
                (&[3, 2], &all),
                (&[1, 2], &b),
                (&[1, 2], first),
                (&[2, 2], rest),
                (&[2, 2], rest),
                (&[1, 2], &b),
                (&[2, 2], &double(rest)),
                (&[1, 2], &double(&b)),
                (&[1, 2], &double(first)),
                (&[2, 2], &double(rest)),
                (&[3, 2], &double(&all)),
                chosen,
            ],
        );
    }
}
