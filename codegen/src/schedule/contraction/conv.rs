//! Convolutions of channels-last images.

use of_ir::DType;

use super::super::error::ScheduleError;
use super::super::view::View;
use super::normal::{Epilogue, EpilogueView, Normal, Right};
use super::pad::{Pad, Spatial};
use super::{Scheduled, emit};
use crate::cpu::Isa;
use crate::kernel::Param;

/// A convolution: input `[batch, spatial.., cin]`, output `[batch, spatial.., cout]`.
#[derive(Clone, PartialEq, Debug)]
pub struct Conv {
    /// Name of the kernel.
    pub name: String,
    /// Its parameters.
    pub params: Vec<Param>,
    /// Images.
    pub batch: usize,
    /// Groups of channels that do not see each other; divides `cin` and `cout`.
    pub groups: usize,
    /// Channels of the input.
    pub cin: usize,
    /// Channels of the output.
    pub cout: usize,
    /// One to three spatial dimensions.
    pub spatial: Vec<Spatial>,
    /// The input: strides over batch, spatial dimensions and channels, the last of which is 1.
    pub x: View,
    /// The parameter with the weights, packed as the schedule says: one matrix a group, k running over the taps and
    /// the group's input channels.
    pub w: usize,
    /// Type of the sums.
    pub acc: DType,
    /// Applied to the sums; views over batch, output dimensions and output channels.
    pub epilogue: Epilogue,
}

/// Depth, height and width of one to three dimensions: a single one is the height, whose rows are copied block by
/// block.
pub(in crate::schedule) fn lift<T: Copy>(dims: &[T], one: T) -> Option<[T; 3]> {
    match dims {
        [h] => Some([one, *h, one]),
        [h, w] => Some([one, *h, *w]),
        [d, h, w] => Some([*d, *h, *w]),
        _ => None,
    }
}

impl Spatial {
    /// Checks that sizes are positive and small enough to compute with.
    ///
    /// # Errors
    /// If one is not.
    pub(in crate::schedule) fn check(&self) -> Result<(), ScheduleError> {
        let all = [self.input, self.output, self.kernel, self.stride, self.dilation, self.zeros];
        if all.iter().any(|x| *x == 0 || *x > 1 << 30) || self.pad > 1 << 30 {
            return Err(ScheduleError::spec("a window has a size of zero or one that is too large"));
        }
        let span = self.output as u128 * self.stride as u128 + self.kernel as u128 * self.dilation as u128;
        if span > 1 << 31 {
            return Err(ScheduleError::TooLarge);
        }
        Ok(())
    }
}

/// The kernel of a convolution.
///
/// # Errors
/// For views that do not fit, types that kernels do not have, and empty dimensions.
pub fn conv(spec: &Conv, isa: Isa) -> Result<Scheduled, ScheduleError> {
    let ns = spec.spatial.len();
    let lifted = lift(&spec.spatial, Spatial::ONE);
    let Some([depth, height, width]) = lifted else {
        return Err(ScheduleError::spec(format!("a convolution over {ns} dimensions")));
    };
    spec.spatial.iter().try_for_each(Spatial::check)?;
    if spec.groups == 0 || !spec.cin.is_multiple_of(spec.groups) || !spec.cout.is_multiple_of(spec.groups) {
        return Err(ScheduleError::spec("the groups of a convolution do not divide its channels"));
    }
    let (cg, ng) = (spec.cin / spec.groups, spec.cout / spec.groups);
    spec.x.check(&spec.params, ns + 2, false)?;
    let mut in_dims = vec![spec.batch];
    in_dims.extend(spec.spatial.iter().map(|s| s.input));
    in_dims.push(spec.cin);
    spec.x.check_extent(&spec.params, &in_dims)?;
    if spec.x.strides[ns + 1] != 1 {
        return Err(ScheduleError::spec("the channels of a convolution's input are not contiguous"));
    }
    let b_elem = spec.params.get(spec.w).map(|p| p.elem).ok_or_else(|| ScheduleError::spec("the weights are no parameter"))?;
    let mut out_dims = vec![spec.batch];
    out_dims.extend(spec.spatial.iter().map(|s| s.output));
    out_dims.push(spec.cout);
    let view = |v: &View, writes: bool| -> Result<EpilogueView, ScheduleError> {
        v.check(&spec.params, ns + 2, writes)?;
        v.check_extent(&spec.params, &out_dims)?;
        let [d, h, w] = lift(&v.strides[1..=ns], 0).unwrap_or_default();
        let c = v.strides[ns + 1];
        Ok(EpilogueView { param: v.param, offset: v.offset, batch: vec![v.strides[0], c * ng as i64, d], row: h, col: w, n: c })
    };
    let inputs = spec.epilogue.inputs.iter().map(|v| view(v, false)).collect::<Result<Vec<_>, _>>()?;
    let outputs = spec.epilogue.outputs.iter().map(|v| view(v, true)).collect::<Result<Vec<_>, _>>()?;

    let strides = lift(&spec.x.strides[1..=ns], 0).unwrap_or_default();
    let padded = spec.spatial.iter().any(Spatial::is_padded);
    let pad = padded.then_some(Pad { depth, height, width, channels: cg, strides, depth_batch: 2 });
    let (dh, dw) = (height.dilation as i64, width.dilation as i64);
    let (sh, sw) = (height.stride as i64, width.stride as i64);
    let (a_batch, a_row, a_col, a_k) = match &pad {
        // Strides of the copy.
        Some(pad) => {
            let (row, c) = (pad.row() as i64, cg as i64);
            // The copy starts with the output plane's own taps.
            (vec![spec.x.strides[0], c, 0], row * sh, c * sw, vec![pad.plane_stride() as i64, row * dh, c * dw, 1])
        }
        None => (
            vec![spec.x.strides[0], cg as i64, strides[0] * depth.stride as i64],
            strides[1] * sh,
            strides[2] * sw,
            vec![strides[0] * depth.dilation as i64, strides[1] * dh, strides[2] * dw, 1],
        ),
    };
    let taps: usize = spec.spatial.iter().map(|s| s.kernel).product();
    let outs: u64 = out_dims.iter().map(|d| *d as u64).product();
    let elements = |dims: &[usize]| dims.iter().map(|d| *d as u64).product::<u64>();
    let bytes = 4 * (elements(&in_dims) + outs + (taps * cg * spec.cout) as u64);
    let normal = Normal {
        name: spec.name.clone(),
        params: spec.params.clone(),
        batch: vec![spec.batch, spec.groups, depth.output],
        rows: height.output,
        cols: width.output,
        n: ng,
        k: vec![depth.kernel, height.kernel, width.kernel, cg],
        a_param: spec.x.param,
        a_offset: spec.x.offset,
        a_batch,
        a_row,
        a_col,
        a_k,
        right: Right::Packed { param: spec.w, group: Some(1) },
        b_elem,
        acc: spec.acc,
        pad,
        prologue: None,
        dag: spec.epilogue.dag.clone(),
        inputs,
        outputs,
        flops: outs.saturating_mul(2 * (taps * cg) as u64 + spec.epilogue.dag.flops()),
        bytes,
    };
    let mut scheduled = emit::emit(normal, isa)?;
    // The caller's weights have all dimensions of k, those that loops have joined as well.
    if let Some(packed) = &mut scheduled.packed {
        packed.groups = spec.groups;
        packed.k = spec.spatial.iter().map(|s| s.kernel).chain([cg]).collect();
    }
    Ok(scheduled)
}
