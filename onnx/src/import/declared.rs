//! Declared types of values, merged with inferred ones.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use of_diag::{Code, Diagnostic, Location};
use of_ir::{Dim, TensorType, Type, ValueId};

use super::Importer;
use crate::proto::{GraphProto, ValueInfoProto};
use crate::types;

/// The declared types of a graph's values by name.
pub(super) type Declared<'m> = HashMap<&'m str, Type>;

/// The declared type, where there is one that can be read.
pub(super) fn ty(info: &ValueInfoProto) -> Option<Type> {
    types::ty(info.r#type.as_ref()?).ok()
}

/// The symbols that a tensor among `inputs` has as an extent, so that a run knows their values.
pub(super) fn symbols_of_tensors(inputs: &[ValueInfoProto]) -> HashSet<Arc<str>> {
    let types = inputs.iter().filter_map(ty);
    let shapes = types.filter_map(|t| t.as_tensor()?.shape.clone());
    shapes.flatten().filter_map(|d| d.as_symbol().cloned()).collect()
}

/// The type of an input. The elements of a sequence may differ in a dimension of a name that no tensor gives a value.
pub(super) fn of_input(ty: Type, symbols: &HashSet<Arc<str>>) -> Type {
    let known = |d: &Dim| d.symbols().iter().all(|s| symbols.contains(s));
    match ty {
        Type::Sequence(_) => ty.map_dims(&mut |d| if known(d) { d.clone() } else { Dim::unknown() }),
        Type::Optional(t) => Type::Optional(Box::new(of_input(*t, symbols))),
        other => other,
    }
}

/// All that `graph` declares of values that its nodes make.
pub(super) fn all(graph: &GraphProto) -> Declared<'_> {
    graph.value_info.iter().chain(&graph.output).filter_map(|v| Some((v.name(), ty(v)?))).collect()
}

impl Importer<'_, '_> {
    /// Takes over what `declared` says beyond inference; warns where the two disagree, and then inference holds.
    pub(super) fn refine(&mut self, value: ValueId, name: &str, declared: &Type, loc: &Location) {
        let inferred = self.ty(value).clone();
        if !inferred.compatible(declared) {
            let message = format!("value '{name}' is declared {declared}, inference says {inferred}");
            let hint = "inference holds; the model's shapes may be those of another input";
            self.report.warning(Diagnostic::warning(Code::SHAPE, loc.clone(), message).hint(hint));
        } else if let (Type::Tensor(i), Type::Tensor(d)) = (&inferred, declared)
            && let Some(shape) = refined(i, d)
        {
            self.rw.set_type(value, Type::Tensor(TensorType { shape: Some(shape), ..i.clone() }));
        }
    }
}

/// The shape that combines `inferred` and `declared`, if it is more precise than `inferred`.
fn refined(inferred: &TensorType, declared: &TensorType) -> Option<Vec<Dim>> {
    let to = declared.shape.as_ref()?;
    let Some(from) = &inferred.shape else { return Some(to.clone()) };
    let better = |d: &Dim, e: &Dim| is_invented(d) && !e.is_unknown() && d != e;
    let pick = |(d, e): (&Dim, &Dim)| if better(d, e) { e.clone() } else { d.clone() };
    from.iter().zip(to).any(|(d, e)| better(d, e)).then(|| from.iter().zip(to).map(pick).collect())
}

/// Whether nothing is known about the dimension: a symbol that inference invented.
fn is_invented(d: &Dim) -> bool {
    d.as_symbol().is_some_and(|s| types::is_invented(s))
}
