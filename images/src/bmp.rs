//! BMP images: palettes of 1 to 8 bits, run lengths, and colours of 16, 24 and 32 bits. Embedded JPEG and PNG, and CMYK,
//! are not supported. Source: learn.microsoft.com/windows/win32/gdi/bitmap-storage.

use super::picture::{Picture, check_size};

/// Sizes of the headers that there are: core, info, and versions 2 to 5.
const HEADERS: [u32; 6] = [12, 40, 52, 56, 108, 124];
/// Where the header begins, and where its masks do, which an info header has behind it.
const HEADER: usize = 14;
const MASKS: usize = 54;

/// How pixels are stored.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Coding {
    /// As they are.
    Plain,
    /// Runs of palette indices.
    Runs,
    /// By masks of red, green and blue.
    Masks([u32; 3]),
}

/// What the headers say.
struct Header {
    width: usize,
    height: usize,
    top_down: bool,
    bits: usize,
    coding: Coding,
    palette: Vec<[u8; 3]>,
    /// Where the pixels begin.
    data: usize,
}

/// The picture in a BMP file, of at most `most` bytes.
///
/// # Errors
/// When the file is damaged, of a kind that is not supported, or its picture too large.
pub(super) fn decode(file: &[u8], most: usize) -> Result<Picture, String> {
    let h = header(file)?;
    check_size(h.width, h.height, most)?;
    let data = file.get(h.data..).ok_or("it ends early")?;
    let rows = match h.coding {
        Coding::Runs => runs(&h, data)?,
        _ => plain(&h, data)?,
    };
    let pixels = if h.top_down { rows } else { rows.rchunks_exact(h.width.max(1) * 3).flatten().copied().collect() };
    Ok(Picture { width: h.width, height: h.height, pixels })
}

fn u16_at(file: &[u8], at: usize) -> Result<u16, String> {
    file.get(at..at + 2).map(|b| u16::from_le_bytes([b[0], b[1]])).ok_or_else(|| "it ends early".into())
}

fn u32_at(file: &[u8], at: usize) -> Result<u32, String> {
    file.get(at..at + 4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).ok_or_else(|| "it ends early".into())
}

fn header(file: &[u8]) -> Result<Header, String> {
    let size = u32_at(file, HEADER)?;
    if !HEADERS.contains(&size) {
        return Err(format!("headers of {size} bytes are not known"));
    }
    let core = size == 12;
    let (width, height, bits) = if core {
        (u16_at(file, 18)?.into(), u16_at(file, 20)?.into(), u16_at(file, 24)?)
    } else {
        (u32_at(file, 18)? as i32, u32_at(file, 22)? as i32, u16_at(file, 28)?)
    };
    if width < 0 {
        return Err("its width is negative".into());
    }
    let compression = if core { 0 } else { u32_at(file, 30)? };
    let coding = match (compression, bits) {
        (0, 16) => Coding::Masks([0x7c00, 0x03e0, 0x001f]),
        (0, 1 | 2 | 4 | 8 | 24 | 32) => Coding::Plain,
        (1, 8) | (2, 4) if height >= 0 => Coding::Runs,
        (3, 16 | 32) => Coding::Masks(masks(file, bits)?),
        _ => return Err(format!("{bits} bits a pixel with compression {compression} are not supported")),
    };
    Ok(Header {
        width: width as usize,
        height: height.unsigned_abs() as usize,
        top_down: height < 0,
        bits: bits.into(),
        coding,
        palette: if bits <= 8 { palette(file, size, bits)? } else { Vec::new() },
        data: u32_at(file, 10)? as usize,
    })
}

/// The masks of red, green and blue: neighbouring bits each.
fn masks(file: &[u8], bits: u16) -> Result<[u32; 3], String> {
    let masks = [u32_at(file, MASKS)?, u32_at(file, MASKS + 4)?, u32_at(file, MASKS + 8)?];
    for m in masks.iter().filter(|m| **m != 0) {
        let run = m >> m.trailing_zeros();
        if run & run.wrapping_add(1) != 0 || 32 - m.leading_zeros() > u32::from(bits) {
            return Err(format!("the mask {m:#x} is not one of neighbouring bits"));
        }
    }
    Ok(masks)
}

/// The palette; indices that it lacks are black.
fn palette(file: &[u8], header: u32, bits: u16) -> Result<Vec<[u8; 3]>, String> {
    let all = 1usize << bits;
    let (used, entry) = if header == 12 { (0, 3) } else { (u32_at(file, 46)? as usize, 4) };
    if used > all {
        return Err(format!("a palette of {used} colours is too large for {bits} bits"));
    }
    let start = HEADER + header as usize;
    let length = if used == 0 { all } else { used } * entry;
    let entries = file.get(start..start + length).ok_or("it ends early")?;
    let mut colours: Vec<[u8; 3]> = entries.chunks_exact(entry).map(|e| [e[2], e[1], e[0]]).collect();
    colours.resize(256, [0; 3]);
    Ok(colours)
}

/// Pixels that are stored as they are, in the order of the file.
fn plain(h: &Header, data: &[u8]) -> Result<Vec<u8>, String> {
    // Rows end at multiples of four bytes.
    let stride = (h.width * h.bits).div_ceil(32) * 4;
    let data = data.get(..stride * h.height).ok_or("it ends early")?;
    let mut out = Vec::with_capacity(h.width * h.height * 3);
    for row in data.chunks_exact(stride.max(1)) {
        match (h.bits, h.coding) {
            (16, Coding::Masks(m)) => {
                row.chunks_exact(2).take(h.width).for_each(|p| {
                    out.extend(m.map(|m| masked(u16::from_le_bytes([p[0], p[1]]).into(), m)));
                });
            }
            (_, Coding::Masks(m)) => {
                row.chunks_exact(4).take(h.width).for_each(|p| {
                    out.extend(m.map(|m| masked(u32::from_le_bytes([p[0], p[1], p[2], p[3]]), m)));
                });
            }
            (24 | 32, _) => {
                row.chunks_exact(h.bits / 8).take(h.width).for_each(|p| out.extend([p[2], p[1], p[0]]));
            }
            (bits, _) => {
                let index = |x: usize| row[x * bits / 8] >> (8 - bits - x * bits % 8) & (0xff >> (8 - bits)) as u8;
                (0..h.width).for_each(|x| out.extend(h.palette[usize::from(index(x))]));
            }
        }
    }
    Ok(out)
}

/// The part of a pixel under a mask, as 8 bits: the nearest for fewer, the upper ones of more.
fn masked(pixel: u32, mask: u32) -> u8 {
    if mask == 0 {
        return 0;
    }
    let length = mask.count_ones();
    let value = (pixel & mask) >> mask.trailing_zeros();
    if length >= 8 {
        return (value >> (length - 8)) as u8;
    }
    let most = (1 << length) - 1;
    ((value * 255 + most / 2) / most) as u8
}

/// Runs of palette indices, in the order of the file. Pixels that no run reaches are black.
fn runs(h: &Header, data: &[u8]) -> Result<Vec<u8>, String> {
    let mut out = vec![0; h.width * h.height * 3];
    let mut data = data.iter().copied();
    let mut byte = move || data.next().ok_or("it ends early");
    let (mut x, mut y) = (0, 0);
    while y < h.height {
        match (byte()?, byte()?) {
            (0, 0) => (x, y) = (0, y + 1),
            (0, 1) => break,
            (0, 2) => (x, y) = (x + usize::from(byte()?), y + usize::from(byte()?)),
            (0, count) => {
                let count = usize::from(count);
                if x + count > h.width {
                    return Err("a run is longer than its row".into());
                }
                // Indices are padded to an even number of bytes.
                let bytes = (count * h.bits).div_ceil(16) * 2;
                for i in 0..bytes {
                    let b = byte()?;
                    let indices = if h.bits == 8 { [b, b] } else { [b >> 4, b & 15] };
                    for (k, index) in indices[..8 / h.bits].iter().enumerate() {
                        if i * 8 / h.bits + k < count {
                            set(h, &mut out, x, y, *index);
                            x += 1;
                        }
                    }
                }
            }
            (count, b) => {
                let indices = if h.bits == 8 { [b, b] } else { [b >> 4, b & 15] };
                // Encoders exist whose last run is longer than the row.
                for i in 0..usize::from(count).min(h.width.saturating_sub(x)) {
                    set(h, &mut out, x, y, indices[i % 2]);
                    x += 1;
                }
            }
        }
    }
    Ok(out)
}

fn set(h: &Header, out: &mut [u8], x: usize, y: usize, index: u8) {
    let at = (y * h.width + x) * 3;
    out[at..at + 3].copy_from_slice(&h.palette[usize::from(index)]);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file of an info header, a palette of black, red, green and blue, and data.
    fn file(width: i32, height: i32, bits: u16, compression: u32, data: &[u8]) -> Vec<u8> {
        let palette: &[u8] = match bits {
            1 => &[0, 0, 0, 0, 0, 0, 255, 0],
            2..=8 => &[0, 0, 0, 0, 0, 0, 255, 0, 0, 255, 0, 0, 255, 0, 0, 0],
            _ => &[],
        };
        let masks: &[u8] = if compression == 3 { &[0, 0xf8, 0, 0, 0xe0, 7, 0, 0, 0x1f, 0, 0, 0] } else { &[] };
        let used = palette.len() as u32 / 4;
        let mut out = b"BM\0\0\0\0\0\0\0\0".to_vec();
        out.extend((54 + palette.len() as u32 + masks.len() as u32).to_le_bytes());
        out.extend([40u32.to_le_bytes(), width.to_le_bytes(), height.to_le_bytes()].concat());
        out.extend([1u16.to_le_bytes(), bits.to_le_bytes()].concat());
        out.extend([compression, 0, 0, 0, used, 0].map(u32::to_le_bytes).concat());
        [&out, masks, palette, data].concat()
    }

    fn pixels(file: &[u8]) -> Vec<u8> {
        decode(file, 1 << 20).map(|p| p.pixels).unwrap()
    }

    const BLACK: [u8; 3] = [0, 0, 0];
    const RED: [u8; 3] = [255, 0, 0];
    const GREEN: [u8; 3] = [0, 255, 0];
    const BLUE: [u8; 3] = [0, 0, 255];

    #[test]
    fn palettes_of_all_widths_are_looked_up() {
        assert_eq!(pixels(&file(2, 1, 1, 0, &[0x40, 0, 0, 0])), [BLACK, RED].concat());
        assert_eq!(pixels(&file(3, 1, 2, 0, &[0b0110_1100, 0, 0, 0])), [RED, GREEN, BLUE].concat());
        assert_eq!(pixels(&file(3, 1, 4, 0, &[0x12, 0x30, 0, 0])), [RED, GREEN, BLUE].concat());
        // The last row is the first in the file, unless the height is negative. Index 9 is not in the palette.
        let data = [1, 9, 0, 0, 2, 3, 0, 0];
        assert_eq!(pixels(&file(2, 2, 8, 0, &data)), [GREEN, BLUE, RED, BLACK].concat());
        assert_eq!(pixels(&file(2, -2, 8, 0, &data)), [RED, BLACK, GREEN, BLUE].concat());
    }

    #[test]
    fn colours_of_16_and_32_bits_are_scaled_to_bytes() {
        assert_eq!(pixels(&file(2, 1, 16, 0, &[0x00, 0x7c, 0x10, 0x02])), [255, 0, 0, 0, 132, 132]);
        assert_eq!(pixels(&file(2, 1, 16, 3, &[0x00, 0xf8, 0xe0, 0x03])), [255, 0, 0, 0, 125, 0]);
        assert_eq!(pixels(&file(1, 1, 32, 0, &[3, 2, 1, 7])), [1, 2, 3]);
        assert_eq!([masked(0x3ff, 0x3ff), masked(0x3fc, 0x3ff), masked(7, 0)], [255, 255, 0]);
    }

    #[test]
    fn bmp_runs_are_expanded() {
        // Two red, end of the row; green and blue as they are, end of the picture.
        let eight = [2, 1, 0, 0, 0, 3, 2, 3, 2, 0, 0, 1];
        assert_eq!(pixels(&file(3, 2, 8, 1, &eight)), [GREEN, BLUE, GREEN, RED, RED, BLACK].concat());
        // Red and green alternate; a step of one pixel, then blue.
        let four = [3, 0x12, 0, 0, 0, 2, 1, 0, 2, 0x33, 0, 1];
        assert_eq!(pixels(&file(3, 2, 4, 2, &four)), [BLACK, BLUE, BLUE, RED, GREEN, RED].concat());
        assert!(decode(&file(1, 1, 8, 1, &[0, 3, 1, 1, 1, 0]), 1 << 20).is_err());
        assert!(decode(&file(3, 2, 8, 1, &eight[..8]), 1 << 20).is_err());
    }
}
