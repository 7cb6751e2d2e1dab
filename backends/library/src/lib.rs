//! Backends and ops in shared libraries: both sides of a small C interface.
//!
//! A library exports `of_ops`, which returns an [`OpTable`], or `of_backend`, which returns a [`Table`], or both. Ops are
//! passed as declarations and functions over types and tensors; [`export_ops!`] creates them from [`of_ops::op!`]
//! declarations.
//!
//! Backends exchange text (a function as IR text, with its shapes, placements and constants), bytes (the artifact, which the
//! plan contains) and tensors. No Rust type crosses the interface, so a library may be built by another compiler, or written
//! in C. [`export!`] creates the table of any implementation of [`of_codegen::Backend`] and [`of_runtime::Loader`];
//! [`Library`] is the loading side.

mod ffi;
mod ops;
mod signature;

use std::path::Path;

use of_codegen::{Backend, Overhead, extract};
use of_diag::{Code, Diagnostic};
use of_ir::text::{self, PrintOptions};
use of_ir::{Func, Graph, Module, OpId};
use of_runtime::{ExecError, Executable, LoadContext, LoadError, Loader, Tensor, Value, ValueMut, ValueRef};

pub use ffi::ops::{OpEntry, OpTable, op_entry, op_table};
pub use ffi::{LibraryError, Table, table};

/// Version of the interface to backends; a library of another one is refused.
pub const VERSION: u32 = 1;

/// A function as text for the other side.
fn print(func: &Func) -> String {
    let mut module = Module::default();
    module.funcs.insert("main".into(), func.clone());
    text::print_module(&module, &PrintOptions { generic: true, locations: true, ..PrintOptions::default() })
}

/// The inverse of [`print`].
fn parse(source: &str) -> Result<Func, String> {
    let module = text::parse_module(source, "library", &of_ops::registry(), None).map_err(|d| d.to_string())?;
    module.main().cloned().ok_or_else(|| "there is no function".to_string())
}

/// A backend that was loaded from a shared library, which stays loaded.
pub struct Library {
    raw: ffi::Loaded,
    name: &'static str,
}

/// Loads the library at `path`, which runs its initialisers. Its ops are registered in
/// [`of_ops::op_registry`]; its backend is returned.
///
/// # Errors
/// When it cannot be loaded, exports neither ops nor a backend, implements another version of the interface, or has an op
/// that cannot be added.
pub fn open(path: &Path) -> Result<Option<Library>, LibraryError> {
    let opened = ffi::open(path)?;
    let wrong = |why: String| LibraryError::Table { path: path.display().to_string(), why };
    for declared in opened.ops {
        let op = ops::UserOp::new(declared).map_err(wrong)?;
        of_ops::op_registry::register(op).map_err(|e| wrong(e.to_string()))?;
    }
    let Some(raw) = opened.backend else { return Ok(None) };
    // A name lives as long as the program, as does the library.
    let name = Box::leak(raw.name()?.into_boxed_str());
    Ok(Some(Library { raw, name }))
}

impl Backend for Library {
    fn name(&self) -> &'static str {
        self.name
    }

    fn claims(&self, graph: &Graph, op: OpId) -> Result<(), String> {
        self.raw.claims(&print(&extract::extract(graph, &[op]).func))
    }

    fn overhead(&self) -> Overhead {
        self.raw.overhead()
    }

    fn largest_constant(&self, _open: bool) -> usize {
        self.raw.largest_constant()
    }

    fn compile(&self, func: &Func) -> Result<Vec<u8>, Diagnostic> {
        let failed = |why: String| Diagnostic::error(Code::CODEGEN, func.loc.clone(), format!("{}: {why}", self.name));
        self.raw.compile(&print(func)).map_err(failed)
    }
}

impl Loader for Library {
    fn backend(&self) -> &str {
        self.name
    }

    fn load(&self, payload: &[u8], _context: LoadContext<'_>) -> Result<Box<dyn Executable>, LoadError> {
        Ok(Box::new(Subgraph { raw: self.raw.load(payload).map_err(LoadError::Failed)? }))
    }
}

/// An executable of a library.
struct Subgraph {
    raw: ffi::Artifact,
}

impl Executable for Subgraph {
    fn run(&mut self, inputs: &[ValueRef<'_>], outputs: &mut [ValueMut<'_>]) -> Result<(), ExecError> {
        let seen = |v: &ValueRef<'_>| match v {
            ValueRef::Dense(t) => Ok(ffi::tensor(t.dtype, t.dims, t.bytes)),
            ValueRef::Object(v) => {
                let t = v.as_tensor().and_then(|t| Some(ffi::tensor(t.dtype(), t.dims(), t.bytes()?)));
                t.ok_or_else(|| ExecError::Unsupported("libraries support numeric tensors only".into()))
            }
        };
        let inputs = inputs.iter().map(seen).collect::<Result<Vec<_>, _>>()?;
        let mut given: Vec<Option<Tensor>> = outputs.iter().map(|_| None).collect();
        self.raw.run(&inputs, &mut given).map_err(ExecError::Failed)?;
        for (i, (output, value)) in outputs.iter_mut().zip(given).enumerate() {
            let value = value.ok_or_else(|| ExecError::Failed(format!("the library returned no result {i}")))?;
            match output {
                ValueMut::Object(slot) => **slot = Some(Value::Tensor(value)),
                ValueMut::Dense(t) => match value.bytes() {
                    Some(bytes) if value.dtype() == t.dtype && value.dims() == t.dims => t.bytes.copy_from_slice(bytes),
                    _ => {
                        let got = format!("{}{:?}", value.dtype(), value.dims());
                        return Err(ExecError::Failed(format!("result {i} is {got}, not {}{:?}", t.dtype, t.dims)));
                    }
                },
            }
        }
        Ok(())
    }
}
