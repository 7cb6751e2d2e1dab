//! Dimension expressions: the inverse of `Dim`'s `Display`, and what people type for `--shape`.
//!
//! ```text
//! sum    := product (('+' | '-') product)*
//! product:= factor (('*' | 'floordiv' | 'ceildiv' | 'mod') factor)*
//! factor := '-' factor | number | symbol | "symbol" | '?' | ('max' | 'min') '(' sum ',' sum ')' | '(' sum ')'
//! ```

use super::cursor::{ParseResult, Parser, WithHint};
use super::lexer::{Kind, Token};
use crate::{Dim, DimFn};

/// A number times an expression. Kept apart so that `-N*9223372036854775808`, whose number alone is out of range,
/// reads back exactly.
struct Product {
    number: i128,
    rest: Option<Dim>,
}

impl Product {
    fn dim(self, negative: bool) -> Dim {
        let n = if negative { -self.number } else { self.number };
        let n = Dim::from(n.clamp(i64::MIN.into(), i64::MAX.into()) as i64);
        match self.rest {
            None => n,
            Some(rest) => &rest * &n,
        }
    }
}

impl Parser<'_> {
    /// A dimension.
    pub fn dim(&mut self) -> ParseResult<Dim> {
        self.nested(|p| {
            let start = p.tok;
            let mut sum = p.dim_product()?.dim(false);
            loop {
                let negative = p.at(b'-');
                if !negative && !p.at(b'+') {
                    return Ok(sum);
                }
                p.bump();
                let product = p.dim_product()?.dim(negative);
                p.check_size(sum.size() + product.size(), start)?;
                sum = &sum + &product;
            }
        })
    }

    /// `[dim, …]`.
    pub fn dims(&mut self) -> ParseResult<Vec<Dim>> {
        let mut dims = Vec::new();
        self.list(b'[', b']', "the dimensions", |p| {
            dims.push(p.dim()?);
            Ok(())
        })?;
        Ok(dims)
    }

    fn dim_product(&mut self) -> ParseResult<Product> {
        let start = self.tok;
        let mut product = self.dim_factor()?;
        loop {
            if self.eat(b'*') {
                let factor = self.dim_factor()?;
                product.number = product.number.saturating_mul(factor.number);
                product.rest = match (product.rest, factor.rest) {
                    (Some(a), Some(b)) => {
                        self.check_size(a.size().saturating_mul(b.size()), start)?;
                        Some(&a * &b)
                    }
                    (a, b) => a.or(b),
                };
            } else if let Some(f) = self.infix_fn() {
                self.bump();
                let right = self.dim_factor()?.dim(false);
                product = Product { number: 1, rest: Some(self.call(f, &product.dim(false), &right, start)?) };
            } else {
                return Ok(product);
            }
        }
    }

    fn infix_fn(&self) -> Option<DimFn> {
        let infix = [DimFn::FloorDiv, DimFn::CeilDiv, DimFn::Mod];
        infix.into_iter().find(|f| self.at_word(f.name()))
    }

    fn dim_factor(&mut self) -> ParseResult<Product> {
        let t = self.tok;
        let one = |d: Dim| Product { number: 1, rest: Some(d) };
        Ok(match t.kind {
            Kind::Punct(b'-') => {
                self.bump();
                let inner = self.nested(|p| p.dim_factor())?;
                Product { number: -inner.number, ..inner }
            }
            Kind::Int => {
                // One more than i64::MAX is a magnitude that a coefficient can have.
                let n: u64 = self.number("a dimension")?;
                if n > i64::MIN.unsigned_abs() {
                    return Err(self.error(t, "a dimension is out of range"));
                }
                Product { number: n.into(), rest: None }
            }
            Kind::Punct(b'?') => {
                self.bump();
                one(Dim::unknown())
            }
            Kind::Str => one(Dim::symbol(self.string("a symbol")?)),
            Kind::Ident => {
                let word = self.word();
                match [DimFn::Max, DimFn::Min].into_iter().find(|f| f.name() == word && self.at(b'(')) {
                    Some(f) => {
                        self.bump();
                        let a = self.dim()?;
                        self.expect(b',', "between the two dimensions")?;
                        let b = self.dim()?;
                        self.expect(b')', "after the two dimensions")?;
                        one(self.call(f, &a, &b, t)?)
                    }
                    None => one(Dim::symbol(word)),
                }
            }
            Kind::Punct(b'(') => {
                self.bump();
                let d = self.dim()?;
                self.expect(b')', "after the dimension")?;
                match d.as_const() {
                    Some(n) => Product { number: n.into(), rest: None },
                    None => one(d),
                }
            }
            _ => {
                return Err(self
                    .expected("a dimension")
                    .with_hint("numbers, names, + - * floordiv ceildiv mod max min"));
            }
        })
    }

    fn call(&self, f: DimFn, a: &Dim, b: &Dim, at: Token) -> ParseResult<Dim> {
        self.check_size(a.size() + b.size(), at)?;
        Ok(Dim::call(f, a, b))
    }

    /// Refuses an expression of more parts than arithmetic keeps.
    fn check_size(&self, parts: usize, at: Token) -> ParseResult<()> {
        if parts < Dim::MAX_SIZE {
            return Ok(());
        }
        Err(self.error(at, format!("a dimension has more than {} parts when multiplied out", Dim::MAX_SIZE)))
    }
}

#[cfg(test)]
mod tests {
    use crate::text::parse_dim;

    #[test]
    fn display_reads_back() {
        for (text, shown) in [
            ("7", "7"),
            ("-7", "-7"),
            ("N", "N"),
            ("?", "?"),
            ("N*64", "N*64"),
            ("64*N", "N*64"),
            ("N - M", "-M + N"),
            ("(N+2)*4", "N*4 + 8"),
            ("N floordiv 2 + 1", "(N floordiv 2) + 1"),
            ("-N mod -3", "((-N) mod -3)"),
            ("max(N, min(M, 3))*2", "max(N, min(M, 3))*2"),
            ("(N*4 + 8) ceildiv 3", "((N*4 + 8) ceildiv 3)"),
            ("\"batch size\" + \"max\"", "\"batch size\" + \"max\""),
            ("-N*9223372036854775808 - 9223372036854775808", "-N*9223372036854775808 - 9223372036854775808"),
            ("9223372036854775807", "9223372036854775807"),
            ("-9223372036854775808 floordiv -1", "(-9223372036854775808 floordiv -1)"),
        ] {
            let d = parse_dim(text).unwrap_or_else(|e| panic!("{text}: {e}"));
            assert_eq!(d.to_string(), shown);
            assert_eq!(parse_dim(shown).unwrap(), d, "{shown}");
        }
    }

    #[test]
    fn bad_text_is_refused() {
        let sums = "(a + b + c + d + e + f + g + h)*".repeat(20) + "1";
        let deep = "(".repeat(100_000);
        let power = "N*".repeat(5000) + "1";
        for text in ["", "N +", "N M", "(N", "99999999999999999999", "max(N)", "*", &sums, &deep, &power] {
            assert!(parse_dim(text).is_err(), "{text}");
        }
    }

    #[test]
    fn random_expressions_read_back() {
        let mut rng = fastrand::Rng::with_seed(3);
        for _ in 0..500 {
            let d = crate::text::tests::random::dim(&mut rng, 3);
            let shown = d.to_string();
            assert_eq!(parse_dim(&shown).unwrap_or_else(|e| panic!("{e}")), d, "{shown}");
        }
    }
}
