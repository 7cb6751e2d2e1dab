//! Rewrite rules: a name, how instances are found, and how the test makes an example.

use of_diag::Diagnostic;
use of_ir::{DType, Rewriter, Type, ValueId};
use of_ops::exactness::Exactness;
use of_ops::movement::Slice;
use of_ops::nn::{Conv, DequantizeLinear};
use of_ops::sample::Rng;
use of_ops::structural::Constant;

use super::pattern::{self, Match, Pattern};
use super::view::{Equation, View};

/// A rewrite rule.
pub struct Rule {
    /// Name in locations: `optimize/name`.
    pub name: &'static str,
    /// How far both sides may differ.
    pub exactness: Exactness,
    /// How instances are found.
    pub search: Search,
}

/// How the instances of a rule are found.
#[derive(Clone, Copy)]
pub enum Search {
    /// An equation as text.
    Text {
        /// Both sides, with `=` for left to right or `<=>` for both directions.
        equation: &'static str,
        /// Shapes of the variables.
        shapes: &'static str,
        /// Element types for which it holds.
        types: &'static [DType],
    },
    /// A function over the e-graph.
    Code {
        /// Finds equations.
        find: fn(&View<'_>, &mut Vec<Equation>),
        /// Makes an example of the left side.
        example: fn(&mut Example<'_, '_>) -> ExampleResult,
    },
}

/// The values of an example, whose equations are checked.
pub type ExampleResult = Result<Vec<ValueId>, Diagnostic>;

/// A value of an example.
pub type ValueResult = Result<ValueId, Diagnostic>;

/// Builds the example of a rule.
pub struct Example<'r, 'g> {
    /// Creates ops.
    pub rw: &'r mut Rewriter<'g>,
    /// Chooses shapes and attributes.
    pub rng: &'r mut Rng,
    /// The inputs so far; the test gives them random values.
    pub inputs: Vec<ValueId>,
}

impl Example<'_, '_> {
    /// Four extents.
    pub fn extents(&mut self) -> [usize; 4] {
        [(); 4].map(|()| self.rng.int(1, 4) as usize)
    }

    /// An input of floats.
    pub fn input(&mut self, dims: &[usize]) -> ValueId {
        self.whole(dims, DType::F32)
    }

    /// An input of another element type.
    pub fn whole(&mut self, dims: &[usize], dtype: DType) -> ValueId {
        let entry = self.rw.graph().entry();
        let v = self.rw.add_arg(entry, Type::fixed(dtype, dims), None);
        self.inputs.push(v);
        v
    }

    /// A constant of numbers from -2 to 2.
    pub fn known(&mut self, dims: &[usize]) -> ValueResult {
        let value = self.rng.tensor(DType::F32, dims, -2.0, 2.0);
        self.rw.create_one(Constant { value }, &[])
    }

    /// A constant of numbers from 1/2 to 2.
    pub fn known_positive(&mut self, dims: &[usize]) -> ValueResult {
        let value = self.rng.tensor(DType::F32, dims, 0.5, 2.0);
        self.rw.create_one(Constant { value }, &[])
    }

    /// A constant of integers from 0 to 8.
    pub fn known_whole(&mut self, dims: &[usize], dtype: DType) -> ValueResult {
        let value = self.rng.tensor(dtype, dims, 0.0, 8.0);
        self.rw.create_one(Constant { value }, &[])
    }

    /// A constant of rank 0.
    pub fn number(&mut self, n: f64) -> ValueResult {
        Constant::number(self.rw, n, DType::F32)
    }

    /// A constant list of integers.
    pub fn ints(&mut self, list: &[i64]) -> ValueResult {
        Constant::ints(self.rw, list)
    }

    /// A permutation.
    pub fn permutation(&mut self, n: usize) -> Vec<usize> {
        let mut p: Vec<usize> = (0..n).collect();
        (1..n).for_each(|i| p.swap(i, self.rng.int(0, i as i64) as usize));
        p
    }

    /// A reshape.
    pub fn reshape(&mut self, x: ValueId, dims: &[usize]) -> ValueResult {
        crate::builders::reshape_to(self.rw, x, dims)
    }

    /// `length` elements along an axis.
    pub fn slice(&mut self, x: ValueId, axis: i64, start: i64, length: i64) -> ValueResult {
        let mut operands = vec![x];
        for bound in [start, start + length, axis] {
            operands.push(self.ints(&[bound])?);
        }
        self.rw.create_one(Slice {}, &operands)
    }

    /// A dequantized input.
    pub fn quantised(&mut self, dims: &[usize]) -> ValueResult {
        let (x, s, z) = (self.whole(dims, DType::U8), self.known_positive(&[])?, self.known_whole(&[], DType::U8)?);
        self.rw.create_one(DequantizeLinear { axis: 0, block_size: 0, dtype: None }, &[x, s, z])
    }

    /// A convolution with padding on all sides.
    pub fn conv_op(&mut self, pad: i64, most_stride: i64) -> Conv {
        let strides = [(); 2].map(|()| if most_stride > 1 { 2 } else { 1 });
        Conv {
            strides: strides.to_vec(),
            pads: vec![pad; 4],
            dilations: vec![],
            group: 1,
            auto_pad: "NOTSET".into(),
            channels_last: false,
        }
    }

    /// A convolution with constant filters, in either layout, and the dimensions of one number per channel of its
    /// result.
    pub fn conv(&mut self) -> Result<(ValueId, Vec<usize>), Diagnostic> {
        let channels_last = self.rng.int(0, 1) == 0;
        let x = self.input(if channels_last { &[1, 5, 4] } else { &[1, 4, 5] });
        let (w, b) = (self.known(&[6, 2, 3])?, self.known(&[6])?);
        let op = Conv { strides: vec![], pads: vec![1, 0], group: 2, channels_last, ..self.conv_op(0, 1) };
        let operands = if self.rng.int(0, 1) == 0 { vec![x, w] } else { vec![x, w, b] };
        let y = self.rw.create_one(op, &operands)?;
        Ok((y, if channels_last { vec![6] } else { vec![6, 1] }))
    }
}

/// Types for algebraic equations: both sides differ only by rounding, and integers wrap.
pub const NUMBERS: &[DType] = &[DType::F32, DType::F64, DType::I32, DType::I64];
/// Types with reciprocals.
pub const FLOATS: &[DType] = &[DType::F32, DType::F64];
/// Truth values.
pub const BOOLS: &[DType] = &[DType::Bool];

/// A compiled equation.
pub struct Compiled {
    left: Pattern,
    right: Pattern,
    shapes: std::collections::BTreeMap<String, pattern::ShapePattern>,
    types: &'static [DType],
}

impl Search {
    /// Compiles each direction of an equation.
    pub fn compile(&self) -> Vec<Compiled> {
        let Search::Text { equation, shapes, types } = *self else { return Vec::new() };
        let (both, (l, r)) = match equation.split_once("<=>") {
            Some(sides) => (true, sides),
            None => (false, equation.split_once('=').unwrap_or((equation, ""))),
        };
        let one = |l: &str, r: &str| Compiled {
            left: pattern::parse(l),
            right: pattern::parse(r),
            shapes: pattern::shapes(shapes),
            types,
        };
        if both { vec![one(l, r), one(r, l)] } else { vec![one(l, r)] }
    }
}

impl Compiled {
    /// The left side.
    pub fn left(&self) -> &Pattern {
        &self.left
    }

    /// Finds every instance in the e-graph.
    pub fn find(&self, view: &View<'_>, out: &mut Vec<Equation>) {
        let Pattern::Op(name, _) = &self.left else { return };
        let mut classes: Vec<_> = view.named(name).map(|(class, _)| class).collect();
        classes.dedup();
        for class in classes {
            let Some(dtype) = view.dtype(class).filter(|t| self.types.contains(t)) else { continue };
            let mut found = Vec::new();
            pattern::matches(view, &self.left, class, &Match::default(), &mut found);
            for m in found {
                if pattern::fits(view, &m, &self.shapes)
                    && let Some(term) = pattern::instantiate(&self.right, &m, dtype)
                {
                    out.push(Equation { class, term, from: pattern::locations(view, &m) });
                }
            }
        }
    }
}
