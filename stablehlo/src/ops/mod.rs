//! Importers of operations: one table, and a file for each family.

mod control;
mod conv;
mod counted;
mod dot;
mod elementwise;
mod gather;
mod math;
mod reduce;
mod scatter;
mod shape;
mod slice;
mod sort;
mod table;
mod window;

use of_ir::TensorType;

use crate::import::{Call, ImportError, ImportResult, Importer};
use crate::parse::ast::{Attr, Op};

/// The importer of an operation.
pub(crate) type ImportFn = for<'a, 'g, 'c> fn(&'c mut Importer<'a, 'g>, &'c Call<'a>) -> ImportResult;

/// An operation as the documentation lists it.
pub struct Operation {
    /// `stablehlo.add`; custom calls are `stablehlo.custom_call @name`.
    pub name: &'static str,
    /// What of it is supported; empty for all.
    pub note: &'static str,
    /// Why it is not supported; `None` if it is.
    pub refused: Option<&'static str>,
}

/// Every operation that is known.
pub fn operations() -> Vec<Operation> {
    let read = table::TABLE.iter().map(|e| Operation { name: e.0, note: e.2, refused: None });
    let calls = table::CUSTOM_CALLS.iter().map(|e| Operation { name: e.0, note: "a custom call", refused: None });
    let refused = table::REFUSED.iter().map(|e| Operation { name: e.0, note: "", refused: Some(e.1) });
    read.chain(calls).chain(refused).collect()
}

/// The name of an operation in reports: with the target of a custom call.
pub(crate) fn name(op: &Op<'_>) -> String {
    match target(op) {
        Some(target) => format!("{} @{target}", op.name),
        None => op.name.clone(),
    }
}

fn target<'t>(op: &'t Op<'_>) -> Option<&'t str> {
    if op.name != "stablehlo.custom_call" {
        return None;
    }
    match op.attr("callee").or(op.attr("call_target_name")) {
        Some(Attr::Symbol(name) | Attr::Str(name)) => Some(name),
        _ => None,
    }
}

/// The importer of an operation, or why there is none.
pub(crate) fn find(op: &Op<'_>) -> Result<ImportFn, &'static str> {
    if matches!(op.name.as_str(), "stablehlo.return" | "func.return" | "mhlo.return") {
        return Ok(|_, _| Ok(Vec::new()));
    }
    if let Some(target) = target(op) {
        let known = table::CUSTOM_CALLS.iter().find(|e| e.0 == target);
        return known.map(|e| e.1).ok_or("the function that it calls is not known");
    }
    if let Some(e) = table::TABLE.iter().find(|e| e.0 == op.name) {
        return Ok(e.1);
    }
    Err(table::REFUSED.iter().find(|e| e.0 == op.name).map_or("the operation is not known", |e| e.1))
}

/// Whether the importer matches the operation's regions as patterns instead of importing them.
pub(crate) fn reads_regions_itself(op: &Op<'_>) -> bool {
    matches!(
        op.name.as_str(),
        "stablehlo.reduce"
            | "stablehlo.reduce_window"
            | "stablehlo.scatter"
            | "stablehlo.select_and_scatter"
            | "stablehlo.sort"
    )
}

impl Call<'_> {
    /// Operand `i`.
    pub fn operand(&self, i: usize) -> Result<of_ir::ValueId, ImportError> {
        let missing = || ImportError::invalid(format!("operand {i} is missing"));
        self.operands.get(i).copied().ok_or_else(missing)
    }

    /// The type of result `i`.
    pub fn ty(&self, i: usize) -> Result<&TensorType, ImportError> {
        self.types.get(i).ok_or_else(|| ImportError::invalid(format!("result {i} is missing")))
    }

    /// The extents of result `i`.
    pub fn dims(&self, i: usize) -> Result<Vec<i64>, ImportError> {
        crate::import::build::dims(self.ty(i)?)
    }

    /// The attribute `key`, which may have another name in the generic form.
    pub fn attr(&self, keys: &[&str]) -> Option<&Attr> {
        keys.iter().find_map(|k| self.op.attr(k))
    }

    /// A list of integers; `None` where it is left out.
    pub fn opt_ints(&self, keys: &[&str]) -> Result<Option<Vec<i64>>, ImportError> {
        let Some(attr) = self.attr(keys) else { return Ok(None) };
        let wrong = || ImportError::invalid(format!("attribute '{}' must be a list of integers", keys[0]));
        attr.ints().map(Some).ok_or_else(wrong)
    }

    /// A list of integers.
    pub fn ints(&self, keys: &[&str]) -> Result<Vec<i64>, ImportError> {
        self.opt_ints(keys)?.ok_or_else(|| ImportError::invalid(format!("attribute '{}' is missing", keys[0])))
    }

    /// One integer.
    pub fn int(&self, keys: &[&str]) -> Result<i64, ImportError> {
        let missing = || ImportError::invalid(format!("attribute '{}' must be an integer", keys[0]));
        self.attr(keys).and_then(Attr::int).ok_or_else(missing)
    }

    /// A list of axes of a tensor of this rank, none twice.
    pub fn axes(&self, keys: &[&str], rank: usize) -> Result<Vec<usize>, ImportError> {
        axes(&self.ints(keys)?, rank)
    }
}

/// Integers as axes of a tensor of this rank, none twice.
pub(crate) fn axes(list: &[i64], rank: usize) -> Result<Vec<usize>, ImportError> {
    let mut out = Vec::with_capacity(list.len());
    for a in list {
        let axis = usize::try_from(*a).ok().filter(|a| *a < rank && !out.contains(a));
        out.push(axis.ok_or_else(|| {
            ImportError::invalid(format!("{a} is no axis of a tensor of rank {rank}, or is there twice"))
        })?);
    }
    Ok(out)
}
