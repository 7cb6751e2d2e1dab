//! What printers of MLIR's dialects share: a function as text, op by op.
//!
//! A printer has a row for each op that it prints: a function that writes the op, or says why it cannot be written. An op is
//! claimed when its text can be written, so that claims and text never differ. Composites that have no row are expanded first
//! ([`crate::expand`]). What follows from shapes is a constant, and what is printed of a result must be what its type says.

use std::collections::HashMap;
use std::ops::DerefMut;

use of_ir::{DType, Elements, Graph, OpId, RegionId, Tensor, Type, ValueId};
use of_ops::OpSpec;
use of_ops::structural::{Constant, NoneValue};

/// Element type and extents of a tensor.
pub type Port = (DType, Vec<usize>);

/// An SSA value of the text: a tensor.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Val {
    /// `%v1`.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Extents.
    pub dims: Vec<usize>,
}

impl Val {
    /// Number of axes.
    pub fn rank(&self) -> usize {
        self.dims.len()
    }

    /// Number of elements.
    pub fn elements(&self) -> usize {
        self.dims.iter().product()
    }
}

/// What is printed of the values of a graph, and what is known of them.
pub struct Values<'g> {
    /// The graph.
    pub g: &'g Graph,
    printed: HashMap<ValueId, Val>,
    port: fn(&Type) -> Result<Port, String>,
}

impl<'g> Values<'g> {
    /// Nothing is printed of a graph yet. `port` says what a value of a type is in the text, or why it has no form there.
    pub fn new(g: &'g Graph, port: fn(&Type) -> Result<Port, String>) -> Values<'g> {
        Values { g, printed: HashMap::new(), port }
    }

    /// What a value is in the text, or why it has no form there.
    ///
    /// # Errors
    /// That reason.
    pub fn port(&self, v: ValueId) -> Result<Port, String> {
        (self.port)(self.g.ty(v))
    }

    /// Says what a value is from here on.
    pub fn set(&mut self, v: ValueId, val: Val) {
        self.printed.insert(v, val);
    }

    /// What was printed of a value.
    ///
    /// # Errors
    /// When it has no form.
    pub fn value(&self, v: ValueId) -> Result<Val, String> {
        let unreadable = || match self.port(v) {
            Err(why) => why,
            Ok(_) => "an operand was not printed".to_string(),
        };
        self.printed.get(&v).cloned().ok_or_else(unreadable)
    }

    /// Operand `i` of an op.
    ///
    /// # Errors
    /// When it has no form, or is left out.
    pub fn operand(&self, op: OpId, i: usize) -> Result<Val, String> {
        self.optional(op, i)?.ok_or_else(|| format!("operand {i} is left out"))
    }

    /// Operand `i`, unless it is left out.
    ///
    /// # Errors
    /// When it has no form.
    pub fn optional(&self, op: OpId, i: usize) -> Result<Option<Val>, String> {
        match self.g.op(op).operands.get(i) {
            Some(v) if *self.g.ty(*v) != Type::None => self.value(*v).map(Some),
            _ => Ok(None),
        }
    }

    /// All operands of an op.
    ///
    /// # Errors
    /// When one has no form.
    pub fn operands(&self, op: OpId) -> Result<Vec<Val>, String> {
        self.g.op(op).operands.iter().map(|v| self.value(*v)).collect()
    }

    /// Operand `i` as integers; `None` where it is left out.
    ///
    /// # Errors
    /// When they are not known before the run.
    pub fn ints(&self, op: OpId, i: usize) -> Result<Option<Vec<i64>>, String> {
        let Some(v) = self.g.op(op).operands.get(i).filter(|v| *self.g.ty(**v) != Type::None) else { return Ok(None) };
        let derived = || self.g.dims_value(*v)?.iter().map(of_ir::Dim::as_const).collect();
        let known = self.g.constant(*v).and_then(|t| t.to_i64s()).or_else(derived);
        known.map(Some).ok_or_else(|| format!("operand {i} is not known before the run"))
    }

    /// Element type and extents of result `i`.
    ///
    /// # Errors
    /// When it has no form.
    pub fn result(&self, op: OpId, i: usize) -> Result<Port, String> {
        self.port(self.g.op(op).results[i])
    }

    /// The op as its struct.
    ///
    /// # Errors
    /// When its attributes are not those of the struct.
    pub fn attrs<T: OpSpec>(&self, op: OpId) -> Result<T, String> {
        of_ops::list::as_op::<T>(self.g, op).ok_or_else(|| "its attributes do not decode".to_string())
    }

    /// The result of an op that follows from shapes.
    fn numbers(&self, op: OpId) -> Option<Tensor> {
        let [v] = self.g.op(op).results[..] else { return None };
        let (dtype, dims) = self.port(v).ok()?;
        let numbers: Vec<i128> =
            self.g.dims_value(v)?.iter().map(|d| d.as_const().map(i128::from)).collect::<Option<_>>()?;
        Tensor::from_elements(dtype, dims, Elements::Int(numbers)).ok()
    }
}

/// Prints an op and gives its results, or says in one sentence why not.
pub type Print<P> = fn(&mut P, OpId) -> Result<Vec<Val>, String>;

/// A printer of one dialect.
pub trait Printer<'g>: DerefMut<Target = Values<'g>> {
    /// What it prints, in messages.
    const FORM: &'static str;

    /// How an op is printed, if there is a way.
    fn row(name: &str) -> Option<Print<Self>>;

    /// How an op is printed that says what it does with scalars ([`of_ops::Op::scalar`]).
    fn elementwise() -> Print<Self>;

    /// Prints a constant that has a form.
    ///
    /// # Errors
    /// Why it cannot be printed.
    fn literal(&mut self, value: &Tensor) -> Result<Val, String>;

    /// The type of a value as text.
    fn type_text(dtype: DType, dims: &[usize]) -> String;

    /// Prints the ops of a region, but for its terminator.
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
                // One that has no form may be an attribute of sorts, which nothing reads as a value.
                Some(t) if self.port(data.results[0]).is_ok() => vec![self.literal(&t)?],
                _ => return Ok(()),
            },
            _ => match self.numbers(op) {
                Some(t) => vec![self.literal(&t)?],
                None => {
                    let told = |why| format!("'{name}': {why}");
                    for v in &data.results {
                        self.port(*v).map_err(told)?;
                    }
                    let print = match of_ops::get(self.g, op).and_then(|o| o.scalar()) {
                        Some(_) => Self::elementwise(),
                        None => {
                            Self::row(name).ok_or_else(|| format!("'{name}' has no form in {} here", Self::FORM))?
                        }
                    };
                    print(self, op).map_err(told)?
                }
            },
        };
        for (v, val) in data.results.iter().zip(results) {
            let (dtype, dims) = self.port(*v)?;
            if (val.dtype, &val.dims) != (dtype, &dims) {
                let (is, must) = (Self::type_text(val.dtype, &val.dims), Self::type_text(dtype, &dims));
                return Err(format!("'{name}' is printed as {is}, its type is {must}"));
            }
            self.set(*v, val);
        }
        Ok(())
    }
}

/// A type as a word of a payload's first line: ` f32:2,3`.
pub fn port_word((dtype, dims): &Port) -> String {
    format!(" {}:{}", dtype.mlir_name(), dims.iter().map(usize::to_string).collect::<Vec<_>>().join(","))
}

/// The inverse of [`port_word`], without the space.
pub fn port_of_word(word: &str) -> Option<Port> {
    let (dtype, dims) = word.split_once(':')?;
    let dims = dims.split(',').filter(|d| !d.is_empty()).map(|d| d.parse().ok()).collect::<Option<_>>()?;
    Some((DType::from_mlir_name(dtype)?, dims))
}
