//! Memory that Python and the runtime share: arrays of NumPy by the array interface, in both directions.
//!
//! Source: NumPy's documentation, "The array interface protocol", `PyArrayInterface`.

use std::ffi::{c_char, c_int, c_void};

use of_plan::ElementType;
use of_runtime::{AlignedBytes, ExternalBytes};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict, PyTuple};

use crate::numpy::{Numpy, element_type};

/// `PyArrayInterface`.
#[repr(C)]
struct ArrayInterface {
    two: c_int,
    nd: c_int,
    typekind: c_char,
    itemsize: c_int,
    flags: c_int,
    shape: *const isize,
    strides: *const isize,
    data: *mut c_void,
    descr: *mut c_void,
}

const C_CONTIGUOUS: c_int = 0x1;
const ALIGNED: c_int = 0x100;
const NATIVE_ORDER: c_int = 0x200;
const WRITABLE: c_int = 0x400;

/// The memory of an array. Valid while `owners` live.
pub struct View {
    /// `None` for text, or a type that is no element type.
    pub dtype: Option<ElementType>,
    pub dims: Vec<i64>,
    /// Whether it holds text or Python objects.
    pub is_text: bool,
    /// Whether its elements are row-major, aligned and in native byte order.
    pub is_dense: bool,
    pub is_writable: bool,
    pub data: *mut u8,
    pub len: usize,
    /// What keeps the memory alive.
    pub owners: [Py<PyAny>; 2],
}

impl View {
    /// The memory of what has NumPy's array interface; `None` for anything else.
    ///
    /// # Errors
    /// When the interface is damaged.
    pub fn of(array: &Bound<'_, PyAny>) -> PyResult<Option<View>> {
        let py = array.py();
        let Some(capsule) = array.getattr_opt(pyo3::intern!(py, "__array_struct__"))? else { return Ok(None) };
        let interface = capsule.cast::<PyCapsule>()?.pointer_checked(None)?.cast::<ArrayInterface>();
        // SAFETY: the protocol says what the capsule points to, and it lives as long as the capsule.
        let interface = unsafe { interface.as_ref() };
        let rank = usize::try_from(interface.nd).unwrap_or(0);
        let dims: Vec<i64> = match rank {
            0 => Vec::new(),
            // SAFETY: the interface has `nd` extents.
            _ => unsafe { std::slice::from_raw_parts(interface.shape, rank) }.iter().map(|dim| *dim as i64).collect(),
        };
        let (kind, size) = (interface.typekind as u8, interface.itemsize);
        let dtype = match known(kind, size) {
            Some(dtype) => Some(dtype),
            None if b"USOT".contains(&kind) => None,
            None => element_type(&array.getattr("dtype")?.getattr("name")?.extract::<String>()?),
        };
        let has = |flag: c_int| interface.flags & flag != 0;
        let count: i64 = dims.iter().product();
        Ok(Some(View {
            dtype,
            is_text: b"USOT".contains(&kind),
            is_dense: has(C_CONTIGUOUS) && has(ALIGNED) && has(NATIVE_ORDER),
            is_writable: has(WRITABLE),
            data: interface.data.cast(),
            len: usize::try_from(count).unwrap_or(0) * usize::try_from(size).unwrap_or(0),
            dims,
            owners: [array.clone().unbind(), capsule.unbind()],
        }))
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        if self.len == 0 {
            return &[];
        }
        // SAFETY: the array is dense (its caller checks it), so its elements take `len` bytes; its owners keep it alive.
        unsafe { std::slice::from_raw_parts(self.data, self.len) }
    }

    /// The memory as bytes that a run reads or writes in place. They must not outlive the view.
    pub fn external(&self) -> AlignedBytes {
        // SAFETY: as in `bytes`.
        unsafe { external(self.data, self.len, self.is_writable) }
    }

    /// Copies bytes into the array, as many as it has.
    pub fn fill(&self, bytes: &[u8]) {
        if self.len > 0 && self.is_writable && bytes.len() == self.len {
            // SAFETY: as in `bytes`; the array is writable, and runtime memory does not overlap it.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.data, self.len) };
        }
    }
}

/// The element type of a kind and size of NumPy.
fn known(kind: u8, size: c_int) -> Option<ElementType> {
    Some(match (kind, size) {
        (b'f', 8) => ElementType::F64,
        (b'f', 4) => ElementType::F32,
        (b'f', 2) => ElementType::F16,
        (b'i', 1) => ElementType::I8,
        (b'i', 2) => ElementType::I16,
        (b'i', 4) => ElementType::I32,
        (b'i', 8) => ElementType::I64,
        (b'u', 1) => ElementType::Ui8,
        (b'u', 2) => ElementType::Ui16,
        (b'u', 4) => ElementType::Ui32,
        (b'u', 8) => ElementType::Ui64,
        (b'b', 1) => ElementType::I1,
        _ => return None,
    })
}

/// Memory of Python.
struct Foreign {
    data: *mut u8,
    len: usize,
    writable: bool,
}

// SAFETY: the memory is used by one run at a time, while its owner lives. A program that changes an array during a run sees
// undefined elements, as with NumPy itself.
unsafe impl Send for Foreign {}
// SAFETY: as above.
unsafe impl Sync for Foreign {}

impl ExternalBytes for Foreign {
    fn bytes(&self) -> &[u8] {
        // SAFETY: who made it promised so many bytes.
        unsafe { std::slice::from_raw_parts(self.data, self.len) }
    }

    fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        // SAFETY: as above, and they are writable.
        self.writable.then(|| unsafe { std::slice::from_raw_parts_mut(self.data, self.len) })
    }
}

/// Memory of Python as bytes that a run uses in place.
///
/// # Safety
/// `data` points to `len` bytes that stay valid while the result exists.
pub unsafe fn external(data: *mut u8, len: usize, writable: bool) -> AlignedBytes {
    match len {
        0 => AlignedBytes::default(),
        _ => AlignedBytes::external(Box::new(Foreign { data, len, writable })),
    }
}

/// Memory of the runtime for Python: a result that an array shows without a copy.
#[pyclass(frozen, module = "of_opt._native")]
pub struct Memory {
    bytes: AlignedBytes,
    dtype: ElementType,
    dims: Vec<i64>,
}

impl Memory {
    /// An array that owns these bytes.
    ///
    /// # Errors
    /// When NumPy lacks the dtype.
    pub fn array<'py>(
        py: Python<'py>,
        dtype: ElementType,
        dims: &[i64],
        bytes: AlignedBytes,
    ) -> PyResult<Bound<'py, PyAny>> {
        let numpy = Numpy::get(py)?;
        let memory = Bound::new(py, Memory { bytes, dtype, dims: dims.to_vec() })?;
        let array = numpy.asarray.bind(py).call1((memory,))?;
        // The interface shows elements that NumPy lacks as unsigned integers.
        let wanted = numpy.dtype(py, dtype)?;
        if array.getattr("dtype")?.eq(wanted)? { Ok(array) } else { array.call_method1("view", (wanted,)) }
    }
}

#[pymethods]
impl Memory {
    /// NumPy's array interface.
    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let interface = PyDict::new(py);
        let size = self.dtype.bits() / 8;
        let kind = match self.dtype {
            ElementType::I1 => 'b',
            ElementType::F64 | ElementType::F32 | ElementType::F16 => 'f',
            ElementType::I8 | ElementType::I16 | ElementType::I32 | ElementType::I64 => 'i',
            _ => 'u',
        };
        let order = if size == 1 { '|' } else { '<' };
        interface.set_item("version", 3)?;
        interface.set_item("typestr", format!("{order}{kind}{size}"))?;
        interface.set_item("shape", PyTuple::new(py, &self.dims)?)?;
        interface.set_item("data", (self.bytes.as_ptr() as usize, false))?;
        Ok(interface)
    }
}
