//! The protocol's names of element types, and text in binary tensors.

use of_plan::ElementType;

use crate::error::ServeError;
use crate::proto::DataType;

/// Element types that the protocol has: name, number in a configuration, the runtime's type.
const TYPES: [(&str, DataType, ElementType); 14] = [
    ("BOOL", DataType::TypeBool, ElementType::I1),
    ("UINT8", DataType::TypeUint8, ElementType::Ui8),
    ("UINT16", DataType::TypeUint16, ElementType::Ui16),
    ("UINT32", DataType::TypeUint32, ElementType::Ui32),
    ("UINT64", DataType::TypeUint64, ElementType::Ui64),
    ("INT8", DataType::TypeInt8, ElementType::I8),
    ("INT16", DataType::TypeInt16, ElementType::I16),
    ("INT32", DataType::TypeInt32, ElementType::I32),
    ("INT64", DataType::TypeInt64, ElementType::I64),
    ("FP16", DataType::TypeFp16, ElementType::F16),
    ("FP32", DataType::TypeFp32, ElementType::F32),
    ("FP64", DataType::TypeFp64, ElementType::F64),
    ("BYTES", DataType::TypeString, ElementType::String),
    ("BF16", DataType::TypeBf16, ElementType::Bf16),
];

/// The protocol's names of all types.
pub fn names() -> impl Iterator<Item = &'static str> {
    TYPES.iter().map(|t| t.0)
}

/// The protocol's name of a type; `None` where it has none.
pub fn name(dtype: ElementType) -> Option<&'static str> {
    TYPES.iter().find(|t| t.2 == dtype).map(|t| t.0)
}

/// The type of a tensor that a request names.
///
/// # Errors
/// When the protocol has no such type.
pub fn parse(text: &str) -> Result<ElementType, ServeError> {
    let found = TYPES.iter().find(|t| t.0 == text).map(|t| t.2);
    found.ok_or_else(|| ServeError::invalid(format!("unknown datatype '{}'", text.escape_debug())))
}

/// The type that a configuration names.
pub fn of_config(text: &str) -> Option<ElementType> {
    TYPES.iter().find(|t| t.1.as_str_name() == text).map(|t| t.2)
}

/// The number of a type in a configuration.
pub fn config_type(dtype: ElementType) -> DataType {
    TYPES.iter().find(|t| t.2 == dtype).map_or(DataType::TypeInvalid, |t| t.1)
}

/// Texts of a binary tensor: each is its length in four bytes, the lowest first, and its bytes.
///
/// # Errors
/// When the bytes end too early, or are not UTF-8.
pub fn decode_texts(mut bytes: &[u8]) -> Result<Vec<String>, ServeError> {
    let mut texts = Vec::new();
    while !bytes.is_empty() {
        let (len, rest) = bytes.split_first_chunk().ok_or_else(|| ServeError::invalid("a BYTES tensor is cut off"))?;
        let len = u32::from_le_bytes(*len) as usize;
        let text = rest.get(..len).ok_or_else(|| {
            ServeError::invalid(format!("a BYTES tensor has {} bytes left for a text of {len}", rest.len()))
        })?;
        texts.push(text_of(text.to_vec())?);
        bytes = &rest[len..];
    }
    Ok(texts)
}

/// Where the text of a number begins in a binary tensor; that of the number of all texts is the end.
pub fn text_offset(bytes: &[u8], number: usize) -> Option<usize> {
    (0..number).try_fold(0_usize, |at, _| {
        let len = u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?) as usize;
        at.checked_add(4)?.checked_add(len).filter(|end| *end <= bytes.len())
    })
}

/// One text.
///
/// # Errors
/// When the bytes are not UTF-8.
pub fn text_of(bytes: Vec<u8>) -> Result<String, ServeError> {
    String::from_utf8(bytes).map_err(|_| ServeError::invalid("an element of a BYTES tensor is not UTF-8"))
}

/// The reverse of [`decode_texts`].
pub fn encode_texts(texts: &[String]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(texts.iter().map(|t| t.len() + 4).sum());
    for text in texts {
        bytes.extend_from_slice(&(text.len() as u32).to_le_bytes());
        bytes.extend_from_slice(text.as_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for (text, number, dtype) in TYPES {
            assert_eq!((name(dtype), parse(text), config_type(dtype)), (Some(text), Ok(dtype), number));
        }
        assert_eq!(name(ElementType::I4), None);
        assert!(parse("FP8").is_err());
    }

    #[test]
    fn texts_round_trip_and_damage_is_an_error() {
        let texts = ["".to_string(), "é".into(), "abc".into()];
        let bytes = encode_texts(&texts);
        assert_eq!(decode_texts(&bytes).unwrap(), texts);
        assert!(decode_texts(&bytes[..bytes.len() - 1]).is_err());
        assert!(decode_texts(&[1, 0, 0]).is_err() && decode_texts(&[1, 0, 0, 0, 255]).is_err());
    }
}
