//! The graph builder: makes one function op by op.

use std::panic::Location as Caller;

use of_diag::{Diagnostic, Diagnostics, Location};
use of_ir::{Attrs, Func, Graph, Module, NewOp, OpId, Rewriter, Tensor, Type, ValueId};
use of_ops::structural::{Constant, Return};

/// Builds the function `main` of a module.
pub struct Builder {
    name: String,
    graph: Graph,
    inputs: Vec<String>,
}

impl Builder {
    /// An empty function in a module called `name`.
    pub fn new(name: impl Into<String>) -> Builder {
        Builder { name: name.into(), graph: Graph::new(), inputs: Vec::new() }
    }

    /// Continues a finished function: returns a builder at its end, and the values of its outputs.
    pub fn reopen(name: impl Into<String>, func: Func) -> (Builder, Vec<ValueId>) {
        let Func { mut graph, inputs, .. } = func;
        let outputs = graph.outputs().to_vec();
        let last = graph.region_ops(graph.entry()).last();
        if let Some(terminator) = last {
            Rewriter::new(&mut graph, "build").erase(terminator);
        }
        (Builder { name: name.into(), graph, inputs }, outputs)
    }

    /// The graph so far.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// Makes all readers of a value read another one of a compatible type.
    pub fn replace_uses(&mut self, old: ValueId, new: ValueId) {
        Rewriter::new(&mut self.graph, "build").replace_uses(old, new);
    }

    /// Adds an op before another one, at its location, and returns all its results.
    ///
    /// # Errors
    /// When operands or attributes do not fit the op.
    pub fn op_before(&mut self, op: OpId, new: impl NewOp, operands: &[ValueId]) -> Result<Vec<ValueId>, Diagnostic> {
        let mut rw = Rewriter::new(&mut self.graph, "build");
        rw.rewrite(op, &[]);
        let id = rw.create(new, operands)?;
        Ok(rw.graph().op(id).results.to_vec())
    }

    /// Puts values in the place of an op's results.
    pub fn replace(&mut self, op: OpId, values: &[ValueId]) {
        Rewriter::new(&mut self.graph, "build").replace(op, values);
    }

    /// Adds an input.
    pub fn input(&mut self, name: &str, ty: Type) -> ValueId {
        self.inputs.push(name.to_owned());
        let entry = self.graph.entry();
        Rewriter::new(&mut self.graph, "build").add_arg(entry, ty, Some(name.into()))
    }

    /// Adds a constant, such as a weight or a shape.
    ///
    /// # Errors
    /// None in practice; the same signature as [`Builder::op`].
    #[track_caller]
    pub fn constant(&mut self, value: Tensor) -> Result<ValueId, Diagnostic> {
        self.op(Constant { value }, &[])
    }

    /// Adds an op and returns its first result.
    ///
    /// # Errors
    /// When operands or attributes do not fit the op; the location is that of the caller.
    #[track_caller]
    pub fn op(&mut self, op: impl NewOp, operands: &[ValueId]) -> Result<ValueId, Diagnostic> {
        let caller = Caller::caller();
        self.at(caller).create_one(op, operands)
    }

    /// Adds an op and returns all its results.
    ///
    /// # Errors
    /// As [`Builder::op`].
    #[track_caller]
    pub fn op_all(&mut self, op: impl NewOp, operands: &[ValueId]) -> Result<Vec<ValueId>, Diagnostic> {
        let caller = Caller::caller();
        let mut rw = self.at(caller);
        let id = rw.create(op, operands)?;
        Ok(rw.graph().op(id).results.to_vec())
    }

    /// The type of a value.
    pub fn ty(&self, value: ValueId) -> &Type {
        self.graph.ty(value)
    }

    /// The module, with these outputs.
    ///
    /// # Errors
    /// When the module does not verify, e.g. because two inputs have one name.
    #[track_caller]
    pub fn finish(mut self, outputs: &[(&str, ValueId)]) -> Result<Module, Diagnostics> {
        let caller = Caller::caller();
        let values: Vec<ValueId> = outputs.iter().map(|(_, v)| *v).collect();
        self.at(caller).create(Return {}, &values)?;
        let outputs = outputs.iter().map(|(n, _)| (*n).to_owned()).collect();
        let func = Func { graph: self.graph, inputs: self.inputs, outputs, attrs: Attrs::new(), loc: location(caller) };
        let mut module = Module { name: self.name, ..Module::default() };
        module.funcs.insert("main".into(), func);
        of_ir::verify_module(&module)?;
        Ok(module)
    }

    fn at(&mut self, caller: &Caller<'_>) -> Rewriter<'_> {
        let entry = self.graph.entry();
        let mut rw = Rewriter::new(&mut self.graph, "build");
        rw.at_end(entry);
        rw.set_location(location(caller));
        rw
    }
}

fn location(caller: &Caller<'_>) -> Location {
    Location::source(caller.file(), caller.line(), caller.column())
}

#[cfg(test)]
mod tests {
    use of_ir::DType;
    use of_ops::elementwise::Add;
    use of_ops::interpret::run_graph;

    use super::*;

    #[test]
    fn built_function_runs() {
        let mut b = Builder::new("m");
        let x = b.input("x", Type::fixed(DType::F32, &[2]));
        let one = b.constant(Tensor::from_slice(&[2], &[1f32, 2.0]).unwrap()).unwrap();
        let y = b.op(Add {}, &[x, one]).unwrap();
        assert_eq!(*b.ty(y), Type::fixed(DType::F32, &[2]));
        let m = b.finish(&[("y", y)]).unwrap();
        let x = Tensor::from_slice(&[2], &[10f32, 20.0]).unwrap();
        let out = run_graph(&m.main().unwrap().graph, &[x.into()]).unwrap();
        assert_eq!(out, [Tensor::from_slice(&[2], &[11f32, 22.0]).unwrap().into()]);
    }

    #[test]
    fn errors_report_the_caller_location() {
        let mut b = Builder::new("m");
        let x = b.input("x", Type::fixed(DType::F32, &[2]));
        let y = b.input("y", Type::fixed(DType::F32, &[3]));
        let error = b.op(Add {}, &[x, y]).unwrap_err();
        let line = line!() - 1;
        assert!(
            matches!(&error.location, Location::Source { file, line: l, .. } if file.ends_with("builder.rs") && *l == line)
        );
    }
}
