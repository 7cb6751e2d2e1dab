//! Placements: the devices that hold a tensor and run its ops.
//!
//! A tensor of a graph is global: its layout says which part each device of its placement holds, one [`Sbp`] for each axis of the
//! mesh. The compiler searches what is left out ([`AUTO`]) and inserts every transfer. An op runs where its operands are, so they
//! share a placement; [`Builder::to_global`](crate::Builder::to_global) moves a tensor to another one.
//!
//! Two products on two placements, the example of Yuan et al., "OneFlow: redesign the distributed deep learning framework from
//! scratch" (2021), table 4: the first is data-parallel on two devices, the second model-parallel on two others.
//!
//! ```
//! use of_frontend::Builder;
//! use of_frontend::placement::{Placement, Sbp};
//! use of_ir::{DType, Type};
//! use of_ops::contraction::MatMul;
//!
//! let p = Placement::mesh("p", "cpu", &[4])?.parts(0, 2)?;
//! let mut b = Builder::new("two_products");
//! let a0 = b.global_input("a0", Type::fixed(DType::F32, &[4, 5]), &p[0], &[Sbp::Split(0)])?;
//! let b0 = b.global_input("b0", Type::fixed(DType::F32, &[5, 8]), &p[0], &[Sbp::Broadcast])?;
//! let y0 = b.op(MatMul {}, &[a0, b0])?;
//! let y0 = b.to_global(y0, &p[1], &[Sbp::Broadcast])?;
//! let b1 = b.global_input("b1", Type::fixed(DType::F32, &[8, 6]), &p[1], &[Sbp::Split(1)])?;
//! let y2 = b.op(MatMul {}, &[y0, b1])?;
//! let module = b.finish(&[("y2", y2)])?;
//! # assert_eq!(module.meshes.len(), 2);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::sync::Arc;

use of_diag::{Code, Diagnostic, Location};
use of_ir::{Mesh, NdSbp, TensorType, Type};
pub use of_ir::{PartialKind, Sbp};

/// The layout that the compiler searches.
pub const AUTO: &[Sbp] = &[];

/// Devices: a mesh, or one of its equal parts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Placement {
    name: Arc<str>,
    mesh: Mesh,
}

impl Placement {
    /// A mesh of devices of a kind, such as `cpu`, with this many along each axis. Modules call it `name`.
    ///
    /// # Errors
    /// When the mesh has no devices.
    pub fn mesh(name: &str, devices: &str, shape: &[usize]) -> Result<Placement, Diagnostic> {
        if shape.is_empty() || shape.contains(&0) {
            return Err(error(format!("mesh '{name}' of shape {shape:?} has no devices")));
        }
        let mesh = Mesh { devices: devices.into(), shape: shape.to_vec(), part: None };
        Ok(Placement { name: name.into(), mesh })
    }

    /// The equal parts of the mesh along an axis, each with a number after the name. Parts run at the same time, as the stages of a
    /// pipeline do.
    ///
    /// # Errors
    /// When the axis cannot be cut into this many equal parts.
    pub fn parts(&self, axis: usize, count: usize) -> Result<Vec<Placement>, Diagnostic> {
        let part = |index| {
            let mesh = self.mesh.part(axis, index, count)?;
            Some(Placement { name: format!("{}{index}", self.name).into(), mesh })
        };
        let parts: Option<Vec<Placement>> = (0..count.max(1)).map(part).collect();
        parts.ok_or_else(|| {
            let what = format!("mesh '{}' of shape {:?} cannot be cut along axis {axis}", self.name, self.mesh.shape);
            error(format!("{what} into {count} equal parts"))
        })
    }

    /// The name of the mesh in the module.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// The mesh, as the module has it.
    pub fn ir(&self) -> &Mesh {
        &self.mesh
    }

    /// The type on this placement, in a layout.
    ///
    /// # Errors
    /// When the layout does not fit the mesh or the tensor.
    pub(crate) fn global(&self, ty: &Type, sbp: &[Sbp]) -> Result<Type, Diagnostic> {
        let Type::Tensor(t) = ty else { return Err(error(format!("{ty} is no tensor, and has no placement"))) };
        let wrong = |what: String| Err(error(format!("{ty} on @{}: {what}", self.name)));
        let axes = self.mesh.shape.len();
        if !sbp.is_empty() && sbp.len() != axes {
            let what = format!("the layout has {} entries, and the mesh {axes} axes: one for each, or none", sbp.len());
            return wrong(what);
        }
        let mut left: Vec<Option<i64>> = t.shape.iter().flatten().map(of_ir::Dim::as_const).collect();
        let mut kind = None;
        for (one, devices) in sbp.iter().zip(&self.mesh.shape) {
            match one {
                Sbp::Broadcast => {}
                Sbp::Split(axis) => {
                    let Some(extent) = left.get_mut(usize::from(*axis)) else {
                        return wrong(format!("{one} splits an axis that it does not have"));
                    };
                    if extent.is_some_and(|n| n < *devices as i64) {
                        return wrong(format!("{one} leaves some of {devices} devices without an element"));
                    }
                    *extent = extent.map(|n| n / *devices as i64);
                }
                Sbp::Partial(_) if !(t.dtype.is_float() || t.dtype.is_int()) => {
                    return wrong(format!("{one} needs numbers to combine"));
                }
                Sbp::Partial(of) if kind.is_some_and(|known| known != *of) => {
                    return wrong("values are partial in two ways".into());
                }
                Sbp::Partial(of) => kind = Some(*of),
            }
        }
        let sbp = NdSbp { mesh: self.name.clone(), axes: sbp.iter().copied().collect() };
        Ok(Type::Tensor(TensorType { sbp: Some(sbp), ..t.clone() }))
    }
}

fn error(what: String) -> Diagnostic {
    Diagnostic::error(Code::SBP, Location::Unknown, what)
}

#[cfg(test)]
mod tests {
    use of_ir::DType;
    use of_ops::elementwise::Add;

    use super::*;
    use crate::Builder;

    fn input(b: &mut Builder, placement: &Placement, layout: &[Sbp]) -> Result<of_ir::ValueId, Diagnostic> {
        b.global_input("x", Type::fixed(DType::F32, &[3, 8]), placement, layout)
    }

    #[test]
    fn wrong_layouts_are_errors_of_their_line() {
        let (four, grid) = (Placement::mesh("m", "cpu", &[4]), Placement::mesh("g", "cpu", &[2, 2]));
        let (four, grid) = (four.unwrap(), grid.unwrap());
        let partial = Sbp::Partial;
        for (placement, layout, words) in [
            (&four, &[Sbp::Split(0)][..], "S(0) leaves some of 4 devices without an element"),
            (&four, &[Sbp::Split(2)], "S(2) splits an axis that it does not have"),
            (&four, &[Sbp::Broadcast, Sbp::Broadcast], "the layout has 2 entries, and the mesh 1 axes"),
            (&grid, &[Sbp::Split(0), Sbp::Split(0)], "S(0) leaves some of 2 devices without an element"),
            (&grid, &[partial(PartialKind::Sum), partial(PartialKind::Max)], "values are partial in two ways"),
        ] {
            let error = input(&mut Builder::new("m"), placement, layout).unwrap_err();
            assert!(error.message.contains(words) && error.to_string().contains("placement.rs"), "{error}");
        }
        for layout in [AUTO, &[Sbp::Split(1), Sbp::Broadcast], &[Sbp::Split(1), Sbp::Split(1)]] {
            input(&mut Builder::new("m"), &grid, layout).unwrap();
        }
        assert!(Placement::mesh("m", "cpu", &[]).is_err() && Placement::mesh("m", "cpu", &[0]).is_err());
        assert!(four.parts(0, 3).is_err() && four.parts(1, 2).is_err() && four.parts(0, 0).is_err());
    }

    #[test]
    fn an_op_has_one_placement() {
        let p = Placement::mesh("p", "cpu", &[4]).unwrap().parts(0, 2).unwrap();
        let mut b = Builder::new("m");
        let x = input(&mut b, &p[0], AUTO).unwrap();
        let y = b.global_input("y", Type::fixed(DType::F32, &[8]), &p[1], AUTO).unwrap();
        let error = b.op(Add {}, &[x, y]).unwrap_err();
        assert!(error.message.contains("operand 0 is on @p0, and operand 1 on @p1"), "{error}");
        // The module of a placement moves its operands, each once.
        let sum = b.on(&p[1], AUTO, |b| b.op(Add {}, &[x, y]).and_then(|sum| b.op(Add {}, &[sum, x]))).unwrap();
        let back = b.to_global(sum, &p[0], &[Sbp::Split(1)]).unwrap();
        let last = b.op(Add {}, &[x, back]).unwrap();
        let module = b.finish(&[("last", last)]).unwrap();
        let g = &module.main().unwrap().graph;
        assert_eq!(g.walk().into_iter().filter(|op| g.op(*op).name() == "of.sharding_constraint").count(), 2);
        // One name is one mesh.
        let other = Placement::mesh("p0", "cpu", &[2]).unwrap();
        let mut b = Builder::new("m");
        input(&mut b, &p[0], AUTO).unwrap();
        let error = b.global_input("z", Type::fixed(DType::F32, &[8]), &other, AUTO).unwrap_err();
        assert!(error.message.contains("two meshes are called 'p0'"), "{error}");
    }
}
