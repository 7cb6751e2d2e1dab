//! The models that are served: where their files are, which versions are loaded, and how one replaces another.
//!
//! A folder has Triton's layout: `NAME/VERSION/model.plan` or `model.onnx`, with `NAME/config.pbtxt` where one is needed. A file
//! `NAME.plan` or `NAME.onnx`, alone or in a folder, is version 1 of the model NAME.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, RwLock};
use std::time::{Duration, Instant, SystemTime};

use of_plan::PlanFile;
use of_runtime::Workers;

use crate::config::{ModelConfig, VersionPolicy};
use crate::ensemble::{self, Declared, Ensemble, EnsembleStep, StepConfig};
use crate::error::{ErrorKind, ServeError};
use crate::infer::InferRequest;
use crate::memory::{Exceeded, MemoryBudget};
use crate::model::{Failed, InferResponse, ModelVersion, Opener};
use crate::stats::Stats;
use crate::store::{Mirror, is_remote};
use crate::sync::{lock, read, write};

/// Who loads and unloads models. By Triton's names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ControlMode {
    /// All models are loaded at the start.
    #[default]
    None,
    /// The folders are looked at again and again: new files are loaded, and changed ones replace those that are loaded.
    Poll,
    /// Clients load and unload them.
    Explicit,
}

/// What is served, and how.
#[derive(Clone, Debug, Default)]
pub struct RepositoryOptions {
    /// Repositories, folders of files, files, and repositories in stores (`s3://…`).
    pub paths: Vec<PathBuf>,
    /// Who loads and unloads models.
    pub control: ControlMode,
    /// How often folders are looked at, with [`ControlMode::Poll`].
    pub poll: Duration,
    /// The models to load at the start, with [`ControlMode::Explicit`].
    pub load: Vec<String>,
    /// How models are served whose folder does not say otherwise.
    pub defaults: ModelConfig,
    /// Whether requests are never batched, whatever configurations say.
    pub no_batching: bool,
    /// Workers of each session; 0 takes as many as the plan was tuned for.
    pub threads: usize,
    /// Bytes that all loaded versions may need together, by what their plans say.
    pub memory: Option<u64>,
}

/// The state of a version, by Triton's names.
#[derive(Clone)]
pub enum State {
    /// It is being compiled or opened.
    Loading,
    /// It takes requests.
    Ready(Arc<ModelVersion>),
    /// It takes none, and why.
    Unavailable(String),
}

impl State {
    /// The name.
    pub fn name(&self) -> &'static str {
        match self {
            State::Loading => "LOADING",
            State::Ready(_) => "READY",
            State::Unavailable(_) => "UNAVAILABLE",
        }
    }
}

/// A version of a model, as the index lists it.
pub struct IndexEntry {
    /// Name of the model.
    pub name: String,
    /// Number of the version; `None` for a model that has none.
    pub version: Option<u64>,
    /// Its state; `None` where it is not loaded.
    pub state: Option<State>,
}

/// The models.
pub struct Repository {
    options: RepositoryOptions,
    opener: Opener,
    models: RwLock<BTreeMap<String, Model>>,
    /// Held while files are looked at and models are loaded: one change at a time.
    changing: Mutex<()>,
    /// Copies of the repositories in stores, by their URL.
    mirrors: Mutex<BTreeMap<PathBuf, Mirror>>,
    /// Versions that were replaced while sequences of theirs are in progress, which they finish.
    retired: Mutex<Vec<Arc<ModelVersion>>>,
    /// Whether there are any.
    has_retired: AtomicBool,
    memory: Arc<MemoryBudget>,
    /// Threads for loops of kernels, which all models share.
    workers: Workers,
}

#[derive(Default)]
struct Model {
    versions: BTreeMap<u64, Version>,
}

struct Version {
    state: State,
    /// What the file was when it was loaded.
    seen: Option<Seen>,
    stats: Arc<Stats>,
}

/// What shows that a file changed.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    file: PathBuf,
    len: u64,
    modified: Option<SystemTime>,
    config: Option<(u64, Option<SystemTime>)>,
    /// The files of an ensemble's models.
    steps: Vec<Option<(u64, Option<SystemTime>)>>,
}

/// What a version is made of.
enum Source {
    File(PathBuf),
    Ensemble(Ensemble),
}

/// A model as its files describe it.
struct Found {
    config: Result<ModelConfig, String>,
    config_file: Option<PathBuf>,
    files: BTreeMap<u64, PathBuf>,
}

impl Repository {
    /// A repository without loaded models.
    pub fn new(options: RepositoryOptions, opener: Opener) -> Repository {
        let memory = MemoryBudget::new(options.memory);
        let (models, changing, mirrors, retired, has_retired, workers) = Default::default();
        Repository { options, opener, models, changing, mirrors, retired, has_retired, memory, workers }
    }

    /// What is served, and how.
    pub fn options(&self) -> &RepositoryOptions {
        &self.options
    }

    /// Looks at the files, and shows the models as loading that are loaded at the start. Returns their names.
    ///
    /// # Errors
    /// When a path does not exist or has no models, or --load-model names none.
    pub fn announce_all(&self) -> Result<Vec<String>, String> {
        self.update_mirrors()?;
        let found = self.find()?;
        let names: Vec<String> = match self.options.control {
            ControlMode::Explicit => self.options.load.clone(),
            ControlMode::None | ControlMode::Poll => found.keys().cloned().collect(),
        };
        for name in &names {
            let found = found.get(name).ok_or_else(|| format!("there is no model '{name}' to load"))?;
            self.announce(name, found);
        }
        Ok(names)
    }

    /// Loads models that [`Repository::announce_all`] named: plans first, since models must be compiled.
    pub fn load_all(&self, names: &[String]) {
        let _one = lock(&self.changing);
        let all = match self.find() {
            Ok(found) => found,
            Err(e) => {
                tracing::error!("the repository cannot be read: {e}");
                return;
            }
        };
        let mut models: Vec<(&String, &Found)> = names.iter().filter_map(|n| Some((n, all.get(n)?))).collect();
        let is_model = |found: &Found| found.files.values().any(|f| f.extension().is_some_and(|e| e != "plan"));
        models.sort_by_key(|(_, found)| is_model(found));
        for (name, found) in models {
            self.load_found(name, found, &all);
        }
    }

    /// Looks at the files again: loads what is new, replaces what changed, unloads what is gone.
    ///
    /// # Errors
    /// When a folder cannot be read; the models stay as they are.
    pub fn poll(&self) -> Result<(), String> {
        let _one = lock(&self.changing);
        self.update_mirrors()?;
        let all = self.find()?;
        for (name, found) in &all {
            self.load_found(name, found, &all);
        }
        let gone: Vec<String> = read(&self.models).keys().filter(|name| !all.contains_key(*name)).cloned().collect();
        gone.iter().for_each(|name| self.unload_found(name));
        Ok(())
    }

    /// Loads a model for a client, or loads it again. Blocks until it is ready.
    ///
    /// # Errors
    /// When clients may not, there is no such model, or a version of it cannot be loaded.
    pub fn load(&self, name: &str) -> Result<(), ServeError> {
        self.check_explicit()?;
        let _one = lock(&self.changing);
        let all = self.update_mirrors().and_then(|()| self.find());
        let all = all.map_err(|e| ServeError::new(ErrorKind::Internal, e))?;
        let missing =
            || ServeError::not_found(format!("there is no model '{}' in the repository", name.escape_debug()));
        let found = all.get(name).ok_or_else(missing)?;
        match self.load_found(name, found, &all) {
            None => Ok(()),
            Some(why) => Err(ServeError::invalid(format!("model '{name}' cannot be loaded: {why}"))),
        }
    }

    /// Unloads a model for a client. Requests that were accepted are answered first.
    ///
    /// # Errors
    /// When clients may not, or the model is not loaded.
    pub fn unload(&self, name: &str) -> Result<(), ServeError> {
        self.check_explicit()?;
        let _one = lock(&self.changing);
        if !read(&self.models).contains_key(name) {
            return Err(ServeError::not_found(format!("model '{}' is not loaded", name.escape_debug())));
        }
        self.unload_found(name);
        Ok(())
    }

    fn check_explicit(&self) -> Result<(), ServeError> {
        match self.options.control {
            ControlMode::Explicit => Ok(()),
            ControlMode::None | ControlMode::Poll => {
                let what =
                    "clients may not load and unload models; start the server with --model-control-mode explicit";
                Err(ServeError::unsupported(what))
            }
        }
    }

    /// Shows versions as loading that nothing is known of yet.
    fn announce(&self, name: &str, found: &Found) {
        let mut models = write(&self.models);
        let model = models.entry(name.to_owned()).or_default();
        for version in found.chosen() {
            let new = || Version { state: State::Loading, seen: None, stats: Arc::default() };
            model.versions.entry(version).or_insert_with(new);
        }
    }

    /// Loads the versions of a model that are new or changed, and unloads those that are gone. Returns why the last one that failed
    /// did.
    fn load_found(&self, name: &str, found: &Found, all: &BTreeMap<String, Found>) -> Option<String> {
        let chosen = found.chosen();
        let mut failed = found.config.as_ref().err().cloned();
        for version in &chosen {
            let Some(file) = found.files.get(version) else { continue };
            let source = found.config.clone().and_then(|config| source(name, file, &config, all));
            let seen = seen(file, found.config_file.as_deref(), source.as_ref().ok());
            let known = {
                let models = read(&self.models);
                let known = models.get(name).and_then(|model| model.versions.get(version));
                known.map(|v| (v.seen == seen && !matches!(v.state, State::Loading), Arc::clone(&v.stats)))
            };
            let stats = match known {
                Some((true, _)) if self.options.control != ControlMode::Explicit => continue,
                Some((_, stats)) => stats,
                None => Arc::default(),
            };
            self.announce(name, found);
            let loaded = source.and_then(|source| self.open(name, *version, &source, found.config()?, &stats));
            if let Err(why) = &loaded {
                tracing::error!(model = name, version, "cannot be loaded: {why}");
                failed = Some(why.clone());
            }
            self.publish(name, *version, loaded, Version { state: State::Loading, seen, stats });
        }
        let other: Vec<u64> = {
            let models = read(&self.models);
            models
                .get(name)
                .map_or(Vec::new(), |m| m.versions.keys().filter(|v| !chosen.contains(v)).copied().collect())
        };
        for version in other {
            let old = write(&self.models).get_mut(name).and_then(|model| model.versions.remove(&version));
            self.retire(old.map(|version| version.state));
        }
        failed
    }

    fn open(
        &self,
        name: &str,
        version: u64,
        source: &Source,
        mut config: ModelConfig,
        stats: &Arc<Stats>,
    ) -> Result<ModelVersion, String> {
        let began = Instant::now();
        if self.options.no_batching {
            (config.max_batch_size, config.batching_is_required) = (0, false);
        }
        let mut plan = match source {
            Source::File(file) => (self.opener.open)(file)?,
            Source::Ensemble(ensemble) => (self.opener.open_ensemble)(ensemble)?,
        };
        let others: Vec<Arc<PlanFile>> = self.ready().iter().map(|model| Arc::clone(model.plan())).collect();
        plan.share_weights(&others);
        let plan = Arc::new(plan);
        self.admit(ModelVersion::memory_of(&plan, &config))?;
        let loaders = &self.opener.loaders;
        let threads = self.options.threads;
        let stats = Arc::clone(stats);
        let model =
            ModelVersion::load(name, version, plan, (loaders, threads, &self.workers), config, stats, &self.memory)?;
        if let Some(declared) = &model.config.ensemble {
            ensemble::check(&model, declared)?;
        }
        tracing::info!(model = name, version, milliseconds = began.elapsed().as_millis(), "loaded");
        Ok(model)
    }

    /// Whether a version may be loaded that needs so many bytes. The one that it replaces is counted, as it serves until then.
    fn admit(&self, needed: u64) -> Result<(), String> {
        self.count_memory();
        self.memory.check(needed).map_err(|Exceeded { used, limit }| {
            let what =
                format!("it needs {needed} bytes, and {used} of the {limit} bytes of the memory budget are in use");
            format!("{what}; raise --memory-budget, or unload a model")
        })
    }

    /// Counts what all versions need, also those that finish their sequences, and plans of versions that have ended whose weights others
    /// read.
    fn count_memory(&self) {
        let models = [self.ready(), lock(&self.retired).clone()].concat();
        let own: BTreeSet<*const PlanFile> = models.iter().map(|model| Arc::as_ptr(model.plan())).collect();
        let owners = models.iter().flat_map(|model| model.plan().weight_owners());
        let kept: BTreeMap<_, _> = owners.map(|owner| (Arc::as_ptr(owner), owner.file_len())).collect();
        let kept = kept.into_iter().filter(|(owner, _)| !own.contains(owner)).map(|(_, bytes)| bytes);
        let all = models.iter().map(|model| model.memory).chain(kept).fold(0, u64::saturating_add);
        self.memory.set_models(all);
    }

    /// Ends a version that was replaced, once its sequences have ended.
    fn retire(&self, state: Option<State>) {
        match state {
            Some(State::Ready(model)) if model.running_sequences() > 0 => {
                let (name, version, sequences) = (&model.name, model.version, model.running_sequences());
                tracing::info!(model = name, version, sequences, "replaced; it finishes its sequences");
                lock(&self.retired).push(model);
                self.has_retired.store(true, Relaxed);
            }
            state => end(state),
        }
        self.count_memory();
    }

    /// Ends sequences that are idle, and versions that were replaced and have none left.
    pub fn end_idle(&self) {
        self.ready().iter().for_each(|model| model.end_idle_sequences());
        if !self.has_retired.load(Relaxed) {
            return;
        }
        let mut retired = lock(&self.retired);
        retired.iter().for_each(|model| model.end_idle_sequences());
        // Requests that a version has accepted are of sequences, so none are left.
        retired.retain(|model| model.running_sequences() > 0);
        self.has_retired.store(!retired.is_empty(), Relaxed);
        drop(retired);
        self.count_memory();
    }

    /// The version for a request: of a sequence that has begun in a version that was replaced meanwhile, that one.
    fn version_for(&self, request: &InferRequest) -> Result<Arc<ModelVersion>, ServeError> {
        if let Some(step) = request.sequence.as_ref().filter(|_| self.has_retired.load(Relaxed)) {
            let is_named = |model: &&Arc<ModelVersion>| {
                model.name == request.model
                    && (request.version.is_empty() || request.version == model.version.to_string())
            };
            let retired = lock(&self.retired);
            let mut with_it = retired.iter().rev().filter(is_named).filter(|model| model.has_sequence(&step.id));
            match step.start {
                true => with_it.for_each(|model| model.forget_sequence(&step.id)),
                false => {
                    if let Some(model) = with_it.next() {
                        return Ok(Arc::clone(model));
                    }
                }
            }
        }
        self.get(&request.model, &request.version)
    }

    /// Makes a version visible in place of the one before. A version that cannot be loaded replaces none that works.
    fn publish(&self, name: &str, version: u64, loaded: Result<ModelVersion, String>, mut new: Version) {
        let old = {
            let mut models = write(&self.models);
            let versions = &mut models.entry(name.to_owned()).or_default().versions;
            let works = versions.get(&version).is_some_and(|old| matches!(old.state, State::Ready(_)));
            match loaded {
                Ok(model) => new.state = State::Ready(Arc::new(model)),
                Err(_) if works => {
                    // The next look at the files does not try the same file again.
                    if let Some(old) = versions.get_mut(&version) {
                        old.seen = new.seen;
                    }
                    return;
                }
                Err(why) => new.state = State::Unavailable(why),
            }
            versions.insert(version, new)
        };
        self.retire(old.map(|old| old.state));
    }

    fn unload_found(&self, name: &str) {
        let old = write(&self.models).remove(name);
        for version in old.into_iter().flat_map(|model| model.versions.into_values()) {
            end(Some(version.state));
        }
        let is_other = |model: &Arc<ModelVersion>| model.name != name;
        let (kept, ended) = std::mem::take(&mut *lock(&self.retired)).into_iter().partition(is_other);
        *lock(&self.retired) = kept;
        let ended: Vec<Arc<ModelVersion>> = ended;
        ended.into_iter().for_each(|model| end(Some(State::Ready(model))));
        self.count_memory();
        tracing::info!(model = name, "unloaded");
    }

    /// Ends all models, after their accepted requests. Does not wait for a model that is being compiled.
    pub fn close(&self) {
        let names: Vec<String> = read(&self.models).keys().cloned().collect();
        names.iter().for_each(|name| self.unload_found(name));
    }

    /// Whether every model is loaded, or was tried.
    pub fn is_ready(&self) -> bool {
        let models = read(&self.models);
        models.values().flat_map(|m| m.versions.values()).all(|v| !matches!(v.state, State::Loading))
    }

    /// All versions that are loaded, and models in the files that are not.
    ///
    /// # Errors
    /// When a folder cannot be read.
    pub fn index(&self) -> Result<Vec<IndexEntry>, ServeError> {
        let found = self.find().map_err(|e| ServeError::new(ErrorKind::Internal, e))?;
        let models = read(&self.models);
        let names: BTreeSet<&String> = models.keys().chain(found.keys()).collect();
        let mut index = Vec::new();
        for name in names {
            match models.get(name).filter(|model| !model.versions.is_empty()) {
                Some(model) => index.extend(model.versions.iter().map(|(number, version)| IndexEntry {
                    name: name.clone(),
                    version: Some(*number),
                    state: Some(version.state.clone()),
                })),
                None => index.push(IndexEntry { name: name.clone(), version: None, state: None }),
            }
        }
        Ok(index)
    }

    /// All versions that take requests.
    pub fn ready(&self) -> Vec<Arc<ModelVersion>> {
        let models = read(&self.models);
        let versions = models.values().flat_map(|m| m.versions.values());
        versions
            .filter_map(|v| if let State::Ready(model) = &v.state { Some(Arc::clone(model)) } else { None })
            .collect()
    }

    /// The numbers of the versions of a model that take requests.
    pub fn versions(&self, name: &str) -> Vec<u64> {
        let models = read(&self.models);
        let versions = models.get(name).into_iter().flat_map(|model| &model.versions);
        versions.filter(|(_, v)| matches!(v.state, State::Ready(_))).map(|(number, _)| *number).collect()
    }

    /// A version of a model, the latest where it is empty.
    ///
    /// # Errors
    /// When there is none, or it takes no requests.
    pub fn get(&self, name: &str, version: &str) -> Result<Arc<ModelVersion>, ServeError> {
        let models = read(&self.models);
        let unknown = || ServeError::not_found(format!("there is no model '{}'", name.escape_debug()));
        let model = models.get(name).ok_or_else(unknown)?;
        let is_ready = |version: &&Version| matches!(version.state, State::Ready(_));
        let found = match version {
            "" => model.versions.values().rev().find(is_ready).or_else(|| model.versions.values().next_back()),
            text => text.parse().ok().and_then(|number: u64| model.versions.get(&number)),
        };
        let missing = || {
            let what = format!("model '{name}' has no version '{}'", version.escape_debug());
            ServeError::not_found(what)
        };
        match &found.ok_or_else(missing)?.state {
            State::Ready(model) => Ok(Arc::clone(model)),
            State::Loading => Err(ServeError::new(ErrorKind::Unavailable, format!("model '{name}' is being loaded"))),
            State::Unavailable(why) => {
                Err(ServeError::new(ErrorKind::Unavailable, format!("model '{name}' is not available: {why}")))
            }
        }
    }

    /// Runs a request on the version that it names. A version that is replaced meanwhile gives it back for the next one.
    ///
    /// # Errors
    /// When there is no such model, the request does not fit, or the run fails.
    pub async fn infer(&self, mut request: InferRequest, arrival: Instant) -> Result<InferResponse, ServeError> {
        /// More replacements during one request than can happen.
        const ATTEMPTS: usize = 8;
        let mut model = self.version_for(&request)?;
        let given = std::mem::take(&mut request.inputs);
        let fail = |model: &ModelVersion, e: ServeError| {
            model.stats.failed(e.kind, arrival.elapsed());
            e
        };
        let mut inputs = model.order(given).map_err(|e| fail(&model, e))?;
        for _ in 0..ATTEMPTS {
            match model.infer(&request, inputs, arrival).await {
                Ok(response) => return Ok(response),
                Err(Failed::Error(e)) => return Err(fail(&model, e)),
                Err(Failed::Closed(back)) => inputs = back,
            }
            let names = model.inputs.iter().map(|input| input.name.clone());
            let tensors = inputs.into_iter().filter_map(of_runtime::Value::into_tensor);
            let given: Vec<_> = names.zip(tensors).collect();
            model = self.version_for(&request)?;
            inputs = model.order(given).map_err(|e| fail(&model, e))?;
        }
        Err(ServeError::new(ErrorKind::Unavailable, format!("model '{}' is being replaced", request.model)))
    }

    /// Copies what changed in stores.
    fn update_mirrors(&self) -> Result<(), String> {
        for path in self.options.paths.iter().filter(|path| is_remote(path)) {
            let mut mirrors = lock(&self.mirrors);
            let mirror = match mirrors.entry(path.clone()) {
                Entry::Occupied(entry) => entry.into_mut(),
                Entry::Vacant(entry) => entry.insert(Mirror::new(path)?),
            };
            mirror.update()?;
        }
        Ok(())
    }

    /// A path of the options on this machine: that of the copy, for a store.
    fn local(&self, path: &Path) -> PathBuf {
        let copy = |mirrors: &BTreeMap<PathBuf, Mirror>| mirrors.get(path).map(|mirror| mirror.folder().to_owned());
        copy(&lock(&self.mirrors)).unwrap_or_else(|| path.to_owned())
    }

    /// The models in all paths, by name.
    fn find(&self) -> Result<BTreeMap<String, Found>, String> {
        let mut all = BTreeMap::new();
        for path in &self.options.paths {
            let before = all.len();
            let local = self.local(path);
            let metadata =
                std::fs::metadata(&local).map_err(|e| format!("'{}' cannot be read: {e}", path.display()))?;
            if metadata.is_file() {
                self.add_file(&local, &mut all)?;
            } else {
                let entries =
                    std::fs::read_dir(&local).map_err(|e| format!("'{}' cannot be read: {e}", path.display()))?;
                let mut entries: Vec<PathBuf> = entries.filter_map(|e| Some(e.ok()?.path())).collect();
                entries.sort();
                for entry in entries {
                    if entry.is_dir() {
                        self.add_folder(&entry, &mut all)?;
                    } else if is_model(&entry) {
                        self.add_file(&entry, &mut all)?;
                    }
                }
            }
            if all.len() == before && self.options.control == ControlMode::None {
                return Err(format!(
                    "'{}' has no model: NAME/VERSION/model.plan, NAME.plan or NAME.onnx",
                    path.display()
                ));
            }
        }
        Ok(all)
    }

    fn add_file(&self, path: &Path, all: &mut BTreeMap<String, Found>) -> Result<(), String> {
        let name = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
        let files = BTreeMap::from([(1, path.to_owned())]);
        add(all, name, Found { config: Ok(self.options.defaults.clone()), config_file: None, files })
    }

    fn add_folder(&self, folder: &Path, all: &mut BTreeMap<String, Found>) -> Result<(), String> {
        let Some(name) = folder.file_name().and_then(|name| name.to_str()) else { return Ok(()) };
        let file = folder.join("config.pbtxt");
        let text = std::fs::read_to_string(&file).ok();
        let config = match &text {
            Some(text) => self.options.defaults.with_text(name, text).map_err(|e| format!("{}: {e}", file.display())),
            None => Ok(self.options.defaults.clone()),
        };
        let named = config.as_ref().ok().and_then(|config| config.file.clone());
        let mut files = BTreeMap::new();
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let version = entry.file_name().to_str().and_then(|name| name.parse::<u64>().ok()).filter(|v| *v > 0);
            let Some(version) = version else { continue };
            if config.as_ref().is_ok_and(|config| config.ensemble.is_some()) {
                files.insert(version, file.clone());
                continue;
            }
            let candidates = match &named {
                Some(name) => vec![name.as_str()],
                None => vec!["model.plan", "model.onnx"],
            };
            let file = candidates.into_iter().map(|name| entry.path().join(name)).find(|file| file.is_file());
            files.extend(file.map(|file| (version, file)));
        }
        match files.is_empty() && text.is_none() {
            true => Ok(()),
            false => add(all, name, Found { config, config_file: text.map(|_| file), files }),
        }
    }
}

/// Whether the name of a file is that of a model.
fn is_model(path: &Path) -> bool {
    path.extension().is_some_and(|e| e == "plan" || e == "onnx") && path.is_file()
}

fn add(all: &mut BTreeMap<String, Found>, name: &str, found: Found) -> Result<(), String> {
    let file = found.files.values().next().map(|file| file.display().to_string()).unwrap_or_default();
    // Names are parts of paths of the protocol.
    if name.is_empty() || name.contains(['/', '?', '#']) {
        return Err(format!("'{file}' gives its model no name that a client can write"));
    }
    match all.insert(name.to_owned(), found) {
        None => Ok(()),
        Some(_) => Err(format!("two models are called '{name}'; the second is {file}")),
    }
}

/// Ends what was replaced. It answers the requests that it has accepted, on threads of its own.
fn end(state: Option<State>) {
    if let Some(State::Ready(model)) = state {
        model.close();
        model.join();
    }
}

fn seen(file: &Path, config: Option<&Path>, source: Option<&Source>) -> Option<Seen> {
    let of = |path: &Path| std::fs::metadata(path).ok().map(|m| (m.len(), m.modified().ok()));
    let (len, modified) = of(file)?;
    let steps = match source {
        Some(Source::Ensemble(ensemble)) => ensemble.steps.iter().map(|step| of(&step.file)).collect(),
        _ => Vec::new(),
    };
    Some(Seen { file: file.to_owned(), len, modified, config: config.and_then(of), steps })
}

/// What a version is made of: its file, or the models of an ensemble.
fn source(name: &str, file: &Path, config: &ModelConfig, all: &BTreeMap<String, Found>) -> Result<Source, String> {
    let Some(ensemble) = &config.ensemble else { return Ok(Source::File(file.to_owned())) };
    let step = |step: &StepConfig| -> Result<EnsembleStep, String> {
        let file = model_file(step, all).map_err(|e| format!("step '{}': {e}", step.model))?;
        let (inputs, outputs) = (step.inputs.clone(), step.outputs.clone());
        Ok(EnsembleStep { name: step.model.clone(), file, inputs, outputs })
    };
    let names = |list: &[Declared]| list.iter().map(|tensor| tensor.name.clone()).collect();
    let steps = ensemble.steps.iter().map(step).collect::<Result<_, _>>()?;
    Ok(Source::Ensemble(Ensemble {
        name: name.to_owned(),
        inputs: names(&ensemble.inputs),
        outputs: names(&ensemble.outputs),
        steps,
    }))
}

/// The file of a model of an ensemble, which is compiled together with the others.
fn model_file(step: &StepConfig, all: &BTreeMap<String, Found>) -> Result<PathBuf, String> {
    let found = all.get(&step.model).ok_or("there is no such model")?;
    let config = found.config.as_ref().map_err(Clone::clone)?;
    if config.ensemble.is_some() || config.sequences.is_some() {
        return Err("it is an ensemble itself, or keeps state between requests".into());
    }
    let version = step.version.or_else(|| found.chosen().last().copied()).unwrap_or(1);
    let file = found.files.get(&version).ok_or_else(|| format!("there is no version {version}"))?;
    let model = if file.extension().is_some_and(|e| e == "plan") { file.with_extension("onnx") } else { file.clone() };
    match model.is_file() {
        true => Ok(model),
        false => Err(format!(
            "'{}' is compiled already, and an ensemble is compiled as a whole: put {} next to it",
            file.display(),
            model.file_name().unwrap_or_default().display()
        )),
    }
}

impl Found {
    /// The configuration, with the files that it names.
    fn config(&self) -> Result<ModelConfig, String> {
        let mut config = self.config.clone()?;
        let folder = self.config_file.as_deref().and_then(Path::parent);
        if let (Some(sequences), Some(folder)) = (&mut config.sequences, folder) {
            sequences.read_files(folder)?;
        }
        Ok(config)
    }

    /// The versions to load.
    fn chosen(&self) -> Vec<u64> {
        let policy = self.config.as_ref().map_or(&VersionPolicy::Latest(1), |config| &config.versions);
        match policy {
            VersionPolicy::All => self.files.keys().copied().collect(),
            VersionPolicy::Latest(count) => self.files.keys().rev().take(*count).copied().collect(),
            VersionPolicy::Specific(list) => self.files.keys().filter(|v| list.contains(v)).copied().collect(),
        }
    }
}
