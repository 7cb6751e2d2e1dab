//! Passes over a program: comparisons are joined with the choices that read them, copies are removed by giving both sides one
//! register, results without readers are dropped, loads become operands, and indices of loops pointers that move.

use crate::toolchain::machine::allocate::sorted;
use crate::toolchain::machine::ir::{Address, Class, Comparison, Form, Inst, Lanes, NONE, Op, Program, Reg, Vector};
use crate::toolchain::machine::operation::VectorOp;
use crate::toolchain::machine::target::MemoryOperands;

/// Runs all passes.
pub fn optimize(p: &mut Program) {
    if p.target.avx512 {
        join_comparisons(p);
    }
    drop_unread(p);
    if p.target.memory > MemoryOperands::No {
        fold_loads(p);
    }
    coalesce(p);
    add_in_place(p);
    move_pointers(p);
}

/// Number of readers of each register.
fn readers(p: &Program) -> Vec<u32> {
    let mut out = vec![0; p.classes.len()];
    p.insts.iter().flat_map(Inst::reads).for_each(|r| out[r as usize] += 1);
    out
}

/// Compares and chooses in one step where nothing else reads the mask.
fn join_comparisons(p: &mut Program) {
    let readers = readers(p);
    let mut defined: Vec<usize> = vec![usize::MAX; p.classes.len()];
    for (i, inst) in p.insts.iter().enumerate().filter(|(_, i)| matches!(i.op, Op::Compare(_))) {
        defined[inst.dst as usize] = i;
    }
    for i in 0..p.insts.len() {
        let Inst { op: Op::Blend, args: [mask, a, b, _], .. } = p.insts[i] else { continue };
        let Some(Inst { op: Op::Compare(how), args, sequence, .. }) = p.insts.get(defined[mask as usize]).copied()
        else {
            continue;
        };
        let unchanged = !p.insts[defined[mask as usize]..i].iter().any(|x| args[..2].contains(&x.dst));
        let whole = !matches!(how, Comparison::Float(_, Lanes::One32 | Lanes::One64 | Lanes::All64));
        if readers[mask as usize] == 1 && whole && unchanged && sequence == p.insts[i].sequence {
            p.insts[i].op = Op::CompareBlend(how);
            p.insts[i].args = [args[0], args[1], a, b];
        }
    }
}

/// The most instructions between a load and the one that reads memory instead.
const MAX_FOLD_DISTANCE: usize = 48;

/// Loads as an operand of the instruction that reads the vector, where it is the only one and memory does not change in between.
fn fold_loads(p: &mut Program) {
    let readers = readers(p);
    let mut gone = vec![false; p.insts.len()];
    for (at, gone) in gone.iter_mut().enumerate() {
        let load = p.insts[at];
        let Op::Vector(Vector { op: op @ (VectorOp::Load | VectorOp::Broadcast), lanes: Lanes::All, form: Form::One }) =
            load.op
        else {
            continue;
        };
        let broadcast = op == VectorOp::Broadcast;
        let foldable = !broadcast || p.target.memory == MemoryOperands::Broadcasts;
        let (Some(mem), 1, true) = (load.mem, readers[load.dst as usize], foldable) else { continue };
        let end = p.insts.len().min(at + MAX_FOLD_DISTANCE);
        for i in at + 1..end {
            let next = &mut p.insts[i];
            if next.args.contains(&load.dst) {
                *gone = next.sequence == load.sequence && fold(next, load.dst, mem);
                next.broadcast |= *gone && broadcast;
                break;
            }
            let changes = next.dst == NONE || next.dst == mem.base || next.dst == mem.index;
            if changes && !matches!(next.op, Op::Prefetch(_)) {
                break;
            }
        }
    }
    let mut at = 0;
    p.insts.retain(|_| {
        at += 1;
        !gone[at - 1]
    });
}

/// Replaces the operand `r` by memory; false where the instruction does not allow that.
fn fold(inst: &mut Inst, r: Reg, mem: Address) -> bool {
    let commutes = match inst.op {
        _ if inst.mem.is_some() => return false,
        Op::Fma(_, Lanes::All) if inst.args[2] != r => true,
        Op::Vector(Vector { op, lanes: Lanes::All, form: Form::Two }) => match op {
            VectorOp::Add | VectorOp::Mul | VectorOp::IntAdd => true,
            VectorOp::Sub | VectorOp::Div | VectorOp::Max | VectorOp::Min => false,
            _ => return false,
        },
        _ => return false,
    };
    if inst.args[0] == r && commutes {
        inst.args.swap(0, 1);
    }
    if inst.args[1] != r {
        return false;
    }
    inst.args[1] = NONE;
    inst.mem = Some(mem);
    true
}

/// Drops instructions whose results nothing reads.
fn drop_unread(p: &mut Program) {
    let mut readers = readers(p);
    let mut keep = vec![true; p.insts.len()];
    loop {
        let mut changed = false;
        for (i, inst) in p.insts.iter().enumerate().rev() {
            let droppable = inst.is_pure() || inst.op == Op::Copy || inst.op == Op::Param;
            if keep[i] && droppable && readers[inst.dst as usize] == 0 {
                keep[i] = false;
                changed = true;
                inst.reads().for_each(|r| readers[r as usize] -= 1);
            }
        }
        // Definitions come before readers, except of what loops carry.
        if !changed {
            break;
        }
    }
    let mut at = 0;
    p.insts.retain(|_| {
        at += 1;
        keep[at - 1]
    });
}

/// The positions where a register is read and written, in order.
#[derive(Clone, Default)]
struct Places {
    reads: Vec<u32>,
    writes: Vec<u32>,
}

/// The positions of every register.
fn all_places(p: &Program) -> Vec<Places> {
    let mut places = vec![Places::default(); p.classes.len()];
    for (i, inst) in p.insts.iter().enumerate() {
        inst.reads().for_each(|r| places[r as usize].reads.push(i as u32));
        if inst.dst != NONE {
            places[inst.dst as usize].writes.push(i as u32);
        }
    }
    places
}

/// Computes a sum that one product is added to in the register of the new sum, where that merges values of a variable: so all
/// terms of an iteration are added in place.
fn add_in_place(p: &mut Program) {
    let mut places = all_places(p);
    for at in (0..p.insts.len()).rev() {
        let inst = p.insts[at];
        let sum = match inst.op {
            Op::Fma(..) => inst.args[2],
            Op::Dot(_) => inst.args[0],
            _ => continue,
        };
        let ([defined], [only]) = (&places[sum as usize].writes[..], &places[sum as usize].reads[..]) else { continue };
        let (defined, only) = (*defined, *only);
        let target = &places[inst.dst as usize];
        let between = |list: &[u32]| list.iter().any(|i| (defined + 1..at as u32).contains(i));
        let added = matches!(p.insts[defined as usize].op, Op::Fma(..) | Op::Dot(_));
        let fits = added && only == at as u32 && p.insts[defined as usize].sequence == inst.sequence;
        if !fits || target.writes.len() < 2 || between(&target.writes) || between(&target.reads) {
            continue;
        }
        p.insts[at].replace(sum, inst.dst);
        p.insts[defined as usize].replace(sum, inst.dst);
        places[inst.dst as usize].writes.push(defined);
        places[inst.dst as usize].reads.push(at as u32);
        places[sum as usize] = Places::default();
    }
}

/// Removes copies. A value that is copied to a merged register in the sequence that computes it is computed there in the first
/// place, if nothing touches that register in between and nothing reads the value afterwards.
fn coalesce(p: &mut Program) {
    let mut places = all_places(p);
    let copies: Vec<usize> = (0..p.insts.len()).filter(|i| p.insts[*i].op == Op::Copy).collect();
    for at in copies {
        let Inst { dst: to, args: [from, ..], sequence, .. } = p.insts[at];
        if to == from {
            p.insts[at].dst = NONE;
            continue;
        }
        let own = &places[from as usize];
        let [defined] = own.writes[..] else { continue };
        let last = own.reads.last().copied().unwrap_or(0);
        let inst = &p.insts[defined as usize];
        let between = |list: &[u32]| {
            let first = list.partition_point(|i| *i <= defined);
            list.get(first).is_some_and(|i| *i < at as u32)
        };
        let target = &places[to as usize];
        let fits = inst.sequence == sequence && !matches!(inst.op, Op::Param | Op::Const | Op::Imm);
        if !fits || last > at as u32 || between(&target.reads) || between(&target.writes) {
            continue;
        }
        rename(p, &mut places, from, to, at);
    }
    p.insts.retain(|i| !(i.op == Op::Copy && i.dst == NONE));
}

/// Replaces `from` by `to` everywhere; the copy at `at` is no more.
fn rename(p: &mut Program, places: &mut [Places], from: Reg, to: Reg, at: usize) {
    let own = std::mem::take(&mut places[from as usize]);
    for i in own.reads.iter().chain(&own.writes) {
        p.insts[*i as usize].replace(from, to);
    }
    p.insts[at] = Inst { sequence: p.insts[at].sequence, ..Inst::new(Op::Copy, NONE, &[]) };
    let target = &mut places[to as usize];
    let without = |list: &mut Vec<u32>, more: Vec<u32>| {
        list.extend(more);
        list.retain(|i| *i != at as u32);
        list.sort_unstable();
    };
    without(&mut target.reads, own.reads);
    without(&mut target.writes, own.writes);
}

/// The least instructions that compute and read memory, or write it, for which a pointer moves in an innermost loop.
const MIN_MOVED: usize = 3;
/// The same where no instruction computes and reads memory: an address of a vector with an index takes an instruction.
const MIN_MOVED_FOR_ADDRESSES: usize = 2;
/// The same in a loop around others, where a pointer takes a register from them.
const MIN_MOVED_AROUND: usize = 8;

/// Addresses in loops, a base and an index that counts, as pointers that move: an instruction that computes and reads memory is one
/// operation of the processor only without an index.
fn move_pointers(p: &mut Program) {
    // By register: the loop that was looked at last, how often it writes the register, and where.
    let mut writes = vec![(usize::MAX, 0, 0); p.classes.len()];
    let begins: Vec<usize> = (0..p.insts.len()).filter(|i| p.insts[*i].op == Op::Loop(true)).collect();
    let mut added: Vec<(usize, Inst)> = Vec::new();
    let only_addresses = p.target.memory == MemoryOperands::No;
    for begin in begins {
        let mut depth = 0;
        let closes = |i: &Inst| {
            depth += match i.op {
                Op::Loop(true) => 1,
                Op::Loop(false) => -1,
                _ => 0,
            };
            depth == 0
        };
        let Some(end) = p.insts[begin..].iter().position(closes).map(|n| begin + n) else { continue };
        let innermost = !p.insts[begin + 1..end].iter().any(|i| i.op == Op::Loop(true));
        let least = match innermost {
            true if only_addresses => MIN_MOVED_FOR_ADDRESSES,
            true => MIN_MOVED,
            false => MIN_MOVED_AROUND,
        };
        let mut groups: Vec<(Address, usize)> = Vec::new();
        for i in begin..end {
            let inst = p.insts[i];
            let own = &mut writes[inst.dst as usize];
            *own = (begin, if own.0 == begin { own.1 + 1 } else { 1 }, i);
            let Some(mem) = inst.mem.filter(|m| m.index != NONE) else { continue };
            let computes = matches!(inst.op, Op::Fma(..) | Op::Vector(Vector { form: Form::Two | Form::Store, .. }));
            let computes = computes || only_addresses && matches!(inst.op, Op::Vector(_));
            let key = Address { disp: 0, ..mem };
            match groups.iter_mut().find(|g| g.0 == key) {
                Some(g) => g.1 += usize::from(computes),
                None => groups.push((key, computes.into())),
            }
        }
        for (mem, _) in groups.into_iter().filter(|g| g.1 >= least) {
            let (in_loop, times, counts) = writes[mem.index as usize];
            if (in_loop, times) != (begin, 1) {
                continue;
            }
            let count = p.insts[counts];
            let step = Address { base: mem.index, index: NONE, scale: 1, disp: 0 };
            let by = count.mem.filter(|m| count.op == Op::Lea && Address { disp: 0, ..*m } == step).map(|m| m.disp);
            let Some(disp) = by.and_then(|d| d.checked_mul(mem.scale.into())) else { continue };
            if writes[mem.base as usize].0 == begin || count.sequence != p.insts[begin].sequence {
                continue;
            }
            p.classes.push(Class::Int);
            writes.push((usize::MAX, 0, 0));
            let pointer = p.classes.len() as Reg - 1;
            let moved = Address { base: pointer, index: NONE, scale: 1, disp };
            added.push((begin, Inst { mem: Some(mem), ..Inst::new(Op::Lea, pointer, &[]) }));
            added.push((
                counts + 1,
                Inst { mem: Some(moved), sequence: count.sequence, ..Inst::new(Op::Lea, pointer, &[]) },
            ));
            for inst in &mut p.insts[begin..end] {
                if let Some(m) = inst.mem.as_mut().filter(|m| Address { disp: 0, ..**m } == mem) {
                    *m = Address { disp: m.disp, ..Address { disp: 0, ..moved } };
                }
            }
        }
    }
    let added = sorted(&added, &|(at, _)| (*at as u64, (0, 0)));
    let mut out = Vec::with_capacity(p.insts.len() + added.len());
    let mut added = added.into_iter().peekable();
    for (i, inst) in p.insts.iter().enumerate() {
        while let Some((_, new)) = added.next_if(|(at, _)| *at == i) {
            out.push(new);
        }
        out.push(*inst);
    }
    p.insts = out;
}
