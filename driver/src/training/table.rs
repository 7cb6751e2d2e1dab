//! Tables of numbers: CSV with a header.

use std::path::Path;

use of_diag::{Code, Diagnostics};
use of_ir::{DType, Elements, Tensor};

use super::data::ColumnSpec;
use crate::error::{error, io_error};

/// A line of a table: its number from 1 on, and its cells.
type Row = (usize, Vec<String>);

/// The rows of a CSV file, without empty lines. A cell in quotes may have commas, line breaks and doubled quotes (RFC 4180).
///
/// # Errors
/// The line of a quote that is not closed.
fn rows(text: &str) -> Result<Vec<Row>, usize> {
    let mut out: Vec<Row> = Vec::new();
    let (mut cells, mut cell, mut line, mut start) = (Vec::new(), String::new(), 1, 1);
    // The line on which an open quote begins.
    let (mut quote, mut was_quoted) = (None, false);
    let mut chars = text.trim_start_matches('\u{feff}').chars().peekable();
    loop {
        let next = chars.next();
        match (next, quote) {
            (Some('"'), Some(_)) if chars.peek() == Some(&'"') => {
                cell.push('"');
                chars.next();
            }
            (Some('"'), Some(_)) => quote = None,
            (Some(c), Some(_)) => {
                line += usize::from(c == '\n');
                cell.push(c);
            }
            (None, Some(begin)) => return Err(begin),
            (Some('"'), None) if cell.trim().is_empty() && !was_quoted => {
                cell.clear();
                (quote, was_quoted) = (Some(line), true);
            }
            (Some(',' | '\n') | None, None) => {
                let own = std::mem::take(&mut cell);
                cells.push(if was_quoted { own } else { own.trim().to_owned() });
                was_quoted = false;
                if next == Some(',') {
                    continue;
                }
                let row = std::mem::take(&mut cells);
                if row.len() > 1 || row.iter().any(|cell| !cell.is_empty()) {
                    out.push((start, row));
                }
                if next.is_none() {
                    return Ok(out);
                }
                line += 1;
                start = line;
            }
            // What follows the quotes is white space, or damage that is no number.
            (Some(c), None) if was_quoted && c.is_whitespace() => {}
            (Some(c), None) => cell.push(c),
        }
    }
}

/// The places of the columns of an input: the column of its name, or those of its name and a dot with more, such as `NAME.0` and `NAME.1`.
fn places(names: &[String], name: &str) -> Vec<usize> {
    let exact: Vec<usize> = (0..names.len()).filter(|i| names[*i] == name).collect();
    let of_part = |i: &usize| names[*i].strip_prefix(name).is_some_and(|rest| rest.starts_with('.'));
    if exact.is_empty() { (0..names.len()).filter(of_part).collect() } else { exact }
}

/// The columns `wanted` of a table, of which the last are the labels: columns of their names. Of a model with one input, that input is all columns
/// but the labels. With `has_probabilities`, labels may be whole numbers, the classes.
///
/// # Errors
/// When the file cannot be read, a column is absent, or a cell is no number.
pub(super) fn read(
    path: &Path,
    wanted: &[ColumnSpec],
    has_probabilities: bool,
) -> Result<Vec<(String, Tensor)>, Diagnostics> {
    let place =
        |line: usize, what: &str| Diagnostics::from(error(Code::INPUT, format!("{}:{line}: {what}", path.display())));
    let text = std::fs::read_to_string(path).map_err(|e| match e.kind() {
        std::io::ErrorKind::InvalidData => {
            let what = format!("'{}' is no table: it has bytes that are no UTF-8", path.display());
            error(Code::INPUT, what).hint("save it as CSV in UTF-8; the ending .csv says that it is a table")
        }
        _ => io_error(path, "read", &e),
    })?;
    let rows = rows(&text).map_err(|line| place(line, "the quote is not closed"))?;
    drop(text);
    let Some(((_, names), rows)) = rows.split_first() else { return Err(place(1, "the table is empty")) };
    if let Some((line, row)) = rows.iter().find(|(_, row)| row.len() != names.len()) {
        return Err(place(*line, &format!("{} cells, and the header has {}", row.len(), names.len())));
    }
    let Some((labels, inputs)) = wanted.split_last() else { return Ok(Vec::new()) };
    let column = |spec: &ColumnSpec| match &places(names, &spec.name)[..] {
        [] => {
            let what = format!("no column is called '{}'; there are {}", spec.name, names.join(", "));
            let hint = match &names[..] {
                [only] if only.contains([';', '\t']) => "the cells of a table are separated by commas".to_owned(),
                _ if spec.name == labels.name => "--labels names the column of labels".to_owned(),
                _ => format!("an input of several numbers has columns such as {0}.0 and {0}.1", spec.name),
            };
            Err(Diagnostics::from(error(Code::INPUT, format!("{}:1: {what}", path.display())).hint(hint)))
        }
        places => Ok(places.to_vec()),
    };
    let targets = column(labels)?;
    let mut columns = match inputs {
        [only] => vec![(only, (0..names.len()).filter(|i| !targets.contains(i)).collect())],
        several => several.iter().map(|spec| Ok((spec, column(spec)?))).collect::<Result<_, Diagnostics>>()?,
    };
    columns.push((labels, targets));
    let mut out = Vec::with_capacity(wanted.len());
    for (i, (spec, own)) in columns.into_iter().enumerate() {
        let is_labels = i == inputs.len();
        let takes_ints = spec.ty.as_tensor().is_some_and(|t| t.dtype.is_int());
        let mut numbers = Vec::with_capacity(rows.len() * own.len());
        for (line, row) in rows {
            for cell in own.iter().map(|i| &row[*i]) {
                let number = Number::parse(cell);
                numbers.push(number.ok_or_else(|| place(*line, &format!("'{cell}' is no number")))?);
                if takes_ints && numbers.last().is_some_and(|number| number.int().is_none()) {
                    let what = format!("'{cell}' is no whole number; '{}' must be whole numbers", spec.name);
                    return Err(place(*line, &what));
                }
            }
        }
        let ints: Option<Vec<i64>> = numbers.iter().map(|number| number.int()).collect();
        let ints = ints.filter(|_| takes_ints || (is_labels && has_probabilities && own.len() == 1));
        // The labels of samples with one label each have no second axis.
        let dims = if is_labels && own.len() == 1 { vec![rows.len()] } else { vec![rows.len(), own.len()] };
        let tensor = match ints {
            Some(ints) => Tensor::from_slice(&dims, &ints),
            None => {
                let floats = numbers.into_iter().map(|number| number.value).collect();
                Tensor::from_elements(DType::F64, dims, Elements::Float(floats))
            }
        };
        out.push((spec.name.clone(), tensor.map_err(|e| place(1, &e.to_string()))?));
    }
    Ok(out)
}

/// A number of a cell. Whole numbers beyond 2^53 have no f64.
#[derive(Clone, Copy)]
struct Number {
    value: f64,
    whole: Option<i64>,
}

impl Number {
    fn parse(cell: &str) -> Option<Number> {
        let cell = cell.trim();
        let whole = cell.parse().ok();
        cell.parse().ok().map(|value| Number { value, whole })
    }

    fn int(&self) -> Option<i64> {
        const MOST: f64 = 9_007_199_254_740_992.0;
        self.whole.or_else(|| (self.value.fract() == 0.0 && self.value.abs() <= MOST).then_some(self.value as i64))
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use of_ir::{Dim, Type};

    use super::super::data::{DataOptions, Dataset};
    use super::*;

    fn column(name: &str, dtype: DType, rest: &[i64]) -> ColumnSpec {
        let dims = std::iter::once(Dim::symbol("n")).chain(rest.iter().map(|d| Dim::from(*d))).collect();
        ColumnSpec { name: name.into(), ty: Type::tensor(dtype, dims) }
    }

    fn read(text: &str, wanted: &[ColumnSpec], has_probabilities: bool) -> Result<Dataset, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t.csv");
        std::fs::write(&path, text).unwrap();
        let options = DataOptions { has_probabilities, ..DataOptions::default() };
        Dataset::read_with(&[OsString::from(path)], wanted, &options).map_err(|e| e.to_string())
    }

    #[test]
    fn table_gives_features_and_labels() {
        let wanted = [column("x", DType::F32, &[2]), column("y", DType::I64, &[])];
        let data = read("a,y,b\n1,0,2\n3,1,4.5\n", &wanted, false).unwrap();
        let batch = data.batch(&[1, 0]).unwrap();
        let x = batch[0].as_tensor().unwrap();
        assert_eq!((data.len(), x.to_elements::<f32>().unwrap()), (2, vec![3.0, 4.5, 1.0, 2.0]));
        assert_eq!(batch[1].as_tensor().unwrap().to_elements::<i64>().unwrap(), [1, 0]);
        for (text, words) in [
            ("a,y,b\n1,0\n", "t.csv:2: 2 cells, and the header has 3"),
            ("a,y,b\n1,0,z\n", "t.csv:2: 'z' is no number"),
            ("a,b,c\n1,0,2\n", "no column is called 'y'; there are a, b, c"),
            ("a,y,b\n1,0.5,2\n", "t.csv:2: '0.5' is no whole number; 'y' must be whole numbers"),
            ("\n", "the table is empty"),
            ("a,y,b\n", "the data has no samples"),
            ("a,y,b,c\n1,0,2,3\n", "is of shape [1, 3], and the input is [n, 2]"),
            ("a,y,b\n1,0,2\n1,\"0,2\n", "t.csv:3: the quote is not closed"),
            ("a,y,b\n1,0,\"2\"x\n", "t.csv:2: '2x' is no number"),
        ] {
            let e = read(text, &wanted, false).unwrap_err();
            assert!(e.contains(words), "{text:?}: {e}");
        }
    }

    #[test]
    fn cells_in_quotes_may_have_commas_quotes_and_line_breaks() {
        let text = "\u{feff}\"a, \"\"b\"\"\",\"c\nd\", y\r\n\"1\" , 2,3\r\n\r\n4,\"5\",\"6\"\r\n";
        let found = rows(text).unwrap();
        let cells = |list: &[&str]| list.iter().map(|cell| (*cell).to_owned()).collect::<Vec<_>>();
        assert_eq!(found[0], (1, cells(&["a, \"b\"", "c\nd", "y"])));
        assert_eq!(found[1..], [(3, cells(&["1", "2", "3"])), (5, cells(&["4", "5", "6"]))]);
    }

    #[test]
    fn columns_of_several_inputs_are_called_as_the_inputs() {
        let wanted = [column("user", DType::I64, &[]), column("size", DType::F32, &[2]), column("y", DType::F32, &[1])];
        let text = "y,size.w,name,user,size.h\n0.5,1,\"Smith, A\",9007199254740993,2\n1,3,B,5.0,4\n";
        let data = read(text, &wanted, false).unwrap();
        let batch = data.batch(&[0, 1]).unwrap();
        let tensor = |i: usize| batch[i].as_tensor().unwrap();
        assert_eq!(tensor(0).to_elements::<i64>().unwrap(), [9_007_199_254_740_993, 5]);
        assert_eq!(tensor(1).to_elements::<f32>().unwrap(), [1.0, 2.0, 3.0, 4.0]);
        assert_eq!((tensor(2).dims(), tensor(2).to_elements::<f32>().unwrap()), (&[2, 1][..], vec![0.5, 1.0]));
        let e = read("y,size.w,size.h\n1,2,3\n", &wanted, false).unwrap_err();
        assert!(e.contains("t.csv:1: no column is called 'user'") && e.contains("user.0 and user.1"), "{e}");
    }

    #[test]
    fn classes_become_probabilities_where_the_loss_takes_them() {
        let wanted = [column("x", DType::F32, &[1]), column("y", DType::F32, &[3])];
        let data = read("x,y\n0.5,2\n1,0\n", &wanted, true).unwrap();
        let batch = data.batch(&[0, 1]).unwrap();
        assert_eq!(batch[1].as_tensor().unwrap().to_elements::<f32>().unwrap(), [0.0, 0.0, 1.0, 1.0, 0.0, 0.0]);
    }
}
