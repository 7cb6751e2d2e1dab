//! Programs that tests interrupt.

use std::process::Command;

/// `command`, whose program gets SIGINT, SIGTERM and SIGHUP: what starts the tests may ignore them, and processes inherit that. Arguments,
/// variables and folder are kept, streams are not.
pub fn with_default_signals(command: &Command) -> Command {
    let mut c = Command::new("env");
    c.arg("--default-signal=INT,TERM,HUP").arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => c.env(name, value),
            None => c.env_remove(name),
        };
    }
    if let Some(folder) = command.get_current_dir() {
        c.current_dir(folder);
    }
    c
}
