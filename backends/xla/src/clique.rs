//! Cliques: ranks that run one program together. They are threads of this process; the last one to arrive calls the plugin
//! for all.
//!
//! A device in a collective waits for all participants, and the plugin ends the process on timeout. So no rank calls the
//! plugin before all have arrived.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use of_plan::Group;
use of_runtime::{ExecError, LoadError, RankContext};

use crate::ffi::{Buffer, Client, LoadedExecutable, PluginError};

/// The interval at which a waiting rank checks whether others stopped.
const LOOK: Duration = Duration::from_millis(20);

/// A program and the ranks that run it.
pub struct Clique {
    /// The client of the program, whose devices and buffers are of no use with another. It is that of the first rank: the process
    /// may have replaced its client by one with more devices before the next rank came.
    pub client: Arc<Client>,
    /// The device of each rank.
    pub devices: Vec<usize>,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    program: LoadedExecutable,
    /// The arguments of each rank, from its arrival until all have arrived.
    given: Vec<Option<Given>>,
    /// The results of each rank, until it takes them.
    results: Vec<Option<Result<Vec<Buffer>, PluginError>>>,
}

/// The arguments of a rank, and the positions of those that are not donated.
struct Given {
    args: Vec<Arc<Buffer>>,
    kept: Vec<i64>,
}

/// Cliques of this process, by number.
static KNOWN: Mutex<Vec<(u64, Weak<Clique>)>> = Mutex::new(Vec::new());

fn known() -> MutexGuard<'static, Vec<(u64, Weak<Clique>)>> {
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Clique {
    /// The clique of a group of ranks, who rendezvous at the number of a transfer. The first one compiles the program for these
    /// devices of its client; `key` identifies it.
    ///
    /// # Errors
    /// When the program cannot be compiled, a rank stopped, has another program or is in another process.
    pub fn join(
        rank_context: &RankContext,
        group: &Group,
        id: u32,
        key: &[u8],
        (client, devices): (&Arc<Client>, &[usize]),
        program: impl FnOnce() -> Result<LoadedExecutable, LoadError>,
    ) -> Result<Arc<Clique>, LoadError> {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        let mut number = 0;
        let mut own = None;
        if group.me == 0 {
            let all = 0..group.ranks.len();
            let (given, results) = (all.clone().map(|_| None).collect(), all.map(|_| None).collect());
            let state = State { program: program()?, given, results };
            let (client, devices) = (Arc::clone(client), devices.to_vec());
            let clique = Arc::new(Clique { client, devices, state: Mutex::new(state), changed: Condvar::new() });
            number = NUMBERS.fetch_add(1, Ordering::Relaxed);
            let mut known = known();
            known.retain(|(_, other)| other.strong_count() > 0);
            known.push((number, Arc::downgrade(&clique)));
            own = Some(clique);
        }
        let own_id = [&u64::from(std::process::id()).to_le_bytes()[..], &number.to_le_bytes(), key].concat();
        let got = rank_context.gather(id, &group.ranks, &own_id).map_err(|_| LoadError::Stopped)?;
        if got.iter().any(|other| other.get(..8) != own_id.get(..8)) {
            let why = "all ranks of a program must be in one process";
            return Err(LoadError::Unsupported(why.into()));
        }
        if got.iter().any(|other| other.get(16..) != Some(key)) {
            return Err(LoadError::Failed("ranks have different programs; all must have the same one".into()));
        }
        if let Some(own) = own {
            return Ok(own);
        }
        let first = got.first().and_then(|id| id.get(8..16)).and_then(|bytes| bytes.try_into().ok());
        let number = first.map(u64::from_le_bytes).ok_or(LoadError::Stopped)?;
        let known = known();
        known.iter().find(|(n, _)| *n == number).and_then(|(_, c)| c.upgrade()).ok_or(LoadError::Stopped)
    }

    /// Passes the arguments of rank `me` and returns its results, once all ranks have arrived.
    ///
    /// # Errors
    /// When the plugin fails, or a rank stopped.
    pub fn execute(
        &self,
        rank_context: &RankContext,
        me: usize,
        args: Vec<Arc<Buffer>>,
        kept: Vec<i64>,
    ) -> Result<Vec<Buffer>, ExecError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.given[me] = Some(Given { args, kept });
        if state.given.iter().all(Option::is_some) {
            state.call();
            self.changed.notify_all();
        }
        loop {
            if let Some(results) = state.results[me].take() {
                return results.map_err(|e| ExecError::Failed(e.to_string()));
            }
            if rank_context.transport.stopped() {
                state.given[me] = None;
                return Err(ExecError::Stopped);
            }
            (state, _) = self.changed.wait_timeout(state, LOOK).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl State {
    /// Runs the program for all.
    fn call(&mut self) {
        let given: Vec<Given> = self.given.iter_mut().filter_map(Option::take).collect();
        let args: Vec<Vec<&Buffer>> = given.iter().map(|g| g.args.iter().map(AsRef::as_ref).collect()).collect();
        let mut kept: Vec<i64> = given.iter().flat_map(|g| g.kept.clone()).collect();
        kept.sort_unstable();
        kept.dedup();
        let results = self.program.execute_replicas(&args, &kept);
        self.results = match results {
            Ok(results) => results.into_iter().map(|r| Some(Ok(r))).collect(),
            Err(e) => given.iter().map(|_| Some(Err(e.clone()))).collect(),
        };
    }
}
