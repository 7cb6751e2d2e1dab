//! Tests that are text: `tests/lit/<area>/*.of`, run by one plain cargo test, without LLVM.
//!
//! A file says how it is run and what must come out:
//!
//! ```text
//! // RUN: of-opt %s --passes=canonicalize | FileCheck %s
//! // RUN: not of-opt %s --passes=nonsense 2>&1 | FileCheck %s --check-prefix=ERR
//! // CHECK: %y = of.add
//! // ERR: no pass 'nonsense'
//! ```
//!
//! - `RUN:` lines are run in order ([`command`]); each must succeed. A line that ends with `\` goes on in the next one.
//!   `%s` is the file, `%S` its folder, `%t` a path for the test's own files, `%%` a percent sign.
//! - `REQUIRES: program` skips the file where the program is not installed.
//! - `CHECK` lines are LLVM's ([`filecheck`]).

pub mod command;
pub mod filecheck;
mod pattern;
pub mod suite;
