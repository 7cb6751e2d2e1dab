//! `of-opt explain`: how a model would lie on a mesh, and why.

use std::path::PathBuf;

use clap::Args;
use of_diag::Diagnostics;
use of_ir::Module;
use of_passes::specialize::Bindings;
use of_passes::{Manager, PIPELINE_FILE};
use of_sharding::search::Effort;
use of_sharding::{MeshSpec, Model as Sharding, decide, explain as reasons};

use crate::cli::{ModelFile, Shapes};
use crate::console::Console;
use crate::model::{Model, load};
use crate::{driver, exit, ranks, shapes};

/// Flags.
#[derive(Args, Debug)]
pub struct Explain {
    /// What to look at.
    #[command(flatten)]
    pub model: ModelFile,
    /// Numbers for open dimensions.
    #[command(flatten)]
    pub shapes: Shapes,
    /// The mesh: NAME[AxB], such as dgx-h100[4x8], or a file that describes one
    #[arg(long, value_name = "MESH")]
    pub mesh: String,
    /// Bytes of memory a device, instead of the mesh's
    #[arg(long, value_name = "BYTES")]
    pub memory: Option<f64>,
    /// Passes before the search, instead of those that leave primitives
    #[arg(long, value_name = "PIPELINE")]
    pub passes: Option<String>,
    /// Write a page for a browser: graph, layouts, communication, memory, and the timeline of a step
    #[arg(long, value_name = "FILE.html", conflicts_with = "memory")]
    pub html: Option<PathBuf>,
}

/// Runs it.
///
/// # Errors
/// When the model or the mesh cannot be read, or no choice fits.
pub fn explain(c: &Explain, console: &mut Console) -> Result<(), Diagnostics> {
    let mut mesh = MeshSpec::named(&c.mesh)?;
    if let Some(memory) = c.memory {
        mesh.memory = memory;
    }
    let Model::Module(source) = load(&c.model.model, console)? else {
        return Err(exit::usage("a plan is compiled already: explain takes a model").into());
    };
    driver::verify(&source.module)?;
    let func = driver::main_func(&source.module)?;
    let mut bindings = Bindings::default();
    shapes::bind(&c.shapes.shape, func, &mut bindings)?;
    let text = c.passes.as_deref().unwrap_or(ranks::PIPELINE);
    console.renderer.sources.add(PIPELINE_FILE, text);
    let mut own = Module { meshes: source.module.meshes.clone(), ..Module::default() };
    own.funcs.insert("main".into(), func.clone());
    let mut manager = Manager::default();
    manager.add::<of_passes::Specialize>(bindings).append(text)?;
    let report = manager.run(&mut own, &mut |s| eprint!("{s}"))?;
    console.report(&report.warnings);
    let func = driver::main_func(&own)?;
    let model = Sharding::new(func, &mesh)?;
    let decision = decide::decide(&model, mesh.memory, &Effort::default())?;
    if let Some(path) = &c.html {
        let lanes = super::simulate::lanes(&own, &source, &mesh, &c.mesh, console)?;
        let title = format!("{} on {}", source.module.name, c.mesh);
        let page = of_sharding::html::page(&title, &model, &decision, &lanes);
        std::fs::write(path, page).map_err(|e| exit::io(path, "write", &e))?;
        return Ok(());
    }
    console.print(&format!("{}  {}\n", c.mesh, reasons::text(&model, &decision)))
}
