//! A worker: a rank that does what rank 0 says.

use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use of_plan::PlanFile;
use of_runtime::{Loader, RankSession, Transport};

use super::{
    CANCELLED, COMMANDS, Command, GroupError, GroupOptions, READY, Worker, join_options, open, program, read_ready, tls,
};
use crate::handshake::Identity;
use crate::process::{LinkChoice, ProcessTransport};

/// Variables by which rank 0 tells a worker what it is.
const RANK: &str = "OF_WORKER_RANK";
const RANKS: &str = "OF_WORKER_RANKS";
const ADDRESS: &str = "OF_WORKER_RENDEZVOUS";
const TOKEN: &str = "OF_WORKER_TOKEN";
const PLAN: &str = "OF_WORKER_PLAN";
const MESH: &str = "OF_WORKER_MESH";
const THREADS: &str = "OF_WORKER_THREADS";
const MEMORY: &str = "OF_WORKER_MEMORY";
/// Set where connections are encrypted.
const TLS: &str = "OF_WORKER_TLS";
/// Milliseconds.
const JOIN_TIMEOUT: &str = "OF_WORKER_JOIN_TIMEOUT";
const PEER_TIMEOUT: &str = "OF_WORKER_PEER_TIMEOUT";

/// What a worker is started for.
pub(super) struct Job<'j> {
    pub rank: u32,
    pub address: &'j str,
    pub token: &'j str,
    pub plan: &'j Path,
    pub options: &'j GroupOptions,
}

/// Starts a worker.
pub(super) fn start(job: &Job<'_>) -> Result<Worker, GroupError> {
    let Job { rank, address, token, plan, options } = *job;
    let name = options.worker.first().map_or_else(String::new, |program| program.display().to_string());
    let failed = |why: String| GroupError::Worker { rank, program: name.clone(), why };
    let mut command = program(&options.worker).ok_or_else(|| failed("there is no program".into()))?;
    let number = |n: Duration| n.as_millis().to_string();
    command.env(RANK, rank.to_string()).env(RANKS, options.ranks.to_string());
    command.env(ADDRESS, address).env(TOKEN, token).env(PLAN, plan).env(THREADS, options.threads.to_string());
    command.env(MESH, options.mesh.to_string());
    command.env(JOIN_TIMEOUT, number(options.join_timeout)).env(PEER_TIMEOUT, number(options.peer_timeout));
    if let Some(memory) = options.memory {
        command.env(MEMORY, memory.to_string());
    }
    if options.tls {
        command.env(TLS, "1");
    }
    let child = command.spawn().map_err(|e| failed(e.to_string()))?;
    Ok(Worker { child })
}

/// Waits until a worker is ready to join.
pub(super) fn await_ready(worker: &mut Worker, rank: u32, options: &GroupOptions) -> Result<(), GroupError> {
    let why = match read_ready(worker) {
        Ok(true) => return Ok(()),
        Ok(false) => match worker.child.wait() {
            Ok(status) => format!("it does not serve the rank, and ended with {status}"),
            Err(error) => error.to_string(),
        },
        Err(error) => error.to_string(),
    };
    let program = options.worker.first().map_or_else(String::new, |program| program.display().to_string());
    Err(GroupError::Worker { rank, program, why })
}

/// Whether a [`super::RankGroup`] of another process started this one as a worker.
pub fn is_worker() -> bool {
    std::env::var_os(RANK).is_some()
}

/// Serves the rank of a worker until the session of rank 0 ends.
///
/// # Errors
/// When this process is no worker, cannot run the plan, or a rank failed, as text.
pub fn serve_rank(loaders: &[Arc<dyn Loader>]) -> Result<(), String> {
    let text = |name: &str| std::env::var(name).map_err(|_| format!("this process is no worker: {name} is not set"));
    let number = |name: &str| -> Result<u64, String> {
        let value = text(name)?;
        value.parse().map_err(|_| format!("{name}={value} is no number"))
    };
    let (rank, ranks) = (number(RANK)? as u32, number(RANKS)? as u32);
    let options = GroupOptions {
        ranks,
        mesh: number(MESH)? as usize,
        worker: Vec::new(),
        threads: number(THREADS)? as usize,
        memory: std::env::var_os(MEMORY).map(|_| number(MEMORY)).transpose()?,
        join_timeout: Duration::from_millis(number(JOIN_TIMEOUT)?),
        peer_timeout: Duration::from_millis(number(PEER_TIMEOUT)?),
        tls: std::env::var_os(TLS).is_some(),
    };
    let path = text(PLAN)?;
    let plan = PlanFile::open_for_rank(&path, rank as usize).map_err(|e| format!("{path}: {e}"))?;
    let plan = Arc::new(plan);
    let mut stdout = std::io::stdout();
    writeln!(stdout, "{READY}").and_then(|()| stdout.flush()).map_err(|e| format!("rank 0 is gone: {e}"))?;
    let token = text(TOKEN)?;
    let tls = tls(&options, Some(&token)).map_err(|e| e.to_string())?;
    let identity = Identity::new(rank, ranks, crate::plan_hash(&plan), &token).with_tls(tls);
    let join = join_options(&options, text(ADDRESS)?, Some(token), LinkChoice::Auto, None);
    let transport = Arc::new(ProcessTransport::join(&identity, &join).map_err(|e| e.to_string())?);
    let session = open(&plan, rank, &transport, &options, loaders).map_err(|e| e.to_string())?;
    match serve(session, &transport, rank) {
        // Rank 0 says so.
        Err(_) if transport.reason().is_some_and(|reason| reason.text.ends_with(CANCELLED)) => Ok(()),
        result => result,
    }
}

/// Does what rank 0 says.
fn serve(mut session: RankSession, transport: &ProcessTransport, rank: u32) -> Result<(), String> {
    loop {
        let mut command = None;
        let mut take = |_: usize, block: of_runtime::TransferBlock<'_>| command = Some(Command::decode(block.bytes));
        let came = transport.rendezvous(rank, COMMANDS, &[], &[0], &mut take);
        came.map_err(|_| transport.reason().map_or_else(|| "rank 0 stopped".into(), |reason| reason.text))?;
        let command = command.ok_or("rank 0 sent nothing")?.map_err(|e| {
            transport.fail(&e.to_string());
            e.to_string()
        })?;
        match command {
            Command::End => return Ok(()),
            Command::Run(inputs) => drop(session.run(&inputs).map_err(|e| e.to_string())?),
            Command::Reset => drop(session.variables().inspect(|variables| variables.reset())),
            Command::Get(index) | Command::Set(index, _) => {
                let name = session.program().variables.get(index as usize).map(|port| port.name.clone());
                let (Some(name), Some(variables)) = (name, session.variables()) else {
                    return Err(format!("there is no variable number {index}"));
                };
                let done = match &command {
                    Command::Set(_, value) => variables.set(&name, value),
                    _ => match variables.get_on_first(&name) {
                        // Rank 0 says so.
                        Err(of_runtime::RunError::Variable { .. }) => Ok(()),
                        other => other.map(drop),
                    },
                };
                done.map_err(|e| e.to_string())?;
            }
        }
    }
}
