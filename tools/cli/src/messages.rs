//! Flags of messages on stderr.

use clap::{Args, ValueEnum};

/// Options of messages on stderr.
#[derive(Args, Debug, Clone, Default)]
pub struct MessageOptions {
    /// Print more: -v steps and decisions, -vv details, -vvv everything
    #[arg(short, long, global = true, action = clap::ArgAction::Count, help_heading = "Messages")]
    pub verbose: u8,
    /// Print errors only
    #[arg(short, long, global = true, conflicts_with = "verbose", help_heading = "Messages")]
    pub quiet: bool,
    /// When to use colours
    #[arg(long, global = true, value_enum, value_name = "WHEN", default_value = "auto", help_heading = "Messages")]
    pub color: Color,
}

/// When to use colours.
#[derive(ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Color {
    /// On a terminal, unless NO_COLOR is set.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}
