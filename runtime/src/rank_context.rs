//! Where a rank sits among the others of its mesh.

use std::fmt;
use std::sync::Arc;

use of_plan::Runs;

use crate::transport::{Offer, Stopped, Transport};

/// What a rank's session, and an executable that takes part in transfers, needs besides the program that ranks share.
#[derive(Clone)]
pub struct RankContext {
    /// The rank.
    pub rank: u32,
    /// Ranks along each axis of the mesh.
    pub mesh: Vec<usize>,
    /// How it reaches the others.
    pub transport: Arc<dyn Transport>,
    /// The weights that it has in place of the template's.
    pub(crate) own: Vec<of_plan::WeightOverride>,
}

impl RankContext {
    /// The weight that stands for one of the template's.
    pub(crate) fn weight(&self, of: u32) -> u32 {
        self.own.iter().find(|own| own.of == of).map_or(of, |own| own.by)
    }

    /// Meets `ranks`, itself among them, at the number of a transfer: gives all of them the same bytes, and gets what each
    /// gave, in the order of `ranks`.
    ///
    /// # Errors
    /// When a rank stopped.
    pub fn gather(&self, id: u32, ranks: &[u32], bytes: &[u8]) -> Result<Vec<Vec<u8>>, Stopped> {
        let block = Runs::of(&[(0, bytes.len())], &[(0, bytes.len())]);
        let others: Vec<u32> = ranks.iter().copied().filter(|rank| *rank != self.rank).collect();
        let offer = |to: &u32| Offer { to: *to, bytes, block: &block, element: 1 };
        let offers: Vec<Offer<'_>> = others.iter().map(offer).collect();
        let mut got = vec![Vec::new(); others.len()];
        if !others.is_empty() {
            self.transport
                .rendezvous(self.rank, id, &offers, &others, &mut |from, offer| got[from] = offer.bytes.to_vec())?;
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
