//! The values of a program's shape symbols during a run.

use std::sync::atomic::{AtomicI64, Ordering};

use of_plan::{Extent, Program, Register, Solution};

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

    /// Gives the symbols these values; negative ones unbind.
    pub fn set(&self, values: &[i64]) {
        self.values.iter().zip(values).for_each(|(own, value)| own.store(*value, Ordering::Release));
    }

    /// The values; negative where a symbol is unbound.
    pub fn values(&self) -> Vec<i64> {
        self.values.iter().map(|value| value.load(Ordering::Acquire)).collect()
    }

    /// Whether these are the values.
    pub fn are(&self, values: &[i64]) -> bool {
        self.values.len() == values.len()
            && self.values.iter().zip(values).all(|(v, n)| v.load(Ordering::Acquire) == *n)
    }

    /// Binds the symbols that the extents of a value determine; whether there are any. With `free`, a symbol on which an
    /// extent does not depend, because its factor is 0, is bound to 0.
    pub fn learn(&self, register: &Register, dims: &[i64], free: bool) -> bool {
        let mut learnt = false;
        if register.extents.len() != dims.len() {
            return learnt;
        }
        for (extent, &dim) in register.extents.iter().zip(dims).filter(|(extent, _)| !extent.terms.is_empty()) {
            let (symbol, value) = match extent.as_symbol() {
                Some(symbol) => (symbol, dim),
                None => match extent.solve(dim, &self.values()) {
                    Some(Solution::One(symbol, value)) => (symbol, value),
                    Some(Solution::Any(symbol)) if free => (symbol, 0),
                    _ => continue,
                },
            };
            if let Some(bound) = self.values.get(symbol as usize) {
                // Only the first value binds; others must agree with it, which `check` compares.
                learnt |= bound.compare_exchange(UNKNOWN, value, Ordering::AcqRel, Ordering::Acquire).is_ok();
            }
        }
        learnt
    }

    /// Compares the extents of a value with those of its register. The error says which dimension does not fit.
    pub fn check(&self, register: &Register, dims: &[i64]) -> Result<(), String> {
        if register.extents.is_empty() {
            return Ok(());
        }
        if register.extents.len() != dims.len() {
            return Err(format!("has rank {} {dims:?} and must have rank {}", dims.len(), register.extents.len()));
        }
        let values = self.values();
        for (axis, (extent, &dim)) in register.extents.iter().zip(dims).enumerate() {
            match extent.eval(&values) {
                Some(expected) if expected != dim => {
                    let what = self.name(extent);
                    return Err(format!("has extent {dim} at dimension {axis} and must have {expected}{what}"));
                }
                Some(_) => {}
                // An extent of several unbound symbols cannot be checked.
                None if extent.solve(dim, &values) == Some(Solution::None) => {
                    let text = extent.text(&self.names);
                    return Err(format!("has extent {dim} at dimension {axis}, which `{text}` never is"));
                }
                None => {}
            }
        }
        Ok(())
    }

    /// Binds the symbols that the extents of a value determine, and compares the extents with those of its register.
    pub fn bind(&self, register: &Register, dims: &[i64]) -> Result<(), String> {
        // An extent may determine a symbol only once a later one binds another.
        while self.learn(register, dims, true) {}
        self.check(register, dims)
    }

    /// The extents of a value that is about to be allocated.
    pub fn dims(&self, register: &Register) -> Result<Vec<i64>, String> {
        let values = self.values();
        let dims = register.extents.iter().map(|extent| extent.eval(&values).filter(|&dim| dim >= 0));
        dims.collect::<Option<_>>().ok_or_else(|| format!("register `{}` has no extents", register.name))
    }

    fn name(&self, extent: &Extent) -> String {
        let name = extent.as_symbol().and_then(|symbol| self.names.get(symbol as usize));
        name.map_or_else(String::new, |name| format!(", the value of `{name}`"))
    }
}
