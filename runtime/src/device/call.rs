//! A kernel call with its arguments bound to addresses.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use smallvec::SmallVec;

use super::{Buffer, CodeMap, KernelFn, Scratch};
use crate::pool::Pool;

/// A kernel call with all arguments resolved before the run.
#[derive(Debug)]
pub(crate) struct KernelCall {
    entry: KernelFn,
    args: Vec<*mut u8>,
    /// The arguments' memory, which they keep alive.
    buffers: Vec<Buffer>,
    /// Which arguments have an address that depends on the iteration.
    sliding: Vec<usize>,
    /// The symbols' values, which the last of `args` points to where the kernel reads them.
    _symbols: Vec<i64>,
    loop_iterations: i64,
    grain: i64,
    _code: Arc<CodeMap>,
}

// SAFETY: the addresses in `args` are those of `buffers` and `_symbols`, which may be sent; the entry point is plain code.
unsafe impl Send for KernelCall {}

impl KernelCall {
    /// Binds a kernel of `code` to its arguments.
    pub fn new(code: Arc<CodeMap>, entry: KernelFn, buffers: Vec<Buffer>, loop_iterations: i64, grain: i64) -> Self {
        let args = buffers.iter().map(|buffer| buffer.address(0)).collect();
        let sliding =
            buffers.iter().enumerate().filter(|(_, buffer)| buffer.slides()).map(|(index, _)| index).collect();
        Self { entry, args, buffers, sliding, _symbols: Vec::new(), loop_iterations, grain, _code: code }
    }

    /// Runs the kernel on an iteration; the error is the status of one of its parts.
    pub fn run(&mut self, iteration: u64, pool: &Pool, scratch: &Scratch) -> Result<(), i32> {
        for &index in &self.sliding {
            self.args[index] = self.buffers[index].address(iteration);
        }
        call(self.entry, Args(self.args.as_ptr()), self.loop_iterations, self.grain, pool, scratch)
    }
}

/// Memory that a kernel is called on: for as long as the call lasts.
pub(crate) enum Memory<'a> {
    /// Memory that the plan laid out.
    Buffer(&'a Buffer),
    /// Bytes of a value that the runtime owns.
    Read(&'a [u8]),
    /// Bytes of a value that the kernel fills.
    Write(&'a mut [u8]),
}

/// A kernel whose arguments or number of iterations are only known when it runs.
#[derive(Debug)]
pub(crate) struct DynamicKernel {
    entry: KernelFn,
    grain: i64,
    code: Arc<CodeMap>,
}

impl DynamicKernel {
    /// A kernel of `code`.
    pub fn new(code: Arc<CodeMap>, entry: KernelFn, grain: i64) -> Self {
        Self { entry, grain, code }
    }

    /// The call on these buffers for values of the symbols, of which each must be known.
    pub fn bind(&self, buffers: Vec<Buffer>, symbols: Vec<i64>, loop_iterations: i64) -> KernelCall {
        let mut call = KernelCall::new(Arc::clone(&self.code), self.entry, buffers, loop_iterations, self.grain);
        call.args.push(symbols.as_ptr().cast_mut().cast());
        call._symbols = symbols;
        call
    }

    /// Runs the kernel on `memory`, which must be as large as the values of the symbols say; the error is the status of
    /// one of its parts.
    pub fn run(
        &self,
        memory: &mut [Memory<'_>],
        symbols: &[i64],
        loop_iterations: i64,
        iteration: u64,
        pool: &Pool,
        scratch: &Scratch,
    ) -> Result<(), i32> {
        let address = |m: &mut Memory<'_>| match m {
            Memory::Buffer(buffer) => buffer.address(iteration),
            Memory::Read(bytes) => bytes.as_ptr().cast_mut(),
            Memory::Write(bytes) => bytes.as_mut_ptr(),
        };
        let mut table: SmallVec<[*mut u8; 12]> = memory.iter_mut().map(address).collect();
        table.push(symbols.as_ptr().cast_mut().cast());
        if loop_iterations == 0 {
            // Nothing to compute, but the kernel checks the symbols before it does.
            // SAFETY: as in `call`; over an empty range the kernel reads nothing but the symbols.
            return match unsafe { (self.entry)(table.as_ptr(), 0, 0, scratch.of(0)) } {
                0 => Ok(()),
                status => Err(status),
            };
        }
        call(self.entry, Args(table.as_ptr()), loop_iterations, self.grain, pool, scratch)
    }
}

/// Shares the iterations of a kernel's loop among the workers.
fn call(
    entry: KernelFn,
    args: Args,
    loop_iterations: i64,
    grain: i64,
    pool: &Pool,
    scratch: &Scratch,
) -> Result<(), i32> {
    let failed = AtomicI32::new(0);
    pool.parallel_for(loop_iterations, grain, |begin, end, worker| {
        // SAFETY: the arguments point to memory that the caller keeps alive and that the acting actor holds; the
        // kernel's parts may run at the same time by its contract; the scratch part belongs to this worker alone.
        let status = unsafe { entry(args.get(), begin, end, scratch.of(worker)) };
        if status != 0 {
            failed.store(status, Ordering::Relaxed);
        }
    });
    match failed.into_inner() {
        0 => Ok(()),
        status => Err(status),
    }
}

/// The argument table, shared with the workers while the call lasts.
#[derive(Clone, Copy)]
struct Args(*const *mut u8);

// SAFETY: kernels only read the table, and `run` keeps it unchanged until all workers are done.
unsafe impl Sync for Args {}

impl Args {
    fn get(&self) -> *const *mut u8 {
        self.0
    }
}
