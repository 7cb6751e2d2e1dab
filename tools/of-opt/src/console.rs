//! Console output, apart from logs: results on stdout, diagnostics and notes on stderr.

use std::cell::RefCell;
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::sync::Arc;

use of_cli::logging;
use of_cli::messages::MessageOptions;
use of_codegen::place::Placement;
use of_diag::{Code, Diagnostic, Diagnostics, Renderer, Severity, escaped_lines};
use of_driver::{Activity, Observer};

use crate::progress::{self, Progress};
use crate::{exit, placement_report};

/// Prints results, diagnostics and notes.
pub struct Console {
    /// Renders diagnostics; sources are added as files are read.
    renderer: RefCell<Renderer>,
    /// Print errors only.
    pub quiet: bool,
    /// How often `-v` was given.
    pub verbose: u8,
}

impl Console {
    /// A console with these options.
    pub fn new(options: &MessageOptions) -> Self {
        let renderer = Renderer { color: logging::color(options.color), ..Renderer::default() };
        Console { renderer: RefCell::new(renderer), quiet: options.quiet, verbose: options.verbose }
    }

    /// Prints diagnostics to stderr; with `--quiet`, errors only.
    pub fn report(&self, list: &Diagnostics) {
        for d in &list.0 {
            self.diagnostic(d);
        }
    }

    /// Begins a step that may take long.
    pub fn progress(&self, what: &str) -> Progress {
        Progress::begin(what, self.quiet)
    }

    /// Writes text to stderr. Where that is closed, there is no one to tell.
    pub fn stderr(&self, text: &str) {
        progress::suspend(|| {
            let _ = std::io::stderr().write_all(text.as_bytes());
        });
    }

    /// Writes a result to stdout; control characters except line breaks and tabs are escaped. A closed pipe (`| head`) ends the program.
    ///
    /// # Errors
    /// When stdout cannot be written.
    pub fn print(&self, text: &str) -> Result<(), Diagnostics> {
        self.written(progress::suspend(|| {
            let mut out = std::io::stdout().lock();
            out.write_all(escaped_lines(text).as_bytes()).and_then(|()| out.flush())
        }))
    }

    /// Writes a file's bytes to stdout.
    ///
    /// # Errors
    /// When stdout is a terminal, or cannot be written.
    pub fn print_bytes(&self, what: &str, bytes: &[u8]) -> Result<(), Diagnostics> {
        if std::io::stdout().is_terminal() {
            let refused = exit::usage(format!("{what} is binary, and stdout is a terminal"));
            return Err(refused.hint("write it to a file with -o FILE, or redirect stdout").into());
        }
        self.written(progress::suspend(|| {
            let mut out = std::io::stdout().lock();
            out.write_all(bytes).and_then(|()| out.flush())
        }))
    }

    fn written(&self, result: std::io::Result<()>) -> Result<(), Diagnostics> {
        match result {
            Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => exit::nothing_reads(),
            Err(e) => Err(of_driver::error(Code::IO, format!("the output cannot be written: {e}")).into()),
            Ok(()) => Ok(()),
        }
    }
}

impl Observer for Console {
    fn begin(&self, step: &str) -> Activity {
        let progress = self.progress(step);
        let reporter = progress.reporter();
        Activity::new(Arc::new(move |what, done, all| reporter.at(what, done, all)), Box::new(progress))
    }

    fn diagnostic(&self, d: &Diagnostic) {
        if d.severity == Severity::Error || !self.quiet {
            self.stderr(&self.renderer.borrow().render(d));
        }
    }

    fn note(&self, text: &str) {
        if !self.quiet {
            self.stderr(&format!("{}\n", escaped_lines(text)));
        }
    }

    fn source(&self, file: &str, text: &str) {
        self.renderer.borrow_mut().sources.add(file, text);
    }

    fn ir(&self, text: &str) {
        self.stderr(&escaped_lines(text));
    }

    fn placed(&self, placements: &[Placement], ranks: Option<&[usize]>) {
        let all = self.verbose > 0;
        let lines = match ranks {
            Some(ranks) => placement_report::by_rank(placements, ranks, all),
            None => placements.iter().flat_map(|p| placement_report::lines(p, all)).collect(),
        };
        lines.iter().for_each(|line| self.note(line));
    }
}

/// Whether output for `path` goes to a terminal: no path and `-` are stdout.
pub fn goes_to_terminal(path: Option<&Path>) -> bool {
    path.is_none_or(is_dash) && std::io::stdout().is_terminal()
}

/// Whether `path` denotes stdin or stdout.
pub fn is_dash(path: &Path) -> bool {
    path.as_os_str() == "-"
}
