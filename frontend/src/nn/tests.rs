//! Layers, by what they compute and what their parameters are called.

use of_ir::{DType, Dim, Module, Tensor, Type};
use of_ops::Value;
use of_ops::interpret::run_graph;

use super::*;

/// A function of one input, `[n, dims…]`, and its result on a batch of two of numbers from 0 to 1.
fn run(layer: &dyn Layer, dims: &[usize]) -> (Module, Vec<f32>, Vec<usize>) {
    let mut b = Builder::new("m");
    let mut shape = vec![Dim::symbol("n")];
    shape.extend(dims.iter().map(|d| Dim::from(*d as i64)));
    let x = b.input("x", Type::tensor(DType::F32, shape));
    let y = layer.apply(&mut b, x).unwrap_or_else(|d| panic!("{d}"));
    let m = b.finish(&[("y", y)]).unwrap_or_else(|d| panic!("{d}"));
    let all: Vec<usize> = std::iter::once(2).chain(dims.iter().copied()).collect();
    let count: usize = all.iter().product();
    let values: Vec<f32> = (0..count).map(|i| ((i * 37) % 101) as f32 / 101.0).collect();
    let x = Tensor::from_slice(&all, &values).unwrap();
    let out = run_graph(&m.main().unwrap().graph, &[x.into()]).unwrap_or_else(|d| panic!("{d}"));
    let Value::Tensor(y) = &out[0] else { panic!("no tensor") };
    let result = (y.as_slice::<f32>().unwrap().to_vec(), y.dims().to_vec());
    (m, result.0, result.1)
}

fn names(m: &Module) -> Vec<String> {
    let g = &m.main().unwrap().graph;
    let constants = g.walk().into_iter().filter(|op| g.op(*op).name() == "of.constant");
    constants.filter_map(|op| g.name(g.op(op).results[0]).map(|name| name.to_string())).collect()
}

#[test]
fn convolution_matches_reference_values() {
    let mut init = Init::new(7);
    let mut conv = Conv::new(&mut init, 1, 2, &[3, 3]).unwrap().padding(1);
    conv.bias = Some(Tensor::from_slice(&[2], &[0.5f32, -0.5]).unwrap());
    let mut b = Builder::new("m");
    let x = b.input("x", Type::fixed(DType::F32, &[1, 1, 4, 4]));
    let y = conv.apply(&mut b, x).unwrap();
    assert_eq!(*b.ty(y), Type::fixed(DType::F32, &[1, 2, 4, 4]));
    let m = b.finish(&[("y", y)]).unwrap();
    // An image with one pixel gives the kernel, mirrored, around it.
    let mut image = [0f32; 16];
    image[5] = 1.0;
    let image = Tensor::from_slice(&[1, 1, 4, 4], &image).unwrap();
    let out = run_graph(&m.main().unwrap().graph, &[image.into()]).unwrap();
    let Value::Tensor(y) = &out[0] else { panic!("no tensor") };
    let (y, w) = (y.as_slice::<f32>().unwrap(), conv.weight.as_slice::<f32>().unwrap());
    assert_eq!(y[0], w[8] + 0.5);
    assert_eq!(y[16 + 10], w[9] - 0.5);
    assert_eq!(y[15], 0.5);
}

#[test]
fn parameters_are_called_by_their_place() {
    let mut init = Init::new(1);
    let block = Sequential::new().then(Linear::new(&mut init, 4, 8).unwrap()).then(Activation::Gelu);
    let model = Sequential::new()
        .named("features", block.then(Dropout(0.5)))
        .named("norm", LayerNorm::new(8).unwrap())
        .named("head", Linear::new(&mut init, 8, 3).unwrap().without_bias());
    let (m, _, dims) = run(&model, &[4]);
    assert_eq!(dims, [2, 3]);
    assert_eq!(names(&m), ["features.0.weight", "features.0.bias", "norm.weight", "norm.bias", "head.weight"]);
    // Without a path, a second parameter of a name gets a number.
    let mut b = Builder::new("m");
    let x = b.input("x", Type::fixed(DType::F32, &[1, 4]));
    let layer = Linear::new(&mut init, 4, 4).unwrap();
    let y = layer.apply(&mut b, x).unwrap();
    let y = layer.apply(&mut b, y).unwrap();
    assert_eq!(names(&b.finish(&[("y", y)]).unwrap()), ["weight", "bias", "weight_1", "bias_1"]);
}

/// A layer, the extents of a sample, and those of the result for two.
type Case = (Box<dyn Layer>, Vec<usize>, Vec<usize>);

#[test]
fn layers_have_the_shapes_of_torch() {
    let init = &mut Init::new(2);
    let cases: Vec<Case> = vec![
        (Box::new(Conv::new(init, 3, 5, &[3]).unwrap()), vec![3, 8], vec![2, 5, 6]),
        (Box::new(Conv::new(init, 3, 5, &[3, 1, 2]).unwrap().stride(2)), vec![3, 7, 4, 4], vec![2, 5, 3, 2, 2]),
        (Box::new(Conv::grouped(init, 4, 4, &[3, 3], 4).unwrap().padding(1)), vec![4, 5, 5], vec![2, 4, 5, 5]),
        (Box::new(ConvTranspose::new(init, 3, 2, &[2, 2]).unwrap().stride(2)), vec![3, 4, 4], vec![2, 2, 8, 8]),
        (Box::new(Linear::new(init, 4, 6).unwrap()), vec![5, 4], vec![2, 5, 6]),
        (Box::new(RmsNorm::new(4).unwrap()), vec![5, 4], vec![2, 5, 4]),
        (Box::new(GroupNorm::new(2, 4).unwrap()), vec![4, 3, 3], vec![2, 4, 3, 3]),
        (Box::new(BatchNorm::new(4).unwrap()), vec![4, 3], vec![2, 4, 3]),
        (Box::new(Lstm::new(init, 3, 5).unwrap()), vec![6, 3], vec![2, 6, 5]),
        (Box::new(Gru::new(init, 3, 5).unwrap()), vec![6, 3], vec![2, 6, 5]),
        (Box::new(MultiHeadAttention::new(init, 8, 2).unwrap().causal()), vec![5, 8], vec![2, 5, 8]),
        (Box::new(MaxPool::new(&[2, 2])), vec![3, 4, 6], vec![2, 3, 2, 3]),
        (Box::new(AvgPool::new(&[2])), vec![3, 4], vec![2, 3, 2]),
        (Box::new(GlobalAvgPool), vec![3, 4, 4], vec![2, 3, 1, 1]),
        (Box::new(Flatten), vec![3, 4, 4], vec![2, 48]),
        (Box::new(StochasticDepth(0.5)), vec![3, 4], vec![2, 3, 4]),
    ];
    for (i, (layer, dims, expected)) in cases.iter().enumerate() {
        let (_, values, got) = run(&**layer, dims);
        assert_eq!(got, *expected, "case {i}");
        assert!(values.iter().all(|x| x.is_finite()), "case {i}");
    }
}

#[test]
fn causal_attention_sees_no_later_position() {
    let attention = MultiHeadAttention::new(&mut Init::new(3), 4, 2).unwrap().causal();
    let (m, before, _) = run(&attention, &[3, 4]);
    assert_eq!(names(&m)[..2], ["q_proj.weight", "q_proj.bias"]);
    let change = |position: usize| {
        let mut values: Vec<f32> = (0..24).map(|i| ((i * 37) % 101) as f32 / 101.0).collect();
        values[position * 4] += 1.0;
        let x = Tensor::from_slice(&[2, 3, 4], &values).unwrap();
        let out = run_graph(&m.main().unwrap().graph, &[x.into()]).unwrap();
        let Value::Tensor(y) = &out[0] else { panic!("no tensor") };
        let y = y.as_slice::<f32>().unwrap().to_vec();
        (0..3).map(|p| y[p * 4..p * 4 + 4] != before[p * 4..p * 4 + 4]).collect::<Vec<_>>()
    };
    assert_eq!(change(0), [true, true, true]);
    assert_eq!(change(2), [false, false, true]);
}

#[test]
fn initializers_have_their_moments() {
    let dims = [64, 32, 3, 3];
    let (fan_in, fan_out) = (288.0, 576.0);
    let std = |bound: f64| bound / 3f64.sqrt();
    for (initializer, expected, most) in [
        (Initializer::Uniform { low: -0.5, high: 0.5 }, std(0.5), 0.5),
        (Initializer::Normal { mean: 0.0, std: 0.2 }, 0.2, 2.0),
        (Initializer::TruncatedNormal { std: 0.2 }, 0.2 * 0.8796, 0.4),
        (Initializer::XavierUniform { gain: 2.0 }, 2.0 * (2.0f64 / (fan_in + fan_out)).sqrt(), 0.1667),
        (Initializer::XavierNormal { gain: 1.0 }, (2.0f64 / (fan_in + fan_out)).sqrt(), 1.0),
        (Initializer::KaimingUniform { a: 5f64.sqrt() }, std(1.0 / fan_in.sqrt()), 1.0 / fan_in.sqrt()),
        (Initializer::KaimingNormal { a: 0.0 }, (2.0f64 / fan_in).sqrt(), 1.0),
    ] {
        let values = Init::new(5).tensor(initializer, &dims).unwrap();
        assert_eq!(values, Init::new(5).tensor(initializer, &dims).unwrap());
        assert_ne!(values, Init::new(6).tensor(initializer, &dims).unwrap());
        let values = values.to_f64s().unwrap();
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let variance = values.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / values.len() as f64;
        assert!((variance.sqrt() / expected - 1.0).abs() < 0.02 && mean.abs() < 0.05 * expected, "{initializer:?}");
        assert!(values.iter().all(|x| x.abs() <= most * 1.0001), "{initializer:?}");
    }
    let ones = Init::new(1).tensor(Initializer::Constant(1.0), &[3]).unwrap();
    assert_eq!(ones.to_f64s().unwrap(), [1.0; 3]);
}
