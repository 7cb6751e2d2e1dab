//! Adapters: of convolutions, from files, next to pruned weights; and pruning of channels.

use of_driver::training::{BaseStorage, Lora, Pruning};
use of_ops::contraction::MatMul;

use super::*;

/// A convolution, a product `[inputs, outputs]` as GPT-2's Conv1D, and a product of a linear layer.
fn network(seed: u64) -> Module {
    let mut b = Builder::new("network");
    let x = b.input("x", Type::tensor(DType::F32, vec![Dim::symbol("n"), Dim::from(FEATURES as i64)]));
    let mut init = nn::Init::new(seed);
    let reshaped = |b: &mut Builder, v, dims: &[i64]| {
        let dims = b.constant(Tensor::from_i64s(dims)).unwrap();
        b.op(of_ops::movement::Reshape { allowzero: false }, &[v, dims]).unwrap()
    };
    let image = reshaped(&mut b, x, &[-1, 1, 2, 3]);
    let conv = nn::Conv::new(&mut init, 1, 8, &[3, 3]).unwrap().padding(1);
    let y = b.within("conv", |b| conv.apply(b, image)).unwrap();
    let y = b.op(Tanh {}, &[y]).unwrap();
    let y = reshaped(&mut b, y, &[-1, 48]);
    let values: Vec<f32> = (0..48 * 16).map(|i| ((i * 37 % 101) as f32 - 50.0) / 300.0).collect();
    let w = b.parameter("attn.weight", Tensor::from_slice(&[48, 16], &values).unwrap()).unwrap();
    let y = b.op(MatMul {}, &[y, w]).unwrap();
    let y = b.op(Tanh {}, &[y]).unwrap();
    let linear = nn::Linear::new(&mut init, 16, CLASSES).unwrap();
    let y = b.within("head", |b| linear.apply(b, y)).unwrap();
    b.finish(&[("y", y)]).unwrap()
}

fn entropy() -> Loss {
    Loss::named("cross-entropy").unwrap()
}

fn with(lora: Lora) -> TrainOptions {
    TrainOptions { lora: Some(lora), ..options("adam", &Hyperparameters::default(), entropy()) }
}

fn of_targets(targets: &[&str]) -> Lora {
    Lora { targets: targets.iter().map(|t| (*t).to_string()).collect(), seed: 1, ..Lora::new(4, 8.0) }
}

fn steps(t: &mut Trainer, data: &Dataset, count: usize) -> Vec<f64> {
    let all: Vec<usize> = (0..SAMPLES).collect();
    (0..count).map(|_| t.step(data.batch(&all).unwrap(), 0.02).unwrap()).collect()
}

fn outputs(module: &Module, x: &Tensor) -> Vec<f64> {
    let out = interpret::run_graph(&module.main().unwrap().graph, &[x.clone().into()]).unwrap();
    let Value::Tensor(scores) = &out[0] else { panic!("no scores") };
    scores.to_f64s().unwrap()
}

fn numbers(t: &Trainer, name: &str) -> Vec<f64> {
    t.parameter(name).unwrap_or_else(|d| panic!("{d}")).to_f64s().unwrap()
}

fn config(path: &std::path::Path) -> serde_json::Value {
    serde_json::from_slice(&std::fs::read(path.with_file_name("adapter_config.json")).unwrap()).unwrap()
}

#[test]
fn convolutions_have_adapters_of_two_convolutions() {
    let dir = tempfile::tempdir().unwrap();
    let (x, _, folder) = data(dir.path(), entropy());
    let module = network(4);
    let samples = dataset(&folder, &module, &with(of_targets(&[])));
    for base in [BaseStorage::Model, BaseStorage::Int8] {
        let options = with(Lora { base, ..of_targets(&["conv.weight"]) });
        let mut t = trainer(module.clone(), &options, &[]);
        let shape = |name: &str| t.parameter(name).unwrap().dims().to_vec();
        assert_eq!((shape("conv.lora_A.weight"), shape("conv.lora_B.weight")), (vec![4, 1, 3, 3], vec![8, 4, 1, 1]));
        // As PEFT: uniform in ±1 / sqrt(inputs), which are the elements of the kernel.
        assert!(numbers(&t, "conv.lora_A.weight").iter().all(|w| w.abs() <= 1.0 / 3.0));
        let losses = steps(&mut t, &samples, 40);
        assert!(losses[39] < losses[0] * 0.8, "{base:?}: {losses:?}");
        let (separate, merged) = (t.trained_model().unwrap(), t.merged_model().unwrap());
        for (a, b) in outputs(&separate, &x).iter().zip(outputs(&merged, &x)) {
            assert!((a - b).abs() < 1e-4, "{base:?}: {a} and {b}");
        }
        let path = dir.path().join("adapter_model.safetensors");
        t.write_adapters(&path, "base").unwrap();
        let bytes = std::fs::read(&path).unwrap();
        let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        assert_eq!(file.tensor("base_model.model.conv.lora_A.weight").unwrap().shape(), [4, 1, 3, 3]);
    }
    // Without targets products alone have adapters.
    let t = trainer(module, &with(of_targets(&[])), &[]);
    assert!(t.parameters().iter().all(|p| !p.name.starts_with("conv.lora")));
}

#[test]
fn weights_of_inputs_by_outputs_are_named_so_in_the_configuration() {
    let dir = tempfile::tempdir().unwrap();
    let module = network(5);
    let path = dir.path().join("adapter_model.safetensors");
    for (targets, expected) in [(&["attn.*"][..], true), (&["head.weight"], false), (&["attn.*", "head.weight"], false)]
    {
        let t = trainer(module.clone(), &with(of_targets(targets)), &[]);
        t.write_adapters(&path, "base").unwrap();
        assert_eq!(config(&path)["fan_in_fan_out"], expected, "{targets:?}");
        // `A` is `[rank, inputs]` whatever the order of the weight.
        assert_eq!(t.parameters().iter().filter(|p| p.name.ends_with("lora_A.weight")).count(), targets.len());
    }
}

#[test]
fn adapters_of_a_file_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let (x, _, folder) = data(dir.path(), entropy());
    let module = network(6);
    let samples = dataset(&folder, &module, &with(of_targets(&[])));
    let mut first = trainer(module.clone(), &with(of_targets(&["conv.weight", "attn.*"])), &[]);
    let losses = steps(&mut first, &samples, 20);
    let path = dir.path().join("adapter_model.safetensors");
    first.write_adapters(&path, "base").unwrap();
    let lora = Lora::read(&path).unwrap_or_else(|d| panic!("{d}"));
    assert_eq!((lora.rank, lora.alpha, lora.values.len()), (4, 8.0, 2));
    let mut second = trainer(module.clone(), &with(lora.clone()), &[]);
    assert_eq!(outputs(&first.merged_model().unwrap(), &x), outputs(&second.merged_model().unwrap(), &x));
    let later = steps(&mut second, &samples, 5);
    assert!(later[0] < losses[19] * 1.1 && later[4] < later[0], "{losses:?} {later:?}");
    // A configuration as PEFT writes it, with a scale by the root of the rank.
    let text =
        serde_json::json!({"peft_type": "LORA", "r": 4, "lora_alpha": 8.0, "use_rslora": true, "rank_pattern": {}});
    let config_path = path.with_file_name("adapter_config.json");
    std::fs::write(&config_path, text.to_string()).unwrap();
    assert_eq!(Lora::read(&path).unwrap().alpha, 16.0);
    let refused = |text: serde_json::Value| {
        std::fs::write(&config_path, text.to_string()).unwrap();
        Lora::read(&path).expect_err("it was accepted").to_string()
    };
    assert!(refused(serde_json::json!({"r": 4, "lora_alpha": 8, "use_dora": true})).contains("sets 'use_dora'"));
    assert!(refused(serde_json::json!({"lora_alpha": 8})).contains("has no rank 'r'"));
    // Adapters of another model, and of another rank.
    let refused =
        |lora: Lora| trainer_in(module.clone(), &with(lora), &[], Precision::Model).err().unwrap().to_string();
    let mut other = lora.clone();
    let pair = other.values.remove("attn").unwrap();
    other.values.insert("mlp".into(), pair);
    assert!(refused(other).contains("have one of 'mlp'"));
    let error = refused(Lora { rank: 2, ..lora });
    assert!(error.contains("has extents [4, ") && error.contains("the model needs [2, "), "{error}");
}

#[test]
fn adapters_learn_next_to_pruned_weights() {
    let dir = tempfile::tempdir().unwrap();
    let (.., folder) = data(dir.path(), entropy());
    let module = network(7);
    let options = TrainOptions { pruning: Some(Pruning::Tensor(0.5)), ..with(of_targets(&["attn.*", "head.weight"])) };
    let samples = dataset(&folder, &module, &options);
    let mut t = trainer(module, &options, &[]);
    let before = numbers(&t, "attn.weight");
    assert_eq!(before.iter().filter(|w| **w == 0.0).count() * 2, before.len());
    let losses = steps(&mut t, &samples, 40);
    assert!(losses[39] < losses[0] / 2.0, "{losses:?}");
    assert_eq!(before, numbers(&t, "attn.weight"));
    let (pruned, all) = t.pruned();
    assert_eq!(pruned * 2, all);
    let error = t.merged_model().expect_err("it was merged").to_string();
    assert!(error.contains("fill their zeros"), "{error}");
}

#[test]
fn channels_are_pruned_whole() {
    let dir = tempfile::tempdir().unwrap();
    let (.., folder) = data(dir.path(), entropy());
    let module = network(8);
    let pruned = |targets: &[&str]| TrainOptions {
        pruning: Some(Pruning::Channels(0.25)),
        prune_targets: targets.iter().map(|t| (*t).to_string()).collect(),
        ..options("adamw", &Hyperparameters::default(), entropy())
    };
    let samples = dataset(&folder, &module, &pruned(&[]));
    let mut t = trainer(module.clone(), &pruned(&["conv.*", "attn.weight"]), &[]);
    let losses = steps(&mut t, &samples, 20);
    assert!(losses[19] < losses[0] / 2.0, "{losses:?}");
    // Filters of the convolution, and columns of the product `[inputs, outputs]`.
    let (conv, attn) = (numbers(&t, "conv.weight"), numbers(&t, "attn.weight"));
    let is_zero = |channel: &[f64]| channel.iter().all(|w| *w == 0.0);
    let is_dense = |channel: &[f64]| channel.iter().all(|w| *w != 0.0);
    let filters: Vec<&[f64]> = conv.chunks_exact(9).collect();
    let columns: Vec<Vec<f64>> = (0..16).map(|c| attn.iter().skip(c).step_by(16).copied().collect()).collect();
    assert_eq!((filters.iter().filter(|f| is_zero(f)).count(), filters.len()), (2, 8));
    assert_eq!((columns.iter().filter(|c| is_zero(c)).count(), columns.len()), (4, 16));
    assert!(filters.iter().all(|f| is_zero(f) || is_dense(f)));
    assert!(numbers(&t, "head.weight").iter().all(|w| *w != 0.0));
    let error = trainer_in(module, &pruned(&["conv.*", "x"]), &[], Precision::Model).err().unwrap().to_string();
    assert!(error.contains("fits no weight of a product or convolution that is called 'x'"), "{error}");
}

#[test]
fn weights_of_several_products_have_no_adapters_by_default() {
    let mut b = Builder::new("tied");
    let x = b.input("x", Type::tensor(DType::F32, vec![Dim::symbol("n"), Dim::from(3i64)]));
    let values: Vec<f32> = (0..9).map(|i| i as f32 / 9.0).collect();
    let [tied, own] = ["tied.weight", "own.weight"]
        .map(|name| b.parameter(name, Tensor::from_slice(&[3, 3], &values).unwrap()).unwrap());
    let y = [tied, own, tied].into_iter().fold(x, |y, w| b.op(MatMul {}, &[y, w]).unwrap());
    let module = b.finish(&[("y", y)]).unwrap();
    let trainer = |lora| super::trainer_in(module.clone(), &with(lora), &[], Precision::Model);
    let adapted = trainer(Lora::new(2, 2.0)).unwrap_or_else(|d| panic!("{d}"));
    let names: Vec<&str> =
        adapted.parameters().iter().map(|p| p.name.as_str()).filter(|n| n.contains("lora")).collect();
    assert_eq!(names, ["own.lora_A.weight", "own.lora_B.weight"]);
    let errors = trainer(of_targets(&["tied.weight"])).err().unwrap().to_string();
    assert!(errors.contains("weight 'tied.weight' is read 2 times"), "{errors}");
}
