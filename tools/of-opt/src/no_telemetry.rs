//! A program without a network stack has no traces.

use std::process::Command;
use std::time::Instant;

use clap::Args;
use of_diag::Diagnostics;
use of_runtime::TaskTiming;

/// No flags.
#[derive(Args, Debug)]
pub struct TraceFlags {}

/// No trace.
pub struct JobTrace;

impl JobTrace {
    /// No trace.
    ///
    /// # Errors
    /// None.
    pub fn begin(_: &TraceFlags, _: &'static str) -> Result<JobTrace, Diagnostics> {
        Ok(JobTrace)
    }

    /// No trace.
    pub fn none(_: &str) -> JobTrace {
        JobTrace
    }

    /// No run or step has a span.
    pub fn takes(&self, _: usize) -> bool {
        false
    }

    /// Nothing.
    pub fn step(&self, _: &'static str, _: usize, _: Instant, _: &[(Option<usize>, Vec<TaskTiming>)]) {}

    /// The result of the command.
    ///
    /// # Errors
    /// Those of the command.
    pub fn end(self, result: Result<(), Diagnostics>) -> Result<(), Diagnostics> {
        result
    }
}

/// Nothing.
pub fn interrupted(_: i32) {}

/// Nothing.
pub fn pass_on(_: &mut Command) {}
