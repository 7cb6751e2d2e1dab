//! Shape bindings as text: numbers and ranges for the open dimensions of a model.

use std::collections::BTreeMap;

use of_diag::{Code, Diagnostic, Diagnostics};
use of_ir::{Dim, Func, Type};
use of_passes::specialize::{Bindings, bind_input, open_symbols};
use of_plan::{Extent, Port, Program, Solution};
use of_tensorrt::{Range, Ranges};

use crate::error::error;
use crate::observer::Observer;
use crate::tensor_files as values;

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

/// As [`bind`], and reads ranges: `batch=1:8:64` or `x=1x3x8x8:8x3x8x8:64x3x8x8` are the least, the usual and the largest.
///
/// # Errors
/// As [`bind`], and when a range does not rise.
pub fn bind_ranges(
    specs: &[String],
    func: &Func,
    bindings: &mut Bindings,
    ranges: &mut Ranges,
) -> Result<(), Diagnostics> {
    let is_range = |s: &String| s.rsplit_once('=').is_some_and(|(_, value)| value.contains(':'));
    let (of_ranges, of_numbers): (Vec<String>, Vec<String>) = specs.iter().cloned().partition(is_range);
    bind(&of_numbers, func, bindings)?;
    let mut errors = Diagnostics::default();
    for spec in of_ranges {
        if let Err(d) = bind_range(spec.trim(), func, bindings, ranges) {
            errors.0.push(d);
        }
    }
    errors.into_result(())
}

/// A spec with three ends: what is the same at all of them is a number.
fn bind_range(spec: &str, func: &Func, bindings: &mut Bindings, ranges: &mut Ranges) -> Result<(), Diagnostic> {
    let wrong = |what: String| error(Code::INPUT, what).hint("MIN:OPT:MAX are numbers or shapes that rise from 1 on");
    let (name, value) = spec.rsplit_once('=').unwrap_or((spec, ""));
    let Ok([min, opt, max]) = <[&str; 3]>::try_from(value.split(':').collect::<Vec<_>>()) else {
        return Err(wrong(format!("'{value}' is not a range (of '{name}')")));
    };
    let at = |end: &str| {
        let mut own = bindings.clone();
        bind_one(&format!("{name}={end}"), func, &mut own).map(|()| own)
    };
    let (min, opt, max) = (at(min)?, at(opt)?, at(max)?);
    let mut numbers = Bindings::new();
    for (symbol, opt) in opt.iter().filter(|(symbol, _)| !bindings.contains_key(*symbol)) {
        let (Some(min), Some(max)) = (min.get(symbol), max.get(symbol)) else { continue };
        let range = Range { min: *min, opt: *opt, max: *max };
        if range.as_fixed() == Some(*opt) {
            numbers.insert(symbol.clone(), *opt);
        } else if !(1 <= range.min && range.min <= range.opt && range.opt <= range.max) {
            return Err(wrong(format!("'{symbol}' has no range {range}")));
        } else if let Some(old) = ranges.insert(symbol.clone(), range).filter(|old| *old != range) {
            return Err(given_twice(symbol, old, range));
        }
    }
    bindings.extend(numbers);
    Ok(())
}

/// `NAME=1x3`.
fn parse(spec: &str) -> Result<(&str, Vec<usize>), Diagnostic> {
    let Some((name, value)) = spec.rsplit_once('=') else {
        let what = format!("'{spec}' is not a shape");
        return Err(error(Code::INPUT, what).hint("write NAME=NUMBER for a dimension or NAME=1x3x224x224 for an input"));
    };
    if value.contains(':') {
        let what = format!("'{spec}' is a range, and here a number is needed");
        return Err(error(Code::INPUT, what).hint("--shape of compile and of explain --placement takes ranges"));
    }
    let Some(dims) = parse_dims(value) else {
        let what = format!("'{value}' is not a shape (of '{name}')");
        return Err(error(Code::INPUT, what).hint("numbers from 0 joined by 'x', e.g. 1x3x224x224"));
    };
    Ok((name, dims))
}

fn given_twice<T: std::fmt::Display>(name: &str, a: T, b: T) -> Diagnostic {
    error(Code::INPUT, format!("dimension '{name}' is given as {a} and as {b}"))
}

fn no_such(name: &str, symbols: &[String], inputs: &[String]) -> Diagnostic {
    let list = |names: &[String]| if names.is_empty() { "none".to_string() } else { names.join(", ") };
    let hint = format!("its open dimensions are {}; its inputs are {}", list(symbols), list(inputs));
    error(Code::INPUT, format!("the model has no dimension or input '{name}'")).hint(hint)
}

fn bind_one(spec: &str, func: &Func, bindings: &mut Bindings) -> Result<(), Diagnostic> {
    let (name, dims) = parse(spec)?;
    let symbols = open_symbols(func);
    if let ([n], true) = (&dims[..], symbols.iter().any(|s| s == name)) {
        let n = i64::try_from(*n).unwrap_or(i64::MAX);
        return match bindings.insert(name.to_string(), n) {
            Some(old) if old != n => Err(given_twice(name, old, n)),
            _ => Ok(()),
        };
    }
    if func.inputs.iter().any(|i| i == name) {
        return bind_input(func, name, &dims, bindings);
    }
    Err(no_such(name, &symbols, &func.inputs))
}

/// `1x3x224x224`; nothing at all is the shape of a scalar.
fn parse_dims(text: &str) -> Option<Vec<usize>> {
    if text.is_empty() {
        return Some(Vec::new());
    }
    text.split('x').map(|d| d.trim().parse().ok()).collect()
}

/// Binds every open dimension to 1, with a warning that names them.
pub fn default_open(func: &Func, bindings: &mut Bindings) -> Option<Diagnostic> {
    let open: Vec<String> = open_symbols(func).into_iter().filter(|s| !bindings.contains_key(s)).collect();
    for name in &open {
        bindings.insert(name.clone(), 1);
    }
    assumed_as_one(&open)
}

/// The warning that names unbound dimensions.
fn assumed_as_one(open: &[String]) -> Option<Diagnostic> {
    if open.is_empty() {
        return None;
    }
    let list: Vec<String> = open.iter().map(|s| format!("'{s}'")).collect();
    let flags: Vec<String> = open.iter().map(|s| format!("{s}=NUMBER")).collect();
    let what = format!(
        "no extent for {} {}: 1 is assumed",
        if open.len() == 1 { "dimension" } else { "dimensions" },
        list.join(", ")
    );
    Some(
        Diagnostic::warning(Code::INPUT, of_diag::Location::Unknown, what)
            .hint(format!("--shape {} chooses, --inputs takes it from a set of inputs", flags.join(","))),
    )
}

/// The types of the inputs of a program, with numbers for its open dimensions as [`bind`] takes them.
///
/// An unbound dimension becomes 1, with a warning. An input of unknown shape has no type here.
///
/// # Errors
/// When a name does not exist, a shape does not fit its input, or two of them contradict each other.
pub fn of_plan(specs: &[String], program: &Program, observer: &dyn Observer) -> Result<Vec<Option<Type>>, Diagnostics> {
    let mut symbols = vec![-1; program.symbols.len()];
    let mut shapes: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for spec in specs.iter().map(|s| s.trim()).filter(|s| !s.is_empty()) {
        let (name, dims) = parse(spec)?;
        if let (Some(symbol), [n]) = (program.symbols.iter().position(|s| s == name), &dims[..]) {
            set_symbol(program, &mut symbols, symbol, i64::try_from(*n).unwrap_or(i64::MAX))?;
        } else if let Some(port) = program.inputs.iter().find(|p| p.name == name) {
            let extents: Vec<i64> = dims.iter().map(|d| i64::try_from(*d).unwrap_or(i64::MAX)).collect();
            port.accepts(Some((port.dtype(), &extents)), program)
                .map_err(|e| error(Code::INPUT, format!("--shape {spec}: it {e}")))?;
            for (axis, n) in extents.iter().enumerate() {
                let extent = port.extent(axis, program);
                if let Some(Solution::One(symbol, n)) = extent.and_then(|e| e.solve(*n, &symbols)) {
                    set_symbol(program, &mut symbols, symbol as usize, n)?;
                }
            }
            shapes.insert(name, dims);
        } else {
            let inputs: Vec<String> = program.inputs.iter().map(|p| p.name.clone()).collect();
            return Err(no_such(name, &program.symbols, &inputs).into());
        }
    }
    // Symbols that are extents of inputs; results determine the others.
    let extents =
        |p: &Port| (0..p.dims.len()).filter_map(|a| p.extent(a, program)).flat_map(Extent::symbols).collect::<Vec<_>>();
    let named = program.inputs.iter().filter(|p| !shapes.contains_key(p.name.as_str())).flat_map(extents);
    let mut open: Vec<usize> = named.map(|s| s as usize).filter(|s| symbols.get(*s) == Some(&-1)).collect();
    open.sort_unstable();
    open.dedup();
    open.iter().for_each(|s| symbols[*s] = 1);
    let names: Vec<String> = open.iter().map(|s| program.symbols[*s].clone()).collect();
    if let Some(warning) = assumed_as_one(&names) {
        observer.diagnostic(&warning);
    }
    let dim = |p: &Port, axis: usize| match p.dims[axis] {
        d if d >= 0 => Dim::from(d),
        _ => p.extent(axis, program).and_then(|e| e.eval(&symbols)).map_or_else(Dim::unknown, Dim::from),
    };
    let ty = |p: &Port| {
        let open = values::port_type(p)?;
        let (dtype, known) = (open.as_tensor()?.dtype, shapes.get(p.name.as_str()));
        Some(match known {
            Some(dims) => Type::fixed(dtype, dims),
            None if p.dims.iter().any(|d| *d < 0) => {
                Type::tensor(dtype, (0..p.dims.len()).map(|a| dim(p, a)).collect())
            }
            None => open,
        })
    };
    Ok(program.inputs.iter().map(ty).collect())
}

/// A symbol has this value.
fn set_symbol(program: &Program, symbols: &mut [i64], symbol: usize, n: i64) -> Result<(), Diagnostic> {
    match symbols.get_mut(symbol) {
        Some(old) if *old >= 0 && *old != n => Err(given_twice(&program.symbols[symbol], *old, n)),
        Some(old) => {
            *old = n;
            Ok(())
        }
        None => Ok(()),
    }
}

/// The name of the program for these bindings.
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
        assert_eq!(bound(&["x=2x6"]).unwrap(), want(&[("batch", 2), ("s", 3)]));
        assert_eq!(program_name(&bound(&["s=3", "batch=1"]).unwrap()), "batch=1,s=3");
    }

    #[test]
    fn contradictions_and_unknown_names_are_rejected() {
        assert_eq!(bound(&["batch=1", "batch=2"]).unwrap_err(), "dimension 'batch' is given as 1 and as 2");
        assert_eq!(bound(&["q=1"]).unwrap_err(), "the model has no dimension or input 'q'");
        assert_eq!(bound(&["x=axb"]).unwrap_err(), "'axb' is not a shape (of 'x')");
        assert!(bound(&["s=3", "x=2x5"]).unwrap_err().contains("it must be 6"));
        assert!(bound(&["x=2x5"]).unwrap_err().contains("never is"));
    }

    #[test]
    fn ranges_bind_symbols() {
        let ranged = |specs: &[&str]| -> Result<(Bindings, Vec<String>), String> {
            let (mut b, mut r) = (Bindings::new(), Ranges::new());
            let specs: Vec<String> = specs.iter().map(|s| (*s).to_string()).collect();
            bind_ranges(&specs, &func(), &mut b, &mut r).map_err(|e| e.0[0].message.clone())?;
            Ok((b, r.iter().map(|(k, r)| format!("{k}={r}")).collect()))
        };
        let numbers = |list: &[(&str, i64)]| list.iter().map(|(k, v)| ((*k).to_string(), *v)).collect::<Bindings>();
        let of = |list: &[&str]| list.iter().map(|s| (*s).to_string()).collect::<Vec<_>>();
        assert_eq!(ranged(&["batch=1:8:64"]), Ok((numbers(&[]), of(&["batch=1:8:64"]))));
        assert_eq!(ranged(&["batch=1:8:64", "s=3"]), Ok((numbers(&[("s", 3)]), of(&["batch=1:8:64"]))));
        // The second axis is twice as long as `s`, and the same at all ends.
        assert_eq!(ranged(&["x=1x6:2x6:4x6"]), Ok((numbers(&[("s", 3)]), of(&["batch=1:2:4"]))));
        assert_eq!(ranged(&["x=1x2:2x6:4x8"]), Ok((numbers(&[]), of(&["batch=1:2:4", "s=1:3:4"]))));
        assert_eq!(ranged(&["batch=1:8"]).unwrap_err(), "'1:8' is not a range (of 'batch')");
        assert_eq!(ranged(&["batch=8:1:64"]).unwrap_err(), "'batch' has no range 8:1:64");
        assert_eq!(ranged(&["batch=0:1:64"]).unwrap_err(), "'batch' has no range 0:1:64");
        assert_eq!(ranged(&["q=1:2:3"]).unwrap_err(), "the model has no dimension or input 'q'");
        let twice = ranged(&["batch=1:2:3", "batch=1:2:4"]).unwrap_err();
        assert_eq!(twice, "dimension 'batch' is given as 1:2:3 and as 1:2:4");
        assert_eq!(ranged(&["batch=1:2:3", "batch=2"]).unwrap_err(), "dimension 'batch' is given as 2 and as 1");
        assert!(bound(&["batch=1:8:64"]).unwrap_err().contains("is a range"));
    }

    #[test]
    fn unbound_dimensions_default_to_one_with_a_warning() {
        let mut b = bound(&["s=3"]).unwrap();
        let w = default_open(&func(), &mut b).unwrap();
        assert_eq!(w.message, "no extent for dimension 'batch': 1 is assumed");
        assert_eq!(b["batch"], 1);
        assert!(default_open(&func(), &mut b).is_none());
    }
}
