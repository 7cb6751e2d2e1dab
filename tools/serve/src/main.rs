//! `of-opt-serve`: a model server for plans, without a compiler.

#![forbid(unsafe_code)]

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;
use clap::builder::RangedU64ValueParser;
use of_cli::messages::MessageOptions;
use of_cli::{exit, logging, panics};
use of_diag::{Code, Diagnostic, Diagnostics, Location, Renderer, escaped_lines};
use of_opt_serve::ServeFlags;
use of_runtime::flight_recorder::{LiveSession, live_sessions};
use signal_hook::consts::SIGUSR1;
use signal_hook::iterator::Signals;

/// Requests allocate small objects on several threads, which the allocators of C libraries take longer for.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Serves plans of of-opt over HTTP and gRPC. It has no compiler: 'of-opt serve' compiles ONNX models, too
#[derive(Parser, Debug)]
#[command(name = "of-opt-serve", version, max_term_width = 120)]
#[command(after_help = "Exit codes: 0 done, 1 failed, 2 bad input, 128+N ended by signal N.\n\
    Environment: RUST_LOG (log levels by module), NO_COLOR, AWS_* (credentials and endpoint of a store).")]
struct Cli {
    /// What is served, where, and to whom.
    #[command(flatten)]
    serve: ServeFlags,
    /// Worker threads of each model; 0 takes as many as its plan was tuned for
    #[arg(long, value_name = "T", default_value_t = 0, help_heading = "Models", value_parser = RangedU64ValueParser::<usize>::new().range(..=1024))]
    threads: usize,
    /// Messages.
    #[command(flatten)]
    messages: MessageOptions,
}

fn main() -> ExitCode {
    panics::install("of-opt-serve");
    let cli = Cli::parse();
    logging::start(&cli.messages, std::io::stderr);
    print_actors_on_signal();
    let opener = of_opt_serve::opener(cli.serve.require_signature.clone());
    match of_opt_serve::run(&cli.serve, cli.threads, opener, print) {
        Ok(()) => ExitCode::SUCCESS,
        Err(errors) => {
            let renderer = Renderer { color: logging::color(cli.messages.color), ..Renderer::default() };
            for error in &errors.0 {
                // Where stderr is closed, there is no one to tell.
                let _ = std::io::stderr().write_all(renderer.render(error).as_bytes());
            }
            exit::code(&errors)
        }
    }
}

fn print(text: &str) -> Result<(), Diagnostics> {
    let mut out = std::io::stdout().lock();
    let written = out.write_all(escaped_lines(text).as_bytes()).and_then(|()| out.flush());
    written.map_err(|e| {
        let what = format!("the addresses cannot be printed: {e}");
        Diagnostic::error(Code::IO, Location::Unknown, what).into()
    })
}

/// SIGUSR1 prints every actor, register and credit.
fn print_actors_on_signal() {
    let started = Signals::new([SIGUSR1]).and_then(|mut signals| {
        std::thread::Builder::new().name("signals".into()).spawn(move || {
            for _ in signals.forever() {
                let text: String = live_sessions().iter().map(LiveSession::describe).collect();
                let _ = std::io::stderr().write_all(escaped_lines(&text).as_bytes());
            }
        })
    });
    if let Err(e) = started {
        tracing::warn!("SIGUSR1 ends the server, as no thread waits for it: {e}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn command_lines_of_deployments_are_accepted() {
        let deploy = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy");
        let list = |file: &str, key: &str| -> Vec<String> {
            let text = std::fs::read_to_string(deploy.join(file)).unwrap();
            let line = text.lines().find_map(|l| l.trim().strip_prefix(key)).unwrap();
            serde_json::from_str(line.trim()).unwrap()
        };
        let entry = list("Containerfile", "ENTRYPOINT");
        let commands = [
            ("Containerfile", "CMD"),
            ("kubernetes/deployment.yaml", "args:"),
            ("kserve/serving-runtime.yaml", "args:"),
        ];
        for (file, key) in commands {
            let line = [entry.clone(), list(file, key)].concat();
            let cli = Cli::try_parse_from(&line).unwrap_or_else(|e| panic!("{file}: {e}"));
            assert_eq!(cli.serve.paths.len(), 1, "{line:?}");
        }
    }
}
