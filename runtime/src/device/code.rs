//! The plan's kernels, mapped executable.
//!
//! The type of the entry point is the calling convention (ABI) of kernels. Pages are written first and executable then, never both
//! (W^X).

use std::io;
use std::ops::Range;

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

/// Why kernels cannot be mapped.
#[derive(Debug)]
pub(crate) enum CodeError {
    /// The system has no such memory.
    Io(io::Error),
    /// The bytes of a kernel, given by its name, are not those of its hash.
    Changed(String),
}

impl CodeMap {
    /// Copies the kernels into fresh pages, compares the hash of each copy with the one in the structure, and makes the pages
    /// read-only and executable. The hash is that of the copy: a writer may change the file at any moment. The bytes between
    /// kernels are not copied, so every byte that is not zero is hashed.
    pub fn new(plan: &PlanFile) -> Result<Self, CodeError> {
        let section = plan.code();
        if section.is_empty() {
            return Ok(Self { map: None });
        }
        let kernels = &plan.plan().code;
        let changed = |kernel: &KernelCode| CodeError::Changed(kernel.name.clone());
        let mut map = MmapMut::map_anon(section.len()).map_err(CodeError::Io)?;
        // All copies come before all hashes: kernels may share bytes, and a later copy would replace hashed ones.
        for kernel in kernels {
            let range = range(kernel).ok_or_else(|| changed(kernel))?;
            let (to, from) = (map.get_mut(range.clone()), section.get(range));
            let (Some(to), Some(from)) = (to, from) else { return Err(changed(kernel)) };
            to.copy_from_slice(from);
        }
        let copy = &map[..];
        let is_hashed = |k: &&KernelCode| range(k).and_then(|r| copy.get(r)).is_some_and(|bytes| k.is_hash_of(bytes));
        if let Some(kernel) = kernels.iter().find(|kernel| !is_hashed(kernel)) {
            return Err(changed(kernel));
        }
        Ok(Self { map: Some(map.make_exec().map_err(CodeError::Io)?) })
    }

    /// The entry point of a kernel; `None` when it is outside the section.
    pub fn entry(&self, code: &KernelCode) -> Option<KernelFn> {
        let at = usize::try_from(code.offset.checked_add(code.entry)?).ok()?;
        let address = self.map.as_ref()?.get(at..)?.as_ptr();
        if self.map.as_ref()?.len() <= at {
            return None;
        }
        // SAFETY: the address is in executable memory that holds the plan's code, unchanged since its hash was
        // compared; that the code there has this signature is the contract of the plan's kernels. Function pointers
        // and data pointers have one size on the targets that a session admits.
        Some(unsafe { std::mem::transmute::<*const u8, KernelFn>(address) })
    }
}

/// The bytes of a kernel in the code section.
fn range(kernel: &KernelCode) -> Option<Range<usize>> {
    let start = usize::try_from(kernel.offset).ok()?;
    Some(start..start.checked_add(usize::try_from(kernel.len).ok()?)?)
}
