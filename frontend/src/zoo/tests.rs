//! Models of the zoo in both modes, and their settings. `tests/torch/zoo.rs` compares parameters with PyTorch's.

use std::collections::HashMap;

use super::*;
use crate::training::{Hyperparameters, Loss, TrainingSpec, named, training};

fn built(text: &str, mode: Mode) -> Module {
    let spec: Spec = text.parse().unwrap_or_else(|d| panic!("{d}"));
    spec.build(mode, 1).unwrap_or_else(|d| panic!("{text}: {d}"))
}

/// The float parameters of a function, by name and shape.
fn parameters(m: &Module) -> Vec<(String, Vec<usize>)> {
    let g = &m.main().unwrap().graph;
    let named = g.walk().into_iter().filter_map(|op| {
        let value = of_ops::list::as_op::<of_ops::structural::Constant>(g, op)?.value;
        Some((g.name(g.op(op).results[0])?.to_string(), value.dims().to_vec()))
    });
    named.collect()
}

#[test]
fn both_modes_and_a_training_step_are_made_of_each_small_model() {
    for model in MODELS {
        let text = format!("{}:small", model.name);
        let (inference, training_graph) = (built(&text, Mode::Inference), built(&text, Mode::Training));
        let (few, all) = (parameters(&inference), parameters(&training_graph));
        assert!(few.iter().all(|parameter| all.contains(parameter)), "{text}: {few:?} {all:?}");
        let loss = if model.loss.contains("output") { Loss::Output } else { Loss::named("mse").unwrap() };
        let (sgd, masks) = (named("sgd", &Hyperparameters::default()).unwrap(), HashMap::new());
        let made = training(&training_graph, &TrainingSpec::new(loss, &*sgd, &masks));
        assert!(made.is_ok(), "{text}: {}", made.err().unwrap());
        let spec: Spec = text.parse().unwrap();
        let columns = spec.synthetic(3, 1).unwrap_or_else(|d| panic!("{text}: {d}"));
        assert!(columns.iter().all(|(_, values)| values.dims()[0] == 3), "{text}");
        let inputs = &training_graph.main().unwrap().inputs;
        assert!(inputs.iter().all(|input| columns.iter().any(|(name, _)| name == input)), "{text}: {inputs:?}");
    }
}

#[test]
fn settings_are_checked() {
    let error = |text: &str| match text.parse::<Spec>() {
        Err(d) => d.to_string(),
        Ok(spec) => spec.build(Mode::Training, 1).err().map_or_else(String::new, |d| d.to_string()),
    };
    for (text, words) in [
        ("resnet", "the zoo has no model 'resnet'"),
        ("resnet50:depth=3", "'resnet50' has no setting 'depth'"),
        ("resnet50:tiny", "'tiny' is no setting KEY=VALUE"),
        ("resnet50:width=0", "setting 'width' is '0'; it takes an integer from 1"),
        ("resnet50:layers=1-2", "setting 'layers' is '1-2'; it takes 4 integers"),
        ("bert:small,heads=5", "5 heads do not divide 32 features"),
        ("bert:small,dropout=1", "setting 'dropout' is '1'; it takes a number from 0 to below 1"),
        ("dlrm:small,bottom=8-5", "the last number of 'bottom' is not 'size', 4"),
        ("mask_rcnn:small,size=100", "setting 'size' is '100'; it takes a multiple of 32"),
        ("mask_rcnn:small,classes=1", "no objects without a second class"),
        ("gpt2:small,cache=-1", "setting 'cache' is '-1'; it takes an integer from 0"),
        ("gpt2:small,cache=16", "a model with a cache of keys and values cannot be trained"),
        ("ncf:users=1000000000,factors=1000000000", "has more than 8589934592 elements"),
    ] {
        assert!(error(text).contains(words), "{text}: {}", error(text));
    }
    let long: Spec = "gpt2:small,cache=64".parse().unwrap();
    let error = long.build(Mode::Inference, 1).unwrap_err().to_string();
    assert!(error.contains("a cache of 64 tokens is longer than 'positions', 32"), "{error}");
    let spec: Spec = "resnet50:small,width=64,size=224".parse().unwrap();
    assert_eq!(spec.to_string(), "resnet50:layers=1-1-1-1,classes=10");
    assert_eq!(spec.to_string().parse::<Spec>().unwrap().settings, spec.settings);
}

#[test]
fn gpt2_keeps_keys_and_values_of_each_layer() {
    let cached = built("gpt2:small,cache=24", Mode::Inference);
    assert_eq!(parameters(&cached), parameters(&built("gpt2:small", Mode::Inference)));
    let f = cached.main().unwrap();
    assert_eq!(f.inputs[..3], ["input_ids", "position", "transformer.h.0.attn.keys"]);
    let variables = of_ops::training::variables(f).unwrap();
    assert_eq!(variables.len(), 4);
    assert!(variables.iter().all(|v| v.next.is_some() && v.initial.is_some()));
    let shape = f.graph.ty(f.graph.args()[variables[0].input]).to_string();
    assert_eq!(shape, "tensor<?(N)x2x24x16xf32>");
}
