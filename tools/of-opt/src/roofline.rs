//! What this machine can do at best, as far as our own kernels show it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use of_codegen::native::schedule;
use of_diag::{Code, Diagnostics};
use of_plan::PlanFile;
use of_runtime::{TaskTiming, Value};

use crate::backends::Backends;
use crate::cli::Codegen;
use crate::console::Console;
use crate::model::Source;
use crate::ranks::{self, Which};
use crate::{driver, exit, random, values};

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
pub const CACHED: u64 = 1 << 20;

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
        let how = How { threads, sessions: 1, sustained: Duration::ZERO };
        Roofline::measured(codegen, how, console)
    }

    /// What each of several sessions of one thread keeps up while all of them run.
    ///
    /// # Errors
    /// As [`Roofline::measure`].
    pub fn sustained(codegen: &Codegen, sessions: usize, console: &mut Console) -> Result<Roofline, Diagnostics> {
        let how = How { threads: 1, sessions, sustained: Duration::from_millis(300) };
        Roofline::measured(codegen, how, console)
    }

    fn measured(codegen: &Codegen, how: How, console: &mut Console) -> Result<Roofline, Diagnostics> {
        let progress = console.progress("measuring the machine");
        let codegen = Codegen { passes: None, mesh: None, stages: None, ..codegen.clone() };
        let mut time = |text: &str| kernel(text, &codegen, how, console);
        let product = time(PRODUCT)?;
        let memory = time(MEMORY)?;
        let cache = time(CACHE)?;
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

/// How a kernel is measured.
#[derive(Clone, Copy)]
struct How {
    /// Threads of a session.
    threads: usize,
    /// Sessions that run at the same time.
    sessions: usize,
    /// How long the mean is taken over; the fastest of a few calls where there is no such time.
    sustained: Duration,
}

/// The time of the kernel of a graph, as the mean of the sessions.
fn kernel(text: &str, codegen: &Codegen, how: How, console: &mut Console) -> Result<Duration, Diagnostics> {
    let (plan, inputs) = prepared(text, codegen, console)?;
    let one = || -> Result<Duration, Diagnostics> {
        let mut session = driver::session(Arc::clone(&plan), 0, Some(how.threads), true, &Backends::all())?;
        let (mut inputs, mut outputs) = (inputs.clone(), session.new_outputs());
        let (started, mut calls) = (Instant::now(), 0);
        while calls < 12 || started.elapsed() < how.sustained {
            session.run_into(&mut inputs, &mut outputs).map_err(|e| driver::run_error(&e))?;
            calls += 1;
            if calls == 2 && how.sustained > Duration::ZERO {
                session.reset_timings();
            }
        }
        // The others bring the input and take the output.
        let kernel = |t: &TaskTiming| t.name == "matmul" || t.name == "neg";
        let mean = |t: &TaskTiming| t.total / u32::try_from(t.calls.max(1)).unwrap_or(u32::MAX);
        let time = |t: &TaskTiming| if how.sustained > Duration::ZERO { mean(t) } else { t.min };
        Ok(session.timings().iter().find(|t| kernel(t)).map_or(Duration::ZERO, time))
    };
    let times: Vec<Result<Duration, Diagnostics>> = std::thread::scope(|scope| {
        let started: Vec<_> = (0..how.sessions.max(1)).map(|_| scope.spawn(one)).collect();
        let broken = || exit::error(Code::RUN, "a thread that measures broke down").into();
        started.into_iter().map(|t| t.join().unwrap_or_else(|_| Err(broken()))).collect()
    });
    let times: Vec<Duration> = times.into_iter().collect::<Result<_, _>>()?;
    Ok(times.iter().sum::<Duration>() / times.len().max(1) as u32)
}

/// The plan of a graph and made-up inputs.
///
/// # Errors
/// When its kernels cannot be compiled.
pub fn prepared(
    text: &str,
    codegen: &Codegen,
    console: &mut Console,
) -> Result<(Arc<PlanFile>, Vec<Value>), Diagnostics> {
    let module = of_ir::text::parse_module(text, "roofline", &of_ops::registry(), None)?;
    let source = Source { module, file: "roofline".into(), hash: *blake3::hash(text.as_bytes()).as_bytes() };
    // The limits are those of native code.
    let codegen = &Codegen { backend: Vec::new(), backend_for: Vec::new(), ..codegen.clone() };
    let made = |func: &of_ir::Func| {
        let types = func.input_types();
        let made = random::values(func.inputs.iter().map(String::as_str).zip(types.into_iter().map(Some)))?;
        values::to_runtime_all(made)
    };
    if let Some(mesh) = &codegen.mesh {
        let ranked = ranks::prepare(&source.module, &Default::default(), codegen, mesh, Which::All, console)?;
        let compiled = ranks::compile(&ranked, &source, codegen, Vec::new(), console)?;
        return Ok((Arc::new(compiled.open()?), made(driver::main_func(&ranked.module)?)?));
    }
    let backends = Backends::all();
    let funcs = driver::prepare(&source.module, &[Default::default()], codegen, &backends, console)?;
    let compiled = driver::compile(&funcs, &source, codegen, &backends, Vec::new(), &schedule::NONE, console)?;
    Ok((Arc::new(compiled.open()?), made(&funcs[0].1)?))
}
