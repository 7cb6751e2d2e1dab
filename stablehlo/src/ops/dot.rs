//! Products.

use of_ir::ValueId;
use of_ops::contraction::{Einsum, MatMul};

use super::axes;
use crate::import::{Call, ImportError, ImportResult, Importer};
use crate::parse::ast::Attr;

/// Axes that both operands have, those that are summed and those that are not.
struct Axes {
    batch: [Vec<usize>; 2],
    summed: [Vec<usize>; 2],
}

/// `stablehlo.dot`: rows by columns.
pub(super) fn dot(cx: &mut Importer<'_, '_>, c: &Call<'_>) -> ImportResult {
    let rank = cx.dims(c.operand(0)?)?.len();
    let summed = [vec![rank.saturating_sub(1)], vec![0]];
    contract(cx, c, &Axes { batch: [Vec::new(), Vec::new()], summed })
}

/// `stablehlo.dot_general`.
pub(super) fn dot_general(cx: &mut Importer<'_, '_>, c: &Call<'_>) -> ImportResult {
    let ranks = [cx.dims(c.operand(0)?)?.len(), cx.dims(c.operand(1)?)?.len()];
    let generic = c.attr(&["dot_dimension_numbers"]);
    let pair = |pretty: &str, keys: [&str; 2]| -> Result<[Vec<usize>; 2], ImportError> {
        let lists = match (c.attr(&[pretty]), generic) {
            (Some(Attr::List(lists)), _) => [lists.first().cloned(), lists.get(1).cloned()],
            (_, Some(g)) => keys.map(|k| g.get(k).cloned()),
            _ => [None, None],
        };
        let mut out = [Vec::new(), Vec::new()];
        for ((list, rank), out) in lists.into_iter().zip(ranks).zip(&mut out) {
            let ints = list.map_or(Some(Vec::new()), |l| l.ints());
            *out = axes(&ints.ok_or_else(|| ImportError::invalid(format!("{pretty} must be axes")))?, rank)?;
        }
        Ok(out)
    };
    let batch = pair("batching_dims", ["lhs_batching_dimensions", "rhs_batching_dimensions"])?;
    let summed = pair("contracting_dims", ["lhs_contracting_dimensions", "rhs_contracting_dimensions"])?;
    if batch[0].len() != batch[1].len() || summed[0].len() != summed[1].len() {
        return Err(ImportError::invalid("the operands have different numbers of batching or contracting axes"));
    }
    contract(cx, c, &Axes { batch, summed })
}

fn contract(cx: &mut Importer<'_, '_>, c: &Call<'_>, axes: &Axes) -> ImportResult {
    let (mut a, mut b) = (c.operand(0)?, c.operand(1)?);
    let to = c.ty(0)?.dtype;
    // Narrow operands with a wider result are multiplied in its type.
    let (from, other) = (cx.dtype(a)?, cx.dtype(b)?);
    if !from.is_float() && !from.is_int() {
        return Err(ImportError::unsupported(format!("operands of type {from}")));
    }
    let wide = if to.bits() >= from.bits().max(other.bits()) { to } else { from };
    a = cx.cast(a, wide)?;
    b = cx.cast(b, wide)?;
    let (left, right) = (cx.dims(a)?, cx.dims(b)?);
    let y = match is_matmul(axes, left.len(), right.len()) {
        true => cx.one(MatMul {}, &[a, b])?,
        false => {
            let equation = equation(axes, left.len(), right.len())?;
            cx.one(Einsum { equation: equation.as_str().into() }, &[a, b])?
        }
    };
    Ok(vec![cx.cast(y, to)?])
}

/// Whether `of.matmul` is the product: batch axes first and in order, then rows and columns.
fn is_matmul(axes: &Axes, left: usize, right: usize) -> bool {
    let n = axes.batch[0].len();
    let in_front = axes.batch.iter().all(|list| list.iter().copied().eq(0..n));
    let rows = axes.summed[0] == [left.wrapping_sub(1)] && axes.summed[1] == [n];
    // Without a batch any number of axes may be before the last one.
    in_front && rows && right == n + 2 && (left == n + 2 || (n == 0 && left >= 2))
}

/// The letters of all axes.
fn equation(axes: &Axes, left: usize, right: usize) -> Result<String, ImportError> {
    let mut letters = ('a'..='z').chain('A'..='Z');
    let mut next = || letters.next().ok_or_else(|| ImportError::unsupported("more than 52 axes"));
    let mut names = [vec![None; left], vec![None; right]];
    let mut result = String::new();
    for (i, j) in axes.batch[0].iter().zip(&axes.batch[1]) {
        let letter = next()?;
        (names[0][*i], names[1][*j]) = (Some(letter), Some(letter));
        result.push(letter);
    }
    for (i, j) in axes.summed[0].iter().zip(&axes.summed[1]) {
        let letter = next()?;
        (names[0][*i], names[1][*j]) = (Some(letter), Some(letter));
    }
    for name in names.iter_mut().flatten().filter(|n| n.is_none()) {
        let letter = next()?;
        *name = Some(letter);
        result.push(letter);
    }
    let [a, b] = names.map(|list| list.into_iter().flatten().collect::<String>());
    Ok(format!("{a},{b}->{result}"))
}

/// A product whose axes are put into another order, as one product. JAX prints `einsum` with the operands in an order of
/// its own and a transpose behind it: the operand whose axis is the first of the result is the left one here, so that the
/// second product of an attention reads the weights as they are. `None` if `x` is no such product.
pub(super) fn transposed(
    cx: &mut Importer<'_, '_>,
    x: ValueId,
    perm: &[usize],
) -> Result<Option<ValueId>, ImportError> {
    let g = cx.rw.graph();
    let Some(id) = g.def_op(x) else { return Ok(None) };
    let Some(einsum) = of_ops::list::as_op::<Einsum>(g, id) else { return Ok(None) };
    let [a, b] = g.op(id).operands[..] else { return Ok(None) };
    let parts = einsum.equation.split_once("->").and_then(|(left, to)| Some((left.split_once(',')?, to)));
    let Some(((left, right), to)) = parts else { return Ok(None) };
    let letters: Vec<char> = to.chars().collect();
    let order: String = perm.iter().filter_map(|p| letters.get(*p)).collect();
    let own = |l: &char| left.contains(*l) != right.contains(*l);
    let swap = order.chars().find(own).is_some_and(|l| right.contains(l));
    let (left, right, a, b) = if swap { (right, left, b, a) } else { (left, right, a, b) };
    let equation = format!("{left},{right}->{order}");
    cx.one(Einsum { equation: equation.as_str().into() }, &[a, b]).map(Some)
}
