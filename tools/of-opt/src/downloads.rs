//! Files that are named by URL: downloaded once, into the folder `downloads` of the cache.

use std::ffi::OsString;

use of_diag::Diagnostics;

use crate::console::Console;

/// The same files, with the paths of downloads in the place of URLs; both may stand behind `NAME=`.
///
/// # Errors
/// When a file cannot be downloaded, or has another hash than its URL says.
#[cfg(feature = "object-store")]
pub fn local_files(files: &[OsString], console: &Console) -> Result<Vec<OsString>, Diagnostics> {
    use of_diag::Code;
    use of_driver::{Cache, error};
    use of_objects::{Download, is_url};

    let local = |file: &OsString| {
        let Some(text) = file.to_str() else { return Ok(file.clone()) };
        let (name, url) = match text.split_once('=') {
            _ if is_url(text) => ("", text),
            Some((name, url)) if is_url(url) => (name, url),
            _ => return Ok(file.clone()),
        };
        let wrong = |what: String| Diagnostics::from(error(Code::IO, what));
        let folder = Cache::user().usage().folder;
        let no_folder =
            || wrong("there is no folder for downloads: OF_CACHE_DIR, XDG_CACHE_HOME and HOME are not set".into());
        let download = Download::new(url, &folder.ok_or_else(no_folder)?.join("downloads")).map_err(wrong)?;
        let line = console.progress("downloading");
        let reporter = line.reporter();
        let mut said = |received: u64, whole: Option<u64>| {
            let (done, all) = (received as usize >> 10, whole.unwrap_or(received) as usize >> 10);
            reporter.at(&format!("downloading {url}, KiB"), done, all);
        };
        let path = download.fetch(&mut said).map_err(wrong)?;
        let mut out = OsString::from(if name.is_empty() { String::new() } else { format!("{name}=") });
        out.push(path);
        Ok(out)
    };
    files.iter().map(local).collect()
}

/// The same files.
///
/// # Errors
/// Never: what is a URL is no file that can be read.
#[cfg(not(feature = "object-store"))]
pub fn local_files(files: &[OsString], _: &Console) -> Result<Vec<OsString>, Diagnostics> {
    Ok(files.to_vec())
}
