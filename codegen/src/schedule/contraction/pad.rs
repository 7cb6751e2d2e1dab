//! Input rows of a convolution, copied with the zeros around and between their elements.

use of_ir::DType;

use super::super::view::widen;
use crate::kernel::{Affine, Builder, Compare, Expr, Lit, Mem, Ty};

/// One spatial dimension of a convolution or pooling.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Spatial {
    /// Input elements.
    pub input: usize,
    /// Output elements.
    pub output: usize,
    /// Taps of the window.
    pub kernel: usize,
    /// Input elements from output to output.
    pub stride: usize,
    /// Input elements from tap to tap.
    pub dilation: usize,
    /// Elements before the first input element; those after the last follow from `output`.
    pub pad: usize,
    /// Distance of input elements in the padded input: 1, or the stride of a transposed convolution, which puts
    /// `zeros - 1` zeros between neighbours.
    pub zeros: usize,
}

impl Spatial {
    /// A dimension of one element and one tap.
    pub const ONE: Spatial = Spatial { input: 1, output: 1, kernel: 1, stride: 1, dilation: 1, pad: 0, zeros: 1 };

    /// Input elements, those around and between included, that `outputs` outputs see.
    pub const fn span(&self, outputs: usize) -> usize {
        (outputs.saturating_sub(1)) * self.stride + (self.kernel.saturating_sub(1)) * self.dilation + 1
    }

    /// Whether an output sees anything but input elements.
    pub const fn is_padded(&self) -> bool {
        self.pad > 0 || self.zeros > 1 || self.span(self.output) > self.input
    }
}

/// How the rows that a block of output rows needs are copied to scratch memory, as `[depth taps][rows][width][channels]`.
#[derive(Clone, Debug)]
pub(super) struct Pad {
    pub depth: Spatial,
    pub height: Spatial,
    pub width: Spatial,
    /// Channels, contiguous in the input.
    pub channels: usize,
    /// Strides of the input along depth, height and width.
    pub strides: [i64; 3],
    /// The batch dimension that counts output planes.
    pub depth_batch: usize,
}

impl Pad {
    /// Elements of a copied row.
    pub const fn row(&self) -> usize {
        self.width.span(self.width.output) * self.channels
    }

    /// Elements of a copied plane for blocks of `rows` output rows.
    pub const fn plane(&self, rows: usize) -> usize {
        self.height.span(rows) * self.row()
    }

    /// Elements from one depth tap to the next in the copy, where there are several.
    pub const fn plane_stride(&self) -> usize {
        self.plane(self.height.output)
    }

    /// Elements copied for that many input rows.
    pub const fn bytes_of_rows(&self, rows: usize) -> usize {
        self.depth.kernel * rows * self.row()
    }

    /// Input rows from output row to output row.
    pub const fn stride_rows(&self) -> usize {
        self.height.stride
    }

    /// Emits the copy for output rows from `row` on, `rows` of them at most. `base` is the input's origin at this
    /// batch index, without the depth; `depth` the output plane.
    #[allow(clippy::too_many_arguments)] // all are the coordinates of one copy
    pub fn emit(&self, b: &mut Builder, from: Mem, base: &Affine, depth: &Affine, row: &Affine, rows: usize, to: Mem, acc: DType, lanes: usize) {
        let (plane, len) = (self.plane_stride() as i64, self.row() as i64);
        let span = self.height.span(rows);
        // The last block may reach over the end even where the image is not padded.
        let ragged = !self.height.output.is_multiple_of(rows);
        b.for_(0i64, self.depth.kernel, 1, 1, |b, tap| {
            let d = depth.clone() * self.depth.stride as i64 + tap.clone() * self.depth.dilation as i64 - self.depth.pad;
            b.for_(0i64, span, 1, 1, |b, r| {
                let h = row.clone() * self.height.stride as i64 + r.clone() - self.height.pad;
                let target = tap.clone() * plane + r * len;
                let zero = |b: &mut Builder| clear(b, to, target.clone(), self.row(), acc, lanes);
                inside(b, &d, self.depth, false, &|b, d| {
                    inside(
                        b,
                        &h,
                        self.height,
                        ragged,
                        &|b, h| {
                            let source = base.clone() + d.clone() * self.strides[0] + h * self.strides[1];
                            self.copy_row(b, from, &source, to, &target, acc, lanes);
                        },
                        &zero,
                    );
                }, &zero);
            });
        });
    }

    #[allow(clippy::too_many_arguments)] // all are the coordinates of one copy
    fn copy_row(&self, b: &mut Builder, from: Mem, source: &Affine, to: Mem, target: &Affine, acc: DType, lanes: usize) {
        let (w, c) = (self.width, self.channels);
        let span = w.span(w.output);
        // Columns of the copy that hold input: `pad + i * zeros` for i below `held`.
        let held = if span > w.pad { (span - w.pad).div_ceil(w.zeros).min(w.input) } else { 0 };
        if w.zeros > 1 || held == 0 {
            clear(b, to, target.clone(), self.row(), acc, lanes);
        } else {
            clear(b, to, target.clone(), w.pad * c, acc, lanes);
            let end = w.pad + held;
            clear(b, to, target.clone() + end * c, (span - end) * c, acc, lanes);
        }
        let start = target.clone() + w.pad * c;
        if w.zeros == 1 && self.strides[2] == c as i64 {
            copy(b, from, source, to, &start, held * c, acc, lanes);
        } else {
            b.for_(0i64, held, 1, 1, |b, i| {
                let (s, t) = (source.clone() + i.clone() * self.strides[2], start.clone() + i * (w.zeros * c) as i64);
                copy(b, from, &s, to, &t, c, acc, lanes);
            });
        }
    }
}



/// Runs `then` with the input coordinate of `x` in the padded input, `otherwise` where there is none.
fn inside(b: &mut Builder, x: &Affine, dim: Spatial, ragged: bool, then: &dyn Fn(&mut Builder, Affine), otherwise: &dyn Fn(&mut Builder)) {
    if !dim.is_padded() && !ragged {
        return then(b, x.clone());
    }
    let z = dim.zeros as i64;
    let last = (dim.input.max(1) as i64 - 1) * z;
    b.if_(
        x.clone(),
        Compare::Lt,
        0i64,
        otherwise,
        |b| {
            b.if_(
                Affine::from(last),
                Compare::Lt,
                x.clone(),
                otherwise,
                |b| {
                    let rest = b.modulo(x.clone(), z);
                    b.if_(
                        rest,
                        Compare::Eq,
                        0i64,
                        |b| {
                            let at = b.div(x.clone(), z);
                            then(b, at);
                        },
                        otherwise,
                    );
                },
            );
        },
    );
}

/// Writes zeros.
fn clear(b: &mut Builder, to: Mem, at: Affine, n: usize, acc: DType, lanes: usize) {
    each(b, n, lanes, |b, i, lanes, active| {
        let zero = Expr::Const(Ty::new(acc, lanes), Lit::I(0));
        b.store(to, at.clone() + i, zero, active);
    });
}

/// Copies contiguous elements, converted to the accumulator's type.
#[allow(clippy::too_many_arguments)] // all are the coordinates of one copy
pub(super) fn copy(b: &mut Builder, from: Mem, source: &Affine, to: Mem, target: &Affine, n: usize, acc: DType, lanes: usize) {
    each(b, n, lanes, |b, i, lanes, active| {
        let value = b.load(from, source.clone() + i.clone(), lanes, active);
        let value = convert(b, value, acc);
        b.store(to, target.clone() + i, value, active);
    });
}

/// A value in another type.
pub(super) fn convert(b: &Builder, value: Expr, to: DType) -> Expr {
    let elem = b.type_of(&value).elem;
    let value = widen(value, elem);
    if b.type_of(&value).elem == to { value } else { Expr::op1(of_ops::scalar::ScalarOp::Cast(to), value) }
}

/// Runs `body(index, lanes, active)` over `n` elements, vector by vector, the last one partial.
pub(super) fn each(b: &mut Builder, n: usize, lanes: usize, mut body: impl FnMut(&mut Builder, Affine, usize, usize)) {
    let whole = n / lanes * lanes;
    b.for_(0i64, whole, lanes as i64, 2, |b, i| body(b, i, lanes, lanes));
    if n > whole {
        body(b, whole.into(), lanes, n - whole);
    }
}
