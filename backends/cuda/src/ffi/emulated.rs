//! The GPU emulated on the CPU.

use std::any::Any;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::slice::from_raw_parts_mut;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use memmap2::{Mmap, MmapMut};
use of_codegen::print::cuda::emulator;
use of_cuda_sys::from_variable;
use of_runtime::{AlignedBytes, RankContext, RankTransfer};

use super::calls::Calls;
use super::nccl::{self, Exchanges, LocalWork};
use crate::driver::{DeviceValue, Driver, DriverError, LoadedProgram};
use crate::program::{DeviceProgram, Exchange, Step};

/// The GPU emulated on the CPU. Each program has its own, whatever the device number. Calls of cuBLASLt and cuDNN run in the
/// libraries that `$OF_CUBLASLT` and `$OF_CUDNN` name, on host memory. Ranks exchange through host memory, or through the
/// library that `$OF_NCCL` names.
#[derive(Clone, Copy, Default, Debug)]
pub struct EmulatedDriver;

/// A kernel of the emulated GPU, which is compiled for the CPU.
type KernelFn = unsafe extern "C" fn(args: *const *mut u8, begin: i64, end: i64, scratch: *mut u8) -> i32;

impl Driver for EmulatedDriver {
    fn load(
        &self,
        program: &DeviceProgram<'_>,
        _device: usize,
        rank_context: Option<&RankContext>,
        device_inputs: &[Option<Arc<dyn DeviceValue>>],
        device_outputs: &[Option<Arc<dyn DeviceValue>>],
    ) -> Result<Box<dyn LoadedProgram>, DriverError> {
        let failed = |e: std::io::Error| DriverError::Call { call: "mapping a kernel", words: e.to_string() };
        let exchanger = Exchanger::of(program, rank_context)?;
        let mut memory = AlignedBytes::zeroed((program.memory + exchanger.staging()) as usize);
        for (at, bytes) in &program.constants {
            memory[*at as usize..][..bytes.len()].copy_from_slice(bytes);
        }
        let mut kernels = Vec::new();
        for kernel in &program.kernels {
            let mut map = MmapMut::map_anon(kernel.bytes.len().max(1)).map_err(failed)?;
            map[..kernel.bytes.len()].copy_from_slice(kernel.bytes);
            kernels.push((Arc::new(map.make_exec().map_err(failed)?), kernel.entry as usize));
        }
        for (call, _) in program.calls() {
            let library = call.library();
            if from_variable(library.env_var()).is_none() {
                let why = format!("the emulated GPU has none, and {} names none", library.env_var());
                return Err(DriverError::NoLibrary { library, why });
            }
        }
        let calls = Calls::open(program, memory.as_mut_ptr() as u64)?;
        let own = |value: &Option<Arc<dyn DeviceValue>>| {
            let value: Arc<dyn Any + Send + Sync> = value.clone()?;
            value.downcast::<EmulatedValue>().ok()
        };
        let inputs_on_device: Vec<_> = device_inputs.iter().map(own).collect();
        if program.copies_in().any(|(input, ..)| inputs_on_device.get(input).is_none_or(Option::is_none)) {
            return Err(DriverError::NotOnDevice);
        }
        let keep = |(output, bytes): (usize, u64)| match device_outputs.get(output).filter(|value| value.is_some()) {
            Some(given) => Ok((output, own(given).ok_or(DriverError::NotOnDevice)?)),
            None => Ok((output, Arc::new(EmulatedValue::new(bytes)))),
        };
        Ok(Box::new(Emulated {
            inputs_on_device,
            outputs_on_device: program.copies_out().map(keep).collect::<Result<_, DriverError>>()?,
            calls,
            exchanger,
            memory,
            staging: AlignedBytes::zeroed(program.staging as usize),
            scratch: AlignedBytes::zeroed(emulator::SCRATCH as usize),
            steps: program.steps.clone(),
            stamps: (0..program.steps.len()).map(|i| (program.stamps_before(i), program.stamps_after(i))).collect(),
            spans: program.spans.iter().map(|s| s.steps.clone()).collect(),
            times: BTreeMap::new(),
            kernels,
        }))
    }

    fn allocate(&self, _device: usize, bytes: &[u64]) -> Result<Vec<Arc<dyn DeviceValue>>, DriverError> {
        Ok(bytes.iter().map(|bytes| Arc::new(EmulatedValue::new(*bytes)) as Arc<dyn DeviceValue>).collect())
    }
}

/// A share in a transfer, and the addresses of its parts before and after.
type Placed = (RankTransfer, Range<usize>, Range<usize>);

/// How ranks exchange.
enum Exchanger {
    /// Nothing.
    Not,
    /// Through host memory: the shares of each exchange step.
    InMemory(Vec<Vec<Placed>>),
    /// Through a library.
    ByLibrary(Exchanges),
}

impl Exchanger {
    fn of(program: &DeviceProgram<'_>, rank_context: Option<&RankContext>) -> Result<Exchanger, DriverError> {
        if nccl::is_named() {
            let Some(mut exchanges) = Exchanges::of(program, rank_context)? else { return Ok(Exchanger::Not) };
            exchanges.connect()?;
            return Ok(Exchanger::ByLibrary(exchanges));
        }
        let mut steps = Vec::new();
        for step in &program.steps {
            let Step::Exchange(together) = step else { continue };
            let rank_context = rank_context.ok_or(DriverError::NoRankContext)?;
            let share = |e: &Exchange| {
                let wrong = |words: String| DriverError::Call { call: "a transfer", words };
                e.check(rank_context).map_err(wrong)?;
                let share = RankTransfer::new(&e.rendezvous.transfer, rank_context, e.rendezvous.dtype());
                let share = share.ok_or_else(|| wrong(format!("{} cannot be reduced", e.rendezvous.dtype())))?;
                let (before, after) = share.bytes();
                let (from, to) = (e.from.0 as usize, e.to.0 as usize);
                Ok((share, from..from + before, to..to + after))
            };
            steps.push(together.iter().map(share).collect::<Result<_, DriverError>>()?);
        }
        Ok(if steps.is_empty() { Exchanger::Not } else { Exchanger::InMemory(steps) })
    }

    /// Bytes of memory after the program's.
    fn staging(&self) -> u64 {
        match self {
            Exchanger::ByLibrary(exchanges) => exchanges.staging(),
            _ => 0,
        }
    }

    /// Runs an exchange step, by its number.
    fn run(&self, step: usize, memory: &mut [u8]) -> Result<(), DriverError> {
        match self {
            Exchanger::Not => Ok(()),
            Exchanger::InMemory(steps) => {
                for (share, from, to) in &steps[step] {
                    // The two ranges do not overlap; one precedes the other.
                    let overlap = || DriverError::Call { call: "a transfer", words: "its parts overlap".into() };
                    let (mine, target) = if from.end <= to.start {
                        let (low, high) = memory.split_at_mut(to.start);
                        (&low[from.clone()], &mut high[..to.len()])
                    } else {
                        let (low, high) = memory.split_at_mut_checked(from.start).ok_or_else(overlap)?;
                        (&high[..from.len()], low.get_mut(to.clone()).ok_or_else(overlap)?)
                    };
                    share.run(mine, target)?;
                }
                Ok(())
            }
            Exchanger::ByLibrary(exchanges) => {
                let base = memory.as_mut_ptr();
                let mut local = |what: LocalWork<'_>| {
                    let rows = match what {
                        LocalWork::Copy(rows) => rows,
                        LocalWork::Fill { to, element, count } => {
                            // SAFETY: the filled range is the part of a share, which fits the memory (`Exchange::check`).
                            let all = unsafe { from_raw_parts_mut(to as *mut u8, element.len() * count) };
                            all.chunks_exact_mut(element.len()).for_each(|x| x.copy_from_slice(element));
                            return Ok(());
                        }
                    };
                    for row in 0..rows.count {
                        let (from, to) =
                            (rows.from as usize + row * rows.pitch.0, rows.to as usize + row * rows.pitch.1);
                        // SAFETY: rows are those of a share, which fits the memory (`Exchange::check`); moves copy from one
                        // part of it to another.
                        unsafe { std::ptr::copy(from as *const u8, to as *mut u8, rows.bytes) };
                    }
                    Ok(())
                };
                // SAFETY: the memory is the program's and the staging after it, which nothing else uses concurrently; the
                // library was configured for host memory.
                unsafe { exchanges.enqueue(step, base as u64, std::ptr::null_mut(), &mut local) }
            }
        }
    }
}

/// A value that a program keeps. Its readers never run while it is written.
struct EmulatedValue(Mutex<Vec<u8>>);

impl EmulatedValue {
    fn new(bytes: u64) -> EmulatedValue {
        EmulatedValue(Mutex::new(vec![0; bytes as usize]))
    }

    fn lock(&self) -> MutexGuard<'_, Vec<u8>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl DeviceValue for EmulatedValue {
    fn bytes(&self) -> u64 {
        self.lock().len() as u64
    }

    fn write(&self, bytes: &[u8]) -> Result<(), DriverError> {
        let mut own = self.lock();
        own.get_mut(..bytes.len()).ok_or(DriverError::NotOnDevice)?.copy_from_slice(bytes);
        Ok(())
    }

    fn read(&self, bytes: &mut [u8]) -> Result<(), DriverError> {
        let own = self.lock();
        bytes.copy_from_slice(own.get(..bytes.len()).ok_or(DriverError::NotOnDevice)?);
        Ok(())
    }
}

struct Emulated {
    /// Inputs that other programs keep.
    inputs_on_device: Vec<Option<Arc<EmulatedValue>>>,
    /// Outputs that it keeps, by output number.
    outputs_on_device: HashMap<usize, Arc<EmulatedValue>>,
    calls: Calls,
    exchanger: Exchanger,
    memory: AlignedBytes,
    staging: AlignedBytes,
    scratch: AlignedBytes,
    steps: Vec<Step>,
    /// Whether the time is taken before and after each step.
    stamps: Vec<(bool, bool)>,
    /// The steps whose time is measured.
    spans: Vec<Range<usize>>,
    /// The times taken in the last run, by the number of steps before them.
    times: BTreeMap<usize, Instant>,
    /// Kernel code and the offset of its entry point.
    kernels: Vec<(Arc<Mmap>, usize)>,
}

impl LoadedProgram for Emulated {
    fn device_value(&self, output: usize) -> Option<Arc<dyn DeviceValue>> {
        self.outputs_on_device.get(&output).map(|value| Arc::clone(value) as Arc<dyn DeviceValue>)
    }

    fn staging(&mut self) -> &mut [u8] {
        &mut self.staging
    }

    fn wait(&mut self) -> Result<(), DriverError> {
        Ok(())
    }

    fn times(&self) -> Result<Vec<Duration>, DriverError> {
        let time = |span: &Range<usize>| match (self.times.get(&span.start), self.times.get(&span.end)) {
            (Some(begin), Some(end)) => end.saturating_duration_since(*begin),
            _ => Duration::ZERO,
        };
        Ok(self.spans.iter().map(time).collect())
    }

    fn enqueue(&mut self) -> Result<(), DriverError> {
        let range = |at: &u64, bytes: &u64| *at as usize..(*at + *bytes) as usize;
        let mut exchanges = 0..;
        for (i, step) in self.steps.iter().enumerate() {
            if self.stamps[i].0 {
                self.times.insert(i, Instant::now());
            }
            match step {
                Step::Upload { from, to, bytes } => {
                    self.memory[range(to, bytes)].copy_from_slice(&self.staging[range(from, bytes)]);
                }
                Step::Download { from, to, bytes } => {
                    self.staging[range(to, bytes)].copy_from_slice(&self.memory[range(from, bytes)]);
                }
                Step::CopyIn { input, from, to, bytes } => {
                    let value =
                        self.inputs_on_device.get(*input).and_then(Option::as_ref).ok_or(DriverError::NotOnDevice)?;
                    self.memory[range(to, bytes)].copy_from_slice(&value.lock()[range(from, bytes)]);
                }
                Step::CopyOut { output, from, bytes } => {
                    let value = self.outputs_on_device.get(output).ok_or(DriverError::NotOnDevice)?;
                    value.lock().copy_from_slice(&self.memory[range(from, bytes)]);
                }
                Step::Copy { from, to, bytes } => self.memory.copy_within(range(from, bytes), *to as usize),
                Step::Exchange(_) => {
                    let number = exchanges.next().unwrap_or(0);
                    self.exchanger.run(number, &mut self.memory)?;
                }
                // SAFETY: the addresses of steps and the workspace are inside the memory (`DeviceProgram::check`), which
                // nothing else uses concurrently; the library was configured for host memory.
                Step::Call { number, .. } => unsafe { self.calls.enqueue(*number, std::ptr::null_mut())? },
                Step::Launch { kernel, args, blocks, status } => {
                    let (code, entry) = &self.kernels[*kernel];
                    let base = self.memory.as_mut_ptr();
                    let table: Vec<*mut u8> = args.iter().map(|a| base.wrapping_add(a.at as usize)).collect();
                    // SAFETY: the code is executable and was compiled for this signature; its arguments are in memory that
                    // is alive and that nothing else uses concurrently; scratch has the size that such kernels need.
                    let word = unsafe {
                        let kernel: KernelFn = std::mem::transmute(code.as_ptr().add(*entry));
                        kernel(table.as_ptr(), 0, *blocks, self.scratch.as_mut_ptr())
                    };
                    self.memory[*status as usize..][..4].copy_from_slice(&word.to_le_bytes());
                }
            }
            if self.stamps[i].1 {
                self.times.insert(i + 1, Instant::now());
            }
        }
        Ok(())
    }
}
