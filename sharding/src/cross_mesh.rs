//! Cross-mesh resharding: collectives on the first mesh, one send, collectives on the second mesh.

use crate::MeshSpec;
use crate::boxing::{Router, Step};
use crate::layout::{self, Layout};

/// The link between two meshes.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Link {
    /// Bytes a second that a device sends to, or receives from, the other mesh.
    pub bandwidth: f64,
    /// Seconds until the first byte of a message arrives.
    pub latency: f64,
}

/// One end of a transfer: a mesh, and the transfers on it.
#[derive(Clone, Copy)]
pub struct Endpoint<'a> {
    /// The mesh.
    pub mesh: &'a MeshSpec,
    /// The router for tensors of the rank in question.
    pub router: &'a Router,
}

/// A transfer from one mesh to another.
#[derive(Clone, PartialEq, Debug)]
pub struct CrossMeshPath {
    /// Steps on the first mesh.
    pub before: Vec<Step>,
    /// The layouts on the first mesh at the send and on the second mesh at the arrival. Neither is partial. Each device
    /// of the second mesh receives its part from devices of the first mesh that have it.
    pub sent: (Layout, Layout),
    /// Steps on the second mesh.
    pub after: Vec<Step>,
    /// Seconds of the whole transfer.
    pub seconds: f64,
    /// Bytes that all devices of both meshes send.
    pub bytes: f64,
}

/// The fastest transfer of a tensor of these dimensions and `bytes` bytes. Among equally fast ones it takes the one
/// that sends least. `None` where a device would have no element.
///
/// With one mesh axis on each side it sends `|T|` for S to S, B to S, S to P and B to P, `p2 |T|` for S to B and B to
/// B, `p1 |T|` for P to S and P to P, and `(p1 + p2 - 1) |T|` for P to B. Source: Yuan et al., "OneFlow: redesign the
/// distributed deep learning framework from scratch" (2021), table 2.
pub fn path(
    (first, from): (Endpoint<'_>, &Layout),
    (second, to): (Endpoint<'_>, &Layout),
    link: Link,
    dims: &[usize],
    bytes: f64,
) -> Option<CrossMeshPath> {
    let usable = (first.router.usable(dims), second.router.usable(dims));
    let whole = |r: &Router, usable: &[bool]| -> Vec<Layout> {
        let list = r.layouts.iter().zip(usable).filter(|(l, u)| **u && layout::partial_kind(l).is_none());
        list.map(|(l, _)| l.clone()).collect()
    };
    let sources: Vec<(Layout, Vec<Step>)> = whole(first.router, &usable.0)
        .into_iter()
        .filter_map(|l| Some((first.router.path(from, &l, bytes, &usable.0)?, l)))
        .map(|(p, l)| (l, p))
        .collect();
    let targets: Vec<(Layout, Vec<Step>)> = whole(second.router, &usable.1)
        .into_iter()
        .filter_map(|l| Some((second.router.path(&l, to, bytes, &usable.1)?, l)))
        .map(|(p, l)| (l, p))
        .collect();
    let cost = |steps: &[Step]| steps.iter().fold((0.0, 0.0), |(time, sent), s| (time + s.seconds, sent + s.bytes));
    let mut best: Option<CrossMeshPath> = None;
    for (source, before) in &sources {
        for (target, after) in &targets {
            // Bytes that one device receives, that all devices receive, and that each device of the first mesh sends.
            let received = layout::share(target, &second.mesh.shape()) * bytes;
            let all = received * second.mesh.devices() as f64;
            let sent = all / first.mesh.devices() as f64;
            let (x, y) = (cost(before), cost(after));
            let seconds = x.0 + link.latency + received.max(sent) / link.bandwidth + y.0;
            let total = x.1 + all + y.1;
            let better = |b: &CrossMeshPath| {
                seconds < b.seconds * (1.0 - 1e-9) || (seconds <= b.seconds * (1.0 + 1e-9) && total < b.bytes)
            };
            if best.as_ref().is_none_or(better) {
                let sent = (source.clone(), target.clone());
                best =
                    Some(CrossMeshPath { before: before.clone(), sent, after: after.clone(), seconds, bytes: total });
            }
        }
    }
    best
}
