//! The cost model of the simulator: how long tasks and transfers take on a machine (a roofline with caches and links).

use of_plan::{ElementType, Exec, Group, KernelExec, MeshProgram, Plan, Program, Task, Transfer};

use super::reuse::Reuse;

/// The performance of a rank of a mesh.
#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
    /// Operations a second on elements of a type; those of [`Machine::other_flops`] where it is not listed.
    pub flops: Vec<(ElementType, f64)>,
    /// Operations a second on elements of other types.
    pub other_flops: f64,
    /// Operations a second of elementwise ops; infinity means the same rate as products.
    pub pointwise: f64,
    /// Bytes a second from and to memory.
    pub bandwidth: f64,
    /// The cache levels, the fastest first.
    pub caches: Vec<CacheLevel>,
    /// How many ranks share a core: reuse distances are multiplied by this factor.
    pub ranks_per_core: f64,
    /// Seconds of overhead of each task.
    pub overhead: f64,
    /// The link along each axis of the mesh.
    pub links: Vec<Link>,
}

/// A level of the memory hierarchy, or a message size, with its bandwidth.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CacheLevel {
    /// The largest reuse distance, or message, that it serves, in bytes.
    pub bytes: u64,
    /// Bytes a second.
    pub bandwidth: f64,
}

/// The link between ranks along an axis of a mesh.
#[derive(Clone, Debug, PartialEq)]
pub struct Link {
    /// Bytes a second that a rank receives.
    pub bandwidth: f64,
    /// Seconds until the first byte arrives.
    pub latency: f64,
    /// The bandwidth of messages that are short enough for a cache, the shortest first.
    pub short: Vec<CacheLevel>,
}

/// The rate of so many bytes.
fn rate(bytes: u64, near: &[CacheLevel], far: f64) -> f64 {
    near.iter().find(|n| bytes <= n.bytes).map_or(far, |n| n.bandwidth)
}

impl Machine {
    /// Nanoseconds that each task of a rank's program takes. A kernel takes the longer of arithmetic and memory traffic, plus repeated
    /// reads from beyond the second-level cache. A transfer takes the time to receive what the rank lacks. The caches are in the
    /// state that a previous run left.
    pub fn costs_ns(&self, plan: &Plan, mesh: &MeshProgram, rank: u32, program: &Program) -> Vec<u64> {
        let extents = mesh.extents();
        let seconds =
            |bytes: u64, distance: u64| self.seconds_to_load(bytes, (distance as f64 * self.ranks_per_core) as u64);
        let mut reuse = Reuse::default();
        reuse.run(plan, program, &seconds);
        let moves = reuse.run(plan, program, &seconds);
        // Kernels may read less of a buffer than all, or twice.
        let share = |bytes: u64, (touched, seconds): (u64, f64)| seconds * bytes as f64 / touched.max(1) as f64;
        let rendezvous = |transfers: &mut dyn Iterator<Item = (&Transfer, ElementType)>| {
            let sized = transfers.map(|(t, dtype)| (t, t.group(&extents, rank), u64::from(dtype.bits() / 8)));
            self.rendezvous(&sized.collect::<Vec<_>>())
        };
        let work = |task: &Task, moves: (u64, f64)| match &task.exec {
            Some(Exec::Kernel(e)) => {
                let reread = e.reread.map_or(0.0, |reread| self.seconds_to_load(reread.bytes, reread.distance));
                self.arithmetic(e, produced(task, program)).max(share(e.bytes, moves)) + reread
            }
            Some(Exec::Backend(e)) => {
                let work = (e.flops as f64 / self.peak(produced(task, program))).max(share(e.bytes, moves));
                let of = |own: (&Transfer, ElementType)| rendezvous(&mut std::iter::once(own));
                work + program.transfers(task).filter_map(of).sum::<f64>()
            }
            Some(Exec::Copy(_) | Exec::Feed(_) | Exec::Fetch(_)) => moves.1,
            // Each act moves a part.
            Some(Exec::Concat(_)) => moves.1 / f64::from(task.acts_per_iteration()),
            Some(Exec::Boxing(_)) => rendezvous(&mut program.transfers(task)).unwrap_or(moves.1),
            Some(Exec::Control(_)) | None => 0.0,
        };
        let tasks = program.tasks.iter().zip(moves);
        tasks.map(|(task, moves)| ((self.overhead + work(task, moves)) * 1e9).round() as u64).collect()
    }

    /// Seconds to load bytes with this reuse distance.
    fn seconds_to_load(&self, bytes: u64, distance: u64) -> f64 {
        bytes as f64 / rate(distance, &self.caches, self.bandwidth)
    }

    fn peak(&self, dtype: ElementType) -> f64 {
        self.flops.iter().find(|(t, _)| *t == dtype).map_or(self.other_flops, |(_, peak)| *peak)
    }

    fn arithmetic(&self, kernel: &KernelExec, dtype: ElementType) -> f64 {
        let peak = self.peak(dtype);
        let products = kernel.flops.saturating_sub(kernel.pointwise);
        products as f64 / peak + kernel.pointwise as f64 / self.pointwise.min(peak)
    }

    /// Seconds of a rendezvous of transfers, each with its group and the bytes of an element: the bytes that a rank receives over the slowest
    /// participating link, and the number of rounds. The rank's own part is copied meanwhile. `None` if it receives nothing.
    fn rendezvous(&self, transfers: &[(&Transfer, Group, u64)]) -> Option<f64> {
        let (mut bytes, mut peers) = (0, 0u32);
        for (transfer, group, element) in transfers {
            let parts = transfer.receives(group).into_iter().filter(|part| part.peer != group.me);
            let elements: Vec<u64> = parts.map(|part| part.theirs.elements() as u64).collect();
            bytes += elements.iter().sum::<u64>() * element;
            peers = peers.max(elements.len() as u32);
        }
        let axes = || transfers.iter().flat_map(|(transfer, ..)| &transfer.axes);
        let links = || axes().filter_map(|a| self.links.get(*a as usize));
        let slowest = links().map(|l| rate(bytes, &l.short, l.bandwidth)).fold(f64::INFINITY, f64::min);
        let latency = links().map(|l| l.latency).fold(0.0, f64::max);
        // Rounds of doubling.
        let rounds = f64::from(peers + 1).log2().ceil();
        (peers > 0).then(|| rounds * latency + bytes as f64 / slowest)
    }
}

/// The element type of a task's results.
fn produced(task: &Task, program: &Program) -> ElementType {
    let types = task.produces.iter().filter_map(|r| program.registers.get(*r as usize)).map(|r| r.dtype());
    types.into_iter().find(|t| *t != ElementType::Unknown).unwrap_or(ElementType::Unknown)
}
