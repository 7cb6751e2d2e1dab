//! Changes of pixels, and values of inputs from them.

/// Grey of a pixel: `0.299 R + 0.587 G + 0.114 B` (ITU-R BT.601).
fn grey(p: &[u8; 3]) -> f32 {
    0.299 * f32::from(p[0]) + 0.587 * f32::from(p[1]) + 0.114 * f32::from(p[2])
}

/// Makes one byte of each pixel: its grey, rounded.
pub fn to_grey(pixels: &mut Vec<u8>) {
    *pixels = pixels.as_chunks::<3>().0.iter().map(|p| grey(p).round() as u8).collect();
}

/// Multiplies the brightness of pixels, then their distance from the mean grey, then that from their own grey.
pub fn change_colours(pixels: &mut [u8], [brightness, contrast, saturation]: [f32; 3]) {
    let blend = |p: u8, with: f32, factor: f32| (with + (f32::from(p) - with) * factor).clamp(0.0, 255.0) as u8;
    let by_table = |pixels: &mut [u8], with: f32, factor: f32| {
        let table: [u8; 256] = std::array::from_fn(|p| blend(p as u8, with, factor));
        pixels.iter_mut().for_each(|p| *p = table[usize::from(*p)]);
    };
    by_table(pixels, 0.0, brightness);
    let rgb = pixels.as_chunks::<3>().0;
    let mean = rgb.iter().map(|p| f64::from(grey(p))).sum::<f64>() / rgb.len().max(1) as f64;
    by_table(pixels, mean as f32, contrast);
    for pixel in pixels.as_chunks_mut::<3>().0 {
        let own = grey(pixel);
        pixel.iter_mut().for_each(|p| *p = blend(*p, own, saturation));
    }
}

/// Swaps left and right of rows of so many pixels.
pub fn flip(pixels: &mut [u8], width: usize, channels: usize) {
    for row in pixels.chunks_exact_mut((width * channels).max(1)) {
        match channels {
            3 => row.as_chunks_mut::<3>().0.reverse(),
            _ => row.reverse(),
        }
    }
}

/// Writes a value of `BYTES` bytes for each byte of pixels, from the table of its channel: the values of one channel after those of another,
/// or of one pixel after those of another.
pub fn look_up<const BYTES: usize>(
    pixels: &[u8],
    tables: &[[[u8; BYTES]; 256]],
    channels_first: bool,
    to: &mut [[u8; BYTES]],
) {
    match tables {
        [table] => to.iter_mut().zip(pixels).for_each(|(value, p)| *value = table[usize::from(*p)]),
        [red, green, blue] if channels_first => {
            let pixels = pixels.as_chunks::<3>().0;
            let (reds, others) = to.split_at_mut(pixels.len());
            let (greens, blues) = others.split_at_mut(pixels.len());
            for (((p, r), g), b) in pixels.iter().zip(reds).zip(greens).zip(blues) {
                (*r, *g, *b) = (red[usize::from(p[0])], green[usize::from(p[1])], blue[usize::from(p[2])]);
            }
        }
        _ => {
            for (pixel, values) in
                pixels.chunks_exact(tables.len().max(1)).zip(to.chunks_exact_mut(tables.len().max(1)))
            {
                for ((value, p), table) in values.iter_mut().zip(pixel).zip(tables) {
                    *value = table[usize::from(*p)];
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_mirrored_by_whole_pixels() {
        let mut pixels = vec![1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 0, 0];
        flip(&mut pixels, 2, 3);
        assert_eq!(pixels, [4, 5, 6, 1, 2, 3, 0, 0, 0, 7, 8, 9]);
        flip(&mut pixels, 4, 1);
        assert_eq!(pixels, [1, 6, 5, 4, 0, 0, 3, 2, 9, 8, 7, 0]);
    }

    #[test]
    fn values_are_those_of_the_tables_of_channels() {
        let tables: [[[u8; 1]; 256]; 3] = std::array::from_fn(|c| std::array::from_fn(|p| [(p + 10 * c) as u8]));
        let mut to = [[0]; 6];
        look_up(&[1, 2, 3, 4, 5, 6], &tables, true, &mut to);
        assert_eq!(to.as_flattened(), [1, 4, 12, 15, 23, 26]);
        look_up(&[1, 2, 3, 4, 5, 6], &tables, false, &mut to);
        assert_eq!(to.as_flattened(), [1, 12, 23, 4, 15, 26]);
        look_up(&[7, 8], &tables[..1], true, &mut to[..2]);
        assert_eq!(to[..2].as_flattened(), [7, 8]);
    }
}
