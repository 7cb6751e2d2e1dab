//! Tensor values: constants in the IR and the values of the reference evaluation.

use std::borrow::Cow;
use std::sync::Arc;

use half::{bf16, f16};

use crate::{Blob, DType, Rounding, TensorType, packing, small_float};

/// A dense tensor value, row-major. Cheap to clone.
#[derive(Clone, PartialEq, Debug)]
pub struct Tensor {
    dtype: DType,
    dims: Vec<usize>,
    data: Data,
}

#[derive(Clone, PartialEq, Debug)]
enum Data {
    Bytes(Blob),
    Strings(Arc<Vec<String>>),
}

/// Why bytes and a shape do not make a tensor.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TensorError {
    /// The number of bytes does not fit the shape.
    #[error("a tensor {dtype} of shape {dims:?} needs {expected} bytes, there are {got}")]
    Length {
        /// Element type.
        dtype: DType,
        /// Dimensions.
        dims: Vec<usize>,
        /// Bytes (or strings) that the shape requires.
        expected: usize,
        /// Bytes (or strings) given.
        got: usize,
    },
    /// The shape has more elements than memory can hold.
    #[error("a tensor of shape {0:?} is too large")]
    TooLarge(Vec<usize>),
    /// Bytes cannot hold strings.
    #[error("a string tensor is not made of bytes")]
    Strings,
}

/// Rust types that are elements of tensors.
pub trait Element: bytemuck::Pod {
    /// The element type.
    const DTYPE: DType;
}

macro_rules! elements {
    ($($rust:ty => $dtype:ident),*) => {
        $(impl Element for $rust { const DTYPE: DType = DType::$dtype; })*
    };
}
elements!(f64 => F64, f32 => F32, f16 => F16, bf16 => BF16, i8 => I8, i16 => I16, i32 => I32, i64 => I64,
          u8 => U8, u16 => U16, u32 => U32, u64 => U64);

/// Elements converted to the widest type of their class, for plain and exact computation.
#[derive(Clone, PartialEq, Debug)]
pub enum Elements {
    /// Any float type.
    Float(Vec<f64>),
    /// Any integer type, and bool as 0 and 1.
    Int(Vec<i128>),
    /// Strings.
    Str(Vec<String>),
}

/// Number of elements, as long as so many can be addressed.
pub(crate) fn count(dims: &[usize]) -> Result<usize, TensorError> {
    // Zeros are passed over, so that every product of some of the dimensions fits too.
    dims.iter()
        .filter(|d| **d != 0)
        .try_fold(1usize, |n, d| n.checked_mul(*d))
        .filter(|n| *n <= isize::MAX as usize / 16)
        .map(|n| if dims.contains(&0) { 0 } else { n })
        .ok_or_else(|| TensorError::TooLarge(dims.to_vec()))
}

impl Tensor {
    /// A tensor over packed little-endian bytes.
    ///
    /// # Errors
    /// When the length does not fit or the type is string.
    pub fn from_bytes(dtype: DType, dims: Vec<usize>, bytes: Blob) -> Result<Tensor, TensorError> {
        let n = count(&dims)?;
        let expected = dtype.byte_len(n).ok_or(TensorError::Strings)?;
        if bytes.len() != expected {
            return Err(TensorError::Length { dtype, dims, expected, got: bytes.len() });
        }
        Ok(Tensor { dtype, dims, data: Data::Bytes(bytes) })
    }

    /// A tensor of strings.
    ///
    /// # Errors
    /// When the count does not fit.
    pub fn from_strings(dims: Vec<usize>, strings: Vec<String>) -> Result<Tensor, TensorError> {
        let expected = count(&dims)?;
        if strings.len() != expected {
            return Err(TensorError::Length { dtype: DType::String, dims, expected, got: strings.len() });
        }
        Ok(Tensor { dtype: DType::String, dims, data: Data::Strings(Arc::new(strings)) })
    }

    /// A tensor that copies a slice.
    ///
    /// # Errors
    /// When the count does not fit.
    pub fn from_slice<T: Element>(dims: &[usize], values: &[T]) -> Result<Tensor, TensorError> {
        Tensor::from_bytes(T::DTYPE, dims.to_vec(), Blob::new(bytemuck::cast_slice(values).to_vec()))
    }

    /// A tensor of rank 0.
    pub fn scalar<T: Element>(value: T) -> Tensor {
        Tensor { dtype: T::DTYPE, dims: Vec::new(), data: Data::Bytes(Blob::new(bytemuck::bytes_of(&value).to_vec())) }
    }

    /// A tensor of rank 1 of 64-bit integers: shapes, axes, pads.
    pub fn from_i64s(values: &[i64]) -> Tensor {
        let data = Data::Bytes(Blob::new(bytemuck::cast_slice(values).to_vec()));
        Tensor { dtype: DType::I64, dims: vec![values.len()], data }
    }

    /// A tensor over elements that take whole bytes each: those narrower than a byte take one, in its low bits.
    ///
    /// # Errors
    /// As [`Tensor::from_bytes`].
    pub fn from_cells(dtype: DType, dims: Vec<usize>, cells: Vec<u8>) -> Result<Tensor, TensorError> {
        if !dtype.is_packed() {
            return Tensor::from_bytes(dtype, dims, Blob::new(cells));
        }
        let expected = count(&dims)?;
        if cells.len() != expected {
            return Err(TensorError::Length { dtype, dims, expected, got: cells.len() });
        }
        let packed = packing::pack(dtype.bits().unwrap_or(8), &cells);
        Ok(Tensor { dtype, dims, data: Data::Bytes(Blob::new(packed)) })
    }

    /// Rounds `elements` to `dtype`: floats to nearest even, integers wrap, small floats as [`Rounding::DEFAULT`] says.
    ///
    /// # Errors
    /// When the count does not match, or `elements` are strings and `dtype` is a number type, or the reverse.
    pub fn from_elements(dtype: DType, dims: Vec<usize>, elements: Elements) -> Result<Tensor, TensorError> {
        Tensor::rounded(dtype, dims, elements, Rounding::DEFAULT)
    }

    /// [`Tensor::from_elements`], with small floats rounded as `rounding` says.
    ///
    /// # Errors
    /// The same.
    pub fn rounded(
        dtype: DType,
        dims: Vec<usize>,
        elements: Elements,
        rounding: Rounding,
    ) -> Result<Tensor, TensorError> {
        let n = count(&dims)?;
        let got = match &elements {
            Elements::Float(v) => v.len(),
            Elements::Int(v) => v.len(),
            Elements::Str(v) => v.len(),
        };
        if got != n {
            return Err(TensorError::Length { dtype, dims, expected: n, got });
        }
        let cells = match elements {
            Elements::Str(v) => {
                return if dtype == DType::String { Tensor::from_strings(dims, v) } else { Err(TensorError::Strings) };
            }
            Elements::Float(v) if dtype.is_float() => encode_floats(dtype, &v, rounding),
            // Truncation towards zero, saturating; NaN gives 0. Packed elements take the low bits, as ONNX casts.
            Elements::Float(v) if dtype == DType::Bool => v.iter().map(|x| u8::from(*x != 0.0)).collect(),
            Elements::Float(v) => {
                let range = if dtype.is_packed() { DType::I32 } else { dtype }.int_range();
                let (lo, hi) = range.ok_or(TensorError::Strings)?;
                encode_ints(dtype, v.iter().map(|x| (*x as i128).clamp(lo, hi)))
            }
            Elements::Int(v) if dtype == DType::F64 => v.iter().flat_map(|x| (*x as f64).to_le_bytes()).collect(),
            Elements::Int(v) if dtype.is_float() => {
                encode_floats(dtype, &v.iter().map(|x| odd_f64(*x)).collect::<Vec<_>>(), rounding)
            }
            Elements::Int(v) if dtype == DType::Bool => v.iter().map(|x| u8::from(*x != 0)).collect(),
            Elements::Int(v) if dtype.is_int() => encode_ints(dtype, v.into_iter()),
            Elements::Int(_) => return Err(TensorError::Strings),
        };
        Tensor::from_cells(dtype, dims, cells)
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Dimensions.
    pub fn dims(&self) -> &[usize] {
        &self.dims
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.dims.iter().product()
    }

    /// Whether it has no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Its type.
    pub fn ty(&self) -> TensorType {
        TensorType::fixed(self.dtype, &self.dims)
    }

    /// The packed little-endian bytes; `None` for strings.
    pub fn bytes(&self) -> Option<&Blob> {
        match &self.data {
            Data::Bytes(b) => Some(b),
            Data::Strings(_) => None,
        }
    }

    /// The inverse of [`Tensor::from_cells`]: bytes of one element, all elements; `None` for strings.
    pub fn cells(&self) -> Option<(usize, Cow<'_, [u8]>)> {
        let (bytes, bits) = (self.bytes()?, self.dtype.bits()?);
        Some(match self.dtype.is_packed() {
            true => (1, Cow::Owned(packing::unpack(bits, self.len(), bytes))),
            false => (bits / 8, Cow::Borrowed(bytes)),
        })
    }

    /// The strings of a string tensor.
    pub fn strings(&self) -> Option<&[String]> {
        match &self.data {
            Data::Strings(s) => Some(s),
            Data::Bytes(_) => None,
        }
    }

    /// The elements as a slice, copied only where the bytes are not aligned; `None` where the type is another.
    pub fn as_slice<T: Element>(&self) -> Option<Cow<'_, [T]>> {
        if self.dtype != T::DTYPE {
            return None;
        }
        let bytes: &[u8] = self.bytes()?;
        Some(match bytemuck::try_cast_slice(bytes) {
            Ok(s) => Cow::Borrowed(s),
            Err(_) => Cow::Owned(bytemuck::allocation::pod_collect_to_vec(bytes)),
        })
    }

    /// The same data with other dimensions.
    ///
    /// # Errors
    /// When the number of elements changes.
    pub fn reshaped(&self, dims: Vec<usize>) -> Result<Tensor, TensorError> {
        let expected = count(&dims)?;
        if expected != self.len() {
            return Err(TensorError::Length { dtype: self.dtype, dims, expected, got: self.len() });
        }
        Ok(Tensor { dims, ..self.clone() })
    }

    /// Every element in the widest type of its class.
    pub fn elements(&self) -> Elements {
        let cells = match &self.data {
            Data::Strings(s) => return Elements::Str(s.to_vec()),
            Data::Bytes(_) => self.cells().map_or(Cow::Borrowed(&[][..]), |c| c.1),
        };
        let bytes = &*cells;
        fn ints<T: Element + Into<i128>>(b: &[u8]) -> Elements {
            Elements::Int(b.chunks_exact(size_of::<T>()).map(|c| bytemuck::pod_read_unaligned::<T>(c).into()).collect())
        }
        fn floats<T: Element>(b: &[u8], f: impl Fn(T) -> f64) -> Elements {
            Elements::Float(b.chunks_exact(size_of::<T>()).map(|c| f(bytemuck::pod_read_unaligned(c))).collect())
        }
        // Integers narrower than a byte, with the sign moved to the top of the byte and back.
        let spare = 8 - self.dtype.bits().unwrap_or(8).min(8);
        match self.dtype {
            DType::F64 => floats::<f64>(bytes, |x| x),
            DType::F32 => floats::<f32>(bytes, f64::from),
            DType::F16 => floats::<f16>(bytes, f64::from),
            DType::BF16 => floats::<bf16>(bytes, f64::from),
            DType::F8E4M3FN
            | DType::F8E4M3FNUZ
            | DType::F8E5M2
            | DType::F8E5M2FNUZ
            | DType::F8E8M0FNU
            | DType::F4E2M1FN => Elements::Float(bytes.iter().map(|b| small_float::decode(self.dtype, *b)).collect()),
            DType::I2 | DType::I4 => {
                Elements::Int(bytes.iter().map(|b| ((b << spare) as i8 >> spare).into()).collect())
            }
            DType::I8 => ints::<i8>(bytes),
            DType::I16 => ints::<i16>(bytes),
            DType::I32 => ints::<i32>(bytes),
            DType::I64 => ints::<i64>(bytes),
            DType::U2 | DType::U4 | DType::U8 | DType::Bool => ints::<u8>(bytes),
            DType::U16 => ints::<u16>(bytes),
            DType::U32 => ints::<u32>(bytes),
            DType::U64 => ints::<u64>(bytes),
            DType::String => Elements::Str(Vec::new()),
        }
    }

    /// Whether all bits are 0.
    pub fn is_zero(&self) -> bool {
        self.bytes().is_some_and(|bytes| bytes.iter().all(|b| *b == 0))
    }

    /// Whether all elements have the same bits; not those of strings. Without elements, they have.
    pub fn is_splat(&self) -> bool {
        self.cells().is_some_and(|(width, cells)| cells.chunks(width).all(|element| element == &cells[..width]))
    }

    /// Numbers as `f64`, whatever the type; `None` for strings.
    pub fn to_f64s(&self) -> Option<Vec<f64>> {
        match self.elements() {
            Elements::Float(v) => Some(v),
            Elements::Int(v) => Some(v.into_iter().map(|x| x as f64).collect()),
            Elements::Str(_) => None,
        }
    }

    /// Integers (or bools) as `i64`; `None` for other types, values of u64 above the range saturate.
    pub fn to_i64s(&self) -> Option<Vec<i64>> {
        match self.elements() {
            Elements::Int(v) => Some(v.into_iter().map(|x| x.clamp(i64::MIN.into(), i64::MAX.into()) as i64).collect()),
            _ => None,
        }
    }
}

/// An integer as a float that rounds to any narrower type as the integer itself would: where bits are lost, the last one
/// that is kept is set, so that no tie appears which there was not.
///
/// Source: Boldo, Melquiond: "When double rounding is odd" (2005).
fn odd_f64(x: i128) -> f64 {
    let n = x.unsigned_abs();
    let lost = 75u32.saturating_sub(n.leading_zeros());
    let kept = n >> lost;
    let sticky = u128::from(kept << lost != n);
    let magnitude = (kept | sticky) as f64 * 2f64.powi(lost as i32);
    if x < 0 { -magnitude } else { magnitude }
}

/// A float that rounds to any type of up to 16 bits as `x` itself would, like [`odd_f64`].
pub(crate) fn odd_f32(x: f64) -> f32 {
    let y = x as f32;
    if y.is_nan() || y.is_infinite() || f64::from(y) == x {
        return y;
    }
    let beyond = u32::from(f64::from(y).abs() > x.abs());
    f32::from_bits((y.to_bits() - beyond) | 1)
}

/// The elements as [`Tensor::from_cells`] takes them.
fn encode_floats(dtype: DType, v: &[f64], rounding: Rounding) -> Vec<u8> {
    match dtype {
        DType::F64 => bytemuck::cast_slice(v).to_vec(),
        DType::F32 => v.iter().flat_map(|x| (*x as f32).to_le_bytes()).collect(),
        DType::F16 => v.iter().flat_map(|x| f16::from_f32(odd_f32(*x)).to_le_bytes()).collect(),
        DType::BF16 => v.iter().flat_map(|x| bf16::from_f32(odd_f32(*x)).to_le_bytes()).collect(),
        _ => v.iter().map(|x| small_float::encode(dtype, *x, rounding)).collect(),
    }
}

/// The low bits of the elements, as [`Tensor::from_cells`] takes them.
fn encode_ints(dtype: DType, v: impl Iterator<Item = i128>) -> Vec<u8> {
    match dtype.bits() {
        Some(16) => v.flat_map(|x| (x as u16).to_le_bytes()).collect(),
        Some(32) => v.flat_map(|x| (x as u32).to_le_bytes()).collect(),
        Some(64) => v.flat_map(|x| (x as u64).to_le_bytes()).collect(),
        _ => v.map(|x| x as u8).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_round_trips_small_integers() {
        for dtype in DType::ALL.into_iter().filter(|d| *d != DType::String) {
            let e = Elements::Int(vec![1, 1, 1, 1, 1]);
            let t = Tensor::from_elements(dtype, vec![5], e).unwrap();
            assert_eq!(t.to_f64s().unwrap(), vec![1.0; 5], "{dtype}");
            assert_eq!(t.bytes().unwrap().len(), dtype.byte_len(5).unwrap());
        }
    }

    #[test]
    fn float_conversions_saturate_and_integer_conversions_wrap() {
        let f = |d, v: f64| Tensor::from_elements(d, vec![], Elements::Float(vec![v])).unwrap().to_f64s().unwrap()[0];
        assert_eq!(f(DType::I8, 300.7), 127.0);
        assert_eq!(f(DType::U8, -3.0), 0.0);
        assert_eq!(f(DType::I32, f64::NAN), 0.0);
        assert_eq!(f(DType::Bool, 0.5), 1.0);
        let i = |d, v: i128| Tensor::from_elements(d, vec![], Elements::Int(vec![v])).unwrap().to_i64s().unwrap()[0];
        assert_eq!(i(DType::I8, 200), -56);
        assert_eq!(i(DType::I4, 9), -7);
        assert_eq!((i(DType::I2, 2), i(DType::U2, 7)), (-2, 3));
        // Just above the middle of two bfloat16 numbers, by less than f64 resolves.
        let x = (1i128 << 60) + (1 << 52) + 1;
        for (x, y) in [(x, (1i64 << 60) + (1 << 53)), (x - 1, 1 << 60), (-x, -(1 << 60) - (1 << 53))] {
            let t = Tensor::from_elements(DType::BF16, vec![], Elements::Int(vec![x])).unwrap();
            assert_eq!(t.to_f64s().unwrap(), [y as f64]);
        }
        // Just above the middle of two float16 numbers, by less than f32 resolves; and the largest finite one.
        assert_eq!(f(DType::F16, 1.0 + 2f64.powi(-11) + 2f64.powi(-40)), 1.0 + 2f64.powi(-10));
        assert_eq!(f(DType::F16, -1.0 - 2f64.powi(-11)), -1.0);
        assert_eq!((f(DType::F16, 65519.999999), f(DType::F16, 65520.0)), (65504.0, f64::INFINITY));
        assert_eq!((f(DType::F16, 1e-300), f(DType::BF16, -1e300)), (0.0, f64::NEG_INFINITY));
    }

    #[test]
    fn a_splat_has_the_same_bits_in_all_elements() {
        let is_splat = |t: Tensor| t.is_splat();
        let of_bits = |bits: [u32; 3]| {
            let bytes: Vec<u8> = bits.iter().flat_map(|x| x.to_ne_bytes()).collect();
            Tensor::from_bytes(DType::F32, vec![3], Blob::new(bytes)).unwrap()
        };
        let nan = f32::NAN.to_bits();
        assert!(is_splat(of_bits([nan; 3])) && !is_splat(of_bits([nan, nan, nan + 1])));
        assert!(!is_splat(of_bits([0, 0, (-0.0f32).to_bits()])));
        for dtype in DType::ALL.into_iter().filter(|d| *d != DType::String) {
            let of = |v: &[i128]| Tensor::from_elements(dtype, vec![v.len()], Elements::Int(v.to_vec())).unwrap();
            assert!(is_splat(of(&[])) && is_splat(of(&[1])) && is_splat(of(&[1; 5])), "{dtype}");
            // The last of five elements is in a byte of its own where they are smaller.
            let other = if dtype == DType::F8E8M0FNU { 2 } else { 0 };
            assert!(!is_splat(of(&[1, 1, 1, 1, other])) && !is_splat(of(&[1, other, 1, 1])), "{dtype}");
        }
        let strings = Tensor::from_elements(DType::String, vec![2], Elements::Str(vec!["a".into(); 2])).unwrap();
        assert!(!is_splat(strings));
    }

    #[test]
    fn wrong_lengths_are_refused() {
        assert!(Tensor::from_bytes(DType::F32, vec![2], Blob::new(vec![0; 7])).is_err());
        assert!(Tensor::from_bytes(DType::F32, vec![usize::MAX, 2], Blob::new(vec![])).is_err());
        assert!(Tensor::from_strings(vec![2], vec!["a".into()]).is_err());
    }
}
