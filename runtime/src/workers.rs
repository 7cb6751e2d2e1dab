//! Worker threads that sessions share.

use std::collections::HashMap;
use std::sync::Arc;

use crate::pool::Pool;
use crate::sync::{Mutex, lock};

/// By the number of workers, and whether subnormal numbers stay.
type Pools = HashMap<(usize, bool), Arc<Pool>>;

/// Worker threads for any number of sessions, which may run at the same time. The session whose task finds the workers free has them for its
/// loop; others run theirs on their own thread. So there are never more threads at work than workers and callers.
///
/// Sessions share workers where they take the same number of them, and agree on subnormal numbers.
#[derive(Clone, Debug, Default)]
pub struct Workers(Arc<Mutex<Pools>>);

impl Workers {
    /// The pool of so many workers, the caller included.
    pub(crate) fn pool(&self, threads: usize, keep_subnormals: bool) -> std::io::Result<Arc<Pool>> {
        let mut pools = lock(&self.0);
        if let Some(pool) = pools.get(&(threads, keep_subnormals)) {
            return Ok(Arc::clone(pool));
        }
        let pool = Arc::new(Pool::new(threads, keep_subnormals)?);
        pools.insert((threads, keep_subnormals), Arc::clone(&pool));
        Ok(pool)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_sessions_have_the_same_workers() {
        let workers = Workers::default();
        let pool = |threads, keep| workers.clone().pool(threads, keep).unwrap();
        assert!(Arc::ptr_eq(&pool(2, false), &pool(2, false)));
        assert!(!Arc::ptr_eq(&pool(2, false), &pool(2, true)) && !Arc::ptr_eq(&pool(2, false), &pool(1, false)));
        assert_eq!(pool(2, false).threads(), 2);
    }
}
