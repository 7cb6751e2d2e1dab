//! `of-opt serve`: a model server.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::builder::RangedU64ValueParser;
use clap::{ArgAction, Args, ValueEnum};
use of_diag::{Code, Diagnostics};
use of_driver::ensemble::{Step, merge};
use of_driver::{Backends, CompileOptions, Compiler, Model, ModelOrPlan, Silent, error, io_error, model};
use of_plan::PlanFile;
use of_serving::{
    ClientLimits, ControlMode, Ensemble, EnsembleStep, Limits, ModelConfig, Opener, RepositoryOptions, Server,
    ServerOptions, TlsOptions,
};

use crate::arguments::Codegen;
use crate::console::Console;
use crate::telemetry::TraceFlags;
use crate::{exit, quantity, signals};

/// Flags.
#[derive(Args, Debug)]
pub struct Serve {
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
    /// Code generation, for models that are not compiled yet.
    #[command(flatten)]
    pub codegen: Codegen,
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

/// Executes the subcommand: serves until a signal.
///
/// # Errors
/// When the server cannot start, or requests were not answered in time at its end.
pub fn serve(c: &Serve, console: &Console) -> Result<(), Diagnostics> {
    let options = c.codegen.options()?;
    if options.mesh.is_some() {
        return Err(exit::usage("--mesh has no effect here: the server starts no ranks").into());
    }
    let opener = opener(options, c.require_signature.clone())?;
    let server = Server::start(server_options(c)?, opener).map_err(|e| error(Code::IO, e.to_string()))?;
    let at = server.addresses();
    let scheme = if c.tls_cert.is_some() { "https" } else { "http" };
    let line = |name: &str, address: Option<SocketAddr>| address.map_or(String::new(), |a| format!("{name}{a}\n"));
    let metrics = line("http://", at.metrics).replace('\n', "/metrics\n");
    console.print(&[line(&format!("{scheme}://"), at.http), line("grpc://", at.grpc), metrics].concat())?;
    let signal = server.wait_for_signal().map_err(|e| error(Code::IO, e.to_string()))?;
    tracing::info!(signal, "the server ends");
    let done = server.drain();
    signals::clean_up();
    match done {
        true => Ok(()),
        false => {
            let what = format!("requests were still running {} s after the signal to end", c.exit_timeout_secs);
            Err(error(Code::RUN, what).hint("--exit-timeout-secs gives them more time").into())
        }
    }
}

fn server_options(c: &Serve) -> Result<ServerOptions, Diagnostics> {
    let at = |port: u16| SocketAddr::new(c.host, port);
    let mut preferred_batch_sizes = c.preferred_batch_size.clone();
    preferred_batch_sizes.sort_unstable();
    let defaults = ModelConfig {
        max_batch_size: c.max_batch_size,
        preferred_batch_sizes,
        max_queue_delay: Duration::from_micros(c.max_queue_delay_microseconds),
        max_queue_size: c.max_queue_size,
        instances: c.instances,
        max_sequences: c.max_sequences,
        max_sequence_idle: c.max_sequence_idle,
        ..ModelConfig::default()
    };
    let tls = c.tls_cert.as_ref().zip(c.tls_key.as_ref()).map(|(certificate, key)| TlsOptions {
        certificate: certificate.clone(),
        key: key.clone(),
        client_ca: c.tls_client_ca.clone(),
    });
    Ok(ServerOptions {
        http: Some(at(c.http_port)),
        grpc: c.allow_grpc.then(|| at(c.grpc_port)),
        metrics: c.allow_metrics.then(|| at(c.metrics_port)),
        tls,
        tokens: c.token_file.as_deref().map(tokens).transpose()?.unwrap_or_default(),
        limits: Limits {
            body: usize::try_from(c.max_request_size).unwrap_or(usize::MAX),
            time: c.request_timeout,
            connections: c.max_connections,
            shared_memory: c.allow_shared_memory.unwrap_or(c.host.is_loopback()),
            drain: Duration::from_secs(c.exit_timeout_secs),
            client: ClientLimits { rate: c.client_rate, concurrency: c.client_concurrency },
        },
        tracer: c.traces.tracer()?,
        trace_rate: c.traces.trace_rate,
        network_threads: c.network_threads,
        repository: RepositoryOptions {
            paths: c.paths.clone(),
            control: match c.model_control_mode {
                ControlModeArg::None => ControlMode::None,
                ControlModeArg::Poll => ControlMode::Poll,
                ControlModeArg::Explicit => ControlMode::Explicit,
            },
            poll: Duration::from_secs(c.repository_poll_secs),
            load: c.load_model.clone(),
            defaults,
            no_batching: c.no_batching,
            threads: c.codegen.threads.unwrap_or(0),
            memory: c.memory_budget,
        },
    })
}

fn rate(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|rate: &f64| *rate > 0.0 && rate.is_finite())
        .ok_or_else(|| "it is no positive number".into())
}

/// The tokens in a file, one a line.
fn tokens(path: &Path) -> Result<Vec<String>, Diagnostics> {
    let text = std::fs::read_to_string(path).map_err(|e| io_error(path, "read", &e))?;
    let tokens: Vec<String> = text.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned).collect();
    match tokens.is_empty() || !tokens.iter().all(|token| token.chars().all(|c| c.is_ascii_graphic())) {
        true => Err(error(Code::INPUT, format!("'{}' holds no tokens of printable characters", path.display())).into()),
        false => Ok(tokens),
    }
}

/// The token in a file, without the line break at its end.
///
/// # Errors
/// When the file cannot be read, or holds none.
pub fn token(path: &Path) -> Result<String, Diagnostics> {
    let text = std::fs::read_to_string(path).map_err(|e| io_error(path, "read", &e))?;
    let token = text.trim_end().to_owned();
    match token.is_empty() || !token.chars().all(|c| c.is_ascii_graphic()) {
        true => Err(error(Code::INPUT, format!("'{}' holds no token of printable characters", path.display())).into()),
        false => Ok(token),
    }
}

/// Opens plans, signed ones only if there is a key, and compiles models.
fn opener(options: CompileOptions, key: Option<PathBuf>) -> Result<Opener, Diagnostics> {
    let loaders = Backends::new(&options)?.loaders;
    let (compile, is_signed) = (options.clone(), key.is_some());
    let open = move |path: &Path| open(path, &options, key.as_deref()).map_err(|e| e.to_string());
    let ensemble = move |ensemble: &Ensemble| open_ensemble(ensemble, &compile, is_signed).map_err(|e| e.to_string());
    Ok(Opener { open: Box::new(open), open_ensemble: Box::new(ensemble), loaders })
}

/// Merges the models of an ensemble, and compiles them as one plan.
fn open_ensemble(ensemble: &Ensemble, options: &CompileOptions, is_signed: bool) -> Result<PlanFile, Diagnostics> {
    if is_signed {
        let what = "an ensemble is compiled when it is loaded, and --require-signature serves signed plans only";
        return Err(error(Code::INPUT, what).into());
    }
    let step = |step: &EnsembleStep| -> Result<Step, Diagnostics> {
        let model = Model::open(&step.file)?;
        Ok(Step { name: step.name.clone(), model, inputs: step.inputs.clone(), outputs: step.outputs.clone() })
    };
    let steps = ensemble.steps.iter().map(step).collect::<Result<_, _>>()?;
    let model = merge(&ensemble.name, steps, &ensemble.inputs, &ensemble.outputs)?;
    Compiler::with_options(options.clone()).compile(model)?.open()
}

fn open(path: &Path, options: &CompileOptions, key: Option<&Path>) -> Result<PlanFile, Diagnostics> {
    if let Some(key) = key {
        if path.extension().is_none_or(|e| e != "plan") {
            let what = format!("'{}' is no plan, and --require-signature serves signed plans only", path.display());
            return Err(error(Code::INPUT, what).hint("compile the model and sign its plan").into());
        }
        return of_driver::signed_plan::open(path, None, key);
    }
    match model::open(path, &Silent)? {
        ModelOrPlan::Plan(plan) => Ok(*plan),
        ModelOrPlan::Model(model) => Compiler::with_options(options.clone()).compile(*model)?.open(),
    }
}
