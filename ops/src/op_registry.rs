//! The op registry: ops of users' shared libraries, and of programs that use this crate.
//!
//! A registered op stays registered. It is found by [`crate::decl`] and [`crate::registry`] as those of the list are: text, models
//! and builders may use it, and passes and backends query it as any other op.
//!
//! Such ops are also called custom ops.

use std::collections::BTreeMap;
use std::sync::{PoisonError, RwLock};

use crate::OpDecl;
use crate::list::ALL;

/// By name.
static ADDED: RwLock<BTreeMap<&'static str, &'static dyn OpDecl>> = RwLock::new(BTreeMap::new());

/// Why an op cannot be added.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RegisterError {
    /// Its name is not `namespace.name`, or the namespace is that of the list.
    #[error("'{0}' is no name for an op: it is NAMESPACE.NAME of letters, digits and _, and the namespace is not 'of'")]
    Name(String),
    /// There is one already.
    #[error("there is an op '{0}' already")]
    Taken(String),
    /// Another op is this ONNX operator.
    #[error("'{op}' declares itself to be the ONNX operator '{onnx}', as '{other}' does")]
    Onnx {
        /// The op.
        op: String,
        /// The operator.
        onnx: String,
        /// The op that is it.
        other: String,
    },
    /// An ONNX name without a domain.
    #[error("'{op}' declares itself to be the ONNX operator '{onnx}', which is not DOMAIN::NAME")]
    Domain {
        /// The op.
        op: String,
        /// The operator.
        onnx: String,
    },
}

/// Adds an op for the rest of the process.
///
/// # Errors
/// When its name is invalid or taken, or another op already maps to its ONNX operator.
pub fn register(decl: &'static dyn OpDecl) -> Result<(), RegisterError> {
    let name = decl.name();
    let word = |w: &str| !w.is_empty() && w.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    if !name.split_once('.').is_some_and(|(space, op)| space != "of" && word(space) && word(op)) {
        return Err(RegisterError::Name(name.into()));
    }
    let mut added = ADDED.write().unwrap_or_else(PoisonError::into_inner);
    if added.contains_key(name) {
        return Err(RegisterError::Taken(name.into()));
    }
    for onnx in decl.onnx() {
        if !onnx.split_once("::").is_some_and(|(domain, op)| !domain.is_empty() && !op.is_empty()) {
            return Err(RegisterError::Domain { op: name.into(), onnx: (*onnx).into() });
        }
        if let Some(other) = ALL.iter().chain(added.values()).find(|d| d.onnx().contains(onnx)) {
            let (op, other) = (name.into(), other.name().into());
            return Err(RegisterError::Onnx { op, onnx: (*onnx).into(), other });
        }
    }
    added.insert(name, decl);
    Ok(())
}

/// The op called `name`, if it was added.
pub fn get(name: &str) -> Option<&'static dyn OpDecl> {
    ADDED.read().unwrap_or_else(PoisonError::into_inner).get(name).copied()
}

/// Every op that was added, by name.
pub fn all() -> Vec<&'static dyn OpDecl> {
    ADDED.read().unwrap_or_else(PoisonError::into_inner).values().copied().collect()
}
