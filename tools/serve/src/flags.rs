//! The flags of a model server: those of `of-opt serve` but for code generation, and of `of-opt-serve`.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::builder::RangedU64ValueParser;
use clap::{ArgAction, Args, ValueEnum};
use of_cli::quantity;
use of_cli::traces::TraceFlags;
use of_diag::{Code, Diagnostic, Diagnostics, Location};
use of_serving::{ClientLimits, ControlMode, Limits, ModelConfig, RepositoryOptions, ServerOptions, TlsOptions};

/// What is served, where, and to whom.
#[derive(Args, Debug)]
pub struct ServeFlags {
    /// Model repositories (NAME/VERSION/model.plan or model.onnx, and NAME/config.pbtxt), also in a store (s3://BUCKET/PREFIX), folders of models, and models
    #[arg(required = true, value_name = "REPOSITORY|MODEL")]
    pub paths: Vec<PathBuf>,
    /// Address to listen on
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1", help_heading = "Network")]
    pub host: IpAddr,
    /// Port of HTTP; 0 takes a free one
    #[arg(long, value_name = "PORT", default_value_t = 8000, help_heading = "Network")]
    pub http_port: u16,
    /// Port of gRPC
    #[arg(long, value_name = "PORT", default_value_t = 8001, help_heading = "Network")]
    pub grpc_port: u16,
    /// Port of the metrics for Prometheus
    #[arg(long, value_name = "PORT", default_value_t = 8002, help_heading = "Network")]
    pub metrics_port: u16,
    /// Whether to serve gRPC
    #[arg(long, value_name = "BOOL", default_value_t = true, action = ArgAction::Set, help_heading = "Network")]
    pub allow_grpc: bool,
    /// Whether to serve metrics
    #[arg(long, value_name = "BOOL", default_value_t = true, action = ArgAction::Set, help_heading = "Network")]
    pub allow_metrics: bool,
    /// Threads for the network; kernels run on --threads of their own
    #[arg(long, value_name = "T", default_value_t = 2, help_heading = "Network", value_parser = RangedU64ValueParser::<usize>::new().range(1..=256))]
    pub network_threads: usize,
    /// Who loads and unloads models
    #[arg(long, value_enum, value_name = "MODE", default_value = "none", help_heading = "Models")]
    pub model_control_mode: ControlModeArg,
    /// A model to load at the start, with --model-control-mode explicit; may be repeated
    #[arg(long, value_name = "NAME", help_heading = "Models")]
    pub load_model: Vec<String>,
    /// Seconds between two looks at the repositories, with --model-control-mode poll
    #[arg(long, value_name = "S", default_value_t = 15, help_heading = "Models")]
    pub repository_poll_secs: u64,
    /// Serve only plans that the holder of this key signed, each with its signature in FILE.plan.sig
    #[arg(long, value_name = "KEY.pem", help_heading = "Models")]
    pub require_signature: Option<PathBuf>,
    /// Most rows of a batch, where config.pbtxt does not say it
    #[arg(long, value_name = "N", default_value_t = 8, help_heading = "Batches")]
    pub max_batch_size: usize,
    /// Batch sizes to prefer, where config.pbtxt does not say it. Comma-separated or repeated
    #[arg(long, value_name = "N", value_delimiter = ',', help_heading = "Batches")]
    pub preferred_batch_size: Vec<usize>,
    /// Microseconds that a request may wait for others to join its batch, where config.pbtxt does not say it
    #[arg(long, value_name = "US", default_value_t = 0, help_heading = "Batches")]
    pub max_queue_delay_microseconds: u64,
    /// Run each request alone
    #[arg(long, help_heading = "Batches")]
    pub no_batching: bool,
    /// Requests that may wait for a model; further ones get status 429 or RESOURCE_EXHAUSTED
    #[arg(long, value_name = "N", default_value_t = 256, help_heading = "Limits of clients", value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    pub max_queue_size: usize,
    /// Sequences of requests of each model at the same time, where config.pbtxt does not say it; further ones get status 429
    #[arg(long, value_name = "N", default_value_t = 1024, help_heading = "Limits of clients", value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    pub max_sequences: usize,
    /// How long a sequence may have no request, where config.pbtxt does not say it; it ends then
    #[arg(long, value_name = "DURATION", default_value = "60s", help_heading = "Limits of clients", value_parser = quantity::duration)]
    pub max_sequence_idle: Duration,
    /// Sessions of each model that run requests at the same time
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Models", value_parser = RangedU64ValueParser::<usize>::new().range(1..=64))]
    pub instances: usize,
    /// Bytes that all loaded models may need together, by what their plans say; further ones are not loaded
    #[arg(long, value_name = "SIZE", help_heading = "Models", value_parser = quantity::size)]
    pub memory_budget: Option<u64>,
    /// Largest request
    #[arg(long, value_name = "SIZE", default_value = "256MiB", help_heading = "Limits of clients", value_parser = quantity::size)]
    pub max_request_size: u64,
    /// How long a request may take from its first byte to its answer, and a client to read it
    #[arg(long, value_name = "DURATION", default_value = "60s", help_heading = "Limits of clients", value_parser = quantity::duration)]
    pub request_timeout: Duration,
    /// Most open connections; further ones wait
    #[arg(long, value_name = "N", default_value_t = 1024, help_heading = "Limits of clients", value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    pub max_connections: usize,
    /// Requests a second of each client: of each bearer token, or of each address without --token-file
    #[arg(long, value_name = "R", help_heading = "Limits of clients", value_parser = rate)]
    pub client_rate: Option<f64>,
    /// Requests of each client at the same time
    #[arg(long, value_name = "N", help_heading = "Limits of clients", value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    pub client_concurrency: Option<usize>,
    /// Seconds that accepted requests get after SIGTERM or SIGINT
    #[arg(long, value_name = "S", default_value_t = 30, help_heading = "Network")]
    pub exit_timeout_secs: u64,
    /// Whether clients may use shared memory of this machine, by any name [default: true on a loopback address]
    #[arg(long, value_name = "BOOL", action = ArgAction::Set, help_heading = "Security")]
    pub allow_shared_memory: Option<bool>,
    /// Certificates of the server in PEM: serve HTTPS, and gRPC over TLS
    #[arg(long, value_name = "FILE", requires = "tls_key", help_heading = "Security")]
    pub tls_cert: Option<PathBuf>,
    /// Private key of the certificate
    #[arg(long, value_name = "FILE", requires = "tls_cert", help_heading = "Security")]
    pub tls_key: Option<PathBuf>,
    /// Refuse clients without a certificate that one of these signed
    #[arg(long, value_name = "FILE", requires = "tls_cert", help_heading = "Security")]
    pub tls_client_ca: Option<PathBuf>,
    /// A file with bearer tokens, one a line, of which requests must have one; health checks need none
    #[arg(long, value_name = "FILE", help_heading = "Security")]
    pub token_file: Option<PathBuf>,
    /// Traces.
    #[command(flatten)]
    pub traces: TraceFlags,
}

/// Who loads and unloads models.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlModeArg {
    /// All are loaded at the start.
    None,
    /// New and changed files are loaded as they appear.
    Poll,
    /// Clients do.
    Explicit,
}

impl ServeFlags {
    /// The options of the server. Its sessions have so many workers; 0 takes as many as the plan was tuned for.
    ///
    /// # Errors
    /// When a flag or variable has no meaning, or a file with tokens cannot be read.
    pub fn options(&self, threads: usize) -> Result<ServerOptions, Diagnostics> {
        let at = |port: u16| SocketAddr::new(self.host, port);
        let mut preferred_batch_sizes = self.preferred_batch_size.clone();
        preferred_batch_sizes.sort_unstable();
        let defaults = ModelConfig {
            max_batch_size: self.max_batch_size,
            preferred_batch_sizes,
            max_queue_delay: Duration::from_micros(self.max_queue_delay_microseconds),
            max_queue_size: self.max_queue_size,
            instances: self.instances,
            max_sequences: self.max_sequences,
            max_sequence_idle: self.max_sequence_idle,
            ..ModelConfig::default()
        };
        let tls = self.tls_cert.as_ref().zip(self.tls_key.as_ref()).map(|(certificate, key)| TlsOptions {
            certificate: certificate.clone(),
            key: key.clone(),
            client_ca: self.tls_client_ca.clone(),
        });
        Ok(ServerOptions {
            http: Some(at(self.http_port)),
            grpc: self.allow_grpc.then(|| at(self.grpc_port)),
            metrics: self.allow_metrics.then(|| at(self.metrics_port)),
            tls,
            tokens: self.token_file.as_deref().map(tokens).transpose()?.unwrap_or_default(),
            limits: Limits {
                body: usize::try_from(self.max_request_size).unwrap_or(usize::MAX),
                time: self.request_timeout,
                connections: self.max_connections,
                shared_memory: self.allow_shared_memory.unwrap_or(self.host.is_loopback()),
                drain: Duration::from_secs(self.exit_timeout_secs),
                client: ClientLimits { rate: self.client_rate, concurrency: self.client_concurrency },
            },
            tracer: self.traces.tracer()?,
            trace_rate: self.traces.trace_rate,
            network_threads: self.network_threads,
            repository: RepositoryOptions {
                paths: self.paths.clone(),
                control: match self.model_control_mode {
                    ControlModeArg::None => ControlMode::None,
                    ControlModeArg::Poll => ControlMode::Poll,
                    ControlModeArg::Explicit => ControlMode::Explicit,
                },
                poll: Duration::from_secs(self.repository_poll_secs),
                load: self.load_model.clone(),
                defaults,
                no_batching: self.no_batching,
                threads,
                memory: self.memory_budget,
            },
        })
    }
}

fn rate(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|rate: &f64| *rate > 0.0 && rate.is_finite())
        .ok_or_else(|| "it is no positive number".into())
}

/// The tokens in a file, one a line.
fn tokens(path: &Path) -> Result<Vec<String>, Diagnostics> {
    let text = std::fs::read_to_string(path)
        .map_err(|e| error(Code::IO, format!("'{}' cannot be read: {e}", path.display())))?;
    let tokens: Vec<String> = text.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned).collect();
    match tokens.is_empty() || !tokens.iter().all(|token| token.chars().all(|c| c.is_ascii_graphic())) {
        true => Err(error(Code::INPUT, format!("'{}' holds no tokens of printable characters", path.display())).into()),
        false => Ok(tokens),
    }
}

fn error(code: Code, what: String) -> Diagnostic {
    Diagnostic::error(code, Location::Unknown, what)
}
