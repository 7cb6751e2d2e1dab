//! First values of parameters.

use of_ir::{Tensor, TensorError};
use of_ops::sample::Rng;

/// How a parameter is filled at first. Names and formulas are those of `torch.nn.init`. The fans of a weight `[outputs, inputs, kernel…]`
/// are `inputs` and `outputs` times the elements of the kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Initializer {
    /// One number.
    Constant(f64),
    /// Uniform between two numbers.
    Uniform {
        /// The least.
        low: f64,
        /// The largest.
        high: f64,
    },
    /// Normal.
    Normal {
        /// The mean.
        mean: f64,
        /// The standard deviation.
        std: f64,
    },
    /// Normal around 0 within two standard deviations, others drawn again.
    TruncatedNormal {
        /// The standard deviation.
        std: f64,
    },
    /// Uniform in ±gain sqrt(6 / (fan_in + fan_out)). Source: Glorot and Bengio (2010).
    XavierUniform {
        /// The gain.
        gain: f64,
    },
    /// Normal of standard deviation gain sqrt(2 / (fan_in + fan_out)). Source: Glorot and Bengio (2010).
    XavierNormal {
        /// The gain.
        gain: f64,
    },
    /// Uniform in ±sqrt(6 / ((1 + a²) fan_in)). Source: He et al., "Delving Deep into Rectifiers" (2015). PyTorch's layers take
    /// `a = sqrt(5)`.
    KaimingUniform {
        /// The slope of a leaky ReLU behind the layer; 0 for ReLU.
        a: f64,
    },
    /// Normal of standard deviation sqrt(2 / ((1 + a²) fan_in)). Source: as for `KaimingUniform`.
    KaimingNormal {
        /// The slope of a leaky ReLU behind the layer; 0 for ReLU.
        a: f64,
    },
}

/// The initializer of PyTorch's linear and convolutional layers.
pub(super) fn torch_default() -> Initializer {
    Initializer::KaimingUniform { a: 5f64.sqrt() }
}

/// Makes first values of parameters; a seed gives the same values on every machine.
pub struct Init(Rng);

impl Init {
    /// The generator for `seed`.
    pub fn new(seed: u64) -> Init {
        Init(Rng::new(seed))
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

    /// A parameter of f32.
    ///
    /// # Errors
    /// When it would be larger than memory can address.
    pub fn tensor(&mut self, initializer: Initializer, dims: &[usize]) -> Result<Tensor, TensorError> {
        let kernel: usize = dims.iter().skip(2).product();
        let fan = |axis: usize| (dims.get(axis).copied().unwrap_or(1) * kernel).max(1) as f64;
        let (fan_in, fan_out) = (fan(1), fan(0));
        let uniform = |bound: f64| Initializer::Uniform { low: -bound, high: bound };
        let normal = |std: f64| Initializer::Normal { mean: 0.0, std };
        let simple = match initializer {
            Initializer::XavierUniform { gain } => uniform(gain * (6.0 / (fan_in + fan_out)).sqrt()),
            Initializer::XavierNormal { gain } => normal(gain * (2.0 / (fan_in + fan_out)).sqrt()),
            Initializer::KaimingUniform { a } => uniform((6.0 / ((1.0 + a * a) * fan_in)).sqrt()),
            Initializer::KaimingNormal { a } => normal((2.0 / ((1.0 + a * a) * fan_in)).sqrt()),
            other => other,
        };
        let mut one = || match simple {
            Initializer::Constant(x) => x,
            Initializer::Uniform { low, high } => self.0.float(low, high),
            Initializer::Normal { mean, std } => mean + std * self.normal(),
            Initializer::TruncatedNormal { std } => loop {
                let x = self.normal();
                if x.abs() <= 2.0 {
                    break std * x;
                }
            },
            _ => 0.0,
        };
        let values: Vec<f32> = (0..dims.iter().product()).map(|_| one() as f32).collect();
        Tensor::from_slice(dims, &values)
    }

    /// Uniform in ±1 / sqrt(fan_in): the biases of PyTorch's layers.
    pub(super) fn bias(&mut self, length: usize, fan_in: usize) -> Result<Tensor, TensorError> {
        let bound = 1.0 / (fan_in.max(1) as f64).sqrt();
        self.tensor(Initializer::Uniform { low: -bound, high: bound }, &[length])
    }
}
