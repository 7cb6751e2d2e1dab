//! The graph builder: makes one function op by op.

use std::collections::{HashMap, HashSet};
use std::panic::Location as Caller;
use std::sync::Arc;

use indexmap::IndexMap;
use of_diag::{Code, Diagnostic, Diagnostics, Location};
use of_ir::{
    Attr, Attrs, DType, Func, Graph, IdMap, Mesh, Module, NewOp, OpId, RegionId, Rewriter, Sbp, Tensor, TensorType,
    Type, ValueId,
};
use of_ops::control::Scan;
use of_ops::structural::{Constant, Return, Yield};
use of_ops::training::{CARRIED, INITIAL_VALUES, InitialValue, VARIABLES};

use crate::placement::Placement;

mod placing;

/// Builds the function `main` of a module.
pub struct Builder {
    name: String,
    graph: Graph,
    inputs: Vec<String>,
    /// The region that ops are added to.
    region: RegionId,
    /// Names of what is being built, from the outside: the path of parameters.
    path: Vec<String>,
    /// Names of parameters and variables.
    named: HashSet<String>,
    variables: Vec<Variable>,
    /// The meshes of all placements.
    meshes: IndexMap<String, Mesh>,
    /// The mesh of each value that has a placement.
    placed: IdMap<ValueId, Arc<str>>,
    /// Values that were moved to the mesh of a name.
    moved: HashMap<(ValueId, Arc<str>), ValueId>,
    /// Placements of what is being built, and layouts of parameters there; the last one holds.
    scopes: Vec<(Placement, Vec<Sbp>)>,
}

/// An input whose value a session keeps from run to run.
struct Variable {
    input: ValueId,
    /// Its value in the next run; `None` where it stays.
    next: Option<ValueId>,
    /// An element of [`INITIAL_VALUES`].
    initial: Attr,
}

impl Builder {
    /// An empty function in a module called `name`.
    pub fn new(name: impl Into<String>) -> Builder {
        Builder::continuing(name.into(), Graph::new(), Vec::new(), IndexMap::new())
    }

    /// Continues a finished function of a module: returns a builder at its end, and the values of its outputs. Its variables are plain
    /// inputs, and their next values are outputs. Placements are kept; new ops run where the compiler puts them.
    pub fn reopen(module: &Module, func: Func) -> (Builder, Vec<ValueId>) {
        let Func { mut graph, inputs, .. } = func;
        let outputs = graph.outputs().to_vec();
        let last = graph.region_ops(graph.entry()).last();
        if let Some(terminator) = last {
            Rewriter::new(&mut graph, "build").erase(terminator);
        }
        (Builder::continuing(module.name.clone(), graph, inputs, module.meshes.clone()), outputs)
    }

    fn continuing(name: String, graph: Graph, inputs: Vec<String>, meshes: IndexMap<String, Mesh>) -> Builder {
        Builder {
            name,
            region: graph.entry(),
            graph,
            inputs,
            path: Vec::new(),
            named: HashSet::new(),
            variables: Vec::new(),
            meshes,
            placed: IdMap::default(),
            moved: HashMap::new(),
            scopes: Vec::new(),
        }
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
    /// When the layout of [`Builder::on`] does not fit.
    #[track_caller]
    pub fn parameter(&mut self, name: &str, value: Tensor) -> Result<ValueId, Diagnostic> {
        let v = self.constant(value)?;
        self.place_parameter(Caller::caller(), v)?;
        let own = self.name_in_path(name);
        Rewriter::new(&mut self.graph, "build").set_name(v, own);
        Ok(v)
    }

    /// The path and a name, with a number if a parameter or variable has that name.
    fn name_in_path(&mut self, name: &str) -> String {
        let whole = self.path.iter().map(String::as_str).chain([name]).collect::<Vec<_>>().join(".");
        let mut own = whole.clone();
        let mut number = 1;
        while !self.named.insert(own.clone()) {
            own = format!("{whole}_{number}");
            number += 1;
        }
        own
    }

    /// Adds a variable: an input whose value a session keeps from run to run. `initial` is its value in a new session; without one it
    /// must be set before the first run. It keeps its value until [`Builder::set_next`]. Its name is made as that of a parameter.
    pub fn variable(&mut self, name: &str, ty: Type, initial: Option<InitialValue>) -> ValueId {
        let name = self.name_in_path(name);
        let input = self.input(&name, ty);
        let initial = match initial {
            None => Attr::Unit,
            Some(InitialValue::Zeros) => Attr::Int(0),
            Some(InitialValue::Tensor(tensor)) => Attr::Tensor(tensor),
        };
        self.declare(input, initial, None);
        input
    }

    /// Declares that an input is a variable, with an element of [`INITIAL_VALUES`] and its value in the next run.
    pub(crate) fn declare(&mut self, input: ValueId, initial: Attr, next: Option<ValueId>) {
        self.variables.push(Variable { input, next, initial });
    }

    /// Gives a variable its value in the next run, which becomes an output: the name of the variable and `.next`.
    ///
    /// # Errors
    /// When it is no variable, it has a next value, or the types differ.
    #[track_caller]
    pub fn set_next(&mut self, variable: ValueId, next: ValueId) -> Result<(), Diagnostic> {
        let wrong = |what: String| Diagnostic::error(Code::TYPE, location(Caller::caller()), what);
        let name = self.graph.name(variable).map_or_else(String::new, |name| name.to_string());
        let plain = |v: ValueId| match self.ty(v) {
            Type::Tensor(t) => Type::Tensor(TensorType { sbp: None, ..t.clone() }),
            other => other.clone(),
        };
        if plain(variable) != plain(next) {
            let (own, new) = (self.ty(variable), self.ty(next));
            return Err(wrong(format!("the next value of variable '{name}' of type {own} is {new}"))
                .hint("a variable keeps its element type and its extents"));
        }
        let found = self.variables.iter_mut().find(|known| known.input == variable);
        let found = found.ok_or_else(|| wrong(format!("'{name}' is no variable")).hint("make it by `variable`"))?;
        if found.next.is_some() {
            return Err(wrong(format!("variable '{name}' has a next value")).hint("set it once"));
        }
        found.next = Some(next);
        Ok(())
    }

    /// Adds an op and returns its first result.
    ///
    /// # Errors
    /// When operands or attributes do not fit the op; the location is that of the caller.
    #[track_caller]
    pub fn op(&mut self, op: impl NewOp, operands: &[ValueId]) -> Result<ValueId, Diagnostic> {
        let results = self.add(Caller::caller(), op, operands, &[])?;
        Ok(results[0])
    }

    /// Adds an op and returns all its results.
    ///
    /// # Errors
    /// As [`Builder::op`].
    #[track_caller]
    pub fn op_all(&mut self, op: impl NewOp, operands: &[ValueId]) -> Result<Vec<ValueId>, Diagnostic> {
        self.add(Caller::caller(), op, operands, &[])
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
        self.add(caller, scan, &operands, &[region])
    }

    /// The type of a value.
    pub fn ty(&self, value: ValueId) -> &Type {
        self.graph.ty(value)
    }

    /// The module, with these outputs, followed by the next values of variables.
    ///
    /// # Errors
    /// When the module does not verify, e.g. because two inputs have one name.
    #[track_caller]
    pub fn finish(mut self, outputs: &[(&str, ValueId)]) -> Result<Module, Diagnostics> {
        let caller = Caller::caller();
        let (mut names, mut values): (Vec<String>, Vec<ValueId>) =
            outputs.iter().map(|(name, v)| ((*name).to_owned(), *v)).unzip();
        let attrs = self.variable_attrs(&mut names, &mut values);
        self.at(caller).create(Return {}, &values)?;
        let func = Func { graph: self.graph, inputs: self.inputs, outputs: names, attrs, loc: location(caller) };
        let mut module = Module { name: self.name, meshes: self.meshes, ..Module::default() };
        module.funcs.insert("main".into(), func);
        of_ir::verify_module(&module)?;
        Ok(module)
    }

    /// The attributes that declare the variables, whose next values become outputs.
    fn variable_attrs(&self, names: &mut Vec<String>, values: &mut Vec<ValueId>) -> Attrs {
        let mut attrs = Attrs::new();
        if self.variables.is_empty() {
            return attrs;
        }
        let position = |v: ValueId| self.graph.args().iter().position(|arg| *arg == v).map_or(-1, |i| i as i64);
        let mut carried: Vec<i64> = vec![-1; names.len()];
        for Variable { input, next, .. } in &self.variables {
            let Some(next) = next else { continue };
            let name = self.graph.name(*input).map_or_else(String::new, |name| name.to_string());
            names.push(format!("{name}.next"));
            values.push(*next);
            carried.push(position(*input));
        }
        let listed = self.variables.iter().map(|variable| position(variable.input)).collect();
        let initial = self.variables.iter().map(|variable| variable.initial.clone()).collect();
        attrs.set(CARRIED, Attr::Ints(carried));
        attrs.set(VARIABLES, Attr::Ints(listed));
        attrs.set(INITIAL_VALUES, Attr::Array(initial));
        attrs
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
