//! What layers compute.

use std::collections::BTreeSet;

use of_diag::Diagnostic;
use of_frontend::Builder;
use of_frontend::nn::{
    Activation, AdaptiveAvgPool, AdaptiveMaxPool, AvgPool, BatchNorm, Conv, ConvTranspose, GlobalAvgPool,
    GlobalMaxPool, GroupNorm, Gru, Init, InstanceNorm, Layer, LayerNorm, Linear, LogSoftmax, Lstm, LstmState, MaxPool,
    MultiHeadAttention, PRelu, RmsNorm, Softmax,
};
use of_ir::{Attr, DType, Elements, Module, Rewriter, Tensor, Type, ValueId};
use of_ops::Value;
use of_ops::elementwise::{Add, Mul};
use of_ops::interpret::run_graph;
use of_ops::reduction::ReduceSum;
use of_ops::training::Gradient;
use of_passes::differentiate::differentiate;

use super::{dims, parameters};

/// As `ramp` of `write.py`: numbers from -0.5 to 0.5.
fn ramp(dims: &[usize], salt: usize) -> Vec<f32> {
    (0..dims.iter().product()).map(|i: usize| ((i * 37 + salt * 53) % 101) as f32 / 101.0 - 0.5).collect()
}

/// A layer with what PyTorch's module of the name computes.
#[derive(Default)]
struct Case {
    name: String,
    parameters: Vec<(String, Vec<usize>)>,
    inputs: Vec<(DType, Vec<usize>)>,
    outputs: Vec<(Vec<usize>, Vec<f64>)>,
    /// By the first input and by parameters, with the names of what they are by.
    gradients: Vec<(String, Vec<f64>)>,
}

fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    read(include_str!("layers.txt"), &mut all);
    all
}

/// The gradients of some cases, which have nothing else.
fn differentiated() -> Vec<Case> {
    let mut all = Vec::new();
    read(include_str!("gradients.txt"), &mut all);
    all
}

/// The cases of a file that `write.py` writes.
fn read(text: &str, all: &mut Vec<Case>) {
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let words: Vec<&str> = line.split(' ').collect();
        if let ["case", name] = words[..] {
            all.push(Case { name: name.into(), ..Case::default() });
            continue;
        }
        let case = all.last_mut().expect("a case comes first");
        match words[..] {
            ["parameter", name, extents] => case.parameters.push((name.into(), dims(extents))),
            ["input", "bool", extents] => case.inputs.push((DType::Bool, dims(extents))),
            ["input", _, extents] => case.inputs.push((DType::F32, dims(extents))),
            ["output", extents] => case.outputs.push((dims(extents), Vec::new())),
            ["gradient", name, _] => case.gradients.push((name.into(), Vec::new())),
            _ => {
                let numbers = words.iter().map(|x| x.parse::<f64>().unwrap_or_else(|_| panic!("'{x}' is no number")));
                let output = case.outputs.last_mut().map(|(_, list)| list);
                let gradient = case.gradients.last_mut().map(|(_, list)| list);
                output.or(gradient).expect("numbers are those of an output or a gradient").extend(numbers);
            }
        }
    }
}

type Results = Result<Vec<ValueId>, Diagnostic>;

fn lstm(b: &mut Builder, layer: &Lstm, inputs: &[ValueId]) -> Results {
    let initial = if let [_, hidden, cell] = *inputs { Some(LstmState { hidden, cell }) } else { None };
    let (y, last) = layer.run(b, inputs[0], initial)?;
    Ok(vec![y, last.hidden, last.cell])
}

fn gru(b: &mut Builder, layer: &Gru, inputs: &[ValueId]) -> Results {
    let (y, last) = layer.run(b, inputs[0], inputs.get(1).copied())?;
    Ok(vec![y, last])
}

/// The layer of a case.
fn layer(name: &str) -> Box<dyn Layer> {
    let init = &mut Init::new(1);
    match name {
        "linear" => Box::new(Linear::new(init, 3, 4).unwrap()),
        "conv_1d" => Box::new(Conv::new(init, 3, 2, &[3]).unwrap().stride(2).padding(1)),
        "conv_2d_groups_dilation" => Box::new(Conv::grouped(init, 4, 6, &[3, 2], 2).unwrap().padding(2).dilation(2)),
        "conv_3d_no_bias" => Box::new(Conv::new(init, 2, 3, &[2, 1, 2]).unwrap().without_bias()),
        "conv_transpose_1d" => {
            Box::new(ConvTranspose::new(init, 3, 2, &[3]).unwrap().stride(2).padding(1).output_padding(1))
        }
        "conv_transpose_2d_groups_dilation" => {
            Box::new(ConvTranspose::grouped(init, 4, 6, &[3, 2], 2).unwrap().stride(2).padding(1).dilation(2))
        }
        "conv_transpose_2d_no_bias" => {
            Box::new(ConvTranspose::new(init, 2, 3, &[2, 2]).unwrap().stride(2).without_bias())
        }
        "conv_transpose_3d" => Box::new(ConvTranspose::new(init, 2, 2, &[2, 1, 2]).unwrap().stride(2)),
        "layer_norm" => Box::new(LayerNorm::new(6).unwrap()),
        "rms_norm" => Box::new(RmsNorm::new(6).unwrap()),
        "group_norm" => Box::new(GroupNorm::new(2, 4).unwrap()),
        "instance_norm" => Box::new(InstanceNorm::new(3)),
        "instance_norm_affine" => Box::new(InstanceNorm::affine(3).unwrap()),
        "batch_norm" => Box::new(BatchNorm::new(3).unwrap()),
        "max_pool_1d" => Box::new(MaxPool { kernel: vec![3], stride: vec![2], padding: 1 }),
        "max_pool_2d" => Box::new(MaxPool::new(&[2, 3])),
        "avg_pool_2d" => Box::new(AvgPool { kernel: vec![2, 3], stride: vec![2, 2], padding: 1 }),
        "avg_pool_3d" => Box::new(AvgPool::new(&[2, 2, 2])),
        "global_avg_pool" => Box::new(GlobalAvgPool),
        "global_max_pool" => Box::new(GlobalMaxPool),
        "adaptive_avg_pool_1d_more" => Box::new(AdaptiveAvgPool::new(&[5])),
        "adaptive_avg_pool_2d_equal" => Box::new(AdaptiveAvgPool::new(&[2, 3])),
        "adaptive_avg_pool_2d" => Box::new(AdaptiveAvgPool::new(&[3, 4])),
        "adaptive_avg_pool_3d" => Box::new(AdaptiveAvgPool::new(&[2, 3, 1])),
        "adaptive_max_pool_2d_equal" => Box::new(AdaptiveMaxPool::new(&[2, 1])),
        "adaptive_max_pool_2d" => Box::new(AdaptiveMaxPool::new(&[3, 2])),
        "relu" => Box::new(Activation::Relu),
        "leaky_relu" => Box::new(Activation::LeakyRelu(0.1)),
        "elu" => Box::new(Activation::Elu(1.5)),
        "gelu" => Box::new(Activation::Gelu),
        "silu" => Box::new(Activation::Silu),
        "hard_swish" => Box::new(Activation::HardSwish),
        "mish" => Box::new(Activation::Mish),
        "tanh" => Box::new(Activation::Tanh),
        "sigmoid" => Box::new(Activation::Sigmoid),
        "softplus" => Box::new(Activation::Softplus),
        "prelu" | "prelu_rows" => Box::new(PRelu::new(3).unwrap()),
        "prelu_one" => Box::new(PRelu::new(1).unwrap()),
        "softmax" => Box::new(Softmax { axis: 1 }),
        "log_softmax" => Box::new(LogSoftmax { axis: -1 }),
        other => panic!("no layer is made for the case '{other}'"),
    }
}

/// Adds the ops of a case.
fn build(b: &mut Builder, name: &str, inputs: &[ValueId]) -> Results {
    let init = &mut Init::new(1);
    if name.starts_with("attention") {
        let attention = MultiHeadAttention::new(init, 8, if name == "attention_to_others" { 4 } else { 2 }).unwrap();
        let attention = if name == "attention_causal" { attention.causal() } else { attention };
        let others = inputs.get(1).copied().unwrap_or(inputs[0]);
        return Ok(vec![attention.attend(b, inputs[0], others, inputs.get(2).copied())?]);
    }
    match name {
        "lstm" | "lstm_initial" => lstm(b, &Lstm::new(init, 3, 4).unwrap(), inputs),
        "lstm_no_bias" => lstm(b, &Lstm::new(init, 3, 4).unwrap().without_bias(), inputs),
        "lstm_stacked" => lstm(b, &Lstm::stacked(init, 3, 4, 3).unwrap(), inputs),
        "lstm_bidirectional" => lstm(b, &Lstm::bidirectional(init, 3, 4, 1).unwrap(), inputs),
        "lstm_stacked_bidirectional" => lstm(b, &Lstm::bidirectional(init, 3, 4, 2).unwrap(), inputs),
        "gru" | "gru_initial" => gru(b, &Gru::new(init, 3, 4).unwrap(), inputs),
        "gru_no_bias" => gru(b, &Gru::new(init, 3, 4).unwrap().without_bias(), inputs),
        "gru_stacked" => gru(b, &Gru::stacked(init, 3, 4, 3).unwrap(), inputs),
        "gru_bidirectional" => gru(b, &Gru::bidirectional(init, 3, 4, 1).unwrap(), inputs),
        "gru_stacked_bidirectional" => gru(b, &Gru::bidirectional(init, 3, 4, 2).unwrap(), inputs),
        _ => Ok(vec![layer(name).apply(b, inputs[0])?]),
    }
}

/// Sets parameters to what `write.py` computes with.
fn set_parameters(module: &mut Module) {
    let graph = &mut module.main_mut().unwrap().graph;
    let mut salt = 0;
    for op in graph.walk() {
        let name = graph.op(op).results.first().and_then(|v| graph.name(*v)).map(|name| name.to_string());
        let (Some(name), "of.constant") = (name, graph.op(op).name()) else { continue };
        let Some(Attr::Tensor(old)) = graph.op(op).attrs.get("value").cloned() else { panic!("{name} has no value") };
        salt += 1;
        // Variances are positive.
        let least = if name == "running_var" { 1.0 } else { 0.0 };
        let values: Vec<f32> = ramp(old.dims(), salt).into_iter().map(|x| x + least).collect();
        let value = Tensor::from_slice(old.dims(), &values).unwrap();
        Rewriter::new(graph, "test").set_attr(op, "value", Attr::Tensor(value));
    }
}

fn input(number: usize, dtype: DType, dims: &[usize]) -> Value {
    let values = ramp(dims, 90 + number);
    if dtype == DType::F32 {
        return Tensor::from_slice(dims, &values).unwrap().into();
    }
    let row = dims.last().copied().unwrap_or(1);
    let seen = values.iter().enumerate().map(|(i, x)| i128::from(*x > -0.1 || i % row == 0)).collect();
    Tensor::from_elements(dtype, dims.to_vec(), Elements::Int(seen)).unwrap().into()
}

/// Inputs of a case.
fn arguments(b: &mut Builder, case: &Case) -> Vec<ValueId> {
    let inputs = case.inputs.iter().enumerate();
    inputs.map(|(i, (dtype, dims))| b.input(&format!("x{i}"), Type::fixed(*dtype, dims))).collect()
}

/// The results of a case for its inputs, as numbers with their extents.
fn run(module: &Module, case: &Case) -> Vec<(Vec<usize>, Vec<f64>)> {
    let inputs = case.inputs.iter().enumerate();
    let values: Vec<Value> = inputs.map(|(i, (dtype, dims))| input(i, *dtype, dims)).collect();
    let got = run_graph(&module.main().unwrap().graph, &values).unwrap_or_else(|d| panic!("{}: {d}", case.name));
    let numbers = |value: Value| match value {
        Value::Tensor(t) => (t.dims().to_vec(), t.to_f64s().unwrap()),
        _ => panic!("{}: a result is no tensor", case.name),
    };
    got.into_iter().map(numbers).collect()
}

/// Whether numbers are the same up to the rounding of f32.
fn close(got: &[f64], want: &[f64], what: &str) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        let limit = 1e-5 * want.abs().max(1.0);
        assert!((got - want).abs() <= limit, "{what}: element {i} is {got}, not {want}");
    }
}

#[test]
fn layers_compute_what_pytorch_computes() {
    let all = cases();
    let names: BTreeSet<&str> = all.iter().map(|case| case.name.as_str()).collect();
    assert_eq!((names.len(), all.len()), (59, 59), "{names:?}");
    for case in &all {
        let name = &case.name;
        let mut b = Builder::new(name.as_str());
        let inputs = arguments(&mut b, case);
        let results = build(&mut b, name, &inputs).unwrap_or_else(|d| panic!("{name}: {d}"));
        let names: Vec<String> = (0..results.len()).map(|i| format!("y{i}")).collect();
        let outputs: Vec<(&str, ValueId)> = names.iter().map(String::as_str).zip(results).collect();
        let mut module = b.finish(&outputs).unwrap_or_else(|d| panic!("{name}: {d}"));
        let own: Vec<_> = parameters(&module).into_iter().map(|(name, value)| (name, value.dims().to_vec())).collect();
        assert_eq!(own, case.parameters, "{name}");
        set_parameters(&mut module);
        let got = run(&module, case);
        assert_eq!(got.len(), case.outputs.len(), "{name}");
        for (i, ((dims, got), (expected, want))) in got.iter().zip(&case.outputs).enumerate() {
            assert_eq!(dims, expected, "{name}: output {i}");
            close(got, want, &format!("{name}: output {i}"));
        }
    }
}

/// The gradients of a case: of the sum of its outputs, each times a ramp.
fn gradients(case: &Case, wanted: &[(String, Vec<f64>)]) -> Result<Module, Diagnostic> {
    let mut b = Builder::new(case.name.as_str());
    let inputs = arguments(&mut b, case);
    let mut loss = None;
    for (i, result) in build(&mut b, &case.name, &inputs)?.into_iter().enumerate() {
        let dims = b.ty(result).as_tensor().and_then(|t| t.fixed_dims()).expect("all extents are numbers");
        let weights = Tensor::from_slice(&dims, &ramp(&dims, 70 + i)).expect("a number for each element");
        let weights = b.constant(weights)?;
        let product = b.op(Mul {}, &[result, weights])?;
        let sum = b.op(ReduceSum { keepdims: false }, &[product])?;
        loss = Some(loss.map_or(Ok(sum), |others| b.op(Add {}, &[others, sum]))?);
    }
    let mut operands = vec![loss.expect("a layer has a result"), inputs[0]];
    let graph = b.graph();
    let constants: Vec<_> = graph.walk().into_iter().flat_map(|op| graph.op(op).results.to_vec()).collect();
    for (name, _) in &wanted[1..] {
        let found = constants.iter().find(|v| graph.name(**v).is_some_and(|own| own.to_string() == *name));
        operands.push(*found.unwrap_or_else(|| panic!("{}: there is no {name}", case.name)));
    }
    let results = b.op_all(Gradient {}, &operands)?;
    let outputs: Vec<(&str, ValueId)> = wanted.iter().map(|(name, _)| name.as_str()).zip(results).collect();
    Ok(b.finish(&outputs).unwrap_or_else(|d| panic!("{}: {d}", case.name)))
}

#[test]
fn layers_have_the_gradients_of_pytorch() {
    let (all, differentiated) = (cases(), differentiated());
    assert_eq!(differentiated.len(), 10);
    for Case { name, gradients: wanted, .. } in &differentiated {
        let case = all.iter().find(|case| case.name == *name).unwrap();
        let mut module = gradients(case, wanted).unwrap_or_else(|d| panic!("{name}: {d}"));
        set_parameters(&mut module);
        differentiate(module.main_mut().unwrap()).unwrap_or_else(|d| panic!("{name}: {d}"));
        for ((_, got), (by, want)) in run(&module, case).iter().zip(wanted) {
            close(got, want, &format!("{name}: the gradient by {by}"));
        }
    }
}

/// An adaptive pool of `[2, 3, extents…]`; `None` is an open extent.
fn pooled(layer: &dyn Layer, extents: &[Option<i64>]) -> Result<Type, Diagnostic> {
    let mut b = Builder::new("m");
    let open = |d: &Option<i64>| d.map_or_else(|| of_ir::Dim::symbol("s"), of_ir::Dim::from);
    let x = b.input("x", Type::tensor(DType::F32, [Some(2), Some(3)].iter().chain(extents).map(open).collect()));
    let y = layer.apply(&mut b, x)?;
    Ok(b.ty(y).clone())
}

#[test]
fn adaptive_pools_refuse_what_has_no_windows() {
    let one = pooled(&AdaptiveAvgPool::new(&[1, 1]), &[None, None]).unwrap();
    assert_eq!(one, Type::fixed(DType::F32, &[2, 3, 1, 1]));
    let (five, open) = ([Some(5), Some(4)], [Some(5), None]);
    for (outputs, extents, words, hint) in [
        (&[2, 2][..], &open, "windows follow from extents", "or pool it to 1"),
        (&[2], &five, "an adaptive pool to [2] does not fit tensor<2x3x5x4xf32>", "1 spatial axes"),
        (&[0, 2], &five, "an adaptive pool to [0, 2]", "positive"),
    ] {
        for layer in [&AdaptiveAvgPool::new(outputs) as &dyn Layer, &AdaptiveMaxPool::new(outputs)] {
            let error = pooled(layer, extents).unwrap_err();
            assert!(error.message.contains(words), "{error}");
            assert!(error.hint.as_deref().is_some_and(|own| own.contains(hint)), "{error}");
            assert!(error.location.to_string().contains("layers.rs"), "{error}");
        }
    }
}

#[test]
fn recurrent_layers_refuse_states_of_other_layers() {
    let layer = Gru::bidirectional(&mut Init::new(1), 3, 4, 2).unwrap();
    for (dims, words) in [
        (&[3, 2, 4][..], "an initial state is tensor<3x2x4xf32>, its first extent must be 4"),
        (&[4, 4], "its first extent must be 4"),
        (&[4, 1, 4], "an initial state has shape"),
    ] {
        let mut b = Builder::new("m");
        let x = b.input("x", Type::fixed(DType::F32, &[2, 5, 3]));
        let state = b.input("state", Type::fixed(DType::F32, dims));
        let error = layer.run(&mut b, x, Some(state)).unwrap_err();
        assert!(error.message.contains(words), "{error}");
        assert!(error.location.to_string().contains("layers.rs"), "{error}");
    }
    let mut b = Builder::new("m");
    let x = b.input("x", Type::fixed(DType::F32, &[2, 5, 3]));
    let none = Lstm::stacked(&mut Init::new(1), 3, 4, 0).unwrap();
    let error = none.run(&mut b, x, None).unwrap_err();
    assert!(error.message.contains("without layers"), "{error}");
}
