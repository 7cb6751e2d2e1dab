//! Matrix product rules: associativity, distributivity, scaling, and merging several products into one.

use of_ops::contraction::MatMul;
use of_ops::elementwise::Add;
use of_ops::movement::{Concat, Slice, Transpose};

use super::{code, equation};
use crate::egraph::rule::{Example, ExampleResult, FLOATS, NUMBERS, Rule, Search};
use crate::egraph::view::{Equation, NodeMatch, Term, View};

pub const RULES: &[Rule] = &[
    equation!(
        "matmul-associates",
        SumOrder,
        "matmul(matmul(a, b), c) <=> matmul(a, matmul(b, c))",
        "a[*n m k] b[k l] c[l p]",
        NUMBERS
    ),
    equation!(
        "matmul-shares-right",
        SumOrder,
        "add(matmul(a, c), matmul(b, c)) = matmul(add(a, b), c)",
        "a[*n m k] b[*n m k] c[k p]",
        NUMBERS
    ),
    equation!(
        "matmul-shares-left",
        SumOrder,
        "add(matmul(a, B), matmul(a, C)) = matmul(a, add(B, C))",
        "a[*n m k] B[k p] C[k p]",
        NUMBERS
    ),
    equation!(
        "matmul-sub-right",
        SumOrder,
        "sub(matmul(a, B), matmul(a, C)) = matmul(a, sub(B, C))",
        "a[*n m k] B[k p] C[k p]",
        NUMBERS
    ),
    // A number that scales a product scales either factor, best the one that is known.
    equation!("matmul-scale", SumOrder, "mul(matmul(x, W), S) = matmul(x, mul(W, S))", "x[*n m k] W[k p] S[]", NUMBERS),
    equation!("scale-matmul", SumOrder, "matmul(mul(x, S), W) = matmul(x, mul(W, S))", "x[*n m k] W[k p] S[]", NUMBERS),
    equation!(
        "matmul-columns",
        SumOrder,
        "mul(matmul(x, W), S) = matmul(x, mul(W, S))",
        "x[*n m k] W[k p] S[p]",
        NUMBERS
    ),
    equation!(
        "matmul-scale-out",
        SumOrder,
        "matmul(mul(x, s), y) = mul(matmul(x, y), s)",
        "x[*n m k] y[*n k p] s[]",
        NUMBERS
    ),
    equation!(
        "matmul-scale-in",
        SumOrder,
        "mul(matmul(x, y), s) = matmul(mul(x, s), y)",
        "x[*n m k] y[*n k p] s[]",
        NUMBERS
    ),
    equation!(
        "matmul-divided",
        SumOrder,
        "div(matmul(x, W), S) = matmul(x, div(W, S))",
        "x[*n m k] W[k p] S[]",
        FLOATS
    ),
    // (x + A) W = x W + A W
    equation!(
        "matmul-shifted",
        SumOrder,
        "matmul(add(x, A), W) = add(matmul(x, W), matmul(A, W))",
        "x[*n m k] A[1 k] W[k p]",
        NUMBERS
    ),
    code!("matmul-merge-right", Exact, merge_right, merge_right_example),
    code!("matmul-sum", SumOrder, sum, sum_example),
    code!("matmul-concat", SumOrder, concat, concat_example),
    code!("matmul-transpose", Exact, transposed, transposed_example),
];

/// The constant matrices that `x` is multiplied with, each once.
fn weights<'a>(view: &View<'a>, x: egg::Id) -> Vec<NodeMatch<'a, MatMul>> {
    let mut out: Vec<NodeMatch<'a, MatMul>> = Vec::new();
    for m in view.users::<MatMul>(x, 0) {
        let w = m.operand(1);
        let matrix = view.dims(w).is_some_and(|d| d.len() == 2);
        // Merged products are not merged again.
        let merged = !view.in_class::<Concat>(w).is_empty() || !view.in_class::<Slice>(w).is_empty();
        if matrix && view.known(w) && !merged && !out.iter().any(|o| view.same(o.operand(1), w)) {
            out.push(m);
        }
    }
    out
}

/// `length` elements of `whole` along `axis`, from `start`.
pub fn part(whole: Term, start: usize, length: usize, axis: usize) -> Term {
    let bound = |n: usize| Term::ints(&[n as i64]);
    Term::op(Slice {}, [whole, bound(start), bound(start + length), bound(axis)])
}

/// x A = (x [A B])[.., a], x B = (x [A B])[.., b]: all products of one matrix with constants become one product
fn merge_right(view: &View<'_>, out: &mut Vec<Equation>) {
    for x in view.classes() {
        let list = weights(view, *x);
        let Some(rank) = view.dims(*x).map(|d| d.len()).filter(|r| *r >= 2 && list.len() >= 2) else { continue };
        let from: Vec<_> = list.iter().map(|m| m.node).collect();
        let w = Term::op(Concat { axis: 1 }, list.iter().map(|m| Term::Class(m.operand(1))));
        let whole = Term::op(MatMul {}, [Term::Class(*x), w]);
        let mut start = 0;
        for m in &list {
            let columns = view.dims(m.operand(1)).map_or(0, |d| d[1]);
            out.push(view.equation(m.class, part(whole.clone(), start, columns, rank - 1), &from));
            start += columns;
        }
    }
}

fn merge_right_example(e: &mut Example<'_, '_>) -> ExampleResult {
    let [m, k, p, q] = e.extents();
    let x = e.input(&[m, k]);
    let (a, b) = (e.known(&[k, p])?, e.known(&[k, q])?);
    Ok(vec![e.rw.create_one(MatMul {}, &[x, a])?, e.rw.create_one(MatMul {}, &[x, b])?])
}

/// x A + y B = [x y] [A; B]
fn sum(view: &View<'_>, out: &mut Vec<Equation>) {
    for add in view.all::<Add>() {
        for l in view.in_class::<MatMul>(add.operand(0)) {
            for r in view.in_class::<MatMul>(add.operand(1)) {
                let ([x, a], [y, b]) = ([l.operand(0), l.operand(1)], [r.operand(0), r.operand(1)]);
                let (Some(dx), Some(da), Some(dy), Some(db)) = (view.dims(x), view.dims(a), view.dims(y), view.dims(b))
                else {
                    continue;
                };
                let rows = dx.len() >= 2 && dx.len() == dy.len() && dx[..dx.len() - 1] == dy[..dy.len() - 1];
                let known = view.known(a) && view.known(b) && !view.known(x) && !view.known(y);
                if rows && known && da.len() == 2 && db.len() == 2 && da[1] == db[1] {
                    let axis = dx.len() as i64 - 1;
                    let left = Term::op(Concat { axis }, [x.into(), y.into()]);
                    let right = Term::op(Concat { axis: 0 }, [a.into(), b.into()]);
                    out.push(view.equation(add.class, Term::op(MatMul {}, [left, right]), &[add.node, l.node, r.node]));
                }
            }
        }
    }
}

fn sum_example(e: &mut Example<'_, '_>) -> ExampleResult {
    let [m, k, l, p] = e.extents();
    let (x, y) = (e.input(&[m, k]), e.input(&[m, l]));
    let (a, b) = (e.known(&[k, p])?, e.known(&[l, p])?);
    let (xa, yb) = (e.rw.create_one(MatMul {}, &[x, a])?, e.rw.create_one(MatMul {}, &[y, b])?);
    Ok(vec![e.rw.create_one(Add {}, &[xa, yb])?])
}

/// [x A, x B] along the last axis = x [A B];  [x A, y A] along the rows = [x, y] A
fn concat(view: &View<'_>, out: &mut Vec<Equation>) {
    for c in view.all::<Concat>() {
        let Some(dims) = view.dims(c.class) else { continue };
        let Ok(axis) = of_ops::shape::axis(c.op.axis, dims.len()) else { continue };
        let pieces: Option<Vec<NodeMatch<'_, MatMul>>> =
            c.node.children.iter().map(|i| view.in_class::<MatMul>(*i).into_iter().next()).collect();
        let Some(pieces) = pieces.filter(|p| p.len() >= 2) else { continue };
        let from: Vec<_> = std::iter::once(c.node).chain(pieces.iter().map(|p| p.node)).collect();
        let shared = |i: usize| pieces.iter().all(|p| view.same(p.operand(i), pieces[0].operand(i)));
        let each = |i: usize| pieces.iter().map(move |p| Term::Class(p.operand(i)));
        let matrices = pieces.iter().all(|p| view.dims(p.operand(1)).is_some_and(|d| d.len() == 2));
        if !matrices || dims.len() < 2 {
            continue;
        }
        if axis == dims.len() - 1 && shared(0) {
            let w = Term::op(Concat { axis: 1 }, each(1));
            out.push(view.equation(c.class, Term::op(MatMul {}, [Term::Class(pieces[0].operand(0)), w]), &from));
        }
        if axis < dims.len() - 1 && shared(1) {
            let x = Term::op(Concat { axis: axis as i64 }, each(0));
            out.push(view.equation(c.class, Term::op(MatMul {}, [x, Term::Class(pieces[0].operand(1))]), &from));
        }
    }
}

fn concat_example(e: &mut Example<'_, '_>) -> ExampleResult {
    let [m, k, p, q] = e.extents();
    if e.rng.int(0, 1) == 0 {
        let (x, a, b) = (e.input(&[m, k]), e.input(&[k, p]), e.input(&[k, q]));
        let (xa, xb) = (e.rw.create_one(MatMul {}, &[x, a])?, e.rw.create_one(MatMul {}, &[x, b])?);
        return Ok(vec![e.rw.create_one(Concat { axis: 1 }, &[xa, xb])?]);
    }
    let (x, y, a) = (e.input(&[m, k]), e.input(&[p, k]), e.input(&[k, q]));
    let (xa, ya) = (e.rw.create_one(MatMul {}, &[x, a])?, e.rw.create_one(MatMul {}, &[y, a])?);
    Ok(vec![e.rw.create_one(Concat { axis: -2 }, &[xa, ya])?])
}

/// (A B)^T = B^T A^T
fn transposed(view: &View<'_>, out: &mut Vec<Equation>) {
    for t in view.all::<Transpose>() {
        let Some(rank) = view.dims(t.class).map(|d| d.len()) else { continue };
        let p = crate::builders::permutation(&t.op, rank);
        let swaps = rank >= 2 && p.iter().enumerate().all(|(i, j)| if i + 2 < rank { i == *j } else { i != *j });
        if !swaps {
            continue;
        }
        for m in view.in_class::<MatMul>(t.operand(0)) {
            let ranks = [0, 1].map(|i| view.dims(m.operand(i)).map(|d| d.len()));
            if ranks == [Some(rank); 2] {
                let turn = |i: usize| Term::op(t.op.clone(), [Term::Class(m.operand(i))]);
                out.push(view.equation(t.class, Term::op(MatMul {}, [turn(1), turn(0)]), &[t.node, m.node]));
            }
        }
    }
}

fn transposed_example(e: &mut Example<'_, '_>) -> ExampleResult {
    let [n, m, k, p] = e.extents();
    let (a, b) = (e.input(&[n, m, k]), e.input(&[n, k, p]));
    let y = e.rw.create_one(MatMul {}, &[a, b])?;
    Ok(vec![e.rw.create_one(Transpose { perm: Some(vec![0, 2, 1]) }, &[y])?])
}
