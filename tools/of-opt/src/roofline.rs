//! What this machine can do at best, as far as our own kernels show it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use of_codegen::kernel::schedule;
use of_diag::{Code, Diagnostics};
use of_plan::{ElementType, PlanFile};
use of_runtime::{TaskTiming, Value};
use of_sharding::CacheLevel;

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

/// Elements that are read and written: more than most caches hold, and what second caches hold.
const MEMORY: usize = 1 << 24;
const CACHE: usize = 1 << 16;

/// What a kernel moves is expected in the caches up to here.
const CACHED: u64 = 1 << 20;

/// Elements of the tensors that are moved to see how fast memory is, from near to far. What is touched in a run is four
/// times as large: an input and an output, and the copies of both that are the caller's.
const MOVED: [usize; 7] = [1 << 14, 1 << 16, 1 << 17, 1 << 18, 1 << 19, 1 << 21, 1 << 24];
const MOVED_BUFFERS: usize = 4;

/// Elements of which two elementary functions are computed, of each.
const FUNCTIONS: usize = 1 << 14;

/// The same product of what else instruction sets multiply, as its operands' type.
const OTHERS: &[(ElementType, &str)] = &[
    (
        ElementType::Bf16,
        "func @main(%x: tensor<384x1024xbf16>) -> (tensor<384x1024xbf16>) {
  %w = of.constant {value = dense<0.5> : tensor<1024x1024xbf16>}
  %y = of.matmul %x, %w
  of.return %y
}",
    ),
    (
        ElementType::I8,
        "func @main(%x: tensor<384x1024xui8>) -> (tensor<384x1024xi32>) {
  %w = of.constant {value = dense<5> : tensor<1024x1024xi8>}
  %none = of.none
  %y = of.matmul_integer %x, %w, %none, %none
  of.return %y
}",
    ),
];

/// The type in [`Roofline::others`] of products whose left operand is of type `t`.
fn multiplied(t: ElementType) -> ElementType {
    if t == ElementType::Ui8 { ElementType::I8 } else { t }
}

/// The limits of a kernel.
#[derive(Clone, PartialEq, Debug)]
pub struct Roofline {
    /// Operations on 32-bit floats in a second.
    pub flops: f64,
    /// Operations of products of other types in a second.
    pub others: Vec<(ElementType, f64)>,
    /// Bytes from and to memory in a second.
    pub memory: f64,
    /// Bytes from and to the caches in a second.
    pub cache: f64,
}

impl Roofline {
    /// Measures the best of several runs with so many threads, of products of f32 and of those types.
    ///
    /// # Errors
    /// When kernels cannot be compiled or run.
    pub fn measure(
        codegen: &Codegen,
        threads: usize,
        types: &[ElementType],
        console: &mut Console,
    ) -> Result<Roofline, Diagnostics> {
        let how = How { threads, sessions: 1, sustained: Duration::ZERO };
        let progress = console.progress("measuring the machine");
        let codegen = Codegen { passes: None, mesh: None, stages: None, ..codegen.clone() };
        let mut time = |text: &str, name: &str| kernel(text, name, &codegen, how, console);
        let product = time(PRODUCT, "matmul")?;
        let memory = time(&unary(MEMORY, &["neg"]), "neg")?;
        let cache = time(&unary(CACHE, &["neg"]), "neg")?;
        let wanted = OTHERS.iter().filter(|(t, _)| types.iter().any(|own| multiplied(*own) == *t));
        let others = wanted.map(|(t, text)| Ok((*t, rate(PRODUCT_FLOPS, time(text, "matmul")?))));
        let others = others.collect::<Result<_, Diagnostics>>()?;
        drop(progress);
        Ok(Roofline {
            flops: rate(PRODUCT_FLOPS, product),
            others,
            memory: rate(2.0 * 4.0 * MEMORY as f64, memory),
            cache: rate(2.0 * 4.0 * CACHE as f64, cache),
        })
    }

    /// The least time for so many operations on what starts from elements of type `of`, and bytes.
    pub fn seconds(&self, of: ElementType, flops: u64, bytes: u64) -> f64 {
        let rate = if bytes > CACHED { self.memory } else { self.cache };
        let peak = self.others.iter().find(|(t, _)| *t == multiplied(of)).map_or(self.flops, |(_, peak)| *peak);
        (flops as f64 / peak).max(bytes as f64 / rate)
    }
}

/// What each of several sessions of one thread keeps up while all of them run.
#[derive(Clone, PartialEq, Debug)]
pub struct Sustained {
    /// Operations of products of 32-bit floats in a second.
    pub flops: f64,
    /// Operations on elements one by one in a second.
    pub pointwise: f64,
    /// Bytes from and to memory in a second.
    pub memory: f64,
    /// The same where everything that is touched again and again has so many bytes.
    pub caches: Vec<CacheLevel>,
}

impl Sustained {
    /// Measures the mean of a while several times, and takes what is [`usual`].
    ///
    /// # Errors
    /// When kernels cannot be compiled or run.
    pub fn measure(codegen: &Codegen, sessions: usize, console: &mut Console) -> Result<Sustained, Diagnostics> {
        let progress = console.progress("measuring the machine");
        let how = How { threads: 1, sessions, sustained: Duration::from_millis(100) };
        let functions = 2.0 * of_ops::work::ELEMENTARY * FUNCTIONS as f64;
        // A graph, the kernel of it that is measured, and what that does.
        let mut graphs = vec![
            (PRODUCT.to_owned(), "matmul", PRODUCT_FLOPS),
            (unary(FUNCTIONS, &["tanh", "exp"]), "tanh+exp", functions),
        ];
        graphs.extend(MOVED.map(|n| (unary(n, &["neg"]), "neg", 2.0 * 4.0 * n as f64)));
        let mut times: Vec<Vec<Duration>> = vec![Vec::new(); graphs.len()];
        for _ in 0..ROUNDS {
            for ((text, name, _), times) in graphs.iter().zip(&mut times) {
                times.push(kernel(text, name, codegen, how, console)?);
            }
        }
        drop(progress);
        let (fastest, slowest) = (times[0].iter().min(), times[0].iter().max());
        if slowest > fastest.map(|t| *t * 5 / 4).as_ref() {
            console.note("other work took time from this; measure again when the machine is idle");
        }
        let rates = graphs.iter().zip(&mut times).map(|((.., work), times)| rate(*work, usual(times)));
        let mut rates = rates.collect::<Vec<f64>>().into_iter();
        let mut next = || rates.next().unwrap_or_default();
        let (flops, pointwise) = (next(), next());
        let mut caches: Vec<CacheLevel> =
            MOVED.map(|n| CacheLevel { bytes: (4 * MOVED_BUFFERS * n) as f64, bandwidth: next() }).into();
        let memory = caches.pop().map_or(0.0, |far| far.bandwidth);
        Ok(Sustained { flops, pointwise, memory, caches })
    }
}

/// How often what may differ from time to time is measured.
pub const ROUNDS: usize = 5;

/// The lower quartile: other work on the machine only ever takes time, and the best of all is luck.
pub fn usual(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 4).copied().unwrap_or_default()
}

fn rate(work: f64, time: Duration) -> f64 {
    work / time.as_secs_f64().max(1e-9)
}

/// Ops of one operand, one after another, of so many floats.
fn unary(elements: usize, ops: &[&str]) -> String {
    let mut text = format!("func @main(%v0: tensor<{elements}xf32>) -> (tensor<{elements}xf32>) {{\n");
    for (i, op) in ops.iter().enumerate() {
        text += &format!("  %v{} = of.{op} %v{i}\n", i + 1);
    }
    text + &format!("  of.return %v{}\n}}", ops.len())
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

/// The time of the kernel in a graph whose name begins so, as the mean of the sessions.
fn kernel(text: &str, name: &str, codegen: &Codegen, how: How, console: &mut Console) -> Result<Duration, Diagnostics> {
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
        let kernel = |t: &TaskTiming| t.name.starts_with(name);
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
    let backends = Backends::all();
    if let Some(mesh) = &codegen.mesh {
        let ranked =
            ranks::prepare(&source.module, &Default::default(), codegen, mesh, Which::All, &backends, console)?;
        let compiled = ranks::compile(&ranked, &source, codegen, &backends, Vec::new(), console)?;
        return Ok((Arc::new(compiled.open()?), made(driver::main_func(&ranked.module)?)?));
    }
    let funcs = driver::prepare(&source.module, &[Default::default()], codegen, &backends, console)?;
    let compiled = driver::compile(&funcs, &source, codegen, &backends, Vec::new(), &schedule::NONE, console)?;
    Ok((Arc::new(compiled.open()?), made(&funcs[0].1)?))
}
