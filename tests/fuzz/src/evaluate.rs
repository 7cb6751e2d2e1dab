//! Evaluation op by op, and under rounding errors that [`of_driver::rounding`] does not inject.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use of_diag::Diagnostic;
use of_driver::rounding::{is_exact, perturb, precision, unit};
use of_ir::{
    Attrs, DType, Dim, Elements, Graph, IdMap, OpDef, OpId, PartialKind, RegionId, Rewriter, Sbp, SbpSignature, Shape,
    Tensor, ValueId,
};
use of_ops::elementwise::BitCast;
use of_ops::interpret::{run_graph_with_hook, type_of};
use of_ops::scalar::ScalarOp;
use of_ops::structural::{Alternatives, OptimizationBarrier};
use of_ops::{OpSpec, Value};

use crate::compare::{MARGIN, numbers};

/// The values of the outermost region of a graph.
pub type Values = IdMap<ValueId, Value>;

/// Every value of the outermost region.
///
/// # Errors
/// When an op cannot be evaluated.
pub fn exact(graph: &Graph, inputs: &[Value]) -> Result<Values, Diagnostic> {
    let values: Values = graph.args().iter().copied().zip(inputs.iter().cloned()).collect();
    let values = RefCell::new(values);
    run_graph_with_hook(graph, inputs, &|op, operands, evaluate| {
        let results = evaluate(operands)?;
        if graph.op(op).parent == graph.entry() {
            values.borrow_mut().extend(graph.op(op).results.iter().copied().zip(results.iter().cloned()));
        }
        Ok(results)
    })?;
    Ok(values.into_inner())
}

/// Whether types declare extents that the values for these inputs do not have, in regions too. `of.alternatives` declares equal
/// ones of its operands.
pub fn contradicts_declared(graph: &Graph, inputs: &[Value]) -> bool {
    let Ok(graph) = &with_used_arguments(graph) else { return false };
    let declared = RefCell::new(Declared::default());
    for (v, value) in graph.args().iter().zip(inputs) {
        declared.borrow_mut().compare(graph, graph.entry(), *v, value);
    }
    let ran = run_graph_with_hook(graph, inputs, &|op, operands, evaluate| {
        let data = graph.op(op);
        if data.parent != graph.entry() && graph.region_ops(data.parent).next() == Some(op) {
            declared.borrow_mut().begin(data.parent);
        }
        let compare = |ids: &[ValueId], values: &[Value]| {
            ids.iter().zip(values).for_each(|(v, value)| declared.borrow_mut().compare(graph, data.parent, *v, value));
        };
        if data.name() == Alternatives::NAME && operands.iter().any(|v| type_of(v) != type_of(&operands[0])) {
            declared.borrow_mut().contradicted = true;
        }
        // Arguments of regions are known as operands only.
        compare(&data.operands, operands);
        let results = evaluate(operands)?;
        compare(&data.results, &results);
        Ok(results)
    });
    ran.is_ok() && declared.into_inner().contradicted
}

/// The graph, in which an op reads every argument of a nested region.
fn with_used_arguments(graph: &Graph) -> Result<Graph, Diagnostic> {
    let mut graph = graph.clone();
    let regions: Vec<RegionId> = graph.walk().iter().flat_map(|op| graph.op(*op).regions.clone()).collect();
    for region in regions {
        let Some(first) = graph.region_ops(region).next() else { continue };
        let args = graph.region_args(region).to_vec();
        let mut rw = Rewriter::new(&mut graph, "fuzz");
        rw.before(first);
        for arg in args {
            rw.create(OptimizationBarrier {}, &[arg])?;
        }
    }
    Ok(graph)
}

/// The values of symbols, as the extents of values give them.
#[derive(Default)]
struct Declared {
    /// The value of each symbol, and the region that it follows from. Each run of a region has its own.
    known: HashMap<Arc<str>, (i64, RegionId)>,
    contradicted: bool,
}

impl Declared {
    /// Forgets the symbols of the last run of a nested region.
    fn begin(&mut self, region: RegionId) {
        self.known.retain(|_, (_, from)| *from != region);
    }

    fn compare(&mut self, graph: &Graph, region: RegionId, v: ValueId, value: &Value) {
        let shape = graph.ty(v).as_tensor().and_then(|t| t.shape.as_ref());
        let (Value::Tensor(t), Some(shape)) = (value, shape) else { return };
        for (dim, own) in shape.iter().zip(t.dims()) {
            let own = *own as i64;
            let rest = dim.substitute(&|s| self.known.get(s).map(|(n, _)| Dim::from(*n)));
            match (rest.as_const(), rest.solve(own)) {
                (Some(declared), _) if declared != own => self.contradicted = true,
                (_, Some((_, None))) => self.contradicted = true,
                (_, Some((s, Some(n)))) => _ = self.known.insert(s, (n, region)),
                _ => {}
            }
        }
    }
}

/// The outputs when cancelling sums and differences keep the rounding error of one operand: a fused multiply-add does not
/// round its product, while the number that it cancels with was rounded. The bits of NaN have the other sign, which no op
/// defines.
///
/// # Errors
/// When an op cannot be evaluated any more.
pub fn contracted(graph: &Graph, inputs: &[Value], seed: u64) -> Result<Vec<Value>, Diagnostic> {
    run_graph_with_hook(graph, inputs, &|op, operands, evaluate| {
        if graph.op(op).name() == BitCast::NAME {
            let negated: Vec<Value> = operands.iter().map(|v| map(v, &|x| if x.is_nan() { -x } else { x })).collect();
            return evaluate(&negated);
        }
        let results = evaluate(operands)?;
        let scalar = of_ops::get(graph, op).and_then(|o| o.scalar());
        if !matches!(scalar, Some(ScalarOp::Add | ScalarOp::Sub)) {
            return Ok(results);
        }
        let largest =
            operands.iter().filter_map(numbers).flatten().filter(|x| x.is_finite()).fold(0.0, |m, x| x.abs().max(m));
        Ok(results.iter().map(|v| uncancelled(v, largest, seed)).collect())
    })
}

/// `v`, with numbers that are negligible relative to `largest` changed by half a unit in the last place of `largest`.
fn uncancelled(v: &Value, largest: f64, seed: u64) -> Value {
    let Value::Tensor(t) = v else { return v.clone() };
    let (true, Elements::Float(x)) = (t.dtype().is_float(), t.elements()) else { return v.clone() };
    let ulp = largest * 2f64.powi(1 - precision(t.dtype()));
    let moved =
        x.iter().enumerate().map(|(i, x)| if x.abs() < 2.0 * ulp { x + ulp * unit(i as u64 ^ seed) } else { *x });
    Tensor::from_elements(t.dtype(), t.dims().to_vec(), Elements::Float(moved.collect()))
        .map_or_else(|_| v.clone(), Value::from)
}

/// The outputs when sums that rounding could make zero are zero, and products that overflow, underflow or become subnormal in
/// some order of multiplication are NaN.
///
/// # Errors
/// When an op cannot be evaluated any more.
pub fn vanished(graph: &Graph, inputs: &[Value], seed: u64) -> Result<Vec<Value>, Diagnostic> {
    run_graph_with_hook(graph, inputs, &|op, operands, evaluate| {
        let results = evaluate(operands)?;
        let mut with = |change: &dyn Fn(f64) -> f64| {
            let operands: Vec<Value> = operands.iter().map(|v| map(v, change)).collect();
            evaluate(&operands)
        };
        if combines_elements(graph, op, PartialKind::Prod) {
            let large = with(&|x| if x.abs() < 1.0 { 1.0 } else { x })?;
            let small = with(&|x| if x.abs() > 1.0 { 1.0 } else { x })?;
            let leaves = |large: f64, small: f64| large.is_infinite() || small.abs() < f64::from(f32::MIN_POSITIVE);
            let kept = |x, large, small| if leaves(large, small) { f64::NAN } else { x };
            let pairs = results.iter().zip(large.iter().zip(&small));
            return Ok(pairs.map(|(x, (large, small))| zip(x, large, small, kept)).collect());
        }
        if !graph.op(op).regions.is_empty() || is_exact(operands, &results) {
            return Ok(results);
        }
        let moved: Vec<Value> = operands.iter().map(|v| perturb(v, seed)).collect();
        let moved = evaluate(&moved)?;
        let kept = |x: f64, moved: f64, _| if x.abs() <= MARGIN * (moved - x).abs() { 0.0 } else { x };
        Ok(results.iter().zip(&moved).map(|(x, moved)| zip(x, moved, moved, kept)).collect())
    })
}

/// The outputs when ops read and write subnormal numbers as zeros, as kernels for a CPU do.
///
/// # Errors
/// When an op cannot be evaluated any more.
pub fn flushed(graph: &Graph, inputs: &[Value]) -> Result<Vec<Value>, Diagnostic> {
    let flush = |list: &[Value]| -> Vec<Value> {
        list.iter().map(|v| without_subnormals(v).unwrap_or_else(|| v.clone())).collect()
    };
    run_graph_with_hook(graph, inputs, &|_, operands, evaluate| Ok(flush(&evaluate(&flush(operands))?)))
}

/// The tensor with zeros, of the same signs, in the place of numbers below the smallest normal one that computes with it;
/// `None` where nothing changes. 16-bit floats become f32 before anything computes with them.
fn without_subnormals(v: &Value) -> Option<Value> {
    let Value::Tensor(t) = v else { return None };
    let least = match t.dtype() {
        DType::F64 => f64::MIN_POSITIVE,
        dtype if dtype.is_float() => f64::from(f32::MIN_POSITIVE),
        _ => return None,
    };
    let subnormal = |x: &f64| *x != 0.0 && x.abs() < least;
    numbers(v)?.iter().any(subnormal).then(|| map(v, &|x| if subnormal(&x) { 0f64.copysign(x) } else { x }))
}

/// The outputs when sums are as far from the exact ones as sums of rounded terms may be: partial sums may be much larger than
/// the sum, and each is rounded. The error of `n` terms is about `sqrt(n) u` times the sum of their magnitudes.
///
/// Source: Higham and Mary, "A new approach to probabilistic rounding error analysis" (2019).
///
/// # Errors
/// When an op cannot be evaluated any more.
pub fn summed(graph: &Graph, inputs: &[Value], seed: u64) -> Result<Vec<Value>, Diagnostic> {
    run_graph_with_hook(graph, inputs, &|op, operands, evaluate| {
        let results = evaluate(operands)?;
        if !combines_elements(graph, op, PartialKind::Sum) || is_exact(operands, &results) {
            return Ok(results);
        }
        let magnitudes: Vec<Value> = operands.iter().map(|v| map(v, &f64::abs)).collect();
        let sums = evaluate(&magnitudes)?;
        let elements = |v: &Value| if let Value::Tensor(t) = v { t.len() } else { 0 };
        let terms = of_ops::work::of(graph, op).flops / results.iter().map(elements).sum::<usize>().max(1) as f64;
        let moved = |(v, sum): (&Value, &Value)| {
            let Value::Tensor(t) = v else { return v.clone() };
            // Sums of 16-bit floats are f32.
            let error = terms.max(1.0).sqrt() * 2f64.powi(-precision(t.dtype()).max(precision(DType::F32)));
            zip(v, sum, sum, |x, sum, _| x + error * sum * unit(x.to_bits() ^ seed))
        };
        Ok(results.iter().zip(&sums).map(moved).collect())
    })
}

/// Whether the op combines the elements along an axis: where its first operand is split, the parts of the result are partial.
fn combines_elements(graph: &Graph, op: OpId, kind: PartialKind) -> bool {
    let view = graph.view(op);
    let combines =
        |s: &SbpSignature| matches!(s.operands.first(), Some(Sbp::Split(_))) && s.results.contains(&Sbp::Partial(kind));
    of_ops::get(graph, op).is_some_and(|o| o.sbp(&view).iter().any(combines))
}

/// A float tensor with each element changed; other values as they are.
fn map(v: &Value, change: &dyn Fn(f64) -> f64) -> Value {
    zip(v, v, v, |x, _, _| change(x))
}

/// A float tensor combined elementwise from three of one shape; the first one for other values or other shapes.
fn zip(a: &Value, b: &Value, c: &Value, of: impl Fn(f64, f64, f64) -> f64) -> Value {
    let made = || {
        let Value::Tensor(t) = a else { return None };
        let (true, Elements::Float(x)) = (t.dtype().is_float(), t.elements()) else { return None };
        let (y, z) = (numbers(b)?, numbers(c)?);
        if y.len() != x.len() || z.len() != x.len() {
            return None;
        }
        let elements = x.iter().zip(y.iter().zip(&z)).map(|(x, (y, z))| of(*x, *y, *z)).collect();
        Tensor::from_elements(t.dtype(), t.dims().to_vec(), Elements::Float(elements)).ok()
    };
    made().map_or_else(|| a.clone(), Value::from)
}

/// What a run leaves open of the shapes of empty stacks: extents and ranks of their slices that inference does not know. Any
/// number is valid, and a pass that infers more may choose another.
#[derive(Debug, Default)]
pub struct Unbound {
    symbols: HashSet<Arc<str>>,
    /// Whether a rank is not known.
    ranks: bool,
}

impl Unbound {
    /// What a run of `graph` with `inputs` leaves open.
    ///
    /// # Errors
    /// When an op cannot be evaluated.
    pub fn of(graph: &Graph, inputs: &[Value]) -> Result<Unbound, Diagnostic> {
        let values = exact(graph, inputs)?;
        let control = graph.region_ops(graph.entry()).filter(|op| !graph.op(*op).regions.is_empty());
        let results = control.flat_map(|op| graph.op(op).results.to_vec());
        let empty: Vec<_> = results.filter(|v| matches!(&values[v], Value::Tensor(t) if t.is_empty())).collect();
        let shapes = |list: &[ValueId]| -> Vec<Option<Shape>> {
            list.iter().filter_map(|v| graph.ty(*v).as_tensor()).map(|t| t.shape.clone()).collect()
        };
        let symbols = |list: Vec<Option<Shape>>| -> HashSet<Arc<str>> {
            list.iter().flatten().flatten().flat_map(Dim::symbols).collect()
        };
        let shapes_of_empty = shapes(&empty);
        let ranks = shapes_of_empty.contains(&None);
        let mut open = symbols(shapes_of_empty);
        if !contradicts_declared(graph, inputs) {
            let bound = symbols(shapes(graph.args()));
            open.retain(|s| !bound.contains(s));
        }
        Ok(Unbound { symbols: open, ranks })
    }

    /// Whether nothing is open.
    pub fn is_empty(&self) -> bool {
        !self.ranks && self.symbols.is_empty()
    }

    /// Whether a dimension of an empty value may have any extent.
    pub fn is_free(&self, d: &Dim) -> bool {
        d.symbols().iter().any(|s| self.symbols.contains(s))
    }
}

/// A graph of one op, small integer operands as constants, and the values of its arguments.
///
/// # Errors
/// When operands and attributes do not fit the op.
pub fn one_op(def: &'static dyn OpDef, attrs: &Attrs, operands: &[Value]) -> Result<(Graph, Vec<Value>), Diagnostic> {
    let small = |_: usize, t: &Tensor| t.len() <= 64 && !t.dtype().is_float();
    of_test_support::op::build((def, attrs.clone()), operands, small, |ty| ty)
}
