//! Timelines in the format of Chrome's trace viewer, which ui.perfetto.dev reads too.
//!
//! Source: "Trace Event Format", complete events (`ph` is `X`) and metadata (`M`); times are microseconds.

use serde_json::{Value, json};

/// The name of a process (`process_name`) or of a thread (`thread_name`).
pub fn name(of: &str, process: u32, thread: u32, name: &str) -> Value {
    json!({"name": of, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}})
}

/// Something that began at `ts` and took `dur` microseconds.
pub fn event(name: &str, category: &str, (process, thread): (u32, u32), (ts, dur): (f64, f64), args: Value) -> Value {
    json!({
        "name": name, "cat": category, "ph": "X", "pid": process, "tid": thread, "ts": ts, "dur": dur, "args": args,
    })
}

/// A whole file.
pub fn file(events: Vec<Value>) -> Value {
    json!({"displayTimeUnit": "ms", "traceEvents": events})
}
