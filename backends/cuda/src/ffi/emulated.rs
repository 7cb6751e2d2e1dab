//! The GPU that the CPU emulates.

use std::sync::Arc;

use memmap2::{Mmap, MmapMut};
use of_codegen::cuda::shim;
use of_runtime::AlignedBytes;

use super::cublaslt::Multiplier;
use crate::driver::{Driver, DriverError, Loaded};
use crate::{DeviceProgram, Step};

/// The GPU that the CPU emulates; each program has one of its own, whatever the number. Products of cuBLASLt are computed by
/// the library that `$OF_CUBLASLT` names, whose memory is then the host's.
#[derive(Clone, Copy, Default, Debug)]
pub struct EmulatedDriver;

/// A kernel of the emulated GPU, which is one for a CPU.
type KernelFn = unsafe extern "C" fn(args: *const *mut u8, begin: i64, end: i64, scratch: *mut u8) -> i32;

impl Driver for EmulatedDriver {
    fn load(&self, program: &DeviceProgram<'_>, _device: usize) -> Result<Box<dyn Loaded>, DriverError> {
        let failed = |e: std::io::Error| DriverError::Call { call: "mapping a kernel", words: e.to_string() };
        let mut memory = AlignedBytes::zeroed(program.memory as usize);
        for (at, bytes) in &program.constants {
            memory[*at as usize..][..bytes.len()].copy_from_slice(bytes);
        }
        let mut kernels = Vec::new();
        for kernel in &program.kernels {
            let mut map = MmapMut::map_anon(kernel.bytes.len().max(1)).map_err(failed)?;
            map[..kernel.bytes.len()].copy_from_slice(kernel.bytes);
            kernels.push((Arc::new(map.make_exec().map_err(failed)?), kernel.entry as usize));
        }
        let workspace = memory.as_mut_ptr().wrapping_add(program.workspace as usize) as u64;
        let multiplies = program.steps.iter().any(|s| matches!(s, Step::Multiply { .. }));
        let multiplier = if multiplies { Some(Multiplier::named(workspace)?) } else { None };
        Ok(Box::new(Emulated {
            multiplier,
            memory,
            staging: AlignedBytes::zeroed(program.staging as usize),
            scratch: AlignedBytes::zeroed(shim::SCRATCH as usize),
            steps: program.steps.clone(),
            kernels,
        }))
    }
}

struct Emulated {
    multiplier: Option<Multiplier>,
    memory: AlignedBytes,
    staging: AlignedBytes,
    scratch: AlignedBytes,
    steps: Vec<Step>,
    /// Code and the place of its entry point.
    kernels: Vec<(Arc<Mmap>, usize)>,
}

impl Loaded for Emulated {
    fn staging(&mut self) -> &mut [u8] {
        &mut self.staging
    }

    fn run(&mut self) -> Result<(), DriverError> {
        let range = |at: &u64, bytes: &u64| *at as usize..(*at + *bytes) as usize;
        for step in &self.steps {
            match step {
                Step::Upload { from, to, bytes } => {
                    self.memory[range(to, bytes)].copy_from_slice(&self.staging[range(from, bytes)]);
                }
                Step::Download { from, to, bytes } => {
                    self.staging[range(to, bytes)].copy_from_slice(&self.memory[range(from, bytes)]);
                }
                Step::Copy { from, to, bytes } => self.memory.copy_within(range(from, bytes), *to as usize),
                Step::Multiply { product, args } => {
                    let base = self.memory.as_mut_ptr();
                    let args: Vec<u64> = args.iter().map(|a| base.wrapping_add(*a as usize) as u64).collect();
                    if let Some(m) = &self.multiplier {
                        // SAFETY: places of steps lie inside of the memory (`DeviceProgram::check`), which nothing else uses
                        // meanwhile, and so does the workspace; the library was named as one for the host's memory.
                        unsafe { m.multiply(product, &args, std::ptr::null_mut())? };
                    }
                }
                Step::Launch { kernel, args, blocks, status } => {
                    let (code, entry) = &self.kernels[*kernel];
                    let base = self.memory.as_mut_ptr();
                    let table: Vec<*mut u8> = args.iter().map(|a| base.wrapping_add(*a as usize)).collect();
                    // SAFETY: the code is executable and was compiled for this signature; its arguments lie in memory
                    // that is alive and that nothing else uses meanwhile; scratch is as large as such kernels need.
                    let word = unsafe {
                        let kernel: KernelFn = std::mem::transmute(code.as_ptr().add(*entry));
                        kernel(table.as_ptr(), 0, *blocks, self.scratch.as_mut_ptr())
                    };
                    self.memory[*status as usize..][..4].copy_from_slice(&word.to_le_bytes());
                }
            }
        }
        Ok(())
    }
}
