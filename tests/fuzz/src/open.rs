//! The same function with symbolic dimensions instead of its inputs' numbers.

use std::collections::HashMap;

use of_diag::Diagnostic;
use of_ir::{Dim, Func, Graph, OpId, Rewriter, Type, ValueId, verify_module};
use of_ops::structural::{Constant, Return};

use crate::{Case, module};

/// Which dimensions of the inputs are symbolic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Opening {
    /// None.
    #[default]
    Closed,
    /// All; dimensions of equal size share a symbol.
    Shared,
    /// All, each with a distinct symbol: the run finds that some are equal.
    Apart,
    /// The first of each input; dimensions of equal size share a symbol.
    First,
}

/// More symbols than any graph creates: those of a copy are numbered from here.
pub(crate) const COPIED: u32 = 1 << 20;

/// The function of `case` with symbolic dimensions, as far as inference accepts them: all requested ones, or those of one
/// size. `None` if no dimension is symbolic.
pub fn opened(case: &Case) -> Option<Func> {
    let dims = |ty: &Type| ty.as_tensor().and_then(|t| t.fixed_dims()).unwrap_or_default();
    let mut sizes: Vec<usize> = case.func.input_types().iter().flat_map(dims).collect();
    sizes.sort_unstable();
    sizes.dedup();
    if case.opening == Opening::Closed || sizes.is_empty() || named_within(&case.func.graph) {
        return None;
    }
    let choices = std::iter::once(None).chain(sizes.into_iter().rev().map(Some));
    // Ops in regions are not inferred when they are copied: the verifier judges them.
    let accepted = |f: &Func| verify_module(&module(f.clone())).is_ok();
    choices.into_iter().find_map(|only| rebuild(case, only).ok().filter(accepted))
}

/// Whether types within regions have symbols, which are not those that inference invents anew outside.
fn named_within(g: &Graph) -> bool {
    let within = |op: &OpId| g.op(*op).parent != g.entry();
    let named = |ty: &Type| ty.as_tensor().is_none_or(|t| t.fixed_dims().is_none());
    let args = |op: &OpId| g.op(*op).regions.iter().flat_map(|r| g.region_args(*r)).any(|v| named(g.ty(*v)));
    let results =
        |op: &OpId| within(op) && g.op(*op).results.iter().any(|v| *g.ty(*v) != Type::None && named(g.ty(*v)));
    g.walk().iter().any(|op| args(op) || results(op))
}

fn rebuild(case: &Case, only: Option<usize>) -> Result<Func, Diagnostic> {
    let from = &case.func.graph;
    let mut graph = Graph::new();
    let entry = graph.entry();
    let mut rw = Rewriter::new(&mut graph, "fuzz");
    // A copied op gets its own symbols.
    rw.number_symbols_from(COPIED);
    let mut map: HashMap<ValueId, ValueId> = HashMap::new();
    for (i, v) in from.args().iter().enumerate() {
        let mut axis = 0;
        let ty = from.ty(*v).map_dims(&mut |d| {
            axis += 1;
            let Some(n) = d.as_const().filter(|n| only.is_none_or(|o| *n == o as i64)) else { return d.clone() };
            match case.opening {
                Opening::Apart => Dim::symbol(format!("x{i}_{axis}")),
                Opening::First if axis > 1 => d.clone(),
                _ => Dim::symbol(format!("n{n}")),
            }
        });
        let open = matches!(ty, Type::Tensor(_));
        map.insert(*v, rw.add_arg(entry, if open { ty } else { from.ty(*v).clone() }, None));
    }
    for op in from.region_ops(from.entry()) {
        let data = from.op(op);
        if data.def.traits().terminator {
            continue;
        }
        if !data.regions.is_empty() {
            // Values inside regions keep their types: a model may declare them.
            rw.clone_op(from, op, &mut map);
            continue;
        }
        let operands: Vec<ValueId> = data.operands.iter().map(|v| map[v]).collect();
        let new = match data.def.constant(&data.attrs) {
            Some(value) => rw.create(Constant { value }, &[])?,
            None => rw.create((data.def, data.attrs.clone()), &operands)?,
        };
        let results = rw.graph().op(new).results.to_vec();
        map.extend(data.results.iter().copied().zip(results));
    }
    let outputs: Vec<ValueId> = from.outputs().iter().map(|v| map[v]).collect();
    rw.create(Return {}, &outputs)?;
    Ok(Func { graph, ..case.func.clone() })
}
