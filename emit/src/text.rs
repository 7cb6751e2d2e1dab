//! Lines of text, value names, and literals in MLIR's syntax.

use std::fmt::{Display, Write};

use of_ir::{DType, Elements, Tensor};

/// Statements of a function's body, one for each line, and the number of named values.
pub struct Text {
    /// The lines.
    pub lines: String,
    prefix: &'static str,
    next: usize,
}

impl Text {
    /// An empty text. Names of values begin with `prefix`.
    pub fn new(prefix: &'static str) -> Text {
        Text { lines: String::new(), prefix, next: 0 }
    }

    /// A number that no value name has used yet.
    pub fn number(&mut self) -> usize {
        self.next += 1;
        self.next - 1
    }

    /// A new value name.
    pub fn fresh(&mut self) -> String {
        let number = self.number();
        format!("{}{number}", self.prefix)
    }

    /// Appends a line to the body of a function.
    pub fn line(&mut self, line: &str) {
        self.lines.extend(["    ", line, "\n"]);
    }
}

/// `[1, 2]`.
pub fn list<T: Display>(list: &[T]) -> String {
    format!("[{}]", list.iter().map(T::to_string).collect::<Vec<_>>().join(", "))
}

/// Hexadecimal digits of bytes, in order: `0AFF`.
pub fn hex<'b>(bytes: impl IntoIterator<Item = &'b u8>) -> String {
    bytes.into_iter().fold(String::new(), |mut digits, byte| {
        let _ = write!(digits, "{byte:02X}");
        digits
    })
}

/// The bytes of the nearest element of this type to a number.
pub fn element_bytes(dtype: DType, x: f64) -> Vec<u8> {
    // The largest i64 is not an f64; the next f64 above represents it.
    let (low, high) = dtype.int_range().unwrap_or((i128::MIN, i128::MAX));
    let int = (x as i128).clamp(low, high);
    let element = if dtype.is_float() { Elements::Float(vec![x]) } else { Elements::Int(vec![int]) };
    let tensor = Tensor::from_elements(dtype, vec![], element).ok();
    tensor.and_then(|t| Some(t.bytes()?.to_vec())).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_counted_and_lines_are_indented() {
        let mut text = Text::new("%v");
        assert_eq!((text.fresh(), text.number(), text.fresh()), ("%v0".into(), 1, "%v2".into()));
        text.line("return");
        assert_eq!(text.lines, "    return\n");
    }

    #[test]
    fn integers_saturate_at_the_type_limits() {
        assert_eq!(element_bytes(DType::I64, 1e30), i64::MAX.to_le_bytes());
        assert_eq!(element_bytes(DType::U8, -1.0), [0]);
        assert_eq!(hex(&element_bytes(DType::F32, 1.0)), "0000803F");
    }
}
