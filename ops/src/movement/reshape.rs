//! `of.reshape`.

use of_diag::Diagnostic;
use of_ir::{Dim, DimFn, OpError, OpView, SbpSignature, Shape, Tensor, TensorType, Type, ValueId};

use super::{MAX_AXES, first_only, partials, split, to_shape};
use crate::sample::Rng;
use crate::structural::ShapeOf;
use crate::{Evaluated, GradCx, Inferred, Inputs, Op, op, op_basics, shape};

op! {
    /// The same elements in row-major order under other dimensions.
    ///
    /// In `shape`, one -1 stands for what the element count leaves over, and 0 for the operand's dimension at the same
    /// place unless `allowzero` is set. The dimensions are global: who shards the op gives it local ones.
    pub struct Reshape = "of.reshape" [Primitive, onnx: "Reshape"] {
        operands: (x, shape),
        results: (y),
        attrs: { allowzero: bool },
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let rank = r.int(1, 4) as usize;
        let dims = r.dims(rank, 1, 5);
        let at = r.int(0, rank as i64 - 1) as usize;
        // Two neighbours merge, or one axis is split off.
        let mut to: Vec<i64> = dims.iter().map(|d| *d as i64).collect();
        if at + 1 < rank && r.int(0, 1) == 0 {
            to.remove(at + 1);
            to[at] = -1;
        } else {
            to.insert(at, if at == 0 { 1 } else { -1 });
        }
        Some((vec![r.f32s(&dims), Tensor::from_i64s(&to).into()], Reshape { allowzero: r.int(0, 1) == 0 }))
    };
}

fn product<'a>(dims: impl IntoIterator<Item = &'a Dim>) -> Dim {
    dims.into_iter().fold(Dim::from(1i64), |n, d| &n * d)
}

impl Reshape {
    /// The dimensions that `spec` requests, given those of the operand as far as they are known.
    ///
    /// # Errors
    /// When no tensor of the operand's shape can have them.
    pub fn resolve(&self, x: Option<&Shape>, spec: &[Dim]) -> Result<Shape, OpError> {
        let mut out = Vec::with_capacity(spec.len());
        let mut open = None;
        // Axes that keep the operand's dimension leave both sides of the equation, so that a -1 can be solved next to
        // an axis of length 0.
        let mut kept = vec![false; spec.len()];
        for (i, d) in spec.iter().enumerate() {
            out.push(match d.as_const() {
                Some(-1) if open.is_some() => return Err(OpError::shape("only one dimension can be -1")),
                Some(-1) => {
                    open = Some(i);
                    Dim::from(1i64)
                }
                Some(0) if !self.allowzero => match x.map(|s| s.get(i)) {
                    None => Dim::unknown(),
                    Some(None) => {
                        return Err(OpError::shape(format!(
                            "dimension {i} is 0, the operand has no axis {i} to take it from"
                        )));
                    }
                    Some(Some(d)) => {
                        kept[i] = true;
                        d.clone()
                    }
                },
                Some(n) if n < 0 => return Err(OpError::shape(format!("dimension {i} is {n}"))),
                _ => d.clone(),
            });
        }
        let Some(x) = x else {
            if let Some(i) = open {
                out[i] = Dim::unknown();
            }
            return Ok(out);
        };
        let keeps = |i: &usize| kept.get(*i).copied().unwrap_or(false);
        let total = product((0..x.len()).filter(|i| !keeps(i)).map(|i| &x[i]));
        let rest = product((0..out.len()).filter(|i| !keeps(i)).map(|i| &out[i]));
        if let Some(i) = open {
            out[i] = if total.is_unknown() || rest.is_unknown() {
                Dim::unknown()
            } else if rest.as_const() == Some(0) {
                return Err(OpError::shape("-1 cannot be inferred when another dimension is 0"));
            } else if let Some(d) = total.exact_div(&rest) {
                d
            } else if total.as_const().is_some() && rest.as_const().is_some() {
                return Err(OpError::shape(format!(
                    "{} cannot be reshaped: {total} elements do not divide by {rest}",
                    shape::show(x)
                )));
            } else {
                Dim::call(DimFn::FloorDiv, &total, &rest)
            };
        } else if total.provably_ne(&rest) {
            let message =
                format!("{} cannot become {}: the number of elements differs", shape::show(x), shape::show(&out));
            return Err(OpError::shape(message));
        }
        Ok(out)
    }
}

impl Op for Reshape {
    op_basics!(Reshape);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        let (x, spec) = (cx.tensor(0)?, cx.tensor(1)?);
        if !spec.dtype.is_int() || spec.rank().is_some_and(|r| r != 1) {
            return Err(OpError::ty("the shape must be an integer tensor of rank 1"));
        }
        let shape = match cx.dims(1) {
            Some(dims) => Some(self.resolve(x.shape.as_ref(), &dims)?),
            None => match spec.shape.as_ref().and_then(|s| s.first()?.as_const()) {
                Some(n) if n > MAX_AXES as i64 => {
                    return Err(OpError::shape(format!("a tensor cannot have {n} axes")));
                }
                Some(n) => Some((0..n).map(|_| Dim::unknown()).collect()),
                None => None,
            },
        };
        Ok(vec![Type::Tensor(TensorType { dtype: x.dtype, shape, sbp: None })])
    }

    fn dims(&self, cx: &OpView<'_>) -> Option<Vec<Dim>> {
        if cx.dims(1)?.len() <= 1 { cx.dims(0) } else { None }
    }

    fn shape_operand(&self) -> Option<usize> {
        Some(1)
    }

    fn eval(&self, inputs: &mut Inputs<'_>) -> Evaluated {
        let (x, spec) = (inputs.tensor(0)?, inputs.ints(1)?);
        let spec: Vec<Dim> = spec.into_iter().map(Dim::from).collect();
        let out = self.resolve(Some(&to_shape(x.dims())), &spec)?;
        let dims = out.iter().map(|d| usize::try_from(d.as_const()?).ok()).collect::<Option<Vec<_>>>();
        let dims = dims.ok_or_else(|| OpError::eval("the shape is not known"))?;
        Ok(vec![x.reshaped(dims)?.into()])
    }

    fn sbp(&self, cx: &OpView<'_>) -> Vec<SbpSignature> {
        let mut out = partials(2);
        let (Ok(x), Some(spec)) = (cx.tensor(0), cx.dims(1)) else { return out };
        let Some(from) = &x.shape else { return out };
        let Ok(to) = self.resolve(Some(from), &spec) else { return out };
        for (a, b) in group_starts(from, &to) {
            let (Some(s), Some(t)) = (split(a), split(b)) else { continue };
            let signature = first_only(2, s, t);
            if from[a] == to[b] {
                out.push(signature);
                continue;
            }
            // Slices of the outer factor are slices of the product only where all are equally long.
            let common = gcd(from[a].content(), to[b].content());
            if common > 1
                && let Ok(common) = i64::try_from(common)
            {
                out.push(signature.for_divisors_of(common));
            }
        }
        out
    }

    fn gradient(&self, cx: &mut GradCx<'_, '_>) -> Option<Result<Vec<Option<ValueId>>, Diagnostic>> {
        let g = cx.grads[0]?;
        Some(like(cx, g, cx.operands[0]).map(|v| vec![Some(v), None]))
    }
}

/// `v` reshaped to the dimensions of `of`.
pub(super) fn like(cx: &mut GradCx<'_, '_>, v: ValueId, of: ValueId) -> Result<ValueId, Diagnostic> {
    let dims = cx.rw.create_one(ShapeOf { start: None, end: None }, &[of])?;
    cx.rw.create_one(Reshape { allowzero: true }, &[v, dims])
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// The pairs of axes at which groups of axes with equal products begin, axes of length 1 passed over.
fn group_starts(from: &Shape, to: &Shape) -> Vec<(usize, usize)> {
    let one = |d: &Dim| d.as_const() == Some(1);
    let (mut i, mut j, mut out) = (0, 0, Vec::new());
    loop {
        while i < from.len() && one(&from[i]) {
            i += 1;
        }
        while j < to.len() && one(&to[j]) {
            j += 1;
        }
        if i == from.len() || j == to.len() {
            return out;
        }
        out.push((i, j));
        // The group ends where the products are equal; common factors cancel.
        let (mut a, mut b) = (from[i].clone(), to[j].clone());
        (i, j) = (i + 1, j + 1);
        while a != b {
            let left = match (a.as_const(), b.as_const()) {
                (Some(x), Some(y)) => x < y,
                _ => a.exact_div(&b).is_none(),
            };
            let next = if left { from.get(i) } else { to.get(j) };
            let Some(d) = next else { return out };
            if left {
                a = &a * d;
                i += 1;
            } else {
                b = &b * d;
                j += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn s(text: &[&str]) -> Shape {
        text.iter().map(|t| t.parse::<i64>().map_or_else(|_| Dim::symbol(*t), Dim::from)).collect()
    }

    #[test]
    fn dimensions_resolve_symbolically() {
        let r = |x: &[&str], to: &[&str]| {
            Reshape { allowzero: false }.resolve(Some(&s(x)), &s(to)).map(|d| shape::show(&d))
        };
        assert_eq!(r(&["N", "12", "64"], &["0", "-1"]).unwrap(), "[N, 768]");
        assert_eq!(r(&["N", "M", "768"], &["N", "M", "12", "64"]).unwrap(), "[N, M, 12, 64]");
        assert_eq!(r(&["N", "M", "64"], &["-1", "64"]).unwrap(), "[M*N, 64]");
        assert_eq!(r(&["N", "6"], &["-1", "4"]).unwrap(), "[((N*6) floordiv 4), 4]");
        assert_eq!(r(&["0", "3"], &["0", "-1"]).unwrap(), "[0, 3]");
        assert!(r(&["2", "3"], &["-1", "4"]).unwrap_err().message.contains("do not divide"));
        assert!(r(&["2", "3"], &["7"]).unwrap_err().message.contains("differs"));
        assert!(r(&["2"], &["2", "0"]).is_err());
        assert!(r(&["2"], &["-1", "-1"]).is_err());
        assert!(r(&["2"], &["-2"]).is_err());
        let zero = Reshape { allowzero: true };
        assert!(zero.resolve(Some(&s(&["0", "3"])), &s(&["0", "-1"])).is_err());
        assert_eq!(zero.resolve(Some(&s(&["3", "0"])), &s(&["0", "7"])).unwrap(), s(&["0", "7"]));
    }

    #[test]
    fn reshape_groups_begin_at_equal_products() {
        let g = |a: &[&str], b: &[&str]| group_starts(&s(a), &s(b));
        assert_eq!(g(&["N", "12", "64"], &["N", "768"]), [(0, 0), (1, 1)]);
        assert_eq!(g(&["N", "768"], &["N", "1", "12", "64"]), [(0, 0), (1, 2)]);
        assert_eq!(g(&["6", "4"], &["4", "6"]), [(0, 0)]);
    }
}
