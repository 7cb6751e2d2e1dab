//! The schedule of products: a script in MLIR's transform dialect, printed after the kernel.
//!
//! A tile of the result stays in registers while the innermost loop iterates over the reduction: each step is one
//! `vector.contract`, lowered to products of a broadcast number with vectors. Tiles divide their product; a product without
//! such a tile stays loops. The row loop is inside the column loop, so columns stay in the cache.

use std::collections::BTreeSet;
use std::fmt::Write;

use of_codegen::Isa;

/// Rows and columns of the result computed together.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Tile {
    rows: usize,
    columns: usize,
    batched: bool,
}

impl Tile {
    /// The tile with the fewest loads for each multiplication, for a result of `rows` by `columns`.
    pub fn of(rows: usize, columns: usize, batched: bool, isa: &Isa) -> Option<Tile> {
        // Fewer columns than lanes still fill half a register, or a quarter.
        let lanes =
            [isa.lanes, isa.lanes / 2, isa.lanes / 4].into_iter().find(|l| *l >= 4 && columns.is_multiple_of(*l))?;
        // Some registers are reserved for operands.
        let most = isa.registers * 3 / 4;
        // LLVM widens vectors to powers of two.
        let tiles = [1, 2, 4].into_iter().filter(|v| columns.is_multiple_of(v * lanes)).flat_map(|vectors| {
            (1..=most / vectors).filter(|r| rows.is_multiple_of(*r)).map(move |rows| (rows, vectors))
        });
        // Multiplications for each load, in thousandths.
        let (rows, vectors) = tiles.max_by_key(|(r, v)| 1000 * r * v / (r + v))?;
        Some(Tile { rows, columns: vectors * lanes, batched })
    }

    /// The attribute that marks the op in the text.
    pub fn attribute(self) -> String {
        format!(" {{tile = \"{}x{}\"}}", self.rows, self.columns)
    }
}

/// The script that applies all tiles; an empty list leaves the module as it is.
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
    fn tiles_divide_the_product_and_fit_the_registers() {
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
