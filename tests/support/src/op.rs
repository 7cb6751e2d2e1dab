//! Graphs of one op, and the samples of every op.

use of_diag::Diagnostic;
use of_ir::{Attrs, Dim, Func, Graph, OpDef, Rewriter, Tensor, Type};
use of_ops::structural::{Constant, NoneValue, Return};
use of_ops::{Op, OpDecl, Sample, Value, interpret, list};

/// Every sample of every op, with its seed.
pub fn samples(seeds: u64) -> impl Iterator<Item = (&'static dyn OpDecl, u64, Sample)> {
    list::ALL.iter().flat_map(move |d| (0..seeds).filter_map(move |seed| Some((*d, seed, d.sample(seed)?))))
}

/// A graph of one op, and the values of its arguments. Operands for which `fixed` holds are constants, the others are
/// arguments, whose types `change` may replace.
///
/// # Errors
/// When operands and attributes do not fit the op.
pub fn build(
    (def, attrs): (&'static dyn OpDef, Attrs),
    operands: &[Value],
    fixed: impl Fn(usize, &Tensor) -> bool,
    mut change: impl FnMut(Type) -> Type,
) -> Result<(Graph, Vec<Value>), Diagnostic> {
    let mut graph = Graph::new();
    let entry = graph.entry();
    let mut rw = Rewriter::new(&mut graph, "test");
    let (mut ids, mut args) = (Vec::new(), Vec::new());
    for (i, v) in operands.iter().enumerate() {
        ids.push(match v {
            Value::None => rw.create_one(NoneValue {}, &[])?,
            Value::Tensor(t) if fixed(i, t) => rw.create_one(Constant { value: t.clone() }, &[])?,
            other => {
                args.push(other.clone());
                rw.add_arg(entry, change(interpret::type_of(other)), None)
            }
        });
    }
    let op = rw.create((def, attrs), &ids)?;
    let results = rw.graph().op(op).results.to_vec();
    rw.create(Return {}, &results)?;
    Ok((graph, args))
}

/// [`build`] of an op's struct, with the types that the values have.
///
/// # Errors
/// When the operands do not fit the op.
pub fn one_op(
    op: &dyn Op,
    operands: &[Value],
    fixed: impl Fn(usize, &Tensor) -> bool,
) -> Result<(Graph, Vec<Value>), Diagnostic> {
    build((op.decl().as_def(), op.attrs()), operands, fixed, |ty| ty)
}

/// [`one_op`] as a function.
///
/// # Panics
/// When the operands do not fit the op.
pub fn one_op_func(op: &dyn Op, operands: &[Value], fixed: impl Fn(usize, &Tensor) -> bool) -> (Func, Vec<Value>) {
    let (graph, args) = one_op(op, operands, fixed).unwrap_or_else(|d| panic!("{}: {d}", op.decl().name()));
    (Func::numbered(graph), args)
}

/// [`one_op_func`] with a symbol for each extent above 1; equal extents share a symbol. `None` where inference needs numbers.
pub fn one_op_func_of_symbols(
    op: &dyn Op,
    operands: &[Value],
    fixed: impl Fn(usize, &Tensor) -> bool,
) -> Option<(Func, Vec<Value>)> {
    let (graph, args) = build((op.decl().as_def(), op.attrs()), operands, fixed, |ty| with_symbols(&ty)).ok()?;
    Some((Func::numbered(graph), args))
}

/// The type with a symbol for each extent above 1.
fn with_symbols(ty: &Type) -> Type {
    ty.map_dims(&mut |d| d.as_const().filter(|n| *n > 1).map_or(d.clone(), |n| Dim::symbol(format!("d{n}"))))
}

/// Shapes, axes and the like: integer operands of rank 0 or 1 behind the first.
pub fn is_parameter(i: usize, t: &Tensor) -> bool {
    i > 0 && t.dtype().is_int() && t.dims().len() <= 1
}

/// Operands behind the first that are no floats.
pub fn is_no_float(i: usize, t: &Tensor) -> bool {
    i > 0 && !t.dtype().is_float()
}

/// Whether an operand must be a constant for the extents of the results to be known: the op declares it as its shape operand, or
/// inference needs its value. An op whose first operand is one creates its result from parameters, so all its operands are.
pub fn decides_extents(op: &dyn Op, operands: &[Value], operand: usize) -> bool {
    let types = |fixed: &dyn Fn(usize) -> bool| {
        let (graph, _) = one_op(op, operands, |i, _| fixed(i)).ok()?;
        Some(graph.outputs().iter().map(|v| graph.ty(*v).clone()).collect::<Vec<_>>())
    };
    let decides = |operand: usize| op.shape_operand() == Some(operand) || types(&|_| true) != types(&|i| i != operand);
    decides(operand) || decides(0)
}

/// Whether an operand is a filter or a matrix of weights, which its declaration calls `w`.
pub fn is_weight(op: &dyn Op, operand: usize) -> bool {
    op.decl().signature().operands.get(operand).is_some_and(|slot| slot.name == "w")
}

/// Whether rounding decides between two neighbouring integers in a result: the op has a scale that it quantises by. Its
/// signature says so, as every op that quantises names its scales.
pub fn quantises(op: &dyn Op) -> bool {
    let signature = op.decl().signature();
    signature.operands.iter().chain(signature.results).any(|slot| slot.name.ends_with("scale"))
}

/// Every sample of every op without side effects, as a function: weights and operands that are not floats are constants. With
/// `symbols`, extents are symbols; samples whose types need numbers are left out.
pub fn functions(seeds: u64, symbols: bool) -> impl Iterator<Item = OneOp> {
    let function = move |(decl, seed, sample): (&'static dyn OpDecl, u64, Sample)| {
        let Sample { op, operands, .. } = sample;
        let (func, inputs) = function(&*op, &operands, symbols)?;
        Some(OneOp { decl, seed, op, func, inputs })
    };
    samples(seeds).filter(|(d, ..)| !d.traits().effect).filter_map(function)
}

/// A function of one op; weights and operands that are not floats are constants.
pub fn function(op: &dyn Op, operands: &[Value], symbols: bool) -> Option<(Func, Vec<Value>)> {
    let fixed = |i: usize, t: &Tensor| is_no_float(i, t) || is_weight(op, i);
    if symbols { one_op_func_of_symbols(op, operands, fixed) } else { Some(one_op_func(op, operands, fixed)) }
}

/// One sample of one op as a function, with inputs of it.
pub struct OneOp {
    /// The op's declaration.
    pub decl: &'static dyn OpDecl,
    /// The seed of the sample.
    pub seed: u64,
    /// The op.
    pub op: Box<dyn Op>,
    /// The function.
    pub func: Func,
    /// Values of its arguments.
    pub inputs: Vec<Value>,
}
