//! Repositories in stores that speak the protocol of S3: their files are copied into a folder of this machine, and followed.
//!
//! Plans are mapped and compilers read files, so models are served from copies. A copy is replaced when the tag or size of its object
//! changes; it appears whole, under its name, when all of it has arrived.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use object_store::path::Path as Key;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt};
pub use of_objects::is_remote;
use of_objects::{Bucket, explained};
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio_stream::StreamExt;

use crate::sync::lock;

/// A repository in a store, and its copy.
pub struct Mirror {
    url: String,
    prefix: Key,
    store: Box<dyn ObjectStore>,
    runtime: Runtime,
    folder: TempDir,
    /// What was copied, by its path below the prefix.
    copied: Mutex<BTreeMap<PathBuf, Seen>>,
}

/// What shows that an object changed.
#[derive(Clone, PartialEq, Eq)]
struct Seen {
    len: u64,
    tag: Option<String>,
    modified: i64,
}

impl Mirror {
    /// A repository at `s3://BUCKET/PREFIX`, or at `s3://https://HOST:PORT/BUCKET/PREFIX`. Keys and region come from the variables
    /// `AWS_…` of the environment. Nothing is copied yet.
    ///
    /// # Errors
    /// When the URL is malformed, or there is no folder for the copy.
    pub fn new(url: &Path) -> Result<Mirror, String> {
        let url = url.to_str().unwrap_or_default().to_owned();
        let Bucket { store, prefix, runtime } = Bucket::open(&url)?;
        let folder = tempfile::Builder::new().prefix("of-repository-").tempdir();
        let folder = folder.map_err(|e| format!("there is no folder for the copy of '{url}': {e}"))?;
        Ok(Mirror { url, prefix, store, runtime, folder, copied: Mutex::default() })
    }

    /// The folder with the copy.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Copies what is new or changed, and removes what is gone. Blocks.
    ///
    /// # Errors
    /// When the store does not answer, or a file cannot be written. What was copied stays.
    pub fn update(&self) -> Result<(), String> {
        let mut copied = lock(&self.copied);
        self.runtime.block_on(self.copy(&mut copied)).map_err(|e| format!("'{}' cannot be read: {e}", self.url))
    }

    async fn copy(&self, copied: &mut BTreeMap<PathBuf, Seen>) -> Result<(), String> {
        let mut list = self.store.list(Some(&self.prefix));
        let mut objects = BTreeMap::new();
        while let Some(object) = list.next().await {
            let object = object.map_err(|e| explained(&e))?;
            if let Some(path) = self.below_prefix(&object.location) {
                objects.insert(path, object);
            }
        }
        // Configurations come last, as they name other files.
        let is_config = |path: &Path| path.extension().is_some_and(|e| e == "pbtxt");
        let mut order: Vec<(&PathBuf, &ObjectMeta)> = objects.iter().collect();
        order.sort_by_key(|(path, _)| is_config(path));
        for (path, object) in order {
            let modified = object.last_modified.timestamp_micros();
            let seen = Seen { len: object.size, tag: object.e_tag.clone(), modified };
            if copied.get(path) == Some(&seen) {
                continue;
            }
            self.fetch(path, object).await.map_err(|e| format!("{}: {e}", object.location))?;
            copied.insert(path.clone(), seen);
        }
        let gone: Vec<PathBuf> = copied.keys().filter(|path| !objects.contains_key(*path)).cloned().collect();
        for path in gone {
            self.remove(&path);
            copied.remove(&path);
        }
        Ok(())
    }

    /// The path of an object below the prefix. Keys have no parts that leave it.
    fn below_prefix(&self, key: &Key) -> Option<PathBuf> {
        let path: PathBuf = key.prefix_match(&self.prefix)?.map(|part| part.as_ref().to_owned()).collect();
        let is_plain = path.components().all(|part| matches!(part, std::path::Component::Normal(_)));
        Some(path).filter(|path| is_plain && path.components().next().is_some())
    }

    async fn fetch(&self, path: &Path, object: &ObjectMeta) -> Result<(), String> {
        let file = self.folder.path().join(path);
        let written = |e: std::io::Error| format!("the copy cannot be written: {e}");
        // Stores have no folders: an empty object stands for one, such as that of a version.
        if object.size == 0 && path.extension().is_none() {
            return std::fs::create_dir_all(&file).map_err(written);
        }
        if let Some(parent) = file.parent() {
            std::fs::create_dir_all(parent).map_err(written)?;
        }
        let part = self.folder.path().join(".part");
        let result = self.store.get(&object.location).await.map_err(|e| explained(&e))?;
        let mut out = BufWriter::new(File::create(&part).map_err(written)?);
        let mut bytes = result.into_stream();
        while let Some(chunk) = bytes.next().await {
            out.write_all(&chunk.map_err(|e| e.to_string())?).map_err(written)?;
        }
        out.flush().map_err(written)?;
        drop(out);
        std::fs::rename(&part, &file).map_err(written)
    }

    /// Removes a copy, and the folders that are empty then.
    fn remove(&self, path: &Path) {
        let whole = self.folder.path().join(path);
        // A folder stays as long as something else is in it.
        let _ = std::fs::remove_file(&whole).or_else(|_| std::fs::remove_dir(&whole));
        for parent in path.ancestors().skip(1).filter(|parent| !parent.as_os_str().is_empty()) {
            let _ = std::fs::remove_dir(self.folder.path().join(parent));
        }
    }
}

#[cfg(test)]
mod tests {
    use object_store::RetryConfig;
    use object_store::aws::AmazonS3Builder;

    use super::*;

    #[test]
    fn objects_are_copied_replaced_and_removed() {
        let mut mirror = Mirror::new(Path::new("s3://http://127.0.0.1:1/models/some")).unwrap();
        let store = std::sync::Arc::new(object_store::memory::InMemory::new());
        mirror.store = Box::new(std::sync::Arc::clone(&store));
        let put = |key: &str, bytes: &'static [u8]| {
            let key = Key::from(key);
            mirror.runtime.block_on(store.put(&key, bytes.into())).unwrap();
        };
        put("some/a/1/model.plan", b"one");
        put("some/b/1", b"");
        put("other/c/1/model.plan", b"x");
        mirror.update().unwrap();
        let folder = mirror.folder();
        assert_eq!(std::fs::read(folder.join("a/1/model.plan")).unwrap(), b"one");
        assert!(folder.join("b/1").is_dir() && !folder.join("c").exists());
        put("some/a/1/model.plan", b"two");
        put("some/a/2/model.plan", b"three");
        mirror.update().unwrap();
        assert_eq!(std::fs::read(folder.join("a/1/model.plan")).unwrap(), b"two");
        let gone = Key::from("some/a/2/model.plan");
        mirror.runtime.block_on(store.delete(&gone)).unwrap();
        mirror.update().unwrap();
        assert!(folder.join("a/1").exists() && !folder.join("a/2").exists());
    }

    #[test]
    fn a_store_that_does_not_answer_is_an_error() {
        let mut mirror = Mirror::new(Path::new("s3://http://127.0.0.1:1/models")).unwrap();
        let retry = RetryConfig { max_retries: 0, ..RetryConfig::default() };
        let builder = AmazonS3Builder::new().with_endpoint("http://127.0.0.1:1").with_allow_http(true);
        let builder = builder.with_bucket_name("models").with_skip_signature(true).with_retry(retry);
        mirror.store = Box::new(builder.build().unwrap());
        assert!(mirror.update().unwrap_err().starts_with("'s3://http://127.0.0.1:1/models' cannot be read"));
    }
}
