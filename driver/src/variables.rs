//! Variables of a model: outputs that become inputs of the next run stay in the session.

use of_diag::{Code, Diagnostics};
use of_ir::{Attr, Func};
use of_ops::training::{CARRIED, INITIAL_VALUES, VARIABLES};

use crate::error::error;

/// What ends the text of a variable that is zeros in a new session.
const ZEROS: &str = ":zeros";

/// The positions of the output and the input that `OUTPUT=INPUT` names. Names may hold `=` as well: every split is tried.
pub fn output_and_input(text: &str, outputs: &[String], inputs: &[String]) -> Option<(usize, usize)> {
    text.match_indices('=').find_map(|(at, _)| {
        let output = outputs.iter().position(|name| *name == text[..at])?;
        Some((output, inputs.iter().position(|name| *name == text[at + 1..])?))
    })
}

/// Makes variables of a function's inputs. Each text is `OUTPUT=INPUT`, or `OUTPUT=INPUT:zeros` for a value of zeros in a new session.
///
/// # Errors
/// When a text names no output and input, or one of them twice.
pub(crate) fn declare(func: &mut Func, specs: &[String]) -> Result<(), Diagnostics> {
    if specs.is_empty() {
        return Ok(());
    }
    let (mut carried, mut listed, mut initial) = (vec![-1i64; func.outputs.len()], Vec::new(), Vec::new());
    for spec in specs {
        let (names, zeros) = spec.strip_suffix(ZEROS).map_or((spec.as_str(), false), |names| (names, true));
        let Some((output, input)) = output_and_input(names, &func.outputs, &func.inputs) else {
            let what = format!("'{spec}' is no output and input of the model, as OUTPUT=INPUT");
            let (outputs, inputs) = (func.outputs.join(", "), func.inputs.join(", "));
            return Err(error(Code::INPUT, what)
                .hint(format!("its outputs are {outputs}; its inputs are {inputs}"))
                .into());
        };
        if carried[output] >= 0 || listed.contains(&(input as i64)) {
            return Err(
                error(Code::INPUT, format!("'{spec}' names an output or input that another variable has")).into()
            );
        }
        carried[output] = input as i64;
        listed.push(input as i64);
        initial.push(if zeros { Attr::Int(0) } else { Attr::Unit });
    }
    func.attrs.set(CARRIED, Attr::Ints(carried));
    func.attrs.set(VARIABLES, Attr::Ints(listed));
    func.attrs.set(INITIAL_VALUES, Attr::Array(initial));
    Ok(())
}
