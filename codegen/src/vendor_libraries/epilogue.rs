//! The epilogues that libraries compute: `activation(scale * sums + beta * residual + bias)`.

use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI};

use of_ir::DType;
use of_ops::scalar::ScalarOp;

use crate::kernel::body::{Body, Node};

/// The function of each element at the end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "the names say what they are")]
pub enum Activation {
    None,
    Relu,
    /// `x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))`.
    GeluByTanh,
    /// `x/2 (1 + erf(x / sqrt(2)))`.
    Gelu,
    /// `x sigmoid(x)`.
    Silu,
}

/// A smooth activation: `plain(x) + factor(x) curve(inner(x))`, with polynomials of the third degree.
struct ActivationForm {
    activation: Activation,
    curve: ScalarOp,
    inner: [f64; 4],
    plain: [f64; 4],
    factor: [f64; 4],
}

const HALF: [f64; 4] = [0.0, 0.5, 0.0, 0.0];

/// `sqrt(2/pi)`.
const STEEP: f64 = FRAC_2_SQRT_PI * FRAC_1_SQRT_2;

const FORMS: [ActivationForm; 3] = [
    ActivationForm {
        activation: Activation::GeluByTanh,
        curve: ScalarOp::Tanh,
        inner: [0.0, STEEP, 0.0, 0.044715 * STEEP],
        plain: HALF,
        factor: HALF,
    },
    ActivationForm {
        activation: Activation::Gelu,
        curve: ScalarOp::Erf,
        inner: [0.0, FRAC_1_SQRT_2, 0.0, 0.0],
        plain: HALF,
        factor: HALF,
    },
    ActivationForm {
        activation: Activation::Silu,
        curve: ScalarOp::Sigmoid,
        inner: [0.0, 1.0, 0.0, 0.0],
        plain: [0.0; 4],
        factor: [0.0, 1.0, 0.0, 0.0],
    },
];

/// An epilogue of sums of products, with the loads of the body that it adds.
pub(crate) struct Epilogue {
    /// Factor of the sums.
    pub scale: f64,
    /// A tensor with the result's layout, and its factor.
    pub residual: Option<(usize, f64)>,
    /// A vector of the result's columns.
    pub bias: Option<usize>,
    /// A constant that is added to every element.
    pub number: Option<f64>,
    /// The activation at the end.
    pub activation: Activation,
}

/// A predicate on loads of the epilogue.
type LoadPredicate<'a> = dyn Fn(usize) -> Result<bool, String> + 'a;

impl Epilogue {
    /// Matches a body whose floats are all f32 or of one type; `is_line` and `is_alike` classify its loads.
    ///
    /// # Errors
    /// The reason why it does not match, in one sentence.
    pub fn of(
        body: &Body,
        dtype: DType,
        is_line: &LoadPredicate<'_>,
        is_alike: &LoadPredicate<'_>,
    ) -> Result<Epilogue, String> {
        let [(_, root)] = body.stores[..] else {
            return Err("an intermediate value of its epilogue has other readers".into());
        };
        if body.nodes[root].dtype != dtype {
            return Err(format!("its operands are {dtype} and its result is {}", body.nodes[root].dtype));
        }
        let mut matcher = EpilogueMatcher { body, dtype, scale: None, residual: None, bias: None, number: None };
        let (activation, inner) = matcher.activation(matcher.plain(root))?;
        matcher.sum(inner, 1.0, is_line, is_alike)?;
        let scale = matcher.scale.ok_or("its epilogue is no sum that includes its result")?;
        let EpilogueMatcher { residual, bias, number, .. } = matcher;
        Ok(Epilogue { scale, residual, bias, number, activation })
    }

    /// The loads that it adds, in the argument order of a call.
    pub fn added_loads(&self) -> Vec<usize> {
        self.residual.map(|(load, _)| load).into_iter().chain(self.bias).collect()
    }
}

/// The state of matching a body.
struct EpilogueMatcher<'a> {
    body: &'a Body,
    dtype: DType,
    scale: Option<f64>,
    residual: Option<(usize, f64)>,
    bias: Option<usize>,
    number: Option<f64>,
}

impl EpilogueMatcher<'_> {
    /// Strips rounding and widening casts from node `n`.
    fn plain(&self, mut n: usize) -> usize {
        let own = |d: DType| d == DType::F32 || d == self.dtype;
        while let Node::Op(ScalarOp::Cast(to), args) = &self.body.nodes[n].node {
            if !own(*to) || !own(self.body.nodes[args[0]].dtype) {
                break;
            }
            n = args[0];
        }
        n
    }

    fn number(&self, n: usize) -> Option<f64> {
        match self.body.nodes[self.plain(n)].node {
            Node::Const(c) => Some(c),
            _ => None,
        }
    }

    /// The activation at the end, and its argument node.
    fn activation(&self, root: usize) -> Result<(Activation, usize), String> {
        if let Node::Op(ScalarOp::Max, args) = &self.body.nodes[root].node
            && let [a, b] = args[..]
        {
            for (x, zero) in [(a, b), (b, a)] {
                if self.number(zero) == Some(0.0) {
                    return Ok((Activation::Relu, self.plain(x)));
                }
            }
        }
        for form in &FORMS {
            if self.body.nodes.iter().any(|t| matches!(&t.node, Node::Op(op, _) if *op == form.curve))
                && let Some(x) = (0..root).find(|x| self.plain(*x) == *x && self.has_form(form, root, *x))
            {
                return Ok((form.activation, x));
            }
        }
        Ok((Activation::None, root))
    }

    /// Adds `factor` times node `n`.
    fn sum(
        &mut self,
        n: usize,
        factor: f64,
        is_line: &LoadPredicate<'_>,
        is_alike: &LoadPredicate<'_>,
    ) -> Result<(), String> {
        let n = self.plain(n);
        let twice = || Err("the library adds at most one tensor and one row vector".to_string());
        match &self.body.nodes[n].node {
            Node::Anchor if self.scale.is_none() => self.scale = Some(factor),
            Node::Load(l) if self.body.loads[*l].dtype != self.dtype => {
                return Err(format!("an operand of its epilogue is {}", self.body.loads[*l].dtype));
            }
            Node::Load(l) if is_line(*l)? && factor == 1.0 => {
                if self.bias.replace(*l).is_some() {
                    return twice();
                }
            }
            Node::Load(l) if is_alike(*l)? => {
                if self.residual.replace((*l, factor)).is_some() {
                    return twice();
                }
            }
            Node::Load(_) => {
                return Err(
                    "its epilogue adds an operand that is neither a row vector nor a tensor of the result's layout"
                        .into(),
                );
            }
            Node::Op(ScalarOp::Add, args) => {
                for a in args {
                    self.sum(*a, factor, is_line, is_alike)?;
                }
            }
            Node::Op(ScalarOp::Sub, args) => {
                self.sum(args[0], factor, is_line, is_alike)?;
                self.sum(args[1], -factor, is_line, is_alike)?;
            }
            Node::Op(ScalarOp::Neg, args) => self.sum(args[0], -factor, is_line, is_alike)?,
            Node::Op(op @ (ScalarOp::Mul | ScalarOp::Div), args) => {
                let (x, c) = match (self.number(args[0]), self.number(args[1])) {
                    (Some(c), None) if *op == ScalarOp::Mul => (args[1], c),
                    (None, Some(c)) if *op == ScalarOp::Mul => (args[0], c),
                    (None, Some(c)) => (args[0], 1.0 / c),
                    _ => return Err("its epilogue multiplies or divides by a value that is no constant".into()),
                };
                self.sum(x, factor * c, is_line, is_alike)?;
            }
            Node::Op(op, _) => return Err(format!("the library has no epilogue with {op:?}")),
            Node::Const(c) if self.number.is_none() && factor.abs() == 1.0 => self.number = Some(factor * c),
            Node::Const(_) => return Err("its epilogue adds several constants".into()),
            Node::Anchor | Node::Reduce(..) => return Err("its epilogue reads its result twice".into()),
        }
        Ok(())
    }

    /// Whether node `root` is an activation of node `x`, in any algebraic form.
    fn has_form(&self, form: &ActivationForm, root: usize, x: usize) -> bool {
        // Constants are rounded to the type.
        let near = match self.dtype {
            DType::BF16 => 1.6e-2,
            DType::F16 => 2e-3,
            _ => 1e-5,
        };
        let is = |p: &[f64; 4], q: &[f64; 4]| p.iter().zip(q).all(|(a, b)| (a - b).abs() <= near * b.abs());
        let mut known: Vec<Option<CurvePolynomials>> = Vec::with_capacity(root + 1);
        for (n, t) in self.body.nodes[..=root].iter().enumerate() {
            let arg = |i: &usize| known.get(self.plain(*i)).copied().flatten();
            let value = match &t.node {
                _ if n == x => Some(CurvePolynomials { plain: [0.0, 1.0, 0.0, 0.0], factor: [0.0; 4] }),
                Node::Const(c) => Some(CurvePolynomials::number(*c)),
                Node::Op(op, args) => {
                    match (op, &args.iter().map(arg).collect::<Option<Vec<_>>>().unwrap_or_default()[..]) {
                        (ScalarOp::Add, [a, b]) => Some(a.plus(b, 1.0)),
                        (ScalarOp::Sub, [a, b]) => Some(a.plus(b, -1.0)),
                        (ScalarOp::Neg, [a]) => CurvePolynomials::number(-1.0).times(a),
                        (ScalarOp::Mul, [a, b]) => a.times(b),
                        (ScalarOp::Div, [a, b]) => b.inverse().and_then(|b| a.times(&b)),
                        (op, [u]) if *op == form.curve && is(&u.plain, &form.inner) && u.factor == [0.0; 4] => {
                            Some(CurvePolynomials { plain: [0.0; 4], factor: [1.0, 0.0, 0.0, 0.0] })
                        }
                        _ => None,
                    }
                }
                _ => None,
            };
            known.push(value);
        }
        known[root].is_some_and(|y| is(&y.plain, &form.plain) && is(&y.factor, &form.factor))
    }
}

/// `plain(x) + factor(x) t`, both polynomials of the third degree, where `t` is the curve of a form.
#[derive(Clone, Copy)]
struct CurvePolynomials {
    plain: [f64; 4],
    factor: [f64; 4],
}

impl CurvePolynomials {
    fn number(c: f64) -> CurvePolynomials {
        CurvePolynomials { plain: [c, 0.0, 0.0, 0.0], factor: [0.0; 4] }
    }

    /// The reciprocal of a constant; `None` for anything else.
    fn inverse(&self) -> Option<CurvePolynomials> {
        let [c, rest @ ..] = self.plain;
        (c != 0.0 && rest == [0.0; 3] && self.factor == [0.0; 4]).then(|| CurvePolynomials::number(1.0 / c))
    }

    fn plus(&self, b: &CurvePolynomials, factor: f64) -> CurvePolynomials {
        let sum = |a: &[f64; 4], b: &[f64; 4]| std::array::from_fn(|i| a[i] + factor * b[i]);
        CurvePolynomials { plain: sum(&self.plain, &b.plain), factor: sum(&self.factor, &b.factor) }
    }

    /// The product; `None` if its degree is too high.
    fn times(&self, b: &CurvePolynomials) -> Option<CurvePolynomials> {
        let times = |a: &[f64; 4], b: &[f64; 4]| {
            let mut out = [0.0; 7];
            (0..16).for_each(|i| out[i / 4 + i % 4] += a[i / 4] * b[i % 4]);
            (out[4..] == [0.0; 3]).then(|| [out[0], out[1], out[2], out[3]])
        };
        let squares = times(&self.factor, &b.factor)?;
        let (one, other) = (times(&self.plain, &b.factor)?, times(&self.factor, &b.plain)?);
        let factor = std::array::from_fn(|i| one[i] + other[i]);
        (squares == [0.0; 4]).then_some(CurvePolynomials { plain: times(&self.plain, &b.plain)?, factor })
    }
}
