//! What the pools share: attributes, geometry, inference, signatures, samples.

use of_ir::{Dim, OpError, OpView, PartialKind, Sbp, SbpSignature, Shape, Tensor, TensorType, Type};

use super::layout::{self, Activation};
use super::window::{self, WindowAttrs, Windows};
use crate::sample::Rng;
use crate::shape;

/// Everything that a lowering needs to know of a pool.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PoolGeometry<D> {
    /// Samples.
    pub n: D,
    /// Channels.
    pub c: D,
    /// Spatial axes.
    pub windows: Windows<D>,
}

impl PoolGeometry<Dim> {
    /// Sizes of everything, for an input of the given dimensions.
    ///
    /// # Errors
    /// When attributes do not fit.
    pub fn new(x: &[Dim], kernel: &[i64], attrs: WindowAttrs<'_>, channels_last: bool) -> Result<Self, OpError> {
        let a = Activation::of(&x.to_vec(), channels_last)?;
        Ok(PoolGeometry { n: a.n, c: a.c, windows: attrs.windows(&a.spatial, kernel)? })
    }

    /// The same with numbers.
    ///
    /// # Errors
    /// Where a symbol remains.
    pub fn fixed(&self) -> Result<PoolGeometry<usize>, OpError> {
        let error = || OpError::eval("the result has a negative size");
        let d = window::fixed(&[self.n.clone(), self.c.clone()]).ok_or_else(error)?;
        Ok(PoolGeometry { n: d[0], c: d[1], windows: self.windows.fixed().ok_or_else(error)? })
    }

    /// Dimensions of the result.
    pub fn result(&self, channels_last: bool) -> Shape {
        Activation::shape(&self.n, &self.c, &self.windows.output, channels_last)
    }
}

/// The result of a pool whose geometry is `geometry` of the input's shape.
pub(super) fn infer(
    cx: &OpView<'_>,
    channels_last: bool,
    geometry: impl FnOnce(&[Dim]) -> Result<PoolGeometry<Dim>, OpError>,
) -> Result<TensorType, OpError> {
    let x = cx.tensor(0)?;
    if !x.dtype.is_float() && !x.dtype.is_int() {
        return Err(OpError::ty(format!("the input must be numbers, it is {}", x.dtype)));
    }
    let shape = match &x.shape {
        Some(s) => Some(geometry(s)?.result(channels_last)),
        None => None,
    };
    Ok(TensorType { dtype: x.dtype, shape, sbp: None })
}

/// Splits of batch and channels, which windows never cross.
pub(super) fn splits(cx: &OpView<'_>, channels_last: bool) -> Vec<SbpSignature> {
    let Ok(Some(rank)) = cx.tensor(0).map(TensorType::rank) else {
        return Vec::new();
    };
    [0, layout::channel_axis(rank, channels_last)]
        .map(|axis| SbpSignature::new(&[Sbp::Split(axis as u8)], &[Sbp::Split(axis as u8)]))
        .to_vec()
}

/// Partial values that pass through.
pub(super) fn partial(kind: PartialKind) -> SbpSignature {
    SbpSignature::new(&[Sbp::Partial(kind)], &[Sbp::Partial(kind)])
}

/// `x` as `f64` in `[N, C, spatial…]`.
pub(super) fn planes(x: &Tensor, g: &PoolGeometry<usize>, channels_last: bool) -> Result<Vec<f64>, OpError> {
    shape::count(&[&[g.n, g.c], g.windows.output.as_slice()].concat())?;
    let v = x.to_f64s().ok_or_else(|| OpError::eval("the input must be numbers"))?;
    Ok(if channels_last { layout::transpose_samples(&v, g.n, g.windows.areas().0, g.c) } else { v })
}

/// The gradient `g` of a result of these windows as `f64` in `[N, C, spatial…]`.
pub(super) fn result_planes(g: &Tensor, of: &PoolGeometry<usize>, channels_last: bool) -> Result<Vec<f64>, OpError> {
    let dims = layout::dims(of.n, of.c, &of.windows.output, channels_last);
    if g.dims() != dims {
        return Err(OpError::eval(format!("the gradient is {:?}, the result {dims:?}", g.dims())));
    }
    let v = g.to_f64s().ok_or_else(|| OpError::eval("the gradient must be numbers"))?;
    Ok(if channels_last { layout::transpose_samples(&v, of.n, of.windows.areas().1, of.c) } else { v })
}

/// Attribute values and an input for the list-wide tests.
pub(super) struct PoolSample {
    pub dims: Vec<usize>,
    pub kernel: Vec<i64>,
    pub strides: Vec<i64>,
    pub pads: Vec<i64>,
    pub dilations: Vec<i64>,
    pub ceil_mode: bool,
    pub channels_last: bool,
    pub auto_pad: std::sync::Arc<str>,
}

impl PoolSample {
    pub fn new(r: &mut Rng) -> PoolSample {
        let rank = r.int(1, 3) as usize;
        let channels_last = r.int(0, 3) == 0;
        let (n, c, spatial) = (r.int(1, 3) as usize, r.int(1, 3) as usize, r.dims(rank, 4, 6));
        let dims = layout::dims(n, c, &spatial, channels_last);
        PoolSample {
            dims,
            kernel: (0..rank).map(|_| r.int(2, 3)).collect(),
            strides: (0..rank).map(|_| r.int(1, 2)).collect(),
            // At most windows wide on one sample of three, so that windows of padding alone occur.
            pads: {
                let widest = if r.int(0, 2) == 0 { 3 } else { 1 };
                (0..2 * rank).map(|_| r.int(0, widest)).collect()
            },
            dilations: vec![],
            ceil_mode: r.int(0, 2) == 0,
            channels_last,
            auto_pad: r.pick(&["NOTSET", "NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"]).into(),
        }
    }
}

/// The tensor type as an inferred type.
pub(super) fn ty(t: TensorType) -> Type {
    Type::Tensor(t)
}
