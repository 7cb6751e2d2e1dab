//! The structure of the plan next to the recordings of its ranks: it names tasks and ops when the plan's file is not there any more, as that
//! of a training.
//!
//! The file has the hash of the plan, a BLAKE3 hash of what follows, and the structure as in a plan, without weights and code.

use std::io;
use std::path::Path;

use of_plan::{Plan, verify};
use prost::Message;

/// Its name in the folder of recordings.
const NAME: &str = "plan.structure";

/// Bytes of a hash.
const HASH: usize = 32;

/// Whether a file of the folder of recordings is the structure of a plan.
pub fn is_kept_plan(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name == NAME)
}

/// Keeps the structure of the plan with this hash, unless another rank has done so.
///
/// # Errors
/// When the file cannot be written.
pub fn keep_plan(dir: &Path, hash: &[u8; HASH], plan: &Plan) -> io::Result<()> {
    let path = dir.join(NAME);
    if begins_with(&path, hash).unwrap_or(false) {
        return Ok(());
    }
    let structure = plan.encode_to_vec();
    let mut bytes = hash.to_vec();
    bytes.extend(blake3::hash(&structure).as_bytes());
    bytes.extend(structure);
    // It appears whole: ranks may write it at the same time.
    of_files::write(&path, bytes)
}

/// The structure of the plan with this hash, where it was kept, and is whole.
pub fn kept_plan(dir: &Path, hash: &[u8; HASH]) -> Option<Plan> {
    let bytes = std::fs::read(dir.join(NAME)).ok()?;
    let (of, rest) = bytes.split_at_checked(HASH)?;
    let (checksum, structure) = rest.split_at_checked(HASH)?;
    if of != hash || checksum != blake3::hash(structure).as_bytes() {
        return None;
    }
    Plan::decode(structure).ok().filter(|plan| verify(plan).is_ok())
}

fn begins_with(path: &Path, hash: &[u8; HASH]) -> io::Result<bool> {
    let mut first = [0; HASH];
    io::Read::read_exact(&mut std::fs::File::open(path)?, &mut first)?;
    Ok(first == *hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_kept_once_and_damage_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let plan = |model: &str| {
            let mut plan = Plan::default();
            plan.info.model = model.into();
            plan
        };
        keep_plan(dir.path(), &[1; HASH], &plan("first")).unwrap();
        assert_eq!(kept_plan(dir.path(), &[1; HASH]).unwrap().info.model, "first");
        assert!(kept_plan(dir.path(), &[2; HASH]).is_none());
        // Of the same plan, what is there stays.
        keep_plan(dir.path(), &[1; HASH], &plan("another")).unwrap();
        assert_eq!(kept_plan(dir.path(), &[1; HASH]).unwrap().info.model, "first");
        keep_plan(dir.path(), &[2; HASH], &plan("second")).unwrap();
        assert_eq!(kept_plan(dir.path(), &[2; HASH]).unwrap().info.model, "second");
        let path = dir.path().join(NAME);
        assert!(is_kept_plan(&path));
        let mut bytes = std::fs::read(&path).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        std::fs::write(&path, bytes).unwrap();
        assert!(kept_plan(dir.path(), &[2; HASH]).is_none());
    }
}
