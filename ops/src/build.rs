//! The builder of expansions and gradients: each method creates one op.
//!
//! Its methods for ops of movement and reduction are in the folders of these families (`build.rs` of each), so that a family
//! uses the builder without an import of the other families.

use of_diag::{Code, Diagnostic, Location};
use of_ir::{DType, NewOp, OpError, Rewriter, Shape, Tensor, ValueId};

use crate::Expanded;
use crate::elementwise::{Add, Cast, Div, Eq, Mul, Sub};
use crate::structural::{Constant, ShapeOf};

/// A value that was created, or why not.
pub(crate) type BuildResult = Result<ValueId, Diagnostic>;

/// A rewriter with short names.
pub(crate) struct Build<'r, 'g> {
    pub rw: &'r mut Rewriter<'g>,
}

/// What `f` makes of operands, in the type of the first: of floats of 16 bits and fewer in f32, so that the steps of an
/// expansion neither round each nor leave the range of small floats.
pub(crate) fn in_wide(
    rw: &mut Rewriter<'_>,
    operands: &[ValueId],
    f: impl FnOnce(&mut Rewriter<'_>, &[ValueId]) -> Expanded,
) -> Expanded {
    let b = &mut Build::new(rw);
    let own = b.dtype(operands[0]);
    let operands = operands.iter().map(|v| b.widened(*v)).collect::<Result<Vec<_>, _>>()?;
    let results = f(b.rw, &operands)?;
    let wide = b.dtype(operands[0]);
    results.into_iter().map(|v| if b.dtype(v) == wide { b.cast(v, own) } else { Ok(v) }).collect()
}

/// The error of an op as a diagnostic of the expansion.
pub(crate) fn diagnostic(e: OpError) -> Diagnostic {
    e.into()
}

impl<'r, 'g> Build<'r, 'g> {
    pub fn new(rw: &'r mut Rewriter<'g>) -> Self {
        Build { rw }
    }

    /// Any op of one result.
    pub fn op(&mut self, op: impl NewOp, operands: &[ValueId]) -> BuildResult {
        self.rw.create_one(op, operands)
    }

    pub fn dtype(&self, v: ValueId) -> DType {
        self.rw.graph().ty(v).as_tensor().map_or(DType::F32, |t| t.dtype)
    }

    /// The shape, where the rank is known.
    pub fn shape(&self, v: ValueId) -> Option<Shape> {
        self.rw.graph().ty(v).as_tensor().and_then(|t| t.shape.clone())
    }

    /// The rank, which an expansion must know.
    pub fn rank(&self, v: ValueId) -> Result<usize, Diagnostic> {
        let error = || {
            Diagnostic::error(Code::SHAPE, Location::Unknown, "the rank of an operand must be known to expand this op")
        };
        self.shape(v).map(|s| s.len()).ok_or_else(error)
    }

    /// Whether the operand is there.
    pub fn given(&self, operands: &[ValueId], i: usize) -> Option<ValueId> {
        operands.get(i).copied().filter(|v| *self.rw.graph().ty(*v) != of_ir::Type::None)
    }

    pub fn constant(&mut self, value: Tensor) -> BuildResult {
        self.op(Constant { value }, &[])
    }

    /// A rank-1 tensor of i64.
    pub fn ints(&mut self, v: &[i64]) -> BuildResult {
        self.constant(Tensor::from_i64s(v))
    }

    /// The number `v` in the element type of `like`.
    pub fn number(&mut self, v: f64, like: ValueId) -> BuildResult {
        let dtype = self.dtype(like);
        Constant::number(self.rw, v, dtype)
    }

    pub fn add(&mut self, a: ValueId, b: ValueId) -> BuildResult {
        self.op(Add {}, &[a, b])
    }

    pub fn sub(&mut self, a: ValueId, b: ValueId) -> BuildResult {
        self.op(Sub {}, &[a, b])
    }

    pub fn mul(&mut self, a: ValueId, b: ValueId) -> BuildResult {
        self.op(Mul {}, &[a, b])
    }

    pub fn div(&mut self, a: ValueId, b: ValueId) -> BuildResult {
        self.op(Div {}, &[a, b])
    }

    /// `x + v`.
    pub fn add_number(&mut self, x: ValueId, v: f64) -> BuildResult {
        let c = self.number(v, x)?;
        self.add(x, c)
    }

    /// `x * v`; `x` itself for 1.
    pub fn scale(&mut self, x: ValueId, v: f64) -> BuildResult {
        if v == 1.0 {
            return Ok(x);
        }
        let c = self.number(v, x)?;
        self.mul(x, c)
    }

    /// 1 where `x` is 0, `x` elsewhere: a divisor that is safe.
    pub fn nonzero(&mut self, x: ValueId) -> BuildResult {
        let zero = self.number(0.0, x)?;
        let is_zero = self.op(Eq {}, &[x, zero])?;
        let one = self.cast(is_zero, self.dtype(x))?;
        self.add(x, one)
    }

    /// The same in another element type; nothing where it has it already.
    pub fn cast(&mut self, x: ValueId, to: DType) -> BuildResult {
        if self.dtype(x) == to { Ok(x) } else { self.op(Cast::to(to), &[x]) }
    }

    /// `x` in floats that sums and squares of its elements do not leave: 16 bits and fewer as f32, others as they are.
    pub fn widened(&mut self, x: ValueId) -> BuildResult {
        let narrow = self.dtype(x).is_float() && !matches!(self.dtype(x), DType::F32 | DType::F64);
        if narrow { self.cast(x, DType::F32) } else { Ok(x) }
    }

    /// Axes or lengths as a constant operand.
    pub fn axes(&mut self, axes: &[usize]) -> BuildResult {
        self.ints(&axes.iter().map(|a| *a as i64).collect::<Vec<_>>())
    }

    /// The dimensions of `x`.
    pub fn shape_of(&mut self, x: ValueId) -> BuildResult {
        self.op(ShapeOf { start: None, end: None }, &[x])
    }

    /// The length of axis `axis` of `x`, `[1]`, a constant where it is known.
    pub fn extent(&mut self, x: ValueId, axis: usize) -> BuildResult {
        match self.shape(x).and_then(|s| s.get(axis)?.as_const()) {
            Some(n) => self.ints(&[n]),
            None => self.op(ShapeOf { start: Some(axis as i64), end: Some(axis as i64 + 1) }, &[x]),
        }
    }
}
