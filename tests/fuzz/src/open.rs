//! The same function with symbolic dimensions instead of its inputs' numbers.

use std::collections::BTreeMap;
use std::sync::Arc;

use of_diag::Diagnostic;
use of_ir::{DType, Dim, Elements, Func, Graph, IdMap, Rewriter, Tensor, Type, ValueId, verify_module};
use of_ops::Value;
use of_passes::specialize::{Bindings, specialize};

use crate::copy::copy_op;
use crate::{Case, module};

/// Which dimensions of the inputs are symbolic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Opening {
    /// None.
    #[default]
    Closed,
    /// All; dimensions of equal size share a symbol.
    Shared,
    /// All, each with a distinct symbol: the run finds that some are equal.
    Apart,
    /// The first of each input; dimensions of equal size share a symbol.
    First,
    /// All, as `4*n`, `2*n` or `n + 1` of a symbol.
    Arithmetic,
    /// All; the first of each input is a product of two symbols, one of which may be bound by another input.
    Product,
}

impl Opening {
    /// The symbolic dimension in the place of `axis` of `input`, whose size is `n`.
    fn dim(self, input: usize, axis: usize, n: i64) -> Dim {
        let symbol = |n: i64| Dim::symbol(format!("n{n}"));
        let times = |k: i64| &symbol(n / k) * &Dim::from(k);
        match self {
            Opening::Closed => n.into(),
            Opening::Apart => Dim::symbol(format!("x{input}_{axis}")),
            Opening::First if axis > 0 => n.into(),
            Opening::Arithmetic if n % 4 == 0 => times(4),
            Opening::Arithmetic if n % 2 == 0 => times(2),
            Opening::Arithmetic if n > 1 => &symbol(n - 1) + &Dim::from(1i64),
            Opening::Product if axis == 0 => match (2..n).find(|k| n % k == 0) {
                Some(k) => &symbol(k) * &symbol(n / k),
                None => symbol(n),
            },
            Opening::Shared | Opening::First | Opening::Arithmetic | Opening::Product => symbol(n),
        }
    }
}

/// The function of `case` with symbolic dimensions, as far as inference accepts them: all requested ones, or those of one
/// size. `None` if no dimension is symbolic.
pub fn opened(case: &Case) -> Option<Func> {
    let dims = |ty: &Type| ty.as_tensor().and_then(|t| t.fixed_dims()).unwrap_or_default();
    let mut sizes: Vec<usize> = case.func.input_types().iter().flat_map(dims).collect();
    sizes.sort_unstable();
    sizes.dedup();
    if case.opening == Opening::Closed || sizes.is_empty() {
        return None;
    }
    let choices = std::iter::once(None).chain(sizes.into_iter().rev().map(Some));
    let accepted = |f: &Func| verify_module(&module(f.clone())).is_ok();
    choices.into_iter().find_map(|only| rebuild(case, only).ok().filter(accepted))
}

fn rebuild(case: &Case, only: Option<usize>) -> Result<Func, Diagnostic> {
    let from = &case.func.graph;
    let mut graph = Graph::new();
    let entry = graph.entry();
    let mut rw = Rewriter::new(&mut graph, "fuzz");
    let mut map: IdMap<ValueId, ValueId> = IdMap::default();
    for (i, v) in from.args().iter().enumerate() {
        let mut axis = 0;
        let ty = from.ty(*v).map_dims(&mut |d| {
            axis += 1;
            let Some(n) = d.as_const().filter(|n| only.is_none_or(|o| *n == o as i64)) else { return d.clone() };
            case.opening.dim(i, axis - 1, n)
        });
        let open = matches!(ty, Type::Tensor(_));
        map.insert(*v, rw.add_arg(entry, if open { ty } else { from.ty(*v).clone() }, None));
    }
    for op in from.region_ops(from.entry()) {
        copy_op(&mut rw, from, op, &mut map)?;
    }
    Ok(Func { graph, ..case.func.clone() })
}

/// `inputs` with other elements: each of the first half is there twice, floats the second time smaller, so that they do not
/// cancel exactly. Extents stay, but numbers of elements with a property, as of nonzero ones, change. Elements of i32 and i64
/// stay, which may be extents, axes or counts.
pub fn doubled(inputs: &[Value]) -> Vec<Value> {
    let double = |value: &Value| {
        let Value::Tensor(t) = value else { return value.clone() };
        if [DType::I32, DType::I64].contains(&t.dtype()) {
            return value.clone();
        }
        let elements = match t.elements() {
            Elements::Float(v) => {
                Elements::Float((0..v.len()).map(|i| v[i / 2] * if i % 2 == 0 { 1.0 } else { 0.75 }).collect())
            }
            Elements::Int(v) => Elements::Int((0..v.len()).map(|i| v[i / 2]).collect()),
            Elements::Str(v) => Elements::Str((0..v.len()).map(|i| v[i / 2].clone()).collect()),
        };
        Tensor::from_elements(t.dtype(), t.dims().to_vec(), elements).map_or_else(|_| value.clone(), Value::from)
    };
    inputs.iter().map(double).collect()
}

/// The inputs of `case` with other extents that its function with symbolic dimensions allows, and elements repeated.
/// `to` gives each symbol, by its place in the order of names, another value. `None` where symbols do not follow from the
/// inputs, the ops do not accept the extents, or inputs are very large.
pub fn resized(case: &Case, func: &Func, to: &dyn Fn(usize, i64) -> i64) -> Option<Vec<Value>> {
    /// Most elements of an input.
    const MAX_ELEMENTS: usize = 40_000;
    let types = func.input_types();
    let args: Vec<(&Type, &Value)> = types.iter().zip(&case.inputs).collect();
    let mut known: BTreeMap<Arc<str>, i64> = BTreeMap::new();
    let substituted = |d: &Dim, known: &BTreeMap<Arc<str>, i64>| d.substitute(&|s| known.get(s).map(|n| Dim::from(*n)));
    // A dimension may depend on a symbol that a later input binds.
    for _ in 0..=args.len() {
        for (ty, value) in &args {
            let (Some(shape), Value::Tensor(t)) = (ty.as_tensor().and_then(|t| t.shape.as_ref()), value) else {
                continue;
            };
            for (d, n) in shape.iter().zip(t.dims()) {
                if let Some((s, Some(n))) = substituted(d, &known).solve(*n as i64) {
                    known.insert(s, n);
                }
            }
        }
    }
    known.values_mut().enumerate().for_each(|(i, n)| *n = to(i, *n));
    // An op may relate extents that have different symbols, which inference notices once they are numbers.
    let bindings: Bindings = known.iter().map(|(s, n)| (s.to_string(), *n)).collect();
    specialize(&mut func.clone(), &bindings).ok()?;
    let resize = |(ty, value): &(&Type, &Value)| {
        let (Some(shape), Value::Tensor(t)) = (ty.as_tensor().and_then(|t| t.shape.as_ref()), value) else {
            return Some((*value).clone());
        };
        let dims = shape.iter().map(|d| usize::try_from(substituted(d, &known).as_const()?).ok());
        let dims: Vec<usize> = dims.collect::<Option<_>>()?;
        let n = dims.iter().try_fold(1usize, |n, d| n.checked_mul(*d)).filter(|n| *n <= MAX_ELEMENTS)?;
        if n > 0 && t.is_empty() {
            return None;
        }
        let elements = match t.elements() {
            Elements::Float(v) => Elements::Float((0..n).map(|i| v[i % v.len()]).collect()),
            Elements::Int(v) => Elements::Int((0..n).map(|i| v[i % v.len()]).collect()),
            Elements::Str(v) => Elements::Str((0..n).map(|i| v[i % v.len()].clone()).collect()),
        };
        Some(Value::from(Tensor::from_elements(t.dtype(), dims, elements).ok()?))
    };
    args.iter().map(resize).collect()
}
