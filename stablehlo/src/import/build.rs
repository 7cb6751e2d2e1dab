//! Methods that create ops, for the importers.

use of_ir::{DType, NewOp, Tensor, TensorType, ValueId};
use of_ops::OpSpec;
use of_ops::elementwise::{Cast, Max, Min};
use of_ops::movement::{Expand, Reshape, Slice, Transpose};
use of_ops::structural::Constant;

use super::{ImportError, Importer};

/// A value that was created, or why not.
pub(crate) type Built = Result<ValueId, ImportError>;

impl Importer<'_, '_> {
    /// Any op of one result.
    pub fn one(&mut self, op: impl NewOp, operands: &[ValueId]) -> Built {
        Ok(self.rw.create_one(op, operands)?)
    }

    /// The type of a value, which is a tensor.
    pub fn ty(&self, v: ValueId) -> Result<&TensorType, ImportError> {
        let ty = self.rw.graph().ty(v);
        ty.as_tensor().ok_or_else(|| ImportError::invalid(format!("an operand is {ty}, not a tensor")))
    }

    /// The element type of a value.
    pub fn dtype(&self, v: ValueId) -> Result<DType, ImportError> {
        Ok(self.ty(v)?.dtype)
    }

    /// The extents of a value.
    pub fn dims(&self, v: ValueId) -> Result<Vec<i64>, ImportError> {
        dims(self.ty(v)?)
    }

    /// A constant.
    pub fn constant(&mut self, value: Tensor) -> Built {
        self.one(Constant { value }, &[])
    }

    /// A constant of rank 1.
    pub fn ints(&mut self, v: &[i64]) -> Built {
        self.constant(Tensor::from_i64s(v))
    }

    /// A constant of rank 0.
    pub fn number(&mut self, v: f64, dtype: DType) -> Built {
        Ok(Constant::number(&mut self.rw, v, dtype)?)
    }

    /// The same in another element type.
    pub fn cast(&mut self, x: ValueId, to: DType) -> Built {
        if self.dtype(x)? == to { Ok(x) } else { self.one(Cast::to(to), &[x]) }
    }

    /// Axis `i` of the result is axis `perm[i]` of `x`.
    pub fn transpose(&mut self, x: ValueId, perm: &[usize]) -> Built {
        if perm.iter().enumerate().all(|(i, p)| i == *p) {
            return Ok(x);
        }
        self.one(Transpose { perm: Some(perm.iter().map(|p| *p as i64).collect()) }, &[x])
    }

    /// `x` with other extents.
    pub fn reshape(&mut self, x: ValueId, dims: &[i64]) -> Built {
        // A reshape of a reshape is one.
        let x = self.reshaped_from(x).unwrap_or(x);
        if self.dims(x)? == dims {
            return Ok(x);
        }
        let dims = self.ints(dims)?;
        self.one(Reshape { allowzero: true }, &[x, dims])
    }

    /// What a reshape reads.
    fn reshaped_from(&self, x: ValueId) -> Option<ValueId> {
        let g = self.rw.graph();
        let op = g.op(g.def_op(x)?);
        (op.name() == Reshape::NAME).then(|| op.operands[0])
    }

    /// Operands of an elementwise op before axes of extent 1 were taken from all of them: a reduction keeps its axes, and
    /// the broadcast behind it needs them. `None` where they have no such axes in common.
    pub fn before_squeeze(&self, operands: &[ValueId]) -> Option<Vec<ValueId>> {
        let core = |dims: &[i64]| dims.iter().copied().filter(|d| *d != 1).collect::<Vec<_>>();
        let mut kept: Option<Vec<i64>> = None;
        let mut out = Vec::new();
        for v in operands {
            let dims = self.dims(*v).ok()?;
            if dims.is_empty() {
                out.push(*v);
                continue;
            }
            let wide = self.reshaped_from(*v)?;
            let from = self.dims(wide).ok()?;
            if from.len() <= dims.len() || core(&from) != core(&dims) || kept.as_ref().is_some_and(|k| *k != from) {
                return None;
            }
            kept = Some(from);
            out.push(wide);
        }
        kept.map(|_| out)
    }

    /// An elementwise op.
    pub fn elementwise(&mut self, op: impl NewOp, operands: &[ValueId]) -> Built {
        let loose = self.loose(operands);
        let Some(wide) = self.before_squeeze(&loose) else { return self.one(op, &loose) };
        let mut dims = Vec::new();
        for v in &loose {
            let own = self.dims(*v)?;
            dims = if own.len() > dims.len() { own } else { dims };
        }
        let y = self.one(op, &wide)?;
        self.reshape(y, &dims)
    }

    /// `x` broadcast to extents, its axes the last ones.
    pub fn expand(&mut self, x: ValueId, dims: &[i64]) -> Built {
        if self.dims(x)? == dims {
            return Ok(x);
        }
        let to = self.ints(dims)?;
        let y = self.one(Expand {}, &[x, to])?;
        let source = self.sources.get(&x).copied().unwrap_or(x);
        self.sources.insert(y, source);
        Ok(y)
    }

    /// Operands of an elementwise op, as what they are broadcast from: the op broadcasts by itself. One of them keeps the
    /// extents of the result.
    pub fn loose(&self, operands: &[ValueId]) -> Vec<ValueId> {
        let full = operands.iter().position(|v| !self.sources.contains_key(v)).unwrap_or(0);
        let shape = |v: ValueId| self.ty(v).ok().and_then(|t| t.shape.clone());
        let result = operands.iter().filter_map(|v| shape(*v)).max_by_key(Vec::len);
        // A scalar condition is no full operand.
        let full = if shape(operands[full]) == result { full } else { return operands.to_vec() };
        let source = |(i, v): (usize, &ValueId)| self.sources.get(v).copied().filter(|_| i != full).unwrap_or(*v);
        operands.iter().enumerate().map(source).collect()
    }

    /// `x` between `starts` and `ends`, one an axis.
    pub fn slice(&mut self, x: ValueId, starts: &[i64], ends: &[i64], steps: &[i64]) -> Built {
        let dims = self.dims(x)?;
        let axes: Vec<i64> = (0..dims.len() as i64)
            .filter(|a| {
                let i = *a as usize;
                (starts[i], ends[i], steps[i]) != (0, dims[i], 1)
            })
            .collect();
        if axes.is_empty() {
            return Ok(x);
        }
        let of = |list: &[i64]| axes.iter().map(|a| list[*a as usize]).collect::<Vec<_>>();
        let operands = [x, self.ints(&of(starts))?, self.ints(&of(ends))?, self.ints(&axes)?, self.ints(&of(steps))?];
        self.one(Slice {}, &operands)
    }

    /// `x` backwards along axes.
    pub fn reverse(&mut self, x: ValueId, axes: &[i64]) -> Built {
        if axes.is_empty() {
            return Ok(x);
        }
        let n = axes.len();
        let starts = self.ints(&vec![-1; n])?;
        let ends = self.ints(&vec![i64::MIN; n])?;
        let (steps, axes) = (self.ints(&vec![-1; n])?, self.ints(axes)?);
        self.one(Slice {}, &[x, starts, ends, axes, steps])
    }

    /// `x` within two numbers.
    pub fn clamp_to(&mut self, x: ValueId, low: i64, high: i64) -> Built {
        let dtype = self.dtype(x)?;
        let (low, high) = (self.number(low as f64, dtype)?, self.number(high as f64, dtype)?);
        let x = self.one(Max {}, &[x, low])?;
        self.one(Min {}, &[x, high])
    }

    /// `0, 1, …` along `axis` of a tensor of these extents, which are 1 elsewhere unless `full`.
    pub fn count_along(&mut self, dims: &[i64], axis: usize, dtype: DType, full: bool) -> Built {
        let n = dims[axis];
        let mut own = vec![1; dims.len()];
        own[axis] = n;
        let numbers = of_ir::Elements::Int((0..n.max(0)).map(i128::from).collect());
        let shape: Vec<usize> = own.iter().map(|d| *d as usize).collect();
        let value = Tensor::from_elements(dtype, shape, numbers).map_err(|e| ImportError::invalid(e.to_string()))?;
        let v = self.constant(value)?;
        if full { self.expand(v, dims) } else { Ok(v) }
    }
}

/// The extents of a type, all of which are numbers.
pub(crate) fn dims(ty: &TensorType) -> Result<Vec<i64>, ImportError> {
    let dims = ty.fixed_dims().ok_or_else(|| ImportError::unsupported("an operand has open extents"))?;
    Ok(dims.into_iter().map(|d| d as i64).collect())
}
