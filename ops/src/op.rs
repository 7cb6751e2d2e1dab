//! What an op is: one trait, implemented by one struct an op whose fields are the op's attributes.

use std::marker::PhantomData;

use of_ir::{Attrs, Dim, OpDef, OpError, OpView, Rewriter, SbpSignature, Signature, Tensor, Traits, Type, ValueId};

use crate::scalar::ScalarOp;
use of_diag::{Code, Diagnostic, Location};

/// Result types, or what is wrong with the operands.
pub type Inferred = Result<Vec<Type>, OpError>;
/// Result values, or why they cannot be computed.
pub type Evaluated = Result<Vec<Value>, OpError>;
/// Result values in the IR.
pub type Expanded = Result<Vec<ValueId>, Diagnostic>;

/// A value of the reference evaluation.
#[derive(Clone, PartialEq, Debug)]
pub enum Value {
    /// A tensor.
    Tensor(Tensor),
    /// A sequence.
    Sequence(Vec<Value>),
    /// An optional.
    Optional(Option<Box<Value>>),
    /// An operand that is left out.
    None,
}

impl From<Tensor> for Value {
    fn from(t: Tensor) -> Value {
        Value::Tensor(t)
    }
}

/// The operands of one evaluation.
pub struct Inputs<'a> {
    /// One value an operand.
    pub values: &'a [Value],
    /// Declared result types, for ops whose result depends on more than operand values.
    pub types: &'a [Type],
    /// Runs a region of the op on arguments, for control flow.
    pub region: &'a mut dyn FnMut(usize, &[Value]) -> Evaluated,
}

impl Inputs<'_> {
    /// Operand `i`.
    ///
    /// # Errors
    /// When it is left out or no tensor.
    pub fn tensor(&self, i: usize) -> Result<&Tensor, OpError> {
        self.opt_tensor(i).ok_or_else(|| OpError::eval(format!("operand {i} must be a tensor")))
    }

    /// Operand `i`, unless left out.
    pub fn opt_tensor(&self, i: usize) -> Option<&Tensor> {
        match self.values.get(i) {
            Some(Value::Tensor(t)) => Some(t),
            _ => None,
        }
    }

    /// Operand `i` as integers.
    ///
    /// # Errors
    /// When it is left out or no integer tensor.
    pub fn ints(&self, i: usize) -> Result<Vec<i64>, OpError> {
        self.tensor(i)?.to_i64s().ok_or_else(|| OpError::eval(format!("operand {i} must be an integer tensor")))
    }
}

/// How an op is executed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Backends lower it; it has a reference evaluation.
    Primitive,
    /// It expands into primitives, unless a backend claims it whole.
    Composite,
    /// Part of the IR's structure: constants, terminators, control flow, annotations.
    Structural,
}

/// Random operands for the list-wide tests of an op.
pub struct Sample {
    /// Operand values.
    pub operands: Vec<Value>,
    /// The op with its attributes.
    pub op: Box<dyn Op>,
}

/// CUDA C++ of an op with its own kernel.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CudaKernel {
    /// Statements. Operands and results are pointers under the names of the declaration (`x`; of a variadic operand `x0`,
    /// `x1`, …; one that is left out has none), to row-major elements. The types and functions of `codegen/src/print/cuda/prelude.cuh`
    /// are there (`f32`, `i64`, `one_exp` …); there are no headers. `return 1;` says that an index is out of range.
    pub text: String,
    /// How often they run.
    pub launch: Launch,
}

/// What runs the statements of a kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Launch {
    /// A thread for each number `i` below this.
    Threads(u64),
    /// A block of 256 threads for each number `block` below this: `threadIdx.x`, `SHARED(type, name, count)` and
    /// `__syncthreads()` are there.
    Blocks(u64),
}

/// An op. The struct that implements it holds the attributes; everything else about the op is here.
pub trait Op: Send + Sync {
    /// The static side: name, signature, decoding.
    fn decl(&self) -> &'static dyn OpDecl;

    /// The attributes.
    fn attrs(&self) -> Attrs;

    /// Result types; also checks operands and attributes.
    ///
    /// # Errors
    /// What is wrong.
    fn infer(&self, cx: &OpView<'_>) -> Inferred;

    /// Result 0 as dimensions where it follows from shapes (see [`OpDef::dims`]).
    fn dims(&self, _cx: &OpView<'_>) -> Option<Vec<Dim>> {
        None
    }

    /// Reference evaluation: plain and right. Composites may leave it out: they are evaluated by expansion.
    ///
    /// # Errors
    /// When the values do not allow it, e.g. an index out of range.
    fn eval(&self, _inputs: &mut Inputs<'_>) -> Evaluated {
        Err(OpError::eval("this op has no evaluation of its own"))
    }

    /// Whether [`Op::expand`] is written: of every composite, and of primitives whose derivative is that of their parts.
    fn expands(&self) -> bool {
        self.decl().kind() == Kind::Composite
    }

    /// The same function in simpler ops, created at the rewriter's insertion point; see [`Op::expands`].
    ///
    /// # Errors
    /// When an op that it makes does not fit, which is a bug of the expansion.
    fn expand(&self, _rw: &mut Rewriter<'_>, _operands: &[ValueId]) -> Expanded {
        Err(Diagnostic::error(Code::CODEGEN, Location::Unknown, "this op has no expansion"))
    }

    /// The scalar function of an elementwise op; operands are broadcast to the result.
    fn scalar(&self) -> Option<ScalarOp> {
        None
    }

    /// A kernel for GPUs of an op that the code generator does not know, for results of these types; all extents are numbers.
    ///
    /// # Errors
    /// Why it has none for these operands.
    fn cuda(&self, _cx: &OpView<'_>, _results: &[Type]) -> Result<CudaKernel, String> {
        Err(format!("'{}' has no kernel", self.decl().name()))
    }

    /// Legal ways to run it on one mesh axis. Everything broadcast is always legal and need not be listed.
    fn sbp(&self, _cx: &OpView<'_>) -> Vec<SbpSignature> {
        Vec::new()
    }

    /// Arithmetic operations for operands and results of these types, where the default of [`crate::work`] would not count
    /// them: sums over more than one element for each element of the result.
    fn flops(&self, _cx: &OpView<'_>, _results: &[Type]) -> Option<f64> {
        None
    }

    /// The operand that holds the dimensions of the result. They are global: where the result is split, a device that
    /// holds a part of it gets the dimensions of its part instead.
    fn shape_operand(&self) -> Option<usize> {
        None
    }

    /// Float operands that never get a gradient, whatever the attributes: the op reads them as configuration, as the scales of a resize,
    /// or only updates them, as running statistics. Constants that feed nothing else are no parameters of a model.
    fn operands_without_gradient(&self) -> &'static [usize] {
        &[]
    }

    /// Whether a result depends on random numbers that the op draws from a seed: another implementation draws others.
    fn is_random(&self, _cx: &OpView<'_>) -> bool {
        false
    }

    /// Whether the op sums products with coefficients that it computes itself and that may be zero: weights of an
    /// interpolation, or zeros between the elements of an operand. An implementation may leave such a product out, so an
    /// infinite element gives NaN in one and not in another.
    fn has_zero_coefficients(&self) -> bool {
        false
    }

    /// Gradients of the operands given those of the results; `None` for an operand without gradient.
    /// The outer `None` says that there is no rule for these operands; [`Op::expand`] is differentiated instead, if there is
    /// one. An op that cannot be differentiated at all returns [`GradCx::not_differentiable`].
    ///
    /// # Errors
    /// When the op is not differentiable, or an op that the rule makes does not fit, which is a bug of the rule.
    fn gradient(&self, _cx: &mut GradCx<'_, '_>) -> Option<Result<Vec<Option<ValueId>>, Diagnostic>> {
        None
    }
}

/// What a gradient rule works with.
pub struct GradCx<'r, 'g> {
    /// Creates ops.
    pub rw: &'r mut Rewriter<'g>,
    /// The op's operands.
    pub operands: &'r [ValueId],
    /// The op's results.
    pub results: &'r [ValueId],
    /// Gradients of the results; `None` where nothing flows back.
    pub grads: &'r [Option<ValueId>],
}

impl GradCx<'_, '_> {
    /// The error of an op that is not differentiable, with the reason.
    pub fn not_differentiable(&self, op: &str, why: &str) -> Option<Result<Vec<Option<ValueId>>, Diagnostic>> {
        let what = format!("'{op}' is not differentiable: {why}");
        Some(Err(Diagnostic::error(Code::UNSUPPORTED, Location::Unknown, what)))
    }

    /// No operand has a gradient: the results are piecewise constant.
    pub fn flat(&self) -> Option<Result<Vec<Option<ValueId>>, Diagnostic>> {
        Some(Ok(vec![None; self.operands.len()]))
    }
}

/// The static side of an op: what is known without attribute values.
pub trait OpDecl: OpDef {
    /// Reads the attributes into the op's struct.
    ///
    /// # Errors
    /// When one is missing or of the wrong kind.
    fn decode(&self, attrs: &Attrs) -> Result<Box<dyn Op>, OpError>;
    /// How it is executed.
    fn kind(&self) -> Kind;
    /// Documentation, as written above the declaration.
    fn doc(&self) -> &'static str;
    /// ONNX operators that import to it: `Conv`, or `domain::Name`.
    fn onnx(&self) -> &'static [&'static str];
    /// The op as the IR sees it.
    fn as_def(&'static self) -> &'static dyn OpDef;
    /// Operands and attributes for the list-wide tests; `seed` varies them.
    fn sample(&self, seed: u64) -> Option<Sample>;
}

/// The parts of a declaration that the `op!` macro writes.
pub trait OpSpec: Op + Sized + 'static {
    /// Full name.
    const NAME: &'static str;
    /// Documentation.
    const DOC: &'static str;
    /// Operands, results, attributes, regions.
    const SIGNATURE: Signature;
    /// Facts for passes.
    const TRAITS: Traits;
    /// How it is executed.
    const KIND: Kind;
    /// ONNX names.
    const ONNX: &'static [&'static str];
    /// The static side.
    const DECL: &'static dyn OpDecl;
    /// Reads the attributes.
    ///
    /// # Errors
    /// When one is missing or of the wrong kind.
    fn from_attrs(attrs: &Attrs) -> Result<Self, OpError>;
    /// Operands and attributes for the list-wide tests: `samples` of the `op!` declaration.
    fn sample(seed: u64) -> Option<(Vec<Value>, Self)>;
    /// The value of a constant.
    fn constant(_attrs: &Attrs) -> Option<Tensor> {
        None
    }
}

/// The declaration of `T` as a value, so that lists can hold it.
pub struct Decl<T>(PhantomData<fn() -> T>);

impl<T> Decl<T> {
    /// The one instance.
    pub const NEW: Decl<T> = Decl(PhantomData);
}

impl<T: OpSpec> OpDef for Decl<T> {
    fn name(&self) -> &'static str {
        T::NAME
    }
    fn summary(&self) -> &'static str {
        first_sentence(T::DOC)
    }
    fn signature(&self) -> Signature {
        T::SIGNATURE
    }
    fn traits(&self) -> Traits {
        T::TRAITS
    }
    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        T::from_attrs(cx.attrs)?.infer(cx)
    }
    fn dims(&self, cx: &OpView<'_>) -> Option<Vec<Dim>> {
        T::from_attrs(cx.attrs).ok()?.dims(cx)
    }
    fn constant(&self, attrs: &Attrs) -> Option<Tensor> {
        T::constant(attrs)
    }
}

impl<T: OpSpec> OpDecl for Decl<T> {
    fn decode(&self, attrs: &Attrs) -> Result<Box<dyn Op>, OpError> {
        Ok(Box::new(T::from_attrs(attrs)?))
    }
    fn kind(&self) -> Kind {
        T::KIND
    }
    fn doc(&self) -> &'static str {
        T::DOC
    }
    fn onnx(&self) -> &'static [&'static str] {
        T::ONNX
    }
    fn as_def(&'static self) -> &'static dyn OpDef {
        self
    }
    fn sample(&self, seed: u64) -> Option<Sample> {
        T::sample(seed).map(|(operands, op)| Sample { operands, op: Box::new(op) })
    }
}

/// The first sentence of a documentation text, with its line breaks.
fn first_sentence(doc: &'static str) -> &'static str {
    let paragraph = doc.trim().split("\n\n").next().unwrap_or_default();
    // A full stop before a capital letter ends a sentence; one inside "e.g." or a number does not.
    let is_end = |i: &usize| paragraph[i + 1..].trim_start().starts_with(char::is_uppercase);
    let end =
        paragraph.match_indices('.').map(|(i, _)| i).filter(|i| paragraph[i + 1..].starts_with(char::is_whitespace));
    end.into_iter().find(is_end).map_or(paragraph, |i| &paragraph[..=i])
}
