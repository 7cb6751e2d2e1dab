//! Values that are no tensors: sequences and optional values, as objects of their own.

use std::ffi::c_char;
use std::ptr;

use of_plan::ElementType;
use of_runtime::{Tensor as OwnTensor, Value};

use crate::abi::{Status, Tensor, ValueKind};
use crate::error::{Error, error, guarded, null, unknown};
use crate::memory::{array, external, put, reference, shape, strings};
use crate::session::{Session, view};

/// Sequences and optional values nest no deeper, so that no walk through a value exhausts the stack.
const MAX_DEPTH: usize = 32;

/// How many levels a value has; a tensor has one.
fn depth(value: &Value) -> usize {
    match value {
        Value::Tensor(_) => 1,
        Value::Sequence(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Optional(item) => 1 + item.as_deref().map_or(0, depth),
    }
}

/// Gives the caller a value.
///
/// # Safety
/// `to` is null, or memory for a pointer.
unsafe fn give(to: *mut *mut Value, value: Value) -> Result<(), Error> {
    if to.is_null() {
        return Err(null("value"));
    }
    if depth(&value) > MAX_DEPTH {
        let what = format!("a value has more than {MAX_DEPTH} levels of sequences and optional values");
        return Err(error(Status::InvalidArgument, what));
    }
    // SAFETY: the caller promises it.
    unsafe { put(to, "value", Box::into_raw(Box::new(value))) }
}

/// The item of a sequence or an optional value.
fn item(value: &Value, index: usize) -> Result<&Value, Error> {
    let items = match value {
        Value::Tensor(_) => &[],
        Value::Sequence(items) => &items[..],
        Value::Optional(item) => item.as_deref().map_or(&[][..], std::slice::from_ref),
    };
    items.get(index).ok_or_else(|| unknown("item", index, items.len()))
}

/// The tensor that a value is.
fn tensor_of(value: &Value) -> Result<&OwnTensor, Error> {
    let what = "the value is a sequence or an optional value: its items are values (of_value_item)";
    value.as_tensor().ok_or_else(|| error(Status::InvalidArgument, what))
}

/// `of_value_new_tensor`.
///
/// # Safety
/// As `of_runtime.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn of_value_new_tensor(tensor: *const Tensor, value: *mut *mut Value) -> Status {
    guarded(|| {
        // SAFETY: the caller passes a tensor with its extents.
        let tensor = unsafe { reference(tensor, "tensor") }?;
        // SAFETY: as above.
        let (dtype, dims) = unsafe { shape(tensor) }?;
        if dtype == ElementType::String {
            return Err(error(Status::InvalidArgument, "text is made by of_value_new_text"));
        }
        // SAFETY: the elements are valid during this call, which copies them.
        let bytes = unsafe { external(tensor.data, tensor.bytes, dtype, false) }?;
        // SAFETY: the caller passes memory for a pointer.
        unsafe { give(value, OwnTensor::from_bytes(dtype, dims, &bytes)?.into()) }
    })
}

/// `of_value_new_text`.
///
/// # Safety
/// As `of_runtime.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn of_value_new_text(
    rank: u32,
    dims: *const i64,
    text: *const *const c_char,
    lengths: *const usize,
    value: *mut *mut Value,
) -> Status {
    guarded(|| {
        // SAFETY: the caller passes `rank` extents, and as many strings and lengths as they say.
        let (dims, text) = unsafe { strings(rank, dims, text, lengths) }?;
        // SAFETY: the caller passes memory for a pointer.
        unsafe { give(value, OwnTensor::from_strings(dims, text)?.into()) }
    })
}

/// `of_value_new_sequence`.
///
/// # Safety
/// As `of_runtime.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn of_value_new_sequence(
    items: *const *const Value,
    count: usize,
    value: *mut *mut Value,
) -> Status {
    guarded(|| {
        // SAFETY: the caller passes `count` values.
        let items = unsafe { array(items, count, "items") }?;
        // SAFETY: as above.
        let items = items.iter().map(|item| Ok(unsafe { reference(*item, "item") }?.clone()));
        let items = items.collect::<Result<Vec<_>, Error>>()?;
        // SAFETY: the caller passes memory for a pointer.
        unsafe { give(value, Value::Sequence(items)) }
    })
}

/// `of_value_new_optional`.
///
/// # Safety
/// As `of_runtime.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn of_value_new_optional(item: *const Value, value: *mut *mut Value) -> Status {
    guarded(|| {
        // SAFETY: the caller passes a value or null.
        let item = unsafe { item.as_ref() }.map(|item| Box::new(item.clone()));
        // SAFETY: the caller passes memory for a pointer.
        unsafe { give(value, Value::Optional(item)) }
    })
}

/// `of_value_free`.
///
/// # Safety
/// As `of_runtime.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn of_value_free(value: *mut Value) {
    guarded(|| {
        if !value.is_null() {
            // SAFETY: `give` made it, and the caller frees it once.
            drop(unsafe { Box::from_raw(value) });
        }
        Ok(())
    });
}

/// `of_value_kind`.
///
/// # Safety
/// As `of_runtime.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn of_value_kind(value: *const Value, kind: *mut u32) -> Status {
    guarded(|| {
        // SAFETY: the caller passes a value.
        let found = match unsafe { reference(value, "value") }? {
            Value::Tensor(_) => ValueKind::Tensor,
            Value::Sequence(_) => ValueKind::Sequence,
            Value::Optional(_) => ValueKind::Optional,
        };
        // SAFETY: the caller passes memory for a number.
        unsafe { put(kind, "kind", found as u32) }
    })
}

/// `of_value_count`.
///
/// # Safety
/// As `of_runtime.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn of_value_count(value: *const Value, count: *mut usize) -> Status {
    guarded(|| {
        // SAFETY: the caller passes a value.
        let items = match unsafe { reference(value, "value") }? {
            Value::Tensor(_) => 0,
            Value::Sequence(items) => items.len(),
            Value::Optional(item) => usize::from(item.is_some()),
        };
        // SAFETY: the caller passes memory for a number.
        unsafe { put(count, "count", items) }
    })
}

/// `of_value_item`.
///
/// # Safety
/// As `of_runtime.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn of_value_item(value: *const Value, index: usize, found: *mut *const Value) -> Status {
    // SAFETY: the caller passes a value and memory for a pointer.
    guarded(|| unsafe { put(found, "found", ptr::from_ref(item(reference(value, "value")?, index)?)) })
}

/// `of_value_tensor`.
///
/// # Safety
/// As `of_runtime.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn of_value_tensor(value: *const Value, tensor: *mut Tensor) -> Status {
    // SAFETY: the caller passes a value and memory for a tensor.
    guarded(|| unsafe { put(tensor, "tensor", view(tensor_of(reference(value, "value")?)?)) })
}

/// `of_value_text`.
///
/// # Safety
/// As `of_runtime.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn of_value_text(
    value: *const Value,
    element: usize,
    text: *mut *const c_char,
    length: *mut usize,
) -> Status {
    guarded(|| {
        // SAFETY: the caller passes a value.
        let tensor = tensor_of(unsafe { reference(value, "value") }?)?;
        let strings = tensor.strings().ok_or_else(|| error(Status::InvalidArgument, "the value is not text"))?;
        let string = strings.get(element).ok_or_else(|| unknown("string", element, strings.len()))?;
        // SAFETY: the caller passes memory for a pointer and a number.
        unsafe { put(text, "text", string.as_ptr().cast()).and_then(|()| put(length, "length", string.len())) }
    })
}

/// `of_session_set_input_value`.
///
/// # Safety
/// As `of_runtime.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn of_session_set_input_value(
    session: *mut Session,
    index: usize,
    value: *const Value,
) -> Status {
    guarded(|| {
        // SAFETY: the caller passes a session and a value.
        let (session, value) = unsafe { (reference(session, "session")?, reference(value, "value")?) };
        session.state()?.set_input(index, value.clone())
    })
}

/// `of_session_output_value`.
///
/// # Safety
/// As `of_runtime.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn of_session_output_value(
    session: *mut Session,
    index: usize,
    value: *mut *const Value,
) -> Status {
    guarded(|| {
        // SAFETY: the caller passes a session.
        let state = unsafe { reference(session, "session") }?.state()?;
        // SAFETY: the caller passes memory for a pointer, and uses the value until the next run at most.
        unsafe { put(value, "value", ptr::from_ref(state.output(index)?)) }
    })
}
