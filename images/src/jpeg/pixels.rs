//! Pixels from samples, rounded as libjpeg rounds: interpolation of colours, conversion to RGB.

use super::{Component, Frame};
use crate::formats::Part;
use crate::vectors::vectorized;

/// What the components of a picture are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Colours {
    Grey,
    Rgb,
    /// Luminance, and two differences of colours.
    Ycc,
    /// Cyan, magenta, yellow and black ink; Adobe's programs store how much of the paper each leaves white.
    Cmyk {
        is_inverted: bool,
    },
    /// The inks of colours as luminance and differences, and inverted black.
    Ycck,
}

/// The wanted pixels of a frame whose scans were read.
pub(super) fn of(frame: &Frame, jfif: bool, adobe: Option<u8>, part: &mut Part) {
    (part.width, part.height, part.area) = (frame.width, frame.height, frame.area);
    part.pixels.resize(frame.area.width * frame.area.height * 3, 0);
    rows(frame, colours(frame, jfif, adobe), &mut part.pixels);
}

/// What the components are: an Adobe marker says so, or their number and names do.
fn colours(frame: &Frame, jfif: bool, adobe: Option<u8>) -> Colours {
    let ids: Vec<u8> = frame.components.iter().map(|c| c.id).collect();
    match (ids.len(), adobe) {
        (4, Some(2)) => Colours::Ycck,
        (4, _) => Colours::Cmyk { is_inverted: adobe.is_some() },
        (3, Some(0)) if !jfif => Colours::Rgb,
        (3, None) if !jfif && ids == *b"RGB" => Colours::Rgb,
        (3, _) => Colours::Ycc,
        _ => Colours::Grey,
    }
}

vectorized! {
    /// Writes the rows of the wanted area.
    fn rows(frame: &Frame, colours: Colours, pixels: &mut [u8]) {
        let size = |c: &Component| (c.h, c.v);
        let most = frame.components.iter().map(size).fold((1, 1), |m, f| (m.0.max(f.0), m.1.max(f.1)));
        let area = frame.area;
        let mut memory: [RowMemory; 4] = Default::default();
        for (line, y) in pixels.chunks_exact_mut(3 * area.width).zip(area.top..) {
            let rows = frame.components.iter().zip(&mut memory);
            let mut rows = rows.map(|(c, memory)| c.row(most, (area.left, area.width), y, memory));
            let first = rows.next().unwrap_or_default();
            let [second, third, fourth] = [rows.next(), rows.next(), rows.next()].map(|row| row.unwrap_or(first));
            let line = line.as_chunks_mut::<3>().0;
            match colours {
                Colours::Ycc | Colours::Ycck => interleave(line, first, second, third, rgb),
                _ => interleave(line, first, second, third, |r, g, b| [r, g, b]),
            }
            match colours {
                Colours::Ycck => print(line, fourth, |x| x, |k| k),
                Colours::Cmyk { is_inverted: true } => print(line, fourth, |x| 255 - x, |k| k),
                Colours::Cmyk { is_inverted: false } => print(line, fourth, |x| x, |k| 255 - k),
                Colours::Grey | Colours::Rgb | Colours::Ycc => {}
            }
        }
    }
}

#[inline(always)]
fn interleave(line: &mut [[u8; 3]], a: &[u8], b: &[u8], c: &[u8], colour: impl Fn(u8, u8, u8) -> [u8; 3]) {
    for (((pixel, a), b), c) in line.iter_mut().zip(a).zip(b).zip(c) {
        *pixel = colour(*a, *b, *c);
    }
}

/// What coloured ink leaves white of a paper with black ink, `white * (1 - ink)`, rounded as Pillow rounds: `ink` is how much a stored colour
/// has, and `white` what a stored black leaves.
#[inline(always)]
fn print(line: &mut [[u8; 3]], black: &[u8], ink: impl Fn(u8) -> u8, white: impl Fn(u8) -> u8) {
    for (pixel, black) in line.iter_mut().zip(black) {
        let white = white(*black);
        for x in pixel {
            let product = u32::from(ink(*x)) * u32::from(white) + 128;
            *x = white.saturating_sub((((product >> 8) + product) >> 8) as u8);
        }
    }
}

/// ITU-R BT.601 over the full range, with 16 bits behind the point.
#[inline(always)]
fn rgb(y: u8, cb: u8, cr: u8) -> [u8; 3] {
    const HALF: i32 = 1 << 15;
    let (y, cb, cr) = (i32::from(y), i32::from(cb) - 128, i32::from(cr) - 128);
    let r = y + ((91881 * cr + HALF) >> 16);
    let g = y + ((-22554 * cb - 46802 * cr + HALF) >> 16);
    let b = y + ((116130 * cb + HALF) >> 16);
    [r.clamp(0, 255) as u8, g.clamp(0, 255) as u8, b.clamp(0, 255) as u8]
}

/// Memory for a row of a component in the size of the picture.
#[derive(Default)]
struct RowMemory {
    /// Sums of the samples of two rows, by their weights; with a neighbour on either side.
    sums: Vec<u16>,
    row: Vec<u8>,
}

impl Component {
    /// Row `y` of its samples, of which some are wanted.
    #[inline(always)]
    fn samples_of(&self, y: usize) -> &[u8] {
        let stride = 8 * self.columns.len();
        &self.samples[(y - 8 * self.rows.start) * stride..][..stride]
    }

    /// Row `y` of the picture, `width` pixels from `left`. `most` are the largest sampling factors, across and down.
    ///
    /// Where a component has half the samples, they are interpolated with weights 3/4 and 1/4; x.5 is rounded up and down
    /// alternately. Other ratios repeat samples.
    #[inline(always)]
    fn row<'a>(
        &'a self,
        most: (usize, usize),
        (left, width): (usize, usize),
        y: usize,
        memory: &'a mut RowMemory,
    ) -> &'a [u8] {
        let begin = 8 * self.columns.start;
        let near_y = (y * self.v / most.1).min(self.height - 1);
        let is_upper = y.is_multiple_of(2);
        let far_y = if is_upper { near_y.saturating_sub(1) } else { (near_y + 1).min(self.height - 1) };
        let near = self.samples_of(near_y);
        let (is_full_width, is_full_height) = (most.0 == self.h, most.1 == self.v);
        // Very narrow components are not interpolated across.
        let is_half_width = most.0 == 2 * self.h && self.width > 2;
        let is_half_height = most.1 == 2 * self.v;
        if is_full_width {
            let shown = left - begin..left - begin + width;
            if !is_half_height {
                return &near[shown];
            }
            let bias = if is_upper { 1 } else { 2 };
            let rows = near[shown.clone()].iter().zip(&self.samples_of(far_y)[shown]);
            memory.row.clear();
            memory.row.extend(rows.map(|(near, far)| ((weighted(*near, *far) + bias) >> 2) as u8));
        } else if is_half_width && (is_full_height || is_half_height) {
            let (first, last) = (left / 2, (left + width - 1) / 2);
            let samples = first.saturating_sub(1) - begin..(last + 2).min(self.width) - begin;
            let near = &near[samples.clone()];
            memory.sums.clear();
            if is_full_height {
                memory.sums.extend(near.iter().map(|near| u16::from(*near)));
            } else {
                let rows = near.iter().zip(&self.samples_of(far_y)[samples]);
                memory.sums.extend(rows.map(|(near, far)| weighted(*near, *far)));
            }
            // The first and the last sample are their own neighbours.
            if first == 0 {
                memory.sums.insert(0, memory.sums[0]);
            }
            memory.sums.extend(memory.sums.last().copied().filter(|_| last + 1 == self.width));
            memory.row.resize(2 * (last - first + 1), 0);
            across(&memory.sums, &mut memory.row, if is_full_height { (1, 2, 2) } else { (8, 7, 4) });
            return &memory.row[left - 2 * first..][..width];
        } else {
            let sample = |x: usize| near[(x * self.h / most.0).min(self.width - 1) - begin];
            memory.row.clear();
            memory.row.extend((left..left + width).map(sample));
        }
        &memory.row
    }
}

/// Four times the sample between a near one and one farther away.
#[inline(always)]
fn weighted(near: u8, far: u8) -> u16 {
    3 * u16::from(near) + u16::from(far)
}

/// Two samples for each one: it and its neighbour, three to one, rounded by two biases and divided by `2^shift`.
#[inline(always)]
fn across(sums: &[u16], out: &mut [u8], (left_bias, right_bias, shift): (u16, u16, u32)) {
    let neighbours = sums.iter().zip(&sums[1..]).zip(&sums[2..]);
    for (pair, ((left, own), right)) in out.as_chunks_mut::<2>().0.iter_mut().zip(neighbours) {
        pair[0] = ((3 * own + left + left_bias) >> shift) as u8;
        pair[1] = ((3 * own + right + right_bias) >> shift) as u8;
    }
}
