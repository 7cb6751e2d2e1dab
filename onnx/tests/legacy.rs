//! Operators in the forms of the operator sets 1 to 6, and operators that are made of others.

mod support;

use of_diag::Code;
use of_onnx::proto::AttributeProto;
use of_onnx::proto::attribute_proto::AttributeType;
use support::*;

const SIX: [f32; 6] = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];

#[test]
fn opset_6_broadcast_attributes() {
    let model = Build::new()
        .input("x", F32, &["2", "3"])
        .input("row", F32, &["3"])
        .init(f32s("column", &[2], &[10.0, 20.0]))
        .init(f32s("one", &[1, 1], &[2.0]))
        .node("Add", &["x", "row"], &["end"], &[int("broadcast", 1), int("axis", -1), ints("consumed_inputs", &[0, 0])])
        .node("Add", &["x", "column"], &["first"], &[int("broadcast", 1), int("axis", 0)])
        .node("Sub", &["x", "column"], &["back"], &[int("broadcast", 1), int("axis", -2)])
        .node("Mul", &["x", "row"], &["last"], &[int("broadcast", 1), int("axis", 1)])
        .node("Pow", &["x", "one"], &["pow"], &[int("broadcast", 1), int("axis", 1)])
        .node("Greater", &["x", "column"], &["greater"], &[int("broadcast", 1), int("axis", 0)])
        .node("Div", &["x", "x"], &["plain"], &[])
        .outputs(&["end", "first", "back", "last", "pow", "greater", "plain"])
        .model(1);
    gives(
        &model,
        &[x32(&[2, 3], &SIX), x32(&[3], &[1.0, 2.0, 3.0])],
        &[
            (&[2, 3], &[2.0, 4.0, 6.0, 5.0, 7.0, 9.0]),
            (&[2, 3], &[11.0, 12.0, 13.0, 24.0, 25.0, 26.0]),
            (&[2, 3], &[-9.0, -8.0, -7.0, -16.0, -15.0, -14.0]),
            (&[2, 3], &[1.0, 4.0, 9.0, 4.0, 10.0, 18.0]),
            (&[2, 3], &[1.0, 4.0, 9.0, 16.0, 25.0, 36.0]),
            (&[2, 3], &[0.0; 6]),
            (&[2, 3], &[1.0; 6]),
        ],
    );
}

#[test]
fn incompatible_opset_6_broadcasts_are_refused() {
    let model = |opset, dims: &[&str], attrs: &[_]| {
        let b = Build::new().input("x", F32, &["2", "3"]).input("y", F32, dims).node("Add", &["x", "y"], &["z"], attrs);
        b.outputs(&["z"]).model(opset)
    };
    for axis in [2, -3, 1 << 40, i64::MIN, i64::MAX] {
        let attrs = [int("broadcast", 1), int("axis", axis)];
        refused(&bad(&model(6, &["3"], &attrs)), Code::MODEL, &["axis"]);
    }
    refused(&bad(&model(6, &["3"], &[])), Code::MODEL, &["'broadcast'"]);
    refused(&bad(&model(7, &["3"], &[int("broadcast", 1)])), Code::UNSUPPORTED, &["'broadcast'"]);
    refused(&bad(&model(6, &["3"], &[ints("consumed_inputs", &[0])])), Code::MODEL, &["'broadcast'"]);
}

#[test]
fn opset_1_consumed_inputs_attribute() {
    let consumed = ints("consumed_inputs", &[0]);
    let one = std::slice::from_ref(&consumed);
    let model = |opset| {
        Build::new()
            .input("x", F32, &["3"])
            .node("Relu", &["x"], &["relu"], one)
            .node("Max", &["x", "relu"], &["max"], one)
            .node("Clip", &["x"], &["clip"], &[consumed.clone(), float("max", 1.0)])
            .node("Dropout", &["x"], &["kept"], &[consumed.clone(), int("is_test", 1)])
            .node("Reshape", &["x"], &["column"], &[consumed.clone(), ints("shape", &[-1, 1])])
            .outputs(&["relu", "max", "clip", "kept", "column"])
            .model(opset)
    };
    let x: &[f64] = &[-1.0, 0.5, 2.0];
    gives(
        &model(1),
        &[x32(&[3], &[-1.0, 0.5, 2.0])],
        &[(&[3], &[0.0, 0.5, 2.0]), (&[3], &[0.0, 0.5, 2.0]), (&[3], &[-1.0, 0.5, 1.0]), (&[3], x), (&[3, 1], x)],
    );
    refused(&bad(&model(6)), Code::UNSUPPORTED, &["'consumed_inputs'"]);
}

#[test]
fn opset_1_parameters_as_attributes() {
    let model = Build::new()
        .input("x", F32, &["2", "3"])
        .init(f32s("twice", &[], &[2.0]))
        .init(f32s("axis", &[], &[1.0]))
        .init(f32s("parts", &[2], &[2.0, 1.0]))
        .node("Cast", &["x"], &["cast"], &[text("to", "INT64")])
        .node("Concat", &["x", "x"], &["concat"], &[])
        .node("Tile", &["x", "twice", "axis"], &["tile"], &[])
        .node("Pad", &["x"], &["pad"], &[ints("paddings", &[0, 0, 0, 1]), float("value", 9.0)])
        .node("Split", &["x", "parts"], &["wide", "narrow"], &[int("axis", 1)])
        .node("Selu", &["x"], &["selu"], &[])
        .outputs(&["cast", "concat", "tile", "pad", "wide", "narrow", "selu"])
        .model(1);
    let twice: &[f64] = &[1.0, 2.0, 3.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 4.0, 5.0, 6.0];
    gives(
        &model,
        &[x32(&[2, 3], &SIX)],
        &[
            (&[2, 3], &SIX.map(f64::from)),
            (&[2, 6], twice),
            (&[2, 6], twice),
            (&[2, 4], &[1.0, 2.0, 3.0, 9.0, 4.0, 5.0, 6.0, 9.0]),
            (&[2, 2], &[1.0, 2.0, 4.0, 5.0]),
            (&[2, 1], &[3.0, 6.0]),
            (&[2, 3], &SIX.map(|x| 1.0507 * f64::from(x))),
        ],
    );
    let cast =
        |to| Build::new().input("x", F32, &["1"]).node("Cast", &["x"], &["y"], &[text("to", to)]).outputs(&["y"]);
    refused(&bad(&cast("WORD").model(1)), Code::MODEL, &["'WORD'"]);
    let tile = Build::new()
        .input("x", F32, &["2"])
        .input("n", I64, &[])
        .init(i64s("axis", &[], &[0]))
        .node("Tile", &["x", "n", "axis"], &["y"], &[])
        .outputs(&["y"])
        .model(5);
    gives(&tile, &[x32(&[2], &[1.0, 2.0]), of_ir::Tensor::scalar(2i64)], &[(&[4], &[1.0, 2.0, 1.0, 2.0])]);
}

#[test]
fn opset_6_networks_are_imported() {
    let model = Build::new()
        .input("x", F32, &["1", "2", "2"])
        .init(f32s("slope", &[2], &[2.0, 3.0]))
        .init(f32s("ones", &[2], &[1.0, 1.0]))
        .init(f32s("bias", &[2], &[0.0, 10.0]))
        .init(f32s("w", &[2, 1], &[1.0, 1.0]))
        .init(f32s("c", &[1], &[0.5]))
        .node("PRelu", &["x", "slope"], &["prelu"], &[])
        .node(
            "BatchNormalization",
            &["x", "ones", "bias", "bias", "ones"],
            &["norm"],
            &[int("is_test", 1), float("epsilon", 0.0)],
        )
        .node("Squeeze", &["x"], &["matrix"], &[ints("axes", &[0])])
        .node("Gemm", &["matrix", "w", "c"], &["gemm"], &[int("broadcast", 1)])
        .node("GlobalLpPool", &["x"], &["pool"], &[])
        .node("AveragePool", &["x"], &["mean"], &[ints("kernel_shape", &[2])])
        .outputs(&["prelu", "norm", "gemm", "pool", "mean"])
        .model(6);
    gives(
        &model,
        &[x32(&[1, 2, 2], &[-3.0, 4.0, -1.0, 0.0])],
        &[
            (&[1, 2, 2], &[-6.0, 4.0, -3.0, 0.0]),
            (&[1, 2, 2], &[-3.0, 4.0, -1.0, 0.0]),
            (&[2, 1], &[1.5, -0.5]),
            (&[1, 2, 1], &[5.0, 1.0]),
            (&[1, 2, 1], &[0.5, -0.5]),
        ],
    );
    let pool = |p| {
        let b = Build::new().input("x", F32, &["1", "1", "2"]).node("GlobalLpPool", &["x"], &["y"], &[float("p", p)]);
        b.outputs(&["y"]).model(1)
    };
    gives(&pool(1.0), &[x32(&[1, 1, 2], &[-3.0, 4.0])], &[(&[1, 1, 1], &[7.0])]);
    refused(&bad(&pool(1.5)), Code::UNSUPPORTED, &["1.5"]);
    let up = Build::new()
        .input("x", F32, &["1", "1", "1", "2"])
        .node("Upsample", &["x"], &["y"], &[float("height_scale", 1.0), float("width_scale", 2.0)])
        .outputs(&["y"])
        .model(1);
    gives(&up, &[x32(&[1, 1, 1, 2], &[1.0, 3.0])], &[(&[1, 1, 1, 4], &[1.0, 1.0, 3.0, 3.0])]);
}

#[test]
fn center_crop_pad_is_imported() {
    let model = Build::new()
        .input("x", F32, &["2", "3"])
        .init(i64s("shape", &[2], &[4, 1]))
        .init(i64s("five", &[1], &[5]))
        .node("CenterCropPad", &["x", "shape"], &["both"], &[])
        .node("CenterCropPad", &["x", "five"], &["wide"], &[ints("axes", &[-1])])
        .outputs(&["both", "wide"])
        .model(18);
    let types = good(&model).main().unwrap().output_types();
    let dims: Vec<_> = types.iter().map(|t| t.as_tensor().unwrap().fixed_dims()).collect();
    assert_eq!(dims, [Some(vec![4, 1]), Some(vec![2, 5])]);
    gives(
        &model,
        &[x32(&[2, 3], &SIX)],
        &[(&[4, 1], &[0.0, 2.0, 5.0, 0.0]), (&[2, 5], &[0.0, 1.0, 2.0, 3.0, 0.0, 0.0, 4.0, 5.0, 6.0, 0.0])],
    );
}

#[test]
fn window_functions_match_their_formulas() {
    let model = Build::new()
        .init(i64s("n", &[], &[4]))
        .init(i64s("m", &[], &[3]))
        .node("HannWindow", &["n"], &["hann"], &[])
        .node("HannWindow", &["m"], &["symmetric"], &[int("periodic", 0)])
        .node("HammingWindow", &["n"], &["hamming"], &[int("output_datatype", 11)])
        .node("BlackmanWindow", &["n"], &["blackman"], &[])
        .outputs(&["hann", "symmetric", "hamming", "blackman"])
        .model(17);
    let (low, high) = (4.0 / 46.0, 25.0 / 46.0);
    gives(
        &model,
        &[],
        &[
            (&[4], &[0.0, 0.5, 1.0, 0.5]),
            (&[3], &[0.0, 1.0, 0.0]),
            (&[4], &[low, high, 1.0, high]),
            (&[4], &[0.0, 0.34, 1.0, 0.34]),
        ],
    );
}

#[test]
fn depth_to_space_modes_are_imported() {
    let model = |mode| {
        Build::new()
            .input("x", F32, &["n", "2", "1", "2"])
            .init(i64s("turned", &[4], &[0, 2, 2, 1]))
            .node("Reshape", &["x", "turned"], &["t"], &[])
            .node("Concat", &["t", "t"], &["image"], &[int("axis", 3)])
            .node("SpaceToDepth", &["image"], &["y"], &[int("blocksize", 2), text("mode", mode)])
            .outputs(&["y"])
            .model(28)
    };
    // Channels [[1, 1], [2, 2]] and [[3, 3], [4, 4]].
    let x = || x32(&[1, 2, 1, 2], &[1.0, 2.0, 3.0, 4.0]);
    gives(&model("DCR"), &[x()], &[(&[1, 8, 1, 1], &[1.0, 3.0, 1.0, 3.0, 2.0, 4.0, 2.0, 4.0])]);
    gives(&model("CRD"), &[x()], &[(&[1, 8, 1, 1], &[1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 4.0, 4.0])]);
    refused(&bad(&model("RCD")), Code::MODEL, &["'RCD'"]);
}

#[test]
fn dropout_without_ratio_is_identity() {
    let model = |ratio, training| {
        Build::new()
            .input("x", F32, &["2"])
            .init(f32s("ratio", &[], &[ratio]))
            .node("Constant", &[], &["training"], &[tensor("value", bools("", &[], &[training]))])
            .node("Identity", &["training"], &["same"], &[])
            .node("Dropout", &["x", "ratio", "same"], &["y", "mask"], &[])
            .outputs(&["y", "mask"])
            .model(13)
    };
    for (ratio, training) in [(0.5, false), (0.0, true)] {
        let outputs: &[(&[usize], &[f64])] = &[(&[2], &[1.0, 2.0]), (&[2], &[1.0, 1.0])];
        gives(&model(ratio, training), &[x32(&[2], &[1.0, 2.0])], outputs);
    }
}

#[test]
fn shape_slice_may_be_empty() {
    let model = Build::new()
        .input("x", F32, &["2", "3"])
        .node("Shape", &["x"], &["none"], &[int("start", 2), int("end", 1)])
        .node("Shape", &["x"], &["last"], &[int("start", -1)])
        .outputs(&["none", "last"])
        .model(15);
    gives(&model, &[x32(&[2, 3], &SIX)], &[(&[0], &[]), (&[1], &[3.0])]);
}

#[test]
fn empty_optionals_have_a_type() {
    let kind = AttributeType::TypeProto as i32;
    let of = AttributeProto {
        name: Some("type".into()),
        r#type: Some(kind),
        tp: Some(ty(F32, &["2"])),
        ..AttributeProto::default()
    };
    let model = |attrs: &[_]| {
        let b = Build::new().node("Optional", &[], &["o"], attrs).node("OptionalHasElement", &["o"], &["has"], &[]);
        b.outputs(&["has"]).model(18)
    };
    gives(&model(&[of]), &[], &[(&[], &[0.0])]);
    bad(&model(&[]));
}

#[test]
fn opset_1_recurrent_output_sequence() {
    let model = |opset| {
        Build::new()
            .input("x", F32, &["2", "1", "1"])
            .init(f32s("w", &[1, 1, 1], &[1.0]))
            .init(f32s("r", &[1, 1, 1], &[0.0]))
            .node("RNN", &["x", "w", "r"], &["y", "last"], &[int("output_sequence", 1), int("hidden_size", 1)])
            .outputs(&["y", "last"])
            .model(opset)
    };
    let tanh = [0.462_117_16, 0.761_594_2];
    gives(&model(1), &[x32(&[2, 1, 1], &[0.5, 1.0])], &[(&[2, 1, 1, 1], &tanh), (&[1, 1, 1], &tanh[1..])]);
    refused(&bad(&model(7)), Code::UNSUPPORTED, &["'output_sequence'"]);
}

#[test]
fn redundant_extent_attributes_are_checked() {
    let conv = |kernel: &[i64]| {
        Build::new()
            .input("x", F32, &["1", "1", "4", "4"])
            .init(f32s("w", &[1, 1, 3, 3], &[0.0; 9]))
            .node("Conv", &["x", "w"], &["y"], &[ints("kernel_shape", kernel)])
            .outputs(&["y"])
            .model(22)
    };
    gives(&conv(&[3, 3]), &[x32(&[1, 1, 4, 4], &[1.0; 16])], &[(&[1, 1, 2, 2], &[0.0; 4])]);
    refused(&bad(&conv(&[2, 2])), Code::MODEL, &["'kernel_shape' is [2, 2]", "[3, 3]"]);
    refused(&bad(&conv(&[3])), Code::MODEL, &["'kernel_shape' is [3]", "[3, 3]"]);
    let rnn = |hidden| {
        Build::new()
            .input("x", F32, &["2", "1", "1"])
            .init(f32s("w", &[1, 1, 1], &[1.0]))
            .init(f32s("r", &[1, 1, 1], &[0.0]))
            .node("RNN", &["x", "w", "r"], &["", "last"], &[int("hidden_size", hidden)])
            .outputs(&["last"])
            .model(22)
    };
    gives(&rnn(1), &[x32(&[2, 1, 1], &[0.0, 0.0])], &[(&[1, 1, 1], &[0.0])]);
    refused(&bad(&rnn(2)), Code::MODEL, &["'hidden_size' is [2]", "[1]"]);
}
