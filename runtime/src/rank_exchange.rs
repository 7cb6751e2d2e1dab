//! Whole values of ranks that are processes: each rank sends its part of an output or variable to the others.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use of_plan::{MeshPort, MeshProgram, PlanFile, Runs, Task};

use crate::flight_recorder::{FlightRecorder, Phase};
use crate::mesh_ports::{contributes, gather_port, run_port};
use crate::task_context::place;
use crate::transport::{StopReason, TransferBlock, Transport};
use crate::{RunError, Session, Tensor};

/// Numbers of rendezvous for copies of state, which neither transfers of a plan nor its outputs and variables have.
pub(crate) const KEEP: u32 = (1 << 31) + 16;
pub(crate) const REPORT: u32 = (1 << 31) + 17;
pub(crate) const RESTORE: u32 = (1 << 31) + 18;
/// What ranks tell one another before they write a snapshot.
pub(crate) const TELL: u32 = (1 << 31) + 19;

/// Who gets a whole value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Receivers {
    All,
    /// The first rank.
    First,
}

/// A rank, and its transport to the others.
pub(crate) struct RankExchange {
    plan: Arc<PlanFile>,
    mesh: usize,
    rank: usize,
    transport: Arc<dyn Transport>,
    /// Whether the ranks ended because of another one.
    lost: AtomicBool,
}

impl fmt::Debug for RankExchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RankExchange").field("mesh", &self.mesh).field("rank", &self.rank).finish_non_exhaustive()
    }
}

impl RankExchange {
    /// A rank of a mesh that was verified.
    pub fn new(plan: Arc<PlanFile>, mesh: usize, rank: usize, transport: Arc<dyn Transport>) -> Self {
        Self { plan, mesh, rank, transport, lost: AtomicBool::new(false) }
    }

    pub fn program(&self) -> &MeshProgram {
        &self.plan.plan().meshes[self.mesh]
    }

    /// The number of the mesh in the plan.
    pub fn mesh(&self) -> usize {
        self.mesh
    }

    pub fn rank(&self) -> usize {
        self.rank
    }

    pub fn plan(&self) -> Arc<PlanFile> {
        Arc::clone(&self.plan)
    }

    pub fn transport(&self) -> &dyn Transport {
        &*self.transport
    }

    /// The same, for another session of the rank.
    pub fn shared_transport(&self) -> Arc<dyn Transport> {
        Arc::clone(&self.transport)
    }

    /// Whether another rank ended the job: it failed, or was lost.
    pub fn is_ended_by_another(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    /// A rendezvous of this rank.
    pub fn rendezvous(
        &self,
        id: u32,
        blocks: &[TransferBlock<'_>],
        from: &[u32],
        take: &mut dyn FnMut(usize, TransferBlock<'_>),
    ) -> Result<(), RunError> {
        self.transport.rendezvous(self.rank as u32, id, blocks, from, take).map_err(|_| RunError::Stopped)
    }

    /// Tells all ranks some bytes, and gives those of all.
    pub fn tell_all(&self, id: u32, own: &[u8]) -> Result<Vec<Vec<u8>>, RunError> {
        let (me, ranks) = (self.rank, self.program().ranks.len());
        let block = Runs::of(&[(0, own.len())], &[(0, own.len())]);
        let others: Vec<u32> = (0..ranks).filter(|other| *other != me).map(|other| other as u32).collect();
        let blocks: Vec<TransferBlock<'_>> =
            others.iter().map(|to| TransferBlock { to: *to, bytes: own, block: &block, element: 1 }).collect();
        let mut all = vec![Vec::new(); ranks];
        all[me] = own.to_vec();
        self.rendezvous(id, &blocks, &others, &mut |from, block| all[others[from] as usize] = block.bytes.to_vec())?;
        Ok(all)
    }

    /// Whether this rank's part of a port becomes part of the whole.
    pub fn contributes(&self, port: &MeshPort) -> bool {
        contributes(self.program(), port, self.rank)
    }

    /// Output `index` whole, on all ranks. `own` is this rank's part.
    pub fn gather_output(&self, index: usize, own: Option<&Tensor>) -> Result<Tensor, RunError> {
        let port = &self.program().outputs[index];
        if self.contributes(port) && own.and_then(Tensor::bytes).is_none() {
            return Err(RunError::Internal(format!("output `{}` has no part", port.name)));
        }
        let port = &*run_port(self.program(), port, own)?;
        // A part that does not count is not sent.
        let own = own.filter(|_| self.contributes(port)).and_then(Tensor::bytes).unwrap_or_default();
        let whole = self.gather(port, u32::MAX - index as u32, Receivers::All, own)?;
        whole.ok_or_else(|| RunError::Internal(format!("output `{}` is on no rank", port.name)))
    }

    /// Variable `index` whole, for the ranks of `to`; `own` are the bytes of this rank's part, none where it has no value.
    pub fn gather_variable(&self, index: usize, to: Receivers, own: Option<&[u8]>) -> Result<Option<Tensor>, RunError> {
        let program = self.program();
        let id = u32::MAX - (program.outputs.len() + index) as u32;
        let whole = self.gather(&program.variables[index], id, to, own.unwrap_or_default());
        whole.map_err(|error| self.explain(error, None))
    }

    /// The rendezvous with number `id`: the numbers above those of the plan's transfers are of outputs and variables.
    fn gather(&self, port: &MeshPort, id: u32, to: Receivers, own: &[u8]) -> Result<Option<Tensor>, RunError> {
        let (program, me) = (self.program(), self.rank);
        if port.dims.contains(&0) {
            // No rank has an element of it.
            return gather_port(program, port, &|_| Some(&[])).map(Some);
        }
        let receives = |rank: usize| to == Receivers::All || rank == 0;
        let block = Runs::of(&[(0, own.len())], &[(0, own.len())]);
        let receivers = (0..program.ranks.len()).filter(|other| *other != me && receives(*other));
        let send = |other: usize| TransferBlock { to: other as u32, bytes: own, block: &block, element: 1 };
        let blocks: Vec<TransferBlock<'_>> =
            if self.contributes(port) { receivers.map(send).collect() } else { Vec::new() };
        let senders: Vec<u32> = (0..program.ranks.len())
            .filter(|other| *other != me && receives(me) && contributes(program, port, *other))
            .map(|other| other as u32)
            .collect();
        let mut parts = vec![Vec::new(); senders.len()];
        self.rendezvous(id, &blocks, &senders, &mut |from, part| parts[from] = part.bytes.to_vec())?;
        if !receives(me) {
            return Ok(None);
        }
        if let Some((sender, _)) = senders.iter().zip(&parts).find(|(_, part)| part.is_empty()) {
            let problem = format!("has no value on rank {sender}: set it on all ranks, or reset all");
            return Err(RunError::Variable { name: port.name.clone(), problem });
        }
        let part = |rank: usize| {
            let sent = senders.iter().position(|sender| *sender as usize == rank).map(|at| parts[at].as_slice());
            sent.or((rank == me && !own.is_empty()).then_some(own))
        };
        gather_port(program, port, &part).map(Some)
    }

    /// What the rank records, if it has a flight recorder.
    pub fn recorder(&self) -> Option<&Arc<FlightRecorder>> {
        self.transport.recorder()
    }

    /// The error of this rank, passed on to the others; that of the rank that failed first, where this one only stopped.
    /// `session` is what this rank runs.
    pub fn explain(&self, error: RunError, session: Option<&Session>) -> RunError {
        let (error, phase) = match (error, self.transport.reason()) {
            (RunError::Stopped | RunError::Cancelled, Some(reason)) => {
                self.lost.store(true, Ordering::Release);
                (RunError::Peer(self.explained(&reason, session)), Phase::EndedByAnother)
            }
            // All ranks find the same, and may go on.
            (error @ RunError::Variable { .. }, _) if session.is_none() => return error,
            (error, _) => {
                self.transport.fail(&error.to_string());
                (RunError::Rank { rank: self.rank as u32, source: Box::new(error) }, Phase::Failed)
            }
        };
        self.recorder().inspect(|recorder| recorder.failed(&error.to_string(), phase));
        error
    }

    /// Why the ranks stopped, and what this rank did: the task with its ops, the transfer, and who was waited for.
    fn explained(&self, reason: &StopReason, session: Option<&Session>) -> String {
        let text = &reason.text;
        let own_name = self.transport.own_name().unwrap_or_else(|| format!("rank {}", self.rank));
        let Some(id) = reason.transfer else {
            let task = session.and_then(Session::cancelled_before);
            let task = task.map_or(String::new(), |task| format!(" before {}", named(task)));
            return format!("{text}; {own_name} ended{task}");
        };
        let waited = match &reason.waited_for[..] {
            [] => "the others".to_owned(),
            ranks => ranks.join(" and "),
        };
        if (KEEP..=RESTORE).contains(&id) {
            return format!("{text}; {own_name} waited for copies of state of {waited}");
        }
        if id == TELL {
            return format!("{text}; {own_name} waited for {waited} before a snapshot");
        }
        let (own, above) = (self.program(), (u32::MAX - id) as usize);
        if above < own.outputs.len() {
            return format!("{text}; {own_name} waited for output `{}` of {waited}", own.outputs[above].name);
        }
        if let Some(variable) = own.variables.get(above - own.outputs.len()) {
            return format!("{text}; {own_name} waited for variable `{}` of {waited}", variable.name);
        }
        let program = session.map(Session::program);
        let task = program.and_then(|program| {
            program.tasks.iter().find(|task| program.transfers(task).any(|(transfer, _)| transfer.id == id))
        });
        let task = task.map_or(String::new(), |task| format!(", {}", named(task)));
        format!("{text}; {own_name} waited for {waited} in transfer {id}{task}")
    }
}

fn named(task: &Task) -> String {
    format!("task `{}`{}", task.name, place(task))
}
