//! `of-opt explain`: the layout of a model on a mesh, or the backends that would run its ops, and why.

use std::path::PathBuf;

use clap::Args;
use of_diag::{Code, Diagnostics};
use of_driver::mesh::{self, RankSelection, add_alternatives};
use of_driver::prepare::{main_func, run_passes, verify};
use of_driver::{Backends, Observer, checkpoint, error, shapes};
use of_ir::Module;
use of_passes::specialize::Bindings;
use of_passes::{Manager, PIPELINE_FILE, SHARDING_PIPELINE};
use of_sharding::layout::show;
use of_sharding::search::Effort;
use of_sharding::{MeshSpec, Model as Sharding, alternatives, decide, explain as reasons, overlapped_step, stages};
use of_tensorrt::Ranges;
use serde_json::json;

use crate::arguments::{Codegen, ModelFile, Shapes};
use crate::console::Console;
use crate::model_file;
use crate::{exit, limits, placement_report};
use of_driver::count;
use of_page::{Kind, Page, Track};

/// Flags.
#[derive(Args, Debug)]
pub struct Explain {
    /// What to look at.
    #[command(flatten)]
    pub model: ModelFile,
    /// Numbers for open dimensions.
    #[command(flatten)]
    pub shapes: Shapes,
    /// Show which ops run on the backends of --backend, and why the others do not. With --mesh, show those of each rank, and
    /// whether transfers between ranks are staged through host memory
    #[arg(long)]
    pub placement: bool,
    /// Write a page for a browser: graph, layouts, communication, memory, and the timeline of a step
    #[arg(long, value_name = "FILE.html", conflicts_with_all = ["memory", "microbatches", "json"])]
    pub html: Option<PathBuf>,
    /// Print the layouts as JSON
    #[arg(long, conflicts_with_all = ["placement", "microbatches"])]
    pub json: bool,
    /// Code generation; --passes replaces the passes before the search, which leave primitives.
    #[command(flatten)]
    pub codegen: Codegen,
}

/// Executes the subcommand.
///
/// # Errors
/// When the model or the mesh cannot be read, or no choice fits.
pub fn explain(c: &Explain, console: &Console) -> Result<(), Diagnostics> {
    if c.placement {
        return placement(c, console);
    }
    let Some(sharding) = c.codegen.mesh_options() else {
        return Err(exit::usage("--mesh MESH or --placement is needed: what is to be explained").into());
    };
    let (name, codegen) = (&sharding.mesh, &c.codegen);
    if !codegen.backend.is_empty() || !codegen.pin.is_empty() || codegen.target.is_some() {
        let what = "the layout of a model on a mesh does not depend on backends";
        let hint = "--placement says what each rank gives them, and why not more";
        return Err(error(Code::INPUT, what).hint(hint).into());
    }
    if c.codegen.stages.is_some() {
        return Err(exit::usage("explain compares numbers of stages: give --microbatches M alone").into());
    }
    if !codegen.microbatches.is_empty() && codegen.mesh.is_none() {
        return Err(exit::usage("explain compares pipelines of a mesh: --microbatches needs --mesh MESH").into());
    }
    if codegen.microbatches.contains(&1) {
        return Err(exit::usage("explain compares pipelines: --microbatches takes numbers from 2 on").into());
    }
    let mut mesh = MeshSpec::named(name)?;
    if let Some(memory) = c.codegen.memory {
        if memory == 0 {
            return Err(exit::usage("--memory is more than 0 bytes").into());
        }
        mesh.memory = memory as f64;
    }
    let mut source = model_file::open_model(&c.model, console)?;
    verify(&source.module)?;
    // Several numbers of microbatches are compared, of which the options have one.
    let options = Codegen { microbatches: Vec::new(), ..c.codegen.clone() }.options()?;
    of_driver::precision::lower(&mut source, &options, console)?;
    of_driver::mesh::fix_layouts(&mut source.module, &mesh, &sharding.layouts)?;
    let func = main_func(&source.module)?;
    let mut bindings = Bindings::default();
    shapes::bind(&c.shapes.shape, func, &mut bindings)?;
    let text = c.codegen.passes.as_deref().unwrap_or(SHARDING_PIPELINE);
    console.source(PIPELINE_FILE, text);
    let mut own = Module { meshes: source.module.meshes.clone(), ..Module::default() };
    own.funcs.insert("main".into(), func.clone());
    let mut manager = Manager::default();
    manager.add::<of_passes::Specialize>(bindings).append(text)?;
    add_alternatives(&mut manager, &sharding.search, name)?;
    let activity = console.begin("running passes");
    manager.checkpoint = checkpoint(&activity, &limits::of_compilations());
    let report = manager.run(&mut own, &mut |s| console.ir(s))?;
    drop(activity);
    console.report(&report.warnings);
    let func = main_func(&own)?;
    if !c.codegen.microbatches.is_empty() {
        let microbatches: Vec<usize> = codegen.microbatches.iter().filter_map(|m| usize::try_from(*m).ok()).collect();
        let all = stages::pipelines(func, &mesh, &microbatches, &Effort::default())?;
        return console.print(&format!("{name}  {}", reasons::pipelines(func, &all)));
    }
    let mut func = func.clone();
    let settled = alternatives::choose(&mut func, &mesh, mesh.memory, &Effort::default())?;
    let model = Sharding::new(&func, &mesh)?;
    let mut decision = overlapped_step::decide_overlapped(&model, mesh.memory, &Effort::default())?;
    if let Some(s) = &settled {
        decision.limit_bound(s.bound);
    }
    if let Some(path) = &c.html {
        // The timeline is that of the chosen alternatives.
        let mut chosen = own.clone();
        chosen.funcs.insert("main".into(), func.clone());
        let (tracks, step) = super::simulate::predicted_tracks(&chosen, &source, &mesh, name, console)?;
        let page = layout_page(&source.module.name, name, &model, &decision, &tracks, step);
        return super::inspect::write_page(&page, path);
    }
    if c.json {
        return console.print(&as_json(name, &model, &decision));
    }
    let chosen_text = settled.map(|s| format!("\n{}", reasons::alternatives(&s))).unwrap_or_default();
    console.print(&format!("{name}  {}\n{chosen_text}", reasons::text(&model, &decision)))
}

fn as_json(name: &str, model: &Sharding<'_>, decision: &decide::Decision) -> String {
    let values = of_sharding::explain::explain(model, decision).into_iter().map(|e| {
        let runner_up = e.runner_up.map(|r| {
            json!({"layout": show(&r.layout), "seconds": r.seconds, "sent_bytes": r.sent, "memory_bytes": r.memory})
        });
        json!({"value": e.value, "layout": show(&e.layout), "runner_up": runner_up})
    });
    let report = json!({"mesh": name, "seconds": decision.cost, "bound_seconds": decision.bound, "memory_bytes": decision.memory, "values": values.collect::<Vec<_>>()});
    format!("{report:#}\n")
}

/// The page of `--html`. `step` are the seconds that the simulator predicts.
fn layout_page(
    model_name: &str,
    mesh: &str,
    model: &Sharding<'_>,
    d: &decide::Decision,
    tracks: &[Track],
    step: f64,
) -> Page {
    let mut page = Page::new(format!("{model_name} on {mesh}"));
    page.fact("step, simulated", Kind::Seconds, step, "the compiled ranks: fused kernels, memory, overhead, waiting");
    page.fact("step, cost model", Kind::Seconds, d.cost, "what the search minimises: each op and transfer alone");
    page.fact("lower bound", Kind::Seconds, d.bound, "of the cost model, for any layouts");
    page.fact("memory of a device", Kind::Bytes, d.memory, "values, weights and gradients");
    page.fact("ranks", Kind::Number, model.mesh.devices(), "");
    let note = "The simulator runs the compiled tasks of each kind of rank with the runtime's actors. Its step is not the \
                sum of the cost model, which knows neither fusion nor the overhead of tasks.";
    page.timeline("Timeline of a step", note, tracks);
    page.memory("Memory of a rank", tracks, Some(model.mesh.memory));
    of_page::layouts::add(&mut page, model, d);
    of_page::model::add(&mut page, model.func);
    page
}

/// Every op that a requested backend does not run, with the reason.
fn placement(c: &Explain, console: &Console) -> Result<(), Diagnostics> {
    let asked = &c.codegen;
    let host = asked.target.as_deref().is_none_or(|target| target == "cpu");
    if host && asked.backend.is_empty() && asked.pin.is_empty() {
        let what = "--placement needs --backend: which backends to ask, best first; or a --target that is a GPU";
        return Err(exit::usage(what).into());
    }
    let mut source = model_file::open_model(&c.model, console)?;
    verify(&source.module)?;
    let options = c.codegen.options()?;
    of_driver::precision::lower(&mut source, &options, console)?;
    let (mut bindings, mut ranges) = (Bindings::default(), Ranges::new());
    shapes::bind_ranges(&c.shapes.shape, main_func(&source.module)?, &mut bindings, &mut ranges)?;
    let backends = Backends::with_ranges(&options, &ranges)?;
    if let Some(sharding) = &options.mesh {
        let one = RankSelection::OnePerClass;
        let ranks = mesh::prepare(&source.module, &bindings, sharding, &options, one, &backends, console)?;
        return console.print(&(placement_report::by_rank(&ranks.placements, &ranks.ranks, true).join("\n") + "\n"));
    }
    let mut text = String::new();
    let mut passed = run_passes(&source.module, &[bindings], &options, console)?;
    let mut funcs: Vec<_> = passed.iter_mut().map(|(_, f)| f).collect();
    for p in backends.place(&mut funcs, &options)?.iter().flatten() {
        text += &format!("{}, as native code fuses and counts them\n", count(p.ops, "op"));
        placement_report::lines(p, true).iter().for_each(|l| text += &format!("{l}\n"));
    }
    console.print(&text)
}
