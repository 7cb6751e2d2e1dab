//! Iteration spaces: boxes in which every input is either read or filled, with as few dimensions as possible.

use super::{Piece, View};

/// A box of a piece's space.
#[derive(Clone, Debug)]
pub(super) struct Space {
    pub dims: Vec<usize>,
    /// Where the box starts in the piece's space.
    origin: Vec<i64>,
    /// The views of the inputs, moved to the box's origin; `None` where the input is filled.
    pub inputs: Vec<Option<View>>,
    /// The views of the outputs.
    pub outputs: Vec<View>,
}

/// The boxes of a piece, none of them empty, in normal form.
pub(super) fn split(piece: &Piece) -> Vec<Space> {
    let whole = Space {
        dims: piece.dims.clone(),
        origin: vec![0; piece.dims.len()],
        inputs: piece.inputs.iter().map(|s| Some(s.view.clone())).collect(),
        outputs: piece.outputs.clone(),
    };
    let mut boxes = vec![whole];
    for (at, source) in piece.inputs.iter().enumerate() {
        for axis in 0..source.valid.len() {
            let (lo, hi) = source.valid[axis];
            boxes = boxes.into_iter().flat_map(|s| cut(s, at, axis, lo, hi)).collect();
        }
    }
    boxes.retain(|s| !s.dims.contains(&0));
    boxes.iter_mut().for_each(Space::normalise);
    boxes
}

/// Cuts a box along an axis: outside `lo..hi` the input is filled. Where it is filled already nothing changes, so that
/// a pad of several dimensions makes slabs and not a grid.
fn cut(s: Space, input: usize, axis: usize, lo: i64, hi: i64) -> Vec<Space> {
    if s.inputs[input].is_none() {
        return vec![s];
    }
    let start = s.origin[axis];
    let extent = s.dims[axis] as i64;
    let (lo, hi) = ((lo - start).clamp(0, extent), (hi - start).clamp(0, extent));
    let mut out = Vec::new();
    if lo >= hi {
        let mut all = s;
        all.inputs[input] = None;
        return vec![all];
    }
    for (from, to, filled) in [(0, lo, true), (lo, hi, false), (hi, extent, true)] {
        if from < to {
            let mut part = s.part(axis, from, to);
            if filled {
                part.inputs[input] = None;
            }
            out.push(part);
        }
    }
    out
}

impl Space {
    /// The part `from..to` along an axis.
    fn part(&self, axis: usize, from: i64, to: i64) -> Self {
        let mut part = self.clone();
        part.dims[axis] = (to - from) as usize;
        part.origin[axis] += from;
        for v in part.inputs.iter_mut().flatten().chain(&mut part.outputs) {
            v.offset += from * v.strides[axis];
        }
        part
    }

    /// Moves a dimension to another place.
    pub fn move_axis(&mut self, from: usize, to: usize) {
        let d = self.dims.remove(from);
        self.dims.insert(to, d);
        for v in self.inputs.iter_mut().flatten().chain(&mut self.outputs) {
            let s = v.strides.remove(from);
            v.strides.insert(to, s);
        }
    }

    fn views(&self) -> impl Iterator<Item = &View> {
        self.outputs.iter().chain(self.inputs.iter().flatten())
    }

    /// Orders dimensions by the strides of the outputs, drops those of one element and joins neighbours.
    fn normalise(&mut self) {
        let mut order: Vec<usize> = (0..self.dims.len()).filter(|i| self.dims[*i] != 1).collect();
        // Stable, so that equal strides keep the order they were given in.
        order.sort_by_key(|i| std::cmp::Reverse(self.views().map(|v| v.strides[*i].unsigned_abs()).next()));
        let mut groups: Vec<Vec<usize>> = Vec::new();
        for axis in order {
            let joins = groups.last().and_then(|g| g.last()).is_some_and(|last| {
                let d = self.dims[axis] as i64;
                self.views().all(|v| v.strides[*last] == v.strides[axis] * d)
            });
            match groups.last_mut() {
                Some(g) if joins => g.push(axis),
                _ => groups.push(vec![axis]),
            }
        }
        let dims: Vec<usize> = groups.iter().map(|g| g.iter().map(|a| self.dims[*a]).product()).collect();
        let innermost = |v: &mut View| {
            v.strides = groups.iter().filter_map(|g| g.last().map(|a| v.strides[*a])).collect();
        };
        self.inputs.iter_mut().flatten().chain(&mut self.outputs).for_each(innermost);
        self.dims = dims;
        if self.dims.is_empty() {
            self.dims.push(1);
            self.inputs.iter_mut().flatten().chain(&mut self.outputs).for_each(|v| v.strides.push(1));
        }
    }
}
