//! The command line: its global options and its subcommands.

use std::path::PathBuf;

use clap::{Parser, Subcommand};

use crate::arguments::MessageOptions;
use crate::commands::{
    backends, bench, cache, compile, completions, debug, diff, explain, export, import, inspect, lsp, man, measure,
    ops, opt, passes, profile, run, sign, simulate, verify,
};

/// A tensor compiler: imports ONNX models, rewrites them, compiles them to plans and runs those.
#[derive(Parser, Debug)]
#[command(name = "of-opt", version, max_term_width = 120)]
#[command(override_usage = "of-opt [OPTIONS] IN.of\n       of-opt <COMMAND> [OPTIONS] …")]
#[command(
    after_help = "Exit codes: 0 done, 1 failed or different, 2 bad input, 3 not supported, 4 a limit is exceeded, 128+N ended by signal N.\n\
    Environment: RUST_LOG (log levels by module), NO_COLOR, CC (the C compiler), OF_CACHE_DIR (compiled kernels),\n    OF_PJRT_PLUGIN (XLA's plugin)."
)]
pub struct Cli {
    /// What to do; without it IN.of goes through passes and is printed.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// Running passes.
    #[command(flatten)]
    pub opt: opt::Opt,
    /// Messages.
    #[command(flatten)]
    pub messages: MessageOptions,
    /// A shared library that holds ops, a backend, or both; may be repeated
    #[arg(long, global = true, value_name = "PATH", help_heading = "Libraries")]
    pub library: Vec<PathBuf>,
}

/// The subcommands.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Turn an ONNX model into IR text
    Import(import::Import),
    /// Turn a model into an ONNX model
    Export(export::Export),
    /// Compile a model to a plan
    Compile(compile::Compile),
    /// Run a model or plan on given inputs
    Run(run::Run),
    /// Measure the run time of a model or plan
    Bench(bench::Bench),
    /// Measure each task of a run, and compare kernels with the roofline of this machine
    Profile(profile::Profile),
    /// Show the contents of a plan or model
    Inspect(inspect::Inspect),
    /// Show the differences between two plans
    Diff(diff::Diff),
    /// Find the first op whose values differ between native code and another runtime, and reduce the model to it
    Debug(debug::Debug),
    /// Verify a plan or model without running it
    Verify(verify::Verify),
    /// Sign a plan with a private key
    Sign(sign::Sign),
    /// Check who signed a plan
    VerifySignature(sign::VerifySignature),
    /// Choose the layouts of a model's tensors on a mesh of devices, and explain the choice
    Explain(explain::Explain),
    /// Predict the time and memory of a model or plan on the ranks of a mesh
    Simulate(simulate::Simulate),
    /// Benchmark this machine and write a mesh description for simulate and explain
    Measure(measure::Measure),
    /// List passes and pipelines
    Passes(passes::Passes),
    /// List ops, or show one in full
    Ops(ops::Ops),
    /// Serve editors: the language server of IR text, on stdin and stdout
    Lsp(lsp::Lsp),
    /// List the backends, and whether they work on this machine
    Backends(backends::BackendsCommand),
    /// Show or empty the cache of compiled kernels
    Cache(cache::CacheCommand),
    /// Print a script that completes this command line in a shell
    Completions(completions::Completions),
    /// Print the manual page, or write all of them into a folder
    Man(man::ManPages),
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn global_flags_are_accepted_anywhere() {
        let c = Cli::try_parse_from(["of-opt", "-v", "inspect", "x.onnx"]).unwrap();
        assert_eq!(c.messages.verbose, 1);
        let c = Cli::try_parse_from(["of-opt", "inspect", "x.onnx", "-vv"]).unwrap();
        assert_eq!(c.messages.verbose, 2);
        let c = Cli::try_parse_from(["of-opt", "x.of", "--passes=dce", "-q"]).unwrap();
        assert!(c.command.is_none() && c.messages.quiet);
    }
}
