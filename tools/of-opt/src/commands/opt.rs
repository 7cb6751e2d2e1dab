//! `of-opt IN.of`: reads IR, runs passes, prints IR.

use std::path::{Path, PathBuf};

use clap::{Args, Command};
use of_diag::{Diagnostics, Location, closest};
use of_driver::prepare::verify;
use of_driver::{Activity, Observer, checkpoint, error, io_error, model};
use of_ir::Module;
use of_ir::text::{Constants, PrintOptions, print_module, write_module};
use of_passes::{Manager, PIPELINE_FILE, Settings};

use crate::console::{Console, goes_to_terminal, is_dash};
use crate::expected;
use crate::{exit, limits, model_file};

/// Flags of the pass runner.
#[derive(Args, Debug, Default)]
#[command(next_help_heading = "Running passes on IR text")]
pub struct Opt {
    /// IR text; `-` for stdin
    #[arg(value_name = "IN.of")]
    pub input: Option<PathBuf>,
    /// Passes and pipelines, e.g. simplify,specialize{batch=8}
    #[arg(long, value_name = "PIPELINE")]
    pub passes: Option<String>,
    /// Output file of the IR; large constants go to a file of the same name with the extension ofdata [default: stdout]
    #[arg(short, long, value_name = "OUT")]
    pub output: Option<PathBuf>,
    /// Print the IR to stderr before these passes; '*' for all (MLIR: --mlir-print-ir-before)
    #[arg(long, value_name = "PASS", value_delimiter = ',')]
    pub print_before: Vec<String>,
    /// Print the IR to stderr after these passes; '*' for all (MLIR: --mlir-print-ir-after)
    #[arg(long, value_name = "PASS", value_delimiter = ',')]
    pub print_after: Vec<String>,
    /// Print to stderr what every pass changed, as a unified diff (MLIR: --mlir-print-ir-after-change)
    #[arg(long)]
    pub print_changed: bool,
    /// Write the IR after each pass to a file of this folder: 00-input.of, 01-PASS.of … (MLIR: --mlir-print-ir-tree-dir)
    #[arg(long, value_name = "DIR")]
    pub print_dir: Option<PathBuf>,
    /// Print to stderr how long each pass took (MLIR: --mlir-timing)
    #[arg(long)]
    pub time_passes: bool,
    /// Compare diagnostics with `expected-error {{…}}` comments in the file instead of printing them
    #[arg(long)]
    pub verify_diagnostics: bool,
    /// Print the form that upstream MLIR reads
    #[arg(long)]
    pub print_generic: bool,
    /// Print where every op comes from
    #[arg(long)]
    pub print_locations: bool,
    /// Print to stderr every op that 'optimize' made, with the rules that made it and what it comes from
    #[arg(long)]
    pub print_rewrites: bool,
    /// Print large constants as `…`; such text cannot be parsed again. Always so on a terminal
    #[arg(long)]
    pub elide_constants: bool,
    /// Verify the IR after every pass
    #[arg(long)]
    pub verify_each: bool,
    /// Directory for crash reproducers (MLIR: --mlir-pass-pipeline-crash-reproducer): the IR before a pass that fails [default: the system's temporary folder]
    #[arg(long, value_name = "DIR")]
    pub reproducers: Option<PathBuf>,
}

impl Opt {
    /// Whether anything of it was given.
    pub fn is_given(&self) -> bool {
        self.input.is_some() || self.passes.is_some() || self.output.is_some()
    }

    fn settings(&self) -> Settings {
        Settings {
            print_before: self.print_before.clone(),
            print_after: self.print_after.clone(),
            print_changed: self.print_changed,
            print_dir: self.print_dir.clone(),
            print_generic: self.print_generic,
            print_locations: self.print_locations,
            verify_each: self.verify_each || cfg!(debug_assertions),
            reproducers: Some(self.reproducers.clone().unwrap_or_else(std::env::temp_dir)),
        }
    }
}

/// Executes passes on a file, for the command line `program`.
///
/// # Errors
/// When the text, the pipeline or a pass is wrong.
pub fn opt(o: &Opt, mut program: Command, console: &Console) -> Result<(), Diagnostics> {
    let Some(input) = &o.input else {
        console.note(&program.render_help().to_string());
        return Err(exit::usage("neither a file nor a command was given").into());
    };
    if !is_dash(input) && !input.exists() && input.extension().is_none() {
        let what = format!("there is no file and no command '{}'", input.display());
        let names: Vec<String> = program.get_subcommands().map(|c| c.get_name().to_owned()).collect();
        let hint = match closest(&input.to_string_lossy(), names.iter().map(String::as_str)) {
            Some(meant) => format!("did you mean '{meant}'? 'of-opt --help' lists the commands"),
            None => "'of-opt --help' lists the commands".into(),
        };
        return Err(error(of_diag::Code::IO, what).hint(hint).into());
    }
    let outcome = transform(o, input, console);
    if o.verify_diagnostics {
        let found = match outcome {
            Ok((_, warnings)) => warnings,
            Err(d) => d,
        };
        let text = if is_dash(input) {
            None
        } else {
            Some(std::fs::read_to_string(input).map_err(|e| io_error(input, "read", &e))?)
        };
        let Some(text) = text else { return Err(exit::usage("--verify-diagnostics needs a file").into()) };
        return expected::compare(&input.display().to_string(), &text, &found);
    }
    let (module, warnings) = outcome?;
    console.report(&warnings);
    write(o, &module, console)
}

/// The module after all passes, and the warnings of the passes.
fn transform(o: &Opt, input: &Path, console: &Console) -> Result<(Module, Diagnostics), Diagnostics> {
    let text = o.passes.as_deref().unwrap_or_default();
    console.source(PIPELINE_FILE, text);
    // The pipeline first: a typing error in it should not wait for a large file.
    let mut manager = Manager::parse(text)?;
    manager.settings = o.settings();
    manager.checkpoint = checkpoint(&Activity::default(), &limits::of_compilations());
    check_names("--print-before", &o.print_before)?;
    check_names("--print-after", &o.print_after)?;
    let mut module = match input.extension().and_then(|e| e.to_str()) {
        Some("onnx") => model::import(input, console)?.module,
        _ => model_file::read_text(input, console)?.module,
    };
    verify(&module)?;
    let report = manager.run(&mut module, &mut |s| console.ir(s))?;
    if o.time_passes {
        console.ir(&report.table().to_string());
    }
    if o.print_rewrites {
        console.ir(&of_passes::egraph::provenance::rewrites(&module));
    }
    Ok((module, report.warnings))
}

fn check_names(option: &str, passes: &[String]) -> Result<(), Diagnostics> {
    let unknown = passes.iter().find(|p| *p != "*" && of_passes::find(p).is_none());
    match unknown {
        None => Ok(()),
        Some(p) => {
            let d = of_diag::Diagnostic::error(
                of_diag::Code::PIPELINE,
                Location::Unknown,
                format!("{option}: no pass '{p}'"),
            );
            Err(d.hint("'of-opt passes' lists them all, '*' is all of them").into())
        }
    }
}

fn write(o: &Opt, module: &Module, console: &Console) -> Result<(), Diagnostics> {
    let elide = o.elide_constants || goes_to_terminal(o.output.as_deref());
    let constants = if elide { Constants::Elided } else { Constants::Inline };
    let options = PrintOptions { generic: o.print_generic, locations: o.print_locations, constants };
    match &o.output {
        Some(path) if !is_dash(path) && !o.elide_constants => write_module(path, module, &options),
        Some(path) if !is_dash(path) => {
            of_files::write(path, print_module(module, &options)).map_err(|e| io_error(path, "written", &e).into())
        }
        _ => console.print(&print_module(module, &options)),
    }
}
