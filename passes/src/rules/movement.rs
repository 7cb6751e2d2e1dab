//! Data movement rules: transposes, reshapes, slices and concatenations compose, cancel, and commute with elementwise
//! ops.

use egg::Id;
use of_ops::contraction::MatMul;
use of_ops::elementwise::{Add, Mul, Tanh};
use of_ops::movement::{Concat, Reshape, Slice, Transpose};

use super::code;
use super::product::part;
use crate::builders::{permutation, transpose_by};
use crate::egraph::language::Node;
use crate::egraph::rule::{Example, ExampleResult, Rule, Search};
use crate::egraph::view::{Equation, NodeMatch, Term, View};

pub const RULES: &[Rule] = &[
    code!("transpose-transpose", Exact, transpose_transpose, transpose_transpose_example),
    code!("reshape-reshape", Exact, reshape_reshape, reshape_reshape_example),
    code!("slice-slice", Exact, slice_slice, slice_slice_example),
    code!("slice-concat", Exact, slice_concat, slice_concat_example),
    code!("concat-slices", Exact, concat_slices, concat_slices_example),
    code!("concat-concat", Exact, concat_concat, concat_concat_example),
    code!("map-transpose", Exact, map_transpose, map_transpose_example),
    code!("transpose-map", Exact, transpose_map, transpose_map_example),
    code!("reshape-map", Exact, reshape_map, reshape_map_example),
    code!("map-reshape", Exact, map_reshape, map_reshape_example),
    code!("slice-map", Exact, slice_map, slice_map_example),
    code!("map-slice", Exact, map_slice, map_slice_example),
    code!("concat-maps", Exact, concat_maps, concat_maps_example),
    code!("slice-matmul", Exact, slice_matmul, slice_matmul_example),
];

/// t_p(t_q(x)) = t_(q∘p)(x);  t_id(x) = x
fn transpose_transpose(view: &View<'_>, out: &mut Vec<Equation>) {
    for outer in view.all::<Transpose>() {
        let Some(rank) = view.dims(outer.class).map(|d| d.len()) else { continue };
        let p = permutation(&outer.op, rank);
        if p.is_sorted() {
            out.push(view.equation(outer.class, outer.operand(0).into(), &[outer.node]));
        }
        for inner in view.in_class::<Transpose>(outer.operand(0)) {
            let q = permutation(&inner.op, rank);
            let composed: Vec<usize> = p.iter().map(|i| q[*i]).collect();
            let term = Term::op(transpose_by(&composed), [inner.operand(0).into()]);
            out.push(view.equation(outer.class, term, &[outer.node, inner.node]));
        }
    }
}

fn transpose_transpose_example(e: &mut Example<'_, '_>) -> ExampleResult {
    let [a, b, c, _] = e.extents();
    let x = e.input(&[a, b, c]);
    let (p, q) = (e.permutation(3), e.permutation(3));
    let t = e.rw.create_one(transpose_by(&p), &[x])?;
    Ok(vec![e.rw.create_one(transpose_by(&q), &[t])?])
}

/// A reshape to fixed dimensions.
fn reshaped(x: Term, dims: &[usize]) -> Term {
    let list: Vec<i64> = dims.iter().map(|d| *d as i64).collect();
    Term::op(Reshape { allowzero: true }, [x, Term::ints(&list)])
}

/// r(r(x)) = r(x);  r(x) = x where the shape stays the same
fn reshape_reshape(view: &View<'_>, out: &mut Vec<Equation>) {
    for outer in view.all::<Reshape>() {
        let Some(dims) = view.dims(outer.class) else { continue };
        if view.dims(outer.operand(0)).as_ref() == Some(&dims) {
            out.push(view.equation(outer.class, outer.operand(0).into(), &[outer.node]));
        }
        for inner in view.in_class::<Reshape>(outer.operand(0)) {
            let term = reshaped(inner.operand(0).into(), &dims);
            out.push(view.equation(outer.class, term, &[outer.node, inner.node]));
        }
    }
}

fn reshape_reshape_example(e: &mut Example<'_, '_>) -> ExampleResult {
    let [a, b, c, _] = e.extents();
    let x = e.input(&[a, b, c]);
    let y = e.reshape(x, &[a * b, c])?;
    Ok(vec![e.reshape(y, &[a, b * c])?])
}

/// A slice along one axis with step 1: axis, start, length.
pub fn range(view: &View<'_>, s: &NodeMatch<'_, Slice>) -> Option<(usize, usize, usize)> {
    let (from, to) = (view.dims(s.operand(0))?, view.dims(s.class)?);
    let axis = match s.node.children.get(3).filter(|a| !view.left_out(**a)) {
        Some(a) => *view.ints(*a)?.first().filter(|_| view.dims(*a) == Some(vec![1]))?,
        None if from.len() == 1 => 0,
        None => return None,
    };
    if s.node.children.get(4).is_some_and(|c| !view.left_out(*c) && view.ints(*c) != Some(vec![1])) {
        return None;
    }
    let axis = of_ops::shape::axis(axis, from.len()).ok()?;
    let start = *view.ints(s.operand(1))?.first()?;
    let n = from[axis] as i64;
    let start = if start < 0 { (start + n).max(0) } else { start.min(n) };
    Some((axis, start as usize, to[axis]))
}

/// x[a..][b..] = x[a+b..] along one axis;  x[..] = x
fn slice_slice(view: &View<'_>, out: &mut Vec<Equation>) {
    for outer in view.all::<Slice>() {
        let Some((axis, start, length)) = range(view, &outer) else { continue };
        let x = outer.operand(0);
        if view.dims(x) == view.dims(outer.class) {
            out.push(view.equation(outer.class, x.into(), &[outer.node]));
        }
        for inner in view.in_class::<Slice>(x) {
            if let Some((a, s, _)) = range(view, &inner).filter(|(a, _, _)| *a == axis) {
                let term = part(inner.operand(0).into(), s + start, length, a);
                out.push(view.equation(outer.class, term, &[outer.node, inner.node]));
            }
        }
    }
}

fn slice_slice_example(e: &mut Example<'_, '_>) -> ExampleResult {
    let x = e.input(&[3, 9]);
    let y = e.slice(x, 1, 2, 6)?;
    Ok(vec![e.slice(y, 1, 1, 3)?])
}

/// [x, y][a..b] along the axis = the one piece that holds a..b, or a part of it
fn slice_concat(view: &View<'_>, out: &mut Vec<Equation>) {
    for s in view.all::<Slice>() {
        let Some((axis, start, length)) = range(view, &s) else { continue };
        for c in view.in_class::<Concat>(s.operand(0)) {
            let Some(rank) = view.dims(c.class).map(|d| d.len()) else { continue };
            if of_ops::shape::axis(c.op.axis, rank) != Ok(axis) {
                continue;
            }
            let mut at = 0;
            for piece in &c.node.children {
                let Some(n) = view.dims(*piece).map(|d| d[axis]) else { break };
                if start >= at && start + length <= at + n {
                    let term = if length == n {
                        Term::Class(*piece)
                    } else {
                        part(Term::Class(*piece), start - at, length, axis)
                    };
                    out.push(view.equation(s.class, term, &[s.node, c.node]));
                }
                at += n;
            }
        }
    }
}

fn slice_concat_example(e: &mut Example<'_, '_>) -> ExampleResult {
    let [a, b, m, _] = e.extents();
    let (x, y) = (e.input(&[m, a]), e.input(&[m, b]));
    let c = e.rw.create_one(Concat { axis: 1 }, &[x, y])?;
    Ok(vec![e.slice(c, 1, a as i64, b as i64)?, e.slice(c, 1, 0, 1)?])
}

/// [x[..a], x[a..b]] = x[..b]
fn concat_slices(view: &View<'_>, out: &mut Vec<Equation>) {
    for c in view.all::<Concat>() {
        let Some(rank) = view.dims(c.class).map(|d| d.len()) else { continue };
        let Ok(axis) = of_ops::shape::axis(c.op.axis, rank) else { continue };
        let Some(first) = c.node.children.first() else { continue };
        for head in view.in_class::<Slice>(*first) {
            let Some((_, start, mut length)) = range(view, &head).filter(|(a, _, _)| *a == axis) else { continue };
            let mut from = vec![c.node, head.node];
            let all = c.node.children[1..].iter().all(|piece| {
                let next = view.in_class::<Slice>(*piece).into_iter().find_map(|s| {
                    let (a, b, n) = range(view, &s)?;
                    (a == axis && b == start + length && view.same(s.operand(0), head.operand(0)))
                        .then_some((s.node, n))
                });
                next.is_some_and(|(node, n)| {
                    length += n;
                    from.push(node);
                    true
                })
            });
            if all && c.node.children.len() > 1 {
                let whole = view.dims(head.operand(0)).is_some_and(|d| d[axis] == length);
                let x = Term::Class(head.operand(0));
                out.push(view.equation(c.class, if whole { x } else { part(x, start, length, axis) }, &from));
            }
        }
    }
}

fn concat_slices_example(e: &mut Example<'_, '_>) -> ExampleResult {
    let x = e.input(&[2, 7]);
    let (a, b) = (e.slice(x, 1, 0, 3)?, e.slice(x, 1, 3, 2)?);
    let c = e.slice(x, 1, 5, 2)?;
    Ok(vec![e.rw.create_one(Concat { axis: 1 }, &[a, b])?, e.rw.create_one(Concat { axis: 1 }, &[a, b, c])?])
}

/// [[x, y], z] = [x, y, z]
fn concat_concat(view: &View<'_>, out: &mut Vec<Equation>) {
    for outer in view.all::<Concat>() {
        let Some(rank) = view.dims(outer.class).map(|d| d.len()) else { continue };
        let axis = of_ops::shape::axis(outer.op.axis, rank);
        for (i, piece) in outer.node.children.iter().enumerate() {
            for inner in view.in_class::<Concat>(*piece) {
                if of_ops::shape::axis(inner.op.axis, rank) == axis {
                    let mut list = outer.node.children.clone();
                    list.splice(i..=i, inner.node.children.iter().copied());
                    let term = Term::op(outer.op.clone(), list.into_iter().map(Term::Class));
                    out.push(view.equation(outer.class, term, &[outer.node, inner.node]));
                }
            }
        }
    }
}

fn concat_concat_example(e: &mut Example<'_, '_>) -> ExampleResult {
    let [a, b, c, m] = e.extents();
    let (x, y, z) = (e.input(&[m, a]), e.input(&[m, b]), e.input(&[m, c]));
    let xy = e.rw.create_one(Concat { axis: 1 }, &[x, y])?;
    Ok(vec![e.rw.create_one(Concat { axis: -1 }, &[z, xy])?])
}

/// An elementwise operand before a movement: moved likewise, or one number.
fn unmoved(view: &View<'_>, x: Id, moved: impl Fn(Id) -> Option<Id>) -> Option<Term> {
    match view.dims(x) {
        Some(d) if d.is_empty() => Some(Term::Class(x)),
        _ => moved(x).map(Term::Class),
    }
}

/// An elementwise op on other operands.
fn map_of(view: &View<'_>, node: &Node, operands: Vec<Term>) -> Option<Term> {
    let (def, attrs) = view.graph.op_and_attrs(node)?;
    Some(Term::Op(def, attrs.clone(), operands))
}

/// f(t(x), t(y)) = t(f(x, y))
fn map_transpose(view: &View<'_>, out: &mut Vec<Equation>) {
    for (class, node) in view.maps() {
        let permutations = node.children.iter().flat_map(|c| view.in_class::<Transpose>(*c));
        let Some(t) = permutations.into_iter().next() else { continue };
        let Some(dims) = view.dims(class).filter(|d| view.dims(t.class).as_ref() == Some(d)) else { continue };
        let p = permutation(&t.op, dims.len());
        let source = |x: Id| {
            let found = view.in_class::<Transpose>(x);
            let same = found
                .into_iter()
                .find(|f| view.dims(x).is_some_and(|d| d.len() == dims.len()) && permutation(&f.op, dims.len()) == p);
            same.map(|f| f.operand(0))
        };
        let operands: Option<Vec<Term>> = node.children.iter().map(|c| unmoved(view, *c, source)).collect();
        if let Some(inner) = operands.and_then(|o| map_of(view, node, o)) {
            out.push(view.equation(class, Term::op(transpose_by(&p), [inner]), &[node, t.node]));
        }
    }
}

fn map_transpose_example(e: &mut Example<'_, '_>) -> ExampleResult {
    let [a, b, c, _] = e.extents();
    let (x, y, s) = (e.input(&[a, b, c]), e.input(&[a, b, c]), e.input(&[]));
    let p = e.permutation(3);
    let (tx, ty) = (e.rw.create_one(transpose_by(&p), &[x])?, e.rw.create_one(transpose_by(&p), &[y])?);
    let sum = e.rw.create_one(Add {}, &[tx, ty])?;
    Ok(vec![sum, e.rw.create_one(Mul {}, &[tx, s])?])
}

/// t(f(x, y)) = f(t(x), t(y)), where x and y have the shape of the result or are one number
fn transpose_map(view: &View<'_>, out: &mut Vec<Equation>) {
    for t in view.all::<Transpose>() {
        let x = t.operand(0);
        for node in view.nodes(view.graph.egg.find(x)).iter().filter(|n| view.is_elementwise(n)) {
            let operands = lifted(view, node, x, |c| Term::op(t.op.clone(), [Term::Class(c)]));
            if let Some(term) = operands.and_then(|o| map_of(view, node, o)) {
                out.push(view.equation(t.class, term, &[t.node, node]));
            }
        }
    }
}

/// The operands of an elementwise op with `f` applied to those of the shape of `whole`; numbers stay, others fail.
fn lifted(view: &View<'_>, node: &Node, whole: Id, f: impl Fn(Id) -> Term) -> Option<Vec<Term>> {
    let dims = view.dims(whole)?;
    let one = |c: &Id| match view.dims(*c)? {
        d if d.is_empty() => Some(Term::Class(*c)),
        d if d == dims => Some(f(*c)),
        _ => None,
    };
    node.children.iter().map(one).collect()
}

fn transpose_map_example(e: &mut Example<'_, '_>) -> ExampleResult {
    let [a, b, c, _] = e.extents();
    let (x, y) = (e.input(&[a, b, c]), e.input(&[a, b, c]));
    let p = e.permutation(3);
    let sum = e.rw.create_one(Add {}, &[x, y])?;
    Ok(vec![e.rw.create_one(transpose_by(&p), &[sum])?])
}

/// r(f(x, y)) = f(r(x), r(y)), where x and y have the shape of the result or are one number
fn reshape_map(view: &View<'_>, out: &mut Vec<Equation>) {
    for r in view.all::<Reshape>() {
        let (x, Some(dims)) = (r.operand(0), view.dims(r.class)) else { continue };
        for node in view.nodes(view.graph.egg.find(x)).iter().filter(|n| view.is_elementwise(n)) {
            let operands = lifted(view, node, x, |c| reshaped(Term::Class(c), &dims));
            if let Some(term) = operands.and_then(|o| map_of(view, node, o)) {
                out.push(view.equation(r.class, term, &[r.node, node]));
            }
        }
    }
}

fn reshape_map_example(e: &mut Example<'_, '_>) -> ExampleResult {
    let [a, b, _, _] = e.extents();
    let (x, s) = (e.input(&[a, b]), e.input(&[]));
    let y = e.rw.create_one(Mul {}, &[x, s])?;
    Ok(vec![e.reshape(y, &[b, a])?])
}

/// f(r(x), s) = r(f(x, s)), where s is one number
fn map_reshape(view: &View<'_>, out: &mut Vec<Equation>) {
    for (class, node) in view.maps() {
        let Some(dims) = view.dims(class) else { continue };
        let large: Vec<Id> = node.children.iter().copied().filter(|c| view.dims(*c) != Some(vec![])).collect();
        let [x] = large[..] else { continue };
        for r in view.in_class::<Reshape>(x).into_iter().filter(|_| view.dims(x) == Some(dims.clone())) {
            let source = r.operand(0);
            let term = |c: &Id| Term::Class(if view.same(*c, x) { source } else { *c });
            if let Some(inner) = map_of(view, node, node.children.iter().map(term).collect()) {
                out.push(view.equation(class, reshaped(inner, &dims), &[node, r.node]));
            }
        }
    }
}

fn map_reshape_example(e: &mut Example<'_, '_>) -> ExampleResult {
    let [a, b, _, _] = e.extents();
    let (x, s) = (e.input(&[a, b]), e.input(&[]));
    let y = e.reshape(x, &[b, a])?;
    Ok(vec![e.rw.create_one(Mul {}, &[s, y])?])
}

/// f(x, y)[a..b] = f(x[a..b], y[a..b]), where x and y have the shape of the result or are one number
fn slice_map(view: &View<'_>, out: &mut Vec<Equation>) {
    for s in view.all::<Slice>() {
        let Some((axis, start, length)) = range(view, &s) else { continue };
        let x = s.operand(0);
        for node in view.nodes(view.graph.egg.find(x)).iter().filter(|n| view.is_elementwise(n)) {
            let operands = lifted(view, node, x, |c| part(Term::Class(c), start, length, axis));
            if let Some(term) = operands.and_then(|o| map_of(view, node, o)) {
                out.push(view.equation(s.class, term, &[s.node, node]));
            }
        }
    }
}

fn slice_map_example(e: &mut Example<'_, '_>) -> ExampleResult {
    let (x, y) = (e.input(&[2, 6]), e.input(&[2, 6]));
    let sum = e.rw.create_one(Add {}, &[x, y])?;
    Ok(vec![e.slice(sum, 1, 1, 4)?])
}

/// f(x[a..b], y[a..b]) = f(x, y)[a..b] for maps of two operands or one and a number
fn map_slice(view: &View<'_>, out: &mut Vec<Equation>) {
    for (class, node) in view.maps() {
        let Some(first) = node.children.iter().find(|c| view.dims(**c) == view.dims(class)) else { continue };
        if node.children.len() < 2 {
            continue;
        }
        for s in view.in_class::<Slice>(*first) {
            let (Some(whole), Some((axis, start, length))) = (view.dims(s.operand(0)), range(view, &s)) else {
                continue;
            };
            let source = |x: Id| {
                let found = view.in_class::<Slice>(x).into_iter();
                let mut alike = found.filter(|f| view.dims(f.operand(0)).as_ref() == Some(&whole));
                alike.find(|f| range(view, f) == Some((axis, start, length))).map(|f| f.operand(0))
            };
            let operands: Option<Vec<Term>> = node.children.iter().map(|c| unmoved(view, *c, source)).collect();
            if let Some(inner) = operands.and_then(|o| map_of(view, node, o)) {
                out.push(view.equation(class, part(inner, start, length, axis), &[node, s.node]));
            }
        }
    }
}

fn map_slice_example(e: &mut Example<'_, '_>) -> ExampleResult {
    let (x, y) = (e.input(&[2, 6]), e.input(&[2, 6]));
    let (a, b) = (e.slice(x, 1, 1, 4)?, e.slice(y, 1, 1, 4)?);
    Ok(vec![e.rw.create_one(Add {}, &[a, b])?])
}

/// [f(x), f(y)] = f([x, y]) for maps of one operand
fn concat_maps(view: &View<'_>, out: &mut Vec<Equation>) {
    for c in view.all::<Concat>() {
        let Some(first) = c.node.children.first().filter(|_| c.node.children.len() > 1) else { continue };
        for node in
            view.nodes(view.graph.egg.find(*first)).iter().filter(|n| n.children.len() == 1 && view.is_elementwise(n))
        {
            let pieces: Option<Vec<&Node>> = (c.node.children.iter())
                .map(|piece| view.nodes(view.graph.egg.find(*piece)).iter().find(|n| n.kind == node.kind))
                .collect();
            let Some(pieces) = pieces else { continue };
            let joined = Term::op(c.op.clone(), pieces.iter().map(|n| Term::Class(n.children[0])));
            if let Some(term) = map_of(view, node, vec![joined]) {
                let from: Vec<&Node> = std::iter::once(c.node).chain(pieces).collect();
                out.push(view.equation(c.class, term, &from));
            }
        }
    }
}

fn concat_maps_example(e: &mut Example<'_, '_>) -> ExampleResult {
    let [a, b, m, _] = e.extents();
    let (x, y) = (e.input(&[m, a]), e.input(&[m, b]));
    let (x, y) = (e.rw.create_one(Tanh {}, &[x])?, e.rw.create_one(Tanh {}, &[y])?);
    Ok(vec![e.rw.create_one(Concat { axis: 1 }, &[x, y])?])
}

/// (x W)[.., a..b] = x W[.., a..b], where W is constant
fn slice_matmul(view: &View<'_>, out: &mut Vec<Equation>) {
    for s in view.all::<Slice>() {
        let Some((axis, start, length)) = range(view, &s) else { continue };
        for m in view.in_class::<MatMul>(s.operand(0)) {
            let (x, w) = (m.operand(0), m.operand(1));
            let rank = view.dims(m.class).map_or(0, |d| d.len());
            let ranks = view.dims(x).is_some_and(|d| d.len() == rank) && view.dims(w).is_some_and(|d| d.len() == 2);
            if ranks && axis + 1 == rank && view.known(w) {
                let term = Term::op(MatMul {}, [Term::Class(x), part(Term::Class(w), start, length, 1)]);
                out.push(view.equation(s.class, term, &[s.node, m.node]));
            }
        }
    }
}

fn slice_matmul_example(e: &mut Example<'_, '_>) -> ExampleResult {
    let x = e.input(&[2, 3]);
    let w = e.known(&[3, 5])?;
    let y = e.rw.create_one(MatMul {}, &[x, w])?;
    Ok(vec![e.slice(y, 1, 1, 3)?])
}
