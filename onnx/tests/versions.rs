//! Operators in the forms of old operator sets, and which sets are read.

mod support;

use of_diag::Code;
use of_onnx::{NEWEST_OPSET, OLDEST_OPSET};
use support::*;

#[test]
fn clip_opset_6_attributes() {
    let model = Build::new()
        .input("x", F32, &["3"])
        .node("Clip", &["x"], &["both"], &[float("min", 0.0), float("max", 1.0)])
        .node("Clip", &["x"], &["upper"], &[float("max", 1.0)])
        .node("Clip", &["x"], &["same"], &[])
        .outputs(&["both", "upper", "same"])
        .model(7);
    let x = x32(&[3], &[-1.0, 0.5, 2.0]);
    gives(&model, &[x], &[(&[3], &[0.0, 0.5, 1.0]), (&[3], &[-1.0, 0.5, 1.0]), (&[3], &[-1.0, 0.5, 2.0])]);
}

#[test]
fn axes_attributes_become_operands() {
    let model = Build::new()
        .input("x", F32, &["1", "2", "2"])
        .node("Squeeze", &["x"], &["s"], &[ints("axes", &[0])])
        .node("Squeeze", &["x"], &["all"], &[])
        .node("Unsqueeze", &["s"], &["u"], &[ints("axes", &[0, 3])])
        .node("ReduceSum", &["x"], &["sum"], &[ints("axes", &[1]), int("keepdims", 0)])
        .node("ReduceMean", &["x"], &["mean"], &[ints("axes", &[-1])])
        .node("ReduceMax", &["x"], &["max"], &[])
        .outputs(&["s", "all", "u", "sum", "mean", "max"])
        .model(11);
    let flat: &[f64] = &[1.0, 2.0, 3.0, 4.0];
    gives(
        &model,
        &[x32(&[1, 2, 2], &[1.0, 2.0, 3.0, 4.0])],
        &[
            (&[2, 2], flat),
            (&[2, 2], flat),
            (&[1, 2, 2, 1], flat),
            (&[1, 2], &[4.0, 6.0]),
            (&[1, 2, 1], &[1.5, 3.5]),
            (&[1, 1, 1], &[4.0]),
        ],
    );
}

#[test]
fn axes_operands_are_kept() {
    let model = Build::new()
        .input("x", F32, &["1", "2", "2"])
        .init(i64s("zero", &[1], &[0]))
        .init(i64s("one", &[1], &[1]))
        .init(i64s("none", &[0], &[]))
        .node("Squeeze", &["x", "zero"], &["s"], &[])
        .node("ReduceSum", &["x", "one"], &["sum"], &[int("keepdims", 0)])
        .node("ReduceSum", &["x"], &["all"], &[int("keepdims", 0)])
        .node("ReduceSum", &["x", "none"], &["all2"], &[int("keepdims", 0)])
        .node("ReduceSumSquare", &["x", "none"], &["square"], &[int("noop_with_empty_axes", 1)])
        .node("ReduceMean", &["x"], &["same"], &[int("noop_with_empty_axes", 1)])
        .outputs(&["s", "sum", "all", "all2", "square", "same"])
        .model(18);
    gives(
        &model,
        &[x32(&[1, 2, 2], &[1.0, 2.0, 3.0, 4.0])],
        &[
            (&[2, 2], &[1.0, 2.0, 3.0, 4.0]),
            (&[1, 2], &[4.0, 6.0]),
            (&[], &[10.0]),
            (&[], &[10.0]),
            (&[1, 2, 2], &[1.0, 4.0, 9.0, 16.0]),
            (&[1, 2, 2], &[1.0, 2.0, 3.0, 4.0]),
        ],
    );
}

#[test]
fn reduce_sum_opset_13_axes_operand() {
    let model = Build::new()
        .input("x", F32, &["2", "2"])
        .init(i64s("one", &[1], &[1]))
        .node("ReduceSum", &["x", "one"], &["sum"], &[int("keepdims", 0)])
        .node("ReduceMax", &["x"], &["max"], &[ints("axes", &[1]), int("keepdims", 0)])
        .outputs(&["sum", "max"])
        .model(13);
    gives(&model, &[x32(&[2, 2], &[1.0, 2.0, 3.0, 4.0])], &[(&[2], &[3.0, 7.0]), (&[2], &[2.0, 4.0])]);
}

#[test]
fn slice_pad_split_attributes_become_operands() {
    let model = Build::new()
        .input("x", F32, &["2", "3"])
        .node("Slice", &["x"], &["cut"], &[ints("starts", &[-2]), ints("ends", &[1000]), ints("axes", &[1])])
        .node("Slice", &["x"], &["corner"], &[ints("starts", &[1, 0]), ints("ends", &[2, 2])])
        .node("Pad", &["x"], &["pad"], &[ints("pads", &[0, 1, 1, 0]), float("value", 9.0)])
        .node("Pad", &["cut"], &["mirror"], &[text("mode", "reflect"), ints("pads", &[0, 1, 0, 0])])
        .node("Split", &["x"], &["s1", "s2"], &[int("axis", 1), ints("split", &[1, 2])])
        .node("Split", &["x"], &["h1", "h2"], &[])
        .outputs(&["cut", "corner", "pad", "mirror", "s1", "s2", "h1", "h2"])
        .model(7);
    gives(
        &model,
        &[x32(&[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])],
        &[
            (&[2, 2], &[2.0, 3.0, 5.0, 6.0]),
            (&[1, 2], &[4.0, 5.0]),
            (&[3, 4], &[9.0, 1.0, 2.0, 3.0, 9.0, 4.0, 5.0, 6.0, 9.0, 9.0, 9.0, 9.0]),
            (&[2, 3], &[3.0, 2.0, 3.0, 6.0, 5.0, 6.0]),
            (&[2, 1], &[1.0, 4.0]),
            (&[2, 2], &[2.0, 3.0, 5.0, 6.0]),
            (&[1, 3], &[1.0, 2.0, 3.0]),
            (&[1, 3], &[4.0, 5.0, 6.0]),
        ],
    );
}

#[test]
fn split_opset_18_uneven_parts() {
    let model = Build::new()
        .input("x", F32, &["5"])
        .node("Split", &["x"], &["a", "b"], &[int("num_outputs", 2)])
        .outputs(&["a", "b"])
        .model(18);
    let x = x32(&[5], &[1.0, 2.0, 3.0, 4.0, 5.0]);
    gives(&model, &[x], &[(&[3], &[1.0, 2.0, 3.0]), (&[2], &[4.0, 5.0])]);
}

#[test]
fn softmax_opset_11_flattens_to_matrix() {
    let logs: Vec<f32> = [1.0f32, 2.0, 3.0, 4.0].map(f32::ln).into();
    let softmax = |opset, attrs: &[_]| {
        let b = Build::new().input("x", F32, &["1", "2", "1", "2"]).node("Softmax", &["x"], &["y"], attrs);
        b.outputs(&["y"]).model(opset)
    };
    let x = || x32(&[1, 2, 1, 2], &logs);
    let (thirds, tenths) = ([1.0 / 3.0, 2.0 / 3.0, 3.0 / 7.0, 4.0 / 7.0], [0.1, 0.2, 0.3, 0.4]);
    gives(&softmax(7, &[]), &[x()], &[(&[1, 2, 1, 2], &tenths)]);
    gives(&softmax(12, &[int("axis", 2)]), &[x()], &[(&[1, 2, 1, 2], &thirds)]);
    gives(&softmax(12, &[int("axis", -3)]), &[x()], &[(&[1, 2, 1, 2], &tenths)]);
    gives(&softmax(12, &[int("axis", 3)]), &[x()], &[(&[1, 2, 1, 2], &thirds)]);
    gives(&softmax(13, &[]), &[x()], &[(&[1, 2, 1, 2], &thirds)]);
    gives(&softmax(13, &[int("axis", 1)]), &[x()], &[(&[1, 2, 1, 2], &[0.25, 1.0 / 3.0, 0.75, 2.0 / 3.0])]);
    let named = Build::new()
        .input("x", F32, &["n", "2", "1", "2"])
        .node("LogSoftmax", &["x"], &["l"], &[])
        .node("Hardmax", &["x"], &["h"], &[])
        .outputs(&["l", "h"])
        .model(11);
    let expected: Vec<f64> = tenths.iter().map(|v: &f64| v.ln()).collect();
    gives(&named, &[x()], &[(&[1, 2, 1, 2], &expected), (&[1, 2, 1, 2], &[0.0, 0.0, 0.0, 1.0])]);
}

#[test]
fn dropout_inference_is_identity() {
    for (opset, attrs) in [(7, vec![float("ratio", 0.9)]), (10, vec![float("ratio", 0.9)]), (13, vec![int("seed", 3)])]
    {
        let model = Build::new()
            .input("x", F32, &["2"])
            .node("Dropout", &["x"], &["y", "mask"], &attrs)
            .outputs(&["y", "mask"])
            .model(opset);
        gives(&model, &[x32(&[2], &[1.0, 2.0])], &[(&[2], &[1.0, 2.0]), (&[2], &[1.0, 1.0])]);
        let mask = good(&model).main().unwrap().output_types()[1].as_tensor().unwrap().dtype;
        assert_eq!(mask, if opset < 10 { of_ir::DType::F32 } else { of_ir::DType::Bool });
    }
    let off = Build::new()
        .input("x", F32, &["2"])
        .init(f32s("ratio", &[], &[0.9]))
        .init(bools("training", &[], &[false]))
        .node("Dropout", &["x", "ratio", "training"], &["y"], &[])
        .outputs(&["y"])
        .model(13);
    gives(&off, &[x32(&[2], &[1.0, 2.0])], &[(&[2], &[1.0, 2.0])]);
}

#[test]
fn top_k_opset_1_attribute() {
    let model = Build::new()
        .input("x", F32, &["2", "3"])
        .node("TopK", &["x"], &["v", "i"], &[int("k", 2)])
        .outputs(&["v", "i"])
        .model(7);
    let x = x32(&[2, 3], &[1.0, 3.0, 2.0, 6.0, 4.0, 5.0]);
    gives(&model, &[x], &[(&[2, 2], &[3.0, 2.0, 6.0, 5.0]), (&[2, 2], &[1.0, 2.0, 0.0, 2.0])]);
}

#[test]
fn upsample_is_imported_as_resize() {
    let x = || x32(&[1, 1, 1, 2], &[1.0, 3.0]);
    let twice: &[f64] = &[1.0, 1.0, 3.0, 3.0];
    let linear: &[f64] = &[1.0, 2.0, 3.0, 3.0];
    let scales = || f32s("scales", &[4], &[1.0, 1.0, 1.0, 2.0]);
    let base = || Build::new().input("x", F32, &["1", "1", "1", "2"]);
    let seven = base()
        .node("Upsample", &["x"], &["n"], &[floats("scales", &[1.0, 1.0, 1.0, 2.0])])
        .node("Upsample", &["x"], &["l"], &[floats("scales", &[1.0, 1.0, 1.0, 2.0]), text("mode", "bilinear")])
        .outputs(&["n", "l"])
        .model(7);
    gives(&seven, &[x()], &[(&[1, 1, 1, 4], twice), (&[1, 1, 1, 4], linear)]);
    for (op, opset) in [("Upsample", 9), ("Resize", 10)] {
        let model = base()
            .init(scales())
            .node(op, &["x", "scales"], &["n"], &[])
            .node(op, &["x", "scales"], &["l"], &[text("mode", "linear")])
            .outputs(&["n", "l"])
            .model(opset);
        gives(&model, &[x()], &[(&[1, 1, 1, 4], twice), (&[1, 1, 1, 4], linear)]);
    }
    let eleven = base()
        .init(f32s("roi", &[0], &[]))
        .init(scales())
        .init(i64s("sizes", &[4], &[1, 1, 1, 4]))
        .node("Resize", &["x", "roi", "scales"], &["l"], &[text("mode", "linear")])
        .node("Resize", &["x", "", "", "sizes"], &["s"], &[])
        .outputs(&["l", "s"])
        .model(11);
    gives(&eleven, &[x()], &[(&[1, 1, 1, 4], &[1.0, 1.5, 2.5, 3.0]), (&[1, 1, 1, 4], twice)]);
}

#[test]
fn batch_normalization_opset_7() {
    let model = |attrs: &[_], outputs: &[&str]| {
        Build::new()
            .input("x", F32, &["1", "2", "2"])
            .init(f32s("scale", &[2], &[1.0, 2.0]))
            .init(f32s("bias", &[2], &[0.0, 10.0]))
            .init(f32s("mean", &[2], &[1.0, 3.0]))
            .init(f32s("var", &[2], &[4.0, 1.0]))
            .node("BatchNormalization", &["x", "scale", "bias", "mean", "var"], outputs, attrs)
            .outputs(&["y"])
            .model(7)
    };
    let attrs = [float("epsilon", 0.0), float("momentum", 0.9)];
    let x = x32(&[1, 2, 2], &[1.0, 3.0, 3.0, 5.0]);
    gives(&model(&attrs, &["y"]), &[x], &[(&[1, 2, 2], &[0.0, 1.0, 10.0, 14.0])]);
    refused(&bad(&model(&attrs, &["y", "m", "v", "s"])), Code::UNSUPPORTED, &["statistics of the batch"]);
    refused(&bad(&model(&[int("spatial", 0)], &["y"])), Code::UNSUPPORTED, &["spatial"]);
}

#[test]
fn group_normalization_opset_18_scale_per_group() {
    let model = |opset, n: usize, scale: &[f32]| {
        Build::new()
            .input("x", F32, &["1", "4", "1"])
            .init(f32s("scale", &[n], scale))
            .init(f32s("bias", &[n], &vec![1.0; n]))
            .node("GroupNormalization", &["x", "scale", "bias"], &["y"], &[int("num_groups", 2), float("epsilon", 0.0)])
            .outputs(&["y"])
            .model(opset)
    };
    let x = || x32(&[1, 4, 1], &[1.0, 3.0, 10.0, 20.0]);
    gives(&model(18, 2, &[1.0, 2.0]), &[x()], &[(&[1, 4, 1], &[0.0, 2.0, -1.0, 3.0])]);
    gives(&model(21, 4, &[1.0, 1.0, 2.0, 3.0]), &[x()], &[(&[1, 4, 1], &[0.0, 2.0, -1.0, 4.0])]);
}

#[test]
fn gemm_attributes_have_defaults() {
    let base = || {
        Build::new().input("a", F32, &["1", "2"]).init(f32s("b", &[2, 1], &[10.0, 100.0])).init(f32s("c", &[1], &[0.5]))
    };
    let a = || x32(&[1, 2], &[1.0, 2.0]);
    let plain = base()
        .node("Gemm", &["a", "b", "c"], &["y"], &[])
        .node("Gemm", &["a", "b", "c"], &["z"], &[float("alpha", 2.0), float("beta", -2.0)])
        .outputs(&["y", "z"])
        .model(7);
    gives(&plain, &[a()], &[(&[1, 1], &[210.5]), (&[1, 1], &[419.0])]);
    let short = base()
        .node("Gemm", &["a", "b"], &["y"], &[])
        .node("Gemm", &["b", "a"], &["z"], &[int("transA", 1), int("transB", 1)])
        .outputs(&["y", "z"])
        .model(11);
    gives(&short, &[a()], &[(&[1, 1], &[210.0]), (&[1, 1], &[210.0])]);
}

#[test]
fn defaults_of_other_operators() {
    let model = Build::new()
        .input("x", F32, &["2", "2"])
        .init(i64s("one", &[1], &[1]))
        .node("LeakyRelu", &["x"], &["leaky"], &[])
        .node("Flatten", &["x"], &["flat"], &[])
        .node("Gather", &["x", "one"], &["row"], &[])
        .node("ArgMax", &["x"], &["arg"], &[])
        .node("Trilu", &["x"], &["upper"], &[])
        .node("HardSigmoid", &["x"], &["hard"], &[])
        .outputs(&["leaky", "flat", "row", "arg", "upper", "hard"])
        .model(18);
    gives(
        &model,
        &[x32(&[2, 2], &[-1.0, 2.0, 3.0, -4.0])],
        &[
            (&[2, 2], &[-0.01, 2.0, 3.0, -0.04]),
            (&[2, 2], &[-1.0, 2.0, 3.0, -4.0]),
            (&[1, 2], &[3.0, -4.0]),
            (&[1, 2], &[1.0, 0.0]),
            (&[2, 2], &[-1.0, 2.0, 0.0, -4.0]),
            (&[2, 2], &[0.3, 0.9, 1.0, 0.0]),
        ],
    );
    let axis = Build::new().input("x", F32, &["2"]).node("Concat", &["x", "x"], &["y"], &[]).outputs(&["y"]);
    refused(&bad(&axis.model(18)), Code::MODEL, &["'axis' is missing"]);
}

#[test]
fn small_types_are_converted_and_quantised() {
    let model = Build::new()
        .input("x", F32, &["3"])
        .init(raw("e5m2", of_onnx::proto::tensor_proto::DataType::Float8e5m2, &[], vec![0]))
        .init(raw("two", of_onnx::proto::tensor_proto::DataType::Float8e8m0, &[], vec![128]))
        .init(f32s("half", &[], &[0.5]))
        .node("CastLike", &["x", "e5m2"], &["like"], &[int("saturate", 0)])
        .node("Cast", &["x"], &["i2"], &[int("to", 26)])
        .node("Cast", &["x"], &["f4"], &[int("to", 23)])
        .node("QuantizeLinear", &["x", "half", "e5m2"], &["open"], &[int("saturate", 0)])
        .node("QuantizeLinear", &["x", "half"], &["q2"], &[int("output_dtype", 26), int("precision", 11)])
        .node("DequantizeLinear", &["i2", "two"], &["back"], &[int("output_dtype", 1)])
        .outputs(&["like", "i2", "f4", "open", "q2", "back"])
        .model(25);
    gives(
        &model,
        &[x32(&[3], &[1e6, -3.0, 0.3])],
        &[
            (&[3], &[f64::INFINITY, -3.0, 0.3125]),
            (&[3], &[0.0, 1.0, 0.0]),
            (&[3], &[6.0, -3.0, 0.5]),
            (&[3], &[f64::INFINITY, -6.0, 0.625]),
            (&[3], &[1.0, -2.0, 1.0]),
            (&[3], &[0.0, 2.0, 0.0]),
        ],
    );
    let cast = |mode| {
        let attrs = [int("to", 24), text("round_mode", mode)];
        Build::new().input("x", F32, &["3"]).node("Cast", &["x"], &["y"], &attrs).outputs(&["y"]).model(25)
    };
    gives(&cast("down"), &[x32(&[3], &[0.7, 1.0, 3.9])], &[(&[3], &[0.5, 1.0, 2.0])]);
    gives(&cast("nearest"), &[x32(&[3], &[0.7, 1.5, 2.9])], &[(&[3], &[0.5, 2.0, 2.0])]);
    refused(&bad(&cast("sideways")), Code::ATTRIBUTE, &["round_mode is 'sideways'"]);
    // Powers of two are a scale, but not a result.
    let to_scale = Build::new()
        .input("x", of_onnx::proto::tensor_proto::DataType::Int8, &["3"])
        .init(raw("two", of_onnx::proto::tensor_proto::DataType::Float8e8m0, &[], vec![128]))
        .node("DequantizeLinear", &["x", "two"], &["y"], &[])
        .outputs(&["y"]);
    refused(&bad(&to_scale.model(25)), Code::TYPE, &["cannot dequantise to f8E8M0FNU"]);
}

#[test]
fn elementwise_variants_are_imported() {
    let model = Build::new()
        .input("x", F32, &["2"])
        .init(i64s("i", &[2], &[-7, 7]))
        .init(i64s("three", &[], &[3]))
        .init(raw("u", of_onnx::proto::tensor_proto::DataType::Uint8, &[2], vec![1, 6]))
        .init(raw("one", of_onnx::proto::tensor_proto::DataType::Uint8, &[], vec![1]))
        .node("Mod", &["i", "three"], &["mod"], &[])
        .node("Mod", &["i", "three"], &["fmod"], &[int("fmod", 1)])
        .node("BitShift", &["u", "one"], &["left"], &[text("direction", "LEFT")])
        .node("BitShift", &["u", "one"], &["right"], &[text("direction", "RIGHT")])
        .node("Pow", &["x", "three"], &["pow"], &[])
        .node("CastLike", &["x", "i"], &["like"], &[])
        .node("Cast", &["x"], &["cast"], &[int("to", 7)])
        .node("Gelu", &["x"], &["gelu"], &[text("approximate", "tanh")])
        .node("Size", &["i"], &["size"], &[])
        .outputs(&["mod", "fmod", "left", "right", "pow", "like", "cast", "gelu", "size"])
        .model(20);
    gives(
        &model,
        &[x32(&[2], &[2.0, -1.0])],
        &[
            (&[2], &[2.0, 1.0]),
            (&[2], &[-1.0, 1.0]),
            (&[2], &[2.0, 12.0]),
            (&[2], &[0.0, 3.0]),
            (&[2], &[8.0, -1.0]),
            (&[2], &[2.0, -1.0]),
            (&[2], &[2.0, -1.0]),
            (&[2], &[1.954_597_7, -0.158_808_0]),
            (&[], &[2.0]),
        ],
    );
}

#[test]
fn scatter_imports_as_scatter_elements() {
    let model = Build::new()
        .input("x", F32, &["2", "2"])
        .init(i64s("i", &[1, 2], &[1, 0]))
        .init(f32s("u", &[1, 2], &[8.0, 9.0]))
        .node("Scatter", &["x", "i", "u"], &["y"], &[])
        .outputs(&["y"])
        .model(9);
    gives(&model, &[x32(&[2, 2], &[1.0, 2.0, 3.0, 4.0])], &[(&[2, 2], &[1.0, 9.0, 8.0, 4.0])]);
}

#[test]
fn operator_sets_that_are_too_old_or_too_new_are_refused() {
    let model =
        |opset| Build::new().input("x", F32, &["1"]).node("Relu", &["x"], &["y"], &[]).outputs(&["y"]).model(opset);
    for opset in [OLDEST_OPSET, 13, NEWEST_OPSET] {
        gives(&model(opset), &[x32(&[1], &[-1.0])], &[(&[1], &[0.0])]);
    }
    for (opset, word) in [(OLDEST_OPSET - 1, "opset 0"), (-1, "opset -1"), (NEWEST_OPSET + 1, "newer than")] {
        let errors = bad(&model(opset));
        refused(&errors, Code::UNSUPPORTED, &[word]);
        assert!(errors.len() == 1 && errors[0].hint.is_some());
    }
}

#[test]
fn default_domain_has_two_names() {
    let mut model = Build::new().input("x", F32, &["1"]).node("Relu", &["x"], &["y"], &[]).outputs(&["y"]).model(18);
    model.opset_import = vec![set("ai.onnx", 18)];
    gives(&model, &[x32(&[1], &[2.0])], &[(&[1], &[2.0])]);
    model.opset_import.clear();
    refused(&bad(&model), Code::MODEL, &["no operator set"]);
}

#[test]
fn every_declared_operator_has_an_importer() {
    for name in of_ops::list::ALL.iter().flat_map(|d| d.onnx()) {
        let (domain, op) = name.split_once("::").unwrap_or(("", name));
        let mut model = Build::new().node(op, &[], &["y"], &[]).domain(domain).outputs(&["y"]).model(NEWEST_OPSET);
        model.opset_import.push(set(domain, 1));
        if domain.is_empty() {
            model.opset_import.pop();
        }
        if let Err(errors) = import(&model) {
            let unknown =
                errors.0.iter().find(|d| d.message.contains("not known") || d.message.contains("counterpart"));
            assert!(unknown.is_none(), "{name}: {unknown:?}");
        }
    }
}
