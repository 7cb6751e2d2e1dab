//! Parameters of messages, read from JSON by hand: derived readers of the protocol's types would be 150 kB of code.

use lsp_types::{Position, Range};
use serde_json::Value;

use crate::transport::Failure;

/// The text at a JSON pointer.
///
/// # Errors
/// When there is none.
pub fn text<'a>(params: &'a Value, pointer: &str) -> Result<&'a str, Failure> {
    params.pointer(pointer).and_then(Value::as_str).ok_or_else(|| missing(pointer, "a string"))
}

/// The text at a JSON pointer, which is left empty.
///
/// # Errors
/// When there is none.
pub fn take_text(params: &mut Value, pointer: &str) -> Result<String, Failure> {
    match params.pointer_mut(pointer).map(Value::take) {
        Some(Value::String(text)) => Ok(text),
        _ => Err(missing(pointer, "a string")),
    }
}

/// The position at a JSON pointer.
///
/// # Errors
/// When there is none.
pub fn position(params: &Value, pointer: &str) -> Result<Position, Failure> {
    params.pointer(pointer).and_then(as_position).ok_or_else(|| missing(pointer, "a position"))
}

/// A range; `None` where the value is none.
pub fn as_range(value: &Value) -> Option<Range> {
    Some(Range { start: as_position(&value["start"])?, end: as_position(&value["end"])? })
}

fn as_position(value: &Value) -> Option<Position> {
    // Clients write the largest number for the end of a line.
    let number = |key: &str| Some(u32::try_from(value[key].as_u64()?).unwrap_or(u32::MAX));
    Some(Position { line: number("line")?, character: number("character")? })
}

fn missing(pointer: &str, what: &str) -> Failure {
    Failure::parameters(format!("the parameters have no {}, {what}", pointer.trim_start_matches('/').replace('/', ".")))
}
