//! Random functions. Every op is inferred and evaluated when it is added, so the result is valid.
//!
//! Ops come from the op list with the operands and attributes of their samples. Operands are then resized, converted and
//! replaced by existing values of the graph, as long as inference and evaluation accept them.

use of_diag::Diagnostic;
use of_ir::{Attr, Attrs, DType, Elements, Graph, OpId, RegionId, Rewriter, Tensor, Type, ValueId};
use of_ops::control::{If, Loop, Scan};
use of_ops::interpret::{run_graph, type_of};
use of_ops::sample::Rng;
use of_ops::structural::{Constant, NoneValue, Return, Yield};
use of_ops::{OpDecl, Value, list};

use crate::Case;
use crate::evaluate::one_op;
use crate::open::Opening;
use crate::shrink::show;

/// Sizes of dimensions: 0, 1, odd ones, vector and tile sizes, and one more or less.
const SIZES: &[usize] = &[0, 1, 1, 2, 3, 4, 5, 7, 8, 9, 13, 16, 17, 31, 32, 33, 48, 63, 64, 65, 100, 127, 128, 130];
/// Elements of the largest tensor.
const MAX_ELEMENTS: usize = 20_000;
/// Multiplications of the largest op, estimated from the operands: the square root of the product of all their dimensions.
const MAX_WORK: f64 = 4e6;
const FLOATS: &[DType] = &[DType::F32, DType::F32, DType::F64, DType::F16, DType::BF16];
const INTS: &[DType] = &[DType::I8, DType::I16, DType::I32, DType::I64, DType::U8, DType::U16, DType::U32, DType::U64];

/// A random function with inputs.
///
/// # Errors
/// When an op that was accepted alone is not accepted in the graph: a bug.
pub fn case(seed: u64) -> Result<Case, Diagnostic> {
    let mut graph = Graph::new();
    let inputs = fill(&mut graph, seed);
    let opening = match Rng::new(!seed).int(0, 7) {
        0 => Opening::Shared,
        1 => Opening::Apart,
        2 => Opening::First,
        3 | 4 => Opening::Arithmetic,
        5 | 6 => Opening::Product,
        _ => Opening::Closed,
    };
    inputs.map(|inputs| Case { opening, ..Case::new(graph.clone(), inputs) }).map_err(|mut e| {
        // The graph at the time of the failure.
        let partial = Rewriter::new(&mut graph, "fuzz").create(Return {}, &[]);
        e.message += &format!("\n{}", partial.map_or_else(|e| e.message, |_| show(&Case::new(graph, Vec::new()))));
        e
    })
}

/// Adds ops to an empty graph; returns the values of its arguments.
fn fill(graph: &mut Graph, seed: u64) -> Result<Vec<Value>, Diagnostic> {
    let mut rng = Rng::new(seed);
    let tame = rng.int(0, 9) > 0;
    let ops = if rng.int(0, 3) == 0 { rng.int(1, 40) } else { rng.int(1, 14) };
    let current = graph.entry();
    let rw = Rewriter::new(graph, "fuzz");
    let mut g = Generator { rw, rng, pool: Vec::new(), inputs: Vec::new(), current, depth: 0, tame, wrong: false };
    for _ in 0..ops {
        if g.wrong {
            break;
        }
        if g.rng.int(0, 30) == 0 { g.control()? } else { g.op()? }
    }
    let outputs = g.outputs();
    g.rw.create(Return {}, &outputs)?;
    Ok(g.inputs)
}

struct Generator<'g> {
    rw: Rewriter<'g>,
    rng: Rng,
    /// Values that can be read, with their contents for the inputs of this case.
    pool: Vec<(ValueId, Value)>,
    inputs: Vec<Value>,
    /// The region under construction, and its nesting depth.
    current: RegionId,
    depth: usize,
    /// Whether magnitudes are small enough to distinguish rounding errors from bugs.
    tame: bool,
    /// Whether inference contradicts a value: its users would prove nothing.
    wrong: bool,
}

/// An operand: an existing value, or one that must be created.
#[derive(Clone)]
enum Choice {
    Known(ValueId, Value),
    New(Value),
}

impl Choice {
    fn value(&self) -> &Value {
        match self {
            Choice::Known(_, v) | Choice::New(v) => v,
        }
    }
}

impl Generator<'_> {
    fn chance(&mut self, percent: i64) -> bool {
        self.rng.int(0, 99) < percent
    }

    /// Adds a random op.
    fn op(&mut self) -> Result<(), Diagnostic> {
        for _ in 0..50 {
            let decl = self.rng.pick(list::ALL);
            let traits = decl.traits();
            if traits.terminator || traits.effect || traits.constant || decl.signature().regions > 0 {
                continue;
            }
            if self.of(decl)? {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Adds `decl` unless all attempts are rejected.
    fn of(&mut self, decl: &'static dyn OpDecl) -> Result<bool, Diagnostic> {
        for attempt in 0..6 {
            let Some(sample) = decl.sample(self.rng.bits() % 256) else { return Ok(false) };
            let (mut attrs, mut operands) = (sample.op.attrs(), sample.operands);
            if self.chance(15) {
                self.mutate(&mut attrs);
            }
            // Most attempts reuse existing values; the last attempt changes nothing.
            let choices = if attempt == 5 {
                operands.into_iter().map(Choice::New).collect()
            } else if self.chance(80) {
                self.choose(operands)
            } else {
                self.vary(&mut operands);
                operands.into_iter().map(Choice::New).collect()
            };
            let values: Vec<Value> = choices.iter().map(|c| c.value().clone()).collect();
            let Some(results) = self.accepted(decl, &attrs, &values) else { continue };
            let ids = choices.into_iter().enumerate().map(|(i, c)| self.place(i, c)).collect::<Result<Vec<_>, _>>()?;
            let id = self.rw.create((decl.as_def(), attrs), &ids)?;
            let made = self.rw.graph().op(id).results.to_vec();
            let typed = |(v, value): (&ValueId, &Value)| type_of(value).compatible(self.rw.graph().ty(*v));
            let dense = results.iter().all(|v| matches!(v, Value::Tensor(_)));
            self.wrong |= dense && !made.iter().zip(&results).all(typed);
            self.pool.extend(made.into_iter().zip(results));
            return Ok(true);
        }
        Ok(false)
    }

    /// The results, if inference and evaluation accept the operands and the results are of a reasonable size.
    fn accepted(&self, decl: &'static dyn OpDecl, attrs: &Attrs, values: &[Value]) -> Option<Vec<Value>> {
        let sizes: Vec<f64> = values.iter().map(|v| dims(v).iter().map(|d| *d as f64).product::<f64>()).collect();
        if sizes.iter().any(|n| *n > MAX_ELEMENTS as f64) {
            return None;
        }
        let (graph, args) = one_op(decl.as_def(), attrs, values).ok()?;
        let fits = |v: &ValueId| match graph.ty(*v) {
            Type::Tensor(t) => {
                t.fixed_dims().is_none_or(|d| d.iter().map(|d| *d as f64).product::<f64>() <= MAX_ELEMENTS as f64)
            }
            _ => true,
        };
        let results: f64 = graph
            .outputs()
            .iter()
            .map(|v| match graph.ty(*v) {
                Type::Tensor(t) => t.fixed_dims().unwrap_or_default().iter().map(|d| *d as f64).product::<f64>(),
                _ => 1.0,
            })
            .sum();
        let work = (sizes.iter().filter(|n| **n > 0.0).product::<f64>() * results).sqrt();
        if !graph.outputs().iter().all(fits)
            || (decl.signature().operands.len() > 1 && sizes.len() <= 3 && work > MAX_WORK)
        {
            return None;
        }
        let results = run_graph(&graph, &args).ok()?;
        let good = results.iter().all(|v| match v {
            Value::Tensor(t) if t.len() > MAX_ELEMENTS => false,
            Value::Tensor(t) if self.tame && t.dtype().is_float() => {
                t.to_f64s().unwrap_or_default().iter().all(|x| x.abs() <= 1e4)
            }
            _ => true,
        });
        good.then_some(results)
    }

    /// Other element types and dimensions.
    fn vary(&mut self, operands: &mut [Value]) {
        if self.chance(30) {
            let (float, int) = (self.rng.pick(FLOATS), self.rng.pick(INTS));
            let ints = self.chance(50);
            convert(operands, &mut |d| match d {
                DType::F32 => Some(float),
                d if d.is_int() && ints => Some(int),
                _ => None,
            });
        }
        for _ in 0..self.rng.int(0, 3) {
            let sizes: Vec<usize> = operands.iter().flat_map(|v| dims(v).to_vec()).collect();
            if sizes.is_empty() {
                break;
            }
            let (from, to) = (self.rng.pick(&sizes), self.rng.pick(SIZES));
            self.resize(operands, &[(from, to)]);
        }
    }

    /// Replaces operands by values of the graph.
    fn choose(&mut self, mut operands: Vec<Value>) -> Vec<Choice> {
        let mut known: Vec<Option<Choice>> = vec![None; operands.len()];
        // Any value of the right class for one operand; the others follow its element type and its shape.
        if !operands.is_empty() {
            let slot = if self.chance(80) { 0 } else { self.rng.int(0, operands.len() as i64 - 1) as usize };
            let like = |v: &Value| match (dtype(v), dtype(&operands[slot])) {
                (Some(a), Some(b)) => a == b || (a.is_float() && b.is_float()) || (a.is_int() && b.is_int()),
                _ => fits(v, &operands[slot]),
            };
            if let Some((id, value)) = self.find(like) {
                if let (Some(from), Some(to)) = (dtype(&operands[slot]), dtype(&value)) {
                    convert(&mut operands, &mut |d| (d == from && d != to).then_some(to));
                }
                let (old, new) = (dims(&operands[slot]).to_vec(), dims(&value).to_vec());
                if old.len() == new.len() {
                    let renamed: Vec<_> = old.into_iter().zip(new).collect();
                    self.resize(&mut operands, &renamed);
                } else {
                    for v in &mut operands {
                        if let Value::Tensor(t) = v
                            && t.dims() == old
                        {
                            *v = self.sized(t, new.clone()).into();
                        }
                    }
                }
                known[slot] = Some(Choice::Known(id, value));
            }
        }
        let rest = operands.into_iter().zip(known).enumerate();
        rest.map(|(i, (v, known))| {
            let wanted = if parameter(i, &v) { 10 } else { 60 };
            known.unwrap_or_else(|| {
                let same = if self.chance(wanted) { self.find(|w| fits(w, &v)) } else { None };
                same.map_or(Choice::New(v), |(id, w)| Choice::Known(id, w))
            })
        })
        .collect()
    }

    /// A value of the pool: recent values and unused results are more likely.
    fn find(&mut self, fits: impl Fn(&Value) -> bool) -> Option<(ValueId, Value)> {
        let mut all: Vec<usize> = (0..self.pool.len()).filter(|i| fits(&self.pool[*i].1)).collect();
        if self.chance(60) {
            let graph = self.rw.graph();
            let unread = |i: &usize| graph.uses(self.pool[*i].0).is_empty();
            let unread: Vec<usize> = all.iter().copied().filter(unread).collect();
            all = if unread.is_empty() { all } else { unread };
        }
        if all.is_empty() {
            return None;
        }
        let (a, b) = (self.rng.pick(&all), self.rng.pick(&all));
        Some(self.pool[a.max(b)].clone())
    }

    /// The value in the graph: a new one becomes a constant or an argument.
    fn place(&mut self, i: usize, choice: Choice) -> Result<ValueId, Diagnostic> {
        let value = match choice {
            Choice::Known(id, _) => return Ok(id),
            Choice::New(v) => v,
        };
        let constant = if parameter(i, &value) { 90 } else { 35 };
        match &value {
            Value::None => self.rw.create_one(NoneValue {}, &[]),
            Value::Tensor(t) if self.chance(constant) => {
                let id = self.rw.create_one(Constant { value: t.clone() }, &[])?;
                self.pool.push((id, value));
                Ok(id)
            }
            _ => Ok(self.argument(value)),
        }
    }

    fn argument(&mut self, value: Value) -> ValueId {
        let entry = self.rw.graph().entry();
        let id = self.rw.add_arg(entry, type_of(&value), None);
        self.inputs.push(value.clone());
        self.pool.push((id, value));
        id
    }

    /// Gives dimensions other sizes, everywhere at once.
    fn resize(&mut self, operands: &mut [Value], renamed: &[(usize, usize)]) {
        let numbers = self.chance(50);
        let to = |d: usize| renamed.iter().find(|(from, _)| *from == d).map_or(d, |(_, to)| *to);
        for (i, v) in operands.iter_mut().enumerate() {
            let Value::Tensor(t) = v else { continue };
            let dims: Vec<usize> = t.dims().iter().map(|d| to(*d)).collect();
            if dims.iter().map(|d| *d as f64).product::<f64>() > 4.0 * MAX_ELEMENTS as f64 {
                continue;
            }
            if parameter(i, &Value::Tensor(t.clone())) && numbers {
                // A shape or a size.
                let own = t.to_i64s().unwrap_or_default();
                let own =
                    own.iter().map(|x| usize::try_from(*x).map_or(*x, |d| to(d) as i64)).map(i128::from).collect();
                if let Ok(t) = Tensor::from_elements(t.dtype(), t.dims().to_vec(), Elements::Int(own)) {
                    *v = t.into();
                }
                continue;
            }
            *v = self.sized(t, dims).into();
        }
    }

    /// A tensor of another shape with elements like those of `t`.
    fn sized(&mut self, t: &Tensor, dims: Vec<usize>) -> Tensor {
        if t.dims() == dims {
            return t.clone();
        }
        let n: usize = dims.iter().product();
        let jitter = self.chance(80);
        let elements = match t.elements() {
            _ if t.is_empty() => return self.rng.tensor(t.dtype(), &dims, 0.0, 2.0),
            Elements::Float(v) => Elements::Float(
                (0..n).map(|i| v[i % v.len()] * if jitter { self.rng.float(0.5, 1.0) } else { 1.0 }).collect(),
            ),
            Elements::Int(v) => Elements::Int((0..n).map(|i| v[i % v.len()]).collect()),
            Elements::Str(v) => Elements::Str((0..n).map(|i| v[i % v.len()].clone()).collect()),
        };
        Tensor::from_elements(t.dtype(), dims, elements).unwrap_or_else(|_| t.clone())
    }

    /// Changes one attribute a little.
    fn mutate(&mut self, attrs: &mut Attrs) {
        let all: Vec<_> = attrs.iter().map(|(n, a)| (n.clone(), a.clone())).collect();
        if all.is_empty() {
            return;
        }
        let (name, mut attr) = self.rng.pick(&all);
        match &mut attr {
            Attr::Bool(b) => *b = !*b,
            Attr::Int(i) => *i += self.rng.int(-2, 2),
            Attr::Float(f) => *f *= self.rng.float(-1.0, 2.0),
            Attr::Ints(list) if !list.is_empty() => {
                let at = self.rng.int(0, list.len() as i64 - 1) as usize;
                list[at] += self.rng.int(-1, 2);
            }
            Attr::DType(d) => {
                *d = if d.is_float() { self.rng.pick(FLOATS) } else { self.rng.pick(INTS) };
            }
            _ => {}
        }
        attrs.set(name, attr);
    }

    fn outputs(&mut self) -> Vec<ValueId> {
        let graph = self.rw.graph();
        let unread: Vec<ValueId> = self.pool.iter().map(|(v, _)| *v).filter(|v| graph.uses(*v).is_empty()).collect();
        let mut out: Vec<ValueId> = unread.into_iter().rev().take(8).collect();
        for _ in 0..self.rng.int(0, 2) {
            if let Some((v, _)) = self.find(|_| true) {
                out.push(v);
            }
        }
        if out.is_empty() {
            let v = self.rng.tensor(DType::F32, &[3], -1.0, 1.0).into();
            out.push(self.argument(v));
        }
        out
    }

    // ---- control flow ----

    /// Adds an op with regions.
    fn control(&mut self) -> Result<(), Diagnostic> {
        if self.depth > 1 {
            return Ok(());
        }
        let op = match self.rng.int(0, 2) {
            0 => self.branch()?,
            1 => self.repeat()?,
            _ => self.scan()?,
        };
        let Some(op) = op else { return Ok(()) };
        // Later iterations were not evaluated yet.
        let results = self.rw.graph().op(op).results.to_vec();
        // Inside a region only the enclosing op can be evaluated, so the results have no readers there.
        if self.depth == 0 {
            match self.values_of(&results) {
                Some(values) => self.pool.extend(results.into_iter().zip(values)),
                None => self.rw.erase(op),
            }
        }
        Ok(())
    }

    /// The contents of values at the end of the function, unless they cannot be computed or are too large.
    fn values_of(&mut self, values: &[ValueId]) -> Option<Vec<Value>> {
        let mut graph = self.rw.graph().clone();
        let mut rw = Rewriter::new(&mut graph, "fuzz");
        rw.create(Return {}, values).ok()?;
        let values = run_graph(&graph, &self.inputs).ok()?;
        let good = values.iter().all(|v| match v {
            Value::Tensor(t) => {
                t.len() <= MAX_ELEMENTS
                    && (!self.tame
                        || t.to_f64s().is_none_or(|x| !t.dtype().is_float() || x.iter().all(|x| x.abs() <= 1e4)))
            }
            _ => true,
        });
        good.then_some(values)
    }

    fn truth(&mut self, constant: bool) -> Result<ValueId, Diagnostic> {
        let known = self.find(|v| dtype(v) == Some(DType::Bool) && dims(v).is_empty());
        if let Some((id, _)) = known.filter(|_| !constant) {
            return Ok(id);
        }
        let one = i128::from(constant || self.chance(50));
        let t = Tensor::from_elements(DType::Bool, vec![], Elements::Int(vec![one]))
            .map_err(|e| Diagnostic::error(of_diag::Code::EVAL, of_diag::Location::Unknown, e.to_string()))?;
        if constant || self.chance(30) {
            self.rw.create_one(Constant { value: t }, &[])
        } else {
            Ok(self.argument(t.into()))
        }
    }

    /// Fills a region and passes the values visible at its end to `finish`, which creates its terminator.
    fn region<T>(
        &mut self,
        args: &[Value],
        finish: impl FnOnce(&mut Self, &[ValueId]) -> Result<T, Diagnostic>,
    ) -> Result<(RegionId, T), Diagnostic> {
        let region = self.rw.new_region();
        let outside: Vec<_> = self.pool.clone();
        let around = std::mem::replace(&mut self.current, region);
        self.rw.at_end(region);
        let ids: Vec<ValueId> = args.iter().map(|v| self.rw.add_arg(region, type_of(v), None)).collect();
        self.pool.extend(ids.iter().copied().zip(args.iter().cloned()));
        self.depth += 1;
        for _ in 0..self.rng.int(1, 4) {
            if self.chance(5) { self.control()? } else { self.op()? }
        }
        self.depth -= 1;
        let out = finish(self, &ids)?;
        self.current = around;
        self.rw.at_end(around);
        self.pool = outside;
        Ok((region, out))
    }

    fn tensors(&mut self, n: i64) -> Vec<(ValueId, Value)> {
        (0..self.rng.int(1, n)).filter_map(|_| self.find(|v| matches!(v, Value::Tensor(_)))).collect()
    }

    /// A value of the type of `like` at the insertion point.
    fn alike(&mut self, like: &Value) -> Result<ValueId, Diagnostic> {
        if let Some((id, _)) = self.find(|v| fits(v, like)) {
            return Ok(id);
        }
        match like {
            Value::Tensor(t) => {
                let value = self.rng.tensor(t.dtype(), t.dims(), 0.0, 2.0);
                self.rw.create_one(Constant { value }, &[])
            }
            other => Ok(self.argument(other.clone())),
        }
    }

    fn branch(&mut self) -> Result<Option<OpId>, Diagnostic> {
        let condition = self.truth(false)?;
        let (first, types) = self.region(&[], |g, _| {
            let yields = g.tensors(2);
            let ids: Vec<_> = yields.iter().map(|(v, _)| *v).collect();
            g.rw.create(Yield {}, &ids)?;
            Ok(yields.into_iter().map(|(_, v)| v).collect::<Vec<_>>())
        })?;
        let (second, ()) = self.region(&[], |g, _| {
            let ids = types.iter().map(|v| g.alike(v)).collect::<Result<Vec<_>, _>>()?;
            g.rw.create(Yield {}, &ids)?;
            Ok(())
        })?;
        self.rw.create_with_regions(If {}, &[condition], &[first, second]).map(Some)
    }

    fn repeat(&mut self) -> Result<Option<OpId>, Diagnostic> {
        let trips = Tensor::scalar(self.rng.int(0, 4));
        let trips = if self.chance(70) {
            self.rw.create_one(Constant { value: trips }, &[])?
        } else {
            self.argument(trips.into())
        };
        let go_on = self.truth(true)?;
        let carried = self.tensors(2);
        let truth: Value =
            Tensor::from_elements(DType::Bool, vec![], Elements::Int(vec![1])).map_or(Value::None, Value::from);
        let mut args = vec![Tensor::scalar(0i64).into(), truth];
        args.extend(carried.iter().map(|(_, v)| v.clone()));
        let (body, ()) = self.region(&args, |g, ids| {
            let mut yields = vec![if g.chance(70) { ids[1] } else { g.truth(false)? }];
            for (_, v) in &carried {
                yields.push(g.alike(v)?);
            }
            if g.chance(60) {
                yields.extend(g.tensors(2).iter().map(|(v, _)| *v));
            }
            g.rw.create(Yield {}, &yields).map(|_| ())
        })?;
        let mut operands = vec![trips, go_on];
        operands.extend(carried.iter().map(|(v, _)| *v));
        self.rw.create_with_regions(Loop {}, &operands, &[body]).map(Some)
    }

    fn scan(&mut self) -> Result<Option<OpId>, Diagnostic> {
        let Some((scanned, value)) =
            self.find(|v| matches!(v, Value::Tensor(t) if !t.dims().is_empty() && t.dims()[0] <= 8))
        else {
            return Ok(None);
        };
        let Value::Tensor(t) = &value else { return Ok(None) };
        let (inner, n) = (t.dims()[1..].to_vec(), t.dims()[1..].iter().product::<usize>());
        let first = match t.elements() {
            Elements::Float(v) if v.len() >= n => Elements::Float(v[..n].to_vec()),
            Elements::Int(v) if v.len() >= n => Elements::Int(v[..n].to_vec()),
            _ => return Ok(None),
        };
        let Ok(slice) = Tensor::from_elements(t.dtype(), inner, first) else { return Ok(None) };
        let states = if self.chance(60) { self.tensors(1) } else { Vec::new() };
        let mut args: Vec<Value> = states.iter().map(|(_, v)| v.clone()).collect();
        args.push(slice.into());
        let (body, outputs) = self.region(&args, |g, _| {
            let mut yields = states.iter().map(|(_, v)| g.alike(v)).collect::<Result<Vec<_>, _>>()?;
            let outputs = g.tensors(2);
            yields.extend(outputs.iter().map(|(v, _)| *v));
            g.rw.create(Yield {}, &yields)?;
            Ok(outputs.len())
        })?;
        let backward = |g: &mut Self, n: usize| g.chance(40).then(|| vec![g.rng.int(0, 1); n]);
        let scan = Scan {
            num_scan_inputs: 1,
            scan_input_axes: None,
            scan_input_directions: backward(self, 1),
            scan_output_axes: None,
            scan_output_directions: backward(self, outputs),
        };
        let mut operands: Vec<ValueId> = states.iter().map(|(v, _)| *v).collect();
        operands.push(scanned);
        self.rw.create_with_regions(scan, &operands, &[body]).map(Some)
    }
}

fn dims(v: &Value) -> &[usize] {
    if let Value::Tensor(t) = v { t.dims() } else { &[] }
}

fn dtype(v: &Value) -> Option<DType> {
    if let Value::Tensor(t) = v { Some(t.dtype()) } else { None }
}

/// Shapes, axes and the like.
fn parameter(i: usize, v: &Value) -> bool {
    i > 0 && matches!(v, Value::Tensor(t) if t.dtype().is_int() && t.dims().len() <= 1)
}

/// Converts operands to the element types of `to`.
fn convert(operands: &mut [Value], to: &mut dyn FnMut(DType) -> Option<DType>) {
    for (i, v) in operands.iter_mut().enumerate() {
        let Value::Tensor(t) = v else { continue };
        if parameter(i, &Value::Tensor(t.clone())) {
            continue;
        }
        let converted = to(t.dtype()).and_then(|d| Tensor::from_elements(d, t.dims().to_vec(), t.elements()).ok());
        if let Some(t) = converted {
            *v = t.into();
        }
    }
}

fn fits(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Tensor(a), Value::Tensor(b)) => a.dtype() == b.dtype() && a.dims() == b.dims(),
        (Value::None, _) | (_, Value::None) => false,
        _ => type_of(a) == type_of(b),
    }
}
