//! Results of a pack as Markdown tables.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use serde_json::Value;

/// The columns of a table of times: how it is called, and the parts of a case whose results it shows, without `+tf32`.
const OURS: [(&str, &str); 2] = [("ours", "ours"), ("with libraries", "ours+lib")];
const PEERS: [(&str, &str); 5] =
    [("torch", "torch"), ("torch eager", "eager"), ("torch.compile", "compile"), ("Triton", "triton"), ("JAX", "jax")];

/// The lines of a results file, and the last line of each part of a case.
struct Results {
    lines: Vec<Value>,
}

impl Results {
    /// # Errors
    /// When a line is damaged. The last one may be: a killed run was writing it.
    fn read(text: &str) -> Result<Results, String> {
        let mut last: BTreeMap<[String; 3], (usize, Value)> = BTreeMap::new();
        let count = text.lines().count();
        for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let found: Value = match serde_json::from_str(line) {
                Ok(found) => found,
                Err(_) if number + 1 == count && !text.ends_with('\n') => continue,
                Err(e) => return Err(format!("line {}: {e}", number + 1)),
            };
            let word = |name: &str| {
                let found = found[name].as_str().map(String::from);
                found.ok_or_else(|| format!("line {}: it has no '{name}'", number + 1))
            };
            let key = [word("phase")?, word("case")?, word("part")?];
            let place = last.get(&key).map_or(number, |(place, _)| *place);
            last.insert(key, (place, found));
        }
        let mut lines: Vec<(usize, Value)> = last.into_values().collect();
        lines.sort_by_key(|(place, _)| *place);
        Ok(Results { lines: lines.into_iter().map(|(_, line)| line).collect() })
    }

    fn of<'a>(&'a self, phase: &'a str) -> impl Iterator<Item = &'a Value> {
        self.lines.iter().filter(move |l| l["phase"] == phase)
    }
}

/// All tables.
///
/// # Errors
/// When the text is not what a pack wrote.
pub fn tables(text: &str) -> Result<String, String> {
    let results = Results::read(text)?;
    if results.lines.is_empty() {
        return Err("it has no results".into());
    }
    let mut out = machine(&results);
    for (phase, what) in [("check", "correct"), ("sanitize", "without a finding of compute-sanitizer")] {
        checks(&results, phase, what, &mut out);
    }
    for (phase, title) in [("kernels", "Kernels"), ("models", "Networks")] {
        times(&results, phase, title, &mut out);
    }
    counters(&results, &mut out);
    failures(&results, &mut out);
    Ok(out)
}

/// One paragraph on the machine.
fn machine(results: &Results) -> String {
    let Some(facts) = results.of("facts").find(|l| l["ok"] == true) else { return String::new() };
    let word = |name: &str| facts[name].as_str().unwrap_or("unknown").to_string();
    let mut out = format!("{}, {}; {}; kernels for {}", word("date"), word("gpu"), word("of_opt"), word("arch"));
    for name in ["torch", "cuda", "triton", "jax"] {
        if let Some(version) = facts[name].as_str() {
            let _ = write!(out, "; {name} {version}");
        }
    }
    out.push_str(".\n");
    let rates =
        [("copy_gb_s", "GB/s copied"), ("f32_tflop_s", "f32"), ("tf32_tflop_s", "tf32"), ("f16_tflop_s", "f16")];
    let rates: Vec<String> =
        rates.iter().filter_map(|(name, what)| Some(format!("{} {what}", facts[*name].as_f64()?))).collect();
    if !rates.is_empty() {
        let _ = writeln!(out, "Large copies and products of torch reach (TFLOP/s for products): {}.", rates.join(", "));
    }
    out
}

/// How many cases of a phase passed, and the largest error of each precision.
fn checks(results: &Results, phase: &str, what: &str, out: &mut String) {
    let all: Vec<&Value> = results.of(phase).collect();
    if all.is_empty() {
        return;
    }
    let passed = all.iter().filter(|l| l["ok"] == true).count();
    let _ = writeln!(out, "\n{passed} of {} {what}.", all.len());
    let mut worst: BTreeMap<&str, (f64, &str)> = BTreeMap::new();
    for line in &all {
        let (Some(error), Some(precision), Some(case)) =
            (line["error"].as_f64(), line["precision"].as_str(), line["case"].as_str())
        else {
            continue;
        };
        let entry = worst.entry(precision).or_insert((error, case));
        if error > entry.0 {
            *entry = (error, case);
        }
    }
    if !worst.is_empty() {
        out.push_str("\n| precision | largest relative error | of |\n|---|---|---|\n");
        for (precision, (error, case)) in worst {
            let _ = writeln!(out, "| {precision} | {error:.1e} | {case} |");
        }
    }
}

/// A row of a table of times: the results of parts that compute one case in one precision.
#[derive(Default)]
struct Row<'a> {
    group: &'a str,
    flops: Option<f64>,
    /// Milliseconds of the GPU and of a whole run, by part without `+tf32`.
    parts: BTreeMap<String, (f64, f64)>,
}

impl Row<'_> {
    fn device(&self, part: &str) -> Option<f64> {
        self.parts.get(part).map(|(device, _)| *device)
    }

    /// The time of the fastest peer.
    fn peer(&self) -> Option<f64> {
        PEERS.iter().filter_map(|(_, part)| self.device(part)).min_by(f64::total_cmp)
    }

    /// Ours over the fastest peer.
    fn ratio(&self, part: &str) -> Option<f64> {
        Some(self.device(part)? / self.peer()?)
    }
}

/// The rows of a phase, in the order of the file.
fn rows<'a>(results: &'a Results, phase: &'a str) -> Vec<((&'a str, &'a str), Row<'a>)> {
    let mut rows: Vec<((&str, &str), Row<'_>)> = Vec::new();
    for line in results.of(phase).filter(|l| l["ok"] == true) {
        let word = |name: &str| line[name].as_str().unwrap_or_default();
        let (Some(device), Some(wall)) = (line["device_ms"].as_f64(), line["median_ms"].as_f64()) else { continue };
        let key = (word("case"), word("precision"));
        let at = rows.iter().position(|(k, _)| *k == key).unwrap_or_else(|| {
            rows.push((key, Row { group: word("group"), flops: line["flops"].as_f64(), ..Row::default() }));
            rows.len() - 1
        });
        rows[at].1.parts.insert(word("part").replace("+tf32", ""), (device, wall));
    }
    rows
}

/// The times of a phase, and geometric means of ratios.
fn times(results: &Results, phase: &str, title: &str, out: &mut String) {
    let rows = rows(results, phase);
    if rows.is_empty() {
        return;
    }
    let used = |part: &str| rows.iter().any(|(_, row)| row.parts.contains_key(part));
    let columns: Vec<(&str, &str)> = OURS.into_iter().chain(PEERS).filter(|(_, part)| used(part)).collect();
    let ours: Vec<(&str, &str)> = OURS.into_iter().filter(|(_, part)| used(part)).collect();
    let names: Vec<&str> = columns.iter().map(|(name, _)| *name).collect();
    let ratios: Vec<String> = ours.iter().map(|(name, _)| format!("{name} / fastest peer")).collect();
    let _ = writeln!(
        out,
        "\n{title}, microseconds of the GPU by its own clock, without transfers from and to the host. A ratio below 1 is faster.\n"
    );
    let _ = writeln!(out, "| case | precision | {} | TFLOP/s | {} |", names.join(" | "), ratios.join(" | "));
    let _ = writeln!(out, "{}|", "|---".repeat(3 + columns.len() + ratios.len()));
    let us = |ms: Option<f64>| ms.map_or("–".into(), |ms| format!("{:.1}", 1e3 * ms));
    let times = |x: Option<f64>| x.map_or("–".into(), |x| format!("{x:.2}"));
    for ((case, precision), row) in &rows {
        let cells: Vec<String> = columns.iter().map(|(_, part)| us(row.device(part))).collect();
        let rate = row.flops.zip(row.device("ours")).map(|(flops, ms)| flops / ms / 1e9);
        let rate = rate.map_or("–".into(), |rate| format!("{rate:.1}"));
        let ratios: Vec<String> = ours.iter().map(|(_, part)| times(row.ratio(part))).collect();
        let _ = writeln!(out, "| {case} | {precision} | {} | {rate} | {} |", cells.join(" | "), ratios.join(" | "));
    }
    means(&rows, &ours, out);
    if phase == "models" {
        walls(&rows, &columns, out);
    }
}

/// Geometric means of the ratios of each group and precision.
fn means(rows: &[((&str, &str), Row<'_>)], ours: &[(&str, &str)], out: &mut String) {
    let names: Vec<String> = ours.iter().map(|(name, _)| format!("{name} / fastest peer")).collect();
    let _ =
        writeln!(out, "\n| geometric mean | precision | {} |\n{}|", names.join(" | "), "|---".repeat(2 + names.len()));
    let groups: BTreeSet<(&str, &str)> = rows.iter().map(|((_, precision), row)| (row.group, *precision)).collect();
    for (group, precision) in groups {
        let cell = |part: &str| {
            let all: Vec<f64> = rows
                .iter()
                .filter(|((_, p), row)| row.group == group && *p == precision)
                .filter_map(|(_, row)| row.ratio(part))
                .collect();
            let mean = (all.iter().map(|x| x.ln()).sum::<f64>() / all.len() as f64).exp();
            if all.is_empty() { "–".into() } else { format!("{mean:.2} of {}", all.len()) }
        };
        let cells: Vec<String> = ours.iter().map(|(_, part)| cell(part)).collect();
        let _ = writeln!(out, "| {group} | {precision} | {} |", cells.join(" | "));
    }
}

/// Whole runs, with transfers.
fn walls(rows: &[((&str, &str), Row<'_>)], columns: &[(&str, &str)], out: &mut String) {
    let names: Vec<&str> = columns.iter().map(|(name, _)| *name).collect();
    let _ = writeln!(
        out,
        "\nWhole runs of the same, milliseconds by the host's clock. Only ours copies the results to the host.\n\n| case | precision | {} |\n{}|",
        names.join(" | "),
        "|---".repeat(2 + names.len())
    );
    for ((case, precision), row) in rows {
        let cell = |part: &str| row.parts.get(part).map_or("–".into(), |(_, wall)| format!("{wall:.3}"));
        let cells: Vec<String> = columns.iter().map(|(_, part)| cell(part)).collect();
        let _ = writeln!(out, "| {case} | {precision} | {} |", cells.join(" | "));
    }
}

/// What ncu counted.
fn counters(results: &Results, out: &mut String) {
    let all: Vec<&Value> = results.of("ncu").filter(|l| l["ok"] == true).collect();
    if all.is_empty() {
        return;
    }
    let columns = [
        ("us", "time_us"),
        ("SM", "sm_percent"),
        ("tensor cores", "tensor_percent"),
        ("DRAM", "dram_percent"),
        ("L2", "l2_percent"),
        ("L1", "l1_percent"),
        ("occupancy", "occupancy_percent"),
        ("registers", "registers"),
        ("blocks", "blocks"),
    ];
    let names: Vec<&str> = columns.iter().map(|(name, _)| *name).collect();
    let _ = writeln!(
        out,
        "\nKernels that are slowest relative to a peer, by ncu, in per cent of the peak.\n\n| case | kernel | {} |\n{}|",
        names.join(" | "),
        "|---".repeat(2 + names.len())
    );
    for line in all {
        for (number, kernel) in line["kernels"].as_array().into_iter().flatten().enumerate() {
            let cell = |name: &str| kernel[name].as_f64().map_or("–".into(), |x| format!("{x:.1}").replace(".0", ""));
            let cells: Vec<String> = columns.iter().map(|(_, name)| cell(name)).collect();
            let (case, part) = (line["case"].as_str().unwrap_or(""), line["part"].as_str().unwrap_or(""));
            let _ = writeln!(out, "| {case} {part} | {number} | {} |", cells.join(" | "));
        }
    }
}

/// Every result that is not as it must be.
fn failures(results: &Results, out: &mut String) {
    let bad: Vec<&Value> = results.lines.iter().filter(|l| l["ok"] != true).collect();
    if bad.is_empty() {
        return;
    }
    let _ = writeln!(out, "\nNot ok, {}:\n", bad.len());
    for line in bad {
        let word = |name: &str| line[name].as_str().unwrap_or_default();
        let name = [word("phase"), word("case"), word("part")].join(" ");
        let _ = writeln!(out, "- {}: {}", name.trim(), word("why"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINES: &str = r#"{"phase":"facts","case":"machine","part":"","ok":true,"date":"2026-01-02","gpu":"G","of_opt":"of-opt 1","arch":"sm_90","torch":"2","copy_gb_s":3000.5}
{"phase":"check","case":"a_f32","part":"ours","ok":true,"precision":"f32","error":1e-7}
{"phase":"check","case":"b_f32","part":"ours","ok":false,"precision":"f32","error":0.5,"why":"the error is 0.5"}
{"phase":"kernels","case":"a_f32","part":"ours+tf32","ok":true,"of":"ours","group":"matmul","precision":"tf32","device_ms":0.004,"median_ms":1,"flops":8e6}
{"phase":"kernels","case":"a_f32","part":"torch+tf32","ok":true,"of":"peer","group":"matmul","precision":"tf32","device_ms":0.004,"median_ms":1,"flops":8e6}
{"phase":"kernels","case":"a_f32","part":"triton+tf32","ok":true,"of":"peer","group":"matmul","precision":"tf32","device_ms":0.002,"median_ms":1,"flops":8e6}
{"phase":"kernels","case":"b_f32","part":"ours+tf32","ok":true,"of":"ours","group":"matmul","precision":"tf32","device_ms":0.001,"median_ms":1}
{"phase":"kernels","case":"b_f32","part":"torch+tf32","ok":false,"why":"killed after 3 s"}
{"phase":"kernels","case":"b_f32","part":"torch+tf32","ok":true,"of":"peer","group":"matmul","precision":"tf32","device_ms":0.002,"median_ms":1}
{"phase":"models","case":"n_f32","part":"ours","ok":true,"of":"ours","group":"network","precision":"f32","device_ms":2,"median_ms":2.5}
{"phase":"ncu","case":"a_f32","part":"ours","ok":true,"kernels":[{"time_us":4.25,"registers":128}]}
{"phase":"ker"#;

    #[test]
    fn ratios_are_those_of_the_fastest_peer_of_the_same_precision() {
        let text = tables(LINES).unwrap();
        for line in [
            "2026-01-02, G; of-opt 1; kernels for sm_90; torch 2.",
            "1 of 2 correct.",
            "| f32 | 5.0e-1 | b_f32 |",
            "| a_f32 | tf32 | 4.0 | 4.0 | 2.0 | 2.0 | 2.00 |",
            "| b_f32 | tf32 | 1.0 | 2.0 | – | – | 0.50 |",
            "| matmul | tf32 | 1.00 of 2 |",
            "| n_f32 | f32 | 2000.0 | – | – |",
            "| n_f32 | f32 | 2.500 |",
            "| a_f32 ours | 0 | 4.2 | – | – | – | – | – | – | 128 | – |",
            "- check b_f32 ours: the error is 0.5",
        ] {
            assert!(text.lines().any(|l| l == line), "{line}\n{text}");
        }
        // The later line of a part replaces the earlier one.
        assert!(!text.contains("killed"), "{text}");
    }

    #[test]
    fn damaged_results_are_refused() {
        assert!(tables("").unwrap_err().contains("no results"));
        assert!(tables("{}\n").unwrap_err().contains("line 1: it has no 'phase'"));
        assert!(tables(&format!("x\n{LINES}")).unwrap_err().contains("line 1"));
    }
}
