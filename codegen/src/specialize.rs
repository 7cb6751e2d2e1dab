//! Binds symbolic extents: copies a function for the extents of one run, for backends that compile for fixed extents.
//!
//! Plans are compiled ahead of time (AOT); a backend that compiles during a run (JIT) specializes here.

use std::sync::Arc;

use of_ir::text::PrintOptions;
use of_ir::{Dim, Func, Module, Rewriter, ValueId, text};

/// Serializes a function of symbolic extents as text for a payload, to be specialized at run time.
pub fn write(func: &Func) -> String {
    let mut module = Module::default();
    module.funcs.insert("main".into(), func.clone());
    text::print_module(&module, &PrintOptions { generic: true, locations: true, ..PrintOptions::default() })
}

/// The inverse of [`write`].
///
/// # Errors
/// When the bytes are not such a payload.
pub fn read(payload: &[u8]) -> Result<Func, String> {
    let text = std::str::from_utf8(payload).map_err(|_| "the text is not UTF-8".to_string())?;
    let module = text::parse_module(text, "payload", &of_ops::registry(), None).map_err(|d| d.to_string())?;
    module.main().cloned().ok_or_else(|| "there is no function".into())
}

/// The function for inputs of these extents; `None` is an input that is not a tensor.
///
/// # Errors
/// When an input's rank or extent does not match the function's type, or a symbol stays unbound.
pub fn specialize(func: &Func, inputs: &[Option<&[i64]>]) -> Result<Func, String> {
    let mut extents: Vec<(&Dim, i64)> = Vec::new();
    for (v, dims) in func.graph.args().iter().zip(inputs) {
        let shape = func.graph.ty(*v).as_tensor().and_then(|t| t.shape.as_ref());
        let (Some(shape), Some(dims)) = (shape, dims) else { continue };
        if shape.len() != dims.len() {
            return Err(format!("an input has rank {}, it must be {}", dims.len(), shape.len()));
        }
        extents.extend(shape.iter().zip(dims.iter().copied()));
    }
    let bound = Dim::solve_all(&extents);
    let number = |s: &str| bound.get(s).map(|n| Dim::from(*n));
    let out = substituted(func, &number);
    for (v, dims) in out.graph.args().iter().zip(inputs) {
        let fixed = out.graph.ty(*v).as_tensor().and_then(|t| t.fixed_dims());
        if let (Some(own), Some(dims)) = (fixed, dims)
            && !own.iter().zip(*dims).all(|(a, b)| *a as i64 == *b)
        {
            return Err(format!("an input has the extents {dims:?}, they must be {own:?}"));
        }
    }
    Ok(out)
}

/// Binds all symbols to arbitrary numbers, to test whether an op can be printed once its extents are known.
pub fn with_sample_extents(func: &Func) -> Func {
    /// A typical extent other than 1, which could broadcast.
    const SAMPLE_EXTENT: i64 = 4;
    substituted(func, &|_| Some(Dim::from(SAMPLE_EXTENT)))
}

/// Symbols of results that no input binds.
pub fn unbound_symbols(func: &Func) -> Vec<Arc<str>> {
    let symbols = |v: ValueId| func.graph.ty(v).as_tensor().and_then(|t| t.shape.clone()).unwrap_or_default();
    let mut bound: Vec<Arc<str>> = Vec::new();
    let inputs: Vec<Dim> = func.graph.args().iter().flat_map(|v| symbols(*v)).collect();
    while let Some(s) = inputs.iter().find_map(|d| d.determines(&|s| bound.iter().any(|b| **b == *s))) {
        bound.push(s);
    }
    let all = (0..func.graph.value_slots()).filter_map(|i| func.graph.value_at(i)).flat_map(symbols);
    let mut out: Vec<Arc<str>> = all.flat_map(|d| d.symbols()).filter(|s| !bound.contains(s)).collect();
    out.sort();
    out.dedup();
    out
}

/// Whether the extents of all values are numbers.
pub fn is_fixed(func: &Func) -> bool {
    let g = &func.graph;
    let values = (0..g.value_slots()).filter_map(|i| g.value_at(i));
    values.filter_map(|v| g.ty(v).as_tensor()).all(|t| t.fixed_dims().is_some())
}

fn substituted(func: &Func, number: &dyn Fn(&str) -> Option<Dim>) -> Func {
    let mut out = func.clone();
    let values: Vec<ValueId> = (0..out.graph.value_slots()).filter_map(|i| out.graph.value_at(i)).collect();
    let mut rw = Rewriter::new(&mut out.graph, "specialize");
    for v in values {
        let ty = rw.graph().ty(v).map_dims(&mut |d| d.substitute(number));
        rw.set_type(v, ty);
    }
    out
}
