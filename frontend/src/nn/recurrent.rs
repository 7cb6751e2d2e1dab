//! Recurrent layers over `[batch, steps, inputs]`. They return the states of all steps, `[batch, steps, directions size]`, and on request
//! the last ones.
//!
//! Parameters have PyTorch's names and its order of gates, so the state dict of `torch.nn.LSTM` or `torch.nn.GRU` fits. ONNX has another
//! order, in which the ops take them: the graph rearranges them, which is done at compile time where parameters are constants.

use std::panic::Location as Caller;

use of_diag::{Code, Diagnostic};
use of_ir::{NewOp, Tensor, TensorError, ValueId};
use of_ops::movement::{Concat, Reshape, Slice, Split, Transpose, Unsqueeze};
use of_ops::structural::NoneValue;

use super::init::{Init, Initializer};
use super::{Dropout, Layer};
use crate::Builder;
use crate::builder::location;

/// The parameters of one direction of a layer.
#[derive(Clone, Debug)]
pub struct RecurrentWeights {
    /// `[gates size, inputs]`.
    pub weight_ih: Tensor,
    /// `[gates size, size]`.
    pub weight_hh: Tensor,
    /// `[gates size]` of the inputs and of the states; `None` adds nothing.
    pub biases: Option<[Tensor; 2]>,
}

impl RecurrentWeights {
    /// First values as in PyTorch: all uniform in ±1 / sqrt(size).
    fn new(init: &mut Init, gates: usize, inputs: usize, size: usize) -> Result<RecurrentWeights, TensorError> {
        let bound = 1.0 / (size.max(1) as f64).sqrt();
        let uniform = Initializer::Uniform { low: -bound, high: bound };
        Ok(RecurrentWeights {
            weight_ih: init.filled(uniform, &[gates * size, inputs])?,
            weight_hh: init.filled(uniform, &[gates * size, size])?,
            biases: Some([init.filled(uniform, &[gates * size])?, init.filled(uniform, &[gates * size])?]),
        })
    }
}

/// Layers, each of one or two directions.
type Layers = Vec<Vec<RecurrentWeights>>;

fn layers(
    init: &mut Init,
    gates: usize,
    [inputs, size]: [usize; 2],
    count: usize,
    directions: usize,
) -> Result<Layers, TensorError> {
    let inputs = |layer: usize| if layer == 0 { inputs } else { directions * size };
    let mut layer = |i: usize| (0..directions).map(|_| RecurrentWeights::new(init, gates, inputs(i), size)).collect();
    (0..count).map(&mut layer).collect()
}

fn without_bias(layers: &mut Layers) {
    layers.iter_mut().flatten().for_each(|direction| direction.biases = None);
}

/// The parts of a parameter for each gate, in the order of ONNX: `order` are their numbers in that of PyTorch.
#[track_caller]
fn gates(b: &mut Builder, parameter: ValueId, order: &[usize]) -> Result<Vec<ValueId>, Diagnostic> {
    let parts = b.op_all(Split { axis: 0, num_outputs: order.len() as i64 }, &[parameter])?;
    Ok(order.iter().map(|gate| parts[*gate]).collect())
}

/// A new axis 0 of length 1.
#[track_caller]
fn with_direction(b: &mut Builder, x: ValueId) -> Result<ValueId, Diagnostic> {
    let axis = b.constant(Tensor::from_i64s(&[0]))?;
    b.op(Unsqueeze {}, &[x, axis])
}

#[track_caller]
fn concat(b: &mut Builder, list: &[ValueId]) -> Result<ValueId, Diagnostic> {
    if let [one] = list { Ok(*one) } else { b.op(Concat { axis: 0 }, list) }
}

/// `[a, b, size]` as `[b, a, size]`: ops have the batch first, PyTorch's states the layers and directions.
#[track_caller]
fn exchanged(b: &mut Builder, state: ValueId) -> Result<ValueId, Diagnostic> {
    b.op(Transpose { perm: Some(vec![1, 0, 2]) }, &[state])
}

/// Parameters of a layer as operands of the op: weights `[directions, gates size, …]`, biases `[directions, 2 gates size]`.
#[track_caller]
fn operands(
    b: &mut Builder,
    number: usize,
    layer: &[RecurrentWeights],
    order: &[usize],
) -> Result<[Option<ValueId>; 3], Diagnostic> {
    let mut lists: [Vec<ValueId>; 3] = Default::default();
    for (direction, suffix) in layer.iter().zip(["", "_reverse"]) {
        let named = |kind: &str| format!("{kind}_l{number}{suffix}");
        let weights = [("weight_ih", &direction.weight_ih), ("weight_hh", &direction.weight_hh)];
        for ((kind, weight), list) in weights.into_iter().zip(&mut lists) {
            let parameter = b.parameter(&named(kind), weight.clone())?;
            let parts = gates(b, parameter, order)?;
            let whole = concat(b, &parts)?;
            list.push(with_direction(b, whole)?);
        }
        if let Some(biases) = &direction.biases {
            let mut parts = Vec::new();
            for (kind, bias) in ["bias_ih", "bias_hh"].into_iter().zip(biases) {
                let parameter = b.parameter(&named(kind), bias.clone())?;
                parts.extend(gates(b, parameter, order)?);
            }
            let whole = concat(b, &parts)?;
            lists[2].push(with_direction(b, whole)?);
        }
    }
    let mut out = [None; 3];
    for (whole, list) in out.iter_mut().zip(&lists).filter(|(_, list)| !list.is_empty()) {
        *whole = Some(concat(b, list)?);
    }
    Ok(out)
}

/// A recurrent network: its layers, the gates of ONNX by their numbers in PyTorch's order, and the dropout between layers.
struct Network<'l> {
    layers: &'l Layers,
    order: &'l [usize],
    dropout: f64,
}

impl Network<'_> {
    /// Runs all layers. `initial` are the states before the first step, `[layers directions, batch, size]`, none for zeros. Returns the
    /// states of all steps, and the last ones in the form of `initial`.
    #[track_caller]
    fn run<O: NewOp>(
        &self,
        b: &mut Builder,
        x: ValueId,
        initial: &[ValueId],
        op: impl Fn(&'static str) -> O,
    ) -> Result<(ValueId, Vec<ValueId>), Diagnostic> {
        for state in initial {
            self.check(b, *state)?;
        }
        let (mut x, mut last) = (x, Vec::new());
        for (number, layer) in self.layers.iter().enumerate() {
            if number > 0 && self.dropout > 0.0 {
                x = Dropout(self.dropout).apply(b, x)?;
            }
            let mut all: Vec<Option<ValueId>> = vec![Some(x)];
            all.extend(operands(b, number, layer, self.order)?);
            if !initial.is_empty() {
                // Every sequence has all steps, so there are no lengths.
                all.push(None);
            }
            for state in initial {
                let own = self.rows(b, *state, number * layer.len(), layer.len())?;
                all.push(Some(exchanged(b, own)?));
            }
            while all.last() == Some(&None) {
                all.pop();
            }
            let mut given = Vec::with_capacity(all.len());
            for operand in all {
                given.push(operand.map_or_else(|| b.op(NoneValue {}, &[]), Ok)?);
            }
            let results = b.op_all(op(if layer.len() == 2 { "bidirectional" } else { "forward" }), &given)?;
            // [batch, steps, directions, size] with directions and size as one axis.
            let shape = b.constant(Tensor::from_i64s(&[0, 0, -1]))?;
            x = b.op(Reshape { allowzero: false }, &[results[0], shape])?;
            last.push(results);
        }
        let mut states = Vec::new();
        for i in 1..last.first().map_or(1, Vec::len) {
            let own = last.iter().map(|results| exchanged(b, results[i])).collect::<Result<Vec<_>, _>>()?;
            states.push(concat(b, &own)?);
        }
        Ok((x, states))
    }

    /// Rows of a state that are of one layer.
    #[track_caller]
    fn rows(&self, b: &mut Builder, state: ValueId, from: usize, count: usize) -> Result<ValueId, Diagnostic> {
        if self.layers.len() == 1 {
            return Ok(state);
        }
        let bounds = [from as i64, (from + count) as i64, 0].map(|n| Tensor::from_i64s(&[n]));
        let mut operands = vec![state];
        for bound in bounds {
            operands.push(b.constant(bound)?);
        }
        b.op(Slice {}, &operands)
    }

    /// An error where a state is not of these layers and directions; the op checks batch and size.
    #[track_caller]
    fn check(&self, b: &Builder, state: ValueId) -> Result<(), Diagnostic> {
        let count = self.layers.iter().map(Vec::len).sum::<usize>();
        let shape = b.ty(state).as_tensor().and_then(|t| t.shape.as_ref());
        let fits = shape.is_some_and(|s| s.len() == 3 && s[0].as_const() == Some(count as i64));
        if fits {
            return Ok(());
        }
        let what = format!("an initial state is {}, its first extent must be {count}", b.ty(state));
        Err(Diagnostic::error(Code::TYPE, location(Caller::caller()), what)
            .hint("a state is [layers times directions, batch, size], as in PyTorch"))
    }
}

/// Makes the parts that both kinds of layers have.
macro_rules! constructors {
    ($name:ident, $gates:expr) => {
        impl $name {
            /// One layer of one direction, from the first step to the last. First values as in PyTorch.
            ///
            /// # Errors
            /// When the weights would be larger than memory can address.
            pub fn new(init: &mut Init, inputs: usize, size: usize) -> Result<$name, TensorError> {
                $name::stacked(init, inputs, size, 1)
            }

            /// Layers on top of one another, each over the states of the one before: `num_layers` in PyTorch.
            ///
            /// # Errors
            #[doc = concat!("As [`", stringify!($name), "::new`].")]
            pub fn stacked(init: &mut Init, inputs: usize, size: usize, count: usize) -> Result<$name, TensorError> {
                Ok($name { layers: layers(init, $gates, [inputs, size], count, 1)?, dropout: 0.0 })
            }

            /// Layers on top of one another, each of which has both directions; `[batch, steps, 2 size]` has the states of the forward
            /// direction before those of the other.
            ///
            /// # Errors
            #[doc = concat!("As [`", stringify!($name), "::new`].")]
            pub fn bidirectional(
                init: &mut Init,
                inputs: usize,
                size: usize,
                count: usize,
            ) -> Result<$name, TensorError> {
                Ok($name { layers: layers(init, $gates, [inputs, size], count, 2)?, dropout: 0.0 })
            }

            /// Without biases.
            pub fn without_bias(mut self) -> $name {
                without_bias(&mut self.layers);
                self
            }

            /// With a dropout of this probability on the states of each layer but the last, in training steps.
            pub fn dropout(self, dropout: f64) -> $name {
                $name { dropout, ..self }
            }
        }
    };
}

/// Long short-term memory. Source: Hochreiter and Schmidhuber (1997); gates in the order of PyTorch: i, f, g, o.
///
/// ```
/// use of_frontend::Builder;
/// use of_frontend::nn::{Init, Lstm};
/// use of_ir::{DType, Type};
///
/// let layer = Lstm::bidirectional(&mut Init::new(1), 3, 5, 2)?;
/// let mut b = Builder::new("m");
/// let x = b.input("x", Type::fixed(DType::F32, &[2, 6, 3]));
/// let (y, last) = layer.run(&mut b, x, None)?;
/// assert_eq!(*b.ty(y), Type::fixed(DType::F32, &[2, 6, 10]));
/// // Two layers with two directions.
/// assert_eq!(*b.ty(last.hidden), Type::fixed(DType::F32, &[4, 2, 5]));
/// // The next part of the sequence goes on where the first one ends.
/// let (_, last) = layer.run(&mut b, x, Some(last))?;
/// assert_eq!(*b.ty(last.cell), Type::fixed(DType::F32, &[4, 2, 5]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Lstm {
    /// The layers, and the one or two directions of each. `weight_ih` of a layer behind the first has `directions size` inputs.
    pub layers: Vec<Vec<RecurrentWeights>>,
    /// The probability of a dropout between layers.
    pub dropout: f64,
}

/// The state of an [`Lstm`] between two steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LstmState {
    /// What a step returns, `[layers directions, batch, size]`.
    pub hidden: ValueId,
    /// The memory, `[layers directions, batch, size]`.
    pub cell: ValueId,
}

constructors!(Lstm, 4);

impl Lstm {
    /// Runs over a sequence `[batch, steps, inputs]` from a state, zeros without one. Returns the states of all steps,
    /// `[batch, steps, directions size]`, and the last state. That of the backward direction is behind the first step.
    ///
    /// # Errors
    /// When sequence or state have types that do not fit.
    #[track_caller]
    pub fn run(
        &self,
        b: &mut Builder,
        x: ValueId,
        initial: Option<LstmState>,
    ) -> Result<(ValueId, LstmState), Diagnostic> {
        let initial = initial.map_or_else(Vec::new, |state| vec![state.hidden, state.cell]);
        // ONNX: i, o, f, c.
        let network = Network { layers: &self.layers, order: &[0, 3, 1, 2], dropout: self.dropout };
        let lstm = |direction: &'static str| of_ops::recurrent::Lstm {
            direction: direction.into(),
            layout: 1,
            activations: Vec::new(),
            activation_alpha: Vec::new(),
            activation_beta: Vec::new(),
            clip: None,
            input_forget: false,
        };
        let (y, last) = network.run(b, x, &initial, lstm)?;
        let &[hidden, cell] = &last[..] else { return Err(no_layers()) };
        Ok((y, LstmState { hidden, cell }))
    }
}

impl Layer for Lstm {
    #[track_caller]
    fn apply(&self, b: &mut Builder, x: ValueId) -> Result<ValueId, Diagnostic> {
        Ok(self.run(b, x, None)?.0)
    }
}

/// Gated recurrent unit. Source: Cho et al. (2014), with the reset gate behind the product, as in PyTorch; gates in the order of PyTorch:
/// r, z, n.
#[derive(Clone, Debug)]
pub struct Gru {
    /// The layers, and the one or two directions of each. `weight_ih` of a layer behind the first has `directions size` inputs.
    pub layers: Vec<Vec<RecurrentWeights>>,
    /// The probability of a dropout between layers.
    pub dropout: f64,
}

constructors!(Gru, 3);

impl Gru {
    /// As [`Lstm::run`]; the state is `[layers directions, batch, size]`.
    ///
    /// # Errors
    /// As [`Lstm::run`].
    #[track_caller]
    pub fn run(&self, b: &mut Builder, x: ValueId, initial: Option<ValueId>) -> Result<(ValueId, ValueId), Diagnostic> {
        // ONNX: z, r, h.
        let network = Network { layers: &self.layers, order: &[1, 0, 2], dropout: self.dropout };
        let gru = |direction: &'static str| of_ops::recurrent::Gru {
            direction: direction.into(),
            layout: 1,
            activations: Vec::new(),
            activation_alpha: Vec::new(),
            activation_beta: Vec::new(),
            clip: None,
            linear_before_reset: true,
        };
        let (y, last) = network.run(b, x, initial.as_slice(), gru)?;
        let &[hidden] = &last[..] else { return Err(no_layers()) };
        Ok((y, hidden))
    }
}

impl Layer for Gru {
    #[track_caller]
    fn apply(&self, b: &mut Builder, x: ValueId) -> Result<ValueId, Diagnostic> {
        Ok(self.run(b, x, None)?.0)
    }
}

#[track_caller]
fn no_layers() -> Diagnostic {
    Diagnostic::error(Code::TYPE, location(Caller::caller()), "a recurrent network without layers")
        .hint("make it with one layer at least")
}
