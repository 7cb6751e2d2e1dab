//! The meshes of a module: one mesh of all devices, or one submesh for each pipeline stage.

use std::collections::HashMap;

use of_diag::{Code, Diagnostic, Location};
use of_ir::{MeshPart, Module};

use crate::cross_mesh::Link;
use crate::layout;
use crate::mesh::{MeshAxis, MeshSpec};

/// The meshes of a module, as parts of a mesh description.
pub struct Meshes {
    whole: MeshSpec,
    parts: HashMap<String, (MeshSpec, MeshPart)>,
}

impl From<&MeshSpec> for Meshes {
    fn from(whole: &MeshSpec) -> Self {
        Meshes { whole: whole.clone(), parts: HashMap::new() }
    }
}

impl Meshes {
    /// The meshes of a module.
    ///
    /// # Errors
    /// When a mesh does not have the described shape, or the submeshes are not cut along one axis into one number of
    /// parts.
    pub fn of(module: &Module, whole: &MeshSpec) -> Result<Meshes, Diagnostic> {
        let wrong = |what: String| Diagnostic::error(Code::SBP, Location::Unknown, what);
        let mut out = Meshes::from(whole);
        for (name, mesh) in &module.meshes {
            let own = match mesh.part {
                None => whole.clone(),
                Some(p) => {
                    if out.stage_axis().is_some_and(|c| c != (p.axis, p.of)) {
                        return Err(wrong(format!("mesh @{name} has another stage axis than the other meshes")));
                    }
                    let own = whole.submesh(p.axis, p.of);
                    own.ok_or_else(|| wrong(format!("axis {} cannot be cut into {} parts", p.axis, p.of)))?
                }
            };
            if own.shape() != mesh.shape {
                let what = format!("mesh @{name} is {:?}, the given one is {:?}", mesh.shape, own.shape());
                return Err(wrong(what));
            }
            if let Some(p) = mesh.part {
                out.parts.insert(name.clone(), (own, p));
            }
        }
        Ok(out)
    }

    /// The axis along which the mesh is cut into stages, and their number.
    fn stage_axis(&self) -> Option<(usize, usize)> {
        self.parts.values().map(|(_, p)| (p.axis, p.of)).next()
    }

    /// The stage of a rank with these coordinates on [`Meshes::ranks`].
    pub fn stage(&self, coords: &[usize]) -> usize {
        self.stage_axis().and_then(|(axis, _)| coords.get(axis).copied()).unwrap_or(0)
    }

    /// The description of the mesh of this name.
    pub fn spec(&self, name: &str) -> &MeshSpec {
        self.parts.get(name).map_or(&self.whole, |(own, _)| own)
    }

    /// The part that the mesh of this name is, where it is a submesh.
    pub fn part(&self, name: &str) -> Option<MeshPart> {
        self.parts.get(name).map(|(_, p)| *p)
    }

    /// The mesh of all ranks, with an axis for the stages where there are any.
    pub fn ranks(&self) -> MeshSpec {
        self.stage_axis().map_or_else(|| self.whole.clone(), |(axis, of)| self.whole.with_stage_axis(axis, of))
    }

    /// The link between two stages.
    pub fn link(&self) -> Link {
        let axis = &self.whole.axes[self.stage_axis().map_or(0, |(axis, _)| axis).min(self.whole.axes.len() - 1)];
        Link { bandwidth: axis.bandwidth, latency: axis.latency }
    }

    /// Coordinates on the mesh of this name of a rank with these coordinates on [`Meshes::ranks`]; `None` where the
    /// rank is not on that mesh.
    pub fn coords_on(&self, name: &str, coords: &[usize]) -> Option<Vec<usize>> {
        let Some(p) = self.part(name) else { return Some(coords.to_vec()) };
        let mut own = coords.to_vec();
        (own.remove(p.axis) == p.index).then_some(own)
    }

    /// The axis of [`Meshes::ranks`] for `axis` of the mesh of this name.
    pub fn axis(&self, name: &str, axis: usize) -> usize {
        axis + usize::from(self.part(name).is_some_and(|p| p.axis <= axis))
    }

    /// Coordinates of a rank on [`Meshes::ranks`].
    pub fn coords(&self, rank: usize) -> Vec<usize> {
        layout::coords(&self.ranks().shape(), rank)
    }
}

impl MeshSpec {
    /// The submesh of one of this many stages along `axis`; `None` where they do not divide it. An axis of one device
    /// is dropped.
    pub fn submesh(&self, axis: usize, stages: usize) -> Option<MeshSpec> {
        let mut own = self.clone();
        let along = own.axes.get_mut(axis).filter(|a| stages > 0 && a.devices % stages == 0)?;
        along.devices /= stages;
        if along.devices == 1 && own.axes.len() > 1 {
            own.axes.remove(axis);
        }
        Some(own)
    }

    /// The mesh with an additional axis for the stages along `axis`.
    pub fn with_stage_axis(&self, axis: usize, stages: usize) -> MeshSpec {
        let Some(mut own) = self.submesh(axis, stages) else { return self.clone() };
        let link = &self.axes[axis];
        own.axes.insert(axis, MeshAxis { devices: stages, ..link.clone() });
        own
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn submeshes_keep_the_device_order() {
        let mesh = MeshSpec::named("cpu[2x4]").unwrap();
        assert_eq!(mesh.with_stage_axis(1, 2).shape(), [2, 2, 2]);
        assert_eq!(mesh.with_stage_axis(0, 2).shape(), [2, 4]);
        assert_eq!(MeshSpec::named("cpu[4]").unwrap().with_stage_axis(0, 4).shape(), [4, 1]);
        assert!(mesh.submesh(1, 3).is_none() && mesh.submesh(2, 1).is_none());
        let part = |index| of_ir::Mesh {
            devices: "cpu".into(),
            shape: vec![2, 2],
            part: Some(MeshPart { axis: 1, index, of: 2 }),
        };
        let mut module = Module::default();
        module.meshes.insert("a".into(), part(0));
        module.meshes.insert("b".into(), part(1));
        let meshes = Meshes::of(&module, &mesh).unwrap();
        assert_eq!(meshes.coords(6), [1, 1, 0]);
        assert_eq!((meshes.coords_on("b", &[1, 1, 0]), meshes.coords_on("a", &[1, 1, 0])), (Some(vec![1, 0]), None));
        assert_eq!((meshes.axis("a", 0), meshes.axis("a", 1)), (0, 2));
        module.meshes.insert("c".into(), of_ir::Mesh { part: Some(MeshPart { axis: 0, index: 0, of: 2 }), ..part(0) });
        assert!(Meshes::of(&module, &mesh).is_err());
    }
}
