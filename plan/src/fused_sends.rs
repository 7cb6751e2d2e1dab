//! What a rank sends in a rendezvous of several transfers: for each receiver its blocks of all of them, one after another.

use crate::{BoxingExec, ElementType, Runs};

/// Where a rank packs what it sends, in elements. Receivers of the same blocks share one copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FusedSends {
    /// The blocks, in the order in which they are packed.
    pub blocks: Vec<PackedBlock>,
    /// The receivers, each with the packed elements that it gets.
    pub receivers: Vec<(u32, std::ops::Range<usize>)>,
    /// All packed elements.
    pub elements: usize,
}

/// A block that is packed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackedBlock {
    /// The index of its transfer in the rendezvous.
    pub transfer: usize,
    /// The block within the rank's part before.
    pub block: Runs,
    /// The first packed element.
    pub at: usize,
}

impl FusedSends {
    /// What `rank` of a mesh of this shape sends.
    pub fn of(exec: &BoxingExec, mesh: &[usize], rank: u32) -> Self {
        let mut by_receiver: Vec<(u32, Vec<(usize, Runs)>)> = Vec::new();
        for (index, (transfer, ..)) in exec.transfers().enumerate() {
            let group = transfer.group(mesh, rank);
            for (to, block) in transfer.sends(&group) {
                let to = group.ranks[to];
                let at = by_receiver.iter().position(|(known, _)| *known == to).unwrap_or(by_receiver.len());
                if at == by_receiver.len() {
                    by_receiver.push((to, Vec::new()));
                }
                by_receiver[at].1.push((index, block));
            }
        }
        let mut out = Self { blocks: Vec::new(), receivers: Vec::new(), elements: 0 };
        for (position, (to, blocks)) in by_receiver.iter().enumerate() {
            let same = by_receiver[..position].iter().position(|(_, other)| other == blocks);
            if let Some(same) = same {
                out.receivers.push((*to, out.receivers[same].1.clone()));
                continue;
            }
            let start = out.elements;
            for (transfer, block) in blocks {
                let elements = block.elements();
                out.blocks.push(PackedBlock { transfer: *transfer, block: block.clone(), at: out.elements });
                out.elements += elements;
            }
            out.receivers.push((*to, start..out.elements));
        }
        out
    }

    /// The bytes of all packed elements.
    pub fn bytes(&self, dtype: ElementType) -> u64 {
        (self.elements as u64).saturating_mul(u64::from(dtype.bits() / 8))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AxisLayout, FusedTransfer, LayoutKind, Transfer};

    fn exec(from: AxisLayout, to: AxisLayout, extents: &[i64]) -> BoxingExec {
        let transfer = |(i, n): (usize, &i64)| Transfer {
            id: i as u32,
            axes: vec![0],
            dims: vec![*n],
            from: vec![from],
            to: vec![to],
            ..Transfer::default()
        };
        let mut all = extents.iter().enumerate().map(transfer);
        let first = all.next().unwrap();
        let fused = all.map(|transfer| FusedTransfer { transfer, ..FusedTransfer::default() }).collect();
        BoxingExec { transfer: first, fused, ..BoxingExec::default() }
    }

    #[test]
    fn all_receivers_of_a_sum_get_one_copy() {
        let (sum, whole) = (AxisLayout::of(LayoutKind::Sum), AxisLayout::of(LayoutKind::Broadcast));
        let sends = FusedSends::of(&exec(sum, whole, &[5, 3]), &[4], 2);
        assert_eq!(sends.receivers, [(0, 0..8), (1, 0..8), (3, 0..8)]);
        let places: Vec<_> = sends.blocks.iter().map(|b| (b.transfer, b.at, b.block.elements())).collect();
        assert_eq!((places, sends.elements, sends.bytes(ElementType::F32)), (vec![(0, 0, 5), (1, 5, 3)], 8, 32));
    }

    #[test]
    fn each_receiver_of_slices_gets_its_own() {
        let (sum, split) = (AxisLayout::of(LayoutKind::Sum), AxisLayout::split(0));
        // Of one element there is a slice for the first rank alone.
        let sends = FusedSends::of(&exec(sum, split, &[6, 1]), &[3], 1);
        assert_eq!(sends.receivers, [(0, 0..3), (2, 3..5)]);
        let starts: Vec<_> = sends.blocks.iter().map(|b| (b.transfer, b.block.starts().next(), b.at)).collect();
        assert_eq!(starts, [(0, Some(0), 0), (1, Some(0), 2), (0, Some(4), 3)]);
    }
}
