//! Damaged files are refused or imported, without a panic.

mod support;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use of_onnx::proto::attribute_proto::AttributeType;
use of_onnx::{Options, import_bytes};
use support::*;

fn digits() -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/digits/digits.onnx");
    std::fs::read(&path).unwrap_or_else(|e| panic!("cannot read {}: {e}", path.display()))
}

/// Imports and verifies; says what panicked.
fn survives(bytes: Vec<u8>, what: &str) -> bool {
    let result = catch_unwind(AssertUnwindSafe(|| match import_bytes(bytes, &Options::default()) {
        Ok(module) => {
            // Whatever was imported was checked op by op.
            if let Err(d) = of_ir::verify_module(&module) {
                panic!("what was imported does not verify: {:#?}", d.0);
            }
            true
        }
        Err(errors) => {
            assert!(errors.has_errors(), "no module and no errors");
            // Reports are made for people: they can always be shown.
            assert!(errors.0.iter().all(|d| !d.to_string().is_empty()));
            false
        }
    }));
    result.unwrap_or_else(|_| panic!("panic at {what}"))
}

#[test]
fn models_with_changed_bytes_never_panic() {
    let good = digits();
    assert!(survives(good.clone(), "the file itself"));
    let (mut read, mut refused) = (0, 0);
    for seed in 0..10_000 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut bytes = good.clone();
        // Most of the file is weights; every other change is to what surrounds them.
        let at = if seed % 2 == 0 { rng.usize(..bytes.len()) } else { structure(&mut rng, &good) };
        bytes[at] ^= rng.u8(1..);
        match survives(bytes, &format!("seed {seed}, byte {at}")) {
            true => read += 1,
            false => refused += 1,
        }
    }
    assert!(read > 0 && refused > 0, "{read} read, {refused} refused");
}

#[test]
fn truncated_models_never_panic() {
    let good = digits();
    let mut rng = fastrand::Rng::with_seed(1);
    for i in 0..1_000 {
        let length = rng.usize(..good.len());
        survives(good[..length].to_vec(), &format!("truncation {i}, to {length} bytes"));
    }
}

/// A place that is likely no weight: near text.
fn structure(rng: &mut fastrand::Rng, bytes: &[u8]) -> usize {
    for _ in 0..1000 {
        let at = rng.usize(..bytes.len());
        let around = &bytes[at.saturating_sub(4)..(at + 4).min(bytes.len())];
        if around.iter().filter(|b| b.is_ascii_alphabetic()).count() >= 4 {
            return at;
        }
    }
    rng.usize(..bytes.len())
}

/// A model with a loop, a branch, a function and a sparse tensor.
fn nested() -> Vec<u8> {
    let branch = |op: &str| Build::new().node(op, &["v"], &["r"], &[]).outputs(&["r"]);
    let body = Build::new()
        .input("i", I64, &[])
        .input("go", BOOL, &[])
        .arg("v")
        .node("If", &["go"], &["w"], &[graph("then_branch", branch("Relu")), graph("else_branch", branch("Neg"))])
        .node("F", &["w"], &["z"], &[float("slope", 0.5)])
        .domain("local")
        .node("Concat", &["z", "x"], &["next"], &[int("axis", 0)])
        .outputs(&["go", "next", "i"]);
    let f = Build::new()
        .arg("a")
        .node("LeakyRelu", &["a"], &["b"], &[reference("alpha", "slope", AttributeType::Float)])
        .outputs(&["b"])
        .function("local", "F", &["slope"]);
    let mut model = Build::new()
        .input("n", I64, &[])
        .input("x", F32, &["2", "m"])
        .sparse(sparse(f32s("s", &[1], &[5.0]), i64s("", &[1], &[1]), &[2]))
        .init(i64s("sizes", &[2], &[2, -1]))
        .node("Loop", &["n", "", "x"], &["y", "steps"], &[graph("body", body)])
        .node("Reshape", &["y", "sizes"], &["flat"], &[])
        .node("Transpose", &["flat"], &["t"], &[ints("perm", &[1, 0])])
        .node("Add", &["t", "s"], &["sum"], &[])
        .node("Constant", &[], &["k"], &[ints("value_ints", &[1, 1])])
        .node("Pad", &["steps", "k"], &["padded"], &[])
        .outputs(&["sum", "padded", "steps"])
        .model(18);
    model.opset_import.push(set("local", 1));
    model.functions.push(f);
    encode(&model).to_vec()
}

#[test]
fn control_flow_models_with_changed_bytes_never_panic() {
    let good = nested();
    assert!(survives(good.clone(), "the model itself"));
    let mut read = 0;
    for seed in 0..20_000 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut bytes = good.clone();
        for _ in 0..rng.usize(1..4) {
            let at = rng.usize(..bytes.len());
            // Small changes make other valid numbers and names.
            bytes[at] = if rng.bool() { rng.u8(..) } else { bytes[at].wrapping_add(rng.u8(0..3)).wrapping_sub(1) };
        }
        read += usize::from(survives(bytes, &format!("seed {seed}")));
    }
    assert!(read > 0);
}
