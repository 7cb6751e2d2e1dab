//! `of-opt passes`: every pass and pipeline.

use std::fmt::Write;

use clap::Args;
use of_diag::Diagnostics;
use of_passes::{PIPELINES, passes as all_passes};
use serde_json::json;

use crate::console::Console;

/// Flags.
#[derive(Args, Debug)]
pub struct Passes {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Executes the subcommand.
///
/// # Errors
/// When stdout cannot be written.
pub fn passes(c: &Passes, console: &Console) -> Result<(), Diagnostics> {
    console.print(&if c.json { as_json() } else { as_text() })
}

fn as_json() -> String {
    let passes: Vec<_> = all_passes()
        .iter()
        .map(|p| {
            let options: Vec<_> =
                p.options().iter().map(|o| json!({"name": o.name, "doc": o.doc.trim(), "kind": o.kind})).collect();
            json!({"name": p.name(), "summary": p.summary(), "options": options})
        })
        .collect();
    let pipelines: Vec<_> =
        PIPELINES.iter().map(|p| json!({"name": p.name, "summary": p.summary, "text": p.text})).collect();
    format!("{:#}\n", json!({"passes": passes, "pipelines": pipelines}))
}

fn as_text() -> String {
    let width =
        all_passes().iter().map(|p| p.name().len()).chain(PIPELINES.iter().map(|p| p.name.len())).max().unwrap_or(0);
    let mut out = String::from("Passes\n");
    for p in all_passes() {
        let _ = writeln!(out, "  {:width$}  {}", p.name(), p.summary());
        for o in p.options() {
            let _ = writeln!(out, "  {:width$}    {}={}  {}", "", o.name, o.kind, o.doc.trim());
        }
    }
    out.push_str("\nPipelines\n");
    for p in PIPELINES {
        let _ = writeln!(out, "  {:width$}  {}\n  {:width$}    {}", p.name, p.summary, "", p.text);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_passes_and_pipelines_are_listed() {
        let json: serde_json::Value = serde_json::from_str(&as_json()).unwrap();
        assert_eq!(json["passes"].as_array().unwrap().len(), all_passes().len());
        let text = as_text();
        for p in PIPELINES {
            assert!(text.contains(p.text), "{text}");
        }
    }
}
