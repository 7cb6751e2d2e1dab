//! The plan's kernels, mapped executable.
//!
//! Pages are written first and executable then, never both (W^X).

use std::ops::Range;

use of_plan::pages::{Mmap, MmapMut};
use of_plan::{KernelCode, PlanFile};

use super::{CodeError, KernelFn};

/// All kernels of a plan. They are copied out of the file, so that what runs is what was verified, whatever happens to
/// the file, and so that the file may be on a file system that forbids execution.
#[derive(Debug)]
pub(crate) struct CodeMap {
    map: Option<Mmap>,
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
        let map = map.make_exec().map_err(CodeError::Io)?;
        publish(&map);
        Ok(Self { map: Some(map) })
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

/// Makes written code visible to instruction fetch. On x86-64 the processor does that itself.
#[cfg(not(target_arch = "aarch64"))]
fn publish(_: &[u8]) {}

/// Makes written code visible to instruction fetch: data lines are cleaned to the point of unification, and instruction lines
/// are invalidated. A thread that starts or wakes later sees the code, as its return from the kernel synchronizes.
///
/// Source: Arm Architecture Reference Manual for A-profile, B2.7.4.
#[cfg(target_arch = "aarch64")]
fn publish(code: &[u8]) {
    use std::arch::asm;

    let sizes: u64;
    // SAFETY: the instruction reads the sizes of cache lines, and has no other effect.
    unsafe { asm!("mrs {}, ctr_el0", out(reg) sizes, options(nomem, nostack, preserves_flags)) };
    let line = |shift: u64| 4_usize << (sizes >> shift & 15);
    let start = code.as_ptr() as usize;
    let lines = |bytes: usize| (start & !(bytes - 1)..start + code.len()).step_by(bytes);
    for address in lines(line(16)) {
        // SAFETY: the line has bytes of `code`, and its contents stay the same.
        unsafe { asm!("dc cvau, {}", in(reg) address, options(nostack, preserves_flags)) };
    }
    // SAFETY: the barrier has no other effect.
    unsafe { asm!("dsb ish", options(nostack, preserves_flags)) };
    for address in lines(line(0)) {
        // SAFETY: as above; instructions are fetched again.
        unsafe { asm!("ic ivau, {}", in(reg) address, options(nostack, preserves_flags)) };
    }
    // SAFETY: the barriers have no other effect.
    unsafe { asm!("dsb ish", "isb", options(nostack, preserves_flags)) };
}
