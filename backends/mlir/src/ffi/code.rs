//! Machine code of a payload, in pages of its own.

use std::io;

use memmap2::{Mmap, MmapMut};

/// A kernel's entry point, as kernels of plans have it.
type Kernel = unsafe extern "C" fn(args: *const *mut u8, begin: i64, end: i64, scratch: *mut u8) -> i32;

/// A kernel that can be called.
#[derive(Debug)]
pub struct Code {
    map: Mmap,
    entry: usize,
}

impl Code {
    /// Copies code into fresh pages and makes them read-only and executable; `None` when the entry lies outside of it.
    ///
    /// # Errors
    /// What the system says.
    pub fn new(bytes: &[u8], entry: usize) -> io::Result<Option<Code>> {
        if entry >= bytes.len() {
            return Ok(None);
        }
        let mut map = MmapMut::map_anon(bytes.len())?;
        map.copy_from_slice(bytes);
        Ok(Some(Code { map: map.make_exec()?, entry }))
    }

    /// Calls the kernel for all of its iterations on inputs, then outputs, each of the size that it was compiled for, and
    /// as much scratch memory; gives its status.
    pub fn call(&self, inputs: &[&[u8]], outputs: &mut [&mut [u8]], scratch: &mut [u8], iterations: i64) -> i32 {
        // Inputs are only read.
        let read = inputs.iter().map(|b| b.as_ptr().cast_mut());
        let args: Vec<*mut u8> = read.chain(outputs.iter_mut().map(|b| b.as_mut_ptr())).collect();
        // SAFETY: the address lies in executable memory that holds the payload's code, whose checksum the plan's reader
        // verified. That the code there has this signature is what the backend writes into payloads.
        let kernel = unsafe { std::mem::transmute::<*const u8, Kernel>(self.map.as_ptr().add(self.entry)) };
        // SAFETY: the arguments are as long as the payload says, which the caller checked, and stay borrowed during the
        // call; outputs and scratch memory are borrowed exclusively.
        unsafe { kernel(args.as_ptr(), 0, iterations, scratch.as_mut_ptr()) }
    }
}
