//! The interface of printers for lowering and the toolchain.

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
    /// The reason why there is none.
    fn print(&self, nest: &Nest, isa: &Isa) -> Result<Source, String>;

    /// The statements before those of a kernel.
    fn prologue(&self, prologue: &Prologue) -> String;

    /// The complete text of a kernel, as the compiler expects it.
    fn text(&self, source: &Source, isa: &Isa) -> String;

    /// Options of lowering for kernels in this language.
    fn capabilities(&self) -> Capabilities;

    /// The best number of parts of a reduction over `axes`; more than one part takes two steps.
    fn reduction_parts(&self, _dims: &[Extent], _axes: &[usize]) -> usize {
        1
    }

    /// Requirements of kernels for `isa` on the machine.
    fn environment(&self, isa: &Isa, threads: u32) -> Environment;
}

/// Options of lowering for kernels in a language.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Capabilities {
    /// Whether constant right operands of contractions are packed into panels before the run, and the cost model counts rereads
    /// from beyond the cache.
    pub packed_weights: bool,
    /// Whether convolutions may use Winograd's algorithm.
    pub winograd: bool,
    /// Whether loops may be kernels.
    pub recurrences: bool,
    /// Whether reductions of columns fuse with elementwise ops.
    pub column_reductions: bool,
    /// Whether gradients of attention may recompute the score matrix instead of reading it.
    pub recomputed_scores: bool,
    /// Whether contractions may be library calls.
    pub library_calls: bool,
    /// Whether transfers between ranks are collectives of a library, which selects the algorithm and merges adjacent ones.
    pub collectives: bool,
}
