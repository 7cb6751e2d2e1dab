//! Index arithmetic that gathers and scatters share.

use of_ir::{Elements, OpError, Tensor, TensorType};

/// Element `index` of an axis of length `n`, from the end where negative.
pub(super) fn resolve(index: i64, n: usize) -> Result<usize, OpError> {
    let at = if index < 0 { i128::from(index) + n as i128 } else { i128::from(index) };
    match usize::try_from(at) {
        Ok(i) if i < n => Ok(i),
        _ => Err(OpError::eval(format!("index {index} is outside an axis of length {n}"))),
    }
}

/// Whether a tensor can hold indices.
pub(super) fn check(t: &TensorType) -> Result<(), OpError> {
    if t.dtype.is_int() { Ok(()) } else { Err(OpError::ty(format!("indices must be integers, they are {}", t.dtype))) }
}

/// How a scatter combines an element with what it writes there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Combine {
    None,
    Add,
    Mul,
    Max,
    Min,
}

impl Combine {
    /// The combination that an attribute names.
    pub(super) fn named(name: &str) -> Result<Combine, OpError> {
        Ok(match name {
            "none" => Combine::None,
            "add" => Combine::Add,
            "mul" => Combine::Mul,
            "max" => Combine::Max,
            "min" => Combine::Min,
            _ => return Err(OpError::attr(format!("reduction '{name}' is unknown")).hint("none, add, mul, max or min")),
        })
    }

    /// `x` after every write `(to, from)` of an element of `updates`.
    pub(super) fn scatter(self, x: &Tensor, updates: &Tensor, writes: &[(usize, usize)]) -> Result<Tensor, OpError> {
        if x.dtype() != updates.dtype() {
            return Err(OpError::eval(format!(
                "updates of type {} do not fit data of type {}",
                updates.dtype(),
                x.dtype()
            )));
        }
        if self == Combine::None {
            let source = super::cells::Cells::of(updates);
            let mut cells = super::cells::Cells::of(x).into_owned();
            writes.iter().for_each(|(to, from)| cells.set(*to, &source, *from));
            return cells.into_tensor(x.dtype(), x.dims().to_vec());
        }
        let elements = match (x.elements(), updates.elements()) {
            (Elements::Float(mut v), Elements::Float(u)) => {
                let nan = |a: f64, b: f64| a.is_nan() || b.is_nan();
                for (to, from) in writes {
                    let (a, b) = (v[*to], u[*from]);
                    v[*to] = match self {
                        Combine::Add => a + b,
                        Combine::Mul => a * b,
                        Combine::Max | Combine::Min if nan(a, b) => f64::NAN,
                        Combine::Max => a.max(b),
                        Combine::Min => a.min(b),
                        Combine::None => b,
                    };
                }
                Elements::Float(v)
            }
            (Elements::Int(mut v), Elements::Int(u)) => {
                // Results wrap at the width of the type; 64 bits hold that of every type.
                let wrap =
                    |n: i128| if x.dtype().is_signed_int() { i128::from(n as i64) } else { i128::from(n as u64) };
                for (to, from) in writes {
                    let (a, b) = (v[*to], u[*from]);
                    v[*to] = match self {
                        Combine::Add => wrap(a + b),
                        Combine::Mul => wrap(a.wrapping_mul(b)),
                        Combine::Max => a.max(b),
                        Combine::Min => a.min(b),
                        Combine::None => b,
                    };
                }
                Elements::Int(v)
            }
            _ => return Err(OpError::eval("strings cannot be combined")),
        };
        Ok(Tensor::from_elements(x.dtype(), x.dims().to_vec(), elements)?)
    }
}
