//! Products as calls of cuBLASLt, with what it computes at their end: which ones, and what stands in a plan for a call.
//!
//! The library is taken for whole fused groups or not at all. A product is a call where operands and result are of one type
//! (f32, f16 or bf16), rows, columns and terms of a sum are [`LEAST`] or more, all extents are numbers, and all that is fused
//! with it is `activation(scale * left right + more * added + bias)`, with at most one tensor of the result's extents, one
//! line of its columns, and a ReLU or the GELU by tanh. 16-bit floats are rounded once, at the end.

use of_ir::DType;
use of_ops::scalar::ScalarOp;

use super::tensor::Products;
use crate::lower::body::{Body, Node};
use crate::native::contraction::{Contraction, Element, Operand, RowAxes, depth};
use crate::native::{Extent, Isa, space};

/// Name of the steps in plans, and of the flag behind an architecture.
pub const NAME: &str = "cublaslt";

/// Rows, columns and terms of a sum, at least: below that, a call has little to multiply.
pub const LEAST: usize = 16;

/// The first words of what stands in a plan for a call.
const MAGIC: &str = "of-cublaslt-1";

/// How f32 is multiplied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum Floats {
    AsTheyAre,
    Tf32,
    Bf16,
    F16,
}

/// What is computed of each element at the end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum Activation {
    None,
    Relu,
    /// `x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))`.
    GeluByTanh,
}

/// How a matrix lies in memory: lines of neighbouring elements.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Matrix {
    /// Whether its columns are the lines, rather than its rows.
    pub transposed: bool,
    /// Elements from one line to the next.
    pub line: u64,
    /// Elements from one matrix of a batch to the next; 0 where all are the same one.
    pub batch: u64,
}

/// A call: `activation(scale * left right + more * added + bias)` for each matrix of a batch. Its arguments are `left`,
/// `right`, `added` and `bias` where they are there, and the result.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Product {
    /// Type of all elements.
    pub dtype: DType,
    /// How f32 is multiplied.
    pub floats: Floats,
    /// Rows of the left operand and of the result.
    pub rows: u64,
    /// Columns of the right operand and of the result.
    pub columns: u64,
    /// Terms of each sum.
    pub depth: u64,
    /// Matrices in a batch.
    pub batches: u64,
    /// The left operand, `rows` by `depth`.
    pub left: Matrix,
    /// The right operand, `depth` by `columns`.
    pub right: Matrix,
    /// The result, whose lines are its rows.
    pub result: Matrix,
    /// What products are multiplied by.
    pub scale: f32,
    /// What a tensor that lies as the result does is multiplied by before it is added, where there is one.
    pub added: Option<f32>,
    /// Whether a line is added to each row.
    pub bias: bool,
    /// What is computed at the end.
    pub activation: Activation,
}

/// A contraction with its epilogue as a call, and which loads of the body are the tensor and the line that it adds.
///
/// # Errors
/// Why it is none, in one sentence.
pub fn product(
    spec: &Contraction,
    body: &Body,
    axes: &RowAxes,
    out: &[Extent],
    isa: &Isa,
) -> Result<(Product, Vec<usize>), String> {
    let dtype = match spec.element {
        Element::Float => DType::F32,
        Element::Half(dtype) => dtype,
        Element::Unsigned | Element::Signed => return Err("it multiplies bytes".into()),
    };
    let floats = match Products::of(isa, dtype) {
        None | Some(Products::Half(_)) => Floats::AsTheyAre,
        Some(Products::Tf32) => Floats::Tf32,
        Some(Products::Bf16) => Floats::Bf16,
        Some(Products::F16) => Floats::F16,
        Some(Products::Three) => return Err("the library has no products of f32 in three of ten bits".into()),
    };
    let number = |e: &Extent| e.number().map(|n| n as u64).ok_or("its extents are not known before the run");
    if spec.taps.iter().any(|(n, _)| *n != 1) || !spec.outer.0.is(1) {
        return Err("its rows do not lie evenly apart: it is a convolution of several points".into());
    }
    let (rows, columns, depth) = (number(&spec.inner.0)?, number(&spec.columns)?, number(&depth(spec))?);
    if [rows, columns, depth].into_iter().min() < Some(LEAST as u64) {
        return Err(format!("it has {rows} rows, {columns} columns and sums of {depth}: one is less than {LEAST}"));
    }
    let Operand::RowMajor(right) = &spec.b else { return Err("its right operand is in panels".into()) };
    let [(_, root)] = body.stores[..] else {
        return Err("a value before the end of what is fused with it is read elsewhere".into());
    };
    if body.nodes[root].dtype != dtype {
        return Err(format!("its operands are {dtype} and its result is {}", body.nodes[root].dtype));
    }
    let to = axes.walk(out).filter(|w| w.column.is(1)).ok_or("its result has no rows")?;
    let mut e = Epilogue { body, dtype, scale: None, added: None, bias: None };
    let (activation, inner) = e.activation(e.plain(root))?;
    let of = |l: usize| axes.walk(&body.loads[l].strides).ok_or("an operand of its epilogue does not follow its rows");
    let is_line = |l: usize| {
        let w = of(l)?;
        Ok(w.column.is(1) && w.inner.is(0) && w.batch.iter().all(|s| s.is(0)))
    };
    let is_alike = |l: usize| {
        let w = of(l)?;
        Ok(w.column.is(1) && w.inner == to.inner && w.batch == to.batch)
    };
    e.sum(inner, 1.0, &is_line, &is_alike)?;
    let space = space::collapse(&spec.batch, &[spec.a_batch.clone(), spec.b_batch.clone(), to.batch.clone()]);
    let [batches] = &space.dims[..] else { return Err("its batches do not lie evenly apart".into()) };
    let matrix = |line: &Extent, at: usize| {
        Ok::<_, String>(Matrix { transposed: false, line: number(line)?, batch: number(&space.strides[at][0])? })
    };
    let product = Product {
        dtype,
        floats,
        rows,
        columns,
        depth,
        batches: number(batches)?,
        left: matrix(&spec.inner.1, 0)?,
        right: matrix(right, 1)?,
        result: matrix(&to.inner, 2)?,
        scale: e.scale.ok_or("what is fused with it is no sum with it")? as f32,
        added: e.added.map(|(_, factor)| factor as f32),
        bias: e.bias.is_some(),
        activation,
    };
    product.spans().ok_or("its rows overlap")?;
    Ok((product, e.added.map(|(l, _)| l).into_iter().chain(e.bias).collect()))
}

/// What is fused with a product, as far as it was understood.
struct Epilogue<'a> {
    body: &'a Body,
    dtype: DType,
    scale: Option<f64>,
    added: Option<(usize, f64)>,
    bias: Option<usize>,
}

/// What an operand of the epilogue is.
type Is<'a> = dyn Fn(usize) -> Result<bool, String> + 'a;

impl Epilogue<'_> {
    /// The node that `n` is the rounded or widened value of.
    fn plain(&self, mut n: usize) -> usize {
        let own = |d: DType| d == DType::F32 || d == self.dtype;
        while let Node::Op(ScalarOp::Cast(to), args) = &self.body.nodes[n].node {
            if !own(*to) || !own(self.body.nodes[args[0]].dtype) {
                break;
            }
            n = args[0];
        }
        n
    }

    fn number(&self, n: usize) -> Option<f64> {
        match self.body.nodes[self.plain(n)].node {
            Node::Const(c) => Some(c),
            _ => None,
        }
    }

    /// What is computed at the end, and of which node.
    fn activation(&self, root: usize) -> Result<(Activation, usize), String> {
        if let Node::Op(ScalarOp::Max, args) = &self.body.nodes[root].node
            && let [a, b] = args[..]
        {
            for (x, zero) in [(a, b), (b, a)] {
                if self.number(zero) == Some(0.0) {
                    return Ok((Activation::Relu, self.plain(x)));
                }
            }
        }
        let has = |op: ScalarOp| self.body.nodes.iter().any(|t| matches!(&t.node, Node::Op(o, _) if *o == op));
        if has(ScalarOp::Erf) {
            return Err("its GELU is the exact one, the library's is the one by tanh".into());
        }
        let of = (0..root).filter(|_| has(ScalarOp::Tanh)).find(|x| self.plain(*x) == *x && self.is_gelu(root, *x));
        Ok(of.map_or((Activation::None, root), |x| (Activation::GeluByTanh, x)))
    }

    /// Adds `factor` times node `n`.
    fn sum(&mut self, n: usize, factor: f64, is_line: &Is<'_>, is_alike: &Is<'_>) -> Result<(), String> {
        let n = self.plain(n);
        let twice = || Err("the library adds one tensor and one line".to_string());
        match &self.body.nodes[n].node {
            Node::Anchor if self.scale.is_none() => self.scale = Some(factor),
            Node::Load(l) if self.body.loads[*l].dtype != self.dtype => {
                return Err(format!("an operand of its epilogue is {}", self.body.loads[*l].dtype));
            }
            Node::Load(l) if is_line(*l)? && factor == 1.0 => {
                if self.bias.replace(*l).is_some() {
                    return twice();
                }
            }
            Node::Load(l) if is_alike(*l)? => {
                if self.added.replace((*l, factor)).is_some() {
                    return twice();
                }
            }
            Node::Load(_) => return Err("it adds something that is neither a line nor a tensor as its result".into()),
            Node::Op(ScalarOp::Add, args) => {
                for a in args {
                    self.sum(*a, factor, is_line, is_alike)?;
                }
            }
            Node::Op(ScalarOp::Sub, args) => {
                self.sum(args[0], factor, is_line, is_alike)?;
                self.sum(args[1], -factor, is_line, is_alike)?;
            }
            Node::Op(ScalarOp::Neg, args) => self.sum(args[0], -factor, is_line, is_alike)?,
            Node::Op(op @ (ScalarOp::Mul | ScalarOp::Div), args) => {
                let (x, c) = match (self.number(args[0]), self.number(args[1])) {
                    (Some(c), None) if *op == ScalarOp::Mul => (args[1], c),
                    (None, Some(c)) if *op == ScalarOp::Mul => (args[0], c),
                    (None, Some(c)) => (args[0], 1.0 / c),
                    _ => return Err("it is multiplied or divided by more than a number".into()),
                };
                self.sum(x, factor * c, is_line, is_alike)?;
            }
            Node::Op(op, _) => return Err(format!("the library has no {op:?} at the end of a product")),
            Node::Const(_) => return Err("it adds one number to every element".into()),
            Node::Anchor | Node::Reduce(..) => return Err("what is fused with it reads it twice".into()),
        }
        Ok(())
    }

    /// Whether node `root` is the GELU by tanh of node `x`, however it is written: as a polynomial of x and the tanh, it is
    /// `0.5 x + 0.5 x tanh(u)` with `u = s x + 0.044715 s x^3`.
    fn is_gelu(&self, root: usize, x: usize) -> bool {
        let s = (2.0 / std::f64::consts::PI).sqrt();
        // Constants are numbers of the type.
        let near = match self.dtype {
            DType::BF16 => 1.6e-2,
            DType::F16 => 2e-3,
            _ => 1e-5,
        };
        let is = |p: &[f64; 4], q: [f64; 4]| p.iter().zip(q).all(|(a, b)| (a - b).abs() <= near * b.abs());
        let mut known: Vec<Option<Halves>> = Vec::with_capacity(root + 1);
        for (n, t) in self.body.nodes[..=root].iter().enumerate() {
            let arg = |i: &usize| known.get(self.plain(*i)).copied().flatten();
            let value = match &t.node {
                _ if n == x => Some(Halves { plain: [0.0, 1.0, 0.0, 0.0], tanh: [0.0; 4] }),
                Node::Const(c) => Some(Halves::number(*c)),
                Node::Op(op, args) => {
                    match (op, &args.iter().map(arg).collect::<Option<Vec<_>>>().unwrap_or_default()[..]) {
                        (ScalarOp::Add, [a, b]) => Some(a.plus(b, 1.0)),
                        (ScalarOp::Sub, [a, b]) => Some(a.plus(b, -1.0)),
                        (ScalarOp::Neg, [a]) => Halves::number(-1.0).times(a),
                        (ScalarOp::Mul, [a, b]) => a.times(b),
                        (ScalarOp::Tanh, [u]) if is(&u.plain, [0.0, s, 0.0, 0.044715 * s]) && u.tanh == [0.0; 4] => {
                            Some(Halves { plain: [0.0; 4], tanh: [1.0, 0.0, 0.0, 0.0] })
                        }
                        _ => None,
                    }
                }
                _ => None,
            };
            known.push(value);
        }
        let half = [0.0, 0.5, 0.0, 0.0];
        known[root].is_some_and(|y| is(&y.plain, half) && is(&y.tanh, half))
    }
}

/// `plain(x) + tanh(x) t`, both polynomials of the third degree.
#[derive(Clone, Copy)]
struct Halves {
    plain: [f64; 4],
    tanh: [f64; 4],
}

impl Halves {
    fn number(c: f64) -> Halves {
        Halves { plain: [c, 0.0, 0.0, 0.0], tanh: [0.0; 4] }
    }

    fn plus(&self, b: &Halves, factor: f64) -> Halves {
        let sum = |a: &[f64; 4], b: &[f64; 4]| std::array::from_fn(|i| a[i] + factor * b[i]);
        Halves { plain: sum(&self.plain, &b.plain), tanh: sum(&self.tanh, &b.tanh) }
    }

    /// The product; `None` where its degree is too high.
    fn times(&self, b: &Halves) -> Option<Halves> {
        let times = |a: &[f64; 4], b: &[f64; 4]| {
            let mut out = [0.0; 7];
            (0..16).for_each(|i| out[i / 4 + i % 4] += a[i / 4] * b[i % 4]);
            (out[4..] == [0.0; 3]).then(|| [out[0], out[1], out[2], out[3]])
        };
        let squares = times(&self.tanh, &b.tanh)?;
        let (one, other) = (times(&self.plain, &b.tanh)?, times(&self.tanh, &b.plain)?);
        let tanh = std::array::from_fn(|i| one[i] + other[i]);
        (squares == [0.0; 4]).then_some(Halves { plain: times(&self.plain, &b.plain)?, tanh })
    }
}

impl Product {
    /// Elements that each argument spans, from its first one on; `None` where lines overlap or the numbers are too large.
    pub fn spans(&self) -> Option<Vec<u64>> {
        let span = |m: &Matrix, rows: u64, columns: u64| {
            let (lines, long) = if m.transposed { (columns, rows) } else { (rows, columns) };
            let all = m.batch.checked_mul(self.batches.checked_sub(1)?)?;
            let own = m.line.checked_mul(lines.checked_sub(1)?)?.checked_add(long)?;
            (m.line >= long && long > 0).then(|| all.checked_add(own))?
        };
        let result = span(&self.result, self.rows, self.columns)?;
        let mut out = vec![span(&self.left, self.rows, self.depth)?, span(&self.right, self.depth, self.columns)?];
        out.extend(self.added.map(|_| result));
        out.extend(self.bias.then_some(self.columns));
        out.push(result);
        (!self.result.transposed).then_some(out)
    }

    /// What stands in a plan for the call.
    pub fn write(&self) -> Vec<u8> {
        let place = |found: Option<usize>| found.unwrap_or_default() as u64;
        let mut words = vec![
            place(DTYPES.iter().position(|d| *d == self.dtype)),
            place(FLOATS.iter().position(|f| *f == self.floats)),
            place(ACTIVATIONS.iter().position(|a| *a == self.activation)),
        ];
        words.extend([self.rows, self.columns, self.depth, self.batches]);
        for m in [self.left, self.right, self.result] {
            words.extend([u64::from(m.transposed), m.line, m.batch]);
        }
        let added = self.added.unwrap_or_default();
        words.extend([self.scale, added].map(|x| u64::from(x.to_bits())));
        words.extend([self.added.is_some(), self.bias].map(u64::from));
        let words: Vec<String> = words.iter().map(u64::to_string).collect();
        format!("{MAGIC} {}", words.join(" ")).into_bytes()
    }

    /// The inverse of [`Product::write`].
    ///
    /// # Errors
    /// When the bytes are none of ours, or damaged.
    pub fn read(bytes: &[u8]) -> Result<Product, String> {
        let mut words = std::str::from_utf8(bytes).unwrap_or_default().split(' ');
        let found =
            if words.next() == Some(MAGIC) { Product::of(&mut words.map_while(|w| w.parse().ok())) } else { None };
        found
            .filter(|p| p.spans().is_some())
            .ok_or_else(|| "it is no call of cuBLASLt, or one of another version".into())
    }

    fn of(words: &mut dyn Iterator<Item = u64>) -> Option<Product> {
        let mut next = || words.next();
        let (dtype, floats, activation) = (next()? as usize, next()? as usize, next()? as usize);
        let (dtype, floats, activation) = (*DTYPES.get(dtype)?, *FLOATS.get(floats)?, *ACTIVATIONS.get(activation)?);
        let [rows, columns, depth, batches] = [next()?, next()?, next()?, next()?];
        let mut matrix = || Some(Matrix { transposed: next()? == 1, line: next()?, batch: next()? });
        let (left, right, result) = (matrix()?, matrix()?, matrix()?);
        let float = |bits: u64| u32::try_from(bits).ok().map(f32::from_bits);
        let (scale, added) = (float(next()?)?, float(next()?)?);
        let added = (next()? == 1).then_some(added);
        let bias = next()? == 1;
        Some(Product {
            dtype,
            floats,
            rows,
            columns,
            depth,
            batches,
            left,
            right,
            result,
            scale,
            added,
            bias,
            activation,
        })
    }
}

/// What elements may be, and the others of what is written as a number.
const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];
const FLOATS: [Floats; 4] = [Floats::AsTheyAre, Floats::Tf32, Floats::Bf16, Floats::F16];
const ACTIVATIONS: [Activation; 3] = [Activation::None, Activation::Relu, Activation::GeluByTanh];
