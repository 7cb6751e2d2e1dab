//! Elementwise kernels: fused scalar functions over views, which also covers copies, transposes, slices, broadcasts,
//! pads and concatenations.

mod emit;
mod space;

use super::dag::Dag;
use super::error::ScheduleError;
use super::view::{View, declare};
use crate::cpu::Isa;
use crate::kernel::{Affine, Builder, Compare, Kernel, Lit, Param};

/// An input of a piece.
#[derive(Clone, PartialEq, Debug)]
pub struct Source {
    /// Where it lies.
    pub view: View,
    /// For each dimension of the space the indices `lo..hi` at which it is read; empty for everywhere.
    pub valid: Vec<(i64, i64)>,
    /// Its value where it is not read.
    pub fill: Lit,
}

impl From<View> for Source {
    fn from(view: View) -> Self {
        Self { view, valid: Vec::new(), fill: Lit::I(0) }
    }
}

/// A function over one iteration space. Input `i` of the graph is `inputs[i]`, its outputs go to `outputs`.
#[derive(Clone, PartialEq, Debug)]
pub struct Piece {
    /// The iteration space.
    pub dims: Vec<usize>,
    /// What is read.
    pub inputs: Vec<Source>,
    /// The function.
    pub dag: Dag,
    /// What is written; no element twice.
    pub outputs: Vec<View>,
}

/// An elementwise kernel: pieces that do not depend on each other.
#[derive(Clone, PartialEq, Debug)]
pub struct Elementwise {
    /// Name of the kernel.
    pub name: String,
    /// Its parameters.
    pub params: Vec<Param>,
    /// Its pieces.
    pub pieces: Vec<Piece>,
}

/// The kernel of an elementwise computation. An output may be the same memory as an input if every element is written
/// where it was read.
///
/// # Errors
/// For views that do not fit and types that kernels do not have.
pub fn elementwise(spec: &Elementwise, isa: Isa) -> Result<Kernel, ScheduleError> {
    let mut parts = Vec::new();
    let (mut flops, mut bytes) = (0u64, 0u64);
    for piece in &spec.pieces {
        check(spec, piece)?;
        let n = super::view::volume(&piece.dims)? as u64;
        flops += n.saturating_mul(piece.dag.flops());
        for param in piece.inputs.iter().map(|s| s.view.param).chain(piece.outputs.iter().map(|v| v.param)) {
            bytes += n.saturating_mul(spec.params[param].elem.bits().unwrap_or(32) as u64 / 8);
        }
        for part in space::split(piece) {
            parts.push(emit::Part::new(part, piece, &spec.params, isa)?);
        }
    }
    let mut b = Builder::new(spec.name.clone());
    declare(&mut b, &spec.params);
    let total: usize = parts.iter().map(|p| p.iterations).sum();
    let outer = b.outer();
    dispatch(&mut b, &parts, outer.into());
    Ok(b.finish(total, 1, flops, bytes))
}

/// Runs the part that the iteration at `at`, counted from the first of `parts`, belongs to.
fn dispatch(b: &mut Builder, parts: &[emit::Part<'_>], at: Affine) {
    match parts {
        [] => {}
        [only] => only.emit(b, at),
        _ => {
            let (left, right) = parts.split_at(parts.len() / 2);
            let count: usize = left.iter().map(|p| p.iterations).sum();
            let rest = at.clone() - count;
            b.if_(at.clone(), Compare::Lt, count, |b| dispatch(b, left, at), |b| dispatch(b, right, rest));
        }
    }
}

fn check(spec: &Elementwise, piece: &Piece) -> Result<(), ScheduleError> {
    let rank = piece.dims.len();
    let mut types = Vec::new();
    for s in &piece.inputs {
        types.push(s.view.check(&spec.params, rank, false)?);
        if !s.valid.is_empty() && s.valid.len() != rank {
            return Err(ScheduleError::spec("the bounds of an input have another rank than the space"));
        }
        // Of a bounded input only the part inside its bounds is read.
        let mut view = s.view.clone();
        let mut dims = piece.dims.clone();
        for (i, (lo, hi)) in s.valid.iter().enumerate() {
            let (lo, hi) = ((*lo).max(0), (*hi).min(dims[i] as i64));
            view.offset += lo * view.strides[i];
            dims[i] = (hi - lo).max(0) as usize;
        }
        view.check_extent(&spec.params, &dims)?;
    }
    piece.dag.check(&types)?;
    let outputs = piece.dag.output_types()?;
    if outputs.len() != piece.outputs.len() {
        return Err(ScheduleError::spec(format!("a piece has {} results and {} outputs", outputs.len(), piece.outputs.len())));
    }
    for (o, v) in outputs.iter().zip(&piece.outputs) {
        let elem = v.check(&spec.params, rank, true)?;
        v.check_extent(&spec.params, &piece.dims)?;
        if elem != *o {
            return Err(ScheduleError::spec(format!("an output of type {o} is stored as {elem}")));
        }
    }
    Ok(())
}
