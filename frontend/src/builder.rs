//! The graph builder: makes one function op by op.

use std::collections::{HashMap, HashSet};
use std::panic::Location as Caller;
use std::sync::Arc;

use indexmap::IndexMap;
use of_diag::{Code, Diagnostic, Diagnostics, Location};
use of_ir::{
    Attrs, DType, Func, Graph, IdMap, Mesh, Module, NewOp, OpId, RegionId, Rewriter, Sbp, Tensor, TensorType, Type,
    ValueId,
};
use of_ops::boxing::ShardingConstraint;
use of_ops::control::Scan;
use of_ops::structural::{Constant, Return, Yield};

use crate::placement::{AUTO, Placement};

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
    /// The meshes of all placements.
    meshes: IndexMap<String, Mesh>,
    /// The mesh of each value that has a placement.
    placed: IdMap<ValueId, Arc<str>>,
    /// Values that were moved to the mesh of a name.
    moved: HashMap<(ValueId, Arc<str>), ValueId>,
    /// Placements of what is being built, and layouts of parameters there; the last one holds.
    scopes: Vec<(Placement, Vec<Sbp>)>,
}

impl Builder {
    /// An empty function in a module called `name`.
    pub fn new(name: impl Into<String>) -> Builder {
        Builder::continuing(name.into(), Graph::new(), Vec::new(), IndexMap::new())
    }

    /// Continues a finished function of a module: returns a builder at its end, and the values of its outputs. Placements are kept;
    /// new ops run where the compiler puts them.
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
            parameters: HashSet::new(),
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

    /// Adds an input on a placement, in a layout or in [`AUTO`].
    ///
    /// # Errors
    /// When the layout does not fit the mesh or the tensor, or another mesh has the name of the placement's.
    #[track_caller]
    pub fn global_input(
        &mut self,
        name: &str,
        ty: Type,
        placement: &Placement,
        layout: &[Sbp],
    ) -> Result<ValueId, Diagnostic> {
        let ty = self.global(Caller::caller(), &ty, placement, layout)?;
        let input = self.input(name, ty);
        self.placed.insert(input, placement.name().clone());
        Ok(input)
    }

    /// Moves a tensor to a placement, in a layout or in [`AUTO`]; on its own placement, it changes the layout.
    ///
    /// # Errors
    /// As [`Builder::global_input`].
    #[track_caller]
    pub fn to_global(&mut self, x: ValueId, placement: &Placement, layout: &[Sbp]) -> Result<ValueId, Diagnostic> {
        self.move_to(Caller::caller(), x, placement, layout)
    }

    /// Builds a part on a placement: its ops run there, and their operands are moved there where they are elsewhere. Its parameters
    /// have this layout, or any one where it is [`AUTO`] or splits an axis that they do not have, as of a bias.
    pub fn on<R>(&mut self, placement: &Placement, layout: &[Sbp], build: impl FnOnce(&mut Builder) -> R) -> R {
        self.scopes.push((placement.clone(), layout.to_vec()));
        let out = build(self);
        self.scopes.pop();
        out
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
        if let Some((placement, layout)) = self.scopes.last().cloned() {
            let ty = self.ty(v).clone();
            let rank = ty.as_tensor().and_then(TensorType::rank).unwrap_or(0);
            let fits = layout.iter().all(|s| !matches!(s, Sbp::Split(axis) if usize::from(*axis) >= rank));
            let ty = self.global(Caller::caller(), &ty, &placement, if fits { &layout } else { AUTO })?;
            Rewriter::new(&mut self.graph, "build").set_type(v, ty);
            self.placed.insert(v, placement.name().clone());
        }
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
        let mut module = Module { name: self.name, meshes: self.meshes, ..Module::default() };
        module.funcs.insert("main".into(), func);
        of_ir::verify_module(&module)?;
        Ok(module)
    }

    /// Adds an op on the placement of its operands, and returns its results.
    fn add(
        &mut self,
        caller: &Caller<'_>,
        op: impl NewOp,
        operands: &[ValueId],
        regions: &[RegionId],
    ) -> Result<Vec<ValueId>, Diagnostic> {
        let (operands, mesh) = self.on_one_mesh(caller, operands)?;
        let mut rw = self.at(caller);
        let id = rw.create_with_regions(op, &operands, regions)?;
        let results = rw.graph().op(id).results.to_vec();
        // A constant is wherever it is read.
        let constant = rw.graph().op(id).def.traits().constant;
        if let Some(mesh) = mesh.filter(|_| !constant) {
            self.placed.extend(results.iter().map(|v| (*v, mesh.clone())));
        }
        Ok(results)
    }

    /// The operands of an op on one mesh, and the name of that: the innermost of [`Builder::on`], else that of the operands.
    fn on_one_mesh(
        &mut self,
        caller: &Caller<'_>,
        operands: &[ValueId],
    ) -> Result<(Vec<ValueId>, Option<Arc<str>>), Diagnostic> {
        if let Some((placement, _)) = self.scopes.last().cloned() {
            let moved = operands.iter().map(|v| self.operand_on(caller, *v, &placement));
            return Ok((moved.collect::<Result<_, _>>()?, Some(placement.name().clone())));
        }
        let mut known: Option<(usize, &Arc<str>)> = None;
        for (i, v) in operands.iter().enumerate() {
            match (self.placed.get(v), known) {
                (Some(mesh), Some((first, own))) if mesh != own => {
                    let what =
                        format!("operand {first} is on @{own}, and operand {i} on @{mesh}: an op has one placement");
                    let hint = "move one of them with Builder::to_global, or build the op within Builder::on";
                    return Err(Diagnostic::error(Code::SBP, location(caller), what).hint(hint));
                }
                (Some(mesh), None) => known = Some((i, mesh)),
                _ => {}
            }
        }
        Ok((operands.to_vec(), known.map(|(_, mesh)| mesh.clone())))
    }

    /// An operand on a placement: moved there, unless it is a constant, which every device can have.
    fn operand_on(&mut self, caller: &Caller<'_>, v: ValueId, placement: &Placement) -> Result<ValueId, Diagnostic> {
        let own = self.placed.get(&v);
        let is_constant = self.graph.def_op(v).is_some_and(|op| self.graph.op(op).def.traits().constant);
        // Values of a region are where the op with the region is.
        let inner = own.is_none() && self.region != self.graph.entry();
        if own == Some(placement.name()) || (own.is_none() && is_constant) || inner || self.ty(v).as_tensor().is_none()
        {
            return Ok(v);
        }
        let key = (v, placement.name().clone());
        if let Some(moved) = self.moved.get(&key) {
            return Ok(*moved);
        }
        let moved = self.move_to(caller, v, placement, AUTO)?;
        if self.region == self.graph.entry() {
            self.moved.insert(key, moved);
        }
        Ok(moved)
    }

    fn move_to(
        &mut self,
        caller: &Caller<'_>,
        x: ValueId,
        placement: &Placement,
        layout: &[Sbp],
    ) -> Result<ValueId, Diagnostic> {
        let ty = self.global(caller, &self.ty(x).clone(), placement, layout)?;
        if self.region != self.graph.entry() {
            let what = "a tensor is moved to another placement within a loop";
            return Err(Diagnostic::error(Code::SBP, location(caller), what).hint("move it before the loop"));
        }
        let Type::Tensor(TensorType { sbp: Some(sharding), .. }) = ty else { return Ok(x) };
        let moved = self.at(caller).create_one(ShardingConstraint { sharding }, &[x])?;
        self.placed.insert(moved, placement.name().clone());
        Ok(moved)
    }

    /// The type on a placement, whose mesh becomes one of the module's.
    fn global(
        &mut self,
        caller: &Caller<'_>,
        ty: &Type,
        placement: &Placement,
        layout: &[Sbp],
    ) -> Result<Type, Diagnostic> {
        let at = |d: Diagnostic| Diagnostic { location: location(caller), ..d };
        let ty = placement.global(ty, layout).map_err(at)?;
        let known = self.meshes.entry(placement.name().to_string()).or_insert_with(|| placement.ir().clone());
        if known != placement.ir() {
            let what = format!("two meshes are called '{}'", placement.name());
            return Err(Diagnostic::error(Code::SBP, location(caller), what).hint("give each its own name"));
        }
        Ok(ty)
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
