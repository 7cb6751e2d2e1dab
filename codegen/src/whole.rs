//! Plans whose functions run on one backend as a whole.

use of_diag::{Code, Diagnostic, Diagnostics, Location};
use of_ir::{Func, Graph, Type, ValueId};
use of_plan::{Environment, PlanBuilder};

use crate::Backend;
use crate::compile::{CompileOptions, Compiled, Summary};
use crate::physical::{Operand, Physical, Place, PortSpec, Slot, Step, Work};

/// Compiles functions into one plan, as [`crate::compile`] does, each for `backend` alone: nothing of them runs elsewhere.
///
/// # Errors
/// When an op is not claimed, with the reason for each; when extents are not known; when the backend fails.
pub fn whole<'m>(
    funcs: &[(String, &'m Func)],
    backend: &dyn Backend,
    options: &CompileOptions<'_>,
) -> Result<Compiled<'m>, Diagnostics> {
    let environment = Environment {
        arch: std::env::consts::ARCH.into(),
        cpu_features: Vec::new(),
        threads: options.threads,
        ranks: 1,
        cuda_arch: None,
    };
    let mut builder = PlanBuilder::new(options.info(), environment);
    let mut summary = Summary::default();
    for (name, func) in funcs {
        claimed(func, backend)?;
        let bytes = backend.compile(func)?;
        let payload = builder.add_payload(bytes);
        let program = physical(func, backend.name(), payload)?.assemble(name, false);
        summary.steps += program.tasks.len();
        summary.peak_bytes = summary.peak_bytes.max(program.peak_bytes);
        summary.lower_bound_bytes = summary.lower_bound_bytes.max(program.lower_bound_bytes);
        builder.add_program(program);
    }
    Ok(Compiled { builder, summary })
}

/// That the backend takes every op.
fn claimed(func: &Func, backend: &dyn Backend) -> Result<(), Diagnostics> {
    let g = &func.graph;
    let refused = g.region_ops(g.entry()).filter_map(|op| {
        let why = backend.claims(g, op).err()?;
        let what = format!("'{}' does not run on '{}': {why}", g.op(op).name(), backend.name());
        Some(Diagnostic::error(Code::UNSUPPORTED, g.op(op).loc.clone(), what))
    });
    let refused: Vec<Diagnostic> = refused.collect();
    if refused.is_empty() { Ok(()) } else { Err(Diagnostics(refused)) }
}

/// Inputs, the backend's step, outputs.
fn physical(func: &Func, backend: &'static str, payload: (u64, u64)) -> Result<Physical, Diagnostic> {
    let g = &func.graph;
    let mut p = Physical::default();
    let mut slot = |v: ValueId, name: &str| slot_of(g, v, name).map(|(slot, port)| (push(&mut p.slots, slot), port));
    let step = |name: String, work| Step { name, locations: Vec::new(), work, flops: 0, bytes: 0 };
    let (mut reads, mut writes) = (Vec::new(), Vec::new());
    for (v, name) in g.args().iter().zip(&func.inputs) {
        reads.push(slot(*v, name)?);
    }
    for (v, name) in g.yields(g.entry()).iter().zip(&func.outputs) {
        writes.push(slot(*v, name)?);
    }
    for (i, (dst, port)) in reads.iter().enumerate() {
        p.steps.push(step(format!("feed {}", port.name), Work::Feed { port: i as u32, dst: *dst }));
    }
    let inputs = reads.iter().map(|(s, _)| Operand::whole(Place::Slot(*s))).collect();
    let outputs = writes.iter().map(|(s, _)| *s).collect();
    p.steps.push(step(backend.to_string(), Work::Backend { backend, payload, inputs, outputs }));
    for (i, (src, port)) in writes.iter().enumerate() {
        p.steps.push(step(format!("fetch {}", port.name), Work::Fetch { port: i as u32, src: *src }));
    }
    p.inputs = reads.into_iter().map(|(_, port)| port).collect();
    p.outputs = writes.into_iter().map(|(_, port)| port).collect();
    Ok(p)
}

fn push(slots: &mut Vec<Slot>, slot: Slot) -> usize {
    slots.push(slot);
    slots.len() - 1
}

/// The buffer and the port of an input or output.
fn slot_of(g: &Graph, v: ValueId, name: &str) -> Result<(Slot, PortSpec), Diagnostic> {
    let fixed = match g.ty(v) {
        Type::Tensor(t) => t.fixed_dims().and_then(|d| Some((t.dtype, t.dtype.byte_len(d.iter().product())?, d))),
        _ => None,
    };
    let Some((dtype, bytes, dims)) = fixed.filter(|f| f.1 > 0) else {
        let what = format!("'{name}' has type {}, whose size is not known before the run", g.ty(v));
        let d = Diagnostic::error(Code::UNSUPPORTED, Location::Unknown, what);
        return Err(d.hint("give numbers for its dimensions with --shape"));
    };
    let dims: Vec<i64> = dims.iter().map(|d| *d as i64).collect();
    let port = PortSpec { name: name.to_string(), dtype: Some(dtype), dims: dims.clone(), object: false };
    let slot = Slot { name: name.into(), dtype: Some(dtype), dims, bytes: Some(bytes as u64), extents: Vec::new() };
    Ok((slot, port))
}
