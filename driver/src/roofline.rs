//! The roofline of this machine: the best throughput that our kernels reach.

use std::time::Duration;

use of_codegen::Limits;
use of_diag::Diagnostics;
use of_plan::ElementType;

use crate::microbenchmark::{Method, PRODUCT, PRODUCT_FLOPS, kernel_time, rate, unary};
use crate::observer::Observer;
use crate::options::CompileOptions;

/// Elements that are read and written: more than most caches hold.
const MEMORY: usize = 1 << 24;
/// Elements that a second-level cache holds.
const CACHE: usize = 1 << 16;

/// A kernel that moves at most so many bytes is expected to find them in the caches.
const CACHED: u64 = 1 << 20;

/// The same product in the other types that instruction sets multiply, by the type of its operands.
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

/// The limits of a kernel: peak arithmetic rates and bandwidths.
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
    /// Measures the limits with so many threads, of products of f32 and of `types`.
    ///
    /// # Errors
    /// When kernels cannot be compiled or run.
    pub fn measure(
        options: &CompileOptions,
        threads: usize,
        types: &[ElementType],
        observer: &dyn Observer,
    ) -> Result<Roofline, Diagnostics> {
        let method = Method { threads, sessions: 1, sustained: Duration::ZERO };
        let activity = observer.begin("measuring the machine");
        let options =
            CompileOptions { pipeline: None, mesh: None, tuning: None, limits: Limits::default(), ..options.clone() };
        let time = |text: &str, name: &str| kernel_time(text, name, &options, method, observer);
        let product = time(PRODUCT, "matmul")?;
        let memory = time(&unary(MEMORY, &["neg"]), "neg")?;
        let cache = time(&unary(CACHE, &["neg"]), "neg")?;
        let wanted = OTHERS.iter().filter(|(t, _)| types.iter().any(|own| multiplied(*own) == *t));
        let others = wanted.map(|(t, text)| Ok((*t, rate(PRODUCT_FLOPS, time(text, "matmul")?))));
        let others = others.collect::<Result<_, Diagnostics>>()?;
        drop(activity);
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
