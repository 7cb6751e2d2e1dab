//! `specialize`: binds symbolic dimensions to numbers.

use std::collections::BTreeMap;

use of_diag::{Code, Diagnostic, Diagnostics};
use of_ir::{Dim, Func, Rewriter, Type};

use crate::infer_shapes::infer_shapes;

/// Values of shape symbols.
pub type Bindings = BTreeMap<String, i64>;

/// The unbound shape symbols of the input types of `func`, sorted.
pub fn open_symbols(func: &Func) -> Vec<String> {
    let mut out = Vec::new();
    for ty in func.input_types() {
        ty.map_dims(&mut |d| {
            out.extend(d.symbols().iter().map(|s| s.to_string()));
            d.clone()
        });
    }
    out.sort();
    out.dedup();
    out
}

/// Binds the symbols of input `name` from the dimensions of a value for it.
///
/// # Errors
/// When rank or dimensions contradict the type of the input or earlier bindings.
pub fn bind_input(func: &Func, name: &str, dims: &[usize], bindings: &mut Bindings) -> Result<(), Diagnostic> {
    let error = |what: String| Diagnostic::error(Code::INPUT, func.loc.clone(), what);
    let Some(i) = func.inputs.iter().position(|n| n == name) else {
        return Err(error(format!("the model has no input '{name}'"))
            .hint(format!("its inputs are {}", func.inputs.join(", "))));
    };
    let Type::Tensor(t) = func.graph.ty(func.graph.args()[i]) else { return Ok(()) };
    let Some(shape) = &t.shape else { return Ok(()) };
    let show = || format!("{:?} does not fit {}", dims, crate::show_shape(shape));
    if shape.len() != dims.len() {
        return Err(error(format!(
            "input '{name}': shape {}: the rank is {}, it must be {}",
            show(),
            dims.len(),
            shape.len()
        )));
    }
    for (axis, (d, n)) in shape.iter().zip(dims).enumerate() {
        let n = i64::try_from(*n).unwrap_or(i64::MAX);
        let known = substitute(d, bindings);
        match (known.as_const(), known.as_symbol()) {
            (Some(c), _) if c == n => {}
            (Some(c), _) => {
                let named = if d.as_const().is_some() { String::new() } else { format!(" ('{d}')") };
                return Err(error(format!("input '{name}': dimension {axis}{named} is {n}, it must be {c}")));
            }
            (None, Some(s)) => {
                bindings.insert(s.to_string(), n);
            }
            (None, None) => match known.solve(n) {
                Some((s, Some(value))) => {
                    bindings.insert(s.to_string(), value);
                }
                Some((_, None)) => {
                    return Err(error(format!("input '{name}': dimension {axis} is {n}, which '{d}' never is")));
                }
                // Several unbound symbols: the run checks them once they are bound.
                None => {}
            },
        }
    }
    Ok(())
}

fn substitute(d: &Dim, bindings: &Bindings) -> Dim {
    d.substitute(&|s| bindings.get(s).map(|v| Dim::from(*v)))
}

/// Makes symbols multiples of a number: each stands for what it was, divided by `by`. Shape inference is repeated.
///
/// # Errors
/// When an op does not accept the shapes.
pub fn scale_symbols(func: &mut Func, symbols: &[String], by: i64) -> Result<(), Diagnostics> {
    let scaled = |s: &str| symbols.iter().any(|own| own == s).then(|| &Dim::symbol(s) * &Dim::from(by));
    let mut rw = Rewriter::new(&mut func.graph, "specialize");
    for i in 0..rw.graph().value_slots() {
        let Some(v) = rw.graph().value_at(i) else { continue };
        let ty = rw.graph().ty(v).map_dims(&mut |d| d.substitute(&scaled));
        rw.set_type(v, ty);
    }
    infer_shapes(func)
}

/// Replaces the bound symbols everywhere and repeats shape inference.
///
/// # Errors
/// When a dimension becomes negative, or an op does not accept the shapes.
pub fn specialize(func: &mut Func, bindings: &Bindings) -> Result<(), Diagnostics> {
    let mut errors = Diagnostics::default();
    for (name, n) in bindings {
        if *n < 0 {
            errors.0.push(Diagnostic::error(
                Code::INPUT,
                func.loc.clone(),
                format!("dimension '{name}' cannot be {n}"),
            ));
        }
    }
    // Types that become negative by these bindings add no information.
    if errors.has_errors() {
        return Err(errors);
    }
    let mut rw = Rewriter::new(&mut func.graph, "specialize");
    for i in 0..rw.graph().value_slots() {
        let Some(v) = rw.graph().value_at(i) else { continue };
        let ty = rw.graph().ty(v).map_dims(&mut |d| substitute(d, bindings));
        rw.set_type(v, ty);
    }
    for ty in func.input_types() {
        ty.map_dims(&mut |d| {
            if d.as_const().is_some_and(|c| c < 0) {
                errors.0.push(Diagnostic::error(
                    Code::INPUT,
                    func.loc.clone(),
                    format!("{ty} has a negative dimension"),
                ));
            }
            d.clone()
        });
    }
    if errors.has_errors() {
        return Err(errors);
    }
    infer_shapes(func)
}
