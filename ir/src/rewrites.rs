//! The trail of rewrites of a graph: what each pass replaced by what, recorded on request.

use std::sync::Arc;

use of_diag::Location;

use crate::{Graph, OpId, ValueDef, ValueId};

/// An op that a pass replaced or removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rewrite {
    /// The pass.
    pub pass: Arc<str>,
    /// Its rule or pattern, where the pass has several.
    pub rule: Option<Arc<str>>,
    /// The op before, such as `of.gelu`.
    pub before: &'static str,
    /// Where that op came from.
    pub location: Location,
    /// The ops that were made for it, or that its readers read now; none where it was removed.
    pub after: Vec<&'static str>,
}

/// A trail that is being recorded.
#[derive(Clone, Debug, Default)]
pub(crate) struct Trail {
    pub entries: Vec<Rewrite>,
    /// Ops that were made since the last entry.
    created: Vec<OpId>,
}

impl Graph {
    /// Records rewrites from now on.
    pub fn record_rewrites(&mut self) {
        self.trail.get_or_insert_default();
    }

    /// Whether rewrites are recorded.
    pub fn records_rewrites(&self) -> bool {
        self.trail.is_some()
    }

    /// The rewrites that were recorded, in order.
    pub fn rewrites(&self) -> &[Rewrite] {
        self.trail.as_ref().map_or(&[], |trail| &trail.entries)
    }

    /// Records rewrites from now on as the continuation of those of another graph, if that one records them: this graph was made from it.
    pub fn continue_rewrites(&mut self, of: &Graph) {
        let Some(earlier) = &of.trail else { return };
        let own = std::mem::take(&mut self.trail.get_or_insert_default().entries);
        let entries = earlier.entries.iter().cloned().chain(own).collect();
        self.trail = Some(Box::new(Trail { entries, created: Vec::new() }));
    }

    /// A pass begins: what was made before is not for its rewrites.
    pub(crate) fn begin_rewrites(&mut self) {
        self.trail.iter_mut().for_each(|trail| trail.created.clear());
    }

    /// An op was made.
    pub(crate) fn record_created(&mut self, op: OpId) {
        if let Some(trail) = &mut self.trail {
            trail.created.push(op);
        }
    }

    /// An op is about to be replaced by values, or removed where there are none.
    pub(crate) fn record_rewrite(&mut self, pass: &Arc<str>, rule: Option<&Arc<str>>, op: OpId, by: &[ValueId]) {
        let Some(trail) = &mut self.trail else { return };
        let created = std::mem::take(&mut trail.created);
        let created: Vec<OpId> = created.into_iter().filter(|made| *made != op && self.is_live(*made)).collect();
        let maker = |v: &ValueId| match self.values[v.index()].def {
            ValueDef::Result(op, _) => self.ops[op.index()].as_ref().map(|op| op.name()),
            ValueDef::Arg(..) => None,
        };
        let after = match (by.is_empty(), created.is_empty()) {
            (true, _) => Vec::new(),
            (false, false) => created.iter().map(|made| self.op(*made).name()).collect(),
            (false, true) => by.iter().filter_map(maker).collect(),
        };
        // The rules of an e-graph are in the locations of what they made.
        let of_location = || match &self.op(*created.first()?).loc {
            Location::Derived { by, .. } => by.strip_prefix(&**pass)?.strip_prefix('/').map(Arc::from),
            _ => None,
        };
        let data = self.op(op);
        let (before, location) = (data.name(), data.loc.clone());
        let entry = Rewrite { pass: pass.clone(), rule: rule.cloned().or_else(of_location), before, location, after };
        if let Some(trail) = &mut self.trail {
            trail.entries.push(entry);
        }
    }
}
