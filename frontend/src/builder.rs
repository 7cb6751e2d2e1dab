//! The graph builder: makes one function op by op.

use std::collections::HashSet;
use std::panic::Location as Caller;

use of_diag::{Diagnostic, Diagnostics, Location};
use of_ir::{Attrs, DType, Func, Graph, Module, NewOp, OpId, RegionId, Rewriter, Tensor, TensorType, Type, ValueId};
use of_ops::control::Scan;
use of_ops::structural::{Constant, Return, Yield};

/// Builds the function `main` of a module.
pub struct Builder {
    name: String,
    graph: Graph,
    inputs: Vec<String>,
    /// The region that ops are added to.
    region: RegionId,
    /// Names of what is being built, from the outside: the path of parameters.
    path: Vec<String>,
    /// Names of parameters.
    parameters: HashSet<String>,
}

impl Builder {
    /// An empty function in a module called `name`.
    pub fn new(name: impl Into<String>) -> Builder {
        Builder::continuing(name.into(), Graph::new(), Vec::new())
    }

    /// Continues a finished function: returns a builder at its end, and the values of its outputs.
    pub fn reopen(name: impl Into<String>, func: Func) -> (Builder, Vec<ValueId>) {
        let Func { mut graph, inputs, .. } = func;
        let outputs = graph.outputs().to_vec();
        let last = graph.region_ops(graph.entry()).last();
        if let Some(terminator) = last {
            Rewriter::new(&mut graph, "build").erase(terminator);
        }
        (Builder::continuing(name.into(), graph, inputs), outputs)
    }

    fn continuing(name: String, graph: Graph, inputs: Vec<String>) -> Builder {
        Builder { name, region: graph.entry(), graph, inputs, path: Vec::new(), parameters: HashSet::new() }
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

    /// Builds a part: the parameters in it have names that begin with that of the part and a dot.
    pub fn within<R>(&mut self, part: impl Into<String>, build: impl FnOnce(&mut Builder) -> R) -> R {
        self.path.push(part.into());
        let out = build(self);
        self.path.pop();
        out
    }

    /// Adds a parameter: a constant that training changes. Its name is the path of [`Builder::within`] and `name`; a name that another
    /// parameter has gets a number.
    ///
    /// # Errors
    /// None in practice; the same signature as [`Builder::op`].
    #[track_caller]
    pub fn parameter(&mut self, name: &str, value: Tensor) -> Result<ValueId, Diagnostic> {
        let v = self.constant(value)?;
        let whole = self.path.iter().map(String::as_str).chain([name]).collect::<Vec<_>>().join(".");
        let taken = |name: &String| self.parameters.contains(name);
        let mut own = whole.clone();
        let mut number = 1;
        while taken(&own) {
            own = format!("{whole}_{number}");
            number += 1;
        }
        self.parameters.insert(own.clone());
        Rewriter::new(&mut self.graph, "build").set_name(v, own);
        Ok(v)
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

    /// Carries states along the axis 1 of `slices`: `step` gets the states and one slice of each, and returns the next states.
    /// Returns the last states.
    ///
    /// # Errors
    /// When slices have no axis 1, or the next states have other types than the first.
    #[track_caller]
    pub fn scan(
        &mut self,
        first: &[ValueId],
        slices: &[ValueId],
        step: impl FnOnce(&mut Builder, &[ValueId], &[ValueId]) -> Result<Vec<ValueId>, Diagnostic>,
    ) -> Result<Vec<ValueId>, Diagnostic> {
        let caller = Caller::caller();
        let slice = |v: &ValueId| {
            let mut t = self.ty(*v).as_tensor().cloned().unwrap_or(TensorType::unranked(DType::F32));
            if let Some(s) = t.shape.as_mut().filter(|s| s.len() > 1) {
                s.remove(1);
            }
            Type::Tensor(t)
        };
        let types: Vec<Type> = first.iter().map(|v| self.ty(*v).clone()).chain(slices.iter().map(slice)).collect();
        let outer = self.region;
        let (region, args) = {
            let mut rw = self.at(caller);
            let region = rw.new_region();
            let args: Vec<ValueId> = types.into_iter().map(|ty| rw.add_arg(region, ty, None)).collect();
            (region, args)
        };
        self.region = region;
        let (states, now) = args.split_at(first.len());
        let next = step(self, states, now).and_then(|next| self.at(caller).create(Yield {}, &next));
        self.region = outer;
        next?;
        let scan = Scan {
            num_scan_inputs: slices.len() as i64,
            scan_input_axes: Some(vec![1; slices.len()]),
            scan_input_directions: None,
            scan_output_axes: None,
            scan_output_directions: None,
        };
        let operands: Vec<ValueId> = first.iter().chain(slices).copied().collect();
        let mut rw = self.at(caller);
        let op = rw.create_with_regions(scan, &operands, &[region])?;
        Ok(rw.graph().op(op).results.to_vec())
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
        let region = self.region;
        let mut rw = Rewriter::new(&mut self.graph, "build");
        rw.at_end(region);
        rw.set_location(location(caller));
        rw
    }
}

/// Where in the source of the program a builder was called.
pub(crate) fn location(caller: &Caller<'_>) -> Location {
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
