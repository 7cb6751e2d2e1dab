//! Copying ops, from one graph into another or within one.

use smallvec::SmallVec;

use crate::{Graph, IdMap, OpId, Rewriter, Type, ValueId};

impl Rewriter<'_> {
    /// Copies `op` of graph `from` to the insertion point, regions included, with its location. `map` has the
    /// replacement of each value that the op reads, and receives its results.
    ///
    /// # Panics
    /// When a value that it reads is not in `map`: the caller maps captured values first.
    pub fn clone_op(&mut self, from: &Graph, op: OpId, map: &mut IdMap<ValueId, ValueId>) -> OpId {
        let data = from.op(op);
        let operands: SmallVec<[ValueId; 4]> = data.operands.iter().map(|v| map[v]).collect();
        let regions: Vec<_> = data
            .regions
            .iter()
            .map(|source| {
                let region = self.new_region();
                let (point, loc) = self.position();
                self.at_end(region);
                for arg in from.region_args(*source) {
                    let copy = self.add_arg(region, from.ty(*arg).clone(), from.name(*arg).cloned());
                    map.insert(*arg, copy);
                }
                for inner in from.region_ops(*source) {
                    self.clone_op(from, inner, map);
                }
                self.restore((point, loc));
                region
            })
            .collect();
        let types = data.results.iter().map(|v| from.ty(*v).clone()).collect();
        let (point, loc) = self.position();
        self.set_location(data.loc.clone());
        let copy = self.insert(data.def, &operands, data.attrs.clone(), &regions, types);
        self.restore((point, loc));
        for (i, v) in data.results.iter().enumerate() {
            let result = self.graph().op(copy).results[i];
            map.insert(*v, result);
            if let Some(name) = from.name(*v) {
                self.set_name(result, name.clone());
            }
        }
        copy
    }

    /// Copies `op`, regions included, to the insertion point, located as derived from it by this pass. `map` has the
    /// replacements of values that the op reads, and receives its results. Other values are read as they are.
    pub fn copy_op(&mut self, op: OpId, map: &mut IdMap<ValueId, ValueId>) -> OpId {
        let data = self.graph().op(op).clone();
        let operands: SmallVec<[ValueId; 4]> =
            data.operands.iter().map(|v| map.get(v).copied().unwrap_or(*v)).collect();
        let types: Vec<Type> = data.results.iter().map(|v| self.graph().ty(*v).clone()).collect();
        let mut regions = Vec::with_capacity(data.regions.len());
        for source in &data.regions {
            let (args, ops) =
                (self.graph().region_args(*source).to_vec(), self.graph().region_ops(*source).collect::<Vec<_>>());
            let (region, ()) = self.region_with(|rw, region| {
                for arg in args {
                    let (ty, name) = (rw.graph().ty(arg).clone(), rw.graph().name(arg).cloned());
                    map.insert(arg, rw.add_arg(region, ty, name));
                }
                for inner in ops {
                    rw.copy_op(inner, map);
                }
            });
            regions.push(region);
        }
        let (point, loc) = self.position();
        self.rewrite(op, &[]);
        let (_, derived) = self.position();
        self.restore((point, derived));
        let copy = self.insert(data.def, &operands, data.attrs, &regions, types);
        self.restore((point, loc));
        map.extend(data.results.into_iter().zip(self.graph().op(copy).results.clone()));
        copy
    }
}
