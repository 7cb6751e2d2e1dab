//! What a pass is, and what it gets to work with.

use std::collections::BTreeMap;
use std::marker::PhantomData;

use of_diag::{Diagnostic, Diagnostics};
use of_ir::{Func, Module, OpId, Rewriter};

use crate::{OptionError, OptionSlot, PassOptions};

/// A pass. The struct that implements it has no fields: everything that may vary is in its options.
pub trait Pass: Sized + Send + Sync + 'static {
    /// Name in pipelines and derived locations, e.g. `fold-constants`.
    const NAME: &'static str;
    /// One line for `of-opt passes`.
    const SUMMARY: &'static str;
    /// What can be set in braces; [`crate::NoOptions`] where there is nothing.
    type Options: PassOptions;

    /// Changes the module.
    ///
    /// # Errors
    /// Everything that hinders it, each with its location. The module may then be half changed.
    fn run(options: &Self::Options, module: &mut Module, cx: &mut PassContext<'_>) -> Result<(), Diagnostics>;

    /// The pass as a value, so that lists can hold it.
    const ENTRY: &'static dyn AnyPass = &Entry::<Self>(PhantomData);
}

/// A pass of any type, without values for its options.
pub trait AnyPass: Send + Sync {
    /// Name in pipelines.
    fn name(&self) -> &'static str;
    /// One line.
    fn summary(&self) -> &'static str;
    /// What can be set.
    fn options(&self) -> &'static [OptionSlot];
    /// The pass with the given options.
    ///
    /// # Errors
    /// When an option is unknown or its value does not parse.
    fn configure(&self, options: &[(String, String)]) -> Result<Box<dyn Configured>, OptionError>;
}

/// A pass of any type with values for its options: ready to run.
pub trait Configured: Send + Sync {
    /// Name in pipelines.
    fn name(&self) -> &'static str;
    /// The options that differ from their defaults, as a pipeline would spell them.
    fn options(&self) -> Vec<(String, String)>;
    /// See [`Pass::run`].
    ///
    /// # Errors
    /// See [`Pass::run`].
    fn run(&self, module: &mut Module, cx: &mut PassContext<'_>) -> Result<(), Diagnostics>;
}

struct Entry<P>(PhantomData<fn() -> P>);

impl<P: Pass> AnyPass for Entry<P> {
    fn name(&self) -> &'static str {
        P::NAME
    }
    fn summary(&self) -> &'static str {
        P::SUMMARY
    }
    fn options(&self) -> &'static [OptionSlot] {
        P::Options::SLOTS
    }
    fn configure(&self, options: &[(String, String)]) -> Result<Box<dyn Configured>, OptionError> {
        let mut values = P::Options::default();
        for (i, (key, value)) in options.iter().enumerate() {
            if options[..i].iter().any(|(earlier, _)| earlier == key) {
                return Err(OptionError::Twice { name: key.clone() });
            }
            values.set(key, value)?;
        }
        Ok(Box::new(WithOptions::<P> { values }))
    }
}

/// A pass with its options.
pub(crate) struct WithOptions<P: Pass> {
    pub values: P::Options,
}

impl<P: Pass> Configured for WithOptions<P> {
    fn name(&self) -> &'static str {
        P::NAME
    }
    fn options(&self) -> Vec<(String, String)> {
        self.values.pairs()
    }
    fn run(&self, module: &mut Module, cx: &mut PassContext<'_>) -> Result<(), Diagnostics> {
        P::run(&self.values, module, cx)
    }
}

/// What a pass may use beside the module: warnings, counters and output for people.
pub struct PassContext<'a> {
    pub(crate) warnings: Diagnostics,
    pub(crate) counters: BTreeMap<&'static str, u64>,
    pub(crate) out: &'a mut dyn FnMut(&str),
}

impl<'a> PassContext<'a> {
    /// A context whose output goes to `out`.
    pub fn new(out: &'a mut dyn FnMut(&str)) -> Self {
        PassContext { warnings: Diagnostics::default(), counters: BTreeMap::new(), out }
    }

    /// Adds to a counter, e.g. how often a rule was applied.
    pub fn count(&mut self, what: &'static str, n: usize) {
        *self.counters.entry(what).or_default() += n as u64;
    }

    /// Says something that does not stop the pass.
    pub fn warn(&mut self, d: Diagnostic) {
        self.warnings.0.push(d);
    }

    /// Text for people, e.g. of a pass that prints.
    pub fn emit(&mut self, text: &str) {
        (self.out)(text);
    }
}

/// Applies `f` to every function; the errors of all of them come back together.
///
/// # Errors
/// What `f` gives.
pub fn each_func(
    module: &mut Module,
    mut f: impl FnMut(&mut Func) -> Result<(), Diagnostics>,
) -> Result<(), Diagnostics> {
    let mut all = Diagnostics::default();
    for func in module.funcs.values_mut() {
        if let Err(d) = f(func) {
            all.0.extend(d.0);
        }
    }
    all.into_result(())
}

/// Applies `f` to every op of every function in execution order, on behalf of `pass`, and gives how often it said that
/// it changed something. Ops that `f` creates are not visited, ops that it erased are passed over. Every op is visited,
/// and the errors of all come back together.
///
/// # Errors
/// What `f` gives.
pub fn each_op(
    module: &mut Module,
    pass: &str,
    mut f: impl FnMut(&mut Rewriter<'_>, OpId) -> Result<bool, Diagnostic>,
) -> Result<usize, Diagnostics> {
    let mut changes = 0;
    each_func(module, |func| {
        let mut errors = Diagnostics::default();
        let mut rw = Rewriter::new(&mut func.graph, pass);
        for op in rw.graph().walk() {
            if !rw.graph().is_live(op) {
                continue;
            }
            match f(&mut rw, op) {
                Ok(changed) => changes += usize::from(changed),
                Err(d) => errors.0.push(d),
            }
        }
        errors.into_result(())
    })?;
    Ok(changes)
}
