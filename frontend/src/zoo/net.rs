//! What the models are built with: layers by the whole names of their parameters.

use of_diag::{Code, Diagnostic, Location};
use of_ir::{DType, Dim, NewOp, Tensor, TensorError, Type, ValueId};
use of_ops::elementwise::Add;
use of_ops::movement::{Concat, Reshape, Transpose, Unsqueeze};
use of_ops::structural::ShapeOf;

use super::Mode;
use super::settings::wrong;
use crate::Builder;
use crate::nn::{BatchNorm, Conv, Dropout, Embedding, Fan, Init, Initializer, Layer, LayerNorm, Linear};
use crate::training::Arithmetic;

pub(super) type ValueResult = Result<ValueId, Diagnostic>;

/// The most elements of a parameter.
const LARGEST: u128 = 1 << 33;

/// A model that is being built.
pub struct Net {
    pub(super) b: Builder,
    pub(super) mode: Mode,
    /// Whether batch normalisations have fixed statistics in training steps, too: they are a scale and a shift.
    pub(super) has_frozen_norms: bool,
    init: Init,
}

/// The first factor of the last normalisation of a block whose statistics are fixed.
const FROZEN_GAIN: f64 = 0.25;

/// The window of a convolution or pool: extent, step and zeros on each side.
#[derive(Clone, Copy)]
pub(super) struct Window(pub usize, pub i64, pub i64);

pub(super) fn made<T>(result: Result<T, TensorError>) -> Result<T, Diagnostic> {
    result.map_err(|e| Diagnostic::error(Code::TYPE, Location::Unknown, e.to_string()))
}

impl Net {
    pub(super) fn new(name: &str, mode: Mode, seed: u64) -> Net {
        Net { b: Builder::new(name), mode, has_frozen_norms: false, init: Init::new(seed) }
    }

    /// An input whose first axis is the batch; `None` is an axis that is open and called `dim`.
    pub(super) fn input(&mut self, name: &str, dtype: DType, dims: &[Option<usize>], open: &str) -> ValueId {
        let dim = |d: &Option<usize>| d.map_or_else(|| Dim::symbol(open), |d| Dim::from(d as i64));
        let shape = std::iter::once(Dim::symbol("N")).chain(dims.iter().map(dim)).collect();
        self.b.input(name, Type::tensor(dtype, shape))
    }

    #[track_caller]
    pub(super) fn op(&mut self, op: impl NewOp, operands: &[ValueId]) -> ValueResult {
        self.b.op(op, operands)
    }

    /// Arithmetic of floats.
    pub(super) fn math(&mut self) -> Arithmetic<'_> {
        Arithmetic::new(&mut self.b)
    }

    #[track_caller]
    pub(super) fn add(&mut self, x: ValueId, y: ValueId) -> ValueResult {
        self.b.op(Add {}, &[x, y])
    }

    pub(super) fn ints(&mut self, list: &[i64]) -> ValueResult {
        self.b.constant(Tensor::from_i64s(list))
    }

    /// A constant of f32.
    pub(super) fn floats(&mut self, dims: &[usize], values: &[f32]) -> ValueResult {
        let value = made(Tensor::from_slice(dims, values))?;
        self.b.constant(value)
    }

    /// 0 keeps an extent, -1 is what is left.
    #[track_caller]
    pub(super) fn reshape(&mut self, x: ValueId, dims: &[i64]) -> ValueResult {
        let dims = self.ints(dims)?;
        self.b.op(Reshape { allowzero: false }, &[x, dims])
    }

    #[track_caller]
    pub(super) fn transpose(&mut self, x: ValueId, perm: &[i64]) -> ValueResult {
        self.b.op(Transpose { perm: Some(perm.to_vec()) }, &[x])
    }

    #[track_caller]
    pub(super) fn concat(&mut self, axis: i64, list: &[ValueId]) -> ValueResult {
        self.b.op(Concat { axis }, list)
    }

    /// The extent of an axis, as a tensor of one element.
    pub(super) fn extent(&mut self, x: ValueId, axis: i64) -> ValueResult {
        self.b.op(ShapeOf { start: Some(axis), end: Some(axis + 1) }, &[x])
    }

    pub(super) fn tensor(&mut self, initializer: Initializer, dims: &[usize]) -> Result<Tensor, Diagnostic> {
        let elements = dims.iter().map(|d| *d as u128).try_fold(1u128, u128::checked_mul);
        if elements.is_none_or(|n| n > LARGEST) {
            return Err(wrong(format!("a parameter of extents {dims:?} has more than {LARGEST} elements")));
        }
        self.init.tensor(initializer, dims)
    }

    /// A parameter by its whole name.
    pub(super) fn parameter(&mut self, name: &str, initializer: Initializer, dims: &[usize]) -> ValueResult {
        let value = self.tensor(initializer, dims)?;
        self.b.parameter(name, value)
    }

    /// A layer whose parameters are called `name` and a dot.
    #[track_caller]
    pub(super) fn layer(&mut self, name: &str, layer: &dyn Layer, x: ValueId) -> ValueResult {
        self.b.within(name, |b| layer.apply(b, x))
    }

    /// A convolution with square windows.
    #[track_caller]
    pub(super) fn conv(
        &mut self,
        name: &str,
        x: ValueId,
        [inputs, outputs]: [usize; 2],
        Window(kernel, stride, padding): Window,
        (weight, bias): (Initializer, Option<Initializer>),
    ) -> ValueResult {
        let weight = self.tensor(weight, &[outputs, inputs, kernel, kernel])?;
        let bias = bias.map(|bias| self.tensor(bias, &[outputs])).transpose()?;
        self.layer(name, &Conv { weight, bias, stride, padding, dilation: 1, groups: 1 }, x)
    }

    /// A convolution whose weight and bias other ones have, too.
    #[track_caller]
    pub(super) fn shared_conv(
        &mut self,
        x: ValueId,
        (weight, bias): (ValueId, ValueId),
        Window(_, stride, padding): Window,
    ) -> ValueResult {
        let conv = of_ops::nn::Conv {
            strides: vec![stride; 2],
            pads: vec![padding; 4],
            dilations: vec![1; 2],
            group: 1,
            auto_pad: "NOTSET".into(),
            channels_last: false,
        };
        self.op(conv, &[x, weight, bias])
    }

    #[track_caller]
    pub(super) fn batch_norm(&mut self, name: &str, x: ValueId, channels: usize) -> ValueResult {
        let mut norm = made(BatchNorm::new(channels))?;
        if !self.has_frozen_norms {
            return self.layer(name, &norm, x);
        }
        if name.ends_with(".bn3") {
            // Statistics that are no statistics yet normalise nothing: sums over many blocks stay small so.
            norm.weight = self.tensor(Initializer::Constant(FROZEN_GAIN), &[channels])?;
        }
        match self.mode {
            Mode::Inference => self.layer(name, &norm, x),
            Mode::Training => self.frozen_norm(name, &norm, x),
        }
    }

    fn frozen_norm(&mut self, name: &str, norm: &BatchNorm, x: ValueId) -> ValueResult {
        let all = [
            ("weight", &norm.weight),
            ("bias", &norm.bias),
            ("running_mean", &norm.running_mean),
            ("running_var", &norm.running_var),
        ];
        let mut own = [x; 4];
        for (part, (kind, value)) in own.iter_mut().zip(all) {
            let value = self.b.parameter(&format!("{name}.{kind}"), value.clone())?;
            *part = self.reshape(value, &[-1, 1, 1])?;
        }
        let m = &mut self.math();
        let variance = m.plus(own[3], norm.epsilon)?;
        let deviation = m.sqrt(variance)?;
        let scale = m.div(own[0], deviation)?;
        let away = m.mul(own[2], scale)?;
        let shift = m.sub(own[1], away)?;
        let y = m.mul(x, scale)?;
        m.add(y, shift)
    }

    /// `x` with axes of length 1 at these places.
    #[track_caller]
    pub(super) fn unsqueeze(&mut self, x: ValueId, axes: &[i64]) -> ValueResult {
        let axes = self.ints(axes)?;
        self.b.op(Unsqueeze {}, &[x, axes])
    }

    #[track_caller]
    pub(super) fn layer_norm(&mut self, name: &str, x: ValueId, size: usize, epsilon: f64) -> ValueResult {
        self.layer(name, &LayerNorm { epsilon, ..made(LayerNorm::new(size))? }, x)
    }

    /// A product with a matrix, with a bias.
    #[track_caller]
    pub(super) fn linear(
        &mut self,
        name: &str,
        x: ValueId,
        [inputs, outputs]: [usize; 2],
        (weight, bias): (Initializer, Initializer),
    ) -> ValueResult {
        let (weight, bias) = (self.tensor(weight, &[outputs, inputs])?, self.tensor(bias, &[outputs])?);
        self.layer(name, &Linear { weight, bias: Some(bias) }, x)
    }

    /// Rows of a table.
    #[track_caller]
    pub(super) fn embedding(
        &mut self,
        name: &str,
        ids: ValueId,
        [rows, size]: [usize; 2],
        initializer: Initializer,
    ) -> ValueResult {
        let weight = self.tensor(initializer, &[rows, size])?;
        self.layer(name, &Embedding { weight }, ids)
    }

    /// Dropout, in training graphs alone.
    #[track_caller]
    pub(super) fn dropout(&mut self, x: ValueId, probability: f64) -> ValueResult {
        if self.mode == Mode::Inference || probability == 0.0 {
            return Ok(x);
        }
        Dropout(probability).apply(&mut self.b, x)
    }
}

/// The first bias of PyTorch's layers, for so many inputs.
pub(super) fn torch_bias(inputs: usize) -> Initializer {
    let bound = 1.0 / (inputs.max(1) as f64).sqrt();
    Initializer::Uniform { low: -bound, high: bound }
}

/// The first weight of PyTorch's layers.
pub(super) fn torch_weight() -> Initializer {
    Initializer::KaimingUniform { a: 5f64.sqrt(), fan: Fan::In }
}

/// A normal distribution around 0.
pub(super) fn normal(std: f64) -> Initializer {
    Initializer::Normal { mean: 0.0, std }
}

pub(super) const ZEROS: Initializer = Initializer::Constant(0.0);
