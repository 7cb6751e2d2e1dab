//! What callers pass by pointer: values, text, and memory that runs read and write in place.

use std::ffi::{CStr, c_char, c_void};

use of_plan::ElementType;
use of_runtime::{AlignedBytes, ExternalBytes};

use crate::abi::{self, Status};
use crate::error::{Error, error, null};

/// Shows what a pointer points to.
///
/// # Safety
/// The pointer is null, or it points to a valid value that lives for `'a`.
pub unsafe fn reference<'a, T>(pointer: *const T, name: &str) -> Result<&'a T, Error> {
    // SAFETY: the caller promises it.
    unsafe { pointer.as_ref() }.ok_or_else(|| null(name))
}

/// Writes a result to where a pointer points to.
///
/// # Safety
/// The pointer is null, or memory for a value.
pub unsafe fn put<T>(pointer: *mut T, name: &str, value: T) -> Result<(), Error> {
    if pointer.is_null() {
        return Err(null(name));
    }
    // SAFETY: the caller promises it.
    unsafe { pointer.write(value) };
    Ok(())
}

/// Shows an array.
///
/// # Safety
/// The pointer is null, or it points to so many valid values that live for `'a`.
pub unsafe fn array<'a, T>(pointer: *const T, len: usize, name: &str) -> Result<&'a [T], Error> {
    if len == 0 {
        return Ok(&[]);
    }
    if pointer.is_null() {
        return Err(null(name));
    }
    if len.checked_mul(size_of::<T>()).is_none_or(|bytes| bytes > isize::MAX as usize) {
        return Err(error(Status::InvalidArgument, format!("`{name}` cannot have {len} elements")));
    }
    // SAFETY: the caller promises it, and the length is one that an array can have.
    Ok(unsafe { std::slice::from_raw_parts(pointer, len) })
}

/// Shows text that ends with a zero.
///
/// # Safety
/// The pointer is null, or it points to such text that lives for `'a`.
pub unsafe fn text<'a>(pointer: *const c_char, name: &str) -> Result<&'a str, Error> {
    if pointer.is_null() {
        return Err(null(name));
    }
    // SAFETY: the caller promises it.
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_str().map_err(|_| error(Status::InvalidArgument, format!("`{name}` is not UTF-8")))
}

/// The element type and the extents of a caller's tensor.
///
/// # Safety
/// `dims` is null or points to `rank` numbers that live for `'a`.
pub unsafe fn shape<'a>(tensor: &abi::Tensor) -> Result<(ElementType, &'a [i64]), Error> {
    let number = tensor.dtype;
    let dtype = i32::try_from(number).ok().and_then(|number| ElementType::try_from(number).ok());
    let dtype = dtype.filter(|dtype| *dtype != ElementType::Unknown);
    let dtype = dtype.ok_or_else(|| error(Status::InvalidArgument, format!("no element type has number {number}")))?;
    // SAFETY: the caller promises it.
    Ok((dtype, unsafe { array(tensor.dims, tensor.rank as usize, "dims") }?))
}

/// The extents and the strings of a caller's text: UTF-8 with lengths in bytes, or without lengths strings that end with zero.
///
/// # Safety
/// The pointers are null, or point to `rank` extents that live for `'a`, as many strings as they say, and as many lengths.
pub unsafe fn strings<'a>(
    rank: u32,
    dims: *const i64,
    strings: *const *const c_char,
    lengths: *const usize,
) -> Result<(&'a [i64], Vec<String>), Error> {
    // SAFETY: the caller promises it.
    let dims = unsafe { array(dims, rank as usize, "dims") }?;
    // As many strings as a tensor of bytes has bytes.
    let count = ElementType::Ui8.byte_len(dims).and_then(|count| usize::try_from(count).ok());
    let count = count.ok_or_else(|| error(Status::InvalidArgument, format!("no tensor has extents {dims:?}")))?;
    // SAFETY: the caller promises it.
    let strings = unsafe { array(strings, count, "strings") }?;
    let lengths = match lengths.is_null() {
        true => None,
        // SAFETY: as above.
        false => Some(unsafe { array(lengths, count, "lengths") }?),
    };
    let one = |(i, &string): (usize, &*const c_char)| -> Result<String, Error> {
        let Some(lengths) = lengths else {
            // SAFETY: the caller's strings end with zero.
            return Ok(unsafe { text(string, "string") }?.to_owned());
        };
        // SAFETY: the caller's strings have these lengths.
        let bytes = unsafe { array(string.cast::<u8>(), lengths[i], "string") }?;
        let text = std::str::from_utf8(bytes);
        Ok(text.map_err(|_| error(Status::InvalidArgument, format!("string number {i} is not UTF-8")))?.to_owned())
    };
    Ok((dims, strings.iter().enumerate().map(one).collect::<Result<_, _>>()?))
}

/// Memory of the caller.
struct CallerMemory {
    data: *mut u8,
    len: usize,
    writable: bool,
}

// SAFETY: the caller promises that no thread writes to inputs or uses outputs while a run lasts. Runs alone use the pointer.
unsafe impl Send for CallerMemory {}
// SAFETY: as above.
unsafe impl Sync for CallerMemory {}

impl ExternalBytes for CallerMemory {
    fn bytes(&self) -> &[u8] {
        // SAFETY: the caller promises that the memory is valid until another is set; `external` checked pointer and size.
        unsafe { std::slice::from_raw_parts(self.data, self.len) }
    }

    fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        // SAFETY: as in `bytes`; outputs overlap nothing that a run reads.
        self.writable.then(|| unsafe { std::slice::from_raw_parts_mut(self.data, self.len) })
    }
}

/// Memory of the caller as bytes that runs read, or write to, in place. It must be aligned to the elements.
///
/// # Safety
/// `data` is null or points to `len` bytes that stay valid while the result exists.
pub unsafe fn external(
    data: *mut c_void,
    len: usize,
    dtype: ElementType,
    writable: bool,
) -> Result<AlignedBytes, Error> {
    if len == 0 {
        return Ok(AlignedBytes::default());
    }
    if data.is_null() {
        return Err(null("data"));
    }
    if len > isize::MAX as usize {
        return Err(error(Status::InvalidArgument, format!("no memory has {len} bytes")));
    }
    let align = dtype.align();
    if !(data as u64).is_multiple_of(align) {
        return Err(error(Status::InvalidArgument, format!("the data of {dtype} is not aligned to {align} bytes")));
    }
    Ok(AlignedBytes::external(Box::new(CallerMemory { data: data.cast(), len, writable })))
}
