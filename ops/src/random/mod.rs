//! Random numbers. They are a function of a seed, so that runs repeat and two compilations agree.

mod generator;
mod multinomial;
mod normal;
mod uniform;

pub use multinomial::Multinomial;
pub use normal::RandomNormal;
pub use uniform::RandomUniform;

use of_ir::{DType, Dim, Elements, OpError, OpView, Tensor, TensorType, Type};

use crate::movement::MOST_AXES;
use crate::{Evaluated, Inferred, Inputs, shape};

/// The type of a tensor of floats whose dimensions are operand 0.
fn infer(cx: &OpView<'_>, dtype: DType) -> Inferred {
    if !dtype.is_float() {
        return Err(OpError::attr(format!("random numbers are floating-point, dtype is {dtype}")));
    }
    let spec = cx.tensor(0)?;
    if !spec.dtype.is_int() || spec.rank().is_some_and(|r| r != 1) {
        return Err(OpError::ty("the shape must be an integer tensor of rank 1"));
    }
    let dims = match (cx.dims(0), spec.fixed_dims().as_deref()) {
        (Some(d), _) => d,
        (None, Some([n])) if *n <= MOST_AXES => vec![Dim::unknown(); *n],
        (None, Some(_)) => return Err(OpError::shape("a tensor cannot have so many axes")),
        (None, None) => return Ok(vec![Type::Tensor(TensorType::unranked(dtype))]),
    };
    if let Some(d) = dims.iter().find(|d| d.as_const().is_some_and(|c| c < 0)) {
        return Err(OpError::shape(format!("a dimension is {d}")));
    }
    Ok(vec![Type::tensor(dtype, dims)])
}

/// A tensor of the dimensions that operand 0 says, filled in row-major order.
fn fill(inputs: &Inputs<'_>, dtype: DType, mut next: impl FnMut() -> f64) -> Evaluated {
    let negative = |_| OpError::eval("a dimension is negative");
    let dims = inputs.ints(0)?.into_iter().map(usize::try_from).collect::<Result<Vec<_>, _>>().map_err(negative)?;
    let values = (0..shape::count(&dims)?).map(|_| next()).collect();
    Ok(vec![Tensor::from_elements(dtype, dims, Elements::Float(values))?.into()])
}
