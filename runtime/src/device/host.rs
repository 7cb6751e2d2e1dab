//! What a program in WebAssembly asks of its host: the functions of the module `of_host`, which `bindings/js/of_runtime.js` has.

#[link(wasm_import_module = "of_host")]
unsafe extern "C" {
    /// Milliseconds since a moment that stays the same.
    safe fn now() -> f64;
    /// Makes an instance of a kernel's module; its number in the table of functions, or 0 where the module is not valid.
    fn load_kernel(bytes: *const u8, len: usize) -> usize;
    /// Frees the number of a kernel.
    safe fn unload_kernel(index: usize);
}

/// Milliseconds since a moment that stays the same.
pub(crate) fn milliseconds() -> f64 {
    now()
}

/// A kernel's function in the table of functions. A function pointer is its number there.
#[derive(Debug)]
pub(super) struct LoadedKernel(usize);

impl LoadedKernel {
    /// Makes an instance of a kernel's module; `None` where it is not valid.
    pub fn new(bytes: &[u8]) -> Option<Self> {
        // SAFETY: the host reads these bytes and keeps no address of them.
        let index = unsafe { load_kernel(bytes.as_ptr(), bytes.len()) };
        // Not `then_some`: a kernel that is dropped frees its number.
        (index != 0).then(|| Self(index))
    }

    /// Its number in the table of functions.
    pub fn index(&self) -> usize {
        self.0
    }
}

impl Drop for LoadedKernel {
    fn drop(&mut self) {
        unload_kernel(self.0);
    }
}
