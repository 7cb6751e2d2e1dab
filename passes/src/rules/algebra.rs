//! Algebraic rules for sums, products and truth values, elementwise. Broadcasting is allowed: every operand of the left
//! side occurs on the right side too, so the result has the same shape.

use super::equation;
use crate::egraph::rule::{BOOLS, FLOATS, NUMBERS, Rule, Search};

pub const RULES: &[Rule] = &[
    // Constants move together, to be folded.
    equation!("add-known", Rounding, "add(add(x, A), B) = add(x, add(A, B))", "", NUMBERS),
    equation!("mul-known", Rounding, "mul(mul(x, A), B) = mul(x, mul(A, B))", "", NUMBERS),
    equation!("add-add-known", Rounding, "add(add(x, A), add(y, B)) = add(add(x, y), add(A, B))", "", NUMBERS),
    equation!("mul-mul-known", Rounding, "mul(mul(x, A), mul(y, B)) = mul(mul(x, y), mul(A, B))", "", NUMBERS),
    equation!("mul-add-known", Rounding, "mul(add(x, A), B) = add(mul(x, B), mul(A, B))", "", NUMBERS),
    equation!("sub-known", Exact, "sub(x, A) = add(x, neg(A))", "", NUMBERS),
    equation!("div-known", Rounding, "div(x, A) = mul(x, reciprocal(A))", "", FLOATS),
    // Distributivity.
    equation!("factor", Rounding, "add(mul(a, c), mul(b, c)) = mul(add(a, b), c)", "", NUMBERS),
    equation!("factor-sub", Rounding, "sub(mul(a, c), mul(b, c)) = mul(sub(a, b), c)", "", NUMBERS),
    equation!("factor-div", Rounding, "add(div(a, c), div(b, c)) = div(add(a, b), c)", "", FLOATS),
    // Signs.
    equation!("add-neg", Exact, "add(x, neg(y)) <=> sub(x, y)", "", NUMBERS),
    equation!("sub-neg", Exact, "sub(x, neg(y)) = add(x, y)", "", NUMBERS),
    equation!("neg-neg", Exact, "neg(neg(x)) = x", "", NUMBERS),
    equation!("neg-sub", ZeroSign, "neg(sub(x, y)) = sub(y, x)", "", NUMBERS),
    equation!("mul-neg-neg", Exact, "mul(neg(x), neg(y)) = mul(x, y)", "", NUMBERS),
    equation!("abs-neg", Exact, "abs(neg(x)) = abs(x)", "", FLOATS),
    // Functions.
    equation!("div-sqrt", Rounding, "div(x, sqrt(y)) = mul(x, rsqrt(y))", "", FLOATS),
    equation!("reciprocal-sqrt", Rounding, "reciprocal(sqrt(y)) = rsqrt(y)", "", FLOATS),
    equation!("one-over", Exact, "div(1, x) = reciprocal(x)", "", FLOATS),
    equation!("exp-exp", Rounding, "mul(exp(x), exp(y)) = exp(add(x, y))", "", FLOATS),
    equation!("exp-minus", Rounding, "div(1, exp(x)) = exp(neg(x))", "", FLOATS),
    // Maximum and minimum.
    equation!("max-same", Exact, "max(x, x) = x", "", NUMBERS),
    equation!("min-same", Exact, "min(x, x) = x", "", NUMBERS),
    equation!("max-max-known", ZeroSign, "max(max(x, A), B) = max(x, max(A, B))", "", NUMBERS),
    equation!("min-min-known", ZeroSign, "min(min(x, A), B) = min(x, min(A, B))", "", NUMBERS),
    // Truth values.
    equation!("not-not", Exact, "not(not(x)) = x", "", BOOLS),
    equation!("not-and", Exact, "and(not(x), not(y)) = not(or(x, y))", "", BOOLS),
    equation!("not-or", Exact, "or(not(x), not(y)) = not(and(x, y))", "", BOOLS),
    equation!("select-not", Exact, "select(not(c), a, b) = select(c, b, a)", "", NUMBERS),
    equation!("select-same", Exact, "select(c, x, x) = x", "c[*n] x[*n]", NUMBERS),
];
