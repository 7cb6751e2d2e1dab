//! `stablehlo.convolution`.

use of_ir::ValueId;
use of_ops::nn::Conv;

use super::shape::padded;
use crate::import::build::Built;
use crate::import::{Call, ImportError, ImportResult, Importer};
use crate::parse::ast::Attr;

/// Where the axes of an operand are.
struct Layout {
    /// Batch or output features of the kernel.
    first: usize,
    /// Features, or input features of the kernel.
    second: usize,
    spatial: Vec<usize>,
}

impl Layout {
    /// `[b, 0, 1, f]`.
    fn of(list: &Attr, first: &str, second: &str) -> Option<Layout> {
        let Attr::List(list) = list else { return None };
        let word = |name: &str| list.iter().position(|a| matches!(a, Attr::Word(w) if w == name));
        let n = list.len().checked_sub(2)?;
        let axis = |i: usize| list.iter().position(|a| *a == Attr::Int(i as i64));
        Some(Layout { first: word(first)?, second: word(second)?, spatial: (0..n).map(axis).collect::<Option<_>>()? })
    }

    /// First, second, spatial.
    fn order(&self) -> Vec<usize> {
        [&[self.first, self.second], self.spatial.as_slice()].concat()
    }

    /// First, spatial, second.
    fn order_last(&self) -> Vec<usize> {
        [&[self.first], self.spatial.as_slice(), &[self.second]].concat()
    }
}

/// The window of a convolution, an entry for each spatial axis.
struct Window {
    strides: Vec<i64>,
    low: Vec<i64>,
    high: Vec<i64>,
    /// Elements between those of the input, plus 1.
    input: Vec<i64>,
    /// The same of the kernel.
    kernel: Vec<i64>,
    reversed: Vec<i64>,
}

fn window(c: &Call<'_>, n: usize) -> Result<Window, ImportError> {
    let nested = c.attr(&["window"]);
    let find = |pretty: &str, generic: &str| nested.and_then(|w| w.get(pretty)).or(c.attr(&[generic])).cloned();
    let list = |pretty: &str, generic: &str, default: i64| -> Result<Vec<i64>, ImportError> {
        let Some(attr) = find(pretty, generic) else { return Ok(vec![default; n]) };
        let numbers = match &attr {
            Attr::List(flags) if flags.iter().any(|f| matches!(f, Attr::Bool(_))) => {
                Some(flags.iter().map(|f| i64::from(*f == Attr::Bool(true))).collect())
            }
            other => other.ints(),
        };
        let fits = numbers.filter(|l: &Vec<i64>| l.len() == n);
        fits.ok_or_else(|| ImportError::invalid(format!("{pretty} must be {n} numbers")))
    };
    let pads = match find("pad", "padding") {
        None => vec![0; 2 * n],
        Some(attr) => pairs(&attr, n)?,
    };
    let reversed = list("reverse", "window_reversal", 0)?;
    Ok(Window {
        strides: list("stride", "window_strides", 1)?,
        low: pads.iter().copied().step_by(2).collect(),
        high: pads.iter().copied().skip(1).step_by(2).collect(),
        input: list("lhs_dilate", "lhs_dilation", 1)?,
        kernel: list("rhs_dilate", "rhs_dilation", 1)?,
        reversed: (0..n).filter(|i| reversed[*i] != 0).map(|i| i as i64 + 2).collect(),
    })
}

/// `n` pairs, as nested lists or a dense tensor; a splat was repeated by its type.
pub(super) fn pairs(attr: &Attr, n: usize) -> Result<Vec<i64>, ImportError> {
    let numbers = match attr {
        Attr::List(lists) => lists.iter().map(Attr::ints).collect::<Option<Vec<_>>>().map(|l| l.concat()),
        other => other.ints(),
    };
    let fits = numbers.filter(|l| l.len() == 2 * n);
    fits.ok_or_else(|| ImportError::invalid(format!("the padding must be {n} pairs of numbers")))
}

/// `stablehlo.convolution`.
pub(super) fn convolution(cx: &mut Importer<'_, '_>, c: &Call<'_>) -> ImportResult {
    let (x, w) = (c.operand(0)?, c.operand(1)?);
    let numbers = match c.attr(&["dim_numbers", "dimension_numbers"]) {
        Some(Attr::Dialect(_, body)) => Some(&**body),
        other => other,
    };
    let layouts = match numbers {
        Some(Attr::List(lists)) => match lists.as_slice() {
            [a, b, y] => Layout::of(a, "b", "f").zip(Layout::of(b, "o", "i")).zip(Layout::of(y, "b", "f")),
            _ => None,
        },
        _ => None,
    };
    let ((a, b), y) = layouts
        .ok_or_else(|| ImportError::invalid("it has no dimension numbers like [b, 0, f]x[0, i, o]->[b, 0, f]"))?;
    let n = a.spatial.len();
    if n == 0 {
        return Err(ImportError::unsupported("no spatial axis"));
    }
    let mut window = window(c, n)?;
    let count = |key: &str| c.attr(&[key]).and_then(Attr::int).unwrap_or(1);
    let (groups, batch_groups) = (count("feature_group_count"), count("batch_group_count"));
    let (to, own) = (c.ty(0)?.dtype, cx.dtype(x)?);
    let wide = if to.bits() > own.bits() { to } else { own };
    let (x, w) = (cx.cast(x, wide)?, cx.cast(w, wide)?);
    let w = cx.transpose(w, &b.order())?;
    let w = cx.reverse(w, &window.reversed)?;
    // A layout that the IR has stays.
    let is_last = |l: &Layout| l.order_last().iter().copied().eq(0..n + 2);
    let last = is_last(&a) && is_last(&y) && batch_groups == 1;
    let mut x = cx.transpose(x, &if last { a.order_last() } else { a.order() })?;
    x = dilated(cx, x, &mut window, if last { 1 } else { 2 })?;
    let mut groups = groups;
    if batch_groups != 1 {
        // Each part of the batch has its own output features: parts become groups of features.
        let dims = cx.dims(x)?;
        let split = [&[batch_groups, dims[0] / batch_groups], &dims[1..]].concat();
        let parts = cx.reshape(x, &split)?;
        let perm: Vec<usize> = [1, 0].into_iter().chain(2..split.len()).collect();
        let parts = cx.transpose(parts, &perm)?;
        x = cx.reshape(parts, &[&[dims[0] / batch_groups, batch_groups * dims[1]], &dims[2..]].concat())?;
        groups *= batch_groups;
    }
    let op = Conv {
        strides: window.strides,
        pads: [window.low, window.high].concat(),
        dilations: window.kernel,
        group: groups,
        auto_pad: "NOTSET".into(),
        channels_last: last,
    };
    let out = cx.one(op, &[x, w])?;
    let order = if last { y.order_last() } else { y.order() };
    let mut back = vec![0; n + 2];
    order.iter().enumerate().for_each(|(i, axis)| back[*axis] = i);
    let out = cx.transpose(out, &back)?;
    Ok(vec![cx.cast(out, to)?])
}

/// The input with the zeros between its elements, and cut where its padding is negative; what is left of the padding stays.
fn dilated(cx: &mut Importer<'_, '_>, x: ValueId, window: &mut Window, first: usize) -> Built {
    let rank = cx.dims(x)?.len();
    let at = |list: &[i64], f: fn(i64) -> i64| {
        let mut all = vec![0; rank];
        list.iter().enumerate().for_each(|(i, v)| all[first + i] = f(*v));
        all
    };
    let (low, high) = (at(&window.low, |v| v.min(0)), at(&window.high, |v| v.min(0)));
    let between = at(&window.input, |v| v - 1);
    if between.iter().any(|b| *b < 0) {
        return Err(ImportError::invalid("a dilation of the input is below 1"));
    }
    window.low.iter_mut().chain(&mut window.high).for_each(|v| *v = (*v).max(0));
    if low.iter().chain(&high).chain(&between).all(|v| *v == 0) {
        return Ok(x);
    }
    let zero = cx.number(0.0, cx.dtype(x)?)?;
    padded(cx, x, zero, &low, &high, &between)
}
