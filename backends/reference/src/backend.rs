//! The reference backend in a plan: the payload is the IR text of a function, executed by the interpreter.

use of_codegen::Backend;
use of_diag::Diagnostic;
use of_ir::text::{self, PrintOptions};
use of_ir::{Func, Graph, Module, OpId};
use of_ops::{Value, interpret};
use of_runtime::{ExecError, Executable, LoadContext, LoadError, Loader, ValueMut, ValueRef};

use crate::values::{from_input, to_runtime};

/// Name in plans.
pub const NAME: &str = "reference";

/// The slow reference: it supports every op that has an evaluation or expands into such ops.
#[derive(Clone, Copy, Default, Debug)]
pub struct Reference;

impl Backend for Reference {
    fn name(&self) -> &'static str {
        NAME
    }

    fn claims(&self, graph: &Graph, op: OpId) -> Result<(), String> {
        match of_ops::decl(graph.op(op).name()) {
            Some(_) => Ok(()),
            None => Err(format!("'{}' has no reference evaluation", graph.op(op).name())),
        }
    }

    fn compile(&self, func: &Func) -> Result<Vec<u8>, Diagnostic> {
        let mut module = Module::default();
        module.funcs.insert("main".into(), func.clone());
        Ok(text::print_module(&module, &PrintOptions { generic: true, locations: true, ..PrintOptions::default() })
            .into_bytes())
    }
}

impl Loader for Reference {
    fn backend(&self) -> &str {
        NAME
    }

    fn load(&self, payload: &[u8], _context: LoadContext<'_>) -> Result<Box<dyn Executable>, LoadError> {
        let source = std::str::from_utf8(payload).map_err(|_| LoadError::Payload("the text is not UTF-8".into()))?;
        let module = text::parse_module(source, "payload", &of_ops::registry(), None)
            .map_err(|d| LoadError::Payload(d.to_string()))?;
        let func = module.main().cloned().ok_or_else(|| LoadError::Payload("there is no function".into()))?;
        Ok(Box::new(Interpreted { func }))
    }
}

struct Interpreted {
    func: Func,
}

impl Executable for Interpreted {
    fn run(&mut self, inputs: &[ValueRef<'_>], outputs: &mut [ValueMut<'_>]) -> Result<(), ExecError> {
        let input = |e: crate::values::ConvertError| ExecError::Input(e.to_string());
        let values: Vec<Value> = inputs.iter().map(from_input).collect::<Result<_, _>>().map_err(input)?;
        let results = interpret::run_graph(&self.func.graph, &values).map_err(|d| ExecError::Input(d.to_string()))?;
        if results.len() != outputs.len() {
            return Err(ExecError::Failed(format!("{} results for {} outputs", results.len(), outputs.len())));
        }
        for (value, output) in results.iter().zip(outputs) {
            match output {
                ValueMut::Object(slot) => {
                    **slot = Some(to_runtime(value).map_err(|e| ExecError::Failed(e.to_string()))?)
                }
                ValueMut::Dense(t) => {
                    let bytes = match value {
                        Value::Tensor(v) => v.bytes(),
                        _ => None,
                    };
                    match bytes {
                        Some(b) if b.len() == t.bytes.len() => t.bytes.copy_from_slice(b),
                        _ => {
                            return Err(ExecError::Failed(format!(
                                "a result does not have the planned dimensions {:?}",
                                t.dims
                            )));
                        }
                    }
                }
            }
        }
        Ok(())
    }
}
