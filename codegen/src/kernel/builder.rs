//! Builds kernels statement by statement.

use of_ir::DType;

use super::ir::{Access, Compare, Cond, Expr, IndexExpr, Kernel, Param, Scratch, Stmt};
use super::types::{Affine, Mem, Ty, Var};

/// A kernel in the making. Statements go to the innermost open block.
#[derive(Debug)]
pub struct Builder {
    kernel: Kernel,
    open: Vec<Vec<Stmt>>,
}

impl Builder {
    /// A kernel without parameters and statements.
    pub fn new(name: impl Into<String>) -> Self {
        let kernel = Kernel {
            name: name.into(),
            params: Vec::new(),
            scratch: Vec::new(),
            vars: vec![Ty::INDEX],
            outer: Var(0),
            iterations: 0,
            grain: 1,
            setup: Vec::new(),
            body: Vec::new(),
            flops: 0,
            bytes: 0,
        };
        Self { kernel, open: vec![Vec::new()] }
    }

    /// The outermost counter.
    pub const fn outer(&self) -> Var {
        self.kernel.outer
    }

    /// Adds a parameter.
    pub fn param(&mut self, elem: DType, writes: bool, len: Option<usize>) -> Mem {
        self.kernel.params.push(Param { elem, writes, len });
        Mem::Param(self.kernel.params.len() - 1)
    }

    /// Adds a scratch array.
    pub fn scratch(&mut self, elem: DType, len: usize) -> Mem {
        self.kernel.scratch.push(Scratch { elem, len });
        Mem::Scratch(self.kernel.scratch.len() - 1)
    }

    /// The type of a value.
    pub fn type_of(&self, e: &Expr) -> Ty {
        self.kernel.type_of(e)
    }

    /// Element type of a memory; index type for one that is not there.
    pub fn elem_of(&self, mem: Mem) -> DType {
        self.kernel.elem_of(mem).unwrap_or(DType::I64)
    }

    fn new_var(&mut self, ty: Ty) -> Var {
        self.kernel.vars.push(ty);
        Var((self.kernel.vars.len() - 1) as u32)
    }

    fn push(&mut self, s: Stmt) {
        if let Some(block) = self.open.last_mut() {
            block.push(s);
        }
    }

    /// Names a value.
    pub fn let_(&mut self, value: impl Into<Expr>) -> Var {
        let value = value.into();
        let var = self.new_var(self.kernel.type_of(&value));
        self.push(Stmt::Let { var, mutable: false, value });
        var
    }

    /// A variable that can be set.
    pub fn mutable(&mut self, value: impl Into<Expr>) -> Var {
        let value = value.into();
        let var = self.new_var(self.kernel.type_of(&value));
        self.push(Stmt::Let { var, mutable: true, value });
        var
    }

    /// An index variable that keeps its value from one iteration of a call to the next.
    pub fn state(&mut self, first: i64) -> Var {
        let var = self.new_var(Ty::INDEX);
        self.kernel.setup.push(Stmt::Let { var, mutable: true, value: Expr::Index(first.into()) });
        var
    }

    /// Sets a mutable variable.
    pub fn set(&mut self, var: Var, value: impl Into<Expr>) {
        self.push(Stmt::Set { var, value: value.into() });
    }

    /// Names an index.
    pub fn index(&mut self, value: IndexExpr) -> Var {
        let var = self.new_var(Ty::INDEX);
        self.push(Stmt::Index { var, value });
        var
    }

    /// Quotient of an index by a positive number, simplified where it is trivial.
    pub fn div(&mut self, a: impl Into<Affine>, by: i64) -> Affine {
        let a = a.into();
        match (a.as_const(), by) {
            (_, 1) => a,
            (Some(x), _) => x.div_euclid(by.max(1)).into(),
            _ => self.index(IndexExpr::Div(a, by)).into(),
        }
    }

    /// Remainder of an index by a positive number, simplified where it is trivial.
    pub fn modulo(&mut self, a: impl Into<Affine>, by: i64) -> Affine {
        let a = a.into();
        match (a.as_const(), by) {
            (_, 1) => 0i64.into(),
            (Some(x), _) => x.rem_euclid(by.max(1)).into(),
            _ => self.index(IndexExpr::Mod(a, by)).into(),
        }
    }

    /// The smaller of two indices.
    pub fn min(&mut self, a: impl Into<Affine>, b: impl Into<Affine>) -> Affine {
        let (a, b) = (a.into(), b.into());
        match (a.clone() - &b).as_const() {
            Some(d) => if d <= 0 { a } else { b },
            None => self.index(IndexExpr::Min(a, b)).into(),
        }
    }

    /// The larger of two indices.
    pub fn max(&mut self, a: impl Into<Affine>, b: impl Into<Affine>) -> Affine {
        let (a, b) = (a.into(), b.into());
        match (a.clone() - &b).as_const() {
            Some(d) => if d >= 0 { a } else { b },
            None => self.index(IndexExpr::Max(a, b)).into(),
        }
    }

    /// Splits a flat index over `dims` (row-major, the last fastest) into one index a dimension.
    pub fn unflatten(&mut self, flat: impl Into<Affine>, dims: &[usize]) -> Vec<Affine> {
        let mut rest = flat.into();
        let mut out = vec![Affine::default(); dims.len()];
        // Leading dimensions of one element need no quotient.
        let first = dims.iter().position(|d| *d != 1).unwrap_or(dims.len());
        for axis in (first..dims.len()).rev() {
            let d = dims[axis].max(1) as i64;
            if axis == first {
                out[axis] = rest;
                break;
            }
            out[axis] = self.modulo(rest.clone(), d);
            rest = self.div(rest, d);
        }
        out
    }

    /// A loop; one that runs exactly once leaves only its body.
    pub fn for_(
        &mut self,
        begin: impl Into<Affine>,
        end: impl Into<Affine>,
        step: i64,
        unroll: u32,
        body: impl FnOnce(&mut Self, Affine),
    ) {
        let (begin, end) = (begin.into(), end.into());
        if let Some(n) = (end.clone() - &begin).as_const() {
            if n <= 0 {
                return;
            }
            if n <= step {
                return body(self, begin);
            }
        }
        let var = self.new_var(Ty::INDEX);
        let body = self.block(|b| body(b, var.into()));
        self.push(Stmt::For { var, begin, end, step, unroll, body });
    }

    /// Runs `body` where the condition holds; a condition that is known leaves no test.
    pub fn if_(
        &mut self,
        lhs: impl Into<Affine>,
        op: Compare,
        rhs: impl Into<Affine>,
        then: impl FnOnce(&mut Self),
        otherwise: impl FnOnce(&mut Self),
    ) {
        let (lhs, rhs) = (lhs.into(), rhs.into());
        if let Some(d) = (lhs.clone() - &rhs).as_const() {
            let holds = match op {
                Compare::Lt => d < 0,
                Compare::Eq => d == 0,
                Compare::Ne => d != 0,
            };
            return if holds { then(self) } else { otherwise(self) };
        }
        let then = self.block(then);
        let otherwise = self.block(otherwise);
        self.push(Stmt::If { cond: Cond { lhs, op, rhs }, then, otherwise });
    }

    fn block(&mut self, f: impl FnOnce(&mut Self)) -> Vec<Stmt> {
        self.open.push(Vec::new());
        f(self);
        self.open.pop().unwrap_or_default()
    }

    /// A contiguous load of `lanes` elements, `active` of which are there.
    pub fn load(&self, mem: Mem, index: impl Into<Affine>, lanes: usize, active: usize) -> Expr {
        self.load_strided(mem, index, lanes, 1, active)
    }

    /// One element in every lane.
    pub fn load_splat(&self, mem: Mem, index: impl Into<Affine>, lanes: usize) -> Expr {
        self.load_strided(mem, index, lanes, 0, lanes)
    }

    /// Elements `stride` apart.
    pub fn load_strided(&self, mem: Mem, index: impl Into<Affine>, lanes: usize, stride: i64, active: usize) -> Expr {
        let ty = Ty::new(self.elem_of(mem), lanes);
        Expr::Load(Access { mem, index: index.into(), ty, stride, active: active.min(lanes) })
    }

    /// A contiguous store of the first `active` lanes.
    pub fn store(&mut self, mem: Mem, index: impl Into<Affine>, value: impl Into<Expr>, active: usize) {
        self.store_strided(mem, index, value, 1, active);
    }

    /// A store of the first `active` lanes, `stride` elements apart.
    pub fn store_strided(&mut self, mem: Mem, index: impl Into<Affine>, value: impl Into<Expr>, stride: i64, active: usize) {
        let value = value.into();
        let ty = self.type_of(&value);
        let to = Access { mem, index: index.into(), ty, stride, active: active.min(ty.lanes) };
        self.push(Stmt::Store { to, value });
    }

    /// Transposes a square of vectors in place.
    pub fn transpose(&mut self, vars: Vec<Var>) {
        self.push(Stmt::Transpose(vars));
    }

    /// A hint that a line is read soon.
    pub fn prefetch(&mut self, mem: Mem, index: impl Into<Affine>) {
        self.push(Stmt::Prefetch { mem, index: index.into() });
    }

    /// The kernel, to be run for `0..iterations` in steps of about `grain`.
    pub fn finish(mut self, iterations: usize, grain: usize, flops: u64, bytes: u64) -> Kernel {
        self.kernel.iterations = iterations;
        self.kernel.grain = grain.max(1);
        self.kernel.flops = flops;
        self.kernel.bytes = bytes;
        self.kernel.body = self.open.pop().unwrap_or_default();
        self.kernel
    }
}
