//! The memory budget: how much memory the values of a session may take. By default it is what the machine has, or what
//! control groups grant to this process.

use std::path::Path;

use of_plan::{Program, binary_size, largest_values};

use crate::SessionError;

/// How many values an error names.
const NAMED: usize = 3;

/// Bytes of memory that this process can get: the machine's, or less where a control group limits it. `u64::MAX` where the
/// system says neither.
pub fn machine_memory() -> u64 {
    memory_below(Path::new("/"))
}

/// As [`machine_memory`], for the files below `root`.
///
/// Sources: proc(5), cgroups(7), and the kernel's documentation of `memory.max` and `memory.limit_in_bytes`.
fn memory_below(root: &Path) -> u64 {
    let read = |path: &str| std::fs::read_to_string(root.join(path.trim_start_matches('/'))).ok();
    let meminfo = read("proc/meminfo").unwrap_or_default();
    let total =
        meminfo.lines().find_map(|l| l.strip_prefix("MemTotal:")?.trim().strip_suffix("kB")?.trim().parse().ok());
    let mut least = total.map_or(u64::MAX, |kib: u64| kib.saturating_mul(1024));
    for line in read("proc/self/cgroup").unwrap_or_default().lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(group)) = (fields.next(), fields.next(), fields.next()) else { continue };
        let (folder, file) = match controllers {
            "" => ("sys/fs/cgroup", "memory.max"),
            c if c.split(',').any(|c| c == "memory") => ("sys/fs/cgroup/memory", "memory.limit_in_bytes"),
            _ => continue,
        };
        // A group is limited by its ancestors too. In a container the path may be that of the host: the mount's root counts.
        let mut group = Some(Path::new(group.trim_start_matches('/')));
        while let Some(path) = group {
            let limit = read(&format!("{folder}/{}/{file}", path.display()));
            least = least.min(limit.and_then(|text| text.trim().parse().ok()).unwrap_or(u64::MAX));
            group = path.parent();
        }
    }
    least
}

/// Checks that programs that are loaded together fit into a budget: a program, and how many copies of it.
///
/// # Errors
/// When they do not. The error names the largest values of the largest program.
pub fn check_memory<'a>(programs: impl Iterator<Item = (&'a Program, u64)>, budget: u64) -> Result<(), SessionError> {
    let mut needed = 0_u64;
    let mut largest: Option<&Program> = None;
    for (program, copies) in programs {
        needed = needed.saturating_add(program.peak_bytes.saturating_mul(copies));
        if largest.is_none_or(|other| other.peak_bytes < program.peak_bytes) {
            largest = Some(program);
        }
    }
    if needed <= budget {
        return Ok(());
    }
    let values = largest.map(|program| largest_values(program, NAMED)).unwrap_or_default();
    let values: Vec<String> = values.iter().map(ToString::to_string).collect();
    Err(SessionError::MemoryBudget {
        needed: binary_size(needed),
        budget: binary_size(budget),
        largest: values.join("; "),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(files: &[(&str, &str)]) -> u64 {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        memory_below(dir.path())
    }

    #[test]
    fn memory_of_the_machine_is_limited_by_control_groups() {
        let meminfo = ("proc/meminfo", "MemTotal:     8388608 kB\nMemFree: 1 kB\n");
        assert_eq!(machine(&[]), u64::MAX);
        assert_eq!(machine(&[meminfo]), 8 << 30);
        let unified = ("proc/self/cgroup", "0::/a/b\n");
        assert_eq!(machine(&[meminfo, unified, ("sys/fs/cgroup/a/b/memory.max", "max\n")]), 8 << 30);
        assert_eq!(machine(&[meminfo, unified, ("sys/fs/cgroup/a/memory.max", "4096\n")]), 4096, "an ancestor");
        assert_eq!(machine(&[meminfo, unified, ("sys/fs/cgroup/memory.max", "512\n")]), 512, "a container");
        let version1 = ("proc/self/cgroup", "5:cpu:/x\n4:memory:/a\n0::/\n");
        assert_eq!(machine(&[meminfo, version1, ("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "77\n")]), 77);
        assert_eq!(machine(&[meminfo, version1, ("sys/fs/cgroup/memory/x/memory.limit_in_bytes", "77\n")]), 8 << 30);
    }
}
