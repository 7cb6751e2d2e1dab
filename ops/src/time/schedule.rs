//! The 1F1B pipeline schedule: when each stage runs the forward and backward part of each microbatch.

/// Start times of the forward and backward microbatches, by stage and microbatch, and the end time. A backward
/// microbatch takes twice as long as a forward one.
pub fn schedule(stages: usize, microbatches: usize, training: bool) -> (Vec<Vec<usize>>, Vec<Vec<usize>>, usize) {
    const UNSET: usize = usize::MAX;
    let mut forward = vec![vec![UNSET; microbatches]; stages];
    let mut backward = vec![vec![UNSET; microbatches]; stages];
    // The sequence of each stage: warm-up forwards, then one backward and one forward alternately.
    let work = |s: usize| -> Vec<(bool, usize)> {
        if !training {
            return (0..microbatches).map(|m| (true, m)).collect();
        }
        let ahead = (stages - s).min(microbatches);
        let mut list: Vec<(bool, usize)> = (0..ahead).map(|m| (true, m)).collect();
        for m in 0..microbatches {
            list.push((false, m));
            if ahead + m < microbatches {
                list.push((true, ahead + m));
            }
        }
        list
    };
    let work: Vec<Vec<(bool, usize)>> = (0..stages).map(work).collect();
    let (mut next, mut free) = (vec![0; stages], vec![1; stages]);
    loop {
        let mut changed = false;
        for s in 0..stages {
            while let Some((is_forward, m)) = work[s].get(next[s]).copied() {
                let after = |start: usize, takes: usize| if start == UNSET { None } else { Some(start + takes) };
                let ready = match (is_forward, s) {
                    (true, 0) => Some(0),
                    (true, _) => after(forward[s - 1][m], 1),
                    (false, _) if s + 1 == stages => after(forward[s][m], 1),
                    (false, _) => after(backward[s + 1][m], 2),
                };
                let Some(ready) = ready else { break };
                let start = ready.max(free[s]);
                (if is_forward { &mut forward } else { &mut backward })[s][m] = start;
                free[s] = start + if is_forward { 1 } else { 2 };
                next[s] += 1;
                changed = true;
            }
        }
        if !changed {
            return (forward, backward, free.into_iter().max().unwrap_or(1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedule_is_1f1b() {
        // Three stages, four microbatches: stages wait only while the pipeline fills and drains.
        let (f, b, end) = schedule(3, 4, true);
        assert_eq!(f[0][..3], [1, 2, 3]);
        assert_eq!((f[2][0], b[2][0], b[1][0], b[0][0]), (3, 4, 6, 8));
        assert_eq!(end, 1 + 3 * (4 + 3 - 1));
        for s in 0..3 {
            // A stage holds no more microbatches than stages follow it, including itself.
            let kept = |m: usize| (0..=m).filter(|k| b[s][*k] > f[s][m]).count();
            assert!((0..4).all(|m| kept(m) <= 3 - s), "stage {s}");
        }
        let (f, _, end) = schedule(2, 3, false);
        assert_eq!((f, end), (vec![vec![1, 2, 3], vec![2, 3, 4]], 5));
    }
}
