//! Boxing (resharding): the collectives that change the layout of a tensor, and their cost.
//!
//! A transfer is a sequence of collectives, each of which changes the layout. The cheapest sequence is a shortest path
//! in the graph of layouts. Each step costs what its algorithm costs: `a` rounds of latency and `b` bytes through the
//! slowest link that takes part. Source: Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication
//! Operations in MPICH" (2005).

use std::collections::HashMap;

use of_ir::{PartialKind, Sbp};
use smallvec::{SmallVec, smallvec};

use crate::MeshSpec;
use crate::layout::{self, Layout};

/// The kind of a step.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum CollectiveKind {
    /// Each device keeps a slice of its copy: `B -> S`. Nothing is sent.
    LocalSlice,
    /// A value becomes partial: one device keeps its elements, the others hold the neutral element: `B -> P`, `S -> P`.
    /// Nothing is sent.
    ToPartial,
    /// Every device gets the concatenation of all parts: `S -> B`.
    AllGather,
    /// Partial values are reduced, and each device gets a slice: `P -> S`.
    ReduceScatter,
    /// Partial values are reduced on every device: `P -> B`.
    AllReduce,
    /// Slices along one tensor axis become slices along another: `S(i) -> S(j)`.
    AllToAll,
    /// Each device fetches the elements that it lacks from a device that has them. It covers layouts that no step along
    /// one mesh axis connects; neither layout is partial on the mesh axes involved.
    Reshard,
}

impl CollectiveKind {
    /// Name of the collective, as in op names.
    pub const fn name(self) -> &'static str {
        match self {
            CollectiveKind::LocalSlice => "local_slice",
            CollectiveKind::ToPartial => "to_partial",
            CollectiveKind::AllGather => "all_gather",
            CollectiveKind::ReduceScatter => "reduce_scatter",
            CollectiveKind::AllReduce => "all_reduce",
            CollectiveKind::AllToAll => "all_to_all",
            CollectiveKind::Reshard => "reshard",
        }
    }
}

/// One step of a transfer.
#[derive(Clone, PartialEq, Debug)]
pub struct Step {
    /// The collective.
    pub collective: CollectiveKind,
    /// The mesh axes that take part.
    pub axes: SmallVec<[usize; 4]>,
    /// The layout after the step.
    pub to: Layout,
    /// Seconds.
    pub seconds: f64,
    /// Bytes that all devices together send.
    pub bytes: f64,
}

/// Seconds of a step that sends nothing. It makes the path with fewest steps the cheapest among free paths.
const STEP_OVERHEAD: f64 = 1e-9;

/// Cost model of an algorithm: latency, and time and traffic per byte of the whole tensor.
#[derive(Clone, Copy)]
struct Algorithm {
    /// Seconds of latency.
    latency: f64,
    /// Seconds per byte of the whole tensor.
    per_byte: f64,
    /// Bytes that all devices send per byte of the whole tensor.
    sent: f64,
}

struct Transition {
    to: usize,
    collective: CollectiveKind,
    axes: SmallVec<[usize; 4]>,
    algorithms: SmallVec<[Algorithm; 2]>,
}

impl Transition {
    /// Seconds and bytes sent for a tensor of this many bytes, by the fastest algorithm.
    fn cost(&self, bytes: f64) -> (f64, f64) {
        let all = self.algorithms.iter().map(|a| (a.latency + a.per_byte * bytes + STEP_OVERHEAD, a.sent * bytes));
        all.min_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1))).unwrap_or((STEP_OVERHEAD, 0.0))
    }
}

/// All transfers of tensors of one rank on one mesh.
pub struct Router {
    shape: Vec<usize>,
    /// The layouts; rows and columns of [`Router::seconds`] are in this order.
    pub layouts: Vec<Layout>,
    index: HashMap<Layout, usize>,
    transitions: Vec<Vec<Transition>>,
}

impl Router {
    /// The router over all layouts of tensors with `rank` axes and these kinds of partial values.
    pub fn new(mesh: &MeshSpec, rank: usize, kinds: &[PartialKind]) -> Router {
        let shape = mesh.shape();
        let layouts = layout::all(rank, shape.len(), kinds);
        let index: HashMap<Layout, usize> = layouts.iter().cloned().zip(0..).collect();
        let mut cache = MissingCache::new();
        let transitions = layouts.iter().map(|from| transitions(mesh, &shape, &layouts, from, &mut cache)).collect();
        Router { shape, layouts, index, transitions }
    }

    /// The position of a layout.
    pub fn position(&self, layout: &Layout) -> Option<usize> {
        self.index.get(layout).copied()
    }

    /// Whether each layout gives every device an element of a tensor of these dimensions. Paths use only such layouts.
    pub fn usable(&self, dims: &[usize]) -> Vec<bool> {
        self.layouts.iter().map(|l| layout::fits(l, &self.shape, dims)).collect()
    }

    /// Seconds of the fastest path between each pair of usable layouts of a tensor of `bytes` bytes, row-major by
    /// source. Other pairs are infinite.
    pub fn seconds(&self, bytes: f64, usable: &[bool]) -> Vec<f64> {
        let n = self.layouts.len();
        let mut out = Vec::with_capacity(n * n);
        for from in 0..n {
            if usable[from] {
                out.extend(self.search(from, bytes, usable).into_iter().map(|s| s.seconds));
            } else {
                out.extend(std::iter::repeat_n(f64::INFINITY, n));
            }
        }
        out
    }

    /// The steps of the fastest path; empty for equal layouts, `None` where there is no path.
    pub fn path(&self, from: &Layout, to: &Layout, bytes: f64, usable: &[bool]) -> Option<Vec<Step>> {
        let (from, to) = (self.position(from)?, self.position(to)?);
        if !usable[from] || !usable[to] {
            return None;
        }
        let distances = self.search(from, bytes, usable);
        let mut steps = Vec::new();
        let mut at = to;
        while at != from {
            let (previous, which) = distances[at].by?;
            let m = &self.transitions[previous][which];
            let (seconds, bytes) = m.cost(bytes);
            let to = self.layouts[at].clone();
            steps.push(Step { collective: m.collective, axes: m.axes.clone(), to, seconds, bytes });
            at = previous;
        }
        steps.reverse();
        Some(steps)
    }

    /// Dijkstra's algorithm. Among equally fast paths it takes the one that sends fewer bytes.
    fn search(&self, from: usize, bytes: f64, usable: &[bool]) -> Vec<Distance> {
        let mut all =
            vec![Distance { seconds: f64::INFINITY, sent: f64::INFINITY, by: None, done: false }; usable.len()];
        (all[from].seconds, all[from].sent) = (0.0, 0.0);
        loop {
            let open = (0..all.len()).filter(|i| !all[*i].done && all[*i].seconds.is_finite());
            let Some(at) = open.min_by(|a, b| all[*a].order(&all[*b])) else { return all };
            all[at].done = true;
            for (which, m) in self.transitions[at].iter().enumerate().filter(|(_, m)| usable[m.to]) {
                let (seconds, sent) = m.cost(bytes);
                let by = Some((at, which));
                let next = Distance { seconds: all[at].seconds + seconds, sent: all[at].sent + sent, by, done: false };
                if !all[m.to].done && next.order(&all[m.to]).is_lt() {
                    all[m.to] = next;
                }
            }
        }
    }
}

#[derive(Clone, Copy)]
struct Distance {
    seconds: f64,
    sent: f64,
    by: Option<(usize, usize)>,
    done: bool,
}

impl Distance {
    fn order(&self, other: &Distance) -> std::cmp::Ordering {
        self.seconds.total_cmp(&other.seconds).then(self.sent.total_cmp(&other.sent))
    }
}

/// Mesh axes that one exchange may change; more take several steps.
const MAX_EXCHANGED_AXES: usize = 2;

fn transitions(
    mesh: &MeshSpec,
    shape: &[usize],
    layouts: &[Layout],
    from: &Layout,
    cache: &mut MissingCache,
) -> Vec<Transition> {
    let mut out = Vec::new();
    for (to, target) in layouts.iter().enumerate() {
        let changed: SmallVec<[usize; 4]> = (0..shape.len()).filter(|a| from[*a] != target[*a]).collect();
        let found = match changed.as_slice() {
            [] => None,
            [a] => collective_along(mesh, shape, from, target, *a),
            _ => None,
        };
        let found = found.or_else(|| {
            let whole = |l: &Layout| changed.iter().all(|a| !matches!(l[*a], Sbp::Partial(_)));
            let few = !changed.is_empty() && changed.len() <= MAX_EXCHANGED_AXES;
            (few && whole(from) && whole(target)).then(|| exchange(mesh, shape, from, target, &changed, cache))
        });
        if let Some((collective, axes, algorithms)) = found {
            out.push(Transition { to, collective, axes, algorithms });
        }
    }
    out
}

type Costed = (CollectiveKind, SmallVec<[usize; 4]>, SmallVec<[Algorithm; 2]>);

/// The collective along mesh axis `a` that changes the layout there. `None` where a later mesh axis splits the same
/// tensor axis: then slices along `a` are not contiguous in the layout.
fn collective_along(mesh: &MeshSpec, shape: &[usize], from: &Layout, to: &Layout, a: usize) -> Option<Costed> {
    let inner = |s: Sbp| matches!(s, Sbp::Split(_)) && from[a + 1..].contains(&s);
    if inner(from[a]) || inner(to[a]) {
        return None;
    }
    let collective = match (from[a], to[a]) {
        (Sbp::Broadcast, Sbp::Split(_)) => CollectiveKind::LocalSlice,
        (Sbp::Broadcast | Sbp::Split(_), Sbp::Partial(_)) => CollectiveKind::ToPartial,
        (Sbp::Split(_), Sbp::Broadcast) => CollectiveKind::AllGather,
        (Sbp::Split(_), Sbp::Split(_)) => CollectiveKind::AllToAll,
        (Sbp::Partial(_), Sbp::Split(_)) => CollectiveKind::ReduceScatter,
        (Sbp::Partial(_), Sbp::Broadcast) => CollectiveKind::AllReduce,
        // Through a layout without partial values.
        (Sbp::Partial(_), Sbp::Partial(_)) | (Sbp::Broadcast, Sbp::Broadcast) => return None,
    };
    let (p, link) = (shape[a] as f64, &mesh.axes[a]);
    let devices: usize = shape.iter().product();
    // Share of the whole tensor that a device holds before and after.
    let (before, after) = (layout::share(from, shape), layout::share(to, shape));
    let algorithm = |rounds: f64, share: f64| Algorithm {
        latency: rounds * link.latency,
        per_byte: share / link.bandwidth,
        sent: share * devices as f64,
    };
    // Rounds of recursive halving and doubling for a power of two, else of a ring.
    let rounds = if shape[a].is_power_of_two() { p.log2() } else { p - 1.0 };
    let others = (p - 1.0) / p;
    let algorithms = match collective {
        CollectiveKind::LocalSlice | CollectiveKind::ToPartial => smallvec![algorithm(0.0, 0.0)],
        CollectiveKind::AllGather => smallvec![algorithm(rounds, others * after)],
        CollectiveKind::ReduceScatter => smallvec![algorithm(rounds, others * before)],
        CollectiveKind::AllReduce => smallvec![
            // Reduce-scatter and all-gather. For short messages recursive doubling.
            algorithm(2.0 * rounds, 2.0 * others * before),
            algorithm(p.log2().ceil(), p.log2().ceil() * before),
        ],
        CollectiveKind::AllToAll | CollectiveKind::Reshard => smallvec![algorithm(p - 1.0, others * before)],
    };
    Some((collective, smallvec![a], algorithms))
}

/// The exchange between two layouts. It involves the mesh axes that change, and those that split the same tensor axes.
fn exchange(
    mesh: &MeshSpec,
    shape: &[usize],
    from: &Layout,
    to: &Layout,
    changed: &[usize],
    cache: &mut MissingCache,
) -> Costed {
    let touched = |a: usize| {
        let split = |s: Sbp| matches!(s, Sbp::Split(_)) && changed.iter().any(|c| from[*c] == s || to[*c] == s);
        changed.contains(&a) || split(from[a]) || split(to[a])
    };
    let axes: SmallVec<[usize; 4]> = (0..shape.len()).filter(|a| touched(*a)).collect();
    let peers: usize = axes.iter().map(|a| shape[*a]).product();
    // The cost depends only on which mesh axes split the same tensor axis, so tensor axes are renamed canonically.
    let mut order: SmallVec<[Sbp; 8]> = SmallVec::new();
    let mut renamed = |l: &Layout| -> Layout {
        axes.iter()
            .map(|a| match l[*a] {
                Sbp::Split(_) => {
                    let at = order.iter().position(|s| *s == l[*a]).unwrap_or(order.len());
                    if at == order.len() {
                        order.push(l[*a]);
                    }
                    layout::split(at)
                }
                s => s,
            })
            .collect()
    };
    let key = (axes.clone(), renamed(from), renamed(to));
    let (most, mean) = *cache.entry(key).or_insert_with_key(|(axes, from, to)| {
        let shape: Vec<usize> = axes.iter().map(|a| shape[*a]).collect();
        missing_share(&shape, from, to)
    });
    // The other mesh axes divide the tensor for all devices alike.
    let rest: f64 = (0..shape.len())
        .filter(|a| !axes.contains(a) && matches!(to[*a], Sbp::Split(_)))
        .map(|a| 1.0 / shape[a] as f64)
        .product();
    let bandwidth = axes.iter().map(|a| mesh.axes[*a].bandwidth).fold(f64::INFINITY, f64::min);
    let latency = axes.iter().map(|a| mesh.axes[*a].latency).fold(0.0, f64::max);
    let devices: usize = shape.iter().product();
    let algorithm = Algorithm {
        latency: if most > 0.0 { (peers - 1) as f64 * latency } else { 0.0 },
        per_byte: most * rest / bandwidth,
        sent: mean * rest * devices as f64,
    };
    (CollectiveKind::Reshard, axes, smallvec![algorithm])
}

/// Results of [`missing_share`] by mesh axes and layouts along them.
type MissingCache = HashMap<(SmallVec<[usize; 4]>, Layout, Layout), (f64, f64)>;

/// The share of the whole tensor that a device needs for `to` and does not hold in `from`: the maximum and the mean
/// over devices. Mesh axes that are not given split other tensor axes, alike before and after.
fn missing_share(shape: &[usize], from: &Layout, to: &Layout) -> (f64, f64) {
    // An extent that all splits divide.
    let extent: usize = shape.iter().product();
    let rank =
        from.iter().chain(to).filter_map(|s| if let Sbp::Split(d) = s { Some(usize::from(*d) + 1) } else { None });
    let dims = vec![extent; rank.max().unwrap_or(0)];
    let whole = (extent as f64).powi(dims.len() as i32);
    let (mut most, mut sum) = (0.0f64, 0.0);
    for i in 0..extent {
        let coords = layout::coords(shape, i);
        let (held, needed) = (layout::block(from, shape, &coords, &dims), layout::block(to, shape, &coords, &dims));
        let size = |b: &[(usize, usize)]| b.iter().map(|(_, n)| *n as f64).product::<f64>();
        let share = (size(&needed) - size(&overlap(&held, &needed))) / whole;
        most = most.max(share);
        sum += share;
    }
    (most, sum / extent as f64)
}

/// The intersection of two blocks.
pub fn overlap(a: &[(usize, usize)], b: &[(usize, usize)]) -> Vec<(usize, usize)> {
    let one = |((s, n), (t, m)): (&(usize, usize), &(usize, usize))| {
        let start = (*s).max(*t);
        (start, (s + n).min(t + m).saturating_sub(start))
    };
    a.iter().zip(b).map(one).collect()
}

/// Lower bound of the traffic between two layouts, in copies of the whole tensor that all devices together send.
///
/// An element that is partial on `k` devices needs at least `k - 1` messages to combine. Each device that must have it,
/// except one that combines it, needs one more. Along one mesh axis this gives `p - 1` for all-gather and
/// reduce-scatter and `2 (p - 1)` for all-reduce (Chan, Heimlich, Purkayastha, van de Geijn, "Collective communication:
/// theory, practice, and experience", 2007). Where `to` is partial, one device along the axis must have the element.
/// Where both layouts are partial in the same way, the parts may also stay uncombined.
pub fn lower_bound(mesh: &[usize], from: &Layout, to: &Layout) -> f64 {
    let alike: Vec<usize> =
        (0..mesh.len()).filter(|a| matches!(from[*a], Sbp::Partial(_)) && from[*a] == to[*a]).collect();
    (0..1usize << alike.len())
        .map(|kept| {
            let kept: Vec<usize> = (0..alike.len()).filter(|i| kept >> i & 1 == 1).map(|i| alike[i]).collect();
            bound_keeping(mesh, from, to, &kept)
        })
        .fold(f64::INFINITY, f64::min)
}

/// The bound where the parts along the mesh axes `kept` stay uncombined.
fn bound_keeping(mesh: &[usize], from: &Layout, to: &Layout, kept: &[usize]) -> f64 {
    let factor: usize = kept.iter().map(|a| mesh[*a]).product();
    let axes: Vec<usize> = (0..mesh.len()).filter(|a| !kept.contains(a)).collect();
    let shape: Vec<usize> = axes.iter().map(|a| mesh[*a]).collect();
    let restrict = |l: &Layout| axes.iter().map(|a| l[*a]).collect::<Layout>();
    let (from, to) = (restrict(from), restrict(to));
    let extent: usize = shape.iter().product();
    let rank =
        from.iter().chain(&to).filter_map(|s| if let Sbp::Split(d) = s { Some(usize::from(*d) + 1) } else { None });
    let dims = vec![extent.max(1); rank.max().unwrap_or(0)];
    let devices: Vec<Vec<usize>> = (0..extent).map(|r| layout::coords(&shape, r)).collect();
    let blocks = |l: &Layout| devices.iter().map(|c| layout::block(l, &shape, c, &dims)).collect::<Vec<_>>();
    let (held, needed) = (blocks(&from), blocks(&to));
    let partial = |l: &Layout, a: usize| matches!(l[a], Sbp::Partial(_));
    let parts: usize = (0..shape.len()).filter(|a| partial(&from, *a)).map(|a| shape[a]).product();
    let inside = |b: &[(usize, usize)], e: &[usize]| b.iter().zip(e).all(|((s, n), x)| (*s..s + n).contains(x));
    // Where the target is partial, any position along those axes may get the elements.
    let free: Vec<usize> = (0..shape.len()).filter(|a| partial(&to, *a)).collect();
    let choices: Vec<usize> = free.iter().map(|a| shape[*a]).collect();
    let mut total = 0.0;
    let mut elements = 0.0;
    of_ops::shape::for_each_index(&dims, |e| {
        elements += 1.0;
        let best = (0..choices.iter().product::<usize>()).map(|choice| {
            let at = layout::coords(&choices, choice);
            let chosen = |d: usize| free.iter().zip(&at).all(|(a, i)| devices[d][*a] == *i);
            let wants: Vec<usize> = (0..extent).filter(|d| chosen(*d) && inside(&needed[*d], e)).collect();
            let has = wants.iter().filter(|d| inside(&held[**d], e)).count();
            if parts > 1 { parts - 1 + wants.len() - usize::from(has > 0) } else { wants.len() - has }
        });
        total += best.min().unwrap_or(0) as f64;
    });
    factor as f64 * total / elements
}
