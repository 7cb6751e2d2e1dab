//! Writes the graphs for measuring as text: `cargo run -p of-frontend --example measuring -- DIR`.

use std::path::Path;

use of_frontend::measuring::GRAPHS;
use of_ir::text::{Constants, PrintOptions, write_module};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = std::env::args().nth(1).ok_or("the folder for the models is missing")?;
    std::fs::create_dir_all(&dir)?;
    for (name, make) in GRAPHS {
        let options = PrintOptions { generic: false, locations: false, constants: Constants::Inline };
        let module = make().map_err(|d| format!("{name}: {d:?}"))?;
        write_module(&Path::new(&dir).join(format!("{name}.of")), &module, &options).map_err(|d| format!("{d:?}"))?;
    }
    Ok(())
}
