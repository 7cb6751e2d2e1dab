//! Activation functions of recurrent layers, named as in ONNX.

use std::sync::Arc;

use of_ir::OpError;

/// The function of an activation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "named as in ONNX")]
pub enum Function {
    Relu,
    Tanh,
    Sigmoid,
    Affine,
    LeakyRelu,
    ThresholdedRelu,
    ScaledTanh,
    HardSigmoid,
    Elu,
    Softsign,
    Softplus,
}

/// A function with its parameters.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Activation {
    /// Which function.
    pub function: Function,
    /// First parameter, where it has one.
    pub alpha: f64,
    /// Second parameter, where it has one.
    pub beta: f64,
}

/// Name, function, and the defaults of the parameters that it takes.
const FUNCTIONS: [(&str, Function, Option<f64>, Option<f64>); 11] = [
    ("Relu", Function::Relu, None, None),
    ("Tanh", Function::Tanh, None, None),
    ("Sigmoid", Function::Sigmoid, None, None),
    ("Affine", Function::Affine, Some(1.0), Some(0.0)),
    ("LeakyRelu", Function::LeakyRelu, Some(0.01), None),
    ("ThresholdedRelu", Function::ThresholdedRelu, Some(1.0), None),
    ("ScaledTanh", Function::ScaledTanh, Some(1.0), Some(1.0)),
    ("HardSigmoid", Function::HardSigmoid, Some(0.2), Some(0.5)),
    ("Elu", Function::Elu, Some(1.0), None),
    ("Softsign", Function::Softsign, None, None),
    ("Softplus", Function::Softplus, None, None),
];

impl Activation {
    /// The value at `x`.
    pub fn apply(self, x: f64) -> f64 {
        let Activation { function, alpha, beta } = self;
        match function {
            Function::Relu => x.max(0.0),
            Function::Tanh => x.tanh(),
            Function::Sigmoid => 1.0 / (1.0 + (-x).exp()),
            Function::Affine => alpha * x + beta,
            Function::LeakyRelu => {
                if x >= 0.0 {
                    x
                } else {
                    alpha * x
                }
            }
            Function::ThresholdedRelu => {
                if x >= alpha {
                    x
                } else {
                    0.0
                }
            }
            Function::ScaledTanh => alpha * (beta * x).tanh(),
            Function::HardSigmoid => (alpha * x + beta).clamp(0.0, 1.0),
            Function::Elu => {
                if x >= 0.0 {
                    x
                } else {
                    alpha * x.exp_m1()
                }
            }
            Function::Softsign => x / (1.0 + x.abs()),
            // ln(1 + e^x) without overflow
            Function::Softplus => x.max(0.0) + (-x.abs()).exp().ln_1p(),
        }
    }
}

/// The activations of every direction: `defaults` repeated where `names` is empty. The lists of parameters are
/// consumed in order by those functions that take one.
///
/// # Errors
/// When a name is not known or the number of names does not fit.
pub(super) fn parse(
    names: &[Arc<str>],
    alphas: &[f64],
    betas: &[f64],
    defaults: &[&str],
    directions: usize,
) -> Result<Vec<Vec<Activation>>, OpError> {
    let names: Vec<&str> =
        if names.is_empty() { defaults.repeat(directions) } else { names.iter().map(|n| &**n).collect() };
    if names.len() != defaults.len() * directions {
        return Err(OpError::attr(format!(
            "{} activations are given, {} are needed",
            names.len(),
            defaults.len() * directions
        )));
    }
    let (mut alphas, mut betas) = (alphas.iter(), betas.iter());
    let mut next = |name: &str| {
        let row = FUNCTIONS.iter().find(|(n, ..)| n.eq_ignore_ascii_case(name));
        let (_, function, alpha, beta) =
            row.ok_or_else(|| OpError::attr(format!("the activation '{name}' is not known")))?;
        let alpha = alpha.map_or(0.0, |a| alphas.next().copied().unwrap_or(a));
        let beta = beta.map_or(0.0, |b| betas.next().copied().unwrap_or(b));
        Ok(Activation { function: *function, alpha, beta })
    };
    names.chunks(defaults.len()).map(|c| c.iter().map(|n| next(n)).collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rnn_activation_parameters_are_assigned_in_order() {
        let names: Vec<Arc<str>> = ["tanh", "HardSigmoid", "LeakyRelu"].map(Arc::from).to_vec();
        let a = parse(&names, &[0.5], &[0.25], &["Sigmoid", "Tanh", "Tanh"], 1).unwrap();
        assert_eq!((a[0][1].alpha, a[0][1].beta, a[0][2].alpha), (0.5, 0.25, 0.01));
        assert!(parse(&names, &[], &[], &["Tanh"], 1).is_err());
        assert!(parse(&["Swish".into()], &[], &[], &["Tanh"], 1).is_err());
    }
}
