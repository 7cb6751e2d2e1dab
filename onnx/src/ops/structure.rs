//! Constants, aliases and other operators without computation.

use of_ir::Attr;
use of_ops::elementwise::Cast;

use super::{legacy, random};
use crate::import::{ImportError, ImportResult, Importer, Node, literal};

/// The attributes that give a `Constant` its value.
const VALUES: [&str; 8] = [
    "value",
    "value_float",
    "value_floats",
    "value_int",
    "value_ints",
    "value_string",
    "value_strings",
    "sparse_value",
];

/// `Constant` in all its forms.
pub(super) fn constant(cx: &mut Importer<'_, '_>, mut node: Node<'_>) -> ImportResult {
    let mut value = None;
    for name in VALUES {
        if let Some(a) = node.attrs.take_any(name)?
            && value.replace(a).is_some()
        {
            return Err(ImportError::invalid("a Constant has one value, two are given"));
        }
    }
    let value = value.and_then(literal).ok_or_else(|| ImportError::invalid("a Constant without value"))?;
    Ok(vec![cx.constant(value)?])
}

/// `Identity`: another name for the same value.
pub(super) fn identity(cx: &mut Importer<'_, '_>, node: Node<'_>) -> ImportResult {
    let value = node.input(0)?;
    let copy = if cx.separate_copies { cx.copy_of_initializer(value)? } else { None };
    Ok(vec![copy.unwrap_or(value)])
}

/// `Dropout`. Before 12 it had no training mode, and the ratio was an attribute.
pub(super) fn dropout(cx: &mut Importer<'_, '_>, mut node: Node<'_>) -> ImportResult {
    if node.version < 7 {
        // Whether it is for a test; the exporters of that time left it as it was in training.
        node.attrs.take_flag("is_test")?;
        legacy::drop_consumed_inputs(&mut node);
    }
    if node.version < 12 {
        node.attrs.drop("ratio");
    }
    let seed = if node.opt_input(2).is_some() { random::seed(cx, &mut node)? } else { 0 };
    node.attrs.set("seed", Attr::Int(seed));
    let x = node.input(0)?;
    let (version, wants_mask) = (node.version, node.uses_output(1));
    let mut results = cx.emit(node)?;
    // Before 10 the mask had the element type of the data.
    if version < 10
        && wants_mask
        && let Some(mask) = results.get_mut(1)
    {
        let to = cx.tensor_ty(x)?.dtype;
        *mask = cx.rw.create_one(Cast::to(to), &[*mask])?;
    }
    Ok(results)
}
