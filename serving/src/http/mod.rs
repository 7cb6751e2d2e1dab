//! The Open Inference Protocol over HTTP, with Triton's extensions.
//!
//! Source: <https://github.com/kserve/open-inference-protocol>, and the extensions in the documentation of Triton.

mod body;
mod infer;
mod json;
mod pages;

use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, StatusCode, header};
use serde_json::{Value, json};

use crate::core::Core;
use crate::describe;
use crate::error::{ErrorKind, ServeError};
use crate::frames::Frames;

/// The length of the JSON header of a body with binary tensors.
const HEADER_LENGTH: &str = "inference-header-content-length";

/// Most bytes of the JSON of a request: a number takes many times its text when it is read.
const LARGEST_JSON: usize = 32 << 20;

/// What handlers get.
type Shared = State<Arc<Core>>;
/// What handlers give.
type Answer = Result<Response, ServeError>;
/// A model and its version.
type Named = Path<(String, String)>;

/// The routes.
pub fn router(core: Arc<Core>) -> Router {
    let model = |path: &str| format!("/v2/models/{{model}}{path}");
    let version = |path: &str| format!("/v2/models/{{model}}/versions/{{version}}{path}");
    let router = Router::new()
        .route("/", get(pages::digits))
        .route("/status", get(pages::status))
        .route("/status/data", get(pages::status_data))
        .route("/v2", get(async || ok(json::server(&describe::server()))))
        .route("/v2/", get(async || ok(json::server(&describe::server()))))
        .route("/v2/health/live", get(async || StatusCode::OK))
        .route("/v2/health/ready", get(ready))
        .route(&model(""), get(latest_metadata))
        .route(&version(""), get(metadata))
        .route(&model("/ready"), get(latest_ready))
        .route(&version("/ready"), get(model_ready))
        .route(&model("/config"), get(latest_config))
        .route(&version("/config"), get(config))
        .route(&model("/infer"), post(latest_infer))
        .route(&version("/infer"), post(infer_version))
        .route("/v2/models/stats", get(all_statistics))
        .route(&model("/stats"), get(latest_statistics))
        .route(&version("/stats"), get(statistics))
        .route("/v2/repository/index", post(index))
        .route("/v2/repository/models/{model}/load", post(load))
        .route("/v2/repository/models/{model}/unload", post(unload))
        .route("/v2/systemsharedmemory/status", get(all_regions))
        .route("/v2/systemsharedmemory/region/{region}/status", get(region))
        .route("/v2/systemsharedmemory/region/{region}/register", post(register))
        .route("/v2/systemsharedmemory/unregister", post(unregister_all))
        .route("/v2/systemsharedmemory/region/{region}/unregister", post(unregister))
        .route("/v2/cudasharedmemory/status", get(async || ok(json!([]))))
        .route("/v2/cudasharedmemory/unregister", post(async || StatusCode::OK))
        .route("/v2/cudasharedmemory/region/{region}/register", post(no_cuda))
        .route("/v2/trace/setting", get(async || ok(trace())).post(unchangeable))
        .route(&model("/trace/setting"), get(async || ok(trace())).post(unchangeable))
        .route("/v2/logging", get(async || ok(logging())).post(unchangeable));
    router.fallback(unknown).method_not_allowed_fallback(wrong_method).with_state(core)
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
        response
    }
}

/// Answers a request: checks its token, runs its handler within the time limit, and logs it.
pub async fn answer(core: Arc<Core>, mut router: Router, request: Request<Body>) -> Response {
    let arrival = Instant::now();
    let logged = tracing::enabled!(target: "access", tracing::Level::INFO);
    let line = logged.then(|| format!("{} {}", request.method(), request.uri().path().escape_debug()));
    // Probes of orchestrators have no token.
    let is_open = request.uri().path().starts_with("/v2/health/");
    let token = request.headers().get(header::AUTHORIZATION).map(|v| v.as_bytes());
    let response = match core.authorize(token).err().filter(|_| !is_open) {
        Some(e) => e.into_response(),
        None => {
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

async fn no_cuda() -> ServeError {
    ServeError::unsupported("CUDA shared memory is not supported")
}

async fn unchangeable() -> ServeError {
    ServeError::unsupported("the settings of traces and logs cannot be changed while the server runs")
}

fn trace() -> Value {
    json!({"trace_level": ["OFF"], "trace_rate": "1000", "trace_count": "-1", "log_frequency": "0", "trace_file": "",
        "trace_mode": "triton"})
}

fn logging() -> Value {
    let enabled = tracing::level_filters::LevelFilter::current();
    let level = |level| enabled >= level;
    use tracing::level_filters::LevelFilter as L;
    json!({"log_file": "", "log_error": level(L::ERROR), "log_warning": level(L::WARN), "log_info": level(L::INFO),
        "log_verbose_level": u8::from(level(L::DEBUG)), "log_format": "default"})
}

async fn ready(State(core): Shared) -> StatusCode {
    if core.is_ready() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
}

async fn latest_ready(core: Shared, Path(model): Path<String>) -> Answer {
    model_ready(core, Path((model, String::new()))).await
}

async fn model_ready(State(core): Shared, Path((model, version)): Named) -> Answer {
    core.repository.get(&model, &version)?;
    Ok(StatusCode::OK.into_response())
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
    let only_ready = request.get("ready").and_then(Value::as_bool).unwrap_or(false);
    Ok(ok(json::index(&describe::index(&core.repository, only_ready)?)))
}

async fn load(State(core): Shared, Path(model): Path<String>, headers: HeaderMap, body: Body) -> Answer {
    let request = object(&headers, body, &core).await?;
    if request.get("parameters").and_then(Value::as_object).is_some_and(|p| !p.is_empty()) {
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
    let number = |field: &str| request.get(field).and_then(Value::as_u64);
    let key = request.get("key").and_then(Value::as_str).ok_or_else(|| ServeError::invalid("'key' is not a string"))?;
    let len = number("byte_size").ok_or_else(|| ServeError::invalid("'byte_size' is not a natural number"))?;
    core.regions.register(&name, key, number("offset").unwrap_or(0), len)?;
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
async fn object(headers: &HeaderMap, body: Body, core: &Core) -> Result<Value, ServeError> {
    let mut frames = body::receive(headers, body, &core.limits).await?;
    let len = frames.len();
    let bytes = frames.take(len, 1).unwrap_or_default();
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Ok(json!({}));
    }
    serde_json::from_slice(&bytes).map_err(|e| ServeError::invalid(format!("the request is not JSON: {e}")))
}

async fn latest_infer(core: Shared, Path(model): Path<String>, headers: HeaderMap, body: Body) -> Answer {
    infer_version(core, Path((model, String::new())), headers, body).await
}

async fn infer_version(State(core): Shared, Path((model, version)): Named, headers: HeaderMap, body: Body) -> Answer {
    let arrival = Instant::now();
    let mut frames = body::receive(&headers, body, &core.limits).await?;
    let header = header_of(&headers, &mut frames)?;
    let (request, binary) = infer::request(model, version, &header, &mut frames, &core)?;
    let id = request.id.clone();
    let answer = core.repository.infer(request, arrival).await?;
    let (parts, header_len) = infer::response(answer, &id, binary, &core)?;
    let (parts, encoding) = body::compress(&headers, parts);
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
    frames.take(len, 1).ok_or_else(short)
}
