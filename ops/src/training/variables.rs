//! Variables of a function: inputs whose values a session keeps from run to run.

use std::collections::HashSet;

use of_diag::{Code, Diagnostic};
use of_ir::{Attr, Func, Tensor, ValueId};

use super::CARRIED;

/// The attribute of a function that lists the inputs that are variables. The next value of a variable is the output that
/// [`CARRIED`] assigns to it; without one it is only read.
pub const VARIABLES: &str = "of.variables";

/// The attribute of a function with the value of each variable in a new session: a tensor, `0` for zeros, or a unit for none.
pub const INITIAL_VALUES: &str = "of.initial_values";

/// The inputs that each run gets anew, which are neither variables nor the outputs of the run before.
pub fn data_inputs(func: &Func) -> Vec<ValueId> {
    let listed = |name| func.attrs.typed::<Vec<i64>>(name).unwrap_or_default();
    let kept: HashSet<i64> = [CARRIED, VARIABLES].into_iter().flat_map(listed).collect();
    let args = func.graph.args().iter().zip(0..);
    args.filter(|(_, i)| !kept.contains(i)).map(|(v, _)| *v).collect()
}

/// An input that is a variable.
#[derive(Clone, Debug)]
pub struct VariableInput {
    /// Index of the input.
    pub input: usize,
    /// Index of the output that is its next value.
    pub next: Option<usize>,
    /// Its value in a new session.
    pub initial: Option<InitialValue>,
}

/// The value of a variable in a new session.
#[derive(Clone, Debug)]
pub enum InitialValue {
    /// Zeros.
    Zeros,
    /// A tensor.
    Tensor(Tensor),
}

/// The variables of a function.
///
/// # Errors
/// When its attributes name inputs or outputs that do not exist, or one twice, or an initial value is of another type.
pub fn variables(func: &Func) -> Result<Vec<VariableInput>, Diagnostic> {
    let wrong = |what: String| Diagnostic::error(Code::TYPE, func.loc.clone(), what);
    let listed: Vec<i64> = match func.attrs.get(VARIABLES) {
        None => return Ok(Vec::new()),
        Some(_) => func.attrs.typed(VARIABLES).map_err(|e| wrong(format!("'{VARIABLES}': {e}")))?,
    };
    let carried: Vec<i64> = func.attrs.typed(CARRIED).unwrap_or_default();
    let initial: &[Attr] = match func.attrs.get(INITIAL_VALUES) {
        Some(Attr::Array(all)) => all,
        None => &[],
        Some(_) => return Err(wrong(format!("'{INITIAL_VALUES}' must be a list"))),
    };
    let mut seen = HashSet::new();
    let mut out = Vec::with_capacity(listed.len());
    for (at, number) in listed.iter().enumerate() {
        let input = usize::try_from(*number).ok().filter(|i| *i < func.inputs.len() && seen.insert(*i));
        let input = input.ok_or_else(|| wrong(format!("'{VARIABLES}' has {number}, which is no other input")))?;
        let name = &func.inputs[input];
        let mut next = carried.iter().enumerate().filter(|(_, from)| *from == number).map(|(output, _)| output);
        let found = next.next();
        if next.next().is_some() || found.is_some_and(|output| output >= func.outputs.len()) {
            return Err(wrong(format!("'{CARRIED}' must give '{name}' one output")));
        }
        let initial = match initial.get(at) {
            None | Some(Attr::Unit) => None,
            Some(Attr::Int(0)) => Some(InitialValue::Zeros),
            Some(Attr::Tensor(tensor)) => Some(InitialValue::Tensor(tensor.clone())),
            Some(other) => return Err(wrong(format!("the initial value of '{name}' is a {}", other.kind()))),
        };
        out.push(VariableInput { input, next: found, initial });
    }
    Ok(out)
}
