//! The variables of a rank whose others are in processes of their own.

use std::sync::Arc;

use of_plan::{MeshPort, MeshProgram};

use crate::mesh_variables::{find, set_part};
use crate::rank_exchange::{RankExchange, Receivers};
use crate::{RunError, Tensor, Variables};

/// The values of a mesh's variables, of which this process has one rank's parts. Every rank does the same in the same order: sets
/// the same whole values, and gets values together with the others.
#[derive(Debug)]
pub struct RankVariables {
    exchange: Arc<RankExchange>,
    /// The rank's parts, where it has any.
    own: Option<Arc<Variables>>,
}

impl RankVariables {
    /// The parts of a rank; `None` where the mesh has no variables.
    pub(crate) fn new(exchange: &Arc<RankExchange>, own: Option<Arc<Variables>>) -> Option<Self> {
        let any = !exchange.program().variables.is_empty();
        any.then(|| Self { exchange: Arc::clone(exchange), own })
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

    /// Gives every variable its initial value; those without one have none afterwards. All ranks must do it.
    pub fn reset(&self) {
        self.own.iter().for_each(|variables| variables.reset());
    }
}
