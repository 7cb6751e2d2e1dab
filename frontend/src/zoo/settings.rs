//! Settings of models, and the text that names a model with its settings.

use std::fmt::{Display, Formatter};
use std::str::FromStr;

use of_diag::{Code, Diagnostic, Location, closest};

use super::{MODELS, Model};

/// A setting of a model.
#[derive(Debug)]
pub struct Setting {
    /// Its name.
    pub name: &'static str,
    /// The published value.
    pub published: &'static str,
    /// The value of the narrow model.
    pub small: &'static str,
    /// What it is.
    pub about: &'static str,
}

/// A row of a model's table.
pub(super) const fn setting(
    name: &'static str,
    published: &'static str,
    small: &'static str,
    about: &'static str,
) -> Setting {
    Setting { name, published, small, about }
}

/// The largest extent: products of three fit into 128 bits, and no tensor of a model has a larger one.
const LARGEST: usize = 1 << 30;

/// Values of settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings(Vec<(&'static str, String)>);

pub(super) fn wrong(what: String) -> Diagnostic {
    Diagnostic::error(Code::INPUT, Location::Unknown, what)
}

impl Settings {
    fn text(&self, name: &str) -> &str {
        self.0.iter().find(|(known, _)| *known == name).map_or("", |(_, value)| value)
    }

    fn parsed<T>(&self, name: &str, value: Option<T>, what: &str) -> Result<T, Diagnostic> {
        value.ok_or_else(|| wrong(format!("setting '{name}' is '{}'; it takes {what}", self.text(name))))
    }

    /// A positive integer.
    pub(super) fn number(&self, name: &str) -> Result<usize, Diagnostic> {
        let value = self.text(name).parse().ok().filter(|n| (1..=LARGEST).contains(n));
        self.parsed(name, value, "an integer from 1 to 2^30")
    }

    /// An integer, which may be 0.
    pub(super) fn count(&self, name: &str) -> Result<usize, Diagnostic> {
        let value = self.text(name).parse().ok().filter(|n| *n <= LARGEST);
        self.parsed(name, value, "an integer from 0 to 2^30")
    }

    /// Positive integers, written `3-4-6-3`.
    pub(super) fn list(&self, name: &str) -> Result<Vec<usize>, Diagnostic> {
        let one = |text: &str| text.parse().ok().filter(|n| (1..=LARGEST).contains(n));
        let value: Option<Vec<usize>> = self.text(name).split('-').map(one).collect();
        self.parsed(name, value, "integers such as 3-4-6-3")
    }

    /// So many positive integers.
    pub(super) fn array<const N: usize>(&self, name: &str) -> Result<[usize; N], Diagnostic> {
        let value = self.list(name)?.try_into().ok();
        self.parsed(name, value, &format!("{N} integers, such as 3-4-6-3"))
    }

    /// A probability below 1.
    pub(super) fn probability(&self, name: &str) -> Result<f64, Diagnostic> {
        let value = self.text(name).parse().ok().filter(|p| (0.0..1.0).contains(p));
        self.parsed(name, value, "a number from 0 to below 1")
    }

    /// A positive number.
    pub(super) fn positive(&self, name: &str) -> Result<f64, Diagnostic> {
        let value = self.text(name).parse().ok().filter(|x: &f64| x.is_finite() && *x > 0.0);
        self.parsed(name, value, "a positive number")
    }
}

/// A model with settings: `NAME` or `NAME:KEY=VALUE,…`. The word `small` gives all settings their small values; others follow it.
#[derive(Clone)]
pub struct Spec {
    /// The model.
    pub model: &'static Model,
    /// Its settings.
    pub settings: Settings,
}

impl std::fmt::Debug for Spec {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self}")
    }
}

impl FromStr for Spec {
    type Err = Diagnostic;

    fn from_str(text: &str) -> Result<Spec, Diagnostic> {
        let (name, changes) = text.split_once(':').unwrap_or((text, ""));
        let model = MODELS.iter().find(|model| model.name == name).copied().ok_or_else(|| {
            let names = || MODELS.iter().map(|model| model.name);
            let known: Vec<&str> = names().collect();
            let hint = closest(name, names()).map(|meant| format!("did you mean '{meant}'?"));
            let hint = hint.unwrap_or_else(|| format!("there are {}", known.join(", ")));
            wrong(format!("the zoo has no model '{name}'")).hint(hint)
        })?;
        let all = |value: fn(&Setting) -> &str| model.settings.iter().map(|s| (s.name, value(s).to_owned())).collect();
        let mut settings: Vec<(&'static str, String)> = all(|s| s.published);
        for change in changes.split(',').filter(|change| !change.is_empty()) {
            let Some((key, value)) = change.split_once('=') else {
                if change == "small" {
                    settings = all(|s| s.small);
                    continue;
                }
                return Err(wrong(format!("'{change}' is no setting KEY=VALUE of '{name}'")).hint(known(model)));
            };
            let Some(setting) = settings.iter_mut().find(|(known, _)| *known == key) else {
                return Err(wrong(format!("'{name}' has no setting '{key}'")).hint(known(model)));
            };
            setting.1 = value.to_owned();
        }
        Ok(Spec { model, settings: Settings(settings) })
    }
}

fn known(model: &Model) -> String {
    let names: Vec<&str> = model.settings.iter().map(|s| s.name).collect();
    format!("settings are {}, and 'small'", names.join(", "))
}

impl Display for Spec {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let changed = self.model.settings.iter().zip(&self.settings.0).filter(|(s, (_, value))| s.published != value);
        let changed: Vec<String> = changed.map(|(s, (_, value))| format!("{}={value}", s.name)).collect();
        let colon = if changed.is_empty() { "" } else { ":" };
        write!(f, "{}{colon}{}", self.model.name, changed.join(","))
    }
}
