//! Every operator of ai.onnx.ml that the page of operators lists is imported, in every set that it lists.

mod support;

use of_onnx::proto::tensor_proto::DataType;
use of_onnx::proto::{AttributeProto, TypeProto, ValueInfoProto, type_proto};
use of_onnx::{Support, operators};
use support::*;

const DOMAIN: &str = "ai.onnx.ml";

fn doubles(name: &str, values: &[f32]) -> AttributeProto {
    tensor(name, f32s("", &[values.len()], values))
}

/// The nodes of a tree of one split, with its votes under `votes`.
fn tree(votes: &str) -> Vec<AttributeProto> {
    let mut attributes = vec![
        ints("nodes_treeids", &[0, 0, 0]),
        ints("nodes_nodeids", &[0, 1, 2]),
        texts("nodes_modes", &["BRANCH_LEQ", "LEAF", "LEAF"]),
        floats("nodes_values", &[0.5, 0.0, 0.0]),
        ints("nodes_featureids", &[0, 0, 0]),
        ints("nodes_truenodeids", &[1, 0, 0]),
        ints("nodes_falsenodeids", &[2, 0, 0]),
    ];
    for (name, list) in [("treeids", [0, 0]), ("nodeids", [1, 2]), ("ids", [0, 1])] {
        attributes.push(ints(&format!("{votes}_{name}"), &list));
    }
    attributes.push(floats(&format!("{votes}_weights"), &[1.0, 2.0]));
    attributes
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
        "TreeEnsembleClassifier" => (x, [tree("class"), vec![ints("classlabels_int64s", &[0, 1])]].concat()),
        "TreeEnsembleRegressor" => (x, [tree("target"), vec![int("n_targets", 2)]].concat()),
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
                let map = type_proto::Map { key_type: Some(I64 as i32), value_type: Some(Box::new(ty(F32, &[]))) };
                let ty = TypeProto { value: Some(type_proto::Value::MapType(Box::new(map))), ..TypeProto::default() };
                let info = ValueInfoProto { name: Some("m".into()), r#type: Some(ty), ..ValueInfoProto::default() };
                build.0.input.push(info);
            }
            let mut model = build.model(21);
            model.opset_import.push(set(DOMAIN, version));
            let imported = import(&model).unwrap_or_else(|e| panic!("{} of set {version}: {e}", o.name));
            verified(&imported.module);
        }
    }
}
