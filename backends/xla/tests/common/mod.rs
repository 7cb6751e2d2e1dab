//! Helpers shared by the tests: the client, runs of a module, verification by MLIR.
#![allow(dead_code, reason = "each test uses its part")]

use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::Arc;

use of_ops::Value;
use of_xla::emit::Module;
use of_xla::{Client, plugin};

use of_test_support::component::{JAXLIB, XLA, python_with, require};
pub use of_test_support::plans as support;

/// The plugin's client, if a plugin is installed.
#[track_caller]
pub fn client() -> Option<Arc<Client>> {
    require(&XLA, plugin::path().ok_or("no plugin was found"))?;
    Some(plugin::client().unwrap_or_else(|e| panic!("{e}")))
}

/// The results of a module on the first device.
pub fn run(client: &Arc<Client>, module: &Module, inputs: &[Value]) -> Result<Vec<Value>, String> {
    run_on(client, 0, module, inputs)
}

/// The results of a module on the device of a number.
pub fn run_on(client: &Arc<Client>, device: usize, module: &Module, inputs: &[Value]) -> Result<Vec<Value>, String> {
    let results = of_xla::Evaluator::new(client, module)?.run(device, &support::tensors(inputs))?;
    Ok(results.into_iter().map(Value::Tensor).collect())
}

/// Has MLIR parse and verify the modules, if a Python with jaxlib is found.
#[track_caller]
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
    let Some(python) = require(&JAXLIB, python_with(&["jaxlib.mlir"])) else { return };
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
