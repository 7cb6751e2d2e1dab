//! The values of a program's shape symbols during a run.

use std::sync::atomic::{AtomicI64, Ordering};

use of_plan::{Extent, Program, Regst};

/// The value of an unbound symbol.
const UNKNOWN: i64 = -1;

/// One value for each shape symbol. The plan orders tasks that bind a symbol before tasks that use it.
#[derive(Debug)]
pub(crate) struct Symbols {
    names: Vec<String>,
    values: Vec<AtomicI64>,
}

impl Symbols {
    pub fn new(program: &Program) -> Self {
        let values = program.symbols.iter().map(|_| AtomicI64::new(UNKNOWN)).collect();
        Self { names: program.symbols.clone(), values }
    }

    /// Unbinds all symbols.
    pub fn reset(&self) {
        self.values.iter().for_each(|value| value.store(UNKNOWN, Ordering::Release));
    }

    /// The values; negative where a symbol is unbound.
    pub fn values(&self) -> Vec<i64> {
        self.values.iter().map(|value| value.load(Ordering::Acquire)).collect()
    }

    /// Binds the symbols that are extents of a value themselves.
    pub fn bind_named(&self, regst: &Regst, dims: &[i64]) {
        for (extent, &dim) in regst.extents.iter().zip(dims) {
            if let Some(symbol) = extent.as_symbol() {
                self.learn(symbol, dim);
            }
        }
    }

    /// Only the first value binds; [`Symbols::bind`] checks that others agree with it.
    fn learn(&self, symbol: u32, value: i64) {
        if let Some(own) = self.values.get(symbol as usize) {
            let _ = own.compare_exchange(UNKNOWN, value, Ordering::AcqRel, Ordering::Acquire);
        }
    }

    /// Compares the extents of a value with those of its register, and binds the symbols whose values follow. The error
    /// says which dimension does not fit.
    pub fn bind(&self, regst: &Regst, dims: &[i64]) -> Result<(), String> {
        if regst.extents.is_empty() {
            return Ok(());
        }
        if regst.extents.len() != dims.len() {
            return Err(format!("has rank {} {dims:?} and must have rank {}", dims.len(), regst.extents.len()));
        }
        self.bind_named(regst, dims);
        // An extent may be solved for one symbol once another extent has bound the rest.
        for _ in dims {
            let values = self.values();
            let solved = regst.extents.iter().zip(dims).filter_map(|(extent, &dim)| extent.solve(&values, dim));
            solved.for_each(|(symbol, value)| self.learn(symbol, value));
        }
        let values = self.values();
        for (axis, (extent, &dim)) in regst.extents.iter().zip(dims).enumerate() {
            // An extent of unbound symbols is checked when they are bound.
            match extent.eval(&values) {
                Some(expected) if expected != dim => {
                    let what = self.name(extent);
                    return Err(format!("has extent {dim} at dimension {axis} and must have {expected}{what}"));
                }
                None if self.is_never(extent, &values, dim) => {
                    let text = extent.text(&self.names);
                    return Err(format!("has extent {dim} at dimension {axis}, which `{text}` never is"));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Whether an extent of one unbound symbol has no solution.
    fn is_never(&self, extent: &Extent, values: &[i64], dim: i64) -> bool {
        let mut unbound: Vec<u32> = extent.symbols();
        unbound.retain(|s| values.get(*s as usize).is_some_and(|value| *value < 0));
        unbound.len() == 1 && extent.as_symbol().is_none() && extent.solve(values, dim).is_none()
    }

    /// The extents of a value that is about to be allocated.
    pub fn dims(&self, regst: &Regst) -> Result<Vec<i64>, String> {
        let values = self.values();
        let dims = regst.extents.iter().map(|extent| extent.eval(&values).filter(|&dim| dim >= 0));
        dims.collect::<Option<_>>().ok_or_else(|| format!("register `{}` has no extents", regst.name))
    }

    fn name(&self, extent: &Extent) -> String {
        let name = extent.as_symbol().and_then(|symbol| self.names.get(symbol as usize));
        name.map_or_else(String::new, |name| format!(", the value of `{name}`"))
    }
}
