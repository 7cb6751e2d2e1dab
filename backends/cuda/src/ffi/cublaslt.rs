//! cuBLASLt, loaded when it is needed.
//!
//! The library expects column-major matrices. It sees a row-major matrix as its transpose, so the call computes the
//! transposed product: `result^T = right^T left^T`.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::sync::OnceLock;

use of_codegen::vendor_libraries::cublaslt::{Matrix, Product};
use of_codegen::vendor_libraries::epilogue::Activation;
use of_codegen::vendor_libraries::{FloatPrecision, VendorLibrary};
use of_cuda_sys::cublaslt as sys;
use of_cuda_sys::{call, functions, open_first};
use of_ir::DType;
use sys::cublasComputeType_t::*;
use sys::cublasLtEpilogue_t::*;
use sys::cublasLtMatmulDescAttributes_t::*;
use sys::cublasLtMatmulPreferenceAttributes_t::*;
use sys::cublasLtMatrixLayoutAttribute_t::*;
use sys::cudaDataType_t::*;

use super::{Address, Handle, Stream};
use crate::driver::DriverError;
use crate::program::WORKSPACE;

/// Names of the library, the newest first.
const NAMES: &[&str] = &["libcublasLt.so.13", "libcublasLt.so.12"];

functions! {
    /// The functions of cuBLASLt that are used.
    struct Api {
        cublasLtCreate, cublasLtDestroy, cublasLtMatmulDescCreate, cublasLtMatmulDescDestroy,
        cublasLtMatmulDescSetAttribute, cublasLtMatrixLayoutCreate, cublasLtMatrixLayoutDestroy,
        cublasLtMatrixLayoutSetAttribute, cublasLtMatmulPreferenceCreate, cublasLtMatmulPreferenceDestroy,
        cublasLtMatmulPreferenceSetAttribute, cublasLtMatmulAlgoGetHeuristic, cublasLtMatmul,
    }
}

/// The largest alignment of a matrix that the library considers.
const MAX_ALIGNMENT: Address = 256;

impl Api {
    fn get() -> Result<&'static Api, DriverError> {
        static API: OnceLock<Result<Api, String>> = OnceLock::new();
        let load = || Api::bind(open_first(VendorLibrary::CublasLt.env_var(), NAMES)?).map_err(|e| e.to_string());
        let missing = |why: &String| DriverError::NoLibrary { library: VendorLibrary::CublasLt, why: why.clone() };
        API.get_or_init(load).as_ref().map_err(missing)
    }
}

fn check(call: &'static str, status: u32) -> Result<(), DriverError> {
    let words = match status {
        0 => return Ok(()),
        1 => "the library is not initialised",
        3 => "no memory for it",
        7 => "a value is invalid",
        8 => "this GPU does not have it",
        13 => "the GPU failed",
        15 => "the library does not support it",
        _ => "the library failed",
    };
    Err(DriverError::Call { call, words: format!("{words} ({status})") })
}

/// The library handle and the workspace that it may write to during a product.
pub struct CublasLt {
    api: &'static Api,
    handle: sys::cublasLtHandle_t,
    workspace: Address,
}

// SAFETY: the library's handle may be used by any thread, one at a time.
unsafe impl Send for CublasLt {}

impl CublasLt {
    /// Opens the library for the calling thread's context. [`WORKSPACE`] bytes from `workspace` on are reserved for it.
    ///
    /// # Errors
    /// When the machine does not have it, or it does not start.
    pub fn open(workspace: Address) -> Result<CublasLt, DriverError> {
        let api = Api::get()?;
        let mut handle = null_mut();
        // SAFETY: the pointer is that of a local variable.
        check("cublasLtCreate", unsafe { call!(api, cublasLtCreate(&mut handle)) })?;
        Ok(CublasLt { api, handle, workspace })
    }

    /// Enqueues a product on a stream; `args` are addresses as [`Product`] has them.
    ///
    /// # Errors
    /// When the library rejects it.
    ///
    /// # Safety
    /// The ranges that the product accesses from each address on, and the workspace, are device memory. Nothing else uses
    /// the result and the workspace until the stream completes.
    pub unsafe fn multiply(&self, p: &Product, args: &[Address], stream: Stream) -> Result<(), DriverError> {
        let mut args = args.iter().copied();
        let mut next =
            || args.next().ok_or(DriverError::Call { call: "cublasLtMatmul", words: "too few operands".into() });
        let (left, right) = (next()?, next()?);
        let residual = p.residual.map(|_| next()).transpose()?;
        let bias = p.bias.then(&mut next).transpose()?;
        let result = next()?;
        // An addend that is not used is not read, but needs a valid address.
        let residual = residual.unwrap_or(result);

        let operation_descriptor = self.operation(p, bias)?;
        let a_layout = self.layout(p, &p.right, (p.depth, p.columns))?;
        let b_layout = self.layout(p, &p.left, (p.rows, p.depth))?;
        let d_layout = self.layout(p, &p.result, (p.rows, p.columns))?;
        let preference_descriptor = self.preference([right, left, residual, result])?;
        let mut found = MaybeUninit::<sys::cublasLtMatmulHeuristicResult_t>::zeroed();
        let (beta, api, mut count) = (p.residual.unwrap_or(0.0), self.api, 0);
        let (operation, preference) = (operation_descriptor.it.cast(), preference_descriptor.it.cast());
        let (a, b, d) = (a_layout.it.cast(), b_layout.it.cast(), d_layout.it.cast());
        let room = found.as_mut_ptr();
        // SAFETY: the descriptors are alive, and there is room for the one algorithm that is asked for.
        let status = unsafe {
            call!(
                api,
                cublasLtMatmulAlgoGetHeuristic(self.handle, operation, a, b, d, d, preference, 1, room, &mut count)
            )
        };
        check("cublasLtMatmulAlgoGetHeuristic", status)?;
        // SAFETY: the buffer is zeroed or was written by the library. The status is read as a number, since a newer library
        // may write one that the enum lacks.
        let (state, bytes) = unsafe { ((&raw const (*room).state).cast::<u32>().read(), (*room).workspaceSize) };
        if count < 1 || state != 0 || bytes as u64 > WORKSPACE {
            let words = format!("the library has no algorithm for {} x {} x {}", p.rows, p.depth, p.columns);
            return Err(DriverError::Call { call: "cublasLtMatmulAlgoGetHeuristic", words });
        }
        let pointer = |address: Address| address as *mut c_void;
        let (alpha, beta) = ((&raw const p.scale).cast(), (&raw const beta).cast());
        let (right, left, residual) =
            (pointer(right).cast_const(), pointer(left).cast_const(), pointer(residual).cast_const());
        let (result, workspace, stream) = (pointer(result), pointer(self.workspace), stream.cast());
        // SAFETY: the caller guarantees the addresses; descriptors, factors and the algorithm are copied by the call.
        let status = unsafe {
            let algorithm = &raw const (*room).algo;
            call!(
                api,
                cublasLtMatmul(
                    self.handle,
                    operation,
                    alpha,
                    right,
                    a,
                    left,
                    b,
                    beta,
                    residual,
                    d,
                    result,
                    d,
                    algorithm,
                    workspace,
                    WORKSPACE as usize,
                    stream
                )
            )
        };
        check("cublasLtMatmul", status)
    }

    /// The operation: compute type, transposes and epilogue.
    fn operation(&self, p: &Product, bias: Option<Address>) -> Result<Descriptor, DriverError> {
        let compute = match p.precision {
            FloatPrecision::Exact => CUBLAS_COMPUTE_32F,
            FloatPrecision::Tf32 => CUBLAS_COMPUTE_32F_FAST_TF32,
            FloatPrecision::Bf16 => CUBLAS_COMPUTE_32F_FAST_16BF,
            FloatPrecision::F16 => CUBLAS_COMPUTE_32F_FAST_16F,
        };
        // Bits of `cublasLtEpilogue_t`.
        let activation = match p.activation {
            Activation::None => 0,
            Activation::Relu => CUBLASLT_EPILOGUE_RELU as u32,
            Activation::GeluByTanh => CUBLASLT_EPILOGUE_GELU as u32,
            other => {
                let words = format!("the library has no {other:?}");
                return Err(DriverError::Call { call: "cublasLtMatmulDescSetAttribute", words });
            }
        };
        let epilogue =
            (activation | if p.bias { CUBLASLT_EPILOGUE_BIAS as u32 } else { 0 }).max(CUBLASLT_EPILOGUE_DEFAULT as u32);
        let mut it: Handle = null_mut();
        // SAFETY: the pointer is that of a local variable.
        check("cublasLtMatmulDescCreate", unsafe {
            call!(self.api, cublasLtMatmulDescCreate((&raw mut it).cast(), compute, CUDA_R_32F))
        })?;
        let d = Descriptor { it, api: self.api, kind: Kind::Operation };
        let set = |what: sys::cublasLtMatmulDescAttributes_t, value: *const c_void, bytes: usize| {
            // SAFETY: the value has so many bytes, which are copied.
            check("cublasLtMatmulDescSetAttribute", unsafe {
                call!(self.api, cublasLtMatmulDescSetAttribute(it.cast(), what, value, bytes))
            })
        };
        for (what, m) in [(CUBLASLT_MATMUL_DESC_TRANSA, &p.right), (CUBLASLT_MATMUL_DESC_TRANSB, &p.left)] {
            let transposed = c_int::from(m.transposed);
            set(what, (&raw const transposed).cast(), size_of::<c_int>())?;
        }
        set(CUBLASLT_MATMUL_DESC_EPILOGUE, (&raw const epilogue).cast(), size_of::<u32>())?;
        if let Some(bias) = bias {
            set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, (&raw const bias).cast(), size_of::<Address>())?;
        }
        Ok(d)
    }

    /// A row-major matrix, described as its transpose.
    fn layout(&self, p: &Product, m: &Matrix, (rows, columns): (u64, u64)) -> Result<Descriptor, DriverError> {
        let element = match p.dtype {
            DType::F16 => CUDA_R_16F,
            DType::BF16 => CUDA_R_16BF,
            _ => CUDA_R_32F,
        };
        let (lines, long) = if m.transposed { (columns, rows) } else { (rows, columns) };
        let mut it: Handle = null_mut();
        // SAFETY: the pointer is that of a local variable.
        let status = unsafe {
            call!(self.api, cublasLtMatrixLayoutCreate((&raw mut it).cast(), element, long, lines, m.line as i64))
        };
        check("cublasLtMatrixLayoutCreate", status)?;
        let d = Descriptor { it, api: self.api, kind: Kind::Layout };
        let (count, stride) = (p.batches as c_int, m.batch as i64);
        let set = |what: sys::cublasLtMatrixLayoutAttribute_t, value: *const c_void, bytes: usize| {
            // SAFETY: the value has so many bytes, which are copied.
            let status = unsafe { call!(self.api, cublasLtMatrixLayoutSetAttribute(it.cast(), what, value, bytes)) };
            check("cublasLtMatrixLayoutSetAttribute", status)
        };
        set(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, (&raw const count).cast(), size_of::<c_int>())?;
        set(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, (&raw const stride).cast(), size_of::<i64>())?;
        Ok(d)
    }

    /// What an algorithm may assume: the workspace size, and the alignment of these addresses.
    fn preference(&self, addresses: [Address; 4]) -> Result<Descriptor, DriverError> {
        let mut it: Handle = null_mut();
        // SAFETY: the pointer is that of a local variable.
        check("cublasLtMatmulPreferenceCreate", unsafe {
            call!(self.api, cublasLtMatmulPreferenceCreate((&raw mut it).cast()))
        })?;
        let d = Descriptor { it, api: self.api, kind: Kind::Preference };
        let set = |what: sys::cublasLtMatmulPreferenceAttributes_t, value: *const c_void, bytes: usize| {
            // SAFETY: the value has so many bytes, which are copied.
            check("cublasLtMatmulPreferenceSetAttribute", unsafe {
                call!(self.api, cublasLtMatmulPreferenceSetAttribute(it.cast(), what, value, bytes))
            })
        };
        let most = WORKSPACE;
        set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, (&raw const most).cast(), size_of::<u64>())?;
        let alignments = [
            CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
            CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
            CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
            CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
        ];
        for (what, address) in alignments.into_iter().zip(addresses) {
            let aligned = (1u32 << address.trailing_zeros().min(31)).min(MAX_ALIGNMENT as u32);
            set(what, (&raw const aligned).cast(), size_of::<u32>())?;
        }
        Ok(d)
    }
}

impl Drop for CublasLt {
    fn drop(&mut self) {
        // SAFETY: the handle is alive and used for the last time. An error cannot be reported here.
        unsafe { call!(self.api, cublasLtDestroy(self.handle)) };
    }
}

/// The kind of a descriptor.
enum Kind {
    Operation,
    Layout,
    Preference,
}

/// A descriptor of the library, destroyed when it is dropped.
struct Descriptor {
    api: &'static Api,
    it: Handle,
    kind: Kind,
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        let (api, it) = (self.api, self.it);
        // SAFETY: the descriptor is of this kind, alive and used for the last time.
        unsafe {
            match self.kind {
                Kind::Operation => call!(api, cublasLtMatmulDescDestroy(it.cast())),
                Kind::Layout => call!(api, cublasLtMatrixLayoutDestroy(it.cast())),
                Kind::Preference => call!(api, cublasLtMatmulPreferenceDestroy(it.cast())),
            }
        };
    }
}
