//! Random trainings in random layouts: optimizers, limits, averages and precisions next to stages, microbatches and meshes. Losses are those of
//! one device.

use of_ops::sample::Rng;

use super::pipelines::{flattened, losses, network, residual};
use super::ranks::{How, assert_near, on_mesh};
use super::*;

/// Trainings of each network.
const CASES: u64 = 8;

const BATCH: usize = 16;

const MESHES: [(&str, i64); 6] =
    [("cpu[1]", 1), ("cpu[2]", 1), ("cpu[2x2]", 1), ("cpu[2]", 2), ("cpu[4]", 2), ("cpu[4]", 4)];

#[test]
fn random_layouts_have_the_losses_of_one_device() {
    let networks: [(&str, Module, &[usize]); 3] =
        [("deep", network(), &[32]), ("residual", residual(), &[32]), ("flattened", flattened(BATCH), &[5, 32])];
    for (name, module, extents) in networks {
        let dims = [&[BATCH], extents].concat();
        for seed in 0..CASES {
            let mut r = Rng::new(seed);
            let mut any = |n: usize| r.int(0, n as i64 - 1) as usize;
            let optimizer = ["sgd", "adam", "adamw", "rmsprop", "adagrad", "lamb", "lars", "ftrl"][any(8)];
            let clipping = Clipping { norm: [None, Some(0.5)][any(2)], value: [None, None, Some(0.01)][any(3)] };
            let (average, accumulate) = ([None, Some(0.9)][any(2)], [1, 1, 2][any(3)]);
            let precision = [Precision::Model, Precision::Model, Precision::Bf16][any(3)];
            let with = || TrainOptions {
                batch: BATCH,
                clipping,
                average,
                accumulate,
                ..options(optimizer, &Hyperparameters::default(), Loss::Mse)
            };
            let (mesh, stages) = MESHES[any(MESHES.len())];
            let how: How = (mesh, (stages, [1, 2, 4, 8][any(4)]), &[]);
            let what = format!(
                "{name}, seed {seed}: {optimizer}, {clipping:?}, {average:?}, {accumulate}, {precision:?} on {how:?}"
            );
            let mut one = trainer_in(module.clone(), &with(), &[], precision).unwrap_or_else(|d| panic!("{what}: {d}"));
            // Where a gradient is nearly zero, its sign is that of rounding errors.
            let of_sign = ["rmsprop", "adam", "adamw", "lamb"].contains(&optimizer);
            let tolerance = match precision {
                Precision::Model => {
                    if of_sign {
                        1e-3
                    } else {
                        1e-4
                    }
                }
                _ => 1e-2,
            };
            let got = losses(&mut on_mesh(&module, &with(), how, precision), &dims);
            assert_near(&got, &losses(&mut one, &dims), tolerance, &what);
        }
    }
}
