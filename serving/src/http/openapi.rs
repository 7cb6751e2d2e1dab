//! The description of the HTTP protocol in OpenAPI 3.1, which the server gives at `/openapi.json`.

use http::StatusCode;
use serde_json::{Map, Value, json};

use crate::datatype;
use crate::error::ErrorKind::{
    self, Exhausted, Invalid, NotFound, TooLarge, Unauthenticated, Unavailable, Unsupported,
};

/// An operation: its method and path, what it does, what it takes, what it answers, and how it fails.
struct Operation {
    method: &'static str,
    path: String,
    summary: &'static str,
    takes: Option<&'static str>,
    answers: Answers,
    fails: &'static [ErrorKind],
}

/// The body of a successful answer.
#[derive(Clone, Copy)]
enum Answers {
    /// The status alone.
    Nothing,
    /// A page for people.
    Page,
    /// JSON of this schema.
    Json(&'static str),
    /// The outputs of a run, as JSON or with binary tensors after it.
    Tensors,
    /// It always fails.
    Never,
}

/// The description.
pub fn description() -> Value {
    let mut paths = Map::new();
    for operation in operations() {
        let path = paths.entry(operation.path.clone()).or_insert_with(|| json!({"parameters": names(&operation.path)}));
        path[operation.method] = described(&operation);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "of-opt serve",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "The Open Inference Protocol, version 2, with extensions of Triton Inference Server.",
        },
        "paths": paths,
        "security": [{}, {"token": []}],
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": schemas(),
        },
    })
}

fn operations() -> Vec<Operation> {
    use Answers::{Json, Never, Nothing, Page, Tensors};
    let get = |path: &str, summary, answers, fails| {
        let path = path.to_owned();
        Operation { method: "get", path, summary, takes: None, answers, fails }
    };
    let post = |path: &str, summary, takes, answers, fails| {
        let path = path.to_owned();
        Operation { method: "post", path, summary, takes, answers, fails }
    };
    const RUN: &[ErrorKind] = &[
        Invalid,
        NotFound,
        TooLarge,
        Exhausted,
        ErrorKind::Cancelled,
        ErrorKind::Internal,
        Unsupported,
        Unavailable,
        ErrorKind::Deadline,
    ];
    const BODY: &[ErrorKind] = &[Invalid, NotFound, TooLarge, Unsupported, ErrorKind::Internal, ErrorKind::Deadline];
    let mut all = vec![
        get("/", "A page to draw digits on", Page, &[]),
        get("/status", "A page that shows the state of the server", Page, &[]),
        get("/status/data", "The state of the server", Json("Object"), &[]),
        get("/openapi.json", "This description", Json("Object"), &[]),
        get("/v2", "The server and its extensions", Json("Server"), &[]),
        get("/v2/", "The server and its extensions", Json("Server"), &[]),
        get("/v2/health/live", "Whether the server lives", Json("Live"), &[]),
        get("/v2/health/ready", "Whether all models are loaded", Json("Ready"), &[Unavailable]),
        get("/v2/models/stats", "Counters of all models", Json("Statistics"), &[]),
        post("/v2/repository/index", "The models of the repository", Some("Index"), Json("Models"), BODY),
        post("/v2/repository/models/{model}/load", "Loads a model", Some("Load"), Nothing, BODY),
        post("/v2/repository/models/{model}/unload", "Unloads a model", None, Nothing, &[NotFound, Unsupported]),
        get("/v2/systemsharedmemory/status", "All regions of shared memory", Json("Regions"), &[]),
        get("/v2/systemsharedmemory/region/{region}/status", "A region", Json("Regions"), &[Invalid, NotFound]),
        post("/v2/systemsharedmemory/region/{region}/register", "Registers a region", Some("Region"), Nothing, RUN),
        post("/v2/systemsharedmemory/region/{region}/unregister", "Removes a region", None, Nothing, &[Invalid]),
        post("/v2/systemsharedmemory/unregister", "Removes all regions", None, Nothing, &[]),
        get("/v2/cudasharedmemory/status", "No regions", Json("Regions"), &[]),
        get("/v2/cudasharedmemory/region/{region}/status", "Not supported", Never, &[Invalid, NotFound]),
        post("/v2/cudasharedmemory/region/{region}/register", "Not supported", None, Never, &[Invalid, Unsupported]),
        post("/v2/cudasharedmemory/region/{region}/unregister", "Removes nothing", None, Nothing, &[Invalid]),
        post("/v2/cudasharedmemory/unregister", "Removes nothing", None, Nothing, &[]),
        get("/v2/trace/setting", "The settings of traces", Json("Object"), &[]),
        post("/v2/trace/setting", "Changes the settings of traces", Some("Trace"), Json("Object"), BODY),
        get("/v2/logging", "The settings of logs", Json("Object"), &[]),
        post("/v2/logging", "Not supported", None, Never, &[Unsupported]),
    ];
    const ASK: &[ErrorKind] = &[Invalid, NotFound, Unavailable];
    for at in ["/v2/models/{model}", "/v2/models/{model}/versions/{version}"] {
        let path = |rest: &str| format!("{at}{rest}");
        all.push(get(at, "The inputs and outputs of a model", Json("Model"), ASK));
        all.push(get(&path("/ready"), "Whether a model takes requests", Json("ModelReady"), ASK));
        all.push(get(&path("/config"), "How a model is served", Json("Object"), ASK));
        all.push(get(&path("/stats"), "Counters of a model", Json("Statistics"), ASK));
        all.push(post(&path("/infer"), "Runs a model", Some("Run"), Tensors, RUN));
    }
    let of_model = "/v2/models/{model}/trace/setting";
    all.push(get(of_model, "The settings of traces of a model", Json("Object"), ASK));
    all.push(post(of_model, "Changes the settings of traces of a model", Some("Trace"), Json("Object"), RUN));
    all
}

/// The parameters in a path.
fn names(path: &str) -> Value {
    let names = path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    let parameter = |name: &str| json!({"name": name, "in": "path", "required": true, "schema": {"type": "string", "minLength": 1}});
    names.map(parameter).collect()
}

fn content(kind: &str, schema: Value) -> Value {
    json!({kind: {"schema": schema}})
}

fn reference(schema: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{schema}")})
}

fn described(operation: &Operation) -> Value {
    let mut responses = Map::new();
    let ok = |content: Value| json!({"description": "OK", "content": content});
    let answer = match operation.answers {
        Answers::Never => None,
        Answers::Nothing => Some(json!({"description": "OK"})),
        Answers::Page => Some(ok(content("text/html", json!({"type": "string"})))),
        Answers::Json(schema) => Some(ok(content("application/json", reference(schema)))),
        Answers::Tensors => Some(json!({
            "description": "JSON, or where outputs are binary, as many bytes of JSON as the header says, and the tensors",
            "headers": {super::HEADER_LENGTH: {"schema": {"type": "integer"}}},
            "content": {
                "application/json": {"schema": reference("Outputs")},
                "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
            },
        })),
    };
    if let Some(answer) = answer {
        responses.insert("200".into(), answer);
    }
    // Any request may be beyond the limits of its client.
    let token = [Unauthenticated, Exhausted];
    // Health checks need no token, and say what they say with any status.
    let health = operation.path.starts_with("/v2/health/");
    for kind in operation.fails.iter().chain(if health { &[][..] } else { &token[..] }) {
        let status = kind.http_status();
        let reason = StatusCode::from_u16(status).ok().and_then(|s| s.canonical_reason()).unwrap_or("The client left");
        let schema = reference(if health { "Ready" } else { "Error" });
        let response = json!({"description": reason, "content": content("application/json", schema)});
        responses.insert(status.to_string(), response);
    }
    let mut described = json!({"summary": operation.summary, "responses": responses});
    if let Some(schema) = operation.takes {
        described["requestBody"] = json!({"required": schema == "Run" || schema == "Region", "content": content("application/json", reference(schema))});
    }
    described
}

/// An object. Fields that it may lack may be null as well.
fn object(required: &[&str], mut properties: Value) -> Value {
    for (name, schema) in properties.as_object_mut().into_iter().flatten() {
        if !required.contains(&name.as_str()) {
            *schema = json!({"anyOf": [schema.take(), {"type": "null"}]});
        }
    }
    json!({"type": "object", "required": required, "properties": properties})
}

fn list(of: Value) -> Value {
    json!({"type": "array", "items": of})
}

fn schemas() -> Value {
    let (text, flag) = (|| json!({"type": "string"}), || json!({"type": "boolean"}));
    let natural = || json!({"type": "integer", "minimum": 0, "maximum": u64::MAX});
    let extents = || list(json!({"type": "integer", "minimum": i64::MIN, "maximum": i64::MAX}));
    let datatype = json!({"type": "string", "enum": datatype::names().collect::<Vec<_>>()});
    let shared = json!({"shared_memory_region": text(), "shared_memory_offset": natural(), "shared_memory_byte_size": natural()});
    let with = |more: Value| {
        let mut all = shared.clone();
        all.as_object_mut().into_iter().zip(more.as_object()).for_each(|(all, more)| all.extend(more.clone()));
        object(&[], all)
    };
    let described =
        object(&["name", "datatype", "shape"], json!({"name": text(), "datatype": datatype, "shape": extents()}));
    let input = object(
        &["name", "datatype", "shape"],
        json!({"name": text(), "datatype": datatype, "shape": extents(), "data": list(json!({})),
            "parameters": with(json!({"binary_data_size": natural()}))}),
    );
    let wanted = object(
        &["name"],
        json!({"name": text(), "parameters": with(json!({"binary_data": flag(), "classification": natural()}))}),
    );
    let parameters = object(
        &[],
        json!({"binary_data_output": flag(), "priority": natural(), "timeout": natural(),
            "sequence_id": {"anyOf": [natural(), {"type": "string", "maxLength": 32}]}, "sequence_start": flag(), "sequence_end": flag()}),
    );
    let output = object(
        &["name", "datatype", "shape"],
        json!({"name": text(), "datatype": datatype, "shape": extents(), "data": list(json!({})), "parameters": with(json!({}))}),
    );
    json!({
        "Object": {"type": "object"},
        "Error": object(&["error"], json!({"error": text()})),
        "Live": object(&["live"], json!({"live": flag()})),
        "Ready": object(&["ready"], json!({"ready": flag()})),
        "ModelReady": object(&["name", "ready"], json!({"name": text(), "ready": flag()})),
        "Server": object(&["name", "version", "extensions"], json!({"name": text(), "version": text(), "extensions": list(text())})),
        "Model": object(
            &["name", "versions", "platform", "inputs", "outputs"],
            json!({"name": text(), "versions": list(text()), "platform": text(), "inputs": list(described.clone()), "outputs": list(described)}),
        ),
        "Statistics": object(&["model_stats"], json!({"model_stats": list(json!({"type": "object"}))})),
        "Index": object(&[], json!({"ready": flag()})),
        "Models": list(object(&["name"], json!({"name": text(), "version": text(), "state": text(), "reason": text()}))),
        "Trace": object(
            &[],
            json!({"trace_level": {"anyOf": [text(), list(text())]}, "trace_rate": text(),
                "trace_count": text(), "log_frequency": text(), "trace_file": text(), "trace_mode": text()}),
        ),
        "Load": object(&[], json!({"parameters": {"type": "object", "maxProperties": 0}})),
        "Region": object(&["key", "byte_size"], json!({"key": text(), "offset": natural(), "byte_size": natural()})),
        "Regions": list(object(
            &["name", "key", "offset", "byte_size"],
            json!({"name": text(), "key": text(), "offset": natural(), "byte_size": natural()}),
        )),
        "Run": object(
            &["inputs"],
            json!({"id": text(), "parameters": parameters, "inputs": list(input), "outputs": list(wanted)}),
        ),
        "Outputs": object(
            &["model_name", "model_version", "outputs"],
            json!({"model_name": text(), "model_version": text(), "id": text(), "outputs": list(output)}),
        ),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_route_is_described() {
        let described = description();
        let described: BTreeSet<&String> = described["paths"].as_object().unwrap().keys().collect();
        let routes: Vec<String> = crate::http::routes().into_iter().map(|(path, _)| path).collect();
        assert_eq!(described, routes.iter().collect());
    }

    #[test]
    fn every_schema_that_is_named_exists() {
        let description = description();
        let text = description.to_string();
        for named in text.split("#/components/schemas/").skip(1).map(|rest| rest.split('"').next().unwrap()) {
            assert!(description["components"]["schemas"][named].is_object(), "{named}");
        }
    }
}
