//! The pass interface: [`Pass`], its type-erased form, and the context that a pass works with.

use std::collections::BTreeMap;
use std::marker::PhantomData;

use of_diag::{Diagnostic, Diagnostics};
use of_ir::{Func, Module, OpId, Rewriter};

use crate::{OptionError, OptionSlot, PassOptions};

/// A pass. The struct that implements it has no fields: everything variable is in its options.
pub trait Pass: Sized + Send + Sync + 'static {
    /// Name in pipelines and derived locations, e.g. `fold-constants`.
    const NAME: &'static str;
    /// One line for `of-opt passes`.
    const SUMMARY: &'static str;
    /// The options; [`crate::NoOptions`] where there are none.
    type Options: PassOptions;

    /// Runs on a module.
    ///
    /// # Errors
    /// Everything that prevents the transformation, each error with its location. The module may then be partly
    /// transformed.
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
    /// Its options.
    fn options(&self) -> &'static [OptionSlot];
    /// The pass with the given options.
    ///
    /// # Errors
    /// When an option is unknown or its value does not parse.
    fn configure(&self, options: &[(String, String)]) -> Result<Box<dyn Configured>, OptionError>;
}

/// A pass of any type with values for its options, ready to run.
pub trait Configured: Send + Sync {
    /// Name in pipelines.
    fn name(&self) -> &'static str;
    /// The options that differ from their defaults, as in a pipeline.
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

/// The services for a pass: warnings, counters and printed output.
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

    /// Adds to a counter, e.g. the number of applications of a rule.
    pub fn count(&mut self, what: &'static str, n: usize) {
        *self.counters.entry(what).or_default() += n as u64;
    }

    /// Reports a warning.
    pub fn warn(&mut self, d: Diagnostic) {
        self.warnings.0.push(d);
    }

    /// Prints text.
    pub fn emit(&mut self, text: &str) {
        (self.out)(text);
    }
}

/// Applies `f` to every function, and collects all errors.
///
/// # Errors
/// The errors of `f`.
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

/// Applies `f` to every op of every function in execution order, on behalf of `pass`. Returns how often `f` reported a
/// change. Ops that `f` creates are not visited, erased ops are skipped. All ops are visited, and all errors are
/// collected.
///
/// # Errors
/// The errors of `f`.
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
