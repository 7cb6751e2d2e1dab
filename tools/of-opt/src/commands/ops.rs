//! `of-opt ops`: every op, or one in full.

use std::fmt::Write;

use clap::Args;
use of_diag::{Code, Diagnostics};
use of_driver::error;
use of_ir::{Arity, OpDef, Slot};
use of_ops::list::ALL;
use of_ops::{Kind, OpDecl};
use serde_json::{Value, json};

use super::ops_markdown;
use crate::console::Console;

/// Flags.
#[derive(Args, Debug)]
pub struct Ops {
    /// Show this op in full (of.matmul or matmul), or those that an ONNX operator of this name imports to
    #[arg(value_name = "NAME")]
    pub name: Option<String>,
    /// Print Markdown tables of supported ops, determined by test compilation
    #[arg(long, conflicts_with = "json")]
    pub markdown: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Executes the subcommand.
///
/// # Errors
/// When there is no such op.
pub fn ops(c: &Ops, console: &Console) -> Result<(), Diagnostics> {
    let chosen = match &c.name {
        // What libraries add is no part of the documentation.
        None if c.markdown => ALL.to_vec(),
        None => all(),
        Some(name) => named(name)?,
    };
    let text = match &c.name {
        _ if c.json => format!("{:#}\n", Value::Array(chosen.iter().map(|d| as_json(*d)).collect())),
        None if c.markdown => ops_markdown::page(),
        Some(_) if c.markdown => ops_markdown::of(&chosen),
        Some(_) => chosen.iter().map(|d| in_full(*d)).collect::<Vec<_>>().join("\n"),
        None => list(&chosen),
    };
    console.print(&text)
}

/// The list, then what libraries added.
fn all() -> Vec<&'static dyn OpDecl> {
    ALL.iter().copied().chain(of_ops::op_registry::all()).collect()
}

fn named(name: &str) -> Result<Vec<&'static dyn OpDecl>, Diagnostics> {
    let exact = all().into_iter().find(|d| d.name() == name || d.name().strip_prefix("of.") == Some(name));
    if let Some(d) = exact {
        return Ok(vec![d]);
    }
    let from_onnx: Vec<_> = all().into_iter().filter(|d| d.onnx().contains(&name)).collect();
    if !from_onnx.is_empty() {
        return Ok(from_onnx);
    }
    let part = name.trim_start_matches("of.").to_ascii_lowercase();
    let near: Vec<_> = all().into_iter().map(|d| d.name()).filter(|n| n.contains(&part)).collect();
    let hint =
        if near.is_empty() { "'of-opt ops' lists them all".into() } else { format!("there are {}", near.join(", ")) };
    Err(error(Code::UNKNOWN_OP, format!("there is no op '{name}'")).hint(hint).into())
}

pub(super) fn kind(d: &dyn OpDecl) -> &'static str {
    match d.kind() {
        Kind::Primitive => "primitive",
        Kind::Composite => "composite",
        Kind::Structural => "structural",
    }
}

pub(super) fn slots(slots: &[Slot]) -> String {
    let one = |s: &Slot| match s.arity {
        Arity::One => s.name.to_string(),
        Arity::Optional => format!("{}?", s.name),
        Arity::Variadic => format!("{}…", s.name),
    };
    slots.iter().map(one).collect::<Vec<_>>().join(", ")
}

fn list(ops: &[&'static dyn OpDecl]) -> String {
    let width = ops.iter().map(|d| d.name().len()).max().unwrap_or(0);
    let mut out = String::new();
    for d in ops {
        let _ = writeln!(out, "{:width$}  {:10}  {}", d.name(), kind(*d), summary(*d));
    }
    let _ = writeln!(out, "{} ops; 'of-opt ops NAME' shows one in full", ops.len());
    out
}

fn in_full(d: &dyn OpDecl) -> String {
    let sig = d.signature();
    let mut out = format!("{} ({})\n\n", d.name(), kind(d));
    for line in d.doc().trim().lines() {
        let _ = writeln!(out, "  {}", line.strip_prefix(' ').unwrap_or(line));
    }
    let none = |s: String| if s.is_empty() { "none".to_string() } else { s };
    let _ = writeln!(out, "\noperands    {}", none(slots(sig.operands)));
    let _ = writeln!(out, "results     {}", none(slots(sig.results)));
    for (i, a) in sig.attrs.iter().enumerate() {
        let head = if i == 0 { "attributes" } else { "" };
        let _ = writeln!(out, "{head:10}  {}: {}{}", a.name, a.kind, if a.optional { ", may be left out" } else { "" });
    }
    if sig.regions > 0 {
        let _ = writeln!(out, "regions     {}", sig.regions);
    }
    let t = d.traits();
    let traits: Vec<_> = [(t.terminator, "ends a region"), (t.effect, "has effects"), (t.constant, "is a constant")]
        .into_iter()
        .filter_map(|(is, what)| is.then_some(what))
        .collect();
    if !traits.is_empty() {
        let _ = writeln!(out, "traits      {}", traits.join(", "));
    }
    let _ = writeln!(out, "ONNX        {}", none(d.onnx().join(", ")));
    out
}

fn as_json(d: &dyn OpDecl) -> Value {
    let sig = d.signature();
    let slot = |s: &Slot| {
        let arity = match s.arity {
            Arity::One => "one",
            Arity::Optional => "optional",
            Arity::Variadic => "variadic",
        };
        json!({"name": s.name, "arity": arity})
    };
    let attrs: Vec<_> =
        sig.attrs.iter().map(|a| json!({"name": a.name, "kind": a.kind, "optional": a.optional})).collect();
    let t = d.traits();
    json!({
        "name": d.name(), "kind": kind(d), "doc": d.doc().trim(), "onnx": d.onnx(),
        "operands": sig.operands.iter().map(slot).collect::<Vec<_>>(),
        "results": sig.results.iter().map(slot).collect::<Vec<_>>(),
        "attributes": attrs, "regions": sig.regions,
        "terminator": t.terminator, "effect": t.effect, "constant": t.constant,
    })
}

/// What an op computes, in one line.
pub(super) fn summary(def: &dyn OpDef) -> String {
    def.summary().split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ops_are_found_by_either_name() {
        assert_eq!(named("matmul").unwrap()[0].name(), "of.matmul");
        assert_eq!(named("MatMul").unwrap()[0].name(), "of.matmul");
        let e = named("of.matmu").err().unwrap();
        assert!(e.0[0].hint.as_ref().unwrap().contains("of.matmul"));
    }

    #[test]
    fn every_op_has_documentation_in_every_form() {
        for d in ALL {
            assert!(!d.doc().trim().is_empty(), "{} has no documentation", d.name());
            let full = in_full(*d).split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(full.contains(&summary(*d)), "{}", d.name());
        }
    }
}
