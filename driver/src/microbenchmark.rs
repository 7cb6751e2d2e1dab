//! Microbenchmarks: the time of one kernel of a small graph, compiled and executed as any model is.

use std::sync::Arc;
use std::time::{Duration, Instant};

use of_diag::{Code, Diagnostics};
use of_plan::PlanFile;
use of_runtime::{TaskTiming, Value};

use crate::backends::Backends;
use crate::compiler::compile_bound;
use crate::error::error;
use crate::model::Model;
use crate::observer::Observer;
use crate::options::{CompileOptions, PlacementOptions, SessionOptions};
use crate::session::{program_session, run_error};
use crate::{random_inputs, tensor_files};

/// A product that fits the caches: 2 x 384 x 1024 x 1024 operations.
pub const PRODUCT: &str = "func @main(%x: tensor<384x1024xf32>) -> (tensor<384x1024xf32>) {
  %w = of.constant {value = dense<0.5> : tensor<1024x1024xf32>}
  %y = of.matmul %x, %w
  of.return %y
}";
/// Operations of [`PRODUCT`].
pub const PRODUCT_FLOPS: f64 = 2.0 * 384.0 * 1024.0 * 1024.0;

/// How often a time that varies is measured.
pub const ROUNDS: usize = 5;

/// The lower quartile of times: other work on the machine only adds time, and the minimum may be an outlier.
pub fn lower_quartile(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 4).copied().unwrap_or_default()
}

/// Work per second.
pub fn rate(work: f64, time: Duration) -> f64 {
    work / time.as_secs_f64().max(1e-9)
}

/// A chain of ops of one operand on a vector of floats.
pub fn unary(elements: usize, ops: &[&str]) -> String {
    let mut text = format!("func @main(%v0: tensor<{elements}xf32>) -> (tensor<{elements}xf32>) {{\n");
    for (i, op) in ops.iter().enumerate() {
        text += &format!("  %v{} = of.{op} %v{i}\n", i + 1);
    }
    text + &format!("  of.return %v{}\n}}", ops.len())
}

/// How a kernel is measured.
#[derive(Clone, Copy)]
pub struct Method {
    /// Threads of a session.
    pub threads: usize,
    /// Sessions that run concurrently.
    pub sessions: usize,
    /// The duration over which the mean is taken; zero takes the fastest of a few calls.
    pub sustained: Duration,
}

/// The time of the kernel of a graph whose name begins with `name`, as the mean over the sessions.
///
/// # Errors
/// When the graph cannot be compiled or executed.
pub fn kernel_time(
    text: &str,
    name: &str,
    options: &CompileOptions,
    method: Method,
    observer: &dyn Observer,
) -> Result<Duration, Diagnostics> {
    let (plan, inputs) = compile_text(text, options, observer)?;
    let backends = Backends::builtin();
    let session_options = SessionOptions { threads: method.threads, profile: true, ..Default::default() };
    let one = || -> Result<Duration, Diagnostics> {
        let mut session = program_session(Arc::clone(&plan), 0, &session_options, &backends)?;
        let (mut inputs, mut outputs) = (inputs.clone(), session.new_outputs());
        let (started, mut calls) = (Instant::now(), 0);
        while calls < 12 || started.elapsed() < method.sustained {
            session.run_into(&mut inputs, &mut outputs).map_err(|e| run_error(&e))?;
            calls += 1;
            if calls == 2 && method.sustained > Duration::ZERO {
                session.reset_timings();
            }
        }
        // The other tasks copy the input and the output.
        let kernel = |t: &TaskTiming| t.name.starts_with(name);
        let mean = |t: &TaskTiming| t.total / u32::try_from(t.calls.max(1)).unwrap_or(u32::MAX);
        let time = |t: &TaskTiming| if method.sustained > Duration::ZERO { mean(t) } else { t.min };
        Ok(session.timings().iter().find(|t| kernel(t)).map_or(Duration::ZERO, time))
    };
    let times: Vec<Result<Duration, Diagnostics>> = std::thread::scope(|scope| {
        let started: Vec<_> = (0..method.sessions.max(1)).map(|_| scope.spawn(one)).collect();
        let broken = || error(Code::RUN, "a measuring thread panicked").into();
        started.into_iter().map(|t| t.join().unwrap_or_else(|_| Err(broken()))).collect()
    });
    let times: Vec<Duration> = times.into_iter().collect::<Result<_, _>>()?;
    Ok(times.iter().sum::<Duration>() / times.len().max(1) as u32)
}

/// The plan of a graph given as IR text, and random inputs. Native code executes all of it.
///
/// # Errors
/// When its kernels cannot be compiled.
pub fn compile_text(
    text: &str,
    options: &CompileOptions,
    observer: &dyn Observer,
) -> Result<(Arc<PlanFile>, Vec<Value>), Diagnostics> {
    let model = Model::from_text(text, "microbenchmark", None)?;
    let options = CompileOptions { placement: PlacementOptions::default(), ..options.clone() };
    let built = compile_bound(&model, Default::default(), &options, &Backends::builtin(), observer)?;
    let inputs = tensor_files::to_runtime_all(random_inputs::for_types(&built.inputs, None)?)?;
    Ok((Arc::new(built.code.open()?), inputs))
}
