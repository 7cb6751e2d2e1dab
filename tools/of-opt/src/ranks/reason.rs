//! Why a plan needs a rank: its place in the mesh, its stage, and the first task in which another rank waits for it.

use of_plan::{LayoutKind, MeshProgram, Plan, coords};

/// One sentence about a rank of a mesh, which is to run on a host.
pub fn why_needed(plan: &Plan, mesh: &MeshProgram, rank: u32, host: Option<&str>) -> String {
    let extents = mesh.extents();
    let at = coords(&extents, rank as usize);
    let on = host.map_or_else(String::new, |host| format!(" on host {host}"));
    let mut text = format!("rank {rank}{on} is at {at:?} of the mesh {extents:?}");
    if let Some(axis) = mesh.stages() {
        text += &format!(", in stage {} of {}", at[axis], extents[axis]);
    }
    match first_exchange(plan, mesh, rank) {
        Some((task, others)) => text + &format!("; {others} for it in task {task}"),
        None => {
            let whole = |port: &&of_plan::MeshPort| port.layout.iter().all(|l| l.kind() == LayoutKind::Broadcast);
            let split = mesh.outputs.iter().chain(&mesh.variables).find(|port| !whole(port));
            match split {
                Some(port) => text + &format!("; it has a part of '{}'", port.name),
                None => text + "; it has copies of what other ranks have",
            }
        }
    }
}

/// The first task in which a rank exchanges data with others, with the op that it comes from, and who those are.
fn first_exchange(plan: &Plan, mesh: &MeshProgram, rank: u32) -> Option<(String, String)> {
    let program = plan.programs.get(mesh.ranks.get(rank as usize)?.program as usize)?;
    program.tasks.iter().find_map(|task| {
        let (transfer, _) = program.transfers(task).next()?;
        let others: Vec<u32> =
            transfer.participants(&mesh.extents(), rank).into_iter().filter(|other| *other != rank).collect();
        let waits = match &others[..] {
            [] => return None,
            [one] => format!("rank {one} waits"),
            [first, .., last] => format!("{} ranks from {first} to {last} wait", others.len()),
        };
        let place = task.locations.first().map_or_else(String::new, |location| format!(" at {location}"));
        Some((format!("`{}`{place}", task.name), waits))
    })
}
