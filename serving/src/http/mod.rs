//! The Open Inference Protocol over HTTP, with Triton's extensions.
//!
//! Source: <https://github.com/kserve/open-inference-protocol>, and the extensions in the documentation of Triton.

mod body;
mod elements;
mod fields;
mod infer;
mod json;
mod openapi;
mod pages;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{FromRequestParts, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Request, StatusCode, header};
use of_telemetry::KeyValue;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use crate::core::Core;
use crate::describe;
use crate::error::{ErrorKind, ServeError};
use crate::frames::Frames;
use crate::traces::{Change, RequestTrace};

/// The length of the JSON header of a body with binary tensors.
const HEADER_LENGTH: &str = "inference-header-content-length";

/// Most bytes of the JSON of a request: a number takes many times its text when it is read.
const LARGEST_JSON: usize = 32 << 20;

/// Converting so many bytes of JSON or compressed data takes long enough to leave the thread to its other connections.
const LONG: usize = 64 << 10;

/// The parameters of a path. A mistake in them is an error as any other.
struct Path<T>(T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for Path<T> {
    type Rejection = ServeError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ServeError> {
        let wrong = |e: PathRejection| ServeError::invalid(format!("the path: {}", e.body_text()));
        axum::extract::Path::from_request_parts(parts, state).await.map(|path| Path(path.0)).map_err(wrong)
    }
}

/// What handlers get.
type Shared = State<Arc<Core>>;
/// What handlers give.
type Answer = Result<Response, ServeError>;
/// A model and its version.
type Named = Path<(String, String)>;

/// The routes.
pub fn router(core: Arc<Core>) -> Router {
    let router = routes().into_iter().fold(Router::new(), |router, (path, methods)| router.route(&path, methods));
    router.fallback(unknown).method_not_allowed_fallback(wrong_method).with_state(core)
}

/// What is at which path. [`openapi`] describes each.
fn routes() -> Vec<(String, MethodRouter<Arc<Core>>)> {
    let model = |path: &str| format!("/v2/models/{{model}}{path}");
    let version = |path: &str| format!("/v2/models/{{model}}/versions/{{version}}{path}");
    let describe = || get(async || ok(json::server(&describe::server())));
    vec![
        ("/".into(), get(pages::digits)),
        ("/status".into(), get(pages::status)),
        ("/status/data".into(), get(pages::status_data)),
        ("/openapi.json".into(), get(async || ok(openapi::description()))),
        ("/v2".into(), describe()),
        ("/v2/".into(), describe()),
        ("/v2/health/live".into(), get(async || ok(json!({"live": true})))),
        ("/v2/health/ready".into(), get(ready)),
        (model(""), get(latest_metadata)),
        (version(""), get(metadata)),
        (model("/ready"), get(latest_ready)),
        (version("/ready"), get(model_ready)),
        (model("/config"), get(latest_config)),
        (version("/config"), get(config)),
        (model("/infer"), post(latest_infer)),
        (version("/infer"), post(infer_version)),
        ("/v2/models/stats".into(), get(all_statistics)),
        (model("/stats"), get(latest_statistics)),
        (version("/stats"), get(statistics)),
        ("/v2/repository/index".into(), post(index)),
        ("/v2/repository/models/{model}/load".into(), post(load)),
        ("/v2/repository/models/{model}/unload".into(), post(unload)),
        ("/v2/systemsharedmemory/status".into(), get(all_regions)),
        ("/v2/systemsharedmemory/region/{region}/status".into(), get(region)),
        ("/v2/systemsharedmemory/region/{region}/register".into(), post(register)),
        ("/v2/systemsharedmemory/unregister".into(), post(unregister_all)),
        ("/v2/systemsharedmemory/region/{region}/unregister".into(), post(unregister)),
        ("/v2/cudasharedmemory/status".into(), get(async || ok(json!([])))),
        ("/v2/cudasharedmemory/unregister".into(), post(async || StatusCode::OK)),
        ("/v2/cudasharedmemory/region/{region}/status".into(), get(no_cuda_region)),
        ("/v2/cudasharedmemory/region/{region}/register".into(), post(no_cuda)),
        ("/v2/cudasharedmemory/region/{region}/unregister".into(), post(async || StatusCode::OK)),
        ("/v2/trace/setting".into(), get(trace_settings).post(change_trace_settings)),
        (model("/trace/setting"), get(trace_settings_of).post(change_trace_settings_of)),
        ("/v2/logging".into(), get(async || ok(logging())).post(unchangeable)),
    ]
}

impl IntoResponse for ServeError {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.kind.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response =
            (status, [(header::CONTENT_TYPE, "application/json")], json!({"error": self.message}).to_string())
                .into_response();
        if self.kind == ErrorKind::Unauthenticated {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Some(wait) = self.retry_after {
            // Whole seconds, so that none comes too early.
            let seconds = wait.as_secs().saturating_add(u64::from(wait.subsec_nanos() > 0));
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

/// Answers a request: checks its token and the limits of its client, runs its handler within the time limit, and logs it.
pub async fn answer(
    core: Arc<Core>,
    mut router: Router,
    request: Request<Body>,
    address: Option<IpAddr>,
    is_open: bool,
) -> Response {
    let arrival = Instant::now();
    let logged = tracing::enabled!(target: "access", tracing::Level::INFO);
    let line = logged.then(|| format!("{} {}", request.method(), request.uri().path().escape_debug()));
    // Probes of orchestrators have no token.
    let is_open = is_open || request.uri().path().starts_with("/v2/health/");
    let token = request.headers().get(header::AUTHORIZATION).map(|v| v.as_bytes());
    let admitted = match is_open {
        true => Ok(None),
        false => core.authorize(token, address).and_then(|client| core.clients.admit(client)),
    };
    let response = match admitted {
        Err(e) => e.into_response(),
        Ok(_running) => {
            use tower_service::Service;
            match tokio::time::timeout(core.limits.time, router.call(request)).await {
                Ok(Ok(response)) => response,
                Ok(Err(never)) => match never {},
                Err(_) => {
                    ServeError::new(ErrorKind::Deadline, "the request took longer than the limit").into_response()
                }
            }
        }
    };
    if let Some(line) = line {
        let (status, micros) = (response.status().as_u16(), arrival.elapsed().as_micros());
        tracing::info!(target: "access", status, micros, "{line}");
    }
    response
}

fn ok(value: Value) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], value.to_string()).into_response()
}

async fn unknown(request: Request<Body>) -> ServeError {
    let path: String = request.uri().path().chars().take(200).collect();
    ServeError::not_found(format!("there is nothing at '{}'", path.escape_debug()))
}

async fn wrong_method(request: Request<Body>) -> Response {
    let what = format!("the method {} is not allowed here", request.method());
    (StatusCode::METHOD_NOT_ALLOWED, [(header::CONTENT_TYPE, "application/json")], json!({"error": what}).to_string())
        .into_response()
}

async fn no_cuda_region(Path(region): Path<String>) -> ServeError {
    ServeError::not_found(format!("there is no CUDA shared memory region '{}'", region.escape_debug()))
}

async fn no_cuda() -> ServeError {
    ServeError::unsupported("CUDA shared memory is not supported")
}

async fn unchangeable() -> ServeError {
    ServeError::unsupported("the settings of logs cannot be changed while the server runs")
}

async fn trace_settings(State(core): Shared) -> Response {
    ok(json::trace_settings(&core.traces.settings(None)))
}

async fn trace_settings_of(State(core): Shared, Path(model): Path<String>) -> Answer {
    core.repository.get(&model, "")?;
    Ok(ok(json::trace_settings(&core.traces.settings(Some(&model)))))
}

async fn change_trace_settings(State(core): Shared, headers: HeaderMap, body: Body) -> Answer {
    let changes = trace_changes(object(&headers, body, &core).await?)?;
    core.traces.change(None, &changes)?;
    Ok(trace_settings(State(core)).await)
}

async fn change_trace_settings_of(core: Shared, Path(model): Path<String>, headers: HeaderMap, body: Body) -> Answer {
    core.repository.get(&model, "")?;
    let changes = trace_changes(object(&headers, body, &core).await?)?;
    core.traces.change(Some(&model), &changes)?;
    trace_settings_of(core, Path(model)).await
}

/// Changes of settings: each is null or a text, or a list of texts for levels.
fn trace_changes(fields: Map<String, Value>) -> Result<Vec<Change>, ServeError> {
    let change = |(name, value): (String, Value)| {
        let wrong = |what: &str| ServeError::invalid(format!("'{}' is neither null nor {what}", name.escape_debug()));
        let values = match value {
            Value::Null => None,
            Value::String(text) => Some(vec![text]),
            Value::Array(list) if name == "trace_level" => {
                let texts = list.into_iter().map(|value| value.as_str().map(str::to_owned));
                Some(texts.collect::<Option<_>>().ok_or_else(|| wrong("a list of strings"))?)
            }
            _ => return Err(wrong("a string")),
        };
        Ok((name, values))
    };
    fields.into_iter().map(change).collect()
}

fn logging() -> Value {
    let enabled = tracing::level_filters::LevelFilter::current();
    let level = |level| enabled >= level;
    use tracing::level_filters::LevelFilter as L;
    json!({"log_file": "", "log_error": level(L::ERROR), "log_warning": level(L::WARN), "log_info": level(L::INFO),
        "log_verbose_level": u8::from(level(L::DEBUG)), "log_format": "default"})
}

async fn ready(State(core): Shared) -> Response {
    let is_ready = core.is_ready();
    let status = if is_ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, ok(json!({"ready": is_ready}))).into_response()
}

async fn latest_ready(core: Shared, Path(model): Path<String>) -> Answer {
    model_ready(core, Path((model, String::new()))).await
}

async fn model_ready(State(core): Shared, Path((model, version)): Named) -> Answer {
    core.repository.get(&model, &version)?;
    Ok(ok(json!({"name": model, "ready": true})))
}

async fn latest_metadata(core: Shared, Path(model): Path<String>) -> Answer {
    metadata(core, Path((model, String::new()))).await
}

async fn metadata(State(core): Shared, Path((name, version)): Named) -> Answer {
    let model = core.repository.get(&name, &version)?;
    Ok(ok(json::metadata(&describe::metadata(&model, &core.repository.versions(&name)))))
}

async fn latest_config(core: Shared, Path(model): Path<String>) -> Answer {
    config(core, Path((model, String::new()))).await
}

async fn config(State(core): Shared, Path((name, version)): Named) -> Answer {
    Ok(ok(json::config(&describe::config(&*core.repository.get(&name, &version)?))))
}

async fn all_statistics(core: Shared) -> Answer {
    statistics(core, Path((String::new(), String::new()))).await
}

async fn latest_statistics(core: Shared, Path(model): Path<String>) -> Answer {
    statistics(core, Path((model, String::new()))).await
}

async fn statistics(State(core): Shared, Path((name, version)): Named) -> Answer {
    Ok(ok(json::statistics(&describe::statistics_of(&core.repository, &name, &version)?)))
}

async fn index(State(core): Shared, headers: HeaderMap, body: Body) -> Answer {
    let request = object(&headers, body, &core).await?;
    let only_ready = infer::optional(&request, "ready", Value::as_bool, "a Boolean")?.unwrap_or(false);
    Ok(ok(json::index(&describe::index(&core.repository, only_ready)?)))
}

async fn load(State(core): Shared, Path(model): Path<String>, headers: HeaderMap, body: Body) -> Answer {
    let request = object(&headers, body, &core).await?;
    if infer::optional(&request, "parameters", Value::as_object, "an object")?.is_some_and(|p| !p.is_empty()) {
        return Err(ServeError::unsupported("models are loaded as their files say: parameters are not supported"));
    }
    change(core, move |core| core.repository.load(&model)).await
}

async fn unload(State(core): Shared, Path(model): Path<String>) -> Answer {
    change(core, move |core| core.repository.unload(&model)).await
}

/// Changes the models on a thread that may block.
async fn change(core: Arc<Core>, change: impl FnOnce(&Core) -> Result<(), ServeError> + Send + 'static) -> Answer {
    let done = tokio::task::spawn_blocking(move || change(&core)).await;
    done.unwrap_or_else(|e| Err(ServeError::new(ErrorKind::Internal, e.to_string())))?;
    Ok(StatusCode::OK.into_response())
}

async fn all_regions(State(core): Shared) -> Answer {
    Ok(ok(json::regions(&core.regions.status("")?)))
}

async fn region(State(core): Shared, Path(name): Path<String>) -> Answer {
    Ok(ok(json::regions(&core.regions.status(&name)?)))
}

async fn register(State(core): Shared, Path(name): Path<String>, headers: HeaderMap, body: Body) -> Answer {
    let request = object(&headers, body, &core).await?;
    let number = |field: &str| infer::optional(&request, field, Value::as_u64, "a natural number");
    let key = infer::optional(&request, "key", Value::as_str, "a string")?;
    let missing = |field: &str| ServeError::invalid(format!("'{field}' is missing"));
    let (key, len) = (key.ok_or_else(|| missing("key"))?, number("byte_size")?.ok_or_else(|| missing("byte_size"))?);
    core.regions.register(&name, key, number("offset")?.unwrap_or(0), len)?;
    Ok(StatusCode::OK.into_response())
}

async fn unregister_all(State(core): Shared) -> StatusCode {
    core.regions.unregister("");
    StatusCode::OK
}

async fn unregister(State(core): Shared, Path(name): Path<String>) -> StatusCode {
    core.regions.unregister(&name);
    StatusCode::OK
}

/// A body of JSON; nothing is an empty object.
async fn object(headers: &HeaderMap, body: Body, core: &Core) -> Result<Map<String, Value>, ServeError> {
    let mut frames = body::receive(headers, body, &core.limits).await?;
    let len = frames.len();
    let bytes = frames.split_front(len, 1).unwrap_or_default();
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Ok(Map::new());
    }
    let value: Value =
        serde_json::from_slice(&bytes).map_err(|e| ServeError::invalid(format!("the request is not JSON: {e}")))?;
    match value {
        Value::Object(fields) => Ok(fields),
        _ => Err(ServeError::invalid("the request is not a JSON object")),
    }
}

/// Does work on another thread if it has many bytes to convert.
async fn apart<T: Send + 'static>(bytes: usize, work: impl FnOnce() -> T + Send + 'static) -> Result<T, ServeError> {
    if bytes < LONG {
        return Ok(work());
    }
    let ended = |e: tokio::task::JoinError| ServeError::new(ErrorKind::Internal, e.to_string());
    tokio::task::spawn_blocking(work).await.map_err(ended)
}

async fn latest_infer(core: Shared, Path(model): Path<String>, headers: HeaderMap, body: Body) -> Answer {
    infer_version(core, Path((model, String::new())), headers, body).await
}

async fn infer_version(State(core): Shared, Path((model, version)): Named, headers: HeaderMap, body: Body) -> Answer {
    let arrival = Instant::now();
    let header = |name| headers.get(name).map(HeaderValue::as_bytes);
    let Some(trace) = core.traces.begin(&model, arrival, header) else {
        return infer_traced(core, (model, version), headers, body, arrival, None).await;
    };
    trace_http(&trace, &core, &model, &version, &headers);
    let result = infer_traced(core, (model, version), headers, body, arrival, Some(&trace)).await;
    let status = result.as_ref().map_or_else(|e| e.kind.http_status(), |response| response.status().as_u16());
    trace.add(KeyValue::new("http.response.status_code", i64::from(status)));
    trace.answered(&result);
    result
}

/// What is known of a request that is traced. Source: OpenTelemetry's semantic conventions for HTTP.
fn trace_http(trace: &RequestTrace, core: &Core, model: &str, version: &str, headers: &HeaderMap) {
    let (route, path) = match version {
        "" => ("/v2/models/{model}/infer", format!("/v2/models/{model}/infer")),
        _ => ("/v2/models/{model}/versions/{version}/infer", format!("/v2/models/{model}/versions/{version}/infer")),
    };
    let agent = headers.get(header::USER_AGENT).and_then(|value| value.to_str().ok());
    let attributes = [
        KeyValue::new("http.request.method", "POST"),
        KeyValue::new("http.route", route),
        KeyValue::new("url.path", path),
        KeyValue::new("url.scheme", if core.tls { "https" } else { "http" }),
        KeyValue::new("network.protocol.version", "1.1"),
        KeyValue::new("of.model.name", model.to_owned()),
    ];
    let agent = agent.map(|agent| KeyValue::new("user_agent.original", agent.to_owned()));
    trace.is(&format!("POST {route}"), attributes.into_iter().chain(agent));
}

async fn infer_traced(
    core: Arc<Core>,
    (model, version): (String, String),
    headers: HeaderMap,
    body: Body,
    arrival: Instant,
    trace: Option<&Arc<RequestTrace>>,
) -> Answer {
    let mut frames = body::receive(&headers, body, &core.limits).await?;
    let received = trace.map(|trace| {
        trace.part("receive", arrival);
        Instant::now()
    });
    let header = header_of(&headers, &mut frames)?;
    let shared = Arc::clone(&core);
    let header_len = header.len();
    let read = move || infer::request(model, version, &header, &mut frames, &shared);
    let (mut request, binary) = apart(header_len, read).await??;
    let id = request.id.clone();
    if let (Some(trace), Some(received)) = (trace, received) {
        trace.part("decode", received);
        trace.known(&request);
        request.trace = Some(Arc::clone(trace));
    }
    let answer = core.repository.infer(request, arrival).await?;
    let answered = trace.map(|trace| trace.ran_as(&answer));
    let encoding = body::encoding(&headers);
    let converted = infer::bytes_to_convert(&answer, binary, encoding.is_some());
    let write = move || -> Result<_, ServeError> {
        let (parts, header_len) = infer::response(answer, &id, binary, &core)?;
        Ok((body::compress(encoding, parts), header_len))
    };
    let ((parts, encoding), header_len) = apart(converted, write).await??;
    if let (Some(trace), Some(answered)) = (trace, answered) {
        trace.part("encode", answered);
    }
    let mut response = Response::new(Body::new(body::Parts::new(parts)));
    let headers = response.headers_mut();
    let kind = if header_len.is_some() { "application/octet-stream" } else { "application/json" };
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    if let Some(len) = header_len {
        headers.insert(HEADER_LENGTH, HeaderValue::from(len));
    }
    if let Some(encoding) = encoding {
        headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static(encoding));
    }
    Ok(response)
}

/// The JSON header of a request: all of it, or as much as the HTTP header says.
fn header_of(headers: &HeaderMap, frames: &mut Frames) -> Result<Bytes, ServeError> {
    let len = match headers.get(HEADER_LENGTH) {
        None => frames.len(),
        Some(value) => {
            let wrong = || ServeError::invalid(format!("the header {HEADER_LENGTH} is not a number of bytes"));
            value.to_str().ok().and_then(|text| text.parse().ok()).ok_or_else(wrong)?
        }
    };
    if len > LARGEST_JSON {
        let what =
            format!("the JSON of the request has {len} bytes, and at most {LARGEST_JSON}; send tensors as binary data");
        return Err(ServeError::new(ErrorKind::TooLarge, what));
    }
    let short = || ServeError::invalid(format!("the request has fewer bytes than {HEADER_LENGTH} says"));
    frames.split_front(len, 1).ok_or_else(short)
}
