//! Rewrite rules of `optimize`, by topic. Each rule is documented by its equation. A test makes instances of every rule
//! and compares both sides: bit for bit where the
//! rule says that it is exact.

mod algebra;
mod convolution;
pub(crate) mod dtype;
mod folding;
mod movement;
mod product;
mod recognition;

#[cfg(test)]
mod tests;

use crate::egraph::rule::Rule;

/// Every rule.
pub fn all() -> impl Iterator<Item = &'static Rule> {
    [
        algebra::RULES,
        product::RULES,
        movement::RULES,
        convolution::RULES,
        recognition::RULES,
        dtype::RULES,
        folding::RULES,
    ]
    .into_iter()
    .flatten()
}

/// A rule that is an equation as text.
macro_rules! equation {
    ($name:literal, $exactness:ident, $equation:literal, $shapes:literal, $types:expr) => {
        Rule {
            name: $name,
            exactness: of_ops::exactness::Exactness::$exactness,
            search: Search::Text { equation: $equation, shapes: $shapes, types: $types },
        }
    };
}

/// A rule that is a function, with the function that makes an instance of it.
macro_rules! code {
    ($name:literal, $exactness:ident, $find:expr, $example:expr) => {
        Rule {
            name: $name,
            exactness: of_ops::exactness::Exactness::$exactness,
            search: Search::Code { find: $find, example: $example },
        }
    };
}

use {code, equation};
