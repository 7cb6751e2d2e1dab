//! The domain ai.onnx.ml, and operators designed for its models.

mod support;

use of_diag::Code;
use of_onnx::proto::{AttributeProto, ModelProto};
use support::*;

/// A model of ai.onnx.ml.
fn ml(build: Build, version: i64) -> ModelProto {
    let mut model = build.model(21);
    model.opset_import.push(set("ai.onnx.ml", version));
    model
}

#[test]
fn ml_feature_preprocessing() {
    let d = "ai.onnx.ml";
    let build = Build::new()
        .input("x", F32, &["2", "2"])
        .init(i64s("one", &[1], &[1]))
        .node("Binarizer", &["x"], &["b"], &[float("threshold", 1.0)])
        .domain(d)
        .node("Scaler", &["x"], &["s"], &[floats("offset", &[1.0]), floats("scale", &[2.0, 3.0])])
        .domain(d)
        .node("Normalizer", &["x"], &["n"], &[text("norm", "L1")])
        .domain(d)
        .node(
            "Imputer",
            &["x"],
            &["i"],
            &[float("replaced_value_float", 3.0), floats("imputed_value_floats", &[7.0, 8.0])],
        )
        .domain(d)
        .node("OneHotEncoder", &["x"], &["h"], &[ints("cats_int64s", &[3, 0])])
        .domain(d)
        .node("FeatureVectorizer", &["x", "x"], &["v"], &[ints("inputdimensions", &[1, 3])])
        .domain(d)
        .node("ArrayFeatureExtractor", &["x", "one"], &["a"], &[])
        .domain(d)
        .outputs(&["b", "s", "n", "i", "h", "v", "a"]);
    gives(
        &ml(build, 1),
        &[x32(&[2, 2], &[1.0, 3.0, 0.0, 0.0])],
        &[
            (&[2, 2], &[0.0, 1.0, 0.0, 0.0]),
            (&[2, 2], &[0.0, 6.0, -2.0, -3.0]),
            (&[2, 2], &[0.25, 0.75, 0.0, 0.0]),
            (&[2, 2], &[1.0, 8.0, 0.0, 0.0]),
            (&[2, 2, 2], &[0.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0, 1.0]),
            (&[2, 4], &[1.0, 1.0, 3.0, 0.0, 0.0, 0.0, 0.0, 0.0]),
            (&[2, 1], &[3.0, 0.0]),
        ],
    );
}

#[test]
fn ml_linear_models() {
    let d = "ai.onnx.ml";
    let build = Build::new()
        .input("x", F32, &["2", "2"])
        .node(
            "LinearRegressor",
            &["x"],
            &["r"],
            &[floats("coefficients", &[1.0, 2.0, -1.0, 0.0]), floats("intercepts", &[0.5, 0.0]), int("targets", 2)],
        )
        .domain(d)
        .node(
            "LinearClassifier",
            &["x"],
            &["y", "z"],
            &[floats("coefficients", &[1.0, -1.0]), floats("intercepts", &[0.0]), ints("classlabels_ints", &[5, 9])],
        )
        .domain(d)
        .outputs(&["r", "y", "z"]);
    gives(
        &ml(build, 1),
        &[x32(&[2, 2], &[1.0, 3.0, 2.0, 0.0])],
        &[(&[2, 2], &[7.5, -1.0, 2.5, -2.0]), (&[2], &[5.0, 9.0]), (&[2, 2], &[2.0, -2.0, -2.0, 2.0])],
    );
}

#[test]
fn ml_legacy_tree_ensembles() {
    let weights = [0.25, 0.75];
    let regressor = [stump("target", [0, 0], weights), vec![floats("base_values", &[1.0])]].concat();
    let classifier = [stump("class", [0, 0], weights), vec![ints("classlabels_int64s", &[4, 6])]].concat();
    let build = Build::new()
        .input("x", F32, &["2", "1"])
        .node("TreeEnsembleRegressor", &["x"], &["r"], &regressor)
        .domain("ai.onnx.ml")
        .node("TreeEnsembleClassifier", &["x"], &["y", "z"], &classifier)
        .domain("ai.onnx.ml")
        .outputs(&["r", "y", "z"]);
    gives(
        &ml(build, 3),
        &[x32(&[2, 1], &[0.0, 1.0])],
        &[(&[2, 1], &[1.25, 1.75]), (&[2], &[4.0, 6.0]), (&[2, 2], &[0.75, 0.25, 0.25, 0.75])],
    );
}

#[test]
fn ml_support_vector_machines() {
    let d = "ai.onnx.ml";
    let build = Build::new()
        .input("x", F32, &["2", "1"])
        .node(
            "SVMRegressor",
            &["x"],
            &["r"],
            &[
                floats("coefficients", &[1.0, -2.0]),
                floats("support_vectors", &[0.0, 1.0]),
                floats("rho", &[0.5]),
                int("n_supports", 2),
                text("kernel_type", "POLY"),
                floats("kernel_params", &[1.0, 1.0, 2.0]),
            ],
        )
        .domain(d)
        .node(
            "SVMClassifier",
            &["x"],
            &["y", "z"],
            &[
                floats("coefficients", &[1.0, -1.0]),
                floats("support_vectors", &[2.0, -2.0]),
                ints("vectors_per_class", &[1, 1]),
                floats("rho", &[0.0]),
                ints("classlabels_ints", &[3, 8]),
            ],
        )
        .domain(d)
        .outputs(&["r", "y", "z"]);
    gives(
        &ml(build, 1),
        &[x32(&[2, 1], &[1.0, -1.0])],
        // 1 * (0 + 1)² - 2 (x + 1)² + 0.5; then 2x - -2x = 4x.
        &[(&[2, 1], &[-6.5, 1.5]), (&[2], &[3.0, 8.0]), (&[2, 2], &[-4.0, 4.0, 4.0, -4.0])],
    );
}

#[test]
fn lists_of_maps_are_values_and_keys() {
    let build = Build::new()
        .input("x", F32, &["N", "2"])
        .node("ZipMap", &["x"], &["y"], &[texts("classlabels_strings", &["b", "a"])])
        .domain("ai.onnx.ml")
        .node("Neg", &["x"], &["z"], &[])
        .outputs(&["y", "z"]);
    let imported = import(&ml(build, 1)).unwrap();
    verified(&imported.module);
    assert_eq!(imported.module.main().unwrap().outputs, ["y", "z", "y.keys"]);
    assert!(imported.warnings.0[0].message.contains("'y' is a list of maps"), "{}", imported.warnings);
    let got = run(&imported.module, &[x32(&[1, 2], &[1.0, 2.0])]);
    assert_eq!(numbers(&got[0]), (vec![1, 2], vec![1.0, 2.0]));
    let of_ops::Value::Tensor(keys) = &got[2] else { panic!("{:?}", got[2]) };
    assert_eq!(keys.strings().unwrap(), ["b", "a"]);
    let build = Build::new()
        .input("x", F32, &["N", "2"])
        .node("ZipMap", &["x"], &["y"], &[ints("classlabels_int64s", &[1])])
        .domain("ai.onnx.ml")
        .outputs(&["y"]);
    refused(&bad(&ml(build, 1)), Code::MODEL, &["1 labels are given for 2 columns"]);
}

#[test]
fn maps_are_inputs_of_values_and_keys() {
    let model = |op: &str, attrs: &[AttributeProto]| {
        let build = Build::new().map("m", I64, F32).node(op, &["m"], &["y"], attrs).domain("ai.onnx.ml");
        ml(build.outputs(&["y"]), 1)
    };
    let map = || [x32(&[3], &[0.5, 1.5, 2.5]), of_ir::Tensor::from_i64s(&[4, 0, 2])];
    let vocabulary = model("DictVectorizer", &[ints("int64_vocabulary", &[0, 1, 2])]);
    assert_eq!(good(&vocabulary).main().unwrap().inputs, ["m", "m.keys"]);
    gives(&vocabulary, &map(), &[(&[1, 3], &[1.5, 0.0, 2.5])]);
    gives(&model("CastMap", &[]), &map(), &[(&[1, 3], &[1.5, 2.5, 0.5])]);
    let sparse = [text("map_form", "SPARSE"), int("max_map", 5)];
    gives(&model("CastMap", &sparse), &map(), &[(&[1, 5], &[1.5, 0.0, 2.5, 0.0, 0.5])]);
    let other = model("DictVectorizer", &[texts("string_vocabulary", &["a"])]);
    refused(&bad(&other), Code::MODEL, &["the keys are i64"]);
    // What is no map is not one.
    let plain = Build::new().input("x", F32, &["3"]).node("CastMap", &["x"], &["y"], &[]).domain("ai.onnx.ml");
    refused(&bad(&ml(plain.outputs(&["y"]), 1)), Code::MODEL, &["must be a map"]);
}

#[test]
fn non_max_suppression_drops_overlaps() {
    let model = Build::new()
        .input("boxes", F32, &["1", "3", "4"])
        .input("scores", F32, &["1", "1", "3"])
        .init(i64s("most", &[1], &[3]))
        .init(f32s("iou", &[1], &[0.5]))
        .node("NonMaxSuppression", &["boxes", "scores", "most", "iou"], &["y"], &[])
        .outputs(&["y"])
        .model(11);
    let boxes = x32(&[1, 3, 4], &[0.0, 0.0, 1.0, 1.0, 0.0, 0.1, 1.0, 1.1, 0.0, 2.0, 1.0, 3.0]);
    let scores = x32(&[1, 1, 3], &[0.9, 0.95, 0.3]);
    gives(&model, &[boxes, scores], &[(&[2, 3], &[0.0, 0.0, 1.0, 0.0, 0.0, 2.0])]);
}
