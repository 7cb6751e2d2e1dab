//! Measurements as tables, as JSON, and in one line.

use std::fmt::Write;

use serde_json::{Value, json};

/// A tool that is measured: its name, and its command with places for `{model}` (the file), `{inputs}`, `{set}` and
/// `{dir}` (the folder of inputs, its name, the folder of both), and `{threads}`.
pub struct Tool {
    /// What makes `{plan}` of the model, once for all rounds.
    pub prepare: Option<String>,
    /// Name in tables.
    pub name: String,
    /// What is run.
    pub command: String,
    /// What it says of itself.
    pub version: Option<String>,
}

/// What a tool says of one process.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// Milliseconds per run.
    pub median_ms: f64,
    /// Milliseconds until it could run.
    pub load_ms: Option<f64>,
    /// Megabytes that the process held at most.
    pub peak_mb: Option<f64>,
}

/// A model under all tools.
pub struct Measured {
    /// Name of the model.
    pub model: String,
    /// Which inputs.
    pub set: String,
    /// Threads of every tool.
    pub threads: String,
    /// For each tool each round; `None` where it failed.
    pub samples: Vec<Vec<Option<Sample>>>,
}

impl Measured {
    /// The median over the rounds of what `of` says of a sample.
    fn median(&self, tool: usize, of: impl Fn(&Sample) -> Option<f64>) -> Option<f64> {
        median(self.samples[tool].iter().flatten().filter_map(of).collect())
    }

    /// Milliseconds per run.
    fn ms(&self, tool: usize) -> Option<f64> {
        self.median(tool, |s| Some(s.median_ms))
    }

    /// Our time over that of another tool: the median of the rounds, each a pair.
    fn ratio(&self, tool: usize) -> Option<f64> {
        let pairs = self.samples[0].iter().zip(&self.samples[tool]);
        median(pairs.filter_map(|(a, b)| Some(a.as_ref()?.median_ms / b.as_ref()?.median_ms)).collect())
    }

    /// Our time over that of the best other tool.
    fn worst_ratio(&self) -> Option<f64> {
        (1..self.samples.len()).filter_map(|t| self.ratio(t)).reduce(f64::max)
    }
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => None,
        n if n % 2 == 1 => Some(values[n / 2]),
        n => Some((values[n / 2 - 1] + values[n / 2]) / 2.0),
    }
}

fn number(value: Option<f64>) -> String {
    match value {
        None => "-".into(),
        Some(v) if v < 1.0 => format!("{v:.3}"),
        Some(v) if v < 100.0 => format!("{v:.2}"),
        Some(v) => format!("{v:.0}"),
    }
}

/// The head of the table.
pub fn head(tools: &[Tool]) -> String {
    let all = |what: &str, skip: usize| tools[skip..].iter().map(|t| format!("{what}{} |", t.name)).collect::<String>();
    let columns = 3 + 2 * tools.len() - 1 + tools.len();
    format!(
        "| model | inputs | threads |{}{}{}\n|{}\n",
        all(" ms ", 0),
        all(" ours / ", 1),
        all(" MB ", 0),
        "---|".repeat(columns)
    )
}

/// A line of the table.
pub fn row(m: &Measured) -> String {
    let tools = 0..m.samples.len();
    let mut out = format!("| {} | {} | {} |", m.model, m.set, m.threads);
    for t in tools.clone() {
        let _ = write!(out, " {} |", m.ms(t).map_or("fails".into(), |v| number(Some(v))));
    }
    for t in tools.clone().skip(1) {
        let _ = write!(out, " {} |", number(m.ratio(t)));
    }
    for t in tools {
        let peak = m.median(t, |s| s.peak_mb);
        let _ = write!(out, " {} |", peak.map_or("-".into(), |v| format!("{v:.0}")));
    }
    out + "\n"
}

/// A summary over all models: the geometric mean of our time over the best other tool's, and where we are behind.
pub fn summary(tools: &[Tool], all: &[Measured]) -> String {
    let ratios: Vec<(String, f64)> =
        all.iter().filter_map(|m| Some((format!("{} {} T{}", m.model, m.set, m.threads), m.worst_ratio()?))).collect();
    if ratios.is_empty() {
        return "nothing to compare\n".into();
    }
    let mean = (ratios.iter().map(|r| r.1.ln()).sum::<f64>() / ratios.len() as f64).exp();
    let mut behind: Vec<_> = ratios.iter().filter(|r| r.1 > 0.95).collect();
    behind.sort_by(|a, b| b.1.total_cmp(&a.1));
    let names: Vec<String> = tools[1..].iter().map(|t| t.name.clone()).collect();
    let list: Vec<String> = behind.iter().map(|(name, r)| format!("{name} ({r:.2})")).collect();
    format!(
        "Our time over the best of {}: {mean:.3} (geometric mean of {}); above 0.95: {}.\n",
        names.join(", "),
        ratios.len(),
        if list.is_empty() { "none".into() } else { list.join(", ") }
    )
}

/// Everything, with the machine.
pub fn json(machine: &Value, tools: &[Tool], rounds: usize, all: &[Measured]) -> String {
    let tools_json: Vec<Value> =
        tools.iter().map(|t| json!({"name": t.name, "version": t.version, "command": t.command})).collect();
    let sample =
        |s: &Option<Sample>| s.map(|s| json!({"median_ms": s.median_ms, "load_ms": s.load_ms, "peak_mb": s.peak_mb}));
    let results: Vec<Value> = all
        .iter()
        .map(|m| {
            let of = |t: usize| {
                json!({
                    "tool": tools[t].name,
                    "median_ms": m.ms(t),
                    "ours_over_it": m.ratio(t),
                    "rounds": m.samples[t].iter().map(sample).collect::<Vec<_>>(),
                })
            };
            let list: Vec<Value> = (0..tools.len()).map(of).collect();
            json!({"model": m.model, "inputs": m.set, "threads": m.threads, "tools": list})
        })
        .collect();
    let whole = json!({"machine": machine, "rounds": rounds, "tools": tools_json, "results": results});
    format!("{whole:#}\n")
}

/// The table under what it was measured on.
pub fn markdown(machine: &Value, tools: &[Tool], rounds: usize, all: &[Measured]) -> String {
    let text = |key: &str| machine[key].as_str().unwrap_or("unknown").to_owned();
    let mut out = format!(
        "{}, commit {}. {} ({} cores, {} of memory), {} {}. ",
        text("date"),
        text("commit"),
        text("cpu"),
        machine["cores"],
        text("memory"),
        text("os"),
        text("arch")
    );
    let versions: Vec<String> =
        tools.iter().map(|t| format!("{} {}", t.name, t.version.as_deref().unwrap_or("of unknown version"))).collect();
    let _ = writeln!(
        out,
        "Tools: {}. Milliseconds per run: the median of {rounds} rounds, each a process of every tool in turn; ratios are the \
         medians of the rounds' ratios; MB is the peak memory of the process.\n",
        versions.join(", ")
    );
    out += &head(tools);
    all.iter().for_each(|m| out += &row(m));
    out + "\n" + &summary(tools, all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(ours: &[f64], other: &[Option<f64>]) -> Measured {
        let sample = |ms: f64| Sample { median_ms: ms, load_ms: None, peak_mb: Some(10.0) };
        Measured {
            model: "m".into(),
            set: "b1".into(),
            threads: "1".into(),
            samples: vec![
                ours.iter().map(|ms| Some(sample(*ms))).collect(),
                other.iter().map(|ms| ms.map(sample)).collect(),
            ],
        }
    }

    fn tools() -> Vec<Tool> {
        let tool = |name: &str| Tool { prepare: None, name: name.into(), command: String::new(), version: None };
        vec![tool("ours"), tool("peer")]
    }

    #[test]
    fn ratios_compare_runs_of_one_round() {
        // The machine is twice as slow in the last round, for both.
        let m = measured(&[1.0, 1.0, 2.0], &[Some(2.0), Some(2.0), Some(4.0)]);
        assert_eq!(m.ratio(1), Some(0.5));
        assert_eq!(row(&m), "| m | b1 | 1 | 1.00 | 2.00 | 0.500 | 10 | 10 |\n");
        let text = summary(&tools(), &[m, measured(&[2.0], &[Some(1.0)])]);
        assert_eq!(text, "Our time over the best of peer: 1.000 (geometric mean of 2); above 0.95: m b1 T1 (2.00).\n");
    }

    #[test]
    fn failures_are_reported() {
        let m = measured(&[1.0], &[None]);
        assert_eq!(row(&m), "| m | b1 | 1 | 1.00 | fails | - | 10 | - |\n");
        assert_eq!(summary(&tools(), std::slice::from_ref(&m)), "nothing to compare\n");
        assert!(json(&Value::Null, &tools(), 1, &[m]).contains("\"median_ms\": null"));
    }

    #[test]
    fn markdown_rows_have_equal_column_counts() {
        let m = measured(&[1.0], &[Some(2.0)]);
        let count = |line: &str| line.matches('|').count();
        let head = head(&tools());
        assert!(head.lines().all(|l| count(l) == count(&row(&m))), "{head}{}", row(&m));
    }
}
