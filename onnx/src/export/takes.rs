//! Element types that operators do not take although their ops do.

use of_ir::{DType, Graph, OpData};

const BYTES: &[DType] = &[DType::I8, DType::U8];
const QUANTIZED: &[DType] = &[
    DType::I8,
    DType::U8,
    DType::I16,
    DType::U16,
    DType::I32,
    DType::I4,
    DType::U4,
    DType::I2,
    DType::U2,
    DType::F8E4M3FN,
    DType::F8E4M3FNUZ,
    DType::F8E5M2,
    DType::F8E5M2FNUZ,
    DType::F4E2M1FN,
];
const SINGLE: &[DType] = &[DType::F32];
const SINGLE_AND_DOUBLE: &[DType] = &[DType::F32, DType::F64];
const HALF_AND_SINGLE: &[DType] = &[DType::F32, DType::F16, DType::BF16];

/// Operators, operands (counted from zero), and the types that these may have.
const TAKES: &[(&[&str], &[usize], &[DType])] = &[
    (&["ConvInteger", "MatMulInteger"], &[0, 1, 2, 3], BYTES),
    (&["CausalConvWithState", "LinearAttention", "RotaryEmbedding"], &[0], HALF_AND_SINGLE),
    (&["ConstantOfShape"], &[0], &[DType::I64]),
    (&["DequantizeLinear"], &[0], QUANTIZED),
    (&["DynamicQuantizeLinear"], &[0], SINGLE),
    (&["GRU", "LSTM", "RNN"], &[4], &[DType::I32]),
    (&["MelWeightMatrix"], &[0, 1, 2], &[DType::I32, DType::I64]),
    (&["QLinearMatMul", "QLinearConv"], &[0, 2, 3, 5, 7], QLINEAR),
    (&["QuantizeLinear"], &[0], &[DType::F32, DType::F16, DType::BF16, DType::I32]),
    (&["ScatterND", "GatherND"], &[1], &[DType::I64]),
    (&["TfIdfVectorizer"], &[0], &[DType::I32, DType::I64, DType::String]),
    (
        &["ai.onnx.preview.training::Adagrad", "ai.onnx.preview.training::Adam", "ai.onnx.preview.training::Momentum"],
        &[0],
        SINGLE_AND_DOUBLE,
    ),
];
const QLINEAR: &[DType] = &[DType::I8, DType::U8, DType::F8E4M3FN, DType::F8E4M3FNUZ, DType::F8E5M2, DType::F8E5M2FNUZ];

/// Pairs of operands that an operator wants of one type: values and their zero points.
const PAIRS: &[(&str, &[(usize, usize)])] = &[
    ("QLinearMatMul", &[(0, 2), (3, 5)]),
    ("QLinearConv", &[(0, 2), (3, 5)]),
    ("ConvInteger", &[(0, 2), (1, 3)]),
    ("MatMulInteger", &[(0, 2), (1, 3)]),
];

/// Why `op` does not take the element types that its operands have.
pub(super) fn unfit(g: &Graph, data: &OpData, op: &str) -> Option<String> {
    let dtype = |i: usize| data.operands.get(i).and_then(|v| g.ty(*v).as_tensor()).map(|t| t.dtype);
    let windowed = matches!(op, "Conv" | "ConvTranspose" | "AveragePool" | "LpPool");
    if let Some(d) = dtype(0).filter(|d| windowed && !d.is_float()) {
        return Some(format!("{op} takes floating-point numbers, not {d}"));
    }
    for (_, operands, types) in TAKES.iter().filter(|(ops, ..)| ops.contains(&op)) {
        for i in *operands {
            if let Some(d) = dtype(*i).filter(|d| !types.contains(d)) {
                return Some(format!("operand {i} of {op} cannot be {d}"));
            }
        }
    }
    let (_, pairs) = PAIRS.iter().find(|(o, _)| *o == op)?;
    let (a, b) = pairs.iter().find(|(a, b)| dtype(*a).zip(dtype(*b)).is_some_and(|(a, b)| a != b))?;
    Some(format!("operands {a} and {b} of {op} must have one type"))
}
