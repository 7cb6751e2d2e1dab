//! Passes over a program: comparisons are joined with the choices that read them, copies are removed by giving both sides one
//! register, and results without readers are dropped.

use crate::toolchain::x86::ir::{Comparison, Inst, Lanes, NONE, Op, Program, Reg};

/// Runs all passes.
pub fn optimize(p: &mut Program) {
    if p.avx512 {
        join_comparisons(p);
    }
    drop_unread(p);
    coalesce(p);
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

/// Removes copies. A value that is copied to a merged register in the sequence that computes it is computed there in the first
/// place, if nothing touches that register in between and nothing reads the value afterwards.
fn coalesce(p: &mut Program) {
    let mut places = vec![Places::default(); p.classes.len()];
    for (i, inst) in p.insts.iter().enumerate() {
        inst.reads().for_each(|r| places[r as usize].reads.push(i as u32));
        if inst.dst != NONE {
            places[inst.dst as usize].writes.push(i as u32);
        }
    }
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
