//! Random numbers. They are a function of a seed, so that runs repeat and two compilations agree.

mod generator;
mod multinomial;
mod normal;
mod uniform;

pub use multinomial::Multinomial;
pub use normal::RandomNormal;
pub use uniform::RandomUniform;

use of_ir::{DType, Elements, OpError, OpView, Tensor};

use crate::movement::shape_operand_result;
use crate::{Evaluated, Inferred, Inputs, shape};

/// The words from which the generator of a seed goes on: the state of an MT19937 that is to turn before its first word is read.
pub fn seeded(seed: i64) -> Vec<u32> {
    generator::Generator::new(seed).state().to_vec()
}

/// The type of a tensor of floats whose dimensions are operand 0.
fn infer(cx: &OpView<'_>, dtype: DType) -> Inferred {
    if !dtype.is_float() {
        return Err(OpError::attr(format!("random numbers are floating-point, dtype is {dtype}")));
    }
    shape_operand_result(cx, dtype)
}

/// A tensor of the dimensions that operand 0 says, filled in row-major order.
fn fill(inputs: &Inputs<'_>, dtype: DType, mut next: impl FnMut() -> f64) -> Evaluated {
    let negative = |_| OpError::eval("a dimension is negative");
    let dims = inputs.ints(0)?.into_iter().map(usize::try_from).collect::<Result<Vec<_>, _>>().map_err(negative)?;
    let values = (0..shape::count(&dims)?).map(|_| next()).collect();
    Ok(vec![Tensor::from_elements(dtype, dims, Elements::Float(values))?.into()])
}
