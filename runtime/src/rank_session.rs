//! A rank session: one rank of a mesh in this process; the others are in processes of their own.

use std::sync::Arc;
use std::time::{Duration, Instant};

use of_plan::{MeshProgram, PlanFile, Runs, Task};

use crate::device::CodeMap;
use crate::flight_recorder::Phase;
use crate::memory_budget::check_memory;
use crate::mesh_ports::{check_inputs, gather, gathered, scatter, verified_mesh, zeros_for};
use crate::session::{code_error, worker_count};
use crate::task_context::place;
use crate::transport::{StopReason, TransferBlock, Transport};
use crate::{Loader, Options, RankContext, RunError, Session, SessionError, Tensor, Value};

/// One rank of a program on a mesh. Every rank takes the whole inputs, of which it reads its parts, and gives the whole
/// outputs.
pub struct RankSession {
    plan: Arc<PlanFile>,
    mesh: usize,
    rank: usize,
    transport: Arc<dyn Transport>,
    session: Session,
    /// Its parts of the inputs and outputs, allocated once.
    inputs: Vec<Value>,
    outputs: Vec<Value>,
    step: Duration,
    failed: Option<String>,
}

impl RankSession {
    /// Proves that the ranks of a plan's mesh can run together, and makes the session of `rank`. All ranks must do so at the
    /// same time. [`Options::threads`] are those of this rank; 0 takes its share of what the plan was tuned for.
    ///
    /// # Errors
    /// When the plan does not verify, or this machine cannot run it.
    pub fn new(
        plan: Arc<PlanFile>,
        mesh: usize,
        rank: usize,
        transport: Arc<dyn Transport>,
        options: Options,
        loaders: &[Arc<dyn Loader>],
    ) -> Result<Self, SessionError> {
        let desc = verified_mesh(&plan, mesh)?;
        let count = desc.ranks.len();
        let own = desc.ranks.get(rank).ok_or(SessionError::Rank { rank, count })?;
        let code = Arc::new(CodeMap::new(&plan).map_err(|error| code_error(&plan, error))?);
        let threads = match options.threads {
            0 => (worker_count(options, plan.plan().environment.threads) / count).max(1),
            threads => threads,
        };
        let budget = options.budget();
        check_memory(plan.plan().programs.get(own.program as usize).map(|p| (p, 1)).into_iter(), budget)?;
        let options = Options { threads, memory: Some(budget), ..options };
        let rank_context = RankContext {
            rank: rank as u32,
            mesh: desc.extents(),
            weight_overrides: own.weight_overrides.clone(),
            transport: Arc::clone(&transport),
        };
        let session = Session::of_rank(&plan, own.program as usize, options, &code, loaders, &rank_context);
        let session = session.inspect_err(|error| {
            transport.fail(&error.to_string());
            transport.recorder().inspect(|recorder| recorder.failed(&error.to_string(), Phase::Failed));
        })?;
        if let Some(recorder) = transport.recorder() {
            recorder.runs(mesh, own.program as usize);
        }
        // A rank that computes ends before its next task.
        let stops = Arc::clone(&transport);
        session.canceller().poll_with(Box::new(move || stops.stopped()));
        let (inputs, outputs) = (zeros_for(&session.program().inputs)?, session.new_outputs());
        Ok(Self { plan, mesh, rank, transport, session, inputs, outputs, step: Duration::ZERO, failed: None })
    }

    /// The program.
    pub fn program(&self) -> &MeshProgram {
        &self.plan.plan().meshes[self.mesh]
    }

    /// The rank.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The time of this rank's last run, without the cut of inputs and the exchange of outputs.
    pub fn step(&self) -> Duration {
        self.step
    }

    /// Runs the program on whole inputs, together with the other ranks, which must do the same. After an error no rank can run
    /// again.
    ///
    /// # Errors
    /// When an input does not fit, a task fails, or another rank does.
    pub fn run(&mut self, inputs: &[Value]) -> Result<Vec<Value>, RunError> {
        if let Some(why) = &self.failed {
            return Err(RunError::Poisoned(why.clone()));
        }
        let result = self.run_together(inputs);
        result.map_err(|error| {
            let error = match (error, self.transport.reason()) {
                (RunError::Stopped | RunError::Cancelled, Some(reason)) => RunError::Peer(self.explained(&reason)),
                (error, _) => {
                    self.transport.fail(&error.to_string());
                    RunError::Rank { rank: self.rank as u32, source: Box::new(error) }
                }
            };
            self.failed = Some(error.to_string());
            let phase = if matches!(error, RunError::Peer(_)) { Phase::EndedByAnother } else { Phase::Failed };
            self.transport.recorder().inspect(|recorder| recorder.failed(&error.to_string(), phase));
            error
        })
    }

    fn run_together(&mut self, inputs: &[Value]) -> Result<Vec<Value>, RunError> {
        let Self { plan, mesh, rank, session, .. } = self;
        let program = &plan.plan().meshes[*mesh];
        check_inputs(program, inputs)?;
        scatter(program, inputs, *rank, &mut self.inputs)?;
        let start = Instant::now();
        session.run_into(&mut self.inputs, &mut self.outputs)?;
        self.step = start.elapsed();
        self.exchange()
    }

    /// The whole outputs, for which all ranks send their parts to all others.
    fn exchange(&self) -> Result<Vec<Value>, RunError> {
        let program = self.program();
        let ranks = program.ranks.len();
        // The numbers above those of the plan's transfers, in an order that is the same on all ranks.
        let mut id = u32::MAX;
        // For each output, the parts that come from other ranks: rank, number of the rank's output, bytes.
        let mut received: Vec<Vec<(usize, usize, Vec<u8>)>> = vec![Vec::new(); program.outputs.len()];
        for (index, received) in received.iter_mut().enumerate() {
            for rank in 0..ranks {
                if let Some(position) = gathered(program, rank, index) {
                    if rank == self.rank {
                        let bytes = self.own_part(position).ok_or_else(|| missing(program, index))?;
                        let block = Runs::of(&[(0, bytes.len())], &[(0, bytes.len())]);
                        let to = (0..ranks as u32).filter(|other| *other != rank as u32);
                        let blocks: Vec<_> =
                            to.map(|to| TransferBlock { to, bytes, block: &block, element: 1 }).collect();
                        self.rendezvous(id, &blocks, &[], &mut |_| ())?;
                    } else {
                        let mut bytes = Vec::new();
                        self.rendezvous(id, &[], &[rank as u32], &mut |block| bytes = block.to_vec())?;
                        received.push((rank, position, bytes));
                    }
                    id -= 1;
                }
            }
        }
        let outputs = received.iter().enumerate().map(|(index, received)| {
            gather(program, index, &|rank, position| {
                let of = |(r, p, _): &&(usize, usize, Vec<u8>)| (*r, *p) == (rank, position);
                if rank == self.rank {
                    self.own_part(position)
                } else {
                    received.iter().find(of).map(|(.., bytes)| bytes.as_slice())
                }
            })
        });
        outputs.collect()
    }

    fn own_part(&self, position: usize) -> Option<&[u8]> {
        self.outputs.get(position).and_then(Value::as_tensor).and_then(Tensor::bytes)
    }

    fn rendezvous(
        &self,
        id: u32,
        blocks: &[TransferBlock<'_>],
        from: &[u32],
        take: &mut dyn FnMut(&[u8]),
    ) -> Result<(), RunError> {
        let met = self.transport.rendezvous(self.rank as u32, id, blocks, from, &mut |_, block| take(block.bytes));
        met.map_err(|_| RunError::Stopped)
    }

    /// Why the ranks stopped, and what this rank did: the task with its ops, the transfer, and who was waited for.
    fn explained(&self, reason: &StopReason) -> String {
        let own = self.transport.own_name().unwrap_or_else(|| format!("rank {}", self.rank));
        let Some(id) = reason.transfer else {
            let task = self.session.cancelled_before().map_or(String::new(), |task| format!(" before {}", named(task)));
            return format!("{}; {own} ended{task}", reason.text);
        };
        let waited = match &reason.waited_for[..] {
            [] => "the others".to_owned(),
            ranks => ranks.join(" and "),
        };
        // Transfers above those of the plan are of outputs.
        let outputs =
            self.program().outputs.iter().map(|port| port.count() * self.program().ranks.len()).sum::<usize>();
        if (u32::MAX - id) < outputs as u32 {
            return format!("{}; {own} waited for outputs of {waited}", reason.text);
        }
        let program = self.session.program();
        let is_it = |task: &&Task| program.transfers(task).any(|(transfer, _)| transfer.id == id);
        let task = program.tasks.iter().find(is_it).map_or(String::new(), |task| format!(", {}", named(task)));
        format!("{}; {own} waited for {waited} in transfer {id}{task}", reason.text)
    }
}

impl Drop for RankSession {
    fn drop(&mut self) {
        if self.failed.is_none() {
            self.transport.recorder().inspect(|recorder| recorder.phase(Phase::Ended));
        }
    }
}

fn named(task: &Task) -> String {
    format!("task `{}`{}", task.name, place(task))
}

fn missing(program: &MeshProgram, index: usize) -> RunError {
    RunError::Internal(format!("output `{}` has no part", program.outputs[index].name))
}
