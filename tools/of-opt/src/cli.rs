//! The command line: its global options and its subcommands.

use std::path::PathBuf;

use clap::{Parser, Subcommand};
use of_cli::messages::MessageOptions;

use crate::commands::{
    backends, bench, cache, compile, completions, debug, diff, explain, explain_error, export, import, inspect, lsp,
    man, measure, ops, opt, passes, profile, run, sign, simulate, train, verify, view, why_stuck, zoo,
};
#[cfg(feature = "serve")]
use crate::commands::{load, serve};
use crate::limits::LimitOptions;

/// A tensor compiler: imports ONNX models, rewrites them, compiles them to plans and runs those.
#[derive(Parser, Debug)]
#[command(name = "of-opt", version, max_term_width = 120)]
#[command(override_usage = "of-opt [OPTIONS] IN.of\n       of-opt <COMMAND> [OPTIONS] …")]
#[command(
    after_help = "Exit codes: 0 done, 1 failed or different, 2 bad input, 3 not supported, 4 a limit is exceeded, 128+N ended by signal N;\n    of ranks that are processes, the code of the one that failed first.\n\
    Signals: SIGUSR1 writes what each actor of a run has done and waits for to stderr.\n\
    Environment: RUST_LOG (log levels by module), NO_COLOR, CC (the C compiler), OF_CACHE_DIR (compiled kernels),\n    OF_PJRT_PLUGIN (XLA's plugin), OF_JOB_TOKEN (the secret of ranks on several machines)."
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
    /// Limits.
    #[command(flatten)]
    pub limits: LimitOptions,
    /// A shared library that holds ops, a backend, or both; may be repeated
    #[arg(long, global = true, value_name = "PATH", help_heading = "Libraries")]
    pub library: Vec<PathBuf>,
}

/// The subcommands.
#[derive(Subcommand, Debug)]
#[expect(clippy::large_enum_variant, reason = "there is one value, made once")]
pub enum Command {
    /// Turn an ONNX model into IR text
    Import(import::Import),
    /// Turn a model into an ONNX model
    Export(export::Export),
    /// Compile a model to a plan
    Compile(compile::Compile),
    /// Run a model or plan on given inputs
    Run(run::Run),
    /// Train a model on data
    Train(train::Train),
    /// List the models that are built in
    Zoo(zoo::Zoo),
    /// Measure the run time of a model or plan
    Bench(bench::Bench),
    /// Measure each task of a run, and compare kernels with the roofline of this machine
    Profile(profile::Profile),
    /// Show the contents of a plan or model
    Inspect(inspect::Inspect),
    /// Show a plan or model in a browser: serves an interactive page on this machine until Ctrl-C
    View(view::View),
    /// Show the differences between two plans
    Diff(diff::Diff),
    /// Find the first op whose values differ between native code and another runtime, and reduce the model to it
    Debug(debug::Debug),
    /// Verify a plan or model without running it
    Verify(verify::Verify),
    /// Serve models and plans over HTTP and gRPC
    #[cfg(feature = "serve")]
    Serve(serve::Serve),
    /// Measure a server under load
    #[cfg(feature = "serve")]
    Load(load::Load),
    /// Sign a plan with a private key
    Sign(sign::Sign),
    /// Check who signed a plan
    VerifySignature(sign::VerifySignature),
    /// Choose the layouts of a model's tensors on a mesh of devices, and explain the choice
    Explain(explain::Explain),
    /// Predict the time and memory of a model or plan on the ranks of a mesh
    Simulate(simulate::Simulate),
    /// Say why the ranks of a job are stuck, or how they ended
    WhyStuck(why_stuck::WhyStuckCommand),
    /// Benchmark this machine and write a mesh description for simulate and explain
    Measure(measure::Measure),
    /// List passes and pipelines
    Passes(passes::Passes),
    /// List ops, or show one in full
    Ops(ops::Ops),
    /// Serve editors: the language server of IR text, on stdin and stdout
    Lsp(lsp::Lsp),
    /// Explain the codes of errors and warnings: causes, examples, cures
    ExplainError(explain_error::ExplainError),
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

    /// Pages whose commands have placeholders, and the book.
    fn pages() -> Vec<std::path::PathBuf> {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let pages = ["README.md", "CONTRIBUTING.md", "docs", "book/src"].map(|p| root.join(p));
        let entries = |p: std::path::PathBuf| match std::fs::read_dir(&p) {
            Ok(all) => all.map(|e| e.unwrap().path()).collect(),
            Err(_) => vec![p],
        };
        pages.into_iter().flat_map(entries).filter(|p| p.extension().is_some_and(|e| e == "md")).collect()
    }

    /// The arguments of of-opt in a line of a shell, comments and what follows in a pipe left out.
    fn arguments(line: &str) -> Option<Vec<String>> {
        let line = line.trim().replace("cargo run --release -- ", "of-opt ").replace("cargo run -- ", "of-opt ");
        let words = shlex::split(&line)?;
        let ends = |w: &String| ["|", "||", "&", "&&", ">", "2>&1"].contains(&w.as_str());
        (words.first()? == "of-opt").then(|| words.into_iter().take_while(|w| !ends(w)).collect())
    }

    #[cfg(feature = "serve")]
    #[test]
    fn command_lines_of_deployments_are_accepted() {
        let deploy = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy");
        let text = |file: &str| std::fs::read_to_string(deploy.join(file)).unwrap();
        let unit = text("of-opt-serve.service");
        let unit =
            unit.lines().find_map(|l| l.strip_prefix("ExecStart=")).unwrap().split(' ').map(String::from).collect();
        // The second runtime compiles models; the program of the first has a test of its own.
        let runtimes = text("kserve/serving-runtime.yaml");
        let arguments = runtimes.lines().filter_map(|l| l.trim().strip_prefix("args:")).nth(1).unwrap();
        let arguments: Vec<String> = serde_json::from_str(arguments.trim()).unwrap();
        for line in [unit, [vec!["of-opt".to_owned()], arguments].concat()] {
            assert!(matches!(Cli::try_parse_from(&line).unwrap().command, Some(Command::Serve(_))), "{line:?}");
        }
        let mut trainings = 0;
        for file in ["job.yaml", "jobset.yaml", "trainjob.yaml"] {
            let text = text(&format!("training/{file}"));
            let mut lines = text.lines().map(str::trim);
            while lines.any(|line| line == "- train") {
                let arguments = lines.by_ref().map_while(|line| line.strip_prefix("- "));
                let line: Vec<&str> = ["of-opt", "train"].into_iter().chain(arguments).collect();
                assert!(matches!(Cli::try_parse_from(&line).unwrap().command, Some(Command::Train(_))), "{line:?}");
                trainings += 1;
            }
        }
        // Kubeflow Trainer has two policies.
        assert_eq!(trainings, 4);
    }

    #[test]
    fn documented_command_lines_are_accepted() {
        use clap::error::ErrorKind::{DisplayHelp, DisplayVersion};
        let mut count = 0;
        for page in pages() {
            let text = std::fs::read_to_string(&page).unwrap();
            let listings = of_test_support::listings::listings(&text);
            let text = listings.iter().filter(|l| l.language == "sh").map(|l| l.text.replace("\\\n", " "));
            for words in text.collect::<String>().lines().filter_map(arguments) {
                let parsed = Cli::try_parse_from(&words);
                let refused = parsed.err().filter(|e| ![DisplayHelp, DisplayVersion].contains(&e.kind()));
                assert!(refused.is_none(), "{}: {}\n{}", page.display(), words.join(" "), refused.unwrap());
                count += 1;
            }
        }
        assert!(count > 100, "{count} command lines were found");
    }
}
