//! A small builder of models, and their runs through the interpreter.

#![allow(dead_code, reason = "every test file uses another part")]

use bytes::Bytes;
use of_diag::{Code, Diagnostic, Diagnostics, Location};
use of_ir::{Elements, Graph, Module, OpData, Tensor};
use of_onnx::proto::attribute_proto::AttributeType;
use of_onnx::proto::tensor_proto::DataType;
use of_onnx::proto::tensor_shape_proto::{Dimension, dimension};
use of_onnx::proto::{
    AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, SparseTensorProto,
    TensorProto, TensorShapeProto, TypeProto, ValueInfoProto, type_proto,
};
use of_onnx::{Imported, Options, import_with_warnings};
use of_ops::Value;
use prost::Message;

pub const F32: DataType = DataType::Float;
pub const I64: DataType = DataType::Int64;
pub const BOOL: DataType = DataType::Bool;

/// A graph builder.
#[derive(Clone, Default)]
pub struct Build(pub GraphProto);

impl Build {
    pub fn new() -> Build {
        Build(GraphProto { name: Some("g".into()), ..GraphProto::default() })
    }

    /// An input. Dimensions are numbers or names.
    pub fn input(mut self, name: &str, dtype: DataType, dims: &[&str]) -> Build {
        self.0.input.push(info(name, dtype, dims));
        self
    }

    /// An input that is a map.
    pub fn map(mut self, name: &str, key: DataType, value: DataType) -> Build {
        let map = type_proto::Map { key_type: Some(key as i32), value_type: Some(Box::new(ty(value, &[]))) };
        let ty = TypeProto { value: Some(type_proto::Value::MapType(Box::new(map))), ..TypeProto::default() };
        self.0.input.push(ValueInfoProto { name: Some(name.into()), r#type: Some(ty), ..ValueInfoProto::default() });
        self
    }

    /// An input of a subgraph, typed by its operand.
    pub fn arg(mut self, name: &str) -> Build {
        self.0.input.push(ValueInfoProto { name: Some(name.into()), ..ValueInfoProto::default() });
        self
    }

    pub fn init(mut self, t: TensorProto) -> Build {
        self.0.initializer.push(t);
        self
    }

    pub fn sparse(mut self, t: SparseTensorProto) -> Build {
        self.0.sparse_initializer.push(t);
        self
    }

    pub fn node(mut self, op: &str, inputs: &[&str], outputs: &[&str], attrs: &[AttributeProto]) -> Build {
        self.0.node.push(node(op, inputs, outputs, attrs));
        self
    }

    /// Names the node before.
    pub fn named(mut self, name: &str) -> Build {
        self.0.node.last_mut().unwrap().name = Some(name.into());
        self
    }

    /// Sets the domain of the node before.
    pub fn domain(mut self, domain: &str) -> Build {
        self.0.node.last_mut().unwrap().domain = Some(domain.into());
        self
    }

    /// Sets the overload of the node before.
    pub fn overload(mut self, overload: &str) -> Build {
        self.0.node.last_mut().unwrap().overload = Some(overload.into());
        self
    }

    /// Outputs without declared types.
    pub fn outputs(mut self, names: &[&str]) -> Build {
        let plain = |n: &&str| ValueInfoProto { name: Some((*n).into()), ..ValueInfoProto::default() };
        self.0.output.extend(names.iter().map(plain));
        self
    }

    /// An output with a declared type.
    pub fn output(mut self, name: &str, dtype: DataType, dims: &[&str]) -> Build {
        self.0.output.push(info(name, dtype, dims));
        self
    }

    pub fn value_info(mut self, name: &str, dtype: DataType, dims: &[&str]) -> Build {
        self.0.value_info.push(info(name, dtype, dims));
        self
    }

    /// A model of one operator set.
    pub fn model(self, opset: i64) -> ModelProto {
        ModelProto {
            ir_version: Some(8),
            graph: Some(self.0),
            opset_import: vec![set("", opset)],
            ..ModelProto::default()
        }
    }

    /// A model whose nodes are operators of onnxruntime.
    pub fn microsoft(mut self) -> ModelProto {
        for node in &mut self.0.node {
            node.domain = Some("com.microsoft".into());
        }
        let mut model = self.model(17);
        model.opset_import.push(set("com.microsoft", 1));
        model
    }

    /// A function with the nodes of this graph, its inputs and its outputs.
    pub fn function(self, domain: &str, name: &str, attributes: &[&str]) -> FunctionProto {
        FunctionProto {
            name: Some(name.into()),
            domain: Some(domain.into()),
            input: self.0.input.iter().map(|v| v.name().to_owned()).collect(),
            output: self.0.output.iter().map(|v| v.name().to_owned()).collect(),
            attribute: attributes.iter().map(ToString::to_string).collect(),
            node: self.0.node,
            opset_import: vec![set("", 18), set(domain, 1)],
            ..FunctionProto::default()
        }
    }
}

pub fn set(domain: &str, version: i64) -> OperatorSetIdProto {
    OperatorSetIdProto { domain: Some(domain.into()), version: Some(version) }
}

pub fn node(op: &str, inputs: &[&str], outputs: &[&str], attrs: &[AttributeProto]) -> NodeProto {
    NodeProto {
        op_type: Some(op.into()),
        input: inputs.iter().map(ToString::to_string).collect(),
        output: outputs.iter().map(ToString::to_string).collect(),
        attribute: attrs.to_vec(),
        ..NodeProto::default()
    }
}

pub fn info(name: &str, dtype: DataType, dims: &[&str]) -> ValueInfoProto {
    ValueInfoProto { name: Some(name.into()), r#type: Some(ty(dtype, dims)), ..ValueInfoProto::default() }
}

pub fn ty(dtype: DataType, dims: &[&str]) -> TypeProto {
    let dim = |d: &&str| Dimension {
        value: Some(match d.parse() {
            Ok(n) => dimension::Value::DimValue(n),
            Err(_) => dimension::Value::DimParam((*d).into()),
        }),
        ..Dimension::default()
    };
    let shape = TensorShapeProto { dim: dims.iter().map(dim).collect() };
    let tensor = type_proto::Tensor { elem_type: Some(dtype as i32), shape: Some(shape) };
    TypeProto { value: Some(type_proto::Value::TensorType(tensor)), ..TypeProto::default() }
}

fn dims64(dims: &[usize]) -> Vec<i64> {
    dims.iter().map(|d| *d as i64).collect()
}

/// A tensor without data.
pub fn empty(name: &str, dtype: DataType, dims: &[usize]) -> TensorProto {
    TensorProto { name: Some(name.into()), data_type: Some(dtype as i32), dims: dims64(dims), ..TensorProto::default() }
}

/// A tensor of raw bytes.
pub fn raw(name: &str, dtype: DataType, dims: &[usize], bytes: Vec<u8>) -> TensorProto {
    TensorProto { raw_data: Some(bytes.into()), ..empty(name, dtype, dims) }
}

pub fn f32s(name: &str, dims: &[usize], values: &[f32]) -> TensorProto {
    raw(name, F32, dims, values.iter().flat_map(|x| x.to_le_bytes()).collect())
}

pub fn i64s(name: &str, dims: &[usize], values: &[i64]) -> TensorProto {
    raw(name, I64, dims, values.iter().flat_map(|x| x.to_le_bytes()).collect())
}

pub fn bools(name: &str, dims: &[usize], values: &[bool]) -> TensorProto {
    raw(name, BOOL, dims, values.iter().map(|x| u8::from(*x)).collect())
}

pub fn sparse(values: TensorProto, indices: TensorProto, dims: &[i64]) -> SparseTensorProto {
    SparseTensorProto { values: Some(values), indices: Some(indices), dims: dims.to_vec() }
}

fn attr(name: &str, kind: AttributeType) -> AttributeProto {
    AttributeProto { name: Some(name.into()), r#type: Some(kind as i32), ..AttributeProto::default() }
}

pub fn int(name: &str, i: i64) -> AttributeProto {
    AttributeProto { i: Some(i), ..attr(name, AttributeType::Int) }
}

pub fn ints(name: &str, ints: &[i64]) -> AttributeProto {
    AttributeProto { ints: ints.to_vec(), ..attr(name, AttributeType::Ints) }
}

pub fn float(name: &str, f: f32) -> AttributeProto {
    AttributeProto { f: Some(f), ..attr(name, AttributeType::Float) }
}

pub fn floats(name: &str, floats: &[f32]) -> AttributeProto {
    AttributeProto { floats: floats.to_vec(), ..attr(name, AttributeType::Floats) }
}

pub fn text(name: &str, s: &'static str) -> AttributeProto {
    AttributeProto { s: Some(Bytes::from_static(s.as_bytes())), ..attr(name, AttributeType::String) }
}

pub fn texts(name: &str, list: &[&'static str]) -> AttributeProto {
    let strings = list.iter().map(|s| Bytes::from_static(s.as_bytes())).collect();
    AttributeProto { strings, ..attr(name, AttributeType::Strings) }
}

pub fn tensor(name: &str, t: TensorProto) -> AttributeProto {
    AttributeProto { t: Some(t), ..attr(name, AttributeType::Tensor) }
}

pub fn sparse_tensor(name: &str, t: SparseTensorProto) -> AttributeProto {
    AttributeProto { sparse_tensor: Some(t), ..attr(name, AttributeType::SparseTensor) }
}

pub fn graph(name: &str, g: Build) -> AttributeProto {
    AttributeProto { g: Some(g.0), ..attr(name, AttributeType::Graph) }
}

/// An attribute that has the value of the function's attribute `of`.
pub fn reference(name: &str, of: &str, kind: AttributeType) -> AttributeProto {
    AttributeProto { ref_attr_name: Some(of.into()), ..attr(name, kind) }
}

pub fn encode(model: &ModelProto) -> Bytes {
    model.encode_to_vec().into()
}

pub fn import(model: &ModelProto) -> Result<Imported, Diagnostics> {
    import_with_warnings(encode(model), &Options::default())
}

/// A module that must import, without warnings, and verify.
pub fn good(model: &ModelProto) -> Module {
    let imported = import(model).unwrap_or_else(|d| panic!("the import fails: {:#?}", d.0));
    assert!(imported.warnings.0.is_empty(), "{:#?}", imported.warnings.0);
    verified(&imported.module);
    imported.module
}

pub fn verified(module: &Module) {
    if let Err(d) = of_ir::verify_module(module) {
        panic!("the module does not verify: {:#?}", d.0);
    }
}

/// Everything that is wrong with a model that must not import.
pub fn bad(model: &ModelProto) -> Vec<Diagnostic> {
    match import(model) {
        Ok(_) => panic!("the model imports"),
        Err(d) => d.0,
    }
}

/// Asserts that one error has the code, with each of the words in its message.
pub fn refused(errors: &[Diagnostic], code: Code, words: &[&str]) {
    let fits = |d: &&Diagnostic| d.code == code && words.iter().all(|w| d.message.contains(w));
    assert!(errors.iter().any(|d| fits(&d)), "no {code:?} with {words:?} in {errors:#?}");
}

/// Runs the main function.
pub fn run(module: &Module, inputs: &[Tensor]) -> Vec<Value> {
    let inputs: Vec<Value> = inputs.iter().map(|t| t.clone().into()).collect();
    match of_ops::interpret::run_graph(&module.main().unwrap().graph, &inputs) {
        Ok(values) => values,
        Err(d) => panic!("the run fails: {d:#?}"),
    }
}

/// The attributes of a tree of one split of feature 0 at 0.5, whose leaves vote for `ids` with `weights`; the names of votes
/// begin with `votes`.
pub fn stump(votes: &str, ids: [i64; 2], weights: [f32; 2]) -> Vec<AttributeProto> {
    vec![
        ints("nodes_treeids", &[0, 0, 0]),
        ints("nodes_nodeids", &[0, 1, 2]),
        texts("nodes_modes", &["BRANCH_LEQ", "LEAF", "LEAF"]),
        floats("nodes_values", &[0.5, 0.0, 0.0]),
        ints("nodes_featureids", &[0, 0, 0]),
        ints("nodes_truenodeids", &[1, 0, 0]),
        ints("nodes_falsenodeids", &[2, 0, 0]),
        ints(&format!("{votes}_treeids"), &[0, 0]),
        ints(&format!("{votes}_nodeids"), &[1, 2]),
        ints(&format!("{votes}_ids"), &ids),
        floats(&format!("{votes}_weights"), &weights),
    ]
}

/// Dimensions and elements of a tensor of numbers.
pub fn numbers(v: &Value) -> (Vec<usize>, Vec<f64>) {
    let Value::Tensor(t) = v else { panic!("{v:?} is not a tensor") };
    let elements = match t.elements() {
        Elements::Float(v) => v,
        Elements::Int(v) => v.into_iter().map(|i| i as f64).collect(),
        Elements::Str(s) => panic!("{s:?} are no numbers"),
    };
    (t.dims().to_vec(), elements)
}

/// Imports, runs, and compares every output by dimensions and elements.
pub fn gives(model: &ModelProto, inputs: &[Tensor], outputs: &[(&[usize], &[f64])]) {
    let module = good(model);
    let got = run(&module, inputs);
    assert_eq!(got.len(), outputs.len());
    for (i, (got, (dims, values))) in got.iter().zip(outputs).enumerate() {
        let (got_dims, got) = numbers(got);
        assert_eq!(got_dims, *dims, "dimensions of output {i}");
        let close = |(a, b): (&f64, &f64)| a == b || (a - b).abs() <= 1e-5 * b.abs().max(1.0);
        assert!(got.len() == values.len() && got.iter().zip(*values).all(close), "output {i}: {got:?} {values:?}");
    }
}

/// An input.
pub fn x32(dims: &[usize], values: &[f32]) -> Tensor {
    Tensor::from_slice(dims, values).unwrap()
}

/// Small irregular numbers that depend on `seed`.
pub fn wave(n: usize, seed: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 37 + seed * 11 + 5) % 61) as f32 / 30.0 - 1.0).collect()
}

/// Integers as a tensor of any type of integers.
pub fn xint(dtype: of_ir::DType, dims: &[usize], values: &[i64]) -> Tensor {
    let values = values.iter().map(|i| i128::from(*i)).collect();
    Tensor::from_elements(dtype, dims.to_vec(), Elements::Int(values)).unwrap()
}

/// A bool of rank 0.
pub fn truth(b: bool) -> Tensor {
    Tensor::from_elements(of_ir::DType::Bool, vec![], Elements::Int(vec![i128::from(b)])).unwrap()
}

/// The ops of a name, nested ones included.
pub fn ops<'g>(g: &'g Graph, name: &str) -> Vec<&'g OpData> {
    g.walk().into_iter().map(|id| g.op(id)).filter(|op| op.name() == name).collect()
}

/// Node name, index and operator of a location.
pub fn onnx(loc: &Location) -> (String, u32, String) {
    match loc {
        Location::Onnx { node, index, op } => (node.to_string(), *index, op.to_string()),
        other => panic!("{other:?} is no node"),
    }
}
