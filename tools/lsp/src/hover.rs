//! What a value, op, function or mesh is, as Markdown.

use std::fmt::Write;

use of_diag::Location;
use of_ir::text::{FuncSource, NameSource, Span, TokenKind, print_attr};
use of_ir::{Arity, Attr, DType, Dim, Graph, Mesh, Module, OpDef, OpId, Slot, Tensor, Type, ValueDef, ValueId};
use serde_json::{Value, json};

use crate::analysis::Analysis;

/// Elements of a constant that are shown.
const MAX_ELEMENTS: usize = 8;

/// What is at a byte; null where nothing is known.
pub fn hover(analysis: &Analysis, at: usize) -> Value {
    let Some((text, span)) = describe(analysis, at) else { return Value::Null };
    json!({"contents": {"kind": "markdown", "value": text.trim_start()}, "range": analysis.text.range(span)})
}

fn describe(analysis: &Analysis, at: usize) -> Option<(String, Span)> {
    let token = analysis.token_at(at)?;
    Some(match token.kind {
        TokenKind::Value | TokenKind::Hash => {
            let (func, name) = analysis.name_at(at)?;
            (value(analysis, func, name)?, name.at)
        }
        TokenKind::Symbol => (symbol(analysis, analysis.text.get(token.into()))?, token.into()),
        TokenKind::Ident | TokenKind::Str => {
            let span = Span::from(token);
            let func = analysis.func_at(at)?;
            let op = func.ops.iter().find(|o| o.name == span)?;
            (named_op(analysis, func, analysis.text.get(span), op.op)?, span)
        }
        _ => return None,
    })
}

fn value(analysis: &Analysis, func: &FuncSource, name: &NameSource) -> Option<String> {
    let graph = &analysis.func(func)?.graph;
    let mut out = String::new();
    for i in 0..name.count as usize {
        let value = graph.value_at(name.value.index() + i)?;
        let text = analysis.text.get(name.at);
        let shown = if name.count > 1 { format!("{text}#{i}") } else { text.to_owned() };
        write_value(&mut out, &analysis.module, graph, &shown, value);
    }
    match graph.def(name.value) {
        ValueDef::Result(op, _) => write_op(&mut out, &analysis.file, graph, op),
        ValueDef::Arg(region, i) => {
            let parent = graph.region_parent(region).map(|op| format!("a region of `{}`", graph.op(op).name()));
            let of = parent.unwrap_or_else(|| format!("`@{}`", func.symbol));
            // A placeholder of an op with errors is in no region of the function.
            if *graph.ty(name.value) != Type::None || graph.args().contains(&name.value) {
                let _ = writeln!(out, "\nargument {i} of {of}");
            }
        }
    }
    Some(out)
}

fn named_op(analysis: &Analysis, func: &FuncSource, text: &str, op: Option<OpId>) -> Option<String> {
    let mut out = String::new();
    match (analysis.func(func), op) {
        (Some(f), Some(op)) => {
            write_op(&mut out, &analysis.file, &f.graph, op);
            write_signature(&mut out, f.graph.op(op).def);
            for (i, v) in f.graph.op(op).results.iter().enumerate() {
                let given = func.names.iter().find(|n| n.is_definition && n.value == *v);
                let shown = given.map_or_else(|| format!("result {i}"), |n| analysis.text.get(n.at).to_owned());
                write_value(&mut out, &analysis.module, &f.graph, &shown, *v);
            }
        }
        // An op with errors still has a declaration.
        _ => {
            let def = of_ops::registry().get(text.trim_matches('"'))?;
            let _ = writeln!(out, "**{}**: {}", def.name(), def.summary());
            write_signature(&mut out, def);
        }
    }
    Some(out)
}

/// The op's name and summary, the value of a constant, and where it comes from, other than from its own text.
fn write_op(out: &mut String, own: &str, graph: &Graph, op: OpId) {
    let data = graph.op(op);
    let _ = writeln!(out, "\n**{}**: {}", data.name(), data.def.summary());
    if let Some(t) = data.def.constant(&data.attrs) {
        let _ = writeln!(out, "\nvalue: `{}`", constant(&t));
    }
    for root in data.loc.roots() {
        match root {
            Location::Onnx { node, index, op } => {
                let _ = writeln!(out, "\nONNX node {index}: `{}` {}", code(op), escaped(node));
            }
            Location::Source { file, line, col } if **file != *own => {
                let _ = writeln!(out, "\nfrom {}:{line}:{col}", escaped(file));
            }
            _ => {}
        }
    }
    if let Location::Derived { by, .. } = &data.loc {
        let _ = writeln!(out, "\nmade by {}", escaped(by));
    }
}

/// Operands, results and attributes of a declaration.
fn write_signature(out: &mut String, def: &dyn OpDef) {
    let _ = writeln!(out, "\n`{}`", signature(def));
    for a in def.signature().attrs {
        let _ = writeln!(out, "- `{}`: {}{}", a.name, a.kind, if a.optional { ", may be left out" } else { "" });
    }
}

/// `(a, b?, more…) -> (y)`.
pub fn signature(def: &dyn OpDef) -> String {
    let slots = |slots: &[Slot]| {
        let one = |s: &Slot| match s.arity {
            Arity::One => s.name.to_string(),
            Arity::Optional => format!("{}?", s.name),
            Arity::Variadic => format!("{}…", s.name),
        };
        slots.iter().map(one).collect::<Vec<_>>().join(", ")
    };
    let s = def.signature();
    format!("({}) -> ({})", slots(s.operands), slots(s.results))
}

/// A value: its type, and in words the element type, shape, size and layout.
fn write_value(out: &mut String, module: &Module, graph: &Graph, name: &str, value: ValueId) {
    let ty = graph.ty(value);
    let _ = writeln!(out, "\n`{name}: {}`", code(&ty.to_string()));
    let Type::Tensor(t) = ty else { return };
    let shape = match &t.shape {
        None => "of unknown rank".to_string(),
        Some(s) if s.is_empty() => "scalar".to_string(),
        Some(s) => s.iter().map(ToString::to_string).collect::<Vec<_>>().join(" × "),
    };
    let _ = write!(out, "\n{} {}", t.dtype.mlir_name(), escaped(&shape));
    if let Some(size) = t.shape.as_ref().and_then(|s| size(t.dtype, s)) {
        let _ = write!(out, ", {}", escaped(&size));
    }
    out.push('\n');
    if let Some(sbp) = &t.sbp {
        let axes: Vec<String> = sbp.axes.iter().map(ToString::to_string).collect();
        let mesh = module.meshes.get(&*sbp.mesh).map(|m| format!(" ({})", mesh_text(m))).unwrap_or_default();
        let _ = writeln!(out, "\nlayout: [{}] on `@{}`{}", axes.join(", "), code(&sbp.mesh), escaped(&mesh));
    }
}

/// The bytes of a whole tensor; an expression where dimensions are open.
fn size(dtype: DType, shape: &[Dim]) -> Option<String> {
    let bits = dtype.bits()?;
    if shape.iter().any(Dim::is_unknown) {
        return None;
    }
    let fixed: Option<Vec<usize>> = shape.iter().map(|d| usize::try_from(d.as_const()?).ok()).collect();
    if let Some(dims) = fixed {
        let n = dims.iter().try_fold(1usize, |n, d| n.checked_mul(*d))?;
        return Some(bytes(dtype.byte_len(n)?));
    }
    if bits < 8 {
        return None;
    }
    let numbers = shape.iter().filter_map(Dim::as_const).try_fold((bits / 8) as i64, i64::checked_mul)?;
    let symbols = shape.iter().filter(|d| d.as_const().is_none()).map(|d| match d.as_symbol() {
        Some(s) => s.to_string(),
        None => format!("({d})"),
    });
    Some(format!("{numbers} * {} bytes", symbols.collect::<Vec<_>>().join(" * ")))
}

/// `24 bytes`, `1.5 MiB (1572864 bytes)`.
fn bytes(n: usize) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if n < 1024 {
        return format!("{n} bytes");
    }
    let (mut scaled, mut unit) = (n as f64 / 1024.0, 0);
    while scaled >= 1024.0 && unit + 1 < UNITS.len() {
        (scaled, unit) = (scaled / 1024.0, unit + 1);
    }
    format!("{scaled:.1} {} ({n} bytes)", UNITS[unit])
}

/// The first elements of a constant.
fn constant(t: &Tensor) -> String {
    let n = t.len().min(MAX_ELEMENTS);
    let first = match (t.strings(), t.bytes()) {
        (Some(s), _) => Tensor::from_strings(vec![n], s[..n].to_vec()).ok(),
        (None, Some(b)) => t
            .dtype()
            .byte_len(n)
            .and_then(|len| b.slice(0..len))
            .and_then(|b| Tensor::from_bytes(t.dtype(), vec![n], b).ok()),
        (None, None) => None,
    };
    let Some(first) = first else { return format!("{} elements", t.len()) };
    let shown = if t.dims().is_empty() { first.reshaped(Vec::new()).unwrap_or(first) } else { first };
    let text = print_attr(&Attr::Tensor(shown));
    let text = text.rsplit_once(" : ").map_or(text.as_str(), |(value, _)| value);
    let text: String = text.chars().take(400).collect();
    let rest = if t.len() > n { format!(" … {} elements", t.len()) } else { String::new() };
    format!("{}{rest}", code(&text))
}

/// A function or mesh by its name with `@`.
fn symbol(analysis: &Analysis, text: &str) -> Option<String> {
    let mut out = String::new();
    let name = text.trim_start_matches('@').trim_matches('"');
    if let Some(f) = analysis.module.funcs.get(name) {
        let list = |names: &[String], types: Vec<Type>| {
            let one = |(n, t): (&String, Type)| format!("{n}: {t}");
            names.iter().zip(types).map(one).collect::<Vec<_>>().join(", ")
        };
        let (inputs, outputs) = (list(&f.inputs, f.input_types()), list(&f.outputs, f.output_types()));
        let _ = writeln!(out, "`func @{}({}) -> ({})`", code(name), code(&inputs), code(&outputs));
        let ops = analysis.index.funcs.iter().find(|s| s.symbol == name).map_or(0, |s| s.ops.len());
        let _ = writeln!(out, "\n{ops} ops");
    }
    if let Some(m) = analysis.module.meshes.get(name) {
        let _ = writeln!(out, "\nmesh `@{}`: {}", code(name), escaped(&mesh_text(m)));
    }
    (!out.is_empty()).then_some(out)
}

fn mesh_text(m: &Mesh) -> String {
    let shape = m.shape.iter().map(ToString::to_string).collect::<Vec<_>>().join(" × ");
    format!("{shape} {}", m.devices)
}

/// Text inside of backquotes.
fn code(text: &str) -> String {
    text.replace('`', "'")
}

/// Text of a model is no markup.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in of_diag::escaped(text).chars() {
        if matches!(c, '\\' | '`' | '*' | '_' | '[' | ']' | '<' | '>' | '#' | '!' | '|' | '&' | '~') {
            out.push('\\');
        }
        out.push(c);
    }
    out
}
