//! Comparison of outputs with expected values in files.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use of_diag::{Code, Diagnostics};
use of_ir::{DType, Elements, Tensor, Type};
use of_onnx::map_io::{self, keys_of};
use of_ops::Value;

use crate::error::error;
use crate::tensor_files as values;

/// Tolerance of floats: `|a - b| <= absolute + relative * |b|`, where b is what is expected.
#[derive(Clone, Copy, Debug)]
pub struct Tolerance {
    /// Of the expected number's size.
    pub relative: f64,
    /// Of any number; `None` takes [`DEFAULT_ABSOLUTE`] times the scale of the output, the median of the sizes of its
    /// expected numbers that are not 0. A median ignores the few huge numbers of a mask.
    pub absolute: Option<f64>,
}

/// The default of [`Tolerance::absolute`], relative to the scale of an output. Numbers near 0 are often differences of larger
/// ones, and have the rounding errors of those.
pub const DEFAULT_ABSOLUTE: f64 = 1e-4;

/// How an output compares with what is expected.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// Name of the output.
    pub name: String,
    /// What differs beyond the tolerance.
    pub difference: Option<String>,
    /// The differences of its numbers; `None` for other values, or for another type.
    pub errors: Option<Errors>,
}

/// The differences of an output's numbers, of those that are finite on both sides.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Errors {
    /// The largest difference.
    pub max: f64,
    /// The mean difference.
    pub mean: f64,
    /// The cosine of the angle between both as vectors; 1 where both are 0.
    pub cosine: f64,
}

/// Compares results with `output_0.pb`, `output_1.pb` … of a folder, or `.npy`. A file of maps has what is expected of two
/// results: the values of the maps, and their keys.
///
/// # Errors
/// When a file is missing or damaged.
pub fn with_folder(
    dir: &Path,
    results: &[(&str, Value)],
    tolerance: Tolerance,
) -> Result<Vec<Comparison>, Diagnostics> {
    let file = |i: usize| {
        let pb = dir.join(format!("output_{i}.pb"));
        if pb.is_file() { pb } else { dir.join(format!("output_{i}.npy")) }
    };
    let maps = maps(results, file)?;
    let one = |(i, (name, value)): (usize, &(&str, Value))| {
        let expected = match maps.get(*name) {
            Some(expected) => Value::Tensor(expected.clone()),
            None => values::read(&file(i), kind(value).as_ref())?.value,
        };
        let difference = compare(value, &expected, tolerance).err();
        let errors = match (value, &expected) {
            (Value::Tensor(a), Value::Tensor(b)) if a.ty() == b.ty() => errors(a, b),
            _ => None,
        };
        Ok(Comparison { name: (*name).into(), difference, errors })
    };
    results.iter().enumerate().map(one).collect()
}

/// What files of maps expect of results, by name. The order of keys does not matter, so it becomes that of the result.
fn maps(results: &[(&str, Value)], file: impl Fn(usize) -> PathBuf) -> Result<HashMap<String, Tensor>, Diagnostics> {
    let mut out = HashMap::new();
    for (i, (name, _)) in results.iter().enumerate() {
        let path = file(i);
        let keys = results.iter().find(|(other, _)| *other == keys_of(name)).map(|(_, keys)| keys);
        let Some(Value::Tensor(keys)) = keys.filter(|_| path.extension().is_some_and(|e| e == "pb")) else { continue };
        if let Some(map) = map_io::read(&path)? {
            let (values, keys) = match map.ordered_by(keys) {
                Some(values) => (values, keys.clone()),
                None => (map.values, map.keys),
            };
            out.extend([((*name).to_owned(), values), (keys_of(name), keys)]);
        }
    }
    Ok(out)
}

/// The error for outputs that differ.
///
/// # Errors
/// One for each of them.
pub fn check(comparisons: &[Comparison]) -> Result<(), Diagnostics> {
    let wrong = |c: &Comparison| {
        let why = c.difference.as_ref()?;
        Some(error(Code::RUN, format!("output '{}' differs from the expected value: {why}", c.name)))
    };
    Diagnostics(comparisons.iter().filter_map(wrong).collect()).into_result(())
}

fn errors(got: &Tensor, expected: &Tensor) -> Option<Errors> {
    let (a, b) = (got.to_f64s()?, expected.to_f64s()?);
    let pairs = || a.iter().zip(b.iter()).filter(|(a, b)| a.is_finite() && b.is_finite());
    let (mut max, mut sum, mut n) = (0.0_f64, 0.0, 0_usize);
    let (mut product, mut own, mut other) = (0.0, 0.0, 0.0);
    for (a, b) in pairs() {
        let difference = (a - b).abs();
        max = max.max(difference);
        sum += difference;
        n += 1;
        product += a * b;
        own += a * a;
        other += b * b;
    }
    let lengths = f64::sqrt(own) * f64::sqrt(other);
    let cosine = if own == 0.0 && other == 0.0 { 1.0 } else { product / lengths.max(f64::MIN_POSITIVE) };
    Some(Errors { max, mean: sum / n.max(1) as f64, cosine })
}

/// The median of the sizes of numbers that are finite and not 0; 0 where there are none.
fn scale(expected: &Tensor) -> f64 {
    let Some(numbers) = expected.to_f64s() else { return 0.0 };
    let mut sizes: Vec<f64> = numbers.iter().map(|x| x.abs()).filter(|x| x.is_finite() && *x > 0.0).collect();
    if sizes.is_empty() {
        return 0.0;
    }
    let middle = sizes.len() / 2;
    *sizes.select_nth_unstable_by(middle, f64::total_cmp).1
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
    let absolute = t.absolute.unwrap_or_else(|| DEFAULT_ABSOLUTE * scale(expected));
    let near = |a: f64, b: f64| {
        a == b || (a.is_nan() && b.is_nan()) || (b.is_finite() && (a - b).abs() <= absolute + relative * b.abs())
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

    const T: Tolerance = Tolerance { relative: 1e-3, absolute: Some(1e-7) };

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
    fn default_tolerance_follows_the_scale_of_the_output() {
        let value = |x: &[f32]| Value::Tensor(Tensor::from_slice(&[x.len()], x).unwrap());
        let near = |a: &[f32], b: &[f32]| compare(&value(a), &value(b), Tolerance { absolute: None, ..T }).is_ok();
        // A logit near 0 has the rounding error of logits of 100; a mask does not change the scale.
        assert!(near(&[100.0, 3e-6, -90.0], &[100.0, 0.0, -90.0]));
        assert!(!near(&[100.0, 0.2, -90.0], &[100.0, 0.0, -90.0]));
        assert!(!near(&[-3e38, 0.01, 1.0, 1.0], &[-3e38, 0.0, 1.0, 1.0]));
        assert!(!near(&[2e-9, 1e-9, 1e-9], &[1e-9, 1e-9, 1e-9]), "small outputs are compared as closely");
        assert!(!near(&[1e-30], &[0.0]));
    }

    #[test]
    fn errors_are_summed_up() {
        let t = |x: &[f32]| Tensor::from_slice(&[x.len()], x).unwrap();
        let e = errors(&t(&[1.0, 2.0, f32::INFINITY]), &t(&[1.0, 2.5, f32::INFINITY])).unwrap();
        assert_eq!((e.max, e.mean), (0.5, 0.25));
        assert!((e.cosine - 6.0 / (5.0_f64.sqrt() * 7.25_f64.sqrt())).abs() < 1e-12);
        assert_eq!(errors(&t(&[0.0]), &t(&[0.0])).unwrap().cosine, 1.0);
        assert_eq!(errors(&t(&[1.0, 0.0]), &t(&[0.0, 1.0])).unwrap().cosine, 0.0);
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
