//! Every operator of ai.onnx.ml that the page of operators lists is imported, in every set that it lists.

mod support;

use of_onnx::proto::AttributeProto;
use of_onnx::proto::tensor_proto::DataType;
use of_onnx::{Support, operators};
use support::*;

const DOMAIN: &str = "ai.onnx.ml";

fn doubles(name: &str, values: &[f32]) -> AttributeProto {
    tensor(name, f32s("", &[values.len()], values))
}

/// The inputs and the attributes of a small node of an operator; `None` for an operator without a case.
fn node_of(op: &str, version: i64) -> Option<(&'static [&'static str], Vec<AttributeProto>)> {
    let x: &[&str] = &["x"];
    Some(match op {
        "ArrayFeatureExtractor" => (&["x", "one"], vec![]),
        "Binarizer" => (x, vec![float("threshold", 1.0)]),
        "CastMap" => (&["m"], vec![]),
        "CategoryMapper" => (&["i"], vec![texts("cats_strings", &["a", "b"]), ints("cats_int64s", &[0, 1])]),
        "DictVectorizer" => (&["m"], vec![ints("int64_vocabulary", &[1, 2])]),
        "FeatureVectorizer" => (&["x", "x"], vec![ints("inputdimensions", &[2, 2])]),
        "Imputer" => (x, vec![floats("imputed_value_floats", &[7.0, 8.0])]),
        "LabelEncoder" if version == 1 => (&["i"], vec![texts("classes_strings", &["a", "b"])]),
        "LabelEncoder" if version < 4 => (&["i"], vec![ints("keys_int64s", &[0]), floats("values_floats", &[0.5])]),
        "LabelEncoder" => (&["i"], vec![tensor("keys_tensor", i64s("", &[1], &[0])), doubles("values_tensor", &[0.5])]),
        "LinearClassifier" => (x, vec![floats("coefficients", &[1.0; 4]), ints("classlabels_ints", &[0, 1])]),
        "LinearRegressor" => (x, vec![floats("coefficients", &[1.0, 2.0])]),
        "Normalizer" => (x, vec![text("norm", "L2")]),
        "OneHotEncoder" => (&["i"], vec![ints("cats_int64s", &[3, 0])]),
        "SVMClassifier" => (
            x,
            vec![floats("coefficients", &[1.0; 4]), ints("classlabels_ints", &[0, 1]), text("kernel_type", "LINEAR")],
        ),
        "SVMRegressor" => {
            let vector = [floats("support_vectors", &[1.0, 2.0]), int("n_supports", 1), floats("coefficients", &[1.0])];
            (x, [&vector[..], &[floats("rho", &[0.5]), text("kernel_type", "LINEAR")]].concat())
        }
        "Scaler" => (x, vec![floats("offset", &[1.0]), floats("scale", &[2.0])]),
        "TreeEnsemble" => {
            let (zero, one) = (ints("nodes_truenodeids", &[0]), ints("nodes_falsenodeids", &[1]));
            let leafs = [ints("nodes_trueleafs", &[1]), ints("nodes_falseleafs", &[1])];
            let splits = [ints("nodes_featureids", &[0]), doubles("nodes_splits", &[0.5]), ints("tree_roots", &[0])];
            let modes = tensor("nodes_modes", raw("", DataType::Uint8, &[1], vec![0]));
            let leaves = [ints("leaf_targetids", &[0, 0]), doubles("leaf_weights", &[1.0, 2.0])];
            (x, [&[zero, one, modes][..], &leafs, &splits, &leaves].concat())
        }
        "TreeEnsembleClassifier" => {
            (x, [stump("class", [0, 1], [1.0, 2.0]), vec![ints("classlabels_int64s", &[0, 1])]].concat())
        }
        "TreeEnsembleRegressor" => (x, [stump("target", [0, 1], [1.0, 2.0]), vec![int("n_targets", 2)]].concat()),
        "ZipMap" => (x, vec![texts("classlabels_strings", &["a", "b"])]),
        _ => return None,
    })
}

#[test]
fn every_listed_operator_is_imported_in_every_set() {
    let listed: Vec<_> = operators().into_iter().filter(|o| o.domain == DOMAIN).collect();
    assert!(listed.len() > 15, "{} operators", listed.len());
    for o in listed {
        assert!(!matches!(o.support, Support::Refused(_)), "{} is refused", o.name);
        for version in o.sets[0]..=o.sets[1] {
            let (inputs, attributes) = node_of(o.name, version).unwrap_or_else(|| panic!("{} has no case", o.name));
            let outputs: &[&str] = if o.name.ends_with("Classifier") { &["y", "z"] } else { &["y"] };
            let mut build = Build::new().node(o.name, inputs, outputs, &attributes).domain(DOMAIN).outputs(&["y"]);
            if inputs.contains(&"x") {
                build = build.input("x", F32, &["2", "2"]);
            }
            if inputs.contains(&"i") {
                build = build.input("i", I64, &["2"]);
            }
            if inputs.contains(&"one") {
                build = build.init(i64s("one", &[1], &[1]));
            }
            if inputs.contains(&"m") {
                build = build.map("m", I64, F32);
            }
            let mut model = build.model(21);
            model.opset_import.push(set(DOMAIN, version));
            let imported = import(&model).unwrap_or_else(|e| panic!("{} of set {version}: {e}", o.name));
            verified(&imported.module);
        }
    }
}
