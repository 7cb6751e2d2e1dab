//! Node attributes as typed values.

use std::collections::BTreeMap;
use std::sync::Arc;

use of_ir::{Attr, AttrValue, Tensor, TensorType};

use super::report::Fault;
use crate::external::External;
use crate::proto::attribute_proto::AttributeType as Kind;
use crate::proto::{AttributeProto, GraphProto};
use crate::{tensor, types};

/// The value of an attribute.
#[derive(Clone, Debug)]
pub(crate) enum Attribute<'m> {
    /// Anything that the IR can hold as an attribute.
    Value(Attr),
    /// A subgraph.
    Graph(&'m GraphProto),
    /// Something that has no counterpart.
    Refused(&'static str),
}

/// Attributes by name. Importers take out what they use; what is left when an op is emitted must be known to it.
#[derive(Clone, Default, Debug)]
pub(crate) struct Attributes<'m>(BTreeMap<String, Attribute<'m>>);

impl<'m> Attributes<'m> {
    /// Reads the attributes of a node. `outer` are those of the function around it, which they may refer to.
    pub fn read(protos: &'m [AttributeProto], outer: &Attributes<'m>, external: &External) -> Result<Self, Fault> {
        let mut all = Attributes::default();
        for a in protos {
            let value = if a.ref_attr_name().is_empty() {
                value(a, external)?
            } else {
                match outer.0.get(a.ref_attr_name()) {
                    Some(Attribute::Graph(_)) => Attribute::Refused("a subgraph that is passed to a function"),
                    Some(v) => v.clone(),
                    None => continue,
                }
            };
            if all.0.insert(a.name().to_owned(), value).is_some() {
                return Err(Fault::invalid(format!("attribute '{}' is given twice", a.name())));
            }
        }
        Ok(all)
    }

    /// Sets or replaces.
    pub fn set(&mut self, name: &str, value: Attr) {
        self.0.insert(name.to_owned(), Attribute::Value(value));
    }

    /// Sets what is not set.
    pub fn default_from(&mut self, other: Attributes<'m>) {
        for (name, value) in other.0 {
            self.0.entry(name).or_insert(value);
        }
    }

    /// Removes without looking.
    pub fn drop(&mut self, name: &str) {
        self.0.remove(name);
    }

    /// The names of those that are left.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// Removes and returns the typed value.
    pub fn take<T: AttrValue>(&mut self, name: &str) -> Result<Option<T>, Fault> {
        match self.take_any(name)? {
            None => Ok(None),
            Some(a) => T::from_attr(&a).map(Some).ok_or_else(|| wrong_kind(name, T::KIND, &a)),
        }
    }

    /// Removes and returns what the IR can hold.
    pub fn take_any(&mut self, name: &str) -> Result<Option<Attr>, Fault> {
        match self.0.remove(name) {
            None => Ok(None),
            Some(Attribute::Value(a)) => Ok(Some(a)),
            Some(Attribute::Graph(_)) => Err(Fault::invalid(format!("attribute '{name}' must not be a graph"))),
            Some(Attribute::Refused(what)) => Err(Fault::unsupported(format!("attribute '{name}' is {what}"))),
        }
    }

    /// Removes and returns an integer that stands for a truth value.
    pub fn take_flag(&mut self, name: &str) -> Result<Option<bool>, Fault> {
        Ok(self.take::<i64>(name)?.map(|v| v != 0))
    }

    /// Removes and returns a subgraph.
    pub fn take_graph(&mut self, name: &str) -> Result<&'m GraphProto, Fault> {
        match self.0.remove(name) {
            Some(Attribute::Graph(g)) => Ok(g),
            Some(Attribute::Refused(what)) => Err(Fault::unsupported(format!("attribute '{name}' is {what}"))),
            _ => Err(Fault::invalid(format!("attribute '{name}' must be a graph"))),
        }
    }
}

/// The message for an attribute of another kind than it must have.
pub(super) fn wrong_kind(name: &str, must: &str, is: &Attr) -> Fault {
    Fault::invalid(format!("attribute '{name}' must be of kind {must}, it is of kind {}", is.kind()))
}

fn value<'m>(a: &'m AttributeProto, external: &External) -> Result<Attribute<'m>, Fault> {
    let text = |b: &bytes::Bytes| match std::str::from_utf8(b) {
        Ok(s) => Ok(Arc::<str>::from(s)),
        Err(_) => Err(Fault::invalid(format!("attribute '{}' is not UTF-8", a.name()))),
    };
    Ok(Attribute::Value(match kind(a) {
        Kind::Float => Attr::Float(a.f().into()),
        Kind::Int => Attr::Int(a.i()),
        Kind::String => Attr::Str(text(a.s.as_ref().unwrap_or(&bytes::Bytes::new()))?),
        Kind::Tensor => match &a.t {
            Some(t) => Attr::Tensor(tensor::tensor(t, external)?),
            None => return Err(Fault::invalid(format!("attribute '{}' has no tensor", a.name()))),
        },
        Kind::Graph => match &a.g {
            Some(g) => return Ok(Attribute::Graph(g)),
            None => return Err(Fault::invalid(format!("attribute '{}' has no graph", a.name()))),
        },
        Kind::Floats => Attr::Floats(a.floats.iter().map(|x| f64::from(*x)).collect()),
        Kind::Ints => Attr::Ints(a.ints.clone()),
        Kind::Strings => Attr::Strs(a.strings.iter().map(text).collect::<Result<_, _>>()?),
        Kind::TypeProto => match &a.tp {
            Some(t) => Attr::Type(types::ty(t)?),
            None => return Err(Fault::invalid(format!("attribute '{}' has no type", a.name()))),
        },
        Kind::SparseTensor => match &a.sparse_tensor {
            Some(t) => Attr::Tensor(tensor::dense(t, external)?),
            None => return Err(Fault::invalid(format!("attribute '{}' has no tensor", a.name()))),
        },
        Kind::Tensors => return Ok(Attribute::Refused("a list of tensors")),
        Kind::Graphs => return Ok(Attribute::Refused("a list of graphs")),
        Kind::SparseTensors => return Ok(Attribute::Refused("a list of sparse tensors")),
        Kind::TypeProtos => return Ok(Attribute::Refused("a list of types")),
        Kind::Undefined => return Err(Fault::invalid(format!("attribute '{}' has no value", a.name()))),
    }))
}

/// The kind as declared; files older than the declaration show it by the field that is filled.
fn kind(a: &AttributeProto) -> Kind {
    match a.r#type() {
        Kind::Undefined => {}
        declared => return declared,
    }
    if a.f.is_some() {
        Kind::Float
    } else if a.i.is_some() {
        Kind::Int
    } else if a.s.is_some() {
        Kind::String
    } else if a.t.is_some() {
        Kind::Tensor
    } else if a.g.is_some() {
        Kind::Graph
    } else if !a.floats.is_empty() {
        Kind::Floats
    } else if !a.ints.is_empty() {
        Kind::Ints
    } else if !a.strings.is_empty() {
        Kind::Strings
    } else {
        Kind::Undefined
    }
}

/// A tensor of rank 1 or 0 for the forms of `Constant` that hold numbers directly.
pub(crate) fn literal(attr: Attr) -> Option<Tensor> {
    let tensor = |dims: &[usize], v: &[f64]| {
        let v: Vec<f32> = v.iter().map(|x| *x as f32).collect();
        Tensor::from_slice(dims, &v).ok()
    };
    match attr {
        Attr::Tensor(t) => Some(t),
        Attr::Float(x) => tensor(&[], &[x]),
        Attr::Floats(v) => tensor(&[v.len()], &v),
        Attr::Int(i) => Some(Tensor::scalar(i)),
        Attr::Ints(v) => Some(Tensor::from_i64s(&v)),
        Attr::Str(s) => Tensor::from_strings(vec![], vec![s.to_string()]).ok(),
        Attr::Strs(v) => Tensor::from_strings(vec![v.len()], v.iter().map(ToString::to_string).collect()).ok(),
        _ => None,
    }
}

/// The element type of `ty` as ONNX's `to` and `dtype` attributes give it.
pub(crate) fn dtype_attr(ty: &TensorType) -> Attr {
    Attr::Int(tensor::onnx_dtype(ty.dtype).into())
}
