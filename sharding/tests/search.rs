//! The search against brute force on random problems.

use of_sharding::search::{Edge, Effort, Limit, Matrix, Problem, Usage, solve, solve_within};

fn random(rng: &mut fastrand::Rng, nodes: usize, density: f64) -> Problem {
    let mut p = Problem::default();
    let mut sizes = Vec::new();
    for _ in 0..nodes {
        let n = rng.usize(1..=5);
        sizes.push(n);
        p.add_node((0..n).map(|_| rng.f64()).collect());
    }
    for a in 0..nodes {
        for b in 0..nodes {
            if a == b || rng.f64() > density {
                continue;
            }
            let (rows, cols) = (rng.usize(1..=5), rng.usize(1..=5));
            let data = (0..rows * cols).map(|_| if rng.u8(..8) == 0 { 0.0 } else { rng.f64() * 4.0 }).collect();
            let matrix = p.interner.add_matrix(Matrix { rows, cols, data });
            let row = p.interner.add_indices((0..sizes[a]).map(|_| rng.u32(..rows as u32)).collect());
            let col = p.interner.add_indices((0..sizes[b]).map(|_| rng.u32(..cols as u32)).collect());
            p.edges.push(Edge { a, b, row, col, matrix });
        }
    }
    p
}

/// The least cost of all choices within the limits.
fn brute(p: &Problem, limits: &[Limit]) -> f64 {
    let sizes: Vec<usize> = p.nodes.iter().map(|n| p.interner.costs(*n).len()).collect();
    let mut best = f64::INFINITY;
    of_ops::shape::for_each_index(&sizes, |labels| {
        if limits.iter().all(|l| l.usage.of(p, labels) <= l.capacity) {
            best = best.min(p.cost(labels));
        }
    });
    best
}

#[test]
fn search_is_exact_on_random_problems() {
    let exact = Effort { gap: 0.0, rounds: 100, choices: usize::MAX };
    let rough = Effort { gap: 0.05, rounds: 20, choices: 10 };
    let mut cores = 0;
    for seed in 0..400 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let (nodes, density) = (rng.usize(1..=7), rng.f64());
        let p = random(&mut rng, nodes, density);
        let want = brute(&p, &[]);
        let s = solve(&p, &exact);
        cores += usize::from(s.core > 0);
        assert!((s.cost - want).abs() <= 1e-9 * want, "seed {seed}: {} and {want}", s.cost);
        assert!((s.bound - want).abs() <= 1e-9 * want, "seed {seed}: bound {} of {want}", s.bound);
        let s = solve(&p, &rough);
        assert!(s.bound <= want * (1.0 + 1e-9) && s.cost >= want * (1.0 - 1e-9), "seed {seed}: {s:?} and {want}");
    }
    assert!(cores > 50, "only {cores} problems were left after reduction");
}

#[test]
fn limited_search_is_exact_on_random_problems() {
    let exact = Effort { gap: 0.0, rounds: 100, choices: usize::MAX };
    let mut found = 0;
    for seed in 0..120u64 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let p = random(&mut rng, 7, 0.3);
        let limits: Vec<Limit> = (0..1 + seed % 3)
            .map(|c| {
                let mut some = |n: usize| -> Vec<f64> { (0..n).map(|_| f64::from(rng.u8(0..9))).collect() };
                let nodes = p.nodes.iter().map(|n| some(p.interner.costs(*n).len())).collect();
                let mut usage = Usage { nodes, ..Usage::default() };
                for (k, e) in p.edges.iter().enumerate().filter(|(k, _)| (seed + c + *k as u64).is_multiple_of(3)) {
                    let Matrix { rows, cols, .. } = *p.interner.matrix(e.matrix);
                    usage.edges.insert(k, Matrix { rows, cols, data: some(rows * cols) }.into());
                }
                Limit { usage, capacity: f64::from(rng.u8(12..48)) }
            })
            .collect();
        let want = brute(&p, &limits);
        match solve_within(&p, &limits, &exact) {
            Ok(l) => {
                let s = &l.solution;
                assert!(limits.iter().all(|l| l.usage.of(&p, &s.labels) <= l.capacity), "seed {seed}");
                assert!((p.cost(&s.labels) - s.cost).abs() < 1e-9, "seed {seed}");
                assert!((s.cost - want).abs() <= 1e-9, "seed {seed}: {s:?} and {want}");
                assert!((s.bound - want).abs() <= 1e-6 * want, "seed {seed}: {s:?} and {want}");
                found += usize::from(want.is_finite());
            }
            Err(_) => assert!(want.is_infinite(), "seed {seed}: {want}"),
        }
    }
    assert!(found > 20, "{found}");
}
