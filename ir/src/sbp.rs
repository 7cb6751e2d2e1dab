//! SBP: how a global tensor is distributed over a mesh of devices.

use std::fmt;
use std::sync::Arc;

use smallvec::SmallVec;

/// How partial values combine to the global one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
#[allow(missing_docs, reason = "the names say what they are")]
pub enum PartialKind {
    Sum,
    Max,
    Min,
    Prod,
}

impl PartialKind {
    /// Every kind.
    pub const ALL: [PartialKind; 4] = [PartialKind::Sum, PartialKind::Max, PartialKind::Min, PartialKind::Prod];

    /// The keyword in text.
    pub const fn name(self) -> &'static str {
        match self {
            PartialKind::Sum => "sum",
            PartialKind::Max => "max",
            PartialKind::Min => "min",
            PartialKind::Prod => "prod",
        }
    }
}

/// How a tensor is distributed along one axis of a mesh.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Sbp {
    /// Each device holds a slice of tensor axis `.0`; the first `n % p` of `p` devices hold one element more.
    Split(u8),
    /// Each device holds all of it.
    Broadcast,
    /// The devices' values combine to the global one.
    Partial(PartialKind),
}

impl fmt::Display for Sbp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Sbp::Split(axis) => write!(f, "S({axis})"),
            Sbp::Broadcast => f.write_str("B"),
            Sbp::Partial(k) => write!(f, "P({})", k.name()),
        }
    }
}

/// The placement of a tensor: a mesh and one [`Sbp`] for each of its axes. Without entries the tensor is on the mesh, and `shard`
/// searches its layout.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct NdSbp {
    /// Name of the mesh, a symbol of the module.
    pub mesh: Arc<str>,
    /// One entry a mesh axis, or none where the layout is left to the search.
    pub axes: SmallVec<[Sbp; 4]>,
}

impl fmt::Display for NdSbp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        crate::text::quote::write_symbol(f, &self.mesh)?;
        f.write_str(", [")?;
        for (i, s) in self.axes.iter().enumerate() {
            if i > 0 {
                f.write_str(", ")?;
            }
            write!(f, "{s}")?;
        }
        f.write_str("]")
    }
}

/// A mesh of devices.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Mesh {
    /// Kind of device: `cpu`, `cuda`, …
    pub devices: String,
    /// Number of devices along each axis.
    pub shape: Vec<usize>,
    /// The part of a larger mesh that this is; `None` if it is a whole mesh.
    pub part: Option<MeshPart>,
}

impl Mesh {
    /// Part `index` of `of` equal parts along an axis; `None` where there is none. An axis of one device is dropped, unless it is the
    /// only one.
    pub fn part(&self, axis: usize, index: usize, of: usize) -> Option<Mesh> {
        let mut shape = self.shape.clone();
        let along = shape.get_mut(axis).filter(|n| self.part.is_none() && index < of && n.is_multiple_of(of))?;
        *along /= of;
        if *along == 1 && shape.len() > 1 {
            shape.remove(axis);
        }
        Some(Mesh { devices: self.devices.clone(), shape, part: Some(MeshPart { axis, index, of }) })
    }
}

/// A part of a mesh: a stage of a pipeline. The mesh has one more axis, which indexes the parts.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct MeshPart {
    /// The position of that axis among those of the mesh.
    pub axis: usize,
    /// Which part it is.
    pub index: usize,
    /// How many parts there are.
    pub of: usize,
}

/// One legal way to run an op on one mesh axis: an [`Sbp`] for every operand and every result.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct SbpSignature {
    /// One entry an operand.
    pub operands: SmallVec<[Sbp; 4]>,
    /// One entry a result.
    pub results: SmallVec<[Sbp; 2]>,
    /// It is legal on a mesh axis whose number of devices divides this; 0, which everything divides, for no condition.
    pub multiple: i64,
}

impl SbpSignature {
    /// A signature from slices.
    pub fn new(operands: &[Sbp], results: &[Sbp]) -> Self {
        Self { operands: SmallVec::from_slice(operands), results: SmallVec::from_slice(results), multiple: 0 }
    }

    /// The same, but legal only where the number of devices divides `n`, so that all slices are equally long.
    pub fn for_divisors_of(self, n: i64) -> Self {
        Self { multiple: n, ..self }
    }

    /// Whether it is legal on a mesh axis of this many devices.
    pub fn allows(&self, devices: usize) -> bool {
        i64::try_from(devices).is_ok_and(|d| d > 0 && self.multiple % d == 0)
    }

    /// Everything broadcast, which every deterministic op allows.
    pub fn broadcast(operands: usize, results: usize) -> Self {
        Self {
            operands: SmallVec::from_elem(Sbp::Broadcast, operands),
            results: SmallVec::from_elem(Sbp::Broadcast, results),
            multiple: 0,
        }
    }
}

impl fmt::Display for SbpSignature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |v: &[Sbp]| v.iter().map(Sbp::to_string).collect::<Vec<_>>().join(", ");
        write!(f, "({}) -> ({})", list(&self.operands), list(&self.results))
    }
}
