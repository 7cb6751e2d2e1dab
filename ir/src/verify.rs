//! The verifier: structure, dominance, and each op against its declaration and inference.

use std::collections::HashSet;

use of_diag::{Code, Diagnostic, Diagnostics, Location};

use crate::rewriter::check_arity;
use crate::{Func, Graph, IdSet, Module, OpId, RegionId, Type, ValueId};

/// Checks every function and the meshes that types name.
///
/// # Errors
/// Everything that is wrong.
pub fn verify_module(module: &Module) -> Result<(), Diagnostics> {
    let mut all = Diagnostics::default();
    for (name, mesh) in &module.meshes {
        if mesh.shape.is_empty() || mesh.shape.contains(&0) {
            all.0.push(Diagnostic::error(Code::SBP, Location::Unknown, format!("mesh @{name} has no devices")));
        }
        if mesh.part.is_some_and(|p| p.axis > mesh.shape.len() || p.index >= p.of) {
            all.0.push(Diagnostic::error(
                Code::SBP,
                Location::Unknown,
                format!("mesh @{name} is not a part of a mesh"),
            ));
        }
    }
    for func in module.funcs.values() {
        if let Err(d) = verify_func(func, module) {
            all.0.extend(d.0);
        }
    }
    all.into_result(())
}

/// Checks one function.
///
/// # Errors
/// Everything that is wrong.
pub fn verify_func(func: &Func, module: &Module) -> Result<(), Diagnostics> {
    let g = &func.graph;
    let mut v = Verifier { graph: g, module, out: Diagnostics::default(), visible: HashSet::default() };
    v.region(g.entry(), &func.loc);
    if g.args().len() != func.inputs.len() || g.outputs().len() != func.outputs.len() {
        v.error(Code::ARITY, &func.loc, "names of inputs and outputs do not match their number".into());
    }
    v.out.into_result(())
}

struct Verifier<'a> {
    graph: &'a Graph,
    module: &'a Module,
    out: Diagnostics,
    visible: IdSet<ValueId>,
}

impl Verifier<'_> {
    fn error(&mut self, code: Code, loc: &Location, message: String) {
        self.out.0.push(Diagnostic::error(code, loc.clone(), message));
    }

    fn region(&mut self, region: RegionId, loc: &Location) {
        let g = self.graph;
        let mut defined: Vec<ValueId> = g.region_args(region).to_vec();
        self.visible.extend(&defined);
        for v in g.region_args(region) {
            self.ty(g.ty(*v), loc);
        }
        let ops: Vec<OpId> = g.region_ops(region).collect();
        for (i, op) in ops.iter().enumerate() {
            let data = g.op(*op);
            if data.def.traits().terminator != (i + 1 == ops.len()) {
                let what = if i + 1 == ops.len() {
                    "the region does not end with a terminator"
                } else {
                    "a terminator is followed by other ops"
                };
                self.error(Code::REGION, &data.loc, format!("'{}': {what}", data.name()));
            }
            self.op(*op);
            self.visible.extend(&data.results);
            defined.extend(&data.results);
        }
        if ops.is_empty() {
            self.error(Code::REGION, loc, "a region is empty".into());
        }
        for v in defined {
            self.visible.remove(&v);
        }
    }

    fn op(&mut self, op: OpId) {
        let g = self.graph;
        let data = g.op(op);
        for (i, v) in data.operands.iter().enumerate() {
            if !self.visible.contains(v) {
                self.error(
                    Code::DOMINANCE,
                    &data.loc,
                    format!("'{}': operand {i} is used before or outside its definition", data.name()),
                );
                return;
            }
        }
        if let Err(d) = check_arity(data.def, data.operands.len(), data.regions.len()) {
            self.out.0.push(d.or_at(&data.loc));
            return;
        }
        let sig = data.def.signature();
        for (name, _) in data.attrs.iter() {
            if !name.contains('.') && !sig.attrs.iter().any(|a| a.name == &**name) {
                let known: Vec<_> = sig.attrs.iter().map(|a| a.name).collect();
                let hint = if known.is_empty() {
                    "it has no attributes".into()
                } else {
                    format!("it has {}", known.join(", "))
                };
                self.out.0.push(
                    Diagnostic::error(
                        Code::ATTRIBUTE,
                        data.loc.clone(),
                        format!("'{}' has no attribute '{name}'", data.name()),
                    )
                    .hint(hint),
                );
            }
        }
        for r in &data.regions {
            self.region(*r, &data.loc);
        }
        for v in &data.results {
            self.ty(g.ty(*v), &data.loc);
        }
        match data.def.infer(&g.view(op)) {
            Err(e) => self.out.0.push(e.at(data.name(), &data.loc)),
            Ok(types) if types.len() != data.results.len() => {
                let what =
                    format!("'{}' has {} results, it must have {}", data.name(), data.results.len(), types.len());
                self.error(Code::ARITY, &data.loc, what);
            }
            Ok(types) => {
                for (i, (inferred, v)) in types.iter().zip(&data.results).enumerate() {
                    if !g.ty(*v).compatible(inferred) {
                        let what = format!(
                            "'{}': result {i} is declared {}, inference says {inferred}",
                            data.name(),
                            g.ty(*v)
                        );
                        self.error(Code::TYPE, &data.loc, what);
                    }
                }
            }
        }
    }

    fn ty(&mut self, ty: &Type, loc: &Location) {
        match ty {
            Type::Tensor(t) => {
                if t.shape.iter().flatten().any(|d| d.as_const().is_some_and(|c| c < 0)) {
                    self.error(Code::SHAPE, loc, format!("{ty} has a negative dimension"));
                }
                if t.fixed_dims().is_some_and(|dims| crate::tensor::count(&dims).is_err()) {
                    self.error(Code::SHAPE, loc, format!("{ty} is larger than any memory"));
                }
                let Some(sbp) = &t.sbp else { return };
                let Some(mesh) = self.module.meshes.get(&*sbp.mesh) else {
                    self.error(
                        Code::SBP,
                        loc,
                        format!("{ty} names mesh @{}, which the module does not define", sbp.mesh),
                    );
                    return;
                };
                // Without entries the tensor is on the mesh, in any layout.
                if !sbp.axes.is_empty() && mesh.shape.len() != sbp.axes.len() {
                    let what = format!(
                        "{ty} has {} SBP entries, mesh @{} has {} axes",
                        sbp.axes.len(),
                        sbp.mesh,
                        mesh.shape.len()
                    );
                    self.error(Code::SBP, loc, what);
                }
                for s in &sbp.axes {
                    if let (crate::Sbp::Split(axis), Some(rank)) = (s, t.rank())
                        && usize::from(*axis) >= rank
                    {
                        self.error(Code::SBP, loc, format!("{ty} splits axis {axis}, it has rank {rank}"));
                    }
                }
            }
            Type::Sequence(t) | Type::Optional(t) => self.ty(t, loc),
            Type::None => {}
        }
    }
}
