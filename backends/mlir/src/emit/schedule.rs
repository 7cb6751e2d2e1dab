//! How products are computed: a script in MLIR's transform dialect, printed beside the kernel.
//!
//! A tile of the result stays in registers while the innermost loop walks along what is added up: it is one `vector.contract`
//! a step, which becomes products of a broadcast number with vectors. Tiles divide their product; one that has no such tile
//! stays loops. Rows are walked inside of columns, so that these stay in the cache.

use std::collections::BTreeSet;
use std::fmt::Write;

use of_codegen::Isa;

/// Rows and columns of the results that are computed together.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Tile {
    rows: usize,
    columns: usize,
    batched: bool,
}

impl Tile {
    /// The tile that needs the fewest loads for each product, of a result of `rows` by `columns`.
    pub fn of(rows: usize, columns: usize, batched: bool, isa: &Isa) -> Option<Tile> {
        // Fewer columns than there are lanes still fill half a register, or a quarter.
        let lanes =
            [isa.lanes, isa.lanes / 2, isa.lanes / 4].into_iter().find(|l| *l >= 4 && columns.is_multiple_of(*l))?;
        // Some registers are left for operands.
        let most = isa.registers * 3 / 4;
        // LLVM widens vectors to powers of two.
        let tiles = [1, 2, 4].into_iter().filter(|v| columns.is_multiple_of(v * lanes)).flat_map(|vectors| {
            (1..=most / vectors).filter(|r| rows.is_multiple_of(*r)).map(move |rows| (rows, vectors))
        });
        // Products for each load, in thousandths.
        let (rows, vectors) = tiles.max_by_key(|(r, v)| 1000 * r * v / (r + v))?;
        Some(Tile { rows, columns: vectors * lanes, batched })
    }

    /// What marks the op in the text.
    pub fn attribute(self) -> String {
        format!(" {{tile = \"{}x{}\"}}", self.rows, self.columns)
    }
}

/// The script that applies all tiles; none leave everything as it is.
pub fn script(tiles: &BTreeSet<Tile>) -> String {
    const OP: &str = "!transform.any_op";
    let mut out = format!("  transform.named_sequence private @__transform_main(%all: {OP}) {{\n");
    for (i, Tile { rows, columns, batched }) in tiles.iter().enumerate() {
        let (op, lead, loops, order) =
            if *batched { ("batch_matmul", "1, ", 4, "0, 2, 1, 3") } else { ("matmul", "", 3, "1, 0, 2") };
        let sizes = format!("[{lead}{rows}, {columns}, 1]");
        let results = vec![OP; loops + 1].join(", ");
        let _ = writeln!(
            out,
            "    %op{i} = transform.structured.match ops{{[\"linalg.{op}\"]}} attributes{{tile = \"{rows}x{columns}\"}} in %all : \
             ({OP}) -> {OP}\n    %tile{i}, %loops{i}:{loops} = transform.structured.tile_using_for %op{i} tile_sizes {sizes} interchange = [{order}] : \
             ({OP}) -> ({results})\n    transform.structured.vectorize %tile{i} vector_sizes {sizes} : {OP}"
        );
    }
    let _ = writeln!(
        out,
        "    %funcs = transform.structured.match ops{{[\"func.func\"]}} in %all : ({OP}) -> {OP}\n    \
         transform.apply_patterns to %funcs {{\n      transform.apply_patterns.vector.reduction_to_contract\n      \
         transform.apply_patterns.vector.transfer_permutation_patterns\n      \
         transform.apply_patterns.canonicalization\n    }} : {OP}\n    transform.yield\n  }}"
    );
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_divide_what_they_are_of_and_fit_the_registers() {
        let isa = Isa::by_name("avx512").unwrap();
        for (rows, columns) in [(128, 768), (1, 1000), (197, 64), (7, 12), (12, 48), (384, 3072)] {
            let t = Tile::of(rows, columns, false, isa).unwrap();
            assert!(rows % t.rows == 0 && columns % t.columns == 0, "{t:?}");
            assert!(t.rows * t.columns.div_ceil(isa.lanes) <= isa.registers * 3 / 4, "{t:?}");
        }
        assert_eq!(Tile::of(128, 768, false, isa), Some(Tile { rows: 4, columns: 64, batched: false }));
        assert_eq!(Tile::of(8, 49, false, isa), None);
    }
}
