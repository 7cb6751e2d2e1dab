//! Programs on a mesh: each rank runs the template of all ranks that do the same, on its own part of every tensor.

use crate::ElementType;
use crate::layout::{AxisLayout, LayoutKind, OPEN, block, holds, slices};

/// An entry point that several ranks run together.
#[derive(Clone, PartialEq, prost::Message)]
pub struct MeshProgram {
    /// Name: `main`, or the shape variant it serves.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Ranks along each axis of the mesh; the last axis varies fastest.
    #[prost(uint32, repeated, tag = "2")]
    pub shape: Vec<u32>,
    /// Whole inputs, which the caller gives.
    #[prost(message, repeated, tag = "3")]
    pub inputs: Vec<MeshPort>,
    /// Whole outputs, which the caller gets.
    #[prost(message, repeated, tag = "4")]
    pub outputs: Vec<MeshPort>,
    /// What each rank runs.
    #[prost(message, repeated, tag = "5")]
    pub ranks: Vec<Rank>,
    /// Variables: whole values, of which each rank keeps its part between runs.
    #[prost(message, repeated, tag = "6")]
    pub variables: Vec<MeshPort>,
}

/// An input, output or variable of all ranks together.
#[derive(Clone, PartialEq, prost::Message)]
pub struct MeshPort {
    /// Name, as the model calls it.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Element type.
    #[prost(enumeration = "ElementType", tag = "2")]
    pub dtype: i32,
    /// Extents of the whole tensor; -1 where a run decides. Then all parts are equal.
    #[prost(int64, repeated, tag = "3")]
    pub dims: Vec<i64>,
    /// Its layout along each axis of the mesh.
    #[prost(message, repeated, tag = "4")]
    pub layout: Vec<AxisLayout>,
    /// The microbatches of a step. Each microbatch is a slice of the tensor with this layout. The ranks' input or output is their parts
    /// of all microbatches, one after another along a new first axis.
    #[prost(message, optional, tag = "5")]
    pub microbatches: Option<Microbatches>,
}

/// Microbatches: equal slices of a tensor along one axis.
#[derive(Clone, Copy, PartialEq, Eq, Hash, prost::Message)]
pub struct Microbatches {
    /// The tensor's axis.
    #[prost(uint32, tag = "1")]
    pub axis: u32,
    /// Number of microbatches.
    #[prost(uint32, tag = "2")]
    pub count: u32,
}

impl MeshPort {
    /// Whether a run decides some of its extents.
    pub fn is_open(&self) -> bool {
        self.dims.contains(&OPEN)
    }

    /// The same with the extents of a whole tensor of a run.
    pub fn of_whole(&self, dims: &[i64]) -> MeshPort {
        MeshPort { dims: dims.to_vec(), ..self.clone() }
    }

    /// The same with the extents that a rank's part of it has in a run.
    pub fn of_part(&self, mesh: &[usize], part: &[i64]) -> Option<MeshPort> {
        let extent = |(axis, (d, own)): (usize, (&i64, &i64))| match *d {
            OPEN => own.checked_mul(slices(&self.layout, mesh, axis) as i64),
            known => Some(known),
        };
        let dims = self.dims.iter().zip(part).enumerate().map(extent).collect::<Option<Vec<i64>>>()?;
        Some(self.of_whole(&dims))
    }

    /// Checks the extents of a whole tensor; the error says which does not fit.
    pub fn check(&self, mesh: &[usize], dims: &[i64]) -> Result<(), String> {
        if dims.len() != self.dims.len() {
            return Err(format!("has rank {} {dims:?} and must have rank {}", dims.len(), self.dims.len()));
        }
        for (axis, (want, got)) in self.dims.iter().zip(dims).enumerate() {
            let slices = slices(&self.layout, mesh, axis) as i64;
            let place = format!("has extent {got} at dimension {axis}, which must be");
            match *want {
                OPEN if got % slices != 0 => {
                    let split = format!("the mesh {mesh:?} splits it into {slices} equal parts");
                    return Err(format!("{place} a multiple of {slices}: {split}"));
                }
                OPEN => {}
                known if known != *got => return Err(format!("{place} {known}")),
                _ => {}
            }
        }
        Ok(())
    }

    /// The number of microbatches; 1 where there are none.
    pub fn count(&self) -> usize {
        self.microbatches.map_or(1, |t| t.count as usize)
    }

    /// Start and length along each axis of a microbatch; the whole tensor where there are no microbatches.
    pub fn slice(&self, microbatch: usize) -> Vec<(usize, usize)> {
        let mut all: Vec<(usize, usize)> = self.dims.iter().map(|d| (0, usize::try_from(*d).unwrap_or(0))).collect();
        if let Some(t) = self.microbatches
            && let Some((start, len)) = all.get_mut(t.axis as usize)
        {
            *len /= (t.count as usize).max(1);
            *start = microbatch * *len;
        }
        all
    }

    /// Start and length along each axis of the part of a microbatch that the rank at `coords` has.
    pub fn block(&self, mesh: &[usize], coords: &[usize], microbatch: usize) -> Vec<(usize, usize)> {
        let slice = self.slice(microbatch);
        let dims: Vec<usize> = slice.iter().map(|(_, len)| *len).collect();
        let own = block(&self.layout, mesh, coords, &dims);
        own.into_iter().zip(slice).map(|((at, len), (start, _))| (start + at, len)).collect()
    }
}

/// For each input or output of the rank at `coords`: the index in `ports` that it is a part of.
pub fn parts(ports: &[MeshPort], coords: &[usize]) -> Vec<usize> {
    ports.iter().enumerate().filter(|(_, p)| holds(&p.layout, coords)).map(|(i, _)| i).collect()
}

/// What one rank runs.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Rank {
    /// Index in `Plan::programs` of its template, a program that equal ranks share.
    #[prost(uint32, tag = "1")]
    pub program: u32,
    /// Weights that replace the template's: the rank's own parts of them.
    #[prost(message, repeated, tag = "2")]
    pub weight_overrides: Vec<WeightOverride>,
}

/// A rank's weight that replaces one of its template.
#[derive(Clone, Copy, PartialEq, Eq, Hash, prost::Message)]
pub struct WeightOverride {
    /// Index of the template's weight.
    #[prost(uint32, tag = "1")]
    pub original: u32,
    /// Index of the rank's weight, of the same type.
    #[prost(uint32, tag = "2")]
    pub replacement: u32,
}

impl MeshProgram {
    /// The mesh axis of the pipeline stages, where there are stages.
    pub fn stages(&self) -> Option<usize> {
        let at = |p: &MeshPort| p.layout.iter().position(|l| l.kind() == LayoutKind::At);
        self.inputs.iter().chain(&self.outputs).find_map(at)
    }

    /// Number of ranks along each axis of the mesh.
    pub fn extents(&self) -> Vec<usize> {
        self.shape.iter().map(|n| *n as usize).collect()
    }
}
