//! The simulator of jobs: the actors of random programs on several ranks, over this crate's links, in a random order and with
//! faults. `cargo xtask simulate-faults` runs it; a seed gives the same schedule again.
//!
//! What is real: the state machines of actors, rendezvous (`exchange.rs`), frames (`stream_link.rs`) and channels in shared memory
//! (`channel.rs`). What is simulated: threads, the system's streams, the monitor's messages, and time, which is the order of events.
//!
//! A schedule without a fault must end with the right data everywhere. With one, every rank ends: in order, with data that is right,
//! or with an error that names a rank. At all times, a task acts only where its inputs are full and an output copy is free, each
//! block is taken once, and after the end all credits are back.

mod jobs;
mod microbatches;
mod stream;
mod world;

use world::{Outcome, World};

/// A schedule by its seed. Returns what happened, or what is wrong.
fn schedule(seed: u64) -> Result<Outcome, String> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let job = jobs::Job::random(&mut rng);
    World::new(&job, &mut rng).run()
}

/// A number from the environment, which `cargo xtask simulate-faults` sets.
fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |text| text.parse().unwrap_or_else(|e| panic!("{name}: {e}")))
}

#[test]
fn random_schedules_with_faults() {
    let (schedules, seed) = (number("OF_SCHEDULES", 3000), number("OF_SEED", 1));
    let threads = std::thread::available_parallelism().map_or(1, usize::from) as u64;
    let run = |first: u64| {
        let mut sums = [0u64; 6];
        for index in (first..schedules).step_by(threads as usize) {
            let own = seed.wrapping_add(index);
            let outcome = std::panic::catch_unwind(|| schedule(own)).unwrap_or_else(|_| Err("a panic".into()));
            let outcome = outcome.unwrap_or_else(|why| {
                panic!("schedule {own}: {why}\nagain: cargo xtask simulate-faults --schedules 1 --seed {own}")
            });
            let Outcome { done, failed, crashed, events, damage, blocks } = outcome;
            let faulty = u64::from(crashed > 0 || damage);
            for (sum, n) in sums.iter_mut().zip([done, failed, crashed, events, faulty, blocks]) {
                *sum += n;
            }
        }
        sums
    };
    let started = std::time::Instant::now();
    let sums = std::thread::scope(|scope| {
        let run = &run;
        let threads: Vec<_> = (0..threads.min(schedules.max(1))).map(|first| scope.spawn(move || run(first))).collect();
        threads.into_iter().fold([0u64; 6], |mut sums, thread| {
            let own = thread.join().unwrap_or_else(|_| panic!("a schedule failed"));
            sums.iter_mut().zip(own).for_each(|(sum, n)| *sum += n);
            sums
        })
    });
    let [done, failed, crashed, events, faulty, blocks] = sums;
    println!(
        "{schedules} schedules from seed {seed}, {faulty} with a fault: {done} ranks ended in order, {failed} with an error, \
         {crashed} crashed; {blocks} blocks, {events} events, {:.1} s",
        started.elapsed().as_secs_f64()
    );
    if schedules >= 1000 {
        assert!(faulty * 10 > schedules * 2 && faulty * 10 < schedules * 8, "{faulty} of {schedules} had a fault");
        assert!(done > failed && failed > 0 && crashed > 0);
    }
}

#[test]
fn a_seed_gives_the_same_schedule() {
    for seed in 0..200 {
        assert_eq!(schedule(seed), schedule(seed));
    }
}
