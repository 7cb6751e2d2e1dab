//! Pages for a browser: facts, tables, timelines, memory and graphs of a model, plan, profile or simulation.
//!
//! A page is one file, which loads nothing: the data as JSON, and a script that renders what is in view of it.

#![forbid(unsafe_code)]

mod facts;
pub mod layouts;
pub mod model;
pub mod plan;

pub use facts::Facts;

use std::collections::HashMap;

use serde_json::{Value, json};

const TEMPLATE: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// The most bytes of a table, graph or timeline as JSON. It bounds the page for modules of any size.
const MAX_SECTION_BYTES: usize = 8 << 20;

/// The most tracks of a timeline.
const MAX_TRACKS: usize = 32;

/// A page under construction.
pub struct Page {
    title: String,
    facts: Vec<Value>,
    sections: Vec<Value>,
}

/// What the cells of a column are.
#[derive(Clone, Copy)]
pub enum Kind {
    /// Text.
    Text,
    /// Text, by which rows may be grouped.
    Group,
    /// A list of texts: the layout along each mesh axis.
    Layout,
    /// A number.
    Number,
    /// A fraction of 1.
    Percent,
    /// A time in seconds.
    Seconds,
    /// A point in time in seconds, which groups do not add up.
    Start,
    /// Bytes.
    Bytes,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Text | Kind::Group => "text",
            Kind::Layout => "layout",
            Kind::Number => "number",
            Kind::Percent => "percent",
            Kind::Seconds | Kind::Start => "seconds",
            Kind::Bytes => "bytes",
        }
    }
}

/// A timeline track: ranks or a thread.
pub struct Track {
    /// Its name.
    pub name: String,
    /// What ran, in order.
    pub events: Vec<Event>,
    /// Bytes of a rank by purpose.
    pub memory: Vec<(&'static str, u64)>,
}

/// A timeline event: one task that ran.
pub struct Event {
    /// Name of the task.
    pub name: String,
    /// Start in seconds.
    pub start: f64,
    /// End in seconds.
    pub end: f64,
    /// Seconds of it spent waiting.
    pub waited: f64,
    /// Whether it is a transfer.
    pub transfer: bool,
}

impl Page {
    /// A page without content.
    pub fn new(title: impl Into<String>) -> Page {
        Page { title: title.into(), facts: Vec::new(), sections: Vec::new() }
    }

    /// Adds a number or text to the head of the page; the note says what it is.
    pub fn fact(&mut self, name: &str, kind: Kind, value: impl Into<Value>, note: &str) {
        self.facts.push(json!({"name": name, "kind": kind.name(), "value": value.into(), "note": note}));
    }

    /// Adds a table, unless it has no rows.
    pub fn table(&mut self, title: &str, note: &str, columns: &[(&str, Kind)], rows: impl IntoIterator<Item = Value>) {
        let columns: Vec<Value> = columns
            .iter()
            .map(|(name, kind)| {
                let (group, sum) = (matches!(kind, Kind::Group), matches!(kind, Kind::Seconds | Kind::Bytes));
                json!({"name": name, "kind": kind.name(), "group": group, "sum": sum})
            })
            .collect();
        let (rows, left_out) = bounded(rows);
        if !rows.is_empty() {
            self.sections.push(json!({
                "type": "table", "title": title, "note": note, "columns": columns, "rows": rows, "left_out": left_out,
            }));
        }
    }

    /// Adds a timeline, unless nothing ran.
    pub fn timeline(&mut self, title: &str, note: &str, tracks: &[Track]) {
        let mut names = Names::default();
        let mut left_out: usize = tracks.iter().skip(MAX_TRACKS).map(|t| t.events.len()).sum();
        let mut shown = Vec::new();
        for t in tracks.iter().take(MAX_TRACKS) {
            let events = t
                .events
                .iter()
                .map(|e| json!([e.start, e.end, e.waited, usize::from(e.transfer), names.number(&e.name)]));
            let (events, rest) = bounded_to(events, MAX_SECTION_BYTES / tracks.len().clamp(1, MAX_TRACKS));
            left_out += rest;
            shown.push(json!({"name": t.name, "events": events}));
        }
        if tracks.iter().any(|t| !t.events.is_empty()) {
            self.sections.push(json!({
                "type": "timeline", "title": title, "note": note, "tracks": shown, "names": names.list, "left_out": left_out,
            }));
        }
    }

    /// Adds the memory of each track, of `limit` bytes.
    pub fn memory(&mut self, title: &str, tracks: &[Track], limit: Option<f64>) {
        let rows: Vec<Value> = tracks
            .iter()
            .take(MAX_TRACKS)
            .map(|t| {
                let parts: Vec<_> = t.memory.iter().filter(|(_, bytes)| *bytes > 0).collect();
                json!({"name": t.name, "parts": parts})
            })
            .collect();
        if !rows.is_empty() {
            self.sections.push(json!({"type": "memory", "title": title, "limit": limit, "rows": rows}));
        }
    }

    /// A table of the facts and the sizes of the sections, without a script: for where the page is too large.
    pub fn to_summary(&self) -> String {
        let text = |value: &Value| match value {
            Value::String(text) => escaped(text),
            other => escaped(&other.to_string()),
        };
        let row = |name: String, value: String| format!("<tr><th>{name}</th><td>{value}</td></tr>");
        let facts = self.facts.iter().map(|fact| {
            let unit = match fact["kind"].as_str() {
                Some("bytes") => " B",
                Some("seconds") => " s",
                _ => "",
            };
            row(text(&fact["name"]), text(&fact["value"]) + unit)
        });
        let tables = self.sections.iter().filter_map(|section| {
            let rows = section["rows"].as_array()?.len() as u64 + section["left_out"].as_u64().unwrap_or(0);
            Some(row(text(&section["title"]), format!("{rows} rows")))
        });
        let rows: String = facts.chain(tables).collect();
        let hint = "<p>The interactive page is large: <code>of-opt view</code> shows it.</p>";
        format!("<table><caption>{}</caption>{rows}</table>{hint}", escaped(&self.title))
    }

    /// The text of the page.
    pub fn to_html(&self) -> String {
        let data = json!({"title": self.title, "facts": self.facts, "sections": self.sections}).to_string();
        // No text of a model can end the script element or begin a comment in it.
        let data = data.replace('<', "\\u003c");
        let title = escaped(&self.title);
        let mut out = String::new();
        for part in TEMPLATE.split(['{', '}']) {
            out += match part {
                "title" => &title,
                "style" => STYLE,
                "data" => &data,
                "script" => SCRIPT,
                other => other,
            };
        }
        out
    }
}

/// Text as the content of an element.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// Texts that occur often, each once.
#[derive(Default)]
struct Names {
    list: Vec<String>,
    numbers: HashMap<String, usize>,
}

impl Names {
    fn number(&mut self, name: &str) -> usize {
        if let Some(number) = self.numbers.get(name) {
            return *number;
        }
        self.list.push(name.into());
        self.numbers.insert(name.into(), self.list.len() - 1);
        self.list.len() - 1
    }
}

/// The first rows, as many as a section may have, and the number of the others.
fn bounded(rows: impl IntoIterator<Item = Value>) -> (Vec<Value>, usize) {
    bounded_to(rows, MAX_SECTION_BYTES)
}

fn bounded_to(rows: impl IntoIterator<Item = Value>, most: usize) -> (Vec<Value>, usize) {
    let (mut kept, mut bytes, mut left_out) = (Vec::new(), 0, 0);
    for row in rows {
        bytes += row.to_string().len() + 1;
        if bytes <= most {
            kept.push(row);
        } else {
            left_out += 1;
        }
    }
    (kept, left_out)
}

/// Text of at most this many characters, so that a row has a bounded size.
pub fn shortened(text: &str) -> String {
    const MAX_LENGTH: usize = 160;
    match text.char_indices().nth(MAX_LENGTH) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_a_model_is_data() {
        let mut page = Page::new("</title><script>{data}");
        page.table("t", "", &[("a", Kind::Text)], [json!(["</script><img src=x onerror=alert(1)><!--{script}"])]);
        let html = page.to_html();
        assert!(!html.contains("<img") && !html.contains("<!--"), "{html}");
        assert_eq!(html.matches("<script").count(), 2);
        assert_eq!(html.matches("</script").count(), 2);
        assert_eq!(html.matches("</title").count(), 1);
    }

    #[test]
    fn a_summary_has_facts_and_sizes_as_text() {
        let mut page = Page::new("<b>");
        page.fact("weights", Kind::Bytes, 12, "");
        page.fact("name", Kind::Text, "<img>", "");
        page.table("Ops & more", "", &[("a", Kind::Text)], [json!(["x"]), json!(["y"])]);
        let expected = "<table><caption>&lt;b&gt;</caption><tr><th>weights</th><td>12 B</td></tr><tr><th>name</th><td>&lt;img&gt;</td></tr>\
                        <tr><th>Ops &amp; more</th><td>2 rows</td></tr></table>";
        assert!(page.to_summary().starts_with(expected), "{}", page.to_summary());
    }

    #[test]
    fn sections_are_bounded() {
        let mut page = Page::new("m");
        let rows = || (0..500_000).map(|i| json!([format!("a value with a long name {i}")]));
        page.table("t", "", &[("a", Kind::Text)], rows());
        let (kept, left_out) = (page.sections[0]["rows"].as_array().unwrap().len(), &page.sections[0]["left_out"]);
        assert_eq!(left_out.as_u64(), Some(500_000 - kept as u64));
        assert!((100_000..500_000).contains(&kept) && page.to_html().len() < MAX_SECTION_BYTES + (1 << 16));
    }
}
