//! The thread of a rank that executes asynchronous transfers, while the rank's other threads compute.
//!
//! It executes them in the order in which they are launched, which is that of their numbers: a transfer is launched when the one before
//! it was (see [`crate::launch_notifications`]). So it waits only for ranks that have no earlier transfer left.

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use of_plan::{Program, Task};

use crate::boxing::BoxingCall;
use crate::clock::Instant;
use crate::error::panic_text;
use crate::flight_recorder::FlightRecorder;
use crate::pool::Pool;
use crate::sync::{Mutex, lock};
use crate::task_context::Context;
use crate::transport::Transport;
use crate::{OnComplete, RunError};

/// Executes transfers. Dropping it ends the thread.
pub(crate) struct TransferThread {
    jobs: Option<SyncSender<Job>>,
    handle: Option<JoinHandle<()>>,
    /// The ids of the tasks that it executes.
    tasks: HashSet<u64>,
    /// Transfers that are launched and not over.
    open: Arc<AtomicUsize>,
    transport: Arc<dyn Transport>,
}

/// A transfer that is launched.
struct Job {
    call: Arc<BoxingCall>,
    task: usize,
    iteration: u64,
    result: Arc<Mutex<Option<Ended>>>,
    done: OnComplete,
}

/// A transfer that is over: when it began, and whether it worked.
pub(crate) struct Ended {
    pub began: Instant,
    result: Result<(), TransferError>,
}

/// Why a transfer did not work.
enum TransferError {
    Run(RunError),
    Panic(String),
}

/// An asynchronous transfer that is bound to its registers.
pub(crate) struct TransferCall {
    call: Arc<BoxingCall>,
    jobs: SyncSender<Job>,
    open: Arc<AtomicUsize>,
    result: Arc<Mutex<Option<Ended>>>,
    /// The completion callback.
    pub on_complete: Option<OnComplete>,
}

impl TransferThread {
    /// The thread for a program, if it has asynchronous transfers.
    ///
    /// # Errors
    /// When the system starts none.
    pub fn of(
        program: &Program,
        transport: &Arc<dyn Transport>,
        recorder: &Arc<FlightRecorder>,
        pool: &Arc<Pool>,
    ) -> std::io::Result<Option<TransferThread>> {
        let own = program.tasks.iter().zip(program.concurrent_transfers()).filter(|(_, own)| *own);
        let tasks: HashSet<u64> = own.map(|(task, _)| task.id).collect();
        if tasks.is_empty() {
            return Ok(None);
        }
        // Each is launched at most once before it is over.
        let (jobs, inbox) = sync_channel(tasks.len());
        let open = Arc::new(AtomicUsize::new(0));
        let (recorder, pool, counter) = (Arc::clone(recorder), Arc::clone(pool), Arc::clone(&open));
        let work = move || execute(&inbox, &recorder, &pool, &counter);
        let handle = std::thread::Builder::new().name("of-transfers".into()).spawn(work)?;
        let transport = Arc::clone(transport);
        Ok(Some(TransferThread { jobs: Some(jobs), handle: Some(handle), tasks, open, transport }))
    }

    /// Whether it executes a task.
    pub fn executes(&self, task: &Task) -> bool {
        self.tasks.contains(&task.id)
    }

    /// A transfer that it executes.
    pub fn bind(&self, call: BoxingCall) -> Option<TransferCall> {
        let (jobs, open) = (self.jobs.clone()?, Arc::clone(&self.open));
        Some(TransferCall { call: Arc::new(call), jobs, open, result: Arc::default(), on_complete: None })
    }
}

impl Drop for TransferThread {
    fn drop(&mut self) {
        // After a failed run a transfer may wait for ranks that do not come.
        if self.open.load(Ordering::Acquire) > 0 {
            self.transport.stop();
        }
        self.jobs = None;
        if let Some(handle) = self.handle.take() {
            // A panic of a transfer was caught and reported where it happened.
            let _ = handle.join();
        }
    }
}

impl TransferCall {
    /// Launches the transfer. Returns whether it is in flight: without a callback it is over.
    pub fn begin(&self, context: &Context<'_>) -> Result<bool, RunError> {
        let Some(done) = &self.on_complete else {
            return self.call.run(context.iteration).map(|()| false).map_err(|error| explained(error, context));
        };
        let (call, result, done) = (Arc::clone(&self.call), Arc::clone(&self.result), Arc::clone(done));
        self.open.fetch_add(1, Ordering::AcqRel);
        let job = Job { call, task: context.task, iteration: context.iteration, result, done };
        self.jobs.send(job).map_err(|_| {
            self.open.fetch_sub(1, Ordering::AcqRel);
            context.internal("finds no thread for transfers")
        })?;
        Ok(true)
    }

    /// Takes the result. Returns when the thread began with the transfer.
    pub fn end(&self, context: &Context<'_>) -> Result<Instant, RunError> {
        let ended = lock(&self.result).take().ok_or_else(|| context.internal("ended without a result"))?;
        match ended.result {
            Ok(()) => Ok(ended.began),
            Err(TransferError::Run(error)) => Err(explained(error, context)),
            Err(TransferError::Panic(message)) => Err(RunError::Panic { task: context.name(), message }),
        }
    }
}

/// The error of a transfer that names no task.
fn explained(error: RunError, context: &Context<'_>) -> RunError {
    match error {
        RunError::Internal(what) => context.internal(&what),
        other => other,
    }
}

fn execute(inbox: &Receiver<Job>, recorder: &FlightRecorder, pool: &Pool, open: &AtomicUsize) {
    // Sums are those of the other threads, to the last bit.
    let _mode = pool.subnormals();
    for Job { call, task, iteration, result, done } in inbox {
        let began = Instant::now();
        recorder.act_begins(task, iteration);
        let run = catch_unwind(AssertUnwindSafe(|| call.run_concurrently(iteration)));
        let run = run.map_err(|payload| TransferError::Panic(panic_text(&*payload)));
        let run = run.and_then(|run| run.map_err(TransferError::Run));
        *lock(&result) = Some(Ended { began, result: run });
        open.fetch_sub(1, Ordering::AcqRel);
        done();
    }
}
