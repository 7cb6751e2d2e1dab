//! The payload of a subgraph: a header line, then machine code, or text if extents are symbolic.

use of_codegen::specialize;
use of_codegen::toolchain::object::Blob;
use of_emit::{Port, port_of_word, port_word};
use of_ir::Func;

const CODE: &str = "of-mlir 1 code ";
const OPEN: &str = "of-mlir 1 open\n";

/// A payload.
#[derive(Debug)]
pub enum Payload {
    /// A kernel for fixed extents.
    Code(Kernel),
    /// A function with symbolic extents: a kernel is compiled for the extents of each run.
    Open(Box<Func>),
}

/// A kernel: `i32 kernel(args, begin, end, scratch)` over inputs, then outputs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Kernel {
    /// The instruction set that it uses.
    pub isa: String,
    /// Offset of its entry in the code.
    pub entry: usize,
    /// Bytes of scratch memory.
    pub scratch: usize,
    /// Element types and extents of the inputs.
    pub inputs: Vec<Port>,
    /// Element types and extents of the outputs.
    pub outputs: Vec<Port>,
    /// Position-independent code.
    pub code: Vec<u8>,
}

/// Machine code from the compiler, and the scratch memory that it needs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Compiled {
    /// Position-independent code.
    pub blob: Blob,
    /// Bytes.
    pub scratch: u64,
}

impl Payload {
    /// As bytes.
    pub fn write(&self) -> Vec<u8> {
        match self {
            Payload::Code(k) => {
                let ports = |p: &[Port]| p.iter().map(port_word).collect::<String>();
                let (inputs, outputs) = (ports(&k.inputs), ports(&k.outputs));
                let head = format!("{CODE}{} {} {}{inputs} ->{outputs}\n", k.isa, k.entry, k.scratch);
                [head.as_bytes(), &k.code].concat()
            }
            Payload::Open(f) => [OPEN, &specialize::write(f)].concat().into_bytes(),
        }
    }

    /// The inverse of [`Payload::write`].
    ///
    /// # Errors
    /// When the format is not recognized.
    pub fn read(bytes: &[u8]) -> Result<Payload, String> {
        let other = || "it is not a kernel of this version of the MLIR backend".to_string();
        if let Some(text) = bytes.strip_prefix(OPEN.as_bytes()) {
            return specialize::read(text).map(|func| Payload::Open(Box::new(func)));
        }
        let rest = bytes.strip_prefix(CODE.as_bytes()).ok_or_else(other)?;
        let end = rest.iter().position(|b| *b == b'\n').ok_or_else(other)?;
        let head = std::str::from_utf8(&rest[..end]).map_err(|_| other())?;
        let (given, results) = head.split_once(" ->").ok_or_else(other)?;
        let mut words = given.split_whitespace();
        let isa = words.next().ok_or_else(other)?.to_string();
        let mut number = || words.next().and_then(|w| w.parse().ok()).ok_or_else(other);
        let (entry, scratch) = (number()?, number()?);
        let inputs = words.map(|w| port_of_word(w).ok_or_else(other)).collect::<Result<_, _>>()?;
        let outputs =
            results.split_whitespace().map(|w| port_of_word(w).ok_or_else(other)).collect::<Result<_, _>>()?;
        Ok(Payload::Code(Kernel { isa, entry, scratch, inputs, outputs, code: rest[end + 1..].to_vec() }))
    }
}

#[cfg(test)]
mod tests {
    use of_ir::DType;

    use super::*;

    #[test]
    fn kernels_round_trip() {
        let kernel = Kernel {
            isa: "avx2".into(),
            entry: 64,
            scratch: 128,
            inputs: vec![(DType::F32, vec![2, 3]), (DType::Bool, vec![])],
            outputs: vec![(DType::U8, vec![4])],
            code: b"\x00\n\xff".to_vec(),
        };
        let bytes = Payload::Code(kernel.clone()).write();
        match Payload::read(&bytes) {
            Ok(Payload::Code(again)) => assert_eq!(again, kernel),
            other => panic!("{other:?}"),
        }
        assert!(Payload::read(b"of-mlir 2 code").is_err());
        assert!(Payload::read(b"of-mlir 1 code avx2 x 1 ->\n").is_err());
    }
}
