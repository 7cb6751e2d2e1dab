//! Patterns of parameter names, in which `*` stands for any text.

use of_diag::{Code, Diagnostics};
use of_frontend::training::Training;

use crate::error::error;
use crate::name_patterns::matches;

/// Whether a name is that of one of the patterns.
pub fn any_matches(patterns: &[String], name: &str) -> bool {
    patterns.iter().any(|pattern| matches(pattern, name))
}

/// Checks that every pattern is that of a parameter, or of a float constant that is none.
///
/// # Errors
/// The first that is not.
pub fn check_known(patterns: &[String], training: &Training) -> Result<(), Diagnostics> {
    let parameters = &training.parameters;
    let names = || parameters.iter().map(|p| &p.name).chain(&training.constants);
    let unknown = patterns.iter().find(|pattern| !names().any(|name| matches(pattern, name)));
    let Some(pattern) = unknown else { return Ok(()) };
    let known: Vec<&str> = parameters.iter().take(8).map(|p| p.name.as_str()).collect();
    let what = format!("no parameter is called '{pattern}'; there are {}", known.join(", "));
    Err(error(Code::NAME, what).into())
}
