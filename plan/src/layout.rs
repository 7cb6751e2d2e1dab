//! SBP layouts: how a mesh divides a tensor, and the block of it that a rank holds.

/// The layout of a tensor along one axis of a mesh.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum LayoutKind {
    /// Each rank holds all of it.
    Broadcast = 0,
    /// Each rank holds a slice; the first `n % p` of `p` ranks hold one element more.
    Split = 1,
    /// The ranks' values add up to the tensor.
    Sum = 2,
    /// The tensor is the largest of the ranks' values.
    Max = 3,
    /// The tensor is the smallest of the ranks' values.
    Min = 4,
    /// The tensor is the product of the ranks' values.
    Prod = 5,
    /// One rank holds it, the others nothing: a stage of a pipeline.
    At = 6,
}

impl LayoutKind {
    /// Whether the ranks' values must be combined to have the tensor.
    pub fn is_partial(self) -> bool {
        !matches!(self, LayoutKind::Broadcast | LayoutKind::Split | LayoutKind::At)
    }
}

/// The layout of a tensor along one axis of a mesh (one SBP component).
#[derive(Clone, Copy, PartialEq, Eq, Hash, prost::Message)]
pub struct AxisLayout {
    /// The kind of layout.
    #[prost(enumeration = "LayoutKind", tag = "1")]
    pub kind: i32,
    /// The tensor's axis, for a split; the rank that has it, where one has.
    #[prost(uint32, tag = "2")]
    pub dim: u32,
}

impl AxisLayout {
    /// A layout without an axis or rank.
    pub fn of(kind: LayoutKind) -> Self {
        Self { kind: kind as i32, dim: 0 }
    }

    /// Slices along an axis of the tensor.
    pub fn split(dim: u32) -> Self {
        Self { kind: LayoutKind::Split as i32, dim }
    }

    /// One rank has it.
    pub fn at(rank: u32) -> Self {
        Self { kind: LayoutKind::At as i32, dim: rank }
    }
}

/// An extent of a whole tensor that a run decides.
pub const OPEN: i64 = -1;

/// The number of slices of a tensor's axis on a mesh.
pub fn slices(layout: &[AxisLayout], mesh: &[usize], axis: usize) -> usize {
    let is_split = |l: &AxisLayout| l.kind() == LayoutKind::Split && l.dim as usize == axis;
    layout.iter().zip(mesh).filter(|(l, _)| is_split(l)).map(|(_, n)| *n).product()
}

/// Whether the rank at `coords` of a mesh has a part of a tensor with this layout.
pub fn holds(layout: &[AxisLayout], coords: &[usize]) -> bool {
    layout.iter().zip(coords).all(|(l, c)| l.kind() != LayoutKind::At || l.dim as usize == *c)
}

/// Slice `i` of `n` of an extent: the first ones are one longer where it does not divide.
fn slice(extent: usize, n: usize, i: usize) -> (usize, usize) {
    let (base, more) = (extent / n, extent % n);
    (i * base + i.min(more), base + usize::from(i < more))
}

/// What the rank at `coords` of a mesh holds. Where several axes split one axis of the tensor, each splits what the one
/// before it left.
pub fn block(layout: &[AxisLayout], mesh: &[usize], coords: &[usize], dims: &[usize]) -> Vec<(usize, usize)> {
    let mut out: Vec<(usize, usize)> = dims.iter().map(|d| (0, *d)).collect();
    for ((axis, n), i) in layout.iter().zip(mesh).zip(coords) {
        if axis.kind() == LayoutKind::Split
            && let Some((start, len)) = out.get_mut(axis.dim as usize)
        {
            let (offset, part) = slice(*len, *n, *i);
            (*start, *len) = (*start + offset, part);
        }
    }
    out
}

/// Position along each axis of a mesh, the last varying fastest.
pub fn coords(mesh: &[usize], mut rank: usize) -> Vec<usize> {
    let mut out = vec![0; mesh.len()];
    for (c, n) in out.iter_mut().zip(mesh).rev() {
        *c = rank % n;
        rank /= n;
    }
    out
}

/// The reduction of partial values, where a layout has any.
pub fn partial_kind(layout: &[AxisLayout]) -> Option<LayoutKind> {
    layout.iter().map(AxisLayout::kind).find(|k| k.is_partial())
}
