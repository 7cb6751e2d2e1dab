//! Pixels from coefficients, rounded as libjpeg rounds: inverse transform, interpolation of colours, conversion to RGB.

use super::{Component, Frame, Picture};

/// A component's samples; rows have `stride` of them.
struct Plane {
    width: usize,
    height: usize,
    stride: usize,
    samples: Vec<u8>,
}

impl Plane {
    fn row(&self, y: usize) -> &[u8] {
        &self.samples[y * self.stride..][..self.width]
    }
}

/// The picture of a frame whose scans were read.
pub(super) fn of(frame: &Frame, jfif: bool, adobe: Option<u8>) -> Picture {
    let (width, height, channels) = (frame.width, frame.height, frame.components.len());
    let size = |c: &Component| (c.h, c.v);
    let most = frame.components.iter().map(size).fold((1, 1), |m, f| (m.0.max(f.0), m.1.max(f.1)));
    let planes: Vec<Plane> = frame.components.iter().map(plane).collect();
    let is_rgb = !jfif && is_rgb(frame, adobe);
    let mut pixels = vec![0; width * height * channels];
    let mut rows = vec![vec![0; width + 8]; channels];
    for (y, line) in pixels.chunks_exact_mut(width * channels).enumerate() {
        for ((c, plane), row) in frame.components.iter().zip(&planes).zip(&mut rows) {
            full_row(plane, (most.0, c.h), (most.1, c.v), y, row);
        }
        for (x, pixel) in line.chunks_exact_mut(channels).enumerate() {
            rows.iter().zip(&mut *pixel).for_each(|(row, p)| *p = row[x]);
            if let [y, cb, cr] = pixel
                && !is_rgb
            {
                [*y, *cb, *cr] = rgb(*y, *cb, *cr);
            }
        }
    }
    Picture { width, height, channels, pixels }
}

/// Whether three components are red, green and blue: an Adobe marker says so, or their names do.
fn is_rgb(frame: &Frame, adobe: Option<u8>) -> bool {
    let ids: Vec<u8> = frame.components.iter().map(|c| c.id).collect();
    adobe.map_or(ids == *b"RGB", |transform| transform == 0)
}

/// ITU-R BT.601 over the full range, with 16 bits behind the point.
fn rgb(y: u8, cb: u8, cr: u8) -> [u8; 3] {
    const HALF: i32 = 1 << 15;
    let (y, cb, cr) = (i32::from(y), i32::from(cb) - 128, i32::from(cr) - 128);
    let r = y + ((91881 * cr + HALF) >> 16);
    let g = y + ((-22554 * cb - 46802 * cr + HALF) >> 16);
    let b = y + ((116130 * cb + HALF) >> 16);
    [r, g, b].map(|x| x.clamp(0, 255) as u8)
}

/// Row `y` of the picture. `h` and `v` are the largest sampling factors and the component's own, across and down.
///
/// Where a component has half the samples, they are interpolated with weights 3/4 and 1/4; x.5 is rounded up and down
/// alternately. Other ratios repeat samples.
fn full_row(plane: &Plane, h: (usize, usize), v: (usize, usize), y: usize, out: &mut [u8]) {
    let is_half = |f: (usize, usize)| f.0 == 2 * f.1;
    // Very narrow planes are not interpolated across.
    let smooth = plane.width > 2;
    let near = (y * v.1 / v.0).min(plane.height - 1);
    if !(is_half(v) && (h.0 == h.1 || is_half(h) && smooth)) {
        let row = plane.row(near);
        if v.0 == v.1 && is_half(h) && smooth {
            across(plane.width, out, |i| i32::from(row[i]), (1, 2), 2);
        } else {
            out.iter_mut().enumerate().for_each(|(x, p)| *p = row[(x * h.1 / h.0).min(plane.width - 1)]);
        }
        return;
    }
    let upper = y.is_multiple_of(2);
    let far = if upper { near.saturating_sub(1) } else { (near + 1).min(plane.height - 1) };
    let (near, far) = (plane.row(near), plane.row(far));
    let sum = |i: usize| 3 * i32::from(near[i]) + i32::from(far[i]);
    if h.0 == h.1 {
        let bias = if upper { 1 } else { 2 };
        (0..plane.width).zip(out).for_each(|(i, p)| *p = ((sum(i) + bias) >> 2) as u8);
    } else {
        across(plane.width, out, sum, (8, 7), 4);
    }
}

/// Two samples for each one: it and its neighbour, three to one, rounded by `biases` and divided by `2^shift`.
fn across(n: usize, out: &mut [u8], at: impl Fn(usize) -> i32, biases: (i32, i32), shift: u32) {
    for (i, pair) in (0..n).zip(out.chunks_exact_mut(2)) {
        let (left, right) = (at(i.saturating_sub(1)), at((i + 1).min(n - 1)));
        pair[0] = ((3 * at(i) + left + biases.0) >> shift) as u8;
        pair[1] = ((3 * at(i) + right + biases.1) >> shift) as u8;
    }
}

fn plane(c: &Component) -> Plane {
    let stride = 8 * c.stride;
    let mut samples = vec![0; c.blocks.len() * 64];
    let table = c.table.unwrap_or([1; 64]);
    for (n, block) in c.blocks.iter().enumerate() {
        let values = inverse(block, &table);
        let corner = n / c.stride * 8 * stride + n % c.stride * 8;
        for (y, row) in values.chunks_exact(8).enumerate() {
            samples[corner + y * stride..][..8].copy_from_slice(row);
        }
    }
    Plane { width: c.width, height: c.height, stride, samples }
}

/// The inverse cosine transform of a block in integers, moved to 0..=255.
///
/// Source: Loeffler, Ligtenberg, Moschytz, "Practical fast 1-D DCT algorithms with 11 multiplications" (1989), in the
/// form with 12 multiplications, columns first, with 13 bits behind the point and two more kept between the passes.
fn inverse(block: &[i16; 64], table: &[u16; 64]) -> [u8; 64] {
    let mut work: [i32; 64] = std::array::from_fn(|i| i32::from(block[i]).wrapping_mul(i32::from(table[i])));
    for x in 0..8 {
        let column = pass(std::array::from_fn(|y| work[8 * y + x]));
        (0..8).for_each(|y| work[8 * y + x] = descale(column[y], 11));
    }
    let mut out = [0; 64];
    for (row, out) in work.chunks_exact(8).zip(out.chunks_exact_mut(8)) {
        let row = pass(std::array::from_fn(|x| row[x]));
        out.iter_mut().zip(row).for_each(|(o, x)| *o = (descale(x, 18).saturating_add(128)).clamp(0, 255) as u8);
    }
    out
}

/// Rounds half up.
fn descale(x: i32, bits: u32) -> i32 {
    x.wrapping_add(1 << (bits - 1)) >> bits
}

/// The transform of eight, times 2^13. Damaged files overflow it; what they give then does not matter.
fn pass(x: [i32; 8]) -> [i32; 8] {
    let x = x.map(std::num::Wrapping);
    let c = std::num::Wrapping;
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
    std::array::from_fn(|i| if i < 4 { (even[i] + odd[i]).0 } else { (even[7 - i] - odd[7 - i]).0 })
}
