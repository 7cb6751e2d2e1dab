//! The plan's kernels as modules of WebAssembly, of which the host makes instances on this program's memory.

use std::ops::Range;

use of_plan::{KernelCode, PlanFile};

use super::host::LoadedKernel;
use super::{CodeError, KernelFn};

/// All kernels of a plan.
#[derive(Debug)]
pub(crate) struct CodeMap {
    /// Each kernel's bytes in the code section, and its function.
    kernels: Vec<(Range<u64>, LoadedKernel)>,
}

impl CodeMap {
    /// Compares each kernel's hash with the one in the structure, and makes an instance of its module.
    pub fn new(plan: &PlanFile) -> Result<Self, CodeError> {
        let load = |kernel: &KernelCode| {
            let changed = || CodeError::Changed(kernel.name.clone());
            let range = kernel.offset..kernel.offset.checked_add(kernel.len).ok_or_else(changed)?;
            let (start, end) = (usize::try_from(range.start), usize::try_from(range.end));
            let (Ok(start), Ok(end)) = (start, end) else { return Err(changed()) };
            let bytes = plan.code().get(start..end).filter(|bytes| kernel.is_hash_of(bytes)).ok_or_else(changed)?;
            let refused = || CodeError::Refused(kernel.name.clone());
            Ok((range, LoadedKernel::new(bytes).ok_or_else(refused)?))
        };
        Ok(Self { kernels: plan.plan().code.iter().map(load).collect::<Result<_, _>>()? })
    }

    /// The entry point of a kernel.
    pub fn entry(&self, code: &KernelCode) -> Option<KernelFn> {
        let range = code.offset..code.offset.checked_add(code.len)?;
        let (_, kernel) = self.kernels.iter().find(|(known, _)| *known == range)?;
        // SAFETY: a function pointer is the number of a function in the table, and the kernel keeps its number as long as this
        // map lives. A call of a function of another type ends in a trap of the machine.
        Some(unsafe { std::mem::transmute::<usize, KernelFn>(kernel.index()) })
    }
}
