//! Whether two results agree within a tolerance.

use of_ops::{Op, Value};

use crate::op::quantises;

/// How far an element may be from the expected one. Of floats, the three parts are added; other elements must be equal,
/// except for [`Tolerance::steps`] of integers.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tolerance {
    /// As a part of the element.
    pub relative: f64,
    /// As a part of the tensor's largest element: sums that cancel have the errors of their terms.
    pub of_largest: f64,
    /// As a number.
    pub absolute: f64,
    /// The least [`Tolerance::of_largest`] of 16-bit floats.
    pub of_largest_16_bit: f64,
    /// How far apart integers may be.
    pub steps: u64,
}

impl Tolerance {
    /// Equal elements.
    pub const EXACT: Tolerance =
        Tolerance { relative: 0.0, of_largest: 0.0, absolute: 0.0, of_largest_16_bit: 0.0, steps: 0 };

    /// A part of the largest element.
    pub fn of_largest(part: f64) -> Tolerance {
        Tolerance { of_largest: part, ..Tolerance::EXACT }
    }

    /// A part of the element, and the same as a number.
    pub fn elementwise(part: f64) -> Tolerance {
        Tolerance { relative: part, absolute: part, ..Tolerance::EXACT }
    }

    /// Also half a unit in the last place of 16-bit floats, for what rounds intermediate results to them.
    #[must_use]
    pub fn with_16_bit_rounding(self) -> Tolerance {
        Tolerance { of_largest_16_bit: 8e-3, ..self }
    }

    /// Also a step between quantised integers, if the op quantises: the exact value may be halfway between two.
    #[must_use]
    pub fn for_op(self, op: &dyn Op) -> Tolerance {
        Tolerance { steps: self.steps.max(u64::from(quantises(op))), ..self }
    }

    /// Also this many steps between integers.
    #[must_use]
    pub fn with_steps(self, steps: u64) -> Tolerance {
        Tolerance { steps, ..self }
    }
}

/// Where results differ by more than the tolerance.
pub fn difference(got: &[Value], want: &[Value], tolerance: Tolerance) -> Option<String> {
    if got.len() != want.len() {
        return Some(format!("{} outputs, not {}", got.len(), want.len()));
    }
    let mut pairs = got.iter().zip(want).enumerate();
    pairs.find_map(|(i, (g, w))| value_difference(g, w, tolerance).map(|why| format!("output {i}: {why}")))
}

/// Fails the test where results differ by more than the tolerance.
///
/// # Panics
/// When they differ.
#[track_caller]
pub fn assert_close(what: &str, got: &[Value], want: &[Value], tolerance: Tolerance) {
    if let Some(why) = difference(got, want, tolerance) {
        panic!("{what}: {why}");
    }
}

/// [`assert_close`] of floats without a type.
///
/// # Panics
/// When they differ.
#[track_caller]
pub fn assert_numbers_close(what: &str, got: &[f64], want: &[f64], tolerance: Tolerance) {
    if let Some(why) = number_difference(got, want, tolerance) {
        panic!("{what}: {why}");
    }
}

fn value_difference(got: &Value, want: &Value, tolerance: Tolerance) -> Option<String> {
    let (g, w) = match (got, want) {
        (Value::Tensor(g), Value::Tensor(w)) => (g, w),
        (Value::Sequence(g), Value::Sequence(w)) => return difference(g, w, tolerance),
        (Value::Optional(Some(g)), Value::Optional(Some(w))) => return value_difference(g, w, tolerance),
        _ => return (got != want).then(|| format!("{got:?}, not {want:?}")),
    };
    if (g.dtype(), g.dims()) != (w.dtype(), w.dims()) {
        return Some(format!("{:?}, not {:?}", g.ty(), w.ty()));
    }
    if !w.dtype().is_float() {
        let far = |(a, b): (Vec<i64>, Vec<i64>)| a.iter().zip(&b).map(|(a, b)| a.abs_diff(*b)).max().unwrap_or(0);
        let apart = tolerance.steps > 0 && g.to_i64s().zip(w.to_i64s()).map(far).is_some_and(|a| a <= tolerance.steps);
        return (g != w && !apart).then(|| format!("{:?}, not {:?}", g.elements(), w.elements()));
    }
    let narrow = w.dtype().bits() == Some(16);
    let of_largest = tolerance.of_largest.max(if narrow { tolerance.of_largest_16_bit } else { 0.0 });
    number_difference(&g.to_f64s()?, &w.to_f64s()?, Tolerance { of_largest, ..tolerance })
}

fn number_difference(got: &[f64], want: &[f64], t: Tolerance) -> Option<String> {
    if got.len() != want.len() {
        return Some(format!("{} elements, not {}", got.len(), want.len()));
    }
    let largest = want.iter().filter(|x| x.is_finite()).fold(1e-3f64, |m, x| m.max(x.abs()));
    let close = |a: f64, b: f64| (a - b).abs() <= t.of_largest * largest + t.relative * b.abs() + t.absolute;
    let same = |a: f64, b: f64| a == b || (a.is_nan() && b.is_nan()) || (b.is_finite() && close(a, b));
    let i = got.iter().zip(want).position(|(a, b)| !same(*a, *b))?;
    Some(format!("element {i} is {}, not {} (the largest is {largest}; {t:?})", got[i], want[i]))
}

#[cfg(test)]
mod tests {
    use of_ir::Tensor;

    use super::*;

    fn of(got: &[f32], want: &[f32], tolerance: Tolerance) -> bool {
        let value = |x: &[f32]| Value::Tensor(Tensor::from_slice(&[x.len()], x).unwrap());
        difference(&[value(got)], &[value(want)], tolerance).is_none()
    }

    #[test]
    fn floats_may_differ_by_the_tolerance_only() {
        let one = Tolerance::of_largest(1e-2);
        assert!(of(&[100.5, 0.5], &[100.0, 0.0], one));
        assert!(!of(&[102.0, 0.0], &[100.0, 0.0], one));
        let each = Tolerance::elementwise(1e-2);
        assert!(!of(&[100.0, 0.5], &[100.0, 0.0], each));
        assert!(of(&[101.0, 0.009], &[100.0, 0.0], each));
        assert!(!of(&[1.0], &[1.0, 1.0], each));
    }

    #[test]
    fn no_tolerance_reaches_infinity_or_nan() {
        let inf = f32::INFINITY;
        for t in [Tolerance::of_largest(1.0), Tolerance::elementwise(1.0)] {
            assert!(of(&[inf, f32::NAN], &[inf, f32::NAN], t));
            assert!(!of(&[1.0], &[inf], t) && !of(&[inf], &[1.0], t) && !of(&[f32::NAN], &[1.0], t));
            assert!(!of(&[1.0], &[f32::NAN], t) && !of(&[-inf], &[inf], t));
        }
    }

    #[test]
    fn integers_are_equal_unless_steps_are_allowed() {
        let value = |x: &[i64]| vec![Value::Tensor(Tensor::from_i64s(x))];
        let t = Tolerance::elementwise(1.0);
        assert!(difference(&value(&[3]), &value(&[4]), t).is_some());
        assert!(difference(&value(&[3]), &value(&[4]), t.with_steps(1)).is_none());
        assert!(difference(&value(&[2]), &value(&[4]), t.with_steps(1)).is_some());
    }
}
