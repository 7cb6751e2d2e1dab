//! Prologues of kernels as statements of the C family.

use std::sync::Arc;

use crate::kernel::extent::Extent;
use crate::kernel::prologue::{Check, Prologue};
use crate::print::extent::variable;

/// C that declares the symbols as variables.
pub fn declarations(p: &Prologue) -> String {
    let argument = p.arguments;
    let one = |(s, index): &(Arc<str>, usize)| {
        format!("  const i64 {} = ((const i64 *)args[{argument}])[{index}];\n", variable(s))
    };
    p.symbols.iter().map(one).collect()
}

/// C that checks extents, each condition once.
pub fn checks(p: &Prologue) -> String {
    let one = |check: &Check| match check {
        Check::Broadcasts(own, to) => format!("  if ({own} != 1 && {own} != {to}) return 2;\n"),
        Check::Equal(a, b) => format!("  if ({a} != {b}) return 2;\n"),
    };
    let mut out: Vec<String> = p.checks.iter().map(one).collect();
    out.sort();
    out.dedup();
    if p.may_be_empty {
        out.push("  if (begin == end) return 0;\n".into());
    }
    out.concat()
}

/// C that declares the size in bytes of each argument, -1 if unknown; the emulated GPU checks accesses against it.
pub fn sizes(p: &Prologue) -> String {
    let size = |s: &Option<Extent>| s.as_ref().map_or("-1".to_string(), Extent::to_string);
    format!("  SIZES({});\n", p.sizes.iter().map(size).collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use of_ir::Dim;

    use super::*;

    #[test]
    fn symbols_and_checks_are_printed() {
        let n = Extent::from(Dim::symbol("n"));
        let checks = [Check::equal(&n, &2usize.into()), Check::broadcasts(&n, &n)].into_iter().flatten().collect();
        let p = Prologue { arguments: 3, symbols: vec![("n".into(), 1)], checks, ..Prologue::default() };
        assert_eq!(declarations(&p), "  const i64 s_n = ((const i64 *)args[3])[1];\n");
        assert_eq!(super::checks(&p), "  if ((0 + 1LL * s_n) != 2) return 2;\n");
    }
}
