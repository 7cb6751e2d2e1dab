//! What a host of WebAssembly needs besides the C interface: memory for arguments, results and constants of kernels.

use std::alloc::{Layout, alloc_zeroed, dealloc};

/// So many zeros at a multiple of `align`, which is a power of two; null where there is no such memory.
#[unsafe(no_mangle)]
pub extern "C" fn of_memory_allocate(bytes: usize, align: usize) -> *mut u8 {
    match Layout::from_size_align(bytes.max(1), align) {
        // SAFETY: the layout has bytes.
        Ok(layout) => unsafe { alloc_zeroed(layout) },
        Err(_) => std::ptr::null_mut(),
    }
}

/// Frees memory that [`of_memory_allocate`] gave for the same numbers; null is ignored.
///
/// # Safety
/// The memory is not freed yet, and nothing uses it any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn of_memory_free(memory: *mut u8, bytes: usize, align: usize) {
    if let Ok(layout) = Layout::from_size_align(bytes.max(1), align)
        && !memory.is_null()
    {
        // SAFETY: the caller's promise.
        unsafe { dealloc(memory, layout) };
    }
}
