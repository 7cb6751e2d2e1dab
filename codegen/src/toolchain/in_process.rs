//! The compiler in process, on the threads of the pool while lowering goes on.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::machine;
use crate::isa::Isa;

/// The machine code of a kernel, or the reason why there is none.
type Emitted = Arc<OnceLock<Result<Vec<u8>, String>>>;

/// Kernels by the text of their statements. Kernels that were not begun when it is dropped are not compiled.
pub struct InProcess {
    isa: &'static Isa,
    kernels: Mutex<HashMap<Arc<str>, Emitted>>,
}

impl InProcess {
    /// The compiler for `isa`, if it covers that.
    pub fn new(isa: &'static Isa) -> Option<InProcess> {
        machine::covers(isa).then(|| InProcess { isa, kernels: Mutex::default() })
    }

    /// Begins to compile a kernel on another thread, if that was not begun before.
    pub fn begin(&self, body: &str) {
        let mut kernels = self.kernels.lock().unwrap_or_else(PoisonError::into_inner);
        if kernels.contains_key(body) {
            return;
        }
        let (body, emitted): (Arc<str>, Emitted) = (body.into(), Arc::default());
        let (isa, text, result) = (self.isa, body.clone(), Arc::downgrade(&emitted));
        kernels.insert(body, emitted);
        drop(kernels);
        rayon::spawn(move || {
            let Some(result) = result.upgrade() else { return };
            // After a panic there is no result, and the thread that asks for it gets the panic.
            let _ = catch_unwind(AssertUnwindSafe(|| result.get_or_init(|| machine::compile(&text, isa)).is_ok()));
        });
    }

    /// The machine code of a kernel, or the reason why there is none; compiles it here if no thread has begun it.
    ///
    /// # Errors
    /// The reason.
    pub fn compile(&self, body: &str) -> Result<Vec<u8>, String> {
        let known = self.kernels.lock().unwrap_or_else(PoisonError::into_inner).get(body).cloned();
        match known {
            Some(emitted) => emitted.get_or_init(|| machine::compile(body, self.isa)).clone(),
            None => machine::compile(body, self.isa),
        }
    }
}
