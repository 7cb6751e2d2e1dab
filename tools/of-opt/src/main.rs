//! `of-opt`: the command line. It parses arguments, calls `of_driver` and the libraries, and prints.

mod arguments;
mod cli;
mod commands;
mod console;
mod exit;
mod expected;
mod logging;
mod model_file;
mod page;
mod panics;
mod placement_report;
mod progress;
mod quantity;
mod show;
mod signals;
mod trace;
mod workload;

use std::process::ExitCode;
use std::sync::LazyLock;

use clap::{CommandFactory, Parser};

use crate::cli::{Cli, Command};
use crate::console::Console;

fn main() -> ExitCode {
    LazyLock::force(&arguments::STARTED);
    panics::install();
    let Cli { command, opt, messages, library } = Cli::parse();
    logging::start(&messages);
    signals::install();
    let console = &Console::new(&messages);
    let compares = matches!(command, Some(Command::Debug(_) | Command::Diff(_)));
    of_driver::codegen_passes::register();
    let result = of_driver::load_libraries(&library).and_then(|()| match command {
        None => commands::opt::opt(&opt, Cli::command(), console),
        Some(_) if opt.is_given() => Err(exit::usage("a command and a file to run passes on were both given").into()),
        Some(Command::Import(c)) => commands::import::import(&c, console),
        Some(Command::Export(c)) => commands::export::export(&c, console),
        Some(Command::Compile(c)) => commands::compile::compile(&c, console),
        Some(Command::Run(c)) => commands::run::run(&c, console),
        Some(Command::Bench(c)) => commands::bench::bench(&c, console),
        Some(Command::Profile(c)) => commands::profile::profile(&c, console),
        Some(Command::Inspect(c)) => commands::inspect::inspect(&c, console),
        Some(Command::Diff(c)) => commands::diff::diff(&c, console),
        Some(Command::Debug(c)) => commands::debug::debug(&c, console),
        Some(Command::Verify(c)) => commands::verify::verify(&c, console),
        Some(Command::Explain(c)) => commands::explain::explain(&c, console),
        Some(Command::Simulate(c)) => commands::simulate::simulate(&c, console),
        Some(Command::Measure(c)) => commands::measure::measure(&c, console),
        Some(Command::Passes(c)) => commands::passes::passes(&c, console),
        Some(Command::Ops(c)) => commands::ops::ops(&c, console),
        Some(Command::Completions(c)) => commands::completions::completions(&c, Cli::command(), console),
        Some(Command::Man(c)) => commands::man::man(&c, Cli::command(), console),
        Some(Command::Cache(c)) => commands::cache::cache(&c, console),
        Some(Command::Backends) => commands::backends::backends(console),
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(errors) => {
            console.report(&errors);
            if compares { exit::code_of_comparison(&errors) } else { exit::code(&errors) }
        }
    }
}
