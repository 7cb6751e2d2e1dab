//! Maps and sets of the ids of a graph.

use std::collections::{HashMap, HashSet};

use rustc_hash::FxBuildHasher;

/// A map whose keys are ids: small numbers, which no one chooses to collide.
pub type IdMap<K, V> = HashMap<K, V, FxBuildHasher>;

/// A set of ids, as [`IdMap`].
pub type IdSet<K> = HashSet<K, FxBuildHasher>;
