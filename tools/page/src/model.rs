//! Sections about the ops of a function.

use of_ir::{Func, IdMap, Module, OpId, Type};
use serde_json::json;

use crate::{Facts, Kind, Names, Page, bounded, shortened};

/// The page of a module: facts, inputs and outputs, and each function.
pub fn page(module: &Module) -> Page {
    let mut page = Page::new(&module.name);
    let facts: Vec<Facts> = module.funcs.iter().map(|(n, f)| Facts::of(n, f)).collect();
    page.fact("functions", Kind::Number, facts.len(), "");
    page.fact("ops", Kind::Number, facts.iter().flat_map(|f| f.ops.values()).sum::<usize>(), "");
    page.fact("constants", Kind::Bytes, facts.iter().map(|f| f.constant_bytes).sum::<u64>(), "");
    let ports = facts.iter().flat_map(|f| {
        let list = |what: &'static str, ports: &[(String, String)]| {
            ports.iter().map(|(name, ty)| json!([f.name, what, name, ty])).collect::<Vec<_>>()
        };
        [list("input", &f.inputs), list("output", &f.outputs)].concat()
    });
    let columns = [("function", Kind::Text), ("kind", Kind::Group), ("name", Kind::Text), ("type", Kind::Text)];
    page.table("Inputs and outputs", "", &columns, ports);
    module.funcs.values().for_each(|f| add(&mut page, f));
    page
}

/// Adds the graph of a function and the table of its ops.
pub fn add(page: &mut Page, func: &Func) {
    graph(page, func);
    ops(page, func);
}

/// The ops of the function's body, without constants.
fn graph(page: &mut Page, func: &Func) {
    let g = &func.graph;
    let shown = |op: &OpId| {
        let data = g.op(*op);
        data.def.constant(&data.attrs).is_none() && !(data.operands.is_empty() && data.regions.is_empty())
    };
    let list: Vec<OpId> = g.region_ops(g.entry()).filter(shown).collect();
    let mut kinds = Names::default();
    let (nodes, left_out) = bounded(list.iter().map(|op| {
        let data = g.op(*op);
        let ty = data.results.first().map(|v| g.ty(*v).to_string()).unwrap_or_default();
        json!([shortened(&value_name(func, *op)), kinds.number(short(data.name())), shortened(&ty)])
    }));
    let number: IdMap<OpId, usize> = list[..nodes.len()].iter().copied().zip(0..).collect();
    let edges = list[..nodes.len()].iter().enumerate().flat_map(|(i, op)| {
        let captured = g.captured(*op).into_iter();
        let read = g.op(*op).operands.iter().copied().chain(captured);
        let mut from: Vec<usize> = read.filter_map(|v| number.get(&g.def_op(v)?).copied()).collect();
        from.sort_unstable();
        from.dedup();
        from.into_iter().map(move |j| json!([j, i]))
    });
    let (edges, _) = bounded(edges);
    if nodes.is_empty() {
        return;
    }
    page.sections.push(json!({
        "type": "graph", "title": "Graph", "nodes": nodes, "edges": edges, "kinds": kinds.list, "left_out": left_out,
        "note": "Each op is below the ops that it reads. Constants are not shown.",
    }));
}

/// Every op, those in regions included.
fn ops(page: &mut Page, func: &Func) {
    let g = &func.graph;
    let rows = g.walk().into_iter().enumerate().map(|(i, op)| {
        let data = g.op(op);
        let types: Vec<String> = data.results.iter().map(|v| g.ty(*v).to_string()).collect();
        let bytes: Option<usize> = data.results.iter().map(|v| byte_len(g.ty(*v))).sum();
        let text = (shortened(&value_name(func, op)), shortened(&types.join(", ")), shortened(&data.loc.to_string()));
        json!([i, short(data.name()), text.0, text.1, bytes, text.2])
    });
    let columns = [
        ("#", Kind::Number),
        ("op", Kind::Group),
        ("value", Kind::Text),
        ("type", Kind::Text),
        ("bytes", Kind::Bytes),
        ("from", Kind::Text),
    ];
    page.table("Ops", "In execution order, with those of regions.", &columns, rows);
}

/// Bytes of a tensor of fixed extents.
fn byte_len(ty: &Type) -> Option<usize> {
    let t = ty.as_tensor()?;
    t.dtype.byte_len(t.fixed_dims()?.iter().try_fold(1usize, |n, d| n.checked_mul(*d))?)
}

/// `of.matmul` is `matmul`.
fn short(name: &str) -> &str {
    name.strip_prefix("of.").unwrap_or(name)
}

/// The name of the first result of an op, or the op's.
fn value_name(func: &Func, op: OpId) -> String {
    let data = func.graph.op(op);
    let named = data.results.first().and_then(|v| func.graph.name(*v));
    named.map_or_else(|| short(data.name()).to_string(), |n| format!("%{n}"))
}
