//! Whether two results are equal up to rounding.

use std::fmt::Display;

use of_driver::rounding::{precision, smallest};
use of_ir::Elements;
use of_ops::Value;

/// The expected output: the exact value, and values under rounding errors.
pub struct Expected {
    /// The oracle's value.
    pub value: Value,
    /// Axes with unknown extents (see [`crate::evaluate::Unbound`]).
    pub free: Vec<usize>,
    /// Values of noisy runs, each with the exact value that the noise was applied to.
    pub noise: Vec<(Value, Value)>,
}

/// The tolerance as a multiple of the measured deviation: that is the maximum of a sample, and sums in another order may
/// exceed it. Half of it sufficed for five thousand graphs.
pub const MARGIN: f64 = 4.0;
/// Half units in the last place that are always allowed: few noisy runs of small graphs may hardly change an element, while
/// mathematical functions of two libraries differ in the last digits.
const SLACK: f64 = 16.0;

/// Compares `got` with the expected output.
///
/// # Errors
/// Says where they differ.
pub fn compare(got: &Value, expected: &Expected) -> Result<(), String> {
    let want = &expected.value;
    match (got, want) {
        (Value::Tensor(g), Value::Tensor(w)) => {
            if g.dtype() != w.dtype() || g.dims() != w.dims() {
                let free = |axis: usize| g.is_empty() && w.is_empty() && expected.free.contains(&axis);
                let changes = |axis: usize| free(axis) || moves(&expected.noise, axis);
                let mut axes = g.dims().iter().zip(w.dims()).enumerate();
                return if g.dtype() == w.dtype()
                    && g.dims().len() == w.dims().len()
                    && axes.all(|(axis, (g, w))| g == w || changes(axis))
                {
                    Ok(())
                } else {
                    Err(format!("{} of shape {:?} in the place of {} {:?}", g.dtype(), g.dims(), w.dtype(), w.dims()))
                };
            }
            if g == w {
                return Ok(());
            }
            let spread = spreads(&expected.noise);
            let different = |i: usize, p: &dyn Display, q: &dyn Display, allowed: f64| {
                Err(format!("element {i} is {p} in the place of {q}, {allowed:.3e} apart at most"))
            };
            match (g.elements(), w.elements()) {
                (Elements::Int(x), Elements::Int(y)) => {
                    let mut pairs = x.iter().zip(&y).enumerate();
                    let far = |i: usize, p: i128, q: i128| p.abs_diff(q) as f64 > MARGIN * spread(i);
                    pairs
                        .find(|(i, (p, q))| far(*i, **p, **q))
                        .map_or(Ok(()), |(i, (p, q))| different(i, p, q, MARGIN * spread(i)))
                }
                (Elements::Float(x), Elements::Float(y)) => {
                    let slack = SLACK * 2f64.powi(-precision(w.dtype()));
                    for (i, (p, q)) in x.iter().zip(&y).enumerate() {
                        if p == q || (p.is_nan() && q.is_nan()) {
                            continue;
                        }
                        // Where rounding decides whether the result is NaN, any value is accepted.
                        let spread = spread(i);
                        let allowed = MARGIN * spread + slack * q.abs() + SLACK * smallest(w.dtype());
                        if spread.is_finite() && ((p - q).abs() > allowed || p.is_nan() || q.is_nan()) {
                            return different(i, p, q, allowed);
                        }
                    }
                    Ok(())
                }
                _ => Err("strings differ".into()),
            }
        }
        (Value::Sequence(g), Value::Sequence(w)) if g.len() == w.len() => {
            g.iter().zip(w).enumerate().try_for_each(|(i, (g, w))| {
                let noise = expected.noise.iter().filter_map(|(a, b)| item(a, i).zip(item(b, i))).collect();
                compare(g, &Expected { value: w.clone(), free: Vec::new(), noise })
                    .map_err(|e| format!("item {i}: {e}"))
            })
        }
        (Value::Optional(Some(g)), Value::Optional(Some(w))) => {
            compare(g, &Expected { value: (**w).clone(), free: Vec::new(), noise: Vec::new() })
        }
        _ if got == want => Ok(()),
        _ => Err("values of different kinds".into()),
    }
}

/// The deviation by noise of each element, by position.
pub fn spreads(noise: &[(Value, Value)]) -> impl Fn(usize) -> f64 + use<> {
    let noise: Vec<_> = noise.iter().filter_map(|(a, b)| numbers(a).zip(numbers(b))).collect();
    move |i| noise.iter().map(|(a, b)| deviation(a.get(i), b.get(i))).fold(0.0, f64::max)
}

/// Whether noise changes an extent: the number of nonzero or of distinct elements depends on rounding. Then elements have no
/// counterparts to compare.
fn moves(noise: &[(Value, Value)], axis: usize) -> bool {
    let extent = |v: &Value| shape(v).and_then(|d| d.get(axis).copied());
    noise.iter().any(|(a, b)| extent(a) != extent(b))
}

fn shape(v: &Value) -> Option<&[usize]> {
    if let Value::Tensor(t) = v { Some(t.dims()) } else { None }
}

/// The numbers of a tensor.
pub fn numbers(v: &Value) -> Option<Vec<f64>> {
    if let Value::Tensor(t) = v { t.to_f64s() } else { None }
}

fn item(v: &Value, i: usize) -> Option<Value> {
    if let Value::Sequence(list) = v { list.get(i).cloned() } else { None }
}

/// The deviation of a number by noise; infinite if there is no counterpart.
fn deviation(a: Option<&f64>, b: Option<&f64>) -> f64 {
    match (a, b) {
        (Some(a), Some(b)) if a == b || (a.is_nan() && b.is_nan()) => 0.0,
        (Some(a), Some(b)) if a.is_finite() && b.is_finite() => (a - b).abs(),
        _ => f64::INFINITY,
    }
}
