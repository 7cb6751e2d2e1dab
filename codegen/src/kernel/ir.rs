//! Statements and expressions of the kernel IR.

use of_ir::DType;
use of_ops::scalar::ScalarOp;

use super::types::{Affine, Mem, Ty, Var};

/// A number in a kernel; it takes the type of the place it stands in.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Lit {
    /// A floating point number.
    F(f64),
    /// An integer or (0 and 1) a truth value.
    I(i128),
}

impl Lit {
    /// The number as a double.
    pub const fn as_f64(self) -> f64 {
        match self {
            Lit::F(x) => x,
            Lit::I(x) => x as f64,
        }
    }
}

/// Elements of a memory.
///
/// Lane `l` is the element at `index + l * stride`; with stride 0 one element goes to all lanes. Only the first
/// `active` lanes touch memory: the others load as zero and are not stored.
#[derive(Clone, PartialEq, Debug)]
pub struct Access {
    /// What memory.
    pub mem: Mem,
    /// Element index of lane 0.
    pub index: Affine,
    /// Type of the value.
    pub ty: Ty,
    /// Elements from lane to lane.
    pub stride: i64,
    /// Number of lanes that touch memory.
    pub active: usize,
}

/// How lanes combine into one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum LaneOp {
    /// Sum.
    Add,
    /// Product.
    Mul,
    /// Largest, NaN if there is one.
    Max,
    /// Smallest, NaN if there is one.
    Min,
}

impl LaneOp {
    /// The operation on two values.
    pub const fn scalar(self) -> ScalarOp {
        match self {
            LaneOp::Add => ScalarOp::Add,
            LaneOp::Mul => ScalarOp::Mul,
            LaneOp::Max => ScalarOp::Max,
            LaneOp::Min => ScalarOp::Min,
        }
    }

    /// The value that changes nothing.
    pub fn neutral(self, elem: DType) -> Lit {
        let range = elem.int_range();
        match (self, range) {
            (LaneOp::Add, None) => Lit::F(0.0),
            (LaneOp::Mul, None) => Lit::F(1.0),
            (LaneOp::Max, None) => Lit::F(f64::NEG_INFINITY),
            (LaneOp::Min, None) => Lit::F(f64::INFINITY),
            (LaneOp::Add, Some(_)) => Lit::I(0),
            (LaneOp::Mul, Some(_)) => Lit::I(1),
            (LaneOp::Max, Some((lo, _))) => Lit::I(lo),
            (LaneOp::Min, Some((_, hi))) => Lit::I(hi),
        }
    }
}

/// A value.
#[derive(Clone, PartialEq, Debug)]
pub enum Expr {
    /// What a variable holds.
    Var(Var),
    /// A number in every lane.
    Const(Ty, Lit),
    /// An index as a scalar of type [`Ty::INDEX`].
    Index(Affine),
    /// 0, 1, 2, … in the lanes.
    Iota(Ty),
    /// Elements from memory.
    Load(Access),
    /// A scalar in every one of so many lanes.
    Splat(usize, Box<Expr>),
    /// A scalar function, lane by lane.
    Op(ScalarOp, Vec<Expr>),
    /// `a * b + c`, rounded once or twice.
    MulAdd(Box<[Expr; 3]>),
    /// The lanes of a vector combined into a scalar.
    Reduce(LaneOp, Box<Expr>),
    /// The first `.1` lanes of the value, the number in the others.
    Keep(Box<Expr>, usize, Lit),
}

impl Expr {
    /// One operand.
    pub fn op1(op: ScalarOp, a: impl Into<Expr>) -> Expr {
        Expr::Op(op, vec![a.into()])
    }

    /// Two operands.
    pub fn op2(op: ScalarOp, a: impl Into<Expr>, b: impl Into<Expr>) -> Expr {
        Expr::Op(op, vec![a.into(), b.into()])
    }

    /// `c ? a : b`.
    pub fn select(c: impl Into<Expr>, a: impl Into<Expr>, b: impl Into<Expr>) -> Expr {
        Expr::Op(ScalarOp::Select, vec![c.into(), a.into(), b.into()])
    }

    /// `a * b + c`.
    pub fn mul_add(a: impl Into<Expr>, b: impl Into<Expr>, c: impl Into<Expr>) -> Expr {
        Expr::MulAdd(Box::new([a.into(), b.into(), c.into()]))
    }

    /// A float in every lane.
    pub fn float(ty: Ty, x: f64) -> Expr {
        Expr::Const(ty, Lit::F(x))
    }
}

impl From<Var> for Expr {
    fn from(v: Var) -> Self {
        Expr::Var(v)
    }
}

/// Index arithmetic that is not affine. Divisors are positive.
#[derive(Clone, PartialEq, Debug)]
pub enum IndexExpr {
    /// As it stands.
    Affine(Affine),
    /// Quotient, rounded towards minus infinity.
    Div(Affine, i64),
    /// Remainder, never negative.
    Mod(Affine, i64),
    /// The smaller.
    Min(Affine, Affine),
    /// The larger.
    Max(Affine, Affine),
    /// A scalar integer value.
    Value(Expr),
}

/// How two indices compare.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Compare {
    /// `<`
    Lt,
    /// `==`
    Eq,
    /// `!=`
    Ne,
}

/// A condition on indices.
#[derive(Clone, PartialEq, Debug)]
pub struct Cond {
    /// Left of the comparison.
    pub lhs: Affine,
    /// The comparison.
    pub op: Compare,
    /// Right of the comparison.
    pub rhs: Affine,
}

/// A statement.
#[derive(Clone, PartialEq, Debug)]
pub enum Stmt {
    /// Declares a variable. Only one declared `mutable` may be set later.
    Let {
        /// The new variable.
        var: Var,
        /// Whether [`Stmt::Set`] may change it.
        mutable: bool,
        /// Its first value.
        value: Expr,
    },
    /// Gives a mutable variable another value.
    Set {
        /// The variable.
        var: Var,
        /// The value.
        value: Expr,
    },
    /// Declares an index variable.
    Index {
        /// The new variable.
        var: Var,
        /// Its value.
        value: IndexExpr,
    },
    /// Runs `body` with `var` = begin, begin + step, … below end.
    For {
        /// The counter.
        var: Var,
        /// First value.
        begin: Affine,
        /// Limit, not reached.
        end: Affine,
        /// Positive step.
        step: i64,
        /// How many copies of the body a compiler should make in a row; 1 for none.
        unroll: u32,
        /// What is run.
        body: Vec<Stmt>,
    },
    /// Runs one of two lists.
    If {
        /// The condition.
        cond: Cond,
        /// Run where it holds.
        then: Vec<Stmt>,
        /// Run where it does not.
        otherwise: Vec<Stmt>,
    },
    /// Writes a value to memory.
    Store {
        /// Where; its type is that of the value.
        to: Access,
        /// What.
        value: Expr,
    },
    /// Transposes a square: lane `j` of variable `i` becomes lane `i` of variable `j`.
    ///
    /// As many variables as lanes, all mutable and of one 32-bit element type.
    Transpose(Vec<Var>),
    /// A hint that the line at this place is read soon. The place need not exist.
    Prefetch {
        /// What memory.
        mem: Mem,
        /// Element index.
        index: Affine,
    },
}

/// A parameter of a kernel: a buffer aligned to 64 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Param {
    /// Type of its elements.
    pub elem: DType,
    /// Whether the kernel writes it.
    pub writes: bool,
    /// Number of elements, if the schedule knows it: static accesses are then checked.
    pub len: Option<usize>,
}

/// A scratch array, aligned to 64 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Scratch {
    /// Type of its elements.
    pub elem: DType,
    /// Number of elements.
    pub len: usize,
}

/// A kernel: a body that is run for every value of an outermost counter, in any order and on any number of workers.
#[derive(Clone, PartialEq, Debug)]
pub struct Kernel {
    /// What it computes, for people; not part of the code.
    pub name: String,
    /// Its buffers, in the order of the call.
    pub params: Vec<Param>,
    /// Arrays in the memory that each worker brings.
    pub scratch: Vec<Scratch>,
    /// Types of all variables.
    pub vars: Vec<Ty>,
    /// The outermost counter.
    pub outer: Var,
    /// The outermost counter runs over `0..iterations`.
    pub iterations: usize,
    /// How many iterations a worker should take at a time.
    pub grain: usize,
    /// Run once at the start of a call, before the first iteration.
    pub setup: Vec<Stmt>,
    /// Run for every iteration.
    pub body: Vec<Stmt>,
    /// Arithmetic operations of all iterations together, for cost models.
    pub flops: u64,
    /// Bytes read and written by all iterations together, for cost models.
    pub bytes: u64,
}

impl Kernel {
    /// Where scratch arrays start, in bytes, and the bytes they take together.
    pub fn scratch_layout(&self) -> (Vec<usize>, usize) {
        let mut at = 0usize;
        let starts = self.scratch.iter().map(|s| {
            let start = at;
            at = (at + s.elem.byte_len(s.len).unwrap_or(0)).next_multiple_of(64);
            start
        });
        let starts = starts.collect();
        (starts, at)
    }

    /// Bytes of scratch memory that each worker must bring.
    pub fn scratch_bytes(&self) -> usize {
        self.scratch_layout().1
    }

    /// Element type of a memory, `None` for one that is not there.
    pub fn elem_of(&self, mem: Mem) -> Option<DType> {
        match mem {
            Mem::Param(i) => self.params.get(i).map(|p| p.elem),
            Mem::Scratch(i) => self.scratch.get(i).map(|s| s.elem),
        }
    }

    /// The type of a value.
    pub fn type_of(&self, e: &Expr) -> Ty {
        match e {
            Expr::Var(v) => self.vars.get(v.index()).copied().unwrap_or(Ty::INDEX),
            Expr::Const(ty, _) | Expr::Iota(ty) => *ty,
            Expr::Index(_) => Ty::INDEX,
            Expr::Load(a) => a.ty,
            Expr::Splat(lanes, e) => Ty::new(self.type_of(e).elem, *lanes),
            Expr::Op(op, args) => {
                // The type of a selection is that of its choices.
                let of = if *op == ScalarOp::Select { 1 } else { 0 };
                let ty = args.get(of).map_or(Ty::INDEX, |a| self.type_of(a));
                ty.with_elem(op.result_type(ty.elem))
            }
            Expr::MulAdd(args) => self.type_of(&args[2]),
            Expr::Reduce(_, e) => Ty::scalar(self.type_of(e).elem),
            Expr::Keep(e, _, _) => self.type_of(e),
        }
    }
}
