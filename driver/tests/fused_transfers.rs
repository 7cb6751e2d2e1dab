//! Sums of small gradients in one rendezvous, in plans of trainings.

use of_driver::training::{Hyperparameters, Loss, TrainOptions, Trainer, named};
use of_driver::{CompileOptions, MeshOptions, Model, SessionOptions};
use of_frontend::Builder;
use of_frontend::nn::{self, Layer};
use of_ir::{DType, Module, Type};
use of_ops::elementwise::Tanh;
use of_plan::{BoxingExec, Exec, Plan};
use of_runtime::{Tensor, Value};

const BATCH: usize = 32;
const WIDTH: usize = 24;
const LAYERS: usize = 48;

/// A network of 96 parameters, all of which are small: ranks gain only by splitting the batch.
fn network() -> Module {
    let mut b = Builder::new("network");
    let mut y = b.input("x", Type::fixed(DType::F32, &[BATCH, WIDTH]));
    let mut init = nn::Init::new(3);
    for layer in 0..LAYERS {
        let linear = nn::Linear::new(&mut init, WIDTH, WIDTH).unwrap();
        y = b.within(format!("layer{layer}"), |b| linear.apply(b, y)).unwrap();
        y = b.op(Tanh {}, &[y]).unwrap();
    }
    b.finish(&[("y", y)]).unwrap()
}

/// A training by gradient descent on so many cores, where all ranks have whole parameters.
fn trainer(ranks: usize) -> Trainer {
    let layouts = ["x=S(0)", "labels=S(0)", "*weight=B", "*bias=B"].map(String::from).to_vec();
    let mesh = MeshOptions { mesh: format!("cpu[{ranks}]"), layouts, ..MeshOptions::default() };
    let mesh = (ranks > 1).then_some(mesh);
    let compile = CompileOptions { cache: of_driver::Cache::none(), mesh, ..CompileOptions::default() };
    let options = TrainOptions::new(Loss::Mse, named("sgd", &Hyperparameters::default()).unwrap(), BATCH);
    let session = SessionOptions { threads: 1, ..SessionOptions::default() };
    Trainer::new(Model::from_module(network()), &options, &[], &compile, session, &of_driver::Silent)
        .unwrap_or_else(|d| panic!("{d}"))
}

/// The losses of some steps.
fn losses(trainer: &mut Trainer) -> Vec<f64> {
    let tensor = |seed: usize| -> Value {
        let x: Vec<f32> = (0..BATCH * WIDTH).map(|i| ((i * 37 + seed * 11) % 101) as f32 / 60.0 - 0.8).collect();
        Tensor::from_elements([BATCH as i64, WIDTH as i64], &x).unwrap().into()
    };
    (0..4).map(|number| trainer.step(vec![tensor(number), tensor(number + 50)], 0.05).unwrap()).collect()
}

/// The rendezvous of the step, each with the number of its transfers.
fn rendezvous(plan: &Plan) -> Vec<usize> {
    let step = &plan.programs[plan.meshes[0].ranks[0].program as usize];
    let transfers = |exec: &BoxingExec| exec.transfers().count();
    let of_task = |exec: &Exec| if let Exec::Boxing(exec) = exec { Some(transfers(exec)) } else { None };
    step.tasks.iter().filter_map(|task| of_task(task.exec.as_ref()?)).collect()
}

#[test]
fn small_gradients_share_rendezvous() {
    let want = losses(&mut trainer(1));
    let mut own = trainer(2);
    let transfers = rendezvous(own.plan().plan());
    // A message has at most 8,000 bytes: three weights and their biases.
    assert!(transfers.iter().sum::<usize>() > 2 * LAYERS, "{transfers:?}");
    assert!(transfers.len() < LAYERS / 2, "{transfers:?}");
    for (got, want) in losses(&mut own).into_iter().zip(&want) {
        assert!((got - want).abs() < 1e-5 * want, "{got}, not {want}");
    }
}
