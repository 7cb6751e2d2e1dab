//! Blocks of elements as bytes one after another.

use of_runtime::TransferBlock;

/// The bytes of a block that is in one piece.
pub fn contiguous<'a>(block: &TransferBlock<'a>) -> Option<&'a [u8]> {
    let mut pieces = pieces(block);
    let first = pieces.next().unwrap_or_default();
    pieces.next().is_none().then_some(first)
}

/// Copies a block into bytes of its length.
pub fn pack(block: &TransferBlock<'_>, to: &mut [u8]) {
    let run = block.block.len() * block.element;
    if run > 0 {
        to.chunks_exact_mut(run).zip(pieces(block)).for_each(|(to, piece)| to[..piece.len()].copy_from_slice(piece));
    }
}

fn pieces<'a>(block: &TransferBlock<'a>) -> impl Iterator<Item = &'a [u8]> {
    let TransferBlock { bytes, block: runs, element, .. } = *block;
    let run = runs.len() * element;
    runs.starts().map(move |start| bytes.get(start * element..start * element + run).unwrap_or_default())
}
