//! Machine code of a payload, in its own pages.

use std::io;

use memmap2::{Mmap, MmapMut};

/// The signature of kernels in plans.
type Kernel = unsafe extern "C" fn(args: *const *mut u8, begin: i64, end: i64, scratch: *mut u8) -> i32;

/// A kernel that can be called.
#[derive(Debug)]
pub struct Code {
    map: Mmap,
    entry: usize,
}

impl Code {
    /// Copies code into new pages and makes them read-only and executable; `None` if the entry is outside the code.
    ///
    /// # Errors
    /// The system's error.
    pub fn new(bytes: &[u8], entry: usize) -> io::Result<Option<Code>> {
        if entry >= bytes.len() {
            return Ok(None);
        }
        let mut map = MmapMut::map_anon(bytes.len())?;
        map.copy_from_slice(bytes);
        Ok(Some(Code { map: map.make_exec()?, entry }))
    }

    /// Runs all iterations of the kernel and returns its status. The arguments are inputs, then outputs, each with the size
    /// that it was compiled for, and scratch memory.
    pub fn call(&self, inputs: &[&[u8]], outputs: &mut [&mut [u8]], scratch: &mut [u8], iterations: i64) -> i32 {
        // Inputs are only read.
        let read = inputs.iter().map(|b| b.as_ptr().cast_mut());
        let args: Vec<*mut u8> = read.chain(outputs.iter_mut().map(|b| b.as_mut_ptr())).collect();
        // SAFETY: the address is in executable memory with the payload's code, whose checksum the plan's reader verified.
        // The backend writes only code with this signature into payloads.
        let kernel = unsafe { std::mem::transmute::<*const u8, Kernel>(self.map.as_ptr().add(self.entry)) };
        // SAFETY: the arguments have the payload's lengths, which the caller checked, and stay borrowed during the call;
        // outputs and scratch memory are borrowed exclusively.
        unsafe { kernel(args.as_ptr(), 0, iterations, scratch.as_mut_ptr()) }
    }
}
