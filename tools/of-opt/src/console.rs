//! Everything that is said to people, apart from logs: results on stdout, diagnostics and notes on stderr.

use std::io::Write;
use std::path::Path;

use of_diag::{Code, Diagnostic, Diagnostics, Renderer, Severity};

use crate::cli::Talk;
use crate::logging;
use crate::progress::{self, Progress};

/// Where everything is said.
pub struct Console {
    /// Prints diagnostics; its sources grow as files are read.
    pub renderer: Renderer,
    /// Only errors.
    pub quiet: bool,
    /// How often `-v` was given.
    pub verbose: u8,
}

impl Console {
    /// A console as the flags want it.
    pub fn new(talk: &Talk) -> Self {
        let renderer = Renderer { color: logging::color(talk.color), ..Renderer::default() };
        Console { renderer, quiet: talk.quiet, verbose: talk.verbose }
    }

    /// Prints diagnostics to stderr; warnings are left out where only errors are wanted.
    pub fn report(&self, list: &Diagnostics) {
        for d in &list.0 {
            self.say(d);
        }
    }

    /// Prints one diagnostic.
    pub fn say(&self, d: &Diagnostic) {
        if d.severity == Severity::Error || !self.quiet {
            progress::suspend(|| eprint!("{}", self.renderer.render(d)));
        }
    }

    /// A line on stderr.
    pub fn note(&self, text: &str) {
        if !self.quiet {
            progress::suspend(|| eprintln!("{text}"));
        }
    }

    /// Begins work that may take long.
    pub fn progress(&self, what: &str) -> Progress {
        Progress::begin(what, self.quiet)
    }

    /// Writes a result to stdout. A reader that went away (`| head`) ends the program quietly.
    ///
    /// # Errors
    /// When stdout cannot be written.
    pub fn print(&self, text: &str) -> Result<(), Diagnostics> {
        let written = progress::suspend(|| {
            let mut out = std::io::stdout().lock();
            out.write_all(text.as_bytes()).and_then(|()| out.flush())
        });
        match written {
            Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => std::process::exit(0),
            Err(e) => Err(crate::exit::error(Code::IO, format!("the output cannot be written: {e}")).into()),
            Ok(()) => Ok(()),
        }
    }
}

/// Whether `path` stands for stdin or stdout.
pub fn is_dash(path: &Path) -> bool {
    path.as_os_str() == "-"
}
