//! `of-opt cache`: what the cache of compiled kernels holds, and how to empty it.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::{Args, Subcommand};
use of_cli::quantity;
use of_diag::Diagnostics;
use of_driver::{Cache, Observer, count};
use serde_json::json;

use crate::console::Console;
use crate::exit;
use crate::show::bytes;

/// Flags.
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub struct CacheCommand {
    /// What to do; without it the content is summed up.
    #[command(subcommand)]
    pub action: Option<Action>,
    /// Print the summary as JSON; times are seconds since 1970
    #[arg(long)]
    pub json: bool,
}

/// What to do with the cache.
#[derive(Subcommand, Debug)]
pub enum Action {
    /// Remove kernels: all, or those that the options choose
    Clean(Clean),
    /// Print the folder
    Dir,
}

/// Flags of `clean`.
#[derive(Args, Debug)]
pub struct Clean {
    /// Remove kernels that were not used for so long, such as 30d
    #[arg(long, value_name = "DURATION", value_parser = quantity::duration)]
    pub older_than: Option<Duration>,
    /// Then remove the least recently used until so much is left, such as 300MB
    #[arg(long, value_name = "SIZE", value_parser = quantity::size)]
    pub max_size: Option<u64>,
}

/// Executes the subcommand.
///
/// # Errors
/// When there is no folder for the cache, or stdout cannot be written.
pub fn cache(c: &CacheCommand, console: &Console) -> Result<(), Diagnostics> {
    let cache = Cache::user();
    let usage = cache.usage();
    let Some(folder) = usage.folder.as_ref().map(|f| f.display()) else {
        return Err(
            exit::usage("there is no folder for the cache: OF_CACHE_DIR, XDG_CACHE_HOME and HOME are not set").into()
        );
    };
    match &c.action {
        Some(Action::Dir) => console.print(&format!("{folder}\n")),
        Some(Action::Clean(clean)) => {
            let all = if clean.older_than.is_some() { u64::MAX } else { 0 };
            let (kernels, size) = cache.clean(clean.older_than, clean.max_size.unwrap_or(all));
            console.note(&format!("{folder}: removed {}, {}", count(kernels, "kernel"), bytes(size)));
            Ok(())
        }
        None if c.json => {
            let seconds = |t: SystemTime| t.duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
            let summary = json!({
                "folder": folder.to_string(), "kernels": usage.entries, "bytes": usage.bytes, "limit_bytes": usage.limit,
                "oldest_use": usage.oldest.map(seconds), "newest_use": usage.newest.map(seconds),
            });
            console.print(&format!("{summary}\n"))
        }
        None => {
            let (kernels, size, limit) = (count(usage.entries, "kernel"), bytes(usage.bytes), bytes(usage.limit));
            let mut text = format!("folder    {folder}\ncontent   {kernels}, {size} of at most {limit}\n");
            if let (Some(oldest), Some(newest)) = (usage.oldest, usage.newest) {
                text += &format!("last used {} (the oldest) to {} (the newest)\n", ago(oldest), ago(newest));
            }
            console.print(&text)
        }
    }
}

/// How long ago: `3 days ago`.
fn ago(time: SystemTime) -> String {
    let seconds = time.elapsed().map_or(0, |d| d.as_secs());
    let unit = [(86400, "day"), (3600, "hour"), (60, "minute")].into_iter().find(|(s, _)| seconds >= *s);
    let (length, name) = unit.unwrap_or((1, "second"));
    format!("{} ago", count(usize::try_from(seconds / length).unwrap_or(usize::MAX), name))
}
