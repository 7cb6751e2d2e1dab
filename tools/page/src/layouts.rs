//! Sections about layouts on a mesh: transfers, and the layout of each value.

use of_sharding::decide::{Decision, transfers};
use of_sharding::explain::explain;
use of_sharding::value_names::value_names;
use of_sharding::{Layout, Model};
use serde_json::{Value, json};

use crate::{Kind, Page};

/// Adds the facts, transfers and layouts of a decision.
pub fn add(page: &mut Page, model: &Model<'_>, d: &Decision) {
    let names = value_names(model.func);
    let moved = transfers(model, d).into_iter().filter_map(|t| {
        let transfer = model.transfers(t.value)?;
        let path = transfer.router.path(&t.from, &t.to, transfer.bytes, &transfer.usable).unwrap_or_default();
        let steps: Vec<String> = path.iter().map(|s| format!("{} {:?}", s.collective.name(), s.axes)).collect();
        let (seconds, bytes): (f64, f64) = (path.iter().map(|s| s.seconds).sum(), path.iter().map(|s| s.bytes).sum());
        Some(json!([names[t.value.index()], chips(&t.from), chips(&t.to), steps.join(", "), seconds, bytes]))
    });
    let columns = [
        ("value", Kind::Text),
        ("from", Kind::Layout),
        ("to", Kind::Layout),
        ("by", Kind::Group),
        ("time", Kind::Seconds),
        ("sent by all", Kind::Bytes),
    ];
    page.table("Communication", "Transfers between layouts, with the times of the cost model.", &columns, moved);
    let columns = [
        ("value", Kind::Text),
        ("layout", Kind::Layout),
        ("runner-up", Kind::Layout),
        ("its time", Kind::Seconds),
        ("sent", Kind::Bytes),
        ("memory", Kind::Bytes),
    ];
    let note = "The layout of each value, and the best one that was not chosen: how much more time, data and memory it \
                takes. B: replicated on every rank. S(i): a slice along axis i. P: partial, to be reduced.";
    let rows = explain(model, d).into_iter().map(|e| match e.runner_up {
        Some(r) => json!([e.value, chips(&e.layout), chips(&r.layout), r.seconds, r.sent, r.memory]),
        None => json!([e.value, chips(&e.layout), Value::Null, Value::Null, Value::Null, Value::Null]),
    });
    page.table("Layouts", note, &columns, rows);
}

/// The layout along each mesh axis.
fn chips(l: &Layout) -> Vec<String> {
    l.iter().map(ToString::to_string).collect()
}
