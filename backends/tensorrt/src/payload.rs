//! The payload of a subgraph: header lines with the engine's ports, then the engine.

use of_ir::{DType, Func, Graph, ValueId};

use crate::range::{Range, Ranges};

/// The first line.
const MAGIC: &str = "of-tensorrt 2";

/// An input or output of an engine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Port {
    /// The argument or result number in the subgraph.
    pub index: usize,
    /// Name in the engine.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Extents.
    pub dims: Vec<Range>,
    /// Name for people.
    pub shown: String,
}

impl Port {
    /// Bytes of so many elements.
    pub fn bytes(&self, dims: &[i64]) -> Option<usize> {
        let count = dims.iter().try_fold(1usize, |n, d| n.checked_mul(usize::try_from(*d).ok()?))?;
        self.dtype.byte_len(count)
    }

    /// Whether some extent has no number.
    pub fn is_open(&self) -> bool {
        self.dims.iter().any(|r| r.as_fixed().is_none())
    }

    /// Whether a tensor with these extents is in range.
    ///
    /// # Errors
    /// The first axis that does not, with its extent and what the engine is for.
    pub fn accepts(&self, dims: &[i64]) -> Result<(), String> {
        let name = &self.shown;
        if dims.len() != self.dims.len() {
            return Err(format!("'{name}' has rank {}, the engine takes rank {}", dims.len(), self.dims.len()));
        }
        let wrong = self.dims.iter().zip(dims).enumerate().find(|(_, (range, n))| !range.holds(**n));
        wrong.map_or(Ok(()), |(axis, (range, n))| {
            let of = match range.as_fixed() {
                Some(only) => only.to_string(),
                None => format!("{} to {}", range.min, range.max),
            };
            Err(format!("'{name}' has extent {n} at dimension {axis}, the engine is for {of}"))
        })
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

/// Inputs and outputs of a function, with symbolic extents in `ranges`. Unused arguments are not inputs.
///
/// # Errors
/// The first one that is not a tensor with such extents.
pub fn ports(func: &Func, ranges: &Ranges) -> Result<(Vec<Port>, Vec<Port>), String> {
    let g = &func.graph;
    let port = |(index, (v, name)): (usize, (&ValueId, &String))| {
        let t = g.ty(*v).as_tensor().and_then(|t| Some((t.dtype, t.shape.as_ref()?)));
        let range = |d| Range::of(d, ranges);
        let port = t.and_then(|(dtype, shape)| Some((dtype, shape.iter().map(range).collect::<Option<_>>()?)));
        let (dtype, dims) = port.ok_or_else(|| format!("'{name}' is {}, not a tensor of known extents", g.ty(*v)))?;
        Ok(Port { index, name: name.clone(), dtype, dims, shown: shown(g, *v, name) })
    };
    let read = |(_, (v, _)): &(usize, (&ValueId, &String))| !g.uses(**v).is_empty();
    let inputs = g.args().iter().zip(&func.inputs).enumerate().filter(read);
    let outputs = g.outputs().iter().zip(&func.outputs).enumerate();
    Ok((inputs.map(port).collect::<Result<_, String>>()?, outputs.map(port).collect::<Result<_, String>>()?))
}

/// What people call a value: on one line, as it stands at the end of one.
fn shown(g: &Graph, v: ValueId, name: &str) -> String {
    let own = g.name(v).map_or(name, |n| n);
    own.split(char::is_control).collect::<Vec<_>>().join(" ")
}

impl Payload {
    /// As bytes.
    pub fn write(&self) -> Vec<u8> {
        let archs: Vec<String> = self.archs.iter().map(i32::to_string).collect();
        let mut head = format!("{MAGIC}\nversion {}\narchs {}\n", self.version, archs.join(" "));
        for (what, list) in [("in", &self.inputs), ("out", &self.outputs)] {
            for p in list {
                let dims: Vec<String> = p.dims.iter().map(Range::to_string).collect();
                let (dtype, dims) = (p.dtype.mlir_name(), dims.join("x"));
                head += &format!("{what} {} {} {dtype} {dims} {}\n", p.index, p.name, p.shown);
            }
        }
        head += &format!("engine {} {}\n", self.engine.len(), blake3::hash(&self.engine).to_hex());
        [head.as_bytes(), &self.engine].concat()
    }

    /// The inverse of [`Payload::write`].
    ///
    /// # Errors
    /// When the format is not recognized, or the bytes are damaged.
    pub fn read(bytes: &[u8]) -> Result<Payload, String> {
        let wrong = || "it is not an engine of this version".to_string();
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
            const WORDS: usize = 5;
            let words: Vec<&str> = if matches!(what, "in" | "out") {
                text.splitn(WORDS, ' ').collect()
            } else {
                text.split(' ').collect()
            };
            match (what, &words[..]) {
                ("version", _) => out.version = text.into(),
                ("archs", list) => {
                    let list = list.iter().filter(|w| !w.is_empty());
                    out.archs = list.map(|w| w.parse().map_err(|_| wrong())).collect::<Result<_, _>>()?;
                }
                ("in" | "out", [index, name, dtype, dims, shown]) => {
                    let dims = dims.split('x').filter(|d| !d.is_empty()).map(|d| d.parse().map_err(|_| wrong()));
                    let port = Port {
                        index: index.parse().map_err(|_| wrong())?,
                        name: (*name).into(),
                        dtype: DType::from_mlir_name(dtype).ok_or_else(wrong)?,
                        dims: dims.collect::<Result<_, _>>()?,
                        shown: (*shown).into(),
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
    fn payloads_round_trip() {
        let port = |index: usize, name: &str, dims: &str| Port {
            index,
            name: name.into(),
            dtype: DType::F32,
            dims: dims.split_whitespace().map(|d| d.parse().unwrap()).collect(),
            shown: format!("the {name} of it"),
        };
        let p = Payload {
            version: "TensorRT-RTX 1.7.1".into(),
            archs: vec![86, 120],
            inputs: vec![port(0, "in0", "1:8:64 3"), port(2, "in2", "")],
            outputs: vec![port(0, "out0", "2")],
            engine: b"an\nengine\n".to_vec(),
        };
        let mut bytes = p.write();
        assert_eq!(Payload::read(&bytes), Ok(p));
        *bytes.last_mut().unwrap() ^= 1;
        assert_eq!(Payload::read(&bytes), Err("the engine is damaged".into()));
        assert!(Payload::read(b"of-xla 1\n").is_err() && Payload::read(b"").is_err());
    }
    #[test]
    fn extents_out_of_range_are_named() {
        let dims = vec![Range { min: 1, opt: 8, max: 64 }, Range::fixed(3)];
        let port = Port { index: 0, name: "in0".into(), dtype: DType::F16, dims, shown: "images".into() };
        assert_eq!((port.accepts(&[1, 3]), port.accepts(&[64, 3]), port.bytes(&[2, 3])), (Ok(()), Ok(()), Some(12)));
        let said = |dims: &[i64]| port.accepts(dims).unwrap_err();
        assert_eq!(said(&[65, 3]), "'images' has extent 65 at dimension 0, the engine is for 1 to 64");
        assert_eq!(said(&[8, 4]), "'images' has extent 4 at dimension 1, the engine is for 3");
        assert_eq!(said(&[8]), "'images' has rank 1, the engine takes rank 2");
    }
}
