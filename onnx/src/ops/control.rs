//! Operators with subgraphs.

use of_ir::{Attr, DType, OpError, Type};
use of_ops::control::{OptionalGetElement, element_of, join};

use crate::import::{Attributes, ImportError, ImportResult, Importer, Node, Region};
use crate::proto::GraphProto;

/// `If`: both branches see the values around the node and have no inputs.
pub(super) fn if_<'m>(cx: &mut Importer<'m, '_>, mut node: Node<'m>) -> ImportResult {
    let branches = [node.attrs.take_graph("then_branch")?, node.attrs.take_graph("else_branch")?];
    // Both are read before either fault counts, so that one report names everything.
    let regions = branches.map(|graph| cx.region(graph, &[]));
    let [then, other] = regions;
    let (then, other) = (then?, other?);
    if then.yields.len() != node.outputs.len() {
        let what =
            format!("the branches give {} values, the node has {} outputs", then.yields.len(), node.outputs.len());
        return Err(ImportError::invalid(what));
    }
    cx.emit_with_regions(node, &[then.id, other.id])
}

/// `Loop`: the body gets the iteration, the condition and the carried values.
pub(super) fn loop_<'m>(cx: &mut Importer<'m, '_>, mut node: Node<'m>) -> ImportResult {
    let body = node.attrs.take_graph("body")?;
    let first: Vec<Type> =
        (2..node.inputs.len()).map(|i| Ok(cx.ty(node.input(i)?).clone())).collect::<Result<_, ImportError>>()?;
    let fixed = [Type::fixed(DType::I64, &[]), Type::fixed(DType::Bool, &[])];
    let region = cx.carrying(body, &fixed, first, &[], 1)?;
    // An optional that comes in and what it holds that goes out are one carried value; the result is what goes out.
    let held: Vec<bool> = region.yields.iter().skip(1).map(|v| !matches!(cx.ty(*v), Type::Optional(_))).collect();
    let mut results = cx.emit_with_regions(node, &[region.id])?;
    for (v, held) in results.iter_mut().zip(held) {
        if held && matches!(cx.ty(*v), Type::Optional(_)) {
            *v = cx.rw.create_one(OptionalGetElement {}, &[*v])?;
        }
    }
    Ok(results)
}

/// `SequenceMap`: the body gets one element of every sequence.
pub(super) fn sequence_map<'m>(cx: &mut Importer<'m, '_>, mut node: Node<'m>) -> ImportResult {
    let body = node.attrs.take_graph("body")?;
    let types: Vec<Type> = (0..node.inputs.len())
        .map(|i| Ok(element_of(cx.ty(node.input(i)?)).clone()))
        .collect::<Result<_, ImportError>>()?;
    let region = cx.region(body, &types)?;
    cx.emit_with_regions(node, &[region.id])
}

/// `Scan` from 9 on: the body gets the states and one slice of every scan input.
pub(super) fn scan<'m>(cx: &mut Importer<'m, '_>, mut node: Node<'m>) -> ImportResult {
    let body = node.attrs.take_graph("body")?;
    let scans: i64 = node.attrs.take("num_scan_inputs")?.unwrap_or(0);
    let axes: Option<Vec<i64>> = node.attrs.take("scan_input_axes")?;
    let states = usize::try_from(scans).ok().and_then(|n| node.inputs.len().checked_sub(n)).filter(|_| scans > 0);
    let Some(states) = states else {
        return Err(ImportError::invalid(format!(
            "num_scan_inputs is {scans}, the node has {} inputs",
            node.inputs.len()
        )));
    };
    let first: Vec<Type> =
        (0..states).map(|i| Ok(cx.ty(node.input(i)?).clone())).collect::<Result<_, ImportError>>()?;
    let mut slices = Vec::new();
    for i in states..node.inputs.len() {
        let axis = axes.as_ref().and_then(|a| a.get(i - states)).copied().unwrap_or(0);
        let mut t = cx.tensor_ty(node.input(i)?)?.clone();
        if let Some(shape) = &mut t.shape {
            shape.remove(of_ops::shape::axis(axis, shape.len())?);
        }
        slices.push(t.into());
    }
    node.attrs.set("num_scan_inputs", Attr::Int(scans));
    if let Some(axes) = axes {
        node.attrs.set("scan_input_axes", Attr::Ints(axes));
    }
    let region = cx.carrying(body, &[], first, &slices, 0)?;
    cx.emit_with_regions(node, &[region.id])
}

/// `Scan` of 8 had lengths of sequences and an axis of batches: a scan over the batches of what `Scan` is now.
pub(super) fn scan_8<'m>(cx: &mut Importer<'m, '_>, mut node: Node<'m>) -> ImportResult {
    if node.opt_input(0).is_some() {
        return Err(ImportError::unsupported("sequences of different lengths (sequence_lens)"));
    }
    if node.inputs.len() < 2 {
        return Err(ImportError::invalid("Scan needs something to scan"));
    }
    node.inputs.remove(0);
    if let Some(directions) = node.attrs.take_any("directions")? {
        node.attrs.set("scan_input_directions", directions);
    }
    let mut elements = Vec::new();
    for i in 0..node.inputs.len() {
        let mut t = cx.tensor_ty(node.input(i)?)?.clone();
        if let Some(shape) = &mut t.shape {
            shape.remove(of_ops::shape::axis(0, shape.len())?);
        }
        elements.push(t.into());
    }
    let mut inner = node.clone();
    let region = cx.region_of(&elements, |cx, args| {
        inner.inputs = args.iter().map(|v| Some(*v)).collect();
        scan(cx, inner)
    })?;
    node.attrs = Attributes::default();
    node.attrs.set("num_scan_inputs", Attr::Int(node.inputs.len() as i64));
    cx.emit_with_regions(node, &[region.id])
}

impl<'m> Importer<'m, '_> {
    /// Imports the body of a loop whose arguments are `before`, carried values that are first of types `carried`, and
    /// `after`. The next carried values are what it yields after the first `skip`.
    ///
    /// A carried value whose shape changes from one iteration to the next is typed by what all have in common: the
    /// body is imported again until its arguments hold what it yields.
    fn carrying(
        &mut self,
        body: &'m GraphProto,
        before: &[Type],
        mut carried: Vec<Type>,
        after: &[Type],
        skip: usize,
    ) -> Result<Region, ImportError> {
        loop {
            let types: Vec<Type> = before.iter().chain(&carried).chain(after).cloned().collect();
            let region = self.region(body, &types)?;
            let next: Vec<Type> = region.yields.iter().skip(skip).map(|v| self.ty(*v).clone()).collect();
            if next.len() < carried.len() {
                let what = format!("the body gives {} values, {} are carried", next.len(), carried.len());
                return Err(ImportError::invalid(what));
            }
            let joined: Vec<Type> =
                carried.iter().zip(&next).map(|(a, b)| join(a, b)).collect::<Result<_, OpError>>()?;
            // Every round loses a dimension or a shape, or is the last one.
            if joined == carried {
                return Ok(region);
            }
            self.discard(&region);
            carried = joined;
        }
    }
}
