//! The panels of a constant that several programs of a plan read.
//!
//! Programs for few and for many rows have different best tiles, and a constant in panels of two widths is in the plan twice. So
//! the panels are those of the program that was lowered first. A tile of another one reads several of them, where all its rows are one
//! tile, or it takes their width, where that costs no time.

use std::collections::HashMap;

use of_ir::Tensor;

use crate::isa::Isa;
use crate::kernel::contraction::{Contraction, Element, L2_RESIDENT_BYTES, RhsLayout, Tile};
use crate::kernel::tile_choice::{fewest_cycles, modelled_tiles};

/// Width in vectors of the panels of constants, by the hash of their bytes and the layout.
#[derive(Default)]
pub struct PanelWidths(HashMap<([u8; 32], String), usize>);

impl PanelWidths {
    /// The tile of `spec`, whose right operand is `w`, with `own` as the best one. It reads the panels that the plan has, unless that
    /// takes longer.
    pub(super) fn agree(&mut self, w: &Tensor, spec: &mut Contraction, own: Tile, isa: &Isa) -> Tile {
        /// How much more time than `own` a tile may take by the model of cycles.
        const TOLERANCE: f64 = 1.02;
        let Some(bytes) = w.bytes().filter(|bytes| bytes.len() > L2_RESIDENT_BYTES) else { return own };
        if !matches!(spec.rhs, RhsLayout::Packed | RhsLayout::PackedHalf(_)) {
            return own;
        }
        let key = (*blake3::hash(bytes).as_bytes(), format!("{:?} {:?}", spec.element, spec.rhs));
        let known = *self.0.entry(key).or_insert(own.vectors);
        if known == own.vectors {
            return own;
        }
        // Several panels are read at once where no tile follows, for which the next panel would be prefetched.
        let is_single = own.row_tiles(spec).is(1) && spec.batch.is_empty();
        let is_plain = spec.element == Element::F32F32 && spec.rhs == RhsLayout::Packed;
        if is_single && is_plain && own.vectors.is_multiple_of(known) {
            spec.rhs = RhsLayout::NarrowPanels(known);
            return own;
        }
        let tiles = modelled_tiles(spec, isa);
        let cycles = |tile: Tile| tiles.iter().find(|(_, t)| *t == tile).map_or(f64::INFINITY, |(cycles, _)| *cycles);
        let of_width = tiles.iter().filter(|(_, tile)| tile.vectors == known).copied().collect();
        match fewest_cycles(of_width) {
            Some(tile) if cycles(tile) <= TOLERANCE * cycles(own) => tile,
            _ => own,
        }
    }
}
