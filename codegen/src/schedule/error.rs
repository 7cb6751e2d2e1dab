//! Why a computation has no kernel.

use of_ir::DType;

/// Why a spec cannot be scheduled.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ScheduleError {
    /// Kernels cannot hold this element type.
    #[error("kernels do not handle elements of type {0}")]
    Type(DType),
    /// The parts of the spec do not fit together.
    #[error("{0}")]
    Spec(String),
    /// Sizes that do not fit 64-bit indices.
    #[error("the computation is too large for 64-bit indices")]
    TooLarge,
}

impl ScheduleError {
    /// A spec that is wrong in the way the text says.
    pub fn spec(what: impl Into<String>) -> Self {
        ScheduleError::Spec(what.into())
    }
}

/// Whether kernels can hold elements of this type.
///
/// # Errors
/// For strings, 4-bit integers and 8-bit floats.
pub fn supported(d: DType) -> Result<(), ScheduleError> {
    match d {
        DType::String | DType::I4 | DType::U4 => Err(ScheduleError::Type(d)),
        DType::F8E4M3FN | DType::F8E4M3FNUZ | DType::F8E5M2 | DType::F8E5M2FNUZ => Err(ScheduleError::Type(d)),
        _ => Ok(()),
    }
}
