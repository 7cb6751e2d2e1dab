//! Typed options of passes, and their syntax in pipelines.

use std::collections::BTreeMap;

/// An option of a pass.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OptionSlot {
    /// Name.
    pub name: &'static str,
    /// One line of documentation.
    pub doc: &'static str,
    /// The kind of its values, e.g. `integer`.
    pub kind: &'static str,
}

/// The error of an option.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum OptionError {
    /// The pass has no such option.
    #[error("there is no option '{name}'")]
    Unknown {
        /// As written.
        name: String,
    },
    /// The option is given twice.
    #[error("option '{name}' is given twice")]
    Twice {
        /// As written.
        name: String,
    },
    /// The value does not parse.
    #[error("option '{name}': '{value}' is not {expected}")]
    Value {
        /// The option.
        name: String,
        /// As written.
        value: String,
        /// The kind of value that it must be, with its article.
        expected: &'static str,
    },
}

/// The options of a pass. The macro [`crate::pass_options!`] writes this for a struct.
pub trait PassOptions: Default + Send + Sync + 'static {
    /// All options.
    const SLOTS: &'static [OptionSlot];

    /// Sets one option.
    ///
    /// # Errors
    /// When it is unknown or the value does not parse.
    fn set(&mut self, name: &str, value: &str) -> Result<(), OptionError>;

    /// The options that differ from their defaults, in the syntax of [`PassOptions::set`].
    fn pairs(&self) -> Vec<(String, String)>;
}

/// The options of a pass without options.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct NoOptions;

impl PassOptions for NoOptions {
    const SLOTS: &'static [OptionSlot] = &[];
    fn set(&mut self, name: &str, _value: &str) -> Result<(), OptionError> {
        Err(OptionError::Unknown { name: name.into() })
    }
    fn pairs(&self) -> Vec<(String, String)> {
        Vec::new()
    }
}

/// Any name with a number: `specialize{batch=8,seq=128}`.
impl PassOptions for BTreeMap<String, i64> {
    const SLOTS: &'static [OptionSlot] = &[OptionSlot { name: "NAME", doc: "a number for this name", kind: i64::KIND }];
    fn set(&mut self, name: &str, value: &str) -> Result<(), OptionError> {
        let number = i64::parse(value).ok_or_else(|| wrong::<i64>(name, value))?;
        self.insert(name.into(), number);
        Ok(())
    }
    fn pairs(&self) -> Vec<(String, String)> {
        self.iter().map(|(k, v)| (k.clone(), v.to_string())).collect()
    }
}

/// A type of option values.
pub trait OptionValue: Sized {
    /// The kind of values, e.g. `an integer`.
    const KIND: &'static str;
    /// Parses a value.
    fn parse(text: &str) -> Option<Self>;
    /// Prints a value so that `parse` reads it.
    fn show(&self) -> String;
}

/// The error for a value that is not a `T`.
pub fn wrong<T: OptionValue>(name: &str, value: &str) -> OptionError {
    OptionError::Value { name: name.into(), value: value.into(), expected: T::KIND }
}

macro_rules! from_str_values {
    ($($ty:ty: $kind:literal),* $(,)?) => {$(
        impl OptionValue for $ty {
            const KIND: &'static str = $kind;
            fn parse(text: &str) -> Option<Self> {
                text.parse().ok()
            }
            fn show(&self) -> String {
                self.to_string()
            }
        }
    )*};
}
from_str_values! {
    bool: "true or false",
    i64: "an integer",
    usize: "an integer from 0",
    f64: "a number",
    String: "a text",
}

/// `[a, b]`, or one value without brackets.
impl OptionValue for Vec<String> {
    const KIND: &'static str = "a list such as [a, b]";
    fn parse(text: &str) -> Option<Self> {
        let inner = match text.strip_prefix('[') {
            Some(rest) => rest.strip_suffix(']')?,
            None => text,
        };
        Some(inner.split(',').map(str::trim).filter(|s| !s.is_empty()).map(str::to_owned).collect())
    }
    fn show(&self) -> String {
        format!("[{}]", self.join(", "))
    }
}

/// Declares the options of a pass: a struct whose fields have a doc comment, a type and a default.
///
/// ```
/// of_passes::pass_options! {
///     /// Options of a pass that unrolls.
///     pub struct UnrollOptions {
///         /// Loops of up to this many rounds.
///         rounds: usize = 8,
///     }
/// }
/// ```
#[macro_export]
macro_rules! pass_options {
    ($(#[$meta:meta])* $vis:vis struct $name:ident { $(#[doc = $doc:literal] $field:ident: $ty:ty = $default:expr,)* }) => {
        $(#[$meta])*
        #[derive(Clone, PartialEq, Debug)]
        $vis struct $name { $(#[doc = $doc] pub $field: $ty,)* }

        impl Default for $name {
            fn default() -> Self {
                $name { $($field: $default,)* }
            }
        }

        impl $crate::PassOptions for $name {
            const SLOTS: &'static [$crate::OptionSlot] = &[$($crate::OptionSlot {
                name: stringify!($field),
                doc: $doc,
                kind: <$ty as $crate::OptionValue>::KIND,
            },)*];
            fn set(&mut self, name: &str, value: &str) -> Result<(), $crate::OptionError> {
                match name {
                    $(stringify!($field) => {
                        self.$field = <$ty as $crate::OptionValue>::parse(value).ok_or_else(|| $crate::OptionError::Value {
                            name: name.into(),
                            value: value.into(),
                            expected: <$ty as $crate::OptionValue>::KIND,
                        })?;
                        Ok(())
                    })*
                    _ => Err($crate::OptionError::Unknown { name: name.into() }),
                }
            }
            fn pairs(&self) -> Vec<(String, String)> {
                let default = Self::default();
                let mut out = Vec::new();
                $(if self.$field != default.$field {
                    out.push((stringify!($field).to_string(), $crate::OptionValue::show(&self.$field)));
                })*
                out
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    pass_options! {
        /// For the test.
        struct Sample {
            /// How often.
            rounds: usize = 3,
            /// Which.
            keep: Vec<String> = Vec::new(),
        }
    }

    #[test]
    fn options_parse_and_print_back() {
        let mut s = Sample::default();
        assert!(s.pairs().is_empty());
        s.set("rounds", "4").unwrap();
        s.set("keep", "[of.conv, of.lstm]").unwrap();
        assert_eq!(s, Sample { rounds: 4, keep: vec!["of.conv".into(), "of.lstm".into()] });
        let mut again = Sample::default();
        for (k, v) in s.pairs() {
            again.set(&k, &v).unwrap();
        }
        assert_eq!(again, s);
        assert_eq!(s.set("rounds", "x").unwrap_err().to_string(), "option 'rounds': 'x' is not an integer from 0");
        assert_eq!(s.set("depth", "1").unwrap_err().to_string(), "there is no option 'depth'");
        assert_eq!(Sample::SLOTS[0].doc.trim(), "How often.");
    }
}
