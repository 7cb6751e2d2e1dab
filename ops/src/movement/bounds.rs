//! `start:end:step` of an axis, for numbers and for symbolic dimensions.

use of_ir::{Dim, DimFn, OpError};

/// Elements of one axis.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Range {
    pub start: usize,
    pub len: usize,
    pub step: i64,
}

impl Range {
    /// The elements of an axis of length `n` that ONNX's Slice (and Python) means.
    pub(super) fn new(n: usize, start: i64, end: i64, step: i64) -> Result<Range, OpError> {
        if step == 0 {
            return Err(OpError::attr("a step is 0"));
        }
        let (n, step_wide) = (n as i128, i128::from(step));
        let from_end = |v: i64| if v < 0 { i128::from(v) + n } else { i128::from(v) };
        let (low, high) = if step > 0 { (0, n) } else { (-1, n - 1) };
        let (start, end) = (from_end(start).clamp(low, high), from_end(end).clamp(low, high));
        let distance = if step > 0 { end - start } else { start - end }.max(0);
        let by = step_wide.abs();
        let len = (distance + by - 1) / by;
        Ok(Range { start: if len == 0 { 0 } else { start as usize }, len: len as usize, step })
    }

    /// The axis index of element `i`.
    pub(super) fn at(&self, i: usize) -> usize {
        (self.start as i128 + i as i128 * i128::from(self.step)) as usize
    }
}

/// A bound from which on exporters mean "to the end".
const ENDLESS: i64 = i32::MAX as i64;

fn max(a: &Dim, b: &Dim) -> Dim {
    if (a - b).is_nonnegative() {
        a.clone()
    } else if (b - a).is_nonnegative() {
        b.clone()
    } else {
        Dim::call(DimFn::Max, a, b)
    }
}

fn min(a: &Dim, b: &Dim) -> Dim {
    if (a - b).is_nonnegative() {
        b.clone()
    } else if (b - a).is_nonnegative() {
        a.clone()
    } else {
        Dim::call(DimFn::Min, a, b)
    }
}

/// Number of elements of `start:end:step` on an axis of length `d`; unknown where the sign of a bound is open.
pub(super) fn extent(d: &Dim, start: &Dim, end: &Dim, step: i64) -> Result<Dim, OpError> {
    if step == 0 {
        return Err(OpError::attr("a step is 0"));
    }
    if let (Some(n), Some(s), Some(e)) =
        (d.as_const().and_then(|n| usize::try_from(n).ok()), start.as_const(), end.as_const())
    {
        return Ok(Range::new(n, s, e, step)?.len.into());
    }
    let len = if step > 0 { forward(d, start, end) } else { backward(d, start, end) };
    Ok(match len {
        None => Dim::unknown(),
        Some(len) if len.is_unknown() => Dim::unknown(),
        Some(len) => match step.checked_abs() {
            Some(1) => len,
            Some(by) => Dim::call(DimFn::CeilDiv, &len, &by.into()),
            None => Dim::unknown(),
        },
    })
}

/// Distance from start to end; neither is clamped where the last `max` makes up for it.
fn forward(d: &Dim, start: &Dim, end: &Dim) -> Option<Dim> {
    let (zero, last) = (Dim::from(0i64), d - &Dim::from(1i64));
    let high = match end.as_const() {
        Some(e) if e >= ENDLESS => d.clone(),
        Some(e) if e < 0 => d + &e.into(),
        _ if end == d => d.clone(),
        // d - 1 is negative on an empty axis only, where the result is empty either way.
        _ if *end == last => last,
        _ if end.is_nonnegative() => min(end, d),
        _ => return None,
    };
    let low = match start.as_const() {
        Some(s) if s <= -ENDLESS => zero.clone(),
        // The last few elements: d - max(d - a, 0) = min(a, d)
        Some(s) if s < 0 && high == *d => return Some(min(&s.saturating_neg().into(), d)),
        Some(s) if s < 0 => max(&(d + &s.into()), &zero),
        _ if start.is_nonnegative() => start.clone(),
        _ if *start == &d.clone() - &Dim::from(1i64) => max(start, &zero),
        _ => return None,
    };
    // Dimensions are non-negative even if their expression does not show it.
    let sure = low == zero && end.as_const().is_none_or(|e| e >= 0) && high != &d.clone() - &Dim::from(1i64);
    Some(if sure { high } else { max(&(&high - &low), &zero) })
}

fn backward(d: &Dim, start: &Dim, end: &Dim) -> Option<Dim> {
    let (zero, last) = (Dim::from(0i64), d - &Dim::from(1i64));
    let high = match start.as_const() {
        Some(s) if s == -1 || s >= ENDLESS => last.clone(),
        Some(s) if s < 0 => return None,
        _ if *start == last => last.clone(),
        _ if start.is_nonnegative() => min(start, &last),
        _ => return None,
    };
    let low = match end.as_const() {
        Some(e) if e <= -ENDLESS => Dim::from(-1i64),
        Some(e) if e < 0 => max(&(d + &e.into()), &Dim::from(-1i64)),
        _ if end.is_nonnegative() => end.clone(),
        _ => return None,
    };
    let len = &high - &low;
    Some(if len == *d { len } else { max(&len, &zero) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symbolic_extents_agree_with_numbers() {
        let n = Dim::symbol("N");
        let bounds = [i64::MIN, -7, -2, -1, 0, 1, 3, 8, i64::MAX];
        let symbolic = [n.clone(), &n - &1i64.into(), &n + &2i64.into()];
        let all: Vec<Dim> = bounds.into_iter().map(Dim::from).chain(symbolic).collect();
        let mut known = 0;
        for start in &all {
            for end in &all {
                for step in [-3, -2, -1, 1, 2, 5] {
                    let d = extent(&n, start, end, step).unwrap();
                    for value in 0..9i64 {
                        let at = |x: &Dim| x.substitute(&|_| Some(value.into())).as_const().unwrap();
                        if d.is_unknown() {
                            continue;
                        }
                        known += 1;
                        let right = Range::new(value as usize, at(start), at(end), step).unwrap().len;
                        assert_eq!(at(&d), right as i64, "{start}:{end}:{step} of N = {value}: {d}");
                    }
                }
            }
        }
        assert!(known > 5000, "{known}");
    }

    #[test]
    fn common_slices_have_simple_extents() {
        let n = Dim::symbol("N");
        let e = |s: i64, e: i64, step| extent(&n, &s.into(), &e.into(), step).unwrap().to_string();
        assert_eq!(e(0, i64::MAX, 1), "N");
        assert_eq!(e(-1, i64::MIN, -1), "N");
        assert_eq!(e(0, 5, 1), "min(5, N)");
        assert_eq!(e(1, i64::MAX, 1), "max(N - 1, 0)");
        assert_eq!(e(0, i64::MAX, 2), "(N ceildiv 2)");
        assert!(extent(&n, &0i64.into(), &1i64.into(), 0).is_err());
    }
}
