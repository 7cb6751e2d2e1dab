//! Import of a graph, the main graph or a subgraph: inputs, initializers, nodes, outputs.

use std::collections::HashSet;

use of_diag::{Code, Diagnostic, Location};
use of_ir::{Tensor, ValueId};

use super::attribute::Attributes;
use super::declared::{self, Declared};
use super::report::{ImportError, OpName};
use super::scope::Bound;
use super::{Importer, Node, domain};
use crate::load::ModelInput;
use crate::map_io::keys_of;
use crate::ops::{self, ImportFn};
use crate::proto::{FunctionProto, GraphProto, NodeProto};
use crate::tensor::{self, invalid};
use crate::types;

/// What a node is.
pub(super) enum Resolved<'m> {
    /// An operator, read by this importer.
    Op(ImportFn),
    /// A call of one of the model's functions.
    Call(&'m FunctionProto),
}

/// The names that have a value in the model.
fn initialized(graph: &GraphProto) -> HashSet<&str> {
    let sparse = graph.sparse_initializer.iter().filter_map(|t| t.values.as_ref());
    graph.initializer.iter().chain(sparse).map(|t| t.name()).collect()
}

/// The inputs of `graph`, in order.
pub(crate) fn model_inputs(graph: &GraphProto) -> Vec<ModelInput> {
    let initialized = initialized(graph);
    let input = |name: &str| ModelInput { name: name.to_owned(), has_default: initialized.contains(name) };
    graph.input.iter().map(|i| input(i.name())).collect()
}

impl<'m> Importer<'m, '_> {
    /// Imports the main graph; returns the names of its inputs and outputs.
    pub(super) fn main(&mut self, graph: &'m GraphProto) -> (Vec<String>, Vec<String>) {
        self.scope.push();
        self.constants(graph);
        let inputs = self.inputs(graph);
        let declared = declared::all(graph);
        self.nodes(&graph.node, &declared);
        let mut outputs = self.outputs(graph);
        let mut names = self.names_of_outputs(graph);
        // Without all outputs there is an error in the report, and no module.
        if outputs.len() == graph.output.len() {
            self.outputs_of_keys(&mut outputs, &mut names);
            self.rw.set_location(Location::Unknown);
            if let Err(d) = self.rw.create(of_ops::structural::Return {}, &outputs) {
                self.report.error(d);
            }
        }
        self.scope.pop();
        (inputs, names)
    }

    /// Adds an output for the keys of each output that is a list of maps.
    fn outputs_of_keys(&mut self, outputs: &mut Vec<ValueId>, names: &mut Vec<String>) {
        for i in 0..outputs.len() {
            let Some(keys) = self.map_keys.get(&outputs[i]) else { continue };
            outputs.push(*keys);
            let (name, own) = (names[i].clone(), keys_of(&names[i]));
            let message = format!("output '{name}' is a list of maps: '{name}' are their values, '{own}' their keys");
            self.report.warning(Diagnostic::warning(Code::MODEL, Location::onnx(name, i as u32, "Output"), message));
            names.push(own);
        }
    }

    /// The names of the outputs. A repeated output gets a new name, since callers look up outputs by name.
    fn names_of_outputs(&mut self, graph: &GraphProto) -> Vec<String> {
        let mut taken: HashSet<String> = graph.output.iter().map(|o| o.name().to_owned()).collect();
        let mut listed = HashSet::new();
        let mut names = Vec::new();
        for (i, name) in graph.output.iter().map(|o| o.name()).enumerate() {
            if listed.insert(name) {
                names.push(name.to_owned());
                continue;
            }
            let mut own = format!("{name}_{}", names.len());
            while !taken.insert(own.clone()) {
                own.push('_');
            }
            let message = format!("output '{name}' is listed again; here it is called '{own}'");
            self.report.warning(Diagnostic::warning(Code::MODEL, Location::onnx(name, i as u32, "Output"), message));
            names.push(own);
        }
        names
    }

    fn inputs(&mut self, graph: &'m GraphProto) -> Vec<String> {
        let mut names = Vec::new();
        let symbols = declared::symbols_of_tensors(&graph.input);
        let initialized = initialized(graph);
        for (i, input) in graph.input.iter().enumerate() {
            let name = input.name();
            // An initializer of that name is its default: the input is a constant, unless a value will be given.
            if initialized.contains(name) && !self.initializer_inputs.contains(name) {
                continue;
            }
            let loc = Location::onnx(name, i as u32, "Input");
            let map = input.r#type.as_ref().and_then(|t| types::map(t, &format!("{name}.size")));
            if let Some(Ok([keys, values])) = map {
                let values = self.rw.add_arg(self.region, values, Some(name.into()));
                let keys = self.rw.add_arg(self.region, keys, Some(keys_of(name).into()));
                self.map_keys.insert(values, keys);
                self.define(name, Bound::Value(values), &loc);
                names.extend([name.to_owned(), keys_of(name)]);
                continue;
            }
            let ty = match &input.r#type {
                Some(t) => types::ty(t),
                None => Err(invalid(format!("input '{name}' has no type"))),
            };
            let bound = match ty {
                Ok(ty) => {
                    let ty = declared::of_input(ty, &symbols);
                    Bound::Value(self.rw.add_arg(self.region, ty, Some(name.into())))
                }
                Err(d) => {
                    self.report.error(d.or_at(&loc));
                    Bound::Poisoned
                }
            };
            self.define(name, bound, &loc);
            names.push(name.to_owned());
        }
        names
    }

    /// The constants of a graph.
    pub(super) fn constants(&mut self, graph: &'m GraphProto) {
        for (i, t) in graph.initializer.iter().enumerate() {
            if self.depth == 0 && self.initializer_inputs.contains(t.name()) {
                continue;
            }
            let value = tensor::tensor(t, self.external);
            self.initializer(t.name(), i, value);
        }
        for (i, t) in graph.sparse_initializer.iter().enumerate() {
            let name = t.values.as_ref().map_or("", |v| v.name());
            if self.depth == 0 && self.initializer_inputs.contains(name) {
                continue;
            }
            let value = tensor::dense(t, self.external);
            self.initializer(name, i, value);
        }
    }

    fn initializer(&mut self, name: &'m str, index: usize, value: Result<Tensor, Diagnostic>) {
        let loc = Location::onnx(name, index as u32, "Initializer");
        self.rw.set_location(loc.clone());
        let value = value.map_err(ImportError::from).and_then(|t| self.constant(t));
        let bound = match value {
            Ok(v) => {
                self.rw.set_name(v, name);
                Bound::Value(v)
            }
            Err(f) => {
                self.fault(f, "Initializer", "", &loc);
                Bound::Poisoned
            }
        };
        self.define(name, bound, &loc);
    }

    /// The values of a graph's outputs; fewer than it has where one cannot be had.
    pub(super) fn outputs(&mut self, graph: &'m GraphProto) -> Vec<ValueId> {
        let mut values = Vec::new();
        for (i, output) in graph.output.iter().enumerate() {
            match self.scope.get(output.name()) {
                Some(Bound::Value(v)) => values.push(v),
                Some(Bound::Poisoned) => {}
                // The reading ended early, which is reported.
                None if self.nodes_left.is_none() => {}
                Some(Bound::Absent) | None => {
                    let loc = Location::onnx(output.name(), i as u32, "Output");
                    let message = format!("output '{}' is not defined", output.name());
                    self.report.error(Diagnostic::error(Code::MODEL, loc, message));
                }
            }
        }
        values
    }

    /// The nodes of a graph in order. Ops that are made afterwards come from the node around it.
    pub(super) fn nodes(&mut self, nodes: &'m [NodeProto], declared: &Declared<'_>) {
        let outer = self.location.clone();
        self.each_node(nodes, declared);
        self.rw.set_location(outer.clone());
        self.location = outer;
    }

    fn each_node(&mut self, nodes: &'m [NodeProto], declared: &Declared<'_>) {
        for (i, node) in nodes.iter().enumerate() {
            let Some(left) = self.nodes_left else { return };
            self.nodes_left = left.checked_sub(1);
            if left == 0 {
                let message = "the model has too many nodes, counting bodies of loops each time that they are read";
                self.report.error(invalid(message.into()).hint(
                    "a loop is read again for each carried value whose shape changes: nest fewer of them, or raise max_nodes",
                ));
                return;
            }
            let loc = self.location(node, i);
            self.rw.set_location(loc.clone());
            self.location = loc.clone();
            let values = match self.node(node) {
                Ok(values) => values,
                Err(f) => {
                    self.fault(f, node.op_type(), domain(node.domain()), &loc);
                    vec![Bound::Poisoned; node.output.len()]
                }
            };
            for (name, bound) in node.output.iter().zip(values) {
                if name.is_empty() {
                    continue;
                }
                if let (Bound::Value(v), Some(ty)) = (bound, declared.get(name.as_str())) {
                    self.refine(v, name, ty, &loc);
                }
                self.define(name, bound, &loc);
            }
            self.placements(node, &loc);
        }
    }

    fn location(&self, node: &NodeProto, index: usize) -> Location {
        let name = match node.name() {
            "" => node.output.iter().find(|o| !o.is_empty()).map_or("", String::as_str),
            name => name,
        };
        let path: String = self.context.calls.iter().map(|c| format!("{}/", c.name)).collect();
        Location::onnx(format!("{path}{name}"), index as u32, node.op_type())
    }

    fn define(&mut self, name: &'m str, bound: Bound, loc: &Location) {
        if !self.scope.bind(name, bound) {
            let message = format!("'{name}' is defined twice");
            self.report.error(Diagnostic::error(Code::MODEL, loc.clone(), message));
        }
    }

    /// The values of the outputs of a node.
    fn node(&mut self, proto: &'m NodeProto) -> Result<Vec<Bound>, ImportError> {
        let resolved = self.resolve(proto)?;
        let inputs = self.bound_inputs(proto)?;
        let attrs = Attributes::read(&proto.attribute, &self.context.attrs, self.external)?;
        let import = match resolved {
            Resolved::Call(function) => return self.call(function, proto, &inputs, attrs),
            Resolved::Op(import) => import,
        };
        if inputs.contains(&Bound::Poisoned) {
            // What its subgraphs contain is still worth knowing.
            self.check_subgraphs(proto);
            return Err(ImportError::Poisoned);
        }
        let inputs = inputs.iter().map(|b| match b {
            Bound::Value(v) => Some(*v),
            Bound::Absent | Bound::Poisoned => None,
        });
        let domain = domain(proto.domain());
        let node = Node {
            op: proto.op_type(),
            domain,
            version: self.context.opsets.get(domain).copied().unwrap_or_default(),
            inputs: inputs.collect(),
            attrs,
            outputs: proto.output.iter().map(|o| !o.is_empty()).collect(),
        };
        let results = import(self, node)?;
        for (i, name) in proto.output.iter().enumerate().filter(|(_, name)| !name.is_empty()) {
            let Some(v) = results.get(i) else {
                let message = format!("output {i} ('{name}') is not one of the {} that it gives", results.len());
                return Err(ImportError::unsupported(message));
            };
            if self.rw.graph().name(*v).is_none() {
                self.rw.set_name(*v, name.as_str());
            }
        }
        Ok(results.into_iter().map(Bound::Value).collect())
    }

    fn bound_inputs(&self, proto: &NodeProto) -> Result<Vec<Bound>, ImportError> {
        let bound = |name: &String| match name.as_str() {
            "" => Ok(Bound::Absent),
            name => self
                .scope
                .get(name)
                .ok_or_else(|| ImportError::invalid(format!("'{name}' is used before it is defined"))),
        };
        proto.input.iter().map(bound).collect()
    }

    /// What the node is: a call, or an operator that is known.
    pub(super) fn resolve(&self, proto: &NodeProto) -> Result<Resolved<'m>, ImportError> {
        let (domain, op) = (domain(proto.domain()), proto.op_type());
        if let Some(f) = self.functions.get(&(domain, op, proto.overload())) {
            return Ok(Resolved::Call(f));
        }
        let Some(version) = self.context.opsets.get(domain).copied() else {
            let reason = "the model imports no operator set of its domain, and has no function of its name";
            return Err(if domain.is_empty() {
                ImportError::invalid(reason)
            } else {
                ImportError::unsupported(reason)
            });
        };
        match ops::find(domain, op, version) {
            Some(import) => Ok(Resolved::Op(import)),
            None => Err(ImportError::unsupported(ops::why_not(domain, op))),
        }
    }

    /// Reports unknown operators in a node's subgraphs, which are not imported.
    fn check_subgraphs(&mut self, proto: &'m NodeProto) {
        for graph in proto.attribute.iter().filter_map(|a| a.g.as_ref()) {
            for (i, node) in graph.node.iter().enumerate() {
                if let Err(f) = self.resolve(node) {
                    let loc = self.location(node, i);
                    self.fault(f, node.op_type(), domain(node.domain()), &loc);
                }
                self.check_subgraphs(node);
            }
        }
    }

    fn fault(&mut self, fault: ImportError, op: &str, domain: &str, loc: &Location) {
        match fault {
            ImportError::Poisoned => {}
            ImportError::Invalid(d) => self.report.error(d.or_at(loc)),
            ImportError::Unsupported(reason) => {
                let opset = self.context.opsets.get(domain).copied();
                let domain = if domain.is_empty() { "ai.onnx" } else { domain };
                let name = OpName { domain: domain.into(), op: op.into(), opset };
                self.report.unsupported(name, reason, loc.clone());
            }
        }
    }
}
