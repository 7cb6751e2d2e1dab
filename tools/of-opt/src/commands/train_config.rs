//! Configuration files of `of-opt train`: the flags as TOML.

use std::ffi::{OsStr, OsString};
use std::fmt::Write;
use std::path::{Path, PathBuf};

use clap::error::{ContextKind, ContextValue};
use clap::parser::ValueSource;
use clap::{ArgAction, ArgMatches, Command};
use of_diag::{Code, Diagnostic, Diagnostics, closest};
use of_driver::error;

use crate::console::Console;

/// The key of the model, which is no flag.
const MODEL: &str = "model";

fn is_config(argument: &OsStr) -> bool {
    Path::new(argument).extension().is_some_and(|e| e.eq_ignore_ascii_case("toml"))
}

fn train_command(program: &Command) -> Option<&Command> {
    program.find_subcommand("train")
}

/// Puts the model and the flags of a configuration in the place of its name. Flags that are given stay. Other command lines are
/// returned as they are.
///
/// # Errors
/// When the file cannot be read, or has unknown keys.
pub fn expand(arguments: Vec<OsString>, program: &Command) -> Result<Vec<OsString>, Diagnostics> {
    let Some(at) = arguments.iter().position(|a| a == "train") else { return Ok(arguments) };
    let Some(config) = arguments.iter().skip(at).position(|a| is_config(a)).map(|i| i + at) else {
        return Ok(arguments);
    };
    let Ok(matches) = program.clone().ignore_errors(true).try_get_matches_from(&arguments) else {
        return Ok(arguments);
    };
    let Some(("train", given)) = matches.subcommand() else { return Ok(arguments) };
    let path = PathBuf::from(&arguments[config]);
    if given.get_one::<PathBuf>(MODEL) != Some(&path) {
        return Ok(arguments);
    }
    let (model, flags) = read(&path, program, given)?;
    let keys: Vec<String> = flags.iter().map(|flag| flag.to_string_lossy().into_owned()).collect();
    let mut out = arguments;
    out[config] = model;
    out.extend(flags);
    match program.clone().try_get_matches_from(&out) {
        Err(e) => wrong_value(&path, &keys, &e).map_or(Ok(out), |wrong| Err(wrong.into())),
        Ok(_) => Ok(out),
    }
}

/// The error of a value that a file gives, with its key. Other errors are of the command line.
fn wrong_value(path: &Path, flags: &[String], e: &clap::Error) -> Option<Diagnostic> {
    let Some(ContextValue::String(argument)) = e.get(ContextKind::InvalidArg) else { return None };
    let name = argument.strip_prefix("--")?.split([' ', '=']).next()?;
    flags.iter().find(|flag| flag.strip_prefix("--").is_some_and(|flag| flag.split('=').next() == Some(name)))?;
    let text = e.to_string();
    let what = text.lines().next().unwrap_or_default().trim_start_matches("error: ");
    let wrong = error(Code::INPUT, format!("'{}': key '{name}': {what}", path.display()));
    let list = |kind| match e.get(kind) {
        Some(ContextValue::Strings(list)) => list.iter().filter(|value| !value.is_empty()).cloned().collect(),
        Some(ContextValue::String(one)) => vec![one.clone()],
        _ => Vec::new(),
    };
    match (&list(ContextKind::SuggestedValue)[..], &list(ContextKind::ValidValue)[..]) {
        ([meant, ..], _) => Some(wrong.hint(format!("did you mean '{meant}'?"))),
        ([], []) => Some(wrong),
        ([], known) => Some(wrong.hint(format!("values are {}", known.join(", ")))),
    }
}

/// The model and the flags of a file.
fn read(path: &Path, program: &Command, given: &ArgMatches) -> Result<(OsString, Vec<OsString>), Diagnostics> {
    let wrong = |what: String| Diagnostics::from(error(Code::INPUT, format!("'{}': {what}", path.display())));
    let text = std::fs::read_to_string(path)
        .map_err(|e| error(Code::IO, format!("'{}' cannot be read: {e}", path.display())))?;
    let table: toml::Table = text.parse().map_err(|e: toml::de::Error| {
        let line = e.span().and_then(|span| text.get(..span.start)).map(|before| before.matches('\n').count() + 1);
        let place = line.map_or_else(String::new, |line| format!("line {line}: "));
        let own = line.and_then(|line| text.lines().nth(line - 1)).unwrap_or_default().trim();
        let what = format!("'{}': {place}{}: {own}", path.display(), e.message().replace('\n', ", "));
        let hint =
            "a line is KEY = VALUE, each key once; texts are in quotes, and lists in brackets: data = [\"a.npz\"]";
        Diagnostics::from(error(Code::INPUT, what).hint(hint))
    })?;
    let command = train_command(program).ok_or_else(|| wrong("there is no command `train`".into()))?;
    let (mut model, mut flags) = (None, Vec::new());
    for (key, value) in &table {
        if key == MODEL {
            model = value.as_str().map(OsString::from);
            continue;
        }
        let Some(flag) = command.get_arguments().find(|a| a.get_long() == Some(key) || is_alias(a, key)) else {
            let known = command.get_arguments().filter_map(clap::Arg::get_long).chain([MODEL]);
            let hint = closest(key, known).map(|meant| format!("did you mean '{meant}'?"));
            let hint = hint.unwrap_or_else(|| "'of-opt train --help' lists the flags, which are the keys".into());
            return Err(error(Code::INPUT, format!("'{}': unknown key '{key}'", path.display())).hint(hint).into());
        };
        if given.value_source(flag.get_id().as_str()) == Some(ValueSource::CommandLine) {
            continue;
        }
        let is_switch = matches!(flag.get_action(), ArgAction::SetTrue);
        let values = match value {
            toml::Value::Array(list) => list.clone(),
            one => vec![one.clone()],
        };
        for value in values {
            let text = match value {
                toml::Value::String(text) => text,
                toml::Value::Integer(n) => n.to_string(),
                toml::Value::Float(x) => x.to_string(),
                toml::Value::Boolean(on) if is_switch => {
                    flags.extend(on.then(|| format!("--{key}").into()));
                    continue;
                }
                _ => return Err(wrong(format!("key '{key}' takes text, a number or a list of these"))),
            };
            if is_switch {
                return Err(wrong(format!("key '{key}' takes true or false")));
            }
            // Errors name a flag by its own name, not by an alias.
            flags.push(format!("--{}={text}", flag.get_long().unwrap_or(key)).into());
        }
    }
    let model = model.ok_or_else(|| wrong("the key 'model' is needed, with the path of a model".into()))?;
    Ok((model, flags))
}

/// Whether a flag is also called so.
fn is_alias(flag: &clap::Arg, key: &str) -> bool {
    flag.get_all_aliases().is_some_and(|names| names.contains(&key))
}

/// Prints all flags of a command line with their values, as a configuration.
///
/// # Errors
/// When stdout cannot be written.
pub fn print(arguments: &[OsString], program: Command, console: &Console) -> Result<(), Diagnostics> {
    let parsed = program.clone().try_get_matches_from(arguments);
    let parsed = parsed.map_err(|e| error(Code::INPUT, e.to_string().lines().next().unwrap_or_default()))?;
    let (Some(("train", given)), Some(command)) = (parsed.subcommand(), train_command(&program)) else {
        return Err(error(Code::INPUT, "there is no command `train`").into());
    };
    let mut out = String::new();
    for arg in command.get_arguments().filter(|a| !a.is_global_set()) {
        let id = arg.get_id().as_str();
        let key = if id == MODEL { MODEL } else { arg.get_long().unwrap_or_default() };
        if key.is_empty() || id == "print_config" || given.value_source(id).is_none() {
            continue;
        }
        if matches!(arg.get_action(), ArgAction::SetTrue) {
            if given.get_flag(id) {
                let _ = writeln!(out, "{key} = true");
            }
            continue;
        }
        let values: Vec<String> =
            given.get_raw(id).into_iter().flatten().map(|value| literal(&value.to_string_lossy())).collect();
        match (arg.get_action(), &values[..]) {
            (_, []) => {}
            (ArgAction::Set, [value]) => drop(writeln!(out, "{key} = {value}")),
            _ => drop(writeln!(out, "{key} = [{}]", values.join(", "))),
        }
    }
    console.print(&out)
}

/// A value in TOML: a number where it is written as TOML writes it, otherwise text.
fn literal(text: &str) -> String {
    let is_integer = text.parse::<i64>().is_ok_and(|n| n.to_string() == text);
    let is_float = text.contains('.') && text.parse::<f64>().is_ok_and(|x| x.is_finite() && x.to_string() == text);
    if is_integer || is_float { text.to_owned() } else { serde_json::Value::from(text).to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_are_numbers_or_text() {
        for (text, expected) in [
            ("32", "32"),
            ("0.001", "0.001"),
            ("007", "\"007\""),
            ("2:4", "\"2:4\""),
            ("a\"b", "\"a\\\"b\""),
            ("nan", "\"nan\""),
        ] {
            assert_eq!(literal(text), expected);
            let table: toml::Table = format!("x = {}", literal(text)).parse().unwrap();
            assert!(table.contains_key("x"));
        }
    }
}
