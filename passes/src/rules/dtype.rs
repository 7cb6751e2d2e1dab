//! Cast and dequantization rules: they commute with movements, so that narrow types move.

use of_ir::DType;
use of_ops::elementwise::Cast;
use of_ops::movement::{Concat, Reshape, Slice, Transpose};
use of_ops::nn::DequantizeLinear;

use super::code;
use crate::egraph::language::Node;
use crate::egraph::rule::{Example, ExampleResult, Rule, Search};
use crate::egraph::view::{Equation, NodeMatch, Term, View};
use crate::matchers::holds_all_values;

pub const RULES: &[Rule] = &[
    code!("cast-cast", Exact, cast_cast, cast_cast_example),
    code!("dequantize-transpose", Exact, |v, out| dequantized(v, v.all::<Transpose>(), out), |e| {
        let x = e.quantised(&[3, 4])?;
        Ok(vec![e.rw.create_one(Transpose { perm: None }, &[x])?])
    }),
    code!("dequantize-reshape", Exact, |v, out| dequantized(v, v.all::<Reshape>(), out), |e| {
        let x = e.quantised(&[3, 4])?;
        Ok(vec![e.reshape(x, &[2, 6])?])
    }),
    code!("dequantize-slice", Exact, |v, out| dequantized(v, v.all::<Slice>(), out), |e| {
        let x = e.quantised(&[3, 4])?;
        Ok(vec![e.slice(x, 1, 1, 2)?])
    }),
    code!("dequantize-concat", Exact, dequantize_concat, |e| {
        let x = e.quantised(&[3, 4])?;
        let y = e.slice(x, 0, 0, 2)?;
        let (q, s, z) = (e.whole(&[2, 4], DType::U8), e.known_positive(&[])?, e.known_whole(&[], DType::U8)?);
        let dq = DequantizeLinear { axis: 0, block_size: 0, dtype: None };
        let (a, b) = (e.rw.create_one(dq.clone(), &[q, s, z])?, e.rw.create_one(dq, &[q, s, z])?);
        Ok(vec![e.rw.create_one(Concat { axis: 0 }, &[a, b])?, y])
    }),
];

/// cast_a(cast_b(x)) = cast_a(x) where b represents every value of x;  cast_t(x) = x for x of type t
fn cast_cast(view: &View<'_>, out: &mut Vec<Equation>) {
    for outer in view.all::<Cast>() {
        let x = outer.operand(0);
        if view.dtype(x) == Some(outer.op.to) {
            out.push(view.equation(outer.class, x.into(), &[outer.node]));
        }
        for inner in view.in_class::<Cast>(x) {
            let source = inner.operand(0);
            if view.dtype(source).is_some_and(|t| holds_all_values(inner.op.to, t)) {
                let term = Term::op(outer.op.clone(), [Term::Class(source)]);
                out.push(view.equation(outer.class, term, &[outer.node, inner.node]));
            }
        }
    }
}

fn cast_cast_example(e: &mut Example<'_, '_>) -> ExampleResult {
    let (narrow, wide, to) = e.rng.pick(&[
        (DType::I32, DType::I64, DType::F32),
        (DType::F32, DType::F64, DType::F32),
        (DType::U8, DType::F32, DType::I32),
    ]);
    let x = e.whole(&[2, 3], narrow);
    let y = e.rw.create_one(Cast::to(wide), &[x])?;
    Ok(vec![e.rw.create_one(Cast::to(to), &[y])?])
}

/// Whether a dequantization has a single scale.
fn of_one_scale(view: &View<'_>, node: &Node) -> bool {
    view.dims(node.children[1]).is_some_and(|d| d.iter().all(|n| *n == 1))
}

/// m(dq(x)) = dq(m(x)) for movements m, with a single scale
fn dequantized<T>(view: &View<'_>, movements: Vec<NodeMatch<'_, T>>, out: &mut Vec<Equation>) {
    for m in movements {
        for dq in view.in_class::<DequantizeLinear>(m.node.children[0]) {
            let Some((def, attrs)) = view.graph.op_and_attrs(m.node).filter(|_| of_one_scale(view, dq.node)) else {
                continue;
            };
            let rest = m.node.children[1..].iter().map(|c| Term::Class(*c));
            let moved = Term::Op(def, attrs.clone(), std::iter::once(Term::Class(dq.operand(0))).chain(rest).collect());
            let parameters = dq.node.children[1..].iter().map(|c| Term::Class(*c));
            let term = Term::op(dq.op.clone(), std::iter::once(moved).chain(parameters));
            out.push(view.equation(m.class, term, &[m.node, dq.node]));
        }
    }
}

/// [dq(x), dq(y)] = dq([x, y]) with the same scale
fn dequantize_concat(view: &View<'_>, out: &mut Vec<Equation>) {
    for c in view.all::<Concat>() {
        let Some(first) = c.node.children.first().filter(|_| c.node.children.len() > 1) else { continue };
        for head in view.in_class::<DequantizeLinear>(*first).into_iter().filter(|h| of_one_scale(view, h.node)) {
            let alike = |n: &&Node| n.kind == head.node.kind && n.children[1..] == head.node.children[1..];
            let pieces: Option<Vec<&Node>> = (c.node.children.iter())
                .map(|piece| view.nodes(view.graph.egg.find(*piece)).iter().find(alike))
                .collect();
            let Some(pieces) = pieces else { continue };
            let joined = Term::op(c.op.clone(), pieces.iter().map(|n| Term::Class(n.children[0])));
            let parameters = head.node.children[1..].iter().map(|c| Term::Class(*c));
            let term = Term::op(head.op.clone(), std::iter::once(joined).chain(parameters));
            let from: Vec<&Node> = std::iter::once(c.node).chain(pieces).collect();
            out.push(view.equation(c.class, term, &from));
        }
    }
}
