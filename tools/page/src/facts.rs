//! What is worth knowing of a function.

use std::collections::BTreeMap;

use of_ir::{Func, Graph};

/// What is worth knowing of a function.
pub struct Facts {
    /// Its name.
    pub name: String,
    /// Names and types of the inputs.
    pub inputs: Vec<(String, String)>,
    /// Names and types of the outputs.
    pub outputs: Vec<(String, String)>,
    /// Its open dimensions.
    pub symbols: Vec<String>,
    /// How often each op occurs.
    pub ops: BTreeMap<&'static str, usize>,
    /// The number of constants.
    pub constants: usize,
    /// Their bytes.
    pub constant_bytes: u64,
}

impl Facts {
    /// The facts of a function under its name.
    pub fn of(name: &str, f: &Func) -> Facts {
        let typed = |names: &[String], types: Vec<of_ir::Type>| {
            names.iter().cloned().zip(types.iter().map(ToString::to_string)).collect()
        };
        let mut ops = BTreeMap::new();
        for op in f.graph.walk() {
            *ops.entry(f.graph.op(op).name()).or_insert(0) += 1;
        }
        let (constants, constant_bytes) = constants(&f.graph);
        Facts {
            name: name.into(),
            inputs: typed(&f.inputs, f.input_types()),
            outputs: typed(&f.outputs, f.output_types()),
            symbols: of_passes::specialize::open_symbols(f),
            ops,
            constants,
            constant_bytes,
        }
    }
}

fn constants(g: &Graph) -> (usize, u64) {
    let mut total = (0, 0);
    for op in g.walk() {
        let data = g.op(op);
        if let Some(t) = data.def.constant(&data.attrs) {
            total.0 += 1;
            total.1 += t.bytes().map_or(0, |b| b.len() as u64);
        }
    }
    total
}
