//! Forms of weights in the plan, which a kernel reads faster than that of the model.

use std::fmt;

/// How a weight is stored.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Form {
    /// In panels of as many columns as a kernel computes at once.
    Panels,
    /// Filters of a window, one tap after another.
    Taps,
    /// Filters that Winograd's transformation made larger.
    Winograd,
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Form::Panels => "packed",
            Form::Taps => "by tap",
            Form::Winograd => "Winograd",
        })
    }
}

/// A weight, or several of one form.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WeightForm {
    /// How it is stored.
    pub form: Form,
    /// Bytes in the model.
    pub model_bytes: u64,
    /// Bytes in the plan.
    pub plan_bytes: u64,
}
