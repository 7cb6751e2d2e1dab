//! Numbers of the data that name something: classes, and rows of a table of embeddings. One out of range would read what is not there, so it is
//! an error that names its sample.

use std::ops::Range;

use of_diag::{Code, Diagnostics};
use of_frontend::training::Loss;
use of_ir::{Func, Graph, ValueId};
use of_ops::elementwise::Cast;
use of_ops::list::as_op;
use of_ops::movement::Gather;
use of_runtime::Value;

use super::data::Dataset;
use crate::error::error;

/// The numbers of a column.
pub(super) struct Ids {
    /// The place of the column among those of the data.
    column: usize,
    name: String,
    range: Range<i64>,
    of: Named,
}

/// What numbers name.
enum Named {
    /// A class that an output has a score for. The label `ignored` stands for none.
    Class { output: String, ignored: i64 },
    /// A row of a table.
    Row { table: String },
}

impl Ids {
    /// The columns of a model and its labels that have such numbers. `output` is the number of the one that the loss is of.
    pub fn of(func: &Func, loss: Loss, output: usize) -> Vec<Ids> {
        let mut out: Vec<Ids> = (0..func.inputs.len()).filter_map(|column| rows(func, column)).collect();
        if let Loss::CrossEntropy { axis, ignore, .. } = loss {
            let types = func.output_types();
            let shape = types.get(output).and_then(|ty| ty.as_tensor()?.shape.clone());
            let scores = shape.and_then(|shape| shape.get(of_ops::shape::axis(axis, shape.len()).ok()?)?.as_const());
            out.push(Ids {
                column: func.inputs.len(),
                name: String::new(),
                range: 0..scores.unwrap_or(i64::MAX),
                of: Named::Class { output: func.outputs.get(output).cloned().unwrap_or_default(), ignored: ignore },
            });
        }
        out
    }

    fn is_wrong(&self, id: i64) -> bool {
        let is_ignored = matches!(self.of, Named::Class { ignored, .. } if ignored == id);
        !is_ignored && !self.range.contains(&id)
    }

    /// Checks the samples of a data set whose numbers are in memory; `what` is training or validation.
    ///
    /// # Errors
    /// The first number that is out of range.
    pub fn check(&self, data: &Dataset, what: &str) -> Result<(), Diagnostics> {
        let wrong = data.find_number(self.column, |id| self.is_wrong(id));
        wrong.map_or(Ok(()), |(sample, id)| Err(self.error(what, sample, id)))
    }

    /// Checks a batch of the samples of these numbers, unless [`Ids::check`] has done so.
    ///
    /// # Errors
    /// As [`Ids::check`].
    pub fn check_batch(
        &self,
        (data, what): (&Dataset, &str),
        batch: &[Value],
        samples: &[usize],
    ) -> Result<(), Diagnostics> {
        if data.has_in_memory(self.column) {
            return Ok(());
        }
        let Some(ids) = batch.get(self.column).and_then(whole_numbers) else { return Ok(()) };
        let each = (ids.len() / samples.len().max(1)).max(1);
        let wrong = ids.iter().position(|id| self.is_wrong(*id));
        match wrong.and_then(|at| Some((*samples.get(at / each)?, ids[at]))) {
            Some((sample, id)) => Err(self.error(what, sample, id)),
            None => Ok(()),
        }
    }

    fn error(&self, what: &str, sample: usize, id: i64) -> Diagnostics {
        let place = format!("sample {sample} of the {what} data (the first is 0)");
        let end = self.range.end.saturating_sub(1);
        match &self.of {
            Named::Class { ignored, .. } if id < 0 => {
                let what = format!("{place} has the label {id}, which is no class");
                let hint = format!("classes are 0 and above; {ignored} (--ignore-index) stands for no label");
                error(Code::INPUT, what).hint(hint).into()
            }
            Named::Class { output, .. } => {
                let what = format!("{place} has the label {id}, and the output '{output}' has scores for 0 to {end}");
                let hint = format!("give the model more scores, or leave such labels out with --ignore-index {id}");
                error(Code::INPUT, what).hint(hint).into()
            }
            Named::Row { table } => {
                let what = format!("{place} has {id} for '{}', and '{table}' has the rows 0 to {end}", self.name);
                error(Code::INPUT, what).hint("the numbers must be those of the model, such as of its tokenizer").into()
            }
        }
    }
}

/// The numbers of an input that picks rows of a table.
fn rows(func: &Func, column: usize) -> Option<Ids> {
    let g = &func.graph;
    let input = *g.args().get(column)?;
    let (table, rows) = tables(g, input).into_iter().min_by_key(|(_, rows)| *rows)?;
    let name = func.inputs.get(column)?.clone();
    // Numbers below 0 count from the end.
    Some(Ids { column, name, range: -rows..rows, of: Named::Row { table } })
}

/// The tables that a value picks rows of, as it is or in another type, and their rows.
fn tables(g: &Graph, value: ValueId) -> Vec<(String, i64)> {
    let mut out = Vec::new();
    for used in g.uses(value) {
        let op = g.op(used.op);
        if as_op::<Cast>(g, used.op).is_some() {
            out.extend(op.results.iter().flat_map(|result| tables(g, *result)));
        }
        let Some(Gather { axis }) = as_op::<Gather>(g, used.op) else { continue };
        let table = op.operands[0];
        let shape = g.ty(table).as_tensor().and_then(|ty| ty.shape.as_ref());
        let rows = shape.and_then(|shape| shape.get(of_ops::shape::axis(axis, shape.len()).ok()?)?.as_const());
        if let Some(rows) = rows.filter(|_| op.operands[1] == value) {
            let name = g.name(table).map_or_else(|| "a table".to_owned(), |name| name.to_string());
            out.push((name, rows));
        }
    }
    out
}

/// The elements of a tensor of whole numbers.
fn whole_numbers(value: &Value) -> Option<Vec<i64>> {
    let tensor = value.as_tensor()?;
    let of_i32 = || Some(tensor.to_elements::<i32>()?.into_iter().map(i64::from).collect());
    tensor.to_elements::<i64>().or_else(of_i32)
}
