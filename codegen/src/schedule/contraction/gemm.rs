//! Matrix products.

use of_ir::DType;

use super::super::dag::Dag;
use super::super::error::ScheduleError;
use super::super::view::View;
use super::normal::{Epilogue, EpilogueView, Normal, NormalPrologue, Right};
use super::{Scheduled, emit};
use crate::cpu::Isa;
use crate::kernel::Param;

/// The right-hand matrix of a product.
#[derive(Clone, PartialEq, Debug)]
pub enum GemmRight {
    /// One constant matrix for all batches, packed as the schedule says, in this parameter of that element type.
    Packed(usize),
    /// A buffer: strides over batch, k and n.
    View(View),
}

/// A function of A's elements before they are multiplied. Input 0 of the graph is the element, input `i + 1` is
/// `inputs[i]`, viewed over batch, m and k.
#[derive(Clone, PartialEq, Debug)]
pub struct Prologue {
    /// Further operands.
    pub inputs: Vec<View>,
    /// The function.
    pub dag: Dag,
}

/// `C[batch, m, n] = epilogue(sum over k of prologue(A[batch, m, k]) * B[batch, k, n])`.
#[derive(Clone, PartialEq, Debug)]
pub struct Gemm {
    /// Name of the kernel.
    pub name: String,
    /// Its parameters.
    pub params: Vec<Param>,
    /// Batch dimensions, any number.
    pub batch: Vec<usize>,
    /// Rows of A.
    pub m: usize,
    /// Columns of B.
    pub n: usize,
    /// Columns of A.
    pub k: usize,
    /// A: strides over batch, m and k.
    pub a: View,
    /// B.
    pub b: GemmRight,
    /// Type of the sums.
    pub acc: DType,
    /// Applied to A.
    pub prologue: Option<Prologue>,
    /// Applied to the sums; views over batch, m and n.
    pub epilogue: Epilogue,
}

/// The kernel of a matrix product.
///
/// # Errors
/// For views that do not fit, types that kernels do not have, and empty dimensions.
pub fn gemm(spec: &Gemm, isa: Isa) -> Result<Scheduled, ScheduleError> {
    let nb = spec.batch.len();
    let dims = |last: [usize; 2]| {
        let mut d = spec.batch.clone();
        d.extend(last);
        d
    };
    spec.a.check(&spec.params, nb + 2, false)?;
    spec.a.check_extent(&spec.params, &dims([spec.m, spec.k]))?;
    let mut bytes = 0u64;
    let mut add = |p: usize, n: usize| bytes += spec.params.get(p).and_then(|p| p.elem.byte_len(n)).unwrap_or(0) as u64;
    let batch: usize = spec.batch.iter().product();
    add(spec.a.param, batch * spec.m * spec.k);
    let (right, b_elem) = match &spec.b {
        GemmRight::Packed(param) => {
            let elem = spec.params.get(*param).map(|p| p.elem).ok_or_else(|| ScheduleError::spec("B is no parameter"))?;
            add(*param, spec.k * spec.n);
            (Right::Packed { param: *param, group: None }, elem)
        }
        GemmRight::View(v) => {
            let elem = v.check(&spec.params, nb + 2, false)?;
            v.check_extent(&spec.params, &dims([spec.k, spec.n]))?;
            add(v.param, batch * spec.k * spec.n);
            let right = Right::View {
                param: v.param,
                offset: v.offset,
                batch: v.strides[..nb].to_vec(),
                k: v.strides[nb],
                n: v.strides[nb + 1],
            };
            (right, elem)
        }
    };
    let view = |v: &View, writes: bool, last: [usize; 2]| -> Result<EpilogueView, ScheduleError> {
        v.check(&spec.params, nb + 2, writes)?;
        v.check_extent(&spec.params, &dims(last))?;
        Ok(EpilogueView {
            param: v.param,
            offset: v.offset,
            batch: v.strides[..nb].to_vec(),
            row: 0,
            col: v.strides[nb],
            n: v.strides[nb + 1],
        })
    };
    let of_c = [spec.m, spec.n];
    let inputs = spec.epilogue.inputs.iter().map(|v| view(v, false, of_c)).collect::<Result<Vec<_>, _>>()?;
    let outputs = spec.epilogue.outputs.iter().map(|v| view(v, true, of_c)).collect::<Result<Vec<_>, _>>()?;
    for v in spec.epilogue.inputs.iter().chain(&spec.epilogue.outputs) {
        let used = dims(of_c).iter().zip(&v.strides).filter(|(_, s)| **s != 0).map(|(d, _)| *d).product();
        add(v.param, used);
    }
    let prologue = match &spec.prologue {
        None => None,
        Some(f) => {
            let of_a = [spec.m, spec.k];
            let inputs = f.inputs.iter().map(|v| view(v, false, of_a)).collect::<Result<Vec<_>, _>>()?;
            let mut types = vec![spec.params[spec.a.param].elem];
            types.extend(f.inputs.iter().map(|v| spec.params[v.param].elem));
            f.dag.check(&types)?;
            if f.dag.outputs().len() != 1 {
                return Err(ScheduleError::spec("a prologue has one output"));
            }
            Some(NormalPrologue { dag: f.dag.clone(), inputs })
        }
    };
    let macs = batch as u64 * spec.m as u64 * spec.n as u64;
    let normal = Normal {
        name: spec.name.clone(),
        params: spec.params.clone(),
        batch: spec.batch.clone(),
        rows: 1,
        cols: spec.m,
        n: spec.n,
        k: vec![spec.k],
        a_param: spec.a.param,
        a_offset: spec.a.offset,
        a_batch: spec.a.strides[..nb].to_vec(),
        a_row: 0,
        a_col: spec.a.strides[nb],
        a_k: vec![spec.a.strides[nb + 1]],
        right,
        b_elem,
        acc: spec.acc,
        pad: None,
        prologue,
        dag: spec.epilogue.dag.clone(),
        inputs,
        outputs,
        flops: macs.saturating_mul(2 * spec.k as u64 + spec.epilogue.dag.flops()),
        bytes,
    };
    emit::emit(normal, isa)
}
