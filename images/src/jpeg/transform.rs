//! Samples from coefficients: the inverse cosine transform.

use super::Component;
use crate::vectors::vectorized;

impl Component {
    /// Samples of the row `row` of blocks, from row `from` of those in memory, which become zero.
    pub fn transform(&mut self, from: usize, row: usize) {
        if !self.rows.contains(&row) {
            return;
        }
        let table = self.table.unwrap_or([1; 64]).map(i32::from);
        let blocks = &mut self.blocks[from * self.stride..][self.columns.clone()];
        let stride = 8 * self.columns.len();
        let samples = &mut self.samples[(row - self.rows.start) * 8 * stride..][..8 * stride];
        transform_row(blocks, &table, samples);
    }
}

vectorized! {
    /// Samples of blocks next to each other, which become zero.
    fn transform_row(blocks: &mut [[i16; 64]], table: &[i32; 64], samples: &mut [u8]) {
        let stride = 8 * blocks.len();
        for (n, block) in blocks.iter_mut().enumerate() {
            let values = inverse(block, table);
            *block = [0; 64];
            for (y, row) in values.iter().enumerate() {
                samples[y * stride + 8 * n..][..8].copy_from_slice(row);
            }
        }
    }
}

/// The inverse cosine transform of a block in integers, moved to 0..=255.
///
/// Source: Loeffler, Ligtenberg, Moschytz, "Practical fast 1-D DCT algorithms with 11 multiplications" (1989), in the
/// form with 12 multiplications, columns first, with 13 bits behind the point and two more kept between the passes.
#[inline(always)]
fn inverse(block: &[i16; 64], table: &[i32; 64]) -> [[u8; 8]; 8] {
    let mut work = [[0i32; 8]; 8];
    for (y, row) in work.iter_mut().enumerate() {
        for (x, value) in row.iter_mut().enumerate() {
            *value = i32::from(block[8 * y + x]).wrapping_mul(table[8 * y + x]);
        }
    }
    let work = transposed(&columns(&work, |x| descale(x, 11)));
    let work = transposed(&columns(&work, |x| descale(x, 18).saturating_add(128).clamp(0, 255)));
    let mut out = [[0; 8]; 8];
    for (row, own) in out.iter_mut().zip(&work) {
        row.iter_mut().zip(own).for_each(|(sample, x)| *sample = *x as u8);
    }
    out
}

/// The transform of each column.
#[inline(always)]
fn columns(rows: &[[i32; 8]; 8], finish: impl Fn(i32) -> i32) -> [[i32; 8]; 8] {
    let mut out = [[0; 8]; 8];
    for x in 0..8 {
        let column =
            pass([rows[0][x], rows[1][x], rows[2][x], rows[3][x], rows[4][x], rows[5][x], rows[6][x], rows[7][x]]);
        for y in 0..8 {
            out[y][x] = finish(column[y]);
        }
    }
    out
}

#[inline(always)]
fn transposed(rows: &[[i32; 8]; 8]) -> [[i32; 8]; 8] {
    let mut out = [[0; 8]; 8];
    for (x, row) in rows.iter().enumerate() {
        for (y, value) in row.iter().enumerate() {
            out[y][x] = *value;
        }
    }
    out
}

/// Rounds half up.
#[inline(always)]
fn descale(x: i32, bits: u32) -> i32 {
    x.wrapping_add(1 << (bits - 1)) >> bits
}

/// The transform of eight, times 2^13. Damaged files overflow it; what they give then does not matter.
#[inline(always)]
fn pass(x: [i32; 8]) -> [i32; 8] {
    let c = std::num::Wrapping;
    let x = [c(x[0]), c(x[1]), c(x[2]), c(x[3]), c(x[4]), c(x[5]), c(x[6]), c(x[7])];
    // Even part.
    let z = (x[2] + x[6]) * c(4433);
    let (e2, e3) = (z - x[6] * c(15137), z + x[2] * c(6270));
    let (e0, e1) = ((x[0] + x[4]) << 13, (x[0] - x[4]) << 13);
    let even = [e0 + e3, e1 + e2, e1 - e2, e0 - e3];
    // Odd part.
    let (t0, t1, t2, t3) = (x[7], x[5], x[3], x[1]);
    let z5 = (t0 + t2 + t1 + t3) * c(9633);
    let (z1, z2) = ((t0 + t3) * c(-7373), (t1 + t2) * c(-20995));
    let (z3, z4) = ((t0 + t2) * c(-16069) + z5, (t1 + t3) * c(-3196) + z5);
    let odd = [t3 * c(12299) + z1 + z4, t2 * c(25172) + z2 + z3, t1 * c(16819) + z2 + z4, t0 * c(2446) + z1 + z3];
    let sum = |i: usize| (even[i] + odd[i]).0;
    let difference = |i: usize| (even[i] - odd[i]).0;
    [sum(0), sum(1), sum(2), sum(3), difference(3), difference(2), difference(1), difference(0)]
}
