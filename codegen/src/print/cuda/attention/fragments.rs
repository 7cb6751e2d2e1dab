//! Fragments: how the lanes of a warp hold the operands of `mma`. `g` and `t` are the C variables for a lane's group of four
//! and its number in that group.

use std::fmt::Write;

use of_ir::DType;

use crate::isa::MmaPrecision;

/// The fragments of one kind of product.
pub(super) struct Fragments {
    /// Terms that one `mma` multiplies.
    pub terms: usize,
    /// Whether operands are 16-bit floats in memory, too: their pairs are loaded as registers.
    pub unconverted: bool,
    /// The 16-bit float that operands are converted to, if any; two of them share a register.
    short: Option<&'static str>,
    /// Whether f32 operands are split into two parts.
    split: bool,
    /// Elements of a register.
    pairs: usize,
}

impl Fragments {
    /// The fragments of products.
    pub fn of(products: MmaPrecision) -> Fragments {
        let (terms, short) = match products {
            MmaPrecision::Tf32 | MmaPrecision::Tf32x3 => (8, None),
            MmaPrecision::Bf16 | MmaPrecision::Half(DType::BF16) => (16, Some("bf16")),
            MmaPrecision::F16 | MmaPrecision::Half(_) => (16, Some("f16")),
        };
        let (unconverted, split) = (matches!(products, MmaPrecision::Half(_)), products == MmaPrecision::Tf32x3);
        Fragments { terms, unconverted, short, split, pairs: if short.is_some() { 2 } else { 1 } }
    }

    /// C that makes the operands `name` of `n` registers from floats `x`.
    pub fn registers(&self, name: &str, n: usize) -> String {
        let list = |f: &dyn Fn(usize) -> String| (0..n).map(f).collect::<Vec<_>>().join(", ");
        if let Some(ty) = self.short {
            let packed = list(&|e| format!("pack_{ty}(x[{}], x[{}])", 2 * e, 2 * e + 1));
            return format!("const u32 {name}[{n}] = {{{packed}}};");
        }
        let mut out = format!("const u32 {name}[{n}] = {{{}}};", list(&|e| format!("tf32(x[{e}])")));
        if self.split {
            let rest = list(&|e| format!("tf32(x[{e}] - __int_as_float((i32){name}[{e}]))"));
            let _ = write!(out, " const u32 small_{name}[{n}] = {{{rest}}};");
        }
        out
    }

    /// C that adds the product of `a` and `b` to `sum`.
    fn multiply(&self, sum: &str, b: &str) -> String {
        match (self.short, self.split) {
            (Some(ty), _) => format!("mma_{ty}({sum}, a, {b});"),
            (None, true) => format!("mma({sum}, small_a, b); mma({sum}, a, small_b); mma({sum}, a, b);"),
            (None, false) => format!("mma({sum}, a, b);"),
        }
    }

    /// The terms of the elements of a right operand.
    pub fn right_elements(&self) -> Vec<String> {
        let term = |e: usize| match self.pairs {
            2 => format!("2 * t + {}", e / 2 * 8 + e % 2),
            _ => format!("t + {}", e * 4),
        };
        (0..2 * self.pairs).map(term).collect()
    }

    /// Row and term of each element of a left operand of sixteen rows, in register order: rows alternate first.
    pub fn left_elements(&self) -> Vec<(usize, String)> {
        let terms = self.right_elements();
        let element = |e: usize| {
            let (pair, register) = (e % self.pairs, e / self.pairs);
            (register % 2 * 8, terms[register / 2 * self.pairs + pair].clone())
        };
        (0..4 * self.pairs).map(element).collect()
    }

    /// The terms of a right operand in the order of the scores in a lane.
    pub fn score_terms(&self) -> Vec<String> {
        let term = |e: usize| match self.pairs {
            2 => format!("2 * t + {}", e / 2 * 8 + e % 2),
            _ => format!("2 * t + {e}"),
        };
        (0..2 * self.pairs).map(term).collect()
    }

    /// The weights in a lane as the elements of left operand `j` (a C variable).
    pub fn weights(&self) -> Vec<String> {
        if self.pairs == 2 {
            let at = ["0][0", "0][1", "0][2", "0][3", "1][0", "1][1", "1][2", "1][3"];
            at.map(|at| format!("score[j * 2 + {at}]")).to_vec()
        } else {
            [0, 2, 1, 3].map(|e| format!("score[j][{e}]")).to_vec()
        }
    }

    /// C, up to the end of a loop, that loads two unconverted right operands from the tile by the function `load`, and multiplies
    /// them; `sums` is the beginning of the first sum, up to its index.
    pub fn pair(&self, load: &str, at: &str, sums: &str) -> String {
        let both = [0, 1].map(|e| self.multiply(&format!("{sums} + {e}]"), &format!("b[{e}]"))).join(" ");
        format!(
            "          u32 b[2][2];
          {load}(b[0][0], b[0][1], b[1][0], b[1][1], {at});
          {both}
        }}"
        )
    }

    /// C, up to the end of a loop, that converts a right operand with these elements of the tile, and adds its product to `sum`.
    pub fn converted(&self, at: &str, elements: &[String], sum: &str) -> String {
        format!(
            "          const auto p = {at};
          const f32 x[{}] = {{{}}};
          {}
          {}
        }}",
            2 * self.pairs,
            elements.join(", "),
            self.registers("b", 2),
            self.multiply(sum, "b"),
        )
    }
}
