//! Data movement ops whose indices are computed or lie in memory, and ops that walk along an axis. One table says which
//! op has which kernel ([`kernel`]).

use of_ir::{DType, Graph, OpId, Type, ValueId};
use of_ops::OpSpec;
use of_ops::list::as_op;
use of_ops::movement::{
    GatherElements, GatherNd, OneHot, Pad, Range, ReverseSequence, ScatterElements, ScatterNd, Tile, Trilu,
};
use of_ops::nn::{MaxPool, Resize, RoiAlign};
use of_ops::reduction::{ArgMax, ArgMin, CumSum, ReduceMax, ReduceMin, ReduceProd, ReduceSum, TopK};
use of_ops::shape::axis;

use super::pool::found;
use super::region::regions;
use super::resize::resize;
use crate::native::expr::{ctype, int_literal};
use crate::native::index::{Points, Scatter, at_most, equal, offset, place, word};
use crate::native::space::row_major;
use crate::native::walk::{self, Axis};
use crate::native::{Extent, Nest, extent};
use crate::roles::reduced_axes;

/// More elements than this are better sorted than kept in order one by one.
const MOST_KEPT: usize = 256;

/// Whether an op has a kernel here, or why not.
///
/// # Errors
/// Why it has none.
pub fn claims(g: &Graph, op: OpId) -> Result<(), String> {
    kernel(g, op).map(|_| ())
}

/// The operands that the kernel of an op reads: all arguments but the last ones, its results.
pub fn reads(g: &Graph, op: OpId) -> Vec<ValueId> {
    let data = g.op(op);
    let given = |list: &[usize]| {
        let all = list.iter().filter_map(|i| data.operands.get(*i).copied());
        all.filter(|v| *g.ty(*v) != Type::None).collect()
    };
    match data.name() {
        GatherElements::NAME | GatherNd::NAME | ReverseSequence::NAME | Trilu::NAME => given(&[0, 1]),
        ScatterElements::NAME | ScatterNd::NAME | RoiAlign::NAME => given(&[0, 1, 2]),
        OneHot::NAME | Range::NAME => given(&[0, 2]),
        _ => given(&[0]),
    }
}

/// The loop nest of an op.
///
/// # Errors
/// Why it has none.
pub fn kernel(g: &Graph, op: OpId) -> Result<Nest, String> {
    let o = Operands { g, op };
    match g.op(op).name() {
        GatherElements::NAME => gather_elements(&o),
        GatherNd::NAME => gather_nd(&o),
        Tile::NAME => tile(&o),
        Pad::NAME => pad(&o),
        Trilu::NAME => trilu(&o),
        ReverseSequence::NAME => reverse_sequence(&o),
        OneHot::NAME => one_hot(&o),
        Range::NAME => range(&o),
        ScatterElements::NAME => scatter_elements(&o),
        ScatterNd::NAME => scatter_nd(&o),
        ArgMax::NAME => {
            let a: ArgMax = o.attrs()?;
            arg(&o, a.axis, true, a.select_last_index)
        }
        ArgMin::NAME => {
            let a: ArgMin = o.attrs()?;
            arg(&o, a.axis, false, a.select_last_index)
        }
        CumSum::NAME => cum_sum(&o),
        ReduceSum::NAME | ReduceProd::NAME | ReduceMax::NAME | ReduceMin::NAME => reduce(&o),
        TopK::NAME => top_k(&o),
        MaxPool::NAME => found(g, op),
        Resize::NAME => resize(g, op),
        RoiAlign::NAME => regions(g, op),
        name => Err(format!("'{name}' has no native code")),
    }
}

/// An op and what its kernel needs of its operands.
struct Operands<'a> {
    g: &'a Graph,
    op: OpId,
}

impl Operands<'_> {
    fn attrs<T: OpSpec>(&self) -> Result<T, String> {
        as_op(self.g, self.op).ok_or_else(|| "its attributes do not decode".into())
    }

    fn value(&self, i: usize) -> ValueId {
        self.g.op(self.op).operands[i]
    }

    fn dims(&self, i: usize) -> Vec<Extent> {
        extent::of_value(self.g, self.value(i))
    }

    fn result(&self) -> Vec<Extent> {
        extent::of_value(self.g, self.g.op(self.op).results[0])
    }

    fn dtype(&self, i: usize) -> DType {
        self.g.ty(self.value(i)).as_tensor().map_or(DType::F32, |t| t.dtype)
    }

    /// The C type that holds the bits of operand `i`.
    fn word(&self, i: usize) -> &'static str {
        word(self.dtype(i).bits().map_or(4, |b| b / 8))
    }

    /// The C type of operand `i` as a number.
    fn number(&self, i: usize) -> Result<&'static str, String> {
        match self.dtype(i) {
            d @ (DType::F16 | DType::BF16) => Err(format!("numbers of type {d} have no native code yet")),
            d => Ok(ctype(d)),
        }
    }

    /// The numbers of operand `i`, where they are constants or follow from extents.
    fn known(&self, i: usize) -> Result<Vec<Extent>, String> {
        let dims =
            self.g.dims_value(self.value(i)).ok_or_else(|| format!("operand {i} is not known before the run"))?;
        Ok(dims.into_iter().map(Extent::from).collect())
    }

    /// A result whose elements are those of operand 0, or like them; `reads` operands come before it.
    fn points(&self, dims: Vec<Extent>, reads: usize) -> Points {
        let element = self.word(0);
        Points {
            dims,
            element,
            out: reads,
            head: format!("  PTR(const {element}) from = ARG(const {element}, 0);\n"),
            row: String::new(),
            point: String::new(),
            value: String::new(),
        }
    }
}

/// The names of the variables of a position.
fn variables(rank: usize) -> Vec<String> {
    (0..rank).map(|a| format!("x{a}")).collect()
}

fn axis_of(a: i64, rank: usize) -> Result<usize, String> {
    axis(a, rank).map_err(|e| e.message)
}

fn gather_elements(o: &Operands<'_>) -> Result<Nest, String> {
    let (from, to) = (o.dims(0), o.result());
    let axis = axis_of(o.attrs::<GatherElements>()?.axis, from.len())?;
    let mut p = o.points(to.clone(), 2);
    for a in (0..from.len()).filter(|a| *a != axis) {
        p.head += &at_most(&to[a], &from[a]);
    }
    let last = to.len() - 1;
    let load = format!("ARG(const {}, 1)[row * {} + x{last}]", ctype(o.dtype(1)), to[last]);
    p.point = format!("      {}", place("k", &load, &from[axis]));
    let mut at = variables(from.len());
    at[axis] = "k".into();
    p.value = format!("from[{}]", offset(&at, &row_major(&from)));
    Ok(Nest::Points(p))
}

/// C that declares `k0`, `k1` …, the places that `named` numbers at the row `row` of operand 1 name in `axes`.
fn places(o: &Operands<'_>, axes: &[Extent], row: &str) -> String {
    let n = axes.len();
    let load = |k: usize| format!("ARG(const {}, 1)[{row} * {n} + {k}]", ctype(o.dtype(1)));
    axes.iter().enumerate().map(|(k, d)| format!("    {}", place(&format!("k{k}"), &load(k), d))).collect()
}

/// How many axes the last extent of the indices names.
fn named(indices: &[Extent]) -> Result<usize, String> {
    indices.last().and_then(Extent::number).ok_or_else(|| "how many axes an index names is not known".into())
}

fn gather_nd(o: &Operands<'_>) -> Result<Nest, String> {
    let (from, indices) = (o.dims(0), o.dims(1));
    let batch = usize::try_from(o.attrs::<GatherNd>()?.batch_dims).map_err(|e| e.to_string())?;
    let named = named(&indices)?;
    let outer = &indices[..indices.len() - 1];
    let axes = from.get(batch..batch + named).ok_or("its indices name too many axes")?;
    let inner: Extent = from[batch + named..].iter().product();
    let each: Extent = outer[batch..].iter().product();
    let size: Extent = from[batch..].iter().product();
    // One row a place: the slice that it names.
    let mut p = o.points(vec![outer.iter().product(), inner], 2);
    p.head += &from[..batch].iter().zip(outer).map(|(a, b)| equal(a, b)).collect::<String>();
    let own = row_major(&from);
    let at: Vec<String> = (0..named).map(|k| format!("k{k}")).collect();
    p.row = places(o, axes, "row");
    p.row += &format!(
        "    from = ARG(const {t}, 0) + row / {each} * {size} + {};\n",
        offset(&at, &own[batch..]),
        t = p.element
    );
    p.value = "from[x1]".into();
    Ok(Nest::Points(p))
}

fn tile(o: &Operands<'_>) -> Result<Nest, String> {
    let (from, to) = (o.dims(0), o.result());
    let mut p = o.points(to.clone(), 1);
    let at: Vec<String> = (0..from.len())
        .map(|a| if from[a] == to[a] { format!("x{a}") } else { format!("x{a} % {}", from[a]) })
        .collect();
    p.value = format!("from[{}]", offset(&at, &row_major(&from)));
    Ok(Nest::Points(p))
}

/// Pads with elements of the tensor itself.
fn pad(o: &Operands<'_>) -> Result<Nest, String> {
    let (from, to) = (o.dims(0), o.result());
    let mode = o.attrs::<Pad>()?.mode;
    let pads = o.known(1)?;
    let axes = match o.g.op(o.op).operands.get(3).filter(|v| *o.g.ty(**v) != Type::None) {
        Some(v) => o.g.constant(*v).and_then(|t| t.to_i64s()).ok_or("operand 3 is not known before the run")?,
        None => (0..from.len() as i64).collect(),
    };
    let zero = Extent::from(0usize);
    let mut p = o.points(to.clone(), 1);
    let mut at = variables(from.len());
    for (i, a) in axes.iter().enumerate() {
        let a = axis_of(*a, from.len())?;
        let (before, after) = (&pads[i], pads.get(i + axes.len()).ok_or("its pads are too few")?);
        // Elements that are left after shortening, and how many before them are not.
        let left = &from[a] + before.min(&zero) + after.min(&zero);
        let skip = (&zero - before).max(&zero);
        let index = format!("x{a} - {}", before.max(&zero));
        let inside = match &*mode {
            "edge" => format!("dim_min(dim_max({index}, 0), {left} - 1)"),
            "wrap" => format!("dim_mod({index}, {left})"),
            "reflect" => {
                let period = ((&left - 1usize) * 2usize).max(&1usize.into());
                let folded = format!("dim_mod({index}, {period})");
                format!("dim_min(dim_min({folded}, {period} - {folded}), {left} - 1)")
            }
            other => return Err(format!("padding in mode '{other}' has no native code")),
        };
        // Where nothing is wanted, nothing need be there.
        let some = to.iter().product::<Extent>().min(&1usize.into());
        p.head += &at_most(&some, &left);
        let text = format!("    const i64 k{a} = {inside} + {skip};\n");
        if a + 1 == from.len() {
            p.point += &text
        } else {
            p.row += &text
        }
        at[a] = format!("k{a}");
    }
    p.value = format!("from[{}]", offset(&at, &row_major(&from)));
    Ok(Nest::Points(p))
}

fn trilu(o: &Operands<'_>) -> Result<Nest, String> {
    let to = o.result();
    let reads = reads(o.g, o.op).len();
    let mut p = o.points(to.clone(), reads);
    let (row, column) = (to.len() - 2, to.len() - 1);
    p.head += &match reads {
        2 => format!("  const i64 k = *ARG(const {}, 1);\n", ctype(o.dtype(1))),
        _ => "  const i64 k = 0;\n".to_string(),
    };
    let inside = if o.attrs::<Trilu>()?.upper { ">=" } else { "<=" };
    p.value = format!("x{column} - x{row} {inside} k ? from[row * {} + x{column}] : 0", to[column]);
    Ok(Nest::Points(p))
}

fn reverse_sequence(o: &Operands<'_>) -> Result<Nest, String> {
    let (from, attrs) = (o.dims(0), o.attrs::<ReverseSequence>()?);
    let (batch, time) = (axis_of(attrs.batch_axis, from.len())?, axis_of(attrs.time_axis, from.len())?);
    let mut p = o.points(from.clone(), 2);
    p.head += &equal(&o.dims(1)[0], &from[batch]);
    p.point = format!(
        "      const i64 n = ARG(const {}, 1)[x{batch}]; if (n < 0 || n > {}) return 1;\n      const i64 t = x{time} < n ? n - 1 - x{time} : x{time};\n",
        ctype(o.dtype(1)),
        from[time]
    );
    let mut at = variables(from.len());
    at[time] = "t".into();
    p.value = format!("from[{}]", offset(&at, &row_major(&from)));
    Ok(Nest::Points(p))
}

fn one_hot(o: &Operands<'_>) -> Result<Nest, String> {
    let (own, to) = (o.dims(0), o.result());
    let axis = axis_of(o.attrs::<OneHot>()?.axis, to.len())?;
    let (depth, inner): (&Extent, Extent) = (&to[axis], own[axis..].iter().product());
    // Indices are compared as numbers that hold them all.
    let wide = if o.dtype(0).is_float() || o.dtype(0) == DType::U64 { "f64" } else { "i64" };
    let (element, index) = (o.word(2), o.number(0)?);
    let mut p = o.points(vec![own[..axis].iter().product(), depth.clone(), inner.clone()], 2);
    p.element = element;
    p.head = format!("  PTR(const {element}) values = ARG(const {element}, 1);\n");
    p.point = format!("      const {wide} k = ARG(const {index}, 0)[x0 * {inner} + x2];\n");
    p.value = format!("values[k == x1 || k == x1 - {depth}]");
    Ok(Nest::Points(p))
}

fn range(o: &Operands<'_>) -> Result<Nest, String> {
    let t = o.number(0)?;
    let mut p = o.points(o.result(), 2);
    p.element = t;
    let wide = if o.dtype(0).is_float() { "f64" } else { "u64" };
    p.head = format!("  const {wide} start = *ARG(const {t}, 0), delta = *ARG(const {t}, 1);\n");
    p.value = format!("({t})(start + ({wide})x0 * delta)");
    Ok(Nest::Points(p))
}

/// The C type of the elements of a scatter, and what becomes of one (`a`) when another (`b`) is written.
fn combine(o: &Operands<'_>, reduction: &str) -> Result<(&'static str, String), String> {
    if reduction == "none" {
        return Ok((o.word(0), "b".into()));
    }
    let (t, int) = (o.number(0)?, o.dtype(0).is_int());
    let nan = |c: &str| format!("a != a ? a : b != b ? b : a {c} b ? a : b");
    let text = match reduction {
        "add" if int => format!("({t})((u64)a + (u64)b)"),
        "mul" if int => format!("({t})((u64)a * (u64)b)"),
        _ if o.dtype(0) == DType::Bool => return Err("truth values are combined by the interpreter".into()),
        "add" => "a + b".into(),
        "mul" => "a * b".into(),
        "max" => nan(">"),
        "min" => nan("<"),
        other => return Err(format!("the reduction '{other}' has no native code")),
    };
    Ok((t, text))
}

fn scatter_elements(o: &Operands<'_>) -> Result<Nest, String> {
    let (to, indices, updates) = (o.dims(0), o.dims(1), o.dims(2));
    let attrs = o.attrs::<ScatterElements>()?;
    let axis = axis_of(attrs.axis, to.len())?;
    let (element, combine) = combine(o, &attrs.reduction)?;
    let mut head: String = indices.iter().zip(&updates).map(|(a, b)| equal(a, b)).collect();
    for a in (0..to.len()).filter(|a| *a != axis) {
        head += &at_most(&indices[a], &to[a]);
    }
    let steps = row_major(&indices);
    let mut at: Vec<String> = (0..to.len()).map(|a| format!("i / {} % {}", steps[a], indices[a])).collect();
    at[axis] = "k".into();
    let load = format!("ARG(const {}, 1)[i]", ctype(o.dtype(1)));
    let slice = format!("    {}    const i64 at = {};", place("k", &load, &to[axis]), offset(&at, &row_major(&to)));
    let (total, slices) = (to.iter().product(), indices.iter().product());
    Ok(Nest::Scatter(Scatter { element, total, slices, inner: 1usize.into(), head, slice, combine }))
}

fn scatter_nd(o: &Operands<'_>) -> Result<Nest, String> {
    let (to, indices, updates) = (o.dims(0), o.dims(1), o.dims(2));
    let (element, combine) = combine(o, &o.attrs::<ScatterNd>()?.reduction)?;
    let named = named(&indices)?;
    let outer = &indices[..indices.len() - 1];
    let axes = to.get(..named).ok_or("its indices name too many axes")?;
    let expected: Vec<Extent> = outer.iter().chain(&to[named..]).cloned().collect();
    let head = expected.iter().zip(&updates).map(|(a, b)| equal(a, b)).collect();
    let at: Vec<String> = (0..named).map(|k| format!("k{k}")).collect();
    let slice = format!("{}    const i64 at = {};", places(o, axes, "i"), offset(&at, &row_major(&to)));
    let (total, slices, inner) = (to.iter().product(), outer.iter().product(), to[named..].iter().product());
    Ok(Nest::Scatter(Scatter { element, total, slices, inner, head, slice, combine }))
}

fn arg(o: &Operands<'_>, along: i64, largest: bool, last: bool) -> Result<Nest, String> {
    let dims = o.dims(0);
    let axis = Axis::of(&dims, axis_of(along, dims.len())?);
    Ok(Nest::Walk(walk::arg(&axis, o.number(0)?, largest, last)))
}

fn cum_sum(o: &Operands<'_>) -> Result<Nest, String> {
    let (dims, attrs) = (o.dims(0), o.attrs::<CumSum>()?);
    let along = o.known(1)?.first().and_then(|a| a.dim().as_const()).ok_or("its axis is not known before the run")?;
    let axis = Axis::of(&dims, axis_of(along, dims.len())?);
    let sum = if o.dtype(0).is_float() { "f64" } else { "u64" };
    Ok(Nest::Walk(walk::cumulate(&axis, o.number(0)?, sum, attrs.exclusive, attrs.reverse)))
}

/// Reductions of integers along neighbouring axes; those of floats fuse.
fn reduce(o: &Operands<'_>) -> Result<Nest, String> {
    let (dims, dtype) = (o.dims(0), o.dtype(0));
    let Some((low, high)) = dtype.int_range().filter(|_| dtype.is_int()) else {
        return Err(format!("reductions of {dtype} have no native code"));
    };
    let axes = reduced_axes(o.g, o.op, dims.len());
    let (Some(first), Some(last)) = (axes.first().copied(), axes.last().copied()) else {
        return Err("a reduction over no axis".into());
    };
    if last - first + 1 != axes.len() {
        return Err("reductions of integers over axes that are not neighbours have no native code".into());
    }
    let product = |d: &[Extent]| d.iter().product();
    let axis =
        Axis { outer: product(&dims[..first]), n: product(&dims[first..=last]), inner: product(&dims[last + 1..]) };
    let own = o.number(0)?;
    // Sums and products wrap; those of 64 bits hold those of every type.
    let (sum, from, combine) = match o.g.op(o.op).name() {
        ReduceMax::NAME => (own, int_literal(low), "b > a ? b : a"),
        ReduceMin::NAME => (own, int_literal(high), "b < a ? b : a"),
        ReduceProd::NAME => ("u64", "1".into(), "a * b"),
        _ => ("u64", "0".into(), "a + b"),
    };
    Ok(Nest::Walk(walk::fold(&axis, own, sum, &from, combine)))
}

fn top_k(o: &Operands<'_>) -> Result<Nest, String> {
    let (dims, attrs) = (o.dims(0), o.attrs::<TopK>()?);
    let along = axis_of(attrs.axis, dims.len())?;
    let k = o.result()[along].clone();
    if k.number().is_none_or(|k| k > MOST_KEPT) {
        return Err(format!("more than {MOST_KEPT} elements are put in order by the interpreter"));
    }
    let key = match o.dtype(0) {
        DType::F32 => "order32(e)",
        DType::F64 => "order64(e)",
        DType::U64 => "(i64)(e ^ 0x8000000000000000ULL)",
        _ => {
            o.number(0)?;
            "(i64)e"
        }
    };
    // The complement turns the order around, also of the least number.
    let key = if attrs.largest { key.to_string() } else { format!("(~{key})") };
    Ok(Nest::Walk(walk::top(&Axis::of(&dims, along), o.number(0)?, &k, &key)))
}
