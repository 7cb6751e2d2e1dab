//! Convolutions, pools and resampling.

use of_emit::list;
use of_ir::{DType, Dim, OpId, Tensor, Type};
use of_ops::nn::{
    AffineGrid, AvgPool, Col2Im, Conv, ConvGeometry, ConvInteger, ConvTranspose, LpPool, MaxPool, MaxUnpool,
    PoolGeometry, Resize,
};
use of_ops::shape;

use super::build::{Window, array, padding};
use super::contraction::{PRECISE, minus_zero_point, product};
use super::{Emitter, Table, Val};

/// Ops of this file.
pub const TABLE: Table = &[
    ("of.affine_grid", affine_grid),
    ("of.avg_pool", avg_pool),
    ("of.col2im", col2im),
    ("of.conv", conv),
    ("of.conv_integer", conv_integer),
    ("of.conv_transpose", conv_transpose),
    ("of.lp_pool", lp_pool),
    ("of.max_pool", max_pool),
    ("of.max_unpool", max_unpool),
    ("of.resize", resize),
];

fn dims(v: &Val) -> Vec<Dim> {
    v.dims.iter().map(|d| Dim::from(*d)).collect()
}

fn conv(e: &mut Emitter<'_>, op: OpId) -> Result<Vec<Val>, String> {
    let conv = e.attrs::<Conv>(op)?;
    let (x, w) = (e.operand(op, 0)?, e.operand(op, 1)?);
    convolution(e, op, &conv, &x, &w, Some(2)).map(|v| vec![v])
}

fn conv_integer(e: &mut Emitter<'_>, op: OpId) -> Result<Vec<Val>, String> {
    let ConvInteger { strides, pads, dilations, group, auto_pad, channels_last } = e.attrs::<ConvInteger>(op)?;
    let conv = Conv { strides, pads, dilations, group, auto_pad, channels_last };
    let (x, w) = (e.operand(op, 0)?, e.operand(op, 1)?);
    let x = minus_zero_point(e, op, &x, 2, |n| vec![n])?;
    let rank = w.rank();
    let w = minus_zero_point(e, op, &w, 3, |n| [vec![n], vec![1; rank - 1]].concat())?;
    convolution(e, op, &conv, &x, &w, None).map(|v| vec![v])
}

/// The convolution of `x` and `w`, plus operand `bias`, if given.
fn convolution(
    e: &mut Emitter<'_>,
    op: OpId,
    conv: &Conv,
    x: &Val,
    w: &Val,
    bias: Option<usize>,
) -> Result<Val, String> {
    let g = conv.geometry(&dims(x), &dims(w)).map_err(|e| e.message)?.fixed().ok_or("its extents are not known")?;
    let ones = vec![1; g.windows.input.len()];
    let pads = g.windows.pads_begin.iter().zip(&g.windows.pads_end).map(|(b, e)| (*b as i64, *e as i64)).collect();
    let shape = Convolution { strides: &g.windows.strides, stretch: &ones, pads, last: conv.channels_last };
    shape.print(e, op, x, w, &g, bias)
}

fn conv_transpose(e: &mut Emitter<'_>, op: OpId) -> Result<Vec<Val>, String> {
    let conv = e.attrs::<ConvTranspose>(op)?;
    let (x, w) = (e.operand(op, 0)?, e.operand(op, 1)?);
    let g = conv.geometry(&dims(&x), &dims(&w)).map_err(|e| e.message)?.fixed().ok_or("its extents are not known")?;
    // A convolution that dilates `x`, with a flipped kernel.
    let rank = g.windows.input.len();
    let (ci, co) = (g.cin / g.group, g.cout / g.group);
    let kernel = &w.dims[2..];
    let grouped = e.reshape(&w, &[&[g.group, ci, co], kernel].concat());
    let axes: Vec<usize> = [0, 2, 1].into_iter().chain(3..3 + rank).collect();
    let turned = e.transpose(&grouped, &axes);
    let w = e.reshape(&turned, &[&[g.cout, ci], kernel].concat());
    let w = e.reverse(&w, &(2..2 + rank).collect::<Vec<_>>());
    let pads = (0..rank).map(|a| {
        let spans = (g.windows.dilations[a] * (g.windows.kernel[a] - 1)) as i64;
        let low = spans - g.windows.pads_begin[a] as i64;
        // Here `input` is the written tensor and `output` the read one.
        let stretched = (g.windows.output[a] as i64 - 1) * g.windows.strides[a] as i64 + 1;
        (low, g.windows.input[a] as i64 - stretched - low + spans)
    });
    let ones = vec![1; rank];
    let shape =
        Convolution { strides: &ones, stretch: &g.windows.strides, pads: pads.collect(), last: conv.channels_last };
    shape.print(e, op, &x, &w, &g, Some(2)).map(|v| vec![v])
}

/// The geometry of a convolution.
struct Convolution<'a> {
    strides: &'a [usize],
    /// Dilation of the input.
    stretch: &'a [usize],
    pads: Vec<(i64, i64)>,
    last: bool,
}

impl Convolution<'_> {
    /// `w` is `[Cout, Cin/group, kernel…]`.
    fn print(
        &self,
        e: &mut Emitter<'_>,
        op: OpId,
        x: &Val,
        w: &Val,
        g: &ConvGeometry<usize>,
        bias: Option<usize>,
    ) -> Result<Val, String> {
        let (dtype, out) = e.result(op, 0)?;
        let rank = self.strides.len();
        let spatial: Vec<String> = (0..rank).map(|a| a.to_string()).collect();
        let of = |first: [&str; 2]| list(&[first.map(String::from).to_vec(), spatial.clone()].concat());
        let last = || list(&[vec!["b".to_string()], spatial.clone(), vec!["f".to_string()]].concat());
        let data = if self.last { last() } else { of(["b", "f"]) };
        let attrs = format!(
            "window_strides = {}, padding = {}, lhs_dilation = {}, rhs_dilation = {}, dimension_numbers = \
             #stablehlo.conv<{data}x{}->{data}>, feature_group_count = {} : i64, batch_group_count = 1 : i64, {PRECISE}",
            array(self.strides),
            padding(&self.pads),
            array(self.stretch),
            array(&g.windows.dilations),
            of(["o", "i"]),
            g.group
        );
        let y = e.emit("stablehlo.convolution", &[x, w], &attrs, dtype, &out);
        let Some(b) = bias.map(|i| e.optional(op, i)).transpose()?.flatten() else { return Ok(y) };
        let channel = if self.last { out.len() - 1 } else { 1 };
        let b = e.broadcast_in_dim(&b, &out, &[channel]);
        Ok(e.binary("add", &y, &b))
    }
}

/// The windows of a pool for `reduce_window`. Windows that reach past the padded input get padding of their own.
fn windows(g: &PoolGeometry<usize>, last: bool) -> Window {
    let rank = g.windows.input.len();
    let mut w = Window::unit(rank + 2);
    for a in 0..rank {
        let axis = if last { a + 1 } else { a + 2 };
        let spans = g.windows.dilations[a] * (g.windows.kernel[a] - 1) + 1;
        let begin = g.windows.pads_begin[a];
        let needs = (g.windows.output[a].saturating_sub(1) * g.windows.strides[a] + spans) as i64;
        w.size[axis] = g.windows.kernel[a];
        w.strides[axis] = g.windows.strides[a];
        w.dilations[axis] = g.windows.dilations[a];
        w.pads[axis] = (begin as i64, (needs - (g.windows.input[a] + begin) as i64).max(0));
    }
    w
}

fn floats(x: &Val) -> Result<(), String> {
    if x.dtype.is_float() { Ok(()) } else { Err(format!("integer division rounds means of {} differently", x.dtype)) }
}

fn avg_pool(e: &mut Emitter<'_>, op: OpId) -> Result<Vec<Val>, String> {
    let pool = e.attrs::<AvgPool>(op)?;
    let x = e.operand(op, 0)?;
    floats(&x)?;
    let g = pool.geometry(&dims(&x)).and_then(|g| g.fixed()).map_err(|e| e.message)?;
    let wide = e.widen(&x);
    let sum = e.reduce_window("add", &wide, 0.0, &windows(&g, pool.channels_last));
    let counts: Vec<f64> = pool.counts(&g.windows).into_iter().map(|c| c.max(1.0)).collect();
    let count = match counts.first() {
        Some(first) if counts.iter().all(|c| c == first) => e.full_like(&sum, *first),
        None => e.full_like(&sum, 1.0),
        _ => {
            let elements = of_ir::Elements::Float(counts);
            let t = Tensor::from_elements(sum.dtype, g.windows.output.clone(), elements).map_err(|e| e.to_string())?;
            let c = e.constant(&t)?;
            let first = if pool.channels_last { 1 } else { 2 };
            e.broadcast_in_dim(&c, &sum.dims, &(first..first + g.windows.output.len()).collect::<Vec<_>>())
        }
    };
    let mean = e.binary("divide", &sum, &count);
    Ok(vec![e.convert(&mean, x.dtype)])
}

fn lp_pool(e: &mut Emitter<'_>, op: OpId) -> Result<Vec<Val>, String> {
    let pool = e.attrs::<LpPool>(op)?;
    let x = e.operand(op, 0)?;
    floats(&x)?;
    let g = pool.geometry(&dims(&x)).and_then(|g| g.fixed()).map_err(|e| e.message)?;
    let wide = e.widen(&x);
    let (abs, p) = (e.unary("abs", &wide), e.full_like(&wide, pool.p as f64));
    let powers = e.binary("power", &abs, &p);
    let sum = e.reduce_window("add", &powers, 0.0, &windows(&g, pool.channels_last));
    let root = e.full_like(&sum, 1.0 / pool.p as f64);
    let norm = e.binary("power", &sum, &root);
    Ok(vec![e.convert(&norm, x.dtype)])
}

fn max_pool(e: &mut Emitter<'_>, op: OpId) -> Result<Vec<Val>, String> {
    let pool = e.attrs::<MaxPool>(op)?;
    let x = e.operand(op, 0)?;
    let g = pool.geometry(&dims(&x)).and_then(|g| g.fixed()).map_err(|e| e.message)?;
    let least = match x.dtype.int_range() {
        Some((low, _)) if x.dtype.is_int() => low as f64,
        _ => f64::NEG_INFINITY,
    };
    let w = windows(&g, pool.channels_last);
    if !pool.return_indices {
        return Ok(vec![e.reduce_window("maximum", &x, least, &w)]);
    }
    let axes = if pool.channels_last { 1..x.rank() - 1 } else { 2..x.rank() };
    let spatial: Vec<(usize, usize)> = axes.map(|a| (a, x.dims[a])).collect();
    let area: usize = spatial.iter().map(|(_, n)| n).product();
    // The position of each element in its plane. The position after the last one marks windows of padding alone.
    let place = row_major(e, &x.dims, &spatial);
    let (y, at) = e.first_maxima(&x, &place, (least, area as f64), &w);
    let (none, zero) = (e.full_like(&at, area as f64), e.full_like(&at, 0.0));
    let padding = e.compare("EQ", &at, &none);
    let mut at = e.select(&padding, &zero, &at);
    if pool.storage_order == 1 {
        at = column_major(e, &at, &spatial);
    }
    let channel = if pool.channels_last { x.rank() - 1 } else { 1 };
    let plane = row_major(e, &y.dims, &[(0, x.dims[0]), (channel, x.dims[channel])]);
    let area = e.full_like(&plane, area as f64);
    let before = e.binary("multiply", &plane, &area);
    Ok(vec![y, e.binary("add", &before, &at)])
}

/// Indices refer to the result without `output_shape`. With it, that result is cropped or padded with zeros.
fn max_unpool(e: &mut Emitter<'_>, op: OpId) -> Result<Vec<Val>, String> {
    let unpool = e.attrs::<MaxUnpool>(op)?;
    let (x, indices) = (e.operand(op, 0)?, e.operand(op, 1)?);
    let (_, to) = e.result(op, 0)?;
    if x.elements() != indices.elements() {
        return Err("the number of indices differs from the number of elements".into());
    }
    let plain: Option<Vec<usize>> =
        unpool.plain(&dims(&x)).map_err(|e| e.message)?.iter().map(|d| usize::try_from(d.as_const()?).ok()).collect();
    let plain = plain.ok_or("its extents are not known")?;
    let total = shape::count(&plain).map_err(|e| e.message)?;
    let at = e.convert(&indices, DType::I64);
    let known = e.ints(op, 1).ok().flatten();
    if !known.is_some_and(|k| k.iter().all(|i| (0..total as i64).contains(i))) {
        let (zero, end) = (e.full_like(&at, 0.0), e.full_like(&at, total as f64));
        let (low, high) = (e.compare("GE", &at, &zero), e.compare("LT", &at, &end));
        e.check(&[&low, &high]);
    }
    let (at, updates) = (e.reshape(&at, &[x.elements()]), e.reshape(&x, &[x.elements(), 1]));
    let empty = e.splat(x.dtype, &[total, 1], 0.0);
    let y = e.scatter(&empty, &at, &updates, "none")?;
    let y = e.reshape(&y, &plain);
    if to.len() != plain.len() {
        return Err("its output_shape does not fit its input".into());
    }
    let more: Vec<(i64, i64)> = to.iter().zip(&plain).map(|(t, p)| (0, *t as i64 - *p as i64)).collect();
    let zero = e.splat(x.dtype, &[], 0.0);
    Ok(vec![if to == plain { y } else { e.pad(&y, &zero, &more) }])
}

/// The row-major index of each element over these axes, given with their extents; the last axis is the innermost.
fn row_major(e: &mut Emitter<'_>, dims: &[usize], axes: &[(usize, usize)]) -> Val {
    let mut place = e.splat(DType::I64, dims, 0.0);
    for (axis, extent) in axes {
        let (extent, at) = (e.full_like(&place, *extent as f64), e.iota(DType::I64, dims, *axis));
        place = e.binary("multiply", &place, &extent);
        place = e.binary("add", &place, &at);
    }
    place
}

/// Row-major indices over these axes, converted to column-major ones.
fn column_major(e: &mut Emitter<'_>, place: &Val, axes: &[(usize, usize)]) -> Val {
    let (mut rest, mut out) = (place.clone(), e.full_like(place, 0.0));
    for (_, extent) in axes.iter().rev() {
        let extent = e.full_like(place, *extent as f64);
        let at = e.binary("remainder", &rest, &extent);
        rest = e.binary("divide", &rest, &extent);
        out = e.binary("multiply", &out, &extent);
        out = e.binary("add", &out, &at);
    }
    out
}

/// A sum over the elements of a window: the columns of one element, padded to the image with gaps at the stride. Negative padding
/// cuts what is outside of the image.
fn col2im(e: &mut Emitter<'_>, op: OpId) -> Result<Vec<Val>, String> {
    let x = e.operand(op, 0)?;
    let (_, dims) = e.result(op, 0)?;
    let (image, block) = (e.ints(op, 1)?.unwrap_or_default(), e.ints(op, 2)?.unwrap_or_default());
    let w = e.attrs::<Col2Im>(op)?.windows(&image, &block).map_err(|e| e.message)?;
    let elements: usize = w.kernel.iter().product();
    if dims.contains(&0) {
        return Ok(vec![e.splat(x.dtype, &dims, 0.0)]);
    }
    if x.dims[1] != dims[1] * elements || x.dims[2] != w.output.iter().product::<usize>() {
        return Err("its rows and columns do not match its blocks".into());
    }
    let wide = e.widen(&x);
    let columns = e.reshape(&wide, &[&[dims[0], dims[1], elements], w.output.as_slice()].concat());
    let mut y = e.splat(wide.dtype, &dims, 0.0);
    let zero = e.splat(wide.dtype, &[], 0.0);
    if columns.elements() == 0 {
        return Ok(vec![e.convert(&y, x.dtype)]);
    }
    for k in 0..elements {
        let column = e.slice_in_dim(&columns, 2, k, 1);
        let column = e.reshape(&column, &[&dims[..2], &w.output].concat());
        let (mut low, mut high, mut gaps) = (vec![0; 2], vec![0; 2], vec![0; 2]);
        for (a, stride) in shape::strides(&w.kernel).into_iter().enumerate() {
            let at = k / stride % w.kernel[a];
            let begin = (at * w.dilations[a]) as i64 - w.pads_begin[a] as i64;
            let spans = ((w.output[a] - 1) * w.strides[a] + 1) as i64;
            low.push(begin);
            high.push(w.input[a] as i64 - begin - spans);
            gaps.push(w.strides[a] as i64 - 1);
        }
        let attrs = format!(
            "edge_padding_low = {}, edge_padding_high = {}, interior_padding = {}",
            array(&low),
            array(&high),
            array(&gaps)
        );
        let own = e.emit("stablehlo.pad", &[&column, &zero], &attrs, y.dtype, &dims);
        y = e.binary("add", &y, &own);
    }
    Ok(vec![e.convert(&y, x.dtype)])
}

/// Adds the coordinate of each axis times its column of theta to the translation, the last column.
fn affine_grid(e: &mut Emitter<'_>, op: OpId) -> Result<Vec<Val>, String> {
    let grid = e.attrs::<AffineGrid>(op)?;
    let theta = e.operand(op, 0)?;
    let (_, dims) = e.result(op, 0)?;
    let rank = dims.len() - 2;
    if theta.dims != [dims[0], rank, rank + 1] {
        return Err("the extents of theta do not fit the size".into());
    }
    let wide = e.convert(&theta, DType::F64);
    let factor = |e: &mut Emitter<'_>, i: usize| {
        let f = e.slice_in_dim(&wide, 2, i, 1);
        let f = e.reshape(&f, &[dims[0], rank]);
        e.broadcast_in_dim(&f, &dims, &[0, rank + 1])
    };
    let mut y = factor(e, rank);
    for axis in 0..rank {
        // Homogeneous coordinates: the 1 multiplies the translation.
        let places: Vec<f64> = grid.coordinates(&dims[axis + 1..axis + 2]).into_iter().step_by(2).collect();
        let places = e.constant(&Tensor::from_slice(&[places.len()], &places).map_err(|e| e.to_string())?)?;
        let places = e.broadcast_in_dim(&places, &dims, &[axis + 1]);
        // The last axis comes first.
        let own = factor(e, rank - 1 - axis);
        let own = e.binary("multiply", &own, &places);
        y = e.binary("add", &y, &own);
    }
    Ok(vec![e.convert(&y, theta.dtype)])
}

/// Resizes one axis after the other, by a gather of elements or a product with a matrix of weights.
fn resize(e: &mut Emitter<'_>, op: OpId) -> Result<Vec<Val>, String> {
    let resize = e.attrs::<Resize>(op)?;
    let x = e.operand(op, 0)?;
    let floats = |i: usize| match e.g.op(op).operands.get(i).filter(|v| *e.g.ty(**v) != Type::None) {
        Some(v) => match e.g.constant(*v) {
            Some(t) => Ok(t.to_f64s().filter(|f| !f.is_empty())),
            None => Err(format!("operand {i} is not known before the run")),
        },
        None => Ok(None),
    };
    let (roi, scales) = (floats(1)?, floats(2)?);
    let sizes = e.ints(op, 3)?.filter(|s| !s.is_empty());
    let axes = resize.taps(&x.dims, roi.as_deref(), scales.as_deref(), sizes.as_deref()).map_err(|e| e.message)?;
    let mut y = e.widen(&x);
    for (axis, taps) in axes {
        if taps.iter().any(|t| t.weights.is_empty()) {
            return Err("parts of its result are outside of the crop that `roi` names".into());
        }
        if taps.iter().all(|t| matches!(t.weights[..], [(_, 1.0)])) {
            let places: Vec<i64> = taps.iter().map(|t| t.weights[0].0 as i64).collect();
            let places = e.int_list(&places)?;
            y = e.take(&y, &places, axis);
            continue;
        }
        if !y.dtype.is_float() {
            return Err(format!("integer division rounds means of {} differently", y.dtype));
        }
        let (from, to) = (y.dims[axis], taps.len());
        let mut weights = vec![0.0; from * to];
        for (o, t) in taps.iter().enumerate() {
            t.weights.iter().for_each(|(i, w)| weights[i * to + o] += w);
        }
        let matrix = Tensor::from_elements(y.dtype, vec![from, to], of_ir::Elements::Float(weights));
        let matrix = e.constant(&matrix.map_err(|e| e.to_string())?)?;
        let last = y.rank() - 1;
        let mut perm: Vec<usize> = (0..=last).collect();
        perm.swap(axis, last);
        let turned = e.transpose(&y, &perm);
        let dims: Vec<usize> = [&turned.dims[..last], &[to]].concat();
        let product = product(e, &turned, &matrix, y.dtype, &dims);
        y = e.transpose(&product, &perm);
    }
    Ok(vec![e.convert(&y, x.dtype)])
}
