//! The ports of a mesh: whole inputs are cut into the parts of ranks, and whole outputs are put together from them.

use std::borrow::Cow;

use of_plan::{
    FindError, InputDims, LayoutKind, MeshPort, MeshProgram, PlanFile, Port, Runs, coords, holds, partial_kind, parts,
};

use crate::boxing::{Block, put};
use crate::combine::{combine, identity_element};
use crate::device::AlignedBytes;
use crate::session::memory;
use crate::{RunError, SessionError, Tensor, Value, cpu};

/// A mesh of a plan, after the proof that its ranks can run together, on this processor; after what concerns rank `only` of that proof,
/// where the others are processes that do the same.
pub(crate) fn verified_mesh(plan: &PlanFile, mesh: usize, only: Option<usize>) -> Result<&MeshProgram, SessionError> {
    let count = plan.plan().meshes.len();
    let desc = plan.plan().meshes.get(mesh).ok_or(SessionError::Mesh { index: mesh, count })?;
    match only {
        Some(rank) => plan.verify_rank(rank),
        None => plan.verify_meshes(),
    }
    .map_err(SessionError::Invalid)?;
    for port in desc.inputs.iter().chain(&desc.outputs) {
        if partial_kind(&port.layout).is_some_and(|kind| combine(port.dtype(), kind).is_none()) {
            return Err(SessionError::Combine { task: port.name.clone(), dtype: port.dtype().name() });
        }
    }
    cpu::check(&plan.plan().environment, !plan.plan().code.is_empty())?;
    Ok(desc)
}

/// Checks number and types of whole inputs.
pub(crate) fn check_inputs(program: &MeshProgram, inputs: &[Value]) -> Result<(), RunError> {
    let dims: Vec<InputDims<'_>> = inputs.iter().map(Value::input_dims).collect();
    let names = || program.inputs.iter().map(|p| p.name.as_str()).collect::<Vec<_>>().join(", ");
    program.accepts(&dims).map_err(|error| match error {
        FindError::Input { input, index, problem, .. } => RunError::Input { input, index, problem },
        _ => RunError::InputCount { expected: program.inputs.len(), names: names(), got: inputs.len() },
    })
}

/// A rank's parts of the inputs.
pub(crate) fn scatter(program: &MeshProgram, inputs: &[Value], rank: usize, own: &mut [Value]) -> Result<(), RunError> {
    let ports = &program.inputs;
    for (index, part) in parts(ports, &coords(&program.extents(), rank)).into_iter().zip(own) {
        let port = &ports[index];
        let whole = inputs.get(index).and_then(Value::as_tensor).ok_or_else(|| odd(port))?;
        let Value::Tensor(part) = part else { return Err(odd(port)) };
        let bytes = whole.bytes().ok_or_else(|| odd(port))?;
        if !port.is_open() {
            scatter_port(program, port, bytes, rank, part)?;
            continue;
        }
        let port = port.of_whole(whole.dims());
        let mesh = program.extents();
        let dims: Vec<i64> = port.block(&mesh, &coords(&mesh, rank), 0).iter().map(|(_, n)| *n as i64).collect();
        if part.dims() != dims {
            *part = Tensor::zeros(port.dtype(), dims).map_err(|_| odd(&port))?;
        }
        scatter_port(program, &port, bytes, rank, part)?;
    }
    Ok(())
}

/// A rank's part of the value of a port. Of a partial value, the first rank has the elements and the others the identity element.
pub(crate) fn scatter_port(
    program: &MeshProgram,
    port: &MeshPort,
    whole: &[u8],
    rank: usize,
    part: &mut Tensor,
) -> Result<(), RunError> {
    let mesh = program.extents();
    let coords = coords(&mesh, rank);
    let bytes = part.bytes_mut().ok_or_else(|| odd(port))?;
    let (dims, element) = sizes(port);
    if first_of_partial(port, &coords) {
        let all: Vec<_> = dims.iter().map(|d| (0, *d)).collect();
        let len = (bytes.len() / port.count()).max(1);
        for (microbatch, bytes) in bytes.chunks_exact_mut(len).enumerate() {
            let block = port.block(&mesh, &coords, microbatch);
            let from = Block { bytes: whole, runs: &Runs::of(&block, &all), element };
            if !put(bytes, (&Runs::of(&block, &block), element), &from, None) {
                return Err(odd(port));
            }
        }
    } else if let Some(none) = partial_kind(&port.layout).and_then(|kind| identity_element(port.dtype(), kind)) {
        bytes.chunks_exact_mut(none.len()).for_each(|x| x.copy_from_slice(&none));
    }
    Ok(())
}

/// Output `index` whole. `part` gives a rank's output, by the number of the rank and of the output.
pub(crate) fn gather<'a>(
    program: &MeshProgram,
    index: usize,
    part: &dyn Fn(usize, usize) -> Option<&'a Tensor>,
) -> Result<Value, RunError> {
    let port = &program.outputs[index];
    let part = |rank: usize| part(rank, held(program, rank, index)?);
    let port = run_port(program, port, part(0))?;
    let whole = gather_port(program, &port, &|rank| part(rank)?.bytes())?;
    Ok(whole.into())
}

/// A port with the extents of a run, of which a rank has this part.
pub(crate) fn run_port<'p>(
    program: &MeshProgram,
    port: &'p MeshPort,
    own: Option<&Tensor>,
) -> Result<Cow<'p, MeshPort>, RunError> {
    if !port.is_open() {
        return Ok(Cow::Borrowed(port));
    }
    let whole = own.and_then(|part| port.of_part(&program.extents(), part.dims()));
    whole.map(Cow::Owned).ok_or_else(|| odd(port))
}

/// The value of a port, whole. `part` gives the bytes of a rank's part.
pub(crate) fn gather_port<'a>(
    program: &MeshProgram,
    port: &MeshPort,
    part: &dyn Fn(usize) -> Option<&'a [u8]>,
) -> Result<Tensor, RunError> {
    let mesh = program.extents();
    let (dims, element) = sizes(port);
    let mut bytes = AlignedBytes::zeroed(dims.iter().product::<usize>() * element);
    let kind = partial_kind(&port.layout).and_then(|kind| combine(port.dtype(), kind));
    let all: Vec<_> = dims.iter().map(|d| (0, *d)).collect();
    for rank in (0..program.ranks.len()).filter(|rank| contributes(program, port, *rank)) {
        let coords = coords(&mesh, rank);
        let from = part(rank).ok_or_else(|| odd(port))?;
        let how = kind.filter(|_| !first_of_partial(port, &coords));
        let len = (from.len() / port.count()).max(1);
        for (microbatch, from) in from.chunks_exact(len).enumerate() {
            let own = port.block(&mesh, &coords, microbatch);
            let from = Block { bytes: from, runs: &Runs::of(&own, &own), element };
            if !put(&mut bytes, (&Runs::of(&own, &all), element), &from, how) {
                return Err(odd(port));
            }
        }
    }
    Tensor::new(port.dtype(), port.dims.clone(), bytes).map_err(|_| odd(port))
}

/// Whether a rank has a part of a port's value that becomes part of the whole. Of equal copies, only that of the first rank does.
pub(crate) fn contributes(program: &MeshProgram, port: &MeshPort, rank: usize) -> bool {
    let coords = coords(&program.extents(), rank);
    let copy = port.layout.iter().zip(&coords).any(|(l, c)| l.kind() == LayoutKind::Broadcast && *c > 0);
    holds(&port.layout, &coords) && !copy
}

/// The number of a rank's output that is its part of output `index`.
pub(crate) fn held(program: &MeshProgram, rank: usize, index: usize) -> Option<usize> {
    let coords = coords(&program.extents(), rank);
    parts(&program.outputs, &coords).into_iter().position(|of| of == index)
}

/// Zeros of the types of ports, which are tensors.
pub(crate) fn zeros_for(ports: &[Port]) -> Result<Vec<Value>, SessionError> {
    let zeros = |port: &Port| {
        // A run decides open extents.
        let dims: Vec<i64> = port.dims.iter().map(|d| (*d).max(0)).collect();
        let bytes = port.dtype().byte_len(&dims).unwrap_or(u64::MAX);
        let source = std::io::Error::from(std::io::ErrorKind::OutOfMemory);
        let zeros = Tensor::zeros(port.dtype(), dims);
        Ok(zeros.map_err(|_| memory(&format!("input `{}`", port.name), bytes, source))?.into())
    };
    ports.iter().map(zeros).collect()
}

/// Extents and bytes of an element of a port, which was verified.
fn sizes(port: &MeshPort) -> (Vec<usize>, usize) {
    (port.dims.iter().map(|d| *d as usize).collect(), port.dtype().bits() as usize / 8)
}

/// Whether a rank comes first along all axes on which a port is partial.
fn first_of_partial(port: &MeshPort, coords: &[usize]) -> bool {
    port.layout.iter().zip(coords).all(|(l, c)| !l.kind().is_partial() || *c == 0)
}

fn odd(port: &MeshPort) -> RunError {
    RunError::Internal(format!("`{}` is not of its type", port.name))
}
