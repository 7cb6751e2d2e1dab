//! Whether a value is right up to rounding, and the largest difference.

use of_ir::{DType, Elements, Tensor, Type};
use of_ops::Value;
use of_ops::interpret::{run_graph, type_of};

use super::case::Case;
use super::native::Ran;
use crate::rounding::{noisy, precision, smallest};

/// A value of a case, compared.
#[derive(Clone, Debug)]
pub struct Compared {
    /// Name of the value.
    pub name: String,
    /// Its type.
    pub ty: String,
    /// The largest difference, relative to the largest finite number that is expected; 0 where all elements are equal.
    pub relative: f64,
    /// The element that is wrong by most, where one is.
    pub difference: Option<Difference>,
}

/// A wrong element.
#[derive(Clone, Debug)]
pub struct Difference {
    /// Its index; empty for a scalar, and where whole values differ.
    pub index: Vec<usize>,
    /// What native code computed.
    pub got: String,
    /// What it should be.
    pub expected: String,
    /// The distance between them; infinite where one is not finite or no number.
    pub distance: f64,
    /// The distance that rounding allows.
    pub allowed: f64,
    /// How many elements are wrong, and of how many.
    pub wrong: (usize, usize),
}

/// Runs of the interpreter with injected rounding errors before a difference counts: few first, then more.
const NOISE: [u64; 2] = [4, 32];
/// A difference of more than this many times the bound is not measured again.
const HOPELESS: f64 = 16.0;
/// The bound as a multiple of the measured deviation, which is the maximum of a sample.
const MARGIN: f64 = 4.0;
/// Half units in the last place of the largest number that are always allowed, for floats of 24 bits and more, and of fewer:
/// sums that cancel have the errors of their terms.
const OF_LARGEST: (f64, f64) = (16.0, 2.0);

/// Compares the outputs of a run with what the case expects. `tolerance` is relative to the largest number of each output;
/// without it, the bound is what injected rounding errors change.
pub(super) fn judge(case: &Case, ran: &Ran, got: &[Value], tolerance: Option<f64>) -> Vec<Compared> {
    let mut noise: Vec<Vec<(Value, Value)>> = vec![Vec::new(); case.expected.len()];
    let all = |noise: &[Vec<(Value, Value)>]| -> Vec<Compared> {
        let each = got.iter().zip(&case.expected).zip(noise).zip(&case.func.outputs);
        each.map(|(((got, want), noise), name)| compare(name, got, want, noise, tolerance)).collect()
    };
    let mut compared = all(&noise);
    let func = ran.prepared.as_ref().unwrap_or(&case.func);
    let mut exact = None;
    let mut seed = 0;
    for runs in NOISE {
        let wrong = || compared.iter().filter_map(|c| c.difference.as_ref());
        let open = wrong().next().is_some() && (seed == 0 || wrong().all(|d| d.distance <= HOPELESS * d.allowed));
        if tolerance.is_some() || !open {
            break;
        }
        if exact.is_none() {
            exact = run_graph(&func.graph, &case.inputs).ok();
        }
        let Some(exact) = exact.as_ref() else { break };
        for seed in seed..runs {
            // An op that rejects operands with noise makes everything after it uncertain, so the run does not count.
            let moved = noisy(&func.graph, &case.inputs, seed).unwrap_or_default();
            for ((list, moved), exact) in noise.iter_mut().zip(moved).zip(exact) {
                list.push((moved, exact.clone()));
            }
        }
        seed = runs;
        compared = all(&noise);
    }
    compared
}

/// As [`judge`], without injected rounding errors: a bound that is too small for deep models, at no cost.
pub(super) fn judge_strictly(case: &Case, got: &[Value], tolerance: Option<f64>) -> Vec<Compared> {
    let each = got.iter().zip(&case.expected).zip(&case.func.outputs);
    each.map(|((got, want), name)| compare(name, got, want, &[], tolerance)).collect()
}

/// How many times the bound of [`judge_strictly`] a difference has to exceed to count without measured rounding errors, from
/// both comparisons of the same outputs; `None` where these do not differ.
pub(super) fn amplification(strict: &[Compared], measured: &[Compared]) -> Option<f64> {
    let allowed = |c: &Compared| c.difference.as_ref().map(|d| d.allowed.max(f64::MIN_POSITIVE));
    let ratios = strict.iter().zip(measured).filter_map(|(s, m)| Some(allowed(m)? / allowed(s)?));
    ratios.reduce(f64::max).map(|ratio| HOPELESS * ratio.max(1.0))
}

/// As [`judge`], where the distance of what is expected from `exact` is its rounding error.
pub(super) fn judge_given(case: &Case, got: &[Value], exact: &[Value]) -> Vec<Compared> {
    let each = got.iter().zip(&case.expected).zip(exact).zip(&case.func.outputs);
    each.map(|(((got, want), exact), name)| compare(name, got, want, &[(want.clone(), exact.clone())], None)).collect()
}

fn compare(name: &str, got: &Value, want: &Value, noise: &[(Value, Value)], tolerance: Option<f64>) -> Compared {
    let ty = Type::to_string(&type_of(want));
    let (relative, difference) = match (got, want) {
        (Value::Tensor(g), Value::Tensor(w)) if g.dtype() == w.dtype() && g.dims() == w.dims() => {
            tensors(g, w, noise, tolerance)
        }
        (Value::Sequence(g), Value::Sequence(w)) if g.len() == w.len() => {
            let item = |v: &Value, i: usize| if let Value::Sequence(l) = v { l.get(i).cloned() } else { None };
            let one = |(i, (g, w)): (usize, (&Value, &Value))| {
                let noise: Vec<_> = noise.iter().filter_map(|(a, b)| item(a, i).zip(item(b, i))).collect();
                compare(name, g, w, &noise, tolerance)
            };
            let items: Vec<Compared> = g.iter().zip(w).enumerate().map(one).collect();
            let largest = items.iter().map(|c| c.relative).fold(0.0, f64::max);
            (largest, items.into_iter().find_map(|c| c.difference))
        }
        (Value::Optional(Some(g)), Value::Optional(Some(w))) => {
            let inner = compare(name, g, w, &[], tolerance);
            (inner.relative, inner.difference)
        }
        _ if got == want => (0.0, None),
        // A number of results that rounding decides, such as that of the nonzero elements.
        _ if noise.iter().any(|(a, b)| type_of(a) != type_of(b)) => (0.0, None),
        _ => (f64::INFINITY, Some(kinds(got, want))),
    };
    Compared { name: name.into(), ty, relative, difference }
}

/// Values of different types.
fn kinds(got: &Value, want: &Value) -> Difference {
    let (got, expected) = (type_of(got).to_string(), type_of(want).to_string());
    Difference { index: Vec::new(), got, expected, distance: f64::INFINITY, allowed: 0.0, wrong: (1, 1) }
}

/// The largest relative difference of two tensors of one type, and the element that is wrong by most.
fn tensors(got: &Tensor, want: &Tensor, noise: &[(Value, Value)], tolerance: Option<f64>) -> (f64, Option<Difference>) {
    let (Some(g), Some(w)) = (got.to_f64s(), want.to_f64s()) else { return texts(got, want) };
    // Integers of 64 bits have more digits than a double.
    let (exact_g, exact_w) = (got.elements(), want.elements());
    let scale = w.iter().filter(|x| x.is_finite()).fold(0.0, |m, x| x.abs().max(m));
    let noise: Vec<(Vec<f64>, Vec<f64>)> = noise.iter().filter_map(|(a, b)| Some((numbers(a)?, numbers(b)?))).collect();
    let typical = if want.dtype().is_float() { typical(&noise, w.len()) } else { 0.0 };
    let (mut largest, mut wrong, mut worst) = (0.0f64, 0, None::<(f64, usize, f64, f64)>);
    for i in 0..w.len() {
        let distance = match (&exact_g, &exact_w) {
            (Elements::Int(a), Elements::Int(b)) => a[i].abs_diff(b[i]) as f64,
            _ if g[i] == w[i] || (g[i].is_nan() && w[i].is_nan()) => 0.0,
            _ if g[i].is_finite() && w[i].is_finite() => (g[i] - w[i]).abs(),
            _ => f64::INFINITY,
        };
        if distance == 0.0 {
            continue;
        }
        largest = largest.max(distance / scale.max(f64::MIN_POSITIVE));
        let allowed = match tolerance {
            Some(t) if want.dtype().is_float() => t * scale,
            Some(_) => 0.0,
            None => MARGIN * deviation(&noise, i).max(typical) + slack(want.dtype(), scale, w[i]),
        };
        if distance <= allowed || allowed == f64::INFINITY {
            continue;
        }
        wrong += 1;
        let by = distance / allowed.max(f64::MIN_POSITIVE);
        if worst.is_none_or(|(most, ..)| by > most) {
            worst = Some((by, i, distance, allowed));
        }
    }
    let difference = worst.map(|(_, i, distance, allowed)| Difference {
        index: index(want.dims(), i),
        got: element(&exact_g, i),
        expected: element(&exact_w, i),
        distance,
        allowed,
        wrong: (wrong, w.len()),
    });
    (largest, difference)
}

/// What rounding may change without being measured; nothing for integers.
fn slack(dtype: DType, scale: f64, expected: f64) -> f64 {
    if !dtype.is_float() {
        return 0.0;
    }
    let half_unit = 2f64.powi(-precision(dtype));
    let wide = precision(dtype) >= 24;
    let units = if wide { OF_LARGEST.0 } else { OF_LARGEST.1 };
    units * half_unit * if wide { scale } else { expected.abs() } + units * smallest(dtype)
}

fn numbers(v: &Value) -> Option<Vec<f64>> {
    if let Value::Tensor(t) = v { t.to_f64s() } else { None }
}

/// How far noise moves an element; infinite where it makes it something else than a finite number.
fn deviation(noise: &[(Vec<f64>, Vec<f64>)], i: usize) -> f64 {
    let one = |(a, b): &(Vec<f64>, Vec<f64>)| match (a.get(i), b.get(i)) {
        (Some(a), Some(b)) if a == b || (a.is_nan() && b.is_nan()) => 0.0,
        (Some(a), Some(b)) if a.is_finite() && b.is_finite() => (a - b).abs(),
        _ => f64::INFINITY,
    };
    noise.iter().map(one).fold(0.0, f64::max)
}

/// The root mean square of the deviations of all elements: by chance, few runs hardly move some of many elements.
fn typical(noise: &[(Vec<f64>, Vec<f64>)], elements: usize) -> f64 {
    let all = (0..elements).map(|i| deviation(noise, i)).filter(|d| d.is_finite());
    let (count, sum) = all.fold((0usize, 0.0), |(n, sum), d| (n + 1, sum + d * d));
    (sum / count.max(1) as f64).sqrt()
}

/// Tensors of strings.
fn texts(got: &Tensor, want: &Tensor) -> (f64, Option<Difference>) {
    let (Some(g), Some(w)) = (got.strings(), want.strings()) else { return (0.0, None) };
    let wrong: Vec<usize> = (0..w.len()).filter(|i| g[*i] != w[*i]).collect();
    let Some(first) = wrong.first().copied() else { return (0.0, None) };
    let quoted = |s: &String| format!("{s:?}");
    let difference = Difference {
        index: index(want.dims(), first),
        got: quoted(&g[first]),
        expected: quoted(&w[first]),
        distance: f64::INFINITY,
        allowed: 0.0,
        wrong: (wrong.len(), w.len()),
    };
    (f64::INFINITY, Some(difference))
}

fn element(elements: &Elements, i: usize) -> String {
    match elements {
        Elements::Float(v) => format!("{:?}", v[i]),
        Elements::Int(v) => v[i].to_string(),
        Elements::Str(v) => format!("{:?}", v[i]),
    }
}

/// The index of element number `i`.
fn index(dims: &[usize], mut i: usize) -> Vec<usize> {
    let mut out: Vec<usize> = dims
        .iter()
        .rev()
        .map(|d| {
            let at = i % d;
            i /= d;
            at
        })
        .collect();
    out.reverse();
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn floats(v: &[f32]) -> Value {
        Tensor::from_slice(&[v.len()], v).unwrap().into()
    }

    fn wrong(got: &[f32], want: &[f32], tolerance: Option<f64>) -> Option<Difference> {
        compare("y", &floats(got), &floats(want), &[], tolerance).difference
    }

    #[test]
    fn floats_are_compared_relative_to_the_largest() {
        assert!(wrong(&[1000.0, 1e-5], &[1000.0, 0.0], None).is_none());
        let d = wrong(&[1000.0, 0.01], &[1000.0, 0.0], None).unwrap();
        assert_eq!((d.index, d.wrong), (vec![1], (1, 2)));
        assert!(wrong(&[1000.0, 0.01], &[1000.0, 0.0], Some(1e-3)).is_none());
    }

    #[test]
    fn nan_and_infinity_must_be_matched() {
        let (nan, inf) = (f32::NAN, f32::INFINITY);
        assert!(wrong(&[nan, inf], &[nan, inf], None).is_none());
        for (got, want) in [(nan, 1.0), (1.0, nan), (inf, -inf), (1.0, inf), (inf, 1.0)] {
            assert!(wrong(&[got], &[want], Some(1.0)).is_some(), "{got} {want}");
        }
    }

    #[test]
    fn integers_are_exact_unless_noise_moves_them() {
        let ints = |v: &[i64]| Value::from(Tensor::from_i64s(v));
        let (got, want) = (ints(&[3, i64::MAX]), ints(&[3, i64::MAX - 1]));
        let d = compare("y", &got, &want, &[], Some(0.5)).difference.unwrap();
        assert_eq!((d.index, d.distance), (vec![1], 1.0));
        let noise = [(ints(&[3, 5]), ints(&[3, 6]))];
        assert!(compare("y", &got, &want, &noise, None).difference.is_none());
    }

    /// The other side accumulates rounding errors; native code agrees with the interpreter, or is wrong by more than they are.
    #[test]
    fn the_other_sides_distance_from_the_interpreter_is_rounding() {
        let (exact, want) = (floats(&[1.0, 2.0, 3.0]), floats(&[1.00002, 2.00001, 2.99998]));
        let text = "func @main(%x: tensor<3xf32>) -> (tensor<3xf32>) {\n  of.return %x : (tensor<3xf32>) -> ()\n}\n";
        let module = of_ir::text::parse_module(text, "t", &of_ops::registry(), None).unwrap();
        let func = of_ir::Func { outputs: vec!["y".into()], ..module.main().unwrap().clone() };
        let case = Case { func, inputs: vec![exact.clone()], expected: vec![want] };
        let wrong = |compared: Vec<Compared>| compared[0].difference.is_some();
        let exact = std::slice::from_ref(&exact);
        assert!(wrong(judge_strictly(&case, exact, None)));
        assert!(!wrong(judge_given(&case, exact, exact)));
        let far = [floats(&[1.0, 2.0, 3.0002])];
        assert!(wrong(judge_given(&case, &far, exact)));
        // The measured bound is larger by the factor at which a difference is one without measuring.
        let (strict, measured) = (judge_strictly(&case, &far, None), judge_given(&case, &far, exact));
        let bound = |c: &[Compared]| c[0].difference.as_ref().unwrap().allowed;
        assert_eq!(amplification(&strict, &measured), Some(HOPELESS * bound(&measured) / bound(&strict)));
        assert_eq!(amplification(&strict, &judge_given(&case, exact, exact)), None);
    }

    #[test]
    fn an_element_that_noise_missed_has_the_bound_of_the_others() {
        let (got, want) = (floats(&[1.0, 1.0, 1.00001, 1.0]), floats(&[1.0; 4]));
        let noise = [(floats(&[1.00001, 1.00001, 1.0, 1.00001]), floats(&[1.0; 4]))];
        assert!(compare("y", &got, &want, &[], None).difference.is_some());
        assert!(compare("y", &got, &want, &noise, None).difference.is_none());
    }

    #[test]
    fn values_of_other_types_differ() {
        let d = compare("y", &floats(&[1.0]), &floats(&[1.0, 2.0]), &[], Some(1.0)).difference.unwrap();
        assert_eq!((&*d.got, &*d.expected), ("tensor<1xf32>", "tensor<2xf32>"));
    }
}
