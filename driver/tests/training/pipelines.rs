//! Trainings in pipeline stages: each stage computes its own gradients, and transfers between stages overlap with computation where a
//! link is slow.

use of_driver::{CompileOptions, MeshOptions, SessionOptions, Stages};
use of_frontend::nn::{Init, Linear};
use of_plan::{Program, Task, TaskKind};

use super::ranks::assert_near;
use super::*;

const BATCH: usize = 64;
const WIDTH: usize = 32;
const MICROBATCHES: i64 = 8;

/// Ranks that compute slowly and send still more slowly.
fn mesh(dir: &std::path::Path, ranks: usize) -> String {
    let path = dir.join(format!("{ranks}.toml"));
    let device =
        "device = \"cpu\"\nmemory = 8e9\nbandwidth = 2e9\nflops = { f32 = 1e8, other = 1e8 }\npointwise = 1e8\n";
    let link = format!("overhead = 1e-6\n[[axis]]\ndevices = {ranks}\nbandwidth = 4e6\nlatency = 1e-5\n");
    std::fs::write(&path, format!("{device}{link}")).unwrap();
    path.to_str().unwrap().to_owned()
}

fn network() -> Module {
    let mut b = Builder::new("deep");
    let x = b.input("x", Type::tensor(DType::F32, vec![Dim::symbol("n"), Dim::from(WIDTH as i64)]));
    let init = &mut Init::new(3);
    let mut y = x;
    for _ in 0..8 {
        y = Linear::new(init, WIDTH, WIDTH).unwrap().apply(&mut b, y).unwrap();
        y = b.op(Tanh {}, &[y]).unwrap();
    }
    b.finish(&[("y", y)]).unwrap()
}

/// The acts of kernels in the microbatches of a step.
fn acts(program: &Program) -> usize {
    let in_microbatches = program.phases.iter().filter(|phase| phase.times > 1);
    let computes = |task: &&Task| task.kind == TaskKind::Compute as i32;
    in_microbatches.map(|p| p.times as usize * program.tasks[p.range()].iter().filter(computes).count()).sum()
}

#[test]
fn transfers_between_stages_overlap_with_computation() {
    let dir = tempfile::tempdir().unwrap();
    let x: Vec<f32> = (0..BATCH * WIDTH).map(|i| (i * i % 17) as f32 / 8.0 - 1.0).collect();
    let tensor = || of_runtime::Tensor::from_elements(vec![BATCH as i64, WIDTH as i64], &x).unwrap();
    let losses = |t: &mut Trainer| -> Vec<f64> {
        (0..6).map(|_| t.step(vec![tensor().into(), tensor().into()], 0.01).unwrap()).collect()
    };
    // The number of the step, which the updates of all stages read, is of no stage.
    for optimizer in ["sgd", "adamw"] {
        let with = || TrainOptions { batch: BATCH, ..options(optimizer, &Hyperparameters::default(), Loss::Mse) };
        let want = losses(&mut trainer(network(), &with(), &[]));
        assert!(want[5] < want[0], "{optimizer} does not learn: {want:?}");
        for stages in [2, 4] {
            let stages_of = Stages { stages: stages as i64, microbatches: MICROBATCHES };
            let mesh =
                MeshOptions { mesh: mesh(dir.path(), stages), stages: Some(stages_of), ..MeshOptions::default() };
            let cache = of_driver::Cache::none();
            let compile = CompileOptions { cache, mesh: Some(mesh), ..CompileOptions::default() };
            let session = SessionOptions { threads: 1, ..SessionOptions::default() };
            let model = Model::from_module(network());
            let mut ranks = Trainer::new(model, &with(), &[], &compile, session, &of_driver::Silent)
                .unwrap_or_else(|d| panic!("{d}"));
            let what = format!("{optimizer} in {stages} stages");
            assert_near(&losses(&mut ranks), &want, 1e-5, &what);
            let plan = ranks.plan().plan();
            let step: Vec<&Program> = plan.programs.iter().filter(|p| p.name.starts_with("train")).collect();
            assert_eq!(step.len(), stages);
            let most = step.iter().map(|program| acts(program)).max().unwrap();
            for program in step {
                assert!(program.tasks.iter().any(Task::is_async_transfer), "{what}: `{}`", program.name);
                assert!(2 * acts(program) > most, "{what}: `{}` has {} of {most}", program.name, acts(program));
            }
        }
    }
}
