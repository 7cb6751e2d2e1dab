//! Random inputs for measurements, from a fixed seed.

use of_diag::{Code, Diagnostics};
use of_ir::{DType, Elements, Tensor, TensorType, Type};
use of_ops::Value;

use of_plan::binary_size;

use crate::error::error;
use crate::session::BUDGET_HINT;

/// A random value for each input; all together may take `budget` bytes, and without one as many as the machine has.
///
/// # Errors
/// When the type of an input is unknown or has an open dimension, or the values take more than the budget.
pub fn values<'a>(
    inputs: impl Iterator<Item = (&'a str, Option<Type>)>,
    budget: Option<u64>,
) -> Result<Vec<Value>, Diagnostics> {
    let inputs: Vec<_> = inputs.collect();
    check_memory(&inputs, budget.unwrap_or_else(of_runtime::machine_memory))?;
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

/// Checks that values of these types fit into a budget. While a value is made, each of its elements takes 16 bytes more.
fn check_memory(inputs: &[(&str, Option<Type>)], budget: u64) -> Result<(), Diagnostics> {
    const MAKING: u64 = 16;
    let size = |ty: &Option<Type>| -> Option<(u64, u64)> {
        let ty = ty.as_ref()?.as_tensor()?;
        let n = ty.fixed_dims()?.iter().try_fold(1_u64, |n, d| n.checked_mul(*d as u64)).unwrap_or(u64::MAX);
        Some((
            n.saturating_mul(ty.dtype.bits().map_or(MAKING, |bits| (bits as u64).div_ceil(8))),
            n.saturating_mul(MAKING),
        ))
    };
    let sizes: Vec<(u64, u64)> = inputs.iter().map(|(_, ty)| size(ty).unwrap_or_default()).collect();
    let all = sizes.iter().fold(0_u64, |all, (own, _)| all.saturating_add(*own));
    let needed = all.saturating_add(sizes.iter().map(|(_, making)| *making).max().unwrap_or(0));
    if needed <= budget {
        return Ok(());
    }
    let largest = inputs.iter().zip(&sizes).max_by_key(|(_, (own, _))| *own);
    let largest = largest.map(|((name, ty), (own, _))| {
        let ty = ty.as_ref().map(ToString::to_string).unwrap_or_default();
        format!("; the largest: '{name}' {ty}, {}", binary_size(*own))
    });
    let (needed, budget) = (binary_size(needed), binary_size(budget));
    let what =
        format!("random inputs need {needed} of memory, and the budget is {budget}{}", largest.unwrap_or_default());
    Err(error(Code::LIMIT, what).hint(BUDGET_HINT).into())
}

/// A value for each input of a type that is known.
///
/// # Errors
/// As [`values`].
pub fn for_types(inputs: &[(String, Type)], budget: Option<u64>) -> Result<Vec<Value>, Diagnostics> {
    values(inputs.iter().map(|(name, ty)| (name.as_str(), Some(ty.clone()))), budget)
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
            let v = values([("x", Some(Type::fixed(d, &[2, 3])))].into_iter(), None).unwrap();
            assert!(matches!(&v[0], Value::Tensor(t) if t.dims() == [2, 3]), "{d}");
        }
        assert!(
            values([("x", Some(Type::tensor(DType::F32, vec![of_ir::Dim::unknown()])))].into_iter(), None).is_err()
        );
    }
}
