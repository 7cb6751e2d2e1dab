//! Constants with a single value.

use std::collections::HashMap;

use of_ir::{DType, Elements, Graph, IdSet, ValueId};

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

/// Constants of one element that kernels load instead of containing them: ops of one kind read so many different numbers that
/// kernels which differ in their constant alone would take the C compiler minutes.
pub fn loaded_numbers(g: &Graph) -> IdSet<ValueId> {
    const MAX_NUMBERS: usize = 256;
    let mut read: HashMap<(&str, DType), HashMap<u64, Vec<ValueId>>> = HashMap::new();
    for op in g.walk() {
        let data = g.op(op);
        for v in &data.operands {
            let one = g.constant(*v).filter(|t| t.len() == 1);
            if let (Some(t), Some(c)) = (one, number(g, *v)) {
                read.entry((data.name(), t.dtype())).or_default().entry(c.to_bits()).or_default().push(*v);
            }
        }
    }
    read.into_values().filter(|numbers| numbers.len() > MAX_NUMBERS).flat_map(HashMap::into_values).flatten().collect()
}
