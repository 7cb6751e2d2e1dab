//! A log file for each rank that this process starts (`--rank-logs`).

use std::fs::File;
use std::io::Write;
use std::ops::Range;
use std::path::Path;

use of_diag::{Code, Diagnostics};
use of_driver::error;
use of_transport::{Launcher, Placement};

use super::RankOptions;
use crate::exit;

/// Rejects log files where this program does not start the ranks.
///
/// # Errors
/// When the ranks are threads, or another launcher starts them.
pub fn check(options: &RankOptions, placement: Option<&Placement>) -> Result<(), Diagnostics> {
    let refused = |what: &str, hint: &str| Err(exit::usage(what).hint(hint).into());
    match placement {
        None if options.ranks.is_none() && options.hosts.is_none() => {
            refused("--rank-logs is for ranks that are processes", "start them with --ranks or --hosts")
        }
        Some(Placement { launcher, .. }) if *launcher != Launcher::OfOpt => {
            let what = format!("--rank-logs is for ranks that this program starts, and {launcher} starts these");
            refused(&what, "torchrun has --log-dir, mpirun --output-filename, and srun --error")
        }
        _ => Ok(()),
    }
}

/// Log files of ranks with consecutive numbers.
pub struct RankLogs {
    first: u32,
    files: Vec<File>,
}

impl RankLogs {
    /// Creates the folder and an empty file for each rank. Files of an earlier job are overwritten.
    ///
    /// # Errors
    /// When the folder or a file cannot be created.
    pub fn create(folder: &Path, ranks: Range<u32>) -> Result<RankLogs, Diagnostics> {
        let failed = |path: &Path, e: &std::io::Error| {
            error(Code::IO, format!("'{}' cannot be created: {e}", path.display()))
                .hint("--rank-logs is a folder for a file of each rank")
        };
        std::fs::create_dir_all(folder).map_err(|e| failed(folder, &e))?;
        let first = ranks.start;
        let create = |rank: u32| {
            let path = folder.join(format!("rank{rank}.log"));
            File::create(&path).map_err(|e| failed(&path, &e))
        };
        Ok(RankLogs { first, files: ranks.map(create).collect::<Result<_, _>>()? })
    }

    /// The file of a rank. A rank that is started again goes on with it.
    ///
    /// # Errors
    /// When the system has no more file descriptors.
    pub fn of_rank(&self, rank: u32) -> std::io::Result<Option<RankLog>> {
        let file = rank.checked_sub(self.first).and_then(|at| self.files.get(at as usize));
        file.map(|file| Ok(RankLog { file: Some(file.try_clone()?), is_printed: rank == 0 })).transpose()
    }
}

/// The log file of a rank.
pub struct RankLog {
    /// None once it could not be written.
    file: Option<File>,
    /// Whether the console gets the lines as well.
    is_printed: bool,
}

impl RankLog {
    /// Writes a line with its end. Returns what the console gets: the line if it is that of rank 0 or the file cannot be written, and why.
    pub fn write(&mut self, line: &str) -> (bool, Option<std::io::Error>) {
        let Some(file) = &mut self.file else { return (true, None) };
        match file.write_all(line.as_bytes()) {
            Ok(()) => (self.is_printed, None),
            Err(e) => {
                self.file = None;
                (true, Some(e))
            }
        }
    }
}
