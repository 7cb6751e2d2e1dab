//! Values and sizes as people read them.

use std::fmt::Write;
use std::path::Path;

use of_diag::{Diagnostics, escaped};
use of_ir::{Elements, Tensor};
use of_ops::Value;

use of_driver::io_error;

/// Larger tensors are summarised.
const WHOLE: usize = 200;
/// Elements at either end of a summarised axis.
const EDGE: usize = 3;

/// Bytes in the unit that suits them.
pub fn bytes(n: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if n < 1024 {
        return format!("{n} B");
    }
    let mut x = n as f64 / 1024.0;
    let mut unit = 0;
    while x >= 1024.0 && unit + 1 < UNITS.len() {
        x /= 1024.0;
        unit += 1;
    }
    format!("{x:.1} {}", UNITS[unit])
}

/// A time in the unit that suits it.
pub fn time(t: std::time::Duration) -> String {
    match t.as_secs_f64() {
        s if s < 1e-3 => format!("{:.1} us", s * 1e6),
        s if s < 1.0 => format!("{:.1} ms", s * 1e3),
        s => format!("{s:.1} s"),
    }
}

/// Name, type and elements of a value.
pub fn value(name: &str, v: &Value) -> String {
    let name = &*escaped(name);
    match v {
        Value::Tensor(t) => format!("{name}: {}\n{}\n", of_ir::Type::from(t.ty()), tensor(t)),
        Value::Sequence(list) => {
            let mut out = format!("{name}: sequence of {}\n", list.len());
            for (i, v) in list.iter().enumerate() {
                out += &value(&format!("{name}[{i}]"), v);
            }
            out
        }
        Value::Optional(Some(v)) => value(name, v),
        Value::Optional(None) | Value::None => format!("{name}: nothing\n"),
    }
}

/// The elements in nested brackets; the middle of large tensors is left out.
fn tensor(t: &Tensor) -> String {
    let mut out = String::new();
    let (texts, summarise) = (texts(t), t.len() > WHOLE);
    if t.is_empty() {
        // The other extents may be of any length.
        out.push_str("[]");
    } else {
        write_axis(&mut out, t.dims(), 0, &mut |i| texts.get(i), summarise, 1);
    }
    out
}

/// Writes the elements from number `start` on that the axes `dims` hold.
fn write_axis(
    out: &mut String,
    dims: &[usize],
    start: usize,
    text: &mut dyn FnMut(usize) -> String,
    summarise: bool,
    indent: usize,
) {
    let Some((&n, rest)) = dims.split_first() else {
        out.push_str(&text(start));
        return;
    };
    let stride: usize = rest.iter().product();
    let between = if rest.is_empty() { ", ".to_string() } else { format!(",\n{}", " ".repeat(indent)) };
    out.push('[');
    let mut i = 0;
    while i < n {
        if i > 0 {
            out.push_str(&between);
        }
        if summarise && n > 2 * EDGE && i == EDGE {
            out.push('…');
            i = n - EDGE;
            continue;
        }
        write_axis(out, rest, start + i * stride, text, summarise, indent + 1);
        i += 1;
    }
    out.push(']');
}

/// Elements of one tensor, printed alike.
struct Texts {
    elements: Elements,
    bool: bool,
    width: usize,
}

impl Texts {
    fn get(&self, i: usize) -> String {
        let text = self.plain(i);
        format!("{text:>width$}", width = self.width)
    }

    fn plain(&self, i: usize) -> String {
        match &self.elements {
            Elements::Float(v) => number(v[i]),
            Elements::Int(v) if self.bool => (v[i] != 0).to_string(),
            Elements::Int(v) => v[i].to_string(),
            Elements::Str(v) => format!("{:?}", v[i]),
        }
    }
}

fn texts(t: &Tensor) -> Texts {
    /// Widths are made equal for as many as are looked at.
    const LOOKED_AT: usize = 4096;
    let mut out = Texts { elements: t.elements(), bool: t.dtype() == of_ir::DType::Bool, width: 0 };
    if !matches!(out.elements, Elements::Str(_)) {
        out.width = (0..t.len().min(LOOKED_AT)).map(|i| out.plain(i).len()).max().unwrap_or(0);
    }
    out
}

/// A number with six significant digits.
fn number(x: f64) -> String {
    let size = x.abs();
    if x == 0.0 || !x.is_finite() {
        return format!("{x}");
    }
    if !(1e-4..1e7).contains(&size) {
        return format!("{x:.5e}");
    }
    let digits = 5 - size.log10().floor() as i32;
    let text = format!("{x:.*}", usize::try_from(digits).unwrap_or(0));
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_string() } else { text }
}

/// Names for indices.
pub struct Labels(Vec<String>);

impl Labels {
    /// Reads one name a line.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn read(path: &Path) -> Result<Labels, Diagnostics> {
        let text = std::fs::read_to_string(path).map_err(|e| io_error(path, "read", &e))?;
        Ok(Labels(text.lines().map(|l| l.trim().to_string()).collect()))
    }
}

/// The `k` largest along the last axis, a line for each.
pub fn top(name: &str, v: &Value, k: usize, labels: Option<&Labels>) -> String {
    let Value::Tensor(t) = v else { return value(name, v) };
    let (Some(numbers), Some((&n, outer))) = (t.to_f64s(), t.dims().split_last()) else { return value(name, v) };
    let mut out = format!("{}: {}\n", escaped(name), of_ir::Type::from(t.ty()));
    if n == 0 {
        return out;
    }
    for (row, values) in numbers.chunks(n).enumerate() {
        let mut order: Vec<usize> = (0..n).collect();
        of_ir::sort::by(&mut order, |a, b| values[*b].total_cmp(&values[*a]));
        let place = index(outer, row);
        let best: Vec<String> = order
            .iter()
            .take(k)
            .map(|i| {
                let label = labels.and_then(|l| l.0.get(*i)).map(|l| format!(" {l}")).unwrap_or_default();
                format!("{i}{label} ({})", number(values[*i]))
            })
            .collect();
        let _ = writeln!(out, "  {place} {}", best.join("  "));
    }
    out
}

/// `[1, 0]` for row number `row` of the axes `dims`.
fn index(dims: &[usize], mut row: usize) -> String {
    let mut at: Vec<String> = Vec::new();
    for d in dims.iter().rev() {
        at.push((row % d).to_string());
        row /= d;
    }
    at.reverse();
    format!("[{}]", at.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn t(dims: &[usize], v: &[f32]) -> Value {
        Value::Tensor(Tensor::from_slice(dims, v).unwrap())
    }

    #[test]
    fn small_tensors_are_shown_whole() {
        assert_eq!(
            value("y", &t(&[2, 2], &[1.0, -2.5, 0.1, 1e9])),
            "y: tensor<2x2xf32>\n[[1, -2.5],\n [0.1, 1.00000e9]]\n"
                .replace("[1, -2.5]", "[        1,      -2.5]")
                .replace("[0.1, ", "[      0.1, ")
        );
        assert_eq!(value("s", &t(&[], &[3.0])), "s: tensor<f32>\n3\n");
    }

    #[test]
    fn large_tensors_are_summarised() {
        let text = value("y", &t(&[1000], &[0.0; 1000]));
        assert_eq!(text, "y: tensor<1000xf32>\n[0, 0, 0, …, 0, 0, 0]\n");
    }

    #[test]
    fn top_elements_are_sorted_descending() {
        let l = Labels(vec!["cat".into(), "dog".into(), "cow".into()]);
        let text = top("p", &t(&[2, 3], &[0.1, 0.7, 0.2, 0.5, 0.1, 0.4]), 2, Some(&l));
        assert_eq!(text, "p: tensor<2x3xf32>\n  [0] 1 dog (0.7)  2 cow (0.2)\n  [1] 0 cat (0.5)  2 cow (0.4)\n");
    }

    #[test]
    fn numbers_have_six_digits() {
        let list = [
            (0.1 + 0.2, "0.3"),
            (123456.789, "123457"),
            (f64::NAN, "NaN"),
            (-0.00001, "-1.00000e-5"),
            (1e6, "1000000"),
        ];
        for (x, text) in list {
            assert_eq!(number(x), text);
        }
        assert_eq!((bytes(5), bytes(1536), bytes(3 << 30)), ("5 B".into(), "1.5 KiB".into(), "3.0 GiB".into()));
    }
}
