//! The functions of an MPI library. Everything unsafe of MPI stands here.
//!
//! MPI fixed no binary interface before version 5, and there are two: Open MPI's handles are addresses of its own objects, those
//! of MPICH and the libraries compatible with it (Intel MPI, MVAPICH, Cray MPICH) are numbers of an `int`. [`Api`] is generic over
//! the handle. Sources: `mpi.h` of Open MPI 4.1 and of MPICH 4.0; the MPICH ABI compatibility initiative.

use std::ffi::{c_char, c_int, c_void};
use std::fmt;
use std::path::Path;
use std::ptr::{null, null_mut};

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW, Symbol};

use crate::environment::Launcher;

/// Overrides the library file.
const VARIABLE: &str = "OF_MPI";

/// The files of both interfaces, in the order in which they are looked for.
const OPEN_MPI: &[&str] = &["libmpi.so.40", "libmpi.so"];
const MPICH: &[&str] = &["libmpi.so.12", "libmpich.so.12", "libmpi.so"];

/// `MPI_THREAD_SERIALIZED` of both: one thread at a time makes calls.
const SERIALIZED: c_int = 2;

/// `MPI_MAX_ERROR_STRING` and `MPI_MAX_LIBRARY_VERSION_STRING` are less.
const TEXT: usize = 16 << 10;

/// The tag of all messages: the communicator is this program's own.
const TAG: c_int = 0;

/// A request that is under way, as either interface has it.
#[derive(Debug)]
pub struct Request(u64);

/// What is called of a library.
pub trait Calls: Send + Sync {
    /// Initialises the library. Returns whether that was not done before.
    fn init(&self) -> Result<bool, String>;
    /// The rank of this process, and the number of ranks.
    fn place(&self) -> Result<(u32, u32), String>;
    /// What library it is.
    fn version(&self) -> String;
    /// The bytes of all ranks, each of the same length.
    fn gather(&self, own: &[u8]) -> Result<Vec<u8>, String>;
    /// The bytes of the first rank.
    fn broadcast(&self, bytes: &mut [u8]) -> Result<(), String>;
    /// Sends bytes to a rank.
    ///
    /// # Safety
    /// They live and stay the same until the request is over.
    unsafe fn send(&self, bytes: &[u8], to: u32) -> Result<Request, String>;
    /// Receives a message of a rank.
    ///
    /// # Safety
    /// The memory lives, and nothing else reads or writes it, until the request is over.
    unsafe fn receive(&self, to: *mut u8, len: usize, from: u32) -> Result<Request, String>;
    /// The length of the message where the request is over.
    fn test(&self, request: &mut Request) -> Result<Option<usize>, String>;
    /// Ends a request for a message that does not come.
    fn cancel(&self, request: Request) -> Result<(), String>;
    /// Ends the use of the library.
    fn finalize(&self) -> Result<(), String>;
}

/// Opens a library for the ranks of a launcher.
///
/// # Errors
/// When there is none, or it lacks a function.
pub fn open(launcher: Launcher) -> Result<Box<dyn Calls>, String> {
    let given = std::env::var(VARIABLE).ok().filter(|file| !file.is_empty());
    let mut names: Vec<&str> = match (&given, launcher) {
        (Some(file), _) => vec![file],
        (None, Launcher::Hydra) => MPICH.to_vec(),
        (None, Launcher::OpenMpi) => OPEN_MPI.to_vec(),
        (None, _) => OPEN_MPI.iter().chain(MPICH).copied().collect(),
    };
    names.dedup();
    let mut why = Vec::new();
    for name in names {
        // SAFETY: to open the library executes its initialisers, which is what a program that is linked to it does, too. Its
        // plugins look for its symbols among the global ones.
        match unsafe { Library::open(Some(Path::new(name)), RTLD_NOW | RTLD_GLOBAL) } {
            Ok(library) => return bind(library).map_err(|e| format!("'{name}' is no MPI library: {e}")),
            Err(error) => why.push(format!("{error}")),
        }
    }
    Err(format!("there is no MPI library ({}); {VARIABLE} names its file", why.join("; ")))
}

fn bind(library: Library) -> Result<Box<dyn Calls>, libloading::Error> {
    // The library stays for the life of the process: its threads and plugins do.
    let library: &'static Library = Box::leak(Box::new(library));
    // SAFETY: the symbols are objects of Open MPI, of which the address alone is used: it is the handle.
    let object = |name: &[u8]| unsafe { library.get::<*mut c_void>(name) }.map(|symbol| *symbol as usize);
    match object(b"ompi_mpi_comm_world\0") {
        Ok(world) => {
            let (byte, errors_return) = (object(b"ompi_mpi_byte\0")?, object(b"ompi_mpi_errors_return\0")?);
            Ok(Box::new(Api::<usize>::bind(library, world, byte, errors_return, 0)?))
        }
        // `MPI_COMM_WORLD`, `MPI_BYTE`, `MPI_ERRORS_RETURN` and `MPI_STATUS_IGNORE` of MPICH's mpi.h.
        Err(_) => Ok(Box::new(Api::<c_int>::bind(library, 0x4400_0000, 0x4c00_010d, 0x5400_0001, 1)?)),
    }
}

/// A handle: the address of an object, or a number.
trait Handle: Copy + Default + Send + Sync + 'static {
    fn of_word(word: u64) -> Self;
    fn word(self) -> u64;
}

impl Handle for usize {
    fn of_word(word: u64) -> Self {
        word as usize
    }

    fn word(self) -> u64 {
        self as u64
    }
}

impl Handle for c_int {
    fn of_word(word: u64) -> Self {
        word as c_int
    }

    fn word(self) -> u64 {
        u64::from(self as u32)
    }
}

/// Memory for an `MPI_Status`, which has 24 bytes at most.
#[repr(C, align(16))]
struct Status([u64; 8]);

type Init = unsafe extern "C" fn(*mut c_int, *mut c_void, c_int, *mut c_int) -> c_int;
type Asks = unsafe extern "C" fn(*mut c_int) -> c_int;
type Of<H> = unsafe extern "C" fn(H, *mut c_int) -> c_int;
type Text = unsafe extern "C" fn(*mut c_char, *mut c_int) -> c_int;
type ErrorText = unsafe extern "C" fn(c_int, *mut c_char, *mut c_int) -> c_int;
type Sends<H> = unsafe extern "C" fn(*const c_void, c_int, H, c_int, c_int, H, *mut H) -> c_int;
type Receives<H> = unsafe extern "C" fn(*mut c_void, c_int, H, c_int, c_int, H, *mut H) -> c_int;
type Gathers<H> = unsafe extern "C" fn(*const c_void, c_int, H, *mut c_void, c_int, H, H) -> c_int;

/// An open library.
struct Api<H> {
    world: H,
    byte: H,
    errors_return: H,
    /// `MPI_STATUS_IGNORE`.
    ignore: usize,
    /// The communicator of this program, from `init` on.
    own: std::sync::OnceLock<H>,
    init_thread: Symbol<Init>,
    initialized: Symbol<Asks>,
    query_thread: Symbol<Asks>,
    finalize: Symbol<unsafe extern "C" fn() -> c_int>,
    comm_dup: Symbol<unsafe extern "C" fn(H, *mut H) -> c_int>,
    comm_rank: Symbol<Of<H>>,
    comm_size: Symbol<Of<H>>,
    comm_set_errhandler: Symbol<unsafe extern "C" fn(H, H) -> c_int>,
    get_library_version: Symbol<Text>,
    error_string: Symbol<ErrorText>,
    isend: Symbol<Sends<H>>,
    irecv: Symbol<Receives<H>>,
    test: Symbol<unsafe extern "C" fn(*mut H, *mut c_int, *mut Status) -> c_int>,
    wait: Symbol<unsafe extern "C" fn(*mut H, *mut Status) -> c_int>,
    cancel: Symbol<unsafe extern "C" fn(*mut H) -> c_int>,
    get_count: Symbol<unsafe extern "C" fn(*const Status, H, *mut c_int) -> c_int>,
    allgather: Symbol<Gathers<H>>,
    bcast: Symbol<unsafe extern "C" fn(*mut c_void, c_int, H, c_int, H) -> c_int>,
}

impl<H: Handle> Api<H> {
    fn bind(
        library: &'static Library,
        world: H,
        byte: H,
        errors_return: H,
        ignore: usize,
    ) -> Result<Api<H>, libloading::Error> {
        // SAFETY: each field has the signature that mpi.h declares for the function of its name, with handles of this interface.
        unsafe {
            Ok(Api {
                world,
                byte,
                errors_return,
                ignore,
                own: std::sync::OnceLock::new(),
                init_thread: library.get(b"MPI_Init_thread\0")?,
                initialized: library.get(b"MPI_Initialized\0")?,
                query_thread: library.get(b"MPI_Query_thread\0")?,
                finalize: library.get(b"MPI_Finalize\0")?,
                comm_dup: library.get(b"MPI_Comm_dup\0")?,
                comm_rank: library.get(b"MPI_Comm_rank\0")?,
                comm_size: library.get(b"MPI_Comm_size\0")?,
                comm_set_errhandler: library.get(b"MPI_Comm_set_errhandler\0")?,
                get_library_version: library.get(b"MPI_Get_library_version\0")?,
                error_string: library.get(b"MPI_Error_string\0")?,
                isend: library.get(b"MPI_Isend\0")?,
                irecv: library.get(b"MPI_Irecv\0")?,
                test: library.get(b"MPI_Test\0")?,
                wait: library.get(b"MPI_Wait\0")?,
                cancel: library.get(b"MPI_Cancel\0")?,
                get_count: library.get(b"MPI_Get_count\0")?,
                allgather: library.get(b"MPI_Allgather\0")?,
                bcast: library.get(b"MPI_Bcast\0")?,
            })
        }
    }

    fn check(&self, what: &str, status: c_int) -> Result<(), String> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: the buffer has room for the longest text.
        let text = text_of(|to, len| unsafe { (self.error_string)(status, to, len) });
        Err(format!("{what} fails: {}", text.unwrap_or_else(|| format!("error {status}"))))
    }

    fn own(&self) -> Result<H, String> {
        self.own.get().copied().ok_or_else(|| "MPI is not initialised".to_owned())
    }

    fn number(&self, what: &str, of: &Symbol<Of<H>>, communicator: H) -> Result<u32, String> {
        let mut number = -1;
        // SAFETY: the function writes one number.
        self.check(what, unsafe { of(communicator, &mut number) })?;
        u32::try_from(number).map_err(|_| format!("{what} gives {number}"))
    }
}

fn text_of(call: impl FnOnce(*mut c_char, *mut c_int) -> c_int) -> Option<String> {
    let mut bytes = vec![0u8; TEXT];
    let mut len = 0;
    let status = call(bytes.as_mut_ptr().cast(), &mut len);
    let text = bytes.get(..usize::try_from(len).ok()?)?;
    (status == 0).then(|| String::from_utf8_lossy(text).trim_end_matches('\0').trim().to_owned())
}

fn length(bytes: usize) -> Result<c_int, String> {
    c_int::try_from(bytes).map_err(|_| format!("a message of {bytes} bytes is too long"))
}

impl<H: Handle> Calls for Api<H> {
    fn init(&self) -> Result<bool, String> {
        let mut done = 0;
        // SAFETY: the function writes one number, and may be called at any time.
        self.check("MPI_Initialized", unsafe { (self.initialized)(&mut done) })?;
        let mut level = 0;
        if done == 0 {
            // SAFETY: null stands for no arguments of a command line; the function writes one number.
            let status = unsafe { (self.init_thread)(null_mut(), null_mut(), SERIALIZED, &mut level) };
            self.check("MPI_Init_thread", status)?;
        } else {
            // SAFETY: the function writes one number; the library is initialised.
            self.check("MPI_Query_thread", unsafe { (self.query_thread)(&mut level) })?;
        }
        if level < SERIALIZED {
            return Err(format!(
                "the library allows threads of level {level}, and {SERIALIZED} (serialized) is needed"
            ));
        }
        let mut own = H::default();
        // SAFETY: the library is initialised; the function writes one handle.
        self.check("MPI_Comm_dup", unsafe { (self.comm_dup)(self.world, &mut own) })?;
        // SAFETY: both handles are of this library.
        let status = unsafe { (self.comm_set_errhandler)(own, self.errors_return) };
        self.check("MPI_Comm_set_errhandler", status)?;
        self.own.get_or_init(|| own);
        Ok(done == 0)
    }

    fn place(&self) -> Result<(u32, u32), String> {
        let own = self.own()?;
        Ok((self.number("MPI_Comm_rank", &self.comm_rank, own)?, self.number("MPI_Comm_size", &self.comm_size, own)?))
    }

    fn version(&self) -> String {
        // SAFETY: the buffer has room for the longest text.
        let text = text_of(|to, len| unsafe { (self.get_library_version)(to, len) }).unwrap_or_default();
        text.split(',').next().and_then(|text| text.lines().next()).unwrap_or_default().to_owned()
    }

    fn gather(&self, own: &[u8]) -> Result<Vec<u8>, String> {
        let (ranks, len) = (self.place()?.1 as usize, length(own.len())?);
        let mut all = vec![0u8; own.len() * ranks];
        let (from, to) = (own.as_ptr().cast(), all.as_mut_ptr().cast());
        // SAFETY: each rank sends and receives `len` bytes for each rank, for which there is memory.
        let status = unsafe { (self.allgather)(from, len, self.byte, to, len, self.byte, self.own()?) };
        self.check("MPI_Allgather", status)?;
        Ok(all)
    }

    fn broadcast(&self, bytes: &mut [u8]) -> Result<(), String> {
        let len = length(bytes.len())?;
        // SAFETY: the function writes `len` bytes.
        let status = unsafe { (self.bcast)(bytes.as_mut_ptr().cast(), len, self.byte, 0, self.own()?) };
        self.check("MPI_Bcast", status)
    }

    unsafe fn send(&self, bytes: &[u8], to: u32) -> Result<Request, String> {
        let (len, to, own) = (length(bytes.len())?, to as c_int, self.own()?);
        let mut request = H::default();
        // SAFETY: the caller keeps the bytes until the request is over.
        let status = unsafe { (self.isend)(bytes.as_ptr().cast(), len, self.byte, to, TAG, own, &mut request) };
        self.check("MPI_Isend", status)?;
        Ok(Request(request.word()))
    }

    unsafe fn receive(&self, to: *mut u8, len: usize, from: u32) -> Result<Request, String> {
        let (len, from, own) = (length(len)?, from as c_int, self.own()?);
        let mut request = H::default();
        // SAFETY: the caller keeps the memory until the request is over.
        let status = unsafe { (self.irecv)(to.cast(), len, self.byte, from, TAG, own, &mut request) };
        self.check("MPI_Irecv", status)?;
        Ok(Request(request.word()))
    }

    fn test(&self, request: &mut Request) -> Result<Option<usize>, String> {
        let (mut handle, mut over, mut status) = (H::of_word(request.0), 0, Status([0; 8]));
        // SAFETY: the request is one of this library that is not over; a status has room.
        let code = unsafe { (self.test)(&mut handle, &mut over, &mut status) };
        request.0 = handle.word();
        self.check("MPI_Test", code)?;
        if over == 0 {
            return Ok(None);
        }
        let mut count = 0;
        // SAFETY: the status is that of a message.
        self.check("MPI_Get_count", unsafe { (self.get_count)(&status, self.byte, &mut count) })?;
        // That of a message that was sent is not defined.
        Ok(Some(usize::try_from(count).unwrap_or(0)))
    }

    fn cancel(&self, request: Request) -> Result<(), String> {
        let mut handle = H::of_word(request.0);
        // SAFETY: the request is one of this library that is not over.
        self.check("MPI_Cancel", unsafe { (self.cancel)(&mut handle) })?;
        // SAFETY: the second argument is `MPI_STATUS_IGNORE`.
        self.check("MPI_Wait", unsafe {
            (self.wait)(&mut handle, null::<u8>().wrapping_add(self.ignore).cast_mut().cast())
        })
    }

    fn finalize(&self) -> Result<(), String> {
        // SAFETY: all requests are over, and no call follows.
        self.check("MPI_Finalize", unsafe { (self.finalize)() })
    }
}

unsafe extern "C" {
    /// Of the C library.
    fn atexit(function: extern "C" fn()) -> c_int;
}

/// Calls a function when the process ends in order.
pub fn at_exit(function: extern "C" fn()) {
    // SAFETY: the function lives as long as the process.
    if unsafe { atexit(function) } != 0 {
        tracing::warn!("the end of MPI cannot be prepared");
    }
}

impl<H> fmt::Debug for Api<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Api").finish_non_exhaustive()
    }
}
