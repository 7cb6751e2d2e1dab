//! A short run of each fuzz target: a corpus, and a fixed number of random changes of it. The seed is fixed.
//!
//! `OF_FUZZ_RUNS=1000000` makes so many changes. `OF_FUZZ_CORPUS=DIR` writes the corpus of each target, for cargo-fuzz.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use of_codegen::Isa;
use of_codegen::toolchain::cache::Cache;
use of_codegen::{CompileOptions, Target, compile};
use of_fuzz::mutate::mutated;
use of_fuzz::targets::{ALL, ir_parser, onnx_reader, plan_reader, rank_wire};
use of_ops::sample::Rng;
use of_test_support::op;

/// Changed files for each target; libFuzzer tries as many in seconds, and finds more of them, as it sees what code runs.
const RUNS: u64 = 3000;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Runs a target on every file of the corpus and on changed ones.
fn run(name: &str, target: fn(&[u8]), corpus: &[Vec<u8>]) {
    assert!(corpus.len() > 10, "{name}: a corpus of {} files", corpus.len());
    if let Some(dir) = std::env::var_os("OF_FUZZ_CORPUS") {
        let dir = Path::new(&dir).join(name);
        fs::create_dir_all(&dir).unwrap();
        corpus.iter().enumerate().for_each(|(i, bytes)| fs::write(dir.join(i.to_string()), bytes).unwrap());
    }
    let runs = std::env::var("OF_FUZZ_RUNS").map_or(RUNS, |runs| runs.parse().unwrap());
    let mut rng = Rng::new(1);
    let changed = (0..runs).map(|_| mutated(corpus, &mut rng));
    for (i, bytes) in corpus.iter().cloned().chain(changed).enumerate() {
        if catch_unwind(AssertUnwindSafe(|| target(&bytes))).is_err() {
            let file = std::env::temp_dir().join(format!("of-fuzz-{name}-{i}"));
            fs::write(&file, &bytes).unwrap();
            panic!("{name}: input {i} fails; it is in {}", file.display());
        }
    }
}

/// The files of the lit tests.
fn texts() -> Vec<Vec<u8>> {
    fn walk(dir: &Path, out: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(dir).unwrap().map(Result::unwrap) {
            let path = entry.path();
            if path.is_dir() {
                walk(&path, out);
            } else if path.extension().is_some_and(|e| e == "of") {
                out.push(path);
            }
        }
    }
    let mut all = Vec::new();
    walk(&root().join("tests/lit"), &mut all);
    // Short ones: a change of a long one seldom matters.
    all.sort();
    all.into_iter().map(|p| fs::read(p).unwrap()).filter(|b| b.len() < 3000).collect()
}

fn functions() -> impl Iterator<Item = of_ir::Module> {
    let of = |o: op::OneOp| of_fuzz::module(o.func);
    op::functions(1, false).map(of)
}

#[test]
fn ir_parser_never_panics_on_mutated_texts() {
    run("ir_parser", ir_parser, &texts());
}

#[test]
fn onnx_reader_never_panics_on_mutated_models() {
    let export = |module| of_onnx::export_model(&module, &of_onnx::ExportOptions::default()).ok();
    let models = functions().filter_map(export).map(|model| prost::Message::encode_to_vec(&model));
    run("onnx_reader", onnx_reader, &models.collect::<Vec<_>>());
}

#[test]
fn plan_reader_never_panics_on_mutated_plans() {
    let cache = || Cache::at(&std::env::temp_dir().join("of-fuzz-kernels"), Cache::DEFAULT_LIMIT);
    let plan = |module: of_ir::Module| {
        let options = CompileOptions::new(Target::new(Isa::host(), &[&of_reference::Reference]), cache());
        compile(&[("main".into(), module.main().unwrap())], &options).ok()?.bytes().ok()
    };
    run("plan_reader", plan_reader, &functions().step_by(12).filter_map(plan).collect::<Vec<_>>());
}

#[test]
fn rank_wire_never_panics_on_mutated_messages() {
    run("rank_wire", rank_wire, &of_transport::fuzzing::rank_wire_seeds());
}

#[test]
fn every_target_is_a_program_of_cargo_fuzz() {
    let manifest = fs::read_to_string(root().join("tests/fuzz-targets/Cargo.toml")).unwrap();
    for (name, _) in ALL {
        assert!(manifest.contains(&format!("name = \"{name}\"\npath = \"{name}.rs\"")), "{name}");
    }
    assert_eq!(manifest.matches("[[bin]]").count(), ALL.len());
}
