//! cuBLASLt, loaded when it is needed.
//!
//! The library counts matrices by columns. A matrix whose rows lie one after another is its transpose to it, so a product of
//! rows is asked for as that of the transposes, the other way round: `result^T = right^T left^T`.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::OnceLock;

use of_codegen::library::cublaslt::{Matrix, Product};
use of_codegen::library::epilogue::Activation;
use of_codegen::library::{Floats, Library};
use of_ir::DType;

use super::{Address, Handle, api, library};
use crate::driver::DriverError;
use crate::program::WORKSPACE;

/// Names of the library, the newest first.
const NAMES: &[&str] = &["libcublasLt.so.13", "libcublasLt.so.12"];

api! {
    create = "cublasLtCreate" (*mut Handle);
    destroy = "cublasLtDestroy" (Handle);
    operation = "cublasLtMatmulDescCreate" (*mut Handle, c_int, c_int);
    destroy_operation = "cublasLtMatmulDescDestroy" (Handle);
    set_operation = "cublasLtMatmulDescSetAttribute" (Handle, c_int, *const c_void, usize);
    layout = "cublasLtMatrixLayoutCreate" (*mut Handle, c_int, u64, u64, i64);
    destroy_layout = "cublasLtMatrixLayoutDestroy" (Handle);
    set_layout = "cublasLtMatrixLayoutSetAttribute" (Handle, c_int, *const c_void, usize);
    preference = "cublasLtMatmulPreferenceCreate" (*mut Handle);
    destroy_preference = "cublasLtMatmulPreferenceDestroy" (Handle);
    set_preference = "cublasLtMatmulPreferenceSetAttribute" (Handle, c_int, *const c_void, usize);
    heuristic = "cublasLtMatmulAlgoGetHeuristic" (
        Handle, Handle, Handle, Handle, Handle, Handle, Handle, c_int, *mut Found, *mut c_int
    );
    matmul = "cublasLtMatmul" (
        Handle, Handle, *const f32, Address, Handle, Address, Handle, *const f32, Address, Handle, Address, Handle,
        *const Algorithm, Address, usize, Handle
    );
}

/// `cublasLtMatmulAlgo_t`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Algorithm([u64; 8]);

/// `cublasLtMatmulHeuristicResult_t`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Found {
    algorithm: Algorithm,
    workspace: usize,
    state: c_int,
    waves: f32,
    reserved: [c_int; 4],
}

// Numbers of the library's header.
const SUCCESS: c_int = 0;
const R_32F: c_int = 0;
const R_16F: c_int = 2;
const R_16BF: c_int = 14;
const COMPUTE_32F: c_int = 68;
const COMPUTE_32F_FAST_16F: c_int = 74;
const COMPUTE_32F_FAST_16BF: c_int = 75;
const COMPUTE_32F_FAST_TF32: c_int = 77;
const OPERATION_TRANSA: c_int = 3;
const OPERATION_TRANSB: c_int = 4;
const OPERATION_EPILOGUE: c_int = 7;
const OPERATION_BIAS_POINTER: c_int = 8;
const LAYOUT_BATCH_COUNT: c_int = 5;
const LAYOUT_STRIDED_BATCH_OFFSET: c_int = 6;
const PREFERENCE_MAX_WORKSPACE_BYTES: c_int = 1;
const PREFERENCE_MIN_ALIGNMENT_BYTES: [c_int; 4] = [5, 6, 7, 8];
/// What the library takes the alignment of a matrix to be, at most.
const MOST_ALIGNED: Address = 256;

impl Api {
    fn get() -> Result<&'static Api, DriverError> {
        static API: OnceLock<Result<Api, String>> = OnceLock::new();
        let load = || Api::bind(library(Library::CublasLt.variable(), NAMES)?).map_err(|e| e.to_string());
        let missing = |why: &String| DriverError::NoLibrary { library: Library::CublasLt, why: why.clone() };
        API.get_or_init(load).as_ref().map_err(missing)
    }
}

fn check(call: &'static str, status: c_int) -> Result<(), DriverError> {
    let words = match status {
        SUCCESS => return Ok(()),
        1 => "the library is not initialised",
        3 => "no memory for it",
        7 => "it takes no such value",
        8 => "this GPU does not have it",
        13 => "the GPU failed",
        15 => "the library does not have it",
        _ => "the library failed",
    };
    Err(DriverError::Call { call, words: format!("{words} ({status})") })
}

/// The library with what it may write to while it multiplies.
pub struct Multiplier {
    api: &'static Api,
    handle: Handle,
    workspace: Address,
}

// SAFETY: the library's handle may be used by any thread, one at a time.
unsafe impl Send for Multiplier {}

impl Multiplier {
    /// The library, for the calling thread's context; [`WORKSPACE`] bytes from `workspace` on are its own.
    ///
    /// # Errors
    /// When the machine does not have it, or it does not start.
    pub fn open(workspace: Address) -> Result<Multiplier, DriverError> {
        let api = Api::get()?;
        let mut handle = null_mut();
        // SAFETY: the pointer is that of a local variable.
        check("cublasLtCreate", unsafe { (api.create)(&mut handle) })?;
        Ok(Multiplier { api, handle, workspace })
    }

    /// Puts a product on a stream; `args` are addresses as [`Product`] has them.
    ///
    /// # Errors
    /// When the library does not take it.
    ///
    /// # Safety
    /// What the product spans from each address on, and the workspace, is the device's memory, and that of the result and the
    /// workspace is nobody else's until the stream is through.
    pub unsafe fn multiply(&self, p: &Product, args: &[Address], stream: Handle) -> Result<(), DriverError> {
        let mut args = args.iter().copied();
        let mut next =
            || args.next().ok_or(DriverError::Call { call: "cublasLtMatmul", words: "too few operands".into() });
        let (left, right) = (next()?, next()?);
        let added = p.added.map(|_| next()).transpose()?;
        let bias = p.bias.then(&mut next).transpose()?;
        let result = next()?;
        // What is not added is not read, but must be somewhere.
        let added = added.unwrap_or(result);

        let operation = self.operation(p, bias)?;
        let a = self.layout(p, &p.right, (p.depth, p.columns))?;
        let b = self.layout(p, &p.left, (p.rows, p.depth))?;
        let d = self.layout(p, &p.result, (p.rows, p.columns))?;
        let preference = self.preference([right, left, added, result])?;
        let (mut found, mut count) = (Found::default(), 0);
        let (beta, api) = (p.added.unwrap_or(0.0), self.api);
        // SAFETY: the descriptors are alive, and there is room for the one algorithm that is asked for.
        let status = unsafe {
            (api.heuristic)(self.handle, operation.it, a.it, b.it, d.it, d.it, preference.it, 1, &mut found, &mut count)
        };
        check("cublasLtMatmulAlgoGetHeuristic", status)?;
        if count < 1 || found.state != SUCCESS || found.workspace as u64 > WORKSPACE {
            let words = format!("the library multiplies no {} by {} by {} so", p.rows, p.depth, p.columns);
            return Err(DriverError::Call { call: "cublasLtMatmulAlgoGetHeuristic", words });
        }
        // SAFETY: the caller says so of the addresses; descriptors and factors are copied by the call.
        let status = unsafe {
            (api.matmul)(
                self.handle,
                operation.it,
                &p.scale,
                right,
                a.it,
                left,
                b.it,
                &beta,
                added,
                d.it,
                result,
                d.it,
                &found.algorithm,
                self.workspace,
                WORKSPACE as usize,
                stream,
            )
        };
        check("cublasLtMatmul", status)
    }

    /// What is multiplied how, and what is computed at the end.
    fn operation(&self, p: &Product, bias: Option<Address>) -> Result<Descriptor, DriverError> {
        let compute = match p.floats {
            Floats::AsTheyAre => COMPUTE_32F,
            Floats::Tf32 => COMPUTE_32F_FAST_TF32,
            Floats::Bf16 => COMPUTE_32F_FAST_16BF,
            Floats::F16 => COMPUTE_32F_FAST_16F,
        };
        // Bits of `cublasLtEpilogue_t`.
        let activation: c_int = match p.activation {
            Activation::None => 0,
            Activation::Relu => 2,
            Activation::GeluByTanh => 32,
            other => {
                let words = format!("the library has no {other:?}");
                return Err(DriverError::Call { call: "cublasLtMatmulDescSetAttribute", words });
            }
        };
        let epilogue = (activation | if p.bias { 4 } else { 0 }).max(1);
        let mut it = null_mut();
        // SAFETY: the pointer is that of a local variable.
        check("cublasLtMatmulDescCreate", unsafe { (self.api.operation)(&mut it, compute, R_32F) })?;
        let d = Descriptor { it, destroy: self.api.destroy_operation };
        let set = |what: c_int, value: *const c_void, bytes: usize| {
            // SAFETY: the value has so many bytes, which are copied.
            check("cublasLtMatmulDescSetAttribute", unsafe { (self.api.set_operation)(it, what, value, bytes) })
        };
        for (what, m) in [(OPERATION_TRANSA, &p.right), (OPERATION_TRANSB, &p.left)] {
            let transposed = c_int::from(m.transposed);
            set(what, (&raw const transposed).cast(), size_of::<c_int>())?;
        }
        set(OPERATION_EPILOGUE, (&raw const epilogue).cast(), size_of::<c_int>())?;
        if let Some(bias) = bias {
            set(OPERATION_BIAS_POINTER, (&raw const bias).cast(), size_of::<Address>())?;
        }
        Ok(d)
    }

    /// A matrix of rows and columns, as its transpose.
    fn layout(&self, p: &Product, m: &Matrix, (rows, columns): (u64, u64)) -> Result<Descriptor, DriverError> {
        let element = match p.dtype {
            DType::F16 => R_16F,
            DType::BF16 => R_16BF,
            _ => R_32F,
        };
        let (lines, long) = if m.transposed { (columns, rows) } else { (rows, columns) };
        let mut it = null_mut();
        // SAFETY: the pointer is that of a local variable.
        let status = unsafe { (self.api.layout)(&mut it, element, long, lines, m.line as i64) };
        check("cublasLtMatrixLayoutCreate", status)?;
        let d = Descriptor { it, destroy: self.api.destroy_layout };
        let (count, stride) = (p.batches as c_int, m.batch as i64);
        // SAFETY: the values have so many bytes, which are copied.
        unsafe {
            let set = self.api.set_layout;
            let status = set(it, LAYOUT_BATCH_COUNT, (&raw const count).cast(), size_of::<c_int>());
            check("cublasLtMatrixLayoutSetAttribute", status)?;
            let status = set(it, LAYOUT_STRIDED_BATCH_OFFSET, (&raw const stride).cast(), size_of::<i64>());
            check("cublasLtMatrixLayoutSetAttribute", status)?;
        }
        Ok(d)
    }

    /// What an algorithm may rely on: the workspace, and how these addresses are aligned.
    fn preference(&self, addresses: [Address; 4]) -> Result<Descriptor, DriverError> {
        let mut it = null_mut();
        // SAFETY: the pointer is that of a local variable.
        check("cublasLtMatmulPreferenceCreate", unsafe { (self.api.preference)(&mut it) })?;
        let d = Descriptor { it, destroy: self.api.destroy_preference };
        let set = |what: c_int, value: *const c_void, bytes: usize| {
            // SAFETY: the value has so many bytes, which are copied.
            check("cublasLtMatmulPreferenceSetAttribute", unsafe { (self.api.set_preference)(it, what, value, bytes) })
        };
        let most = WORKSPACE;
        set(PREFERENCE_MAX_WORKSPACE_BYTES, (&raw const most).cast(), size_of::<u64>())?;
        for (what, address) in PREFERENCE_MIN_ALIGNMENT_BYTES.into_iter().zip(addresses) {
            let aligned = (1u32 << address.trailing_zeros().min(31)).min(MOST_ALIGNED as u32);
            set(what, (&raw const aligned).cast(), size_of::<u32>())?;
        }
        Ok(d)
    }
}

impl Drop for Multiplier {
    fn drop(&mut self) {
        // SAFETY: the handle is alive and used for the last time; there is nobody left to tell of an error.
        unsafe { (self.api.destroy)(self.handle) };
    }
}

/// One of the library's descriptors.
struct Descriptor {
    it: Handle,
    destroy: unsafe extern "C" fn(Handle) -> c_int,
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe { (self.destroy)(self.it) };
    }
}
