//! A store that speaks the protocol of S3, in a process of its own.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use of_test_support::component::{MOTO, python_with, require};

/// The store. It ends when it is dropped.
pub struct Store {
    process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    pub endpoint: String,
}

impl Store {
    /// A new one, where this machine has what it needs.
    pub fn start() -> Option<Store> {
        let python = require(&MOTO, python_with(&["moto.server", "boto3", "flask_cors"]))?;
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/store/server.py");
        let mut command = Command::new(python);
        command.arg(script).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = command.spawn().unwrap();
        let (input, output) = (process.stdin.take().unwrap(), process.stdout.take().unwrap());
        let mut store = Store { process, input, output: BufReader::new(output), endpoint: String::new() };
        store.endpoint = store.line();
        Some(store)
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    /// Executes a command, and gives the lines that it prints.
    pub fn command(&mut self, text: &str) -> Vec<String> {
        writeln!(self.input, "{text}").unwrap();
        std::iter::from_fn(|| Some(self.line()).filter(|line| line != "done")).collect()
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
