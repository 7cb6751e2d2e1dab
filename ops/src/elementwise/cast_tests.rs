//! Every conversion between every pair of numeric types, against its definition in plain arithmetic.

use of_ir::{DType, Elements, Power, Rounding, Tensor};

use crate::sample::Rng;
use crate::{Inputs, Op, Value, elementwise::Cast};

/// Every finite value that a type of at most 16 bits has, ascending.
fn values(dtype: DType) -> Vec<f64> {
    let bits = dtype.bits().unwrap();
    let cells: Vec<u8> = (0..1u32 << bits).flat_map(|i| i.to_le_bytes()[..bits.div_ceil(8)].to_vec()).collect();
    let all = Tensor::from_cells(dtype, vec![1 << bits], cells).unwrap().to_f64s().unwrap();
    let mut finite: Vec<f64> = all.into_iter().filter(|v| v.is_finite()).collect();
    finite.sort_by(f64::total_cmp);
    finite
}

/// The value of `x` in `to`. `all` are the values of a small float `to`.
fn defined(x: f64, to: DType, all: &[f64]) -> f64 {
    match to {
        DType::F64 => x,
        DType::F32 => f64::from(x as f32),
        DType::Bool => f64::from(x != 0.0),
        DType::F8E8M0FNU if x.is_nan() || x < 0.0 => f64::NAN,
        // The least power of two that is not smaller.
        DType::F8E8M0FNU => all.iter().copied().find(|v| *v >= x).unwrap_or(2f64.powi(127)),
        DType::F4E2M1FN if x.is_nan() => 0.0,
        _ if to.is_float() && x.is_nan() => f64::NAN,
        _ if to.is_float() => {
            let (least, largest) = (all[0], all[all.len() - 1]);
            // Half a step beyond the largest value, 16-bit floats become infinite; smaller floats saturate.
            let step = largest - all[all.len() - 2];
            if to.bits() == Some(16) && x.abs() >= largest + step / 2.0 {
                return f64::INFINITY * x.signum();
            }
            let x = x.clamp(least, largest);
            let above = all.partition_point(|v| *v < x);
            if all[above] == x {
                return x;
            }
            let (low, high) = (all[above - 1], all[above]);
            match (x - low).total_cmp(&(high - x)) {
                std::cmp::Ordering::Less => low,
                std::cmp::Ordering::Greater => high,
                // A tie: to the one whose significand is even, that is, a multiple of twice the step.
                std::cmp::Ordering::Equal => {
                    if (low / (high - low)).rem_euclid(2.0) == 0.0 {
                        low
                    } else {
                        high
                    }
                }
            }
        }
        _ => {
            let (low, high) = if to.is_packed() { DType::I32 } else { to }.int_range().unwrap();
            let wide = if x.is_nan() { 0 } else { (x.trunc() as i128).clamp(low, high) };
            wrapped(wide, to) as f64
        }
    }
}

/// The integer of type `to` that is `x` modulo 2 to the number of its bits.
fn wrapped(x: i128, to: DType) -> i128 {
    let (low, high) = to.int_range().unwrap();
    (x - low).rem_euclid(high - low + 1) + low
}

/// Values of `from` that matter: small, large, odd, halfway, special.
fn inputs(from: DType, r: &mut Rng) -> Tensor {
    let elements = if from.is_float() {
        let mut v = vec![0.0, -0.0, 0.5, 1.5, 2.5, -0.25, 3.5, 464.0, 1e9, -1e9, 1e-9, f64::NAN, f64::INFINITY];
        v.push(f64::NEG_INFINITY);
        v.extend((0..60).map(|i| r.float(-1.0, 1.0) * 2f64.powi(i - 12)));
        Elements::Float(v)
    } else {
        let (low, high) = from.int_range().unwrap();
        let mut v = vec![low, high, 0, 1, 2, 3, (1 << 24) + 1, (1 << 60) + (1 << 36) + 1, -((1 << 60) + (1 << 51) + 1)];
        v.extend((0..60).map(|i| i128::from(r.bits() as i64) >> i));
        Elements::Int(v.into_iter().map(|x| wrapped(x, from)).collect())
    };
    let n = match &elements {
        Elements::Float(v) => v.len(),
        Elements::Int(v) => v.len(),
        Elements::Str(v) => v.len(),
    };
    Tensor::from_elements(from, vec![n], elements).unwrap()
}

fn cast(x: &Tensor, op: Cast) -> Tensor {
    let values = [Value::from(x.clone())];
    let y = op.eval(&mut Inputs { values: &values, types: &[], region: &mut |_, _| Ok(vec![]) }).unwrap().remove(0);
    let Value::Tensor(y) = y else { panic!("no tensor") };
    y
}

#[test]
fn casts_between_all_types_match_the_definition() {
    let numeric = || DType::ALL.into_iter().filter(|d| *d != DType::String);
    let mut r = Rng::new(3);
    for to in numeric() {
        let all = if to.is_float() && to.bits() <= Some(16) { values(to) } else { Vec::new() };
        for from in numeric() {
            let x = inputs(from, &mut r);
            let got = cast(&x, Cast::to(to)).elements();
            let expected: Vec<f64> = match x.elements() {
                // Exact, for integers of 64 bits do not fit f64.
                Elements::Int(v) if to.is_int() => v.iter().map(|x| wrapped(*x, to) as f64).collect(),
                Elements::Int(v) if to == DType::F32 => v.iter().map(|x| f64::from(*x as f32)).collect(),
                Elements::Int(v) => v.iter().map(|x| defined(*x as f64, to, &all)).collect(),
                Elements::Float(v) if from == to => v,
                Elements::Float(v) => v.iter().map(|x| defined(*x, to, &all)).collect(),
                Elements::Str(_) => unreachable!(),
            };
            let got: Vec<f64> = match got {
                Elements::Float(v) => v,
                Elements::Int(v) => v.iter().map(|x| *x as f64).collect(),
                Elements::Str(_) => unreachable!(),
            };
            let x = x.to_f64s().unwrap();
            for ((x, y), z) in x.iter().zip(&got).zip(&expected) {
                assert!(y == z || y.is_nan() && z.is_nan(), "{from} {x} to {to}: {y}, not {z}");
            }
        }
    }
}

#[test]
fn cast_attributes_choose_the_rounding() {
    let x = Tensor::from_slice(&[4], &[1e9f32, -1e9, 3.0, 0.0]).unwrap();
    let with = |to, saturate, round_mode: Option<&str>| {
        cast(&x, Cast { to, saturate, round_mode: round_mode.map(Into::into) }).to_f64s().unwrap()
    };
    assert_eq!(with(DType::F8E5M2, None, None), [57344.0, -57344.0, 3.0, 0.0]);
    assert_eq!(with(DType::F8E5M2, Some(false), None), [f64::INFINITY, f64::NEG_INFINITY, 3.0, 0.0]);
    assert!(with(DType::F8E4M3FN, Some(false), None)[..2].iter().all(|v| v.is_nan()));
    assert_eq!(with(DType::F8E8M0FNU, None, None)[2..], [4.0, 2f64.powi(-127)]);
    assert_eq!(with(DType::F8E8M0FNU, None, Some("down"))[2..], [2.0, 2f64.powi(-127)]);
    assert_eq!(with(DType::F8E8M0FNU, None, Some("nearest"))[2], 4.0);
    // Where nothing can be out of range, the attributes change nothing, and native code may do it.
    assert!(Cast { saturate: Some(false), ..Cast::to(DType::F16) }.scalar().is_some());
    assert!(Cast { saturate: Some(false), ..Cast::to(DType::F8E5M2) }.scalar().is_none());
    assert_eq!(Rounding::DEFAULT, Rounding { saturate: true, power: Power::Up });
}
