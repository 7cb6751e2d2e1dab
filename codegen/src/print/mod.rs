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

use crate::isa::{Isa, Language};
use crate::kernel::nest::Nest;

/// The printer of a language.
pub fn printer(language: Language) -> &'static dyn Printer {
    match language {
        Language::C | Language::WebAssembly => &c::C,
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
        let source = extent::all_known(|| printer(isa.language).print(self, isa))?;
        if source.iterations.dim().is_unknown() { Err(extent::TOO_LARGE.into()) } else { Ok(source) }
    }
}

impl Source {
    /// The whole text for `isa`.
    pub fn text(&self, isa: &Isa) -> String {
        printer(isa.language).text(self, isa)
    }
}
