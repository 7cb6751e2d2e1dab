//! Extents that an op receives as an operand. If that operand is not a constant, the extents are recomputed inside the
//! subgraph from the shapes of the op's other operands. TensorRT would need values from outside when an engine is built.

use of_diag::Diagnostic;
use of_ir::{Dim, DimFn, Factor, Func, Rewriter, Tensor, ValueId};
use of_ops::elementwise::{Add, Div, Max, Min, Mod, Mul, Sub};
use of_ops::movement::Concat;
use of_ops::structural::{Constant, ShapeOf};

/// Makes every op that receives its result extents as an operand compute them inside the subgraph.
///
/// # Errors
/// The first extent that no operand of the op has.
pub fn inside(func: &mut Func) -> Result<(), String> {
    for op in func.graph.walk() {
        let g = &func.graph;
        let Some(k) = of_ops::get(g, op).and_then(|o| o.shape_operand()) else { continue };
        let [result] = g.op(op).results[..] else { continue };
        let shape = g.ty(result).as_tensor().and_then(|t| t.shape.clone());
        let known = g.op(op).operands.get(k).is_none_or(|v| g.constant(*v).is_some());
        let Some(shape) = shape.filter(|_| !known) else { continue };
        let sources: Vec<ValueId> = (0..).zip(&g.op(op).operands).filter(|(i, _)| *i != k).map(|(_, v)| *v).collect();
        let mut rw = Rewriter::new(&mut func.graph, "tensorrt");
        rw.before(op);
        let extents = Extents { rw: &mut rw, sources }.list(&shape)?;
        rw.set_operand(op, k, extents);
    }
    Ok(())
}

/// Computes extents from the shapes of values.
struct Extents<'a, 'g> {
    rw: &'a mut Rewriter<'g>,
    sources: Vec<ValueId>,
}

type Made = Result<ValueId, String>;

fn made(v: Result<ValueId, Diagnostic>) -> Made {
    v.map_err(|d| d.message)
}

impl Extents<'_, '_> {
    /// The dimensions as a tensor of one axis.
    fn list(&mut self, dims: &[Dim]) -> Made {
        if let Some(numbers) = dims.iter().map(Dim::as_const).collect::<Option<Vec<i64>>>() {
            return self.numbers(&numbers);
        }
        let parts = dims.iter().map(|d| self.dim(d)).collect::<Result<Vec<_>, _>>()?;
        made(self.rw.create_one(Concat { axis: 0 }, &parts))
    }

    fn numbers(&mut self, numbers: &[i64]) -> Made {
        made(self.rw.create_one(Constant { value: Tensor::from_i64s(numbers) }, &[]))
    }

    /// One dimension, as every value here a tensor of one element.
    fn dim(&mut self, d: &Dim) -> Made {
        if let Some((v, axis)) = self.axis_of(d) {
            let axis = axis as i64;
            return made(self.rw.create_one(ShapeOf { start: Some(axis), end: Some(axis + 1) }, &[v]));
        }
        if let Some(s) = d.as_symbol() {
            return self.symbol(s);
        }
        let mut sum = if d.constant() == 0 { None } else { Some(self.numbers(&[d.constant()])?) };
        for (coefficient, factors) in d.terms() {
            let mut product = if coefficient == 1 { None } else { Some(self.numbers(&[coefficient])?) };
            for factor in factors {
                let f = match factor {
                    Factor::Symbol(s) => self.symbol(s)?,
                    Factor::Call(f, a, b) => self.call(f, a, b)?,
                };
                product = Some(product.map_or(Ok(f), |p| made(self.rw.create_one(Mul {}, &[p, f])))?);
            }
            let Some(term) = product else { continue };
            sum = Some(sum.map_or(Ok(term), |s| made(self.rw.create_one(Add {}, &[s, term])))?);
        }
        sum.map_or_else(|| self.numbers(&[0]), Ok)
    }

    /// The axis that has this extent.
    fn axis_of(&self, d: &Dim) -> Option<(ValueId, usize)> {
        let shape = |v: &ValueId| self.rw.graph().ty(*v).as_tensor().and_then(|t| t.shape.clone());
        let place = |v: &ValueId| Some((*v, shape(v)?.iter().position(|own| own == d)?));
        if d.as_const().is_some() { None } else { self.sources.iter().find_map(place) }
    }

    /// A symbol: an axis equal to it, or to an affine function of it.
    fn symbol(&mut self, s: &str) -> Made {
        let d = Dim::symbol(s);
        if self.axis_of(&d).is_some() {
            return self.dim(&d);
        }
        let shapes = self.sources.iter().filter_map(|v| self.rw.graph().ty(*v).as_tensor()?.shape.clone()).flatten();
        let of = |own: &Dim| {
            let mut terms = own.terms();
            let ((by, mut factors), None) = (terms.next()?, terms.next()) else { return None };
            let alone = matches!(factors.next()?, Factor::Symbol(name) if **name == *s) && factors.next().is_none();
            (alone && by != 0).then_some(by)
        };
        let Some((own, by)) = shapes.into_iter().find_map(|own| Some((own.clone(), of(&own)?))) else {
            return Err(format!("none of its operands has the extent '{s}'"));
        };
        let (whole, rest, by) = (self.dim(&own)?, self.numbers(&[own.constant()])?, self.numbers(&[by])?);
        let multiple = made(self.rw.create_one(Sub {}, &[whole, rest]))?;
        made(self.rw.create_one(Div {}, &[multiple, by]))
    }

    /// A function of two dimensions, neither of which is negative.
    fn call(&mut self, f: DimFn, a: &Dim, b: &Dim) -> Made {
        let (x, y) = (self.dim(a)?, self.dim(b)?);
        made(match f {
            DimFn::FloorDiv => self.rw.create_one(Div {}, &[x, y]),
            DimFn::CeilDiv => {
                let below = self.numbers(&[-1])?;
                let more = made(self.rw.create_one(Add {}, &[y, below]))?;
                let sum = made(self.rw.create_one(Add {}, &[x, more]))?;
                self.rw.create_one(Div {}, &[sum, y])
            }
            DimFn::Mod => self.rw.create_one(Mod {}, &[x, y]),
            DimFn::Max => self.rw.create_one(Max {}, &[x, y]),
            DimFn::Min => self.rw.create_one(Min {}, &[x, y]),
        })
    }
}
