//! Ranks that run one program together: threads of this process, of which the last one that comes calls the plugin for all.
//!
//! A device whose others do not come waits in vain, and then the plugin ends the process: so nobody calls it alone.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use of_plan::Group;
use of_runtime::{ExecError, LoadError, RankContext};

use crate::ffi::{Buffer, LoadedExecutable, PluginError};

/// How often a rank that waits looks whether others stopped.
const LOOK: Duration = Duration::from_millis(20);

/// A program and the ranks that run it.
pub struct Clique {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    program: LoadedExecutable,
    /// What each rank gives, from when it comes until all are here.
    given: Vec<Option<Given>>,
    /// What each rank gets, until it takes it.
    results: Vec<Option<Result<Vec<Buffer>, PluginError>>>,
}

/// The arguments of a rank, and the places of those that stay.
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
    /// That of the ranks of a group, to which all of them come at the number of a transfer. The first one makes the program;
    /// `key` says which one it is.
    ///
    /// # Errors
    /// When the program cannot be made, a rank stopped, has another program or is in another process.
    pub fn join(
        rank_context: &RankContext,
        group: &Group,
        id: u32,
        key: &[u8],
        program: impl FnOnce() -> Result<LoadedExecutable, LoadError>,
    ) -> Result<Arc<Clique>, LoadError> {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        let mut number = 0;
        let mut own = None;
        if group.me == 0 {
            let all = 0..group.ranks.len();
            let (given, results) = (all.clone().map(|_| None).collect(), all.map(|_| None).collect());
            let state = State { program: program()?, given, results };
            let clique = Arc::new(Clique { state: Mutex::new(state), changed: Condvar::new() });
            number = NUMBERS.fetch_add(1, Ordering::Relaxed);
            let mut known = known();
            known.retain(|(_, other)| other.strong_count() > 0);
            known.push((number, Arc::downgrade(&clique)));
            own = Some(clique);
        }
        let told = [&u64::from(std::process::id()).to_le_bytes()[..], &number.to_le_bytes(), key].concat();
        let got = rank_context.gather(id, &group.ranks, &told).map_err(|_| LoadError::Stopped)?;
        if got.iter().any(|other| other.get(..8) != told.get(..8)) {
            let why = "ranks of other processes run a part of its program, which ranks of one process do";
            return Err(LoadError::Unsupported(why.into()));
        }
        if got.iter().any(|other| other.get(16..) != Some(key)) {
            return Err(LoadError::Failed("ranks have several programs where all have one".into()));
        }
        if let Some(own) = own {
            return Ok(own);
        }
        let first = got.first().and_then(|told| told.get(8..16)).and_then(|bytes| bytes.try_into().ok());
        let number = first.map(u64::from_le_bytes).ok_or(LoadError::Stopped)?;
        let known = known();
        known.iter().find(|(n, _)| *n == number).and_then(|(_, c)| c.upgrade()).ok_or(LoadError::Stopped)
    }

    /// Gives the arguments of rank `me` and gets its results, once all ranks have given theirs.
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
