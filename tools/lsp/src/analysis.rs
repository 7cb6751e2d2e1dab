//! What is known about one version of a document, and the thread that finds it out.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;

use of_diag::{Code, Diagnostic, Diagnostics, Location, Severity};
use of_ir::text::{
    CheckedData, FuncSource, Indexed, NameSource, SourceIndex, Span, Token, TokenKind, parse_indexed, tokens,
};
use of_ir::{Func, Module, verify_module};

use crate::queue::Queue;
use crate::text::Text;

/// A parsed version of a document.
pub struct Analysis {
    /// Counts the changes of the document.
    pub revision: u64,
    /// The text that was parsed.
    pub text: Arc<Text>,
    /// The name of the text in locations.
    pub file: String,
    /// The module; a part of it where there are errors.
    pub module: Module,
    /// Places of names in the text.
    pub index: SourceIndex,
    /// Errors of the parser.
    pub errors: Vec<Diagnostic>,
}

impl Analysis {
    /// Parses a text. Data files are looked for in the folder of `path`; those that `checked` knows are not read.
    pub fn new(revision: u64, text: Arc<Text>, path: Option<&PathBuf>, checked: &CheckedData) -> Analysis {
        let file = path.map_or_else(|| "text".into(), |p| p.display().to_string());
        let folder = path.and_then(|p| p.parent());
        let parse = || parse_indexed(text.as_str(), &file, &of_ops::registry(), folder, checked);
        // A panic is a bug, and no reason to lose the editor's connection.
        let Indexed { module, index, errors } = catch_unwind(AssertUnwindSafe(parse)).unwrap_or_else(|_| Indexed {
            module: Module::default(),
            index: SourceIndex::default(),
            errors: internal_error("the parser").into(),
        });
        Analysis { revision, text, file, module, index, errors: errors.0 }
    }

    /// Errors of the parser, or of the verifier where there are none.
    pub fn all_errors(&self) -> Vec<Diagnostic> {
        if self.has_errors() {
            return self.errors.clone();
        }
        let verified = catch_unwind(AssertUnwindSafe(|| verify_module(&self.module)));
        match verified {
            Ok(Ok(())) => self.errors.clone(),
            Ok(Err(found)) => self.errors.iter().cloned().chain(found.0).collect(),
            Err(_) => vec![internal_error("the verifier")],
        }
    }

    /// Whether the text has errors that the parser finds.
    pub fn has_errors(&self) -> bool {
        self.errors.iter().any(|d| d.severity == Severity::Error)
    }

    /// The token at a byte: the one that it is in, or the one that ends there.
    pub fn token_at(&self, at: usize) -> Option<Token> {
        let start = self.text.line_start(self.text.line_of(at));
        let near = tokens(self.text.as_str(), start).take_while(|t| t.start <= at).filter(|t| at <= t.end);
        let near: Vec<Token> = near.collect();
        // Of two neighbours, the word counts and not the bracket.
        near.iter().rev().find(|t| !matches!(t.kind, TokenKind::Punct(_) | TokenKind::Arrow)).or(near.last()).copied()
    }

    /// The function at a byte.
    pub fn func_at(&self, at: usize) -> Option<&FuncSource> {
        self.index.func_at(at)
    }

    /// The value's name at a byte, with the function that it is in.
    pub fn name_at(&self, at: usize) -> Option<(&FuncSource, &NameSource)> {
        let func = self.func_at(at)?;
        Some((func, func.name_at(at)?))
    }

    /// The IR of a function of the text.
    pub fn func(&self, source: &FuncSource) -> Option<&Func> {
        self.module.funcs.get(&source.symbol).filter(|_| source.in_module)
    }

    /// The place of an error: a token of the text.
    pub fn place(&self, location: &Location) -> Span {
        let start = match location {
            Location::Source { file, line, col } if **file == self.file => self.text.offset_of_place(*line, *col),
            // The location of an op that says where it comes from.
            Location::Onnx { .. } | Location::Derived { .. } | Location::Source { .. } => {
                return self.op_from(location).unwrap_or_default();
            }
            Location::Unknown => return self.index.funcs.first().map(|f| f.name).unwrap_or_default(),
        };
        tokens(self.text.as_str(), start)
            .next()
            .filter(|t| t.start == start)
            .map_or(Span { start, end: start }, Span::from)
    }

    /// The first op or function with this location.
    fn op_from(&self, location: &Location) -> Option<Span> {
        self.index.funcs.iter().find_map(|f| {
            let func = self.func(f)?;
            if func.loc == *location {
                return Some(f.name);
            }
            f.ops.iter().find(|o| o.op.is_some_and(|op| func.graph.op(op).loc == *location)).map(|o| o.name)
        })
    }
}

fn internal_error(what: &str) -> Diagnostic {
    Diagnostic::error(Code::PASS_BUG, Location::Unknown, format!("{what} panicked on this text"))
        .hint("this is a bug of of-opt; please report it with the text")
}

/// A version of a document to parse and verify.
pub struct Job {
    /// The document.
    pub uri: String,
    /// Its file.
    pub path: Option<PathBuf>,
    /// Its text.
    pub text: Arc<Text>,
    /// The number of this version.
    pub revision: u64,
}

/// What the thread does.
pub enum Work {
    /// Parses and verifies.
    Analyse(Job),
    /// Frees a large module, for which the thread that answers has no time.
    Free(Arc<Analysis>),
}

/// What the thread finds out, in this order.
pub enum Found {
    /// The text is parsed.
    Parsed(String, Arc<Analysis>),
    /// The text is verified.
    Verified(String, Arc<Analysis>, Diagnostics),
}

/// The stack of the threads that parse and run passes. Ops with regions nest as deep as the parser allows.
pub const STACK: usize = 64 << 20;

/// Starts the thread that parses and verifies. It ends when the queue is closed.
///
/// # Errors
/// When no thread can be started.
pub fn start(report: impl Fn(Found) + Send + 'static) -> std::io::Result<Queue<Work>> {
    let jobs = Queue::new();
    let inbox = jobs.clone();
    std::thread::Builder::new().name("analysis".into()).stack_size(STACK).spawn(move || work(&inbox, &report))?;
    Ok(jobs)
}

fn work(inbox: &Queue<Work>, report: &dyn Fn(Found)) {
    let checked = CheckedData::default();
    let mut open: Vec<Job> = Vec::new();
    loop {
        let mut next = if open.is_empty() { inbox.pop() } else { inbox.try_pop() };
        if next.is_none() && open.is_empty() {
            return;
        }
        while let Some(work) = next {
            match work {
                Work::Analyse(job) => {
                    // A version that is followed by a newer one is of no use.
                    open.retain(|j| j.uri != job.uri);
                    open.push(job);
                }
                Work::Free(analysis) => drop(analysis),
            }
            next = inbox.try_pop();
        }
        if open.is_empty() {
            continue;
        }
        let Job { uri, path, text, revision } = open.remove(0);
        let analysis = Arc::new(Analysis::new(revision, text, path.as_ref(), &checked));
        report(Found::Parsed(uri.clone(), Arc::clone(&analysis)));
        let errors = Diagnostics(analysis.all_errors());
        report(Found::Verified(uri, analysis, errors));
    }
}
