//! The explanation as one HTML page: timeline, memory, communication and layouts. The page is self-contained: no script
//! and no other file.

use std::fmt::Write;

use crate::decide::{Decision, bytes, seconds, transfers};
use crate::explain::{explain, summary};
use crate::layout::{self, Layout};
use crate::model::Model;
use crate::value_names::value_names;

/// A timeline track: ranks that do the same.
pub struct Track {
    /// Name of the ranks.
    pub name: String,
    /// Timeline events of one of them.
    pub events: Vec<Event>,
    /// Bytes of one of them by purpose.
    pub memory: Vec<(&'static str, u64)>,
}

/// A timeline event: one task that runs.
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

/// Limits of events per track and of tracks, which keep the page small enough for browsers.
const MAX_EVENTS: usize = 4000;
const MAX_TRACKS: usize = 32;

const STYLE: &str = "body{font:14px/1.5 system-ui,sans-serif;max-width:1100px;margin:2em auto;padding:0 1em;color:#223}\
h1{font-size:1.5em;margin:0}h2{font-size:1.1em;margin:2em 0 .5em}table{border-collapse:collapse;width:100%}\
td,th{text-align:left;padding:.2em .6em;border-bottom:1px solid #e3e6ee;vertical-align:top}\
th{font-weight:600;color:#667}.n{text-align:right;font-variant-numeric:tabular-nums}\
.l{display:inline-block;border-radius:3px;padding:0 .4em;margin-right:.2em;font-family:monospace}\
.B{background:#e8ebf2}.S{background:#cfe6d4}.P{background:#f6ddc3}.dim{color:#889}svg{width:100%;display:block}\
.key span{margin-right:1.5em}";

/// The page, with this title.
pub fn page(title: &str, model: &Model<'_>, d: &Decision, tracks: &[Track]) -> String {
    let mut out = String::from("<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">");
    let _ = write!(out, "<title>{}</title><style>{STYLE}</style></head><body>", text(title));
    let _ = write!(out, "<h1>{}</h1><p>{}</p>", text(title), text(&summary(model, d)));
    out.push_str("<p class=\"key\"><span><i class=\"l B\">B</i>replicated on every rank</span>\
        <span><i class=\"l S\">S(i)</i>a slice along axis i</span><span><i class=\"l P\">P</i>partial, to be reduced</span></p>");
    timeline(&mut out, tracks);
    memory(&mut out, tracks, model.mesh.memory);
    communication(&mut out, model, d);
    graph(&mut out, model, d);
    out.push_str("</body></html>\n");
    out
}

fn timeline(out: &mut String, tracks: &[Track]) {
    let end = tracks.iter().flat_map(|l| &l.events).fold(0.0f64, |end, event| end.max(event.end));
    if end <= 0.0 {
        return;
    }
    let shown = &tracks[..tracks.len().min(MAX_TRACKS)];
    let (width, row, left) = (1000.0, 26.0, 180.0);
    let _ = write!(
        out,
        "<h2>Timeline of a step: {}</h2><p class=\"key\"><span><i class=\"l\" style=\"background:#4d7fc4\">&nbsp;</i>\
         computes</span><span><i class=\"l\" style=\"background:#e0853d\">&nbsp;</i>transfers</span><span><i class=\"l\" \
         style=\"background:#e9d3c0\">&nbsp;</i>waits</span></p><svg viewBox=\"0 0 {} {}\" role=\"img\">",
        seconds(end),
        width + left,
        row * shown.len() as f64
    );
    for (i, track) in shown.iter().enumerate() {
        let y = row * i as f64;
        let _ = write!(out, "<text x=\"0\" y=\"{}\" font-size=\"13\">{}</text>", y + 17.0, text(&track.name));
        let mut rect = |from: f64, to: f64, colour: &str, title: &str| {
            let (x, w) = (left + width * from / end, (width * (to - from) / end).max(0.2));
            let _ = write!(
                out,
                "<rect x=\"{x:.2}\" y=\"{}\" width=\"{w:.2}\" height=\"20\" fill=\"{colour}\"><title>{title}</title></rect>",
                y + 3.0
            );
        };
        for event in track.events.iter().take(MAX_EVENTS) {
            let worked = event.start + event.waited;
            let title = format!("{}: {}", text(&event.name), seconds(event.end - worked));
            if event.waited > 0.0 {
                rect(event.start, worked, "#e9d3c0", &format!("{} waits {}", text(&event.name), seconds(event.waited)));
            }
            rect(worked, event.end, if event.transfer { "#e0853d" } else { "#4d7fc4" }, &title);
        }
    }
    out.push_str("</svg>");
    if tracks.len() > shown.len() {
        let _ = write!(out, "<p class=\"dim\">and {} more kinds of ranks</p>", tracks.len() - shown.len());
    }
}

fn memory(out: &mut String, tracks: &[Track], limit: f64) {
    if tracks.is_empty() {
        return;
    }
    let _ = write!(out, "<h2>Memory of a rank, of {}</h2><table>", bytes(limit));
    for track in tracks.iter().take(MAX_TRACKS) {
        let all: u64 = track.memory.iter().map(|(_, n)| n).sum();
        let parts: Vec<String> = track
            .memory
            .iter()
            .filter(|(_, n)| *n > 0)
            .map(|(what, n)| format!("{what} {}", bytes(*n as f64)))
            .collect();
        let share = (100.0 * all as f64 / limit).min(100.0);
        let _ = write!(
            out,
            "<tr><td>{}</td><td class=\"n\">{}</td><td style=\"width:40%\"><svg viewBox=\"0 0 100 6\" \
             preserveAspectRatio=\"none\" style=\"height:14px\"><rect width=\"100\" height=\"6\" fill=\"#e8ebf2\"/><rect \
             width=\"{share:.2}\" height=\"6\" fill=\"#6aa67a\"/></svg></td><td>{}</td></tr>",
            text(&track.name),
            bytes(all as f64),
            parts.join(", ")
        );
    }
    out.push_str("</table>");
}

fn communication(out: &mut String, model: &Model<'_>, d: &Decision) {
    let names = value_names(model.func);
    out.push_str("<h2>Communication</h2>");
    let all = transfers(model, d);
    if all.is_empty() {
        out.push_str("<p>None.</p>");
        return;
    }
    out.push_str("<table><tr><th>value<th>from<th>to<th>by<th class=\"n\">time<th class=\"n\">sent by all</tr>");
    for t in all {
        let Some(transfer) = model.transfers(t.value) else { continue };
        let path = transfer.router.path(&t.from, &t.to, transfer.bytes, &transfer.usable).unwrap_or_default();
        let steps: Vec<String> = path.iter().map(|s| format!("{} {:?}", s.collective.name(), s.axes)).collect();
        let _ = write!(
            out,
            "<tr><td>{}<td>{}<td>{}<td>{}<td class=\"n\">{}<td class=\"n\">{}</tr>",
            text(&names[t.value.index()]),
            chips(&t.from),
            chips(&t.to),
            text(&steps.join(", ")),
            seconds(path.iter().map(|s| s.seconds).sum()),
            bytes(path.iter().map(|s| s.bytes).sum())
        );
    }
    out.push_str("</table>");
}

fn graph(out: &mut String, model: &Model<'_>, d: &Decision) {
    out.push_str(
        "<h2>Graph</h2><table><tr><th>value<th>layout<th>runner-up<th class=\"n\">its time<th class=\"n\">sent\
         <th class=\"n\">memory</tr>",
    );
    let signed = |x: f64, f: fn(f64) -> String| format!("{}{}", if x < 0.0 { "-" } else { "+" }, f(x.abs()));
    for e in explain(model, d) {
        let _ = write!(out, "<tr><td>{}<td>{}", text(&e.value), chips(&e.layout));
        match e.runner_up {
            Some(r) => {
                let (time, sent, held) = (signed(r.seconds, seconds), signed(r.sent, bytes), signed(r.memory, bytes));
                let _ = write!(
                    out,
                    "<td>{}<td class=\"n\">{time}<td class=\"n\">{sent}<td class=\"n\">{held}</tr>",
                    chips(&r.layout)
                );
            }
            None => out.push_str("<td class=\"dim\" colspan=\"4\">no other layout is possible</tr>"),
        }
    }
    out.push_str("</table>");
}

/// A layout, coloured by its kind along each mesh axis.
fn chips(l: &Layout) -> String {
    let kind = |s: &of_ir::Sbp| match s {
        of_ir::Sbp::Broadcast => "B",
        of_ir::Sbp::Split(_) => "S",
        of_ir::Sbp::Partial(_) => "P",
    };
    let chip = |s: &of_ir::Sbp| format!("<i class=\"l {}\">{s}</i>", kind(s));
    let all: String = l.iter().map(chip).collect();
    if all.is_empty() { layout::show(l) } else { all }
}

/// Text with control characters and HTML special characters escaped.
fn text(s: &str) -> String {
    of_diag::escaped(s).replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
