//! An inference request and its answer, whichever protocol carries them.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use of_plan::ElementType;
use of_runtime::{AlignedBytes, ExternalBytes, Tensor, TensorData, Value};

use crate::datatype;
use crate::error::ServeError;
use crate::traces::RequestTrace;

/// A request for one run.
#[derive(Debug, Default)]
pub struct InferRequest {
    /// The model.
    pub model: String,
    /// Its version; the latest where it is empty.
    pub version: String,
    /// The client's name for the request, which the answer repeats.
    pub id: String,
    /// Inputs, in any order.
    pub inputs: Vec<(String, Tensor)>,
    /// The outputs to return; all of them where none is named.
    pub outputs: Vec<RequestedOutput>,
    /// Lower numbers run first; 0 is the model's default.
    pub priority: u64,
    /// How long it may wait in the queue.
    pub timeout: Option<Duration>,
    /// The sequence that it belongs to.
    pub sequence: Option<SequenceStep>,
    /// Its trace, if it is traced.
    pub trace: Option<Arc<RequestTrace>>,
}

/// The name of a sequence.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum SequenceId {
    /// A number that is not 0.
    Number(u64),
    /// A text that is not empty.
    Text(String),
}

/// What a request is in its sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SequenceStep {
    /// The sequence.
    pub id: SequenceId,
    /// Whether it is the first request.
    pub start: bool,
    /// Whether it is the last request.
    pub end: bool,
}

impl SequenceId {
    /// As many bytes as Triton allows.
    const LONGEST: usize = 128;

    /// A sequence with a number; 0 is none.
    pub fn number(number: u64) -> Option<SequenceId> {
        Some(SequenceId::Number(number)).filter(|_| number != 0)
    }

    /// A sequence with a text; the empty one is none.
    ///
    /// # Errors
    /// When it is too long.
    pub fn text(text: &str) -> Result<Option<SequenceId>, ServeError> {
        if text.len() > Self::LONGEST {
            let what = format!("'sequence_id' has {} bytes, and at most {}", text.len(), Self::LONGEST);
            return Err(ServeError::invalid(what));
        }
        Ok(Some(SequenceId::Text(text.to_owned())).filter(|_| !text.is_empty()))
    }
}

impl std::fmt::Display for SequenceId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            SequenceId::Number(number) => number.fmt(f),
            SequenceId::Text(text) => text.escape_debug().fmt(f),
        }
    }
}

/// An output that a client asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestedOutput {
    /// Its name.
    pub name: String,
    /// Return the indices of so many largest elements, with their values, instead of the tensor; 0 returns the tensor.
    pub classes: usize,
    /// Where the client wants it.
    pub place: OutputPlace,
}

/// Where an output goes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum OutputPlace {
    /// What the protocol has as its default.
    #[default]
    Default,
    /// After the JSON header.
    Binary,
    /// In the JSON header.
    Json,
    /// In a region of shared memory.
    Shared(SharedRange),
}

/// A part of a region of shared memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedRange {
    /// Name of the region.
    pub region: String,
    /// First byte in the region.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

/// A tensor of an answer.
#[derive(Clone, Debug, PartialEq)]
pub struct OutputTensor {
    /// Name.
    pub name: String,
    /// Element type, one of those that the protocol has.
    pub dtype: ElementType,
    /// Extents.
    pub shape: Vec<i64>,
    /// The elements as a binary tensor of the protocol has them.
    pub data: Bytes,
}

/// The bytes of a tensor, whose owner is the runtime.
struct TensorBytes(AlignedBytes);

impl AsRef<[u8]> for TensorBytes {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// Bytes of a request, which runs read in place.
struct RequestBytes(Bytes);

impl ExternalBytes for RequestBytes {
    fn bytes(&self) -> &[u8] {
        &self.0
    }

    fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        None
    }
}

/// A tensor of bytes as a binary tensor of the protocol has them. They are used in place where they are aligned to the
/// elements, and copied where they are not.
///
/// # Errors
/// When their number does not fit the extents.
pub fn tensor(dtype: ElementType, shape: &[i64], data: Bytes) -> Result<Tensor, ServeError> {
    if dtype == ElementType::String {
        return Ok(Tensor::from_strings(shape, datatype::decode_texts(&data)?)?);
    }
    check_bools(dtype, &data)?;
    Ok(Tensor::new(dtype, shape, AlignedBytes::external(Box::new(RequestBytes(data))))?)
}

/// Kernels take bytes of 0 and 1 for granted.
fn check_bools(dtype: ElementType, data: &[u8]) -> Result<(), ServeError> {
    match dtype == ElementType::I1 && data.iter().any(|byte| *byte > 1) {
        true => Err(ServeError::invalid("an element of a BOOL tensor is neither 0 nor 1")),
        false => Ok(()),
    }
}

impl OutputTensor {
    /// An output of a run.
    ///
    /// # Errors
    /// When it is no tensor, or of a type that the protocol lacks.
    pub fn of_value(name: &str, value: Value) -> Result<Self, ServeError> {
        let tensor = value.into_tensor().ok_or_else(|| {
            ServeError::unsupported(format!(
                "output '{name}' is a sequence or optional value, which the protocol lacks"
            ))
        })?;
        let (dtype, shape) = (tensor.dtype(), tensor.dims().to_vec());
        if datatype::name(dtype).is_none() {
            return Err(ServeError::unsupported(format!("output '{name}' is {dtype}, which the protocol lacks")));
        }
        let data = match tensor.data() {
            TensorData::Strings(texts) => datatype::encode_texts(texts).into(),
            TensorData::Bytes(bytes) => Bytes::from_owner(TensorBytes(bytes.clone())),
        };
        Ok(Self { name: name.to_owned(), dtype, shape, data })
    }

    /// The rows `start..start + rows` of dimension 0, which share the bytes. `None` where it does not have them.
    pub fn rows(&self, start: usize, rows: usize) -> Option<Self> {
        let all = usize::try_from(*self.shape.first()?).ok().filter(|n| *n > 0)?;
        let end = start.checked_add(rows).filter(|end| *end <= all)?;
        let mut shape = self.shape.clone();
        *shape.first_mut()? = i64::try_from(rows).ok()?;
        let range = match self.dtype {
            ElementType::String => {
                let texts =
                    self.shape.get(1..)?.iter().try_fold(1, |n, dim| usize::try_from(*dim).ok()?.checked_mul(n))?;
                datatype::text_offset(&self.data, start * texts)?..datatype::text_offset(&self.data, end * texts)?
            }
            _ => {
                let row = self.data.len() / all;
                start * row..end * row
            }
        };
        Some(Self { name: self.name.clone(), dtype: self.dtype, shape, data: self.data.slice(range) })
    }

    /// The protocol's name of its type.
    pub fn datatype(&self) -> &'static str {
        datatype::name(self.dtype).unwrap_or("INVALID")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_requests_and_results_are_not_copied() {
        let data = Bytes::from(vec![0_u8; 256]);
        let aligned = data.as_ptr().align_offset(4);
        let slice = data.slice(aligned..aligned + 64);
        let tensor = tensor(ElementType::F32, &[4, 4], slice.clone()).unwrap();
        assert_eq!(tensor.bytes().unwrap().as_ptr(), slice.as_ptr());
        let own = Tensor::from_elements([2], &[1.0_f32, 2.0]).unwrap();
        let at = own.bytes().unwrap().as_ptr();
        let output = OutputTensor::of_value("y", own.into()).unwrap();
        assert_eq!((output.data.as_ptr(), output.shape, output.data.len()), (at, vec![2], 8));
    }

    #[test]
    fn rows_share_the_bytes_of_the_batch() {
        let text =
            |list: &[&str]| Tensor::from_strings([list.len() as i64], list.iter().map(|t| (*t).into()).collect());
        let texts = OutputTensor::of_value("y", text(&["a", "bc", "", "d"]).unwrap().into()).unwrap();
        let part = OutputTensor::of_value("y", text(&["bc", ""]).unwrap().into()).unwrap();
        assert_eq!((texts.rows(1, 2), texts.rows(3, 2)), (Some(part), None));
        let whole = Tensor::from_elements([3, 2], &[1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0]).unwrap();
        let whole = OutputTensor::of_value("y", whole.into()).unwrap();
        let part = whole.rows(1, 2).unwrap();
        assert_eq!((part.data.as_ptr(), part.shape, part.data.len()), (whole.data[8..].as_ptr(), vec![2, 2], 16));
    }

    #[test]
    fn tensors_that_do_not_fit_their_extents_are_errors() {
        assert!(tensor(ElementType::F32, &[3], Bytes::from_static(&[0; 8])).is_err());
        assert!(tensor(ElementType::F32, &[-1], Bytes::new()).is_err());
        assert!(tensor(ElementType::I1, &[1], Bytes::from_static(&[2])).is_err());
        assert!(tensor(ElementType::String, &[2], Bytes::from_static(&[0; 4])).is_err());
    }
}
