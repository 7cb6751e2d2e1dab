//! Comparison of outputs with expected values in files.

use std::path::Path;

use of_diag::{Code, Diagnostics};
use of_ir::{DType, Elements, Tensor, Type};
use of_ops::Value;

use crate::error::error;
use crate::tensor_files as values;

/// Tolerance of floats: `|a - b| <= absolute + relative * |b|`, where b is what is expected.
#[derive(Clone, Copy, Debug)]
pub struct Tolerance {
    /// Of the expected number's size.
    pub relative: f64,
    /// Of any number.
    pub absolute: f64,
}

/// Compares results with `output_0.pb`, `output_1.pb` … of a folder, or `.npy`.
///
/// # Errors
/// When a file is missing or damaged, or a result differs.
pub fn with_folder(dir: &Path, results: &[(&str, Value)], tolerance: Tolerance) -> Result<(), Diagnostics> {
    let mut errors = Diagnostics::default();
    for (i, (name, value)) in results.iter().enumerate() {
        let pb = dir.join(format!("output_{i}.pb"));
        let path = if pb.is_file() { pb } else { dir.join(format!("output_{i}.npy")) };
        let expected = values::read(&path, kind(value).as_ref())?.value;
        if let Err(why) = compare(value, &expected, tolerance) {
            let what = format!("output '{name}' differs from the expected value: {why}");
            errors.0.push(error(Code::RUN, what));
        }
    }
    errors.into_result(())
}

/// The type that a file is read as: that of the result.
fn kind(value: &Value) -> Option<Type> {
    match value {
        Value::Sequence(_) => Some(Type::Sequence(Box::new(Type::None))),
        Value::Optional(_) => Some(Type::Optional(Box::new(Type::None))),
        _ => None,
    }
}

fn compare(got: &Value, expected: &Value, t: Tolerance) -> Result<(), String> {
    match (got, expected) {
        (Value::Tensor(a), Value::Tensor(b)) => tensors(a, b, t),
        (Value::Sequence(a), Value::Sequence(b)) if a.len() == b.len() => {
            let mut pairs = a.iter().zip(b).enumerate();
            pairs.try_for_each(|(i, (a, b))| compare(a, b, t).map_err(|why| format!("item {i}: {why}")))
        }
        (Value::Sequence(a), Value::Sequence(b)) => Err(format!("it has {} items, not {}", a.len(), b.len())),
        (Value::Optional(Some(a)), Value::Optional(Some(b))) => compare(a, b, t),
        (Value::Optional(None), Value::Optional(None)) => Ok(()),
        _ => Err("it is another kind of value, or is there where nothing is expected".into()),
    }
}

fn tensors(got: &Tensor, expected: &Tensor, t: Tolerance) -> Result<(), String> {
    if got.ty() != expected.ty() {
        return Err(format!("it is {}, not {}", Type::from(got.ty()), Type::from(expected.ty())));
    }
    let relative = if got.dtype() == DType::BF16 { t.relative.max(1.0 / 64.0) } else { t.relative };
    let near = |a: f64, b: f64| {
        a == b || (a.is_nan() && b.is_nan()) || (b.is_finite() && (a - b).abs() <= t.absolute + relative * b.abs())
    };
    let wrong = match (got.elements(), expected.elements()) {
        (Elements::Float(a), Elements::Float(b)) => differing(&a, &b, |a, b| near(*a, *b)),
        (Elements::Int(a), Elements::Int(b)) => differing(&a, &b, |a, b| near(*a as f64, *b as f64)),
        (Elements::Str(a), Elements::Str(b)) => differing(&a, &b, |a, b| a == b),
        _ => None,
    };
    wrong.map_or(Ok(()), Err)
}

/// How many elements differ, and the first of them.
fn differing<T: std::fmt::Display>(got: &[T], expected: &[T], same: impl Fn(&T, &T) -> bool) -> Option<String> {
    let mut wrong = got.iter().zip(expected).enumerate().filter(|(_, (a, b))| !same(a, b));
    let (i, (a, b)) = wrong.next()?;
    let n = 1 + wrong.count();
    Some(format!("{n} of {} elements differ; element {i} is {a}, not {b}", got.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: Tolerance = Tolerance { relative: 1e-3, absolute: 1e-7 };

    fn of(a: &[f32], b: &[f32]) -> Result<(), String> {
        let value = |x: &[f32]| Value::Tensor(Tensor::from_slice(&[x.len()], x).unwrap());
        compare(&value(a), &value(b), T)
    }

    #[test]
    fn floats_are_compared_with_tolerance() {
        let inf = f32::INFINITY;
        of(&[1.0005, 0.0, f32::NAN, inf], &[1.0, 1e-8, f32::NAN, inf]).unwrap();
        assert_eq!(
            of(&[1.0, 2.0, 3.0], &[1.0, 2.1, 0.0]).unwrap_err(),
            "2 of 3 elements differ; element 1 is 2, not 2.0999999046325684"
        );
        assert!(of(&[f32::NAN], &[1.0]).is_err() && of(&[1.0], &[inf]).is_err() && of(&[-inf], &[inf]).is_err());
        assert!(of(&[1.0], &[1.0, 1.0]).unwrap_err().contains("tensor<1xf32>, not tensor<2xf32>"));
    }

    #[test]
    fn different_kinds_of_values_differ() {
        let one = || Value::Tensor(Tensor::scalar(1i64));
        let list = |n: usize| Value::Sequence(vec![one(); n]);
        let some = Value::Optional(Some(Box::new(list(1))));
        compare(&some, &some, T).unwrap();
        assert!(compare(&list(1), &list(2), T).is_err() && compare(&one(), &list(1), T).is_err());
        assert!(compare(&Value::Optional(None), &some, T).is_err());
    }
}
