//! Tensors of other libraries by DLPack. Source: dlpack.h of the DLPack project, version 1.

use std::ffi::{CStr, c_void};

use of_plan::ElementType;
use of_runtime::AlignedBytes;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

use crate::array::external;
use crate::error::input_error;

#[repr(C)]
struct DlTensor {
    data: *mut c_void,
    device_type: i32,
    device_id: i32,
    ndim: i32,
    code: u8,
    bits: u8,
    vector_len: u16,
    shape: *const i64,
    strides: *const i64,
    byte_offset: u64,
}

/// The name of a capsule that has not been consumed.
const NAME: &CStr = c"dltensor";
/// Devices whose memory this process can read: the CPU, and memory of the CPU that CUDA or ROCm pinned.
const HOST: [i32; 3] = [1, 3, 11];

/// A tensor of another library. Valid while `owner` lives: the capsule was not consumed, so it frees the tensor itself.
pub struct Shared {
    pub dtype: ElementType,
    pub dims: Vec<i64>,
    pub bytes: AlignedBytes,
    pub owner: Py<PyAny>,
}

impl Shared {
    /// The tensor of an object that has the protocol; `None` for anything else, and for tensors that are not row-major.
    ///
    /// # Errors
    /// When the tensor is on another device, or its elements have no element type here.
    pub fn of(object: &Bound<'_, PyAny>) -> PyResult<Option<Shared>> {
        let py = object.py();
        if object.is_instance_of::<PyCapsule>() {
            return Shared::of_capsule(object, false);
        }
        let Some(export) = object.getattr_opt(pyo3::intern!(py, "__dlpack__"))? else { return Ok(None) };
        Shared::of_capsule(&export.call0()?, false)
    }

    /// The tensor of a capsule that has not been consumed; `None` if it is not row-major.
    ///
    /// # Errors
    /// As [`Shared::of`].
    pub fn of_capsule(capsule: &Bound<'_, PyAny>, writable: bool) -> PyResult<Option<Shared>> {
        let py = capsule.py();
        let tensor = capsule.cast::<PyCapsule>()?.pointer_checked(Some(NAME))?.cast::<DlTensor>();
        // SAFETY: a capsule of this name points to a `DLManagedTensor`, which begins with a `DLTensor`.
        let tensor = unsafe { tensor.as_ref() };
        if !HOST.contains(&tensor.device_type) {
            let what =
                format!("a tensor is on DLPack's device {}, and inputs are in the CPU's memory", tensor.device_type);
            return Err(input_error(py, what, Some("copy it to the CPU")));
        }
        let Some(dtype) = element_type(tensor).filter(|_| tensor.vector_len == 1) else {
            let what = format!("DLPack's type {} of {} bits has no element type here", tensor.code, tensor.bits);
            return Err(input_error(py, what, None));
        };
        let rank = usize::try_from(tensor.ndim).unwrap_or(0);
        let (dims, strides) = match rank {
            0 => (Vec::new(), None),
            // SAFETY: the tensor has `ndim` extents, and as many strides unless that is null.
            _ => unsafe {
                let strides = (!tensor.strides.is_null()).then(|| std::slice::from_raw_parts(tensor.strides, rank));
                (std::slice::from_raw_parts(tensor.shape, rank).to_vec(), strides)
            },
        };
        let Some(len) = dtype.byte_len(&dims).and_then(|len| usize::try_from(len).ok()) else { return Ok(None) };
        // SAFETY: the offset is within the tensor.
        let data = unsafe { tensor.data.cast::<u8>().add(tensor.byte_offset as usize) };
        if strides.is_some_and(|strides| !is_row_major(&dims, strides)) || !(data as u64).is_multiple_of(dtype.align())
        {
            return Ok(None);
        }
        // SAFETY: a row-major tensor has `len` bytes, and the capsule keeps them.
        let bytes = unsafe { external(data, len, writable) };
        Ok(Some(Shared { dtype, dims, bytes, owner: capsule.clone().unbind() }))
    }
}

fn is_row_major(dims: &[i64], strides: &[i64]) -> bool {
    let mut step = 1;
    dims.contains(&0)
        || dims.iter().zip(strides).rev().all(|(&dim, &stride)| {
            let fits = dim == 1 || stride == step;
            step *= dim;
            fits
        })
}

/// `DLManagedTensor`, with what it owns.
#[repr(C)]
struct Exported {
    tensor: DlTensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Exported)>,
    dims: Vec<i64>,
    bytes: AlignedBytes,
}

/// Frees an exported tensor.
unsafe extern "C" fn delete(exported: *mut Exported) {
    // SAFETY: `export` made it with `Box::into_raw`, and its owner calls this once.
    drop(unsafe { Box::from_raw(exported) });
}

/// Frees the tensor of a capsule that was not consumed.
unsafe extern "C" fn destroy(capsule: *mut ffi::PyObject) {
    // SAFETY: Python calls this with the capsule. Who consumes a capsule renames it.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, NAME.as_ptr()) == 1 {
            delete(ffi::PyCapsule_GetPointer(capsule, NAME.as_ptr()).cast());
        }
    }
}

/// A capsule with a tensor of the runtime. Who consumes it owns the memory.
///
/// # Errors
/// When DLPack has no such element type.
pub fn export<'py>(
    py: Python<'py>,
    dtype: ElementType,
    dims: &[i64],
    bytes: AlignedBytes,
) -> PyResult<Bound<'py, PyAny>> {
    let Some((_, code, bits)) = TYPES.iter().find(|(known, ..)| *known == dtype).copied() else {
        return Err(input_error(py, format!("DLPack has no elements of type {}", dtype.name()), None));
    };
    let (device_type, device_id, ndim) = (HOST[0], 0, dims.len() as i32);
    let (data, shape) = (bytes.as_ptr().cast_mut().cast(), std::ptr::null());
    let (vector_len, strides, byte_offset) = (1, std::ptr::null(), 0);
    let tensor = DlTensor { data, device_type, device_id, ndim, code, bits, vector_len, shape, strides, byte_offset };
    let (context, dims) = (std::ptr::null_mut(), dims.to_vec());
    let mut exported = Box::new(Exported { tensor, context, deleter: Some(delete), dims, bytes });
    exported.tensor.shape = exported.dims.as_ptr();
    let exported = Box::into_raw(exported);
    // SAFETY: the capsule owns the tensor, and its destructor frees it.
    unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyCapsule_New(exported.cast(), NAME.as_ptr(), Some(destroy))) }
        .inspect_err(|_| {
            // SAFETY: no capsule was made, so there is no other owner.
            unsafe { delete(exported) }
        })
}

/// The element types, with code and bits of `DLDataType`.
const TYPES: [(ElementType, u8, u8); 18] = [
    (ElementType::I8, 0, 8),
    (ElementType::I16, 0, 16),
    (ElementType::I32, 0, 32),
    (ElementType::I64, 0, 64),
    (ElementType::Ui8, 1, 8),
    (ElementType::Ui16, 1, 16),
    (ElementType::Ui32, 1, 32),
    (ElementType::Ui64, 1, 64),
    (ElementType::F16, 2, 16),
    (ElementType::F32, 2, 32),
    (ElementType::F64, 2, 64),
    (ElementType::Bf16, 4, 16),
    (ElementType::I1, 6, 8),
    (ElementType::F8E4M3FN, 10, 8),
    (ElementType::F8E4M3FNUZ, 11, 8),
    (ElementType::F8E5M2, 12, 8),
    (ElementType::F8E5M2FNUZ, 13, 8),
    (ElementType::F8E8M0FNU, 14, 8),
];

/// The element type of `DLDataType`.
fn element_type(tensor: &DlTensor) -> Option<ElementType> {
    TYPES.iter().find(|(_, code, bits)| (*code, *bits) == (tensor.code, tensor.bits)).map(|(dtype, ..)| *dtype)
}
