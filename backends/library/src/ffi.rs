//! The C interface: types shared by both sides, and backends. Its C declarations are in `docs/of_library.h`.
//!
//! Every function returns 0 on success; otherwise it has written an error message. Text and bytes are written to a sink,
//! tensors to memory that the caller allocates, so neither side frees memory of the other.

pub mod ops;

use std::ffi::{CStr, CString, c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use of_codegen::{Backend, Overhead};
use of_ir::OpId;
use of_plan::{BackendExec, ElementType, Program, Task};
use of_runtime::{Executable, LoadContext, Loader, Tensor, Value, ValueMut, ValueRef};

use crate::{VERSION, parse};

/// Borrowed bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Bytes {
    data: *const u8,
    len: usize,
}

/// An output stream: it may be called any number of times, and the parts are concatenated.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Sink {
    context: *mut c_void,
    write: unsafe extern "C" fn(*mut c_void, *const u8, usize),
}

/// A borrowed tensor. Element types are the numbers of the plan's format.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct TensorView {
    dtype: u32,
    rank: u32,
    dims: *const i64,
    data: *const u8,
    len: usize,
}

/// Allocates memory for result `index` of this type, 64-byte aligned; returns null on failure.
type Allocate = unsafe extern "C" fn(*mut c_void, usize, u32, *const i64, u32) -> *mut u8;

/// The allocator of results.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Results {
    context: *mut c_void,
    allocate: Allocate,
    count: usize,
}

/// What a library exports.
#[repr(C)]
pub struct Table {
    /// [`VERSION`].
    version: u32,
    /// Bytes of this struct.
    size: u32,
    /// Name of the backend.
    name: *const c_char,
    /// Constants of up to this many elements are part of the functions that it compiles.
    largest_constant: u64,
    /// Overhead of a call in seconds.
    launch: f64,
    /// Bandwidth to its memory in bytes per second; infinite if it shares the host's memory.
    bandwidth: f64,
    /// Whether it supports the single op of a function, or why not.
    claims: unsafe extern "C" fn(Bytes, Sink) -> i32,
    /// Compiles a function of claimed ops to an artifact.
    compile: unsafe extern "C" fn(Bytes, Sink) -> i32,
    /// Creates an executable of an artifact.
    load: unsafe extern "C" fn(Bytes, *mut *mut c_void, Sink) -> i32,
    /// Runs it, one call at a time.
    run: unsafe extern "C" fn(*mut c_void, *const TensorView, usize, Results, Sink) -> i32,
    /// Frees it.
    unload: unsafe extern "C" fn(*mut c_void),
}

/// Why a library cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LibraryError {
    /// It cannot be loaded.
    #[error("'{path}' cannot be loaded: {why}")]
    Load {
        /// The file.
        path: String,
        /// The loader's message.
        why: String,
    },
    /// Its entry point returned no usable table.
    #[error("'{path}' is not a library for this program: {why}")]
    Table {
        /// The file.
        path: String,
        /// The problem.
        why: String,
    },
}

// ---- the loading side ----

unsafe extern "C" fn append(context: *mut c_void, data: *const u8, len: usize) {
    if len > 0 {
        // SAFETY: the context is the vector of `with_sink`, the data lives for this call.
        unsafe { (*context.cast::<Vec<u8>>()).extend_from_slice(std::slice::from_raw_parts(data, len)) };
    }
}

/// The output of `f`, as an error if `f` did not return 0.
fn with_sink(f: impl FnOnce(Sink) -> i32) -> Result<Vec<u8>, String> {
    let mut out: Vec<u8> = Vec::new();
    let status = f(Sink { context: (&raw mut out).cast(), write: append });
    if status == 0 { Ok(out) } else { Err(String::from_utf8_lossy(&out).into_owned()) }
}

fn bytes(data: &[u8]) -> Bytes {
    Bytes { data: data.as_ptr(), len: data.len() }
}

/// A view for a call.
pub fn tensor(dtype: ElementType, dims: &[i64], data: &[u8]) -> TensorView {
    TensorView {
        dtype: dtype as u32,
        rank: dims.len() as u32,
        dims: dims.as_ptr(),
        data: data.as_ptr(),
        len: data.len(),
    }
}

/// The loader's message, with its causes.
fn why(e: &libloading::Error) -> String {
    std::error::Error::source(e).map_or_else(|| e.to_string(), |cause| format!("{e}: {cause}"))
}

/// A loaded library: its backend, its ops, or both.
pub struct Opened {
    /// The backend.
    pub backend: Option<Loaded>,
    /// The ops.
    pub ops: Vec<ops::Declared>,
}

/// Loads the library at `path`.
pub fn open(path: &Path) -> Result<Opened, LibraryError> {
    let shown = path.display().to_string();
    let wrong = |why: String| LibraryError::Table { path: shown.clone(), why };
    // SAFETY: loading a library runs its initialisers; the user chose the library.
    let library = unsafe { libloading::Library::new(path) }
        .map_err(|e| LibraryError::Load { path: shown.clone(), why: why(&e) })?;
    // Executables may outlive every handle: the library stays.
    let library: &'static libloading::Library = Box::leak(Box::new(library));
    // SAFETY: the interface says that the functions have these types.
    let (backend, ops) = unsafe {
        let backend = library.get::<unsafe extern "C" fn() -> *const Table>(b"of_backend\0").ok().map(|get| get());
        (backend, library.get::<unsafe extern "C" fn() -> *const ops::OpTable>(b"of_ops\0").ok().map(|get| get()))
    };
    if backend.is_none() && ops.is_none() {
        return Err(wrong("it exports neither of_backend nor of_ops".into()));
    }
    let backend = backend.map(|table| Loaded::of(table, &shown)).transpose()?;
    // SAFETY: the function returns a table, which lives as long as the library.
    let ops = ops.map(|table| unsafe { ops::read(table) }).transpose().map_err(wrong)?;
    Ok(Opened { backend, ops: ops.unwrap_or_default() })
}

/// A loaded library and its table.
pub struct Loaded {
    table: &'static Table,
    path: String,
}

// SAFETY: the table is constant, and the interface says that its functions may be called from any thread.
unsafe impl Send for Loaded {}
// SAFETY: as above.
unsafe impl Sync for Loaded {}

impl Loaded {
    fn of(table: *const Table, path: &str) -> Result<Loaded, LibraryError> {
        let wrong = |why: String| LibraryError::Table { path: path.into(), why };
        if table.is_null() {
            return Err(wrong("of_backend returns null".into()));
        }
        // SAFETY: version and size come first in every version of the table.
        let (version, size) = unsafe { ((*table).version, (*table).size) };
        if version != VERSION || (size as usize) < size_of::<Table>() {
            return Err(wrong(format!(
                "it implements version {version} of the interface, this program version {VERSION}"
            )));
        }
        // SAFETY: it has the size of the struct, and lives as long as the library.
        Ok(Loaded { table: unsafe { &*table }, path: path.into() })
    }

    pub fn name(&self) -> Result<String, LibraryError> {
        let wrong = |why: &str| LibraryError::Table { path: self.path.clone(), why: why.into() };
        if self.table.name.is_null() {
            return Err(wrong("it has no name"));
        }
        // SAFETY: the name ends with a zero, as the interface says.
        let name = unsafe { CStr::from_ptr(self.table.name) }.to_str().map_err(|_| wrong("its name is not UTF-8"))?;
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        if name.is_empty() || !name.chars().all(plain) {
            Err(wrong("its name has characters other than letters, digits, '-' and '_'"))
        } else {
            Ok(name.into())
        }
    }

    pub fn overhead(&self) -> Overhead {
        Overhead { launch: self.table.launch, bandwidth: self.table.bandwidth }
    }

    pub fn largest_constant(&self) -> usize {
        usize::try_from(self.table.largest_constant).unwrap_or(usize::MAX)
    }

    pub fn claims(&self, text: &str) -> Result<(), String> {
        // SAFETY: text and sink live for the call.
        with_sink(|sink| unsafe { (self.table.claims)(bytes(text.as_bytes()), sink) }).map(drop)
    }

    pub fn compile(&self, text: &str) -> Result<Vec<u8>, String> {
        // SAFETY: as above.
        with_sink(|sink| unsafe { (self.table.compile)(bytes(text.as_bytes()), sink) })
    }

    pub fn load(&self, artifact: &[u8]) -> Result<Artifact, String> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: artifact, place and sink live for the call.
        with_sink(|sink| unsafe { (self.table.load)(bytes(artifact), &mut raw, sink) })?;
        Ok(Artifact { table: self.table, raw })
    }
}

/// An executable of a library.
pub struct Artifact {
    table: &'static Table,
    raw: *mut c_void,
}

// SAFETY: the interface says that an executable may move between threads; it is called by one at a time.
unsafe impl Send for Artifact {}

impl Artifact {
    /// Runs it; the results are stored in `given`.
    pub fn run(&mut self, inputs: &[TensorView], given: &mut [Option<Tensor>]) -> Result<(), String> {
        let count = given.len();
        let mut given = given;
        let results = Results { context: (&raw mut given).cast(), allocate, count };
        // SAFETY: the executable comes from the same table; everything else lives for the call.
        with_sink(|sink| unsafe { (self.table.run)(self.raw, inputs.as_ptr(), inputs.len(), results, sink) }).map(drop)
    }
}

impl Drop for Artifact {
    fn drop(&mut self) {
        // SAFETY: it was made by `load` of the same table and is used no more.
        unsafe { (self.table.unload)(self.raw) };
    }
}

unsafe extern "C" fn allocate(context: *mut c_void, index: usize, dtype: u32, dims: *const i64, rank: u32) -> *mut u8 {
    // SAFETY: the context is the slice of `Artifact::run`; dims are `rank` numbers, as the interface says.
    let (given, dims) = unsafe {
        let given = &mut **context.cast::<&mut [Option<Tensor>]>();
        (given, if rank == 0 { &[][..] } else { std::slice::from_raw_parts(dims, rank as usize) })
    };
    let place = given.get_mut(index);
    let dtype = i32::try_from(dtype).ok().and_then(|d| ElementType::try_from(d).ok());
    let tensor = dtype.and_then(|d| Tensor::zeros(d, dims).ok());
    match (place, tensor) {
        (Some(place), Some(tensor)) => {
            place.insert(tensor).bytes_mut().map_or(std::ptr::null_mut(), <[u8]>::as_mut_ptr)
        }
        _ => std::ptr::null_mut(),
    }
}

// ---- the loaded side ----

/// Exports a backend from a `cdylib`: a type that implements `Backend`, `Loader` and `Default`.
///
/// ```ignore
/// of_library::export!(Toy);
/// ```
#[macro_export]
macro_rules! export {
    ($backend:ty) => {
        /// The backend of this library.
        #[unsafe(no_mangle)]
        pub extern "C" fn of_backend() -> *const $crate::Table {
            $crate::table::<$backend>()
        }
    };
}

/// The table of a backend: the return value of [`crate::export!`]'s function.
pub fn table<T: Backend + Loader + Default>() -> *const Table {
    let backend = T::default();
    let overhead = backend.overhead();
    let name = CString::new(Backend::name(&backend)).unwrap_or_default();
    // Made once for each library, which stays loaded.
    Box::leak(Box::new(Table {
        version: VERSION,
        size: size_of::<Table>() as u32,
        name: Box::leak(name.into_boxed_c_str()).as_ptr(),
        largest_constant: backend.largest_constant(false) as u64,
        launch: overhead.launch,
        bandwidth: overhead.bandwidth,
        claims: claims::<T>,
        compile: compile::<T>,
        load: load::<T>,
        run,
        unload,
    }))
}

/// Runs `f`, writes its output, and returns a status. Panics do not cross the interface.
fn guarded(sink: Sink, f: impl FnOnce() -> Result<Vec<u8>, String>) -> i32 {
    let result = catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|_| Err("the library panicked".into()));
    let (status, text) = match result {
        Ok(out) => (0, out),
        Err(why) => (1, why.into_bytes()),
    };
    // SAFETY: the sink is valid for the call that it was given to.
    unsafe { (sink.write)(sink.context, text.as_ptr(), text.len()) };
    status
}

/// The bytes that a caller passed.
///
/// # Safety
/// They must be readable for as long as the result is used.
unsafe fn slice<'a>(b: Bytes) -> &'a [u8] {
    // SAFETY: guaranteed by the caller.
    if b.len == 0 { &[] } else { unsafe { std::slice::from_raw_parts(b.data, b.len) } }
}

fn function(data: &[u8]) -> Result<of_ir::Func, String> {
    parse(std::str::from_utf8(data).map_err(|_| "the text is not UTF-8")?)
}

unsafe extern "C" fn claims<T: Backend + Default>(text: Bytes, sink: Sink) -> i32 {
    // SAFETY: the caller's text lives for the call.
    let text = unsafe { slice(text) };
    guarded(sink, || {
        let func = function(text)?;
        let g = &func.graph;
        // Constants stand before the op, its terminator after it.
        let op: Option<OpId> = g.region_ops(g.entry()).rfind(|op| !g.op(*op).def.traits().terminator);
        T::default().claims(g, op.ok_or("there is no op")?).map(|()| Vec::new())
    })
}

unsafe extern "C" fn compile<T: Backend + Default>(text: Bytes, sink: Sink) -> i32 {
    // SAFETY: the caller's text lives for the call.
    let text = unsafe { slice(text) };
    guarded(sink, || T::default().compile(&function(text)?).map_err(|d| d.to_string()))
}

unsafe extern "C" fn load<T: Loader + Default>(artifact: Bytes, out: *mut *mut c_void, sink: Sink) -> i32 {
    // SAFETY: the caller's bytes live for the call.
    let artifact = unsafe { slice(artifact) };
    guarded(sink, || {
        // The interface has no programs: the loader of a library receives only its artifact.
        let (program, task, exec) = (Program::default(), Task::default(), BackendExec::default());
        let context = LoadContext {
            program: &program,
            task: &task,
            exec: &exec,
            threads: 1,
            device: 0,
            rank_context: None,
            handles: &[],
            output_handles: &[],
        };
        let executable = T::default().load(artifact, context).map_err(|e| e.to_string())?;
        // SAFETY: the caller gives a place for one pointer.
        unsafe { *out = Box::into_raw(Box::new(executable)).cast() };
        Ok(Vec::new())
    })
}

unsafe extern "C" fn run(
    executable: *mut c_void,
    inputs: *const TensorView,
    count: usize,
    results: Results,
    sink: Sink,
) -> i32 {
    guarded(sink, || {
        // SAFETY: the executable is one of `load`, which is called by one thread at a time; the inputs are `count`.
        let (executable, views) = unsafe {
            let views = if count == 0 { &[][..] } else { std::slice::from_raw_parts(inputs, count) };
            (&mut **executable.cast::<Box<dyn Executable>>(), views)
        };
        let inputs = views.iter().map(|v| owned(*v)).collect::<Result<Vec<_>, _>>()?;
        let refs: Vec<ValueRef<'_>> = inputs.iter().map(ValueRef::Object).collect();
        let mut values: Vec<Option<Value>> = (0..results.count).map(|_| None).collect();
        let mut outputs: Vec<ValueMut<'_>> = values.iter_mut().map(ValueMut::Object).collect();
        executable.run(&refs, &mut outputs).map_err(|e| e.to_string())?;
        drop(outputs);
        for (i, value) in values.iter().enumerate() {
            let t = value.as_ref().and_then(Value::as_tensor).ok_or_else(|| format!("result {i} is not a tensor"))?;
            let from = t.bytes().ok_or_else(|| format!("result {i} is a string tensor"))?;
            // SAFETY: the caller gives memory for a tensor of this type, or null.
            unsafe {
                let to =
                    (results.allocate)(results.context, i, t.dtype() as u32, t.dims().as_ptr(), t.dims().len() as u32);
                if to.is_null() {
                    return Err(format!("there is no place for result {i}"));
                }
                std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len());
            }
        }
        Ok(Vec::new())
    })
}

fn owned(v: TensorView) -> Result<Value, String> {
    // SAFETY: the caller's tensor lives for the call.
    let (dims, data) = unsafe {
        let dims = if v.rank == 0 { &[][..] } else { std::slice::from_raw_parts(v.dims, v.rank as usize) };
        (dims, slice(Bytes { data: v.data, len: v.len }))
    };
    let dtype = i32::try_from(v.dtype).ok().and_then(|d| ElementType::try_from(d).ok());
    let dtype = dtype.ok_or_else(|| format!("element type {} is not known", v.dtype))?;
    Tensor::from_bytes(dtype, dims, data).map(Value::Tensor).map_err(|e| e.to_string())
}

unsafe extern "C" fn unload(executable: *mut c_void) {
    if !executable.is_null() {
        // SAFETY: it was made by `load` and is used no more.
        drop(unsafe { Box::from_raw(executable.cast::<Box<dyn Executable>>()) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn struct_layouts_match_the_header() {
        // docs/of_library.h has the same numbers.
        assert_eq!((size_of::<Table>(), size_of::<TensorView>(), size_of::<Results>()), (80, 32, 24));
    }
}
