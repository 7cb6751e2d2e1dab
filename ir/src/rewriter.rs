//! The one way to change a graph. Keeps uses, order and locations right.

use std::sync::{Arc, OnceLock};

use of_diag::{Code, Diagnostic, Location};
use smallvec::SmallVec;

use crate::graph::{RegionData, ValueData, Version};
use crate::uses::Uses;
use crate::{Arity, Attr, Attrs, Dim, Graph, OpData, OpDef, OpId, OpView, RegionId, Type, Use, ValueDef, ValueId};

/// An op that can be created: its declaration and its attributes. The structs of the op crate implement it.
pub trait NewOp {
    /// The declaration.
    fn def(&self) -> &'static dyn OpDef;
    /// The attributes.
    fn into_attrs(self) -> Attrs;
}

impl NewOp for (&'static dyn OpDef, Attrs) {
    fn def(&self) -> &'static dyn OpDef {
        self.0
    }
    fn into_attrs(self) -> Attrs {
        self.1
    }
}

/// Where the next op is inserted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum InsertionPoint {
    Before(OpId),
    EndOf(RegionId),
}

/// Edits one graph. New ops go to the insertion point and get the current location.
pub struct Rewriter<'g> {
    graph: &'g mut Graph,
    pass: Arc<str>,
    point: InsertionPoint,
    loc: Location,
    /// The rule on whose behalf it edits.
    rule: Option<Arc<str>>,
    changed: bool,
}

impl<'g> Rewriter<'g> {
    /// Edits on behalf of `pass` (the name that derived locations carry), at the end of the outermost region.
    pub fn new(graph: &'g mut Graph, pass: &str) -> Self {
        let point = InsertionPoint::EndOf(graph.entry());
        graph.begin_rewrites();
        Rewriter { graph, pass: pass.into(), point, loc: Location::Unknown, rule: None, changed: false }
    }

    /// The current graph.
    pub fn graph(&self) -> &Graph {
        self.graph
    }

    /// Whether anything was changed through this rewriter.
    pub fn changed(&self) -> bool {
        self.changed
    }

    /// Edits on behalf of this rule of the pass from now on: recorded rewrites name it ([`Graph::record_rewrites`]).
    pub fn set_rule(&mut self, rule: &str) {
        if self.graph.records_rewrites() && self.rule.as_deref() != Some(rule) {
            self.rule = Some(rule.into());
        }
    }

    /// Symbols that inference invents for unknown dimensions are numbered from above `n`: what is imported has symbols
    /// `u1` to `un` of its own.
    pub fn number_symbols_from(&mut self, n: u32) {
        self.graph.fresh = self.graph.fresh.max(n);
    }

    /// Symbols that inference invents for unknown dimensions are not those of `other`, from which ops or types are copied:
    /// with the same name they would be the same extent.
    pub fn number_symbols_above(&mut self, other: &Graph) {
        self.number_symbols_from(other.fresh);
    }

    // ---- where ----

    /// New ops go to the end of `region`.
    pub fn at_end(&mut self, region: RegionId) {
        self.point = InsertionPoint::EndOf(region);
    }

    /// New ops go before `op` and keep the current location.
    pub fn before(&mut self, op: OpId) {
        self.point = InsertionPoint::Before(op);
    }

    /// New ops get exactly this location.
    pub fn set_location(&mut self, loc: Location) {
        self.loc = loc;
    }

    /// New ops go before `op` and are located as derived from it (and from `others`) by this pass.
    pub fn rewrite(&mut self, op: OpId, others: &[OpId]) {
        self.point = InsertionPoint::Before(op);
        let from = std::iter::once(op).chain(others.iter().copied()).map(|o| &self.graph.op(o).loc);
        self.loc = Location::derived(self.pass.clone(), from.collect::<Vec<_>>());
    }

    /// A new region without parent, filled by `f`: while it runs, new ops go to the region's end.
    pub fn region_with<R>(&mut self, f: impl FnOnce(&mut Self, RegionId) -> R) -> (RegionId, R) {
        let region = self.new_region();
        let position = self.position();
        self.at_end(region);
        let out = f(self, region);
        self.restore(position);
        (region, out)
    }

    /// Where new ops go and what location they get, to be restored later.
    pub(crate) fn position(&self) -> (InsertionPoint, Location) {
        (self.point, self.loc.clone())
    }

    /// The inverse of [`Rewriter::position`].
    pub(crate) fn restore(&mut self, (point, loc): (InsertionPoint, Location)) {
        self.point = point;
        self.loc = loc;
    }

    // ---- create ----

    /// A new argument of `region`.
    pub fn add_arg(&mut self, region: RegionId, ty: Type, name: Option<Arc<str>>) -> ValueId {
        self.touch();
        let ty = self.name_unknown_dims(&ty);
        let index = self.graph.regions[region.index()].args.len() as u32;
        let v = self.new_value(ty, ValueDef::Arg(region, index), name);
        self.graph.regions[region.index()].args.push(v);
        v
    }

    /// A new region without parent; an op that is created with it adopts it.
    pub fn new_region(&mut self) -> RegionId {
        self.graph.regions.push(RegionData::default());
        RegionId(self.graph.regions.len() as u32 - 1)
    }

    /// Creates an op whose result types follow from inference.
    ///
    /// # Errors
    /// When operands, attributes or regions do not fit its declaration.
    pub fn create(&mut self, op: impl NewOp, operands: &[ValueId]) -> Result<OpId, Diagnostic> {
        self.create_with_regions(op, operands, &[])
    }

    /// Creates an op of one result and returns the result.
    ///
    /// # Errors
    /// As [`Rewriter::create`].
    pub fn create_one(&mut self, op: impl NewOp, operands: &[ValueId]) -> Result<ValueId, Diagnostic> {
        let id = self.create(op, operands)?;
        Ok(self.graph.op(id).results[0])
    }

    /// Creates an op with regions.
    ///
    /// # Errors
    /// As [`Rewriter::create`].
    pub fn create_with_regions(
        &mut self,
        op: impl NewOp,
        operands: &[ValueId],
        regions: &[RegionId],
    ) -> Result<OpId, Diagnostic> {
        let def = op.def();
        let attrs = op.into_attrs();
        check_arity(def, operands.len(), regions.len()).map_err(|e| e.or_at(&self.loc))?;
        let view = OpView { graph: self.graph, operands, attrs: &attrs, regions };
        let types = def.infer(&view).map_err(|e| e.at(def.name(), &self.loc))?;
        Ok(self.insert(def, operands, attrs, regions, types))
    }

    /// Creates an op with the result types that a text or a model declares. Inference is not run: the verifier
    /// compares later.
    ///
    /// # Errors
    /// When the number of operands or regions does not fit the declaration.
    pub fn create_with_types(
        &mut self,
        op: impl NewOp,
        operands: &[ValueId],
        regions: &[RegionId],
        types: Vec<Type>,
    ) -> Result<OpId, Diagnostic> {
        let def = op.def();
        check_arity(def, operands.len(), regions.len()).map_err(|e| e.or_at(&self.loc))?;
        Ok(self.insert(def, operands, op.into_attrs(), regions, types))
    }

    pub(crate) fn insert(
        &mut self,
        def: &'static dyn OpDef,
        operands: &[ValueId],
        attrs: Attrs,
        regions: &[RegionId],
        types: Vec<Type>,
    ) -> OpId {
        self.touch();
        let id = OpId(self.graph.ops.len() as u32);
        let results: SmallVec<[ValueId; 2]> = types
            .into_iter()
            .enumerate()
            .map(|(i, ty)| {
                let ty = self.name_unknown_dims(&ty);
                self.new_value(ty, ValueDef::Result(id, i as u32), None)
            })
            .collect();
        for (i, v) in operands.iter().enumerate() {
            self.graph.values[v.index()].uses.push(Use { op: id, operand: i as u32 });
        }
        for r in regions {
            self.graph.regions[r.index()].parent = Some(id);
        }
        self.graph.ops.push(Some(OpData {
            def,
            operands: SmallVec::from_slice(operands),
            results,
            attrs,
            regions: SmallVec::from_slice(regions),
            loc: self.loc.clone(),
            parent: self.graph.entry(),
            prev: None,
            next: None,
        }));
        self.link(id, self.point);
        self.graph.record_created(id);
        id
    }

    fn new_value(&mut self, ty: Type, def: ValueDef, name: Option<Arc<str>>) -> ValueId {
        self.graph.values.push(ValueData { ty, def, uses: Uses::default(), name, shape_value: OnceLock::new() });
        ValueId(self.graph.values.len() as u32 - 1)
    }

    /// Every dimension about which nothing is known gets a symbol of its own. Those of a sequence's elements stay
    /// unknown: a symbol has one value, and each element may have other extents.
    fn name_unknown_dims(&mut self, ty: &Type) -> Type {
        if let Type::Sequence(_) = ty {
            return ty.clone();
        }
        if let Type::Optional(t) = ty {
            return Type::Optional(Box::new(self.name_unknown_dims(t)));
        }
        let fresh = &mut self.graph.fresh;
        ty.map_dims(&mut |d| {
            if d.is_unknown() {
                *fresh += 1;
                Dim::symbol(format!("u{fresh}"))
            } else {
                d.clone()
            }
        })
    }

    // ---- change ----

    /// Every reader of `old` reads `new` from now on.
    pub fn replace_uses(&mut self, old: ValueId, new: ValueId) {
        if let ValueDef::Result(op, _) = self.graph.values[old.index()].def
            && old != new
        {
            self.graph.record_rewrite(&self.pass, self.rule.as_ref(), op, &[new]);
        }
        self.redirect_uses(old, new);
    }

    fn redirect_uses(&mut self, old: ValueId, new: ValueId) {
        if old == new {
            return;
        }
        self.touch();
        let uses = std::mem::take(&mut self.graph.values[old.index()].uses);
        for u in uses.as_slice() {
            self.op_mut(u.op).operands[u.operand as usize] = new;
            self.forget_shape_values(u.op);
        }
        self.graph.values[new.index()].uses.extend(&uses);
        if self.graph.values[new.index()].name.is_none() {
            self.graph.values[new.index()].name = self.graph.values[old.index()].name.clone();
        }
    }

    /// Replaces the results of `op` by `values` and erases it.
    ///
    /// # Panics
    /// When the counts differ: a bug of the pass.
    pub fn replace(&mut self, op: OpId, values: &[ValueId]) {
        let results = self.graph.op(op).results.clone();
        assert_eq!(
            results.len(),
            values.len(),
            "replacement of {} has another number of results",
            self.graph.op(op).name()
        );
        self.graph.record_rewrite(&self.pass, self.rule.as_ref(), op, values);
        for (old, new) in results.iter().zip(values) {
            self.redirect_uses(*old, *new);
        }
        self.remove(op);
    }

    /// Creates `new` before `op` with a derived location, replaces `op` by it and returns the new op.
    ///
    /// # Errors
    /// As [`Rewriter::create`].
    pub fn replace_with(&mut self, op: OpId, new: impl NewOp, operands: &[ValueId]) -> Result<OpId, Diagnostic> {
        self.rewrite(op, &[]);
        let id = self.create(new, operands)?;
        let results = self.graph.op(id).results.clone();
        self.replace(op, &results);
        Ok(id)
    }

    /// Removes `op` with everything in its regions.
    ///
    /// # Panics
    /// When a result is still read: a bug of the pass.
    pub fn erase(&mut self, op: OpId) {
        self.graph.record_rewrite(&self.pass, self.rule.as_ref(), op, &[]);
        self.remove(op);
    }

    fn remove(&mut self, op: OpId) {
        self.touch();
        for r in self.graph.op(op).regions.clone() {
            let inner: Vec<OpId> = self.graph.region_ops(r).collect();
            inner.into_iter().rev().for_each(|o| self.remove(o));
        }
        let data = self.graph.op(op);
        assert!(data.results.iter().all(|v| self.graph.uses(*v).is_empty()), "{} is erased while in use", data.name());
        if self.point == InsertionPoint::Before(op) {
            self.point = data.next.map_or(InsertionPoint::EndOf(data.parent), InsertionPoint::Before);
        }
        for (i, v) in data.operands.clone().into_iter().enumerate() {
            self.graph.values[v.index()].uses.remove(Use { op, operand: i as u32 });
        }
        self.unlink(op);
        self.graph.ops[op.index()] = None;
    }

    /// Changes one operand.
    pub fn set_operand(&mut self, op: OpId, operand: usize, value: ValueId) {
        self.touch();
        let u = Use { op, operand: operand as u32 };
        let old = std::mem::replace(&mut self.op_mut(op).operands[operand], value);
        self.graph.values[old.index()].uses.remove(u);
        self.graph.values[value.index()].uses.push(u);
        self.forget_shape_values(op);
    }

    /// Appends an operand (a further result of a region's terminator).
    pub fn push_operand(&mut self, op: OpId, value: ValueId) {
        self.touch();
        let operand = self.graph.op(op).operands.len() as u32;
        self.op_mut(op).operands.push(value);
        self.graph.values[value.index()].uses.push(Use { op, operand });
        self.forget_shape_values(op);
    }

    /// Sets an attribute.
    pub fn set_attr(&mut self, op: OpId, name: &str, value: Attr) {
        self.touch();
        self.op_mut(op).attrs.set(name, value);
        self.forget_shape_values(op);
    }

    /// Removes an attribute.
    pub fn remove_attr(&mut self, op: OpId, name: &str) {
        if self.op_mut(op).attrs.remove(name).is_some() {
            self.touch();
        }
        self.forget_shape_values(op);
    }

    /// Changes the type of a value, for refinement of shapes and placements.
    pub fn set_type(&mut self, value: ValueId, ty: Type) {
        let ty = self.name_unknown_dims(&ty);
        if self.graph.values[value.index()].ty != ty {
            self.touch();
            self.graph.values[value.index()].ty = ty;
            self.graph.values[value.index()].shape_value.take();
            let readers: Vec<OpId> = self.graph.uses(value).iter().map(|u| u.op).collect();
            readers.into_iter().for_each(|op| self.forget_shape_values(op));
        }
    }

    /// Names a value, for people.
    pub fn set_name(&mut self, value: ValueId, name: impl Into<Arc<str>>) {
        self.touch();
        self.graph.values[value.index()].name = Some(name.into());
    }

    /// Moves `op` to just before `before`, which may be in another region.
    pub fn move_before(&mut self, op: OpId, before: OpId) {
        self.touch();
        self.unlink(op);
        self.link(op, InsertionPoint::Before(before));
    }

    // ---- private ----

    fn touch(&mut self) {
        self.changed = true;
        self.graph.version = Version::next();
    }

    fn op_mut(&mut self, op: OpId) -> &mut OpData {
        self.graph.ops[op.index()].as_mut().expect("the op was erased")
    }

    /// Forgets what shape arithmetic found for the results of `op`, and for what was computed from them.
    fn forget_shape_values(&mut self, op: OpId) {
        // Readers of a changed op may know its attributes or types without having asked for its dimensions.
        let mut open: Vec<(OpId, bool)> = vec![(op, true)];
        while let Some((op, changed)) = open.pop() {
            for v in self.graph.op(op).results.clone() {
                let known = self.graph.values[v.index()].shape_value.take().is_some();
                if known || changed {
                    open.extend(self.graph.uses(v).iter().map(|u| (u.op, false)));
                }
            }
        }
    }

    fn link(&mut self, op: OpId, point: InsertionPoint) {
        let (parent, prev, next) = match point {
            InsertionPoint::Before(next) => {
                let n = self.graph.op(next);
                (n.parent, n.prev, Some(next))
            }
            InsertionPoint::EndOf(region) => (region, self.graph.regions[region.index()].last, None),
        };
        let o = self.op_mut(op);
        (o.parent, o.prev, o.next) = (parent, prev, next);
        match prev {
            Some(p) => self.op_mut(p).next = Some(op),
            None => self.graph.regions[parent.index()].first = Some(op),
        }
        match next {
            Some(n) => self.op_mut(n).prev = Some(op),
            None => self.graph.regions[parent.index()].last = Some(op),
        }
    }

    fn unlink(&mut self, op: OpId) {
        let (parent, prev, next) = {
            let o = self.graph.op(op);
            (o.parent, o.prev, o.next)
        };
        match prev {
            Some(p) => self.op_mut(p).next = next,
            None => self.graph.regions[parent.index()].first = next,
        }
        match next {
            Some(n) => self.op_mut(n).prev = prev,
            None => self.graph.regions[parent.index()].last = prev,
        }
    }
}

/// Whether `n` operands and `regions` regions fit the declaration.
pub(crate) fn check_arity(def: &dyn OpDef, n: usize, regions: usize) -> Result<(), Diagnostic> {
    let sig = def.signature();
    let least = sig.operands.iter().filter(|s| s.arity == Arity::One).count();
    let most = if sig.operands.iter().any(|s| s.arity == Arity::Variadic) { usize::MAX } else { sig.operands.len() };
    let error =
        |what: String| Err(Diagnostic::error(Code::ARITY, Location::Unknown, format!("'{}' {what}", def.name())));
    if n < least {
        return error(format!("needs at least {least} operands, it has {n}"));
    }
    if n > most {
        return error(format!("takes at most {most} operands, it has {n}"));
    }
    if regions != sig.regions {
        return error(format!("needs {} regions, it has {regions}", sig.regions));
    }
    Ok(())
}
