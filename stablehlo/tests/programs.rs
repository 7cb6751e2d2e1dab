//! The programs in `programs/`, which JAX printed: each computes its results, and has those of JAX behind them as constants.
//! `programs/write.py` writes them.

use std::path::Path;

use of_ir::{DType, Tensor};
use of_ops::Value;
use of_ops::interpret::run_graph;

/// Whether two results agree: exactly, or to the precision of their type.
fn agree(got: &Tensor, want: &Tensor) -> Result<(), String> {
    if got.dtype() != want.dtype() || got.dims() != want.dims() {
        return Err(format!("{:?} {}, not {:?} {}", got.dims(), got.dtype(), want.dims(), want.dtype()));
    }
    let tolerance = match got.dtype() {
        DType::F32 => 3e-5,
        DType::F16 => 2e-3,
        DType::BF16 => 1e-2,
        _ => 0.0,
    };
    let (a, b) = (got.to_f64s().unwrap(), want.to_f64s().unwrap());
    let differs =
        |(x, y): (&f64, &f64)| !(x == y || x.is_nan() && y.is_nan() || (x - y).abs() <= tolerance * (1.0 + y.abs()));
    match a.iter().zip(&b).position(differs) {
        Some(i) => Err(format!("element {i} is {}, not {}", a[i], b[i])),
        None => Ok(()),
    }
}

fn tensor(value: &Value) -> &Tensor {
    match value {
        Value::Tensor(t) => t,
        other => panic!("{other:?} is no tensor"),
    }
}

#[test]
fn programs_compute_what_jax_computes() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs");
    let mut wrong = Vec::new();
    let mut count = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|e| e != "mlir") {
            continue;
        }
        count += 1;
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(of_stablehlo::is_stablehlo(&text), "{name}");
        let module = of_stablehlo::import_text(&text, &name).unwrap_or_else(|e| panic!("{e}"));
        let results = run_graph(&module.main().unwrap().graph, &[]).unwrap_or_else(|e| panic!("{name}: {e}"));
        let (got, want) = results.split_at(results.len() / 2);
        for (i, (got, want)) in got.iter().zip(want).enumerate() {
            if let Err(e) = agree(tensor(got), tensor(want)) {
                wrong.push(format!("{name}, result {i}: {e}"));
            }
        }
    }
    assert!(count > 30, "{count} programs");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
