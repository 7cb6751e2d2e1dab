//! The programs that README and the book show run.

use std::path::Path;
use std::process::Command;

use of_test_support::cargo::cargo;

/// What an example prints.
fn run(example: &str, dir: &Path) -> String {
    // With the features of the whole workspace, so that cargo has built it already where it runs all tests. It finds its configuration in
    // the folder of the repository.
    let profile = if cfg!(debug_assertions) { "dev" } else { "release" };
    let mut build = cargo();
    build.args(["build", "--quiet", "--offline", "--profile", profile, "--workspace", "--example", example]);
    let built = build.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("..")).output().unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    // The tests of a package are in the folder `deps` next to its examples.
    let tests = std::env::current_exe().unwrap();
    let examples = tests.ancestors().nth(2).unwrap().join("examples");
    let mut run = Command::new(examples.join(example));
    run.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".."));
    let out = run.env("TMPDIR", dir).env("OF_CACHE_DIR", dir.join("cache")).output().unwrap();
    let said = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(out.status.success(), "{said}\n{}", String::from_utf8_lossy(&out.stderr));
    said
}

#[test]
fn a_model_is_compiled_and_its_plan_deployed() {
    let dir = tempfile::tempdir().unwrap();
    let said = run("compile_and_deploy", dir.path());
    assert_eq!(said.matches("compiled: Some([").count(), 3, "{said}");
    assert!(said.contains("deployed: Some([") && dir.path().join("digits.plan").is_file(), "{said}");
}

#[test]
fn products_on_two_placements_are_those_of_one_device() {
    let dir = tempfile::tempdir().unwrap();
    let said = run("placements", dir.path());
    let got: Vec<f32> = said.trim().trim_matches(['[', ']']).split(", ").map(|x| x.parse().unwrap()).collect();
    let ramp = |i: usize| (i % 7) as f32 - 3.0;
    let product = |a: &dyn Fn(usize) -> f32, b: &dyn Fn(usize) -> f32, [m, k, n]: [usize; 3]| -> Vec<f32> {
        (0..m * n).map(|at| (0..k).map(|i| a(at / n * k + i) * b(i * n + at % n)).sum()).collect()
    };
    let first = product(&ramp, &ramp, [4, 5, 8]);
    assert_eq!(got, product(&|i| first[i], &ramp, [4, 8, 6]), "{said}");
}

#[test]
fn a_training_step_is_made_of_layers() {
    let dir = tempfile::tempdir().unwrap();
    let said = run("tagger", dir.path());
    let names: Vec<&str> = said.lines().filter_map(|line| Some(line.split_once(' ')?.0)).collect();
    // A table, four parameters for each of two layers in two directions, a matrix and a bias.
    assert_eq!((names.len(), names[0]), (1 + 16 + 2 + 1, "words.weight"), "{said}");
    assert!(said.contains("lstm.weight_ih_l1_reverse 131072\n") && said.ends_with("\n918289 in all\n"), "{said}");
}

#[test]
fn a_network_is_built_and_learns_digits() {
    let dir = tempfile::tempdir().unwrap();
    let said = run("train_digits", dir.path());
    // PyTorch reaches 0.986 to 1.000 with this network and these settings, over five seeds.
    let accuracy: f64 = said.trim().rsplit_once("accuracy ").unwrap().1.parse().unwrap();
    assert!(accuracy >= 0.98, "{said}");
    let model = of_driver::Model::open(dir.path().join("digits.onnx")).unwrap_or_else(|d| panic!("{d}"));
    assert_eq!(model.module.main().unwrap().outputs, ["scores"]);
}

/// The tokens that the zoo's GPT-2 of the example gives after `text`, each by a run over all tokens before it.
fn generate_without_a_cache(mut text: Vec<i64>, count: usize) -> Vec<i64> {
    // Causal attention sees no later position, so what fills the text up changes nothing.
    const LENGTH: usize = 32;
    let spec: of_driver::zoo::Spec = "gpt2:small".parse().unwrap();
    let module = spec.build(of_driver::zoo::Mode::Inference, 7).unwrap_or_else(|d| panic!("{d}"));
    let compiler = of_driver::Compiler::new().shape("N", 1).shape("T", LENGTH);
    let compiled = compiler.compile(of_driver::Model::from_module(module)).unwrap_or_else(|d| panic!("{d}"));
    let mut session = compiled.session(&of_driver::SessionOptions::default()).unwrap_or_else(|d| panic!("{d}"));
    let start = text.len();
    for _ in 0..count {
        let last = text.len() - 1;
        let filled: Vec<i64> = text.iter().copied().chain(std::iter::repeat(0)).take(LENGTH).collect();
        let ids = of_runtime::Tensor::from_elements([1, LENGTH as i64], &filled).unwrap();
        let out = session.run(&[("input_ids", ids)]).unwrap_or_else(|d| panic!("{d}"));
        let logits = out["logits"].as_tensor().unwrap().to_elements::<f32>().unwrap();
        let row = &logits[last * logits.len() / LENGTH..][..logits.len() / LENGTH];
        text.push((0..row.len()).max_by(|a, b| row[*a].total_cmp(&row[*b])).unwrap() as i64);
    }
    text.split_off(start)
}

#[test]
fn a_text_is_continued_with_a_cache_as_without() {
    let dir = tempfile::tempdir().unwrap();
    let said = run("generate_tokens", dir.path());
    let tokens: Vec<i64> = said.lines().last().unwrap().split(' ').map(|token| token.parse().unwrap()).collect();
    assert_eq!(tokens, generate_without_a_cache(vec![1, 2, 3, 5, 8, 13, 21, 34], 12), "{said}");
}
