//! Several requests at once.

#[path = "../../plan/tests/common/mod.rs"]
mod common;
mod support;

use of_runtime::*;
use support::*;

/// More callers than sessions: each gets the result of its own inputs.
#[test]
fn callers_get_their_own_results() {
    let plan = backend_plan(2);
    let pool = SessionPool::new(&plan, 0, Options { threads: 4, profile: false, ..Default::default() }, 3, &loaders())
        .unwrap();
    std::thread::scope(|scope| {
        for caller in 0..8 {
            let pool = &pool;
            scope.spawn(move || {
                let mut into = pool.new_outputs().unwrap();
                for round in 0..50 {
                    let x = (caller * 100 + round) as f32 + 0.25;
                    assert_eq!(floats(&pool.run(vec![tensor(&[x; 4])]).unwrap()[0]), [x + 2.0; 4]);
                    pool.run_into(&mut [tensor(&[-x; 4])], &mut into).unwrap();
                    assert_eq!(floats(&into[0]), [2.0 - x; 4]);
                }
            });
        }
    });
}

/// A failure concerns only its caller. A panic removes the session, and no caller waits for a session that was removed.
#[test]
fn poisoned_sessions_are_removed() {
    let plan = backend_plan(1);
    let pool = SessionPool::new(&plan, 0, Options { threads: 2, profile: false, ..Default::default() }, 2, &loaders())
        .unwrap();
    assert!(matches!(pool.run(vec![tensor(&[FAIL; 4])]), Err(RunError::Task { .. })));
    assert!(matches!(pool.run(vec![]), Err(RunError::InputCount { .. })));
    assert!(matches!(pool.run(vec![tensor(&[PANIC; 4])]), Err(RunError::Panic { .. })));
    for _ in 0..5 {
        assert_eq!(floats(&pool.run(vec![tensor(&[1.0; 4])]).unwrap()[0]), [3.0; 4]);
    }
    std::thread::scope(|scope| {
        let runs: Vec<_> = (0..4).map(|_| scope.spawn(|| pool.run(vec![tensor(&[PANIC; 4])]))).collect();
        let results: Vec<_> = runs.into_iter().map(|r| r.join().unwrap().unwrap_err()).collect();
        let panics = results.iter().filter(|e| matches!(e, RunError::Panic { .. })).count();
        let refused = results.iter().filter(|e| matches!(e, RunError::Poisoned(why) if why.contains("panic"))).count();
        assert_eq!((panics, refused), (1, 3), "{results:?}");
    });
}
