//! Ensembles: models that are merged into one plan.

use std::path::Path;

use crate::clients::run;
use crate::common::{Client, digits_plan, example, options, put, start};
use of_serving::ControlMode;
use of_test_support::component::{TRITONCLIENT, python_with, require};
use serde_json::{Value, json};

/// A model that doubles images.
const DOUBLE: &str = r#"func @main(%x: tensor<?(N)x1x8x8xf32> {of.name = "raw"}) -> (tensor<?(N)x1x8x8xf32> {of.name = "doubled"}) {
  %y = of.add %x, %x : (tensor<?(N)x1x8x8xf32>, tensor<?(N)x1x8x8xf32>) -> tensor<?(N)x1x8x8xf32>
  of.return %y : (tensor<?(N)x1x8x8xf32>) -> ()
}"#;

/// A model that negates scores, whose extents have the names of other extents elsewhere.
const NEGATE: &str = r#"func @main(%x: tensor<?(M)x?(N)xf32> {of.name = "in"}) -> (tensor<?(M)x?(N)xf32> {of.name = "out"}) {
  %y = of.neg %x : (tensor<?(M)x?(N)xf32>) -> tensor<?(M)x?(N)xf32>
  of.return %y : (tensor<?(M)x?(N)xf32>) -> ()
}"#;

/// As [`DOUBLE`], for one image.
const ONE: &str = r#"func @main(%x: tensor<1x1x8x8xf32> {of.name = "raw"}) -> (tensor<1x1x8x8xf32> {of.name = "doubled"}) {
  %y = of.add %x, %x : (tensor<1x1x8x8xf32>, tensor<1x1x8x8xf32>) -> tensor<1x1x8x8xf32>
  of.return %y : (tensor<1x1x8x8xf32>) -> ()
}"#;

/// A step of a configuration.
fn step(model: &str, inputs: &[(&str, &str)], outputs: &[(&str, &str)]) -> String {
    let map = |kind: &str, list: &[(&str, &str)]| -> String {
        list.iter().map(|(key, value)| format!(" {kind} {{ key: \"{key}\" value: \"{value}\" }}")).collect()
    };
    format!(
        "step {{ model_name: \"{model}\" model_version: -1{}{} }}",
        map("input_map", inputs),
        map("output_map", outputs)
    )
}

/// The configuration of an ensemble of images and scores.
fn config(steps: &[String]) -> String {
    format!(
        "platform: \"ensemble\" max_batch_size: 8
        input {{ name: \"image\" data_type: TYPE_FP32 dims: [ 1, 8, 8 ] }}
        output {{ name: \"scores\" data_type: TYPE_FP32 dims: [ 10 ] }}
        ensemble_scheduling {{ {} }}",
        steps.join(" ")
    )
}

/// The steps of a chain: an image is doubled, recognised, and its scores are negated.
fn chain() -> [String; 3] {
    // In no order.
    [
        step("negate", &[("in", "probability")], &[("out", "scores")]),
        step("double", &[("raw", "image")], &[("doubled", "prepared")]),
        step("digits", &[("image", "prepared")], &[("probability", "probability")]),
    ]
}

/// A repository with models as text, the digits as ONNX, and a chain of them.
fn models() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in [("double", DOUBLE), ("negate", NEGATE), ("one", ONE)] {
        put(dir.path(), &format!("{name}/1/model.of"), text.as_bytes());
        put(dir.path(), &format!("{name}/config.pbtxt"), b"default_model_filename: \"model.of\"");
    }
    put(dir.path(), "digits/1/model.onnx", &std::fs::read(example("digits.onnx")).unwrap());
    ensemble(dir.path(), "chain", &config(&chain()));
    dir
}

/// Writes an ensemble: its folder of the version is empty.
fn ensemble(dir: &Path, name: &str, config: &str) {
    std::fs::create_dir_all(dir.join(name).join("1")).unwrap();
    put(dir, &format!("{name}/config.pbtxt"), config.as_bytes());
}

fn infer(client: &mut Client, model: &str, input: &str, shape: &[usize], data: &Value) -> Value {
    let request = json!({"inputs": [{"name": input, "shape": shape, "datatype": "FP32", "data": data}]});
    let answer = client.post(&format!("/v2/models/{model}/infer"), request.to_string().as_bytes());
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()["outputs"][0]["data"].clone()
}

#[test]
fn an_ensemble_gives_what_its_models_give_one_after_the_other() {
    let dir = models();
    let server = start(options(&[dir.path()]));
    let mut client = Client::new(&server);
    let metadata = client.get("/v2/models/chain").json();
    assert_eq!(metadata["platform"], "ensemble");
    assert_eq!(metadata["inputs"], json!([{"name": "image", "datatype": "FP32", "shape": [-1, 1, 8, 8]}]));
    assert_eq!(metadata["outputs"], json!([{"name": "scores", "datatype": "FP32", "shape": [-1, 10]}]));
    let config = client.get("/v2/models/chain/config").json();
    assert_eq!(config["ensemble_scheduling"]["step"][1]["input_map"], json!({"raw": "image"}));
    let pixels: Vec<f32> = (0..2 * 64).map(|i| (i * 7 % 9) as f32 * 0.5).collect();
    let doubled = infer(&mut client, "double", "raw", &[2, 1, 8, 8], &json!(pixels));
    let probability = infer(&mut client, "digits", "image", &[2, 1, 8, 8], &doubled);
    let expected = infer(&mut client, "negate", "in", &[2, 10], &probability);
    let scores = infer(&mut client, "chain", "image", &[2, 1, 8, 8], &json!(pixels));
    let floats = |values: &Value| -> Vec<f64> {
        values.as_array().unwrap().iter().map(|value| value.as_f64().unwrap()).collect()
    };
    assert_eq!(floats(&scores).len(), 20);
    // Another plan may round otherwise.
    assert!(floats(&scores).iter().zip(floats(&expected)).all(|(a, b)| (a - b).abs() < 1e-5), "{scores} {expected}");
    let stats = client.get("/v2/models/digits/stats").json();
    assert_eq!(stats["model_stats"][0]["execution_count"], 1, "the ensemble is a plan of its own");
}

#[test]
fn a_step_with_fixed_extents_fixes_those_of_the_ensemble() {
    let dir = models();
    let steps = [
        step("double", &[("raw", "image")], &[("doubled", "prepared")]),
        step("one", &[("raw", "prepared")], &[("doubled", "scores")]),
    ];
    let text = config(&steps).replace("max_batch_size: 8", "").replace("[ 1, 8, 8 ]", "[ 1, 1, 8, 8 ]");
    ensemble(dir.path(), "fixed", &text.replace("[ 10 ]", "[ 1, 1, 8, 8 ]"));
    let server = start(options(&[dir.path()]));
    let mut client = Client::new(&server);
    assert_eq!(client.get("/v2/models/fixed").json()["inputs"][0]["shape"], json!([1, 1, 8, 8]));
    let data = infer(&mut client, "fixed", "image", &[1, 1, 8, 8], &json!(vec![1.5; 64]));
    assert_eq!(data, json!(vec![6.0; 64]));
}

#[test]
fn mistakes_are_listed_with_the_name_of_the_step() {
    let dir = models();
    put(dir.path(), "compiled/1/model.plan", digits_plan());
    let [negate, double, digits] = chain();
    let cases = [
        (vec![step("none", &[], &[])], "step 'none': there is no such model"),
        (
            vec![step("compiled", &[("image", "image")], &[("probability", "scores")])],
            "is compiled already, and an ensemble is compiled as a whole: put model.onnx next to it",
        ),
        (vec![step("chain", &[("image", "image")], &[("scores", "scores")])], "it is an ensemble itself"),
        (vec![step("digits", &[("image", "image")], &[("y", "scores")])], "step 'digits': the model has no output 'y'"),
        (vec![step("digits", &[("x", "image")], &[])], "step 'digits': the model has no input 'x'"),
        (vec![step("digits", &[], &[("probability", "scores")])], "step 'digits': input 'image' reads no tensor"),
        (vec![double.clone(), negate.clone()], "step 'negate': input 'in' reads 'probability', which is no input"),
        (
            vec![double.clone(), step("negate", &[("in", "prepared")], &[("out", "scores")])],
            "step 'negate': input 'in' is tensor<?(M)x?(N_2)xf32>, and 'prepared', output 'doubled' of step 'double'",
        ),
        (vec![negate.clone(), double.clone(), digits.clone(), digits], "the tensor 'probability' has two sources"),
        (vec![double], "the ensemble's output 'scores' is no tensor of a step"),
        (
            vec![
                step("negate", &[("in", "scores")], &[("out", "image2")]),
                step("negate", &[("in", "image2")], &[("out", "scores")]),
            ],
            "wait for one another",
        ),
        (
            vec![step("double", &[("raw", "image")], &[("doubled", "scores")])],
            "is f32 [1, 8, 8] in its models, and f32 [10]",
        ),
    ];
    for (number, (steps, _)) in cases.iter().enumerate() {
        ensemble(dir.path(), &format!("e{number}"), &config(steps));
    }
    let server = start(options(&[dir.path()]));
    let index = Client::new(&server).post("/v2/repository/index", b"{}").json();
    for (number, (_, what)) in cases.iter().enumerate() {
        let entry = index.as_array().unwrap().iter().find(|m| m["name"] == format!("e{number}")).unwrap();
        assert!(entry["reason"].as_str().unwrap_or_default().contains(what), "{what}: {entry}");
    }
}

#[test]
fn an_ensemble_follows_the_files_of_its_models() {
    let dir = models();
    let mut options = options(&[dir.path()]);
    options.repository.control = ControlMode::Poll;
    options.repository.poll = std::time::Duration::from_millis(20);
    let server = start(options);
    let mut client = Client::new(&server);
    let pixels = json!(vec![1.0; 64]);
    let before = infer(&mut client, "chain", "image", &[1, 1, 8, 8], &pixels);
    // Scores are kept instead of negated.
    let kept = NEGATE.replace("of.neg %x : (", "of.abs %x : (");
    put(dir.path(), "negate/1/model.of", kept.as_bytes());
    crate::common::wait_for("the other model", || {
        let now = infer(&mut Client::new(&server), "chain", "image", &[1, 1, 8, 8], &pixels);
        now[0].as_f64().unwrap() == -before[0].as_f64().unwrap()
    });
}

#[test]
fn tritonclient_runs_an_ensemble() {
    let modules = ["numpy", "tritonclient.http", "tritonclient.grpc"];
    let Some(python) = require(&TRITONCLIENT, python_with(&modules)) else { return };
    let dir = models();
    run(&python, "ensembles.py", &start(options(&[dir.path()])));
}
