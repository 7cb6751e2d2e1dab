//! Optimizers: how a parameter changes by its gradient.
//!
//! Formulas and defaults are those of PyTorch 2, so that a training that moves here keeps its settings. LAMB, LARS and FTRL, which
//! PyTorch does not have, follow the papers.

use std::fmt::Debug;

use of_ir::{DType, ValueId};
use of_ops::elementwise::{Eq, Gt, Select, Sign};

use super::arithmetic::{Arithmetic, ValueResult};

/// The values of a step that all parameters share: numbers of rank 0, f32.
#[derive(Clone, Copy, Debug)]
pub struct StepNumbers {
    /// The learning rate.
    pub rate: ValueId,
    /// The number of the step, from 1.
    pub count: ValueId,
}

/// A rule that changes a parameter by its gradient. Implement it for a rule of your own, or write the rule as IR ([`Rule`](super::Rule)).
pub trait Optimizer: Debug {
    /// Its name.
    fn name(&self) -> &str;

    /// Names of the state of each parameter; each is a tensor like the parameter, of zeros at first.
    fn states(&self) -> Vec<&str>;

    /// The same rule without weight decay, for parameters such as biases; it has the same states. `None` where the rule has no
    /// such form.
    fn without_decay(&self) -> Option<Box<dyn Optimizer>> {
        None
    }

    /// The next value of a parameter and of its states.
    ///
    /// # Errors
    /// When an op does not fit its operands: a bug of the rule.
    fn update(
        &self,
        b: &mut Arithmetic<'_>,
        step: StepNumbers,
        parameter: ValueId,
        gradient: ValueId,
        states: &[ValueId],
    ) -> Result<(ValueId, Vec<ValueId>), of_diag::Diagnostic>;
}

/// Parameters of the optimizers of [`named`]; what is `None` has the default of the optimizer.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Hyperparameters {
    /// Momentum of SGD, RMSProp and LARS.
    pub momentum: Option<f64>,
    /// Whether SGD looks ahead (Nesterov).
    pub nesterov: bool,
    /// Weight decay.
    pub weight_decay: Option<f64>,
    /// Decay rates of the running means. RMSProp and Adadelta have the second alone.
    pub betas: Option<(f64, f64)>,
    /// What is added to a divisor.
    pub epsilon: Option<f64>,
    /// The trust coefficient of LARS.
    pub trust: Option<f64>,
    /// `beta` of FTRL, which lowers the first learning rates.
    pub beta: Option<f64>,
    /// The strength of L1 regularization of FTRL.
    pub l1: Option<f64>,
}

/// Names of optimizers on the command line.
pub const OPTIMIZERS: [&str; 9] = ["sgd", "adam", "adamw", "rmsprop", "adagrad", "adadelta", "lamb", "lars", "ftrl"];

/// The optimizer of this name.
pub fn named(name: &str, h: &Hyperparameters) -> Option<Box<dyn Optimizer>> {
    let decay = h.weight_decay.unwrap_or(0.0);
    let (beta1, beta2) = h.betas.unwrap_or((0.9, 0.999));
    let momentum = h.momentum.unwrap_or(0.0);
    let epsilon = |default: f64| h.epsilon.unwrap_or(default);
    Some(match name {
        "sgd" => Box::new(Sgd { momentum, nesterov: h.nesterov, decay }),
        "adam" => Box::new(Adam { beta1, beta2, epsilon: epsilon(1e-8), decay, decoupled: false }),
        "adamw" => {
            let decay = h.weight_decay.unwrap_or(0.01);
            Box::new(Adam { beta1, beta2, epsilon: epsilon(1e-8), decay, decoupled: true })
        }
        "rmsprop" => {
            Box::new(RmsProp { alpha: h.betas.map_or(0.99, |b| b.1), epsilon: epsilon(1e-8), momentum, decay })
        }
        "adagrad" => Box::new(Adagrad { epsilon: epsilon(1e-10), decay }),
        "adadelta" => Box::new(Adadelta { rho: h.betas.map_or(0.9, |b| b.1), epsilon: epsilon(1e-6), decay }),
        "lamb" => Box::new(Lamb { beta1, beta2, epsilon: epsilon(1e-6), decay: h.weight_decay.unwrap_or(0.01) }),
        "lars" => {
            let (momentum, trust) = (h.momentum.unwrap_or(0.9), h.trust.unwrap_or(0.001));
            Box::new(Lars { momentum, decay, trust, epsilon: epsilon(1e-8) })
        }
        "ftrl" => Box::new(Ftrl { beta: h.beta.unwrap_or(1.0), l1: h.l1.unwrap_or(0.0), l2: decay }),
        _ => return None,
    })
}

type Updated = Result<(ValueId, Vec<ValueId>), of_diag::Diagnostic>;

/// `g + decay * p`.
fn decayed(b: &mut Arithmetic<'_>, p: ValueId, g: ValueId, decay: f64) -> ValueResult {
    if decay == 0.0 {
        return Ok(g);
    }
    let penalty = b.scale(p, decay)?;
    b.add(g, penalty)
}

/// `p - rate * direction`.
fn descend(b: &mut Arithmetic<'_>, step: StepNumbers, p: ValueId, direction: ValueId) -> ValueResult {
    let change = b.mul(direction, step.rate)?;
    b.sub(p, change)
}

/// Gradient descent with momentum: `v = momentum v + g`, `p = p - rate v`.
#[derive(Clone, Copy, Debug)]
pub struct Sgd {
    /// Momentum; without it there is no state.
    pub momentum: f64,
    /// Whether the step is `g + momentum v`.
    pub nesterov: bool,
    /// Weight decay.
    pub decay: f64,
}

impl Optimizer for Sgd {
    fn name(&self) -> &str {
        "sgd"
    }

    fn without_decay(&self) -> Option<Box<dyn Optimizer>> {
        Some(Box::new(Sgd { decay: 0.0, ..*self }))
    }

    fn states(&self) -> Vec<&str> {
        if self.momentum == 0.0 { vec![] } else { vec!["momentum"] }
    }

    fn update(&self, b: &mut Arithmetic<'_>, step: StepNumbers, p: ValueId, g: ValueId, states: &[ValueId]) -> Updated {
        let g = decayed(b, p, g, self.decay)?;
        let Some(v) = states.first() else { return Ok((descend(b, step, p, g)?, Vec::new())) };
        let kept = b.scale(*v, self.momentum)?;
        let v = b.add(kept, g)?;
        let direction = if self.nesterov {
            let ahead = b.scale(v, self.momentum)?;
            b.add(g, ahead)?
        } else {
            v
        };
        Ok((descend(b, step, p, direction)?, vec![v]))
    }
}

/// Adam: Kingma and Ba (2015); decoupled weight decay: Loshchilov and Hutter (2019).
#[derive(Clone, Copy, Debug)]
pub struct Adam {
    /// Decay of the mean of gradients.
    pub beta1: f64,
    /// Decay of the mean of squares.
    pub beta2: f64,
    /// Added to the root of the mean of squares.
    pub epsilon: f64,
    /// Weight decay.
    pub decay: f64,
    /// Whether weight decay is apart from the gradient (AdamW).
    pub decoupled: bool,
}

/// The bias-corrected direction of Adam, and the running means of gradients and squares.
fn adaptive(
    b: &mut Arithmetic<'_>,
    step: StepNumbers,
    g: ValueId,
    states: &[ValueId],
    (beta1, beta2, epsilon): (f64, f64, f64),
) -> Result<(ValueId, ValueId, ValueId), of_diag::Diagnostic> {
    let m = b.running(states[0], g, beta1)?;
    let square = b.square(g)?;
    let v = b.running(states[1], square, beta2)?;
    let dtype = b.dtype(g);
    let count = b.cast(step.count, if dtype == DType::F64 { dtype } else { DType::F32 })?;
    let (c1, c2) = (b.one_minus_power(beta1, count)?, b.one_minus_power(beta2, count)?);
    let c2 = b.sqrt(c2)?;
    let (c1, c2) = (b.cast(c1, dtype)?, b.cast(c2, dtype)?);
    let root = b.sqrt(v)?;
    let corrected = b.div(root, c2)?;
    let divisor = b.plus(corrected, epsilon)?;
    let mean = b.div(m, c1)?;
    Ok((b.div(mean, divisor)?, m, v))
}

impl Optimizer for Adam {
    fn name(&self) -> &str {
        if self.decoupled { "adamw" } else { "adam" }
    }

    fn without_decay(&self) -> Option<Box<dyn Optimizer>> {
        Some(Box::new(Adam { decay: 0.0, ..*self }))
    }

    fn states(&self) -> Vec<&str> {
        vec!["mean", "square"]
    }

    fn update(&self, b: &mut Arithmetic<'_>, step: StepNumbers, p: ValueId, g: ValueId, states: &[ValueId]) -> Updated {
        let g = if self.decoupled { g } else { decayed(b, p, g, self.decay)? };
        let (direction, m, v) = adaptive(b, step, g, states, (self.beta1, self.beta2, self.epsilon))?;
        let direction = if self.decoupled { decayed(b, p, direction, self.decay)? } else { direction };
        Ok((descend(b, step, p, direction)?, vec![m, v]))
    }
}

/// RMSProp: Tieleman and Hinton (2012).
#[derive(Clone, Copy, Debug)]
pub struct RmsProp {
    /// Decay of the mean of squares.
    pub alpha: f64,
    /// Added to the root of the mean of squares.
    pub epsilon: f64,
    /// Momentum; without it there is one state.
    pub momentum: f64,
    /// Weight decay.
    pub decay: f64,
}

impl Optimizer for RmsProp {
    fn name(&self) -> &str {
        "rmsprop"
    }

    fn without_decay(&self) -> Option<Box<dyn Optimizer>> {
        Some(Box::new(RmsProp { decay: 0.0, ..*self }))
    }

    fn states(&self) -> Vec<&str> {
        if self.momentum == 0.0 { vec!["square"] } else { vec!["square", "momentum"] }
    }

    fn update(&self, b: &mut Arithmetic<'_>, step: StepNumbers, p: ValueId, g: ValueId, states: &[ValueId]) -> Updated {
        let g = decayed(b, p, g, self.decay)?;
        let square = b.square(g)?;
        let v = b.running(states[0], square, self.alpha)?;
        let root = b.sqrt(v)?;
        let divisor = b.plus(root, self.epsilon)?;
        let direction = b.div(g, divisor)?;
        let Some(momentum) = states.get(1) else { return Ok((descend(b, step, p, direction)?, vec![v])) };
        let kept = b.scale(*momentum, self.momentum)?;
        let momentum = b.add(kept, direction)?;
        Ok((descend(b, step, p, momentum)?, vec![v, momentum]))
    }
}

/// Adagrad: Duchi et al. (2011).
#[derive(Clone, Copy, Debug)]
pub struct Adagrad {
    /// Added to the root of the sum of squares.
    pub epsilon: f64,
    /// Weight decay.
    pub decay: f64,
}

impl Optimizer for Adagrad {
    fn name(&self) -> &str {
        "adagrad"
    }

    fn without_decay(&self) -> Option<Box<dyn Optimizer>> {
        Some(Box::new(Adagrad { decay: 0.0, ..*self }))
    }

    fn states(&self) -> Vec<&str> {
        vec!["squares"]
    }

    fn update(&self, b: &mut Arithmetic<'_>, step: StepNumbers, p: ValueId, g: ValueId, states: &[ValueId]) -> Updated {
        let g = decayed(b, p, g, self.decay)?;
        let square = b.square(g)?;
        let sum = b.add(states[0], square)?;
        let root = b.sqrt(sum)?;
        let divisor = b.plus(root, self.epsilon)?;
        let direction = b.div(g, divisor)?;
        Ok((descend(b, step, p, direction)?, vec![sum]))
    }
}

/// Adadelta: Zeiler (2012).
#[derive(Clone, Copy, Debug)]
pub struct Adadelta {
    /// Decay of the running means.
    pub rho: f64,
    /// Added to both means before their roots.
    pub epsilon: f64,
    /// Weight decay.
    pub decay: f64,
}

impl Optimizer for Adadelta {
    fn name(&self) -> &str {
        "adadelta"
    }

    fn without_decay(&self) -> Option<Box<dyn Optimizer>> {
        Some(Box::new(Adadelta { decay: 0.0, ..*self }))
    }

    fn states(&self) -> Vec<&str> {
        vec!["square", "change"]
    }

    fn update(&self, b: &mut Arithmetic<'_>, step: StepNumbers, p: ValueId, g: ValueId, states: &[ValueId]) -> Updated {
        let g = decayed(b, p, g, self.decay)?;
        let square = b.square(g)?;
        let v = b.running(states[0], square, self.rho)?;
        let root = |b: &mut Arithmetic<'_>, x| {
            let shifted = b.plus(x, self.epsilon)?;
            b.sqrt(shifted)
        };
        let (of_changes, of_squares) = (root(b, states[1])?, root(b, v)?);
        let ratio = b.div(of_changes, of_squares)?;
        let direction = b.mul(ratio, g)?;
        let square = b.square(direction)?;
        let changes = b.running(states[1], square, self.rho)?;
        Ok((descend(b, step, p, direction)?, vec![v, changes]))
    }
}

/// `a / b` where both are positive, else 1.
fn trust_ratio(b: &mut Arithmetic<'_>, x: ValueId, y: ValueId) -> ValueResult {
    let zero = b.number(0.0, x)?;
    let one = b.number(1.0, x)?;
    let ratio = b.div(x, y)?;
    let smaller = b.mul(x, y)?;
    let positive = b.op(Gt {}, &[smaller, zero])?;
    b.op(Select {}, &[positive, ratio, one])
}

/// LAMB: You et al. (2020), with bias correction.
#[derive(Clone, Copy, Debug)]
pub struct Lamb {
    /// Decay of the mean of gradients.
    pub beta1: f64,
    /// Decay of the mean of squares.
    pub beta2: f64,
    /// Added to the root of the mean of squares.
    pub epsilon: f64,
    /// Weight decay.
    pub decay: f64,
}

impl Optimizer for Lamb {
    fn name(&self) -> &str {
        "lamb"
    }

    fn without_decay(&self) -> Option<Box<dyn Optimizer>> {
        Some(Box::new(Lamb { decay: 0.0, ..*self }))
    }

    fn states(&self) -> Vec<&str> {
        vec!["mean", "square"]
    }

    fn update(&self, b: &mut Arithmetic<'_>, step: StepNumbers, p: ValueId, g: ValueId, states: &[ValueId]) -> Updated {
        let (direction, m, v) = adaptive(b, step, g, states, (self.beta1, self.beta2, self.epsilon))?;
        let direction = decayed(b, p, direction, self.decay)?;
        let (size, change) = (b.norm(p)?, b.norm(direction)?);
        let ratio = trust_ratio(b, size, change)?;
        let scaled = b.mul(direction, ratio)?;
        Ok((descend(b, step, p, scaled)?, vec![m, v]))
    }
}

/// LARS: You et al. (2017).
#[derive(Clone, Copy, Debug)]
pub struct Lars {
    /// Momentum.
    pub momentum: f64,
    /// Weight decay.
    pub decay: f64,
    /// The trust coefficient.
    pub trust: f64,
    /// Added to the norm of the gradient.
    pub epsilon: f64,
}

impl Optimizer for Lars {
    fn name(&self) -> &str {
        "lars"
    }

    fn without_decay(&self) -> Option<Box<dyn Optimizer>> {
        Some(Box::new(Lars { decay: 0.0, ..*self }))
    }

    fn states(&self) -> Vec<&str> {
        vec!["momentum"]
    }

    fn update(&self, b: &mut Arithmetic<'_>, step: StepNumbers, p: ValueId, g: ValueId, states: &[ValueId]) -> Updated {
        let (size, slope) = (b.norm(p)?, b.norm(g)?);
        let decay = b.scale(size, self.decay)?;
        let sum = b.add(slope, decay)?;
        let divisor = b.plus(sum, self.epsilon)?;
        let trusted = b.scale(size, self.trust)?;
        let ratio = trust_ratio(b, trusted, divisor)?;
        let g = decayed(b, p, g, self.decay)?;
        let scaled = b.mul(g, ratio)?;
        let step_size = b.mul(scaled, step.rate)?;
        let kept = b.scale(states[0], self.momentum)?;
        let v = b.add(kept, step_size)?;
        Ok((b.sub(p, v)?, vec![v]))
    }
}

/// FTRL-Proximal: McMahan et al., "Ad Click Prediction" (2013).
#[derive(Clone, Copy, Debug)]
pub struct Ftrl {
    /// Added to the root of the sum of squares.
    pub beta: f64,
    /// L1 regularisation.
    pub l1: f64,
    /// L2 regularisation.
    pub l2: f64,
}

impl Optimizer for Ftrl {
    fn name(&self) -> &str {
        "ftrl"
    }

    fn without_decay(&self) -> Option<Box<dyn Optimizer>> {
        Some(Box::new(Ftrl { l2: 0.0, ..*self }))
    }

    fn states(&self) -> Vec<&str> {
        vec!["squares", "linear"]
    }

    fn update(&self, b: &mut Arithmetic<'_>, step: StepNumbers, p: ValueId, g: ValueId, states: &[ValueId]) -> Updated {
        let square = b.square(g)?;
        let squares = b.add(states[0], square)?;
        let (before, after) = (b.sqrt(states[0])?, b.sqrt(squares)?);
        let grown = b.sub(after, before)?;
        let sigma = b.div(grown, step.rate)?;
        let pull = b.mul(sigma, p)?;
        // The first step starts from the parameter that there is: `z = -p (beta / rate + l2)` is what gives it.
        let (one, beta) = (b.number(1.0, step.count)?, b.number(self.beta, step.rate)?);
        let inverse = b.div(beta, step.rate)?;
        let stiffness = b.plus(inverse, self.l2)?;
        let start = b.mul(p, stiffness)?;
        let start = b.scale(start, -1.0)?;
        let first = b.op(Eq {}, &[step.count, one])?;
        let before_step = b.op(Select {}, &[first, start, states[1]])?;
        let sum = b.add(before_step, g)?;
        let linear = b.sub(sum, pull)?;
        let shifted = b.plus(after, self.beta)?;
        let scaled = b.div(shifted, step.rate)?;
        let divisor = b.plus(scaled, self.l2)?;
        let sign = b.op(Sign {}, &[linear])?;
        let bound = b.scale(sign, self.l1)?;
        let excess = b.sub(linear, bound)?;
        let quotient = b.div(excess, divisor)?;
        let next = b.scale(quotient, -1.0)?;
        if self.l1 == 0.0 {
            return Ok((next, vec![squares, linear]));
        }
        let (size, limit, zero) = (b.abs(linear)?, b.number(self.l1, linear)?, b.number(0.0, linear)?);
        let far = b.op(Gt {}, &[size, limit])?;
        Ok((b.op(Select {}, &[far, next, zero])?, vec![squares, linear]))
    }
}
