//! Optimizers that are written as IR.

use of_driver::training::{Optimizer, Rule};

use super::ranks::steps;
use super::*;

/// SGD with momentum and weight decay.
const MOMENTUM: &str = "
func @main(%parameter: !of.tensor<*xf32>, %gradient: !of.tensor<*xf32>, %velocity: !of.tensor<*xf32>, %rate: tensor<f32>, %decay: tensor<f32>) -> (!of.tensor<*xf32>, !of.tensor<*xf32>) {
  %penalty = of.mul %parameter, %decay : (!of.tensor<*xf32>, tensor<f32>) -> !of.tensor<*xf32>
  %g = of.add %gradient, %penalty : (!of.tensor<*xf32>, !of.tensor<*xf32>) -> !of.tensor<*xf32>
  %momentum = of.constant {value = dense<0.9> : tensor<f32>} : () -> tensor<f32>
  %kept = of.mul %velocity, %momentum : (!of.tensor<*xf32>, tensor<f32>) -> !of.tensor<*xf32>
  %v = of.add %kept, %g : (!of.tensor<*xf32>, !of.tensor<*xf32>) -> !of.tensor<*xf32>
  %change = of.mul %v, %rate : (!of.tensor<*xf32>, tensor<f32>) -> !of.tensor<*xf32>
  %next = of.sub %parameter, %change : (!of.tensor<*xf32>, !of.tensor<*xf32>) -> !of.tensor<*xf32>
  of.return %next, %v : (!of.tensor<*xf32>, !of.tensor<*xf32>) -> ()
}";

fn rule(text: &str, decay: Option<f64>) -> Result<Rule, String> {
    let module = of_ir::text::parse_module(text, "rule.of", &of_ops::list::registry(), None);
    let module = module.map_err(|d| d.to_string())?;
    Rule::new(&module, decay).map_err(|d| d.to_string())
}

#[test]
fn a_rule_as_ir_trains_as_the_optimizer_that_it_writes() {
    let dir = tempfile::tempdir().unwrap();
    let loss = Loss::named("cross-entropy").unwrap();
    let (_, _, folder) = data(dir.path(), loss);
    let module = model(4, loss);
    let decay = 0.01;
    let known = Hyperparameters { momentum: Some(0.9), weight_decay: Some(decay), ..Hyperparameters::default() };
    let train = |optimizer: Box<dyn Optimizer>| {
        // Biases have no weight decay.
        let options = TrainOptions { optimizer, no_decay: vec!["*.bias".into()], ..options("sgd", &known, loss) };
        let data = dataset(&folder, &module, &options);
        let mut trainer = trainer(module.clone(), &options, &[]);
        let losses = steps(&mut trainer, &data, 0..10);
        let parameters = ["a.weight", "a.bias", "b.weight"].map(|name| trainer.parameter(name).unwrap());
        (losses, parameters)
    };
    let (written, built_in) =
        (train(Box::new(rule(MOMENTUM, Some(decay)).unwrap())), train(named("sgd", &known).unwrap()));
    assert_eq!(written, built_in);
    assert!(written.0[9] < 0.95 * written.0[0], "{:?}", written.0);
}

#[test]
fn wrong_rules_are_refused() {
    let no_decay = MOMENTUM.replace("%decay: tensor<f32>", "%extra: tensor<f32>").replace("%decay", "%extra");
    let half = MOMENTUM.replace("%next, %v : (!of.tensor<*xf32>, !of.tensor<*xf32>)", "%next : (!of.tensor<*xf32>)");
    let half = half.replace("-> (!of.tensor<*xf32>, !of.tensor<*xf32>) {", "-> (!of.tensor<*xf32>) {");
    for (text, words) in [
        (MOMENTUM.replace("%gradient", "%grad"), "has no input 'gradient'"),
        (no_decay, "has no input 'decay' for a weight decay"),
        (half, "returns 1 values, not the next parameter, velocity"),
        (
            MOMENTUM.replace("(%parameter", "(%k: tensor<i64>, %parameter"),
            "an input 'k' of type tensor<i64>, not a tensor of floats",
        ),
        (format!("{MOMENTUM}{}", MOMENTUM.replace("@main", "@other")), "is one function, and the module has 2"),
    ] {
        let error = rule(&text, Some(0.1)).unwrap_err();
        assert!(error.contains(words), "{words}: {error}");
    }
}
