//! A training step of a transformer: Brown et al., "Language Models are Few-Shot Learners" (2020), with the optimizer
//! of Kingma and Ba, "Adam" (2015).

use of_diag::{Diagnostic, Diagnostics};
use of_ir::{Attr, DType, Module, Tensor, Type, ValueId};
use of_ops::contraction::MatMul;
use of_ops::elementwise::{Add, Cast, Gelu, Mul};
use of_ops::movement::{Gather, Reshape, Transpose};
use of_ops::nn::LayerNorm;
use of_ops::reduction::{LogSoftmax, ReduceSum, Softmax};
use of_ops::structural::Constant;
use of_ops::training::{Adam, CARRIED, Gradient};

use crate::Builder;

/// Extents of a transformer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gpt {
    /// Number of transformer blocks.
    pub layers: usize,
    /// Sequences per step.
    pub batch: usize,
    /// Tokens per sequence.
    pub sequence: usize,
    /// Features per token.
    pub hidden: usize,
    /// Attention heads; they divide `hidden`.
    pub heads: usize,
    /// Number of distinct tokens.
    pub vocabulary: usize,
    /// Element type of the computation. Parameters and optimizer state are `f32`.
    pub dtype: DType,
}

struct Net {
    b: Builder,
    dtype: DType,
    parameters: Vec<(String, ValueId)>,
}

type ValueResult = Result<ValueId, Diagnostic>;

impl Net {
    /// A parameter in f32, cast to the element type of the computation.
    fn parameter(&mut self, name: String, dims: &[usize]) -> ValueResult {
        let v = self.b.input(&name, Type::fixed(DType::F32, dims));
        self.parameters.push((name, v));
        if self.dtype == DType::F32 { Ok(v) } else { self.b.op(Cast::to(self.dtype), &[v]) }
    }

    fn reshape(&mut self, x: ValueId, dims: &[usize]) -> ValueResult {
        let dims: Vec<i64> = dims.iter().map(|d| *d as i64).collect();
        let dims = self.b.op(Constant { value: Tensor::from_i64s(&dims) }, &[])?;
        self.b.op(Reshape { allowzero: true }, &[x, dims])
    }

    fn norm(&mut self, x: ValueId, name: String, hidden: usize) -> ValueResult {
        let scale = self.parameter(format!("{name}.scale"), &[hidden])?;
        let bias = self.parameter(format!("{name}.bias"), &[hidden])?;
        self.b.op(LayerNorm { axis: -1, epsilon: 1e-5, return_stats: false }, &[x, scale, bias])
    }

    fn linear(&mut self, x: ValueId, name: String, from: usize, to: usize) -> ValueResult {
        let w = self.parameter(format!("{name}.w"), &[from, to])?;
        let bias = self.parameter(format!("{name}.b"), &[to])?;
        let y = self.b.op(MatMul {}, &[x, w])?;
        self.b.op(Add {}, &[y, bias])
    }

    fn block(&mut self, x: ValueId, i: usize, c: &Gpt) -> ValueResult {
        let h = c.hidden;
        let n = self.norm(x, format!("l{i}.norm1"), h)?;
        let split = [c.batch, c.sequence, c.heads, h / c.heads];
        let mut heads = Vec::new();
        for (name, perm) in [("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])] {
            let y = self.linear(n, format!("l{i}.{name}"), h, h)?;
            let y = self.reshape(y, &split)?;
            heads.push(self.b.op(Transpose { perm: Some(perm.to_vec()) }, &[y])?);
        }
        let scores = self.b.op(MatMul {}, &[heads[0], heads[1]])?;
        let shares = self.b.op(Softmax { axis: -1 }, &[scores])?;
        let mixed = self.b.op(MatMul {}, &[shares, heads[2]])?;
        let mixed = self.b.op(Transpose { perm: Some(vec![0, 2, 1, 3]) }, &[mixed])?;
        let mixed = self.reshape(mixed, &[c.batch, c.sequence, h])?;
        let y = self.linear(mixed, format!("l{i}.proj"), h, h)?;
        let x = self.b.op(Add {}, &[x, y])?;
        let n = self.norm(x, format!("l{i}.norm2"), h)?;
        let y = self.linear(n, format!("l{i}.up"), h, 4 * h)?;
        let y = self.b.op(Gelu { tanh: true }, &[y])?;
        let y = self.linear(y, format!("l{i}.down"), 4 * h, h)?;
        self.b.op(Add {}, &[x, y])
    }
}

/// Forward, backward and Adam in one function. Inputs are `tokens`, `targets` (a weight for each token and word), the
/// learning rate, the step number, the parameters, and two state tensors for each. Outputs are the loss, and the next
/// value of each parameter and its state.
///
/// # Errors
/// When the extents do not fit each other.
pub fn training(c: &Gpt) -> Result<Module, Diagnostics> {
    let mut n = Net { b: Builder::new("gpt"), dtype: c.dtype, parameters: Vec::new() };
    let tokens = n.b.input("tokens", Type::fixed(DType::I64, &[c.batch, c.sequence]));
    let weights = n.b.input("targets", Type::fixed(c.dtype, &[c.batch, c.sequence, c.vocabulary]));
    let rate = n.b.input("rate", Type::fixed(DType::F32, &[]));
    let count = n.b.input("count", Type::fixed(DType::I64, &[]));
    let table = n.parameter("embedding".into(), &[c.vocabulary, c.hidden])?;
    let mut x = n.b.op(Gather { axis: 0 }, &[table, tokens])?;
    for i in 0..c.layers {
        x = n.block(x, i, c)?;
    }
    let x = n.norm(x, "norm".into(), c.hidden)?;
    let head = n.parameter("head".into(), &[c.hidden, c.vocabulary])?;
    let logits = n.b.op(MatMul {}, &[x, head])?;
    let shares = n.b.op(LogSoftmax { axis: -1 }, &[logits])?;
    let loss = n.b.op(Mul {}, &[shares, weights])?;
    let loss = n.b.op(ReduceSum { keepdims: false }, &[loss])?;
    let parameters = n.parameters.clone();
    let operands: Vec<ValueId> = std::iter::once(loss).chain(parameters.iter().map(|p| p.1)).collect();
    let gradients = n.b.op_all(Gradient {}, &operands)?;
    let mut outputs = vec![("loss".to_string(), loss)];
    let mut carried = vec![-1i64];
    let mut inputs = 4 + parameters.len() as i64;
    for (i, ((name, p), g)) in parameters.iter().zip(gradients).enumerate() {
        let Type::Tensor(t) = n.b.ty(*p).clone() else { continue };
        let state = Type::Tensor(t);
        let v = n.b.input(&format!("{name}.v"), state.clone());
        let h = n.b.input(&format!("{name}.h"), state);
        let adam = Adam { alpha: 0.9, beta: 0.99, epsilon: 1e-8, norm_coefficient: 0.0, norm_coefficient_post: 0.0 };
        let new = n.b.op_all(adam, &[rate, count, *p, g, v, h])?;
        for (k, (v, from)) in new.into_iter().zip([4 + i as i64, inputs, inputs + 1]).enumerate() {
            outputs.push((format!("{name}.{k}"), v));
            carried.push(from);
        }
        inputs += 2;
    }
    let outputs: Vec<(&str, ValueId)> = outputs.iter().map(|(n, v)| (n.as_str(), *v)).collect();
    let mut m = n.b.finish(&outputs)?;
    if let Some(f) = m.funcs.get_mut("main") {
        f.attrs.set(CARRIED, Attr::Ints(carried));
    }
    Ok(m)
}
