//! Plans: opening them, and their inputs and outputs.

use std::ffi::{CStr, CString, c_char, c_void};
use std::path::Path;
use std::ptr;
use std::sync::Arc;

use of_plan::{InputDims, MeshPort, MeshProgram, PlanFile, Program, Variable};

use crate::abi::{Port, Status, Tensor};
#[cfg(not(unix))]
use crate::error::error;
use crate::error::{Error, guarded, null, unknown};
use crate::memory::{array, put, reference, shape};

/// An open plan.
pub struct Plan {
    pub file: Arc<PlanFile>,
    /// The programs that a caller may run.
    pub entry_points: Vec<EntryPoint>,
}

/// A program, and its ports for C.
pub struct EntryPoint {
    /// Its number in the plan.
    pub program: usize,
    inputs: Vec<PortText>,
    outputs: Vec<PortText>,
    pub variables: Vec<PortText>,
}

/// What a [`Port`] points to.
pub struct PortText {
    name: CString,
    dtype: u32,
    /// `None` for any rank.
    dims: Option<Vec<i64>>,
    /// What `dim_names` points to.
    _names: Vec<Option<CString>>,
    dim_names: Vec<*const c_char>,
    type_text: CString,
}

// SAFETY: the pointers point into `_names`, which is not changed.
unsafe impl Send for PortText {}
// SAFETY: as above.
unsafe impl Sync for PortText {}

impl PortText {
    fn new(port: &of_plan::Port, program: &Program) -> Self {
        let c_text = |text: &str| CString::new(text.replace('\0', "\\0")).unwrap_or_default();
        let any_rank = port.object && port.dims.is_empty();
        let name = |(axis, dim): (usize, &i64)| {
            let extent = port.extent(axis, program);
            (*dim < 0).then(|| extent.map_or_else(CString::default, |extent| c_text(&extent.text(&program.symbols))))
        };
        let names: Vec<Option<CString>> = port.dims.iter().enumerate().map(name).collect();
        Self {
            name: c_text(&port.name),
            dtype: port.dtype() as u32,
            dims: (!any_rank).then(|| port.dims.iter().map(|dim| (*dim).max(-1)).collect()),
            dim_names: names.iter().map(|name| name.as_ref().map_or(ptr::null(), |name| name.as_ptr())).collect(),
            _names: names,
            type_text: c_text(&port.type_text(program)),
        }
    }

    /// The port for C.
    pub fn port(&self) -> Port {
        Port {
            name: self.name.as_ptr(),
            dtype: self.dtype,
            rank: self.dims.as_ref().map_or(-1, |dims| dims.len() as i32),
            dims: self.dims.as_ref().map_or(ptr::null(), |dims| dims.as_ptr()),
            dim_names: self.dim_names.as_ptr(),
            type_text: self.type_text.as_ptr(),
        }
    }
}

impl Plan {
    fn new(file: PlanFile) -> Self {
        let entry_point = |(program, desc): (usize, &Program)| {
            let ports = |ports: &[of_plan::Port]| ports.iter().map(|port| PortText::new(port, desc)).collect();
            let variable = |v: &Variable| {
                let (name, dims) = (v.name.clone(), v.dims.clone());
                PortText::new(&of_plan::Port { name, dtype: v.dtype, dims, ..of_plan::Port::default() }, desc)
            };
            (!desc.inner).then(|| EntryPoint {
                program,
                inputs: ports(&desc.inputs),
                outputs: ports(&desc.outputs),
                variables: desc.variables.iter().map(variable).collect(),
            })
        };
        // The programs of a mesh are those of its ranks; a caller sees the whole of each mesh.
        let whole: Vec<Program> = file.plan().meshes.iter().map(mesh_program).collect();
        let programs = if whole.is_empty() { &file.plan().programs[..] } else { &whole[..] };
        let entry_points = programs.iter().enumerate().filter_map(entry_point).collect();
        Self { file: Arc::new(file), entry_points }
    }

    /// A program by its number among those that a caller may run.
    pub fn entry_point(&self, index: usize) -> Result<&EntryPoint, Error> {
        self.entry_points.get(index).ok_or_else(|| unknown("program", index, self.entry_points.len()))
    }
}

/// The program of a mesh as a caller sees it, with whole inputs, outputs and variables.
pub fn mesh_program(mesh: &MeshProgram) -> Program {
    let port = |p: &MeshPort| of_plan::Port {
        name: p.name.clone(),
        dtype: p.dtype,
        dims: p.dims.clone(),
        ..of_plan::Port::default()
    };
    let variable =
        |p: &MeshPort| Variable { name: p.name.clone(), dtype: p.dtype, dims: p.dims.clone(), ..Variable::default() };
    Program {
        name: mesh.name.clone(),
        inputs: mesh.inputs.iter().map(port).collect(),
        outputs: mesh.outputs.iter().map(port).collect(),
        variables: mesh.variables.iter().map(variable).collect(),
        ..Program::default()
    }
}

/// Gives the caller a plan.
///
/// # Safety
/// `plan` is memory for a pointer.
pub unsafe fn give(plan: *mut *mut Plan, file: PlanFile) -> Result<(), Error> {
    // SAFETY: the caller promises it.
    unsafe { put(plan, "plan", Box::into_raw(Box::new(Plan::new(file)))) }
}

/// `of_plan_open`.
///
/// # Safety
/// As `of_runtime.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn of_plan_open(path: *const c_char, plan: *mut *mut Plan) -> Status {
    guarded(|| {
        if plan.is_null() {
            return Err(null("plan"));
        }
        // SAFETY: the caller passes text and memory for a pointer.
        unsafe { give(plan, PlanFile::open(path_of(path)?)?) }
    })
}

/// A path: any bytes on Unix, UTF-8 elsewhere.
///
/// # Safety
/// `path` is null, or it points to text that lives for `'a`.
pub unsafe fn path_of<'a>(path: *const c_char) -> Result<&'a Path, Error> {
    if path.is_null() {
        return Err(null("path"));
    }
    // SAFETY: the caller promises it.
    let path = unsafe { CStr::from_ptr(path) };
    #[cfg(unix)]
    return Ok(Path::new(<std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(path.to_bytes())));
    #[cfg(not(unix))]
    return path.to_str().map(Path::new).map_err(|_| error(Status::InvalidArgument, "`path` is not UTF-8"));
}

/// `of_plan_open_memory`.
///
/// # Safety
/// As `of_runtime.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn of_plan_open_memory(bytes: *const c_void, len: usize, plan: *mut *mut Plan) -> Status {
    guarded(|| {
        if plan.is_null() {
            return Err(null("plan"));
        }
        // SAFETY: the caller passes `len` bytes and memory for a pointer.
        unsafe { give(plan, PlanFile::from_bytes(array(bytes.cast(), len, "bytes")?)?) }
    })
}

/// `of_plan_free`.
///
/// # Safety
/// As `of_runtime.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn of_plan_free(plan: *mut Plan) {
    guarded(|| {
        if !plan.is_null() {
            // SAFETY: `give` made it, and the caller frees it once.
            drop(unsafe { Box::from_raw(plan) });
        }
        Ok(())
    });
}

/// `of_plan_program_count`.
///
/// # Safety
/// As `of_runtime.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn of_plan_program_count(plan: *const Plan, count: *mut usize) -> Status {
    // SAFETY: the caller passes a plan and memory for a number.
    guarded(|| unsafe { put(count, "count", reference(plan, "plan")?.entry_points.len()) })
}

/// `of_plan_input_count`.
///
/// # Safety
/// As `of_runtime.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn of_plan_input_count(plan: *const Plan, program: usize, count: *mut usize) -> Status {
    // SAFETY: the caller passes a plan and memory for a number.
    guarded(|| unsafe { put(count, "count", reference(plan, "plan")?.entry_point(program)?.inputs.len()) })
}

/// `of_plan_output_count`.
///
/// # Safety
/// As `of_runtime.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn of_plan_output_count(plan: *const Plan, program: usize, count: *mut usize) -> Status {
    // SAFETY: the caller passes a plan and memory for a number.
    guarded(|| unsafe { put(count, "count", reference(plan, "plan")?.entry_point(program)?.outputs.len()) })
}

/// `of_plan_input`.
///
/// # Safety
/// As `of_runtime.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn of_plan_input(plan: *const Plan, program: usize, index: usize, port: *mut Port) -> Status {
    guarded(|| {
        // SAFETY: the caller passes a plan.
        let inputs = &unsafe { reference(plan, "plan") }?.entry_point(program)?.inputs;
        let found = inputs.get(index).ok_or_else(|| unknown("input", index, inputs.len()))?;
        // SAFETY: the caller passes memory for a port.
        unsafe { put(port, "port", found.port()) }
    })
}

/// `of_plan_output`.
///
/// # Safety
/// As `of_runtime.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn of_plan_output(plan: *const Plan, program: usize, index: usize, port: *mut Port) -> Status {
    guarded(|| {
        // SAFETY: the caller passes a plan.
        let outputs = &unsafe { reference(plan, "plan") }?.entry_point(program)?.outputs;
        let found = outputs.get(index).ok_or_else(|| unknown("output", index, outputs.len()))?;
        // SAFETY: the caller passes memory for a port.
        unsafe { put(port, "port", found.port()) }
    })
}

/// `of_plan_find_program`.
///
/// # Safety
/// As `of_runtime.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn of_plan_find_program(
    plan: *const Plan,
    inputs: *const Tensor,
    count: usize,
    program: *mut usize,
) -> Status {
    guarded(|| {
        // SAFETY: the caller passes a plan and `count` tensors with their extents.
        let (plan, inputs) = unsafe { (reference(plan, "plan")?, array(inputs, count, "inputs")?) };
        let dims = |tensor: &Tensor| match tensor.dtype {
            // A sequence or an optional value.
            0 => Ok(None),
            // SAFETY: as above.
            _ => Ok(Some(unsafe { shape(tensor) }?)),
        };
        let shapes = inputs.iter().map(dims).collect::<Result<Vec<InputDims<'_>>, Error>>()?;
        let meshes = &plan.file.plan().meshes;
        let number = match meshes.iter().position(|mesh| mesh.accepts(&shapes).is_ok()) {
            Some(mesh) => mesh,
            None => match meshes.first() {
                Some(first) => {
                    return Err(first.accepts(&shapes).err().map_or_else(|| unknown("program", 0, 0), Error::from));
                }
                None => plan.file.find_program(&shapes)?,
            },
        };
        let index = plan.entry_points.iter().position(|entry| entry.program == number);
        let index = index.ok_or_else(|| unknown("program", number, plan.entry_points.len()))?;
        // SAFETY: the caller passes memory for a number.
        unsafe { put(program, "program", index) }
    })
}
