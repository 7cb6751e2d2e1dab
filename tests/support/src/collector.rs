//! A collector of OpenTelemetry: takes spans by OTLP over HTTP and gRPC, and keeps them for the test.

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::{BufMut, Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use opentelemetry_proto::tonic::collector::trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse};
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue, any_value::Value};
use opentelemetry_proto::tonic::trace::v1;
use prost::Message;
use tokio::runtime::Runtime;

/// A span that arrived.
#[derive(Clone, Debug)]
pub struct Received {
    /// The span.
    pub span: v1::Span,
    /// What its process is.
    pub resource: Vec<KeyValue>,
    /// The header `authorization` of its batch.
    pub authorization: Option<String>,
}

/// The text of an attribute's value.
fn text(value: Option<&AnyValue>) -> String {
    match value.and_then(|value| value.value.as_ref()) {
        Some(Value::StringValue(text)) => text.clone(),
        Some(Value::IntValue(number)) => number.to_string(),
        Some(Value::BoolValue(flag)) => flag.to_string(),
        Some(Value::DoubleValue(number)) => number.to_string(),
        other => format!("{other:?}"),
    }
}

fn find(list: &[KeyValue], name: &str) -> Option<String> {
    list.iter().find(|pair| pair.key == name).map(|pair| text(pair.value.as_ref()))
}

impl Received {
    /// An attribute, as text.
    pub fn attribute(&self, name: &str) -> Option<String> {
        find(&self.span.attributes, name)
    }

    /// An attribute of its process, as text.
    pub fn of_process(&self, name: &str) -> Option<String> {
        find(&self.resource, name)
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.span.name
    }

    /// The trace in hexadecimal digits.
    pub fn trace(&self) -> String {
        self.span.trace_id.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The parent in hexadecimal digits; nothing for a span without one.
    pub fn parent(&self) -> String {
        self.span.parent_span_id.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Whether it is a part of another span, and began and ended in its time.
    pub fn is_part_of(&self, whole: &Received) -> bool {
        let (span, whole) = (&self.span, &whole.span);
        span.trace_id == whole.trace_id
            && span.parent_span_id == whole.span_id
            && whole.start_time_unix_nano <= span.start_time_unix_nano
            && span.start_time_unix_nano <= span.end_time_unix_nano
            && span.end_time_unix_nano <= whole.end_time_unix_nano
    }
}

/// A collector on this machine.
pub struct Collector {
    address: SocketAddr,
    spans: Arc<Mutex<Vec<Received>>>,
    _runtime: Runtime,
}

impl Collector {
    /// Starts one. It speaks HTTP/1.1, and gRPC at the same port.
    ///
    /// # Panics
    /// When there is no port.
    pub fn start() -> Collector {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let listener = runtime.block_on(tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))).expect("a port");
        let address = listener.local_addr().expect("an address");
        let spans = Arc::<Mutex<Vec<Received>>>::default();
        let kept = Arc::clone(&spans);
        runtime.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let kept = Arc::clone(&kept);
                let service = service_fn(move |request| answer(Arc::clone(&kept), request));
                tokio::spawn(async move {
                    let mut start = [0; 4];
                    // HTTP/2 begins with a preface.
                    let is_http2 = stream.peek(&mut start).await.is_ok_and(|_| start == *b"PRI ");
                    let stream = TokioIo::new(stream);
                    // Clients may leave at any time.
                    let _ = match is_http2 {
                        true => {
                            let http2 = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                            http2.serve_connection(stream, service).await
                        }
                        false => hyper::server::conn::http1::Builder::new().serve_connection(stream, service).await,
                    };
                });
            }
        });
        Collector { address, spans, _runtime: runtime }
    }

    /// Where it takes spans, without a path: the value of `OTEL_EXPORTER_OTLP_ENDPOINT`, for both protocols.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The spans so far.
    pub fn spans(&self) -> Vec<Received> {
        self.spans.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until the spans are what they must be.
    ///
    /// # Panics
    /// When they are not after a minute.
    pub fn wait(&self, what: &str, holds: impl Fn(&[Received]) -> bool) -> Vec<Received> {
        let start = Instant::now();
        loop {
            let spans = self.spans();
            if holds(&spans) {
                return spans;
            }
            let names: Vec<&str> = spans.iter().map(Received::name).collect();
            assert!(start.elapsed() < Duration::from_secs(60), "{what} did not arrive, only {names:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

type Body = http_body_util::combinators::BoxBody<Bytes, Infallible>;

async fn answer(spans: Arc<Mutex<Vec<Received>>>, request: Request<Incoming>) -> Result<Response<Body>, hyper::Error> {
    const SERVICE: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";
    let (path, header) = (request.uri().path().to_owned(), request.headers().get("authorization").cloned());
    let is_grpc = path == SERVICE;
    let mut body = request.into_body().collect().await?.to_bytes();
    if is_grpc {
        // A flag and a length stand before a message.
        body = body.slice(5.min(body.len())..);
    }
    let mut response = Response::new(Full::new(Bytes::new()).boxed());
    let decoded = ExportTraceServiceRequest::decode(body);
    let (Ok(message), true) = (decoded, is_grpc || path == "/v1/traces") else {
        *response.status_mut() = http::StatusCode::BAD_REQUEST;
        return Ok(response);
    };
    let authorization = header.and_then(|value| value.to_str().ok().map(str::to_owned));
    let received = message.resource_spans.into_iter().flat_map(|of_resource| {
        let resource = of_resource.resource.unwrap_or_default().attributes;
        let spans: Vec<v1::Span> = of_resource.scope_spans.into_iter().flat_map(|scope| scope.spans).collect();
        let authorization = authorization.clone();
        spans.into_iter().map(move |span| Received {
            span,
            resource: resource.clone(),
            authorization: authorization.clone(),
        })
    });
    spans.lock().unwrap_or_else(PoisonError::into_inner).extend(received);
    let answer = ExportTraceServiceResponse::default().encode_to_vec();
    let kind = if is_grpc { "application/grpc" } else { "application/x-protobuf" };
    response.headers_mut().insert("content-type", HeaderValue::from_static(kind));
    *response.body_mut() = match is_grpc {
        false => Full::new(answer.into()).boxed(),
        true => {
            let mut framed = BytesMut::new();
            framed.put_u8(0);
            framed.put_u32(answer.len() as u32);
            framed.extend_from_slice(&answer);
            let trailers =
                HeaderMap::from_iter([("grpc-status".parse().expect("a name"), HeaderValue::from_static("0"))]);
            Full::new(framed.freeze()).with_trailers(async move { Some(Ok(trailers)) }).boxed()
        }
    };
    Ok(response)
}
