//! Calls of NVIDIA's libraries instead of kernels: the supported libraries, and how a plan stores a call.
//!
//! Such a library call corresponds to XLA's custom call.

pub mod cublaslt;
pub mod cudnn;
pub mod epilogue;
mod words;

pub use words::FloatPrecision;

use std::fmt;

use of_ir::DType;

use crate::vendor_libraries::cublaslt::Product;
use crate::vendor_libraries::cudnn::Convolution;
use crate::vendor_libraries::words::Words;

/// A supported library.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum VendorLibrary {
    /// cuBLASLt, for matrix products.
    CublasLt,
    /// cuDNN, for convolutions.
    Cudnn,
}

impl VendorLibrary {
    /// All libraries, in the order in which they are tried.
    pub const ALL: [VendorLibrary; 2] = [VendorLibrary::Cudnn, VendorLibrary::CublasLt];

    /// Name of its steps in plans, and of the flag after an architecture.
    pub fn name(self) -> &'static str {
        match self {
            VendorLibrary::CublasLt => "cublaslt",
            VendorLibrary::Cudnn => "cudnn",
        }
    }

    /// The library of this name.
    pub fn by_name(name: &str) -> Option<VendorLibrary> {
        VendorLibrary::ALL.into_iter().find(|l| l.name() == name)
    }

    /// Its product name.
    pub fn display_name(self) -> &'static str {
        match self {
            VendorLibrary::CublasLt => "cuBLASLt",
            VendorLibrary::Cudnn => "cuDNN",
        }
    }

    /// The ops that it computes, as a readable name.
    pub fn op_kinds(self) -> &'static str {
        match self {
            VendorLibrary::CublasLt => "products",
            VendorLibrary::Cudnn => "convolutions",
        }
    }

    /// The environment variable with the path of its file.
    pub fn env_var(self) -> &'static str {
        match self {
            VendorLibrary::CublasLt => "OF_CUBLASLT",
            VendorLibrary::Cudnn => "OF_CUDNN",
        }
    }

    /// The first word of the plan's encoding of a call.
    fn payload_tag(self) -> &'static str {
        match self {
            VendorLibrary::CublasLt => "of-cublaslt-1",
            VendorLibrary::Cudnn => "of-cudnn-1",
        }
    }
}

/// A set of libraries that may be called.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct VendorLibraries {
    cublaslt: bool,
    cudnn: bool,
}

impl VendorLibraries {
    /// Whether the set contains a library.
    pub fn has(self, library: VendorLibrary) -> bool {
        match library {
            VendorLibrary::CublasLt => self.cublaslt,
            VendorLibrary::Cudnn => self.cudnn,
        }
    }

    /// This set and one more library.
    #[must_use]
    pub fn with(self, library: VendorLibrary) -> VendorLibraries {
        match library {
            VendorLibrary::CublasLt => VendorLibraries { cublaslt: true, ..self },
            VendorLibrary::Cudnn => VendorLibraries { cudnn: true, ..self },
        }
    }

    /// Splits an architecture string into the architecture and its library flags, which may be in any order.
    pub fn of(arch: &str) -> (&str, VendorLibraries) {
        let (mut rest, mut found) = (arch, VendorLibraries::default());
        while let Some((before, library)) =
            rest.rsplit_once('+').and_then(|(before, name)| Some((before, VendorLibrary::by_name(name)?)))
        {
            (rest, found) = (before, found.with(library));
        }
        (rest, found)
    }
}

impl fmt::Display for VendorLibraries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        VendorLibrary::ALL.iter().filter(|l| self.has(**l)).try_for_each(|l| write!(f, "+{}", l.name()))
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
    pub fn library(&self) -> VendorLibrary {
        match self {
            Call::Product(_) => VendorLibrary::CublasLt,
            Call::Convolution(_) => VendorLibrary::Cudnn,
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
        format!("{} {}", self.library().payload_tag(), words.join(" ")).into_bytes()
    }

    /// The inverse of [`Call::write`].
    ///
    /// # Errors
    /// When the bytes are no such encoding, or damaged.
    pub fn read(library: VendorLibrary, bytes: &[u8]) -> Result<Call, String> {
        let mut words = std::str::from_utf8(bytes).unwrap_or_default().split(' ');
        let ours = words.next() == Some(library.payload_tag());
        let mut words = Words(&mut words.map_while(|w| w.parse().ok()));
        let call = match library {
            _ if !ours => None,
            VendorLibrary::CublasLt => Product::of(&mut words).map(Call::Product),
            VendorLibrary::Cudnn => Convolution::of(&mut words).map(Call::Convolution),
        };
        let call = call.filter(|c| c.spans().is_some());
        call.ok_or_else(|| format!("it is no call of {}, or one of another version", library.display_name()))
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
            let (arch, libraries) = VendorLibraries::of(text);
            assert_eq!((arch, &libraries.to_string()[..]), (rest, shown), "{text}");
        }
    }
}
