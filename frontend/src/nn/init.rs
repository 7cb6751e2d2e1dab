//! First values of parameters.

use std::panic::Location as Caller;

use of_diag::{Code, Diagnostic};
use of_ir::{Tensor, TensorError};
use of_ops::sample::Rng;

use crate::builder::location;

/// Which fan of a weight an initializer of He et al. takes, as `mode` in PyTorch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fan {
    /// `fan_in`: values keep their variance in the forward pass.
    #[default]
    In,
    /// `fan_out`: gradients keep their variance in the backward pass.
    Out,
}

/// How a parameter is filled at first. Names and formulas are those of `torch.nn.init`. The fans of a weight `[outputs, inputs, kernel…]`
/// are `inputs` and `outputs` times the elements of the kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Initializer {
    /// One number, as `constant_`; `zeros_` and `ones_` are 0 and 1.
    Constant(f64),
    /// Uniform between two numbers, as `uniform_`.
    Uniform {
        /// The least.
        low: f64,
        /// The largest.
        high: f64,
    },
    /// Normal, as `normal_`.
    Normal {
        /// The mean.
        mean: f64,
        /// The standard deviation.
        std: f64,
    },
    /// Normal within two bounds, which are values and not numbers of standard deviations, as `trunc_normal_`.
    /// [`Initializer::truncated_normal`] has PyTorch's defaults.
    TruncatedNormal {
        /// The mean of the normal distribution.
        mean: f64,
        /// The standard deviation of the normal distribution.
        std: f64,
        /// The least value.
        low: f64,
        /// The largest value.
        high: f64,
    },
    /// Uniform in ±gain sqrt(6 / (fan_in + fan_out)), as `xavier_uniform_`. Source: Glorot and Bengio (2010).
    XavierUniform {
        /// The gain.
        gain: f64,
    },
    /// Normal of standard deviation gain sqrt(2 / (fan_in + fan_out)), as `xavier_normal_`. Source: Glorot and Bengio (2010).
    XavierNormal {
        /// The gain.
        gain: f64,
    },
    /// Uniform in ±sqrt(6 / ((1 + a²) fan)), as `kaiming_uniform_`. Source: He et al., "Delving Deep into Rectifiers" (2015). PyTorch's
    /// layers take `a = sqrt(5)` and the fan of inputs.
    KaimingUniform {
        /// The slope of a leaky ReLU behind the layer; 0 for ReLU.
        a: f64,
        /// The fan.
        fan: Fan,
    },
    /// Normal of standard deviation sqrt(2 / ((1 + a²) fan)), as `kaiming_normal_`. Source: as for `KaimingUniform`.
    KaimingNormal {
        /// The slope of a leaky ReLU behind the layer; 0 for ReLU.
        a: f64,
        /// The fan.
        fan: Fan,
    },
    /// Rows that are orthogonal and of length `gain`, or columns where there are more rows, as `orthogonal_`. Axes but the first are one.
    /// Source: Saxe et al., "Exact solutions to the nonlinear dynamics of learning in deep linear neural networks" (2013).
    Orthogonal {
        /// The gain.
        gain: f64,
    },
    /// The identity matrix, as `eye_`.
    Eye,
    /// A convolution that copies channels: 1 in the centre of the kernel of output `i` for input `i` of each group, as `dirac_`.
    Dirac {
        /// Groups of channels.
        groups: usize,
    },
    /// A matrix of normal numbers around 0 with zeros in each column, as `sparse_`. Source: Martens, "Deep learning via Hessian-free
    /// optimization" (2010).
    Sparse {
        /// The part of each column that is zero, rounded up to rows.
        sparsity: f64,
        /// The standard deviation of the others.
        std: f64,
    },
}

impl Initializer {
    /// `trunc_normal_` with PyTorch's defaults but the standard deviation: around 0, within ±2.
    pub fn truncated_normal(std: f64) -> Initializer {
        Initializer::TruncatedNormal { mean: 0.0, std, low: -2.0, high: 2.0 }
    }

    /// What does not fit a parameter of these extents, with a hint.
    fn check(self, dims: &[usize]) -> Result<(), (String, &'static str)> {
        let rank = dims.len();
        let (what, hint) = match self {
            Initializer::Uniform { low, high } if low > high || !(high - low).is_finite() => {
                (format!("no number is from {low} to {high}"), "the first bound is the least")
            }
            Initializer::Normal { std, .. } | Initializer::Sparse { std, .. } if std < 0.0 || std.is_nan() => {
                (format!("the standard deviation is {std}"), "it is 0 or positive")
            }
            Initializer::TruncatedNormal { mean, std, low, high }
                if std <= 0.0 || !(mean + std).is_finite() || low >= high || low.is_nan() || high.is_nan() =>
            {
                let what = format!("a normal distribution of mean {mean} and deviation {std} within {low} and {high}");
                (what, "the deviation is positive, the first bound is below the second")
            }
            Initializer::XavierUniform { .. }
            | Initializer::XavierNormal { .. }
            | Initializer::KaimingUniform { .. }
            | Initializer::KaimingNormal { .. }
            | Initializer::Orthogonal { .. }
                if rank < 2 =>
            {
                (
                    format!("extents {dims:?} have no inputs and outputs"),
                    "biases and norms take a constant or a distribution",
                )
            }
            Initializer::Eye | Initializer::Sparse { .. } if rank != 2 => {
                (format!("extents {dims:?} are those of no matrix"), "two extents are needed")
            }
            Initializer::Sparse { sparsity, .. } if !(0.0..=1.0).contains(&sparsity) => {
                (format!("the part of zeros is {sparsity}"), "it is from 0 to 1")
            }
            Initializer::Dirac { .. } if !(3..=5).contains(&rank) => {
                (format!("extents {dims:?} are those of no convolution"), "they are [outputs, inputs, kernel…]")
            }
            Initializer::Dirac { groups } if groups == 0 || !dims[0].is_multiple_of(groups) => {
                (format!("{groups} groups do not divide {} outputs", dims[0]), "take a divisor of the outputs")
            }
            _ => return Ok(()),
        };
        Err((what, hint))
    }
}

/// The initializer of PyTorch's linear and convolutional layers.
pub(super) fn torch_default() -> Initializer {
    Initializer::KaimingUniform { a: 5f64.sqrt(), fan: Fan::In }
}

/// Makes first values of parameters; a seed gives the same values on every machine.
pub struct Init(Rng);

impl Init {
    /// The generator for `seed`.
    pub fn new(seed: u64) -> Init {
        Init(Rng::new(seed))
    }

    /// A parameter of f32.
    ///
    /// # Errors
    /// When it would be larger than memory can address, or the initializer does not fit its extents, such as [`Initializer::Eye`] that
    /// of a vector; the location is that of the caller.
    #[track_caller]
    pub fn tensor(&mut self, initializer: Initializer, dims: &[usize]) -> Result<Tensor, Diagnostic> {
        let at = location(Caller::caller());
        if let Err((what, hint)) = initializer.check(dims) {
            return Err(Diagnostic::error(Code::TYPE, at, format!("{initializer:?}: {what}")).hint(hint));
        }
        self.filled(initializer, dims).map_err(|e| Diagnostic::error(Code::TYPE, at, e.to_string()))
    }

    /// As [`Init::tensor`], for an initializer that fits.
    pub(super) fn filled(&mut self, initializer: Initializer, dims: &[usize]) -> Result<Tensor, TensorError> {
        let count = dims.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
        let count = count.ok_or_else(|| TensorError::TooLarge(dims.to_vec()))?;
        let kernel: usize = dims.iter().skip(2).product();
        let fan = |axis: usize| (dims.get(axis).copied().unwrap_or(1) * kernel).max(1) as f64;
        let (fan_in, fan_out) = (fan(1), fan(0));
        let uniform = |bound: f64| Initializer::Uniform { low: -bound, high: bound };
        let normal = |std: f64| Initializer::Normal { mean: 0.0, std };
        let of = |fan: Fan| if fan == Fan::In { fan_in } else { fan_out };
        let simple = match initializer {
            Initializer::XavierUniform { gain } => uniform(gain * (6.0 / (fan_in + fan_out)).sqrt()),
            Initializer::XavierNormal { gain } => normal(gain * (2.0 / (fan_in + fan_out)).sqrt()),
            Initializer::KaimingUniform { a, fan } => uniform((6.0 / ((1.0 + a * a) * of(fan))).sqrt()),
            Initializer::KaimingNormal { a, fan } => normal((2.0 / ((1.0 + a * a) * of(fan))).sqrt()),
            other => other,
        };
        let mut each = |one: &mut dyn FnMut(&mut Init) -> f64| (0..count).map(|_| one(self) as f32).collect();
        let values: Vec<f32> = match simple {
            Initializer::Constant(x) => vec![x as f32; count],
            Initializer::Uniform { low, high } => each(&mut |i| i.0.float(low, high)),
            Initializer::Normal { mean, std } => each(&mut |i| mean + std * i.normal()),
            Initializer::TruncatedNormal { mean, std, low, high } => {
                let bounds = [(low - mean) / std, (high - mean) / std];
                each(&mut |i| (mean + std * i.normal_within(bounds)).clamp(low, high))
            }
            Initializer::Orthogonal { gain } => self.orthogonal(gain, dims),
            Initializer::Eye => eye(dims),
            Initializer::Dirac { groups } => dirac(dims, groups),
            Initializer::Sparse { sparsity, std } => self.sparse(sparsity, std, dims),
            // The four above that became uniform or normal.
            _ => Vec::new(),
        };
        Tensor::from_slice(dims, &values)
    }

    /// Uniform in ±1 / sqrt(fan_in): the biases of PyTorch's layers.
    pub(super) fn bias(&mut self, length: usize, fan_in: usize) -> Result<Tensor, TensorError> {
        let bound = 1.0 / (fan_in.max(1) as f64).sqrt();
        self.filled(Initializer::Uniform { low: -bound, high: bound }, &[length])
    }

    /// A standard normal number, by the polar method of Marsaglia.
    fn normal(&mut self) -> f64 {
        loop {
            let (x, y) = (self.0.float(-1.0, 1.0), self.0.float(-1.0, 1.0));
            let square = x * x + y * y;
            if square < 1.0 && square > 0.0 {
                return x * (-2.0 * square.ln() / square).sqrt();
            }
        }
    }

    /// A standard normal number from `low` to `high`. Numbers are drawn until one is accepted: normal ones where the interval has much of
    /// the distribution, otherwise uniform ones, accepted by the density. Both take fewer than 50 draws on average.
    fn normal_within(&mut self, [low, high]: [f64; 2]) -> f64 {
        if high < -2.0 {
            return -self.normal_within([-high, -low]);
        }
        let is_tail = low > 2.0;
        if !is_tail && high - low > 1.0 {
            loop {
                let x = self.normal();
                if (low..=high).contains(&x) {
                    return x;
                }
            }
        }
        // In the tail the density falls faster than exp(-low (x - low)), so what is beyond 40 / low is below rounding.
        let high = if is_tail { high.min(low + 40.0 / low) } else { high };
        let densest = 0f64.clamp(low, high);
        loop {
            let x = self.0.float(low, high);
            if self.0.float(0.0, 1.0) <= ((densest * densest - x * x) / 2.0).exp() {
                return x;
            }
        }
    }

    /// The columns of Q where a matrix of normal numbers is QR with a positive diagonal of R, by Gram and Schmidt.
    fn orthogonal(&mut self, gain: f64, dims: &[usize]) -> Vec<f32> {
        let (rows, columns) = (dims[0], dims.iter().skip(1).product::<usize>());
        let (count, length) = (rows.min(columns), rows.max(columns));
        let mut unit: Vec<Vec<f64>> = Vec::with_capacity(count);
        while unit.len() < count {
            let mut v: Vec<f64> = (0..length).map(|_| self.normal()).collect();
            // The second pass removes what rounding leaves in the first.
            for _ in 0..2 {
                for u in &unit {
                    let along: f64 = u.iter().zip(&v).map(|(a, b)| a * b).sum();
                    v.iter_mut().zip(u).for_each(|(v, u)| *v -= along * u);
                }
            }
            let norm = v.iter().map(|x| x * x).sum::<f64>().sqrt();
            // A vector that depends on the others is drawn again.
            if norm > 1e-8 {
                v.iter_mut().for_each(|x| *x /= norm);
                unit.push(v);
            }
        }
        let at = |row: usize, column: usize| if rows <= columns { unit[row][column] } else { unit[column][row] };
        (0..rows * columns).map(|i| (gain * at(i / columns, i % columns)) as f32).collect()
    }

    fn sparse(&mut self, sparsity: f64, std: f64, dims: &[usize]) -> Vec<f32> {
        let (rows, columns) = (dims[0], dims[1]);
        let mut values: Vec<f32> = (0..rows * columns).map(|_| (std * self.normal()) as f32).collect();
        let zeros = ((sparsity * rows as f64).ceil() as usize).min(rows);
        for column in 0..columns {
            // The first of the rows in random order, by Fisher and Yates.
            let mut order: Vec<usize> = (0..rows).collect();
            for i in 0..zeros {
                order.swap(i, self.0.int(i as i64, rows as i64 - 1) as usize);
                values[order[i] * columns + column] = 0.0;
            }
        }
        values
    }
}

fn eye(dims: &[usize]) -> Vec<f32> {
    let columns = dims[1].max(1);
    (0..dims[0] * dims[1]).map(|i| if i / columns == i % columns { 1.0 } else { 0.0 }).collect()
}

fn dirac(dims: &[usize], groups: usize) -> Vec<f32> {
    let mut values = vec![0f32; dims.iter().product()];
    let (kernel, own): (usize, usize) = (dims[2..].iter().product(), dims[0] / groups);
    // The number of the middle in row-major order.
    let centre = dims[2..].iter().fold(0, |at, extent| at * extent + extent / 2);
    for output in 0..if values.is_empty() { 0 } else { dims[0] } {
        let input = output % own;
        if input < dims[1] {
            values[(output * dims[1] + input) * kernel + centre] = 1.0;
        }
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(initializer: Initializer, dims: &[usize]) -> Vec<f64> {
        let made = Init::new(5).tensor(initializer, dims).unwrap_or_else(|d| panic!("{d}"));
        made.to_f64s().unwrap()
    }

    /// The mean and the standard deviation.
    fn moments(values: &[f64]) -> (f64, f64) {
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let variance = values.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / values.len() as f64;
        (mean, variance.sqrt())
    }

    #[test]
    fn initializers_have_their_moments() {
        let dims = [64, 32, 3, 3];
        let (fan_in, fan_out) = (288.0f64, 576.0f64);
        let std = |bound: f64| bound / 3f64.sqrt();
        let glorot = (2.0 / (fan_in + fan_out)).sqrt();
        for (initializer, expected, most) in [
            (Initializer::Uniform { low: -0.5, high: 0.5 }, std(0.5), 0.5),
            (Initializer::Normal { mean: 0.0, std: 0.2 }, 0.2, 2.0),
            (Initializer::XavierUniform { gain: 2.0 }, 2.0 * glorot, 0.1667),
            (Initializer::XavierNormal { gain: 1.0 }, glorot, 1.0),
            (Initializer::KaimingUniform { a: 5f64.sqrt(), fan: Fan::In }, std(fan_in.powf(-0.5)), fan_in.powf(-0.5)),
            (Initializer::KaimingUniform { a: 0.0, fan: Fan::Out }, (2.0 / fan_out).sqrt(), (6.0 / fan_out).sqrt()),
            (Initializer::KaimingNormal { a: 0.0, fan: Fan::In }, (2.0 / fan_in).sqrt(), 1.0),
            (Initializer::KaimingNormal { a: 1.0, fan: Fan::Out }, (1.0 / fan_out).sqrt(), 1.0),
        ] {
            let got = values(initializer, &dims);
            assert_eq!(got, values(initializer, &dims));
            assert_ne!(got, Init::new(6).tensor(initializer, &dims).unwrap().to_f64s().unwrap());
            let (mean, deviation) = moments(&got);
            assert!((deviation / expected - 1.0).abs() < 0.02 && mean.abs() < 0.05 * expected, "{initializer:?}");
            assert!(got.iter().all(|x| x.abs() <= most * 1.0001), "{initializer:?}");
        }
        assert_eq!(values(Initializer::Constant(1.0), &[3]), [1.0; 3]);
    }

    /// Means and deviations are integrals of the density.
    #[test]
    fn truncated_normals_have_absolute_bounds() {
        let within = |mean, std, low, high| Initializer::TruncatedNormal { mean, std, low, high };
        for (initializer, mean, deviation, [low, high]) in [
            // Bounds of 100 standard deviations cut nothing: PyTorch's defaults are no multiples of the deviation.
            (Initializer::truncated_normal(0.02), 0.0, 0.02, [-2.0, 2.0]),
            (Initializer::truncated_normal(1.0), 0.0, 0.879626, [-2.0, 2.0]),
            (within(0.0, 1.0, 0.0, f64::INFINITY), 0.797885, 0.602810, [0.0, 6.0]),
            (within(1.0, 2.0, 1.5, 1.6), 1.549885, 0.028866, [1.5, 1.6]),
            (within(0.0, 1.0, 5.0, f64::INFINITY), 5.186504, 0.180822, [5.0, 13.0]),
            (within(0.0, 1.0, -100.0, -5.0), -5.186504, 0.180822, [-13.0, -5.0]),
        ] {
            let got = values(initializer, &[100, 200]);
            let (own, spread) = moments(&got);
            assert!((own - mean).abs() < 0.03 * deviation, "{initializer:?}: mean {own}, not {mean}");
            assert!((spread / deviation - 1.0).abs() < 0.03, "{initializer:?}: deviation {spread}, not {deviation}");
            assert!(got.iter().all(|x| (low - 1e-6..=high + 1e-6).contains(x)), "{initializer:?}");
        }
    }

    #[test]
    fn orthogonal_rows_or_columns_have_the_length_of_the_gain() {
        for dims in [&[4, 3, 2][..], &[3, 5], &[6, 2], &[64, 64], &[1, 1], &[0, 3]] {
            let got = values(Initializer::Orthogonal { gain: 2.0 }, dims);
            let (rows, columns) = (dims[0], dims[1..].iter().product::<usize>());
            let count = rows.min(columns);
            let at = |vector: usize, i: usize| {
                if rows <= columns { got[vector * columns + i] } else { got[i * columns + vector] }
            };
            for (a, b) in (0..count).flat_map(|a| (0..count).map(move |b| (a, b))) {
                let product: f64 = (0..rows.max(columns)).map(|i| at(a, i) * at(b, i)).sum();
                let expected = if a == b { 4.0 } else { 0.0 };
                assert!((product - expected).abs() < 1e-5, "{dims:?}: {a} {b}: {product}");
            }
        }
        // As likely as not, an element is negative: signs are those of the drawn numbers.
        let got = values(Initializer::Orthogonal { gain: 1.0 }, &[64, 64]);
        let (mean, deviation) = moments(&got);
        assert!(mean.abs() < 0.01 && (deviation - 0.125).abs() < 1e-3, "{mean} {deviation}");
    }

    #[test]
    fn eye_and_dirac_copy_their_inputs() {
        assert_eq!(values(Initializer::Eye, &[2, 3]), [1.0, 0.0, 0.0, 0.0, 1.0, 0.0]);
        // The centre of three elements is the second, that of two is the second, too.
        let got = values(Initializer::Dirac { groups: 1 }, &[2, 2, 3]);
        assert_eq!(got, [0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0]);
        let got = values(Initializer::Dirac { groups: 2 }, &[4, 1, 2, 3]);
        let ones: Vec<usize> = (0..got.len()).filter(|i| got[*i] == 1.0).collect();
        assert_eq!((ones, got.iter().sum::<f64>()), (vec![4, 16], 2.0));
    }

    #[test]
    fn sparse_matrices_have_zeros_in_each_column() {
        let got = values(Initializer::Sparse { sparsity: 0.33, std: 0.01 }, &[10, 200]);
        for column in 0..200 {
            assert_eq!((0..10).filter(|row| got[row * 200 + column] == 0.0).count(), 4);
        }
        let others: Vec<f64> = got.into_iter().filter(|x| *x != 0.0).collect();
        let (mean, deviation) = moments(&others);
        assert!(mean.abs() < 0.001 && (deviation / 0.01 - 1.0).abs() < 0.05, "{mean} {deviation}");
    }

    #[test]
    fn initializers_refuse_extents_and_numbers_that_do_not_fit() {
        for (initializer, dims, words) in [
            (Initializer::XavierNormal { gain: 1.0 }, &[3][..], "extents [3] have no inputs and outputs"),
            (Initializer::Orthogonal { gain: 1.0 }, &[], "extents [] have no inputs and outputs"),
            (Initializer::Eye, &[2, 2, 2], "those of no matrix"),
            (Initializer::Sparse { sparsity: 2.0, std: 1.0 }, &[2, 2], "the part of zeros is 2"),
            (Initializer::Sparse { sparsity: 0.5, std: -1.0 }, &[2, 2], "the standard deviation is -1"),
            (Initializer::Dirac { groups: 1 }, &[2, 2], "those of no convolution"),
            (Initializer::Dirac { groups: 3 }, &[4, 1, 1], "3 groups do not divide 4 outputs"),
            (Initializer::Uniform { low: 1.0, high: 0.0 }, &[2], "no number is from 1 to 0"),
            (Initializer::Normal { mean: 0.0, std: f64::NAN }, &[2], "the standard deviation is NaN"),
            (Initializer::truncated_normal(0.0), &[2], "deviation 0 within -2 and 2"),
            (Initializer::Constant(0.0), &[usize::MAX, 2], "is too large"),
        ] {
            let error = Init::new(1).tensor(initializer, dims).unwrap_err();
            assert!(error.message.contains(words), "{error}");
            assert!(error.location.to_string().contains("init.rs"), "{error}");
        }
    }
}
