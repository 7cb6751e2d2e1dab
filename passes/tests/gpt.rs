//! The search on training graphs of transformers: known strategies are found, and it is fast.

use std::time::Instant;

use of_diag::Diagnostic;
use of_frontend::Builder;
use of_ir::{Attr, DType, Func, Module, Tensor, Type, ValueId};
use of_ops::contraction::MatMul;
use of_ops::elementwise::{Add, Cast, Gelu, Mul};
use of_ops::movement::{Gather, Reshape, Transpose};
use of_ops::nn::LayerNorm;
use of_ops::reduction::{ReduceSum, Softmax};
use of_ops::structural::Constant;
use of_ops::training::{Adam, Gradient};
use of_passes::Manager;
use of_sharding::decide::decide;
use of_sharding::explain::summary;
use of_sharding::search::Effort;
use of_sharding::{MeshAxis, MeshSpec, Model};

/// Extents of a transformer.
#[derive(Clone, Copy)]
struct Gpt {
    layers: usize,
    batch: usize,
    sequence: usize,
    hidden: usize,
    heads: usize,
    vocabulary: usize,
}

struct Net {
    b: Builder,
    parameters: Vec<(String, ValueId)>,
}

type Made = Result<ValueId, Diagnostic>;

impl Net {
    /// A parameter in single precision, which is computed with in half.
    fn parameter(&mut self, name: String, dims: &[usize]) -> Made {
        let v = self.b.input(&name, Type::fixed(DType::F32, dims));
        self.parameters.push((name, v));
        self.b.op(Cast::to(DType::F16), &[v])
    }

    fn reshape(&mut self, x: ValueId, dims: &[usize]) -> Made {
        let dims: Vec<i64> = dims.iter().map(|d| *d as i64).collect();
        let dims = self.b.op(Constant { value: Tensor::from_i64s(&dims) }, &[])?;
        self.b.op(Reshape { allowzero: true }, &[x, dims])
    }

    fn norm(&mut self, x: ValueId, name: String, hidden: usize) -> Made {
        let scale = self.parameter(format!("{name}.scale"), &[hidden])?;
        let bias = self.parameter(format!("{name}.bias"), &[hidden])?;
        self.b.op(LayerNorm { axis: -1, epsilon: 1e-5, stats: false }, &[x, scale, bias])
    }

    fn linear(&mut self, x: ValueId, name: String, from: usize, to: usize) -> Made {
        let w = self.parameter(format!("{name}.w"), &[from, to])?;
        let bias = self.parameter(format!("{name}.b"), &[to])?;
        let y = self.b.op(MatMul {}, &[x, w])?;
        self.b.op(Add {}, &[y, bias])
    }

    fn block(&mut self, x: ValueId, i: usize, c: &Gpt) -> Made {
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

/// Forward, backward and optimiser in one function.
fn training(c: &Gpt) -> Result<Module, Diagnostic> {
    let mut n = Net { b: Builder::new("gpt"), parameters: Vec::new() };
    let tokens = n.b.input("tokens", Type::fixed(DType::I64, &[c.batch, c.sequence]));
    let weights = n.b.input("targets", Type::fixed(DType::F16, &[c.batch, c.sequence, c.vocabulary]));
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
    let shares = n.b.op(of_ops::reduction::LogSoftmax { axis: -1 }, &[logits])?;
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
    let mut m = n.b.finish(&outputs).map_err(|mut d| d.0.remove(0))?;
    let f = m.funcs.values_mut().next().expect("a function was made");
    f.attrs.set(of_sharding::model::CARRIED, Attr::Ints(carried));
    Ok(m)
}

/// The training graph in primitives, but for the updates, which stay whole.
fn prepared(c: &Gpt) -> Func {
    let mut m = training(c).unwrap_or_else(|e| panic!("{e}"));
    let text = "differentiate,fold-constants,infer-shapes,canonicalize,expand-composites{keep=of.adam},\
                fold-constants,canonicalize,cse,dce";
    Manager::parse(text).unwrap().run(&mut m, &mut |_| {}).unwrap_or_else(|e| panic!("{}", e.0[0]));
    m.funcs.swap_remove("main").unwrap()
}

/// 8 x 8 x 16 H100: NVLink along the last axis but one, InfiniBand along the others.
fn cluster() -> MeshSpec {
    let mut m = MeshSpec::named("dgx-h100[8]").unwrap();
    let fast = m.axes[0].clone();
    let slow = |devices| MeshAxis { devices, bandwidth: 5e10, latency: 8e-6 };
    m.axes = vec![slow(8), fast, slow(16)];
    m
}

/// Two layers of GPT-3; `OF_GPT_LAYERS=96 cargo test --release -p of-passes --test gpt -- --nocapture` for all, and times.
#[test]
fn gpt_3_on_1024_devices() {
    let layers = std::env::var("OF_GPT_LAYERS").ok().and_then(|n| n.parse().ok()).unwrap_or(2);
    let c = Gpt { layers, batch: 64, sequence: 2048, hidden: 12288, heads: 96, vocabulary: 51200 };
    let f = prepared(&c);
    let mesh = cluster();
    let started = Instant::now();
    let model = Model::new(&f, &mesh).unwrap_or_else(|e| panic!("{}", e.0[0]));
    let effort = Effort { gap: 0.01, ..Effort::default() };
    let d = decide(&model, mesh.memory, &effort).unwrap_or_else(|e| panic!("{e}"));
    println!("{} ops in {:?}: {}", f.graph.walk().len(), started.elapsed(), summary(&model, &d));
    assert!(d.cost - d.bound <= 0.01 * d.cost, "{}", summary(&model, &d));
    assert!(d.memory <= mesh.memory);
    let again = decide(&model, mesh.memory, &effort).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(again.labels, d.labels, "the search is deterministic");
}
