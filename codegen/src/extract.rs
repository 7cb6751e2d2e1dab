//! Extracts ops of a graph as a separate function, for backends that compile subgraphs.

use of_diag::Location;
use of_ir::{Attr, Attrs, Func, Graph, IdMap, OpId, RegionId, Rewriter, Type, ValueId};
use of_ops::OpSpec;
use of_ops::boxing::Transfer;
use of_ops::structural::Return;

/// Constants of up to this many elements are copied into the function; larger ones stay operands and are shared as weights.
pub const MAX_INLINE_ELEMENTS: usize = 64;

/// A subgraph as a function.
pub struct Extracted {
    /// The function; its arguments correspond to `inputs`, its results to `outputs`.
    pub func: Func,
    /// Values of the graph that the subgraph reads.
    pub inputs: Vec<ValueId>,
    /// Values that the subgraph computes and other ops read.
    pub outputs: Vec<ValueId>,
}

/// Copies `ops` (in execution order) and the values that they capture.
///
/// # Panics
/// Never for ops of one region in execution order.
pub fn extract(graph: &Graph, ops: &[OpId]) -> Extracted {
    extract_with(graph, ops, MAX_INLINE_ELEMENTS)
}

/// As [`extract`], with constants of up to `largest_constant` elements as part of the function.
///
/// # Panics
/// As [`extract`].
pub fn extract_with(graph: &Graph, ops: &[OpId], largest_constant: usize) -> Extracted {
    let defined = ops.iter().flat_map(|op| graph.op(*op).results.to_vec());
    let outputs = defined.filter(|v| graph.uses(*v).iter().any(|u| !ops.contains(&u.op))).collect();
    extract_to(graph, ops, outputs, largest_constant)
}

/// Copies the ops of a region without arguments; the function returns what the region yields. Constants of up to
/// `largest_constant` elements are copied into it.
///
/// # Panics
/// As [`extract`].
pub fn extract_region(graph: &Graph, region: RegionId, largest_constant: usize) -> Extracted {
    let ops: Vec<OpId> = graph.region_ops(region).filter(|op| !graph.op(*op).def.traits().terminator).collect();
    extract_to(graph, &ops, graph.yields(region).to_vec(), largest_constant)
}

fn extract_to(graph: &Graph, ops: &[OpId], outputs: Vec<ValueId>, largest_constant: usize) -> Extracted {
    let mut reads = Vec::new();
    for op in ops {
        read_by(graph, *op, &mut reads);
    }
    reads.extend(&outputs);
    let defined: Vec<ValueId> = ops.iter().flat_map(|op| graph.op(*op).results.to_vec()).collect();
    let mut func = Func {
        graph: Graph::new(),
        inputs: Vec::new(),
        outputs: (0..outputs.len()).map(|i| format!("out{i}")).collect(),
        attrs: Attrs::new(),
        loc: Location::Unknown,
    };
    let mut map: IdMap<ValueId, ValueId> = IdMap::default();
    let mut inputs = Vec::new();
    let entry = func.graph.entry();
    let mut rw = Rewriter::new(&mut func.graph, "extract");
    rw.number_symbols_above(graph);
    for v in reads {
        if defined.contains(&v) || map.contains_key(&v) {
            continue;
        }
        let inline = *graph.ty(v) == Type::None || graph.constant(v).is_some_and(|c| c.len() <= largest_constant);
        if inline && let Some(def) = graph.def_op(v) {
            rw.clone_op(graph, def, &mut map);
        } else {
            let arg = rw.add_arg(entry, graph.ty(v).clone(), graph.name(v).cloned());
            map.insert(v, arg);
            func.inputs.push(format!("in{}", inputs.len()));
            inputs.push(v);
        }
    }
    for op in ops {
        let copy = rw.clone_op(graph, *op, &mut map);
        // The function is called in each microbatch, and knows of none.
        if graph.op(*op).name() == Transfer::NAME {
            rw.set_attr(copy, "microbatches", Attr::Ints(Vec::new()));
        }
    }
    let results: Vec<ValueId> = outputs.iter().map(|v| map[v]).collect();
    if let Err(d) = rw.create(Return {}, &results) {
        unreachable!("a return takes any values: {d}");
    }
    Extracted { func, inputs, outputs }
}

/// Values that `op` and its regions read from outside of it, in order.
pub fn read_by(graph: &Graph, op: OpId, out: &mut Vec<ValueId>) {
    fn inside(graph: &Graph, regions: &[RegionId], region: RegionId) -> bool {
        regions.iter().any(|r| graph.encloses(*r, region))
    }
    let regions = graph.op(op).regions.to_vec();
    out.extend(graph.op(op).operands.iter().copied());
    let mut stack: Vec<RegionId> = regions.clone();
    while let Some(r) = stack.pop() {
        for o in graph.region_ops(r) {
            stack.extend(&graph.op(o).regions);
            for v in &graph.op(o).operands {
                let home = match graph.def(*v) {
                    of_ir::ValueDef::Result(d, _) => graph.op(d).parent,
                    of_ir::ValueDef::Arg(region, _) => region,
                };
                if !inside(graph, &regions, home) {
                    out.push(*v);
                }
            }
        }
    }
}
