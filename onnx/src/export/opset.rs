//! The operator set that a model needs.

use of_ir::{Attr, DType, Graph, OpData, Type};

use super::type_constraints;
use crate::ops::schema;

/// The oldest operator set that is written: from it on, operators have the forms that the exporter writes.
pub const OLDEST_WRITTEN: i64 = 21;

/// What of an operator is younger than [`OLDEST_WRITTEN`], apart from what `type_constraints` has: itself, and types.
#[derive(Clone, Copy)]
enum Part {
    /// An attribute, by its name in the IR.
    Attr(&'static str),
    /// An input.
    Input(usize),
}

use Part::{Attr as Attribute, Input};

/// Operators, and the operator sets that parts of them appeared in.
const SINCE: &[(&str, Part, i64)] = &[
    ("AveragePool", Attribute("ceil_mode"), 22),
    ("Attention", Input(6), 24),
    ("Attention", Attribute("left_window_size"), 25),
    ("Attention", Attribute("right_window_size"), 25),
    ("Cast", Attribute("round_mode"), 24),
    ("DequantizeLinear", Attribute("dtype"), 23),
    ("LpPool", Attribute("ceil_mode"), 22),
    ("MaxPool", Attribute("ceil_mode"), 22),
    ("QuantizeLinear", Attribute("precision"), 23),
    ("SpaceToDepth", Attribute("mode"), 28),
];

/// Element types that came after [`OLDEST_WRITTEN`], to all operators that take them at once.
const TYPES: &[(DType, i64)] = &[(DType::F4E2M1FN, 23), (DType::F8E8M0FNU, 24), (DType::I2, 25), (DType::U2, 25)];

/// The version of a domain other than the default one that has the operators as they are written.
pub(crate) fn of_domain(domain: &str) -> i64 {
    if domain == "ai.onnx.ml" { 5 } else { 1 }
}

/// The operator set that came with an element type.
pub(super) fn of_type(dtype: DType) -> i64 {
    TYPES.iter().find(|(d, _)| *d == dtype).map_or(OLDEST_WRITTEN, |t| t.1)
}

/// The operator set that an op needs when it is written as `operator`.
pub(super) fn needed(graph: &Graph, data: &OpData, operator: &str) -> i64 {
    let has = |part: Part| match part {
        Attribute(name) => {
            let slot = data.def.signature().attrs.iter().find(|s| s.name == name);
            let default = slot.and_then(|s| schema::default(operator, s));
            data.attrs.get(name).is_some_and(|value: &Attr| Some(value) != default.as_ref())
        }
        Input(i) => data.operands.get(i).is_some_and(|v| *graph.ty(*v) != Type::None),
    };
    let rows = SINCE.iter().filter(|(op, part, _)| *op == operator && has(*part));
    let types =
        data.operands.iter().chain(&data.results).filter_map(|v| Some(of_type(graph.ty(*v).as_tensor()?.dtype)));
    let schema = type_constraints::since(graph, operator, &data.operands, &data.results);
    rows.map(|row| row.2).chain(types).max().unwrap_or(schema).max(schema)
}

/// The version of ONNX's file format that came with an operator set.
pub(super) fn ir_version(opset: i64) -> i64 {
    match opset {
        ..=22 => 10,
        23 => 11,
        24 => 12,
        25..=27 => 13,
        _ => 14,
    }
}
