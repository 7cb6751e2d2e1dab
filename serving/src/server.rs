//! The server: its threads, its listeners, and its end.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use axum::Router;
use axum::routing::get;
use http::header;
use of_telemetry::Tracer;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use crate::clients::Clients;
use crate::connection::{Listener, Phase, Protocol, accept, attach};
use crate::core::{Core, Limits};
use crate::grpc::Service;
use crate::metrics;
use crate::model::Opener;
use crate::network::Network;
use crate::proto::grpc_inference_service_server::GrpcInferenceServiceServer;
use crate::repository::{ControlMode, Repository, RepositoryOptions};
use crate::shared_memory::Regions;
use crate::tls::{TlsOptions, acceptor};
use crate::traces::Traces;

/// How a server is started.
#[derive(Clone, Debug, Default)]
pub struct ServerOptions {
    /// Where HTTP is served; port 0 takes a free one.
    pub http: Option<SocketAddr>,
    /// Where gRPC is served.
    pub grpc: Option<SocketAddr>,
    /// Where metrics are served, over HTTP without TLS and token.
    pub metrics: Option<SocketAddr>,
    /// TLS of the first two.
    pub tls: Option<TlsOptions>,
    /// The tokens of which requests must have one; without any, requests need none.
    pub tokens: Vec<String>,
    /// Limits.
    pub limits: Limits,
    /// Sends the spans of requests.
    pub tracer: Option<Tracer>,
    /// One request of how many is traced, where its caller does not decide; 0 is as 1.
    pub trace_rate: u64,
    /// Threads for the network.
    pub network_threads: usize,
    /// What is served.
    pub repository: RepositoryOptions,
}

/// Where a server listens.
#[derive(Clone, Copy, Debug, Default)]
pub struct Addresses {
    /// HTTP.
    pub http: Option<SocketAddr>,
    /// gRPC.
    pub grpc: Option<SocketAddr>,
    /// Metrics.
    pub metrics: Option<SocketAddr>,
}

/// Why a server did not start.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct StartError(String);

/// A server that runs until [`Server::drain`].
pub struct Server {
    core: Arc<Core>,
    addresses: Addresses,
    phase: watch::Sender<Phase>,
    listeners: JoinSet<()>,
    network: Arc<Network>,
    /// For streams that the caller brings.
    attached: [Listener; 2],
    loader: Option<std::thread::JoinHandle<()>>,
    /// Accepts connections, and waits for signals.
    runtime: Option<Runtime>,
}

impl Server {
    /// Binds the ports and loads the models. Returns when the ports are bound: models that must be compiled become ready later.
    ///
    /// # Errors
    /// When a port is taken, a path has no models, or a file of TLS cannot be used.
    pub fn start(options: ServerOptions, opener: Opener) -> Result<Server, StartError> {
        let wrong = |e: String| StartError(e);
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder.worker_threads(1).thread_name("of-accept").enable_all();
        let no_threads = |e: std::io::Error| StartError(format!("no threads for the network: {e}"));
        let runtime = builder.build().map_err(no_threads)?;
        let network = Arc::new(Network::start(options.network_threads).map_err(no_threads)?);
        let bind = |address: Option<SocketAddr>| -> Result<Option<TcpListener>, StartError> {
            let Some(address) = address else { return Ok(None) };
            let bound = runtime.block_on(TcpListener::bind(address));
            bound.map(Some).map_err(|e| StartError(format!("{address} cannot be listened on: {e}")))
        };
        let (http, grpc, metrics) = (bind(options.http)?, bind(options.grpc)?, bind(options.metrics)?);
        let at = |listener: &Option<TcpListener>| listener.as_ref().and_then(|l| l.local_addr().ok());
        let addresses = Addresses { http: at(&http), grpc: at(&grpc), metrics: at(&metrics) };
        let tls = |protocol: &[u8]| options.tls.as_ref().map(|tls| acceptor(tls, protocol)).transpose().map_err(wrong);
        let (http_tls, grpc_tls) = (tls(b"http/1.1")?, tls(b"h2")?);
        let core = Arc::new(Core {
            repository: Repository::new(options.repository, opener),
            regions: Regions::new(options.limits.shared_memory),
            limits: options.limits.clone(),
            tokens: options.tokens,
            tls: options.tls.is_some(),
            traces: Traces::new(options.tracer, options.trace_rate),
            clients: Arc::new(Clients::new(options.limits.client)),
            draining: AtomicBool::new(false),
            connections: AtomicU64::new(0),
        });
        let first = core.repository.announce_all().map_err(wrong)?;
        let (phase, seen) = watch::channel(Phase::Serving);
        let mut listeners = JoinSet::new();
        let permits = Arc::new(Semaphore::new(options.limits.connections.clamp(1, Semaphore::MAX_PERMITS)));
        let shared = |protocol, tls, permits: &Arc<Semaphore>| {
            let (core, phase, permits) = (Arc::clone(&core), seen.clone(), Arc::clone(permits));
            Listener { core, protocol, tls, permits, network: Arc::clone(&network), phase }
        };
        let mut spawn = |listener: Option<TcpListener>, shared: Listener| {
            let Some(listener) = listener else { return };
            listeners.spawn_on(accept(listener, shared), runtime.handle());
        };
        let service = GrpcInferenceServiceServer::new(Service::new(Arc::clone(&core)));
        let service = service.max_decoding_message_size(options.limits.body).max_encoding_message_size(usize::MAX);
        let protocols = [Protocol::Http(crate::http::router(Arc::clone(&core))), Protocol::Grpc(service)];
        let attached = protocols.clone().map(|protocol| shared(protocol, None, &permits));
        let [over_http, over_grpc] = protocols;
        spawn(http, shared(over_http, http_tls, &permits));
        spawn(grpc, shared(over_grpc, grpc_tls, &permits));
        // Metrics are seen when clients take all connections, too.
        let few = Arc::new(Semaphore::new(16));
        spawn(metrics, shared(Protocol::Metrics(metrics_router(Arc::clone(&core))), None, &few));
        runtime.spawn(forget_idle(Arc::clone(&core)));
        let loader = spawn_loader(&core, first, seen)?;
        Ok(Server {
            core,
            addresses,
            phase,
            listeners,
            network,
            attached,
            loader: Some(loader),
            runtime: Some(runtime),
        })
    }

    /// Where it listens.
    pub fn addresses(&self) -> Addresses {
        self.addresses
    }

    /// Serves HTTP over a stream that no listener has accepted: one in memory, say. It is closed at once if there are too many connections.
    pub fn serve_http(&self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        attach(stream, &self.attached[0]);
    }

    /// As [`Server::serve_http`], for gRPC.
    pub fn serve_grpc(&self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        attach(stream, &self.attached[1]);
    }

    /// Whether every model is loaded, or was tried.
    pub fn is_ready(&self) -> bool {
        self.core.is_ready()
    }

    /// The models.
    pub fn repository(&self) -> &Repository {
        &self.core.repository
    }

    /// Waits for a signal to end: SIGTERM or SIGINT. Returns its number.
    ///
    /// # Errors
    /// When signals cannot be handled.
    pub fn wait_for_signal(&self) -> Result<i32, StartError> {
        let Some(runtime) = &self.runtime else { return Ok(0) };
        let failed = |e: std::io::Error| StartError(format!("signals cannot be handled: {e}"));
        runtime.block_on(async {
            let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
            let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
            let number = tokio::select! {
                _ = terminate.recv() => SignalKind::terminate(),
                _ = interrupt.recv() => SignalKind::interrupt(),
            };
            Ok(number.as_raw_value())
        })
    }

    /// Takes no new connections, answers what was accepted, and ends. Returns whether all of it was answered within the time limit.
    pub fn drain(mut self) -> bool {
        let Some(runtime) = self.runtime.take() else { return true };
        self.core.draining.store(true, Relaxed);
        let _ = self.phase.send(Phase::Draining);
        let deadline = Instant::now() + self.core.limits.drain;
        let core = Arc::clone(&self.core);
        let mut listeners = std::mem::take(&mut self.listeners);
        let finished = async {
            while listeners.join_next().await.is_some() {}
            while core.connections.load(Relaxed) > 0 && Instant::now() < deadline {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            core.connections.load(Relaxed) == 0
        };
        let done = runtime.block_on(async {
            // A second signal ends everything at once.
            let again = async {
                match (signal(SignalKind::terminate()), signal(SignalKind::interrupt())) {
                    (Ok(mut terminate), Ok(mut interrupt)) => {
                        tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
                    }
                    _ => std::future::pending().await,
                }
            };
            tokio::select! { done = finished => done, () = again => false }
        });
        let _ = self.phase.send(Phase::Stopping);
        if let Some(loader) = self.loader.take()
            && core.repository.is_ready()
        {
            // It sleeps, or it has ended.
            loader.thread().unpark();
            let _ = loader.join();
        }
        if done {
            core.repository.close();
        }
        core.traces.finish();
        // A model that is being compiled, or a run that takes longer than the limit, ends with the process.
        self.network.stop();
        runtime.shutdown_timeout(Duration::from_millis(100));
        done
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            let _ = self.phase.send(Phase::Stopping);
            if let Some(loader) = &self.loader {
                loader.thread().unpark();
            }
            self.network.stop();
            runtime.shutdown_background();
        }
    }
}

/// What every actor of every session does.
fn actors() -> String {
    of_runtime::flight_recorder::live_sessions()
        .iter()
        .map(of_runtime::flight_recorder::LiveSession::describe)
        .collect()
}

fn metrics_router(core: Arc<Core>) -> Router {
    let text = async move || ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], metrics::text(&core));
    Router::new().route("/metrics", get(text)).route("/debug/actors", get(async || actors()))
}

/// Ends sequences that are idle, and forgets clients that are, again and again, so that they leave the memory.
async fn forget_idle(core: Arc<Core>) {
    let mut ticks = tokio::time::interval(Duration::from_secs(1));
    loop {
        ticks.tick().await;
        core.repository.end_idle();
        core.clients.forget_quiet();
    }
}

/// Loads models at the start, and looks at their files again and again if the options say so.
fn spawn_loader(
    core: &Arc<Core>,
    first: Vec<String>,
    phase: watch::Receiver<Phase>,
) -> Result<std::thread::JoinHandle<()>, StartError> {
    let core = Arc::clone(core);
    let run = move || {
        core.repository.load_all(&first);
        let options = core.repository.options();
        if options.control != ControlMode::Poll {
            return;
        }
        let poll = options.poll.max(Duration::from_millis(10));
        loop {
            std::thread::park_timeout(poll);
            if *phase.borrow() >= Phase::Draining {
                return;
            }
            if let Err(e) = core.repository.poll() {
                tracing::warn!("the repository cannot be read: {e}");
            }
        }
    };
    let thread = std::thread::Builder::new().name("of-loader".into()).spawn(run);
    thread.map_err(|e| StartError(format!("no thread to load models: {e}")))
}
