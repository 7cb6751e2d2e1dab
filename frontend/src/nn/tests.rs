//! Layers, by what they compute and what their parameters are called.

use of_ir::{DType, Dim, Module, Tensor, Type};
use of_ops::Value;
use of_ops::interpret::run_graph;
use of_ops::sample::Rng;

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

/// A function of queries, keys and values of new tokens, a position and a cache of 6 positions for 2 heads of 4.
fn cached(types: [Type; 3], position: Type, cache: Type) -> Result<Module, Diagnostic> {
    let mut b = Builder::new("m");
    let operands = ["q", "k", "v"].into_iter().zip(types).map(|(name, ty)| b.input(name, ty)).collect::<Vec<_>>();
    let position = b.input("position", position);
    let cache = KeyValueCache { keys: b.input("keys", cache.clone()), values: b.input("values", cache) };
    let (y, next) = cache.attend(&mut b, [operands[0], operands[1], operands[2]], position)?;
    Ok(b.finish(&[("y", y), ("keys.next", next.keys), ("values.next", next.values)]).unwrap_or_else(|d| panic!("{d}")))
}

#[test]
fn cached_attention_equals_that_of_all_positions() {
    // Four heads of queries share two of keys, and the samples are at different positions.
    let (mut r, queries, width) = (Rng::new(7), [2, 6, 16], [2, 6, 8]);
    let all = [queries, width, width].map(|dims| r.tensor(DType::F32, &dims, -1.0, 1.0));
    let mut b = Builder::new("whole");
    let operands = ["q", "k", "v"].map(|name| {
        let dims = if name == "q" { queries } else { width };
        b.input(name, Type::fixed(DType::F32, &dims))
    });
    let attention = of_ops::nn::Attention {
        is_causal: true,
        q_num_heads: Some(4),
        kv_num_heads: Some(2),
        ..of_ops::nn::Attention::default()
    };
    let y = b.op(attention, &operands).unwrap();
    let m = b.finish(&[("y", y)]).unwrap();
    let values: Vec<Value> = all.iter().cloned().map(Value::from).collect();
    let want = run_graph(&m.main().unwrap().graph, &values).unwrap().remove(0);
    let Value::Tensor(want) = want else { panic!("no tensor") };
    let want = want.as_slice::<f32>().unwrap();

    // The tokens at `at` of each sample.
    let take = |x: &Tensor, at: [usize; 2], tokens: usize| {
        let (size, from) = (x.dims()[2], x.as_slice::<f32>().unwrap());
        let samples = at.iter().enumerate().flat_map(|(n, p)| &from[(n * 6 + p) * size..][..tokens * size]);
        Tensor::from_slice(&[2, tokens, size], &samples.copied().collect::<Vec<f32>>()).unwrap()
    };
    let cache = Type::fixed(DType::F32, &[2, 2, 6, 4]);
    let mut state = [0, 1].map(|_| Value::from(Tensor::from_slice(&[2, 2, 6, 4], &[0f32; 96]).unwrap()));
    // The first sample begins with one token, the second with three; what is written behind a position is written again.
    for (at, tokens) in [([0, 0], 3), ([1, 3], 2), ([3, 5], 1), ([4, 5], 1), ([5, 5], 1)] {
        let types = [16, 8, 8].map(|size| Type::fixed(DType::F32, &[2, tokens, size]));
        let m = cached(types, Type::fixed(DType::I64, &[2]), cache.clone()).unwrap_or_else(|d| panic!("{d}"));
        let mut inputs: Vec<Value> = all.iter().map(|x| take(x, at, tokens).into()).collect();
        inputs.push(Tensor::from_i64s(&at.map(|p| p as i64)).into());
        inputs.extend(state);
        let mut out = run_graph(&m.main().unwrap().graph, &inputs).unwrap_or_else(|d| panic!("{d}"));
        let (Value::Tensor(y), values, keys) = (out.remove(0), out.remove(1), out.remove(0)) else {
            panic!("no tensor")
        };
        state = [keys, values];
        let y = y.as_slice::<f32>().unwrap();
        for (i, got) in y.iter().enumerate() {
            let (n, within) = (i / (tokens * 16), i % (tokens * 16));
            let expected = want[(n * 6 + at[n]) * 16 + within];
            assert!((got - expected).abs() < 1e-5, "{at:?} {i}: {got} {expected}");
        }
    }
}

#[test]
fn cached_attention_refuses_operands_that_do_not_fit() {
    let f32s = |dims: &[usize]| Type::fixed(DType::F32, dims);
    let new = |tokens: usize| [f32s(&[2, tokens, 8]), f32s(&[2, tokens, 8]), f32s(&[2, tokens, 8])];
    let (one, cache) = (Type::fixed(DType::I64, &[]), f32s(&[2, 2, 6, 4]));
    let wide = [f32s(&[2, 1, 8]), f32s(&[2, 1, 12]), f32s(&[2, 1, 8])];
    let narrow = [0; 3].map(|_| Type::fixed(DType::F16, &[2, 1, 8]));
    let open = Type::tensor(DType::F32, vec![Dim::from(2i64), Dim::from(2i64), Dim::symbol("L"), Dim::from(4i64)]);
    assert!(cached(new(6), one.clone(), cache.clone()).is_ok());
    for (types, position, cache, words, hint) in [
        (new(7), &one, &cache, "7 new tokens do not fit into a cache of 6 positions", "in parts"),
        (wide, &one, &cache, "8, 12 and 8 wide", "2 heads of 4: keys and values are 8 wide"),
        (narrow, &one, &cache, "the queries are f16 and the cache is f32", "cast them"),
        (new(1), &f32s(&[]), &cache, "a position is one i64", "counts the tokens before"),
        (new(1), &one, &f32s(&[2, 6, 8]), "a cache of keys is [batch, heads, length, size]", "must be numbers"),
        (new(1), &one, &open, "a cache of keys is [batch, heads, length, size]", "must be numbers"),
    ] {
        let error = cached(types, position.clone(), cache.clone()).unwrap_err();
        assert!(error.message.contains(words), "{error}");
        assert!(error.hint.as_deref().is_some_and(|own| own.contains(hint)), "{error}");
    }
    // A batch of another size is an error of the ops.
    assert!(cached(new(1), one.clone(), f32s(&[3, 2, 6, 4])).is_err());
    let layer = MultiHeadAttention::new(&mut Init::new(3), 8, 2).unwrap();
    let mut b = Builder::new("m");
    let (x, position) = (b.input("x", f32s(&[1, 1, 8])), b.input("position", one));
    let error = layer.apply_cached(&mut b, x, 4, position).unwrap_err();
    assert!(error.message.contains("must be causal"), "{error}");
}

#[test]
fn a_variable_has_one_next_value_of_its_type() {
    let mut b = Builder::new("m");
    let x = b.input("x", Type::fixed(DType::F32, &[2]));
    let make = |b: &mut Builder| b.variable("state", Type::fixed(DType::F32, &[2]), None);
    let (first, second) = (b.within("a", make), b.within("a", make));
    let wide = b.input("wide", Type::fixed(DType::F32, &[3]));
    let words = |e: Result<(), Diagnostic>| e.unwrap_err().message;
    assert!(words(b.set_next(first, wide)).contains("'a.state' of type tensor<2xf32> is tensor<3xf32>"));
    assert!(words(b.set_next(x, first)).contains("'x' is no variable"));
    b.set_next(second, x).unwrap();
    assert!(words(b.set_next(second, x)).contains("has a next value"));
    let m = b.finish(&[("y", first)]).unwrap();
    let f = m.main().unwrap();
    assert_eq!(f.inputs, ["x", "a.state", "a.state_1", "wide"]);
    assert_eq!(f.outputs, ["y", "a.state_1.next"]);
    let variables = of_ops::training::variables(f).unwrap();
    let found: Vec<_> = variables.iter().map(|v| (v.input, v.next, v.initial.is_none())).collect();
    assert_eq!(found, [(1, None, true), (2, Some(1), true)]);
}

/// The chapter of the book names every layer, initializer, loss and optimizer.
#[test]
fn the_book_lists_everything() {
    let page = include_str!("../../../book/src/layers.md");
    let words: Vec<&str> = page.split(|c: char| !(c.is_alphanumeric() || "-_".contains(c))).collect();
    let exported = include_str!("mod.rs").lines().filter_map(|line| line.strip_prefix("pub use "));
    let layers =
        exported.flat_map(|line| line.split("::").skip(1)).flat_map(|names| names.split(['{', '}', ',', ';', ' ']));
    let kinds = include_str!("init.rs").split_once("pub enum Initializer {").unwrap().1.split_once("\n}").unwrap().0;
    let kinds =
        kinds.lines().filter_map(|line| line.strip_prefix("    ").filter(|l| l.starts_with(char::is_uppercase)));
    let kinds = kinds.map(|line| line.split(|c: char| !c.is_alphanumeric()).next().unwrap());
    let names = layers.chain(kinds).chain(crate::training::LOSSES).chain(crate::training::OPTIMIZERS);
    let names: Vec<&str> = names.filter(|name| !name.is_empty()).collect();
    assert!(names.len() > 60 && names.contains(&"Gru") && names.contains(&"Orthogonal"), "{names:?}");
    for name in names {
        assert!(words.contains(&name), "book/src/layers.md lacks {name}");
    }
}
