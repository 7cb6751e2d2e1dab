//! Checks what a task runs: arguments are inside their registers and weights, and only in registers that the task holds.

use super::FindingKind;
use super::checker::Checker;
use crate::{
    Arg, ArgSource, BackendExec, BoxingExec, ConcatExec, ConcatPart, ControlExec, ControlKind, CopyExec, DeclaredCall,
    ElementType, Exec, KernelExec, LayoutKind, Plan, PortExec, Program, Task, TaskKind, Transfer,
};

pub(super) fn check_exec(checker: &mut Checker<'_>, program: &Program, task: &Task, place: &str) {
    let result = kind_of_work(program, task).and_then(|()| match &task.exec {
        None => Ok(()),
        Some(Exec::Kernel(exec)) => kernel(checker, program, task, exec),
        Some(Exec::Backend(exec)) => backend(checker, program, task, exec),
        Some(Exec::Control(exec)) => control(checker, program, task, exec),
        Some(Exec::Copy(exec)) => copy(checker, program, task, exec),
        Some(Exec::Boxing(exec)) => boxing(checker, program, task, exec),
        Some(Exec::Feed(exec)) => port(program, task, *exec, true),
        Some(Exec::Fetch(exec)) => port(program, task, *exec, false),
        Some(Exec::Concat(exec)) => concat(checker, program, task, exec),
    });
    if let Err((kind, message)) = result {
        checker.report(kind, place, message);
    }
}

type Check<T = ()> = Result<T, (FindingKind, String)>;

/// Some kinds are known by what they run.
fn kind_of_work(program: &Program, task: &Task) -> Check {
    let of = |kind: TaskKind| task.kind == kind as i32;
    let wrong = |what: &str| Err((FindingKind::Type, what.to_string()));
    if of(TaskKind::InputWise) != matches!(task.exec, Some(Exec::Concat(_))) {
        return wrong("an input-wise task copies each input to its part of the output, and no other kind does");
    }
    if of(TaskKind::Repeat) && !matches!(task.exec, Some(Exec::Copy(_))) {
        return wrong("a repeat copies its value");
    }
    if of(TaskKind::InputWise) && !program.phases.is_empty() {
        let what = "a program with microbatches states the order of all acts, so none is input-wise";
        return Err((FindingKind::Reserved, what.into()));
    }
    Ok(())
}

/// Where an argument points: bytes that are left from its offset on, or an object.
enum Target {
    Bytes { left: u64, dtype: i32, len: u64 },
    Object,
}

fn kernel(checker: &Checker<'_>, program: &Program, task: &Task, exec: &KernelExec) -> Check {
    if exec.code as usize >= checker.plan.code.len() {
        return Err((FindingKind::Index, format!("kernel {} does not exist", exec.code)));
    }
    if exec.iterations < 0 || exec.grain < 0 {
        return Err((FindingKind::Range, "negative iterations or grain".into()));
    }
    if exec.dynamic.as_ref().is_some_and(|extent| !extent.is_valid(program.symbols.len())) {
        return Err((FindingKind::Index, "its iterations depend on a symbol that does not exist".into()));
    }
    for arg in &exec.args {
        if !matches!(target(checker, program, task, arg)?, Target::Object) {
            continue;
        }
        let sized = |id: u32| {
            let register = &program.registers[id as usize];
            let dense = !matches!(register.dtype(), ElementType::Unknown | ElementType::String);
            dense && (!task.produces.contains(&id) || register.extents.len() == register.dims.len())
        };
        let register = arg.source.is_some_and(|source| matches!(source, ArgSource::Register(id) if sized(id)));
        if exec.dynamic.is_none() || !register {
            return Err((FindingKind::Type, "a kernel cannot take this object: its bytes are not known".into()));
        }
    }
    let call = DeclaredCall::of(checker.plan, program, task, exec);
    let call = call.ok_or_else(|| (FindingKind::Range, "an argument is outside of its buffer".into()))?;
    checker.plan.code[exec.code as usize].check_call(&call).map_err(|why| (FindingKind::Call, why))
}

fn backend(checker: &Checker<'_>, program: &Program, task: &Task, exec: &BackendExec) -> Check {
    operands(checker, program, task, &exec.inputs)?;
    results(program, task, &exec.outputs)
}

fn control(checker: &Checker<'_>, program: &Program, task: &Task, exec: &ControlExec) -> Check {
    operands(checker, program, task, &exec.inputs)?;
    results(program, task, &exec.outputs)?;
    let wrong = |what: &str| Err((FindingKind::Index, what.to_string()));
    let Ok(kind) = ControlKind::try_from(exec.kind) else { return wrong("its kind is not known") };
    let (own, given) = (exec.given.len(), exec.given.iter().filter(|g| **g).count());
    let (bodies, arguments, extra) = match kind {
        ControlKind::If => (2, 0, 0),
        ControlKind::Loop => (1, own, 1),
    };
    let least = match kind {
        ControlKind::If => own == 1 && given == 1,
        ControlKind::Loop => own >= 2 && exec.given[2..].iter().all(|g| *g) && exec.outputs.len() >= own - 2,
    };
    if !least || given > exec.inputs.len() || exec.bodies.len() != bodies {
        return wrong("its operands, programs and outputs are not those of its kind");
    }
    let at = checker.plan.programs.iter().position(|p| std::ptr::eq(p, program));
    for body in &exec.bodies {
        // Behind its own program: no program can run itself.
        let inner = checker.plan.programs.get(body.program as usize).filter(|p| p.inner);
        let Some(inner) = inner.filter(|_| at.is_some_and(|at| at < body.program as usize)) else {
            return wrong("it runs a program that is none of its own");
        };
        let captures = body.captures.iter().all(|c| (*c as usize) < exec.inputs.len());
        let outputs = inner.outputs.len() == exec.outputs.len() + extra;
        if !captures || inner.inputs.len() != arguments + body.captures.len() || !outputs {
            return wrong("a program that it runs has other inputs or outputs");
        }
    }
    Ok(())
}

/// What a task reads as values: each fits its register or weight.
fn operands(checker: &Checker<'_>, program: &Program, task: &Task, inputs: &[Arg]) -> Check {
    for arg in inputs {
        match (target(checker, program, task, arg)?, &arg.view) {
            (Target::Object, None) => {}
            (Target::Object, Some(_)) => {
                return Err((FindingKind::Type, "an object cannot be viewed as another type".into()));
            }
            (Target::Bytes { left, dtype, len }, view) => {
                let need = match view {
                    Some(view) => view_len(view.dtype, &view.dims)?,
                    None if dtype == ElementType::String as i32 && arg.byte_offset == 0 => 0,
                    None => len,
                };
                if need > left {
                    return Err((FindingKind::Range, format!("an input of {need} bytes has {left} in its buffer")));
                }
            }
        }
    }
    Ok(())
}

/// What a task fills as values: registers of its own, each once.
fn results(program: &Program, task: &Task, outputs: &[u32]) -> Check {
    for (position, &output) in outputs.iter().enumerate() {
        if !task.produces.contains(&output) || outputs[..position].contains(&output) {
            return Err((
                FindingKind::Ownership,
                format!("output register {output} is not its own, or is given twice"),
            ));
        }
        let register = &program.registers[output as usize];
        if register.is_control() {
            return Err((FindingKind::Type, format!("output register {output} is a control edge")));
        }
        // Executables see inputs and outputs as separate slices, which must not overlap. The next value of a variable is left in the
        // backend's memory, where no task finds it.
        let is_kept = matches!(task.exec, Some(Exec::Backend(_))) && program.variable_of(register).is_some();
        if is_kept && !register.consumers.is_empty() {
            let problem = format!("output register {output}, a variable that the backend keeps, has readers");
            return Err((FindingKind::Ownership, problem));
        }
        if !register.inplace_of.is_empty() && !is_kept {
            return Err((
                FindingKind::Overlap,
                format!("output register {output} of an executable cannot be in place"),
            ));
        }
    }
    Ok(())
}

fn view_len(dtype: i32, dims: &[i64]) -> Check<u64> {
    let len = ElementType::try_from(dtype).ok().and_then(|dtype| dtype.byte_len(dims));
    len.ok_or_else(|| (FindingKind::Type, "a view has no size".into()))
}

fn copy(checker: &Checker<'_>, program: &Program, task: &Task, exec: &CopyExec) -> Check {
    let Some(ArgSource::Register(to)) = exec.dst.source else {
        return Err((FindingKind::Type, "a copy must end in a register".into()));
    };
    if !task.produces.contains(&to) {
        return Err((
            FindingKind::Ownership,
            format!("the copy ends in register {to}, which the task does not produce"),
        ));
    }
    match (target(checker, program, task, &exec.src)?, target(checker, program, task, &exec.dst)?) {
        (Target::Object, Target::Object) if exec.bytes == 0 => Ok(()),
        (Target::Bytes { left: from, .. }, Target::Bytes { left: to, .. }) => {
            let later = u64::from(program.times_of(task).saturating_sub(1));
            let end = |step: u64| step.checked_mul(later).and_then(|start| start.checked_add(exec.bytes));
            let fits = |step, left| end(step).is_some_and(|end| end <= left);
            if !fits(exec.src_step, from) || !fits(exec.dst_step, to) {
                return Err((FindingKind::Range, format!("it copies {} bytes past a buffer", exec.bytes)));
            }
            combined(program, task, exec, to)
        }
        _ => Err((FindingKind::Type, "it copies between a buffer and an object, or bytes of an object".into())),
    }
}

/// What combines with what is there: elements of one type, which the destination starts with.
fn combined(program: &Program, task: &Task, exec: &CopyExec, left: u64) -> Check {
    let kind =
        LayoutKind::try_from(exec.combine).map_err(|_| (FindingKind::Type, "it combines in no way".to_string()))?;
    let moves = exec.src_step > 0 || exec.dst_step > 0;
    let of = |kind: TaskKind| task.kind == kind as i32;
    let fits = match kind {
        LayoutKind::Broadcast if !moves => true,
        LayoutKind::Broadcast => of(TaskKind::Unpack) && exec.dst_step == 0 || of(TaskKind::Pack) && exec.src_step == 0,
        LayoutKind::Sum | LayoutKind::Max | LayoutKind::Min | LayoutKind::Prod => of(TaskKind::Acc) && !moves,
        LayoutKind::Split | LayoutKind::At => false,
    };
    if !fits {
        return Err((FindingKind::Type, "its steps and combination are not those of its kind".into()));
    }
    let Some(ArgSource::Register(to)) = exec.dst.source.filter(|_| kind != LayoutKind::Broadcast) else {
        return Ok(());
    };
    let dtype = program.registers[to as usize].dtype();
    let element = u64::from(dtype.bits() / 8);
    let whole = element > 0 && exec.bytes.is_multiple_of(element) && exec.dst.byte_offset == 0 && exec.bytes <= left;
    let same = match exec.src.source {
        Some(ArgSource::Register(from)) => program.registers[from as usize].dtype() == dtype,
        _ => false,
    };
    if whole && same { Ok(()) } else { Err((FindingKind::Type, "it combines elements of different types".into())) }
}

/// Each input is one part, and the parts are the whole output, one after another. So the order of the acts cannot change the value.
fn concat(checker: &Checker<'_>, program: &Program, task: &Task, exec: &ConcatExec) -> Check {
    results(program, task, &[exec.dst])?;
    let data = |id: &&u32| !program.registers[**id as usize].is_control();
    if task.produces.iter().filter(data).any(|id| *id != exec.dst) {
        return Err((FindingKind::Ownership, "an input-wise task has one output".into()));
    }
    for part in &exec.parts {
        let from = part.src.register_id().filter(|id| task.consumes.contains(id));
        if from.is_none() || exec.parts.iter().filter(|other| other.src.register_id() == from).count() != 1 {
            return Err((FindingKind::Ownership, "a part is not one of its inputs, or is another part, too".into()));
        }
        match target(checker, program, task, &part.src)? {
            Target::Bytes { left, .. } if part.bytes <= left => {}
            Target::Bytes { left, .. } => {
                return Err((FindingKind::Range, format!("a part of {} bytes has {left} in its buffer", part.bytes)));
            }
            Target::Object => return Err((FindingKind::Reserved, "a part is an object, which has no bytes".into())),
        }
    }
    if task.consumes.iter().filter(data).count() != exec.parts.len() || exec.parts.is_empty() {
        return Err((FindingKind::Ownership, "an input has no part of the output".into()));
    }
    let register = &program.registers[exec.dst as usize];
    let whole = register.block().and_then(|_| register.dtype().byte_len(&register.dims));
    let mut parts: Vec<&ConcatPart> = exec.parts.iter().collect();
    parts.sort_by_key(|part| (part.offset, part.bytes));
    let end = parts.iter().try_fold(0u64, |end, part| (part.offset == end).then(|| end.checked_add(part.bytes))?);
    if whole.is_none() || end != whole {
        return Err((FindingKind::Range, "its parts overlap, or are not the whole output".into()));
    }
    Ok(())
}

/// How large its parts are depends on the rank: see [`super::mesh`]. Parts of open extents are objects, whose extents a run compares.
fn boxing(checker: &Checker<'_>, program: &Program, task: &Task, exec: &BoxingExec) -> Check {
    for (transfer, src, dst) in exec.transfers() {
        one_boxing(checker, program, task, (transfer, src, dst), exec.is_async)?;
    }
    let filled: Vec<u32> = exec.transfers().map(|(.., dst)| dst).chain(exec.staging).collect();
    results(program, task, &filled)?;
    match (exec.staging, exec.fused.is_empty()) {
        (None, true) => Ok(()),
        (Some(staging), false) => fused(program, exec, staging),
        _ => Err((
            FindingKind::Ownership,
            "what fused transfers send is in a register, and other transfers have none".into(),
        )),
    }
}

/// The transfers of one rendezvous: all ranks of it take part in each, and what they send is packed in elements of one type.
fn fused(program: &Program, exec: &BoxingExec, staging: u32) -> Check {
    let first = &exec.transfer;
    let dtype = |register: u32| program.registers[register as usize].dtype();
    let is_like_first = |other: &Transfer| {
        (&other.axes, &other.factors, &other.from, &other.to) == (&first.axes, &first.factors, &first.from, &first.to)
    };
    let is_exchange = !first.is_local() && first.from.iter().chain(&first.to).all(|l| l.kind() != LayoutKind::At);
    let same = exec.transfers().all(|(transfer, _, dst)| is_like_first(transfer) && dtype(dst) == dtype(exec.dst));
    if !same || !is_exchange || exec.transfers().any(|(transfer, ..)| transfer.is_open()) {
        let message = "fused transfers have the same axes, layouts and element type, and known extents";
        return Err((FindingKind::Type, message.into()));
    }
    if dtype(staging) != dtype(exec.dst) || program.registers[staging as usize].block().is_none() {
        return Err((FindingKind::Type, "what fused transfers send has their element type, in a buffer".into()));
    }
    Ok(())
}

/// One transfer of a task: its source, and the register of its target.
fn one_boxing(
    checker: &Checker<'_>,
    program: &Program,
    task: &Task,
    (transfer, src, dst): (&Transfer, &Arg, u32),
    is_async: bool,
) -> Check {
    let open = transfer.is_open();
    let source = target(checker, program, task, src)?;
    if matches!(source, Target::Object) != open {
        return Err((
            FindingKind::Type,
            "ranks exchange values of known extents in buffers, and others as objects".into(),
        ));
    }
    results(program, task, &[dst])?;
    let register = &program.registers[dst as usize];
    if register.is_object() != open || (!open && register.block().is_none()) || register.dtype().bits() < 8 {
        return Err((
            FindingKind::Type,
            "ranks exchange elements of whole bytes, in a buffer where they are known".into(),
        ));
    }
    let same = || match src.source {
        Some(ArgSource::Register(from)) => program.registers[from as usize].dtype() == register.dtype(),
        _ => false,
    };
    if open && (!same() || is_async) {
        return Err((FindingKind::Type, "a transfer of open extents converts its elements, or is asynchronous".into()));
    }
    Ok(())
}

/// Bytes of an argument's register or weight from its offset on; 0 where it has none.
pub(super) fn bytes_left(plan: &Plan, program: &Program, arg: &Arg) -> u64 {
    let size = match arg.source {
        None => None,
        Some(ArgSource::Weight(index)) => plan.weights.get(index as usize).map(|w| w.len),
        Some(ArgSource::Register(id)) => program.registers.get(id as usize).and_then(|r| r.block()).map(|b| b.bytes),
    };
    size.unwrap_or(0).saturating_sub(arg.byte_offset)
}

fn port(program: &Program, task: &Task, exec: PortExec, feed: bool) -> Check {
    let (ports, held) = if feed { (&program.inputs, &task.produces) } else { (&program.outputs, &task.consumes) };
    let port = ports.get(exec.port as usize);
    let port = port.ok_or_else(|| (FindingKind::Index, format!("port {} does not exist", exec.port)))?;
    if held.contains(&port.register) {
        return Ok(());
    }
    Err((FindingKind::Ownership, format!("port `{}` has a register that the task does not hold", port.name)))
}

fn target(checker: &Checker<'_>, program: &Program, task: &Task, arg: &Arg) -> Check<Target> {
    match arg.source {
        None => Err((FindingKind::Index, "an argument names no buffer".into())),
        Some(ArgSource::Weight(index)) => {
            let weight = checker.plan.weights.get(index as usize);
            let weight = weight.ok_or_else(|| (FindingKind::Index, format!("weight {index} does not exist")))?;
            bytes(weight.len, weight.offset, arg, weight.dtype, weight.len)
        }
        Some(ArgSource::Register(id)) => {
            if !task.consumes.contains(&id) && !task.produces.contains(&id) {
                return Err((
                    FindingKind::Ownership,
                    format!("an argument names register {id}, which the task does not hold"),
                ));
            }
            // The task's lists were checked before, so the register exists.
            let register = &program.registers[id as usize];
            match register.block() {
                Some(block) => {
                    let dtype = ElementType::try_from(register.dtype).unwrap_or(ElementType::Unknown);
                    let len = dtype.byte_len(&register.dims).unwrap_or(block.bytes);
                    bytes(block.bytes, block.offset, arg, register.dtype, len)
                }
                None if register.is_object() && arg.byte_offset == 0 => Ok(Target::Object),
                None => Err((FindingKind::Type, format!("an argument names bytes of register {id}, which has none"))),
            }
        }
    }
}

fn bytes(size: u64, start: u64, arg: &Arg, dtype: i32, len: u64) -> Check<Target> {
    let left = size.checked_sub(arg.byte_offset);
    let left =
        left.ok_or_else(|| (FindingKind::Range, format!("an argument starts at byte {} of {size}", arg.byte_offset)))?;
    let seen = arg.view.as_ref().map_or(dtype, |view| view.dtype);
    let align = ElementType::try_from(seen).map_or(1, ElementType::align);
    if !(start.saturating_add(arg.byte_offset)).is_multiple_of(align) {
        return Err((
            FindingKind::Alignment,
            format!("an argument at byte {} is not aligned for its elements", arg.byte_offset),
        ));
    }
    Ok(Target::Bytes { left, dtype, len })
}
