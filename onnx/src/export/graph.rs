//! Regions to ONNX graphs, ops to nodes.

use of_diag::{Code, Diagnostic, Location};
use of_ir::{Arity, Attr, DType, Graph, IdSet, OpData, OpId, RegionId, Tensor, Type, ValueDef, ValueId};
use of_ops::OpSpec;
use of_ops::ml::PairwiseCoupling;

use super::attribute::attribute;
use super::attribute_mapping::{AttributeMapping, attribute_mapping};
use super::names::Names;
use super::opset;
use super::type_constraints;
use super::weights::Weights;
use crate::ops::schema;
use crate::proto::attribute_proto::AttributeType;
use crate::proto::{
    AttributeProto, GraphProto, NodeDeviceConfigurationProto, NodeProto, ShardingSpecProto, ValueInfoProto,
};
use crate::{sharding, tensor, types};

/// The attribute that holds the stage of a pipeline which an op belongs to.
pub(crate) const PIPELINE_STAGE: &str = "onnx.pipeline_stage";

/// Constants of at most this many bytes stay where they are; larger ones, parameters, and those in front of everything else, are
/// listed apart, where runtimes and trainings look for weights.
const SMALL: usize = 1024;

/// The operator that an op is written as.
pub(super) fn operator(data: &OpData) -> Option<&'static str> {
    let declared = || of_ops::list::decl(data.name()).and_then(|d| d.onnx().first().copied());
    let variant = || schema::variant(data.name(), |a| data.attrs.get(a).cloned()).map(|v| v.onnx);
    variant().or_else(|| schema::written(data.name())).or_else(declared)
}

/// Writes one function.
pub(super) struct Writer<'g> {
    pub graph: &'g Graph,
    pub meshes: &'g indexmap::IndexMap<String, of_ir::Mesh>,
    pub names: Names,
    pub weights: Weights,
    /// The operator set that the nodes written so far require.
    pub opset: i64,
    /// The newest one that may be used.
    pub newest: i64,
    /// Domains of operators other than the default one.
    pub domains: Vec<&'static str>,
    pub errors: Vec<Diagnostic>,
}

impl Writer<'_> {
    /// The function's own graph, with its inputs and outputs under their names.
    pub fn main(&mut self, name: &str, inputs: &[String], outputs: &[String]) -> GraphProto {
        let g = self.graph;
        for (i, v) in g.args().iter().enumerate() {
            self.names.name(*v, inputs.get(i).map(String::as_str));
        }
        for v in g.args().iter().chain(g.outputs()).filter(|v| *g.ty(**v) == Type::None) {
            let (op, loc) = match g.def_op(*v).map(|op| g.op(op)) {
                Some(data) => (data.name(), data.loc.clone()),
                None => ("an input", Location::Unknown),
            };
            let what = format!("'{op}' cannot be written as ONNX: an omitted value cannot be an input or output");
            let hint = "remove it from the function";
            self.errors.push(Diagnostic::error(Code::UNSUPPORTED, loc, what).hint(hint));
        }
        // Name outputs before values inside, so that outputs keep their names.
        let mut given: IdSet<ValueId> = IdSet::default();
        let mut copies = Vec::new();
        for (i, v) in g.outputs().iter().enumerate() {
            let wanted = outputs.get(i).map_or("", String::as_str);
            let named = match self.names.get(*v) {
                None => {
                    self.names.name(*v, Some(wanted));
                    true
                }
                Some(name) => name == wanted,
            };
            // A value that has another name, or is given twice, is given as a copy.
            copies.push((!named || !given.insert(*v)).then(|| self.names.fresh(wanted)));
        }
        self.region(name, g.entry(), copies)
    }

    /// A region; `copies` are names for yielded values that need an Identity node.
    fn region(&mut self, name: &str, region: RegionId, copies: Vec<Option<String>>) -> GraphProto {
        let g = self.graph;
        let mut out = GraphProto { name: Some(name.into()), ..GraphProto::default() };
        for v in g.region_args(region) {
            out.input.push(self.info(*v, None));
        }
        let mut leading = true;
        for op in g.region_ops(region) {
            let data = g.op(op);
            if data.def.traits().terminator || g.results_are_none(data) {
                continue;
            }
            match g.constant_of(data) {
                Some(value) => {
                    let name = self.value_name(data.results[0]);
                    let is_large = value.bytes().is_some_and(|b| b.len() > SMALL);
                    if leading || is_large || (region == g.entry() && g.is_parameter(data, &value)) {
                        let stored = self.weights.store(&name, &value);
                        out.initializer.push(stored);
                    } else {
                        let node = self.constant(data, name, &value);
                        out.node.push(node);
                    }
                }
                None => {
                    leading = false;
                    match self.node(op) {
                        Ok(mut node) => {
                            if data.name() == PairwiseCoupling::NAME {
                                out.node.extend(self.odds(&mut node));
                            }
                            out.node.push(node);
                        }
                        Err(d) => self.errors.push(d.or_at(&data.loc)),
                    }
                    for v in &data.results {
                        // Of what is inside regions, readers learn the types from outside.
                        if region == g.entry() && !g.is_output(region, *v) && says_more(g.ty(*v)) {
                            let info = self.info(*v, None);
                            out.value_info.push(info);
                        }
                    }
                }
            }
        }
        for (v, copy) in g.yields(region).iter().zip(copies) {
            if let Some(to) = &copy {
                let node = NodeProto {
                    op_type: Some("Identity".into()),
                    input: vec![self.value_name(*v)],
                    output: vec![to.clone()],
                    name: self.names.node(to),
                    ..NodeProto::default()
                };
                out.node.push(node);
            }
            let info = self.info(*v, copy);
            out.output.push(info);
        }
        out
    }

    /// A region of an op. A subgraph may only return results of its own nodes, each once.
    fn body(&mut self, name: &str, region: RegionId) -> GraphProto {
        let g = self.graph;
        let mut given = IdSet::default();
        let own = |v: ValueId| match g.def(v) {
            ValueDef::Result(op, _) => g.op(op).parent == region && g.constant(v).is_none(),
            ValueDef::Arg(..) => false,
        };
        let mut copies = Vec::new();
        for v in g.yields(region) {
            let wanted = g.name(*v).map_or("v", |n| n);
            copies.push((!own(*v) || !given.insert(*v)).then(|| self.names.fresh(wanted)));
        }
        self.region(name, region, copies)
    }

    fn value_name(&mut self, v: ValueId) -> String {
        let wanted = self.graph.name(v).cloned();
        self.names.name(v, wanted.as_deref()).to_owned()
    }

    fn info(&mut self, v: ValueId, name: Option<String>) -> ValueInfoProto {
        let name = name.unwrap_or_else(|| self.value_name(v));
        if let Type::Tensor(t) = self.graph.ty(v) {
            self.opset = self.opset.max(opset::of_type(t.dtype));
        }
        ValueInfoProto { name: Some(name), r#type: types::proto(self.graph.ty(v)), ..ValueInfoProto::default() }
    }

    fn constant(&mut self, data: &OpData, name: String, value: &Tensor) -> NodeProto {
        self.opset = self.opset.max(opset::of_type(value.dtype()));
        let value = AttributeProto {
            name: Some("value".into()),
            r#type: Some(AttributeType::Tensor as i32),
            t: Some(tensor::tensor_proto(value)),
            ..AttributeProto::default()
        };
        NodeProto {
            op_type: Some("Constant".into()),
            attribute: vec![value],
            name: self.node_name(data),
            output: vec![name],
            ..NodeProto::default()
        }
    }

    /// The nodes in front of a support vector machine that couples probabilities (see `attribute_mapping`): `log(1 / p - 1)`, with
    /// `p` away from certainty. The SVM node also returns a label, which has no reader.
    fn odds(&mut self, machine: &mut NodeProto) -> Vec<NodeProto> {
        const MIN_ODDS: f32 = 1e-7;
        let mut nodes = Vec::new();
        let mut made = |to: &mut Names, op: &str, input: Vec<String>, value: Option<f32>| {
            let name = to.fresh(op);
            let value = value.map(|x| AttributeProto {
                name: Some("value".into()),
                r#type: Some(AttributeType::Tensor as i32),
                t: Some(tensor::tensor_proto(&Tensor::scalar(x))),
                ..AttributeProto::default()
            });
            nodes.push(NodeProto {
                op_type: Some(op.into()),
                input,
                output: vec![name.clone()],
                attribute: value.into_iter().collect(),
                ..NodeProto::default()
            });
            name
        };
        let names = &mut self.names;
        let [low, high, one] = [MIN_ODDS, 1.0 - MIN_ODDS, 1.0].map(|x| made(names, "Constant", vec![], Some(x)));
        let p = made(names, "Clip", vec![std::mem::take(&mut machine.input[0]), low, high], None);
        let p = made(names, "Reciprocal", vec![p], None);
        let p = made(names, "Sub", vec![p, one], None);
        machine.input[0] = made(names, "Log", vec![p], None);
        machine.output.insert(0, names.fresh("label"));
        nodes
    }

    fn node_name(&mut self, data: &OpData) -> Option<String> {
        let from = data.loc.roots().into_iter().find_map(|l| match l {
            Location::Onnx { node, .. } => Some(node.clone()),
            _ => None,
        });
        let own = || data.results.first().and_then(|v| self.graph.name(*v).cloned());
        let wanted = from.or_else(own)?;
        self.names.node(&wanted)
    }

    fn node(&mut self, id: OpId) -> Result<NodeProto, Diagnostic> {
        let g = self.graph;
        let data = g.op(id);
        let refuse = |why: &str, hint: &str| {
            let what = format!("'{}' cannot be written as ONNX: {why}", data.name());
            Err(Diagnostic::error(Code::UNSUPPORTED, data.loc.clone(), what).hint(hint))
        };
        let mapped = match attribute_mapping(g, id, &mut |v| self.value_name(v)) {
            Some(Err(why)) => return refuse(&why, "give it as operators that ONNX has"),
            Some(Ok(s)) => Some(s),
            None => None,
        };
        let Some(full) = mapped.as_ref().map(|s| s.operator).or_else(|| operator(data)) else {
            return refuse("ONNX has no such operator", "export the model before the pass that makes it");
        };
        let operands = mapped.as_ref().map_or(&data.operands[..], |s| &s.operands);
        let needed = opset::needed(g, data, full);
        if needed > self.newest {
            let why = format!("it needs operator set {needed}, {} is the newest that may be used", self.newest);
            return refuse(&why, "allow a newer operator set");
        }
        // The first output of the SVM node that couples probabilities is a label.
        let results = if data.name() == PairwiseCoupling::NAME { &[] } else { &data.results[..] };
        if let Some(why) = type_constraints::version(full, self.newest).and_then(|s| s.unfit(g, operands, results)) {
            return refuse(&why, "export the model before 'expand-composites', or convert its operands");
        }
        self.opset = self.opset.max(needed);
        let (domain, op) = full.split_once("::").unwrap_or(("", full));
        if !domain.is_empty() && !self.domains.contains(&domain) {
            self.domains.push(domain);
        }
        let mut input: Vec<String> = Vec::with_capacity(operands.len());
        for v in operands {
            input.push(if *g.ty(*v) == Type::None { String::new() } else { self.value_name(*v) });
        }
        // Variadic ones have no place that could be left out.
        let slots = data.def.signature().operands;
        while input.last().is_some_and(String::is_empty)
            && slots.get(input.len() - 1).is_some_and(|s| s.arity == Arity::Optional)
        {
            input.pop();
        }
        if data.name() == PairwiseCoupling::NAME
            && g.ty(data.operands[0]).as_tensor().is_some_and(|t| t.dtype != DType::F32)
        {
            return refuse("SVMClassifier computes with 32 bits", "convert its operand");
        }
        let output: Vec<String> = data.results.iter().map(|v| self.value_name(*v)).collect();
        let mut node = NodeProto {
            op_type: Some(op.into()),
            domain: (!domain.is_empty()).then(|| domain.into()),
            name: self.node_name(data),
            doc_string: matches!(data.loc, Location::Derived { .. }).then(|| data.loc.to_string()),
            input,
            output,
            ..NodeProto::default()
        };
        let attributes = match mapped {
            Some(AttributeMapping { attributes, .. }) => Ok(attributes),
            None => self.attributes(data, full),
        };
        match attributes {
            Ok(list) => node.attribute = list,
            Err(why) => return refuse(&why, "export the model before the pass that makes it"),
        }
        for (name, region) in schema::regions(op).iter().zip(&data.regions) {
            let graph = self.body(name, *region);
            node.attribute.push(AttributeProto {
                name: Some((*name).into()),
                r#type: Some(AttributeType::Graph as i32),
                g: Some(graph),
                ..AttributeProto::default()
            });
        }
        match self.devices(data) {
            Ok(list) => node.device_configurations = list,
            Err(why) => {
                let hint = "insert the exchanges that make it whole before the export";
                return refuse(&format!("ONNX cannot express its placement: {why}"), hint);
            }
        }
        Ok(node)
    }

    fn attributes(&mut self, data: &OpData, op: &str) -> Result<Vec<AttributeProto>, String> {
        let mut list = Vec::new();
        let variant = schema::variant(data.name(), |a| data.attrs.get(a).cloned());
        if let Some(v) = variant {
            list.push(attribute(v.attr, &v.value())?);
        }
        for slot in data.def.signature().attrs {
            let Some(value) = data.attrs.get(slot.name) else { continue };
            let said_elsewhere = schema::flag_of_output(op, slot.name).is_some()
                || variant.is_some_and(|v| v.with.is_some_and(|(name, _)| name == slot.name))
                || schema::repeats_operand(op, slot.name).is_some_and(|i| data.operands.len() > i);
            let is_default = schema::default(op, slot).as_ref() == Some(value) && !schema::is_spelt_out(op, slot.name);
            if said_elsewhere || is_default || overruled(self.graph, data, op, slot.name) {
                continue;
            }
            if schema::is_internal(op, slot.name) {
                return Err(format!("it has no attribute for '{}'", slot.name));
            }
            list.push(attribute(schema::onnx_name(op, slot.name), value)?);
        }
        // Runtimes require this attribute although the recurrence weights imply it.
        if matches!(op, "RNN" | "GRU" | "LSTM") {
            let hidden =
                data.operands.get(2).and_then(|r| self.graph.ty(*r).as_tensor()?.shape.as_ref()?.last()?.as_const());
            if let Some(n) = hidden {
                list.push(attribute("hidden_size", &Attr::Int(n))?);
            }
        }
        Ok(list)
    }

    /// The placements of operands and results, and the pipeline stage.
    fn devices(&mut self, data: &OpData) -> Result<Vec<NodeDeviceConfigurationProto>, String> {
        let g = self.graph;
        let mut list: Vec<NodeDeviceConfigurationProto> = Vec::new();
        let mut seen = IdSet::default();
        for v in data.operands.iter().chain(&data.results) {
            let Type::Tensor(t) = g.ty(*v) else { continue };
            let Some(sbp) = t.sbp.as_ref().filter(|_| seen.insert(*v)) else { continue };
            let Some(mesh) = self.meshes.get(&*sbp.mesh) else { return Err(format!("there is no mesh @{}", sbp.mesh)) };
            let name = self.value_name(*v);
            let spec: ShardingSpecProto = sharding::encode(&name, sbp, mesh, t.shape.as_ref())?;
            let at = list.iter().position(|c| c.configuration_id() == &*sbp.mesh).unwrap_or_else(|| {
                list.push(NodeDeviceConfigurationProto {
                    configuration_id: Some(sbp.mesh.to_string()),
                    ..NodeDeviceConfigurationProto::default()
                });
                list.len() - 1
            });
            list[at].sharding_spec.push(spec);
        }
        if let Some(Attr::Int(stage)) = data.attrs.get(PIPELINE_STAGE) {
            let stage = i32::try_from(*stage).map_err(|_| format!("there is no stage {stage}"))?;
            match (list.first_mut(), self.meshes.keys().next()) {
                (Some(first), _) => first.pipeline_stage = Some(stage),
                (None, Some(mesh)) => list.push(NodeDeviceConfigurationProto {
                    configuration_id: Some(mesh.clone()),
                    pipeline_stage: Some(stage),
                    ..NodeDeviceConfigurationProto::default()
                }),
                (None, None) => return Err(format!("stage {stage} without a mesh")),
            }
        }
        Ok(list)
    }
}

/// Whether another attribute or operand makes one meaningless, which must not be written then.
fn overruled(g: &Graph, data: &OpData, op: &str, slot: &str) -> bool {
    let rank = |i: usize| data.operands.get(i).and_then(|v| g.ty(*v).as_tensor()?.rank());
    match slot {
        "pads" | "ceil_mode" => matches!(data.attrs.get("auto_pad"), Some(Attr::Str(s)) if &**s != "NOTSET"),
        "round_mode" => data.attrs.get("to") != Some(&Attr::DType(DType::F8E8M0FNU)),
        "exclude_outside" => matches!(data.attrs.get("mode"), Some(Attr::Str(s)) if &**s == "nearest"),
        "block_size" => rank(1) == Some(0),
        "q_num_heads" | "kv_num_heads" if op == "Attention" => rank(0) == Some(4),
        // With the sizes given, scales are left out.
        "keep_aspect_ratio_policy" => op == "Resize" && data.operands.get(3).is_none_or(|v| *g.ty(*v) == Type::None),
        _ => false,
    }
}

/// Whether a declared type adds information for a reader.
fn says_more(ty: &Type) -> bool {
    match ty {
        Type::Tensor(t) => t.shape.is_some(),
        Type::None => false,
        Type::Sequence(_) | Type::Optional(_) => true,
    }
}

trait Read {
    fn results_are_none(&self, data: &OpData) -> bool;
    fn constant_of(&self, data: &OpData) -> Option<Tensor>;
    fn is_parameter(&self, data: &OpData, value: &Tensor) -> bool;
    fn is_output(&self, region: RegionId, v: ValueId) -> bool;
}

impl Read for Graph {
    fn results_are_none(&self, data: &OpData) -> bool {
        !data.results.is_empty() && data.results.iter().all(|v| *self.ty(*v) == Type::None)
    }

    fn constant_of(&self, data: &OpData) -> Option<Tensor> {
        if data.def.traits().constant { data.def.constant(&data.attrs) } else { None }
    }

    /// Whether a constant is one that a training changes: it has a name, and the model does not compute it by a node.
    fn is_parameter(&self, data: &OpData, value: &Tensor) -> bool {
        let is_node = matches!(&data.loc, Location::Onnx { op, .. } if &**op != "Initializer");
        let is_named = data.results.first().is_some_and(|v| self.name(*v).is_some());
        value.dtype().is_float() && !value.dims().is_empty() && is_named && !is_node
    }

    fn is_output(&self, region: RegionId, v: ValueId) -> bool {
        self.terminator(region).is_some_and(|t| self.uses(v).iter().any(|u| u.op == t))
    }
}
