//! `cargo xtask simulate-faults`: random schedules of random jobs with faults, in the simulator of `of-transport`.

use crate::workspace::{cargo, run};

/// Runs the simulator.
///
/// # Errors
/// When a schedule violates an invariant; the output has its seed.
pub fn simulate_faults(args: &[&str]) -> Result<(), String> {
    let (mut schedules, mut seed) = ("100000".to_owned(), "1".to_owned());
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let value = args.next().ok_or_else(|| format!("{arg} needs a number"))?;
        value.parse::<u64>().map_err(|e| format!("{arg} {value}: {e}"))?;
        match *arg {
            "--schedules" => schedules = (*value).to_owned(),
            "--seed" => seed = (*value).to_owned(),
            other => return Err(format!("unknown option {other}; --schedules N and --seed S are known")),
        }
    }
    let mut command = cargo();
    command.args(["test", "--release", "--package", "of-transport", "--lib", "--"]);
    command.args(["--exact", "simulation::random_schedules_with_faults", "--nocapture"]);
    run(command.env("OF_SCHEDULES", schedules).env("OF_SEED", seed))
}
