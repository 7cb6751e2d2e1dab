//! The builder of plans.

use std::collections::HashMap;

use crate::blobs::Blobs;
use crate::{
    BuildError, DeclaredCall, ElementType, Environment, Exec, KernelCode, MeshProgram, Plan, PlanInfo, Program, Weight,
};

/// Collects the structure and the bytes of a plan, and writes them (see [`PlanBuilder::write_file`]).
/// Weights can be borrowed, so that a model's constants go from one map to the file without a copy.
#[derive(Debug)]
pub struct PlanBuilder<'a> {
    pub(crate) plan: Plan,
    pub(crate) weights: Blobs<'a>,
    pub(crate) code: Blobs<'a>,
    pub(crate) payload: Blobs<'a>,
    /// Kernels by the offset and the length of their bytes and by their entry.
    kernels: HashMap<(u64, u64, u64), u32>,
}

impl<'a> PlanBuilder<'a> {
    /// An empty plan.
    pub fn new(info: PlanInfo, environment: Environment) -> Self {
        let plan = Plan { info, environment, ..Plan::default() };
        Self {
            plan,
            weights: Blobs::default(),
            code: Blobs::default(),
            payload: Blobs::default(),
            kernels: HashMap::new(),
        }
    }

    /// Clears the required CPU features, for plans without native code.
    pub fn clear_cpu_requirements(&mut self) {
        self.plan.environment.cpu_features.clear();
    }

    /// The structure so far.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Adds a constant and returns its index. Equal bytes are stored once. String tensors are given in the encoding
    /// of [`crate::PlanBuilder::encode_strings`].
    pub fn add_weight(
        &mut self,
        name: impl Into<String>,
        dtype: ElementType,
        dims: &[i64],
        bytes: impl AsRef<[u8]> + Send + Sync + 'a,
    ) -> Result<u32, BuildError> {
        let (name, got) = (name.into(), bytes.as_ref().len() as u64);
        check_weight(&name, dtype, dims, got)?;
        let offset = self.weights.add(bytes);
        Ok(self.push_weight(name, dtype, dims, offset, got))
    }

    /// Adds a constant whose bytes are part of another constant's bytes.
    pub fn alias_weight(
        &mut self,
        name: impl Into<String>,
        dtype: ElementType,
        dims: &[i64],
        of: u32,
        byte_offset: u64,
    ) -> Result<u32, BuildError> {
        let name = name.into();
        let len = dtype.byte_len(dims);
        let len =
            len.ok_or_else(|| BuildError::WeightType { name: name.clone(), dtype: dtype.name(), dims: dims.into() })?;
        let outer = self.plan.weights.get(of as usize);
        let fits = outer.filter(|outer| byte_offset.checked_add(len).is_some_and(|end| end <= outer.len));
        let offset = match fits {
            Some(outer) => outer.offset + byte_offset,
            None => return Err(BuildError::WeightAlias { name, of }),
        };
        Ok(self.push_weight(name, dtype, dims, offset, len))
    }

    fn push_weight(&mut self, name: String, dtype: ElementType, dims: &[i64], offset: u64, len: u64) -> u32 {
        self.plan.weights.push(Weight { name, dtype: dtype as i32, dims: dims.to_vec(), offset, len });
        (self.plan.weights.len() - 1) as u32
    }

    /// Adds a kernel and returns its index. A blob with the same bytes and entry is stored once and keeps the name it
    /// was first given.
    pub fn add_kernel(
        &mut self,
        name: impl Into<String>,
        isa: impl Into<String>,
        blob: impl AsRef<[u8]> + Send + Sync + 'a,
        entry: u64,
    ) -> Result<u32, BuildError> {
        let (name, len) = (name.into(), blob.as_ref().len() as u64);
        if entry >= len {
            return Err(BuildError::KernelEntry { name, entry, len });
        }
        let blake3 = blake3::hash(blob.as_ref()).as_bytes().to_vec();
        let offset = self.code.add(blob);
        if let Some(&index) = self.kernels.get(&(offset, len, entry)) {
            return Ok(index);
        }
        let index = self.plan.code.len() as u32;
        self.kernels.insert((offset, len, entry), index);
        let mut code = KernelCode { name, isa: isa.into(), offset, len, entry, blake3, ..KernelCode::default() };
        code.declaration_blake3 = code.declaration_hash();
        self.plan.code.push(code);
        Ok(index)
    }

    /// Adds the bytes of an executable and returns their offset and length in the payload section.
    pub fn add_payload(&mut self, bytes: impl AsRef<[u8]> + Send + Sync + 'a) -> (u64, u64) {
        let len = bytes.as_ref().len() as u64;
        (self.payload.add(bytes), len)
    }

    /// Adds an entry point and returns its index. Its kernels, which were added before, declare the calls that it makes.
    pub fn add_program(&mut self, program: Program) -> u32 {
        for task in &program.tasks {
            let Some(Exec::Kernel(exec)) = &task.exec else { continue };
            let Some(call) = DeclaredCall::of(&self.plan, &program, task, exec) else { continue };
            let code = self.plan.code.get_mut(exec.code as usize);
            if let Some(code) = code.filter(|code| !code.calls.contains(&call)) {
                code.calls.push(call);
                code.declaration_blake3 = code.declaration_hash();
            }
        }
        self.plan.programs.push(program);
        (self.plan.programs.len() - 1) as u32
    }

    /// Adds an entry point that several ranks run together.
    pub fn add_mesh(&mut self, mesh: MeshProgram) {
        self.plan.environment.ranks = self.plan.environment.ranks.max(mesh.ranks.len() as u32);
        self.plan.meshes.push(mesh);
    }

    /// The encoding of a string tensor's bytes in the weights section: for each element its length (u32,
    /// little-endian) and its UTF-8 bytes.
    pub fn encode_strings<S: AsRef<str>>(strings: &[S]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for string in strings {
            let string = string.as_ref();
            bytes.extend_from_slice(&(string.len() as u32).to_le_bytes());
            bytes.extend_from_slice(string.as_bytes());
        }
        bytes
    }

    /// Reads [`PlanBuilder::encode_strings`]'s encoding; `None` when the bytes are not exactly such a list.
    pub fn decode_strings(mut bytes: &[u8]) -> Option<Vec<String>> {
        let mut strings = Vec::new();
        while !bytes.is_empty() {
            let (len, rest) = bytes.split_first_chunk::<4>()?;
            let (text, rest) = rest.split_at_checked(u32::from_le_bytes(*len) as usize)?;
            strings.push(std::str::from_utf8(text).ok()?.to_owned());
            bytes = rest;
        }
        Some(strings)
    }
}

fn check_weight(name: &str, dtype: ElementType, dims: &[i64], got: u64) -> Result<(), BuildError> {
    let fail = || BuildError::WeightType { name: name.into(), dtype: dtype.name(), dims: dims.into() };
    if dtype == ElementType::String {
        return crate::dtype::element_count(dims).map(|_| ()).ok_or_else(fail);
    }
    let expected = dtype.byte_len(dims).ok_or_else(fail)?;
    if expected == got {
        return Ok(());
    }
    Err(BuildError::WeightSize { name: name.into(), dtype: dtype.name(), dims: dims.into(), expected, got })
}
