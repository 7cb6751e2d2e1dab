//! `of-opt`: the command line. It parses arguments, calls `of_driver` and the libraries, and prints.

mod arguments;
mod cli;
mod commands;
mod console;
mod deferral;
mod downloads;
mod error_page;
mod exit;
mod expected;
mod http_server;
mod limits;
mod model_file;
mod page_server;
mod placement_report;
mod progress;
mod ranks;
mod sandbox;
mod show;
mod signals;
mod signed_plan;
mod snapshot_place;
#[cfg(feature = "serve")]
mod telemetry;
#[cfg(not(feature = "serve"))]
#[path = "no_telemetry.rs"]
mod telemetry;
mod trace;
mod workload;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;
use std::sync::LazyLock;

use clap::{CommandFactory, Parser};
use of_cli::messages::MessageOptions;
use of_cli::{logging, panics};
use of_diag::{Code, Diagnostics, closest};
use of_driver::Observer;

use crate::cli::{Cli, Command};
use crate::console::Console;

/// Compilation allocates many small objects on several threads, which the allocator of glibc takes twice as long for.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    LazyLock::force(&arguments::STARTED);
    panics::install("of-opt");
    exit::before_quiet_end(|| {
        ranks::say_that_nothing_reads();
        signals::clean_up();
    });
    let arguments = match commands::train_config::expand(std::env::args_os().collect(), &Cli::command()) {
        Ok(arguments) => arguments,
        Err(errors) => {
            Console::new(&MessageOptions::default()).report(&errors);
            return exit::code(&errors);
        }
    };
    let Cli { command, opt, messages, limits, library } = match Cli::try_parse_from(&arguments) {
        Ok(cli) => cli,
        Err(e) => return wrong_command_line(&e, &arguments),
    };
    logging::start(&messages, || progress::Stderr);
    let console = &Console::new(&messages);
    // Before the first thread: those that exist would stay outside.
    if let Some(Command::Run(c)) = &command
        && let Err(errors) = commands::run::enter_sandbox(c, &library)
    {
        console.report(&errors);
        return exit::code(&errors);
    }
    // The server ends by itself, after the requests that it has accepted.
    #[cfg(feature = "serve")]
    let ends_itself = matches!(command, Some(Command::Serve(_)));
    #[cfg(not(feature = "serve"))]
    let ends_itself = false;
    signals::install(!ends_itself);
    let compares = matches!(command, Some(Command::Debug(_) | Command::Diff(_)));
    of_driver::codegen_passes::register();
    let started = limits::install(&limits, &messages).and_then(|()| check_paths(&arguments));
    let result = started.and_then(|()| of_driver::load_libraries(&library)).and_then(|()| match command {
        None => commands::opt::opt(&opt, Cli::command(), console),
        Some(_) if opt.is_given() => Err(exit::usage("a command and a file to run passes on were both given").into()),
        Some(Command::Import(c)) => commands::import::import(&c, console),
        Some(Command::Export(c)) => commands::export::export(&c, console),
        Some(Command::Compile(c)) => commands::compile::compile(&c, console),
        Some(Command::Run(c)) => commands::run::run(&c, console),
        Some(Command::Train(c)) if c.print_config => commands::train_config::print(&arguments, Cli::command(), console),
        Some(Command::Train(c)) => commands::train::train(&c, console),
        Some(Command::Zoo(c)) => commands::zoo::zoo(&c, console),
        Some(Command::Bench(c)) => commands::bench::bench(&c, console),
        Some(Command::Profile(c)) => commands::profile::profile(&c, console),
        Some(Command::Inspect(c)) => commands::inspect::inspect(&c, console),
        Some(Command::View(c)) => commands::view::view(&c, console),
        Some(Command::Diff(c)) => commands::diff::diff(&c, console),
        Some(Command::Debug(c)) => commands::debug::debug(&c, console),
        Some(Command::Verify(c)) => commands::verify::verify(&c, console),
        #[cfg(feature = "serve")]
        Some(Command::Serve(c)) => commands::serve::serve(&c, console),
        #[cfg(feature = "serve")]
        Some(Command::Load(c)) => commands::load::load(&c, console),
        Some(Command::Sign(c)) => commands::sign::sign(&c, console),
        Some(Command::VerifySignature(c)) => commands::sign::verify_signature(&c, console),
        Some(Command::Explain(c)) => commands::explain::explain(&c, console),
        Some(Command::Simulate(c)) => commands::simulate::simulate(&c, console),
        Some(Command::WhyStuck(c)) => commands::why_stuck::why_stuck(&c, console),
        Some(Command::Measure(c)) => commands::measure::measure(&c, console),
        Some(Command::Passes(c)) => commands::passes::passes(&c, console),
        Some(Command::Ops(c)) => commands::ops::ops(&c, console),
        Some(Command::Lsp(c)) => commands::lsp::lsp(&c),
        Some(Command::ExplainError(c)) => commands::explain_error::explain_error(&c, console),
        Some(Command::Completions(c)) => commands::completions::completions(&c, Cli::command(), console),
        Some(Command::Man(c)) => commands::man::man(&c, Cli::command(), console),
        Some(Command::Cache(c)) => commands::cache::cache(&c, console),
        Some(Command::Backends(c)) => commands::backends::backends(&c, console),
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(errors) => {
            console.report(&errors);
            if let Some(more) = commands::explain_error::more(&errors) {
                console.note(&more);
            }
            if compares { exit::code_of_comparison(&errors) } else { exit::code(&errors) }
        }
    }
}

/// Reports what clap does not accept. A first word that is neither a command nor a file is what is wrong, and not what
/// follows it.
fn wrong_command_line(e: &clap::Error, arguments: &[OsString]) -> ExitCode {
    let program = Cli::command();
    let word = arguments.get(1).and_then(|w| w.to_str()).filter(|w| e.use_stderr() && !w.starts_with('-'));
    let names = || program.get_subcommands().map(clap::Command::get_name).chain(["help"]);
    let unknown =
        word.filter(|w| !names().any(|n| n == *w) && Path::new(w).extension().is_none() && !Path::new(w).exists());
    let Some(word) = unknown else { e.exit() };
    let hint = closest(word, names()).map_or_else(String::new, |meant| format!("did you mean '{meant}'? "));
    let hint = hint + "'of-opt --help' lists the commands";
    let error = of_driver::error(Code::INPUT, format!("unknown command '{word}'")).hint(hint);
    Console::new(&MessageOptions::default()).report(&error.clone().into());
    exit::code(&error.into())
}

/// Checks that no argument is a URL: as a path it would name a local file or folder.
///
/// # Errors
/// When one is.
fn check_paths(arguments: &[OsString]) -> Result<(), Diagnostics> {
    let is_url = |text: &str| {
        text.split_once("://").is_some_and(|(scheme, _)| {
            scheme.starts_with(|c: char| c.is_ascii_alphabetic())
                && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
        })
    };
    let is = |argument: Option<&OsString>, text: &str| argument.is_some_and(|argument| argument == text);
    let arguments = arguments.get(1..).unwrap_or_default();
    // `serve` has repositories in stores, and `train` snapshots.
    let (serves, trains) = (is(arguments.first(), "serve"), is(arguments.first(), "train"));
    for (at, argument) in arguments.iter().map(|a| a.to_string_lossy()).enumerate() {
        let is_value_of = |flag: &str| {
            at > 0 && is(arguments.get(at - 1), flag)
                || argument.strip_prefix(flag).is_some_and(|rest| rest.starts_with('='))
        };
        // Data is downloaded; the model, which comes first, is a file.
        let is_data = trains && at > 1 && cfg!(feature = "object-store");
        if is_data && argument.split('=').any(|part| part.starts_with("https://") || part.starts_with("http://")) {
            continue;
        }
        let store = argument.rsplit('=').next().is_some_and(|value| value.starts_with("s3://"));
        if store && (serves || trains && is_value_of("--snapshot")) || is_value_of("--trace-endpoint") {
            continue;
        }
        // NAME=FILE and --option=FILE hold a path as well.
        if let Some(url) = std::iter::once(&*argument).chain(argument.rsplit('=')).find(|part| is_url(part)) {
            let what = format!("'{url}' is a URL, and of-opt reads and writes local files");
            return Err(of_driver::error(Code::IO, what).hint("copy the file, or mount its store as a folder").into());
        }
    }
    Ok(())
}
