//! The walk over the ops of a function.

use std::ops::{Deref, DerefMut};

use of_ir::{DType, Graph, OpId, RegionId, Tensor, Type};
use of_ops::OpSpec;
use of_ops::structural::{Constant, NoneValue};

use crate::text::Text;
use crate::value::{Port, Val};
use crate::values::Values;

/// A function being printed.
pub struct Function<'g> {
    values: Values<'g>,
    /// The text so far.
    pub text: Text,
    /// Bools of rank 0, one for each use of indices in the current region: whether they are in range.
    pub checks: Vec<Val>,
}

impl<'g> Function<'g> {
    /// An empty text for a graph. `port` returns the type of a value in the text, or the reason why it is not supported.
    /// Names of values begin with `prefix`.
    pub fn new(g: &'g Graph, port: fn(&Type) -> Result<Port, String>, prefix: &'static str) -> Function<'g> {
        Function { values: Values::new(g, port), text: Text::new(prefix), checks: Vec::new() }
    }

    /// A new name.
    pub fn fresh(&mut self) -> String {
        self.text.fresh()
    }

    /// Prints a line.
    pub fn line(&mut self, line: &str) {
        self.text.line(line);
    }
}

impl<'g> Deref for Function<'g> {
    type Target = Values<'g>;

    fn deref(&self) -> &Values<'g> {
        &self.values
    }
}

impl DerefMut for Function<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.values
    }
}

/// Prints an op and returns its results, or one sentence that says why it cannot be printed.
pub type Print<P> = fn(&mut P, OpId) -> Result<Vec<Val>, String>;

/// The row of an op, looked up by name.
pub fn find<P: Copy>(tables: &[&[(&str, P)]], name: &str) -> Option<P> {
    tables.iter().copied().flatten().find(|(op, _)| *op == name).map(|(_, print)| *print)
}

/// A printer for one dialect: its types, its constants and a table of ops. The walk over ops is shared.
pub trait Printer<'g>: DerefMut<Target = Function<'g>> {
    /// The dialect's name, in messages.
    const DIALECT: &'static str;

    /// The function that prints an op, if the dialect supports the op; see [`find`].
    fn row(name: &str) -> Option<Print<Self>>;

    /// The function that prints elementwise ops: those defined by a scalar function ([`of_ops::Op::scalar`]).
    fn elementwise() -> Print<Self>;

    /// Prints a constant whose type the dialect supports.
    ///
    /// # Errors
    /// Why it cannot be printed.
    fn literal(&mut self, value: &Tensor) -> Result<Val, String>;

    /// The type of a value as text.
    fn type_text(dtype: DType, dims: &[usize]) -> String;

    /// Prints the ops of a region, except its terminator.
    ///
    /// # Errors
    /// The first op that cannot be printed, with the reason.
    fn ops(&mut self, region: RegionId) -> Result<(), String> {
        let g = self.g;
        g.region_ops(region).filter(|op| !g.op(*op).def.traits().terminator).try_for_each(|op| self.op(op))
    }

    /// Prints an op.
    ///
    /// # Errors
    /// Why it cannot be printed.
    fn op(&mut self, op: OpId) -> Result<(), String> {
        let data = self.g.op(op);
        let name = data.name();
        let results = match name {
            NoneValue::NAME => return Ok(()),
            Constant::NAME => match self.g.constant(data.results[0]) {
                // A constant of an unsupported type may hold an attribute: no op reads it as a value.
                Some(t) if self.port(data.results[0]).is_ok() => vec![self.literal(&t)?],
                _ => return Ok(()),
            },
            _ => match self.folded(op) {
                Some(t) => vec![self.literal(&t)?],
                None => {
                    let failed = |why| format!("'{name}': {why}");
                    for v in &data.results {
                        self.port(*v).map_err(failed)?;
                    }
                    let print = match of_ops::get(self.g, op).and_then(|o| o.scalar()) {
                        Some(_) => Self::elementwise(),
                        None => {
                            Self::row(name).ok_or_else(|| format!("'{name}' is not supported in {}", Self::DIALECT))?
                        }
                    };
                    print(self, op).map_err(failed)?
                }
            },
        };
        for (v, val) in data.results.iter().zip(results) {
            let (dtype, dims) = self.port(*v)?;
            if (val.dtype, &val.dims) != (dtype, &dims) {
                let (printed, declared) = (Self::type_text(val.dtype, &val.dims), Self::type_text(dtype, &dims));
                return Err(format!("'{name}' is printed as {printed}, but its type is {declared}"));
            }
            self.set(*v, val);
        }
        Ok(())
    }
}
