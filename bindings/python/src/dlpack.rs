//! Tensors of other libraries by DLPack. Source: dlpack.h of the DLPack project, version 1.

use std::ffi::{CStr, c_void};

use of_plan::ElementType;
use of_runtime::AlignedBytes;
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
        let Some(export) = object.getattr_opt(pyo3::intern!(py, "__dlpack__"))? else { return Ok(None) };
        let capsule = export.call0()?;
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
        let bytes = unsafe { external(data, len, false) };
        Ok(Some(Shared { dtype, dims, bytes, owner: capsule.unbind() }))
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

/// The element type of `DLDataType`.
fn element_type(tensor: &DlTensor) -> Option<ElementType> {
    Some(match (tensor.code, tensor.bits) {
        (0, 8) => ElementType::I8,
        (0, 16) => ElementType::I16,
        (0, 32) => ElementType::I32,
        (0, 64) => ElementType::I64,
        (1, 8) => ElementType::Ui8,
        (1, 16) => ElementType::Ui16,
        (1, 32) => ElementType::Ui32,
        (1, 64) => ElementType::Ui64,
        (2, 16) => ElementType::F16,
        (2, 32) => ElementType::F32,
        (2, 64) => ElementType::F64,
        (4, 16) => ElementType::Bf16,
        (6, 8) => ElementType::I1,
        (10, 8) => ElementType::F8E4M3FN,
        (11, 8) => ElementType::F8E4M3FNUZ,
        (12, 8) => ElementType::F8E5M2,
        (13, 8) => ElementType::F8E5M2FNUZ,
        (14, 8) => ElementType::F8E8M0FNU,
        _ => return None,
    })
}
