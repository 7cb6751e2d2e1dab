//! Sequences of requests: state that the server keeps, in variables of a plan and in inputs that are outputs of the request before.

use std::path::Path;
use std::sync::Barrier;
use std::time::Duration;

use crate::common::{Answer, Client, digits_plan, options, put, repository, start, text_plan, variable_plan, wait_for};
use of_serving::ControlMode;
use of_test_support::component::{TRITONCLIENT, python_with, require};
use serde_json::{Value, json};

/// A running sum of rows; `first` says where one begins.
const SUM: &str = r#"func @main(%x: tensor<?(N)x2xf32> {of.name = "x"}, %s: tensor<?(N)x2xf32> {of.name = "past"}) -> (tensor<?(N)x2xf32> {of.name = "y"}, tensor<?(N)x2xf32> {of.name = "present"}) {
  %n = of.add %s, %x : (tensor<?(N)x2xf32>, tensor<?(N)x2xf32>) -> tensor<?(N)x2xf32>
  %y = of.neg %n : (tensor<?(N)x2xf32>) -> tensor<?(N)x2xf32>
  of.return %y, %n : (tensor<?(N)x2xf32>, tensor<?(N)x2xf32>) -> ()
}"#;

/// The same with fixed extents, for a variable.
const FIXED: &str = r#"func @main(%x: tensor<1x2xf32> {of.name = "x"}, %s: tensor<1x2xf32> {of.name = "past"}) -> (tensor<1x2xf32> {of.name = "y"}, tensor<1x2xf32> {of.name = "present"}) {
  %n = of.add %s, %x : (tensor<1x2xf32>, tensor<1x2xf32>) -> tensor<1x2xf32>
  %y = of.neg %n : (tensor<1x2xf32>) -> tensor<1x2xf32>
  of.return %y, %n : (tensor<1x2xf32>, tensor<1x2xf32>) -> ()
}"#;

/// What the server says in the control inputs.
const CONTROLS: &str = r#"func @main(%x: tensor<1xf32> {of.name = "x"}, %a: tensor<1xf32> {of.name = "START"}, %b: tensor<1xf32> {of.name = "END"}, %c: tensor<1xui64> {of.name = "ID"}) -> (tensor<1xf32> {of.name = "start"}, tensor<1xf32> {of.name = "end"}, tensor<1xui64> {of.name = "id"}) {
  %p = of.add %a, %x : (tensor<1xf32>, tensor<1xf32>) -> tensor<1xf32>
  %q = of.add %b, %x : (tensor<1xf32>, tensor<1xf32>) -> tensor<1xf32>
  of.return %p, %q, %c : (tensor<1xf32>, tensor<1xf32>, tensor<1xui64>) -> ()
}"#;

const STATE: &str = "state [ { input_name: \"past\" output_name: \"present\" data_type: TYPE_FP32 dims: [ 2 ] } ]";

/// A repository with a sum in a state, one in a variable, and a model with control inputs.
fn sums() -> tempfile::TempDir {
    let dir = repository();
    put(dir.path(), "state/1/model.plan", &text_plan(SUM));
    let config = format!("max_batch_size: 8 sequence_batching {{ oldest {{ max_candidate_sequences: 3 }} {STATE} }}");
    put(dir.path(), "state/config.pbtxt", config.as_bytes());
    put(dir.path(), "variable/1/model.plan", &variable_plan(FIXED, "present=past:zeros"));
    put(dir.path(), "controls/1/model.plan", &text_plan(CONTROLS));
    let control = |name: &str, kind: &str| {
        format!("{{ name: \"{name}\" control {{ kind: CONTROL_SEQUENCE_{kind} fp32_false_true: [ 5, 7 ] }} }}")
    };
    let id = "{ name: \"ID\" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } }";
    let config = format!(
        "sequence_batching {{ control_input [ {}, {}, {id} ] }}",
        control("START", "START"),
        control("END", "END")
    );
    put(dir.path(), "controls/config.pbtxt", config.as_bytes());
    dir
}

/// A request of a sequence.
fn step(client: &mut Client, model: &str, id: impl Into<Value>, flags: &str, x: f32) -> Answer {
    let (start, end) = (flags.contains('s'), flags.contains('e'));
    let request = json!({
        "inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [x, 2.0 * x]}],
        "parameters": {"sequence_id": id.into(), "sequence_start": start, "sequence_end": end},
    });
    client.post(&format!("/v2/models/{model}/infer"), request.to_string().as_bytes())
}

/// The sum that a request gives.
fn sum(answer: &Answer) -> f64 {
    assert_eq!(answer.status, 200, "{}", answer.text());
    let data = answer.json()["outputs"][0]["data"].clone();
    assert_eq!(data[1], 2.0 * data[0].as_f64().unwrap());
    -data[0].as_f64().unwrap()
}

fn refused(answer: &Answer, status: u16, what: &str) {
    assert!(answer.status == status && answer.text().contains(what), "{} {}", answer.status, answer.text());
}

#[test]
fn sequences_keep_their_state_apart() {
    let dir = sums();
    let server = start(options(&[dir.path()]));
    let mut client = Client::new(&server);
    for model in ["state", "variable"] {
        let outputs = client.get(&format!("/v2/models/{model}")).json();
        assert_eq!(
            (outputs["inputs"].as_array().unwrap().len(), outputs["outputs"][0]["name"].clone()),
            (1, json!("y"))
        );
        assert_eq!(sum(&step(&mut client, model, 1, "s", 1.0)), 1.0);
        assert_eq!(sum(&step(&mut client, model, "a", "s", 10.0)), 10.0);
        assert_eq!(sum(&step(&mut client, model, 1, "", 2.0)), 3.0);
        assert_eq!(sum(&step(&mut client, model, 1, "", 2.0)), 5.0);
        assert_eq!(sum(&step(&mut client, model, "a", "", 20.0)), 30.0);
        assert_eq!(sum(&step(&mut client, model, "a", "e", 1.0)), 31.0);
        refused(&step(&mut client, model, "a", "", 1.0), 400, "sequence a of model");
        assert_eq!(sum(&step(&mut client, model, 1, "s", 4.0)), 4.0, "a sequence begins again");
        assert_eq!(sum(&step(&mut client, model, 1, "e", 4.0)), 8.0);
        refused(&step(&mut client, model, 1, "", 1.0), 400, "is not in progress");
        assert_eq!(sum(&step(&mut client, model, 9, "se", 4.0)), 4.0);
        refused(&step(&mut client, model, 0, "s", 1.0), 400, "needs a sequence_id");
        refused(&step(&mut client, model, "x".repeat(129), "s", 1.0), 400, "at most 128");
        refused(&step(&mut client, model, 1.5, "s", 1.0), 400, "neither a natural number nor a string");
    }
    let request = json!({"inputs": [{"name": "image", "shape": [1, 1, 8, 8], "datatype": "FP32", "data": vec![0.0; 64]}],
        "parameters": {"sequence_id": 1}});
    let answer = client.post("/v2/models/digits/infer", request.to_string().as_bytes());
    refused(&answer, 400, "keeps no state between requests");
    let metrics = Client::to(server.addresses().metrics.unwrap()).get("/metrics").text();
    assert!(metrics.contains("of_sequences{model=\"state\",version=\"1\"} 0"), "{metrics}");
    assert!(metrics.contains("of_sequences_started_total{model=\"variable\",version=\"1\"} 4"), "{metrics}");
}

#[test]
fn failed_requests_leave_the_state_as_it_was() {
    let dir = sums();
    let server = start(options(&[dir.path()]));
    let mut client = Client::new(&server);
    let wrong = |model: &str, start: bool| {
        let request = json!({"inputs": [{"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]}],
            "parameters": {"sequence_id": 5, "sequence_start": start}});
        Client::new(&server).post(&format!("/v2/models/{model}/infer"), request.to_string().as_bytes())
    };
    for model in ["state", "variable"] {
        refused(&wrong(model, true), 400, "dimension 1");
        refused(&step(&mut client, model, 5, "", 1.0), 400, "is not in progress");
        assert_eq!(sum(&step(&mut client, model, 5, "s", 1.0)), 1.0);
        refused(&wrong(model, false), 400, "dimension 1");
        assert_eq!(sum(&step(&mut client, model, 5, "", 1.0)), 2.0);
    }
}

#[test]
fn control_inputs_say_what_a_request_is() {
    let dir = sums();
    let server = start(options(&[dir.path()]));
    let mut client = Client::new(&server);
    let mut values = |id: Value, start: bool, end: bool| {
        let request = json!({"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [0]}],
            "parameters": {"sequence_id": id, "sequence_start": start, "sequence_end": end}});
        let answer = client.post("/v2/models/controls/infer", request.to_string().as_bytes());
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.json()["outputs"].as_array().unwrap().iter().map(|output| output["data"][0].clone()).collect::<Vec<_>>()
    };
    assert_eq!(values(json!(u64::MAX), true, false), [json!(7.0), json!(5.0), json!(u64::MAX)]);
    assert_eq!(values(json!(u64::MAX), false, true), [json!(5.0), json!(7.0), json!(u64::MAX)]);
    let request = json!({"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [0]}],
        "parameters": {"sequence_id": "text", "sequence_start": true}});
    let answer = client.post("/v2/models/controls/infer", request.to_string().as_bytes());
    refused(&answer, 400, "needs a number as sequence_id");
}

#[test]
fn there_are_at_most_so_many_sequences_and_idle_ones_end() {
    let dir = sums();
    let mut options = options(&[dir.path()]);
    options.repository.defaults.max_sequence_idle = Duration::from_millis(1500);
    let server = start(options);
    let mut client = Client::new(&server);
    for id in 1..=3 {
        assert_eq!(sum(&step(&mut client, "state", id, "s", 1.0)), 1.0);
    }
    refused(&step(&mut client, "state", 4, "s", 1.0), 429, "has 3 sequences in progress");
    assert_eq!(sum(&step(&mut client, "state", 3, "e", 1.0)), 2.0);
    assert_eq!(sum(&step(&mut client, "state", 4, "s", 1.0)), 1.0);
    let mut metrics = Client::to(server.addresses().metrics.unwrap());
    // The model gets no request meanwhile.
    wait_for("the end of idle sequences", || {
        metrics.get("/metrics").text().contains("of_sequences_timed_out_total{model=\"state\",version=\"1\"} 3")
    });
    refused(&step(&mut client, "state", 1, "", 1.0), 400, "was idle for 1.5 s");
}

#[test]
fn requests_of_different_sequences_are_batched() {
    let dir = sums();
    let mut options = options(&[dir.path()]);
    options.repository.defaults.max_queue_delay = Duration::from_millis(300);
    let server = start(options);
    let barrier = Barrier::new(3);
    std::thread::scope(|scope| {
        for id in 1..=3_u64 {
            let (barrier, server) = (&barrier, &server);
            scope.spawn(move || {
                let mut client = Client::new(server);
                let mut expected = 0.0;
                for round in 0..4 {
                    barrier.wait();
                    expected += (10 * id + round) as f64;
                    let flags = if round == 0 { "s" } else { "" };
                    let answer = step(&mut client, "state", id, flags, (10 * id + round) as f32);
                    assert_eq!(sum(&answer), expected);
                }
            });
        }
    });
    let stats = Client::new(&server).get("/v2/models/state/stats").json();
    let batches = stats["model_stats"][0]["batch_stats"].as_array().unwrap().clone();
    assert!(batches.iter().any(|batch| batch["batch_size"] == 3), "{batches:?}");
}

#[test]
fn a_version_that_is_replaced_finishes_its_sequences() {
    let dir = sums();
    let mut options = options(&[dir.path()]);
    options.repository.control = ControlMode::Explicit;
    options.repository.load = vec!["state".into()];
    let server = start(options);
    let mut client = Client::new(&server);
    for id in 1..=3 {
        assert_eq!(sum(&step(&mut client, "state", id, "s", 1.0)), 1.0);
    }
    // The next version doubles what it is given, before it adds it.
    put(dir.path(), "state/2/model.plan", &text_plan(&SUM.replace("of.add %s, %x", "of.add %x, %x")));
    assert_eq!(client.post("/v2/repository/models/state/load", b"").status, 200);
    assert_eq!(client.get("/v2/models/state").json()["versions"], json!(["2"]));
    assert_eq!(sum(&step(&mut client, "state", 1, "", 5.0)), 6.0, "it goes on where it began");
    assert_eq!(sum(&step(&mut client, "state", 9, "s", 5.0)), 10.0, "a new one begins in the new version");
    assert_eq!(sum(&step(&mut client, "state", 2, "s", 5.0)), 10.0, "as does one that begins again");
    assert_eq!(sum(&step(&mut client, "state", 2, "", 7.0)), 14.0);
    assert_eq!(sum(&step(&mut client, "state", 1, "e", 1.0)), 7.0);
    refused(&step(&mut client, "state", 1, "", 1.0), 400, "is not in progress");
    // Versions are replaced again while the first one still has sequences.
    assert_eq!(client.post("/v2/repository/models/state/load", b"").status, 200);
    assert_eq!(sum(&step(&mut client, "state", 3, "", 1.0)), 2.0);
    assert_eq!(sum(&step(&mut client, "state", 9, "e", 1.0)), 2.0);
    assert_eq!(sum(&step(&mut client, "state", 3, "", 1.0)), 3.0);
    // Unloading ends the rest.
    assert_eq!(client.post("/v2/repository/models/state/unload", b"").status, 200);
    refused(&step(&mut client, "state", 3, "", 1.0), 404, "no model 'state'");
    assert_eq!(client.post("/v2/repository/models/state/load", b"").status, 200);
    refused(&step(&mut client, "state", 3, "", 1.0), 400, "the model was unloaded");
}

#[test]
fn states_of_sequences_count_in_the_memory_budget() {
    let dir = sums();
    for other in ["digits", "controls"] {
        std::fs::remove_dir_all(dir.path().join(other)).unwrap();
    }
    let server = start(options(&[dir.path()]));
    let models: u64 = server.repository().ready().iter().map(|model| model.memory).sum();
    drop(server);
    let mut options = options(&[dir.path()]);
    // Each state has two floats: two fit.
    options.repository.memory = Some(models + 20);
    options.repository.defaults.max_sequence_idle = Duration::from_millis(1500);
    let server = start(options);
    let mut client = Client::new(&server);
    for model in ["state", "variable"] {
        assert_eq!(sum(&step(&mut client, model, "a", "s", 1.0)), 1.0);
        assert_eq!(sum(&step(&mut client, model, "b", "s", 1.0)), 1.0);
        let full = step(&mut client, model, "c", "s", 1.0);
        refused(&full, 429, "the state of sequence c of model");
        assert!(full.text().contains("of the") && full.text().contains("--memory-budget"), "{}", full.text());
        refused(&step(&mut client, model, "c", "", 1.0), 400, "is not in progress");
        assert_eq!(sum(&step(&mut client, model, "a", "e", 1.0)), 2.0, "what needs no more goes on");
        assert_eq!(sum(&step(&mut client, model, "c", "s", 1.0)), 1.0, "the place of the one that ended");
        // Those that are idle free theirs.
        wait_for("the end of idle sequences", || {
            let text = Client::to(server.addresses().metrics.unwrap()).get("/metrics").text();
            text.contains(&format!("of_sequences{{model=\"{model}\",version=\"1\"}} 0"))
        });
    }
}

#[test]
fn configurations_that_do_not_fit_the_model_are_refused() {
    let dir = sums();
    let cases = [
        ("state { input_name: \"old\" output_name: \"present\" }", "names the input 'old', and the model has x, past"),
        ("state { input_name: \"past\" output_name: \"new\" }", "names the output 'new', and the model has y, present"),
        ("state { input_name: \"past\" output_name: \"y\" dims: [ 3 ] }", "is [-1, 2] in the plan, and [-1, 3]"),
        ("state { input_name: \"past\" output_name: \"y\" data_type: TYPE_INT32 }", "is f32 in the plan, and i32"),
        ("state { input_name: \"past\" output_name: \"y\" initial_state { data_file: \"none\" } }", "cannot be read"),
        (
            "state { input_name: \"past\" output_name: \"y\" initial_state { data_file: \"short\" } }",
            "the initial state of 'past'",
        ),
        (
            "control_input { name: \"x\" control { kind: CONTROL_SEQUENCE_END int32_false_true: [ 0, 1 ] } }",
            "'x' is f32",
        ),
    ];
    put(dir.path(), "unset/1/model.plan", &variable_plan(FIXED, "present=past"));
    for (number, (text, _)) in cases.iter().enumerate() {
        put(dir.path(), &format!("m{number}/1/model.plan"), &text_plan(SUM));
        put(dir.path(), &format!("m{number}/initial_state/short"), &[0; 4]);
        put(dir.path(), &format!("m{number}/config.pbtxt"), format!("sequence_batching {{ {text} }}").as_bytes());
    }
    let server = start(options(&[dir.path()]));
    let index = Client::new(&server).post("/v2/repository/index", b"{}").json();
    let reason = |name: &str| {
        let entry = index.as_array().unwrap().iter().find(|m| m["name"] == name).unwrap();
        entry["reason"].as_str().unwrap_or_default().to_owned()
    };
    for (number, (_, what)) in cases.iter().enumerate() {
        let reason = reason(&format!("m{number}"));
        assert!(reason.contains(what), "{reason}");
    }
    assert!(reason("unset").contains("'past' has no initial value; compile the model with --variable"));
}

#[test]
fn an_initial_state_comes_from_a_file() {
    let dir = repository();
    put(dir.path(), "state/1/model.plan", &text_plan(SUM));
    let initial: Vec<u8> = [100_f32, 200.0].iter().flat_map(|x| x.to_le_bytes()).collect();
    put(dir.path(), "state/initial_state/hundred", &initial);
    let state = "input_name: \"past\" output_name: \"present\" initial_state { dims: [ 2 ] data_file: \"hundred\" }";
    let config =
        format!("max_batch_size: 8 sequence_batching {{ state {{ {state} }} }} output {{ name: \"present\" }}");
    put(dir.path(), "state/config.pbtxt", config.as_bytes());
    let server = start(options(&[dir.path()]));
    let answer = step(&mut Client::new(&server), "state", 1, "s", 1.0);
    assert_eq!(sum(&answer), 101.0);
    // The configuration lists the state among the outputs.
    assert_eq!(answer.json()["outputs"][1]["data"], json!([101.0, 202.0]));
    let config = Client::new(&server).get("/v2/models/state/config").json();
    assert_eq!(config["sequence_batching"]["state"][0]["initial_state"][0]["data_file"], "hundred");
}

#[test]
fn tritonclient_runs_sequences() {
    let modules = ["numpy", "tritonclient.http", "tritonclient.grpc"];
    let Some(python) = require(&TRITONCLIENT, python_with(&modules)) else { return };
    let dir = sums();
    put(dir.path(), "digits/1/model.plan", digits_plan());
    crate::clients::run(Path::new(&python), "sequences.py", &start(options(&[dir.path()])));
}
