//! Recomputation on one device: a memory budget makes the search compute activations again.

use of_driver::{Cache, CompileOptions, Compiler, Diagnostics, MeshOptions, Model, Search};

/// Three layers and their gradients. All activations together take 280 MiB.
fn peak(search: &[Search], memory: Option<u64>) -> Result<u64, Diagnostics> {
    let text = include_str!("../../tests/lit/recompute/memory.of");
    // A size that a test compiles, in the type of CPUs.
    let text = text.replace("65536", "4096").replace("1024", "128").replace("f16", "f32");
    let mesh = MeshOptions { mesh: "cpu[1]".into(), search: search.to_vec(), ..MeshOptions::default() };
    let options = CompileOptions { cache: Cache::none(), memory, mesh: Some(mesh), ..CompileOptions::default() };
    let model = Model::from_text(&text, "memory.of", None)?;
    let compiled = Compiler::with_options(options).compile(model)?;
    Ok(compiled.plan().programs.iter().map(|program| program.peak_bytes).max().unwrap_or(0))
}

#[test]
fn values_fit_into_a_budget_by_recomputation() {
    let kept = peak(&[], None).unwrap_or_else(|d| panic!("{d}"));
    // Without a budget nothing is recomputed: it takes time.
    assert_eq!(peak(&[Search::Recompute], None).unwrap(), kept);
    let recomputed = peak(&[Search::Recompute], Some(300_000_000)).unwrap_or_else(|d| panic!("{d}"));
    assert!(recomputed * 5 < kept * 4 + kept / 10, "{recomputed} of {kept}");
    let error = peak(&[Search::Recompute], Some(200_000_000)).expect_err("it fits").to_string();
    assert!(error.contains("no layout was found"), "{error}");
}
