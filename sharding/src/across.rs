//! Transfers from one mesh to another: steps on the first, one sending, steps on the second.

use crate::MeshSpec;
use crate::boxing::{Router, Step};
use crate::layout::{self, Layout};

/// What lies between two meshes.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Link {
    /// Bytes a second that a device sends to, or receives from, the other mesh.
    pub bandwidth: f64,
    /// Seconds until the first byte of a message arrives.
    pub latency: f64,
}

/// A mesh with the transfers on it.
#[derive(Clone, Copy)]
pub struct Side<'a> {
    /// The mesh.
    pub mesh: &'a MeshSpec,
    /// Transfers of tensors of the rank in question.
    pub router: &'a Router,
}

/// A transfer from one mesh to another.
#[derive(Clone, PartialEq, Debug)]
pub struct Across {
    /// Steps on the first mesh.
    pub before: Vec<Step>,
    /// How the tensor lies on the first mesh when it is sent, and on the second when it has arrived: never partial. Each
    /// device of the second mesh receives its part from devices of the first that have it.
    pub sent: (Layout, Layout),
    /// Steps on the second mesh.
    pub after: Vec<Step>,
    /// Seconds of all of it.
    pub seconds: f64,
    /// Bytes that all devices of both meshes send.
    pub bytes: f64,
}

/// The fastest transfer of a tensor of these dimensions and `bytes` bytes; of equally fast ones, that which sends least.
/// `None` where a device would be without an element.
///
/// On one mesh axis each that is `|T|` for S to S, B to S, S to P and B to P, `p2 |T|` for S to B and B to B,
/// `p1 |T|` for P to S and P to P, and `(p1 + p2 - 1) |T|` for P to B, as in Yuan et al., "OneFlow: redesign the
/// distributed deep learning framework from scratch" (2021), table 2.
pub fn across(
    (first, from): (Side<'_>, &Layout),
    (second, to): (Side<'_>, &Layout),
    link: Link,
    dims: &[usize],
    bytes: f64,
) -> Option<Across> {
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
    let mut best: Option<Across> = None;
    for (source, before) in &sources {
        for (target, after) in &targets {
            // What a device receives, what all receive, and what each that has parts of it sends.
            let received = layout::share(target, &second.mesh.shape()) * bytes;
            let all = received * second.mesh.devices() as f64;
            let sent = all / first.mesh.devices() as f64;
            let (x, y) = (cost(before), cost(after));
            let seconds = x.0 + link.latency + received.max(sent) / link.bandwidth + y.0;
            let total = x.1 + all + y.1;
            let better = |b: &Across| {
                seconds < b.seconds * (1.0 - 1e-9) || (seconds <= b.seconds * (1.0 + 1e-9) && total < b.bytes)
            };
            if best.as_ref().is_none_or(better) {
                let sent = (source.clone(), target.clone());
                best = Some(Across { before: before.clone(), sent, after: after.clone(), seconds, bytes: total });
            }
        }
    }
    best
}
