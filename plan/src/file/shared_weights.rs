//! Weights that plans of a process have in common, such as those of two models with one backbone: all read those of one plan.

use std::collections::HashMap;
use std::sync::Arc;

use super::PlanFile;

/// Smaller weights are not shared: they have hardly a page of their own.
const LEAST: u64 = 16 << 10;

/// Weights that may be equal: their length and first bytes.
type Key<'p> = (u64, &'p [u8]);

/// Which weights of a plan are those of other plans.
#[derive(Default)]
pub(crate) struct SharedWeights {
    /// By the index of the weight; the other plan owns its weight.
    owners: HashMap<u32, (Arc<PlanFile>, u32)>,
    bytes: u64,
}

impl SharedWeights {
    /// The weights of `plan` that equal weights of `others`.
    pub fn find(plan: &PlanFile, others: &[Arc<PlanFile>]) -> SharedWeights {
        let mut known: HashMap<Key<'_>, Vec<(&Arc<PlanFile>, u32)>> = HashMap::new();
        for other in others {
            for (index, key, _) in large(other) {
                known.entry(key).or_default().push((other, index));
            }
        }
        let mut shared = SharedWeights::default();
        for (index, key, bytes) in large(plan) {
            let equal = known.get(&key).into_iter().flatten().find(|(other, at)| other.weight(*at) == Some(bytes));
            if let Some((other, at)) = equal {
                let owner = other.shared_weights().owners.get(at).cloned();
                shared.owners.insert(index, owner.unwrap_or_else(|| (Arc::clone(other), *at)));
                shared.bytes += bytes.len() as u64;
            }
        }
        shared
    }

    /// The bytes of a weight, if it is shared.
    pub fn weight(&self, index: u32) -> Option<&[u8]> {
        let (owner, at) = self.owners.get(&index)?;
        owner.weight(*at)
    }

    /// The weights that are shared.
    pub fn indices(&self) -> impl Iterator<Item = u32> + '_ {
        self.owners.keys().copied()
    }

    /// The plans that own them, each as often as it owns one.
    pub fn owners(&self) -> impl Iterator<Item = &Arc<PlanFile>> {
        self.owners.values().map(|(owner, _)| owner)
    }

    /// Bytes of the weights that are shared.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// The large weights of a plan with their bytes.
fn large(plan: &PlanFile) -> impl Iterator<Item = (u32, Key<'_>, &[u8])> {
    (0..).zip(&plan.plan().weights).filter(|(_, weight)| weight.len >= LEAST).filter_map(|(index, weight)| {
        let bytes = plan.weight(index)?;
        Some((index, (weight.len, bytes.get(..64)?), bytes))
    })
}
