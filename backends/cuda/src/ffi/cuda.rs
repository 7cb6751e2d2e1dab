//! CUDA's driver, loaded when it is needed.

use std::any::Any;
use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_uchar, c_uint, c_ushort, c_void};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use libloading::Library;
use of_codegen::print::cuda::THREADS;
use of_runtime::RankContext;

use crate::driver::{Driver, DriverError, Kept, Loaded, Watch};
use crate::{DeviceProgram, Part, Step};

use super::calls::Calls;
use super::nccl::{Exchanges, Local};
use super::{Address, Handle, api, named};

api! {
    init = "cuInit" (c_uint);
    device_count = "cuDeviceGetCount" (*mut c_int);
    device = "cuDeviceGet" (*mut c_int, c_int);
    attribute = "cuDeviceGetAttribute" (*mut c_int, c_int, c_int);
    retain = "cuDevicePrimaryCtxRetain" (*mut Handle, c_int);
    release = "cuDevicePrimaryCtxRelease_v2" (c_int);
    make_current = "cuCtxSetCurrent" (Handle);
    memory_info = "cuMemGetInfo_v2" (*mut usize, *mut usize);
    allocate = "cuMemAlloc_v2" (*mut Address, usize);
    free = "cuMemFree_v2" (Address);
    allocate_host = "cuMemAllocHost_v2" (*mut *mut c_void, usize);
    free_host = "cuMemFreeHost" (*mut c_void);
    upload = "cuMemcpyHtoD_v2" (Address, *const c_void, usize);
    upload_async = "cuMemcpyHtoDAsync_v2" (Address, *const c_void, usize, Handle);
    download_async = "cuMemcpyDtoHAsync_v2" (*mut c_void, Address, usize, Handle);
    copy_async = "cuMemcpyDtoDAsync_v2" (Address, Address, usize, Handle);
    copy_rows_async = "cuMemcpy2DAsync_v2" (*const CopyRows, Handle);
    set_bytes_async = "cuMemsetD8Async" (Address, c_uchar, usize, Handle);
    set_halves_async = "cuMemsetD16Async" (Address, c_ushort, usize, Handle);
    set_async = "cuMemsetD32Async" (Address, c_uint, usize, Handle);
    set_rows_async = "cuMemsetD2D32Async" (Address, usize, c_uint, usize, usize, Handle);
    load_module = "cuModuleLoadData" (*mut Handle, *const c_void);
    unload_module = "cuModuleUnload" (Handle);
    function = "cuModuleGetFunction" (*mut Handle, Handle, *const c_char);
    launch = "cuLaunchKernel" (
        Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle, *mut *mut c_void, *mut *mut c_void
    );
    stream = "cuStreamCreate" (*mut Handle, c_uint);
    destroy_stream = "cuStreamDestroy_v2" (Handle);
    wait = "cuStreamSynchronize" (Handle);
    query = "cuStreamQuery" (Handle);
    event = "cuEventCreate" (*mut Handle, c_uint);
    destroy_event = "cuEventDestroy_v2" (Handle);
    record_event = "cuEventRecord" (Handle, Handle);
    await_event = "cuStreamWaitEvent" (Handle, Handle, c_uint);
    begin_capture = "cuStreamBeginCapture_v2" (Handle, c_int);
    end_capture = "cuStreamEndCapture" (Handle, *mut Handle);
    instantiate = "cuGraphInstantiateWithFlags" (*mut Handle, Handle, u64);
    launch_graph = "cuGraphLaunch" (Handle, Handle);
    destroy_graph = "cuGraphDestroy" (Handle);
    destroy_recording = "cuGraphExecDestroy" (Handle);
    words = "cuGetErrorString" (c_int, *mut *const c_char);
}

/// `CUDA_MEMCPY2D`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct CopyRows {
    from: Side,
    to: Side,
    bytes: usize,
    rows: usize,
}

/// One side of it.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Side {
    x: usize,
    y: usize,
    kind: c_uint,
    host: usize,
    device: Address,
    array: usize,
    pitch: usize,
}

/// Memory of a device.
const DEVICE: c_uint = 2;
/// The status of a stream that is not through.
const NOT_READY: c_int = 600;
/// How long the device may go on after another rank stopped, before it counts as waiting for it.
const GRACE: Duration = Duration::from_secs(5);
/// Attributes of a device.
const MAJOR: c_int = 75;
const MINOR: c_int = 76;
/// The status of an allocation that found no memory.
const OUT_OF_MEMORY: c_int = 2;
/// A stream that does not wait for the default one.
const NON_BLOCKING: c_uint = 1;
/// An event that takes no time.
const NO_TIMING: c_uint = 2;
/// Only this thread's calls are recorded.
const THREAD_LOCAL: c_int = 1;
/// Blocks of a launch; kernels run further iterations in turns.
const MOST_BLOCKS: i64 = (1 << 31) - 1;

impl Api {
    fn get() -> Result<&'static Api, DriverError> {
        static API: OnceLock<Result<Api, String>> = OnceLock::new();
        let load = || {
            let file = named("OF_CUDA_DRIVER").unwrap_or_else(|| "libcuda.so.1".into());
            // SAFETY: the library is the system's driver, or what the user named; its constructors are its own affair.
            let library = unsafe { Library::new(file) };
            let library = library.map_err(|e| e.to_string())?;
            Api::bind(library).map_err(|e| e.to_string())
        };
        API.get_or_init(load).as_ref().map_err(|why| DriverError::NoDriver(why.clone()))
    }

    fn check(&self, call: &'static str, status: c_int) -> Result<(), DriverError> {
        if status == 0 {
            return Ok(());
        }
        let mut words: *const c_char = std::ptr::null();
        // SAFETY: the driver gives a constant string, or none.
        let words = unsafe {
            (self.words)(status, &mut words);
            if words.is_null() { "unknown".into() } else { CStr::from_ptr(words).to_string_lossy().into_owned() }
        };
        Err(DriverError::Call { call, words: format!("{words} ({status})") })
    }
}

/// CUDA's driver.
#[derive(Clone, Copy, Default, Debug)]
pub struct CudaDriver;

impl Driver for CudaDriver {
    fn load(
        &self,
        program: &DeviceProgram<'_>,
        device: usize,
        rank_context: Option<&RankContext>,
        kept: &[Option<Arc<dyn Kept>>],
    ) -> Result<Box<dyn Loaded>, DriverError> {
        let exchanges = Exchanges::of(program, rank_context)?;
        let mut on = OnGpu::open(Api::get()?, program, device, exchanges)?;
        on.share(program, kept)?;
        on.fill(program)?;
        on.warm(program)?;
        on.record(program)?;
        // Last: whoever comes to the others is ready.
        on.exchanges.as_mut().map_or(Ok(()), Exchanges::connect)?;
        Ok(Box::new(on))
    }
}

/// A program on a GPU. What it holds is given back in the order of the fields' last use.
struct OnGpu {
    api: &'static Api,
    device: c_int,
    context: Handle,
    /// Where it computes.
    stream: Arc<Stream>,
    /// Where it exchanges with other ranks, if it does; null else.
    exchange_stream: Handle,
    /// That all is computed on which the next exchange waits, then the end of each exchange, by its number.
    events: Vec<Handle>,
    memory: Address,
    staging: *mut c_void,
    staging_bytes: usize,
    modules: Vec<Handle>,
    functions: Vec<Handle>,
    turns: Vec<Turn>,
    /// Inputs that other programs keep.
    taken: Vec<Option<Arc<OnItsOwn>>>,
    /// Outputs that it keeps, by their numbers.
    kept: HashMap<usize, Arc<OnItsOwn>>,
    /// Where the program exchanges with other ranks.
    exchanges: Option<Exchanges>,
    /// The program's calls of libraries.
    calls: Calls,
    /// Whether something was put on the device that nobody has waited for.
    on_the_way: bool,
}

/// A stream in which a program computes. Who looks how far it is may outlive the program.
struct Stream {
    api: &'static Api,
    device: c_int,
    context: Handle,
    handle: Handle,
}

// SAFETY: what it holds is only read but for its end, which any thread may bring about.
unsafe impl Send for Stream {}
// SAFETY: as above; the driver's streams may be asked by any thread.
unsafe impl Sync for Stream {}

impl Stream {
    /// A stream of a device whose context is current.
    fn new(api: &'static Api, device: c_int) -> Result<Stream, DriverError> {
        let null = std::ptr::null_mut();
        let mut own = Stream { api, device, context: null, handle: null };
        // SAFETY: both pointers are those of fields that outlive the calls.
        unsafe {
            api.check("cuDevicePrimaryCtxRetain", (api.retain)(&mut own.context, device))?;
            api.check("cuStreamCreate", (api.stream)(&mut own.handle, NON_BLOCKING))?;
        }
        Ok(own)
    }
}

impl Watch for Stream {
    fn is_through(&self) -> bool {
        // SAFETY: the context is retained and the stream is alive. What has failed is through, and whoever waits is told why.
        unsafe { (self.api.make_current)(self.context) != 0 || (self.api.query)(self.handle) != NOT_READY }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.context.is_null() {
            return;
        }
        // SAFETY: each handle is alive and is used for the last time; there is nobody left to tell of an error.
        unsafe {
            (self.api.make_current)(self.context);
            if !self.handle.is_null() {
                (self.api.destroy_stream)(self.handle);
            }
            (self.api.release)(self.device);
        }
    }
}

/// A value that a program keeps, in memory of its own, which lives as long as anybody who reads it.
struct OnItsOwn {
    api: &'static Api,
    device: c_int,
    context: Handle,
    at: Address,
    bytes: u64,
    /// That the last run of its program is through, for those who read it.
    made: Handle,
}

// SAFETY: what it holds is only read but for its end, which any thread may bring about.
unsafe impl Send for OnItsOwn {}
// SAFETY: as above.
unsafe impl Sync for OnItsOwn {}

impl OnItsOwn {
    /// Takes memory of a device whose context is current.
    fn new(api: &'static Api, device: c_int, bytes: u64) -> Result<OnItsOwn, DriverError> {
        let null = std::ptr::null_mut();
        let mut own = OnItsOwn { api, device, context: null, at: 0, bytes, made: null };
        // SAFETY: all pointers are those of fields that outlive the calls.
        unsafe {
            api.check("cuDevicePrimaryCtxRetain", (api.retain)(&mut own.context, device))?;
            api.check("cuMemAlloc", (api.allocate)(&mut own.at, bytes.max(1) as usize))?;
            api.check("cuEventCreate", (api.event)(&mut own.made, NO_TIMING))?;
        }
        Ok(own)
    }
}

impl Kept for OnItsOwn {
    fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for OnItsOwn {
    fn drop(&mut self) {
        if self.context.is_null() {
            return;
        }
        // SAFETY: each handle is alive and is used for the last time; there is nobody left to tell of an error.
        unsafe {
            (self.api.make_current)(self.context);
            if !self.made.is_null() {
                (self.api.destroy_event)(self.made);
            }
            if self.at != 0 {
                (self.api.free)(self.at);
            }
            (self.api.release)(self.device);
        }
    }
}

/// What is launched at once.
enum Turn {
    /// Steps that were recorded, as a graph.
    Recorded(Handle),
    /// See [`Part::Exchange`].
    Exchange(usize),
    /// See [`Part::Await`].
    Await(usize),
}

// SAFETY: the driver's handles may be used by any thread, one at a time, once its context is current there.
unsafe impl Send for OnGpu {}

impl OnGpu {
    /// Opens the device of this number and takes memory, if it can run the program.
    fn open(
        api: &'static Api,
        program: &DeviceProgram<'_>,
        number: usize,
        exchanges: Option<Exchanges>,
    ) -> Result<OnGpu, DriverError> {
        let null = std::ptr::null_mut();
        let mut on = OnGpu {
            api,
            device: 0,
            context: null,
            stream: Arc::new(Stream { api, device: 0, context: null, handle: null }),
            exchange_stream: null,
            events: Vec::new(),
            memory: 0,
            staging: null,
            staging_bytes: program.staging as usize,
            modules: Vec::new(),
            functions: Vec::new(),
            turns: Vec::new(),
            taken: Vec::new(),
            kept: HashMap::new(),
            exchanges,
            calls: Calls::default(),
            on_the_way: false,
        };
        let exchanges = on.exchanges.as_ref();
        let (mut count, mut major, mut minor, mut free, mut total) = (0, 0, 0, 0usize, 0usize);
        // SAFETY: every pointer is that of a local variable or a field that outlives the call.
        unsafe {
            let started = (api.init)(0);
            if started != 0 || (api.device_count)(&mut count) != 0 || count < 1 {
                return Err(DriverError::NoDevice);
            }
            if let Some((a, b)) = exchanges.and_then(|e| e.share_a_device(count as u32)) {
                return Err(DriverError::SharedDevice(a, b));
            }
            let ordinal = (number % count as usize) as c_int;
            api.check("cuDeviceGet", (api.device)(&mut on.device, ordinal))?;
            api.check("cuDeviceGetAttribute", (api.attribute)(&mut major, MAJOR, on.device))?;
            api.check("cuDeviceGetAttribute", (api.attribute)(&mut minor, MINOR, on.device))?;
            if !runs(program.isa, major, minor) {
                let device = format!("sm_{major}{minor}");
                return Err(DriverError::Arch { kernels: program.isa.to_string(), device });
            }
            api.check("cuDevicePrimaryCtxRetain", (api.retain)(&mut on.context, on.device))?;
            on.enter()?;
            api.check("cuMemGetInfo", (api.memory_info)(&mut free, &mut total))?;
            let own = (program.memory + exchanges.map_or(0, Exchanges::staging)).max(1);
            let needed = own + program.keeps().map(|(_, bytes)| bytes).sum::<u64>();
            if needed > free as u64 {
                return Err(DriverError::Memory { needed, free: free as u64 });
            }
            match (api.allocate)(&mut on.memory, own as usize) {
                OUT_OF_MEMORY => return Err(DriverError::Memory { needed, free: free as u64 }),
                status => api.check("cuMemAlloc", status)?,
            }
            api.check("cuMemAllocHost", (api.allocate_host)(&mut on.staging, on.staging_bytes.max(1)))?;
            on.stream = Arc::new(Stream::new(api, on.device)?);
            if on.exchanges.is_some() {
                api.check("cuStreamCreate", (api.stream)(&mut on.exchange_stream, NON_BLOCKING))?;
                for _ in 0..=program.steps.iter().filter(|s| matches!(s, Step::Exchange(_))).count() {
                    let mut event = null;
                    api.check("cuEventCreate", (api.event)(&mut event, NO_TIMING))?;
                    on.events.push(event);
                }
            }
        }
        Ok(on)
    }

    /// Makes the device's context the calling thread's.
    fn enter(&self) -> Result<(), DriverError> {
        // SAFETY: the context was retained in `open` and is released in `drop`.
        self.api.check("cuCtxSetCurrent", unsafe { (self.api.make_current)(self.context) })
    }

    /// Finds what other programs keep, and takes memory for what others find.
    fn share(&mut self, program: &DeviceProgram<'_>, kept: &[Option<Arc<dyn Kept>>]) -> Result<(), DriverError> {
        let own = |value: &Option<Arc<dyn Kept>>| {
            let value: Arc<dyn Any + Send + Sync> = value.clone()?;
            value.downcast::<OnItsOwn>().ok().filter(|value| value.device == self.device)
        };
        self.taken = kept.iter().map(own).collect();
        if program.takes().any(|(input, ..)| self.taken.get(input).is_none_or(Option::is_none)) {
            return Err(DriverError::Elsewhere);
        }
        for (output, bytes) in program.keeps() {
            self.kept.insert(output, Arc::new(OnItsOwn::new(self.api, self.device, bytes)?));
        }
        Ok(())
    }

    /// Uploads the constants and loads the kernels.
    fn fill(&mut self, program: &DeviceProgram<'_>) -> Result<(), DriverError> {
        let api = self.api;
        for (at, bytes) in &program.constants {
            // SAFETY: `DeviceProgram::check` says that the place lies inside of the memory.
            let status = unsafe { (api.upload)(self.memory + at, bytes.as_ptr().cast(), bytes.len()) };
            api.check("cuMemcpyHtoD", status)?;
        }
        for kernel in &program.kernels {
            let (mut module, mut function) = (std::ptr::null_mut(), std::ptr::null_mut());
            // SAFETY: a cubin says how long it is, and a plan's checksum was verified; the driver checks its form.
            api.check("cuModuleLoadData", unsafe { (api.load_module)(&mut module, kernel.bytes.as_ptr().cast()) })?;
            self.modules.push(module);
            // SAFETY: the module is loaded and the name ends with 0.
            let status = unsafe { (api.function)(&mut function, module, c"kernel".as_ptr()) };
            api.check("cuModuleGetFunction", status)?;
            self.functions.push(function);
        }
        Ok(())
    }

    /// Opens the libraries that the program calls, and makes each call once: what a library loads when it is first used cannot
    /// be recorded.
    fn warm(&mut self, program: &DeviceProgram<'_>) -> Result<(), DriverError> {
        self.calls = Calls::open(program, self.memory)?;
        (0..program.calls().count()).try_for_each(|number| self.call(number))?;
        self.wait_for_all()
    }

    /// Waits for what is on the way. What exchanges with ranks that broke on the way would wait for ever.
    fn wait_for_all(&self) -> Result<(), DriverError> {
        let Some(exchanges) = &self.exchanges else {
            // SAFETY: the stream is alive.
            return self.api.check("cuStreamSynchronize", unsafe { (self.api.wait)(self.stream.handle) });
        };
        let mut since = None;
        loop {
            // SAFETY: both streams are alive.
            match unsafe { [(self.api.query)(self.stream.handle), (self.api.query)(self.exchange_stream)] } {
                [0, 0] => return Ok(()),
                [NOT_READY | 0, NOT_READY | 0] => {}
                [status, other] => return self.api.check("cuStreamQuery", if status > 0 { status } else { other }),
            }
            let failed = exchanges.failed();
            let late = exchanges.stopped() && since.get_or_insert_with(Instant::now).elapsed() > GRACE;
            if late || failed.is_err() {
                exchanges.abort();
                // SAFETY: as above; nothing holds the streams up any more.
                unsafe {
                    (self.api.wait)(self.exchange_stream);
                    (self.api.wait)(self.stream.handle);
                }
                return failed.and(Err(DriverError::Stopped));
            }
            std::thread::yield_now();
        }
    }

    /// Has an event come once what is on a stream by now is through.
    fn mark(&self, event: Handle, stream: Handle) -> Result<(), DriverError> {
        // SAFETY: the event and the stream are alive.
        self.api.check("cuEventRecord", unsafe { (self.api.record_event)(event, stream) })
    }

    /// Has what is put on a stream from now on wait for an event that was marked.
    fn await_event(&self, event: Handle, stream: Handle) -> Result<(), DriverError> {
        // SAFETY: the event and the stream are alive.
        self.api.check("cuStreamWaitEvent", unsafe { (self.api.await_event)(stream, event, 0) })
    }

    /// Puts all turns on their streams, behind what makes the values that others keep.
    fn put_all(&self) -> Result<(), DriverError> {
        let stream = self.stream.handle;
        self.taken.iter().flatten().try_for_each(|value| self.await_event(value.made, stream))?;
        self.turns.iter().try_for_each(|turn| self.put_turn(turn))?;
        self.kept.values().try_for_each(|value| self.mark(value.made, stream))
    }

    /// Puts a turn on its stream.
    fn put_turn(&self, turn: &Turn) -> Result<(), DriverError> {
        let api = self.api;
        let number = match turn {
            Turn::Recorded(recording) => {
                // SAFETY: the recording and all that it names are alive.
                return api.check("cuGraphLaunch", unsafe { (api.launch_graph)(*recording, self.stream.handle) });
            }
            Turn::Await(number) => return self.await_event(self.events[number + 1], self.stream.handle),
            Turn::Exchange(number) => *number,
        };
        let Some(exchanges) = &self.exchanges else { return Ok(()) };
        self.mark(self.events[0], self.stream.handle)?;
        self.await_event(self.events[0], self.exchange_stream)?;
        let mut local = |what: Local<'_>| {
            let rows = match what {
                Local::Copy(rows) => rows,
                Local::Fill { to, element, count } => return self.fill_with(to, element, count),
            };
            if rows.count == 1 {
                return self.copy(rows.from, rows.to, rows.bytes as u64, self.exchange_stream);
            }
            let side = |device, pitch| Side { kind: DEVICE, device, pitch, ..Side::default() };
            let (from, to) = (side(rows.from, rows.pitch.0), side(rows.to, rows.pitch.1));
            let all = CopyRows { from, to, bytes: rows.bytes, rows: rows.count };
            // SAFETY: rows are those of a share, which fits the memory (`Exchange::check`); what is copied how is copied by the
            // call.
            api.check("cuMemcpy2DAsync", unsafe { (api.copy_rows_async)(&all, self.exchange_stream) })
        };
        // SAFETY: the memory was taken for the program and what it packs; exchanges come one after another on their stream, and
        // what is computed beside them touches nothing of theirs (`DeviceProgram::parts`).
        unsafe { exchanges.put(number, self.memory, self.exchange_stream, &mut local) }?;
        self.mark(self.events[number + 1], self.exchange_stream)
    }

    /// Has bytes copied from a place on the device to another. Both lie inside of memory that lives as long as the program: its
    /// own (`DeviceProgram::check`, `Exchange::check`), or values of which the loader looked at the sizes.
    fn copy(&self, from: Address, to: Address, bytes: u64, stream: Handle) -> Result<(), DriverError> {
        // SAFETY: the caller says so of the places.
        let status = unsafe { (self.api.copy_async)(to, from, bytes as usize, stream) };
        self.api.check("cuMemcpyDtoDAsync", status)
    }

    /// Has elements of 1, 2, 4 or 8 bytes set to a value, `count` of them from a place on that lies inside of the memory.
    fn fill_with(&self, to: Address, element: &[u8], count: usize) -> Result<(), DriverError> {
        let (api, on, words) = (self.api, self.exchange_stream, element.as_chunks::<4>().0);
        if count == 0 {
            return Ok(());
        }
        // SAFETY: the elements lie inside of the memory. The driver sets 32 bits at most, so where elements have two words that
        // differ, the first words of all are set, then the second ones, as rows of one word each.
        unsafe {
            match *element {
                [x] => api.check("cuMemsetD8Async", (api.set_bytes_async)(to, x, count, on)),
                [a, b] => {
                    let x = c_ushort::from_le_bytes([a, b]);
                    api.check("cuMemsetD16Async", (api.set_halves_async)(to, x, count, on))
                }
                _ if words.iter().all(|word| *word == words[0]) => {
                    let x = words.first().map_or(0, |word| c_uint::from_le_bytes(*word));
                    api.check("cuMemsetD32Async", (api.set_async)(to, x, count * words.len(), on))
                }
                _ => (0..).step_by(4).zip(words).try_for_each(|(at, word)| {
                    let (x, pitch) = (c_uint::from_le_bytes(*word), element.len());
                    api.check("cuMemsetD2D32Async", (api.set_rows_async)(to + at, pitch, x, 1, count, on))
                }),
            }
        }
    }

    /// Puts a call on the stream.
    fn call(&self, number: usize) -> Result<(), DriverError> {
        // SAFETY: places of steps lie inside of the memory (`DeviceProgram::check`), which the device can read, and so does the
        // workspace.
        unsafe { self.calls.put(number, self.stream.handle) }
    }

    /// Records the parts that compute, as a graph each.
    fn record(&mut self, program: &DeviceProgram<'_>) -> Result<(), DriverError> {
        // What kernels say is cleared before the first of them.
        let mut clear = Some((program.statuses.0, program.names.len())).filter(|(_, words)| *words > 0);
        for part in program.parts() {
            match part {
                Part::Compute(steps) => self.record_part(&program.steps[steps], clear.take())?,
                Part::Exchange(number) => self.turns.push(Turn::Exchange(number)),
                Part::Await(number) => self.turns.push(Turn::Await(number)),
            }
        }
        Ok(())
    }

    fn record_part(&mut self, steps: &[Step], clear: Option<(u64, usize)>) -> Result<(), DriverError> {
        let (api, mut graph, mut recording) = (self.api, std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the stream is this program's own; between the two calls only the steps are put on it.
        api.check("cuStreamBeginCapture", unsafe { (api.begin_capture)(self.stream.handle, THREAD_LOCAL) })?;
        let steps = self.steps(steps, clear);
        // SAFETY: as above; the graph's handle is a local variable.
        api.check("cuStreamEndCapture", unsafe { (api.end_capture)(self.stream.handle, &mut graph) })?;
        let made = steps.and_then(|()| {
            // SAFETY: the graph was recorded above.
            let status = unsafe { (api.instantiate)(&mut recording, graph, 0) };
            api.check("cuGraphInstantiate", status)
        });
        // SAFETY: the graph was recorded above, and what was made of it needs it no longer.
        let destroyed = api.check("cuGraphDestroy", unsafe { (api.destroy_graph)(graph) });
        if made.is_ok() {
            self.turns.push(Turn::Recorded(recording));
        }
        made.and(destroyed)
    }

    /// Puts steps on the stream, none of which exchanges, behind the clearing of so many words from a place on.
    fn steps(&mut self, steps: &[Step], clear: Option<(u64, usize)>) -> Result<(), DriverError> {
        let api = self.api;
        if let Some((at, words)) = clear {
            // SAFETY: the status words lie inside of the memory; places of steps do too (`DeviceProgram::check`).
            let status = unsafe { (api.set_async)(self.memory + at, 0, words, self.stream.handle) };
            api.check("cuMemsetD32Async", status)?;
        }
        for step in steps {
            match step {
                Step::Upload { from, to, bytes } => {
                    let host = self.staging.cast::<u8>().wrapping_add(*from as usize);
                    // SAFETY: both places lie inside of their memory, which lives as long as the recording.
                    let status = unsafe {
                        (api.upload_async)(self.memory + to, host.cast(), *bytes as usize, self.stream.handle)
                    };
                    api.check("cuMemcpyHtoDAsync", status)?;
                }
                Step::Download { from, to, bytes } => {
                    let host = self.staging.cast::<u8>().wrapping_add(*to as usize);
                    // SAFETY: as above.
                    let status = unsafe {
                        (api.download_async)(host.cast(), self.memory + from, *bytes as usize, self.stream.handle)
                    };
                    api.check("cuMemcpyDtoHAsync", status)?;
                }
                Step::Take { input, from, to, bytes } => {
                    let value = self.taken.get(*input).and_then(Option::as_ref).ok_or(DriverError::Elsewhere)?;
                    self.copy(value.at + from, self.memory + to, *bytes, self.stream.handle)?;
                }
                Step::Keep { output, from, bytes } => {
                    let value = self.kept.get(output).ok_or(DriverError::Elsewhere)?;
                    self.copy(self.memory + from, value.at, *bytes, self.stream.handle)?;
                }
                Step::Copy { from, to, bytes } => {
                    self.copy(self.memory + from, self.memory + to, *bytes, self.stream.handle)?;
                }
                Step::Call { number, .. } => self.call(*number)?,
                Step::Exchange(_) => {}
                Step::Launch { kernel, args, blocks, status } => {
                    let mut table: Vec<Address> = args.iter().map(|a| self.memory + a.at).collect();
                    let (mut end, mut word) = (*blocks, self.memory + status);
                    let mut params: [*mut c_void; 3] =
                        [table.as_mut_ptr().cast(), (&raw mut end).cast(), (&raw mut word).cast()];
                    let grid = (*blocks).clamp(1, MOST_BLOCKS) as c_uint;
                    // SAFETY: the parameters are those of every kernel (`ENTRY` in prelude.cuh), copied by the call.
                    let done = unsafe {
                        (api.launch)(
                            self.functions[*kernel],
                            grid,
                            1,
                            1,
                            THREADS as c_uint,
                            1,
                            1,
                            0,
                            self.stream.handle,
                            params.as_mut_ptr(),
                            std::ptr::null_mut(),
                        )
                    };
                    api.check("cuLaunchKernel", done)?;
                }
            }
        }
        Ok(())
    }
}

impl Loaded for OnGpu {
    fn kept(&self, output: usize) -> Option<Arc<dyn Kept>> {
        self.kept.get(&output).map(|value| Arc::clone(value) as Arc<dyn Kept>)
    }

    fn staging(&mut self) -> &mut [u8] {
        if self.on_the_way {
            // Whoever asks for results before they are there is told of errors when waiting for them.
            let _ = self.wait_for_all();
        }
        // SAFETY: the driver gave so many bytes, which nothing else writes while nothing is on the way.
        unsafe { std::slice::from_raw_parts_mut(self.staging.cast(), self.staging_bytes) }
    }

    fn put(&mut self) -> Result<(), DriverError> {
        self.wait()?;
        self.enter()?;
        self.on_the_way = true;
        // What is on the way ends before the memory is anybody else's, whatever came of the rest.
        self.put_all().inspect_err(|_| drop(self.wait()))
    }

    fn wait(&mut self) -> Result<(), DriverError> {
        if !self.on_the_way {
            return Ok(());
        }
        self.enter()?;
        let result = self.wait_for_all();
        self.on_the_way = false;
        result
    }

    /// An exchange that ranks broke is given up by whoever waits for it.
    fn watch(&self) -> Option<Arc<dyn Watch>> {
        self.exchanges.is_none().then(|| Arc::clone(&self.stream) as Arc<dyn Watch>)
    }
}

impl Drop for OnGpu {
    fn drop(&mut self) {
        if self.context.is_null() {
            return;
        }
        let api = self.api;
        // What is on the way may wait for ranks that are gone.
        let _ = self.wait();
        // SAFETY: each handle is alive and is used for the last time; there is nobody left to tell of an error.
        unsafe {
            (api.make_current)(self.context);
            for stream in [self.exchange_stream, self.stream.handle] {
                if !stream.is_null() {
                    (api.wait)(stream);
                }
            }
            for turn in &self.turns {
                if let Turn::Recorded(recording) = turn {
                    (api.destroy_recording)(*recording);
                }
            }
            self.exchanges = None;
            self.calls = Calls::default();
            for module in &self.modules {
                (api.unload_module)(*module);
            }
            for event in &self.events {
                (api.destroy_event)(*event);
            }
            if !self.exchange_stream.is_null() {
                (api.destroy_stream)(self.exchange_stream);
            }
            if !self.staging.is_null() {
                (api.free_host)(self.staging);
            }
            if self.memory != 0 {
                (api.free)(self.memory);
            }
            (api.release)(self.device);
        }
    }
}

/// Whether a device runs kernels for an architecture: those of its own generation that are not newer.
fn runs(isa: &str, major: c_int, minor: c_int) -> bool {
    let number: Option<c_int> = isa.split('+').next().and_then(|n| n.strip_prefix("sm_")).and_then(|n| n.parse().ok());
    number.is_some_and(|n| n / 10 == major && n % 10 <= minor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_run_on_their_own_generation() {
        assert!(runs("sm_90", 9, 0) && runs("sm_80+tf32", 8, 6) && runs("sm_100", 10, 0));
        assert!(!runs("sm_80", 9, 0) && !runs("sm_90", 8, 9) && !runs("cuda-shim", 9, 0));
    }
}
