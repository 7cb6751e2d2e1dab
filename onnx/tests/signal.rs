//! Fourier transforms, random numbers, and operators of training.

mod support;

use of_diag::Code;
use of_onnx::proto::tensor_proto::DataType;
use of_ops::Value;
use support::*;

#[test]
fn dft_opset_17_axis_attribute() {
    // Along axis 1: two columns, each of two real numbers.
    let outputs: &[(&[usize], &[f64])] = &[(&[1, 2, 2, 2], &[4.0, 0.0, 6.0, 0.0, -2.0, 0.0, -2.0, 0.0])];
    let x = || x32(&[1, 2, 2, 1], &[1.0, 2.0, 3.0, 4.0]);
    let old = Build::new().input("x", F32, &["1", "2", "2", "1"]).node("DFT", &["x"], &["y"], &[]);
    gives(&old.outputs(&["y"]).model(17), &[x()], outputs);
    let new = Build::new().input("x", F32, &["1", "2", "2", "1"]).init(i64s("axis", &[], &[1])).node(
        "DFT",
        &["x", "", "axis"],
        &["y"],
        &[],
    );
    gives(&new.outputs(&["y"]).model(20), &[x()], outputs);
}

#[test]
fn dft_onesided_inverse() {
    let model = Build::new()
        .input("x", F32, &["1", "5", "1"])
        .init(i64s("n", &[], &[5]))
        .node("DFT", &["x"], &["half"], &[int("onesided", 1)])
        .node("DFT", &["half", "n"], &["y"], &[int("onesided", 1), int("inverse", 1)])
        .outputs(&["half", "y"])
        .model(20);
    let out = run(&good(&model), &[x32(&[1, 5, 1], &[1.0, -2.0, 0.5, 3.0, 4.0])]);
    let (dims, y) = numbers(&out[1]);
    assert_eq!((numbers(&out[0]).0, dims), (vec![1, 3, 2], vec![1, 5, 1]));
    assert!(y.iter().zip([1.0, -2.0, 0.5, 3.0, 4.0]).all(|(a, b)| (a - b).abs() < 1e-6), "{y:?}");
    let complex = Build::new().input("x", F32, &["1", "5", "2"]).node("DFT", &["x"], &["y"], &[int("onesided", 1)]);
    refused(&bad(&complex.outputs(&["y"]).model(20)), Code::SHAPE, &["real signals"]);
}

#[test]
fn stft_is_imported() {
    let model = |dims: &[&str]| {
        Build::new()
            .input("x", F32, dims)
            .init(i64s("step", &[], &[2]))
            .init(f32s("window", &[2], &[1.0, 0.5]))
            .node("STFT", &["x", "step", "window"], &["y"], &[])
            .outputs(&["y"])
            .model(17)
    };
    let expected: &[f64] = &[2.0, 0.0, 0.0, 0.0, 5.0, 0.0, 1.0, 0.0];
    let samples = [1.0, 2.0, 3.0, 4.0, 5.0];
    gives(&model(&["1", "5", "1"]), &[x32(&[1, 5, 1], &samples)], &[(&[1, 2, 2, 2], expected)]);
    // Without the axis of the parts the samples are real.
    gives(&model(&["1", "5"]), &[x32(&[1, 5], &samples)], &[(&[1, 2, 2, 2], expected)]);
}

#[test]
fn random_ops_are_reproducible_and_differ_per_node() {
    let model = |attrs: &[_]| {
        Build::new()
            .input("x", F32, &["3"])
            .node("RandomUniformLike", &["x"], &["a"], attrs)
            .node("RandomUniformLike", &["x"], &["b"], attrs)
            .node("RandomNormal", &[], &["c"], &[ints("shape", &[2]), float("seed", 0.0), int("dtype", 11)])
            .node("Bernoulli", &["x"], &["d"], &[])
            .node("Multinomial", &["row"], &["e"], &[int("sample_size", 4)])
            .init(f32s("row", &[1, 2], &[0.0, -1000.0]))
            .outputs(&["a", "b", "c", "d", "e"])
            .model(15)
    };
    let draw = |attrs: &[_]| -> Vec<Vec<f64>> {
        let out: Vec<Value> = run(&good(&model(attrs)), &[x32(&[3], &[0.0, 1.0, 0.0])]);
        out.iter().map(|v| numbers(v).1).collect()
    };
    let (own, seeded) = (draw(&[]), draw(&[float("seed", 0.0)]));
    assert_eq!(own, draw(&[]));
    assert_ne!(own[0], own[1]);
    assert_eq!(seeded[0], seeded[1]);
    assert_eq!(own[0], seeded[0], "a node without a seed begins at 0");
    assert!(own[0].iter().all(|x| (0.0..1.0).contains(x)));
    assert_eq!(own[2], [1.764052345967664, 0.4001572083672233]);
    assert_eq!((own[3].as_slice(), own[4].as_slice()), (&[0.0, 1.0, 0.0][..], &[0.0; 4][..]));
}

#[test]
fn dropout_training_mode() {
    let model = Build::new()
        .input("x", F32, &["4"])
        .input("training", BOOL, &[])
        .init(f32s("ratio", &[], &[0.6]))
        .node("Dropout", &["x", "ratio", "training"], &["y", "mask"], &[int("seed", 0)])
        .outputs(&["y", "mask"])
        .model(13);
    let x = || x32(&[4], &[1.0, 2.0, 3.0, 4.0]);
    gives(&model, &[x(), truth(false)], &[(&[4], &[1.0, 2.0, 3.0, 4.0]), (&[4], &[1.0; 4])]);
    // The numbers of seed 0 are 0.549, 0.715, 0.603, 0.545.
    let out = run(&good(&model), &[x(), truth(true)]);
    assert_eq!(numbers(&out[1]).1, [0.0, 1.0, 1.0, 0.0]);
    let y = numbers(&out[0]).1;
    assert!(y.iter().zip([0.0, 5.0, 7.5, 0.0]).all(|(a, b)| (a - b).abs() < 1e-5), "{y:?}");
}

#[test]
fn batch_norm_running_statistics() {
    let model = |outputs: &[&str], attrs: &[_], opset| {
        let mut b = Build::new().input("x", F32, &["2", "1"]);
        for (name, value) in [("s", 1.0), ("b", 0.0), ("m", 10.0), ("v", 10.0)] {
            b = b.init(f32s(name, &[1], &[value]));
        }
        b.node("BatchNormalization", &["x", "s", "b", "m", "v"], outputs, attrs).outputs(outputs).model(opset)
    };
    let attrs = [int("training_mode", 1), float("momentum", 0.5), float("epsilon", 0.0)];
    let expected: &[(&[usize], &[f64])] = &[(&[2, 1], &[-1.0, 1.0]), (&[1], &[6.0]), (&[1], &[5.5])];
    let x = || x32(&[2, 1], &[1.0, 3.0]);
    gives(&model(&["y", "rm", "rv"], &attrs, 15), &[x()], expected);
    gives(&model(&["y", "rm", "rv"], &attrs[1..], 9), &[x()], expected);
    let saved = bad(&model(&["y", "rm", "rv", "sm"], &attrs[1..], 9));
    refused(&saved, Code::UNSUPPORTED, &["statistics of the batch"]);
}

#[test]
fn flex_attention_inlines_its_subgraphs() {
    // Scores that all become 0 weigh all values alike.
    let same = Build::new().arg("s").node("Sub", &["s", "s"], &["t"], &[]).outputs(&["t"]);
    let mut model = Build::new()
        .input("q", F32, &["1", "2", "1", "2"])
        .input("k", F32, &["1", "1", "2", "2"])
        .input("v", F32, &["1", "1", "2", "1"])
        .node("FlexAttention", &["q", "k", "v"], &["y"], &[graph("score_mod", same)])
        .domain("ai.onnx.preview")
        .outputs(&["y"])
        .model(26);
    model.opset_import.push(set("ai.onnx.preview", 1));
    let inputs = [
        x32(&[1, 2, 1, 2], &[1.0, 2.0, 3.0, 4.0]),
        x32(&[1, 1, 2, 2], &[1.0, 2.0, 3.0, 4.0]),
        x32(&[1, 1, 2, 1], &[1.0, 3.0]),
    ];
    gives(&model, &inputs, &[(&[1, 2, 1, 1], &[2.0, 2.0])]);
}

#[test]
fn gradient_operator_names_values() {
    let model = |given: &[&str], y: &'static str| {
        let mut model = Build::new()
            .input("a", F32, &[])
            .input("b", F32, &[])
            .node("Mul", &["a", "b"], &["c"], &[])
            .node("Gradient", given, &["da", "db"], &[texts("xs", &["a", "b"]), text("y", y)])
            .domain("ai.onnx.preview.training")
            .outputs(&["da", "db"])
            .model(12);
        model.opset_import.push(set("ai.onnx.preview.training", 1));
        model
    };
    let module = good(&model(&["a", "b"], "c"));
    let found = ops(&module.main().unwrap().graph, "of.gradient");
    assert_eq!((found.len(), found[0].operands.len()), (1, 3));
    refused(&bad(&model(&["b", "a"], "c")), Code::UNSUPPORTED, &["other values"]);
    refused(&bad(&model(&["a", "b"], "nothing")), Code::MODEL, &["'nothing' is not defined"]);
}

#[test]
fn image_decoder_is_imported() {
    let model = |attrs: &[_]| {
        let node = Build::new().input("file", DataType::Uint8, &["n"]).node("ImageDecoder", &["file"], &["y"], attrs);
        node.outputs(&["y"]).model(20)
    };
    let file: Vec<i64> = b"P6 1 2 255 ".iter().chain(&[10, 20, 30, 40, 50, 60]).map(|b| i64::from(*b)).collect();
    let file = || xint(of_ir::DType::U8, &[file.len()], &file);
    gives(&model(&[]), &[file()], &[(&[2, 1, 3], &[10.0, 20.0, 30.0, 40.0, 50.0, 60.0])]);
    let bgr = model(&[text("pixel_format", "BGR")]);
    gives(&bgr, &[file()], &[(&[2, 1, 3], &[30.0, 20.0, 10.0, 60.0, 50.0, 40.0])]);
    gives(&model(&[text("pixel_format", "Grayscale")]), &[file()], &[(&[2, 1, 1], &[18.0, 48.0])]);
    refused(&bad(&model(&[text("pixel_format", "CMYK")])), Code::ATTRIBUTE, &["CMYK"]);
}
