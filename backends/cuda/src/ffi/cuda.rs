//! CUDA's driver, loaded when it is needed.

use std::any::Any;
use std::collections::{BTreeMap, HashMap};
use std::ffi::{CStr, c_char, c_int, c_uint, c_ushort, c_void};
use std::ops::Range;
use std::ptr::{null, null_mut};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use of_codegen::print::cuda::THREADS;
use of_cuda_sys::driver as sys;
use of_cuda_sys::{call, from_variable, functions, open};
use of_runtime::RankContext;

use sys::CUdevice_attribute_enum::*;
use sys::CUmemorytype_enum::*;
use sys::CUstreamCaptureMode_enum::*;

use crate::driver::{Completion, DeviceValue, Driver, DriverError, LoadedProgram};
use crate::program::{DeviceProgram, Step};
use crate::segments::Segment;

use super::Address;
use super::calls::Calls;
use super::nccl::{Exchanges, LocalWork, Rows};

functions! {
    /// The functions of CUDA's driver that are used.
    struct Api {
        cuInit, cuDeviceGetCount, cuDeviceGet, cuDeviceGetAttribute, cuDevicePrimaryCtxRetain,
        cuDevicePrimaryCtxRelease_v2, cuCtxSetCurrent, cuMemGetInfo_v2, cuMemAlloc_v2, cuMemFree_v2, cuMemAllocHost_v2,
        cuMemFreeHost, cuMemcpyHtoD_v2, cuMemcpyDtoH_v2, cuMemcpyHtoDAsync_v2, cuMemcpyDtoHAsync_v2, cuMemcpyDtoDAsync_v2,
        cuMemcpy2DAsync_v2, cuMemsetD8Async, cuMemsetD16Async, cuMemsetD32Async, cuMemsetD2D32Async, cuModuleLoadData,
        cuModuleUnload, cuModuleGetFunction, cuLaunchKernel, cuStreamCreate, cuStreamDestroy_v2, cuStreamSynchronize,
        cuStreamQuery, cuEventCreate, cuEventDestroy_v2, cuEventRecord, cuEventRecordWithFlags, cuEventElapsedTime,
        cuStreamWaitEvent, cuStreamBeginCapture_v2,
        cuStreamEndCapture, cuGraphInstantiateWithFlags, cuGraphLaunch, cuGraphDestroy, cuGraphExecDestroy,
        cuGetErrorString,
    }
}

/// The status of a stream with pending work.
const NOT_READY: u32 = sys::cudaError_enum::CUDA_ERROR_NOT_READY as u32;
/// The status of an allocation that ran out of memory.
const OUT_OF_MEMORY: u32 = sys::cudaError_enum::CUDA_ERROR_OUT_OF_MEMORY as u32;
/// A stream that does not synchronize with the default stream.
const NON_BLOCKING: u32 = sys::CUstream_flags_enum::CU_STREAM_NON_BLOCKING as u32;
/// An event without timing.
const NO_TIMING: u32 = sys::CUevent_flags_enum::CU_EVENT_DISABLE_TIMING as u32;
/// An event with timing.
const TIMING: u32 = sys::CUevent_flags_enum::CU_EVENT_DEFAULT as u32;
/// Records an event in a recording as a step of its own, so that each run takes its time.
const EXTERNAL: u32 = sys::CUevent_record_flags_enum::CU_EVENT_RECORD_EXTERNAL as u32;
/// How long the device may continue after another rank stopped, before it counts as waiting for that rank.
const GRACE: Duration = Duration::from_secs(5);
/// Blocks of a launch; a kernel loops over further iterations.
const MAX_BLOCKS: i64 = (1 << 31) - 1;

impl Api {
    fn get() -> Result<&'static Api, DriverError> {
        static API: OnceLock<Result<Api, String>> = OnceLock::new();
        let load = || {
            let file = from_variable("OF_CUDA_DRIVER").unwrap_or_else(|| "libcuda.so.1".into());
            let library = open(&file).map_err(|e| e.to_string())?;
            Api::bind(library).map_err(|e| e.to_string())
        };
        API.get_or_init(load).as_ref().map_err(|why| DriverError::NoDriver(why.clone()))
    }

    fn check(&self, call: &'static str, status: u32) -> Result<(), DriverError> {
        if status == 0 {
            return Ok(());
        }
        let mut words: *const c_char = null();
        // SAFETY: the driver returns a constant string or null.
        let words = unsafe {
            call!(self, cuGetErrorString(status, &mut words));
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
        device_inputs: &[Option<Arc<dyn DeviceValue>>],
        device_outputs: &[Option<Arc<dyn DeviceValue>>],
    ) -> Result<Box<dyn LoadedProgram>, DriverError> {
        let exchanges = Exchanges::of(program, rank_context)?;
        let mut on = GpuProgram::open(Api::get()?, program, device, exchanges)?;
        on.share(program, device_inputs, device_outputs)?;
        on.fill(program)?;
        on.warm(program)?;
        on.record(program)?;
        // Set last: a thread that reads it finds the other fields initialized.
        on.exchanges.as_mut().map_or(Ok(()), Exchanges::connect)?;
        Ok(Box::new(on))
    }

    fn allocate(&self, device: usize, bytes: &[u64]) -> Result<Vec<Arc<dyn DeviceValue>>, DriverError> {
        let api = Api::get()?;
        let (own, _) = find_device(api, device)?;
        let (mut context, mut free, mut total) = (null_mut(), 0usize, 0usize);
        // SAFETY: every pointer is that of a local variable. The context is current until it is released, and each value
        // retains it once more.
        unsafe {
            api.check("cuDevicePrimaryCtxRetain", call!(api, cuDevicePrimaryCtxRetain(&mut context, own)))?;
            let mut make = || {
                api.check("cuCtxSetCurrent", call!(api, cuCtxSetCurrent(context)))?;
                api.check("cuMemGetInfo", call!(api, cuMemGetInfo_v2(&mut free, &mut total)))?;
                let (needed, free) = (bytes.iter().sum::<u64>(), free as u64);
                if needed > free {
                    return Err(DriverError::Memory { needed, free });
                }
                let value =
                    |bytes: &u64| Ok(Arc::new(DeviceAllocation::new(api, own, *bytes)?) as Arc<dyn DeviceValue>);
                bytes.iter().map(value).collect()
            };
            let made = make();
            call!(api, cuDevicePrimaryCtxRelease_v2(own));
            made
        }
    }
}

/// The device with this number, and how many there are. Numbers wrap around where there are fewer devices.
fn find_device(api: &'static Api, number: usize) -> Result<(c_int, u32), DriverError> {
    let (mut count, mut device) = (0, 0);
    // SAFETY: every pointer is that of a local variable.
    unsafe {
        if call!(api, cuInit(0)) != 0 || call!(api, cuDeviceGetCount(&mut count)) != 0 || count < 1 {
            return Err(DriverError::NoDevice);
        }
        let ordinal = (number % count as usize) as c_int;
        api.check("cuDeviceGet", call!(api, cuDeviceGet(&mut device, ordinal)))?;
    }
    Ok((device, count as u32))
}

/// A program on a GPU. Its resources are released in field order.
struct GpuProgram {
    api: &'static Api,
    device: c_int,
    context: sys::CUcontext,
    /// The compute stream.
    stream: Arc<Stream>,
    /// The stream of exchanges with other ranks; null if there are none.
    exchange_stream: sys::CUstream,
    /// The event that all work before the next exchange has completed, then the event at the end of each exchange, by its
    /// number.
    events: Vec<sys::CUevent>,
    /// The events that take the time, by the number of steps before them.
    stamps: BTreeMap<usize, sys::CUevent>,
    /// The steps between whose events time is measured.
    spans: Vec<Range<usize>>,
    memory: Address,
    staging: *mut c_void,
    staging_bytes: usize,
    modules: Vec<sys::CUmodule>,
    functions: Vec<sys::CUfunction>,
    segments: Vec<RecordedSegment>,
    /// Inputs that other programs keep.
    inputs_on_device: Vec<Option<Arc<DeviceAllocation>>>,
    /// Outputs that it keeps, by output number.
    outputs_on_device: HashMap<usize, Arc<DeviceAllocation>>,
    /// The program's exchanges with other ranks.
    exchanges: Option<Exchanges>,
    /// The program's calls of libraries.
    calls: Calls,
    /// Whether work was enqueued that was not yet waited for.
    in_flight: bool,
}

/// The compute stream of a program. A completion handle may outlive the program.
struct Stream {
    api: &'static Api,
    device: c_int,
    context: sys::CUcontext,
    handle: sys::CUstream,
}

// SAFETY: the fields are only read until the drop, which any thread may run.
unsafe impl Send for Stream {}
// SAFETY: as above; any thread may query the driver's streams.
unsafe impl Sync for Stream {}

impl Stream {
    /// A stream of a device whose context is current.
    fn new(api: &'static Api, device: c_int) -> Result<Stream, DriverError> {
        let mut own = Stream { api, device, context: null_mut(), handle: null_mut() };
        // SAFETY: both pointers are those of fields that outlive the calls.
        unsafe {
            api.check("cuDevicePrimaryCtxRetain", call!(api, cuDevicePrimaryCtxRetain(&mut own.context, device)))?;
            api.check("cuStreamCreate", call!(api, cuStreamCreate(&mut own.handle, NON_BLOCKING)))?;
        }
        Ok(own)
    }
}

impl Completion for Stream {
    fn is_complete(&self) -> bool {
        // SAFETY: the context is retained and the stream is alive. Failed work counts as completed; the wait reports the
        // error.
        unsafe {
            call!(self.api, cuCtxSetCurrent(self.context)) != 0
                || call!(self.api, cuStreamQuery(self.handle)) != NOT_READY
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.context.is_null() {
            return;
        }
        // SAFETY: each handle is alive and is used for the last time. An error cannot be reported here.
        unsafe {
            call!(self.api, cuCtxSetCurrent(self.context));
            if !self.handle.is_null() {
                call!(self.api, cuStreamDestroy_v2(self.handle));
            }
            call!(self.api, cuDevicePrimaryCtxRelease_v2(self.device));
        }
    }
}

/// A value that a program keeps, in its own allocation, which lives as long as any reader.
struct DeviceAllocation {
    api: &'static Api,
    device: c_int,
    context: sys::CUcontext,
    at: Address,
    bytes: u64,
    /// The event that the last run of its program has completed, for readers.
    made: sys::CUevent,
}

// SAFETY: the fields are only read until the drop, which any thread may run.
unsafe impl Send for DeviceAllocation {}
// SAFETY: as above.
unsafe impl Sync for DeviceAllocation {}

impl DeviceAllocation {
    /// Allocates memory of a device whose context is current.
    fn new(api: &'static Api, device: c_int, bytes: u64) -> Result<DeviceAllocation, DriverError> {
        let mut own = DeviceAllocation { api, device, context: null_mut(), at: 0, bytes, made: null_mut() };
        // SAFETY: all pointers are those of fields that outlive the calls.
        unsafe {
            api.check("cuDevicePrimaryCtxRetain", call!(api, cuDevicePrimaryCtxRetain(&mut own.context, device)))?;
            api.check("cuMemAlloc", call!(api, cuMemAlloc_v2(&mut own.at, bytes.max(1) as usize)))?;
            api.check("cuEventCreate", call!(api, cuEventCreate(&mut own.made, NO_TIMING)))?;
        }
        Ok(own)
    }
}

impl DeviceAllocation {
    /// Copies so many bytes from or to the host, and waits until they are there.
    fn transfer(&self, bytes: usize, copy: impl FnOnce(&Api) -> Result<(), DriverError>) -> Result<(), DriverError> {
        if bytes as u64 > self.bytes {
            return Err(DriverError::NotOnDevice);
        }
        // SAFETY: the context was retained in `new`.
        self.api.check("cuCtxSetCurrent", unsafe { call!(self.api, cuCtxSetCurrent(self.context)) })?;
        copy(self.api)?;
        // The bytes of an upload may still be on their way from the driver's own memory, and programs run on streams that do not
        // wait for this one.
        // SAFETY: null is the default stream of the context.
        self.api.check("cuStreamSynchronize", unsafe { call!(self.api, cuStreamSynchronize(null_mut())) })
    }
}

impl DeviceValue for DeviceAllocation {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn write(&self, bytes: &[u8]) -> Result<(), DriverError> {
        self.transfer(bytes.len(), |api| {
            // SAFETY: `transfer` checked the size of the value; the call has read the bytes when it returns.
            let status = unsafe { call!(api, cuMemcpyHtoD_v2(self.at, bytes.as_ptr().cast(), bytes.len())) };
            api.check("cuMemcpyHtoD", status)
        })
    }

    fn read(&self, bytes: &mut [u8]) -> Result<(), DriverError> {
        self.transfer(bytes.len(), |api| {
            // SAFETY: `transfer` checked the size of the value; the call has written the bytes when it returns.
            let status = unsafe { call!(api, cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast(), self.at, bytes.len())) };
            api.check("cuMemcpyDtoH", status)
        })
    }
}

impl Drop for DeviceAllocation {
    fn drop(&mut self) {
        if self.context.is_null() {
            return;
        }
        // SAFETY: each handle is alive and is used for the last time. An error cannot be reported here.
        unsafe {
            call!(self.api, cuCtxSetCurrent(self.context));
            if !self.made.is_null() {
                call!(self.api, cuEventDestroy_v2(self.made));
            }
            if self.at != 0 {
                call!(self.api, cuMemFree_v2(self.at));
            }
            call!(self.api, cuDevicePrimaryCtxRelease_v2(self.device));
        }
    }
}

/// A unit of launch.
enum RecordedSegment {
    /// Recorded steps, as a graph.
    Recorded(sys::CUgraphExec),
    /// See [`Segment::Exchange`].
    Exchange(usize),
    /// See [`Segment::Await`].
    Await(usize),
}

// SAFETY: any thread may use the driver's handles, one at a time, once its context is current there.
unsafe impl Send for GpuProgram {}

impl GpuProgram {
    /// Opens the device with this number and allocates memory, if it can run the program.
    fn open(
        api: &'static Api,
        program: &DeviceProgram<'_>,
        number: usize,
        exchanges: Option<Exchanges>,
    ) -> Result<GpuProgram, DriverError> {
        let mut on = GpuProgram {
            api,
            device: 0,
            context: null_mut(),
            stream: Arc::new(Stream { api, device: 0, context: null_mut(), handle: null_mut() }),
            exchange_stream: null_mut(),
            events: Vec::new(),
            stamps: BTreeMap::new(),
            spans: program.spans.iter().map(|s| s.steps.clone()).collect(),
            memory: 0,
            staging: null_mut(),
            staging_bytes: program.staging as usize,
            modules: Vec::new(),
            functions: Vec::new(),
            segments: Vec::new(),
            inputs_on_device: Vec::new(),
            outputs_on_device: HashMap::new(),
            exchanges,
            calls: Calls::default(),
            in_flight: false,
        };
        let exchanges = on.exchanges.as_ref();
        let (mut major, mut minor, mut free, mut total) = (0, 0, 0usize, 0usize);
        let (device, count) = find_device(api, number)?;
        if let Some((a, b)) = exchanges.and_then(|e| e.share_a_device(count)) {
            return Err(DriverError::SharedDevice(a, b));
        }
        on.device = device;
        // SAFETY: every pointer is that of a local variable or a field that outlives the call.
        unsafe {
            api.check(
                "cuDeviceGetAttribute",
                call!(api, cuDeviceGetAttribute(&mut major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, on.device)),
            )?;
            api.check(
                "cuDeviceGetAttribute",
                call!(api, cuDeviceGetAttribute(&mut minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, on.device)),
            )?;
            if !runs(program.isa, major, minor) {
                let device = format!("sm_{major}{minor}");
                return Err(DriverError::Arch { kernels: program.isa.to_string(), device });
            }
            api.check("cuDevicePrimaryCtxRetain", call!(api, cuDevicePrimaryCtxRetain(&mut on.context, on.device)))?;
            on.enter()?;
            api.check("cuMemGetInfo", call!(api, cuMemGetInfo_v2(&mut free, &mut total)))?;
            let own = (program.memory + exchanges.map_or(0, Exchanges::staging)).max(1);
            let needed = own + program.copies_out().map(|(_, bytes)| bytes).sum::<u64>();
            if needed > free as u64 {
                return Err(DriverError::Memory { needed, free: free as u64 });
            }
            match call!(api, cuMemAlloc_v2(&mut on.memory, own as usize)) {
                OUT_OF_MEMORY => return Err(DriverError::Memory { needed, free: free as u64 }),
                status => api.check("cuMemAlloc", status)?,
            }
            api.check("cuMemAllocHost", call!(api, cuMemAllocHost_v2(&mut on.staging, on.staging_bytes.max(1))))?;
            on.stream = Arc::new(Stream::new(api, on.device)?);
            if on.exchanges.is_some() {
                api.check("cuStreamCreate", call!(api, cuStreamCreate(&mut on.exchange_stream, NON_BLOCKING)))?;
                for _ in 0..=program.steps.iter().filter(|s| matches!(s, Step::Exchange(_))).count() {
                    let mut event = null_mut();
                    api.check("cuEventCreate", call!(api, cuEventCreate(&mut event, NO_TIMING)))?;
                    on.events.push(event);
                }
            }
        }
        Ok(on)
    }

    /// Makes the device's context current on the calling thread.
    fn enter(&self) -> Result<(), DriverError> {
        // SAFETY: the context was retained in `open` and is released in `drop`.
        self.api.check("cuCtxSetCurrent", unsafe { call!(self.api, cuCtxSetCurrent(self.context)) })
    }

    /// Looks up the values that other programs keep, and allocates those that this program keeps.
    fn share(
        &mut self,
        program: &DeviceProgram<'_>,
        device_inputs: &[Option<Arc<dyn DeviceValue>>],
        device_outputs: &[Option<Arc<dyn DeviceValue>>],
    ) -> Result<(), DriverError> {
        let own = |value: &Option<Arc<dyn DeviceValue>>| {
            let value: Arc<dyn Any + Send + Sync> = value.clone()?;
            value.downcast::<DeviceAllocation>().ok().filter(|value| value.device == self.device)
        };
        self.inputs_on_device = device_inputs.iter().map(own).collect();
        if program.copies_in().any(|(input, ..)| self.inputs_on_device.get(input).is_none_or(Option::is_none)) {
            return Err(DriverError::NotOnDevice);
        }
        for (output, bytes) in program.copies_out() {
            let value = match device_outputs.get(output).filter(|value| value.is_some()) {
                Some(given) => own(given).ok_or(DriverError::NotOnDevice)?,
                None => Arc::new(DeviceAllocation::new(self.api, self.device, bytes)?),
            };
            self.outputs_on_device.insert(output, value);
        }
        Ok(())
    }

    /// Uploads the constants and loads the kernels.
    fn fill(&mut self, program: &DeviceProgram<'_>) -> Result<(), DriverError> {
        let api = self.api;
        for (at, bytes) in &program.constants {
            // SAFETY: `DeviceProgram::check` verified that the range is inside the memory.
            let status = unsafe { call!(api, cuMemcpyHtoD_v2(self.memory + at, bytes.as_ptr().cast(), bytes.len())) };
            api.check("cuMemcpyHtoD", status)?;
        }
        for kernel in &program.kernels {
            let (mut module, mut function) = (null_mut(), null_mut());
            // SAFETY: a cubin contains its length, and the plan's checksum was verified; the driver checks the format.
            api.check("cuModuleLoadData", unsafe {
                call!(api, cuModuleLoadData(&mut module, kernel.bytes.as_ptr().cast()))
            })?;
            self.modules.push(module);
            // SAFETY: the module is loaded and the name ends with 0.
            let status = unsafe { call!(api, cuModuleGetFunction(&mut function, module, c"kernel".as_ptr())) };
            api.check("cuModuleGetFunction", status)?;
            self.functions.push(function);
        }
        Ok(())
    }

    /// Opens the libraries that the program calls, and runs each call once: what a library loads on first use cannot be
    /// recorded.
    fn warm(&mut self, program: &DeviceProgram<'_>) -> Result<(), DriverError> {
        self.calls = Calls::open(program, self.memory)?;
        (0..program.calls().count()).try_for_each(|number| self.call(number))?;
        self.wait_for_all()
    }

    /// Waits for work in flight. Exchanges with ranks that failed during the run would otherwise wait forever.
    fn wait_for_all(&self) -> Result<(), DriverError> {
        let Some(exchanges) = &self.exchanges else {
            // SAFETY: the stream is alive.
            return self
                .api
                .check("cuStreamSynchronize", unsafe { call!(self.api, cuStreamSynchronize(self.stream.handle)) });
        };
        let mut since = None;
        loop {
            // SAFETY: both streams are alive.
            match unsafe {
                [
                    call!(self.api, cuStreamQuery(self.stream.handle)),
                    call!(self.api, cuStreamQuery(self.exchange_stream)),
                ]
            } {
                [0, 0] => return Ok(()),
                [NOT_READY | 0, NOT_READY | 0] => {}
                [status, other] => return self.api.check("cuStreamQuery", if status > 0 { status } else { other }),
            }
            let failed = exchanges.failed();
            let late = exchanges.stopped() && since.get_or_insert_with(Instant::now).elapsed() > GRACE;
            if late || failed.is_err() {
                exchanges.abort();
                // SAFETY: as above; nothing blocks the streams any more.
                unsafe {
                    call!(self.api, cuStreamSynchronize(self.exchange_stream));
                    call!(self.api, cuStreamSynchronize(self.stream.handle));
                }
                return failed.and(Err(DriverError::Stopped));
            }
            std::thread::yield_now();
        }
    }

    /// Records an event after the work that is on a stream now.
    fn mark(&self, event: sys::CUevent, stream: sys::CUstream) -> Result<(), DriverError> {
        // SAFETY: the event and the stream are alive.
        self.api.check("cuEventRecord", unsafe { call!(self.api, cuEventRecord(event, stream)) })
    }

    /// Makes later work on a stream wait for a recorded event.
    fn await_event(&self, event: sys::CUevent, stream: sys::CUstream) -> Result<(), DriverError> {
        // SAFETY: the event and the stream are alive.
        self.api.check("cuStreamWaitEvent", unsafe { call!(self.api, cuStreamWaitEvent(stream, event, 0)) })
    }

    /// Enqueues all segments on their streams, after the programs that produce the values kept by others.
    fn enqueue_all(&self) -> Result<(), DriverError> {
        let stream = self.stream.handle;
        self.inputs_on_device.iter().flatten().try_for_each(|value| self.await_event(value.made, stream))?;
        self.segments.iter().try_for_each(|segment| self.enqueue_segment(segment))?;
        self.outputs_on_device.values().try_for_each(|value| self.mark(value.made, stream))
    }

    /// Enqueues a segment on its stream.
    fn enqueue_segment(&self, segment: &RecordedSegment) -> Result<(), DriverError> {
        let api = self.api;
        let number = match segment {
            RecordedSegment::Recorded(recording) => {
                // SAFETY: the recording and everything that it references are alive.
                return api
                    .check("cuGraphLaunch", unsafe { call!(api, cuGraphLaunch(*recording, self.stream.handle)) });
            }
            RecordedSegment::Await(number) => return self.await_event(self.events[number + 1], self.stream.handle),
            RecordedSegment::Exchange(number) => *number,
        };
        let Some(exchanges) = &self.exchanges else { return Ok(()) };
        self.mark(self.events[0], self.stream.handle)?;
        self.await_event(self.events[0], self.exchange_stream)?;
        let mut local = |what: LocalWork<'_>| {
            let rows = match what {
                LocalWork::Copy(rows) => rows,
                LocalWork::Fill { to, element, count } => return self.fill_with(to, element, count),
            };
            if rows.count == 1 {
                return self.copy(rows.from, rows.to, rows.bytes as u64, self.exchange_stream);
            }
            let all = copy_of_rows(&rows);
            // SAFETY: rows are those of a share, which fits the memory (`Exchange::check`); the call copies its parameters.
            api.check("cuMemcpy2DAsync", unsafe { call!(api, cuMemcpy2DAsync_v2(&all, self.exchange_stream)) })
        };
        // SAFETY: the memory was allocated for the program and its packing buffers. Exchanges are ordered on their stream,
        // and concurrent compute work does not access their memory (`DeviceProgram::segments`).
        unsafe { exchanges.enqueue(number, self.memory, self.exchange_stream, &mut local) }?;
        self.mark(self.events[number + 1], self.exchange_stream)
    }

    /// Copies bytes between two device addresses. Both ranges are inside memory that lives as long as the program: its own
    /// (`DeviceProgram::check`, `Exchange::check`), or values whose sizes the loader checked.
    fn copy(&self, from: Address, to: Address, bytes: u64, stream: sys::CUstream) -> Result<(), DriverError> {
        // SAFETY: the caller guarantees the addresses.
        let status = unsafe { call!(self.api, cuMemcpyDtoDAsync_v2(to, from, bytes as usize, stream)) };
        self.api.check("cuMemcpyDtoDAsync", status)
    }

    /// Sets `count` elements of 1, 2, 4 or 8 bytes to a value, from an address on. The range is inside the memory.
    fn fill_with(&self, to: Address, element: &[u8], count: usize) -> Result<(), DriverError> {
        let (api, on, words) = (self.api, self.exchange_stream, element.as_chunks::<4>().0);
        if count == 0 {
            return Ok(());
        }
        // SAFETY: the elements are inside the memory. The driver sets 32 bits at most. Where the two words of an element
        // differ, the first words of all elements are set, then the second ones, as rows of one word each.
        unsafe {
            match *element {
                [x] => api.check("cuMemsetD8Async", call!(api, cuMemsetD8Async(to, x, count, on))),
                [a, b] => {
                    let x = c_ushort::from_le_bytes([a, b]);
                    api.check("cuMemsetD16Async", call!(api, cuMemsetD16Async(to, x, count, on)))
                }
                _ if words.iter().all(|word| *word == words[0]) => {
                    let x = words.first().map_or(0, |word| c_uint::from_le_bytes(*word));
                    api.check("cuMemsetD32Async", call!(api, cuMemsetD32Async(to, x, count * words.len(), on)))
                }
                _ => (0..).step_by(4).zip(words).try_for_each(|(at, word)| {
                    let (x, pitch) = (c_uint::from_le_bytes(*word), element.len());
                    api.check("cuMemsetD2D32Async", call!(api, cuMemsetD2D32Async(to + at, pitch, x, 1, count, on)))
                }),
            }
        }
    }

    /// Enqueues a call on the stream.
    fn call(&self, number: usize) -> Result<(), DriverError> {
        // SAFETY: the addresses of steps and the workspace are inside the memory (`DeviceProgram::check`), which the device
        // can read.
        unsafe { self.calls.enqueue(number, self.stream.handle) }
    }

    /// Records each compute segment as a graph.
    fn record(&mut self, program: &DeviceProgram<'_>) -> Result<(), DriverError> {
        // The status words are cleared before the first kernel.
        let mut clear = Some((program.statuses.0, program.names.len())).filter(|(_, words)| *words > 0);
        for part in program.segments() {
            match part {
                Segment::Compute(steps) => self.record_segment(program, steps, clear.take())?,
                Segment::Exchange(number) => self.segments.push(RecordedSegment::Exchange(number)),
                Segment::Await(number) => self.segments.push(RecordedSegment::Await(number)),
            }
        }
        Ok(())
    }

    fn record_segment(
        &mut self,
        program: &DeviceProgram<'_>,
        steps: Range<usize>,
        clear: Option<(u64, usize)>,
    ) -> Result<(), DriverError> {
        for at in steps.clone().flat_map(|i| [(i, program.stamps_before(i)), (i + 1, program.stamps_after(i))]) {
            if at.1 {
                let mut event = null_mut();
                // SAFETY: the pointer is that of a local variable.
                self.api.check("cuEventCreate", unsafe { call!(self.api, cuEventCreate(&mut event, TIMING)) })?;
                self.stamps.insert(at.0, event);
            }
        }
        let (api, mut graph, mut recording) = (self.api, null_mut(), null_mut());
        // SAFETY: the stream belongs to this program; between the two calls only the steps are enqueued on it.
        api.check("cuStreamBeginCapture", unsafe {
            call!(api, cuStreamBeginCapture_v2(self.stream.handle, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL))
        })?;
        let steps = self.steps(program, steps, clear);
        // SAFETY: as above; the graph's handle is a local variable.
        api.check("cuStreamEndCapture", unsafe { call!(api, cuStreamEndCapture(self.stream.handle, &mut graph)) })?;
        let made = steps.and_then(|()| {
            // SAFETY: the graph was recorded above.
            let status = unsafe { call!(api, cuGraphInstantiateWithFlags(&mut recording, graph, 0)) };
            api.check("cuGraphInstantiate", status)
        });
        // SAFETY: the graph was recorded above, and its instance no longer needs it.
        let destroyed = api.check("cuGraphDestroy", unsafe { call!(api, cuGraphDestroy(graph)) });
        if made.is_ok() {
            self.segments.push(RecordedSegment::Recorded(recording));
        }
        made.and(destroyed)
    }

    /// Takes the time at this point of the recording.
    fn stamp(&self, at: usize) -> Result<(), DriverError> {
        let Some(event) = self.stamps.get(&at) else { return Ok(()) };
        // SAFETY: the event and the stream are alive.
        let status = unsafe { call!(self.api, cuEventRecordWithFlags(*event, self.stream.handle, EXTERNAL)) };
        self.api.check("cuEventRecordWithFlags", status)
    }

    /// Enqueues compute steps on the stream, after clearing this many words from an address on.
    fn steps(
        &mut self,
        program: &DeviceProgram<'_>,
        steps: Range<usize>,
        clear: Option<(u64, usize)>,
    ) -> Result<(), DriverError> {
        let api = self.api;
        if let Some((at, words)) = clear {
            // SAFETY: the status words and the addresses of steps are inside the memory (`DeviceProgram::check`).
            let status = unsafe { call!(api, cuMemsetD32Async(self.memory + at, 0, words, self.stream.handle)) };
            api.check("cuMemsetD32Async", status)?;
        }
        for (i, step) in steps.clone().zip(&program.steps[steps]) {
            if program.stamps_before(i) {
                self.stamp(i)?;
            }
            match step {
                Step::Upload { from, to, bytes } => {
                    let host = self.staging.cast::<u8>().wrapping_add(*from as usize);
                    // SAFETY: both ranges are inside their memory, which lives as long as the recording.
                    let status = unsafe {
                        call!(
                            api,
                            cuMemcpyHtoDAsync_v2(self.memory + to, host.cast(), *bytes as usize, self.stream.handle)
                        )
                    };
                    api.check("cuMemcpyHtoDAsync", status)?;
                }
                Step::Download { from, to, bytes } => {
                    let host = self.staging.cast::<u8>().wrapping_add(*to as usize);
                    // SAFETY: as above.
                    let status = unsafe {
                        call!(
                            api,
                            cuMemcpyDtoHAsync_v2(host.cast(), self.memory + from, *bytes as usize, self.stream.handle)
                        )
                    };
                    api.check("cuMemcpyDtoHAsync", status)?;
                }
                Step::CopyIn { input, from, to, bytes } => {
                    let value =
                        self.inputs_on_device.get(*input).and_then(Option::as_ref).ok_or(DriverError::NotOnDevice)?;
                    self.copy(value.at + from, self.memory + to, *bytes, self.stream.handle)?;
                }
                Step::CopyOut { output, from, bytes } => {
                    let value = self.outputs_on_device.get(output).ok_or(DriverError::NotOnDevice)?;
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
                    let grid = (*blocks).clamp(1, MAX_BLOCKS) as c_uint;
                    // SAFETY: the parameters match the signature of every kernel (`ENTRY` in prelude.cuh); the call copies
                    // them.
                    let done = unsafe {
                        call!(
                            api,
                            cuLaunchKernel(
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
                                null_mut(),
                            )
                        )
                    };
                    api.check("cuLaunchKernel", done)?;
                }
            }
            if program.stamps_after(i) {
                self.stamp(i + 1)?;
            }
        }
        Ok(())
    }
}

impl LoadedProgram for GpuProgram {
    fn device_value(&self, output: usize) -> Option<Arc<dyn DeviceValue>> {
        self.outputs_on_device.get(&output).map(|value| Arc::clone(value) as Arc<dyn DeviceValue>)
    }

    fn staging(&mut self) -> &mut [u8] {
        if self.in_flight {
            // A caller that asks for results early gets the error when it waits for them.
            let _ = self.wait_for_all();
        }
        // SAFETY: the driver allocated this many bytes, which nothing else writes while no work is in flight.
        unsafe { std::slice::from_raw_parts_mut(self.staging.cast(), self.staging_bytes) }
    }

    fn enqueue(&mut self) -> Result<(), DriverError> {
        self.wait()?;
        self.enter()?;
        self.in_flight = true;
        // Work in flight ends before the memory is reused, whether or not the other steps succeeded.
        self.enqueue_all().inspect_err(|_| drop(self.wait()))
    }

    fn wait(&mut self) -> Result<(), DriverError> {
        if !self.in_flight {
            return Ok(());
        }
        self.enter()?;
        let result = self.wait_for_all();
        self.in_flight = false;
        result
    }

    fn times(&self) -> Result<Vec<Duration>, DriverError> {
        self.enter()?;
        let time = |span: &Range<usize>| {
            let (Some(begin), Some(end)) = (self.stamps.get(&span.start), self.stamps.get(&span.end)) else {
                return Ok(Duration::ZERO);
            };
            let mut ms = 0.0;
            // SAFETY: both events are alive and were recorded by the last run, which has completed.
            let status = unsafe { call!(self.api, cuEventElapsedTime(&mut ms, *begin, *end)) };
            self.api.check("cuEventElapsedTime", status)?;
            Ok(Duration::from_secs_f64(f64::from(ms.max(0.0)) / 1e3))
        };
        self.spans.iter().map(time).collect()
    }

    /// The wait abandons an exchange that another rank aborted.
    fn completion(&self) -> Option<Arc<dyn Completion>> {
        self.exchanges.is_none().then(|| Arc::clone(&self.stream) as Arc<dyn Completion>)
    }
}

impl Drop for GpuProgram {
    fn drop(&mut self) {
        if self.context.is_null() {
            return;
        }
        let api = self.api;
        // Work in flight may wait for ranks that are gone.
        let _ = self.wait();
        // SAFETY: each handle is alive and is used for the last time. An error cannot be reported here.
        unsafe {
            call!(api, cuCtxSetCurrent(self.context));
            for stream in [self.exchange_stream, self.stream.handle] {
                if !stream.is_null() {
                    call!(api, cuStreamSynchronize(stream));
                }
            }
            for segment in &self.segments {
                if let RecordedSegment::Recorded(recording) = segment {
                    call!(api, cuGraphExecDestroy(*recording));
                }
            }
            self.exchanges = None;
            self.calls = Calls::default();
            for module in &self.modules {
                call!(api, cuModuleUnload(*module));
            }
            for event in self.events.iter().chain(self.stamps.values()) {
                call!(api, cuEventDestroy_v2(*event));
            }
            if !self.exchange_stream.is_null() {
                call!(api, cuStreamDestroy_v2(self.exchange_stream));
            }
            if !self.staging.is_null() {
                call!(api, cuMemFreeHost(self.staging));
            }
            if self.memory != 0 {
                call!(api, cuMemFree_v2(self.memory));
            }
            call!(api, cuDevicePrimaryCtxRelease_v2(self.device));
        }
    }
}

/// The arguments of a copy of rows between two device addresses.
fn copy_of_rows(rows: &Rows) -> sys::CUDA_MEMCPY2D {
    sys::CUDA_MEMCPY2D {
        srcXInBytes: 0,
        srcY: 0,
        srcMemoryType: CU_MEMORYTYPE_DEVICE,
        srcHost: null(),
        srcDevice: rows.from,
        srcArray: null_mut(),
        srcPitch: rows.pitch.0,
        dstXInBytes: 0,
        dstY: 0,
        dstMemoryType: CU_MEMORYTYPE_DEVICE,
        dstHost: null_mut(),
        dstDevice: rows.to,
        dstArray: null_mut(),
        dstPitch: rows.pitch.1,
        WidthInBytes: rows.bytes,
        Height: rows.count,
    }
}

/// Whether a device runs kernels for an architecture: same generation, and not newer than the device.
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
        assert!(!runs("sm_80", 9, 0) && !runs("sm_90", 8, 9) && !runs("cuda-emulated", 9, 0));
    }
}
