//! Calls of NVIDIA's libraries instead of kernels: the supported libraries, and how a plan stores a call.
//!
//! Such a library call corresponds to XLA's custom call.

pub mod cublaslt;
pub mod cudnn;
pub mod epilogue;
mod words;

pub use words::Floats;

use std::fmt;

use of_ir::DType;

use crate::library::cublaslt::Product;
use crate::library::cudnn::Convolution;
use crate::library::words::Words;

/// A supported library.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Library {
    /// cuBLASLt, for matrix products.
    CublasLt,
    /// cuDNN, for convolutions.
    Cudnn,
}

impl Library {
    /// All libraries, in the order in which they are tried.
    pub const ALL: [Library; 2] = [Library::Cudnn, Library::CublasLt];

    /// Name of its steps in plans, and of the flag after an architecture.
    pub fn name(self) -> &'static str {
        match self {
            Library::CublasLt => "cublaslt",
            Library::Cudnn => "cudnn",
        }
    }

    /// The library of this name.
    pub fn by_name(name: &str) -> Option<Library> {
        Library::ALL.into_iter().find(|l| l.name() == name)
    }

    /// Its product name.
    pub fn title(self) -> &'static str {
        match self {
            Library::CublasLt => "cuBLASLt",
            Library::Cudnn => "cuDNN",
        }
    }

    /// The ops that it computes, as a readable name.
    pub fn computes(self) -> &'static str {
        match self {
            Library::CublasLt => "products",
            Library::Cudnn => "convolutions",
        }
    }

    /// The environment variable with the path of its file.
    pub fn variable(self) -> &'static str {
        match self {
            Library::CublasLt => "OF_CUBLASLT",
            Library::Cudnn => "OF_CUDNN",
        }
    }

    /// The first word of the plan's encoding of a call.
    fn magic(self) -> &'static str {
        match self {
            Library::CublasLt => "of-cublaslt-1",
            Library::Cudnn => "of-cudnn-1",
        }
    }
}

/// A set of libraries that may be called.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Libraries {
    cublaslt: bool,
    cudnn: bool,
}

impl Libraries {
    /// Whether the set contains a library.
    pub fn has(self, library: Library) -> bool {
        match library {
            Library::CublasLt => self.cublaslt,
            Library::Cudnn => self.cudnn,
        }
    }

    /// This set and one more library.
    #[must_use]
    pub fn with(self, library: Library) -> Libraries {
        match library {
            Library::CublasLt => Libraries { cublaslt: true, ..self },
            Library::Cudnn => Libraries { cudnn: true, ..self },
        }
    }

    /// Splits an architecture string into the architecture and its library flags, which may be in any order.
    pub fn of(arch: &str) -> (&str, Libraries) {
        let (mut rest, mut found) = (arch, Libraries::default());
        while let Some((before, library)) =
            rest.rsplit_once('+').and_then(|(before, name)| Some((before, Library::by_name(name)?)))
        {
            (rest, found) = (before, found.with(library));
        }
        (rest, found)
    }
}

impl fmt::Display for Libraries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Library::ALL.iter().filter(|l| self.has(**l)).try_for_each(|l| write!(f, "+{}", l.name()))
    }
}

/// A call of a library.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Call {
    /// A call of cuBLASLt.
    Product(Product),
    /// A call of cuDNN.
    Convolution(Convolution),
}

impl Call {
    /// The library that is called.
    pub fn library(&self) -> Library {
        match self {
            Call::Product(_) => Library::CublasLt,
            Call::Convolution(_) => Library::Cudnn,
        }
    }

    /// Type of all elements.
    pub fn dtype(&self) -> DType {
        match self {
            Call::Product(p) => p.dtype,
            Call::Convolution(c) => c.dtype,
        }
    }

    /// Number of elements that each argument spans; `None` where the numbers are not those of a call.
    pub fn spans(&self) -> Option<Vec<u64>> {
        match self {
            Call::Product(p) => p.spans(),
            Call::Convolution(c) => c.spans(),
        }
    }

    /// Encodes the call for the plan.
    pub fn write(&self) -> Vec<u8> {
        let words = match self {
            Call::Product(p) => p.words(),
            Call::Convolution(c) => c.words(),
        };
        let words: Vec<String> = words.iter().map(u64::to_string).collect();
        format!("{} {}", self.library().magic(), words.join(" ")).into_bytes()
    }

    /// The inverse of [`Call::write`].
    ///
    /// # Errors
    /// When the bytes are no such encoding, or damaged.
    pub fn read(library: Library, bytes: &[u8]) -> Result<Call, String> {
        let mut words = std::str::from_utf8(bytes).unwrap_or_default().split(' ');
        let ours = words.next() == Some(library.magic());
        let mut words = Words(&mut words.map_while(|w| w.parse().ok()));
        let call = match library {
            _ if !ours => None,
            Library::CublasLt => Product::of(&mut words).map(Call::Product),
            Library::Cudnn => Convolution::of(&mut words).map(Call::Convolution),
        };
        let call = call.filter(|c| c.spans().is_some());
        call.ok_or_else(|| format!("it is no call of {}, or one of another version", library.title()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn library_flags_of_an_architecture_may_be_in_any_order() {
        for (text, rest, shown) in [
            ("sm_90", "sm_90", ""),
            ("sm_90+tf32", "sm_90+tf32", ""),
            ("sm_90+tf32+cublaslt", "sm_90+tf32", "+cublaslt"),
            ("sm_90+cublaslt+cudnn", "sm_90", "+cudnn+cublaslt"),
            ("emulated+cudnn+cublaslt", "emulated", "+cudnn+cublaslt"),
            ("sm_90+cudnn+tf32", "sm_90+cudnn+tf32", ""),
        ] {
            let (arch, libraries) = Libraries::of(text);
            assert_eq!((arch, &libraries.to_string()[..]), (rest, shown), "{text}");
        }
    }
}
