//! What this machine can do at best, as far as our own kernels show it.

use std::sync::Arc;
use std::time::Duration;

use of_diag::Diagnostics;
use of_runtime::{TaskTiming, Value};

use crate::backends::Backends;
use crate::cli::Codegen;
use crate::console::Console;
use crate::model::Source;
use crate::{driver, random, values};

/// A product that fits the caches: 2 x 384 x 1024 x 1024 operations.
const PRODUCT: &str = "func @main(%x: tensor<384x1024xf32>) -> (tensor<384x1024xf32>) {
  %w = of.constant {value = dense<0.5> : tensor<1024x1024xf32>}
  %y = of.matmul %x, %w
  of.return %y
}";
const PRODUCT_FLOPS: f64 = 2.0 * 384.0 * 1024.0 * 1024.0;

/// Reads and writes 64 MiB each, more than most caches hold.
const MEMORY: &str = "func @main(%x: tensor<16777216xf32>) -> (tensor<16777216xf32>) {
  %y = of.neg %x
  of.return %y
}";
const MEMORY_BYTES: f64 = 2.0 * 4.0 * 16_777_216.0;

/// Reads and writes 256 KiB each, which second caches hold.
const CACHE: &str = "func @main(%x: tensor<65536xf32>) -> (tensor<65536xf32>) {
  %y = of.neg %x
  of.return %y
}";
const CACHE_BYTES: f64 = 2.0 * 4.0 * 65_536.0;

/// What a kernel moves is expected in the caches up to here.
const CACHED: u64 = 1 << 20;

/// The limits of a kernel.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Roofline {
    /// Operations on 32-bit floats in a second.
    pub flops: f64,
    /// Bytes from and to memory in a second.
    pub memory: f64,
    /// Bytes from and to the caches in a second.
    pub cache: f64,
}

impl Roofline {
    /// Measures the best of several runs with so many threads.
    ///
    /// # Errors
    /// When kernels cannot be compiled or run.
    pub fn measure(codegen: &Codegen, threads: usize, console: &mut Console) -> Result<Roofline, Diagnostics> {
        let progress = console.progress("measuring the machine");
        let codegen = Codegen { passes: None, ..codegen.clone() };
        let product = fastest(PRODUCT, &codegen, threads, console)?;
        let memory = fastest(MEMORY, &codegen, threads, console)?;
        let cache = fastest(CACHE, &codegen, threads, console)?;
        drop(progress);
        let rate = |work: f64, time: Duration| work / time.as_secs_f64().max(1e-9);
        Ok(Roofline {
            flops: rate(PRODUCT_FLOPS, product),
            memory: rate(MEMORY_BYTES, memory),
            cache: rate(CACHE_BYTES, cache),
        })
    }

    /// The least time for so many operations and bytes.
    pub fn seconds(&self, flops: u64, bytes: u64) -> f64 {
        let rate = if bytes > CACHED { self.memory } else { self.cache };
        (flops as f64 / self.flops).max(bytes as f64 / rate)
    }
}

/// The fastest call of the kernel of a graph.
fn fastest(text: &str, codegen: &Codegen, threads: usize, console: &mut Console) -> Result<Duration, Diagnostics> {
    let module = of_ir::text::parse_module(text, "roofline", &of_ops::registry(), None)?;
    let source = Source { module, file: "roofline".into(), hash: *blake3::hash(text.as_bytes()).as_bytes() };
    // The limits are those of native code.
    let codegen = &Codegen { backend: Vec::new(), backend_for: Vec::new(), ..codegen.clone() };
    let backends = Backends::own();
    let funcs = driver::prepare(&source.module, &[Default::default()], codegen, &backends, console)?;
    let compiled = driver::compile(&funcs, &source, codegen, &backends, Vec::new(), console)?;
    let func = &funcs[0].1;
    let types = func.input_types();
    let made = random::values(func.inputs.iter().map(String::as_str).zip(types.into_iter().map(Some)))?;
    let mut inputs: Vec<Value> = values::to_runtime_all(made)?;
    let mut session = driver::session(Arc::new(compiled.open()?), 0, Some(threads), true, &backends)?;
    let mut outputs = session.new_outputs();
    for _ in 0..12 {
        session.run_into(&mut inputs, &mut outputs).map_err(|e| driver::run_error(&e))?;
    }
    // The others bring the input and take the output.
    let kernel = |t: &TaskTiming| t.name == "matmul" || t.name == "neg";
    Ok(session.timings().iter().find(|t| kernel(t)).map_or(Duration::ZERO, |t| t.min))
}
