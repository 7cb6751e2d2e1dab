//! JPEG as ITU-T T.81 defines it, of 8 bits with Huffman codes: baseline, extended and progressive.
//!
//! The standard leaves the rounding of the inverse transform and the interpolation of subsampled colours open. ONNX asks
//! for those of libjpeg, the de facto reference; decoders that are faster
//! differ from it by one or two. This one gives the same pixels as libjpeg.

mod bits;
mod pixels;
mod scan;
mod transform;

use std::ops::Range;

use bits::Huffman;

use crate::formats::Part;
use crate::picture::{Area, check_size};

/// More than any encoder makes; each of them may be a pass over the whole picture.
const MAX_SCANS: usize = 200;

/// A colour component of the picture.
struct Component {
    id: u8,
    /// How many blocks of 8x8 it has in a unit, across and down.
    h: usize,
    v: usize,
    /// Which quantization table is its own; the table itself once a scan has begun.
    quantization: usize,
    table: Option<[u16; 64]>,
    /// Its size in samples.
    width: usize,
    height: usize,
    /// Blocks a row, in whole units.
    stride: usize,
    /// Coefficients of blocks in natural order: of all in a progressive picture, of a row of units otherwise.
    blocks: Vec<[i16; 64]>,
    /// Blocks whose samples are wanted.
    rows: Range<usize>,
    columns: Range<usize>,
    /// The samples of those, row by row.
    samples: Vec<u8>,
}

/// The header of the picture.
struct Frame {
    progressive: bool,
    width: usize,
    height: usize,
    /// The pixels that are wanted.
    area: Area,
    /// Units across and down.
    units: (usize, usize),
    components: Vec<Component>,
}

/// What markers have said so far.
#[derive(Default)]
struct State {
    quantization: [Option<[u16; 64]>; 4],
    dc: [Option<Huffman>; 4],
    ac: [Option<Huffman>; 4],
    restart: usize,
    jfif: bool,
    /// The colour transform that an Adobe marker specifies.
    adobe: Option<u8>,
    frame: Option<Frame>,
    scans: usize,
}

/// The order in which a file has the 64 coefficients of a block.
#[rustfmt::skip]
const ZIGZAG: [usize; 64] = [
    0, 1, 8, 16, 9, 2, 3, 10, 17, 24, 32, 25, 18, 11, 4, 5, 12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13, 6, 7, 14, 21, 28,
    35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55,
    62, 63,
];

/// What is wrong with a scan.
type Fault = &'static str;

const ENDS: Fault = "the file ends early";
const TOO_MANY: Fault = "a block has too many coefficients";

/// Reads a file whose pixels take at most `most` bytes: those that `wanted` chooses by the size of the picture. Of a sequential picture, the
/// blocks of other pixels are passed, and what comes after the last row is not read.
///
/// # Errors
/// What is wrong with the file, or what it has that is not read.
pub(super) fn decode(
    file: &[u8],
    most: usize,
    wanted: &dyn Fn(usize, usize) -> Area,
    part: &mut Part,
) -> Result<(), String> {
    let mut state = State::default();
    let mut at = 2;
    loop {
        let marker = next_marker(file, &mut at)?;
        match marker {
            0xd9 => break,
            // Markers without a segment: resets between scans, and one of no meaning.
            0x01 | 0xd0..=0xd7 => continue,
            _ => {}
        }
        let length = file.get(at..at + 2).map(|b| usize::from(be(b))).ok_or(ENDS)?;
        let segment = file.get(at + 2..at + length.max(2)).ok_or(ENDS)?;
        at += length.max(2);
        match marker {
            0xdb => state.quantization_tables(segment)?,
            0xc4 => state.huffman_tables(segment)?,
            0xdd => state.restart = usize::from(be(segment.get(..2).ok_or(ENDS)?)),
            0xe0 => state.jfif |= segment.starts_with(b"JFIF\0"),
            0xee if segment.starts_with(b"Adobe") => state.adobe = segment.get(11).copied(),
            0xc0..=0xc2 => state.frame(segment, marker == 0xc2, most, wanted)?,
            0xc3 | 0xc5..=0xc7 | 0xcb | 0xcd..=0xcf => return Err("it is lossless, hierarchical, or both".into()),
            0xc9 | 0xca | 0xcc => return Err("it has arithmetic codes".into()),
            0xda => {
                let read = state.scan(segment, &file[at..])?;
                if read.suffices {
                    break;
                }
                at += read.bytes;
            }
            _ => {}
        }
    }
    let (jfif, adobe) = (state.jfif, state.adobe);
    let mut frame = state.frame.ok_or("it has no picture")?;
    if let Some(c) = frame.components.iter().find(|c| c.table.is_none()) {
        return Err(format!("component {} is in no scan", c.id));
    }
    if frame.progressive {
        frame.components.iter_mut().for_each(|c| c.rows.clone().for_each(|row| c.transform(row, row)));
    }
    pixels::of(&frame, jfif, adobe, part);
    Ok(())
}

/// A number of two bytes.
fn be(bytes: &[u8]) -> u16 {
    u16::from_be_bytes([bytes[0], bytes[1]])
}

/// The code of the next marker; bytes before it are skipped.
fn next_marker(file: &[u8], at: &mut usize) -> Result<u8, String> {
    loop {
        match file.get(*at..*at + 2).ok_or(ENDS)? {
            [0xff, code @ 0x01..=0xfe] => {
                *at += 2;
                return Ok(*code);
            }
            _ => *at += 1,
        }
    }
}

impl State {
    fn quantization_tables(&mut self, mut s: &[u8]) -> Result<(), String> {
        while let Some((head, rest)) = s.split_first() {
            let (wide, id) = (head >> 4 != 0, usize::from(head & 15));
            let size = if wide { 128 } else { 64 };
            let values = rest.get(..size).ok_or(ENDS)?;
            let mut table = [0; 64];
            for (k, at) in ZIGZAG.iter().enumerate() {
                table[*at] = if wide { be(&values[2 * k..]) } else { u16::from(values[k]) };
            }
            *self.quantization.get_mut(id).ok_or("a quantization table has a number above 3")? = Some(table);
            s = &rest[size..];
        }
        Ok(())
    }

    fn huffman_tables(&mut self, mut s: &[u8]) -> Result<(), String> {
        while let Some((head, rest)) = s.split_first() {
            let counts = rest.get(..16).ok_or(ENDS)?;
            let n: usize = counts.iter().map(|c| usize::from(*c)).sum();
            let values = rest.get(16..16 + n).ok_or(ENDS)?;
            let tables = if head >> 4 == 0 { &mut self.dc } else { &mut self.ac };
            let place = tables.get_mut(usize::from(head & 15)).ok_or("a Huffman table has a number above 3")?;
            *place = Some(Huffman::new(counts, values)?);
            s = &rest[16 + n..];
        }
        Ok(())
    }

    /// Start of frame: sizes, and memory for the coefficients if that is not more than `most` bytes of pixels need.
    fn frame(
        &mut self,
        s: &[u8],
        progressive: bool,
        most: usize,
        wanted: &dyn Fn(usize, usize) -> Area,
    ) -> Result<(), String> {
        if self.frame.is_some() {
            return Err("it has two pictures in one".into());
        }
        let [bits, y1, y0, x1, x0, n, list @ ..] = s else { return Err(ENDS.into()) };
        let (height, width) = (usize::from(be(&[*y1, *y0])), usize::from(be(&[*x1, *x0])));
        if *bits != 8 {
            return Err(format!("it has {bits} bits a sample; 8 are read"));
        }
        if !matches!(*n, 1 | 3 | 4) {
            return Err(format!("it has {n} colour components; 1, 3 and 4 are read"));
        }
        if width == 0 || height == 0 {
            return Err(format!("it has the size {width} x {height}"));
        }
        check_size(width, height, most)?;
        let list: Vec<&[u8]> = list.chunks_exact(3).take(usize::from(*n)).collect();
        if list.len() != usize::from(*n) {
            return Err(ENDS.into());
        }
        let factors: Vec<(usize, usize)> =
            list.iter().map(|c| (usize::from(c[1] >> 4), usize::from(c[1] & 15))).collect();
        if factors.iter().any(|(h, v)| !(1..=4).contains(h) || !(1..=4).contains(v)) {
            return Err("a sampling factor is not one of 1 to 4".into());
        }
        let (h_max, v_max) = factors.iter().fold((1, 1), |m, f| (m.0.max(f.0), m.1.max(f.1)));
        let units = (width.div_ceil(8 * h_max), height.div_ceil(8 * v_max));
        let area = wanted(width, height).within(width, height);
        let component = |(c, &(h, v)): (&&[u8], &(usize, usize))| {
            let (own_width, own_height) = ((width * h).div_ceil(h_max), (height * v).div_ceil(v_max));
            let rows = blocks(area.top, area.height, (v_max, v), own_height);
            let columns = blocks(area.left, area.width, (h_max, h), own_width);
            Component {
                id: c[0],
                h,
                v,
                quantization: usize::from(c[2]),
                table: None,
                width: own_width,
                height: own_height,
                stride: units.0 * h,
                blocks: vec![[0; 64]; units.0 * h * v * if progressive { units.1 } else { 1 }],
                samples: vec![0; rows.len() * columns.len() * 64],
                rows,
                columns,
            }
        };
        let components = list.iter().zip(&factors).map(component).collect();
        self.frame = Some(Frame { progressive, width, height, area, units, components });
        Ok(())
    }

    /// Start of scan, and its codes.
    fn scan(&mut self, s: &[u8], codes: &[u8]) -> Result<scan::Read, String> {
        self.scans += 1;
        if self.scans > MAX_SCANS {
            return Err(format!("it has more than {MAX_SCANS} scans"));
        }
        let frame = self.frame.as_mut().ok_or("a scan comes before the picture")?;
        let (n, rest) = s.split_first().ok_or(ENDS)?;
        let list = rest.get(..2 * usize::from(*n)).ok_or(ENDS)?;
        let &[first, last, approximation] = rest.get(list.len()..list.len() + 3).ok_or(ENDS)? else {
            return Err(ENDS.into());
        };
        let mut members = Vec::new();
        for c in list.chunks_exact(2) {
            let found = frame.components.iter().position(|k| k.id == c[0]);
            let index = found.ok_or_else(|| format!("a scan is of component {}, which is none", c[0]))?;
            if members.iter().any(|m: &scan::Member<'_>| m.index == index) {
                return Err("a scan has a component twice".into());
            }
            let component = &mut frame.components[index];
            if component.table.is_none() {
                let table = self.quantization.get(component.quantization).copied().flatten();
                component.table = Some(table.ok_or("a quantization table is missing")?);
            }
            let (dc, ac) = (usize::from(c[1] >> 4), usize::from(c[1] & 15));
            members.push(scan::Member {
                index,
                dc: self.dc.get(dc).and_then(Option::as_ref),
                ac: self.ac.get(ac).and_then(Option::as_ref),
                last_dc: 0,
            });
        }
        // Sequential pictures have all coefficients in full in each scan.
        let (first, last, high, low) = if frame.progressive {
            (usize::from(first), usize::from(last), approximation >> 4, approximation & 15)
        } else {
            (0, 63, 0, 0)
        };
        let fits = first <= last && last < 64 && low < 14 && (high == 0 || high == low + 1);
        let progressive_fits = !frame.progressive || if first == 0 { last == 0 } else { members.len() == 1 };
        if members.is_empty() || !fits || !progressive_fits {
            return Err("a scan's header contradicts itself".into());
        }
        let scan = scan::Scan { first, last, refines: high != 0, low, restart: self.restart };
        Ok(scan.read(frame, &mut members, codes)?)
    }
}

/// The blocks, along an axis, whose samples pixels from `begin` need. `factors` are the largest sampling factor and the component's own;
/// `samples` is how many samples it has.
fn blocks(begin: usize, pixels: usize, factors: (usize, usize), samples: usize) -> Range<usize> {
    let sample = |pixel: usize| pixel * factors.1 / factors.0;
    // Interpolation needs a neighbour on each side.
    let (first, last) = (sample(begin).saturating_sub(1), (sample(begin + pixels - 1) + 1).min(samples - 1));
    first.min(last) / 8..last / 8 + 1
}
