//! Trainings in pipeline stages: each stage computes its own gradients, and transfers between stages overlap with computation where a
//! link is slow.

use of_frontend::nn::{Init, Linear};
use of_ir::ValueId;
use of_ops::contraction::Gemm;
use of_ops::elementwise::{Add, Mul};
use of_ops::movement::{Reshape, Transpose};
use of_plan::{Phase, Program, Task, TaskKind};

use super::ranks::{assert_near, on_mesh};
use super::*;

const BATCH: usize = 64;
const WIDTH: usize = 32;
const POSITIONS: usize = 5;
const MICROBATCHES: i64 = 8;

/// Ranks that compute slowly and send still more slowly.
fn mesh(dir: &std::path::Path, ranks: usize, memory: f64) -> String {
    let path = dir.join(format!("{ranks}.toml"));
    let device = "bandwidth = 2e9\nflops = { f32 = 1e8, other = 1e8 }\npointwise = 1e8\n";
    let device = format!("device = \"cpu\"\nmemory = {memory}\n{device}");
    let link = format!("overhead = 1e-6\n[[axis]]\ndevices = {ranks}\nbandwidth = 4e6\nlatency = 1e-5\n");
    std::fs::write(&path, format!("{device}{link}")).unwrap();
    path.to_str().unwrap().to_owned()
}

pub(super) fn network() -> Module {
    deep(WIDTH)
}

/// Eight layers of this width.
fn deep(width: usize) -> Module {
    let mut b = Builder::new("deep");
    let x = b.input("x", Type::tensor(DType::F32, vec![Dim::symbol("n"), Dim::from(width as i64)]));
    let init = &mut Init::new(3);
    let mut y = x;
    for _ in 0..8 {
        y = Linear::new(init, width, width).unwrap().apply(&mut b, y).unwrap();
        y = b.op(Tanh {}, &[y]).unwrap();
    }
    b.finish(&[("y", y)]).unwrap()
}

/// The losses of steps that learn to give back their input.
pub(super) fn losses(t: &mut Trainer, dims: &[usize]) -> Vec<f64> {
    let x: Vec<f32> = (0..dims.iter().product::<usize>()).map(|i| (i * i % 17) as f32 / 8.0 - 1.0).collect();
    let dims: Vec<i64> = dims.iter().map(|d| *d as i64).collect();
    let tensor = || of_runtime::Tensor::from_elements(dims.clone(), &x).unwrap();
    (0..6).map(|_| t.step(vec![tensor().into(), tensor().into()], 0.01).unwrap()).collect()
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
    let losses = |t: &mut Trainer| losses(t, &[BATCH, WIDTH]);
    // The number of the step, which the updates of all stages read, is of no stage.
    for optimizer in ["sgd", "adamw"] {
        let with = || TrainOptions { batch: BATCH, ..options(optimizer, &Hyperparameters::default(), Loss::Mse) };
        let want = losses(&mut trainer(network(), &with(), &[]));
        assert!(want[5] < want[0], "{optimizer} does not learn: {want:?}");
        for stages in [2, 4] {
            let mesh = mesh(dir.path(), stages, 8e9);
            let how = (&*mesh, (stages as i64, MICROBATCHES), &[][..]);
            let mut ranks = on_mesh(&network(), &with(), how, Precision::Model);
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

#[test]
fn transfers_that_take_place_once_overlap_with_microbatches_and_updates() {
    const BATCH: usize = 1024;
    const WIDTH: usize = 128;
    let dir = tempfile::tempdir().unwrap();
    let losses = |t: &mut Trainer| losses(t, &[BATCH, WIDTH]);
    let with = || TrainOptions { batch: BATCH, ..options("adamw", &Hyperparameters::default(), Loss::Mse) };
    let want = losses(&mut trainer(deep(WIDTH), &with(), &[]));
    // In the smaller memory a part of the values is split so that microbatches have transfers, too.
    for (memory, microbatches_have_some) in [(8e9, false), (2.5e6, true)] {
        let mesh = mesh(dir.path(), 2, memory);
        let mut ranks = on_mesh(&deep(WIDTH), &with(), (&mesh, (1, MICROBATCHES), &[]), Precision::Model);
        assert_near(&losses(&mut ranks), &want, 1e-5, "microbatches");
        let plan = ranks.plan().plan();
        for program in plan.programs.iter().filter(|p| p.name.starts_with("train")) {
            let overlaps = |phase: &Phase| program.tasks[phase.range()].iter().any(Task::is_async_transfer);
            let phases: Vec<bool> = program.phases.iter().map(overlaps).collect();
            assert_eq!(phases, [true, microbatches_have_some, true], "{memory}: `{}`", program.name);
        }
    }
}

/// The hyperbolic tangents of rows times a weight that is transposed, as exporters of PyTorch write it.
fn layer(b: &mut Builder, number: usize, rows: ValueId) -> ValueId {
    let weight: Vec<f32> = (0..WIDTH * WIDTH).map(|k| ((k * (7 + number)) % 13) as f32 / 40.0 - 0.15).collect();
    let weight = Tensor::from_slice(&[WIDTH, WIDTH], &weight).unwrap();
    let weight = b.parameter(&format!("{number}.weight"), weight).unwrap();
    let gemm = Gemm { alpha: 1.0, beta: 1.0, trans_a: false, trans_b: true };
    let product = b.op(gemm, &[rows, weight]).unwrap();
    b.op(Tanh {}, &[product]).unwrap()
}

/// Blocks of a residual network, whose linear layers are transposed as in PyTorch and scaled by one vector.
pub(super) fn residual() -> Module {
    let mut b = Builder::new("residual");
    let x = b.input("x", Type::tensor(DType::F32, vec![Dim::symbol("n"), Dim::from(WIDTH as i64)]));
    let scale = b.parameter("scale", Tensor::from_slice(&[WIDTH], &[0.7f32; WIDTH]).unwrap()).unwrap();
    let mut y = x;
    for i in 0..6 {
        let z = layer(&mut b, i, y);
        let z = b.op(Mul {}, &[scale, z]).unwrap();
        y = b.op(Add {}, &[y, z]).unwrap();
    }
    b.finish(&[("y", y)]).unwrap()
}

#[test]
fn a_parameter_of_all_stages_draws_no_gradient_to_the_first() {
    let losses = |t: &mut Trainer| losses(t, &[BATCH, WIDTH]);
    let with = || TrainOptions { batch: BATCH, ..options("adamw", &Hyperparameters::default(), Loss::Mse) };
    let want = losses(&mut trainer(residual(), &with(), &[]));
    let mut ranks = on_mesh(&residual(), &with(), ("cpu[2]", (2, MICROBATCHES), &[]), Precision::Model);
    assert_near(&losses(&mut ranks), &want, 1e-5, "two stages");
}

/// Linear layers of rows (position, sample), which exporters flatten.
pub(super) fn flattened(batch: usize) -> Module {
    let mut b = Builder::new("flattened");
    let (positions, batch, width) = (POSITIONS as i64, batch as i64, WIDTH as i64);
    let x = b.input("x", Type::tensor(DType::F32, [batch, positions, width].map(Dim::from).to_vec()));
    let shape = |b: &mut Builder, dims: &[i64]| b.constant(Tensor::from_i64s(dims)).unwrap();
    let mut y = b.op(Transpose { perm: Some(vec![1, 0, 2]) }, &[x]).unwrap();
    for i in 0..2 {
        let (rows, whole) = (shape(&mut b, &[positions * batch, width]), shape(&mut b, &[positions, batch, width]));
        let flat = b.op(Reshape { allowzero: false }, &[y, rows]).unwrap();
        let z = layer(&mut b, i, flat);
        y = b.op(Reshape { allowzero: false }, &[z, whole]).unwrap();
    }
    let y = b.op(Transpose { perm: Some(vec![1, 0, 2]) }, &[y]).unwrap();
    b.finish(&[("y", y)]).unwrap()
}

#[test]
fn rows_of_another_first_axis_have_microbatches() {
    let losses = |t: &mut Trainer| losses(t, &[BATCH, POSITIONS, WIDTH]);
    let with = || TrainOptions { batch: BATCH, ..options("sgd", &Hyperparameters::default(), Loss::Mse) };
    let want = losses(&mut trainer(flattened(BATCH), &with(), &[]));
    let mut one = on_mesh(&flattened(BATCH), &with(), ("cpu[1]", (1, MICROBATCHES), &[]), Precision::Model);
    assert_near(&losses(&mut one), &want, 1e-5, "microbatches");
}
