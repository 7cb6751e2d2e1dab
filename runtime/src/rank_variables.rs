//! The variables of a rank whose others are in processes of their own.

use std::sync::{Arc, OnceLock};

use of_plan::{MeshPort, MeshProgram};

use crate::frozen_parts::{Share, partial_variables};
use crate::mesh_variables::{find, set_part};
use crate::rank_exchange::{RankExchange, Receivers, TELL};
use crate::{FrozenPart, RunError, Tensor, Variables};

/// The values of a mesh's variables, of which this process has one rank's parts. Every rank does the same in the same order: sets
/// the same whole values, and gets values together with the others.
#[derive(Debug)]
pub struct RankVariables {
    exchange: Arc<RankExchange>,
    /// The rank's parts, where it has any.
    own: Option<Arc<Variables>>,
    /// What this rank writes of a frozen state.
    share: OnceLock<Share>,
}

impl RankVariables {
    /// The parts of a rank; `None` where the mesh has no variables.
    pub(crate) fn new(exchange: &Arc<RankExchange>, own: Option<Arc<Variables>>) -> Option<Self> {
        let any = !exchange.program().variables.is_empty();
        any.then(|| Self { exchange: Arc::clone(exchange), own, share: OnceLock::new() })
    }

    fn program(&self) -> &MeshProgram {
        self.exchange.program()
    }

    pub(crate) fn exchange(&self) -> &RankExchange {
        &self.exchange
    }

    pub(crate) fn own(&self) -> Option<&Arc<Variables>> {
        self.own.as_ref()
    }

    /// Whether another rank ended the job: it failed, or was lost.
    pub fn is_ended_by_another(&self) -> bool {
        self.exchange.is_ended_by_another()
    }

    /// Checks that no rank has ended the job, for work that is no run.
    ///
    /// # Errors
    /// When one has.
    pub fn check_others(&self) -> Result<(), RunError> {
        match self.exchange.transport().stopped() {
            true => Err(self.exchange.explain(RunError::Stopped, None)),
            false => Ok(()),
        }
    }

    /// The variables: names, types and layouts.
    pub fn list(&self) -> &[MeshPort] {
        &self.program().variables
    }

    /// The value of a variable, whole. All ranks must ask for it.
    ///
    /// # Errors
    /// When there is no such variable, it has no value, or a rank stopped.
    pub fn get(&self, name: &str) -> Result<Tensor, RunError> {
        let whole = self.gather(name, Receivers::All)?;
        whole.ok_or_else(|| RunError::Internal(format!("variable `{name}` has no value on this rank")))
    }

    /// The value of a variable, whole, on the first rank alone; `None` on the others. All ranks must ask for it.
    ///
    /// # Errors
    /// As [`RankVariables::get`].
    pub fn get_on_first(&self, name: &str) -> Result<Option<Tensor>, RunError> {
        self.gather(name, Receivers::First)
    }

    fn gather(&self, name: &str, to: Receivers) -> Result<Option<Tensor>, RunError> {
        let index = find(self.program(), name)?;
        let own = if self.exchange.contributes(&self.list()[index]) {
            self.own.as_ref().map(|variables| variables.get(name))
        } else {
            None
        };
        // A rank without a value says so by sending nothing, so that all ranks fail alike.
        let bytes = own.as_ref().and_then(|value| value.as_ref().ok()?.bytes());
        let whole = self.exchange.gather_variable(index, to, bytes);
        match own {
            Some(Err(error)) => Err(error),
            _ => whole,
        }
    }

    /// Sets the value of a variable: this rank keeps its part. All ranks must set it.
    ///
    /// # Errors
    /// When there is no such variable, or the value has another type.
    pub fn set(&self, name: &str, value: &Tensor) -> Result<(), RunError> {
        let port = &self.list()[find(self.program(), name)?];
        set_part(self.program(), port, value, self.exchange.rank(), self.own.as_deref())
    }

    /// Freezes the values as they are: gives the parts that this rank writes. All ranks must do it; together they have each element
    /// once.
    ///
    /// # Errors
    /// When a variable has no value, or a rank stopped.
    pub fn freeze_parts(&self) -> Result<Vec<FrozenPart>, RunError> {
        let program = self.program();
        let mut parts = Vec::new();
        for index in partial_variables(program) {
            let port = &program.variables[index];
            parts.extend(self.get_on_first(&port.name)?.map(|value| FrozenPart::of_value(port, value)));
        }
        if let Some(own) = &self.own {
            let share = self.share.get_or_init(|| Share::of(program, self.exchange.rank(), own.list()));
            parts.extend(share.parts(&own.freeze()?));
        }
        Ok(parts)
    }

    /// What says whether no rank has ended the job, from any thread.
    pub fn watch(&self) -> impl Fn() -> bool + Send + Sync + 'static {
        let exchange = Arc::clone(&self.exchange);
        move || !exchange.transport().stopped()
    }

    /// The rank of this process.
    pub fn rank(&self) -> usize {
        self.exchange.rank()
    }

    /// Tells all ranks a number, and gives those of all. All ranks must do it.
    ///
    /// # Errors
    /// When a rank stopped.
    pub fn tell_all(&self, own: u64) -> Result<Vec<u64>, RunError> {
        let words = self.exchange.tell_all(TELL, &own.to_le_bytes());
        let number = |bytes: Vec<u8>| bytes.try_into().map(u64::from_le_bytes).ok();
        let odd = || RunError::Internal("a rank tells something else than a number".into());
        let all = words.and_then(|all| all.into_iter().map(number).collect::<Option<_>>().ok_or_else(odd));
        all.map_err(|error| self.exchange.explain(error, None))
    }

    /// Gives every variable its initial value; those without one have none afterwards. All ranks must do it.
    pub fn reset(&self) {
        self.own.iter().for_each(|variables| variables.reset());
    }
}
