//! Printers: print kernels of the kernel IR as text.
//!
//! A printer is a subfolder and a case of [`printer`]. The files of this folder are shared by the printers of the C family.

mod axis_scan;
pub mod c;
pub mod cuda;
mod elementwise;
pub mod expr;
pub mod extent;
pub mod index;
pub mod indexed;
mod printer;
mod prologue;
mod roi_align;
pub mod source;

pub use printer::{Capabilities, Printer};
pub use source::Source;

use of_ir::Dim;

use crate::isa::{Isa, Language};
use crate::kernel::nest::Nest;

/// The printer of a language.
pub fn printer(language: Language) -> &'static dyn Printer {
    match language {
        Language::C => &c::C,
        Language::Cuda => &cuda::Cuda,
        Language::CudaEmulated => &cuda::Emulated,
    }
}

impl Nest {
    /// The kernel in the language of `isa`.
    ///
    /// # Errors
    /// The reason why there is none.
    pub fn print(&self, isa: &Isa) -> Result<Source, String> {
        let source = printer(isa.language).print(self, isa)?;
        // Sums and products of extents that became too large.
        let unknown = extent::variable(&Dim::unknown().to_string());
        if source.body.contains(&unknown) || source.iterations.dim().is_unknown() {
            return Err("its extents are too large polynomials of the shape symbols".into());
        }
        Ok(source)
    }
}

impl Source {
    /// The whole text for `isa`.
    pub fn text(&self, isa: &Isa) -> String {
        printer(isa.language).text(self, isa)
    }
}
