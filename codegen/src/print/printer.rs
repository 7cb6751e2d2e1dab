//! The interface of printers: what lowering and the toolchain need to know of a language.

use of_plan::Environment;

use crate::isa::Isa;
use crate::kernel::extent::Extent;
use crate::kernel::nest::Nest;
use crate::kernel::prologue::Prologue;
use crate::print::source::Source;

/// A language that kernels are printed in.
pub trait Printer: Send + Sync {
    /// The kernel of a nest.
    ///
    /// # Errors
    /// Why it has none.
    fn print(&self, nest: &Nest, isa: &Isa) -> Result<Source, String>;

    /// The statements before those of a kernel.
    fn prologue(&self, prologue: &Prologue) -> String;

    /// The whole text of a kernel, as the compiler of the language takes it.
    fn text(&self, source: &Source, isa: &Isa) -> String;

    /// What lowering may choose for kernels in this language.
    fn capabilities(&self) -> Capabilities;

    /// In how many parts a reduction over `axes` is best computed, in two steps where there are several.
    fn reduction_parts(&self, _dims: &[Extent], _axes: &[usize]) -> usize {
        1
    }

    /// What a machine must have to run kernels for `isa`.
    fn environment(&self, isa: &Isa, threads: u32) -> Environment;
}

/// What lowering may choose for kernels in a language.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Capabilities {
    /// Constant right operands of contractions are packed into panels before the run, and the cost model knows what is read
    /// from beyond the cache.
    pub packed_weights: bool,
    /// Convolutions may take Winograd's algorithm.
    pub winograd: bool,
    /// Gradients of attention may recompute the score matrix instead of reading it.
    pub recomputed_scores: bool,
    /// Contractions may be calls of a library.
    pub library_calls: bool,
    /// Transfers between ranks are collectives of a library, which picks the algorithm and runs neighbours together.
    pub collectives: bool,
}
