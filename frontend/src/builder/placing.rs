//! Placements in the builder: where inputs, parameters and ops are.

use std::panic::Location as Caller;
use std::sync::Arc;

use of_diag::{Code, Diagnostic};
use of_ir::{NewOp, RegionId, Rewriter, Sbp, TensorType, Type, ValueId};
use of_ops::boxing::ShardingConstraint;

use super::{Builder, location};
use crate::placement::{AUTO, Placement};

impl Builder {
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

    /// Places a parameter as [`Builder::on`] says.
    pub(super) fn place_parameter(&mut self, caller: &Caller<'_>, v: ValueId) -> Result<(), Diagnostic> {
        let Some((placement, layout)) = self.scopes.last().cloned() else { return Ok(()) };
        let ty = self.ty(v).clone();
        let rank = ty.as_tensor().and_then(TensorType::rank).unwrap_or(0);
        let fits = layout.iter().all(|s| !matches!(s, Sbp::Split(axis) if usize::from(*axis) >= rank));
        let ty = self.global(caller, &ty, &placement, if fits { &layout } else { AUTO })?;
        Rewriter::new(&mut self.graph, "build").set_type(v, ty);
        self.placed.insert(v, placement.name().clone());
        Ok(())
    }

    /// Adds an op on the placement of its operands, and returns its results.
    pub(super) fn add(
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
}
