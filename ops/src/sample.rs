//! Random values for the tests that run over the list of ops. Deterministic in the seed, without dependencies.

use of_ir::{DType, Elements, Tensor};

use crate::Value;

/// A small generator (splitmix64): good enough for test data, the same everywhere.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// A generator for `seed`.
    pub fn new(seed: u64) -> Rng {
        Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x1234_5678_9abc_def0)
    }

    /// The next 64 bits. Source: Steele, Lea, Flood: "Fast splittable pseudorandom number generators" (2014).
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number in `low..=high`.
    pub fn int(&mut self, low: i64, high: i64) -> i64 {
        low + (self.bits() % (high - low + 1) as u64) as i64
    }

    /// A number in `low..high`.
    pub fn float(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// One of `list`.
    pub fn pick<T: Clone>(&mut self, list: &[T]) -> T {
        list[(self.bits() % list.len() as u64) as usize].clone()
    }

    /// Dimensions of the given rank, each in `low..=high`.
    pub fn dims(&mut self, rank: usize, low: i64, high: i64) -> Vec<usize> {
        (0..rank).map(|_| self.int(low, high) as usize).collect()
    }

    /// A tensor with elements in `low..high`; integers are rounded down, bools random.
    pub fn tensor(&mut self, dtype: DType, dims: &[usize], low: f64, high: f64) -> Tensor {
        let n = dims.iter().product();
        let elements = if dtype.is_float() {
            Elements::Float((0..n).map(|_| self.float(low, high)).collect())
        } else if dtype == DType::Bool {
            Elements::Int((0..n).map(|_| i128::from(self.int(0, 1))).collect())
        } else if dtype == DType::String {
            Elements::Str((0..n).map(|_| format!("s{}", self.int(0, 9))).collect())
        } else {
            Elements::Int((0..n).map(|_| self.float(low, high).floor() as i128).collect())
        };
        Tensor::from_elements(dtype, dims.to_vec(), elements).expect("the count fits by construction")
    }

    /// [`Rng::tensor`] of type f32 in -2..2, as a value.
    pub fn f32s(&mut self, dims: &[usize]) -> Value {
        self.tensor(DType::F32, dims, -2.0, 2.0).into()
    }
}
