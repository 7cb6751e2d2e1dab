//! The rank context: a rank's number, its mesh, and its transport to the other ranks.

use std::fmt;
use std::sync::Arc;

use of_plan::Runs;

use crate::transport::{Stopped, TransferBlock, Transport};

/// The data of a rank that is not in the shared program. Its session and executables with transfers use it.
#[derive(Clone)]
pub struct RankContext {
    /// The rank.
    pub rank: u32,
    /// Ranks along each axis of the mesh.
    pub mesh: Vec<usize>,
    /// The transport to the other ranks.
    pub transport: Arc<dyn Transport>,
    /// Weights that replace the template's.
    pub(crate) weight_overrides: Vec<of_plan::WeightOverride>,
}

impl RankContext {
    /// A rank of a mesh, with the template's weights.
    pub fn new(rank: u32, mesh: Vec<usize>, transport: Arc<dyn Transport>) -> RankContext {
        RankContext { rank, mesh, transport, weight_overrides: Vec::new() }
    }

    /// The weight that replaces one of the template's, or that weight itself.
    pub(crate) fn weight(&self, of: u32) -> u32 {
        self.weight_overrides.iter().find(|entry| entry.original == of).map_or(of, |entry| entry.replacement)
    }

    /// An all-gather over `ranks`, which include this one, in the rendezvous with number `id`: sends `bytes` to all, and
    /// returns the bytes of each in the order of `ranks`.
    ///
    /// # Errors
    /// When a rank stopped.
    pub fn gather(&self, id: u32, ranks: &[u32], bytes: &[u8]) -> Result<Vec<Vec<u8>>, Stopped> {
        let block = Runs::of(&[(0, bytes.len())], &[(0, bytes.len())]);
        let others: Vec<u32> = ranks.iter().copied().filter(|rank| *rank != self.rank).collect();
        let send = |to: &u32| TransferBlock { to: *to, bytes, block: &block, element: 1 };
        let blocks: Vec<TransferBlock<'_>> = others.iter().map(send).collect();
        let mut got = vec![Vec::new(); others.len()];
        if !others.is_empty() {
            self.transport.rendezvous(self.rank, id, &blocks, &others, &mut |from, received| {
                got[from] = received.bytes.to_vec()
            })?;
        }
        let mut got = got.into_iter();
        let of = |rank: &u32| if *rank == self.rank { bytes.to_vec() } else { got.next().unwrap_or_default() };
        Ok(ranks.iter().map(of).collect())
    }
}

impl fmt::Debug for RankContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RankContext").field("rank", &self.rank).field("mesh", &self.mesh).finish_non_exhaustive()
    }
}
