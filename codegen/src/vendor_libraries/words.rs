//! The numbers of a call as a plan stores them, and the kinds of arithmetic that they encode.

use of_ir::DType;

use crate::isa::{Isa, MmaPrecision};
use crate::vendor_libraries::epilogue::Activation;

/// How f32 is multiplied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "the names say what they are")]
pub enum FloatPrecision {
    Exact,
    Tf32,
    Bf16,
    F16,
}

impl FloatPrecision {
    /// How an instruction set multiplies floats of this type.
    ///
    /// # Errors
    /// When no library supports that mode.
    pub(super) fn of(isa: &Isa, dtype: DType) -> Result<FloatPrecision, String> {
        match MmaPrecision::of(isa, dtype) {
            None | Some(MmaPrecision::Half(_)) => Ok(FloatPrecision::Exact),
            Some(MmaPrecision::Tf32) => Ok(FloatPrecision::Tf32),
            Some(MmaPrecision::Bf16) => Ok(FloatPrecision::Bf16),
            Some(MmaPrecision::F16) => Ok(FloatPrecision::F16),
            Some(MmaPrecision::Tf32x3) => Err("the library does not multiply f32 in three tf32 products".into()),
        }
    }
}

/// The encoded numbers of a call.
pub(crate) struct Words<'a>(pub &'a mut dyn Iterator<Item = u64>);

impl Words<'_> {
    pub fn number(&mut self) -> Option<u64> {
        self.0.next()
    }

    pub fn numbers<const N: usize>(&mut self) -> Option<[u64; N]> {
        let mut out = [0; N];
        out.iter_mut().try_for_each(|x| self.number().map(|n| *x = n))?;
        Some(out)
    }

    pub fn flag(&mut self) -> Option<bool> {
        self.number().map(|n| n == 1)
    }

    pub fn float(&mut self) -> Option<f32> {
        u32::try_from(self.number()?).ok().map(f32::from_bits)
    }

    /// Element type, f32 mode, and activation.
    pub fn kinds(&mut self) -> Option<(DType, FloatPrecision, Activation)> {
        let [dtype, precision, activation] = self.numbers()?.map(|n| n as usize);
        Some((*DTYPES.get(dtype)?, *PRECISIONS.get(precision)?, *ACTIVATIONS.get(activation)?))
    }
}

/// The inverse of [`Words::kinds`].
pub(crate) fn kinds(dtype: DType, precision: FloatPrecision, activation: Activation) -> Vec<u64> {
    let index = |found: Option<usize>| found.unwrap_or_default() as u64;
    vec![
        index(DTYPES.iter().position(|d| *d == dtype)),
        index(PRECISIONS.iter().position(|f| *f == precision)),
        index(ACTIVATIONS.iter().position(|a| *a == activation)),
    ]
}

/// Element types; their position encodes them, as for the lists below.
const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

const PRECISIONS: [FloatPrecision; 4] =
    [FloatPrecision::Exact, FloatPrecision::Tf32, FloatPrecision::Bf16, FloatPrecision::F16];

const ACTIVATIONS: [Activation; 5] =
    [Activation::None, Activation::Relu, Activation::GeluByTanh, Activation::Gelu, Activation::Silu];
