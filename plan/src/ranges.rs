//! The ranges that a structure names in the other sections.

use crate::builder::PlanBuilder;
use crate::{ElementType, Exec, Finding, FindingKind, KernelCode, Plan, Weight};

/// Checks every offset and length against the sizes of the sections they point into.
pub(crate) fn check(plan: &Plan, weights_len: u64, code_len: u64, payload_len: u64) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (index, weight) in plan.weights.iter().enumerate() {
        if let Err(problem) = check_weight(weight, weights_len) {
            let place = format!("weight {index} `{}`", weight.name);
            findings.push(Finding::new(FindingKind::Range, place, problem));
        }
    }
    for (index, code) in plan.code.iter().enumerate() {
        if let Err(problem) = check_code(code, code_len) {
            let place = format!("kernel {index} `{}`", code.name);
            findings.push(Finding::new(FindingKind::Range, place, problem));
        }
    }
    for program in &plan.programs {
        for task in &program.tasks {
            if let Some(Exec::Backend(exec)) = &task.exec
                && !fits(exec.offset, exec.len, payload_len)
            {
                let place = format!("program `{}`, task `{}`", program.name, task.name);
                findings.push(Finding::new(FindingKind::Range, place, "the payload reaches past its section"));
            }
        }
    }
    findings
}

fn check_weight(weight: &Weight, section: u64) -> Result<(), String> {
    let dtype = ElementType::try_from(weight.dtype).map_err(|_| format!("unknown element type {}", weight.dtype))?;
    if !fits(weight.offset, weight.len, section) {
        return Err("the bytes reach past the weights section".into());
    }
    if dtype == ElementType::String {
        return crate::dtype::element_count(&weight.dims).map(|_| ()).ok_or_else(|| "bad extents".into());
    }
    if dtype.byte_len(&weight.dims) != Some(weight.len) {
        return Err(format!("{dtype}{:?} does not take {} bytes", weight.dims, weight.len));
    }
    if !weight.offset.is_multiple_of(dtype.align()) {
        return Err(format!("offset {} is not aligned for {dtype}", weight.offset));
    }
    Ok(())
}

fn check_code(code: &KernelCode, section: u64) -> Result<(), String> {
    if !fits(code.offset, code.len, section) {
        return Err("the blob reaches past the code section".into());
    }
    if code.entry >= code.len {
        return Err(format!("the entry, byte {}, is outside of the blob", code.entry));
    }
    if code.blake3.len() != 32 {
        return Err("the content hash does not have 32 bytes".into());
    }
    Ok(())
}

fn fits(offset: u64, len: u64, section: u64) -> bool {
    offset.checked_add(len).is_some_and(|end| end <= section)
}

impl Weight {
    /// The elements of a string tensor from its bytes; `None` when they are not as many strings as the extents say.
    pub fn decode_strings(&self, bytes: &[u8]) -> Option<Vec<String>> {
        let strings = PlanBuilder::decode_strings(bytes)?;
        (crate::dtype::element_count(&self.dims)? == strings.len() as u64).then_some(strings)
    }
}
