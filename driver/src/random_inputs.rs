//! Random inputs for measurements, from a fixed seed.

use of_diag::{Code, Diagnostics};
use of_ir::{DType, Elements, Tensor, TensorType, Type};
use of_ops::Value;

use crate::error::error;

/// A random value for each input.
///
/// # Errors
/// When the type of an input is unknown or has an open dimension.
pub fn values<'a>(inputs: impl Iterator<Item = (&'a str, Option<Type>)>) -> Result<Vec<Value>, Diagnostics> {
    let mut rng = fastrand::Rng::with_seed(0);
    let mut errors = Diagnostics::default();
    let mut out = Vec::new();
    for (name, ty) in inputs {
        let random = match &ty {
            Some(Type::Tensor(t)) => tensor(t, &mut rng),
            _ => None,
        };
        match random {
            Some(t) => out.push(Value::Tensor(t)),
            None => {
                let ty = ty.map_or_else(|| "not a tensor".to_string(), |t| t.to_string());
                let what = format!("input '{name}' ({ty}) has no fixed shape, so no random value exists");
                errors.0.push(
                    error(Code::INPUT, what)
                        .hint(format!("give it with --inputs, or its shape with --shape {name}=1x3")),
                );
            }
        }
    }
    errors.into_result(out)
}

/// A value for each input of a type that is known.
///
/// # Errors
/// As [`values`].
pub fn for_types(inputs: &[(String, Type)]) -> Result<Vec<Value>, Diagnostics> {
    values(inputs.iter().map(|(name, ty)| (name.as_str(), Some(ty.clone()))))
}

/// Floats from -1 to 1, from 0 where the type has no sign; integers 0 and 1, because larger ones may be indices out of range.
fn tensor(ty: &TensorType, rng: &mut fastrand::Rng) -> Option<Tensor> {
    let dims = ty.fixed_dims()?;
    let n = dims.iter().try_fold(1usize, |n, d| n.checked_mul(*d))?;
    let elements = match ty.dtype {
        DType::String => Elements::Str(vec![String::new(); n]),
        DType::F8E8M0FNU => Elements::Float((0..n).map(|_| rng.f64()).collect()),
        t if t.is_float() => Elements::Float((0..n).map(|_| rng.f64() * 2.0 - 1.0).collect()),
        _ => Elements::Int((0..n).map(|_| i128::from(rng.bool())).collect()),
    };
    Tensor::from_elements(ty.dtype, dims, elements).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_element_type_has_random_values() {
        for d in DType::ALL {
            let v = values([("x", Some(Type::fixed(d, &[2, 3])))].into_iter()).unwrap();
            assert!(matches!(&v[0], Value::Tensor(t) if t.dims() == [2, 3]), "{d}");
        }
        assert!(values([("x", Some(Type::tensor(DType::F32, vec![of_ir::Dim::unknown()])))].into_iter()).is_err());
    }
}
