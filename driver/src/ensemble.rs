//! Ensembles: models whose outputs are inputs of other models, merged into one model. It compiles to one plan.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use of_diag::{Code, Diagnostic, Diagnostics, Location};
use of_ir::{Attrs, Dim, Func, Graph, IdMap, Module, Rewriter, TensorType, Type, ValueId};
use of_ops::structural::Return;
use of_ops::training::VARIABLES;
use of_passes::infer_shapes::infer_shapes;

use crate::error::error;
use crate::model::Model;
use crate::prepare::main_func;

/// A model of an ensemble, and how its inputs and outputs are called in it.
pub struct Step {
    /// Name, for messages.
    pub name: String,
    /// The model.
    pub model: Model,
    /// Each input of the model, with the tensor of the ensemble that it reads.
    pub inputs: Vec<(String, String)>,
    /// Outputs of the model, each with the tensor of the ensemble that it is.
    pub outputs: Vec<(String, String)>,
}

/// Merges models. `inputs` and `outputs` are tensors of the ensemble; steps may be in any order.
///
/// # Errors
/// When a tensor has no source, or several, or a type does not fit. The message names the step.
pub fn merge(name: &str, steps: Vec<Step>, inputs: &[String], outputs: &[String]) -> Result<Model, Diagnostics> {
    let mut merged = Merged { graph: Graph::new(), tensors: BTreeMap::new(), symbols: BTreeSet::new() };
    let (mut files, mut data_files) = (Vec::new(), Vec::new());
    let steps = in_order(steps, inputs)?;
    for step in &steps {
        merged.add(step, inputs).map_err(|d| within(&step.name, d))?;
        files.extend(step.model.files.iter().cloned());
        data_files.extend(step.model.data_files.iter().cloned());
    }
    let source = |name: &String, what: &str| {
        let missing = || error(Code::INPUT, format!("the ensemble's {what} '{name}' is no tensor of a step"));
        merged.tensors.get(name).map(|tensor| tensor.value).ok_or_else(missing)
    };
    inputs.iter().try_for_each(|name| source(name, "input").map(|_| ()))?;
    let results: Vec<ValueId> = outputs.iter().map(|name| source(name, "output")).collect::<Result<_, _>>()?;
    let mut names: Vec<(ValueId, &String)> = inputs.iter().map(|name| (merged.tensors[name].value, name)).collect();
    names.sort_by_key(|(value, _)| merged.graph.args().iter().position(|arg| arg == value));
    let arguments = names.into_iter().map(|(_, name)| name.clone()).collect();
    let mut rw = Rewriter::new(&mut merged.graph, "ensemble");
    let entry = rw.graph().entry();
    rw.at_end(entry);
    rw.create(Return {}, &results)?;
    let mut func = Func {
        graph: merged.graph,
        inputs: arguments,
        outputs: outputs.to_vec(),
        attrs: Attrs::new(),
        loc: Location::Unknown,
    };
    infer_shapes(&mut func)?;
    let mut module = Module { name: name.to_owned(), ..Module::default() };
    module.funcs.insert("main".into(), func);
    Ok(Model { module, files, data_files })
}

fn within(step: &str, errors: Diagnostics) -> Diagnostics {
    let named = |mut d: Diagnostic| {
        d.message = format!("step '{step}': {}", d.message);
        d
    };
    Diagnostics(errors.0.into_iter().map(named).collect())
}

/// Steps in an order in which each comes after those whose outputs it reads.
fn in_order(mut steps: Vec<Step>, inputs: &[String]) -> Result<Vec<Step>, Diagnostics> {
    let mut known: BTreeSet<String> = inputs.iter().cloned().collect();
    for (_, tensor) in steps.iter().flat_map(|step| &step.outputs) {
        if !known.insert(tensor.clone()) {
            return Err(error(Code::INPUT, format!("the tensor '{tensor}' has two sources")).into());
        }
    }
    for step in &steps {
        if let Some((input, tensor)) = step.inputs.iter().find(|(_, tensor)| !known.contains(tensor)) {
            let what = format!("step '{}': input '{input}' reads '{tensor}'", step.name);
            return Err(error(Code::INPUT, format!("{what}, which is no input and no output of a step")).into());
        }
    }
    let mut ready: BTreeSet<String> = inputs.iter().cloned().collect();
    let mut ordered = Vec::with_capacity(steps.len());
    while !steps.is_empty() {
        let Some(at) = steps.iter().position(|step| step.inputs.iter().all(|(_, tensor)| ready.contains(tensor)))
        else {
            let names: Vec<&str> = steps.iter().map(|step| &step.name[..]).collect();
            return Err(error(Code::INPUT, format!("the steps {} wait for one another", names.join(", "))).into());
        };
        let step = steps.remove(at);
        ready.extend(step.outputs.iter().map(|(_, tensor)| tensor.clone()));
        ordered.push(step);
    }
    Ok(ordered)
}

/// The graph of the steps so far.
struct Merged {
    graph: Graph,
    tensors: BTreeMap<String, Tensor>,
    /// The names of extents in the graph.
    symbols: BTreeSet<Arc<str>>,
}

/// A tensor of the ensemble.
struct Tensor {
    value: ValueId,
    /// Where it comes from, for messages.
    source: String,
}

impl Merged {
    /// Adds the ops of a step.
    fn add(&mut self, step: &Step, inputs: &[String]) -> Result<(), Diagnostics> {
        let mut func = main_func(&step.model.module)?.clone();
        if !step.model.module.meshes.is_empty() || func.attrs.get(VARIABLES).is_some() {
            return Err(error(Code::INPUT, "the model is for several ranks, or keeps variables").into());
        }
        for (input, _) in &step.inputs {
            if !func.inputs.contains(input) {
                return Err(unknown("input", input, &func.inputs));
            }
        }
        self.rename_symbols(&mut func);
        let mut map: IdMap<ValueId, ValueId> = IdMap::default();
        for (number, input) in func.inputs.clone().iter().enumerate() {
            let Some((_, tensor)) = step.inputs.iter().find(|(name, _)| name == input) else {
                return Err(error(Code::INPUT, format!("input '{input}' reads no tensor")).into());
            };
            let arg = func.graph.args()[number];
            if !self.tensors.contains_key(tensor) && inputs.contains(tensor) {
                let ty = func.graph.ty(arg).clone();
                let mut rw = Rewriter::new(&mut self.graph, "ensemble");
                let entry = rw.graph().entry();
                let value = rw.add_arg(entry, ty, Some(tensor.as_str().into()));
                self.tensors.insert(tensor.clone(), Tensor { value, source: "the ensemble's inputs".into() });
            }
            self.unify(&mut func, arg, input, tensor)?;
            map.insert(arg, self.tensors[tensor].value);
        }
        let mut rw = Rewriter::new(&mut self.graph, "ensemble");
        rw.number_symbols_above(&func.graph);
        let entry = rw.graph().entry();
        rw.at_end(entry);
        let body = func.graph.entry();
        let terminator = func.graph.terminator(body);
        for op in func.graph.region_ops(body).filter(|op| Some(*op) != terminator) {
            rw.clone_op(&func.graph, op, &mut map);
        }
        for (output, tensor) in &step.outputs {
            let Some(at) = func.outputs.iter().position(|name| name == output) else {
                return Err(unknown("output", output, &func.outputs));
            };
            let value = map[&func.graph.outputs()[at]];
            let source = format!("output '{output}' of step '{}'", step.name);
            self.tensors.insert(tensor.clone(), Tensor { value, source });
        }
        let types = (0..self.graph.value_slots()).filter_map(|i| self.graph.value_at(i)).map(|v| self.graph.ty(v));
        self.symbols = types.flat_map(symbols).collect();
        Ok(())
    }

    /// Gives the open extents of a step names that no other step has.
    fn rename_symbols(&self, func: &mut Func) {
        let values: Vec<ValueId> = (0..func.graph.value_slots()).filter_map(|i| func.graph.value_at(i)).collect();
        let own: BTreeSet<Arc<str>> = values.iter().flat_map(|v| symbols(func.graph.ty(*v))).collect();
        let mut names: BTreeMap<Arc<str>, Dim> = BTreeMap::new();
        let mut used: BTreeSet<Arc<str>> = self.symbols.union(&own).cloned().collect();
        for symbol in own.intersection(&self.symbols) {
            let free = (2..).map(|n| Arc::<str>::from(format!("{symbol}_{n}"))).find(|name| !used.contains(name));
            let Some(free) = free else { continue };
            used.insert(Arc::clone(&free));
            names.insert(Arc::clone(symbol), Dim::symbol(free));
        }
        replace(&mut func.graph, &|symbol| names.get(symbol).cloned());
    }

    /// Makes the types of a step's input and of the tensor that it reads the same.
    fn unify(&mut self, func: &mut Func, arg: ValueId, input: &str, tensor: &str) -> Result<(), Diagnostics> {
        loop {
            let given = &self.tensors[tensor];
            let (wanted, actual) = (func.graph.ty(arg).clone(), self.graph.ty(given.value).clone());
            let differ = |why: &str| {
                let what = format!("input '{input}' is {wanted}, and '{tensor}', {}, is {actual}", given.source);
                Diagnostics::from(error(Code::SHAPE, format!("{what}: {why}")))
            };
            let (Some(a), Some(b)) = (wanted.as_tensor(), actual.as_tensor()) else {
                return if wanted == actual { Ok(()) } else { Err(differ("they are no tensors")) };
            };
            if a.dtype != b.dtype {
                return Err(differ("the element types differ"));
            }
            let (Some(a), Some(b)) = (&a.shape, &b.shape) else {
                return if accepts_any_rank(a) { Ok(()) } else { Err(differ("the rank is not known")) };
            };
            if a.len() != b.len() {
                return Err(differ("the ranks differ"));
            }
            let Some((want, have)) = a.iter().zip(b).find(|(want, have)| want != have) else { return Ok(()) };
            if want.provably_ne(have) {
                return Err(differ("the extents differ"));
            }
            let is_new = |symbol: &&Arc<str>| !have.symbols().contains(symbol);
            let is_own = |symbol: &&Arc<str>| !want.symbols().contains(symbol);
            if let Some(symbol) = want.as_symbol().filter(is_new) {
                let substitute = |other: &str| (*other == **symbol).then(|| have.clone());
                // An input of the ensemble that this step made has the step's names.
                replace(&mut func.graph, &substitute);
                replace(&mut self.graph, &substitute);
            } else if let Some(symbol) = have.as_symbol().filter(is_own) {
                let substitute = |other: &str| (*other == **symbol).then(|| want.clone());
                replace(&mut self.graph, &substitute);
                replace(&mut func.graph, &substitute);
            } else {
                return Err(differ("the extents cannot be compared"));
            }
        }
    }
}

fn accepts_any_rank(wanted: &TensorType) -> bool {
    wanted.shape.is_none()
}

fn unknown(kind: &str, name: &str, names: &[String]) -> Diagnostics {
    let what = format!("the model has no {kind} '{name}'");
    error(Code::INPUT, what).hint(format!("its {kind}s are {}", names.join(", "))).into()
}

fn symbols(ty: &Type) -> Vec<Arc<str>> {
    let mut all = Vec::new();
    ty.map_dims(&mut |dim| {
        all.extend(dim.symbols());
        dim.clone()
    });
    all
}

/// Replaces names of extents in the types of all values.
fn replace(graph: &mut Graph, substitute: &dyn Fn(&str) -> Option<Dim>) {
    let mut rw = Rewriter::new(graph, "ensemble");
    for number in 0..rw.graph().value_slots() {
        let Some(value) = rw.graph().value_at(number) else { continue };
        let ty = rw.graph().ty(value).map_dims(&mut |dim| dim.substitute(substitute));
        rw.set_type(value, ty);
    }
}
