//! Collectives on simulated devices: the effect of each step on the parts, and the number of elements sent.

use of_ir::{PartialKind, Sbp};

use crate::boxing::{CollectiveKind, overlap};
use crate::layout::{self, Layout};

/// The part of a tensor on one device, in row-major order.
#[derive(Clone, PartialEq, Debug)]
pub struct Part {
    /// Extent along each axis.
    pub dims: Vec<usize>,
    /// The elements.
    pub data: Vec<f64>,
}

impl Part {
    /// A part whose elements are all `value`.
    pub fn filled(dims: &[usize], value: f64) -> Part {
        Part { dims: dims.to_vec(), data: vec![value; dims.iter().product()] }
    }

    /// The elements of a block, given by start and length along each axis.
    pub fn read(&self, block: &[(usize, usize)]) -> Part {
        let dims: Vec<usize> = block.iter().map(|(_, n)| *n).collect();
        let strides = of_ops::shape::strides(&self.dims);
        let mut data = Vec::with_capacity(dims.iter().product());
        of_ops::shape::for_each_index(&dims, |i| {
            data.push(self.data[position(&strides, block, i)]);
        });
        Part { dims, data }
    }

    /// Writes `other` to a block of its size.
    pub fn write(&mut self, block: &[(usize, usize)], other: &Part) {
        let strides = of_ops::shape::strides(&self.dims);
        let mut next = 0;
        of_ops::shape::for_each_index(&other.dims, |i| {
            self.data[position(&strides, block, i)] = other.data[next];
            next += 1;
        });
    }

    /// Slice `i` of `n` along `dim`, as a block.
    fn slice(&self, dim: usize, n: usize, i: usize) -> Vec<(usize, usize)> {
        let mut block: Vec<(usize, usize)> = self.dims.iter().map(|d| (0, *d)).collect();
        block[dim] = layout::slice(self.dims[dim], n, i);
        block
    }

    fn combine(&mut self, other: &Part, kind: PartialKind) {
        for (a, b) in self.data.iter_mut().zip(&other.data) {
            *a = combine(kind, *a, *b);
        }
    }
}

fn position(strides: &[usize], block: &[(usize, usize)], index: &[usize]) -> usize {
    strides.iter().zip(block).zip(index).map(|((s, (start, _)), i)| s * (start + i)).sum()
}

/// Combines two partial values.
pub fn combine(kind: PartialKind, a: f64, b: f64) -> f64 {
    match kind {
        PartialKind::Sum => a + b,
        PartialKind::Prod => a * b,
        PartialKind::Max => a.max(b),
        PartialKind::Min => a.min(b),
    }
}

/// The neutral element of a reduction.
pub fn neutral(kind: PartialKind) -> f64 {
    match kind {
        PartialKind::Sum => 0.0,
        PartialKind::Prod => 1.0,
        PartialKind::Max => f64::NEG_INFINITY,
        PartialKind::Min => f64::INFINITY,
    }
}

/// The part of `whole` on each device. Where it is partial, the first device has the elements and the others have the
/// neutral element.
pub fn scatter(whole: &Part, layout: &Layout, mesh: &[usize]) -> Vec<Part> {
    (0..mesh.iter().product())
        .map(|r| {
            let coords = layout::coords(mesh, r);
            let own = whole.read(&layout::block(layout, mesh, &coords, &whole.dims));
            let first = layout.iter().zip(&coords).all(|(s, c)| !matches!(s, Sbp::Partial(_)) || *c == 0);
            match layout::partial_kind(layout) {
                Some(kind) if !first => Part::filled(&own.dims, neutral(kind)),
                _ => own,
            }
        })
        .collect()
}

/// The whole tensor of dimensions `dims` from all parts.
pub fn gather(parts: &[Part], layout: &Layout, mesh: &[usize], dims: &[usize]) -> Part {
    let kind = layout::partial_kind(layout);
    let mut whole = Part::filled(dims, kind.map_or(f64::NAN, neutral));
    for (r, part) in parts.iter().enumerate() {
        let coords = layout::coords(mesh, r);
        // Replicas beyond the first are not counted twice.
        if layout.iter().zip(&coords).any(|(s, c)| *s == Sbp::Broadcast && *c != 0) {
            continue;
        }
        let block = layout::block(layout, mesh, &coords, dims);
        let mut own = whole.read(&block);
        match kind {
            Some(k) => own.combine(part, k),
            None => own = part.clone(),
        }
        whole.write(&block, &own);
    }
    whole
}

/// The parts after one step from layout `from` to `to`, and the number of elements sent between devices. `dims` are
/// those of the whole tensor.
pub fn step(
    parts: &[Part],
    from: &Layout,
    to: &Layout,
    collective: CollectiveKind,
    axes: &[usize],
    mesh: &[usize],
    dims: &[usize],
) -> (Vec<Part>, usize) {
    let mut out = parts.to_vec();
    let mut sent = 0;
    for group in groups(mesh, axes) {
        let own: Vec<&Part> = group.iter().map(|r| &parts[*r]).collect();
        let (values, moved) = match (collective, axes) {
            (CollectiveKind::Reshard, _) => exchange(&group, parts, from, to, mesh, dims),
            (_, [axis]) => along(&own, from[*axis], to[*axis], collective),
            _ => (own.into_iter().cloned().collect(), 0),
        };
        sent += moved;
        for (r, v) in group.iter().zip(values) {
            out[*r] = v;
        }
    }
    (out, sent)
}

/// Groups of devices that differ only along `axes`, in order along them.
fn groups(mesh: &[usize], axes: &[usize]) -> Vec<Vec<usize>> {
    let devices: usize = mesh.iter().product();
    let mut out: Vec<Vec<usize>> = Vec::new();
    let mut place = std::collections::BTreeMap::new();
    for r in 0..devices {
        let mut coords = layout::coords(mesh, r);
        axes.iter().for_each(|a| coords[*a] = 0);
        let group = *place.entry(coords).or_insert_with(|| {
            out.push(Vec::new());
            out.len() - 1
        });
        out[group].push(r);
    }
    out
}

/// A collective of one group along one mesh axis.
fn along(own: &[&Part], from: Sbp, to: Sbp, collective: CollectiveKind) -> (Vec<Part>, usize) {
    let p = own.len();
    let kind = if let Sbp::Partial(k) = if collective == CollectiveKind::ToPartial { to } else { from } {
        Some(k)
    } else {
        None
    };
    let dim = |s: Sbp| if let Sbp::Split(d) = s { usize::from(d) } else { 0 };
    match collective {
        CollectiveKind::LocalSlice => ((0..p).map(|i| own[i].read(&own[i].slice(dim(to), p, i))).collect(), 0),
        CollectiveKind::ToPartial => (embed(own, from, kind.unwrap_or(PartialKind::Sum)), 0),
        CollectiveKind::AllGather => all_gather(own, dim(from)),
        CollectiveKind::AllToAll => {
            // Device i sends slice j along the new axis to device j.
            let pieces = |j: usize| own.iter().map(|x| x.read(&x.slice(dim(to), p, j))).collect::<Vec<_>>();
            let mut sent = 0;
            let mut out = Vec::with_capacity(p);
            for j in 0..p {
                let pieces = pieces(j);
                sent += pieces.iter().enumerate().filter(|(i, _)| *i != j).map(|(_, x)| x.data.len()).sum::<usize>();
                out.push(concat(&pieces.iter().collect::<Vec<_>>(), dim(from)));
            }
            (out, sent)
        }
        CollectiveKind::ReduceScatter => reduce_scatter(own, dim(to), kind.unwrap_or(PartialKind::Sum)),
        CollectiveKind::AllReduce => {
            // Reduce-scatter and all-gather of the flat list of elements.
            let dims = own.first().map_or(Vec::new(), |x| x.dims.clone());
            let flat: Vec<Part> = own.iter().map(|x| Part { dims: vec![x.data.len()], data: x.data.clone() }).collect();
            let (slices, first) = reduce_scatter(&flat.iter().collect::<Vec<_>>(), 0, kind.unwrap_or(PartialKind::Sum));
            let (whole, second) = all_gather(&slices.iter().collect::<Vec<_>>(), 0);
            (whole.into_iter().map(|x| Part { dims: dims.clone(), data: x.data }).collect(), first + second)
        }
        CollectiveKind::Reshard => (own.iter().map(|x| (*x).clone()).collect(), 0),
    }
}

fn embed(own: &[&Part], from: Sbp, kind: PartialKind) -> Vec<Part> {
    let mut start = 0;
    let total = |d: usize| own.iter().map(|x| x.dims[d]).sum::<usize>();
    own.iter()
        .enumerate()
        .map(|(i, x)| match from {
            Sbp::Split(d) => {
                let d = usize::from(d);
                let mut dims = x.dims.clone();
                dims[d] = total(d);
                let mut whole = Part::filled(&dims, neutral(kind));
                let mut block: Vec<(usize, usize)> = x.dims.iter().map(|n| (0, *n)).collect();
                block[d].0 = start;
                start += x.dims[d];
                whole.write(&block, x);
                whole
            }
            _ if i == 0 => (*x).clone(),
            _ => Part::filled(&x.dims, neutral(kind)),
        })
        .collect()
}

fn all_gather(own: &[&Part], dim: usize) -> (Vec<Part>, usize) {
    let whole = concat(own, dim);
    let sent = own.iter().map(|x| whole.data.len() - x.data.len()).sum();
    (vec![whole; own.len()], sent)
}

fn reduce_scatter(own: &[&Part], dim: usize, kind: PartialKind) -> (Vec<Part>, usize) {
    let p = own.len();
    let mut sent = 0;
    let mut out = Vec::with_capacity(p);
    for i in 0..p {
        let mut sum = own[i].read(&own[i].slice(dim, p, i));
        for (_, x) in own.iter().enumerate().filter(|(j, _)| *j != i) {
            let piece = x.read(&x.slice(dim, p, i));
            sent += piece.data.len();
            sum.combine(&piece, kind);
        }
        out.push(sum);
    }
    (out, sent)
}

fn concat(parts: &[&Part], dim: usize) -> Part {
    let mut dims = parts.first().map_or(Vec::new(), |x| x.dims.clone());
    dims[dim] = parts.iter().map(|x| x.dims[dim]).sum();
    let mut whole = Part::filled(&dims, f64::NAN);
    let mut start = 0;
    for x in parts {
        let mut block: Vec<(usize, usize)> = x.dims.iter().map(|n| (0, *n)).collect();
        block[dim].0 = start;
        start += x.dims[dim];
        whole.write(&block, x);
    }
    whole
}

/// Each device of the group keeps its elements of the new block and fetches the rest, every element once.
fn exchange(
    group: &[usize],
    parts: &[Part],
    from: &Layout,
    to: &Layout,
    mesh: &[usize],
    dims: &[usize],
) -> (Vec<Part>, usize) {
    let held: Vec<Vec<(usize, usize)>> =
        group.iter().map(|r| layout::block(from, mesh, &layout::coords(mesh, *r), dims)).collect();
    let relative = |inner: &[(usize, usize)], outer: &[(usize, usize)]| {
        inner.iter().zip(outer).map(|((s, n), (t, _))| (s.saturating_sub(*t), *n)).collect::<Vec<_>>()
    };
    let mut sent = 0;
    let mut out = Vec::with_capacity(group.len());
    for (i, r) in group.iter().enumerate() {
        let needed = layout::block(to, mesh, &layout::coords(mesh, *r), dims);
        let lengths: Vec<usize> = needed.iter().map(|(_, n)| *n).collect();
        let mut value = Part::filled(&lengths, f64::NAN);
        // Its own part first, then the others in order.
        for j in std::iter::once(i).chain((0..group.len()).filter(|j| *j != i)) {
            let common = overlap(&held[j], &needed);
            if common.iter().any(|(_, n)| *n == 0) {
                continue;
            }
            let target = relative(&common, &needed);
            if value.read(&target).data.iter().all(|x| !x.is_nan()) {
                continue;
            }
            let piece = parts[group[j]].read(&relative(&common, &held[j]));
            sent += if i == j { 0 } else { piece.data.len() };
            value.write(&target, &piece);
        }
        out.push(value);
    }
    (out, sent)
}
