//! Data that is made, with labels that a model can learn from the inputs.

use of_diag::Diagnostic;
use of_ir::Tensor;
use of_ops::sample::Rng;

use super::net::made;

/// The rule by which labels depend on inputs is the same for all seeds.
const RULE: u64 = 0x5eed;

/// Samples under construction.
pub struct Samples {
    pub(super) count: usize,
    pub(super) random: Rng,
}

impl Samples {
    pub(super) fn new(count: usize, seed: u64) -> Samples {
        Samples { count, random: Rng::new(seed ^ 0xda7a) }
    }

    /// A number below `n` for each of `count` elements.
    pub(super) fn below(&mut self, n: usize, count: usize) -> Vec<i64> {
        (0..count).map(|_| self.random.int(0, n.max(1) as i64 - 1)).collect()
    }

    /// Images of a smooth pattern for each class, with noise; `[count, 3, size, size]`.
    pub(super) fn images(&mut self, classes: &[i64], size: usize) -> Result<Tensor, Diagnostic> {
        let mut values = Vec::with_capacity(classes.len() * 3 * size * size);
        for class in classes {
            let mut rule = Rng::new(RULE ^ (*class as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
            for _ in 0..3 {
                let [fx, fy, phase] =
                    [rule.float(0.5, 4.0), rule.float(0.5, 4.0), rule.float(0.0, std::f64::consts::TAU)];
                for y in 0..size {
                    for x in 0..size {
                        let at = (fx * x as f64 + fy * y as f64) / size as f64;
                        let wave = (at * std::f64::consts::TAU + phase).sin();
                        values.push((wave + self.random.float(-0.5, 0.5)) as f32);
                    }
                }
            }
        }
        made(Tensor::from_slice(&[classes.len(), 3, size, size], &values))
    }

    /// A hidden number of each row of a table, from -1 to 1.
    pub(super) fn hidden(table: usize, row: i64) -> f64 {
        Rng::new(RULE ^ ((table as u64) << 32) ^ (row as u64).wrapping_mul(0xd1b5_4a32_d192_ed03)).float(-1.0, 1.0)
    }

    /// Sequences of tokens from `first` to below `vocabulary`, in which each token gives the next one, but for one in ten.
    pub(super) fn sequences(&mut self, vocabulary: usize, first: usize, length: usize) -> Vec<Vec<i64>> {
        let first = first.min(vocabulary.saturating_sub(1)) as i64;
        let range = (vocabulary as i64 - first).max(1);
        let one = |random: &mut Rng| {
            let mut token = random.int(0, range - 1);
            let mut out = Vec::with_capacity(length);
            for _ in 0..length {
                out.push(first + token);
                token = match random.int(0, 9) {
                    0 => random.int(0, range - 1),
                    _ => (token * 3 + 1) % range,
                };
            }
            out
        };
        (0..self.count).map(|_| one(&mut self.random)).collect()
    }
}

/// Rows of equal lengths as a tensor.
pub(super) fn rows(rows: &[Vec<i64>]) -> Result<Tensor, Diagnostic> {
    let length = rows.first().map_or(0, Vec::len);
    made(Tensor::from_slice(&[rows.len(), length], &rows.concat()))
}

/// A vector of integers.
pub(super) fn vector(values: &[i64]) -> Result<Tensor, Diagnostic> {
    made(Tensor::from_slice(&[values.len()], values))
}

/// A column of floats, `[count, 1]`.
pub(super) fn column(values: &[f32]) -> Result<Tensor, Diagnostic> {
    made(Tensor::from_slice(&[values.len(), 1], values))
}
