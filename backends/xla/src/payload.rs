//! The payload of a subgraph: a header line, then text, or the program that the plugin compiled.

use of_codegen::specialize;
use of_emit::{Port, port_of_word, port_word};
use of_ir::Func;

use crate::emit::{self, Module};

const FIXED: &str = "of-xla 1 fixed";
const OPEN: &str = "of-xla 1 open\n";
const COMPILED: &str = "of-xla 2 compiled";

/// A payload.
pub enum Payload {
    /// A module for fixed extents.
    Fixed(Module),
    /// A function with symbolic extents: a module is made for the extents of each run.
    Open(Box<Func>),
    /// A program for one build of a plugin on one kind of machine.
    Compiled(Compiled),
}

/// A program as the plugin serializes it.
pub struct Compiled {
    /// The plugin and the target: one line.
    pub by: String,
    /// See [`Module::results`].
    pub results: Vec<Port>,
    /// See [`Module::checked`].
    pub checked: bool,
    /// The serialized program.
    pub program: Vec<u8>,
}

impl Payload {
    /// As bytes.
    pub fn write(&self) -> Vec<u8> {
        match self {
            Payload::Fixed(m) => {
                format!("{FIXED}{}{}\n{}", over(&m.mesh), head(&m.results, m.checked), m.text).into_bytes()
            }
            Payload::Compiled(c) => {
                let lines = format!("{COMPILED}{}\n{}\n", head(&c.results, c.checked), c.by);
                [lines.as_bytes(), &c.program].concat()
            }
            Payload::Open(f) => [OPEN, &specialize::write(f)].concat().into_bytes(),
        }
    }

    /// The inverse of [`Payload::write`].
    ///
    /// # Errors
    /// When the format is not recognized.
    pub fn read(bytes: &[u8]) -> Result<Payload, String> {
        let other = || "its first line is not that of a module for XLA, or of another version".to_string();
        if let Some(rest) = bytes.strip_prefix(COMPILED.as_bytes()) {
            let mut lines = rest.splitn(3, |b| *b == b'\n');
            let mut line = || lines.next().and_then(|l| std::str::from_utf8(l).ok()).ok_or_else(other);
            let ((results, checked), by) = (parsed_head(line()?).ok_or_else(other)?, line()?.to_string());
            let program = lines.next().ok_or_else(other)?.to_vec();
            return Ok(Payload::Compiled(Compiled { by, results, checked, program }));
        }
        if let Some(text) = bytes.strip_prefix(OPEN.as_bytes()) {
            return specialize::read(text).map(|func| Payload::Open(Box::new(func)));
        }
        let all = std::str::from_utf8(bytes).map_err(|_| "the text is not UTF-8".to_string())?;
        let (head, text) = all.strip_prefix(FIXED).and_then(|t| t.split_once('\n')).ok_or_else(other)?;
        let (mesh, head) = parsed_over(head).ok_or_else(other)?;
        let (results, checked) = parsed_head(head).ok_or_else(other)?;
        Ok(Payload::Fixed(Module { text: text.to_string(), results, checked, mesh }))
    }
}

/// The mesh of ranks that run it together: ` over 1x4`, or nothing.
fn over(mesh: &[usize]) -> String {
    let axes: Vec<String> = mesh.iter().map(usize::to_string).collect();
    if axes.is_empty() { String::new() } else { format!(" over {}", axes.join("x")) }
}

/// The inverse of [`over`]; also returns the rest.
fn parsed_over(head: &str) -> Option<(Vec<usize>, &str)> {
    let Some(rest) = head.strip_prefix(" over ") else { return Some((Vec::new(), head)) };
    let (axes, rest) = rest.split_at(rest.find(' ').unwrap_or(rest.len()));
    let axes = axes.split('x').map(|n| n.parse().ok().filter(|n| *n > 0)).collect::<Option<_>>()?;
    Some((axes, rest))
}

/// What follows on the first line: ` checked f32:2,3`.
fn head(results: &[Port], checked: bool) -> String {
    let checked = if checked { " checked" } else { "" };
    format!("{checked}{}", results.iter().map(port_word).collect::<String>())
}

/// The inverse of [`head`].
fn parsed_head(head: &str) -> Option<(Vec<Port>, bool)> {
    let mut words = head.split_whitespace().peekable();
    let checked = words.next_if_eq(&"checked").is_some();
    Some((words.map(port_of_word).collect::<Option<_>>()?, checked))
}

/// The payload of a function.
///
/// # Errors
/// The op that cannot be printed, and why.
pub fn payload(func: &Func) -> Result<Payload, String> {
    if specialize::is_fixed(func) {
        emit::module(func).map(Payload::Fixed)
    } else {
        Ok(Payload::Open(Box::new(func.clone())))
    }
}
