//! The module that handles share.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use of_diag::{Diagnostics, Renderer};
use of_ir::{Func, Graph};
use pyo3::prelude::*;
use pyo3::sync::MutexExt;

use crate::error::{exception, input_error};

/// A module, and the texts that diagnostics point into.
#[derive(Default)]
pub struct State {
    pub module: of_ir::Module,
    /// File names and texts.
    pub sources: Vec<(String, String)>,
    /// Counts the changes that make handles invalid.
    generation: u64,
}

impl State {
    /// A module, and the texts that its diagnostics point into.
    pub fn new(module: of_ir::Module, sources: Vec<(String, String)>) -> State {
        State { module, sources, generation: 0 }
    }

    /// What renders diagnostics of this module.
    pub fn renderer(&self) -> Renderer {
        let mut renderer = Renderer::default();
        self.sources.iter().for_each(|(file, text)| renderer.sources.add(file, text));
        renderer
    }

    /// The exception for diagnostics of this module.
    pub fn raised(&self, py: Python<'_>, list: &Diagnostics) -> PyErr {
        exception(py, list, &self.renderer())
    }

    /// Makes all handles of ops, regions and values invalid.
    pub fn invalidate(&mut self) {
        self.generation += 1;
    }
}

/// The module that handles share.
#[derive(Clone, Default)]
pub struct Shared(Arc<Mutex<State>>);

impl Shared {
    /// A module of its own.
    pub fn new(state: State) -> Shared {
        Shared(Arc::new(Mutex::new(state)))
    }

    /// The module, for reading and changing, without Python's lock.
    pub fn detached(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The module, for reading and changing. Waits without Python's lock, as the owner may need it.
    pub fn lock(&self, py: Python<'_>) -> MutexGuard<'_, State> {
        self.0.lock_py_attached(py).unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether both are the same module.
    pub fn is(&self, other: &Shared) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// The function that a handle belongs to.
#[derive(Clone)]
pub struct Place {
    pub shared: Shared,
    pub func: Arc<str>,
    generation: u64,
}

impl Place {
    /// A function of a module. The caller has looked it up.
    pub fn new(shared: &Shared, state: &State, func: impl Into<Arc<str>>) -> Place {
        Place { shared: shared.clone(), func: func.into(), generation: state.generation }
    }

    /// The function.
    ///
    /// # Errors
    /// When a pass has changed the module since the handle was made.
    pub fn func<'a>(&self, py: Python<'_>, state: &'a State) -> PyResult<&'a Func> {
        let found = state.module.funcs.get(&*self.func).filter(|_| self.generation == state.generation);
        found.ok_or_else(|| outdated(py, &self.func))
    }

    /// The function, to change.
    ///
    /// # Errors
    /// As [`Place::func`].
    pub fn func_mut<'a>(&self, py: Python<'_>, state: &'a mut State) -> PyResult<&'a mut Func> {
        let current = self.generation == state.generation;
        let found = state.module.funcs.get_mut(&*self.func).filter(|_| current);
        found.ok_or_else(|| outdated(py, &self.func))
    }

    /// Reads the function's graph.
    ///
    /// # Errors
    /// As [`Place::func`].
    pub fn read<T>(&self, py: Python<'_>, f: impl FnOnce(&Graph) -> T) -> PyResult<T> {
        let state = self.shared.lock(py);
        Ok(f(&self.func(py, &state)?.graph))
    }

    /// Whether both are the same function of the same module at the same time.
    pub fn is(&self, other: &Place) -> bool {
        self.shared.is(&other.shared) && self.func == other.func && self.generation == other.generation
    }
}

fn outdated(py: Python<'_>, func: &str) -> PyErr {
    let what = format!("the handle is of function @{func} before a pass changed or removed it");
    input_error(py, what, Some("take the function, its ops and values from the module again"))
}
