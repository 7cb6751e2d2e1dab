//! Operands for tests that compare bit for bit: ties, subnormals, infinities, NaN and signed zeros among random numbers.

use of_ir::{DType, Elements, Tensor};
use of_ops::Value;
use of_ops::sample::Rng;

/// A tensor of such numbers.
pub fn special(rng: &mut Rng, dtype: DType, dims: &[usize]) -> Tensor {
    let n = dims.iter().product();
    let elements = match dtype.int_range() {
        _ if dtype == DType::Bool => Elements::Int((0..n).map(|_| i128::from(rng.int(0, 1))).collect()),
        Some((low, high)) => {
            let one = |rng: &mut Rng| match rng.int(0, 3) {
                0 => rng.pick(&[low, high, 0, 1]),
                _ => i128::from(rng.int(-9, 9)).clamp(low, high),
            };
            Elements::Int((0..n).map(|_| one(rng)).collect())
        }
        None => Elements::Float((0..n).map(|_| number(rng, dtype)).collect()),
    };
    Tensor::from_elements(dtype, dims.to_vec(), elements).expect("as many elements as the dimensions say")
}

fn number(rng: &mut Rng, dtype: DType) -> f64 {
    let (smallest, largest) = match dtype {
        DType::F64 => (f64::from_bits(1), f64::MAX),
        _ => (f64::from(f32::from_bits(1)), f64::from(f32::MAX)),
    };
    let sign = rng.pick(&[1.0, -1.0]);
    sign * match rng.int(0, 11) {
        0 => rng.pick(&[0.0, f64::INFINITY, f64::NAN, largest, smallest, smallest * 3.0]),
        1 => rng.int(0, 9) as f64 + 0.5,
        2 => rng.int(0, 9) as f64,
        3 => largest * rng.float(0.1, 1.0),
        4 => smallest * rng.int(1, 1 << 20) as f64,
        _ => rng.float(0.0, 4.0),
    }
}

/// Where two results differ in a bit; NaN equals NaN, and zeros are equal if their signs do not count.
pub fn bits_differ(a: &[Value], b: &[Value], zero_signs: bool) -> Option<String> {
    let bits = |x: f64| match x {
        x if x.is_nan() => f64::NAN.to_bits(),
        x if x == 0.0 && !zero_signs => 0,
        x => x.to_bits(),
    };
    for (a, b) in a.iter().zip(b) {
        let (Value::Tensor(a), Value::Tensor(b)) = (a, b) else { return Some("no tensors".into()) };
        let same = a.ty() == b.ty()
            && match (a.elements(), b.elements()) {
                (Elements::Float(x), Elements::Float(y)) => x.iter().zip(&y).all(|(x, y)| bits(*x) == bits(*y)),
                (x, y) => x == y,
            };
        if !same {
            return Some(format!("{:?} is not {:?}", a.elements(), b.elements()));
        }
    }
    None
}
