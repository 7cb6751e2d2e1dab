//! `of-opt export`: a model becomes an ONNX model.

use std::path::PathBuf;

use clap::Args;
use of_diag::{Code, Diagnostics};
use of_driver::prepare::verify;
use of_driver::{Observer, error, io_error};
use of_onnx::ExportOptions;
use of_passes::{Manager, PIPELINE_FILE};

use crate::arguments::ModelFile;
use crate::console::{Console, is_dash};
use crate::model_file;
use crate::show::bytes;
use of_driver::ModelOrPlan;
use of_driver::count;

/// Flags.
#[derive(Args, Debug)]
pub struct Export {
    /// The model.
    #[command(flatten)]
    pub model: ModelFile,
    /// The ONNX model; `-` for stdout
    #[arg(short, long, value_name = "MODEL.onnx")]
    pub output: PathBuf,
    /// Passes before the export, e.g. simplify,specialize{batch=8}
    #[arg(long, value_name = "PIPELINE")]
    pub passes: Option<String>,
    /// The newest operator set that may be used; composites that came later are expanded
    #[arg(long, value_name = "N", default_value_t = of_onnx::NEWEST_OPSET)]
    pub opset: i64,
    /// Write weights to a separate file even if the model could hold them
    #[arg(long)]
    pub external_data: bool,
}

/// Executes the subcommand.
///
/// # Errors
/// When the model is damaged, a pass fails, or ONNX has no word for something.
pub fn export(c: &Export, console: &Console) -> Result<(), Diagnostics> {
    let text = c.passes.as_deref().unwrap_or_default();
    console.source(PIPELINE_FILE, text);
    // The pipeline first: a typing error in it should not wait for a large file.
    let mut manager = Manager::parse(text)?;
    let ModelOrPlan::Model(source) = model_file::open(&c.model, console)? else {
        let what = format!("'{}' is a plan, which cannot be exported", c.model.model.display());
        return Err(error(Code::INPUT, what).hint("export the model that it was compiled from").into());
    };
    let mut module = source.module;
    verify(&module)?;
    manager.settings.reproducers = Some(std::env::temp_dir());
    let report = manager.run(&mut module, &mut |s| console.ir(s))?;
    console.report(&report.warnings);
    let progress = console.progress(&format!("writing {}", c.output.display()));
    let options = ExportOptions { newest_opset: c.opset, external_data: c.external_data };
    if is_dash(&c.output) {
        let bytes = of_onnx::export_bytes(&module, &options)?;
        drop(progress);
        return console.print_bytes("an ONNX model", &bytes);
    }
    let exported = of_onnx::export_file(&c.output, &module, &options)?;
    drop(progress);
    let size = |path: &PathBuf| std::fs::metadata(path).map(|m| m.len()).map_err(|e| io_error(path, "read", &e));
    let data = match &exported.data {
        Some(path) => format!(" and {} of weights", bytes(size(path)?)),
        None => String::new(),
    };
    let (nodes, own) = (count(exported.nodes, "node"), bytes(size(&c.output)?));
    console.note(&format!("{}: opset {}, {nodes}, {own}{data}", c.output.display(), exported.opset));
    Ok(())
}
