//! Continues a text with GPT-2: a run over the prompt, then one run for each token. Both are programs of one plan, which share weights and the
//! cache of keys and values.
//!
//! `cargo run --release -p of-driver --example generate_tokens`

use of_driver::zoo::{Mode, Spec};
use of_driver::{Compiler, Model, Outputs, Session, SessionOptions};
use of_runtime::Tensor;

/// New tokens.
const COUNT: usize = 12;

/// The token that the model expects after the last one of a run.
fn most_likely(outputs: &Outputs) -> Result<i64, Box<dyn std::error::Error>> {
    let logits = outputs["logits"].as_tensor().ok_or("the logits are a tensor")?;
    let vocabulary = *logits.dims().last().ok_or("the logits have an axis")? as usize;
    let all = logits.to_elements::<f32>().ok_or("the logits are f32")?;
    let last = &all[all.len() - vocabulary..];
    let best = (0..vocabulary).max_by(|a, b| last[*a].total_cmp(&last[*b]));
    Ok(best.ok_or("there are no tokens")? as i64)
}

/// Runs the model on new tokens, which follow `position` others.
fn run(session: &mut Session, tokens: &[i64], position: usize) -> Result<Outputs, Box<dyn std::error::Error>> {
    let ids = Tensor::from_elements([1, tokens.len() as i64], tokens)?;
    let position = Tensor::from_elements([], &[position as i64])?;
    Ok(session.run(&[("input_ids", ids), ("position", position)])?)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // A small GPT-2 with its first weights, and a cache of 32 positions. `zoo:gpt2:weights=FILE` has trained ones.
    let spec: Spec = "gpt2:small,cache=32".parse()?;
    let model = Model::from_module(spec.build(Mode::Inference, 7)?);
    let prompt = [1, 2, 3, 5, 8, 13, 21, 34];

    // One program takes the prompt, the other one token.
    let shapes = [format!("N=1,T={}", prompt.len()), "N=1,T=1".to_string()];
    let compiled = Compiler::new().variants(&shapes).compile(model)?;
    let mut sessions = compiled.sessions(&SessionOptions::default())?;
    let [prefill, decode] = &mut sessions[..] else { return Err("two programs are expected".into()) };

    let mut token = most_likely(&run(prefill, &prompt, 0)?)?;
    let mut text = vec![token];
    for position in prompt.len()..prompt.len() + COUNT - 1 {
        token = most_likely(&run(decode, &[token], position)?)?;
        text.push(token);
    }
    println!("{}", text.iter().map(i64::to_string).collect::<Vec<_>>().join(" "));
    Ok(())
}
