//! Regions of system shared memory that clients register: files in /dev/shm, which are read and written at offsets.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::{Arc, RwLock};

use bytes::Bytes;

use crate::error::{ErrorKind, ServeError};
use crate::infer::SharedRange;
use crate::sync::{read, write};

/// Where POSIX shared memory is. Source: shm_overview(7).
const FOLDER: &str = "/dev/shm";

/// A registered region.
#[derive(Clone, Debug)]
pub struct Region {
    /// The key, as `shm_open` takes it.
    pub key: String,
    /// Where the region starts in the object.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    file: Arc<File>,
}

/// The registered regions.
#[derive(Debug)]
pub struct Regions {
    /// Whether clients may register any.
    allowed: bool,
    regions: RwLock<BTreeMap<String, Region>>,
}

/// More regions than any client needs.
const MAX_REGIONS: usize = 4096;

impl Regions {
    /// None yet, and whether clients may register any.
    pub fn new(allowed: bool) -> Regions {
        Regions { allowed, regions: RwLock::default() }
    }

    /// Registers a region.
    ///
    /// # Errors
    /// When clients may not, the name is taken, there is no such object, or it is too small.
    pub fn register(&self, name: &str, key: &str, offset: u64, len: u64) -> Result<(), ServeError> {
        if !self.allowed {
            let what = "clients may not use shared memory; start the server with --allow-shared-memory true";
            return Err(ServeError::unsupported(what));
        }
        let file = key.strip_prefix('/').unwrap_or(key);
        if file.is_empty() || file.contains('/') || file == "." || file == ".." {
            return Err(ServeError::invalid(format!("'{}' is no key of shared memory", key.escape_debug())));
        }
        let failed = |e: std::io::Error| ServeError::invalid(format!("shared memory '{}': {e}", key.escape_debug()));
        // A link could name any file.
        let path = Path::new(FOLDER).join(file);
        let metadata = std::fs::symlink_metadata(&path).map_err(failed)?;
        if !metadata.is_file() {
            return Err(ServeError::invalid(format!("'{}' is no object of shared memory", key.escape_debug())));
        }
        if offset.checked_add(len).is_none_or(|end| end > metadata.len()) {
            let what =
                format!("shared memory '{}' has {} bytes, too few for the region", key.escape_debug(), metadata.len());
            return Err(ServeError::invalid(what));
        }
        let file = Arc::new(OpenOptions::new().read(true).write(true).open(&path).map_err(failed)?);
        let opened = file.metadata().map_err(failed)?;
        if (opened.dev(), opened.ino()) != (metadata.dev(), metadata.ino()) {
            return Err(ServeError::invalid(format!("'{}' changed while it was opened", key.escape_debug())));
        }
        let mut regions = write(&self.regions);
        if regions.contains_key(name) {
            return Err(ServeError::invalid(format!(
                "shared memory region '{}' is registered already",
                name.escape_debug()
            )));
        }
        if regions.len() >= MAX_REGIONS {
            return Err(ServeError::new(ErrorKind::Exhausted, format!("{MAX_REGIONS} regions are registered already")));
        }
        regions.insert(name.to_owned(), Region { key: key.to_owned(), offset, len, file });
        Ok(())
    }

    /// Removes a region; all of them where the name is empty. A name without a region is no error.
    pub fn unregister(&self, name: &str) {
        let mut regions = write(&self.regions);
        match name {
            "" => regions.clear(),
            name => drop(regions.remove(name)),
        }
    }

    /// A region; all of them where the name is empty.
    ///
    /// # Errors
    /// When there is no such region.
    pub fn status(&self, name: &str) -> Result<Vec<(String, Region)>, ServeError> {
        let regions = read(&self.regions);
        if !name.is_empty() && !regions.contains_key(name) {
            return Err(unknown(name));
        }
        let wanted = regions.iter().filter(|(n, _)| name.is_empty() || *n == name);
        Ok(wanted.map(|(name, region)| (name.clone(), region.clone())).collect())
    }

    /// The bytes of a tensor.
    ///
    /// # Errors
    /// When there is no such region, the tensor is not in it, or the client has shortened it.
    pub fn read(&self, range: &SharedRange) -> Result<Bytes, ServeError> {
        let (region, at) = self.find(range)?;
        // The region exists, so memory of this size does, too.
        let mut bytes = vec![0; usize::try_from(range.len).map_err(|_| outside(range))?];
        region.file.read_exact_at(&mut bytes, at).map_err(|e| failed(range, &e))?;
        Ok(bytes.into())
    }

    /// Writes a tensor.
    ///
    /// # Errors
    /// As [`Regions::read`], and when the tensor does not fit the range.
    pub fn write(&self, range: &SharedRange, bytes: &[u8]) -> Result<(), ServeError> {
        let (region, at) = self.find(range)?;
        if bytes.len() as u64 > range.len {
            let what = format!("an output has {} bytes, and its shared memory {}", bytes.len(), range.len);
            return Err(ServeError::invalid(what));
        }
        region.file.write_all_at(bytes, at).map_err(|e| failed(range, &e))
    }

    /// The region of a range, and where the range is in the object.
    fn find(&self, range: &SharedRange) -> Result<(Region, u64), ServeError> {
        let region = read(&self.regions).get(&range.region).cloned().ok_or_else(|| unknown(&range.region))?;
        let fits = range.offset.checked_add(range.len).is_some_and(|end| end <= region.len);
        let at = region.offset.checked_add(range.offset).filter(|_| fits).ok_or_else(|| outside(range))?;
        let end = at.checked_add(range.len).ok_or_else(|| outside(range))?;
        // A write must not make the object larger.
        let now = region.file.metadata().map_err(|e| failed(range, &e))?.len();
        if end > now { Err(outside(range)) } else { Ok((region, at)) }
    }
}

fn unknown(name: &str) -> ServeError {
    ServeError::not_found(format!("there is no shared memory region '{}'", name.escape_debug()))
}

fn outside(range: &SharedRange) -> ServeError {
    let name = range.region.escape_debug();
    ServeError::invalid(format!(
        "bytes {} to {} + {} are not in region '{name}'",
        range.offset, range.offset, range.len
    ))
}

fn failed(range: &SharedRange, e: &std::io::Error) -> ServeError {
    ServeError::invalid(format!("shared memory region '{}': {e}", range.region.escape_debug()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_are_read_and_written_inside_of_their_bounds() {
        let key = format!("/of-serving-test-{}", std::process::id());
        let path = format!("{FOLDER}{key}");
        std::fs::write(&path, [0, 1, 2, 3, 4, 5, 6, 7]).unwrap();
        assert!(Regions::new(false).register("r", &key, 2, 4).is_err());
        let regions = Regions::new(true);
        regions.register("r", &key, 2, 4).unwrap();
        let range = |offset, len| SharedRange { region: "r".into(), offset, len };
        assert_eq!(regions.read(&range(1, 2)).unwrap()[..], [3, 4]);
        regions.write(&range(2, 2), &[9]).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), [0, 1, 2, 3, 9, 5, 6, 7]);
        assert!(regions.read(&range(3, 2)).is_err() && regions.read(&range(u64::MAX, 2)).is_err());
        assert!(regions.write(&range(0, 2), &[0; 3]).is_err());
        assert!(regions.register("r", &key, 0, 1).is_err() && regions.register("s", &key, 4, 5).is_err());
        for key in ["/../etc/passwd", "..", "", "/", "/no-such-object-of-shared-memory"] {
            assert!(regions.register("t", key, 0, 1).is_err(), "{key}");
        }
        std::fs::write(&path, [0]).unwrap();
        assert!(regions.read(&range(1, 2)).is_err(), "the client shortened it");
        std::fs::remove_file(&path).unwrap();
        assert_eq!(regions.status("").unwrap().len(), 1);
        regions.unregister("r");
        assert!(regions.status("r").is_err() && regions.status("").unwrap().is_empty());
    }
}
