//! What `of-opt` gives to shells and to `man`.

use std::process::Command;

fn of_opt(args: &[&str]) -> String {
    let out = Command::new(env!("CARGO_BIN_EXE_of-opt")).args(args).output().unwrap();
    assert!(out.status.success(), "{args:?}\n{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

/// The names of the commands, as the help lists them.
fn commands() -> Vec<String> {
    let help = of_opt(&["--help"]);
    let list = help.split_once("Commands:\n").unwrap().1.split_once("\n\n").unwrap().0;
    // Lines that continue a description are indented further.
    let first = |l: &str| {
        l.strip_prefix("  ").filter(|l| !l.starts_with(' ')).and_then(|l| l.split_whitespace().next()).map(String::from)
    };
    let names: Vec<String> = list.lines().filter_map(first).collect();
    assert!(["compile", "run", "completions", "man"].iter().all(|c| names.iter().any(|n| n == c)), "{names:?}");
    names
}

#[test]
fn completions_know_every_command() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = of_opt(&["completions", shell]);
        for command in commands() {
            assert!(script.contains(&command), "{shell} does not complete '{command}'");
        }
    }
    let wrong = Command::new(env!("CARGO_BIN_EXE_of-opt")).args(["completions", "cmd"]).output().unwrap();
    assert_eq!(wrong.status.code(), Some(2));
}

#[test]
fn bash_accepts_its_completions() {
    let dir = tempfile::tempdir().unwrap();
    let script = dir.path().join("of-opt.bash");
    std::fs::write(&script, of_opt(&["completions", "bash"])).unwrap();
    let check = Command::new("bash").arg("-n").arg(&script).output().unwrap();
    assert!(check.status.success(), "{}", String::from_utf8_lossy(&check.stderr));
}

#[test]
fn every_command_has_a_manual_page() {
    let page = of_opt(&["man"]);
    assert!(page.contains(".TH of-opt 1") && page.contains(".SH SYNOPSIS"), "{page}");
    let dir = tempfile::tempdir().unwrap();
    of_opt(&["man", "--out", dir.path().to_str().unwrap()]);
    assert_eq!(std::fs::read_to_string(dir.path().join("of-opt.1")).unwrap(), page);
    for command in commands().iter().filter(|c| *c != "help") {
        let page = std::fs::read_to_string(dir.path().join(format!("of-opt-{command}.1"))).unwrap();
        assert!(page.contains(&format!(".TH of-opt-{command} 1")), "{page}");
    }
}
