//! Fourier transforms and mel bands.

use of_ir::{DType, OpError, OpId};
use of_ops::nn::MelWeightMatrix;
use of_ops::signal::Dft;
use of_ops::{Inputs, Op, Value, shape};

use super::build::array;
use super::{Emitter, Table, Typed, Val};

/// Ops of this file.
pub const TABLE: Table = &[("of.dft", dft), ("of.mel_weight_matrix", mel_weight_matrix)];

/// In f64, as the op is defined. The signals are along the last axis, with real and imaginary parts in separate tensors.
fn dft(e: &mut Emitter<'_>, op: OpId) -> Result<Vec<Val>, String> {
    let Dft { inverse, onesided } = e.attrs(op)?;
    let (x, (dtype, dims)) = (e.operand(op, 0)?, e.result(op, 0)?);
    if dims.contains(&0) {
        return Ok(vec![e.splat(dtype, &dims, 0.0)]);
    }
    let one = |list: Option<Vec<i64>>| list.and_then(|l| l.first().copied());
    let last = x.rank() - 1;
    let axis = shape::axis(one(e.ints(op, 2)?).unwrap_or(-2), x.rank()).map_err(|e| e.message)?;
    let n = match one(e.ints(op, 1)?) {
        Some(n) => usize::try_from(n).map_err(|_| "its length is negative")?,
        None if inverse && onesided => (2 * x.dims[axis]).saturating_sub(2),
        None => x.dims[axis],
    };
    let wide = e.convert(&x, DType::F64);
    let mut perm: Vec<usize> = (0..last).filter(|a| *a != axis).collect();
    perm.push(axis);
    let part = |e: &mut Emitter<'_>, i: usize, len: usize| {
        let own = e.slice_in_dim(&wide, last, i, 1);
        let own = e.reshape(&own, &x.dims[..last]);
        let own = e.transpose(&own, &perm);
        let mut pads = vec![(0, 0); last];
        pads[last - 1].1 = len as i64 - x.dims[axis] as i64;
        let zero = e.splat(own.dtype, &[], 0.0);
        e.pad(&own, &zero, &pads)
    };
    let real = part(e, 0, if inverse && onesided { n / 2 + 1 } else { n });
    let parts = if onesided && !inverse {
        e.transform("RFFT", n, (&real, None), n / 2 + 1)
    } else {
        let imaginary = if x.dims[last] == 2 { part(e, 1, real.dims[last - 1]) } else { e.full_like(&real, 0.0) };
        let kind = match (inverse, onesided) {
            (true, true) => "IRFFT",
            (true, false) => "IFFT",
            _ => "FFT",
        };
        e.transform(kind, n, (&real, Some(&imaginary)), n)
    };
    let mut back: Vec<usize> = (0..last).map(|a| if a < axis { a } else { a.saturating_sub(1) }).collect();
    back[axis] = last - 1;
    let parts: Vec<Val> = parts
        .iter()
        .map(|p| {
            let p = e.transpose(p, &back);
            let p = e.convert(&p, dtype);
            e.reshape(&p, &[&p.dims[..], &[1]].concat())
        })
        .collect();
    Ok(vec![e.concat(&parts.iter().collect::<Vec<_>>(), last)])
}

/// A constant tensor.
fn mel_weight_matrix(e: &mut Emitter<'_>, op: OpId) -> Result<Vec<Val>, String> {
    let matrix = e.attrs::<MelWeightMatrix>(op)?;
    let unknown = |i: usize| format!("operand {i} is not known before the run");
    let operands = e.g.op(op).operands.iter().enumerate();
    let values = operands.map(|(i, v)| e.g.constant(*v).map(Value::Tensor).ok_or_else(|| unknown(i)));
    let values = values.collect::<Result<Vec<_>, _>>()?;
    let mut none = |_: usize, _: &[Value]| Err(OpError::eval("it has no region"));
    let mut inputs = Inputs { values: &values, types: &[], region: &mut none };
    match matrix.eval(&mut inputs).map_err(|e| e.message)?.first() {
        Some(Value::Tensor(t)) => Ok(vec![e.constant(t)?]),
        _ => Err("it has no result".into()),
    }
}

impl Emitter<'_> {
    /// A transform of length `n` along the last axis, which then has `len` elements. `x` has real and imaginary part, or
    /// only the one that is not zero.
    fn transform(&mut self, kind: &str, n: usize, (real, imaginary): (&Val, Option<&Val>), len: usize) -> Vec<Val> {
        // Complex numbers have no element type outside of this function.
        let complex = |v: &Val| {
            let ty = v.ty();
            let element = v.dtype.mlir_name();
            format!("{}complex<{element}>>", ty.trim_end_matches('>').trim_end_matches(element))
        };
        let mut result = real.clone();
        if let Some(last) = result.dims.last_mut() {
            *last = len;
        }
        let input = match imaginary {
            None => (real.name.clone(), real.ty()),
            Some(i) => {
                let name = self.fresh();
                let text = format!(
                    "{name} = \"stablehlo.complex\"({}, {}) : ({}, {}) -> {}",
                    real.name,
                    i.name,
                    real.ty(),
                    i.ty(),
                    complex(real)
                );
                self.line(&text);
                (name, complex(real))
            }
        };
        let to_real = kind == "IRFFT";
        result.name = self.fresh();
        let ty = if to_real { result.ty() } else { complex(&result) };
        let text = format!(
            "{} = \"stablehlo.fft\"({}) {{fft_type = #stablehlo<fft_type {kind}>, fft_length = {}}} : ({}) -> {ty}",
            result.name,
            input.0,
            array(&[n]),
            input.1
        );
        self.line(&text);
        if to_real {
            return vec![result];
        }
        let of = |e: &mut Self, part: &str| {
            let name = e.fresh();
            e.line(&format!("{name} = \"stablehlo.{part}\"({}) : ({ty}) -> {}", result.name, result.ty()));
            Val { name, ..result.clone() }
        };
        vec![of(self, "real"), of(self, "imag")]
    }
}
