//! Finds the plugin, and holds state shared by runs: one client for the process, compiled programs on disk.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};

use of_codegen::Isa;

use crate::ffi::{Client, LoadedExecutable, PluginError};

/// The file that the plugin is installed as.
pub const FILE: &str = "pjrt_c_api_cpu_plugin.so";

/// Changes when the compilation of programs changes.
const FORMAT: &str = "of-xla-program-3";

/// How to install a plugin.
pub const HINT: &str = "'cargo xtask pjrt-plugin' installs XLA's plugin for CPUs; OF_PJRT_PLUGIN names another one";

/// Why there is no client.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Missing {
    /// Nothing is installed.
    #[error("no PJRT plugin is installed; {HINT}")]
    Absent,
    /// The plugin cannot be used.
    #[error("{0}")]
    Broken(#[from] PluginError),
}

fn var(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from)
}

/// The user's folder of cached files.
fn cache() -> Option<PathBuf> {
    var("OF_CACHE_DIR")
        .or_else(|| var("XDG_CACHE_HOME").map(|d| d.join("of-opt")))
        .or_else(|| var("HOME").map(|d| d.join(".cache").join("of-opt")))
}

/// Where the plugin is: `OF_PJRT_PLUGIN`, else where it is installed.
pub fn path() -> Option<PathBuf> {
    var("OF_PJRT_PLUGIN").or_else(|| installed().filter(|p| p.is_file()))
}

/// Where it is installed: `$XDG_DATA_HOME/of-opt/pjrt`, else `~/.local/share/of-opt/pjrt`.
pub fn installed() -> Option<PathBuf> {
    let data = var("XDG_DATA_HOME").or_else(|| var("HOME").map(|d| d.join(".local").join("share")))?;
    Some(data.join("of-opt").join("pjrt").join(FILE))
}

/// The client of this process.
///
/// # Errors
/// When there is no plugin, or it cannot be used.
pub fn client() -> Result<Arc<Client>, Missing> {
    client_for(1)
}

/// The client of this process, with a device for each of this many ranks if devices are CPU threads.
///
/// # Errors
/// When there is no plugin, or it cannot be used.
pub fn client_for(ranks: usize) -> Result<Arc<Client>, Missing> {
    static CLIENT: OnceLock<Mutex<Option<Arc<Client>>>> = OnceLock::new();
    let path = || path().ok_or(Missing::Absent);
    let mut there = CLIENT.get_or_init(Mutex::default).lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let mut client = match &*there {
        Some(client) => client.clone(),
        None => Arc::new(Client::open(&path()?, None)?),
    };
    if client.devices() < ranks && client.is_cpu() {
        client = Arc::new(Client::open(&path()?, Some(ranks))?);
    }
    Ok(there.insert(client).clone())
}

/// The target of serialized programs in plans: the plugin's platform, its build, and this machine's instruction set. A program for
/// another target is rejected without an attempt to load it.
///
/// # Errors
/// When there is no plugin, or it cannot be used.
pub fn build() -> Result<String, Missing> {
    static HASH: OnceLock<Option<String>> = OnceLock::new();
    let hash = HASH.get_or_init(|| {
        let mut hasher = blake3::Hasher::new();
        hasher.update_reader(std::fs::File::open(path()?).ok()?).ok()?;
        Some(hasher.finalize().to_hex()[..16].to_owned())
    });
    let hash = hash.as_deref().ok_or(Missing::Absent)?;
    Ok(format!("{} (build {hash}) on {}", client()?.platform, Isa::host().name))
}

/// The identity of the plugin, for cache keys: plugins report no version.
fn identity() -> String {
    let facts = path().and_then(|p| Some((std::fs::metadata(&p).ok()?, p)));
    facts.map_or_else(String::new, |(m, p)| format!("{} {} {:?}", p.display(), m.len(), m.modified().ok()))
}

/// The program of a module, for one device or a replica on each of `devices`: from the cache if the plugin can serialize
/// programs, else compiled now.
///
/// # Errors
/// The compiler's error.
pub fn program(client: &Arc<Client>, text: &str, devices: &[usize]) -> Result<LoadedExecutable, PluginError> {
    let key = [FORMAT, identity().as_str(), &client.platform, &format!("{devices:?}"), text].join("\0");
    let key = blake3::hash(key.as_bytes());
    let file = cache().map(|d| d.join("xla").join(key.to_hex().as_str()));
    if let Some(loaded) =
        file.as_deref().and_then(read).and_then(|bytes| LoadedExecutable::deserialize(client, &bytes).ok())
    {
        return Ok(loaded);
    }
    let loaded = LoadedExecutable::compile(client, text, devices)?;
    if let Some(file) = &file
        && let Err(e) = loaded.serialize().map_err(std::io::Error::other).and_then(|bytes| write(file, &bytes))
    {
        tracing::debug!(error = %e, "the program is not kept");
    }
    Ok(loaded)
}

/// Reads a cache entry. It contains its hash, so that a damaged one is compiled again.
fn read(path: &Path) -> Option<Vec<u8>> {
    let all = std::fs::read(path).ok()?;
    let (hash, bytes) = all.split_at_checked(32)?;
    (blake3::hash(bytes).as_bytes() == hash).then(|| bytes.to_vec())
}

/// Writes a cache entry to a temporary file and renames it, so that readers see complete entries only.
fn write(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let dir = path.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(dir)?;
    let aside = path.with_extension(format!("{}", std::process::id()));
    std::fs::write(&aside, [blake3::hash(bytes).as_bytes().as_slice(), bytes].concat())?;
    std::fs::rename(aside, path)
}
