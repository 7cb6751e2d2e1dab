//! What the parts that all targets share know of one.

/// Which operands of vector instructions may be in memory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Debug)]
pub enum MemoryOperands {
    /// None.
    No,
    /// Whole vectors.
    Vectors,
    /// Whole vectors, and one number for all lanes.
    Broadcasts,
}

/// The processors that a program is for.
#[derive(PartialEq, Eq, Debug)]
pub struct Target {
    /// Lanes of 32 bits of a vector.
    pub lanes: usize,
    /// Whether there are the instructions of AVX-512: choices by comparisons, scaling by powers of two, estimates of reciprocals.
    pub avx512: bool,
    /// Whether narrow elements are loaded, stored and converted as wide ones are, also a part of a vector.
    pub narrow_elements: bool,
    /// Whether products of bytes are added exactly.
    pub byte_products: bool,
    /// Whether there are the shuffles of NEON: of blocks of lanes, and of bytes by a table.
    pub neon: bool,
    /// Operands in memory.
    pub memory: MemoryOperands,
    /// The vector registers that hold values, in the order in which they are taken.
    pub vectors: &'static [u8],
    /// The vector registers in the order in which they become temporaries.
    pub temporaries: &'static [u8],
    /// The general-purpose registers that hold values.
    pub general: &'static [u8],
    /// The registers of the parameters.
    pub parameters: [u8; 4],
    /// The register that points to the frame.
    pub frame: u8,
}
