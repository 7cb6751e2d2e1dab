//! The page `docs/exactness.md`: every rewrite of floats that is not exact, with its error.

use std::fmt::Write;

use of_ops::exactness::Exactness;

/// A rewrite that no rule table lists: of a pass or of a kernel.
struct Other {
    name: &'static str,
    exactness: Exactness,
    /// What it does, and what follows where results are then rounded.
    what: &'static str,
}

const OTHERS: &[Other] = &[
    Other {
        name: "pass `quantize-contractions`",
        exactness: Exactness::SumOrder,
        what: "products of dequantised operands are summed as integers, exactly. A model in the QDQ form asks for it: it is applied before a quantisation too",
    },
    Other {
        name: "pass `channels-last`, transposed convolutions",
        exactness: Exactness::SumOrder,
        what: "a transposed convolution becomes a convolution for each phase",
    },
    Other {
        name: "pass `join-summed-products`",
        exactness: Exactness::SumOrder,
        what: "the gradient of a matrix that all batches share sums over batches and rows at once",
    },
    Other {
        name: "kernels of sums, products and convolutions",
        exactness: Exactness::SumOrder,
        what: "elements of a vector and tiles are summed apart; ONNX leaves the order open",
    },
    Other {
        name: "Winograd's algorithm (off with `--no-winograd`)",
        exactness: Exactness::SumOrder,
        what: "tiles of the input are transformed before they are multiplied",
    },
    Other {
        name: "fused multiply-add of elementwise kernels",
        exactness: Exactness::Rounding,
        what: "a product is added without being rounded; not where results are then rounded to integers or compared",
    },
    Other {
        name: "functions such as `exp` and `tanh` in kernels",
        exactness: Exactness::Rounding,
        what: "polynomials within the units in the last place that `ScalarOp::max_error` states",
    },
];

const HEAD: &str = "\
# Exactness

Written by `cargo xtask bless` from the tables of rules. A rewrite is *exact* if its results are equal bit for bit, for every
operand: near ties, subnormal, infinite, NaN, zeros of both signs. List-wide tests compare every rule that declares itself
exact with the definition. Rewrites of integers are exact, as integers wrap. Kernels
divide by constants that are not powers of two.

Kernels for a CPU read and write subnormal numbers (below 1.2e-38 in f32) as zeros, as a processor takes up to a hundred times as long
for an operation on one. So do ops of the interpreter in a plan. `--subnormals keep` computes with them; kernels for a GPU and
`--backend reference` always do.

The rewrites below are not exact. They are not applied where a result is then rounded to an integer or compared: where a
`quantize_linear`, `round`, `floor`, `ceil`, `sign`, `mod`, cast to an integer, comparison, `arg_max` or `top_k` reads it,
directly or through elementwise ops and movements. Sums over many elements end the search, as their order is left open. A comparison
that only chooses between functions of what it compares, as in a leaky ReLU, does not count. The sign of a zero does not change a rounding.

`canonicalize{round_inexact=true}` and `optimize{round_inexact=true}` apply all rules everywhere.

";

/// The page.
pub fn page() -> String {
    let mut out = String::from(HEAD);
    let row = |out: &mut String, name: &str, exactness: Exactness, what: &str| {
        if exactness != Exactness::Exact {
            let _ = writeln!(out, "| {name} | {}{what} |", exactness.error());
        }
    };
    for (title, rules) in [
        (
            "Rules of `canonicalize`",
            crate::canonicalize::RULES.iter().map(|r| (r.name, r.exactness)).collect::<Vec<_>>(),
        ),
        ("Rules of `optimize`", crate::rules::all().map(|r| (r.name, r.exactness)).collect()),
    ] {
        let exact = rules.iter().filter(|(_, e)| *e == Exactness::Exact).count();
        let _ = writeln!(
            out,
            "## {title}\n\n{exact} of {} rules are exact. The others:\n\n| rule | error |\n|---|---|",
            rules.len()
        );
        rules.iter().for_each(|(name, e)| row(&mut out, &format!("`{name}`"), *e, ""));
        out.push('\n');
    }
    out.push_str("## Other rewrites\n\n| rewrite | error |\n|---|---|\n");
    OTHERS.iter().for_each(|o| row(&mut out, o.name, o.exactness, &format!(". {}", capital(o.what))));
    out
}

fn capital(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |c| c.to_uppercase().chain(chars).collect())
}
