//! Builders for the ops of StableHLO. Source: the StableHLO specification.

use of_emit::{element_bytes, hex, list};
use of_ir::{DType, Tensor};

use super::{Emitter, Typed, Val, type_text};

/// `array<i64: 1, 2>`.
pub fn array<T: std::fmt::Display>(list: &[T]) -> String {
    let list: Vec<String> = list.iter().map(T::to_string).collect();
    if list.is_empty() { "array<i64>".into() } else { format!("array<i64: {}>", list.join(", ")) }
}

/// Low and high padding of every axis as an attribute.
pub fn padding(pads: &[(i64, i64)]) -> String {
    let rows: Vec<String> = pads.iter().map(|(l, h)| format!("[{l}, {h}]")).collect();
    let body = if pads.is_empty() { String::new() } else { list(&rows) };
    format!("dense<{body}> : tensor<{}x2xi64>", pads.len())
}

/// Bytes as the literal of a dense attribute.
fn bytes_literal(bytes: &[u8]) -> String {
    format!("\"0x{}\"", hex(bytes))
}

impl Emitter<'_> {
    /// An op of one result.
    pub fn emit(&mut self, name: &str, operands: &[&Val], attrs: &str, dtype: DType, dims: &[usize]) -> Val {
        let out = Val { name: self.fresh(), dtype, dims: dims.to_vec() };
        let names: Vec<&str> = operands.iter().map(|o| o.name.as_str()).collect();
        let types: Vec<String> = operands.iter().map(|o| o.ty()).collect();
        let attrs = if attrs.is_empty() { String::new() } else { format!(" {{{attrs}}}") };
        let text =
            format!("{} = \"{name}\"({}){attrs} : ({}) -> {}", out.name, names.join(", "), types.join(", "), out.ty());
        self.line(&text);
        out
    }

    // ---- constants ----

    /// A tensor.
    pub fn constant(&mut self, t: &Tensor) -> Result<Val, String> {
        super::tensor_of(&of_ir::Type::Tensor(t.ty()))?;
        let bytes = t.bytes().ok_or("XLA has no strings")?;
        let text = if t.is_empty() {
            String::new()
        } else if t.dtype() == DType::Bool {
            let all: Vec<&str> = bytes.iter().map(|b| if *b == 0 { "false" } else { "true" }).collect();
            if let [one] = all[..] { one.to_string() } else { list(&all) }
        } else {
            bytes_literal(bytes)
        };
        // The literal nests as many brackets as the tensor has axes, so bools are written as one row.
        let flat = t.dtype() == DType::Bool && t.len() > 1;
        let dims = if flat { vec![t.len()] } else { t.dims().to_vec() };
        let ty = type_text(t.dtype(), &dims);
        let c = self.emit("stablehlo.constant", &[], &format!("value = dense<{text}> : {ty}"), t.dtype(), &dims);
        Ok(if flat { self.reshape(&c, t.dims()) } else { c })
    }

    /// A splat constant.
    pub fn splat(&mut self, dtype: DType, dims: &[usize], x: f64) -> Val {
        let text = match dtype {
            _ if dims.contains(&0) => String::new(),
            DType::Bool => if x == 0.0 { "false" } else { "true" }.to_string(),
            _ => bytes_literal(&element_bytes(dtype, x)),
        };
        let ty = type_text(dtype, dims);
        self.emit("stablehlo.constant", &[], &format!("value = dense<{text}> : {ty}"), dtype, dims)
    }

    /// A splat constant of the type of `x`.
    pub fn full_like(&mut self, x: &Val, number: f64) -> Val {
        self.splat(x.dtype, &x.dims, number)
    }

    /// A bool of rank 0.
    pub fn truth(&mut self, b: bool) -> Val {
        self.splat(DType::Bool, &[], f64::from(u8::from(b)))
    }

    /// Integers along one axis.
    pub fn int_list(&mut self, list: &[i64]) -> Result<Val, String> {
        self.constant(&Tensor::from_i64s(list))
    }

    /// The index along an axis.
    pub fn iota(&mut self, dtype: DType, dims: &[usize], axis: usize) -> Val {
        self.emit("stablehlo.iota", &[], &format!("iota_dimension = {axis} : i64"), dtype, dims)
    }

    // ---- elementwise ----

    /// An op of one operand that keeps its type.
    pub fn unary(&mut self, name: &str, x: &Val) -> Val {
        self.emit(&dialect(name), &[x], "", x.dtype, &x.dims)
    }

    /// An op of two operands of one type that keeps it.
    pub fn binary(&mut self, name: &str, x: &Val, y: &Val) -> Val {
        self.emit(&dialect(name), &[x, y], "", x.dtype, &x.dims)
    }

    /// `EQ`, `NE`, `LT`, `LE`, `GT`, `GE`.
    pub fn compare(&mut self, direction: &str, x: &Val, y: &Val) -> Val {
        let attrs = format!("comparison_direction = #stablehlo<comparison_direction {direction}>");
        self.emit("stablehlo.compare", &[x, y], &attrs, DType::Bool, &x.dims)
    }

    /// `a` if `c`, else `b`.
    pub fn select(&mut self, c: &Val, a: &Val, b: &Val) -> Val {
        self.emit("stablehlo.select", &[c, a, b], "", a.dtype, &a.dims)
    }

    /// Another element type.
    pub fn convert(&mut self, x: &Val, to: DType) -> Val {
        if x.dtype == to { x.clone() } else { self.emit("stablehlo.convert", &[x], "", to, &x.dims) }
    }

    /// A 16-bit float in f32, in which sums accumulate; other values as they are.
    pub fn widen(&mut self, x: &Val) -> Val {
        if matches!(x.dtype, DType::F16 | DType::BF16) { self.convert(x, DType::F32) } else { x.clone() }
    }

    // ---- shapes ----

    /// A reshape.
    pub fn reshape(&mut self, x: &Val, dims: &[usize]) -> Val {
        if x.dims == dims { x.clone() } else { self.emit("stablehlo.reshape", &[x], "", x.dtype, dims) }
    }

    /// Axis `i` of `x` becomes axis `axes[i]`; extents of 1 are broadcast.
    pub fn broadcast_in_dim(&mut self, x: &Val, dims: &[usize], axes: &[usize]) -> Val {
        let attrs = format!("broadcast_dimensions = {}", array(axes));
        self.emit("stablehlo.broadcast_in_dim", &[x], &attrs, x.dtype, dims)
    }

    /// Broadcast as in numpy: axes are aligned from the last one.
    pub fn broadcast_to(&mut self, x: &Val, dims: &[usize]) -> Val {
        let lead = dims.len() - x.rank();
        if x.dims == dims { x.clone() } else { self.broadcast_in_dim(x, dims, &(lead..dims.len()).collect::<Vec<_>>()) }
    }

    /// Axis `i` of the result is axis `perm[i]`.
    pub fn transpose(&mut self, x: &Val, perm: &[usize]) -> Val {
        if perm.iter().enumerate().all(|(i, p)| i == *p) {
            return x.clone();
        }
        let dims: Vec<usize> = perm.iter().map(|p| x.dims[*p]).collect();
        self.emit("stablehlo.transpose", &[x], &format!("permutation = {}", array(perm)), x.dtype, &dims)
    }

    /// `start .. limit` of every axis in steps.
    pub fn slice(&mut self, x: &Val, start: &[usize], limit: &[usize], step: &[usize]) -> Val {
        let dims: Vec<usize> = (0..x.rank()).map(|a| (limit[a] - start[a]).div_ceil(step[a])).collect();
        let attrs =
            format!("start_indices = {}, limit_indices = {}, strides = {}", array(start), array(limit), array(step));
        self.emit("stablehlo.slice", &[x], &attrs, x.dtype, &dims)
    }

    /// A slice along one axis: `len` elements from `start` on.
    pub fn slice_in_dim(&mut self, x: &Val, axis: usize, start: usize, len: usize) -> Val {
        let (mut from, mut to) = (vec![0; x.rank()], x.dims.clone());
        (from[axis], to[axis]) = (start, start + len);
        self.slice(x, &from, &to, &vec![1; x.rank()])
    }

    /// Concatenation along an axis.
    pub fn concat(&mut self, xs: &[&Val], axis: usize) -> Val {
        if let [x] = xs {
            return (*x).clone();
        }
        let mut dims = xs[0].dims.clone();
        dims[axis] = xs.iter().map(|x| x.dims[axis]).sum();
        self.emit("stablehlo.concatenate", xs, &format!("dimension = {axis} : i64"), xs[0].dtype, &dims)
    }

    /// Reversal along axes.
    pub fn reverse(&mut self, x: &Val, axes: &[usize]) -> Val {
        self.emit("stablehlo.reverse", &[x], &format!("dimensions = {}", array(axes)), x.dtype, &x.dims)
    }

    /// Pads with `value` before and after each axis; negative numbers crop.
    pub fn pad(&mut self, x: &Val, value: &Val, pads: &[(i64, i64)]) -> Val {
        let dims: Vec<usize> = x.dims.iter().zip(pads).map(|(d, (l, h))| (*d as i64 + l + h).max(0) as usize).collect();
        let (low, high): (Vec<i64>, Vec<i64>) = pads.iter().copied().unzip();
        let attrs = format!(
            "edge_padding_low = {}, edge_padding_high = {}, interior_padding = {}",
            array(&low),
            array(&high),
            array(&vec![0; x.rank()])
        );
        self.emit("stablehlo.pad", &[x, value], &attrs, x.dtype, &dims)
    }

    // ---- regions of scalars ----

    /// The text of a region `(lhs, rhs) -> lhs NAME rhs`; without a name it returns the second argument.
    pub fn combiner(&self, name: Option<&str>, dtype: DType) -> String {
        let t = type_text(dtype, &[]);
        let (op, result) = match name {
            Some(n) => (format!("      %res = \"{}\"(%lhs, %rhs) : ({t}, {t}) -> {t}\n", dialect(n)), "%res"),
            None => (String::new(), "%rhs"),
        };
        format!("({{\n    ^bb0(%lhs: {t}, %rhs: {t}):\n{op}      \"stablehlo.return\"({result}) : ({t}) -> ()\n    }})")
    }

    /// Reduction of axes by a binary op, starting from `init`.
    pub fn reduce(&mut self, name: &str, x: &Val, axes: &[usize], init: f64) -> Val {
        let start = self.splat(x.dtype, &[], init);
        let dims: Vec<usize> = (0..x.rank()).filter(|a| !axes.contains(a)).map(|a| x.dims[a]).collect();
        let out = Val { name: self.fresh(), dtype: x.dtype, dims };
        let text = format!(
            "{} = \"stablehlo.reduce\"({}, {}) {} {{dimensions = {}}} : ({}, {}) -> {}",
            out.name,
            x.name,
            start.name,
            self.combiner(Some(name), x.dtype),
            array(axes),
            x.ty(),
            start.ty(),
            out.ty()
        );
        self.line(&text);
        out
    }

    /// Window reduction; every list has one entry for each axis of `x`.
    pub fn reduce_window(&mut self, name: &str, x: &Val, init: f64, w: &Window) -> Val {
        let start = self.splat(x.dtype, &[], init);
        let dims: Vec<usize> = (0..x.rank()).map(|a| w.positions(a, x.dims[a])).collect();
        let out = Val { name: self.fresh(), dtype: x.dtype, dims };
        let text = format!(
            "{} = \"stablehlo.reduce_window\"({}, {}) {} {{window_dimensions = {}, window_strides = {}, \
             window_dilations = {}, padding = {}}} : ({}, {}) -> {}",
            out.name,
            x.name,
            start.name,
            self.combiner(Some(name), x.dtype),
            array(&w.size),
            array(&w.strides),
            array(&w.dilations),
            padding(&w.pads),
            x.ty(),
            start.ty(),
            out.ty()
        );
        self.line(&text);
        out
    }

    /// The maximum of each window, and its lowest position; NaN is the maximum if there is one. Padding has the value and
    /// position `init`.
    pub fn first_maxima(&mut self, x: &Val, place: &Val, init: (f64, f64), w: &Window) -> (Val, Val) {
        let (least, beyond) = (self.splat(x.dtype, &[], init.0), self.splat(place.dtype, &[], init.1));
        let dims: Vec<usize> = (0..x.rank()).map(|a| w.positions(a, x.dims[a])).collect();
        let name = self.fresh();
        let of = |i: usize, v: &Val| Val { name: format!("{name}#{i}"), dtype: v.dtype, dims: dims.clone() };
        let (y, at) = (of(0, x), of(1, place));
        let (t, u) = (least.ty(), beyond.ty());
        let bit = type_text(DType::Bool, &[]);
        let compare = |out: &str, how: &str, a: &str, b: &str, ty: &str| {
            format!(
                "      {out} = \"stablehlo.compare\"({a}, {b}) {{comparison_direction = \
                 #stablehlo<comparison_direction {how}>}} : ({ty}, {ty}) -> {bit}\n"
            )
        };
        let logic = |out: &str, op: &str, a: &str, b: &str| {
            format!("      {out} = \"stablehlo.{op}\"({a}, {b}) : ({bit}, {bit}) -> {bit}\n")
        };
        let select = |out: &str, a: &str, b: &str, ty: &str| {
            format!("      {out} = \"stablehlo.select\"(%left, {a}, {b}) : ({bit}, {ty}, {ty}) -> {ty}\n")
        };
        // All NaN compare equal, and larger than any number.
        let body = [
            compare("%xnan", "NE", "%x", "%x", &t),
            compare("%ynan", "NE", "%y", "%y", &t),
            compare("%greater", "GT", "%x", "%y", &t),
            compare("%equal", "EQ", "%x", "%y", &t),
            compare("%before", "LT", "%p", "%q", &u),
            logic("%nans", "and", "%xnan", "%ynan"),
            logic("%one", "xor", "%xnan", "%nans"),
            logic("%wins", "or", "%greater", "%one"),
            logic("%same", "or", "%equal", "%nans"),
            logic("%first", "and", "%same", "%before"),
            logic("%left", "or", "%wins", "%first"),
            select("%v", "%x", "%y", &t),
            select("%at", "%p", "%q", &u),
        ]
        .concat();
        let text = format!(
            "{name}:2 = \"stablehlo.reduce_window\"({}, {}, {}, {}) ({{\n    ^bb0(%x: {t}, %p: {u}, %y: {t}, %q: {u}):\n\
             {body}      \"stablehlo.return\"(%v, %at) : ({t}, {u}) -> ()\n    }}) {{window_dimensions = {}, \
             window_strides = {}, window_dilations = {}, padding = {}}} : ({}, {}, {t}, {u}) -> ({}, {})",
            x.name,
            place.name,
            least.name,
            beyond.name,
            array(&w.size),
            array(&w.strides),
            array(&w.dilations),
            padding(&w.pads),
            x.ty(),
            place.ty(),
            y.ty(),
            at.ty()
        );
        self.line(&text);
        (y, at)
    }
}

/// A window along every axis.
pub struct Window {
    /// Elements.
    pub size: Vec<usize>,
    /// Distance of two positions.
    pub strides: Vec<usize>,
    /// Distance of two elements.
    pub dilations: Vec<usize>,
    /// Padding before and after.
    pub pads: Vec<(i64, i64)>,
}

impl Window {
    /// The window of one element.
    pub fn unit(rank: usize) -> Window {
        Window { size: vec![1; rank], strides: vec![1; rank], dilations: vec![1; rank], pads: vec![(0, 0); rank] }
    }

    fn positions(&self, axis: usize, input: usize) -> usize {
        let padded = input as i64 + self.pads[axis].0 + self.pads[axis].1;
        let spans = (self.dilations[axis] * (self.size[axis] - 1) + 1) as i64;
        if padded < spans { 0 } else { (padded - spans) as usize / self.strides[axis] + 1 }
    }
}

/// `chlo.erf` stays, `add` is `stablehlo.add`.
fn dialect(name: &str) -> String {
    if name.contains('.') { name.to_string() } else { format!("stablehlo.{name}") }
}
