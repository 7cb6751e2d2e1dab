//! Graphs for measuring compilers, by the published shapes of models: the six graphs of Yang et al., "Equality Saturation for
//! Tensor Graph Superoptimization" (2021). As there, BERT is attention only.
//!
//! Weights are not trained: each is a splat of a distinct number, so that model files are small.

use of_diag::{Diagnostic, Diagnostics};
use of_ir::{DType, Module, NewOp, Tensor, Type, ValueId};
use of_ops::contraction::MatMul;
use of_ops::elementwise::{Add, Mul, Relu, Sigmoid, Tanh};
use of_ops::movement::{Concat, ConstantOfShape, Reshape, Transpose};
use of_ops::nn::{AvgPool, Conv, GlobalAveragePool, MaxPool};

use crate::Builder;

/// Makes a graph.
pub type Graph = fn() -> Result<Module, Diagnostics>;

/// Every graph with its name.
pub const GRAPHS: &[(&str, Graph)] = &[
    ("bert", bert),
    ("inception_v3", inception_v3),
    ("nasrnn", nasrnn),
    ("resnext50", resnext50),
    ("squeezenet", squeezenet),
    ("vgg19", vgg19),
];

type ValueResult = Result<ValueId, Diagnostic>;

struct ModelBuilder {
    b: Builder,
    weights: usize,
}

/// A window: extents, strides, pads before both axes and after both.
#[derive(Clone, Copy)]
struct Window {
    kernel: [usize; 2],
    stride: i64,
    pad: [i64; 2],
}

/// `k` x `k`, the input padded so that a stride of 1 keeps its extents.
fn same(k: usize) -> Window {
    Window { kernel: [k, k], stride: 1, pad: [k as i64 / 2; 2] }
}

/// `k` x `k` without padding.
fn valid(k: usize, stride: i64) -> Window {
    Window { kernel: [k, k], stride, pad: [0, 0] }
}

impl ModelBuilder {
    fn new(name: &str) -> ModelBuilder {
        ModelBuilder { b: Builder::new(name), weights: 0 }
    }

    fn input(&mut self, name: &str, dims: &[usize]) -> ValueId {
        self.b.input(name, Type::fixed(DType::F32, dims))
    }

    fn op(&mut self, op: impl NewOp, operands: &[ValueId]) -> ValueResult {
        self.b.op(op, operands)
    }

    fn ints(&mut self, list: &[usize]) -> ValueResult {
        let list: Vec<i64> = list.iter().map(|d| *d as i64).collect();
        self.b.constant(Tensor::from_i64s(&list))
    }

    /// A new weight whose numbers are about the inverse square root of the number of terms.
    fn weight(&mut self, dims: &[usize]) -> ValueResult {
        self.weights += 1;
        let summed = dims.iter().product::<usize>() / dims[0].max(1);
        let number = (1.0 + self.weights as f32 / 1000.0) / summed.max(1) as f32;
        let value = Tensor::from_slice(&[1], &[number]).ok();
        let shape = self.ints(dims)?;
        self.op(ConstantOfShape { value }, &[shape])
    }

    fn channels(&self, x: ValueId) -> usize {
        self.dims(x).get(1).copied().unwrap_or(0)
    }

    fn dims(&self, x: ValueId) -> Vec<usize> {
        self.b.ty(x).as_tensor().and_then(|t| t.fixed_dims()).unwrap_or_default()
    }

    fn matmul(&mut self, x: ValueId, columns: usize) -> ValueResult {
        let rows = self.dims(x).last().copied().unwrap_or(0);
        let w = self.weight(&[rows, columns])?;
        self.op(MatMul {}, &[x, w])
    }

    fn reshape(&mut self, x: ValueId, dims: &[usize]) -> ValueResult {
        let shape = self.ints(dims)?;
        self.op(Reshape { allowzero: false }, &[x, shape])
    }

    /// A convolution without bias.
    fn conv(&mut self, x: ValueId, cout: usize, w: Window, group: usize) -> ValueResult {
        let filter = self.weight(&[cout, self.channels(x) / group, w.kernel[0], w.kernel[1]])?;
        let op = Conv {
            strides: vec![w.stride; 2],
            pads: [w.pad, w.pad].concat(),
            dilations: vec![1, 1],
            group: group as i64,
            auto_pad: "NOTSET".into(),
            channels_last: false,
        };
        self.op(op, &[x, filter])
    }

    /// A convolution with bias, and relu.
    fn layer(&mut self, x: ValueId, cout: usize, w: Window) -> ValueResult {
        let y = self.conv(x, cout, w, 1)?;
        let bias = self.weight(&[1, cout, 1, 1])?;
        let y = self.op(Add {}, &[y, bias])?;
        self.op(Relu {}, &[y])
    }

    fn max_pool(&mut self, x: ValueId, w: Window) -> ValueResult {
        let op = MaxPool {
            kernel: w.kernel.map(|k| k as i64).to_vec(),
            strides: vec![w.stride; 2],
            pads: [w.pad, w.pad].concat(),
            dilations: vec![],
            ceil_mode: false,
            storage_order: 0,
            return_indices: false,
            auto_pad: "NOTSET".into(),
            channels_last: false,
        };
        self.op(op, &[x])
    }

    fn mean_pool(&mut self, x: ValueId) -> ValueResult {
        let op = AvgPool {
            kernel: vec![3, 3],
            strides: vec![1, 1],
            pads: vec![1; 4],
            dilations: vec![],
            ceil_mode: false,
            count_include_pad: false,
            auto_pad: "NOTSET".into(),
            channels_last: false,
        };
        self.op(op, &[x])
    }

    fn concat(&mut self, list: &[ValueId]) -> ValueResult {
        self.op(Concat { axis: 1 }, list)
    }

    fn finish(self, outputs: &[ValueId]) -> Result<Module, Diagnostics> {
        let names: Vec<String> = (0..outputs.len()).map(|i| format!("y{i}")).collect();
        let named: Vec<(&str, ValueId)> = names.iter().map(String::as_str).zip(outputs.iter().copied()).collect();
        self.b.finish(&named)
    }
}

/// Eight layers of attention with 16 heads over 64 positions of 1024 numbers; each gives its result, and a product of
/// its input to the next. Source: Jia et al., TASO (2019), after Devlin et al. (2018).
///
/// # Errors
/// None: the shapes fit.
pub fn bert() -> Result<Module, Diagnostics> {
    const N: usize = 64;
    let mut m = ModelBuilder::new("bert");
    let x = m.input("x", &[N, 1024]);
    let mut x = m.op(Relu {}, &[x])?;
    let mut outputs = Vec::new();
    for _ in 0..8 {
        let mut heads = Vec::new();
        for _ in 0..3 {
            let y = m.matmul(x, 1024)?;
            let y = m.reshape(y, &[N, 16, 64])?;
            heads.push(m.op(Transpose { perm: Some(vec![1, 0, 2]) }, &[y])?);
        }
        let logits = m.op(MatMul {}, &heads[..2])?;
        let y = m.op(MatMul {}, &[logits, heads[2]])?;
        let y = m.op(Transpose { perm: Some(vec![1, 0, 2]) }, &[y])?;
        outputs.push(m.reshape(y, &[N, 1024])?);
        x = m.matmul(x, 1024)?;
    }
    outputs.push(x);
    m.finish(&outputs)
}

/// Five steps of the cell that was found by architecture search, 512 units. Source: Zoph, Le, "Neural Architecture
/// Search with Reinforcement Learning" (2016).
///
/// # Errors
/// None: the shapes fit.
pub fn nasrnn() -> Result<Module, Diagnostics> {
    const UNITS: usize = 512;
    let mut m = ModelBuilder::new("nasrnn");
    let mut state = m.input("state", &[1, UNITS]);
    for step in 0..5 {
        let x = m.input(&format!("x{step}"), &[1, UNITS]);
        let mut t = Vec::new();
        for _ in 0..8 {
            let (a, b) = (m.matmul(x, UNITS)?, m.matmul(state, UNITS)?);
            t.push(m.op(Add {}, &[a, b])?);
        }
        let [r0, r7] = [m.op(Relu {}, &[t[0]])?, m.op(Relu {}, &[t[7]])?];
        let mut s = Vec::new();
        for i in [1, 3, 4, 6] {
            s.push(m.op(Sigmoid {}, &[t[i]])?);
        }
        let [h2, h5] = [m.op(Tanh {}, &[t[2]])?, m.op(Tanh {}, &[t[5]])?];
        let m0 = m.op(Add {}, &[r0, s[1]])?;
        let m1 = m.op(Add {}, &[s[0], h2])?;
        let m2 = m.op(Mul {}, &[s[2], h5])?;
        let m3 = m.op(Mul {}, &[s[3], r7])?;
        let (a, b) = (m.op(Sigmoid {}, &[m1])?, m.op(Tanh {}, &[m2])?);
        let m4 = m.op(Add {}, &[a, b])?;
        let (a, b) = (m.op(Tanh {}, &[m0])?, m.op(Tanh {}, &[m3])?);
        let m5 = m.op(Mul {}, &[a, b])?;
        let (a, b) = (m.op(Tanh {}, &[m4])?, m.op(Tanh {}, &[m5])?);
        let m6 = m.op(Mul {}, &[a, b])?;
        state = m.op(Tanh {}, &[m6])?;
    }
    m.finish(&[state])
}

/// Residual blocks with 32 groups. Source: Xie et al., "Aggregated Residual Transformations" (2017).
///
/// # Errors
/// None: the shapes fit.
pub fn resnext50() -> Result<Module, Diagnostics> {
    let mut m = ModelBuilder::new("resnext50");
    let x = m.input("x", &[1, 3, 224, 224]);
    let y = m.conv(x, 64, Window { stride: 2, ..same(7) }, 1)?;
    let y = m.op(Relu {}, &[y])?;
    let mut x = m.max_pool(y, Window { stride: 2, ..same(3) })?;
    for (width, blocks) in [(128, 3), (256, 4), (512, 6), (1024, 3)] {
        for block in 0..blocks {
            let stride = if block == 0 && width > 128 { 2 } else { 1 };
            let y = m.conv(x, width, same(1), 1)?;
            let y = m.op(Relu {}, &[y])?;
            let y = m.conv(y, width, Window { stride, ..same(3) }, 32)?;
            let y = m.op(Relu {}, &[y])?;
            let y = m.conv(y, 2 * width, same(1), 1)?;
            if block == 0 {
                let short = m.conv(x, 2 * width, Window { stride, ..same(1) }, 1)?;
                x = m.op(Relu {}, &[short])?;
            }
            let y = m.op(Add {}, &[x, y])?;
            x = m.op(Relu {}, &[y])?;
        }
    }
    m.finish(&[x])
}

/// SqueezeNet 1.1. Source: Iandola et al. (2016).
///
/// # Errors
/// None: the shapes fit.
pub fn squeezenet() -> Result<Module, Diagnostics> {
    let mut m = ModelBuilder::new("squeezenet");
    let x = m.input("x", &[1, 3, 224, 224]);
    let mut x = m.layer(x, 64, valid(3, 2))?;
    for (i, squeeze) in [16, 16, 32, 32, 48, 48, 64, 64].into_iter().enumerate() {
        if [0, 2, 4].contains(&i) {
            x = m.max_pool(x, valid(3, 2))?;
        }
        let s = m.layer(x, squeeze, same(1))?;
        let (a, b) = (m.layer(s, 4 * squeeze, same(1))?, m.layer(s, 4 * squeeze, same(3))?);
        x = m.concat(&[a, b])?;
    }
    let x = m.layer(x, 1000, same(1))?;
    let y = m.op(GlobalAveragePool { channels_last: false }, &[x])?;
    m.finish(&[y])
}

/// VGG with 19 layers. Source: Simonyan, Zisserman (2014).
///
/// # Errors
/// None: the shapes fit.
pub fn vgg19() -> Result<Module, Diagnostics> {
    let mut m = ModelBuilder::new("vgg19");
    let mut x = m.input("x", &[1, 3, 224, 224]);
    for (channels, layers) in [(64, 2), (128, 2), (256, 4), (512, 4), (512, 4)] {
        for _ in 0..layers {
            x = m.layer(x, channels, same(3))?;
        }
        x = m.max_pool(x, valid(2, 2))?;
    }
    x = m.reshape(x, &[1, 512 * 7 * 7])?;
    for (i, units) in [4096, 4096, 1000].into_iter().enumerate() {
        x = m.matmul(x, units)?;
        let bias = m.weight(&[1, units])?;
        x = m.op(Add {}, &[x, bias])?;
        if i < 2 {
            x = m.op(Relu {}, &[x])?;
        }
    }
    m.finish(&[x])
}

/// Inception v3 without the auxiliary head. Source: Szegedy et al., "Rethinking the Inception Architecture" (2015).
///
/// # Errors
/// None: the shapes fit.
pub fn inception_v3() -> Result<Module, Diagnostics> {
    let mut m = ModelBuilder::new("inception_v3");
    let x = m.input("x", &[1, 3, 299, 299]);
    let x = m.layer(x, 32, valid(3, 2))?;
    let x = m.layer(x, 32, valid(3, 1))?;
    let x = m.layer(x, 64, same(3))?;
    let x = m.max_pool(x, valid(3, 2))?;
    let x = m.layer(x, 80, valid(1, 1))?;
    let x = m.layer(x, 192, valid(3, 1))?;
    let mut x = m.max_pool(x, valid(3, 2))?;
    for pool in [32, 64, 64] {
        x = m.inception_a(x, pool)?;
    }
    x = m.inception_b(x)?;
    for c in [128, 160, 160, 192] {
        x = m.inception_c(x, c)?;
    }
    x = m.inception_d(x)?;
    for _ in 0..2 {
        x = m.inception_e(x)?;
    }
    let y = m.op(GlobalAveragePool { channels_last: false }, &[x])?;
    let y = m.reshape(y, &[1, 2048])?;
    let y = m.matmul(y, 1000)?;
    m.finish(&[y])
}

/// 1 x `k` and `k` x 1.
fn row(k: usize) -> Window {
    Window { kernel: [1, k], stride: 1, pad: [0, k as i64 / 2] }
}

fn column(k: usize) -> Window {
    Window { kernel: [k, 1], stride: 1, pad: [k as i64 / 2, 0] }
}

impl ModelBuilder {
    fn layers(&mut self, mut x: ValueId, list: &[(usize, Window)]) -> ValueResult {
        for (channels, w) in list {
            x = self.layer(x, *channels, *w)?;
        }
        Ok(x)
    }

    fn inception_a(&mut self, x: ValueId, pool: usize) -> ValueResult {
        let a = self.layer(x, 64, same(1))?;
        let b = self.layers(x, &[(48, same(1)), (64, same(5))])?;
        let c = self.layers(x, &[(64, same(1)), (96, same(3)), (96, same(3))])?;
        let p = self.mean_pool(x)?;
        let d = self.layer(p, pool, same(1))?;
        self.concat(&[a, b, c, d])
    }

    fn inception_b(&mut self, x: ValueId) -> ValueResult {
        let a = self.layer(x, 384, valid(3, 2))?;
        let b = self.layers(x, &[(64, same(1)), (96, same(3)), (96, valid(3, 2))])?;
        let c = self.max_pool(x, valid(3, 2))?;
        self.concat(&[a, b, c])
    }

    fn inception_c(&mut self, x: ValueId, c: usize) -> ValueResult {
        let a = self.layer(x, 192, same(1))?;
        let b = self.layers(x, &[(c, same(1)), (c, row(7)), (192, column(7))])?;
        let d = self.layers(x, &[(c, same(1)), (c, column(7)), (c, row(7)), (c, column(7)), (192, row(7))])?;
        let p = self.mean_pool(x)?;
        let e = self.layer(p, 192, same(1))?;
        self.concat(&[a, b, d, e])
    }

    fn inception_d(&mut self, x: ValueId) -> ValueResult {
        let a = self.layers(x, &[(192, same(1)), (320, valid(3, 2))])?;
        let b = self.layers(x, &[(192, same(1)), (192, row(7)), (192, column(7)), (192, valid(3, 2))])?;
        let c = self.max_pool(x, valid(3, 2))?;
        self.concat(&[a, b, c])
    }

    fn inception_e(&mut self, x: ValueId) -> ValueResult {
        let a = self.layer(x, 320, same(1))?;
        let b = self.layer(x, 384, same(1))?;
        let (b1, b2) = (self.layer(b, 384, row(3))?, self.layer(b, 384, column(3))?);
        let c = self.layers(x, &[(448, same(1)), (384, same(3))])?;
        let (c1, c2) = (self.layer(c, 384, row(3))?, self.layer(c, 384, column(3))?);
        let p = self.mean_pool(x)?;
        let d = self.layer(p, 192, same(1))?;
        self.concat(&[a, b1, b2, c1, c2, d])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zoo_models_have_their_published_sizes() {
        // Parameters in millions, biases included where there are some, as published or counted from the paper.
        let published = [("inception_v3", 23.8), ("resnext50", 22.9), ("squeezenet", 1.24), ("vgg19", 143.7)];
        for (name, millions) in published {
            let (_, make) = GRAPHS.iter().find(|(n, _)| *n == name).unwrap();
            let module = make().unwrap();
            let g = &module.main().unwrap().graph;
            let weights = g.walk().into_iter().filter(|o| g.op(*o).name() == "of.constant_of_shape");
            let count: f64 = weights.map(|o| of_ops::work::elements(g.ty(g.op(o).results[0]))).sum();
            assert!((count / 1e6 / millions - 1.0).abs() < 0.02, "{name} has {count} parameters");
        }
        for (name, make) in GRAPHS {
            make().unwrap_or_else(|e| panic!("{name}: {e:?}"));
        }
    }
}
