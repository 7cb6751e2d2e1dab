//! How long tasks take on a machine, from what a plan says that they do.

use of_plan::{Arg, ArgSource, ElementType, Exec, Group, MeshProgram, Plan, Program, Task, Transfer};

/// What a rank of a mesh can do.
#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
    /// Operations a second on elements of a type; those of [`Machine::other_flops`] where it is not listed.
    pub flops: Vec<(ElementType, f64)>,
    /// Operations a second on elements of other types.
    pub other_flops: f64,
    /// Bytes a second from and to memory.
    pub bandwidth: f64,
    /// Bytes a second from and to the caches.
    pub cache_bandwidth: f64,
    /// What a task moves is expected in the caches up to so many bytes.
    pub cache: u64,
    /// Seconds that a task takes besides its work.
    pub overhead: f64,
    /// One for each axis of the mesh.
    pub links: Vec<Link>,
}

/// What lies between the ranks along an axis of a mesh.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// Bytes a second that a rank receives.
    pub bandwidth: f64,
    /// Seconds until the first byte arrives.
    pub latency: f64,
}

impl Machine {
    /// Nanoseconds that each task of a rank's program takes: arithmetic or memory, whichever takes longer; a transfer
    /// what its algorithm takes to receive what the rank lacks.
    pub fn costs_ns(&self, plan: &Plan, mesh: &MeshProgram, rank: u32, program: &Program) -> Vec<u64> {
        let extents = mesh.extents();
        let seconds = |task: &Task| {
            self.overhead
                + match &task.exec {
                    Some(Exec::Kernel(e)) => self.roofline(e.flops, e.bytes, produced(task, program)),
                    Some(Exec::Backend(e)) => self.roofline(e.flops, e.bytes, produced(task, program)),
                    Some(Exec::Copy(e)) => self.moves(2 * e.bytes),
                    Some(Exec::Feed(_)) => self.moves(2 * held(&task.produces, program)),
                    Some(Exec::Fetch(_)) => self.moves(2 * held(&task.consumes, program)),
                    Some(Exec::Boxing(e)) => {
                        let group = e.transfer.group(&extents, rank);
                        match self.transfer(&e.transfer, &group, element(e.dst, program)) {
                            Some(seconds) => seconds,
                            None => self.moves(size(&e.src, plan, program) + held(&task.produces, program)),
                        }
                    }
                    Some(Exec::Control(_)) | None => 0.0,
                }
        };
        program.tasks.iter().map(|task| (seconds(task) * 1e9) as u64).collect()
    }

    fn roofline(&self, flops: u64, bytes: u64, dtype: ElementType) -> f64 {
        let peak = self.flops.iter().find(|(t, _)| *t == dtype).map_or(self.other_flops, |(_, peak)| *peak);
        (flops as f64 / peak).max(self.moves(bytes))
    }

    fn moves(&self, bytes: u64) -> f64 {
        let rate = if bytes <= self.cache { self.cache_bandwidth } else { self.bandwidth };
        bytes as f64 / rate
    }

    /// What a rank receives over the slowest link that takes part, and the rounds that it takes. What it keeps of its own
    /// goes along with what it receives. `None` where it receives nothing.
    fn transfer(&self, transfer: &Transfer, group: &Group, element: u64) -> Option<f64> {
        let others = transfer.receives(group).into_iter().filter(|piece| piece.peer != group.me);
        let (mut bytes, mut peers) = (0, 0u32);
        for piece in others {
            bytes += piece.theirs.elements() as u64 * element;
            peers += 1;
        }
        let links = transfer.axes.iter().filter_map(|a| self.links.get(*a as usize));
        let slowest = links.fold(Link { bandwidth: f64::INFINITY, latency: 0.0 }, |x, l| Link {
            bandwidth: x.bandwidth.min(l.bandwidth),
            latency: x.latency.max(l.latency),
        });
        // Rounds of doubling.
        let rounds = f64::from(peers + 1).log2().ceil();
        (peers > 0).then(|| rounds * slowest.latency + bytes as f64 / slowest.bandwidth)
    }
}

/// The element type of what a task computes.
fn produced(task: &Task, program: &Program) -> ElementType {
    let types = task.produces.iter().filter_map(|r| program.regsts.get(*r as usize)).map(|r| r.dtype());
    types.into_iter().find(|t| *t != ElementType::Unknown).unwrap_or(ElementType::Unknown)
}

/// Bytes of registers.
fn held(regsts: &[u32], program: &Program) -> u64 {
    let blocks = regsts.iter().filter_map(|r| program.regsts.get(*r as usize)?.block());
    blocks.map(|block| block.bytes).sum()
}

fn size(arg: &Arg, plan: &Plan, program: &Program) -> u64 {
    match arg.source {
        Some(ArgSource::Regst(id)) => held(&[id], program),
        Some(ArgSource::Weight(index)) => plan.weights.get(index as usize).map_or(0, |w| w.len),
        None => 0,
    }
}

fn element(regst: u32, program: &Program) -> u64 {
    program.regsts.get(regst as usize).map_or(0, |r| u64::from(r.dtype().bits() / 8))
}
