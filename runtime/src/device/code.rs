//! The plan's kernels, mapped executable.
//!
//! The type of the entry point is the calling convention (ABI) of kernels. Pages are written first and executable then, never both
//! (W^X).

use std::io;

use memmap2::{Mmap, MmapMut};
use of_plan::{KernelCode, PlanFile};

/// A kernel's entry point: runs the iterations `[begin, end)` of its outermost loop and returns a status: 0, or the
/// number of an error, which [`crate::bound_task`] names.
pub(crate) type KernelFn = unsafe extern "C" fn(args: *const *mut u8, begin: i64, end: i64, scratch: *mut u8) -> i32;

/// All kernels of a plan. They are copied out of the file, so that what runs is what was verified, whatever happens to
/// the file, and so that the file may be on a file system that forbids execution.
#[derive(Debug)]
pub(crate) struct CodeMap {
    map: Option<Mmap>,
}

impl CodeMap {
    /// Copies the code section into fresh pages and makes them read-only and executable.
    pub fn new(plan: &PlanFile) -> io::Result<Self> {
        let code = plan.code();
        if code.is_empty() {
            return Ok(Self { map: None });
        }
        let mut map = MmapMut::map_anon(code.len())?;
        map.copy_from_slice(code);
        Ok(Self { map: Some(map.make_exec()?) })
    }

    /// The entry point of a kernel; `None` when it is outside the section.
    pub fn entry(&self, code: &KernelCode) -> Option<KernelFn> {
        let at = usize::try_from(code.offset.checked_add(code.entry)?).ok()?;
        let address = self.map.as_ref()?.get(at..)?.as_ptr();
        if self.map.as_ref()?.len() <= at {
            return None;
        }
        // SAFETY: the address is in executable memory that holds the plan's code, unchanged since its checksum was
        // verified; that the code there has this signature is the contract of the plan's kernels. Function pointers
        // and data pointers have one size on the targets that a session admits.
        Some(unsafe { std::mem::transmute::<*const u8, KernelFn>(address) })
    }
}
