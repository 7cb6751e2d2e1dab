//! Samples of one input that are read one after the other.

use of_diag::{Code, Diagnostics};
use of_ir::{Blob, DType, Tensor};

use crate::error::error;

/// Tensors of equal type and extents, which become one with an axis more.
#[derive(Default)]
pub struct Stack {
    ty: Option<(DType, Vec<usize>)>,
    bytes: Vec<u8>,
    count: usize,
}

impl Stack {
    /// Adds a sample. `place` says where it comes from, for messages.
    ///
    /// # Errors
    /// When it has another type or other extents than those before.
    pub fn push(&mut self, sample: &Tensor, place: &str) -> Result<(), Diagnostics> {
        let own = (sample.dtype(), sample.dims().to_vec());
        match &self.ty {
            None => self.ty = Some(own),
            Some(ty) if *ty == own => {}
            Some((dtype, dims)) => {
                let what = format!(
                    "{place} is {} {:?}, and the samples before are {dtype} {dims:?}",
                    sample.dtype(),
                    sample.dims()
                );
                return Err(error(Code::INPUT, what).into());
            }
        }
        let bytes =
            sample.bytes().ok_or_else(|| Diagnostics::from(error(Code::INPUT, format!("{place} is no number"))))?;
        self.bytes.extend_from_slice(bytes);
        self.count += 1;
        Ok(())
    }

    /// Whether there are no samples.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// All samples; the first axis is theirs. `None` without any.
    ///
    /// # Errors
    /// When they are too many for a tensor.
    pub fn finish(self) -> Result<Option<Tensor>, Diagnostics> {
        let Some((dtype, dims)) = self.ty else { return Ok(None) };
        let dims = std::iter::once(self.count).chain(dims).collect();
        let tensor = Tensor::from_bytes(dtype, dims, Blob::new(self.bytes));
        Ok(Some(tensor.map_err(|e| error(Code::INPUT, e.to_string()))?))
    }
}
