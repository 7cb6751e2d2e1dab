//! Whole values of ranks that are processes: each rank sends its part of an output or variable to the others.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use of_plan::{MeshPort, MeshProgram, PlanFile, Runs, Task};

use crate::flight_recorder::{FlightRecorder, Phase};
use crate::mesh_ports::{contributes, gather_port, run_port};
use crate::task_context::place;
use crate::transport::{StopReason, TransferBlock, Transport};
use crate::{RunError, Session, Tensor, Value};

/// Numbers of rendezvous for copies of state, which neither transfers of a plan nor its outputs and variables have.
pub(crate) const KEEP: u32 = (1 << 31) + 16;
pub(crate) const REPORT: u32 = (1 << 31) + 17;
pub(crate) const RESTORE: u32 = (1 << 31) + 18;
/// What ranks tell one another between steps: whether to end, and what they need to know before they write a snapshot.
pub(crate) const TELL: u32 = (1 << 31) + 19;
/// The number of the rendezvous in which ranks compare the extents of their inputs, where a run decides these.
pub const INPUT_EXTENTS: u32 = (1 << 31) + 20;

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
    /// Whether the ranks ended because of another one, for all sessions of the rank.
    lost: Arc<AtomicBool>,
}

impl fmt::Debug for RankExchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RankExchange").field("mesh", &self.mesh).field("rank", &self.rank).finish_non_exhaustive()
    }
}

impl RankExchange {
    /// A rank of a mesh that was verified.
    pub fn new(plan: Arc<PlanFile>, mesh: usize, rank: usize, transport: Arc<dyn Transport>) -> Self {
        Self { plan, mesh, rank, transport, lost: Arc::default() }
    }

    /// The same rank, in another mesh of the plan.
    pub fn sharing(&self, mesh: usize) -> Self {
        let (plan, transport) = (Arc::clone(&self.plan), Arc::clone(&self.transport));
        Self { plan, mesh, rank: self.rank, transport, lost: Arc::clone(&self.lost) }
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

    /// The same, for what outlives this borrow.
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

    /// The first extent that the inputs of ranks do not have in common, as an error that all ranks find alike: none of them has begun. Only
    /// extents that a run decides are compared, because the others are checked against the plan.
    pub fn differing_extents(&self, inputs: &[Value]) -> Result<Option<RunError>, RunError> {
        let ports = || self.program().inputs.iter().enumerate().filter(|(_, port)| port.is_open());
        let open = || ports().flat_map(|(at, port)| (0..port.dims.len()).map(move |axis| (at, port, axis)));
        let extent = |(at, _, axis): (usize, &MeshPort, usize)| {
            inputs.get(at).and_then(Value::as_tensor).and_then(|value| value.dims().get(axis).copied()).unwrap_or(-1)
        };
        let own: Vec<u8> = open().map(extent).flat_map(i64::to_le_bytes).collect();
        if own.is_empty() {
            return Ok(None);
        }
        let all = self.tell_all(INPUT_EXTENTS, &own)?;
        let of = |rank: &Vec<u8>, number: usize| {
            rank.get(8 * number..8 * number + 8).and_then(|bytes| bytes.try_into().ok()).map(i64::from_le_bytes)
        };
        let differs = |(number, _): &(usize, _)| all.iter().any(|rank| of(rank, *number) != of(&all[0], *number));
        Ok(open().enumerate().find(differs).map(|(number, (index, port, axis))| {
            let extents: Vec<Option<i64>> = all.iter().map(|rank| of(rank, number)).collect();
            let problem = format!(
                "differs between ranks: dimension {axis} is {}; give all ranks the same whole inputs",
                by_rank(&extents)
            );
            RunError::Input { input: port.name.clone(), index, problem }
        }))
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
            return format!("{text}; {own_name} waited for {waited} between steps");
        }
        if id == INPUT_EXTENTS {
            return format!("{text}; {own_name} waited for the extents of inputs of {waited}");
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

/// `2 on rank 0 and 4 on ranks 1 and 3`, for the value of each rank.
fn by_rank(extents: &[Option<i64>]) -> String {
    /// As many values, and ranks of each, are named.
    const NAMED: usize = 4;
    let mut values: Vec<(Option<i64>, Vec<usize>)> = Vec::new();
    for (rank, extent) in extents.iter().enumerate() {
        match values.iter_mut().find(|(value, _)| value == extent) {
            Some((_, ranks)) => ranks.push(rank),
            None => values.push((*extent, vec![rank])),
        }
    }
    let text = |(value, ranks): &(Option<i64>, Vec<usize>)| {
        let value = value.map_or_else(|| "unknown".into(), |value| value.to_string());
        let named: Vec<String> = ranks.iter().take(NAMED).map(usize::to_string).collect();
        match (&named[..], ranks.len() - named.len()) {
            ([one], _) => format!("{value} on rank {one}"),
            ([first @ .., last], 0) => format!("{value} on ranks {} and {last}", first.join(", ")),
            (_, more) => format!("{value} on ranks {} and {more} more", named.join(", ")),
        }
    };
    let named: Vec<String> = values.iter().take(NAMED).map(text).collect();
    match (&named[..], values.len() - named.len()) {
        ([first @ .., last], 0) if !first.is_empty() => format!("{} and {last}", first.join(", ")),
        (_, more) => format!("{} and {more} more values on other ranks", named.join(", ")),
    }
}

fn named(task: &Task) -> String {
    format!("task `{}`{}", task.name, place(task))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_named_with_their_ranks() {
        let of = |all: &[i64]| by_rank(&all.iter().copied().map(Some).collect::<Vec<_>>());
        assert_eq!(of(&[2, 4]), "2 on rank 0 and 4 on rank 1");
        assert_eq!(of(&[2, 4, 2, 6]), "2 on ranks 0 and 2, 4 on rank 1 and 6 on rank 3");
        assert_eq!(of(&[1, 1, 1, 1, 1, 1, 3]), "1 on ranks 0, 1, 2, 3 and 2 more and 3 on rank 6");
        let many = of(&[1, 2, 3, 4, 5, 6]);
        assert_eq!(many, "1 on rank 0, 2 on rank 1, 3 on rank 2, 4 on rank 3 and 2 more values on other ranks");
    }
}
