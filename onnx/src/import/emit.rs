//! A node in the form of the newest operator set to an op of the IR, by the op's own declaration.

use std::collections::HashMap;
use std::sync::OnceLock;

use of_ir::{Arity, Attr, AttrSlot, AttrValue, Attrs, DType, RegionId, ValueId};
use of_ops::OpDecl;

use super::attribute::wrong_kind;
use super::{Attributes, ImportError, ImportResult, Importer, Node};
use crate::ops::schema;
use crate::tensor;

/// The op that declares itself to be the ONNX operator `name` (`Conv`, or `domain::Name`).
pub(crate) fn declaration(name: &str) -> Option<&'static dyn OpDecl> {
    static BY_ONNX: OnceLock<HashMap<&'static str, &'static dyn OpDecl>> = OnceLock::new();
    let by_onnx = BY_ONNX.get_or_init(|| {
        let all = of_ops::list::ALL.iter();
        all.flat_map(|d| d.onnx().iter().map(|n| (*n, *d))).collect()
    });
    let added = || of_ops::op_registry::all().into_iter().find(|d| d.onnx().contains(&name));
    by_onnx.get(name).copied().or_else(added)
}

/// The importer of operators that are the same in every version.
pub(crate) fn as_is(cx: &mut Importer<'_, '_>, node: Node<'_>) -> ImportResult {
    cx.emit(node)
}

impl Importer<'_, '_> {
    /// Creates the op of a node that has the form of the newest operator set.
    pub fn emit(&mut self, node: Node<'_>) -> ImportResult {
        self.emit_with_regions(node, &[])
    }

    /// Creates an op by its ONNX name and form, with one output.
    pub fn emit_one(
        &mut self,
        op: &str,
        inputs: &[Option<ValueId>],
        attrs: impl IntoIterator<Item = (&'static str, Attr)>,
    ) -> Result<ValueId, ImportError> {
        let values = self.emit_many(op, inputs, attrs, 1)?;
        values.first().copied().ok_or_else(|| ImportError::invalid(format!("{op} gives no value")))
    }

    /// As [`Importer::emit_one`], with as many outputs as said.
    pub fn emit_many(
        &mut self,
        op: &str,
        inputs: &[Option<ValueId>],
        attrs: impl IntoIterator<Item = (&'static str, Attr)>,
        outputs: usize,
    ) -> ImportResult {
        let mut all = Attributes::default();
        for (name, value) in attrs {
            all.set(name, value);
        }
        self.create(op, inputs, all, &vec![true; outputs], &[])
    }

    /// As [`Importer::emit`], for an op with regions.
    pub fn emit_with_regions(&mut self, node: Node<'_>, regions: &[RegionId]) -> ImportResult {
        let name = if node.domain.is_empty() { node.op.to_owned() } else { format!("{}::{}", node.domain, node.op) };
        self.create(&name, &node.inputs, node.attrs, &node.outputs, regions)
    }

    fn create(
        &mut self,
        op: &str,
        inputs: &[Option<ValueId>],
        mut attrs: Attributes<'_>,
        outputs: &[bool],
        regions: &[RegionId],
    ) -> ImportResult {
        let Some(decl) = declaration(op) else {
            return Err(ImportError::unsupported("the operator has no counterpart"));
        };
        self.take_extents(op, inputs, &mut attrs)?;
        let attrs = attributes(decl, op, attrs, outputs)?;
        let operands = self.operands(decl, op, inputs)?;
        let id = self.rw.create_with_regions((decl.as_def(), attrs), &operands, regions)?;
        Ok(self.rw.graph().op(id).results.to_vec())
    }

    /// Takes out the attribute that says the extents of an operand again, which must be those that the operand has.
    fn take_extents(
        &self,
        op: &str,
        inputs: &[Option<ValueId>],
        attrs: &mut Attributes<'_>,
    ) -> Result<(), ImportError> {
        let Some((name, input, axis)) = schema::says_extents(op) else { return Ok(()) };
        let said = match attrs.take_any(name)? {
            Some(Attr::Int(one)) => vec![one],
            Some(Attr::Ints(list)) => list,
            Some(other) => return Err(wrong_kind(name, <Vec<i64> as AttrValue>::KIND, &other)),
            None => return Ok(()),
        };
        let Some(value) = inputs.get(input).copied().flatten() else { return Ok(()) };
        let Some(shape) = &self.tensor_ty(value)?.shape else { return Ok(()) };
        let has = shape.get(axis..).unwrap_or_default();
        let fits = has.len() == said.len() && has.iter().zip(&said).all(|(d, n)| d.as_const().is_none_or(|d| d == *n));
        if fits {
            return Ok(());
        }
        let has = has.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let problem =
            format!("attribute '{name}' is {said:?}, but the extents of input {input} from axis {axis} on are [{has}]");
        Err(ImportError::invalid(problem))
    }

    /// Operands, with `of.none` for those that are left out before others.
    fn operands(
        &mut self,
        decl: &dyn OpDecl,
        op: &str,
        inputs: &[Option<ValueId>],
    ) -> Result<Vec<ValueId>, ImportError> {
        let given = inputs.len() - inputs.iter().rev().take_while(|i| i.is_none()).count();
        let slots = decl.signature().operands;
        let mut operands = Vec::with_capacity(given);
        for (i, input) in inputs[..given].iter().enumerate() {
            let optional = slots.get(i).is_some_and(|s| s.arity == Arity::Optional);
            operands.push(match input {
                Some(v) => *v,
                None if optional => self.rw.create_one(of_ops::structural::NoneValue {}, &[])?,
                None => return Err(ImportError::invalid(format!("{op}: input {i} is missing"))),
            });
        }
        Ok(operands)
    }
}

/// The attributes that `decl` declares, from those of the node and ONNX's defaults.
fn attributes(decl: &dyn OpDecl, op: &str, mut given: Attributes<'_>, outputs: &[bool]) -> Result<Attrs, ImportError> {
    let mut attrs = Attrs::new();
    for slot in decl.signature().attrs {
        if let Some(first) = schema::flag_of_output(op, slot.name) {
            attrs.set(slot.name, Attr::Bool(outputs.iter().skip(first).any(|used| *used)));
            continue;
        }
        let name = schema::onnx_name(op, slot.name);
        let value = match given.take_any(name)? {
            Some(a) => convert(slot, name, a)?,
            None => None,
        };
        if let Some(value) = value.or_else(|| schema::default(op, slot)) {
            attrs.set(slot.name, value);
        } else if !slot.optional {
            return Err(ImportError::invalid(format!("attribute '{name}' is missing")));
        }
    }
    for name in schema::ignored(op) {
        given.drop(name);
    }
    for (name, harmless) in schema::only(op) {
        if let Some(a) = given.take_any(name)?
            && !harmless.matches(&a)
        {
            return Err(ImportError::unsupported(format!("attribute '{name}' is supported as {harmless} only")));
        }
    }
    match given.names().next() {
        Some(name) => Err(ImportError::unsupported(format!("attribute '{name}' is not supported"))),
        None => Ok(attrs),
    }
}

/// A value converted for the slot: ONNX has integers for truth values and element types. `None` leaves the slot empty.
fn convert(slot: &AttrSlot, name: &str, value: Attr) -> Result<Option<Attr>, ImportError> {
    Ok(Some(match value {
        Attr::Int(i) if slot.kind == <bool as AttrValue>::KIND => Attr::Bool(i != 0),
        Attr::Int(0) if slot.kind == <DType as AttrValue>::KIND && slot.optional => return Ok(None),
        Attr::Int(i) if slot.kind == <DType as AttrValue>::KIND => Attr::DType(tensor::dtype(i)?),
        Attr::Int(i) if slot.kind == <f64 as AttrValue>::KIND => Attr::Float(i as f64),
        value if value.kind() == slot.kind => value,
        value => return Err(wrong_kind(name, slot.kind, &value)),
    }))
}

/// Whether an op declares itself to be the ONNX operator `name`.
pub(crate) fn is_declared(name: &str) -> bool {
    declaration(name).is_some()
}
