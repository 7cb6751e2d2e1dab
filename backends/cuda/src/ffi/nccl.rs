//! NCCL, loaded on demand: the share of a rank in transfers, as calls between recorded parts of a program.

use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use of_cuda_sys::nccl as sys;
use of_cuda_sys::{call, from_variable, functions, open_first};
use of_plan::{BufferOffset, Collective, CollectiveCall, ElementType, LayoutKind, StridedCopy};
use of_runtime::{RankContext, Transport, identity_element};

use sys::ncclDataType_t::*;
use sys::ncclRedOp_t::*;

use super::{Address, Stream};
use crate::driver::DriverError;
use crate::program::{DeviceProgram, Exchange, Step};

const NAMES: &[&str] = &["libnccl.so.2"];
/// Overrides the library file.
const VARIABLE: &str = "OF_NCCL";
/// Packed elements start at multiples of this many bytes.
const ALIGN: u64 = 256;

functions! {
    /// The functions of NCCL that are used.
    struct Api {
        ncclGetUniqueId, ncclCommInitRank, ncclCommDestroy, ncclCommAbort, ncclCommGetAsyncError, ncclGroupStart,
        ncclGroupEnd, ncclAllReduce, ncclReduceScatter, ncclReduce, ncclAllGather, ncclSend, ncclRecv,
    }
}

/// The library's element type for reductions.
fn number(dtype: ElementType) -> Option<sys::ncclDataType_t> {
    Some(match dtype {
        ElementType::I8 => ncclInt8,
        // Truth values are 0 and 1; only minimum and maximum of them are computed.
        ElementType::Ui8 | ElementType::I1 => ncclUint8,
        ElementType::I32 => ncclInt32,
        ElementType::Ui32 => ncclUint32,
        ElementType::I64 => ncclInt64,
        ElementType::Ui64 => ncclUint64,
        ElementType::F16 => ncclFloat16,
        ElementType::F32 => ncclFloat32,
        ElementType::F64 => ncclFloat64,
        ElementType::Bf16 => ncclBfloat16,
        _ => return None,
    })
}

/// Whether the library reduces elements of a type.
pub fn combines(dtype: ElementType) -> bool {
    number(dtype).is_some()
}

/// The library's reduction operator.
fn operation(kind: LayoutKind) -> sys::ncclRedOp_t {
    match kind {
        LayoutKind::Prod => ncclProd,
        LayoutKind::Max => ncclMax,
        LayoutKind::Min => ncclMin,
        _ => ncclSum,
    }
}

impl Api {
    fn get() -> Result<&'static Api, DriverError> {
        static API: OnceLock<Result<Api, String>> = OnceLock::new();
        let load = || Api::bind(open_first(VARIABLE, NAMES)?).map_err(|e| e.to_string());
        API.get_or_init(load).as_ref().map_err(|why| DriverError::NoNccl(why.clone()))
    }
}

fn check(call: &'static str, status: u32) -> Result<(), DriverError> {
    let words = match status {
        0 => return Ok(()),
        1 => "a call of CUDA failed",
        2 => "a system call failed",
        4 => "a value is invalid",
        5 => "the call is invalid",
        6 => "another rank failed, or cannot be reached",
        _ => "the library failed",
    };
    Err(DriverError::Call { call, words: format!("{words} ({status}); NCCL_DEBUG=WARN says more") })
}

/// The bytes of the unique id by which ranks connect.
fn bytes_of(unique: &sys::ncclUniqueId) -> [u8; 128] {
    unique.internal.map(|byte| byte as u8)
}

/// Whether a library is configured for emulated GPUs.
pub fn is_named() -> bool {
    from_variable(VARIABLE).is_some()
}

/// A communicator.
struct Communicator {
    api: &'static Api,
    /// Null after an abort.
    handle: AtomicPtr<sys::ncclComm>,
    /// The key of a communicator, kept alive as long as the communicator.
    _transport: Arc<dyn Transport>,
}

/// The rank, its transport, and the ranks that it is connected with.
type Key = (usize, u32, Vec<u32>);

impl Communicator {
    /// The communicator of a rank and others, who rendezvous at the number of a transfer. The programs of a rank share it.
    fn of(rank_context: &RankContext, share: &Collective, id: u32) -> Result<Arc<Communicator>, DriverError> {
        static KNOWN: OnceLock<Mutex<HashMap<Key, Weak<Communicator>>>> = OnceLock::new();
        let known = || KNOWN.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
        let key = (Arc::as_ptr(&rank_context.transport).cast::<()>() as usize, rank_context.rank, share.ranks.clone());
        if let Some(there) = known().get(&key).and_then(Weak::upgrade) {
            return Ok(there);
        }
        let (api, mut unique, mut handle) = (Api::get()?, sys::ncclUniqueId { internal: [0; 128] }, null_mut());
        if share.me == 0 {
            // SAFETY: the pointer is that of a local variable.
            check("ncclGetUniqueId", unsafe { call!(api, ncclGetUniqueId(&mut unique)) })?;
        }
        // After the rendezvous nothing can fail before all ranks enter the library.
        let got = rank_context.gather(id, &share.ranks, &bytes_of(&unique))?;
        let first = got.first().and_then(|bytes| bytes[..].try_into().ok());
        let first: [u8; 128] = first.ok_or(DriverError::Stopped)?;
        let unique = sys::ncclUniqueId { internal: first.map(|byte| byte as c_char) };
        let (count, me) = (share.ranks.len() as c_int, share.me as c_int);
        // SAFETY: the device's context is current; the pointer is that of a local variable.
        check("ncclCommInitRank", unsafe { call!(api, ncclCommInitRank(&mut handle, count, unique, me)) })?;
        let handle = AtomicPtr::new(handle);
        let made = Arc::new(Communicator { api, handle, _transport: Arc::clone(&rank_context.transport) });
        let mut known = known();
        known.retain(|_, other| other.strong_count() > 0);
        known.insert(key, Arc::downgrade(&made));
        Ok(made)
    }

    fn handle(&self) -> Result<sys::ncclComm_t, DriverError> {
        let handle = self.handle.load(Ordering::Acquire);
        if handle.is_null() {
            let words = "the communicator was aborted after a rank failed; create a new session".into();
            return Err(DriverError::Call { call: "NCCL", words });
        }
        Ok(handle)
    }

    /// Whether an error occurred since the last call.
    fn failed(&self) -> Result<(), DriverError> {
        let mut status = 0u32;
        // SAFETY: the handle is alive, and the pointer is that of a local variable.
        check("ncclCommGetAsyncError", unsafe {
            call!(self.api, ncclCommGetAsyncError(self.handle()?, (&raw mut status).cast()))
        })?;
        if status == sys::ncclResult_t::ncclInProgress as u32 { Ok(()) } else { check("NCCL", status) }
    }

    /// Aborts the operations that the device waits for.
    fn abort(&self) {
        let handle = self.handle.swap(null_mut(), Ordering::AcqRel);
        if !handle.is_null() {
            // SAFETY: the handle is alive and used for the last time. An error cannot be reported here.
            unsafe { call!(self.api, ncclCommAbort(handle)) };
        }
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        let handle = *self.handle.get_mut();
        if !handle.is_null() {
            // SAFETY: as in `abort`.
            unsafe { call!(self.api, ncclCommDestroy(handle)) };
        }
    }
}

/// A rank's share in a transfer, with offsets in the device's memory.
struct Share {
    id: u32,
    collective: Collective,
    element: u64,
    /// The library's type, and how many of these form an element.
    dtype: (sys::ncclDataType_t, usize),
    /// The fill value of the part after, and the element count.
    fill: Option<(Vec<u8>, usize)>,
    from: Address,
    to: Address,
    staging: Address,
    communicator: Option<Arc<Communicator>>,
}

/// Bytes that are copied on the device: rows of equal size with strides.
#[derive(Clone, Copy, Debug)]
pub struct Rows {
    /// Source and destination offset of the first row.
    pub from: Address,
    /// See `from`.
    pub to: Address,
    /// Bytes of a row.
    pub bytes: usize,
    /// Number of rows.
    pub count: usize,
    /// Bytes from one row to the next, in source and destination.
    pub pitch: (usize, usize),
}

/// An operation on the device itself.
#[derive(Clone, Copy, Debug)]
pub enum LocalWork<'a> {
    /// A copy of bytes.
    Copy(Rows),
    /// A fill of contiguous elements of 1, 2, 4 or 8 bytes with a value.
    Fill {
        /// Offset of the first element.
        to: Address,
        /// Bytes of the value.
        element: &'a [u8],
        /// Number of elements.
        count: usize,
    },
}

/// The exchanges of a program with other ranks.
pub struct Exchanges {
    rank_context: RankContext,
    /// For each exchange step, its shares.
    steps: Vec<Vec<Share>>,
    /// Bytes of packing buffers, after the program's memory.
    staging: u64,
}

impl Exchanges {
    /// The exchanges of a program, or `None` if it has none.
    ///
    /// # Errors
    /// When the shares do not match the rank context.
    pub fn of(
        program: &DeviceProgram<'_>,
        rank_context: Option<&RankContext>,
    ) -> Result<Option<Exchanges>, DriverError> {
        if program.exchanges().next().is_none() {
            return Ok(None);
        }
        let rank_context = rank_context.ok_or(DriverError::NoRankContext)?;
        let base = program.memory.next_multiple_of(ALIGN);
        let mut out = Exchanges { rank_context: rank_context.clone(), steps: Vec::new(), staging: 0 };
        for step in &program.steps {
            let Step::Exchange(together) = step else { continue };
            // Steps run one after another, so they share the packing buffer.
            let mut staging = base;
            let shares = together.iter().map(|e| Share::of(e, rank_context, &mut staging)).collect::<Result<_, _>>()?;
            out.staging = out.staging.max(staging - program.memory);
            out.steps.push(shares);
        }
        Ok(Some(out))
    }

    /// Bytes of memory that it needs after the program's.
    pub fn staging(&self) -> u64 {
        self.staging
    }

    /// Two ranks that would share a device, if there are only this many devices.
    pub fn share_a_device(&self, devices: u32) -> Option<(u32, u32)> {
        let all = self.steps.iter().flatten().map(|share| &share.collective.ranks);
        let pairs = all.flat_map(|ranks| ranks.iter().flat_map(|a| ranks.iter().map(move |b| (*a, *b))));
        pairs.into_iter().find(|(a, b)| a < b && a % devices == b % devices)
    }

    /// Connects the ranks. All ranks call this, and create the connections in the order of the transfers.
    ///
    /// # Errors
    /// When the machine does not have the library, it fails, or a rank stopped.
    pub fn connect(&mut self) -> Result<(), DriverError> {
        for share in self.steps.iter_mut().flatten().filter(|share| share.collective.ranks.len() > 1) {
            share.communicator = Some(Communicator::of(&self.rank_context, &share.collective, share.id)?);
        }
        Ok(())
    }

    /// Enqueues the shares of an exchange step on a stream, by its number. `memory` is the address of the program's memory.
    ///
    /// # Errors
    /// When the library fails, or a rank stopped.
    ///
    /// # Safety
    /// `memory` is on the device and has the size of the program's memory and [`Exchanges::staging`] together. Nothing else
    /// uses it until the stream completes.
    pub unsafe fn enqueue(
        &self,
        step: usize,
        memory: Address,
        stream: Stream,
        local: &mut dyn FnMut(LocalWork<'_>) -> Result<(), DriverError>,
    ) -> Result<(), DriverError> {
        let mut rest = self.steps.get(step).map_or(&[][..], |shares| shares);
        while let Some(first) = rest.first() {
            let same = |other: &&Share| other.collective.ranks == first.collective.ranks;
            let mut count = rest.iter().take_while(same).count();
            if first.communicator.is_some() {
                // Every rank that passes this point enters the library, so no rank waits there for one that stopped. The
                // same number of shares form a group on all ranks.
                let own = (count as u64).to_le_bytes();
                for other in self.rank_context.gather(first.id, &first.collective.ranks, &own)? {
                    let other = other[..].try_into().map_or(1, u64::from_le_bytes);
                    count = count.min((other as usize).max(1));
                }
            }
            let (now, later) = rest.split_at(count);
            for share in now {
                if let Some((element, count)) = &share.fill {
                    local(LocalWork::Fill {
                        to: share.address(memory, BufferOffset::After(0)),
                        element,
                        count: *count,
                    })?;
                }
                share.moves(&share.collective.pack, memory, local)?;
            }
            if let Some(communicator) = &first.communicator {
                let (api, handle) = (communicator.api, communicator.handle()?);
                // SAFETY: takes nothing.
                check("ncclGroupStart", unsafe { call!(api, ncclGroupStart()) })?;
                // SAFETY: the caller guarantees the memory.
                let made = now.iter().try_for_each(|share| unsafe { share.call(api, memory, handle, stream) });
                // SAFETY: as above; an open group is closed whether or not a call failed.
                made.and(check("ncclGroupEnd", unsafe { call!(api, ncclGroupEnd()) }))?;
            }
            for share in now {
                share.moves(&share.collective.unpack, memory, local)?;
            }
            rest = later;
        }
        Ok(())
    }

    /// Whether a rank stopped.
    pub fn stopped(&self) -> bool {
        self.rank_context.transport.stopped()
    }

    /// Whether the library failed during the run.
    ///
    /// # Errors
    /// The library's error.
    pub fn failed(&self) -> Result<(), DriverError> {
        self.communicators().try_for_each(|c| c.failed())
    }

    /// Aborts the operations that devices wait for and disconnects the ranks.
    pub fn abort(&self) {
        self.communicators().for_each(|c| c.abort());
    }

    fn communicators(&self) -> impl Iterator<Item = &Arc<Communicator>> {
        self.steps.iter().flatten().filter_map(|share| share.communicator.as_ref())
    }
}

impl Share {
    fn of(exchange: &Exchange, rank_context: &RankContext, staging: &mut u64) -> Result<Share, DriverError> {
        let (rendezvous, dtype) = (&exchange.rendezvous, exchange.rendezvous.dtype());
        let wrong = |words: String| DriverError::Call { call: "NCCL", words };
        exchange.check(rank_context).map_err(wrong)?;
        let collective = Collective::of(&rendezvous.transfer, &rank_context.mesh, rank_context.rank).map_err(wrong)?;
        let element = u64::from(dtype.bits() / 8);
        // Data that is only moved has the type of bytes.
        let as_bytes = (ncclUint8, element as usize);
        let dtype = match collective.combines {
            Some(_) => (number(dtype).ok_or_else(|| wrong(format!("it cannot reduce {dtype}")))?, 1),
            None => as_bytes,
        };
        let fill = match collective.fills.map(|kind| identity_element(rendezvous.dtype(), kind)) {
            Some(None) => return Err(wrong(format!("{} has no partial values", rendezvous.dtype()))),
            value => value.flatten().map(|value| {
                let group = rendezvous.transfer.group(&rank_context.mesh, rank_context.rank);
                (value, rendezvous.transfer.elements(&group, group.me, true))
            }),
        };
        let own = *staging;
        *staging += (collective.staging as u64 * element).next_multiple_of(ALIGN);
        let (from, to) = (exchange.from.0, exchange.to.0);
        let (id, communicator) = (rendezvous.transfer.id, None);
        Ok(Share { id, collective, element, dtype, fill, from, to, staging: own, communicator })
    }

    fn address(&self, memory: Address, spot: BufferOffset) -> Address {
        let (base, at) = match spot {
            BufferOffset::Before(at) => (self.from, at),
            BufferOffset::After(at) => (self.to, at),
            BufferOffset::Staging(at) => (self.staging, at),
        };
        memory + base + at as u64 * self.element
    }

    /// Copies as `moves` say: the innermost dimension as rows, the outer ones in a loop.
    fn moves(
        &self,
        moves: &[StridedCopy],
        memory: Address,
        local: &mut dyn FnMut(LocalWork<'_>) -> Result<(), DriverError>,
    ) -> Result<(), DriverError> {
        let element = self.element as usize;
        for m in moves {
            let (inner, outer) = m.steps.split_last().map_or(((1, 0, 0), &[][..]), |(last, rest)| (*last, rest));
            let times: usize = outer.iter().map(|step| step.0).product();
            for number in 0..times {
                let (mut rest, mut from, mut to) = (number, 0, 0);
                for (n, there, here) in outer.iter().rev() {
                    (from, to, rest) = (from + rest % n * there, to + rest % n * here, rest / n);
                }
                local(LocalWork::Copy(Rows {
                    from: self.address(memory, m.from) + (from * element) as u64,
                    to: self.address(memory, m.to) + (to * element) as u64,
                    bytes: m.len * element,
                    count: inner.0,
                    pitch: (inner.1 * element, inner.2 * element),
                }))?;
            }
        }
        Ok(())
    }

    /// Issues the calls.
    ///
    /// # Safety
    /// As [`Exchanges::put`].
    unsafe fn call(&self, api: &Api, memory: Address, on: sys::ncclComm_t, stream: Stream) -> Result<(), DriverError> {
        let at = |spot| self.address(memory, spot) as *const c_void;
        let into = |spot| self.address(memory, spot) as *mut c_void;
        let stream = stream.cast();
        let (dtype, times) = self.dtype;
        let how = self.collective.combines.map_or(ncclSum, operation);
        for call in &self.collective.calls {
            // SAFETY: offsets and counts are those of a share that fits its memory (`Exchange::check`); the caller
            // guarantees the memory, and the communicator and the stream are alive.
            unsafe {
                match *call {
                    CollectiveCall::AllReduce { from, to, count } => {
                        let status =
                            call!(api, ncclAllReduce(at(from), into(to), count * times, dtype, how, on, stream));
                        check("ncclAllReduce", status)?;
                    }
                    CollectiveCall::ReduceScatter { from, to, count } => {
                        let status =
                            call!(api, ncclReduceScatter(at(from), into(to), count * times, dtype, how, on, stream));
                        check("ncclReduceScatter", status)?;
                    }
                    CollectiveCall::Reduce { from, to, count, root } => {
                        let (from, to, root) = (at(from), into(to), root as c_int);
                        check(
                            "ncclReduce",
                            call!(api, ncclReduce(from, to, count * times, dtype, how, root, on, stream)),
                        )?;
                    }
                    CollectiveCall::AllGather { from, to, count } => {
                        check(
                            "ncclAllGather",
                            call!(api, ncclAllGather(at(from), into(to), count * times, dtype, on, stream)),
                        )?;
                    }
                    CollectiveCall::Send { from, count, peer } => {
                        check(
                            "ncclSend",
                            call!(api, ncclSend(at(from), count * times, dtype, peer as c_int, on, stream)),
                        )?;
                    }
                    CollectiveCall::Receive { to, count, peer } => {
                        check(
                            "ncclRecv",
                            call!(api, ncclRecv(into(to), count * times, dtype, peer as c_int, on, stream)),
                        )?;
                    }
                }
            }
        }
        Ok(())
    }
}
