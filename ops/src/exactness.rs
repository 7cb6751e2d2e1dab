//! Exactness of rewrites: how far the two sides of one may differ, and which values must keep every bit.
//!
//! A value must keep every bit where it is then rounded: a last place that differs near a tie is a whole step after it.

use std::collections::HashSet;

use of_ir::{Graph, IdSet, OpId, ValueId};

use crate::elementwise::{BitCast, Cast, Ceil, Eq, Floor, Fmod, Ge, Gt, Le, Lt, Mod, Ne, Round, Select, Sign};
use crate::maps::is_elementwise;
use crate::movement::{
    Compress, Concat, DepthToSpace, Expand, Flatten, Gather, GatherElements, GatherNd, Pad, Reshape, ReverseSequence,
    Slice, SpaceToDepth, Split, Squeeze, Tile, Transpose, Trilu, Unsqueeze,
};
use crate::nn::{DequantizeLinear, DynamicQuantizeLinear, MaxPool, QuantizeLinear};
use crate::reduction::{ArgMax, ArgMin, ReduceMax, ReduceMin, TopK};
use crate::structural::{Alternatives, OptimizationBarrier};
use crate::{OpSpec, list};

/// How far results after a rewrite of floats may be from those before it. Integers wrap, so that every rewrite of them is
/// exact.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Exactness {
    /// Equal bit for bit, for every operand; a NaN may have other bits.
    Exact,
    /// Equal as numbers; a zero may have the other sign.
    ZeroSign,
    /// Other intermediate results are rounded, or fewer, or more.
    Rounding,
    /// Terms are added in another order, or factors are multiplied into the terms.
    SumOrder,
}

impl Exactness {
    /// Whether results may be rounded to integers or compared afterwards.
    pub fn keeps_roundings(self) -> bool {
        matches!(self, Exactness::Exact | Exactness::ZeroSign)
    }

    /// The error in words.
    pub fn error(self) -> &'static str {
        match self {
            Exactness::Exact => "none",
            Exactness::ZeroSign => "the sign of a zero",
            Exactness::Rounding => {
                "half a unit in the last place for each intermediate result; infinity or zero where one overflows or underflows"
            }
            Exactness::SumOrder => {
                "half a unit in the last place of the sum of magnitudes, for each term; infinity or NaN where a partial sum overflows"
            }
        }
    }
}

/// Whether the op `name` rounds: near some operands, a difference of a last place becomes a whole step. So does one whose
/// result is the bits.
pub fn is_rounding(name: &str) -> bool {
    is_comparison(name)
        || [
            BitCast::NAME,
            Round::NAME,
            Floor::NAME,
            Ceil::NAME,
            Sign::NAME,
            Mod::NAME,
            Fmod::NAME,
            QuantizeLinear::NAME,
            DynamicQuantizeLinear::NAME,
            ArgMax::NAME,
            ArgMin::NAME,
            TopK::NAME,
        ]
        .contains(&name)
}

fn is_comparison(name: &str) -> bool {
    [Eq::NAME, Ne::NAME, Lt::NAME, Le::NAME, Gt::NAME, Ge::NAME].contains(&name)
}

/// Whether the op `name` moves or selects elements.
fn selects(name: &str) -> bool {
    [
        Alternatives::NAME,
        Compress::NAME,
        Concat::NAME,
        DepthToSpace::NAME,
        Expand::NAME,
        Flatten::NAME,
        Gather::NAME,
        GatherElements::NAME,
        GatherNd::NAME,
        MaxPool::NAME,
        OptimizationBarrier::NAME,
        Pad::NAME,
        ReduceMax::NAME,
        ReduceMin::NAME,
        Reshape::NAME,
        ReverseSequence::NAME,
        Slice::NAME,
        SpaceToDepth::NAME,
        Split::NAME,
        Squeeze::NAME,
        Tile::NAME,
        Transpose::NAME,
        Trilu::NAME,
        Unsqueeze::NAME,
    ]
    .contains(&name)
}

/// Whether each element of the result is defined to the last bit by a few elements of the operands. Sums over many elements
/// are not: ONNX leaves their order open.
pub fn is_bitwise(name: &str) -> bool {
    is_rounding(name) || selects(name) || name == DequantizeLinear::NAME || is_elementwise(name)
}

fn is_float(graph: &Graph, v: ValueId) -> bool {
    graph.ty(v).as_tensor().is_some_and(|t| t.dtype.is_float())
}

/// Whether `op` rounds floats, and is not the condition of a choice between functions of what it compares, as in activations:
/// these are continuous.
fn rounds(graph: &Graph, op: OpId) -> bool {
    let data = graph.op(op);
    if !data.operands.iter().any(|v| is_float(graph, *v)) {
        return false;
    }
    if let Some(cast) = list::as_op::<Cast>(graph, op) {
        return !cast.to.is_float();
    }
    is_rounding(data.name()) && !(is_comparison(data.name()) && chooses_between_functions(graph, op))
}

fn chooses_between_functions(graph: &Graph, comparison: OpId) -> bool {
    /// Ops between the compared value and a choice.
    const FAR: usize = 8;
    fn reads(graph: &Graph, v: ValueId, from: &[ValueId], far: usize) -> bool {
        from.contains(&v)
            || far > 0
                && graph.def_op(v).is_some_and(|op| {
                    is_elementwise(graph.op(op).name())
                        && graph.op(op).operands.iter().any(|x| reads(graph, *x, from, far - 1))
                })
    }
    let data = graph.op(comparison);
    let compared: Vec<ValueId> = data.operands.iter().copied().filter(|v| graph.constant(*v).is_none()).collect();
    let uses = graph.uses(data.results[0]);
    !uses.is_empty()
        && uses.iter().all(|u| {
            let user = graph.op(u.op);
            user.name() == Select::NAME
                && u.operand == 0
                && user.operands[1..].iter().any(|v| reads(graph, *v, &compared, FAR))
        })
}

/// The values that must keep every bit: the results of ops that round floats, and what these read through ops whose results
/// are defined to the last bit. Integers computed from integers are not among them: every rewrite of these is exact.
pub fn rounded_values(graph: &Graph) -> IdSet<ValueId> {
    let mut found = HashSet::default();
    let mut open: Vec<OpId> = graph.walk().into_iter().filter(|op| rounds(graph, *op)).collect();
    while let Some(op) = open.pop() {
        let data = graph.op(op);
        if !data.results.iter().chain(&data.operands).any(|v| is_float(graph, *v)) {
            continue;
        }
        if !data.results.iter().fold(false, |new, v| found.insert(*v) | new)
            || !(is_bitwise(data.name()) || rounds(graph, op))
        {
            continue;
        }
        open.extend(data.operands.iter().filter_map(|v| graph.def_op(*v)));
    }
    found
}
