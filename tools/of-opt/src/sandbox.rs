//! A sandbox for models of strangers: the process gives up what the run does not need, before it opens the model.
//!
//! Landlock limits the files: those that the command line names, shared libraries, and what the system says of its processors and
//! memory. Seccomp ends the rest: other programs, sockets, other processes, namespaces. Neither can be undone, and threads that start
//! later inherit both. So the main thread enters before there is another one.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access as _, AccessFs, BitFlags, CompatLevel, Compatible, Ruleset, RulesetAttr, RulesetCreatedAttr,
    RulesetStatus, path_beneath_rules,
};
use of_diag::{Code, Diagnostics};
use of_driver::error;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule, TargetArch,
};

/// What a run needs beyond the system's files.
#[derive(Debug, Default)]
pub struct Access {
    /// Files and folders to read.
    pub read: Vec<PathBuf>,
    /// Folders to write to, which exist.
    pub write: Vec<PathBuf>,
}

/// What the loader of shared libraries, the standard library and the runtime read.
const SYSTEM: &[&str] = &[
    "/lib",
    "/lib64",
    "/usr/lib",
    "/usr/lib64",
    "/usr/local/lib",
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/usr/share/zoneinfo",
    "/dev/null",
    "/dev/urandom",
    "/proc/self",
    "/proc/cpuinfo",
    "/proc/meminfo",
    "/proc/stat",
    "/sys/devices/system",
    "/sys/fs/cgroup",
];

/// Rights of Landlock that must be there: those of Linux 6.2, the first that covers the truncation of files.
const RIGHTS: ABI = ABI::V3;

/// System calls that a run never needs. They fail with `EPERM`.
const DENIED: &[i64] = &[
    // Other programs.
    libc::SYS_execve,
    libc::SYS_execveat,
    // The network, and what reaches it past this filter.
    libc::SYS_socket,
    libc::SYS_io_uring_setup,
    // Other processes of the user.
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_pidfd_open,
    libc::SYS_pidfd_getfd,
    libc::SYS_pidfd_send_signal,
    libc::SYS_kill,
    libc::SYS_tkill,
    libc::SYS_rt_sigqueueinfo,
    libc::SYS_rt_tgsigqueueinfo,
    libc::SYS_shmget,
    libc::SYS_semget,
    libc::SYS_msgget,
    libc::SYS_mq_open,
    // Namespaces, mounts, keys and parts of the kernel with many weaknesses.
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_open_by_handle_at,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
];

/// Enters the sandbox, for the rest of the process.
///
/// # Errors
/// When the kernel lacks Landlock or seccomp. Nothing is limited then, so the caller must not go on.
pub fn enter(access: &Access) -> Result<(), Diagnostics> {
    restrict_files(access).map_err(|e| missing("Landlock, which Linux has from 6.2 on", &e))?;
    restrict_calls().map_err(|e| missing("seccomp", &e))
}

fn missing(what: &str, why: &dyn Display) -> Diagnostics {
    let hint = "run the model in a container or a virtual machine of its own instead";
    error(Code::UNSUPPORTED, format!("--sandbox needs {what}, and this system does not give it: {why}"))
        .hint(hint)
        .into()
}

fn restrict_files(access: &Access) -> Result<(), String> {
    let read = AccessFs::ReadFile | AccessFs::ReadDir;
    let write: BitFlags<AccessFs> = AccessFs::from_write(RIGHTS) | read;
    let paths = SYSTEM.iter().map(Path::new).chain(access.read.iter().map(PathBuf::as_path));
    let text = |e: landlock::RulesetError| e.to_string();
    let ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::from_all(RIGHTS))
        .and_then(Ruleset::create)
        // Paths that do not exist have no rule: opening them fails anyway.
        .and_then(|ruleset| ruleset.add_rules(path_beneath_rules(paths, read)))
        .and_then(|ruleset| ruleset.add_rules(path_beneath_rules(&access.write, write)));
    let status = ruleset.map_err(text)?.restrict_self().map_err(text)?;
    match status.ruleset {
        RulesetStatus::FullyEnforced => Ok(()),
        other => Err(format!("{other:?}")),
    }
}

fn restrict_calls() -> Result<(), String> {
    let arch: TargetArch = std::env::consts::ARCH.try_into().map_err(|e: seccompiler::BackendError| e.to_string())?;
    let mut denied: BTreeMap<i64, Vec<SeccompRule>> = DENIED.iter().map(|call| (*call, Vec::new())).collect();
    let rule = |argument, operation, value| {
        let condition = SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operation, value);
        condition.and_then(|c| SeccompRule::new(vec![c])).map_err(|e| e.to_string())
    };
    // A signal to a thread of this process ends it, as a panic that aborts does.
    denied.insert(libc::SYS_tgkill, vec![rule(0, SeccompCmpOp::Ne, u64::from(std::process::id()))?]);
    // Threads are made, and user namespaces are not.
    let namespace = libc::CLONE_NEWUSER as u64;
    denied.insert(libc::SYS_clone, vec![rule(0, SeccompCmpOp::MaskedEq(namespace), namespace)?]);
    install(denied, libc::EPERM, arch)?;
    // The flags of this call are in memory, where a filter cannot see them. The C library then makes the call above.
    install(BTreeMap::from([(libc::SYS_clone3, Vec::new())]), libc::ENOSYS, arch)
}

/// Makes these calls fail with an error number.
fn install(calls: BTreeMap<i64, Vec<SeccompRule>>, errno: i32, arch: TargetArch) -> Result<(), String> {
    let fail = SeccompAction::Errno(errno.unsigned_abs());
    let filter = SeccompFilter::new(calls, SeccompAction::Allow, fail, arch).map_err(|e| e.to_string())?;
    let program: BpfProgram = filter.try_into().map_err(|e: seccompiler::BackendError| e.to_string())?;
    seccompiler::apply_filter_all_threads(&program).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::ErrorKind::PermissionDenied;
    use std::net::TcpStream;
    use std::process::Command;

    use of_test_support::component::{LANDLOCK, available};

    use super::*;

    const FOLDER: &str = "OF_TEST_SANDBOX";

    /// In a process of its own, which cannot leave the sandbox.
    #[test]
    #[ignore = "run by another test, in a process of its own"]
    fn inside() {
        let folder = PathBuf::from(std::env::var_os(FOLDER).expect("it is started by the other test"));
        let path = |name: &str| folder.join(name);
        let access = Access { read: vec![path("given"), path("none")], write: vec![path("outputs")] };
        enter(&access).unwrap();
        assert_eq!(fs::read_to_string(path("given")).unwrap(), "text");
        fs::write(path("outputs/result"), "text").unwrap();
        fs::rename(path("outputs/result"), path("outputs/renamed")).unwrap();
        std::thread::spawn(|| assert!(fs::read_to_string("/proc/self/status").is_ok())).join().unwrap();
        let denied = |result: std::io::Result<()>, what: &str| {
            assert_eq!(result.unwrap_err().kind(), PermissionDenied, "{what}");
        };
        denied(fs::read(path("other")).map(drop), "a file that is not named");
        denied(fs::read("/etc/passwd").map(drop), "a file of the system");
        denied(fs::write(path("given"), "other"), "a file to read");
        denied(fs::write(path("new"), "other"), "a new file");
        denied(fs::remove_file(path("other")), "a file to remove");
        denied(TcpStream::connect("127.0.0.1:9").map(drop), "the network");
        denied(Command::new("/bin/true").status().map(drop), "a program");
        std::thread::spawn(move || denied(fs::read("/etc/passwd").map(drop), "another thread")).join().unwrap();
        println!("inside");
    }

    #[test]
    fn the_sandbox_leaves_what_was_named() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["given", "other"] {
            fs::write(dir.path().join(name), "text").unwrap();
        }
        fs::create_dir(dir.path().join("outputs")).unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "sandbox::tests::inside", "--ignored", "--nocapture", "--test-threads=1"]);
        let out = child.env(FOLDER, dir.path()).output().unwrap();
        let said = format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
        let found = if said.contains("this system does not give it") { Err(said.clone()) } else { Ok(()) };
        if !available(&LANDLOCK, found) {
            return;
        }
        assert!(out.status.success() && said.contains("inside\n"), "{said}");
    }
}
