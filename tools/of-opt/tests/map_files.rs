//! Files of maps: inputs and expected outputs whose type is a map or a list of maps.

use std::path::Path;
use std::process::Command;

use of_onnx::proto::tensor_proto::DataType;
use of_onnx::proto::type_proto::{self, Value as TypeValue};
use of_onnx::proto::{
    AttributeProto, GraphProto, MapProto, ModelProto, NodeProto, OperatorSetIdProto, SequenceProto, TensorProto,
    TypeProto, ValueInfoProto, attribute_proto,
};
use prost::Message;

fn tensor_type() -> TypeProto {
    let tensor = type_proto::Tensor { elem_type: Some(DataType::Float as i32), shape: None };
    TypeProto { value: Some(TypeValue::TensorType(tensor)), ..TypeProto::default() }
}

fn map_type() -> TypeProto {
    let map = type_proto::Map { key_type: Some(DataType::String as i32), value_type: Some(Box::new(tensor_type())) };
    TypeProto { value: Some(TypeValue::MapType(Box::new(map))), ..TypeProto::default() }
}

fn node(domain: &str, op: &str, inputs: &[&str], output: &str, texts: Option<(&str, &[&str])>) -> NodeProto {
    let attribute = texts.map(|(name, list)| AttributeProto {
        name: Some(name.into()),
        r#type: Some(attribute_proto::AttributeType::Strings as i32),
        strings: list.iter().map(|s| (*s).to_owned().into()).collect(),
        ..AttributeProto::default()
    });
    NodeProto {
        op_type: Some(op.into()),
        domain: Some(domain.into()),
        input: inputs.iter().map(|i| (*i).into()).collect(),
        output: vec![output.into()],
        attribute: attribute.into_iter().collect(),
        ..NodeProto::default()
    }
}

/// `maps`, a list of one map with the keys `u` and `v`: the map `m` by the vocabulary of `a` and `b`, plus `x`.
fn model() -> Vec<u8> {
    let value = |name: &str, ty| ValueInfoProto { name: Some(name.into()), r#type: ty, ..ValueInfoProto::default() };
    let graph = GraphProto {
        name: Some("g".into()),
        input: vec![value("m", Some(map_type())), value("x", Some(tensor_type()))],
        node: vec![
            node("ai.onnx.ml", "DictVectorizer", &["m"], "v", Some(("string_vocabulary", &["a", "b"]))),
            node("", "Add", &["v", "x"], "sum", None),
            node("ai.onnx.ml", "ZipMap", &["sum"], "maps", Some(("classlabels_strings", &["u", "v"]))),
        ],
        output: vec![value("maps", None)],
        ..GraphProto::default()
    };
    let set = |domain: &str, version| OperatorSetIdProto { domain: Some(domain.into()), version: Some(version) };
    let opset_import = vec![set("", 21), set("ai.onnx.ml", 1)];
    ModelProto { ir_version: Some(10), opset_import, graph: Some(graph), ..ModelProto::default() }.encode_to_vec()
}

fn tensor(dims: &[i64], values: &[f32]) -> TensorProto {
    TensorProto {
        dims: dims.to_vec(),
        data_type: Some(DataType::Float as i32),
        float_data: values.to_vec(),
        ..TensorProto::default()
    }
}

fn map(pairs: &[(&str, f32)]) -> MapProto {
    let tensor_values = pairs.iter().map(|(_, v)| tensor(&[], &[*v])).collect();
    MapProto {
        key_type: Some(DataType::String as i32),
        string_keys: pairs.iter().map(|(k, _)| (*k).to_owned().into()).collect(),
        values: Some(SequenceProto { tensor_values, ..SequenceProto::default() }),
        ..MapProto::default()
    }
}

fn write(path: &Path, message: &impl Message) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, message.encode_to_vec()).unwrap();
}

#[test]
fn maps_are_read_as_inputs_and_as_expected_outputs() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    std::fs::write(at("m.onnx"), model()).unwrap();
    // The files are those of the model's own inputs: the map is one of them.
    write(&at("in/input_0.pb"), &map(&[("b", 2.0), ("c", 9.0), ("a", 1.0)]));
    write(&at("in/input_1.pb"), &tensor(&[1, 2], &[10.0, 20.0]));
    let list = |pairs: &[(&str, f32)]| SequenceProto { map_values: vec![map(pairs)], ..SequenceProto::default() };
    write(&at("right/output_0.pb"), &list(&[("v", 22.0), ("u", 11.0)]));
    write(&at("wrong/output_0.pb"), &list(&[("v", 11.0), ("u", 22.0)]));
    write(&at("keys/output_0.pb"), &list(&[("v", 22.0), ("w", 11.0)]));
    let run = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_of-opt"));
        let done = command.current_dir(dir.path()).arg("run").arg("m.onnx").args(arguments).output().unwrap();
        let text = String::from_utf8_lossy(&done.stdout) + String::from_utf8_lossy(&done.stderr);
        (done.status.code(), text.into_owned())
    };
    for (inputs, expected, code, said) in [
        ("in", "right", Some(0), "2 outputs match"),
        ("in", "wrong", Some(1), "maps differs"),
        ("in", "keys", Some(1), "maps.keys differs"),
    ] {
        let (status, text) = run(&["--inputs", inputs, "--expect", expected]);
        assert!(status == code && text.contains(said), "{expected}: {text}");
    }
    let (status, text) = run(&["--inputs", "m=in/input_0.pb", "x=in/input_1.pb", "--expect", "right"]);
    assert_eq!(status, Some(0), "{text}");
    // A map without its values.
    write(&at("bad/input_0.pb"), &MapProto { values: Some(SequenceProto::default()), ..map(&[("a", 1.0)]) });
    let (status, text) = run(&["--inputs", "bad"]);
    assert!(status == Some(2) && text.contains("bad/input_0.pb: "), "{text}");
}
