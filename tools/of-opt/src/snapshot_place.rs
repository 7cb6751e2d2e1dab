//! Where a training writes snapshots: a file, or objects of a store.

use std::path::Path;

use of_diag::Diagnostics;
use of_driver::training::SnapshotPlace;

/// The place that a path or URL names.
///
/// # Errors
/// When it is a URL that is malformed.
#[cfg(feature = "object-store")]
pub fn snapshot_place(path: &Path) -> Result<SnapshotPlace, Diagnostics> {
    use std::sync::Arc;

    use of_diag::Code;
    use of_driver::error;
    use of_objects::{Bucket, ObjectFiles, is_remote};

    if !is_remote(path) {
        return Ok(SnapshotPlace::file(path));
    }
    let url = path.to_string_lossy();
    let wrong = |what: String| Diagnostics::from(error(Code::INPUT, what));
    // Behind the bucket there must be a name.
    let split = url.rsplit_once('/').filter(|(folder, name)| folder.len() > "s3://".len() && !name.is_empty());
    let names_none = || wrong(format!("'{url}' names no object: write s3://BUCKET/NAME.safetensors"));
    let (folder, name) = split.ok_or_else(names_none)?;
    let bucket = Bucket::open(folder).map_err(wrong)?;
    let files = objects::Objects(Arc::new(ObjectFiles::new(bucket)));
    Ok(SnapshotPlace::of_store(Arc::new(files), name, &url))
}

/// The place that a path names.
///
/// # Errors
/// When it is a URL.
#[cfg(not(feature = "object-store"))]
pub fn snapshot_place(path: &Path) -> Result<SnapshotPlace, Diagnostics> {
    use of_diag::Code;
    use of_driver::error;

    match path.starts_with("s3:") {
        false => Ok(SnapshotPlace::file(path)),
        true => Err(error(Code::UNSUPPORTED, "this of-opt was built without the feature 'object-store'").into()),
    }
}

#[cfg(feature = "object-store")]
mod objects {
    use std::io;
    use std::sync::Arc;
    use std::time::SystemTime;

    use of_driver::training::{SnapshotFile, SnapshotFiles};
    use of_objects::{ObjectFiles, ObjectUpload};

    /// Objects that stand for the files of a snapshot.
    pub struct Objects(pub Arc<ObjectFiles>);

    struct Upload(ObjectUpload);

    impl io::Write for Upload {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            self.0.flush()
        }
    }

    impl SnapshotFile for Upload {
        fn finish(self: Box<Self>) -> io::Result<()> {
            self.0.finish()
        }
    }

    impl SnapshotFiles for Objects {
        fn create(&self, name: &str) -> io::Result<Box<dyn SnapshotFile>> {
            Ok(Box::new(Upload(self.0.create(name))))
        }

        fn watch(&self, name: &str) -> io::Result<()> {
            self.0.watch(name)
        }

        fn commit(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
            self.0.replace(name, bytes)
        }

        fn read(&self, name: &str) -> io::Result<Option<Vec<u8>>> {
            self.0.read(name)
        }

        fn written(&self, name: &str) -> io::Result<Option<SystemTime>> {
            self.0.written(name)
        }

        fn names(&self, prefix: &str) -> io::Result<Vec<String>> {
            self.0.names(prefix)
        }

        fn remove(&self, name: &str) -> io::Result<()> {
            self.0.remove(name)
        }

        fn check_writable(&self, name: &str) -> io::Result<()> {
            self.0.check(name)
        }

        fn has_conditional_commits(&self) -> bool {
            true
        }
    }
}
