//! Elementwise kernels.

use crate::kernel::body::{Body, Node};
use crate::kernel::extent::Extent;
use crate::kernel::prologue::Prologue;
use crate::print::c::vector::fits_lanes;
use crate::print::elementwise::{CHUNK_ELEMENTS, Length, schedule};
use crate::print::x86::access::{Access, bytes};
use crate::print::x86::asm::Gp::{Rax, Rcx};
use crate::print::x86::asm::{Alu, Rm};
use crate::print::x86::block::Block;
use crate::print::x86::body::Values;
use crate::print::x86::frame::Frame;
use crate::print::x86::points::Points;
use crate::print::x86::row::{Row, bases, point, step};

/// The block of all nodes and stores of a body: loads where they are first needed, stores last.
fn block(body: &Body, avx512: bool) -> Result<Block, String> {
    if !fits_lanes(body) {
        return Err("elements of 64 bits, and functions without a vector form".into());
    }
    let (mut block, mut values) = (Block::new(avx512), Values::new(body));
    for (n, t) in body.nodes.iter().enumerate() {
        if matches!(t.node, Node::Op(..)) {
            values.get(&mut block, n)?;
        }
    }
    let stored = body.stores.iter().map(|(_, n)| values.get(&mut block, *n)).collect::<Result<Vec<_>, _>>()?;
    for (k, ((_, n), v)) in body.stores.iter().zip(stored).enumerate() {
        block.store(k, body.nodes[*n].dtype, v);
    }
    Ok(block)
}

/// The kernel of an elementwise body over `dims`; arguments are the loads, then the stores.
///
/// # Errors
/// The reason why there is none.
pub fn elementwise(body: &Body, dims: &[Extent], p: &Prologue, avx512: bool) -> Result<Vec<u8>, String> {
    let block = block(body, avx512)?;
    let (s, length) = schedule(body, dims);
    let mut f = Frame::enter(avx512, p);
    let inner = s.dims.len() - 1;
    let number = match &length {
        Length::Whole(n) => n.number(),
        Length::Chunk(_) => None,
    };
    let row = Row::new(&mut f, number);
    let count = body.loads.len() + body.stores.len();
    let types = body.loads.iter().map(|l| l.dtype).chain(body.stores.iter().map(|(_, n)| body.nodes[*n].dtype));
    let strides = |i: usize| &s.strides[i.min(body.loads.len())];
    let mut accesses = Vec::with_capacity(count);
    for (i, (dtype, base)) in types.zip(bases(&mut f, count)).enumerate() {
        let step = step(&mut f, &strides(i)[inner], bytes(dtype));
        accesses.push(Access { base, dtype, step });
    }
    let (loads, stores) = accesses.split_at(body.loads.len());
    let points = Points::new(&block, loads, stores, &[]);
    points.load_pins(&mut f);
    f.rows(|f| {
        for (i, access) in accesses.iter().enumerate() {
            match &length {
                Length::Whole(_) => f.offset(&s.dims[..inner], &strides(i)[..inner]),
                Length::Chunk(_) => {
                    f.asm.load(Rax, f.row.mem());
                    f.times(&(&strides(i)[0] * CHUNK_ELEMENTS));
                }
            }
            point(f, access, i);
        }
        match &length {
            Length::Whole(n) if number.is_none() => {
                f.extent(n);
                row.start(f);
            }
            Length::Whole(_) => {}
            Length::Chunk(n) => {
                f.extent(n);
                f.asm.load(Rcx, f.row.mem());
                f.asm.imul_imm(Rcx, CHUNK_ELEMENTS as i32);
                f.asm.alu(Alu::Sub, Rax, Rm::Reg(Rcx as u8));
                f.at_most(CHUNK_ELEMENTS);
                row.start(f);
            }
        }
        row.walk(f, &points, &points);
    });
    f.finish()
}
