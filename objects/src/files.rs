//! Objects as files of a folder: read, written whole, listed and removed, one call at a time.

use std::collections::HashMap;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use object_store::path::Path as Key;
use object_store::{
    Error, MultipartUpload, ObjectMeta, ObjectStoreExt, PutMode, PutOptions, PutPayload, PutResult, UpdateVersion,
};

use crate::Bucket;
use crate::keys::explained;

/// The bytes of a part of an upload: stores want at least 5 MiB.
const PART: usize = 8 << 20;

/// The objects right below a prefix.
pub struct ObjectFiles {
    bucket: Bucket,
    /// Of objects that are replaced under a condition: what was last known of them. None: there was no such object.
    versions: Mutex<HashMap<String, Option<UpdateVersion>>>,
}

/// An object that is being written. It appears when it is finished, or not at all.
pub struct ObjectUpload {
    files: Arc<ObjectFiles>,
    key: Key,
    buffer: Vec<u8>,
    /// Where it has more than one part.
    parts: Option<Box<dyn MultipartUpload>>,
}

impl ObjectFiles {
    /// The objects of a bucket right below its prefix.
    pub fn new(bucket: Bucket) -> ObjectFiles {
        ObjectFiles { bucket, versions: Mutex::default() }
    }

    fn key(&self, name: &str) -> Key {
        self.bucket.prefix.clone().join(name)
    }

    /// The bytes of an object, where there is one.
    ///
    /// # Errors
    /// When the store does not answer, or refuses.
    pub fn read(&self, name: &str) -> io::Result<Option<Vec<u8>>> {
        let key = self.key(name);
        let read = self.bucket.runtime.block_on(async {
            let found = self.bucket.store.get(&key).await?;
            let version = version_of(&found.meta);
            Ok((version, found.bytes().await?))
        });
        let Some((version, bytes)) = known(read)? else { return Ok(None) };
        self.remember(name, Some(version));
        Ok(Some(bytes.into()))
    }

    /// When an object was written, where there is one.
    ///
    /// # Errors
    /// As [`ObjectFiles::read`].
    pub fn written(&self, name: &str) -> io::Result<Option<SystemTime>> {
        let key = self.key(name);
        let found = known(self.bucket.runtime.block_on(self.bucket.store.head(&key)))?;
        Ok(found.map(|meta| meta.last_modified.into()))
    }

    /// The names of objects that start like this.
    ///
    /// # Errors
    /// As [`ObjectFiles::read`].
    pub fn names(&self, prefix: &str) -> io::Result<Vec<String>> {
        let list = self.bucket.store.list_with_delimiter(Some(&self.bucket.prefix));
        let list = self.bucket.runtime.block_on(list).map_err(other)?;
        let names = list.objects.iter().filter_map(|object| object.location.filename());
        Ok(names.filter(|name| name.starts_with(prefix)).map(str::to_owned).collect())
    }

    /// Removes an object, where there is one.
    ///
    /// # Errors
    /// As [`ObjectFiles::read`].
    pub fn remove(&self, name: &str) -> io::Result<()> {
        let key = self.key(name);
        known(self.bucket.runtime.block_on(self.bucket.store.delete(&key))).map(drop)
    }

    /// Begins an object, which replaces the one of this name.
    pub fn create(self: &Arc<Self>, name: &str) -> ObjectUpload {
        ObjectUpload { files: Arc::clone(self), key: self.key(name), buffer: Vec::new(), parts: None }
    }

    /// Takes note of an object, unless it is known: [`ObjectFiles::replace`] replaces no other one.
    ///
    /// # Errors
    /// As [`ObjectFiles::read`].
    pub fn watch(&self, name: &str) -> io::Result<()> {
        self.version(name).map(drop)
    }

    /// What is known of an object; the first time, what is there.
    fn version(&self, name: &str) -> io::Result<Option<UpdateVersion>> {
        if let Some(known) = self.versions.lock().unwrap_or_else(PoisonError::into_inner).get(name) {
            return Ok(known.clone());
        }
        let key = self.key(name);
        let found = known(self.bucket.runtime.block_on(self.bucket.store.head(&key)))?.as_ref().map(version_of);
        self.remember(name, found.clone());
        Ok(found)
    }

    /// Replaces an object, if it is still the one that was read, watched or written last; the first time, the one that is there.
    ///
    /// # Errors
    /// When another writer replaced it meanwhile, and as [`ObjectFiles::read`].
    pub fn replace(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let key = self.key(name);
        let mode = self.version(name)?.map_or(PutMode::Create, PutMode::Update);
        let options = PutOptions { mode, ..PutOptions::default() };
        let put = self.bucket.store.put_opts(&key, PutPayload::from(bytes.to_vec()), options);
        let PutResult { e_tag, version, .. } = self.bucket.runtime.block_on(put).map_err(|e| match e {
            Error::Precondition { .. } | Error::AlreadyExists { .. } => {
                io::Error::other(format!("another job wrote '{key}' meanwhile"))
            }
            e => other(e),
        })?;
        self.remember(name, Some(UpdateVersion { e_tag, version }));
        Ok(())
    }

    /// Whether objects next to this one can be listed, written and removed, found out with an object that is gone afterwards.
    ///
    /// # Errors
    /// When the store does not answer, or refuses one of these.
    pub fn check(self: &Arc<Self>, name: &str) -> io::Result<()> {
        let what = |what: &'static str| move |e: io::Error| io::Error::new(e.kind(), format!("{what}: {e}"));
        let probe = format!("{name}.{:016x}.probe", fastrand::u64(..));
        self.names(&probe).map_err(what("objects cannot be listed"))?;
        self.create(&probe).finish().map_err(what("an object cannot be written"))?;
        self.remove(&probe).map_err(what("an object was written, and cannot be removed"))
    }

    fn remember(&self, name: &str, version: Option<UpdateVersion>) {
        self.versions.lock().unwrap_or_else(PoisonError::into_inner).insert(name.into(), version);
    }
}

impl Write for ObjectUpload {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = bytes.len().min(PART - self.buffer.len());
        self.buffer.extend_from_slice(&bytes[..taken]);
        if self.buffer.len() == PART {
            self.send_part()?;
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl ObjectUpload {
    fn send_part(&mut self) -> io::Result<()> {
        let (store, runtime) = (&self.files.bucket.store, &self.files.bucket.runtime);
        let part = PutPayload::from(std::mem::take(&mut self.buffer));
        let parts = match &mut self.parts {
            Some(parts) => parts,
            none => none.insert(runtime.block_on(store.put_multipart(&self.key)).map_err(other)?),
        };
        runtime.block_on(parts.put_part(part)).map_err(other)
    }

    /// Ends the object: then it is there.
    ///
    /// # Errors
    /// As [`ObjectFiles::read`].
    pub fn finish(mut self) -> io::Result<()> {
        if self.parts.is_some() && !self.buffer.is_empty() {
            self.send_part()?;
        }
        let bucket = &self.files.bucket;
        match self.parts.take() {
            Some(mut parts) => bucket.runtime.block_on(parts.complete()).map_err(other).map(drop),
            None => {
                let whole = PutPayload::from(std::mem::take(&mut self.buffer));
                bucket.runtime.block_on(bucket.store.put(&self.key, whole)).map_err(other).map(drop)
            }
        }
    }
}

impl Drop for ObjectUpload {
    fn drop(&mut self) {
        if let Some(mut parts) = self.parts.take() {
            // An earlier error matters; a store forgets uploads that nothing completes, by its own rules.
            let _ = self.files.bucket.runtime.block_on(parts.abort());
        }
    }
}

fn version_of(meta: &ObjectMeta) -> UpdateVersion {
    UpdateVersion { e_tag: meta.e_tag.clone(), version: meta.version.clone() }
}

fn known<T>(result: Result<T, Error>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(Error::NotFound { .. }) => Ok(None),
        Err(e) => Err(other(e)),
    }
}

fn other(error: Error) -> io::Error {
    io::Error::other(explained(&error))
}

#[cfg(test)]
mod tests {
    use object_store::memory::InMemory;

    use super::*;

    fn files(store: &Arc<InMemory>) -> Arc<ObjectFiles> {
        let mut bucket = Bucket::open("s3://http://127.0.0.1:1/bucket/runs").unwrap();
        bucket.store = Box::new(Arc::clone(store));
        Arc::new(ObjectFiles::new(bucket))
    }

    #[test]
    fn objects_appear_whole() {
        let files = files(&Arc::default());
        for len in [0, 10, PART, PART + 1, 2 * PART + 5] {
            let bytes: Vec<u8> = (0..len).map(|i| (i % 251) as u8).collect();
            let mut upload = files.create("a.bin");
            upload.write_all(&bytes).unwrap();
            upload.finish().unwrap();
            assert!(files.read("a.bin").unwrap().unwrap() == bytes, "{len} bytes");
        }
        let mut unfinished = files.create("b.bin");
        unfinished.write_all(&vec![1; PART + 1]).unwrap();
        drop(unfinished);
        assert_eq!(files.read("b.bin").unwrap(), None);
        assert_eq!((files.names("a").unwrap(), files.names("b").unwrap()), (vec!["a.bin".to_string()], vec![]));
        assert!(files.written("a.bin").unwrap().is_some());
        files.remove("a.bin").unwrap();
        assert!(files.written("a.bin").unwrap().is_none());
    }

    #[test]
    fn a_check_leaves_no_object() {
        let files = files(&Arc::default());
        files.check("a.bin").unwrap();
        assert_eq!(files.names("").unwrap(), Vec::<String>::new());
    }

    /// `tools/of-opt/tests/train_network.rs` does so with two trainings and a store that speaks the protocol of S3.
    #[test]
    fn an_object_that_another_job_replaced_is_not_replaced() {
        let store = Arc::default();
        let (one, two) = (files(&store), files(&store));
        one.replace("index", b"1").unwrap();
        one.replace("index", b"2").unwrap();
        two.replace("index", b"3").unwrap();
        let error = one.replace("index", b"4").unwrap_err().to_string();
        assert_eq!(error, "another job wrote 'runs/index' meanwhile");
        assert_eq!(one.read("index").unwrap().unwrap(), b"3");
        one.replace("index", b"5").unwrap();
        assert!(two.replace("index", b"6").is_err());
    }

    #[test]
    fn an_object_that_changed_since_it_was_watched_is_not_replaced() {
        let store = Arc::default();
        let (one, two, three) = (files(&store), files(&store), files(&store));
        one.watch("index").unwrap();
        two.replace("index", b"1").unwrap();
        three.watch("index").unwrap();
        assert!(one.replace("index", b"2").is_err());
        // What is known stays known.
        two.watch("index").unwrap();
        three.replace("index", b"3").unwrap();
        two.watch("index").unwrap();
        assert!(two.replace("index", b"4").is_err());
        assert_eq!(one.read("index").unwrap().unwrap(), b"3");
    }
}
