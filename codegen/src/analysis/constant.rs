//! Constants with a single value.

use of_ir::{Elements, Graph, ValueId};

/// The value of a constant with one element, or with few and equal elements, if f64 represents it exactly.
pub fn number(g: &Graph, v: ValueId) -> Option<f64> {
    const MAX_ELEMENTS: usize = 4096;
    let t = g.constant(v)?;
    if t.is_empty() || t.len() > MAX_ELEMENTS {
        return None;
    }
    match t.elements() {
        Elements::Float(e) => e.iter().all(|x| x.to_bits() == e[0].to_bits()).then_some(e[0]),
        Elements::Int(e) => (e.iter().all(|x| *x == e[0]) && e[0].unsigned_abs() < 1 << 53).then(|| e[0] as f64),
        Elements::Str(_) => None,
    }
}
