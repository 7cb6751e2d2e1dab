//! What stands in a plan for a region that TensorRT runs: lines that say what the engine is for, then the engine.

use of_ir::{DType, Func};

/// The first line.
const MAGIC: &str = "of-tensorrt 1";

/// An input or output.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Port {
    /// Name in the model.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Extents.
    pub dims: Vec<usize>,
}

impl Port {
    /// Bytes of its elements.
    pub fn bytes(&self) -> usize {
        self.dtype.byte_len(self.dims.iter().product()).unwrap_or(0)
    }
}

/// A payload.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Payload {
    /// The version of TensorRT that built the engine, which alone runs it.
    pub version: String,
    /// Architectures of GPUs that it is for.
    pub archs: Vec<i32>,
    /// Inputs of the engine.
    pub inputs: Vec<Port>,
    /// Outputs.
    pub outputs: Vec<Port>,
    /// The engine.
    pub engine: Vec<u8>,
}

/// Inputs and outputs of a function.
///
/// # Errors
/// The first that is no tensor of fixed extents.
pub fn ports(func: &Func) -> Result<(Vec<Port>, Vec<Port>), String> {
    let g = &func.graph;
    let port = |(v, name): (&of_ir::ValueId, &String)| {
        let t = g.ty(*v).as_tensor().and_then(|t| Some((t.dtype, t.fixed_dims()?)));
        let (dtype, dims) = t.ok_or_else(|| format!("'{name}' is {}, no tensor of fixed extents", g.ty(*v)))?;
        Ok(Port { name: name.clone(), dtype, dims })
    };
    let inputs = g.args().iter().zip(&func.inputs).map(port).collect::<Result<_, String>>()?;
    let outputs = g.outputs().iter().zip(&func.outputs).map(port).collect::<Result<_, String>>()?;
    Ok((inputs, outputs))
}

impl Payload {
    /// As bytes.
    pub fn write(&self) -> Vec<u8> {
        let archs: Vec<String> = self.archs.iter().map(i32::to_string).collect();
        let mut head = format!("{MAGIC}\nversion {}\narchs {}\n", self.version, archs.join(" "));
        for (what, list) in [("in", &self.inputs), ("out", &self.outputs)] {
            for p in list {
                let dims: Vec<String> = p.dims.iter().map(usize::to_string).collect();
                head += &format!("{what} {} {} {}\n", p.name, p.dtype.mlir_name(), dims.join("x"));
            }
        }
        head += &format!("engine {} {}\n", self.engine.len(), blake3::hash(&self.engine).to_hex());
        [head.as_bytes(), &self.engine].concat()
    }

    /// The inverse of [`Payload::write`].
    ///
    /// # Errors
    /// When the bytes are none of ours, or damaged.
    pub fn read(bytes: &[u8]) -> Result<Payload, String> {
        let wrong = || "it is no engine with what it is for, or of another version".to_string();
        let mut out =
            Payload { version: String::new(), archs: vec![], inputs: vec![], outputs: vec![], engine: vec![] };
        let mut rest = bytes;
        let mut first = true;
        loop {
            let end = rest.iter().position(|b| *b == b'\n').ok_or_else(wrong)?;
            let line = std::str::from_utf8(&rest[..end]).map_err(|_| wrong())?;
            rest = &rest[end + 1..];
            if std::mem::take(&mut first) {
                if line != MAGIC {
                    return Err(wrong());
                }
                continue;
            }
            let (what, text) = line.split_once(' ').ok_or_else(wrong)?;
            let words: Vec<&str> = text.split(' ').collect();
            match (what, &words[..]) {
                ("version", _) => out.version = text.into(),
                ("archs", list) => {
                    let list = list.iter().filter(|w| !w.is_empty());
                    out.archs = list.map(|w| w.parse().map_err(|_| wrong())).collect::<Result<_, _>>()?;
                }
                ("in" | "out", [name, dtype, dims]) => {
                    let dims = dims.split('x').filter(|d| !d.is_empty()).map(|d| d.parse().map_err(|_| wrong()));
                    let port = Port {
                        name: (*name).into(),
                        dtype: DType::from_mlir_name(dtype).ok_or_else(wrong)?,
                        dims: dims.collect::<Result<_, _>>()?,
                    };
                    if what == "in" { out.inputs.push(port) } else { out.outputs.push(port) }
                }
                ("engine", [len, hash]) => {
                    let same = blake3::hash(rest).to_hex().as_str() == *hash;
                    if len.parse() != Ok(rest.len()) || !same {
                        return Err("the engine is damaged".into());
                    }
                    out.engine = rest.to_vec();
                    return Ok(out);
                }
                _ => return Err(wrong()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let port = |name: &str, dims: &[usize]| Port { name: name.into(), dtype: DType::F32, dims: dims.into() };
        let p = Payload {
            version: "TensorRT-RTX 1.7.1".into(),
            archs: vec![86, 120],
            inputs: vec![port("in0", &[1, 3]), port("in1", &[])],
            outputs: vec![port("out0", &[2])],
            engine: b"an\nengine\n".to_vec(),
        };
        let mut bytes = p.write();
        assert_eq!(Payload::read(&bytes), Ok(p));
        *bytes.last_mut().unwrap() ^= 1;
        assert_eq!(Payload::read(&bytes), Err("the engine is damaged".into()));
        assert!(Payload::read(b"of-xla 1\n").is_err() && Payload::read(b"").is_err());
    }
}
