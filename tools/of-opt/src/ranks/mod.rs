//! Ranks as processes: `of-opt run --ranks N` starts them, and launchers of clusters do.

mod hosts;
mod launch;
mod logs;
mod metrics;
mod mpi;
mod reason;
mod recording;
mod restart;

use std::net::IpAddr;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::builder::RangedU64ValueParser;
use clap::{Args, ValueEnum};
use of_cli::quantity;
use of_diag::{Code, Diagnostic, Diagnostics};
use of_driver::model::open_plan_for_rank;
use of_driver::{Backends, CompileOptions, ModelOrPlan, Session, SessionOptions, count, error};
use of_plan::{MeshProgram, Plan, PlanFile, Runs};
use of_runtime::flight_recorder::Phase;
use of_runtime::{TransferBlock, Transport, Value};
use of_transport::{
    Identity, JoinError, JoinOptions, Launcher, LinkChoice, Mpi, PeerInfo, Placement, ProcessTransport, Tls, TlsFiles,
    plan_hash,
};

use hosts::{Host, Hosts};
pub use launch::{
    launch, name_recordings, pass_on, plans, remove_plans, say_that_nothing_reads, say_that_the_job_is_interrupted,
};
pub use metrics::{actors, metrics, serve as serve_metrics};
pub use mpi::grace;
use recording::Recording;
pub use restart::{check as check_restarts, started as job_started};

use crate::arguments::{InputFiles, ModelFile};
use crate::console::{Console, is_dash};
use crate::deferral;
use crate::exit;
use crate::signed_plan::Signed;

/// The time between two tries to join ranks of which one was lost meanwhile.
const PAUSE: Duration = Duration::from_millis(20);

/// Flags of ranks that are processes.
#[derive(Args, Debug)]
pub struct RankOptions {
    /// Run the ranks of the plan's mesh as N processes on this machine, rather than as threads of one. Where a launcher started
    /// this process as one of several (mpirun, srun, torchrun, an Indexed Job of Kubernetes), it is a rank without this flag
    #[arg(long, value_name = "N", help_heading = "Ranks", value_parser = RangedU64ValueParser::<u32>::new().range(2..=4096))]
    pub ranks: Option<u32>,
    /// Run the ranks on the hosts that this file names, with their ports, devices, threads and memory: the same command is started on each
    /// host, and starts the ranks of that host as processes
    #[arg(long, value_name = "FILE.toml", help_heading = "Ranks", conflicts_with = "ranks")]
    pub hosts: Option<PathBuf>,
    /// Which host of --hosts this machine is [default: the one whose address it has]
    #[arg(long, value_name = "NAME", help_heading = "Ranks", requires = "hosts")]
    pub host: Option<String>,
    /// The rendezvous of the ranks of a launcher; rank 0 listens there [default: what the launcher says: MASTER_ADDR and MASTER_PORT,
    /// the first node of SLURM_STEP_NODELIST or SLURM_JOB_NODELIST, or OF_RENDEZVOUS; under mpirun, the ranks agree on one over MPI]
    #[arg(long, value_name = "HOST:PORT", help_heading = "Ranks")]
    pub rendezvous: Option<String>,
    /// How long ranks wait for one another in the beginning
    #[arg(long, value_name = "DURATION", help_heading = "Ranks", default_value = "60s", value_parser = quantity::duration)]
    pub join_timeout: Duration,
    /// After how long a rank that is silent counts as lost. One of the same host whose process is not stopped waits for a core, and has 30
    /// times as long
    #[arg(long, value_name = "DURATION", help_heading = "Ranks", default_value = "1s", value_parser = quantity::duration)]
    pub peer_timeout: Duration,
    /// Folder of the flight recorders, a file for each rank, which 'of-opt why-stuck' reads; `none` for none [default: a folder of the job
    /// for temporary files, which is removed when the job ends in order]
    #[arg(long, value_name = "DIR", help_heading = "Ranks")]
    pub flight_recorder: Option<PathBuf>,
    /// Serve metrics for Prometheus at /metrics while ranks run, and at /debug/actors what each actor has done and waits for. A rank
    /// that is a process listens at PORT plus its number among the ranks of its machine. SIGUSR1 writes the same text of actors to stderr
    #[arg(long, value_name = "PORT", help_heading = "Ranks", value_parser = clap::value_parser!(u16).range(1..))]
    pub metrics_port: Option<u16>,
    /// The address at which --metrics-port listens; 0.0.0.0 are all of this machine [default: 127.0.0.1]
    #[arg(long, value_name = "ADDRESS", help_heading = "Ranks", requires = "metrics_port")]
    pub metrics_host: Option<IpAddr>,
    /// Write what each rank of this machine logs to a file of its own in this folder, rank0.log and so on; rank 0 is also logged here. Other launchers have
    /// flags of their own: torchrun --log-dir, mpirun --output-filename, srun --error
    #[arg(long, value_name = "DIR", help_heading = "Ranks")]
    pub rank_logs: Option<PathBuf>,
    /// How ranks exchange data
    #[arg(long, value_name = "TRANSPORT", help_heading = "Ranks", value_enum, default_value_t)]
    pub transport: TransportChoice,
    /// How connections over TCP are encrypted, and how ranks prove who they are in TLS
    #[arg(long, value_name = "IDENTITY", help_heading = "Ranks", value_enum, default_value_t)]
    pub tls: TlsChoice,
}

/// How ranks exchange data.
#[derive(ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TransportChoice {
    /// Shared memory between ranks of one host; between others MPI under mpirun without --rendezvous, and TCP otherwise
    #[default]
    Auto,
    /// TCP
    Tcp,
    /// Shared memory: all ranks must be on one host
    SharedMemory,
    /// MPI: the library of mpirun or srun, which the environment variable OF_MPI can name
    Mpi,
}

/// How ranks prove who they are in encrypted connections.
#[derive(ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TlsChoice {
    /// Certificates, where the file of --hosts has them and not all hosts are loopback; otherwise no encryption
    #[default]
    Auto,
    /// No encryption
    Off,
    /// A key that follows from the job's token, OF_JOB_TOKEN
    Token,
    /// The certificates in the file of --hosts
    Certificates,
}

/// What this process is.
pub enum Role {
    /// It runs all ranks itself.
    All,
    /// It starts processes.
    Launcher(Job),
    /// It is one rank.
    Rank(Placement),
}

/// What a launcher starts.
pub struct Job {
    /// Ranks of the job.
    ranks: u32,
    /// Those that are started here.
    own: Range<u32>,
    /// `HOST:PORT` of the rendezvous; none where all ranks are started here.
    rendezvous: Option<String>,
    /// CUDA devices of the ranks that are started here.
    devices: Vec<u32>,
    /// Whether mpirun started this process, which starts its rank as another one.
    supervises: bool,
}

/// What flags and environment say this process is.
///
/// # Errors
/// When they contradict each other.
pub fn role(options: &RankOptions) -> Result<Role, Diagnostics> {
    let variable = |name: &str| std::env::var(name).ok();
    let placement = Placement::of_environment(&variable).map_err(exit::usage)?;
    if options.rank_logs.is_some() {
        logs::check(options, placement.as_ref())?;
    }
    let Some(mut placement) = placement else {
        let local = |ranks: u32| {
            let rendezvous = options.rendezvous.clone();
            Job { ranks, own: 0..ranks, rendezvous, devices: Vec::new(), supervises: false }
        };
        let Some(file) = &options.hosts else {
            return Ok(options.ranks.map_or(Role::All, |ranks| Role::Launcher(local(ranks))));
        };
        let hosts = Hosts::read(file)?;
        let (here, own) = hosts.here(options.host.as_deref())?;
        if variable("OF_JOB_TOKEN").is_none_or(|token| token.is_empty()) && !hosts.are_loopback() {
            let what = "the ranks are on several hosts, and there is no job token";
            return Err(error(Code::INPUT, what).hint(TOKEN_HINT).into());
        }
        let (ranks, devices) = (hosts.ranks(), here.devices.clone());
        return Ok(Role::Launcher(Job {
            ranks,
            own,
            rendezvous: Some(hosts.rendezvous()),
            devices,
            supervises: false,
        }));
    };
    if let (Some(flag), Some(ranks)) = (options.ranks, placement.ranks)
        && flag != ranks
    {
        let what = format!("--ranks {flag}, but {} started {ranks} processes", placement.launcher);
        return Err(exit::usage(what).into());
    }
    if let Some(ranks) = options.ranks {
        placement.check_ranks(ranks, &format!("--ranks {ranks}")).map_err(exit::usage)?;
    }
    placement.ranks = placement.ranks.or(options.ranks);
    // The launcher of this program has the flag itself, and says where it serves the rendezvous.
    let given = options.rendezvous.clone().filter(|_| placement.launcher != Launcher::OfOpt);
    placement.rendezvous = given.or(placement.rendezvous);
    let (rank, ranks) = (placement.rank, placement.ranks.unwrap_or_default());
    if mpi::is_supervisor(options, &placement) {
        let (own, rendezvous) = (rank..rank + 1, placement.rendezvous);
        return Ok(Role::Launcher(Job { ranks, own, rendezvous, devices: Vec::new(), supervises: true }));
    }
    if placement.launcher == Launcher::OfOpt || mpi::is_supervised() {
        // Ranks end with the process that started them, however that ends.
        let set = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM));
        if let Err(e) = set {
            tracing::debug!(error = %e, "this process outlives its launcher");
        }
        deferral::follow_launcher();
    }
    Ok(Role::Rank(placement))
}

/// Worker threads of this process. A rank in a process of its own takes those of its host, or its share of the plan's (0).
///
/// # Errors
/// When the file of hosts cannot be read.
pub fn threads(options: &RankOptions, role: &Role, compile: &CompileOptions) -> Result<usize, Diagnostics> {
    let Role::Rank(placement) = role else { return Ok(compile.worker_threads()) };
    let hosts = options.hosts.as_deref().map(Hosts::read).transpose()?;
    let own = hosts.as_ref().and_then(|hosts| hosts.of_rank(placement.rank)?.threads);
    Ok(own.unwrap_or(compile.threads))
}

/// The memory budget of this process: what the command line says, or what the file of hosts gives each rank of its host.
///
/// # Errors
/// When the file of hosts cannot be read.
pub fn memory(options: &RankOptions, role: &Role, given: Option<u64>) -> Result<Option<u64>, Diagnostics> {
    let (Role::Rank(placement), None) = (role, given) else { return Ok(given) };
    let hosts = options.hosts.as_deref().map(Hosts::read).transpose()?;
    Ok(hosts.as_ref().and_then(|hosts| hosts.of_rank(placement.rank)?.memory).map(|memory| memory.0))
}

/// Opens a model or plan, for what this process is: a rank reads its own part of a plan.
///
/// # Errors
/// When it cannot be read, is damaged, holds an unsupported op, or the signature is refused.
pub fn open(
    role: &Role,
    signed: &Signed,
    model: &ModelFile,
    inputs: &InputFiles,
    console: &Console,
) -> Result<ModelOrPlan, Diagnostics> {
    // A signature is that of the whole file.
    let in_part = signed.require_signature.is_none() && !is_dash(&model.model) && model.initializer_input.is_empty();
    if let Role::Rank(placement) = role
        && in_part
        && let Some(plan) = open_plan_for_rank(&model.model, placement.rank as usize)?
    {
        return Ok(ModelOrPlan::Plan(Box::new(plan)));
    }
    signed.open(model, inputs, console)
}

/// A rank that is connected to the others.
pub struct Joined {
    /// The connection.
    pub transport: Arc<ProcessTransport>,
    recording: Option<Recording>,
    mpi: Option<Arc<Mpi>>,
}

impl Joined {
    /// The job ended in order: no session of the rank is left.
    ///
    /// # Errors
    /// When MPI cannot be ended.
    pub fn done(self) -> Result<(), Diagnostics> {
        self.recording.into_iter().for_each(Recording::done);
        drop(self.transport);
        self.mpi.map_or(Ok(()), |mpi| mpi.finalize()).map_err(|e| join_error(&e).into())
    }
}

/// Connects a rank to the others. `None` where the plan is for one rank, so that every process of the launcher runs it whole.
///
/// # Errors
/// When the plan's mesh has another number of ranks, or ranks do not come.
pub fn join(
    options: &RankOptions,
    placement: &Placement,
    plan: &PlanFile,
    model: &Path,
) -> Result<Option<Joined>, Diagnostics> {
    join_attempt(options, placement, plan, model, false).map_err(|failed| failed.0)
}

/// Why a rank does not join, and whether the job has ended for it.
pub struct JoinFailure(pub Diagnostics, pub Option<JobEnd>);

/// How a job of which lost ranks are started again ended for a rank that comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobEnd {
    /// All is done.
    InOrder,
    /// No rank is started again.
    Refused,
}

impl<E: Into<Diagnostics>> From<E> for JoinFailure {
    fn from(errors: E) -> JoinFailure {
        JoinFailure(errors.into(), None)
    }
}

/// As [`join`], for a job of which lost ranks are started again where `restarts` says so: a rank may be lost while this one joins.
///
/// # Errors
/// As [`join`], and when the job has ended.
pub fn join_attempt(
    options: &RankOptions,
    placement: &Placement,
    plan: &PlanFile,
    model: &Path,
    restarts: bool,
) -> Result<Option<Joined>, JoinFailure> {
    let launcher = placement.launcher;
    let Some(mesh) = plan.plan().meshes.first() else {
        if options.ranks.is_some() || launcher == Launcher::OfOpt {
            let hint = "compile it for a mesh: of-opt compile MODEL --mesh 'cpu[N]' -o ranks.plan";
            return Err(error(Code::INPUT, "the plan is for one rank").hint(hint).into());
        }
        return Ok(None);
    };
    let needed = mesh.ranks.len() as u32;
    match placement.ranks {
        Some(ranks) if ranks == needed => {}
        Some(ranks) => {
            let what = format!("the plan's mesh has {}, and there are {}", ranks_text(needed), processes_text(ranks));
            return Err(error(Code::INPUT, what).hint(format!("start {needed}")).into());
        }
        None => {
            let what = format!("{launcher} does not say how many ranks there are");
            return Err(error(Code::INPUT, what).hint(format!("the plan needs --ranks {needed}")).into());
        }
    }
    let hosts = options.hosts.as_deref().map(Hosts::read).transpose()?;
    let mut placement = placement.clone();
    let mpi = mpi::start(options, &placement, needed)?;
    let is_served = mpi.is_some() && placement.rendezvous.is_none();
    if let Some(mpi) = mpi.as_ref().filter(|_| placement.rendezvous.is_none()) {
        let of_job = |token: &str| tls(options, hosts.as_ref(), Some(token)).map_err(|e| e.to_string());
        let invitation = mpi.invite(options.join_timeout, of_job).map_err(|e| join_error(&e))?;
        // That of the environment is not needed.
        (placement.rendezvous, placement.token) = (Some(invitation.rendezvous), Some(invitation.token));
    }
    let Some(rendezvous) = placement.rendezvous.clone() else {
        let hint = "--rendezvous HOST:PORT, the same on all ranks: a host and a free port of rank 0";
        return Err(error(Code::INPUT, format!("{launcher} does not say where the rendezvous of the ranks is"))
            .hint(hint)
            .into());
    };
    let token = placement.token.clone();
    let tls = tls(options, hosts.as_ref(), token.as_deref())?;
    let identity = Identity::new(placement.rank, needed, plan_hash(plan), token.as_deref().unwrap_or_default());
    // MPI does not encrypt: it then says where the rendezvous is, and no more.
    let for_data = mpi.clone().filter(|_| tls.is_none());
    let identity = identity.with_tls(tls);
    let serve = placement.rank == 0 && launcher != Launcher::OfOpt && !is_served;
    let link = match options.transport {
        TransportChoice::Auto => LinkChoice::Auto,
        TransportChoice::Tcp => LinkChoice::Tcp,
        TransportChoice::SharedMemory => LinkChoice::SharedMemory,
        TransportChoice::Mpi => LinkChoice::Mpi,
    };
    let (join_timeout, peer_timeout) = (options.join_timeout, options.peer_timeout);
    let ports = hosts.as_ref().and_then(|hosts| hosts.ports.clone()).map(|ports| ports.0);
    let recording = recording::start(options, &placement, (&rendezvous, needed), plan, model)?;
    let recorder = recording.as_ref().map(|recording| Arc::clone(&recording.recorder));
    let options = JoinOptions {
        rendezvous,
        serve,
        token,
        join_timeout,
        peer_timeout,
        link,
        mpi: for_data,
        ports,
        recorder: recorder.clone(),
    };
    let deadline = Instant::now() + join_timeout;
    let transport = loop {
        match ProcessTransport::join(&identity, &options) {
            Err(e) if restarts && e.may_pass() && Instant::now() < deadline => {
                tracing::debug!(error = %e, "the ranks join again");
                std::thread::sleep(PAUSE);
            }
            other => break other,
        }
    };
    let transport = transport.map_err(|e| {
        recorder.inspect(|recorder| recorder.failed(&e.to_string(), Phase::Failed));
        let end = match e {
            JoinError::Over => Some(JobEnd::InOrder),
            JoinError::Refused(_) => Some(JobEnd::Refused),
            _ => None,
        };
        JoinFailure(explained(&e, plan.plan(), mesh, hosts.as_ref(), &options.rendezvous), end)
    })?;
    if let Some(recording) = &recording {
        recording.recorder.phase(Phase::Loads);
    }
    Ok(Some(Joined { transport: Arc::new(transport), recording, mpi }))
}

/// Opens a session on inputs, for what this process is: all ranks, or one that joins the others.
///
/// # Errors
/// When ranks do not come, or this machine cannot execute the plan.
pub fn session(
    flags: &RankOptions,
    role: &Role,
    (plan, model): (Arc<PlanFile>, &Path),
    inputs: &[Value],
    options: &SessionOptions,
    backends: &Backends,
) -> Result<(Session, Option<Joined>), Diagnostics> {
    if let Role::Rank(placement) = role
        && let Some(joined) = join(flags, placement, &plan, model)?
    {
        let to_others = Arc::clone(&joined.transport) as Arc<dyn Transport>;
        let session = Session::for_rank(plan, inputs, placement.rank as usize, to_others, options, backends)?;
        return Ok((session, Some(joined)));
    }
    Ok((Session::for_inputs(plan, inputs, options, backends)?, None))
}

/// The identity of ranks for TLS; `None` without encryption.
///
/// # Errors
/// When there is no token, or certificates cannot be read.
fn tls(options: &RankOptions, hosts: Option<&Hosts>, token: Option<&str>) -> Result<Option<Tls>, Diagnostics> {
    let files = hosts.and_then(|hosts| hosts.tls.as_ref());
    let by_certificates = || -> Result<Option<Tls>, Diagnostics> {
        let (Some(files), Some(hosts)) = (files, hosts) else {
            let what = "--tls certificates needs a file of --hosts with [tls]";
            return Err(error(Code::INPUT, what).hint("its keys are ca, certificate and key").into());
        };
        let files = TlsFiles { ca: files.ca.clone(), certificate: files.certificate.clone(), key: files.key.clone() };
        let names = (0..hosts.ranks()).filter_map(|rank| hosts.of_rank(rank)).map(|host| host.address.0.clone());
        let tls = Tls::of_certificates(&files, names.collect());
        tls.map(Some).map_err(|e| error(Code::INPUT, format!("TLS between ranks: {e}")).into())
    };
    match options.tls {
        TlsChoice::Off => Ok(None),
        TlsChoice::Certificates => by_certificates(),
        TlsChoice::Auto if files.is_some() && hosts.is_some_and(|hosts| !hosts.are_loopback()) => by_certificates(),
        TlsChoice::Auto => Ok(None),
        TlsChoice::Token => match token.filter(|token| !token.is_empty()) {
            Some(token) => Ok(Some(Tls::of_token(token).map_err(|e| error(Code::RUN, e))?)),
            None => Err(error(Code::INPUT, "--tls token needs a job token").hint(TOKEN_HINT).into()),
        },
    }
}

/// The errors of a rank, with what to do where another rank ended the job. `again` says how to start it again.
pub fn explained_end(role: &Role, again: &str, errors: Diagnostics) -> Diagnostics {
    let Role::Rank(placement) = role else { return errors };
    if placement.launcher == Launcher::OfOpt {
        // The process that started the ranks says what there is to say.
        return errors;
    }
    let explained = |diagnostic: Diagnostic| match diagnostic.code {
        Code::RUN if diagnostic.hint.is_none() => {
            diagnostic.hint(format!("a job does not go on without one of its ranks; {again}"))
        }
        _ => diagnostic,
    };
    Diagnostics(errors.0.into_iter().map(explained).collect())
}

/// What the first rank says, on all ranks: each asks at the same time.
///
/// # Errors
/// When a rank stopped.
pub fn first_says(transport: &ProcessTransport, says: bool) -> Result<bool, Diagnostics> {
    /// A number that neither transfers of a plan nor its outputs and variables have.
    const ID: u32 = 1 << 31;
    let (me, mut answer) = (transport.rank(), says);
    let bytes = [u8::from(says)];
    let block = Runs::of(&[(0, 1)], &[(0, 1)]);
    let send = |peer: &PeerInfo| TransferBlock { to: peer.rank, bytes: &bytes, block: &block, element: 1 };
    let peers = transport.peers();
    let (blocks, from): (Vec<_>, &[u32]) =
        if me == 0 { (peers.iter().map(send).collect(), &[]) } else { (Vec::new(), &[0]) };
    let mut take = |_: usize, block: TransferBlock<'_>| answer = block.bytes.first() == Some(&1);
    let result = transport.rendezvous(me, ID, &blocks, from, &mut take);
    let why = || transport.reason().map_or_else(|| "another rank stopped".into(), |reason| reason.text);
    result.map_err(|_| error(Code::RUN, why()))?;
    Ok(answer)
}

/// The diagnostic for ranks that do not join: where they should be, and what the plan needs them for.
fn explained(e: &JoinError, plan: &Plan, mesh: &MeshProgram, hosts: Option<&Hosts>, rendezvous: &str) -> Diagnostics {
    /// As many ranks are explained.
    const EXPLAINED: usize = 4;
    let missing: &[u32] = match e {
        JoinError::Missing { missing, .. } => missing,
        JoinError::NoServer { .. } => &[0],
        _ => &[],
    };
    let mut diagnostic = join_error(e);
    for rank in missing.iter().take(EXPLAINED) {
        // Rank 0 is at the rendezvous.
        let at_rendezvous = rendezvous.rsplit_once(':').map(|(host, _)| host).filter(|_| *rank == 0);
        let host = hosts.and_then(|hosts| hosts.of_rank(*rank)).map(Host::name).or(at_rendezvous);
        diagnostic = diagnostic.note(reason::why_needed(plan, mesh, *rank, host));
    }
    diagnostic.into()
}

const TOKEN_HINT: &str =
    "set OF_JOB_TOKEN to one secret text for all ranks: they prove to one another that they know it";

fn join_error(e: &JoinError) -> Diagnostic {
    let (code, hint) = match e {
        JoinError::Address { .. } => (Code::INPUT, None),
        JoinError::NoToken(_) => (Code::INPUT, Some(TOKEN_HINT)),
        JoinError::Missing { .. } | JoinError::NoServer { .. } => {
            (Code::RUN, Some("start all ranks; --join-timeout gives them more time"))
        }
        JoinError::NoRendezvous { .. } => {
            (Code::RUN, Some("give the host and a free port of rank 0, where of-opt listens, or end what has the port"))
        }
        JoinError::NoPort { .. } => (Code::INPUT, Some("give more `ports` in the file of hosts, or end what has them")),
        JoinError::Io { source, .. } if source.kind() == std::io::ErrorKind::AddrInUse => {
            (Code::RUN, Some("another program or another job has the port: end it, or give all ranks another port"))
        }
        JoinError::Plan { .. } => (Code::INPUT, None),
        JoinError::NoSharedMemory { .. } => (Code::INPUT, Some("--transport auto uses TCP between these ranks")),
        _ => (Code::RUN, None),
    };
    let diagnostic = error(code, e.to_string());
    match hint {
        Some(hint) => diagnostic.hint(hint),
        None => diagnostic,
    }
}

fn ranks_text(n: u32) -> String {
    count(n as usize, "rank")
}

fn processes_text(n: u32) -> String {
    if n == 1 { "1 process".into() } else { format!("{n} processes") }
}
