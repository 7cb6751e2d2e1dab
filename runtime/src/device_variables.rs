//! Variables whose values are in the memory of a backend, such as a device's. A value crosses between host and device only where the
//! other side needs it.

use std::sync::Arc;

use crate::{DeviceVariable, ExecError, Handle, LoadError};

/// Where the newest value of a variable is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Newest {
    Host,
    Device,
    Both,
}

struct Entry {
    backend: String,
    memory: Arc<dyn DeviceVariable>,
    newest: Newest,
}

/// The variables that a backend keeps, by their indexes.
#[derive(Default)]
pub(crate) struct DeviceVariables(Vec<Option<Entry>>);

impl std::fmt::Debug for DeviceVariables {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let each = self.0.iter().map(|entry| entry.as_ref().map(|entry| (&entry.backend, entry.newest)));
        f.debug_list().entries(each).finish()
    }
}

impl DeviceVariables {
    /// The handles of these variables for a backend. `make` allocates memory for those that have none, which are given as positions
    /// in `indexes`; `None` where the backend takes variables from the host.
    ///
    /// # Errors
    /// What `make` fails with, and when another backend keeps one of them.
    pub fn handles(
        &mut self,
        backend: &str,
        indexes: &[usize],
        make: impl FnOnce(&[usize]) -> Result<Option<Vec<Arc<dyn DeviceVariable>>>, LoadError>,
    ) -> Result<Option<Vec<Handle>>, LoadError> {
        let missing: Vec<usize> = indexes.iter().copied().filter(|index| self.entry(*index).is_none()).collect();
        if !missing.is_empty() {
            let Some(made) = make(&missing)? else { return Ok(None) };
            self.0.resize_with(self.0.len().max(1 + missing.iter().copied().max().unwrap_or(0)), || None);
            for (index, memory) in missing.into_iter().zip(made) {
                self.0[index] = Some(Entry { backend: backend.into(), memory, newest: Newest::Host });
            }
        }
        let handle = |index: &usize| {
            let entry = self.entry(*index).ok_or_else(|| LoadError::Failed("a variable has no memory".into()))?;
            if entry.backend != backend {
                return Err(LoadError::Unsupported(format!("the backend `{}` keeps the same variable", entry.backend)));
            }
            Ok(entry.memory.handle())
        };
        indexes.iter().map(handle).collect::<Result<_, _>>().map(Some)
    }

    /// Whether this backend keeps a variable.
    pub fn is_kept_by(&self, index: usize, backend: &str) -> bool {
        self.entry(index).is_some_and(|entry| entry.backend == backend)
    }

    /// Whether the value on the host is older than that on the device.
    pub fn is_newer(&self, index: usize) -> bool {
        self.entry(index).is_some_and(|entry| entry.newest == Newest::Device)
    }

    /// Copies the value to the host.
    ///
    /// # Errors
    /// When the device fails.
    pub fn download(&mut self, index: usize, to: &mut [u8]) -> Result<(), ExecError> {
        let Some(entry) = self.0.get_mut(index).and_then(Option::as_mut) else { return Ok(()) };
        entry.memory.download(to)?;
        entry.newest = Newest::Both;
        Ok(())
    }

    /// Copies the value of the host to the device, if that has an older one.
    ///
    /// # Errors
    /// When the device fails.
    pub fn upload(&mut self, index: usize, from: &[u8]) -> Result<(), ExecError> {
        let Some(entry) = self.0.get_mut(index).and_then(Option::as_mut) else { return Ok(()) };
        if entry.newest == Newest::Host {
            entry.memory.upload(from)?;
            entry.newest = Newest::Both;
        }
        Ok(())
    }

    /// Notes a new value on the host.
    pub fn changed_on_host(&mut self, index: usize) {
        self.changed(index, Newest::Host);
    }

    /// Notes a new value on the device.
    pub fn changed_on_device(&mut self, index: usize) {
        self.changed(index, Newest::Device);
    }

    fn changed(&mut self, index: usize, newest: Newest) {
        if let Some(entry) = self.0.get_mut(index).and_then(Option::as_mut) {
            entry.newest = newest;
        }
    }

    fn entry(&self, index: usize) -> Option<&Entry> {
        self.0.get(index).and_then(Option::as_ref)
    }
}
