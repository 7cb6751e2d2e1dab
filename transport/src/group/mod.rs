//! A session whose ranks are processes, for programs that embed the runtime: rank 0 is this process, and the others are workers that
//! it starts. Under a launcher (mpirun, srun, torchrun), which started this program once for each rank, each process joins the others.
//!
//! A worker waits in a rendezvous for commands of rank 0: run on these inputs, get a variable, set it, end. So a caller has the
//! session of one process. Under a launcher all processes call the same functions in the same order, as `of-opt run` does.

mod command;
mod worker;

use std::io::{self, BufRead, BufReader};
use std::net::Ipv4Addr;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command as Program, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use of_plan::{MeshProgram, PlanFile, Runs};
use of_runtime::{
    Loader, Options, RankSession, RunError, SessionError, Stopped, Tensor, TransferBlock, Transport, Value,
};

use crate::environment::{Launcher, Placement};
use crate::error::JoinError;
use crate::handshake::Identity;
use crate::mpi::Mpi;
use crate::process::{JoinOptions, LinkChoice, ProcessTransport};
use crate::rendezvous::RendezvousServer;
use crate::tls::Tls;
pub(crate) use command::Command;
pub use worker::{is_worker, serve_rank};

/// The number of the rendezvous in which rank 0 says what comes next. Neither transfers of a plan nor its outputs and variables have it.
const COMMANDS: u32 = (1 << 31) + 1;

/// What a worker writes when it is ready to join.
const READY: &str = "ready";

/// How long a worker has to end in order.
const GRACE: Duration = Duration::from_secs(5);

/// How a group of ranks is made.
#[derive(Clone, Debug)]
pub struct GroupOptions {
    /// The ranks, as many as the plan's mesh has.
    pub ranks: u32,
    /// The number of the mesh among those of the plan, its entry points.
    pub mesh: usize,
    /// What starts a worker: a program and its arguments, which calls [`serve_rank`].
    pub worker: Vec<PathBuf>,
    /// Threads of each rank; 0 are its share of the plan's.
    pub threads: usize,
    /// The most bytes that the values of a rank may take; `None` is this machine's memory.
    pub memory: Option<u64>,
    /// How long ranks wait for one another in the beginning.
    pub join_timeout: Duration,
    /// After how long a silent rank counts as lost.
    pub peer_timeout: Duration,
    /// Whether connections over TCP are encrypted, with a key that follows from the job's token. Ranks of one host still share memory.
    pub tls: bool,
}

/// Why a group cannot be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GroupError {
    /// The number of ranks is not that of the plan.
    #[error("the plan is for {needed}, and {given} ranks are asked for")]
    Ranks {
        /// What the plan has.
        needed: String,
        /// What was asked for.
        given: u32,
    },
    /// What the launcher says does not fit.
    #[error("{0}")]
    Launcher(String),
    /// This process is itself a worker that does not serve.
    #[error("this process was started as a rank of another's session, and has not served it before it made a session")]
    IsWorker,
    /// A worker cannot be started, or ended at once.
    #[error("rank {rank} cannot be started by '{program}': {why}")]
    Worker {
        /// The rank.
        rank: u32,
        /// The program.
        program: String,
        /// What is wrong.
        why: String,
    },
    /// Connections cannot be encrypted.
    #[error("TLS between ranks: {0}")]
    Tls(String),
    /// The plan cannot be written where workers read it, or random bytes or a thread cannot be had.
    #[error("cannot {what}: {source}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// The error of the system.
        source: io::Error,
    },
    /// The ranks do not join.
    #[error(transparent)]
    Join(#[from] JoinError),
    /// The plan cannot run here.
    #[error(transparent)]
    Session(#[from] SessionError),
}

fn failed(what: &'static str) -> impl Fn(io::Error) -> GroupError {
    move |source| GroupError::Io { what, source }
}

/// A process that is a rank.
#[derive(Debug)]
struct Worker {
    child: Child,
}

/// A session whose ranks are processes.
pub struct RankGroup {
    /// Dropped before the transport.
    session: Option<RankSession>,
    transport: Arc<ProcessTransport>,
    workers: Vec<Worker>,
    /// A folder with the plan for the workers.
    _folder: Option<Folder>,
    failed: bool,
    cancelled: Arc<AtomicBool>,
}

/// What a rank says that ends because of [`GroupCanceller::cancel`].
const CANCELLED: &str = "the run was cancelled";

/// Ends the runs of a group, from any thread.
#[derive(Clone, Debug)]
pub struct GroupCanceller {
    transport: Weak<ProcessTransport>,
    cancelled: Arc<AtomicBool>,
}

impl GroupCanceller {
    /// Ends a run in progress on all ranks, and every later run: they give [`RunError::Cancelled`]. Variables may be of two steps then, and
    /// ranks that wait for one another cannot go on, so a caller makes another session.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Release);
        // Without it, the session has ended.
        self.transport.upgrade().inspect(|transport| transport.fail(CANCELLED));
    }
}

impl RankGroup {
    /// Makes the session of a mesh of a plan, and starts or joins the other ranks.
    ///
    /// # Errors
    /// When the plan has another number of ranks, a worker does not start, or this machine cannot run the plan.
    pub fn new(
        plan: &Arc<PlanFile>,
        options: &GroupOptions,
        loaders: &[Arc<dyn Loader>],
    ) -> Result<RankGroup, GroupError> {
        let meshes = &plan.plan().meshes;
        if options.mesh >= meshes.len().max(1) {
            return Err(SessionError::Mesh { index: options.mesh, count: meshes.len() }.into());
        }
        let needed = meshes.get(options.mesh).map_or(1, |mesh| mesh.ranks.len() as u32);
        if needed != options.ranks || plan.plan().meshes.is_empty() {
            let needed = if needed == 1 { "1 rank".into() } else { format!("{needed} ranks") };
            return Err(GroupError::Ranks { needed, given: options.ranks });
        }
        if is_worker() {
            return Err(GroupError::IsWorker);
        }
        let placement = Placement::of_environment(&|name| std::env::var(name).ok()).map_err(GroupError::Launcher)?;
        match placement {
            Some(placement) => RankGroup::join(plan, options, loaders, placement),
            None => RankGroup::start(plan, options, loaders),
        }
    }

    /// Starts workers.
    fn start(
        plan: &Arc<PlanFile>,
        options: &GroupOptions,
        loaders: &[Arc<dyn Loader>],
    ) -> Result<RankGroup, GroupError> {
        let token = crate::new_token().map_err(failed("make a job token"))?;
        let (path, folder) = match plan.path() {
            Some(path) => (path.to_owned(), None),
            None => {
                let folder = Folder::new(&token).map_err(failed("make a folder for the plan"))?;
                let path = folder.0.join("ranks.plan");
                std::fs::write(&path, plan.bytes()).map_err(failed("write the plan for the other ranks"))?;
                (path, Some(folder))
            }
        };
        let tls = tls(options, Some(&token))?;
        let server = RendezvousServer::bind((Ipv4Addr::LOCALHOST, 0).into(), options.ranks, &token)?;
        let server = server.with_tls(tls.clone());
        let address = server.address()?.to_string();
        let mut workers = Workers(Vec::new());
        for rank in 1..options.ranks {
            let job = worker::Job { rank, address: &address, token: &token, plan: &path, options };
            workers.0.push(worker::start(&job)?);
        }
        for (worker, rank) in workers.0.iter_mut().zip(1..) {
            worker::await_ready(worker, rank, options)?;
        }
        let timeout = options.join_timeout;
        let serve = move || {
            // It tells the ranks what is wrong, and they say it.
            if let Err(error) = server.serve(timeout) {
                tracing::debug!(%error, "the rendezvous failed");
            }
        };
        std::thread::Builder::new().name("rendezvous".into()).spawn(serve).map_err(failed("start a thread"))?;
        let identity = Identity::new(0, options.ranks, crate::plan_hash(plan), &token).with_tls(tls);
        let join = join_options(options, address, Some(token), LinkChoice::Auto, None);
        let transport = Arc::new(ProcessTransport::join(&identity, &join)?);
        let session = open(plan, 0, &transport, options, loaders)?;
        let workers = std::mem::take(&mut workers.0);
        Ok(RankGroup::of(session, transport, workers, folder))
    }

    /// Joins the other processes of a launcher.
    fn join(
        plan: &Arc<PlanFile>,
        options: &GroupOptions,
        loaders: &[Arc<dyn Loader>],
        mut placement: Placement,
    ) -> Result<RankGroup, GroupError> {
        let launcher = placement.launcher;
        if let Some(ranks) = placement.ranks.filter(|ranks| *ranks != options.ranks) {
            let what = format!("{launcher} started {ranks} processes, and the plan needs {}", options.ranks);
            return Err(GroupError::Launcher(what));
        }
        let is_mpi = matches!(launcher, Launcher::OpenMpi | Launcher::Hydra);
        let mpi = (is_mpi && placement.rendezvous.is_none()).then(|| Mpi::start(launcher)).transpose()?;
        if let Some(mpi) = &mpi {
            if mpi.place() != (placement.rank, options.ranks) {
                let what = format!("{launcher} and {} disagree on the rank of this process", mpi.version());
                return Err(GroupError::Launcher(what));
            }
            mpi.finalize_at_exit();
            let of_job = |token: &str| tls(options, Some(token)).map_err(|e| e.to_string());
            let invitation = mpi.invite(options.join_timeout, of_job)?;
            placement.rendezvous = Some(invitation.rendezvous);
            placement.token = Some(invitation.token);
        }
        let rendezvous = placement.rendezvous.ok_or_else(|| {
            let variable = "set OF_RENDEZVOUS to HOST:PORT, a free port of rank 0, on all ranks";
            GroupError::Launcher(format!("{launcher} does not say where the rendezvous of the ranks is: {variable}"))
        })?;
        let token = placement.token;
        let identity =
            Identity::new(placement.rank, options.ranks, crate::plan_hash(plan), token.as_deref().unwrap_or_default());
        let identity = identity.with_tls(tls(options, token.as_deref())?);
        let serve = placement.rank == 0 && mpi.is_none();
        // MPI does not encrypt: it then says where the rendezvous is, and no more.
        let mpi = mpi.filter(|_| !options.tls);
        let join = JoinOptions { serve, ..join_options(options, rendezvous, token, LinkChoice::Auto, mpi) };
        let transport = Arc::new(ProcessTransport::join(&identity, &join)?);
        let session = open(plan, placement.rank, &transport, options, loaders)?;
        Ok(RankGroup::of(session, transport, Vec::new(), None))
    }

    fn of(
        session: RankSession,
        transport: Arc<ProcessTransport>,
        workers: Vec<Worker>,
        folder: Option<Folder>,
    ) -> RankGroup {
        let cancelled = Arc::default();
        RankGroup { session: Some(session), transport, workers, _folder: folder, failed: false, cancelled }
    }

    /// What ends its runs.
    pub fn canceller(&self) -> GroupCanceller {
        GroupCanceller { transport: Arc::downgrade(&self.transport), cancelled: Arc::clone(&self.cancelled) }
    }

    /// The rank of this process: 0, but for those that a launcher started.
    pub fn rank(&self) -> u32 {
        self.transport.rank()
    }

    /// The program, with whole inputs, outputs and variables.
    pub fn program(&self) -> Option<&MeshProgram> {
        self.session.as_ref().map(RankSession::program)
    }

    /// Runs the program on whole inputs.
    ///
    /// # Errors
    /// When an input does not fit, a task fails, or a rank does.
    pub fn run(&mut self, inputs: &[Value]) -> Result<Vec<Value>, RunError> {
        // A wrong input is an error of this process alone.
        self.session()?.check_inputs(inputs)?;
        self.command(&Command::Run(inputs.into()))?;
        let result = self.session()?.run(inputs);
        self.noted(result)
    }

    /// The value of a variable, whole.
    ///
    /// # Errors
    /// When there is no such variable, it has no value, or a rank failed.
    pub fn get_variable(&mut self, index: usize) -> Result<Tensor, RunError> {
        let name = self.variable(index)?;
        self.command(&Command::Get(index as u32))?;
        let is_first = !self.workers.is_empty();
        let variables = self.variables()?;
        let result = match is_first {
            true => variables.get_on_first(&name),
            false => variables.get(&name).map(Some),
        };
        let result = match result {
            // Ranks go on after it.
            Err(error @ RunError::Variable { .. }) => return Err(error),
            other => other,
        };
        let value = self.noted(result)?;
        value.ok_or_else(|| RunError::Internal(format!("variable `{name}` has no value on the first rank")))
    }

    /// Sets the value of a variable, whole.
    ///
    /// # Errors
    /// When there is no such variable, or the value has another type.
    pub fn set_variable(&mut self, index: usize, value: &Tensor) -> Result<(), RunError> {
        let name = self.variable(index)?;
        self.variables()?.set(&name, value)?;
        self.command(&Command::Set(index as u32, value.clone()))
    }

    /// Gives every variable its initial value; those without one have none afterwards.
    ///
    /// # Errors
    /// When a rank failed.
    pub fn reset_variables(&mut self) -> Result<(), RunError> {
        self.session()?.variables().inspect(|variables| variables.reset());
        self.command(&Command::Reset)
    }

    fn session(&mut self) -> Result<&mut RankSession, RunError> {
        self.session.as_mut().ok_or_else(|| RunError::Internal("the session has ended".into()))
    }

    fn variables(&self) -> Result<&of_runtime::RankVariables, RunError> {
        let variables = self.session.as_ref().and_then(RankSession::variables);
        variables.ok_or_else(|| RunError::Internal("the plan has no variables".into()))
    }

    fn variable(&self, index: usize) -> Result<String, RunError> {
        let port = self.program().and_then(|program| program.variables.get(index));
        port.map(|port| port.name.clone())
            .ok_or_else(|| RunError::Internal(format!("the plan has no variable number {index}")))
    }

    /// Tells the workers what comes next.
    fn command(&mut self, command: &Command) -> Result<(), RunError> {
        if self.workers.is_empty() {
            return Ok(());
        }
        let result = send(&self.transport, self.workers.len(), command).map_err(|Stopped| {
            let reason = self.transport.reason().map_or_else(|| "a rank stopped".into(), |reason| reason.text);
            RunError::Peer(reason)
        });
        self.noted(result)
    }

    /// Notes that ranks are lost, or that the run was cancelled.
    fn noted<T>(&mut self, result: Result<T, RunError>) -> Result<T, RunError> {
        self.failed |= result.is_err();
        match result {
            Err(_) if self.cancelled.load(Ordering::Acquire) => Err(RunError::Cancelled),
            other => other,
        }
    }
}

impl Drop for RankGroup {
    fn drop(&mut self) {
        if !self.failed && !self.workers.is_empty() {
            // Where it fails, the workers have ended.
            let _ = send(&self.transport, self.workers.len(), &Command::End);
        }
        self.session = None;
        let deadline = Instant::now() + if self.failed { Duration::ZERO } else { GRACE };
        for worker in &mut self.workers {
            worker.end(deadline);
        }
    }
}

/// Workers that end with this value.
struct Workers(Vec<Worker>);

impl Drop for Workers {
    fn drop(&mut self) {
        self.0.iter_mut().for_each(|worker| worker.end(Instant::now()));
    }
}

impl Worker {
    /// Waits until it has ended, and kills it after the deadline.
    fn end(&mut self, deadline: Instant) {
        while Instant::now() < deadline {
            match self.child.try_wait() {
                Ok(None) => std::thread::sleep(Duration::from_millis(2)),
                _ => return,
            }
        }
        // It may have ended meanwhile.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A folder that is removed with this value.
struct Folder(PathBuf);

impl Folder {
    fn new(token: &str) -> io::Result<Folder> {
        let folder = std::env::temp_dir().join(format!("of-ranks-{}", crate::job_name("group", token)));
        std::fs::DirBuilder::new().mode(0o700).create(&folder)?;
        Ok(Folder(folder))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What is left of it is in the folder for temporary files.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The identity of ranks for TLS, where connections are to be encrypted.
fn tls(options: &GroupOptions, token: Option<&str>) -> Result<Option<Tls>, GroupError> {
    if !options.tls {
        return Ok(None);
    }
    let token = token.filter(|token| !token.is_empty());
    let token = token.ok_or_else(|| GroupError::Tls("there is no job token: set OF_JOB_TOKEN on all ranks".into()))?;
    Tls::of_token(token).map(Some).map_err(GroupError::Tls)
}

fn join_options(
    options: &GroupOptions,
    rendezvous: String,
    token: Option<String>,
    link: LinkChoice,
    mpi: Option<Arc<Mpi>>,
) -> JoinOptions {
    let GroupOptions { join_timeout, peer_timeout, .. } = *options;
    JoinOptions { rendezvous, serve: false, token, join_timeout, peer_timeout, link, mpi, ports: None, recorder: None }
}

fn open(
    plan: &Arc<PlanFile>,
    rank: u32,
    transport: &Arc<ProcessTransport>,
    options: &GroupOptions,
    loaders: &[Arc<dyn Loader>],
) -> Result<RankSession, GroupError> {
    let to_others = Arc::clone(transport) as Arc<dyn Transport>;
    let mesh = options.mesh;
    let options = Options { threads: options.threads, memory: options.memory, ..Options::default() };
    Ok(RankSession::new(Arc::clone(plan), mesh, rank as usize, to_others, options, loaders)?)
}

/// Sends a command of rank 0 to so many workers.
fn send(transport: &ProcessTransport, workers: usize, command: &Command) -> Result<(), Stopped> {
    let bytes = command.encode();
    let block = Runs::of(&[(0, bytes.len())], &[(0, bytes.len())]);
    let to = |rank: u32| TransferBlock { to: rank, bytes: &bytes, block: &block, element: 1 };
    let blocks: Vec<TransferBlock<'_>> = (1..=workers as u32).map(to).collect();
    transport.rendezvous(0, COMMANDS, &blocks, &[], &mut |_, _| ())
}

/// Reads the line by which a worker says that it is ready.
fn read_ready(worker: &mut Worker) -> io::Result<bool> {
    let Some(stdout) = worker.child.stdout.take() else { return Ok(false) };
    let mut line = String::new();
    let mut reader = BufReader::new(stdout);
    reader.read_line(&mut line)?;
    Ok(line.trim_end() == READY)
}

/// The command that starts a worker.
fn program(worker: &[PathBuf]) -> Option<Program> {
    let (program, arguments) = worker.split_first()?;
    let mut command = Program::new(program);
    // An interrupt from the terminal is for rank 0.
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).process_group(0);
    Some(command)
}
