//! Matrix products as cuBLASLt calls with fused epilogues: which ones qualify, and how a plan encodes a call.
//!
//! A library call replaces a whole fused group or nothing. A matrix product qualifies if operands and result have one type (f32,
//! f16 or bf16), rows, columns and depth are at least [`MIN_EXTENT`], and all extents are numbers. Its epilogue must be
//! `activation(scale * left right + beta * residual + bias)`, with at most one tensor of the result's extents, one vector of its
//! columns, and a ReLU or the tanh GELU. 16-bit floats are rounded once, at the end.

use of_ir::DType;

use crate::isa::Isa;
use crate::kernel::body::Body;
use crate::kernel::contraction::{Contraction, Element, RhsLayout, RowAxes, k_extent};
use crate::kernel::extent::Extent;
use crate::kernel::space;
use crate::vendor_libraries::epilogue::{Activation, Epilogue};
use crate::vendor_libraries::words::{FloatPrecision, Words, kinds};

/// Minimum rows, columns and depth: a smaller call has too little work.
pub const MIN_EXTENT: usize = 16;

/// The layout of a matrix: lines of contiguous elements.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Matrix {
    /// Whether the lines are its columns; otherwise they are its rows.
    pub transposed: bool,
    /// Stride from line to line.
    pub line: u64,
    /// Stride from matrix to matrix of a batch; 0 where all share one.
    pub batch: u64,
}

/// A call: `activation(scale * left right + beta * residual + bias)` for each matrix of a batch. Its arguments are `left`, `right`,
/// `residual` and `bias` if present, and the result.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Product {
    /// Type of all elements.
    pub dtype: DType,
    /// How f32 is multiplied.
    pub precision: FloatPrecision,
    /// Rows of the left operand and of the result.
    pub rows: u64,
    /// Columns of the right operand and of the result.
    pub columns: u64,
    /// Terms of each sum.
    pub depth: u64,
    /// Matrices in a batch.
    pub batches: u64,
    /// The left operand, `rows` by `depth`.
    pub left: Matrix,
    /// The right operand, `depth` by `columns`.
    pub right: Matrix,
    /// The result, whose lines are its rows.
    pub result: Matrix,
    /// Factor of the product.
    pub scale: f32,
    /// Factor of the added tensor, which has the result's layout, if there is one.
    pub residual: Option<f32>,
    /// Whether a bias vector is added to each row.
    pub bias: bool,
    /// The activation at the end.
    pub activation: Activation,
}

/// A contraction with its epilogue as a call, and the loads of the body for the added tensor and the bias.
///
/// # Errors
/// The reason why it does not qualify, in one sentence.
pub fn product(
    spec: &Contraction,
    body: &Body,
    axes: &RowAxes,
    out: &[Extent],
    isa: &Isa,
) -> Result<(Product, Vec<usize>), String> {
    let dtype = match spec.element {
        Element::F32F32 => DType::F32,
        Element::F16Pair(dtype) => dtype,
        Element::U8S8 | Element::S8S8 => return Err("it multiplies bytes".into()),
    };
    let precision = FloatPrecision::of(isa, dtype)?;
    let number = |e: &Extent| e.number().map(|n| n as u64).ok_or("its extents are not known before the run");
    if spec.taps.iter().any(|(n, _)| *n != 1) || !spec.outer.0.is(1) {
        return Err("its rows have no constant stride: it is a convolution of several taps".into());
    }
    let (rows, columns, depth) = (number(&spec.inner.0)?, number(&spec.columns)?, number(&k_extent(spec))?);
    if [rows, columns, depth].into_iter().min() < Some(MIN_EXTENT as u64) {
        return Err(format!(
            "it has {rows} rows, {columns} columns and sums of {depth}: one is less than {MIN_EXTENT}"
        ));
    }
    let RhsLayout::RowMajor(right) = &spec.rhs else { return Err("its right operand is in panels".into()) };
    let to = axes.strides_of(out).filter(|w| w.column.is(1)).ok_or("its result has no rows")?;
    let of =
        |l: usize| axes.strides_of(&body.loads[l].strides).ok_or("an operand of its epilogue does not follow its rows");
    let is_line = |l: usize| {
        let w = of(l)?;
        Ok(w.column.is(1) && w.inner.is(0) && w.batch.iter().all(|s| s.is(0)))
    };
    let is_alike = |l: usize| {
        let w = of(l)?;
        Ok(w.column.is(1) && w.inner == to.inner && w.batch == to.batch)
    };
    let e = Epilogue::of(body, dtype, &is_line, &is_alike)?;
    has(e.activation)?;
    if e.number.is_some() {
        return Err("its epilogue adds a constant".into());
    }
    let space =
        space::collapse(&spec.batch, &[spec.a_batch_strides.clone(), spec.b_batch_strides.clone(), to.batch.clone()]);
    let [batches] = &space.dims[..] else { return Err("its batches have no constant stride".into()) };
    let matrix = |line: &Extent, at: usize| {
        Ok::<_, String>(Matrix { transposed: false, line: number(line)?, batch: number(&space.strides[at][0])? })
    };
    let product = Product {
        dtype,
        precision,
        rows,
        columns,
        depth,
        batches: number(batches)?,
        left: matrix(&spec.inner.1, 0)?,
        right: matrix(right, 1)?,
        result: matrix(&to.inner, 2)?,
        scale: e.scale as f32,
        residual: e.residual.map(|(_, factor)| factor as f32),
        bias: e.bias.is_some(),
        activation: e.activation,
    };
    product.spans().ok_or("its rows overlap")?;
    Ok((product, e.added_loads()))
}

/// Checks that the library has an activation.
fn has(activation: Activation) -> Result<(), String> {
    match activation {
        Activation::None | Activation::Relu | Activation::GeluByTanh => Ok(()),
        Activation::Gelu => Err("its GELU is exact, and the library computes the tanh approximation".into()),
        Activation::Silu => Err("the library cannot fuse SiLU as an epilogue".into()),
    }
}

impl Product {
    /// Number of elements that each argument spans; `None` where lines overlap or the numbers are too large.
    pub fn spans(&self) -> Option<Vec<u64>> {
        let span = |m: &Matrix, rows: u64, columns: u64| {
            let (lines, long) = if m.transposed { (columns, rows) } else { (rows, columns) };
            let all = m.batch.checked_mul(self.batches.checked_sub(1)?)?;
            let own = m.line.checked_mul(lines.checked_sub(1)?)?.checked_add(long)?;
            (m.line >= long && long > 0).then(|| all.checked_add(own))?
        };
        let result = span(&self.result, self.rows, self.columns)?;
        let mut out = vec![span(&self.left, self.rows, self.depth)?, span(&self.right, self.depth, self.columns)?];
        out.extend(self.residual.map(|_| result));
        out.extend(self.bias.then_some(self.columns));
        out.push(result);
        (!self.result.transposed).then_some(out)
    }

    /// The plan's encoding of the call.
    pub(super) fn words(&self) -> Vec<u64> {
        let mut words = kinds(self.dtype, self.precision, self.activation);
        words.extend([self.rows, self.columns, self.depth, self.batches]);
        for m in [self.left, self.right, self.result] {
            words.extend([u64::from(m.transposed), m.line, m.batch]);
        }
        let residual = self.residual.unwrap_or_default();
        words.extend([self.scale, residual].map(|x| u64::from(x.to_bits())));
        words.extend([self.residual.is_some(), self.bias].map(u64::from));
        words
    }

    /// The inverse of [`Product::words`].
    pub(super) fn of(words: &mut Words<'_>) -> Option<Product> {
        let (dtype, precision, activation) = words.kinds()?;
        has(activation).ok()?;
        let [rows, columns, depth, batches] = words.numbers()?;
        let mut matrix = || Some(Matrix { transposed: words.flag()?, line: words.number()?, batch: words.number()? });
        let (left, right, result) = (matrix()?, matrix()?, matrix()?);
        let (scale, residual) = (words.float()?, words.float()?);
        let residual = words.flag()?.then_some(residual);
        let bias = words.flag()?;
        Some(Product {
            dtype,
            precision,
            rows,
            columns,
            depth,
            batches,
            left,
            right,
            result,
            scale,
            residual,
            bias,
            activation,
        })
    }
}
