//! Input and output values of a run.

use of_plan::{ElementType, InputDims};

use crate::device::AlignedBytes;

/// A tensor, a sequence of values, or an optional value.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A tensor.
    Tensor(Tensor),
    /// A list.
    Sequence(Vec<Value>),
    /// A value that may be absent.
    Optional(Option<Box<Value>>),
}

/// A tensor that owns its elements: row-major, sub-byte types packed, the first element in the lowest bits.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    dtype: ElementType,
    dims: Vec<i64>,
    data: TensorData,
}

/// The elements of a tensor.
#[derive(Clone, Debug, PartialEq)]
pub enum TensorData {
    /// Elements of a fixed size.
    Bytes(AlignedBytes),
    /// Text.
    Strings(Vec<String>),
}

/// A tensor whose parts do not fit together.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ValueError {
    /// No tensor has this type and these extents.
    #[error("a tensor cannot have element type {dtype} and extents {dims:?}")]
    Type {
        /// Element type.
        dtype: ElementType,
        /// Extents.
        dims: Vec<i64>,
    },
    /// The data is longer or shorter than the extents say.
    #[error("a tensor {dtype}{dims:?} holds {expected} {unit}, not {got}")]
    Size {
        /// Element type.
        dtype: ElementType,
        /// Extents.
        dims: Vec<i64>,
        /// What is counted.
        unit: &'static str,
        /// What the type needs.
        expected: u64,
        /// What was given.
        got: u64,
    },
}

impl Tensor {
    /// A tensor of bytes. External bytes that are not aligned to the elements are copied.
    pub fn new(dtype: ElementType, dims: impl Into<Vec<i64>>, bytes: AlignedBytes) -> Result<Self, ValueError> {
        let dims = dims.into();
        check_size(dtype, &dims, bytes.len())?;
        let is_aligned = (bytes.as_ptr() as u64).is_multiple_of(dtype.align());
        let bytes = if is_aligned { bytes } else { bytes[..].into() };
        Ok(Self { dtype, dims, data: TensorData::Bytes(bytes) })
    }

    /// A tensor with a copy of these bytes.
    pub fn from_bytes(dtype: ElementType, dims: impl Into<Vec<i64>>, bytes: &[u8]) -> Result<Self, ValueError> {
        let dims = dims.into();
        check_size(dtype, &dims, bytes.len())?;
        Ok(Self { dtype, dims, data: TensorData::Bytes(bytes.into()) })
    }

    /// A tensor of zeros.
    pub fn zeros(dtype: ElementType, dims: impl Into<Vec<i64>>) -> Result<Self, ValueError> {
        let dims = dims.into();
        let len = dtype.byte_len(&dims).and_then(|len| usize::try_from(len).ok());
        // `Vec` cannot hold more than this, and an extent can come from a file.
        let len = len.filter(|&len| len <= isize::MAX as usize - 64);
        let len = len.ok_or_else(|| ValueError::Type { dtype, dims: dims.clone() })?;
        Self::new(dtype, dims, AlignedBytes::zeroed(len))
    }

    /// A tensor of text.
    pub fn from_strings(dims: impl Into<Vec<i64>>, strings: Vec<String>) -> Result<Self, ValueError> {
        let (dims, dtype) = (dims.into(), ElementType::String);
        // As many elements as a tensor of bytes has bytes.
        let count = ElementType::Ui8.byte_len(&dims).ok_or_else(|| ValueError::Type { dtype, dims: dims.clone() })?;
        let got = strings.len() as u64;
        if got != count {
            return Err(ValueError::Size { dtype, dims, unit: "strings", expected: count, got });
        }
        Ok(Self { dtype, dims, data: TensorData::Strings(strings) })
    }

    /// A tensor of these elements.
    pub fn from_elements<T: Element>(dims: impl Into<Vec<i64>>, elements: &[T]) -> Result<Self, ValueError> {
        let mut bytes = AlignedBytes::zeroed(size_of_val(elements));
        for (place, element) in bytes.chunks_exact_mut(size_of::<T>()).zip(elements) {
            element.store(place);
        }
        Self::new(T::DTYPE, dims, bytes)
    }

    /// The elements, when they are of this type.
    pub fn to_elements<T: Element>(&self) -> Option<Vec<T>> {
        let bytes = self.bytes().filter(|_| self.dtype == T::DTYPE)?;
        Some(bytes.chunks_exact(size_of::<T>()).map(T::load).collect())
    }

    /// Element type.
    pub fn dtype(&self) -> ElementType {
        self.dtype
    }

    /// Extents.
    pub fn dims(&self) -> &[i64] {
        &self.dims
    }

    /// The elements.
    pub fn data(&self) -> &TensorData {
        &self.data
    }

    /// The bytes; none for text.
    pub fn bytes(&self) -> Option<&[u8]> {
        match &self.data {
            TensorData::Bytes(bytes) => Some(bytes),
            TensorData::Strings(_) => None,
        }
    }

    /// The bytes, to write to; none for text.
    pub fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        match &mut self.data {
            TensorData::Bytes(bytes) => Some(bytes),
            TensorData::Strings(_) => None,
        }
    }

    /// Whether its bytes are the runtime's, and no clone shares them.
    pub(crate) fn is_own(&mut self) -> bool {
        match &mut self.data {
            TensorData::Bytes(bytes) => bytes.is_own(),
            TensorData::Strings(_) => false,
        }
    }

    /// The bytes, taken out; none for text.
    pub fn into_bytes(self) -> Option<AlignedBytes> {
        match self.data {
            TensorData::Bytes(bytes) => Some(bytes),
            TensorData::Strings(_) => None,
        }
    }

    /// The text; none for bytes.
    pub fn strings(&self) -> Option<&[String]> {
        match &self.data {
            TensorData::Strings(strings) => Some(strings),
            TensorData::Bytes(_) => None,
        }
    }

    /// The same elements under other extents.
    pub fn reshaped(mut self, dims: impl Into<Vec<i64>>) -> Result<Self, ValueError> {
        let dims = dims.into();
        match self.data {
            TensorData::Bytes(bytes) => Self::new(self.dtype, dims, bytes),
            TensorData::Strings(ref mut strings) => Self::from_strings(dims, std::mem::take(strings)),
        }
    }
}

fn check_size(dtype: ElementType, dims: &[i64], got: usize) -> Result<(), ValueError> {
    let expected = dtype.byte_len(dims).ok_or_else(|| ValueError::Type { dtype, dims: dims.into() })?;
    let got = got as u64;
    if got == expected {
        return Ok(());
    }
    Err(ValueError::Size { dtype, dims: dims.into(), unit: "bytes", expected, got })
}

impl Value {
    /// The tensor, when it is one.
    pub fn as_tensor(&self) -> Option<&Tensor> {
        match self {
            Value::Tensor(tensor) => Some(tensor),
            _ => None,
        }
    }

    /// The tensor, when it is one.
    pub fn into_tensor(self) -> Option<Tensor> {
        match self {
            Value::Tensor(tensor) => Some(tensor),
            _ => None,
        }
    }

    /// The same value without external memory: what an external owner has is copied.
    pub(crate) fn without_external(self) -> Value {
        match self {
            Value::Tensor(Tensor { dtype, dims, data: TensorData::Bytes(bytes) }) if bytes.is_external() => {
                Value::Tensor(Tensor { dtype, dims, data: TensorData::Bytes(bytes[..].into()) })
            }
            Value::Sequence(values) => Value::Sequence(values.into_iter().map(Value::without_external).collect()),
            Value::Optional(Some(value)) => Value::Optional(Some(Box::new(value.without_external()))),
            other => other,
        }
    }

    /// What [`of_plan::PlanFile::find_program`] needs to know of the value.
    pub fn input_dims(&self) -> InputDims<'_> {
        self.as_tensor().map(|tensor| (tensor.dtype(), tensor.dims()))
    }
}

impl From<Tensor> for Value {
    fn from(tensor: Tensor) -> Self {
        Value::Tensor(tensor)
    }
}

/// A Rust type that is a tensor's element.
pub trait Element: Copy {
    /// Its element type.
    const DTYPE: ElementType;
    /// Writes it to exactly its bytes.
    fn store(self, bytes: &mut [u8]);
    /// Reads it from exactly its bytes.
    fn load(bytes: &[u8]) -> Self;
}

macro_rules! elements {
    ($($rust:ty = $variant:ident),*) => {$(
        impl Element for $rust {
            const DTYPE: ElementType = ElementType::$variant;

            fn store(self, bytes: &mut [u8]) {
                bytes.copy_from_slice(&self.to_ne_bytes());
            }

            fn load(bytes: &[u8]) -> Self {
                let mut word = [0; size_of::<$rust>()];
                word.copy_from_slice(bytes);
                Self::from_ne_bytes(word)
            }
        }
    )*};
}

elements!(f32 = F32, f64 = F64, i8 = I8, i16 = I16, i32 = I32, i64 = I64, u8 = Ui8, u16 = Ui16, u32 = Ui32, u64 = Ui64);

impl Element for bool {
    const DTYPE: ElementType = ElementType::I1;

    fn store(self, bytes: &mut [u8]) {
        bytes[0] = self as u8;
    }

    fn load(bytes: &[u8]) -> Self {
        bytes[0] != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_hold_what_their_type_says() {
        let tensor = Tensor::from_elements(vec![2, 2], &[1.0f32, 2.0, 3.0, 4.0]).unwrap();
        assert_eq!(tensor.to_elements::<f32>(), Some(vec![1.0, 2.0, 3.0, 4.0]));
        assert_eq!(tensor.to_elements::<i32>(), None);
        assert_eq!(tensor.bytes().unwrap().as_ptr() as usize % 64, 0);
        assert!(Tensor::from_elements(vec![3], &[1u8, 2]).is_err());
        assert!(Tensor::from_bytes(ElementType::F32, vec![-1], &[]).is_err());
        assert!(Tensor::from_bytes(ElementType::F32, vec![2], &[0; 4]).is_err());
        assert!(Tensor::zeros(ElementType::F32, vec![i64::MAX, 2]).is_err());
        assert!(Tensor::zeros(ElementType::F32, vec![i64::MAX]).is_err());
        assert!(Tensor::zeros(ElementType::String, vec![2]).is_err());
    }

    struct Foreign(Vec<u8>, usize);

    impl crate::ExternalBytes for Foreign {
        fn bytes(&self) -> &[u8] {
            &self.0[self.1..]
        }

        fn bytes_mut(&mut self) -> Option<&mut [u8]> {
            None
        }
    }

    #[test]
    fn external_bytes_are_copied_unless_they_are_aligned_to_the_elements() {
        let tensor = |dtype, offset, len| {
            let mut bytes = vec![0; 64];
            let start = bytes.as_ptr().align_offset(8) + offset;
            bytes.truncate(start + len);
            Tensor::new(dtype, vec![1], AlignedBytes::external(Box::new(Foreign(bytes, start)))).unwrap()
        };
        let is_external = |tensor: Tensor| tensor.into_bytes().unwrap().is_external();
        assert!(is_external(tensor(ElementType::F64, 0, 8)) && is_external(tensor(ElementType::Ui8, 3, 1)));
        assert!(!is_external(tensor(ElementType::F64, 4, 8)) && !is_external(tensor(ElementType::F32, 2, 4)));
    }

    #[test]
    fn text() {
        let text = Tensor::from_strings(vec![2], vec!["a".into(), "b".into()]).unwrap();
        assert_eq!(text.strings().unwrap().len(), 2);
        assert_eq!(text.bytes(), None);
        assert!(Tensor::from_strings(vec![3], vec!["a".into()]).is_err());
        assert_eq!(text.reshaped(vec![2, 1]).unwrap().dims(), [2, 1]);
    }
}
