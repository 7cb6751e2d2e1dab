//! Connections: accepting, TLS, and the end of each.
//!
//! When the server drains, listeners take what the system has already accepted for them and close. Each answer over HTTP/1.1 then
//! ends its connection, and idle connections are closed after a pause, so that a request on its way is not lost. HTTP/2 has a
//! message for it.

use std::convert::Infallible;
use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use http::{HeaderValue, Request, Response, header};
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tower_service::Service as _;

use crate::core::Core;
use crate::grpc::{self, Service};
use crate::grpc_message;
use crate::http::answer;
use crate::network::Network;
use crate::proto::grpc_inference_service_server::GrpcInferenceServiceServer;
use crate::stall::StallGuard;

/// How far the server is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// It serves.
    Serving,
    /// It takes no new connections, and ends those that there are.
    Draining,
    /// Everything ends at once.
    Stopping,
}

/// How long an idle connection over HTTP/1.1 is kept when the server drains.
const IDLE_PAUSE: Duration = Duration::from_millis(500);
/// How long a listener waits for connections when the server drains.
const BACKLOG_PAUSE: Duration = Duration::from_millis(5);
/// How long a TLS handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Bytes of a stream that are on their way at most, and of a connection.
const WINDOW: u32 = 4 << 20;
/// Requests of one HTTP/2 connection at the same time.
const STREAMS: u32 = 256;

/// What a listener speaks.
#[derive(Clone)]
pub enum Protocol {
    /// HTTP/1.1 with these routes.
    Http(Router),
    /// HTTP/1.1 with the routes of metrics, which need no token and have no limits.
    Metrics(Router),
    /// gRPC.
    Grpc(GrpcInferenceServiceServer<Service>),
}

/// What connections of a listener share.
#[derive(Clone)]
pub struct Listener {
    /// The models and limits.
    pub core: Arc<Core>,
    /// Its protocol.
    pub protocol: Protocol,
    /// Its TLS.
    pub tls: Option<TlsAcceptor>,
    /// One for each connection that may be open.
    pub permits: Arc<Semaphore>,
    /// The threads for connections.
    pub network: Arc<Network>,
    /// How far the server is.
    pub phase: watch::Receiver<Phase>,
}

/// Accepts connections until the server drains.
pub async fn accept(listener: TcpListener, shared: Listener) {
    let mut phase = shared.phase.clone();
    while *phase.borrow() < Phase::Draining {
        let Ok(permit) = Arc::clone(&shared.permits).acquire_owned().await else { return };
        let stream = tokio::select! {
            biased;
            accepted = listener.accept() => accepted,
            () = reached(&mut phase, Phase::Draining) => break,
        };
        match stream {
            Ok((stream, peer)) => spawn(stream, peer, permit, &shared),
            // A lack of files or memory passes.
            Err(e) => {
                tracing::warn!("a connection was not accepted: {e}");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
    // Clients whose connection the system has accepted have perhaps sent a request already. The listener closes as soon as there is
    // none, after a moment for those that are on their way.
    let begun = Instant::now();
    while let Ok(permit) = Arc::clone(&shared.permits).try_acquire_owned() {
        match timeout(BACKLOG_PAUSE.saturating_sub(begun.elapsed()), listener.accept()).await {
            Ok(Ok((stream, peer))) => spawn(stream, peer, permit, &shared),
            _ => return,
        }
    }
}

/// Waits until the server is as far as this.
async fn reached(phase: &mut watch::Receiver<Phase>, wanted: Phase) {
    // Without a sender the server is gone.
    let _ = phase.wait_for(|phase| *phase >= wanted).await;
}

/// Serves a stream that no listener has accepted, without TLS.
pub fn attach<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(stream: S, shared: &Listener) {
    let Ok(permit) = Arc::clone(&shared.permits).try_acquire_owned() else { return };
    start(shared, permit, async move |shared| {
        serve(StallGuard::new(stream, shared.core.limits.time), &shared, None).await;
    });
}

fn spawn(stream: TcpStream, peer: SocketAddr, permit: OwnedSemaphorePermit, shared: &Listener) {
    // The stream leaves the runtime that accepted it.
    let stream = stream.into_std();
    start(shared, permit, async move |shared| {
        let stream = match stream.and_then(TcpStream::from_std) {
            Ok(stream) => stream,
            Err(e) => return tracing::warn!("a connection was not accepted: {e}"),
        };
        // It fails on a closed connection only.
        let _ = stream.set_nodelay(true);
        connection(stream, &shared, peer.ip()).await;
    });
}

/// Starts a connection on a thread of the network. It ends when the server stops.
fn start<F>(shared: &Listener, permit: OwnedSemaphorePermit, run: impl FnOnce(Listener) -> F + Send + 'static)
where
    F: Future<Output = ()> + Send,
{
    // It is counted from here, so that a server that drains waits for it.
    shared.core.connections.fetch_add(1, Relaxed);
    let counted = Open { core: Arc::clone(&shared.core), _permit: permit };
    let (shared, network) = (shared.clone(), Arc::clone(&shared.network));
    network.spawn(async move {
        let _counted = counted;
        let mut stop = shared.phase.clone();
        tokio::select! {
            () = run(shared) => {}
            () = reached(&mut stop, Phase::Stopping) => {}
        }
    });
}

/// An open connection.
struct Open {
    core: Arc<Core>,
    _permit: OwnedSemaphorePermit,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.core.connections.fetch_sub(1, Relaxed);
    }
}

async fn connection(stream: TcpStream, shared: &Listener, peer: IpAddr) {
    let limit = shared.core.limits.time;
    match &shared.tls {
        None => serve(StallGuard::new(stream, limit), shared, Some(peer)).await,
        Some(tls) => match timeout(HANDSHAKE, tls.accept(stream)).await {
            Ok(Ok(stream)) => serve(StallGuard::new(stream, limit), shared, Some(peer)).await,
            Ok(Err(e)) => tracing::debug!("a TLS handshake failed: {e}"),
            Err(_) => tracing::debug!("a TLS handshake took too long"),
        },
    }
}

async fn serve<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(stream: S, shared: &Listener, peer: Option<IpAddr>) {
    let io = TokioIo::new(stream);
    let core = &shared.core;
    match &shared.protocol {
        Protocol::Http(router) | Protocol::Metrics(router) => {
            let is_open = matches!(shared.protocol, Protocol::Metrics(_));
            let service = service_fn(|request: Request<Incoming>| {
                let (core, router) = (Arc::clone(core), router.clone());
                async move {
                    let mut response = answer(Arc::clone(&core), router, request.map(Body::new), peer, is_open).await;
                    if core.draining.load(Relaxed) {
                        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
                    }
                    Ok::<_, Infallible>(response)
                }
            });
            let mut builder = http1::Builder::new();
            builder.timer(TokioTimer::new()).header_read_timeout(core.limits.time);
            let connection = pin!(builder.serve_connection(io, service));
            until_drained(connection, shared, IDLE_PAUSE, |connection| connection.graceful_shutdown()).await;
        }
        Protocol::Grpc(service) => {
            let service =
                service_fn(|request: Request<Incoming>| call(Arc::clone(core), service.clone(), request, peer));
            let mut builder = http2::Builder::new(TokioExecutor::new());
            builder.timer(TokioTimer::new()).max_concurrent_streams(STREAMS);
            builder.initial_stream_window_size(WINDOW).initial_connection_window_size(WINDOW).max_frame_size(1 << 20);
            builder.keep_alive_interval(core.limits.time).keep_alive_timeout(core.limits.time);
            let connection = pin!(builder.serve_connection(io, service));
            until_drained(connection, shared, Duration::ZERO, |connection| connection.graceful_shutdown()).await;
        }
    }
}

/// Runs a connection; some time after the server begins to drain, `end` ends it after its request.
async fn until_drained<C, E: std::fmt::Display>(
    mut connection: std::pin::Pin<&mut C>,
    shared: &Listener,
    pause: Duration,
    end: impl Fn(std::pin::Pin<&mut C>),
) where
    C: Future<Output = Result<(), E>>,
{
    let mut phase = shared.phase.clone();
    let drains = async {
        reached(&mut phase, Phase::Draining).await;
        tokio::time::sleep(pause).await;
    };
    let result = tokio::select! {
        result = connection.as_mut() => result,
        () = drains => {
            end(connection.as_mut());
            connection.await
        }
    };
    if let Err(e) = result {
        tracing::debug!("a connection ended: {e}");
    }
}

/// Answers a request over gRPC: checks its token and the limits of its client, runs its handler, and logs it.
async fn call(
    core: Arc<Core>,
    mut service: GrpcInferenceServiceServer<Service>,
    mut request: Request<Incoming>,
    peer: Option<IpAddr>,
) -> Result<Response<tonic::body::Body>, Infallible> {
    let arrival = Instant::now();
    let path = request.uri().path().to_owned();
    let is_open = path.ends_with("/ServerLive") || path.ends_with("/ServerReady");
    let token = request.headers().get(header::AUTHORIZATION).map(|v| v.as_bytes());
    let _running = match is_open {
        true => None,
        false => {
            let admitted = core.authorize(token, peer).and_then(|client| {
                // Each request of a stream counts, and not the stream.
                match path.ends_with("/ModelStreamInfer") {
                    true => Ok((client, None)),
                    false => core.clients.admit(client).map(|running| (client, running)),
                }
            });
            match admitted {
                Ok((client, running)) => {
                    request.extensions_mut().insert(client);
                    running
                }
                Err(e) => return Ok(tonic::Status::from(e).into_http()),
            }
        }
    };
    let logged = tracing::enabled!(target: "access", tracing::Level::INFO);
    let line = logged.then(|| path.escape_debug().to_string());
    let response = match path == grpc::MODEL_INFER && grpc_message::is_plain(request.headers()) {
        true => Ok(grpc::model_infer(&core, request).await),
        false => service.call(request).await,
    };
    if let (Some(line), Ok(response)) = (line, &response) {
        let status = response.headers().get("grpc-status").and_then(|v| v.to_str().ok()).unwrap_or("0");
        tracing::info!(target: "access", grpc_status = status, micros = arrival.elapsed().as_micros(), "{line}");
    }
    response
}
