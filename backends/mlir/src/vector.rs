//! Kernels in the dialect `vector`: elementwise and row-wise nests of the code generator, printed as MLIR.
//!
//! A kernel has the arguments and the semantics of the C kernel of the same nest (`codegen/src/print/c`), so either can
//! replace the other.

use std::collections::{BTreeSet, HashMap};

use of_codegen::Isa;
use of_codegen::kernel::body::{Body, Node, ReduceKind};
use of_codegen::kernel::extent::numbers;
use of_codegen::kernel::space::{self, row_major};
use of_codegen::kernel::{Extent, Nest};
use of_emit::Text;
use of_ir::DType;
use of_ops::scalar::ScalarOp;

use crate::emit::arith::{Item, Scalars, stored};
use crate::emit::pointer;

/// Row length that a flat space is split into, if it divides it.
const CHUNK: usize = 4096;

/// A kernel as text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Kernel {
    /// MLIR in the dialects `func`, `scf`, `memref`, `vector`, `arith`, `math` and `llvm`.
    pub text: String,
    /// Iterations of its outer loop.
    pub iterations: usize,
}

/// The kernel of a nest.
///
/// # Errors
/// Why it is not supported.
pub fn kernel(nest: &Nest, isa: &Isa) -> Result<Kernel, String> {
    let rows = match nest {
        Nest::Elementwise { body, dims } => Rows::flat(body, dims)?,
        Nest::RowWise { body, dims, inner } => Rows::of(body, dims, *inner)?,
        _ => return Err("only elementwise and row-wise nests are supported in the vector dialect".into()),
    };
    let mut printer = Printer { rows: &rows, lanes: isa.lanes, text: Text::new("%v"), reduced: HashMap::new() };
    printer.print()?;
    let iterations = rows.outer.iter().product();
    Ok(Kernel { text: crate::emit::kernel(&printer.text.lines, "%status", &BTreeSet::new(), isa)?, iterations })
}

/// Rows of an iteration space, and the strides of each argument.
struct Rows<'b> {
    body: &'b Body,
    /// Extents of the axes of the outer loop.
    outer: Vec<usize>,
    /// Elements of a row.
    inner: usize,
    /// For each argument (the loads, then the stores): strides of the outer axes, and the stride along a row.
    strides: Vec<(Vec<usize>, usize)>,
}

impl<'b> Rows<'b> {
    /// The smallest equivalent of an elementwise space, in which the last axis is the row.
    fn flat(body: &'b Body, dims: &[Extent]) -> Result<Rows<'b>, String> {
        let loads = body.loads.iter().map(|l| l.strides.clone());
        let strides: Vec<Vec<Extent>> = loads.chain([row_major(dims)]).collect();
        let s = space::collapse(dims, &strides);
        let open = || "its extents are not all numbers".to_string();
        let mut outer = numbers(&s.dims).ok_or_else(open)?;
        let mut inner = outer.pop().unwrap_or(1);
        let mut strides = Vec::new();
        for own in &s.strides {
            let mut own = numbers(own).ok_or_else(open)?;
            let step = own.pop().unwrap_or(0);
            strides.push((own, step));
        }
        if outer.is_empty() && inner > CHUNK && inner.is_multiple_of(CHUNK) {
            (outer, inner) = (vec![inner / CHUNK], CHUNK);
            strides.iter_mut().for_each(|(own, step)| *own = vec![*step * CHUNK]);
        }
        // All stores have the same layout.
        let store = strides.pop().ok_or_else(open)?;
        strides.extend(body.stores.iter().map(|_| store.clone()));
        Ok(Rows { body, outer, inner, strides })
    }

    /// The last `inner` axes form a row.
    fn of(body: &'b Body, dims: &[Extent], inner: usize) -> Result<Rows<'b>, String> {
        let open = || "its extents are not all numbers".to_string();
        let start = dims.len() - inner;
        let (out, extents) = (row_major(dims), numbers(dims).ok_or_else(open)?);
        let split = |strides: &[Extent]| -> Result<(Vec<usize>, usize), String> {
            let along = space::single_stride(&dims[start..], &strides[start..]);
            let along = along.ok_or("an operand is read with more than one stride along a row")?;
            Ok((numbers(&strides[..start]).ok_or_else(open)?, along.number().ok_or_else(open)?))
        };
        let mut strides = Vec::new();
        for l in &body.loads {
            strides.push(split(&l.strides)?);
        }
        for (_, n) in &body.stores {
            strides.push(if body.nodes[*n].per_row {
                (numbers(&row_major(&dims[..start])).ok_or_else(open)?, 0)
            } else {
                split(&out)?
            });
        }
        Ok(Rows { body, outer: extents[..start].to_vec(), inner: extents[start..].iter().product(), strides })
    }

    /// The span of argument `i`, in elements.
    fn elements(&self, i: usize) -> usize {
        let (own, along) = &self.strides[i];
        let reach: usize = self.outer.iter().zip(own).map(|(n, s)| n.saturating_sub(1) * s).sum();
        reach + self.inner.saturating_sub(1) * along + 1
    }
}

struct Printer<'r> {
    rows: &'r Rows<'r>,
    lanes: usize,
    text: Text,
    /// Results of row reductions, splat over all lanes.
    reduced: HashMap<usize, Item>,
}

/// An argument in the text.
struct Arg {
    memory: String,
    /// The type of the memref.
    ty: String,
    dtype: DType,
    /// Offset of the row.
    base: String,
    step: usize,
}

impl Printer<'_> {
    fn line(&mut self, text: &str) {
        self.text.line(text);
    }

    fn name(&mut self, text: &str) -> String {
        let name = self.text.fresh();
        self.line(&format!("{name} = {text}"));
        name
    }

    fn index(&mut self, n: usize) -> String {
        self.name(&format!("arith.constant {n} : index"))
    }

    fn scalars(&mut self) -> Scalars<'_> {
        Scalars::new(&mut self.text, Some(self.lanes))
    }

    fn print(&mut self) -> Result<(), String> {
        let (body, rows) = (self.rows.body, self.rows);
        self.line("%status = arith.constant 0 : i32");
        let loads = body.loads.iter().map(|l| l.dtype);
        let dtypes: Vec<DType> = loads.chain(body.stores.iter().map(|(_, n)| body.nodes[*n].dtype)).collect();
        let mut args = Vec::new();
        for (i, dtype) in dtypes.iter().enumerate() {
            let elements = rows.elements(i);
            let memory = pointer::argument(&mut self.text, i, stored(*dtype)?, &[elements]);
            let ty = format!("memref<{elements}x{}>", stored(*dtype)?);
            args.push(Arg { memory, ty, dtype: *dtype, base: String::new(), step: rows.strides[i].1 });
        }
        let (from, to) =
            (self.name("arith.index_cast %begin : i64 to index"), self.name("arith.index_cast %end : i64 to index"));
        let one = self.index(1);
        self.line(&format!("scf.for %row = {from} to {to} step {one} {{"));
        for (i, arg) in args.iter_mut().enumerate() {
            arg.base = self.base(i);
        }
        for (n, t) in body.nodes.iter().enumerate() {
            if let Node::Reduce(kind, of) = t.node {
                let row = self.reduce(&args, kind, of, t.dtype)?;
                self.reduced.insert(n, row);
            }
        }
        let (whole, single): (Vec<usize>, Vec<usize>) =
            (0..body.stores.len()).partition(|k| !(body.nodes[body.stores[*k].1].per_row && self.has_rows()));
        self.walk(|p, at, part| p.give(&args, &whole, at, part))?;
        if !single.is_empty() {
            let zero = self.index(0);
            self.give(&args, &single, &zero, Some(1))?;
        }
        self.line("}");
        Ok(())
    }

    /// Whether values of a row exist at all.
    fn has_rows(&self) -> bool {
        self.rows.body.nodes.iter().any(|t| matches!(t.node, Node::Reduce(..)))
    }

    /// The offset of row `%row` of an argument.
    fn base(&mut self, i: usize) -> String {
        let (outer, strides) = (self.rows.outer.clone(), self.rows.strides[i].0.clone());
        let mut base = self.index(0);
        let mut below = 1;
        for axis in (0..outer.len()).rev() {
            if strides[axis] != 0 && outer[axis] != 1 {
                let (by, n, stride) = (self.index(below), self.index(outer[axis]), self.index(strides[axis]));
                let at = self.name(&format!("arith.divui %row, {by} : index"));
                let at = self.name(&format!("arith.remui {at}, {n} : index"));
                let at = self.name(&format!("arith.muli {at}, {stride} : index"));
                base = self.name(&format!("arith.addi {base}, {at} : index"));
            }
            below *= outer[axis];
        }
        base
    }

    /// Prints the elements of a row: a loop of whole vectors, then the remainder.
    fn walk(
        &mut self,
        mut body: impl FnMut(&mut Self, &str, Option<usize>) -> Result<(), String>,
    ) -> Result<(), String> {
        let (lanes, inner) = (self.lanes, self.rows.inner);
        let whole = inner - inner % lanes;
        if whole > 0 {
            let (from, to, step) = (self.index(0), self.index(whole), self.index(lanes));
            let at = format!("%i{}", self.text.number());
            self.line(&format!("scf.for {at} = {from} to {to} step {step} {{"));
            body(self, &at, None)?;
            self.line("}");
        }
        if inner % lanes > 0 {
            let at = self.index(whole);
            body(self, &at, Some(inner % lanes))?;
        }
        Ok(())
    }

    fn vector(&self, dtype: DType) -> Result<String, String> {
        Ok(format!("vector<{}x{}>", self.lanes, stored(dtype)?))
    }

    fn mask(&mut self, part: usize) -> String {
        let lanes = self.lanes;
        self.name(&format!("vector.constant_mask [{part}] : vector<{lanes}xi1>"))
    }

    /// The elements of an argument from row position `at` on.
    fn load(&mut self, arg: &Arg, at: &str, part: Option<usize>) -> Result<Item, String> {
        let (lanes, element, vector) = (self.lanes, stored(arg.dtype)?, self.vector(arg.dtype)?);
        let step = self.index(arg.step);
        let along = self.name(&format!("arith.muli {at}, {step} : index"));
        let place = self.name(&format!("arith.addi {}, {along} : index", arg.base));
        let read = format!("{}[{place}]", arg.memory);
        let name = match (arg.step, part) {
            (0, _) => {
                let one = self.name(&format!("memref.load {read} : {}", arg.ty));
                self.name(&format!("vector.broadcast {one} : {element} to {vector}"))
            }
            (1, None) => self.name(&format!("vector.load {read} : {}, {vector}", arg.ty)),
            (1, Some(n)) => {
                let (mask, none) = (self.mask(n), self.nothing(arg.dtype)?);
                self.name(&format!(
                    "vector.maskedload {read}, {mask}, {none} : {}, vector<{lanes}xi1>, {vector} into {vector}",
                    arg.ty
                ))
            }
            (step, part) => {
                let (mask, none) = (self.mask(part.unwrap_or(lanes)), self.nothing(arg.dtype)?);
                let places: Vec<String> = (0..lanes).map(|l| (l * step).to_string()).collect();
                let places =
                    self.name(&format!("arith.constant dense<[{}]> : vector<{lanes}xindex>", places.join(", ")));
                self.name(&format!(
                    "vector.gather {read} [{places}], {mask}, {none} : {}, vector<{lanes}xindex>, vector<{lanes}xi1>, \
                     {vector} into {vector}",
                    arg.ty
                ))
            }
        };
        Ok(self.scalars().loaded(Item { name, dtype: arg.dtype }))
    }

    /// Zeros, for masked lanes.
    fn nothing(&mut self, dtype: DType) -> Result<String, String> {
        let (vector, zero) = (self.vector(dtype)?, if dtype.is_float() { "0.0" } else { "0" });
        Ok(self.name(&format!("arith.constant dense<{zero}> : {vector}")))
    }

    /// The values of nodes at a position, including the nodes that they depend on.
    fn values(&mut self, args: &[Arg], wanted: &[usize], at: &str, part: Option<usize>) -> Result<Vec<Item>, String> {
        let body = self.rows.body;
        let mut needed = vec![false; body.nodes.len()];
        wanted.iter().for_each(|n| needed[*n] = true);
        // Operands precede their users. Reductions are computed earlier.
        for n in (0..body.nodes.len()).rev() {
            if let (true, Node::Op(_, args)) = (needed[n], &body.nodes[n].node) {
                args.iter().for_each(|a| needed[*a] = true);
            }
        }
        let mut known: HashMap<usize, Item> = HashMap::new();
        for (n, t) in body.nodes.iter().enumerate().filter(|(n, _)| needed[*n]) {
            let value = match &t.node {
                Node::Load(l) => self.load(&args[*l], at, part)?,
                Node::Const(c) => self.scalars().number(t.dtype, *c),
                Node::Anchor => return Err("the result of an anchor is not supported in the vector dialect".into()),
                Node::Reduce(..) => {
                    self.reduced.get(&n).cloned().ok_or("a reduction of a reduction of the same row")?
                }
                Node::Op(op, of) => {
                    let of: Vec<Item> = of.iter().map(|a| known[a].clone()).collect();
                    self.scalars().apply(*op, &of)?
                }
            };
            known.insert(n, value);
        }
        Ok(wanted.iter().map(|n| known[n].clone()).collect())
    }

    /// Writes the stores `which`.
    fn give(&mut self, args: &[Arg], which: &[usize], at: &str, part: Option<usize>) -> Result<(), String> {
        let body = self.rows.body;
        let nodes: Vec<usize> = which.iter().map(|k| body.stores[*k].1).collect();
        let values = self.values(args, &nodes, at, part)?;
        for (k, value) in which.iter().zip(values) {
            let arg = &args[body.loads.len() + k];
            let value = self.scalars().to_store(&value).name;
            let place = self.name(&format!("arith.addi {}, {at} : index", arg.base));
            let (lanes, vector) = (self.lanes, self.vector(arg.dtype)?);
            match part {
                None => self.line(&format!("vector.store {value}, {}[{place}] : {}, {vector}", arg.memory, arg.ty)),
                Some(n) => {
                    let mask = self.mask(n);
                    self.line(&format!(
                        "vector.maskedstore {}[{place}], {mask}, {value} : {}, vector<{lanes}xi1>, {vector}",
                        arg.memory, arg.ty
                    ));
                }
            }
        }
        Ok(())
    }

    /// A row reduction, splat over all lanes. Lanes are combined at the end; sums of 16-bit floats accumulate in f32.
    fn reduce(&mut self, args: &[Arg], kind: ReduceKind, of: usize, dtype: DType) -> Result<Item, String> {
        let (f, start) = match kind {
            ReduceKind::Sum => (ScalarOp::Add, 0.0),
            ReduceKind::Prod => (ScalarOp::Mul, 1.0),
            ReduceKind::Max => (ScalarOp::Max, f64::NEG_INFINITY),
            ReduceKind::Min => (ScalarOp::Min, f64::INFINITY),
        };
        if dtype == DType::Bool {
            return Err("reductions of bools are not supported in the vector dialect".into());
        }
        let wide = if matches!(dtype, DType::F16 | DType::BF16) { DType::F32 } else { dtype };
        let (lanes, inner, vector) = (self.lanes, self.rows.inner, self.vector(wide)?);
        // Integers have no infinities: the number is clamped to the type's range.
        let first = self.scalars().number(wide, start);
        let mut so_far = first.clone();
        let whole = inner - inner % lanes;
        if whole > 0 {
            let (from, to, step) = (self.index(0), self.index(whole), self.index(lanes));
            let number = self.text.number();
            let (at, own, all) = (format!("%i{number}"), format!("%a{number}"), format!("%r{number}"));
            self.line(&format!(
                "{all} = scf.for {at} = {from} to {to} step {step} iter_args({own} = {}) -> ({vector}) {{",
                first.name
            ));
            let x = self.values(args, &[of], &at, None)?.remove(0);
            let mut s = self.scalars();
            let x = s.cast(&x, wide)?;
            let y = s.apply(f, &[Item { name: own, dtype: wide }, x])?;
            self.line(&format!("scf.yield {} : {vector}", y.name));
            self.line("}");
            so_far = Item { name: all, dtype: wide };
        }
        if inner % lanes > 0 {
            let at = self.index(whole);
            let x = self.values(args, &[of], &at, Some(inner % lanes))?.remove(0);
            let mask = self.mask(inner % lanes);
            let mut s = self.scalars();
            let x = s.cast(&x, wide)?;
            let x = s.select(&Item { name: mask, dtype: DType::Bool }, &x, &first);
            so_far = s.apply(f, &[so_far, x])?;
        }
        let (float, signed) = (wide.is_float(), wide.is_signed_int());
        let name = match (kind, float) {
            (ReduceKind::Sum, _) => "add",
            (ReduceKind::Prod, _) => "mul",
            (ReduceKind::Max, true) => "maximumf",
            (ReduceKind::Min, true) => "minimumf",
            (ReduceKind::Max, false) => {
                if signed {
                    "maxsi"
                } else {
                    "maxui"
                }
            }
            (ReduceKind::Min, false) => {
                if signed {
                    "minsi"
                } else {
                    "minui"
                }
            }
        };
        let free = if float && matches!(kind, ReduceKind::Sum | ReduceKind::Prod) { " fastmath<reassoc>" } else { "" };
        let element = stored(wide)?;
        let one = self.name(&format!("vector.reduction <{name}>, {}{free} : {vector} into {element}", so_far.name));
        let all = self.name(&format!("vector.broadcast {one} : {element} to {vector}"));
        self.scalars().cast(&Item { name: all, dtype: wide }, dtype)
    }
}

#[cfg(test)]
mod tests {

    use of_codegen::analysis::roles::Roles;
    use of_codegen::fuse::{self, GroupKind};
    use of_codegen::kernel::expr;
    use of_codegen::lower::body::{self, Special};
    use of_codegen::print::Source;
    use of_codegen::toolchain;
    use of_ir::{Graph, Tensor, ValueId};
    use of_runtime::AlignedBytes;

    use super::*;
    use crate::compile::compile;
    use crate::ffi::code::Code;

    /// Elementwise and row-wise groups of a function, as nests.
    fn nests(g: &Graph) -> Vec<Nest> {
        let roles = Roles::of(g, g.entry(), g.args());
        let groups = fuse::fuse(g, g.region_ops(g.entry()), &roles, Vec::new(), false);
        let nest = |group: &fuse::Group| match group.kind {
            GroupKind::Elementwise => Some(Nest::Elementwise {
                body: body::body(g, group, &roles, 0, &Special::default()),
                dims: group.space.clone(),
            }),
            GroupKind::Rowwise(inner) => Some(Nest::RowWise {
                body: body::body(g, group, &roles, inner, &Special::default()),
                dims: group.space.clone(),
                inner,
            }),
            _ => None,
        };
        groups.iter().filter_map(nest).collect()
    }

    fn tensor(g: &Graph, v: ValueId, seed: u64) -> Tensor {
        let ty = g.ty(v).as_tensor().unwrap();
        let dims = ty.fixed_dims().unwrap();
        let mut rng = of_ops::sample::Rng::new(seed);
        if ty.dtype.is_float() { rng.tensor(ty.dtype, &dims, -3.0, 3.0) } else { rng.tensor(ty.dtype, &dims, 0.0, 2.0) }
    }

    /// The values that a kernel stores, by its body.
    fn run(code: &Code, g: &Graph, body: &Body, scratch: u64, iterations: usize) -> Vec<Vec<f64>> {
        let inputs: Vec<Tensor> = body.loads.iter().enumerate().map(|(i, l)| tensor(g, l.value, i as u64)).collect();
        let inputs: Vec<AlignedBytes> = inputs.iter().map(|t| AlignedBytes::from(&**t.bytes().unwrap())).collect();
        let like: Vec<Tensor> = body.stores.iter().map(|(v, _)| tensor(g, *v, 0)).collect();
        let mut outputs: Vec<AlignedBytes> =
            like.iter().map(|t| AlignedBytes::zeroed(t.bytes().unwrap().len())).collect();
        let read: Vec<&[u8]> = inputs.iter().map(|b| &**b).collect();
        let mut written: Vec<&mut [u8]> = outputs.iter_mut().map(|b| &mut **b).collect();
        let status = code.call(&read, &mut written, &mut AlignedBytes::zeroed(scratch as usize), iterations as i64);
        assert_eq!(status, 0);
        let back = |(t, b): (&Tensor, &AlignedBytes)| {
            let t = Tensor::from_bytes(t.dtype(), t.dims().to_vec(), of_ir::Blob::new(b.to_vec())).unwrap();
            t.to_f64s().or_else(|| Some(t.to_i64s()?.into_iter().map(|x| x as f64).collect())).unwrap()
        };
        like.iter().zip(&outputs).map(back).collect()
    }

    /// Functions whose groups are kernels: broadcast operands, conversions, truth values, rows of any length, row results.
    const FUNCTIONS: &[&str] = &[
        r"func @main(%x: tensor<5x37xf32>, %b: tensor<37xf32>, %c: tensor<5x1xf32>) -> (tensor<5x37xf32>) {
  %s = of.add %x, %b
  %e = of.exp %s
  %t = of.tanh %s
  %p = of.mul %t, %c
  %l = of.lt %s, %p
  %y = of.select %l, %e, %p
  of.return %y
}",
        r"func @main(%x: tensor<2x8192xf16>, %k: tensor<8192xi32>) -> (tensor<2x8192xf16>, tensor<2x8192xi8>) {
  %w = of.cast %x {to = #of.dtype<f32>}
  %e = of.erf %w
  %y = of.cast %e {to = #of.dtype<f16>}
  %f = of.cast %k {to = #of.dtype<f32>}
  %m = of.mul %e, %f
  %i = of.cast %m {to = #of.dtype<i8>}
  of.return %y, %i
}",
        r"func @main(%x: tensor<3x2x50xf32>) -> (tensor<3x2x50xf32>, tensor<3x2x1xf32>) {
  %axes = of.constant {value = dense<2> : tensor<1xi64>}
  %m = of.reduce_max %x, %axes {keepdims = true}
  %d = of.sub %x, %m
  %e = of.exp %d
  %s = of.reduce_sum %e, %axes {keepdims = true}
  %y = of.div %e, %s
  %l = of.log %s
  %z = of.add %l, %m
  of.return %y, %z
}",
        r"func @main(%x: tensor<4x7xf32>, %n: tensor<4x7xi1>) -> (tensor<4x1xf32>) {
  %axes = of.constant {value = dense<1> : tensor<1xi64>}
  %s = of.sigmoid %x
  %c = of.cos %x
  %v = of.select %n, %s, %c
  %y = of.reduce_min %v, %axes {keepdims = true}
  of.return %y
}",
    ];

    #[test]
    fn kernels_match_c_kernels() {
        let isa = Isa::host();
        let mut compared = 0;
        for text in FUNCTIONS {
            let module =
                of_ir::text::parse_module(text, "test", &of_ops::registry(), None).unwrap_or_else(|d| panic!("{d}"));
            let g = &module.main().unwrap().graph;
            let nests = nests(g);
            assert!(!nests.is_empty(), "{text}");
            for nest in &nests {
                let (Nest::Elementwise { body, .. } | Nest::RowWise { body, .. }) = nest else { continue };
                assert_eq!(expr::unsupported_reason(body), None);
                let printed = kernel(nest, isa).unwrap_or_else(|why| panic!("{why}\n{text}"));
                if !crate::COMPILES {
                    continue;
                }
                let compiled = compile(&printed.text).unwrap_or_else(|why| panic!("{why}\n{}", printed.text));
                assert_eq!(compiled.scratch, 0);
                let code = Code::new(&compiled.blob.bytes, compiled.blob.entry as usize).unwrap().unwrap();
                let got = run(&code, g, body, 0, printed.iterations);
                let source: Source = nest.print(isa).unwrap();
                let blob = toolchain::compile(&source, isa).unwrap();
                let code = Code::new(&blob.bytes, blob.entry as usize).unwrap().unwrap();
                let rounds = source.iterations.number().unwrap();
                let want = run(&code, g, body, source.scratch_bytes, rounds);
                let near =
                    |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-5 * b.abs().max(1.0) || (a.is_nan() && b.is_nan());
                for (a, b) in got.iter().zip(&want) {
                    assert!(a.len() == b.len() && a.iter().zip(b).all(near), "{text}\n{a:?}\n{b:?}");
                }
                compared += 1;
            }
        }
        if !crate::COMPILES {
            let text = format!("SKIPPED: no kernel in the vector dialect is compiled; {}\n", crate::HINT);
            std::io::Write::write_all(&mut std::io::stderr(), text.as_bytes()).unwrap();
        }
        assert!(compared >= 4 || !crate::COMPILES, "{compared} kernels");
    }
}
