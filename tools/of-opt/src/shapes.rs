//! `--shape` and `--variant`: numbers for what a model leaves open.

use of_diag::{Code, Diagnostic, Diagnostics};
use of_ir::Func;
use of_passes::specialize::{Bindings, bind_input, open_symbols};

use crate::exit;

/// Reads `batch=8` (a named dimension) or `x=1x3x224x224` (an input's shape) into `bindings`.
///
/// # Errors
/// When a name does not exist, a shape does not fit its input, or two of them contradict each other.
pub fn bind(specs: &[String], func: &Func, bindings: &mut Bindings) -> Result<(), Diagnostics> {
    let mut errors = Diagnostics::default();
    for spec in specs.iter().map(|s| s.trim()).filter(|s| !s.is_empty()) {
        if let Err(d) = bind_one(spec, func, bindings) {
            errors.0.push(d);
        }
    }
    errors.into_result(())
}

fn bind_one(spec: &str, func: &Func, bindings: &mut Bindings) -> Result<(), Diagnostic> {
    let Some((name, value)) = spec.rsplit_once('=') else {
        let what = format!("'{spec}' is no shape");
        return Err(
            exit::error(Code::INPUT, what).hint("write NAME=NUMBER for a dimension or NAME=1x3x224x224 for an input")
        );
    };
    let Some(dims) = parse_dims(value) else {
        let what = format!("'{value}' is no shape (of '{name}')");
        return Err(exit::error(Code::INPUT, what).hint("numbers from 0 joined by 'x', e.g. 1x3x224x224"));
    };
    let symbols = open_symbols(func);
    if let ([n], true) = (&dims[..], symbols.iter().any(|s| s == name)) {
        let n = i64::try_from(*n).unwrap_or(i64::MAX);
        return match bindings.insert(name.to_string(), n) {
            Some(old) if old != n => {
                Err(exit::error(Code::INPUT, format!("dimension '{name}' is given as {old} and as {n}")))
            }
            _ => Ok(()),
        };
    }
    if func.inputs.iter().any(|i| i == name) {
        return bind_input(func, name, &dims, bindings);
    }
    let list = |names: &[String]| if names.is_empty() { "none".to_string() } else { names.join(", ") };
    let hint = format!("its open dimensions are {}; its inputs are {}", list(&symbols), list(&func.inputs));
    Err(exit::error(Code::INPUT, format!("the model has no dimension or input '{name}'")).hint(hint))
}

/// `1x3x224x224`; nothing at all is the shape of a scalar.
fn parse_dims(text: &str) -> Option<Vec<usize>> {
    if text.is_empty() {
        return Some(Vec::new());
    }
    text.split('x').map(|d| d.trim().parse().ok()).collect()
}

/// Gives 1 to every dimension that is still open, with a warning that names them.
pub fn default_open(func: &Func, bindings: &mut Bindings) -> Option<Diagnostic> {
    let open: Vec<String> = open_symbols(func).into_iter().filter(|s| !bindings.contains_key(s)).collect();
    if open.is_empty() {
        return None;
    }
    for name in &open {
        bindings.insert(name.clone(), 1);
    }
    let list: Vec<String> = open.iter().map(|s| format!("'{s}'")).collect();
    let flags: Vec<String> = open.iter().map(|s| format!("{s}=NUMBER")).collect();
    let what = format!(
        "nothing says how large {} {}: 1 is taken",
        list.join(", "),
        if open.len() == 1 { "is" } else { "are" }
    );
    Some(
        Diagnostic::warning(Code::INPUT, of_diag::Location::Unknown, what)
            .hint(format!("--shape {} chooses, --inputs takes it from a set of inputs", flags.join(","))),
    )
}

/// What a program is called that was made for these numbers.
pub fn program_name(bindings: &Bindings) -> String {
    if bindings.is_empty() {
        return "main".into();
    }
    bindings.iter().map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn func() -> Func {
        let text = "func @main(%x: tensor<?(batch)x?(2*s)xf32>, %y: tensor<?(s)xf32>) { of.return }";
        let m = of_ir::text::parse_module(text, "t", &of_ops::registry(), None).unwrap();
        m.main().unwrap().clone()
    }

    fn bound(specs: &[&str]) -> Result<Bindings, String> {
        let mut b = Bindings::new();
        let specs: Vec<String> = specs.iter().map(|s| (*s).to_string()).collect();
        bind(&specs, &func(), &mut b).map_err(|e| e.0[0].message.clone())?;
        Ok(b)
    }

    #[test]
    fn dimensions_and_inputs_are_bound() {
        let want = |list: &[(&str, i64)]| list.iter().map(|(k, v)| ((*k).to_string(), *v)).collect::<Bindings>();
        assert_eq!(bound(&["batch=8"]).unwrap(), want(&[("batch", 8)]));
        assert_eq!(bound(&["y=4"]).unwrap(), want(&[("s", 4)]));
        assert_eq!(bound(&["s=3", "x=2x6"]).unwrap(), want(&[("batch", 2), ("s", 3)]));
        assert_eq!(program_name(&bound(&["s=3", "batch=1"]).unwrap()), "batch=1,s=3");
    }

    #[test]
    fn contradictions_and_unknown_names_are_refused() {
        assert_eq!(bound(&["batch=1", "batch=2"]).unwrap_err(), "dimension 'batch' is given as 1 and as 2");
        assert_eq!(bound(&["q=1"]).unwrap_err(), "the model has no dimension or input 'q'");
        assert_eq!(bound(&["x=axb"]).unwrap_err(), "'axb' is no shape (of 'x')");
        assert!(bound(&["s=3", "x=2x5"]).unwrap_err().contains("it must be 6"));
    }

    #[test]
    fn what_stays_open_is_one_and_named() {
        let mut b = bound(&["s=3"]).unwrap();
        let w = default_open(&func(), &mut b).unwrap();
        assert_eq!(w.message, "nothing says how large 'batch' is: 1 is taken");
        assert_eq!(b["batch"], 1);
        assert!(default_open(&func(), &mut b).is_none());
    }
}
