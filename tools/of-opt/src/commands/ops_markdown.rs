//! `of-opt ops --markdown`: what is supported, as a page of documentation.

use std::collections::BTreeMap;
use std::fmt::Write;

use of_ir::DType;
use of_onnx::{Operator, Support as ImportSupport, operators};
use of_ops::list::ALL;
use of_ops::{Kind, OpDecl};

use super::ops::{kind, slots};
use of_driver::op_support::{Runs, Support, probe};

const HEAD: &str = "\
# Operators

Written by `of-opt ops --markdown`, and found out by trying: each op of the IR is inferred for every element type, and
lowered on samples. *native* ops become native code on the CPU; what does not runs on the reference backend, for the
reason given, and `of-opt compile -v` says so for a model. Control flow and strings are the runtime's and the reference
backend's.

Maps are two tensors. An input `x` of map type is the inputs `x`, its values, and `x.keys`; a file with a `MapProto` gives both.
An output `y` that is a list of maps, as ZipMap gives it, is the outputs `y`, a row of values for each map, and `y.keys`, which
follows the model's own outputs.

Results that ONNX leaves open, and where onnxruntime may give others:

- Division and remainder of integers by zero fail the run with an error that names the node; onnxruntime ends. They give 0 where only
  the choices of `of.select` (Where) read the result, directly or after elementwise ops, reshapes and transposes: the kernel
  that divides does not know which elements are chosen. A choice by a constant condition does not count. The backends `xla`
  and `mlir` give 0.
- A conversion of a float to integers truncates; a number out of range becomes the nearest one, and NaN becomes 0.
- NaN wins in maxima, minima, `Relu`, `Clip` and max pools, and is the extreme element of `ArgMax` and `ArgMin`.
- A window of padding alone gives the least number of the type in a max pool, and 0 in an average pool.
- Each op on 16-bit floats rounds its result to 16 bits. onnxruntime computes chains of such ops in 32 bits.
- A stack of a loop without iterations has extent 0 along axes whose extents the types leave open.
";

/// The page.
pub fn page() -> String {
    let found: BTreeMap<&str, Support> = ALL.iter().map(|d| (d.name(), probe(*d))).collect();
    let mut out = String::from(HEAD);
    let all = operators();
    let mut domains: Vec<&str> = all.iter().map(|o| o.domain).collect();
    domains.dedup();
    for domain in domains {
        let list: Vec<&Operator> = all.iter().filter(|o| o.domain == domain).collect();
        let read = list.iter().filter(|o| !matches!(o.support, ImportSupport::Refused(_))).count();
        let name = if domain.is_empty() { "ai.onnx" } else { domain };
        let _ = writeln!(out, "\n## {name}\n\n{read} of {} operators are read.\n", list.len());
        let _ =
            writeln!(out, "| operator | operator sets | read as | element types | runs as |\n|---|---|---|---|---|");
        for o in list {
            row(&mut out, &onnx_row(o, &found));
        }
    }
    let _ = writeln!(out, "\n## Ops of the IR\n\n{} ops.\n", ALL.len());
    out.push_str(&table(ALL, &found));
    out
}

/// The ops alone.
pub fn of(ops: &[&'static dyn OpDecl]) -> String {
    let found = ops.iter().map(|d| (d.name(), probe(*d))).collect();
    table(ops, &found)
}

fn onnx_row(o: &Operator, found: &BTreeMap<&str, Support>) -> [String; 5] {
    let sets = match o.sets {
        [first, last] if first == last => format!("{first}"),
        [first, last] => format!("{first}–{last}"),
    };
    let (op, kinds, runs) = match &o.support {
        ImportSupport::Op(d) => {
            let support = found.get(d.name());
            let of = |f: fn(&Support) -> String| support.map(f).unwrap_or_default();
            (format!("`{}`", d.name()), of(|s| types(&s.types)), of(|s| runs(&s.runs)))
        }
        ImportSupport::Ops => ("several ops".into(), String::new(), "as its ops".into()),
        ImportSupport::Refused(why) => ("–".into(), String::new(), format!("not supported: {why}")),
    };
    [o.name.into(), sets, op, kinds, runs]
}

fn table(ops: &[&'static dyn OpDecl], found: &BTreeMap<&str, Support>) -> String {
    let mut out = String::from(
        "| op | kind | operands | results | attributes | ONNX | element types | runs as | |\n|---|---|---|---|---|---|---|---|---|\n",
    );
    for d in ops {
        let sig = d.signature();
        let attrs: Vec<String> = sig
            .attrs
            .iter()
            .map(|a| format!("`{}`: {}{}", a.name, a.kind, if a.optional { "?" } else { "" }))
            .collect();
        let support = found.get(d.name());
        row(
            &mut out,
            &[
                format!("`{}`", d.name()),
                kind(*d).into(),
                slots(sig.operands),
                slots(sig.results),
                attrs.join(", "),
                d.onnx().join(", "),
                support.map(|s| types(&s.types)).unwrap_or_default(),
                match (support.map(|s| &s.runs), d.kind()) {
                    (Some(Runs::Untried) | None, Kind::Structural) => "by the runtime, or when it is compiled".into(),
                    (Some(r), _) => runs(r),
                    (None, _) => String::new(),
                },
                super::ops::summary(*d),
            ],
        );
    }
    out
}

fn row(out: &mut String, cells: &[String]) {
    let cell = |s: &String| s.replace('|', "\\|").replace('\n', " ");
    let _ = writeln!(out, "| {} |", cells.iter().map(cell).collect::<Vec<_>>().join(" | "));
}

fn runs(r: &Runs) -> String {
    match r {
        Runs::Untried => String::new(),
        Runs::Native => "native".into(),
        Runs::Elsewhere { always: true, reasons } => format!("reference: {}", reasons.join("; ")),
        Runs::Elsewhere { always: false, reasons } => format!("native; reference where {}", reasons.join("; ")),
    }
}

/// Element types, families of them by one name.
fn types(list: &[DType]) -> String {
    use DType::{BF16, Bool, F16, F32, F64, I4, I8, I16, I32, I64, String, U4, U8, U16, U32, U64};
    if list.len() == DType::ALL.len() {
        return "all".into();
    }
    let f8: Vec<DType> = DType::ALL.into_iter().filter(|d| d.is_float() && d.bits() == Some(8)).collect();
    let families: [(&str, &[DType]); 7] = [
        ("floats", &[F64, F32, F16, BF16]),
        ("8-bit floats", &f8),
        ("signed", &[I8, I16, I32, I64]),
        ("unsigned", &[U8, U16, U32, U64]),
        ("4-bit", &[I4, U4]),
        ("bool", &[Bool]),
        ("string", &[String]),
    ];
    let mut names: Vec<&str> = Vec::new();
    for (name, members) in families {
        if members.iter().all(|d| list.contains(d)) {
            names.push(name);
        } else {
            names.extend(members.iter().filter(|d| list.contains(d)).map(|d| d.mlir_name()));
        }
    }
    names.join(", ")
}
