//! The operands of a kernel that an index out of range may come from: what its error says.

use of_plan::{Arg, ArgSource, ElementType, KernelExec, Plan, Program, Task};

use crate::Tensor;
use crate::device::Buffer;
use crate::task_context::Context;

/// An operand that a kernel reads.
pub(crate) struct IndexOperand {
    /// Name, element type and extents.
    text: String,
    dtype: ElementType,
    /// The memory, where the plan laid it out.
    buffer: Option<Buffer>,
    /// The register.
    register: Option<u32>,
}

impl IndexOperand {
    fn with_range(&self, least: i64, most: i64) -> String {
        format!("{} with values from {least} to {most}", self.text)
    }
}

/// The operands that a kernel reads, if integers are among them; none otherwise.
pub(crate) fn index_operands(
    (plan, program): (&Plan, &Program),
    task: &Task,
    exec: &KernelExec,
    buffer: impl Fn(&Arg) -> Option<Buffer>,
) -> Vec<IndexOperand> {
    let operand = |arg: &Arg| {
        let (name, own_dtype, own_dims, register) = match arg.source? {
            ArgSource::Register(id) if task.produces.contains(&id) => return None,
            ArgSource::Register(id) => {
                let register = program.registers.get(id as usize)?;
                (&register.name, register.dtype(), &register.dims, Some(id))
            }
            ArgSource::Weight(index) => {
                let weight = plan.weights.get(index as usize)?;
                (&weight.name, weight.dtype(), &weight.dims, None)
            }
        };
        let (dtype, dims) = arg.view.as_ref().map_or((own_dtype, own_dims), |view| (view.dtype(), &view.dims));
        Some(IndexOperand { text: format!("'{name}' {dtype}{dims:?}"), dtype, buffer: buffer(arg), register })
    };
    let operands: Vec<IndexOperand> = exec.args.iter().filter_map(operand).collect();
    let is_index = |dtype| matches!(dtype, ElementType::I32 | ElementType::I64);
    if operands.iter().any(|operand| is_index(operand.dtype)) { operands } else { Vec::new() }
}

/// What the operands are, with the least and the largest of integers.
pub(crate) fn describe(operands: &[IndexOperand], context: &Context<'_>) -> String {
    let text = |operand: &IndexOperand| {
        let range = match (&operand.buffer, operand.register) {
            (Some(buffer), _) => range(operand.dtype, buffer.bytes(context.iteration)),
            (None, Some(register)) => {
                if let Some(buffer) = context.layout.buffer(register) {
                    return Some(
                        range(operand.dtype, buffer.bytes(context.iteration))
                            .map(|(least, most)| operand.with_range(least, most)),
                    );
                }
                let guard = context.objects.read(register, context.iteration);
                let bytes = guard.as_deref().and_then(Option::as_ref)?.as_tensor().and_then(Tensor::bytes)?.to_vec();
                range(operand.dtype, &bytes)
            }
            _ => None,
        };
        Some(range.map(|(least, most)| operand.with_range(least, most)))
    };
    let texts: Vec<String> =
        operands.iter().map(|operand| text(operand).flatten().unwrap_or_else(|| operand.text.clone())).collect();
    if texts.is_empty() { String::new() } else { format!("; the operands are {}", texts.join(", ")) }
}

/// The least and the largest of integers.
fn range(dtype: ElementType, bytes: &[u8]) -> Option<(i64, i64)> {
    let numbers: Vec<i64> = match dtype {
        ElementType::I64 => bytes.as_chunks().0.iter().map(|b| i64::from_ne_bytes(*b)).collect(),
        ElementType::I32 => bytes.as_chunks().0.iter().map(|b| i64::from(i32::from_ne_bytes(*b))).collect(),
        _ => return None,
    };
    Some((*numbers.iter().min()?, *numbers.iter().max()?))
}
