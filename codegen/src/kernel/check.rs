//! The rules of the kernel IR: variables are declared before use and set only if mutable, types agree, and accesses
//! whose index range is known stay inside their memory.

use of_ir::DType;
use of_ops::scalar::ScalarOp;

use super::ir::{Access, Expr, IndexExpr, Kernel, Stmt};
use super::types::{Affine, Mem, Ty, Var};

/// A broken rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("kernel `{kernel}`: {what}")]
pub struct CheckError {
    /// Name of the kernel.
    pub kernel: String,
    /// The rule and where it is broken.
    pub what: String,
}

/// Smallest and largest value; `None` if unknown.
type Range = Option<(i64, i64)>;

struct Checker<'a> {
    kernel: &'a Kernel,
    /// For every variable: not declared (`None`), or whether it is mutable.
    state: Vec<Option<bool>>,
    ranges: Vec<Range>,
}

/// Checks a kernel.
///
/// # Errors
/// The first broken rule.
pub fn check(kernel: &Kernel) -> Result<(), CheckError> {
    let n = kernel.vars.len();
    let mut c = Checker { kernel, state: vec![None; n], ranges: vec![None; n] };
    let result = (|| {
        c.block(&kernel.setup)?;
        c.declare(kernel.outer, Ty::INDEX, false)?;
        c.set_range(kernel.outer, Some((0, kernel.iterations.max(1) as i64 - 1)));
        c.block(&kernel.body)
    })();
    result.map_err(|what| CheckError { kernel: kernel.name.clone(), what })
}

impl Checker<'_> {
    fn block(&mut self, stmts: &[Stmt]) -> Result<(), String> {
        stmts.iter().try_for_each(|s| self.stmt(s))
    }

    fn declare(&mut self, var: Var, ty: Ty, mutable: bool) -> Result<(), String> {
        let declared = self.kernel.vars.get(var.index()).ok_or_else(|| format!("variable {} does not exist", var.index()))?;
        if *declared != ty {
            return Err(format!("variable {} of type {declared} is given a {ty}", var.index()));
        }
        let state = &mut self.state[var.index()];
        if state.is_some() {
            return Err(format!("variable {} is declared twice", var.index()));
        }
        *state = Some(mutable);
        Ok(())
    }

    fn set_range(&mut self, var: Var, range: Range) {
        if let Some(r) = self.ranges.get_mut(var.index()) {
            *r = range;
        }
    }

    fn stmt(&mut self, s: &Stmt) -> Result<(), String> {
        match s {
            Stmt::Let { var, mutable, value } => {
                let ty = self.expr(value)?;
                self.declare(*var, ty, *mutable)
            }
            Stmt::Set { var, value } => {
                let ty = self.expr(value)?;
                if self.state.get(var.index()).copied().flatten() != Some(true) {
                    return Err(format!("variable {} is set but not mutable", var.index()));
                }
                if self.kernel.vars[var.index()] != ty {
                    return Err(format!("variable {} is set to a {ty}", var.index()));
                }
                Ok(())
            }
            Stmt::Index { var, value } => {
                let range = self.index_expr(value)?;
                self.declare(*var, Ty::INDEX, false)?;
                self.set_range(*var, range);
                Ok(())
            }
            Stmt::For { var, begin, end, step, body, .. } => {
                if *step <= 0 {
                    return Err(format!("a loop has step {step}"));
                }
                let (b, e) = (self.affine(begin)?, self.affine(end)?);
                self.declare(*var, Ty::INDEX, false)?;
                let range = match (b, e) {
                    // A body that cannot run has no range worth checking.
                    (Some((lo, _)), Some((_, hi))) if hi > lo => Some((lo, hi - 1)),
                    _ => None,
                };
                self.set_range(*var, range);
                self.block(body)
            }
            Stmt::If { cond, then, otherwise } => {
                self.affine(&cond.lhs)?;
                self.affine(&cond.rhs)?;
                self.block(then)?;
                self.block(otherwise)
            }
            Stmt::Store { to, value } => {
                let ty = self.expr(value)?;
                if ty != to.ty {
                    return Err(format!("a {ty} is stored as {}", to.ty));
                }
                if let Mem::Param(i) = to.mem
                    && self.kernel.params.get(i).is_some_and(|p| !p.writes)
                {
                    return Err(format!("parameter {i} is read-only and is stored to"));
                }
                if to.stride == 0 && to.active > 1 {
                    return Err("several lanes are stored to one place".to_string());
                }
                self.access(to)
            }
            Stmt::Transpose(vars) => {
                let first = vars.first().and_then(|v| self.kernel.vars.get(v.index())).copied();
                let Some(ty) = first else { return Err("an empty square is transposed".to_string()) };
                if ty.lanes != vars.len() || ty.elem.bits() != Some(32) || ty.elem == DType::Bool {
                    return Err(format!("{} variables of type {ty} are no square of 32-bit elements", vars.len()));
                }
                for v in vars {
                    if self.kernel.vars.get(v.index()) != Some(&ty) || self.state[v.index()] != Some(true) {
                        return Err(format!("variable {} of a square has another type or is not mutable", v.index()));
                    }
                }
                Ok(())
            }
            Stmt::Prefetch { mem, index } => {
                self.affine(index)?;
                self.kernel.elem_of(*mem).map(|_| ()).ok_or_else(|| format!("{mem:?} does not exist"))
            }
        }
    }

    fn var(&self, v: Var) -> Result<Ty, String> {
        match self.state.get(v.index()) {
            Some(Some(_)) => Ok(self.kernel.vars[v.index()]),
            _ => Err(format!("variable {} is used before it is declared", v.index())),
        }
    }

    fn affine(&self, a: &Affine) -> Result<Range, String> {
        let mut range = Some((a.offset(), a.offset()));
        for (v, c) in a.terms() {
            if self.var(*v)? != Ty::INDEX {
                return Err(format!("variable {} is no index", v.index()));
            }
            range = match (range, self.ranges[v.index()]) {
                (Some((lo, hi)), Some((a, b))) => (|| {
                    let (x, y) = (a.checked_mul(*c)?, b.checked_mul(*c)?);
                    Some((lo.checked_add(x.min(y))?, hi.checked_add(x.max(y))?))
                })(),
                _ => None,
            };
        }
        Ok(range)
    }

    fn index_expr(&mut self, e: &IndexExpr) -> Result<Range, String> {
        Ok(match e {
            IndexExpr::Affine(a) => self.affine(a)?,
            IndexExpr::Div(a, by) | IndexExpr::Mod(a, by) if *by <= 0 => {
                self.affine(a)?;
                return Err(format!("an index is divided by {by}"));
            }
            IndexExpr::Div(a, by) => self.affine(a)?.map(|(lo, hi)| (lo.div_euclid(*by), hi.div_euclid(*by))),
            IndexExpr::Mod(a, by) => {
                let range = self.affine(a)?;
                match range {
                    Some((lo, hi)) if lo >= 0 && hi < *by => Some((lo, hi)),
                    _ => Some((0, by - 1)),
                }
            }
            IndexExpr::Min(a, b) => match (self.affine(a)?, self.affine(b)?) {
                (Some(x), Some(y)) => Some((x.0.min(y.0), x.1.min(y.1))),
                _ => None,
            },
            IndexExpr::Max(a, b) => match (self.affine(a)?, self.affine(b)?) {
                (Some(x), Some(y)) => Some((x.0.max(y.0), x.1.max(y.1))),
                _ => None,
            },
            IndexExpr::Value(e) => {
                let ty = self.expr(e)?;
                if ty.lanes != 1 || !ty.elem.is_int() {
                    return Err(format!("a {ty} is no index"));
                }
                None
            }
        })
    }

    fn access(&self, a: &Access) -> Result<(), String> {
        let elem = self.kernel.elem_of(a.mem).ok_or_else(|| format!("{:?} does not exist", a.mem))?;
        if elem != a.ty.elem {
            return Err(format!("{:?} holds {elem} and is accessed as {}", a.mem, a.ty));
        }
        if a.active == 0 || a.active > a.ty.lanes || !a.ty.lanes.is_power_of_two() {
            return Err(format!("an access has {} active lanes of {}", a.active, a.ty.lanes));
        }
        let len = match a.mem {
            Mem::Param(i) => self.kernel.params[i].len,
            Mem::Scratch(i) => Some(self.kernel.scratch[i].len),
        };
        let range = self.affine(&a.index)?;
        if let (Some((lo, hi)), Some(len)) = (range, len) {
            let last = (a.active as i64 - 1) * a.stride;
            // Ranges are those of independent variables, so only an access that is never inside is surely wrong.
            if hi + last.max(0) < 0 || lo + last.max(0) >= len as i64 {
                return Err(format!("{:?} of {len} elements is accessed at {lo}..={}", a.mem, hi + last));
            }
        }
        Ok(())
    }

    fn expr(&self, e: &Expr) -> Result<Ty, String> {
        let same = |a: Ty, b: Ty| if a == b { Ok(a) } else { Err(format!("a {a} meets a {b}")) };
        match e {
            Expr::Var(v) => self.var(*v),
            Expr::Const(ty, _) | Expr::Iota(ty) => Ok(*ty),
            Expr::Index(a) => self.affine(a).map(|_| Ty::INDEX),
            Expr::Load(a) => self.access(a).map(|()| a.ty),
            Expr::Splat(lanes, e) => match self.expr(e)? {
                Ty { elem, lanes: 1 } => Ok(Ty::new(elem, *lanes)),
                ty => Err(format!("a {ty} is splat")),
            },
            Expr::Op(op, args) => {
                if args.len() != op.arity() {
                    return Err(format!("{op:?} has {} operands", args.len()));
                }
                let mut types = Vec::with_capacity(args.len());
                for a in args {
                    types.push(self.expr(a)?);
                }
                if *op == ScalarOp::Select {
                    same(types[0], types[1].with_elem(DType::Bool))?;
                    return same(types[1], types[2]);
                }
                let ty = types.iter().skip(1).try_fold(types[0], |a, b| same(a, *b))?;
                Ok(ty.with_elem(op.result_type(ty.elem)))
            }
            Expr::MulAdd(args) => same(same(self.expr(&args[0])?, self.expr(&args[1])?)?, self.expr(&args[2])?),
            Expr::Reduce(_, e) => Ok(Ty::scalar(self.expr(e)?.elem)),
            Expr::Keep(e, _, _) => self.expr(e),
        }
    }
}
