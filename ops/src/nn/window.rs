//! Windows that slide over the spatial axes: geometry that convolutions and pools share.

use std::sync::Arc;

use of_ir::{Dim, DimFn, OpError};

/// Sizes, strides and pads beyond this are refused, so that products of a few of them cannot overflow.
const LIMIT: i64 = 1 << 31;

/// Most elements of one window.
const MAX_WINDOW: usize = 1 << 26;

/// One window position after another along each spatial axis; every list has one entry an axis.
///
/// `D` is [`Dim`] while shapes are symbolic and `usize` once they are numbers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Windows<D> {
    /// Input size.
    pub input: Vec<D>,
    /// Number of window positions.
    pub output: Vec<D>,
    /// Elements of a window.
    pub kernel: Vec<usize>,
    /// Distance of two positions.
    pub strides: Vec<usize>,
    /// Distance of two elements of a window.
    pub dilations: Vec<usize>,
    /// Padding before the first element.
    pub pads_begin: Vec<D>,
    /// Padding after the last element.
    pub pads_end: Vec<D>,
}

/// The attributes that describe windows, as an op holds them. Empty lists mean ones (strides, dilations) and
/// zeros (pads).
#[derive(Clone, Copy, Debug)]
pub struct WindowAttrs<'a> {
    /// Distance of two positions.
    pub strides: &'a [i64],
    /// Begin of every axis, then end of every axis.
    pub pads: &'a [i64],
    /// Distance of two elements of a window.
    pub dilations: &'a [i64],
    /// `NOTSET`, `SAME_UPPER`, `SAME_LOWER` or `VALID`.
    pub auto_pad: &'a str,
    /// Round the number of positions up, for pools.
    pub ceil: bool,
}

/// How pads are found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum AutoPad {
    NotSet,
    SameUpper,
    SameLower,
    Valid,
}

impl AutoPad {
    pub(super) fn parse(s: &str) -> Result<AutoPad, OpError> {
        Ok(match s {
            "NOTSET" | "" => AutoPad::NotSet,
            "SAME_UPPER" => AutoPad::SameUpper,
            "SAME_LOWER" => AutoPad::SameLower,
            "VALID" => AutoPad::Valid,
            _ => {
                return Err(OpError::attr(format!("auto_pad '{s}' is not known"))
                    .hint("NOTSET, SAME_UPPER, SAME_LOWER and VALID are"));
            }
        })
    }
}

/// The usual value of `auto_pad`.
pub(super) fn notset() -> Arc<str> {
    "NOTSET".into()
}

/// A list attribute as sizes: `default` for an empty one.
///
/// # Errors
/// When the length is not `rank` or a value is outside `least..2^31`.
pub(super) fn sizes(name: &str, list: &[i64], rank: usize, default: usize, least: i64) -> Result<Vec<usize>, OpError> {
    if list.is_empty() {
        return Ok(vec![default; rank]);
    }
    if list.len() != rank {
        return Err(OpError::attr(format!("{name} has {} entries, it needs {rank}", list.len())));
    }
    match list.iter().find(|v| !(least..LIMIT).contains(*v)) {
        Some(v) => Err(OpError::attr(format!("{name} holds {v}, it must be at least {least} and below 2^31"))),
        None => Ok(list.iter().map(|v| *v as usize).collect()),
    }
}

fn dim(v: usize) -> Dim {
    Dim::from(v)
}

impl WindowAttrs<'_> {
    /// Strides, dilations, pads begin, pads end and `auto_pad`, checked for `rank` spatial axes.
    pub(super) fn lists(&self, rank: usize) -> Result<[Vec<usize>; 4], OpError> {
        let pads = sizes("pads", self.pads, 2 * rank, 0, 0)?;
        Ok([
            sizes("strides", self.strides, rank, 1, 1)?,
            sizes("dilations", self.dilations, rank, 1, 1)?,
            pads[..rank].to_vec(),
            pads[rank..].to_vec(),
        ])
    }

    /// The positions of the windows of a convolution or pool on an input of the given spatial dimensions.
    ///
    /// # Errors
    /// When attributes are out of range, or a window is larger than the padded input by anything but one stride.
    pub fn windows(&self, input: &[Dim], kernel: &[i64]) -> Result<Windows<Dim>, OpError> {
        let rank = input.len();
        if kernel.len() != rank {
            return Err(OpError::attr(format!("a window of {} axes does not fit {rank} spatial axes", kernel.len())));
        }
        let kernel = sizes("kernel", kernel, rank, 1, 1)?;
        if kernel.iter().try_fold(1usize, |n, k| n.checked_mul(*k)).is_none_or(|n| n > MAX_WINDOW) {
            return Err(OpError::attr(format!("a window of {kernel:?} elements is too large")));
        }
        let [strides, dilations, begin, end] = self.lists(rank)?;
        let auto = AutoPad::parse(self.auto_pad)?;
        let (mut output, mut pads_begin, mut pads_end) = (Vec::new(), Vec::new(), Vec::new());
        for i in 0..rank {
            let (s, extent) = (dim(strides[i]), dim(dilations[i] * (kernel[i] - 1) + 1));
            let (b, e) = match auto {
                AutoPad::NotSet => (dim(begin[i]), dim(end[i])),
                AutoPad::Valid => (dim(0), dim(0)),
                AutoPad::SameUpper | AutoPad::SameLower => {
                    let positions = Dim::call(DimFn::CeilDiv, &input[i], &s);
                    let total = &(&(&(&positions - &dim(1)) * &s) + &extent) - &input[i];
                    let total = Dim::call(DimFn::Max, &total, &dim(0));
                    let half = Dim::call(DimFn::FloorDiv, &total, &dim(2));
                    let rest = &total - &half;
                    if auto == AutoPad::SameUpper { (half, rest) } else { (rest, half) }
                }
            };
            let slack = &(&(&input[i] + &b) + &e) - &extent;
            let positions = match auto {
                AutoPad::SameUpper | AutoPad::SameLower => Dim::call(DimFn::CeilDiv, &input[i], &s),
                AutoPad::NotSet if self.ceil => {
                    // A position that would begin in the padding at the end does not count.
                    let up = &Dim::call(DimFn::CeilDiv, &slack, &s) + &dim(1);
                    let inside = Dim::call(DimFn::CeilDiv, &(&input[i] + &b), &s);
                    Dim::call(DimFn::Min, &up, &inside)
                }
                _ => &Dim::call(DimFn::FloorDiv, &slack, &s) + &dim(1),
            };
            // An axis that is one stride too short has no window. Its input may be padding of an empty one. Where the number of
            // strides is no quotient, others round it towards zero.
            let empty = slack.as_const() == Some(-(strides[i] as i64)) && !self.ceil && positions == dim(0);
            if slack.as_const().is_some_and(|c| c < 0) && !empty {
                return Err(OpError::shape(format!(
                    "a window that spans {extent} elements does not fit an axis of {} with pads {b} and {e}",
                    input[i]
                )));
            }
            output.push(positions);
            pads_begin.push(b);
            pads_end.push(e);
        }
        Ok(Windows { input: input.to_vec(), output, kernel, strides, dilations, pads_begin, pads_end })
    }
}

/// Dimensions as numbers, where all are known and none is negative.
pub(super) fn fixed(dims: &[Dim]) -> Option<Vec<usize>> {
    dims.iter().map(|d| usize::try_from(d.as_const()?).ok()).collect()
}

impl Windows<Dim> {
    /// Whether windows hold one element of axis `a`, each the one of its position.
    pub fn is_still(&self, a: usize) -> bool {
        let whole = self.input[a] == self.output[a] && self.pads_begin[a] == Dim::from(0i64);
        self.kernel[a] == 1 && self.strides[a] == 1 && whole
    }

    /// Whether every window has an element of the input, rather than padding alone. False where an open extent leaves it open.
    pub fn reach_input(&self) -> bool {
        let zero = Dim::from(0i64);
        (0..self.input.len()).all(|a| {
            if self.pads_begin[a] == zero && self.pads_end[a] == zero {
                return true;
            }
            let Some(numbers) = fixed(&[&self.input, &self.output, &self.pads_begin].map(|list| list[a].clone()))
            else {
                return false;
            };
            let [input, output, pad] = numbers[..] else { return false };
            let last = output.saturating_sub(1) * self.strides[a];
            // No axis fits between two elements of a window, the first window ends in the input, and the last begins in it.
            input >= self.dilations[a] && (self.kernel[a] - 1) * self.dilations[a] >= pad && last < pad + input
        })
    }

    /// Some of the axes.
    pub fn part(&self, axes: std::ops::Range<usize>) -> Windows<Dim> {
        Windows {
            input: self.input[axes.clone()].to_vec(),
            output: self.output[axes.clone()].to_vec(),
            kernel: self.kernel[axes.clone()].to_vec(),
            strides: self.strides[axes.clone()].to_vec(),
            dilations: self.dilations[axes.clone()].to_vec(),
            pads_begin: self.pads_begin[axes.clone()].to_vec(),
            pads_end: self.pads_end[axes].to_vec(),
        }
    }

    /// The same with numbers; `None` where a symbol remains.
    pub fn fixed(&self) -> Option<Windows<usize>> {
        Some(Windows {
            input: fixed(&self.input)?,
            output: fixed(&self.output)?,
            kernel: self.kernel.clone(),
            strides: self.strides.clone(),
            dilations: self.dilations.clone(),
            pads_begin: fixed(&self.pads_begin)?,
            pads_end: fixed(&self.pads_end)?,
        })
    }
}

/// Window positions in a row: for one element of the window, `len` positions from `output` on read the input elements
/// `input`, `input + step`, …
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Run {
    pub output: usize,
    pub input: usize,
    pub len: usize,
}

impl Windows<usize> {
    /// Distance of the input elements of a [`Run`].
    pub(super) fn step(&self) -> usize {
        self.strides.last().copied().unwrap_or(1)
    }

    /// Number of input elements and of window positions.
    pub(super) fn areas(&self) -> (usize, usize) {
        (self.input.iter().product(), self.output.iter().product())
    }

    /// For every element of the window that is inside the input at some output position, in row-major order: its number and
    /// these positions.
    pub(super) fn runs(&self) -> Vec<(usize, Vec<Run>)> {
        let inside: Vec<std::ops::Range<usize>> = (0..self.input.len()).map(|a| self.taps_inside(a)).collect();
        let extents: Vec<usize> = inside.iter().map(|r| r.len()).collect();
        let (mut all, mut k) = (Vec::new(), vec![0; inside.len()]);
        crate::shape::for_each_index(&extents, |i| {
            k.iter_mut().zip(i).zip(&inside).for_each(|((k, i), r)| *k = r.start + i);
            let runs = self.runs_of(&k);
            if !runs.is_empty() {
                all.push((k.iter().zip(&self.kernel).fold(0, |n, (k, extent)| n * extent + k), runs));
            }
        });
        all
    }

    /// The elements of the window along axis `a` that can be inside the input: those before and after are in the padding at
    /// every position.
    fn taps_inside(&self, a: usize) -> std::ops::Range<usize> {
        let (d, pad) = (self.dilations[a], self.pads_begin[a]);
        let last = self.output[a].saturating_sub(1) * self.strides[a];
        let first = pad.saturating_sub(last).div_ceil(d);
        let end = if self.input[a] == 0 { 0 } else { (pad + self.input[a] - 1) / d + 1 };
        first..end.min(self.kernel[a]).max(first)
    }

    fn runs_of(&self, k: &[usize]) -> Vec<Run> {
        let rank = self.input.len();
        if rank == 0 {
            return vec![Run { output: 0, input: 0, len: 1 }];
        }
        // The positions at which the element is inside, along each axis.
        let inside: Vec<(usize, usize)> = (0..rank)
            .map(|a| {
                let (s, p, d) = (self.strides[a], self.pads_begin[a], k[a] * self.dilations[a]);
                let from = p.saturating_sub(d).div_ceil(s);
                let to = if self.input[a] + p > d { (self.input[a] + p - d - 1) / s + 1 } else { 0 };
                (from, to.min(self.output[a]))
            })
            .collect();
        let last = rank - 1;
        let (from, to) = inside[last];
        if inside.iter().any(|(f, t)| f >= t) {
            return Vec::new();
        }
        let at = |a: usize, o: usize| o * self.strides[a] + k[a] * self.dilations[a] - self.pads_begin[a];
        let outer: Vec<usize> = inside[..last].iter().map(|(f, t)| t - f).collect();
        let mut out: Vec<Run> = Vec::new();
        crate::shape::for_each_index(&outer, |i| {
            let (mut output, mut input) = (0, 0);
            for a in 0..last {
                let o = inside[a].0 + i[a];
                output = output * self.output[a] + o;
                input = input * self.input[a] + at(a, o);
            }
            let run = Run {
                output: output * self.output[last] + from,
                input: input * self.input[last] + at(last, from),
                len: to - from,
            };
            // Rows that follow one another without a gap on both sides are one run.
            match out.last_mut() {
                Some(r) if self.step() == 1 && r.output + r.len == run.output && r.input + r.len == run.input => {
                    r.len += run.len
                }
                _ => out.push(run),
            }
        });
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attrs(auto_pad: &str, ceil: bool) -> WindowAttrs<'_> {
        WindowAttrs { strides: &[2], pads: &[], dilations: &[], auto_pad, ceil }
    }

    #[test]
    fn symbolic_sizes_evaluate_to_the_same_as_numbers() {
        let n = Dim::symbol("H");
        for auto in ["NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"] {
            for ceil in [false, true] {
                let symbolic = attrs(auto, ceil).windows(std::slice::from_ref(&n), &[3]).unwrap();
                for h in 3..9i64 {
                    let fixed = attrs(auto, ceil).windows(&[h.into()], &[3]).unwrap();
                    let value = symbolic.output[0].substitute(&|_| Some(h.into()));
                    assert_eq!(value, fixed.output[0], "{auto} {ceil} {h}");
                }
            }
        }
    }

    #[test]
    fn windows_reach_the_input_where_a_run_covers_each_position() {
        let mut seen = [0, 0];
        let numbers = (1..4i64).flat_map(|k| (1..3i64).map(move |d| (k, d)));
        for ((kernel, dilation), input) in numbers.flat_map(|n| (1..5i64).map(move |i| (n, i))) {
            for (pads, ceil) in [([0, 0], true), ([1, 2], false), ([3, 0], true), ([0, 3], false)] {
                let attrs =
                    WindowAttrs { strides: &[2], pads: &pads, dilations: &[dilation], auto_pad: "NOTSET", ceil };
                let Ok(w) = attrs.windows(&[input.into()], &[kernel]) else { continue };
                let Some(fixed) = w.fixed() else { continue };
                let mut covered = vec![false; fixed.output[0]];
                for r in fixed.runs().iter().flat_map(|(_, list)| list) {
                    covered[r.output..][..r.len].fill(true);
                }
                let all = covered.iter().all(|c| *c);
                // Small inputs between dilated elements are not looked at closely.
                assert!(if input < dilation { all || !w.reach_input() } else { all == w.reach_input() }, "{fixed:?}");
                seen[usize::from(all)] += 1;
            }
        }
        assert!(seen.iter().all(|n| *n > 20), "{seen:?}");
    }

    #[test]
    fn out_of_range_attributes_are_refused() {
        let w = |strides: &[i64], pads: &[i64], kernel: &[i64]| {
            WindowAttrs { strides, pads, dilations: &[], auto_pad: "NOTSET", ceil: false }
                .windows(&[4i64.into()], kernel)
        };
        assert!(w(&[0], &[], &[1]).is_err());
        assert!(w(&[], &[-1, 0], &[1]).is_err());
        assert!(w(&[], &[i64::MAX, i64::MAX], &[1]).is_err());
        assert!(w(&[], &[], &[0]).is_err());
        assert!(w(&[], &[], &[-3]).is_err());
        assert!(w(&[], &[], &[6]).unwrap_err().message.contains("does not fit"));
        assert_eq!(w(&[], &[], &[5]).unwrap().output, [Dim::from(0i64)], "one stride too short: no window");
        assert!(w(&[], &[0], &[1]).is_err());
    }

    #[test]
    fn contiguous_rows_merge() {
        let w = WindowAttrs { strides: &[], pads: &[], dilations: &[], auto_pad: "NOTSET", ceil: false };
        let one = w.windows(&[3i64.into(), 4i64.into()], &[1, 1]).unwrap().fixed().unwrap();
        assert_eq!(one.runs(), vec![(0, vec![Run { output: 0, input: 0, len: 12 }])]);
    }
}
