//! Convolution rules: scales and shifts fold into the weights, several convolutions merge into one, pools commute with
//! elementwise ops.

use egg::Id;
use of_ir::{DType, Dim, Tensor};
use of_ops::OpSpec;
use of_ops::elementwise::{Add, Mul, Rsqrt, Sub};
use of_ops::movement::{Concat, ConstantOfShape, Pad, Reshape, Slice};
use of_ops::nn::{BatchNorm, Conv, MaxPool};

use super::code;
use super::product::part;
use crate::egraph::rule::{Example, ExampleResult, Rule, Search};
use crate::egraph::view::{Equation, NodeMatch, Term, View};

pub const RULES: &[Rule] = &[
    code!("batch-norm", SumOrder, batch_norm, batch_norm_example),
    code!("conv-mul", SumOrder, conv_mul, conv_mul_example),
    code!("conv-add", SumOrder, conv_add, conv_add_example),
    code!("conv-merge", Exact, merge, merge_example),
    code!("conv-enlarge", SumOrder, enlarge, enlarge_example),
    code!("conv-concat", Exact, concat, concat_example),
    code!("conv-sum", SumOrder, sum, sum_example),
    code!("conv-parts", SumOrder, parts, parts_example),
    code!("pool-concat", Exact, pool_concat, pool_concat_example),
    code!("conv-groups", SumOrder, groups, groups_example),
    code!("pool-map", ZeroSign, pool_map, pool_map_example),
];

/// A convolution with all window parameters as numbers.
struct Windows<'a> {
    conv: NodeMatch<'a, Conv>,
    kernel: Vec<usize>,
    strides: Vec<i64>,
    dilations: Vec<i64>,
    /// Padding before every spatial axis, then after every spatial axis.
    pads: Vec<i64>,
    cout: usize,
}

impl<'a> Windows<'a> {
    fn of(view: &View<'_>, conv: NodeMatch<'a, Conv>) -> Option<Windows<'a>> {
        let dims = |c: Id| -> Option<Vec<Dim>> { Some(view.dims(c)?.into_iter().map(Dim::from).collect()) };
        let (x, w) = (dims(conv.operand(0))?, dims(conv.operand(1))?);
        let kernel = view.dims(conv.operand(1))?[2..].to_vec();
        let n = kernel.len();
        let ones = |list: &[i64]| if list.is_empty() { vec![1; n] } else { list.to_vec() };
        let spatial = if conv.op.channels_last { &x[1..1 + n] } else { &x[2..] };
        let extents: Vec<i64> = kernel.iter().map(|k| *k as i64).collect();
        let pads = conv.op.resolved_pads(spatial, &extents).ok()?;
        Some(Windows {
            kernel,
            strides: ones(&conv.op.strides),
            dilations: ones(&conv.op.dilations),
            pads: pads.iter().map(Dim::as_const).collect::<Option<_>>()?,
            cout: w[0].as_const()? as usize,
            conv,
        })
    }

    /// Whether two convolutions have the same windows, so that one filter could serve both.
    fn alike(&self, o: &Windows<'_>) -> bool {
        let attrs =
            self.conv.op.group == 1 && o.conv.op.group == 1 && self.conv.op.channels_last == o.conv.op.channels_last;
        attrs
            && (&self.kernel, &self.strides, &self.dilations, &self.pads)
                == (&o.kernel, &o.strides, &o.dilations, &o.pads)
    }

    fn channels(&self) -> usize {
        if self.conv.op.channels_last { self.kernel.len() + 1 } else { 1 }
    }

    fn bias(&self, view: &View<'_>) -> Option<Id> {
        self.conv.node.children.get(2).copied().filter(|b| !view.left_out(*b))
    }

    /// The convolution with explicit pads.
    fn op(&self) -> Conv {
        Conv { pads: self.pads.clone(), auto_pad: "NOTSET".into(), ..self.conv.op.clone() }
    }
}

/// All convolutions of a class with fully known parameters.
fn in_class<'a>(view: &View<'a>, class: Id) -> Vec<Windows<'a>> {
    view.in_class::<Conv>(class).into_iter().filter_map(|c| Windows::of(view, c)).collect()
}

/// `n` zeros.
fn zeros(n: usize, dtype: DType) -> Option<Term> {
    let value = Tensor::from_elements(dtype, vec![1], of_ir::Elements::Float(vec![0.0])).ok()?;
    Some(Term::op(ConstantOfShape { value: Some(value) }, [Term::ints(&[n as i64])]))
}

/// The concatenated biases, zeros where one is missing; `None` inside where all are missing.
fn biases(view: &View<'_>, list: &[Windows<'_>]) -> Option<Option<Term>> {
    if list.iter().all(|w| w.bias(view).is_none()) {
        return Some(None);
    }
    let one = |w: &Windows<'_>| match w.bias(view) {
        Some(b) => Some(Term::Class(b)),
        None => zeros(w.cout, view.dtype(w.conv.class)?),
    };
    let all = list.iter().map(one).collect::<Option<Vec<_>>>()?;
    Some(Some(Term::op(Concat { axis: 0 }, all)))
}

/// bn(x) = x a + c with a = s / sqrt(v + e), c = b - m a
fn batch_norm(view: &View<'_>, out: &mut Vec<Equation>) {
    for bn in view.all::<BatchNorm>() {
        let [x, s, b, m, v] = bn.node.children[..] else { continue };
        let (Some(dims), Some(dtype)) = (view.dims(x), view.dtype(x)) else { continue };
        let known = [s, b, m, v].iter().all(|c| view.known(*c) && view.dtype(*c) == Some(dtype));
        let channels = if bn.op.channels_last { dims.len() - 1 } else { 1 };
        let Ok(epsilon) = Tensor::from_elements(dtype, vec![], of_ir::Elements::Float(vec![bn.op.epsilon])) else {
            continue;
        };
        if !known || channels >= dims.len() {
            continue;
        }
        let mut column = vec![1; dims.len()];
        column[channels] = dims[channels] as i64;
        let along = |t: Term| Term::op(Reshape { allowzero: true }, [t, Term::ints(&column)]);
        let inverse = Term::op(Rsqrt {}, [Term::op(Add {}, [v.into(), Term::constant(epsilon)])]);
        let a = Term::op(Mul {}, [s.into(), inverse]);
        let c = Term::op(Sub {}, [b.into(), Term::op(Mul {}, [m.into(), a.clone()])]);
        let term = Term::op(Add {}, [Term::op(Mul {}, [x.into(), along(a)]), along(c)]);
        out.push(view.equation(bn.class, term, &[bn.node]));
    }
}

fn batch_norm_example(e: &mut Example<'_, '_>) -> ExampleResult {
    let [n, c, h, _] = e.extents();
    let channels_last = e.rng.int(0, 1) == 0;
    let x = e.input(&if channels_last { [n, h, c] } else { [n, c, h] });
    let (s, b, m, v) = (e.known(&[c])?, e.known(&[c])?, e.known(&[c])?, e.known_positive(&[c])?);
    Ok(vec![e.rw.create_one(BatchNorm { epsilon: 1e-5, channels_last }, &[x, s, b, m, v])?])
}

/// A constant class with one number, or one per channel of a convolution's result, as a list.
fn per_channel(view: &View<'_>, c: Id, w: &Windows<'_>) -> Option<Term> {
    let (own, rank) = (view.dims(c)?, w.kernel.len() + 2);
    let lead = rank.checked_sub(own.len())?;
    let fits = own.iter().enumerate().all(|(i, d)| *d == 1 || (lead + i == w.channels() && *d == w.cout));
    if !fits || !view.known(c) {
        return None;
    }
    let flat = |t: Term| Term::op(Reshape { allowzero: true }, [t, Term::ints(&[-1])]);
    if own.iter().product::<usize>() == w.cout {
        // One number per channel.
        return Some(flat(Term::Class(c)));
    }
    // One number: broadcast.
    Some(Term::op(Add {}, [flat(Term::Class(c)), zeros(w.cout, view.dtype(c)?)?]))
}

/// conv(x, w, b) c = conv(x, w c, b c)
fn conv_mul(view: &View<'_>, out: &mut Vec<Equation>) {
    for mul in view.all::<Mul>() {
        for (y, c) in [(0, 1), (1, 0)].map(|(a, b)| (mul.operand(a), mul.operand(b))) {
            for w in in_class(view, y) {
                let Some(scale) = per_channel(view, c, &w).filter(|_| view.known(w.conv.operand(1))) else { continue };
                let mut column = vec![1; w.kernel.len() + 2];
                column[0] = w.cout as i64;
                let filter_scale = Term::op(Reshape { allowzero: true }, [scale.clone(), Term::ints(&column)]);
                let filter = Term::op(Mul {}, [Term::Class(w.conv.operand(1)), filter_scale]);
                let mut operands = vec![Term::Class(w.conv.operand(0)), filter];
                operands.extend(w.bias(view).map(|b| Term::op(Mul {}, [Term::Class(b), scale])));
                out.push(view.equation(mul.class, Term::op(w.conv.op.clone(), operands), &[mul.node, w.conv.node]));
            }
        }
    }
}

fn conv_mul_example(e: &mut Example<'_, '_>) -> ExampleResult {
    let (y, channels) = e.conv()?;
    let c = e.known(&channels)?;
    let one = e.known(&[])?;
    Ok(vec![e.rw.create_one(Mul {}, &[y, c])?, e.rw.create_one(Mul {}, &[one, y])?])
}

/// conv(x, w, b) + c = conv(x, w, b + c)
fn conv_add(view: &View<'_>, out: &mut Vec<Equation>) {
    for add in view.all::<Add>() {
        for (y, c) in [(0, 1), (1, 0)].map(|(a, b)| (add.operand(a), add.operand(b))) {
            for w in in_class(view, y) {
                let Some(shift) = per_channel(view, c, &w) else { continue };
                let bias = match w.bias(view) {
                    Some(b) => Term::op(Add {}, [Term::Class(b), shift]),
                    None => shift,
                };
                let operands = [Term::Class(w.conv.operand(0)), Term::Class(w.conv.operand(1)), bias];
                out.push(view.equation(add.class, Term::op(w.conv.op.clone(), operands), &[add.node, w.conv.node]));
            }
        }
    }
}

fn conv_add_example(e: &mut Example<'_, '_>) -> ExampleResult {
    let (y, channels) = e.conv()?;
    let c = e.known(&channels)?;
    let one = e.known(&[])?;
    Ok(vec![e.rw.create_one(Add {}, &[c, y])?, e.rw.create_one(Add {}, &[y, one])?])
}

/// Whether a filter was made from others, by concatenation or slicing.
fn derived(view: &View<'_>, w: Id) -> bool {
    !view.in_class::<Concat>(w).is_empty() || !view.in_class::<Slice>(w).is_empty()
}

/// conv(x, v) = conv(x, [v, w])[.., first], conv(x, w) = conv(x, [v, w])[.., rest]: all constant filters with equal
/// windows over one tensor become one filter
fn merge(view: &View<'_>, out: &mut Vec<Equation>) {
    for x in view.classes() {
        let users = view.users::<Conv>(*x, 0);
        if users.len() < 2 {
            continue;
        }
        let mut groups: Vec<Vec<Windows<'_>>> = Vec::new();
        for w in users.into_iter().filter_map(|c| Windows::of(view, c)) {
            let filter = w.conv.operand(1);
            let bias_known = w.bias(view).is_none_or(|b| view.known(b));
            if w.conv.op.group != 1 || !view.known(filter) || !bias_known || derived(view, filter) {
                continue;
            }
            match groups.iter_mut().find(|g| g[0].alike(&w)) {
                Some(g) if g.iter().any(|o| view.same(o.conv.class, w.conv.class)) => {}
                Some(g) => g.push(w),
                None => groups.push(vec![w]),
            }
        }
        for g in groups.iter().filter(|g| g.len() > 1) {
            let Some(bias) = biases(view, g) else { continue };
            let from: Vec<_> = g.iter().map(|w| w.conv.node).collect();
            let filter = Term::op(Concat { axis: 0 }, g.iter().map(|w| Term::Class(w.conv.operand(1))));
            let whole = Term::op(g[0].op(), [Term::Class(*x), filter].into_iter().chain(bias));
            let mut start = 0;
            for w in g {
                out.push(view.equation(w.conv.class, part(whole.clone(), start, w.cout, w.channels()), &from));
                start += w.cout;
            }
        }
    }
}

fn merge_example(e: &mut Example<'_, '_>) -> ExampleResult {
    let x = e.input(&[1, 2, 5, 5]);
    let op = e.conv_op(1, 1);
    let (v, w, b) = (e.known(&[3, 2, 3, 3])?, e.known(&[1, 2, 3, 3])?, e.known(&[1])?);
    Ok(vec![e.rw.create_one(op.clone(), &[x, v])?, e.rw.create_one(op, &[x, w, b])?])
}

/// conv(x, w) = conv(x, w with zeros around), to match the windows of another convolution of x
fn enlarge(view: &View<'_>, out: &mut Vec<Equation>) {
    for x in view.classes() {
        let users = view.users::<Conv>(*x, 0);
        if users.len() < 2 {
            continue;
        }
        let list: Vec<Windows<'_>> = users.into_iter().filter_map(|c| Windows::of(view, c)).collect();
        let padded =
            |w: &Windows<'_>| derived(view, w.conv.operand(1)) || !view.in_class::<Pad>(w.conv.operand(1)).is_empty();
        for small in list.iter().filter(|w| !padded(w)) {
            for large in list.iter().filter(|w| !padded(w)) {
                let ones = small.dilations.iter().chain(&large.dilations).all(|d| *d == 1);
                let plain = small.conv.op.group == 1 && large.conv.op.group == 1 && view.known(small.conv.operand(1));
                if !ones || !plain || small.kernel == large.kernel || small.strides != large.strides {
                    continue;
                }
                let around: Vec<i64> = large.pads.iter().zip(&small.pads).map(|(l, s)| l - s).collect();
                let n = small.kernel.len();
                let grows =
                    (0..n).all(|i| small.kernel[i] as i64 + around[i] + around[n + i] == large.kernel[i] as i64);
                if !grows || around.iter().any(|a| *a < 0) {
                    continue;
                }
                let ends = |half: &[i64]| [&[0, 0], half].concat();
                let pads = [ends(&around[..n]), ends(&around[n..])].concat();
                let filter =
                    Term::op(Pad { mode: "constant".into() }, [Term::Class(small.conv.operand(1)), Term::ints(&pads)]);
                let mut operands = vec![Term::Class(*x), filter];
                operands.extend(small.bias(view).map(Term::Class));
                let op = Conv { pads: large.pads.clone(), ..small.op() };
                out.push(view.equation(small.conv.class, Term::op(op, operands), &[small.conv.node, large.conv.node]));
            }
        }
    }
}

fn enlarge_example(e: &mut Example<'_, '_>) -> ExampleResult {
    let x = e.input(&[1, 2, 5, 5]);
    let (small, large) = (e.conv_op(0, 2), e.conv_op(1, 2));
    let (v, w, b) = (e.known(&[3, 2, 1, 1])?, e.known(&[1, 2, 3, 3])?, e.known(&[3])?);
    Ok(vec![e.rw.create_one(small, &[x, v, b])?, e.rw.create_one(large, &[x, w])?])
}

/// [conv(x, v), conv(x, w)] along the channels = conv(x, [v, w])
fn concat(view: &View<'_>, out: &mut Vec<Equation>) {
    for c in view.all::<Concat>() {
        let Some(rank) = view.dims(c.class).map(|d| d.len()) else { continue };
        let Some(first) = c.node.children.first().filter(|_| c.node.children.len() > 1) else { continue };
        for head in in_class(view, *first) {
            if of_ops::shape::axis(c.op.axis, rank) != Ok(head.channels()) {
                continue;
            }
            let x = head.conv.operand(0);
            let rest: Option<Vec<Windows<'_>>> = (c.node.children[1..].iter())
                .map(|piece| {
                    in_class(view, *piece).into_iter().find(|w| w.alike(&head) && view.same(w.conv.operand(0), x))
                })
                .collect();
            let Some(rest) = rest else { continue };
            let all: Vec<Windows<'_>> = std::iter::once(head).chain(rest).collect();
            let Some(bias) = biases(view, &all) else { continue };
            let filter = Term::op(Concat { axis: 0 }, all.iter().map(|w| Term::Class(w.conv.operand(1))));
            let term = Term::op(all[0].op(), [Term::Class(x), filter].into_iter().chain(bias));
            let from: Vec<_> = std::iter::once(c.node).chain(all.iter().map(|w| w.conv.node)).collect();
            out.push(view.equation(c.class, term, &from));
        }
    }
}

fn concat_example(e: &mut Example<'_, '_>) -> ExampleResult {
    let made = merge_example(e)?;
    Ok(vec![e.rw.create_one(Concat { axis: 1 }, &made)?])
}

/// conv(x, v) + conv(y, w) = conv([x, y], [v, w]) with concatenated input channels
fn sum(view: &View<'_>, out: &mut Vec<Equation>) {
    for add in view.all::<Add>() {
        for l in in_class(view, add.operand(0)) {
            for r in in_class(view, add.operand(1)) {
                let (x, y) = (l.conv.operand(0), r.conv.operand(0));
                let (v, w) = (l.conv.operand(1), r.conv.operand(1));
                let known = view.known(v) && view.known(w) && !derived(view, v) && !derived(view, w);
                let same = view.dims(l.conv.class) == view.dims(r.conv.class) && !view.same(x, y);
                let spatial = |c: Id| view.dims(c).map(|mut d| d.remove(l.channels()));
                let sizes = spatial(x).is_some() && l.alike(&r) && known && same;
                if !sizes || without(view, x, l.channels()) != without(view, y, l.channels()) {
                    continue;
                }
                let input = Term::op(Concat { axis: l.channels() as i64 }, [x.into(), y.into()]);
                let filter = Term::op(Concat { axis: 1 }, [v.into(), w.into()]);
                let bias = match (l.bias(view), r.bias(view)) {
                    (Some(a), Some(b)) => Some(Term::op(Add {}, [Term::Class(a), Term::Class(b)])),
                    (a, b) => a.or(b).map(Term::Class),
                };
                let term = Term::op(l.op(), [input, filter].into_iter().chain(bias));
                out.push(view.equation(add.class, term, &[add.node, l.conv.node, r.conv.node]));
            }
        }
    }
}

/// The dimensions of a class without one axis.
fn without(view: &View<'_>, c: Id, axis: usize) -> Option<Vec<usize>> {
    let mut d = view.dims(c).filter(|d| axis < d.len())?;
    d.remove(axis);
    Some(d)
}

fn sum_example(e: &mut Example<'_, '_>) -> ExampleResult {
    let (x, y) = (e.input(&[1, 2, 5, 5]), e.input(&[1, 3, 5, 5]));
    let op = e.conv_op(1, 2);
    let (v, w, b) = (e.known(&[2, 2, 3, 3])?, e.known(&[2, 3, 3, 3])?, e.known(&[2])?);
    let l = e.rw.create_one(op.clone(), &[x, v, b])?;
    let r = e.rw.create_one(op, &[y, w])?;
    Ok(vec![e.rw.create_one(Add {}, &[l, r])?])
}

/// conv([x, y], w) = conv(x, w[.., x]) + conv(y, w[.., y]) of concatenated input channels, where w is constant
fn parts(view: &View<'_>, out: &mut Vec<Equation>) {
    for conv in view.all::<Conv>() {
        let Some(conv) = Windows::of(view, conv).filter(|c| c.conv.op.group == 1) else { continue };
        let (x, w, channels) = (conv.conv.operand(0), conv.conv.operand(1), conv.channels());
        if !view.known(w) || derived(view, w) {
            continue;
        }
        for c in view.in_class::<Concat>(x) {
            let Some(rank) = view.dims(x).map(|d| d.len()) else { continue };
            let lengths = c.node.children.iter().map(|piece| Some(*view.dims(*piece)?.get(channels)?));
            let Some(lengths) = lengths.collect::<Option<Vec<usize>>>().filter(|l| l.len() > 1) else { continue };
            if of_ops::shape::axis(c.op.axis, rank) != Ok(channels) {
                continue;
            }
            let mut start = 0;
            let mut sum: Option<Term> = None;
            for (piece, length) in c.node.children.iter().zip(lengths) {
                let filter = part(Term::Class(w), start, length, 1);
                let bias = conv.bias(view).filter(|_| start == 0).map(Term::Class);
                let own = Term::op(conv.op(), [Term::Class(*piece), filter].into_iter().chain(bias));
                sum = Some(match sum {
                    Some(sum) => Term::op(Add {}, [sum, own]),
                    None => own,
                });
                start += length;
            }
            let Some(sum) = sum else { continue };
            out.push(view.equation(conv.conv.class, sum, &[conv.conv.node, c.node]));
        }
    }
}

fn parts_example(e: &mut Example<'_, '_>) -> ExampleResult {
    let (x, y) = (e.input(&[1, 2, 5, 5]), e.input(&[1, 3, 5, 5]));
    let op = e.conv_op(1, 2);
    let (w, b) = (e.known(&[2, 5, 3, 3])?, e.known(&[2])?);
    let both = e.rw.create_one(Concat { axis: 1 }, &[x, y])?;
    Ok(vec![e.rw.create_one(op, &[both, w, b])?])
}

/// maxpool([x, y]) = [maxpool(x), maxpool(y)] along the channels
fn pool_concat(view: &View<'_>, out: &mut Vec<Equation>) {
    for pool in view.all::<MaxPool>().into_iter().filter(|p| !p.op.return_indices) {
        for c in view.in_class::<Concat>(pool.operand(0)) {
            let Some(rank) = view.dims(pool.class).map(|d| d.len()) else { continue };
            let channels = if pool.op.channels_last { rank - 1 } else { 1 };
            if of_ops::shape::axis(c.op.axis, rank) != Ok(channels) {
                continue;
            }
            let pieces = c.node.children.iter().map(|piece| Term::op(pool.op.clone(), [Term::Class(*piece)]));
            out.push(view.equation(pool.class, Term::op(c.op.clone(), pieces), &[pool.node, c.node]));
        }
    }
}

fn pool_concat_example(e: &mut Example<'_, '_>) -> ExampleResult {
    let (x, y) = (e.input(&[1, 2, 6, 6]), e.input(&[1, 3, 6, 6]));
    let both = e.rw.create_one(Concat { axis: 1 }, &[x, y])?;
    Ok(vec![e.rw.create_one(small_pool(), &[both])?])
}

/// conv(x, w) in g groups = conv(x, w') in g / k groups, where w' has zeros between the inputs and outputs of merged
/// groups: more arithmetic in wider tiles
fn groups(view: &View<'_>, out: &mut Vec<Equation>) {
    for conv in view.all::<Conv>() {
        let (Some(dims), Some(dtype)) = (view.dims(conv.operand(1)), view.dtype(conv.class)) else { continue };
        let g = conv.op.group as usize;
        // Filters that were widened already are not widened again.
        let own = !view.in_class::<Reshape>(conv.operand(1)).is_empty();
        if g < 2 || own || !view.known(conv.operand(1)) {
            continue;
        }
        let (co, ci, taps) = (dims[0] / g, dims[1], dims[2..].iter().product::<usize>());
        for k in (2..=g).filter(|k| g.is_multiple_of(*k) && k.is_power_of_two()) {
            let diagonal = (0..k * k).map(|i| if i / k == i % k { 1.0 } else { 0.0 }).collect();
            let diagonal = Tensor::from_elements(dtype, vec![k, 1, k, 1, 1], of_ir::Elements::Float(diagonal));
            let Ok(diagonal) = diagonal else { continue };
            let shaped = |t: Term, d: &[usize]| {
                let list: Vec<i64> = d.iter().map(|n| *n as i64).collect();
                Term::op(Reshape { allowzero: true }, [t, Term::ints(&list)])
            };
            let apart = shaped(Term::Class(conv.operand(1)), &[g / k, k, co, 1, ci, taps]);
            let joined = Term::op(Mul {}, [apart, Term::constant(diagonal)]);
            let filter = shaped(joined, &[&[dims[0], k * ci], &dims[2..]].concat());
            let op = Conv { group: (g / k) as i64, ..conv.op.clone() };
            let rest = conv.node.children[2..].iter().map(|b| Term::Class(*b));
            let term = Term::op(op, [Term::Class(conv.operand(0)), filter].into_iter().chain(rest));
            out.push(view.equation(conv.class, term, &[conv.node]));
        }
    }
}

fn groups_example(e: &mut Example<'_, '_>) -> ExampleResult {
    let (group, ci) = (e.rng.pick(&[2, 4]), e.rng.int(1, 2) as usize);
    let x = e.input(&[1, group * ci, 4, 4]);
    let w = e.known(&[group * 3, ci, 3, 3])?;
    let op = Conv { group: group as i64, ..e.conv_op(1, 1) };
    Ok(vec![e.rw.create_one(op, &[x, w])?])
}

/// maxpool(f(x)) = f(maxpool(x)) for increasing f, unless a window holds padding alone: its maximum is the least number.
fn pool_map(view: &View<'_>, out: &mut Vec<Equation>) {
    for pool in view.all::<MaxPool>().into_iter().filter(|p| !p.op.return_indices) {
        for node in view.nodes(view.graph.egg.find(pool.operand(0))) {
            let Some(x) = rises(view, node) else { continue };
            let (Some((def, attrs)), Some(dims)) = (view.graph.op_and_attrs(node), view.dims(pool.operand(0))) else {
                continue;
            };
            let shape: Vec<Dim> = dims.iter().map(|d| Dim::from(*d)).collect();
            if view.dims(x).as_ref() != Some(&dims) || !pool.op.windows_reach(&shape) {
                continue;
            }
            let inner = Term::op(pool.op.clone(), [Term::Class(x)]);
            let operands = node.children.iter().map(|c| if view.same(*c, x) { inner.clone() } else { Term::Class(*c) });
            out.push(view.equation(pool.class, Term::Op(def, attrs.clone(), operands.collect()), &[pool.node, node]));
        }
    }
}

/// The operand in which an e-node is monotonically increasing, where the others are one number: relu(x), max(x, c),
/// min(x, c), tanh(x) …
fn rises(view: &View<'_>, node: &crate::egraph::language::Node) -> Option<Id> {
    use of_ops::elementwise::{Exp, Max, Min, Relu, Sigmoid, Tanh};
    let (def, _) = view.graph.op_and_attrs(node)?;
    match def.name() {
        Relu::NAME | Tanh::NAME | Sigmoid::NAME | Exp::NAME => Some(node.children[0]),
        Max::NAME | Min::NAME => {
            let one = |c: &Id| view.dims(*c).is_some_and(|d| d.is_empty());
            let list: Vec<Id> = node.children.iter().copied().filter(|c| !one(c)).collect();
            if let [x] = list[..] { Some(x) } else { None }
        }
        _ => None,
    }
}

fn pool_map_example(e: &mut Example<'_, '_>) -> ExampleResult {
    use of_ops::elementwise::{Max, Relu};
    let x = e.input(&[1, 2, 6, 6]);
    let zero = e.known(&[])?;
    let pool = small_pool();
    let (a, b) = (e.rw.create_one(Relu {}, &[x])?, e.rw.create_one(Max {}, &[zero, x])?);
    Ok(vec![e.rw.create_one(pool.clone(), &[a])?, e.rw.create_one(pool, &[b])?])
}

fn small_pool() -> MaxPool {
    MaxPool {
        kernel: vec![2, 2],
        strides: vec![2, 2],
        pads: vec![0, 1, 0, 0],
        dilations: vec![],
        ceil_mode: false,
        storage_order: 0,
        return_indices: false,
        auto_pad: "NOTSET".into(),
        channels_last: false,
    }
}
