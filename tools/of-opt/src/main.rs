//! `of-opt`: the command line. Wiring only; everything that it does is in the libraries.

mod backends;
mod cli;
mod commands;
mod compare;
mod console;
mod driver;
mod engine;
mod exit;
mod expected;
mod inputs;
mod logging;
mod machine;
mod model;
mod npy;
mod panics;
mod precision;
mod progress;
mod random;
mod ranks;
mod ready;
mod roofline;
mod shapes;
mod show;
mod support;
mod trace;
mod tune;
mod values;

use std::process::ExitCode;

use clap::Parser;

use crate::cli::{Cli, Command};
use crate::console::Console;

fn main() -> ExitCode {
    panics::install();
    let Cli { command, opt, talk, library } = Cli::parse();
    logging::start(&talk);
    let mut console = Console::new(&talk);
    let console = &mut console;
    let result = backends::load(&library).and_then(|()| match command {
        None => commands::opt::opt(&opt, console),
        Some(_) if opt.is_given() => Err(exit::usage("a command and passes to run on a file were both given").into()),
        Some(Command::Import(c)) => commands::import::import(&c, console),
        Some(Command::Export(c)) => commands::export::export(&c, console),
        Some(Command::Compile(c)) => commands::compile::compile(&c, console),
        Some(Command::Run(c)) => commands::run::run(&c, console),
        Some(Command::Bench(c)) => commands::bench::bench(&c, console),
        Some(Command::Profile(c)) => commands::profile::profile(&c, console),
        Some(Command::Inspect(c)) => commands::inspect::inspect(&c, console),
        Some(Command::Verify(c)) => commands::verify::verify(&c, console),
        Some(Command::Explain(c)) => commands::explain::explain(&c, console),
        Some(Command::Simulate(c)) => commands::simulate::simulate(&c, console),
        Some(Command::Measure(c)) => commands::measure::measure(&c, console),
        Some(Command::Passes(c)) => commands::passes::passes(&c, console),
        Some(Command::Ops(c)) => commands::ops::ops(&c, console),
        Some(Command::Completions(c)) => commands::completions::completions(&c, console),
        Some(Command::Man(c)) => commands::man::man(&c, console),
        Some(Command::Backends) => commands::backends::backends(console),
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(errors) => {
            console.report(&errors);
            exit::code(&errors)
        }
    }
}
