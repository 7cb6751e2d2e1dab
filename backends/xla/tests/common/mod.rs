//! What the tests share: the client, runs of a module, comparison, verification by MLIR.
#![allow(dead_code)] // each test uses its part

use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::Arc;

use of_ops::Value;
use of_xla::emit::Module;
use of_xla::{Client, plugin};

/// The plugin's client; without one a test says loudly that it tests nothing.
pub fn client() -> Option<Arc<Client>> {
    if plugin::path().is_none() {
        eprintln!("SKIPPED: no PJRT plugin is installed; 'cargo xtask pjrt-plugin' installs one");
        return None;
    }
    Some(plugin::client().unwrap_or_else(|e| panic!("{e}")))
}

/// The results of a module.
pub fn run(client: &Arc<Client>, module: &Module, inputs: &[Value]) -> Result<Vec<Value>, String> {
    let tensors: Vec<&of_ir::Tensor> = inputs
        .iter()
        .map(|v| match v {
            Value::Tensor(t) => t,
            other => panic!("{other:?} is no tensor"),
        })
        .collect();
    of_xla::evaluate(client, module, &tensors).map(|v| v.into_iter().map(Value::Tensor).collect())
}

/// Floats as close as `tolerance` says, everything else equal.
pub fn assert_close(what: &str, got: &[Value], want: &[Value], tolerance: f64) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        let (Value::Tensor(g), Value::Tensor(w)) = (g, w) else {
            assert_eq!(g, w, "{what}: output {i}");
            continue;
        };
        assert_eq!((g.dtype(), g.dims()), (w.dtype(), w.dims()), "{what}: output {i}");
        if !w.dtype().is_float() {
            // Rounding to a quantised number may fall to either side when the exact value lies in the middle.
            let quantised = what.contains("quantize") || what.contains("qlinear");
            let step = |(a, b): (Vec<i64>, Vec<i64>)| a.iter().zip(&b).map(|(a, b)| (a - b).abs()).max().unwrap_or(0);
            let near = quantised && g.to_i64s().zip(w.to_i64s()).map(step) == Some(1);
            assert!(g == w || near, "{what}: output {i} is {:?}, not {:?}", g.to_i64s(), w.to_i64s());
            continue;
        }
        // Half a unit in the last place of 16-bit floats.
        let own = match w.dtype().bits() {
            Some(16) => 8e-3,
            _ => tolerance,
        };
        let (g, w) = (g.to_f64s().unwrap(), w.to_f64s().unwrap());
        let largest = w.iter().filter(|x| x.is_finite()).fold(1e-3f64, |m, x| m.max(x.abs()));
        for (k, (a, b)) in g.iter().zip(&w).enumerate() {
            let same = (a.is_nan() && b.is_nan()) || a == b || (a - b).abs() <= own * largest;
            assert!(same, "{what}: output {i}[{k}] is {a}, not {b}");
        }
    }
}

/// Has MLIR parse and verify the modules, where a Python with jaxlib is found.
pub fn verified(modules: &[(String, String)]) {
    const SCRIPT: &str = r"
import sys
from jaxlib.mlir import ir
from jaxlib.mlir._mlir_libs import _jax_mlir_ext
from jaxlib.mlir.dialects import chlo, stablehlo
registry = ir.DialectRegistry()
_jax_mlir_ext.register_dialects(registry)
context = ir.Context()
context.append_dialect_registry(registry)
context.load_all_available_dialects()
for dialect in (stablehlo, chlo):
    dialect.register_dialect(context)
parts = sys.stdin.read().split('\0')
for name, text in zip(parts[0::2], parts[1::2]):
    try:
        assert ir.Module.parse(text, context).operation.verify()
    except Exception as error:
        sys.exit(f'{name}: {error}\n{text}')
print(len(parts) // 2, 'modules are valid')
";
    let python = std::env::var("OF_JAX_PYTHON").unwrap_or_else(|_| "python3".into());
    let has = Command::new(&python).args(["-c", "import jaxlib.mlir"]).stderr(Stdio::null()).status();
    if !has.is_ok_and(|s| s.success()) {
        eprintln!("SKIPPED: MLIR does not verify the modules, as '{python}' has no jaxlib; OF_JAX_PYTHON names one");
        return;
    }
    let mut child =
        Command::new(&python).args(["-c", SCRIPT]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    for (name, text) in modules {
        write!(stdin, "{name}\0{text}\0").unwrap();
    }
    drop(stdin);
    let out = child.wait_with_output().unwrap();
    assert!(out.status.success(), "MLIR refuses a module");
    assert_eq!(String::from_utf8_lossy(&out.stdout).split_whitespace().next(), Some(&*modules.len().to_string()));
}
