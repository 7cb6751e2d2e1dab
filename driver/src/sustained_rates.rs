//! Sustained rates: what concurrent sessions of one thread each keep up, for the description of a mesh of cores.

use std::time::Duration;

use of_diag::Diagnostics;
use of_sharding::CacheLevel;

use crate::microbenchmark::{Method, PRODUCT, PRODUCT_FLOPS, ROUNDS, kernel_time, lower_quartile, rate, unary};
use crate::observer::Observer;
use crate::options::CompileOptions;

/// Elements of the tensors that are copied to measure bandwidth, from the nearest cache to memory. The working set is four
/// times as large: input, output, and the caller's copies of both.
const MOVED: [usize; 7] = [1 << 14, 1 << 16, 1 << 17, 1 << 18, 1 << 19, 1 << 21, 1 << 24];
const MOVED_BUFFERS: usize = 4;

/// Elements of the vector that two elementary functions are computed of.
const FUNCTIONS: usize = 1 << 14;

/// The rates of each of several concurrent sessions of one thread.
#[derive(Clone, PartialEq, Debug)]
pub struct SustainedRates {
    /// Operations of products of 32-bit floats in a second.
    pub flops: f64,
    /// Operations on elements one by one in a second.
    pub pointwise: f64,
    /// Bytes from and to memory in a second.
    pub memory: f64,
    /// Bandwidth in bytes per second for working sets of so many bytes.
    pub caches: Vec<CacheLevel>,
}

impl SustainedRates {
    /// Measures means over a while several times, and takes the [`lower_quartile`].
    ///
    /// # Errors
    /// When kernels cannot be compiled or run.
    pub fn measure(
        options: &CompileOptions,
        sessions: usize,
        observer: &dyn Observer,
    ) -> Result<SustainedRates, Diagnostics> {
        let activity = observer.begin("measuring the machine");
        let method = Method { threads: 1, sessions, sustained: Duration::from_millis(100) };
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
                times.push(kernel_time(text, name, options, method, observer)?);
            }
        }
        drop(activity);
        let (fastest, slowest) = (times[0].iter().min(), times[0].iter().max());
        if slowest > fastest.map(|t| *t * 5 / 4).as_ref() {
            observer.note("the times vary: other work ran on this machine; measure again when it is idle");
        }
        let rates = graphs.iter().zip(&mut times).map(|((.., work), times)| rate(*work, lower_quartile(times)));
        let mut rates = rates.collect::<Vec<f64>>().into_iter();
        let mut next = || rates.next().unwrap_or_default();
        let (flops, pointwise) = (next(), next());
        let mut caches: Vec<CacheLevel> =
            MOVED.map(|n| CacheLevel { bytes: (4 * MOVED_BUFFERS * n) as f64, bandwidth: next() }).into();
        let memory = caches.pop().map_or(0.0, |far| far.bandwidth);
        Ok(SustainedRates { flops, pointwise, memory, caches })
    }
}
