//! `of-opt zoo`: the models that are built in.

use std::fmt::Write;

use clap::Args;
use of_diag::{Code, Diagnostics, closest};
use of_driver::error;
use of_driver::zoo::{MODELS, PREFIX};
use serde_json::json;

use crate::console::Console;

/// Flags.
#[derive(Args, Debug)]
#[command(
    after_help = "zoo:NAME stands in the place of a model, such as `of-opt train zoo:resnet50`, and zoo:NAME:KEY=VALUE,… one with \
                  settings. 'small' gives all settings their small values, 'weights=FILE.safetensors' the parameters of a state \
                  dict of PyTorch, and 'seed=N' other first values."
)]
pub struct Zoo {
    /// Show this model with its settings
    pub name: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Executes the subcommand.
///
/// # Errors
/// When there is no such model, or stdout cannot be written.
pub fn zoo(c: &Zoo, console: &Console) -> Result<(), Diagnostics> {
    let shown =
        |name: &str| c.name.as_deref().is_none_or(|wanted| wanted.strip_prefix(PREFIX).unwrap_or(wanted) == name);
    let models: Vec<_> = MODELS.iter().filter(|model| shown(model.name)).collect();
    if let (Some(name), true) = (&c.name, models.is_empty()) {
        let hint = closest(name, MODELS.iter().map(|model| model.name)).map(|meant| format!("did you mean '{meant}'?"));
        let hint = hint.unwrap_or_else(|| "'of-opt zoo' lists them".into());
        return Err(error(Code::NAME, format!("the zoo has no model '{name}'")).hint(hint).into());
    }
    if c.json {
        let list: Vec<_> = models
            .iter()
            .map(|model| {
                let setting = |s: &of_driver::zoo::Setting| {
                    json!({"name": s.name, "published": s.published, "small": s.small, "about": s.about})
                };
                let settings: Vec<_> = model.settings.iter().map(setting).collect();
                json!({"name": model.name, "about": model.about, "loss": model.loss, "settings": settings})
            })
            .collect();
        return console.print(&format!("{:#}\n", json!(list)));
    }
    let mut out = String::new();
    let width = models.iter().map(|model| model.name.len()).max().unwrap_or(0);
    for model in &models {
        let _ = writeln!(out, "{:width$}  {}", model.name, model.about);
        if c.name.is_some() {
            let _ = writeln!(out, "trained with {}", model.loss);
            for s in model.settings {
                let _ = writeln!(out, "  {}={}  {} (small: {})", s.name, s.published, s.about, s.small);
            }
        }
    }
    console.print(&out)
}
