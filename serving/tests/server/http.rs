//! The protocol over HTTP, by a client that writes bytes.

use crate::common::{Client, binary_request, digits_plan, example, options, put, repository, start};
use serde_json::{Value, json};

const INFER: &str = "/v2/models/digits/infer";
const LENGTH: &str = "inference-header-content-length";

#[test]
fn server_and_models_describe_themselves() {
    let dir = repository();
    let server = start(options(&[dir.path()]));
    let mut client = Client::new(&server);
    assert_eq!((client.get("/v2/health/live").status, client.get("/v2/health/ready").status), (200, 200));
    assert_eq!(client.get("/v2").json()["name"], "of-opt");
    assert_eq!(client.get("/v2/health/live").json(), json!({"live": true}));
    assert_eq!(client.get("/v2/health/ready").json(), json!({"ready": true}));
    assert_eq!(client.get("/v2/models/digits/versions/1/ready").json(), json!({"name": "digits", "ready": true}));
    let metadata = client.get("/v2/models/digits").json();
    assert_eq!(metadata["inputs"], json!([{"name": "image", "datatype": "FP32", "shape": [-1, 1, 8, 8]}]));
    assert_eq!((&metadata["versions"], &metadata["platform"]), (&json!(["1"]), &json!("of_opt")));
    let config = client.get("/v2/models/digits/config").json();
    assert_eq!((&config["max_batch_size"], &config["output"][0]["dims"]), (&json!(8), &json!([10])));
    let index = client.post("/v2/repository/index", b"").json();
    assert_eq!(index, json!([{"name": "digits", "version": "1", "state": "READY"}]));
    for (path, status) in [("/v2/models/none", 404), ("/v2/models/digits/versions/2", 404), ("/x", 404), (INFER, 405)] {
        let answer = client.get(path);
        assert_eq!(answer.status, status, "{path}");
        assert!(answer.json()["error"].is_string());
    }
    let page = client.get("/");
    assert!(page.text().contains("<canvas") && page.header("content-security-policy").is_some());
    assert!(client.get("/status").text().contains("of-opt serve"));
    assert_eq!(client.get("/status/data").json()["models"][0]["name"], "digits");
}

#[test]
fn json_and_binary_tensors_give_the_same_result() {
    let dir = repository();
    let server = start(options(&[dir.path()]));
    let mut client = Client::new(&server);
    let pixel = |i: usize| (i * 7 % 17) as f32;
    let data: Vec<f32> = (0..64).map(pixel).collect();
    let request =
        json!({"id": "a\"b", "inputs": [{"name": "image", "shape": [1, 1, 8, 8], "datatype": "FP32", "data": data}]});
    let answer = client.post(INFER, request.to_string().as_bytes());
    assert_eq!(answer.status, 200, "{}", answer.text());
    let answer = answer.json();
    assert_eq!(
        (&answer["id"], &answer["model_name"], &answer["model_version"]),
        (&json!("a\"b"), &json!("digits"), &json!("1"))
    );
    let as_json: Vec<f32> =
        answer["outputs"][0]["data"].as_array().unwrap().iter().map(|v| v.as_f64().unwrap() as f32).collect();
    assert_eq!(as_json.len(), 10);

    let (body, len) = binary_request(1, pixel);
    let answer = client.send("POST", INFER, &[(LENGTH, &len.to_string())], &body).unwrap();
    assert_eq!(answer.status, 200, "{}", answer.text());
    let split: usize = answer.header(LENGTH).unwrap().parse().unwrap();
    let header: Value = serde_json::from_slice(&answer.body[..split]).unwrap();
    assert_eq!(header["outputs"][0]["parameters"]["binary_data_size"], 40);
    let floats =
        |bytes: &[u8]| -> Vec<f32> { bytes.chunks(4).map(|c| f32::from_le_bytes(c.try_into().unwrap())).collect() };
    assert_eq!(floats(&answer.body[split..]), as_json, "the shortest decimal is exact");

    // The body in many small pieces.
    client
        .write(
            format!("POST {INFER} HTTP/1.1\r\nhost: x\r\n{LENGTH}: {len}\r\ncontent-length: {}\r\n\r\n", body.len())
                .as_bytes(),
        )
        .unwrap();
    for part in body.chunks(37) {
        client.write(part).unwrap();
        std::thread::sleep(std::time::Duration::from_micros(200));
    }
    let pieces = client.read().unwrap();
    assert_eq!(pieces.body, answer.body);

    let classes =
        json!({"inputs": request["inputs"], "outputs": [{"name": "probability", "parameters": {"classification": 2}}]});
    let answer = client.post(INFER, classes.to_string().as_bytes()).json();
    let best = as_json.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).unwrap().0;
    let texts = &answer["outputs"][0]["data"];
    assert!(texts[0].as_str().unwrap().ends_with(&format!(":{best}")) && texts.as_array().unwrap().len() == 2);
}

#[test]
fn mistakes_of_clients_are_errors_with_a_reason() {
    let dir = repository();
    let server = start(options(&[dir.path()]));
    let mut client = Client::new(&server);
    let input = json!({"name": "image", "shape": [1, 1, 8, 8], "datatype": "FP32", "data": vec![0.0; 64]});
    let changed = |field: &str, value: Value| {
        let mut input = input.clone();
        input[field] = value;
        json!({"inputs": [input]})
    };
    for (request, what) in [
        (json!([]), "expected a JSON object as the request"),
        (json!({"inputs": [7]}), "expected an object as an input at line 1 column 12"),
        (json!({}), "no 'inputs'"),
        (json!({"inputs": []}), "input 'image' of model 'digits' is missing"),
        (json!({"inputs": [input, input]}), "given twice"),
        (changed("name", json!("x")), "no input 'x'; its inputs are image"),
        (changed("shape", json!([1, 1, 8, 9])), "holds 288 bytes, not 256"),
        (changed("shape", json!([1, 1, 64])), "rank 3"),
        (changed("shape", json!([-1, 1, 8, 8])), "cannot have element type f32 and extents"),
        (changed("shape", json!([i64::MAX, 1, 8, 8])), "cannot have element type"),
        (changed("datatype", json!("FP8")), "unknown datatype 'FP8'"),
        (changed("datatype", json!("INT32")), "not an INT32"),
        (changed("data", json!(["a"])), "not a number"),
        (changed("parameters", json!({"binary_data_size": 256})), "too short"),
        (
            changed("parameters", json!({"shared_memory_region": "r", "shared_memory_byte_size": 256})),
            "no shared memory region 'r'",
        ),
        (json!({"inputs": [input], "outputs": [{"name": "y"}]}), "no output 'y'; its outputs are probability"),
        (json!({"inputs": [input], "parameters": {"sequence_id": 7}}), "keeps no state between requests"),
    ] {
        let answer = client.post(INFER, request.to_string().as_bytes());
        let error = answer.json()["error"].as_str().unwrap().to_owned();
        assert!((400..=501).contains(&answer.status) && error.contains(what), "{request}: {} {error}", answer.status);
    }
    assert!(client.post(INFER, b"{").json()["error"].as_str().unwrap().contains("not JSON"));
    let long = client.send("POST", INFER, &[(LENGTH, "1000")], b"{}").unwrap();
    assert!(long.text().contains("fewer bytes"), "{}", long.text());
    let stats = client.get("/v2/models/digits/stats").json();
    assert_eq!(stats["model_stats"][0]["inference_stats"]["success"]["count"], 0);
    assert!(stats["model_stats"][0]["inference_stats"]["fail"]["count"].as_u64().unwrap() >= 5);
}

#[test]
fn limits_and_tokens_hold() {
    let dir = repository();
    let mut options = options(&[dir.path()]);
    options.limits.body = 1000;
    options.tokens = vec!["other".into(), "secret".into()];
    let server = start(options);
    let mut client = Client::new(&server);
    assert_eq!(client.get("/v2/health/ready").status, 200, "probes have no token");
    assert_eq!(client.get("/v2/models/digits").status, 401);
    let wrong = client.send("GET", "/v2", &[("authorization", "Bearer secreT")], b"").unwrap();
    assert_eq!((wrong.status, wrong.header("www-authenticate")), (401, Some("Bearer")));
    let bearer = ("authorization", "bearer secret");
    assert_eq!(client.send("GET", "/v2", &[bearer], b"").unwrap().status, 200);
    let metrics = Client::to(server.addresses().metrics.unwrap()).get("/metrics");
    assert_eq!(metrics.status, 200, "metrics need no token");
    let large = client.send("POST", INFER, &[bearer], &[b' '; 1001]).unwrap();
    assert_eq!(large.status, 413, "{}", large.text());
    // Too much once it is decompressed.
    let mut client = Client::new(&server);
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    std::io::Write::write_all(&mut encoder, &[b' '; 1 << 20]).unwrap();
    let bomb = encoder.finish().unwrap();
    assert!(bomb.len() < 1200);
    let answer = client
        .send("POST", "/v2/repository/index", &[bearer, ("content-encoding", "gzip")], &bomb[..bomb.len().min(1000)])
        .unwrap();
    assert!(answer.status == 413 || answer.status == 400, "{}", answer.text());
}

#[test]
fn damaged_models_are_listed_with_the_reason_and_others_served() {
    let dir = repository();
    put(dir.path(), "damaged/1/model.plan", &digits_plan()[..1000]);
    put(dir.path(), "configured/2/model.plan", digits_plan());
    put(dir.path(), "configured/config.pbtxt", b"optimization { }");
    put(dir.path(), "batched/1/model.plan", digits_plan());
    put(dir.path(), "batched/config.pbtxt", b"max_batch_size: 2");
    for (name, dims) in [("warm", "[ 1, 8, 8 ]"), ("cold", "[ 1, 8, 9 ]")] {
        let image = format!("{{ key: \"image\" value: {{ data_type: TYPE_FP32 dims: {dims} zero_data: true }} }}");
        let config =
            format!("max_batch_size: 8 model_warmup [ {{ name: \"w\" batch_size: 8 count: 2 inputs {image} }} ]");
        put(dir.path(), &format!("{name}/1/model.plan"), digits_plan());
        put(dir.path(), &format!("{name}/config.pbtxt"), config.as_bytes());
    }
    std::fs::copy(example("digits.onnx"), dir.path().join("compiled.onnx")).unwrap();
    let server = start(options(&[dir.path()]));
    let mut client = Client::new(&server);
    let index = client.post("/v2/repository/index", b"{}").json();
    let state = |name: &str| index.as_array().unwrap().iter().find(|m| m["name"] == name).unwrap().clone();
    assert_eq!((&state("digits")["state"], &state("compiled")["state"]), (&json!("READY"), &json!("READY")));
    assert_eq!(state("damaged")["state"], "UNAVAILABLE");
    assert_eq!(state("warm")["state"], "READY");
    let cold = state("cold")["reason"].as_str().unwrap().to_owned();
    assert!(cold.contains("the warm-up 'w' does not run: "), "{cold}");
    assert!(state("configured")["reason"].as_str().unwrap().contains("line 1: optimization is not supported"));
    assert_eq!(client.get("/v2/models/damaged/ready").status, 503);
    let (body, len) = binary_request(3, |_| 0.0);
    let answer = client.send("POST", "/v2/models/batched/infer", &[(LENGTH, &len.to_string())], &body).unwrap();
    assert!(answer.text().contains("3 rows, and max_batch_size is 2"), "{}", answer.text());
    let compiled = client.send("POST", "/v2/models/compiled/infer", &[(LENGTH, &len.to_string())], &body).unwrap();
    assert_eq!(compiled.status, 200);
}

#[test]
fn metrics_have_the_names_of_triton() {
    let dir = repository();
    let server = start(options(&[dir.path()]));
    let (body, len) = binary_request(1, |_| 1.0);
    let answer = Client::new(&server).send("POST", INFER, &[(LENGTH, &len.to_string())], &body).unwrap();
    assert_eq!(answer.status, 200);
    let text = Client::to(server.addresses().metrics.unwrap()).get("/metrics").text();
    for line in [
        "nv_inference_request_success{model=\"digits\",version=\"1\"} 1",
        "nv_inference_request_failure{model=\"digits\",version=\"1\",reason=\"REJECTED\"} 0",
        "nv_inference_exec_count{model=\"digits\",version=\"1\"} 1",
        "nv_inference_first_response_histogram_ms_count{model=\"digits\",version=\"1\"} 1",
        "# TYPE nv_inference_pending_request_count gauge",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
}

#[test]
fn large_json_and_compressed_bodies_are_converted_on_another_thread() {
    let dir = repository();
    let mut options = options(&[dir.path()]);
    options.network_threads = 1;
    let server = start(options);
    let mut client = Client::new(&server);
    let images = 200;
    let data: Vec<f32> = (0..images * 64).map(|i| (i % 17) as f32 + 0.123_456_78).collect();
    let request = json!({"inputs": [{"name": "image", "shape": [images, 1, 8, 8], "datatype": "FP32", "data": data}]});
    let text = request.to_string();
    assert!(text.len() > 1 << 17, "{}", text.len());
    let plain = client.post(INFER, text.as_bytes());
    assert_eq!(plain.status, 200, "{}", plain.text());
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut encoder, text.as_bytes()).unwrap();
    let headers = [("content-encoding", "gzip"), ("accept-encoding", "deflate")];
    let packed = client.send("POST", INFER, &headers, &encoder.finish().unwrap()).unwrap();
    assert_eq!(packed.header("content-encoding"), Some("deflate"));
    let mut inflated = Vec::new();
    std::io::Read::read_to_end(&mut flate2::read::ZlibDecoder::new(&packed.body[..]), &mut inflated).unwrap();
    assert_eq!(inflated, plain.body);
}
