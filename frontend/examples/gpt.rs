//! Writes a training step of a transformer as text. The default is GPT-3; `cargo run --release -p of-frontend --example
//! gpt -- FILE.of layers=12 batch=8 sequence=128 hidden=256 heads=4 vocabulary=1000 dtype=f32`.

use std::path::Path;

use of_frontend::gpt::{Gpt, training};
use of_ir::DType;
use of_ir::text::{Constants, PrintOptions, write_module};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let path = args.next().ok_or("the file for the model is missing")?;
    let mut c =
        Gpt { layers: 96, batch: 64, sequence: 2048, hidden: 12288, heads: 96, vocabulary: 51200, dtype: DType::F16 };
    for arg in args {
        let (name, value) = arg.split_once('=').ok_or_else(|| format!("'{arg}' is no NAME=VALUE"))?;
        let number = || value.parse::<usize>().map_err(|e| format!("'{arg}': {e}"));
        match name {
            "layers" => c.layers = number()?,
            "batch" => c.batch = number()?,
            "sequence" => c.sequence = number()?,
            "hidden" => c.hidden = number()?,
            "heads" => c.heads = number()?,
            "vocabulary" => c.vocabulary = number()?,
            "dtype" => c.dtype = DType::from_mlir_name(value).ok_or_else(|| format!("'{value}' is no element type"))?,
            _ => return Err(format!("there is no '{name}'").into()),
        }
    }
    let module = training(&c).map_err(|d| format!("{d:?}"))?;
    let options = PrintOptions { generic: false, locations: false, constants: Constants::Inline };
    write_module(Path::new(&path), &module, &options).map_err(|d| format!("{d:?}"))?;
    Ok(())
}
